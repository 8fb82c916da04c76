"""1F1B over replicated stages: the plain replay and the native sweep end at the same times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InvalidInput
from trainwright.lab.token_replay import ReplicatedStage, replay_replicas
from trainwright.step.pipeline import PipelineStage, one_f_one_b_ends_s

seconds = st.sampled_from([0.25, 1.0, 1.5, 3.0])


@st.composite
def replicated(draw: st.DrawFn) -> list[ReplicatedStage]:
    """Stages of a graph whose edges lead forwards, holding what 1F1B lets them hold."""
    replicas = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    made = []
    for at, count in enumerate(replicas):
        later = st.sets(st.integers(at + 1, len(replicas) - 1)) if at + 1 < len(replicas) else None
        more = draw(later) if later is not None else set()
        if at + 1 < len(replicas):
            more.add(at + 1)
        made.append(
            ReplicatedStage(
                forward_s=draw(seconds),
                backward_s=draw(seconds),
                replicas=count,
                in_flight=-(-sum(replicas[at:]) // count),
                feeds=tuple(sorted(more)),
            )
        )
    return made


@given(replicated(), st.integers(1, 12))
def test_ends_are_those_of_the_native_sweep(stages, num_microbatches):
    found = replay_replicas(stages, num_microbatches)
    native = one_f_one_b_ends_s(
        [
            PipelineStage(
                forward_s=stage.forward_s,
                backward_s=stage.backward_s,
                in_flight=stage.in_flight,
                replicas=stage.replicas,
                feeds=tuple((target, 0.0) for target in stage.feeds),
            )
            for stage in stages
        ],
        num_microbatches=num_microbatches,
    )
    assert found.end_s == pytest.approx(native)
    assert found.num_actions == 2 * num_microbatches * len(stages)
    for stage, held in zip(stages, found.most_in_flight, strict=True):
        assert held == min(stage.in_flight, -(-num_microbatches // stage.replicas))


def test_two_stages_take_what_one_can_count_by_hand():
    stage = {"forward_s": 1.0, "backward_s": 2.0, "replicas": 1}
    first = ReplicatedStage(**stage, in_flight=2, feeds=(1,))
    last = ReplicatedStage(**stage, in_flight=1)
    found = replay_replicas([first, last], 2)
    assert found.end_s == (9.0, 7.0)
    assert found.most_in_flight == (2, 1)


def test_stages_that_wait_for_each_other_are_named():
    stage = {"forward_s": 1.0, "backward_s": 1.0, "replicas": 1, "in_flight": 1}
    loop = [ReplicatedStage(**stage, feeds=(1,)), ReplicatedStage(**stage, feeds=(0,))]
    with pytest.raises(InvalidInput, match="a replica of stage 0 waits at F0; a replica of stage"):
        replay_replicas(loop, 1)
