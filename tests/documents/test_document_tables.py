"""Tables of documents: what they must say whatever the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainwright
from trainwright.documents.difference import Change, Difference, StageChange, StageFacts
from trainwright.documents.printing import render, to_text
from trainwright.documents.profile_plan import PlanResult, StageRecord, explain_stages
from trainwright.formats.piper_json import read_piper
from trainwright.plans.status import Status

from small_profiles import transformer  # isort: skip


@pytest.fixture
def document() -> PlanResult:
    file = read_piper(transformer(), source="small.json")
    return trainwright.plan(file, memory="3GB").document


def text_of(document) -> str:
    return to_text(render(document))


def lines(document) -> list[str]:
    return text_of(document).splitlines()


def test_every_status_has_its_own_words(document):
    said = set()
    for status, stages in (
        (Status.OPTIMAL, True),
        (Status.GAP, True),
        (Status.INFEASIBLE, False),
        (Status.UNKNOWN, False),
    ):
        told = replace(document, status=status)
        if not stages:
            told = replace(told, stages=(), time_per_sample_s=None)
        said.add(lines(told)[0].rpartition(": ")[2])
    assert len(said) == 4


def test_a_gap_is_rounded_up(document):
    told = replace(document, status=Status.GAP, gap=0.012301)
    assert lines(told)[0].endswith("gap <= 1.24%")


def test_an_interrupted_plan_says_so(document):
    assert "interrupted" not in text_of(document)
    told = lines(replace(document, interrupted=True))
    assert told[-1] == "interrupted: this is the best plan found so far"


def test_the_last_lines_say_what_binds(document):
    time_line, memory_line = lines(document)[-2:]
    found = explain_stages(document.stages, 3e9)
    assert time_line.startswith(f"time binds in stage {found.slowest_stage}, 96% of it compute")
    assert memory_line.startswith(f"memory is fullest in stage {found.fullest_stage}: ")


def test_ties_mark_every_slowest_stage(document):
    twins = tuple(replace(stage, time_per_sample_s=1.0) for stage in document.stages)
    assert text_of(replace(document, stages=twins)).count("slowest") == len(twins) == 2


def test_waiting_is_weighted_by_devices(document):
    first, second = document.stages

    def idle(one: StageRecord, other: StageRecord) -> float:
        return explain_stages((one, other), None).idle_fraction

    slow = replace(first, time_per_sample_s=4.0, data_parallel=1, tensor_parallel=1)
    quick = replace(second, time_per_sample_s=1.0, data_parallel=3, tensor_parallel=1)
    assert idle(slow, quick) == pytest.approx(3 * 3 / (4 * 4))
    assert idle(slow, replace(slow, layers=(9,))) == 0


def test_no_time_at_all_is_explained_without_dividing(document):
    free = tuple(
        replace(
            stage,
            time_per_sample_s=0.0,
            breakdown=replace(
                stage.breakdown, compute_s=0.0, edge_traffic_s=0.0, gradient_sync_s=0.0
            ),
        )
        for stage in document.stages
    )
    found = explain_stages(free, None)
    assert found.idle_fraction == 0
    assert set(found.time_share.values()) == {0.0}
    assert "0% of it" in text_of(replace(document, stages=free))


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (1.0, "both take the same time"),
        (0.0, "the second takes no time at all"),
        (2.0, "the second is 2x slower"),
        (0.5, "the second is 2x faster"),
        (1.00001, "the second is a fraction of 1e-05 slower"),
        (5e-324, "the second is infx faster"),
    ],
)
def test_a_ratio_is_put_into_words(ratio, words):
    told = lines(Difference(same_model=False, time_ratio=ratio))
    assert told == ["the two documents are about different models", words]


def test_steps_of_unlike_work_are_compared_by_their_tokens():
    told = lines(
        Difference(
            same_model=True,
            time_ratio=2.0,
            request_changes=(Change(key="global_batch", before=64, after=128),),
            result_changes=(Change(key="tokens_per_s", before=1e5, after=1.1e5),),
        )
    )
    wanted = "1.1x as many tokens per second; its steps, of another size, take 2x as long"
    assert told[-1] == wanted


def test_values_too_close_to_tell_apart_are_shown_in_full():
    facts = StageFacts(
        layers=(0, 1, 2),
        data_parallel=1,
        tensor_parallel=2,
        num_recomputed=0,
        time_per_sample_s=0.5,
        memory_bytes=2.0**30,
    )
    shown = "\n".join(
        lines(
            Difference(
                same_model=True,
                request_changes=(Change(key="memory_bytes", before=2.0**30, after=2.0**30 + 1),),
                result_changes=(Change(key="gap", before=0.5, after=None),),
                stage_changes=(
                    StageChange(stage=0, before=facts, after=replace(facts, memory_bytes=7e9)),
                    StageChange(
                        stage=1, before=facts, after=replace(facts, memory_bytes=2**30 + 1)
                    ),
                    StageChange(stage=2, before=facts),
                ),
            )
        )
    )
    assert "1073741824.0" in shown
    assert "1073741825.0" in shown
    assert "50.00%" in shown
    assert "stage 0" in shown
    assert "layers 0-2; d=1, t=2, recompute 0/3, 500 ms," in shown
    assert "6.52 GiB" in shown
    assert "0.5 s, 1073741825 B" in shown
