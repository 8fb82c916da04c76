"""Nothing that `estimate` can say beats what the planner calls proved: a short attack."""

from __future__ import annotations

import random

import pytest
from attack import ASKED, FAMILIES, attack, drawn_pools, planned

import random_spaces
import trainwright
from trainwright.planning.question import layouts
from trainwright.plans.status import Status

# Models, 16 to 64 devices and configurations that once beat what was called a bound.
ONCE_BELOW = [
    ("gpt2-xl", "dgx-h100", 16, 48, 1024, {"dp": 16, "micro_batch": 3, "zero": 1}),
    ("bert-large", "dgx-a100", 64, 4096, 128, {"dp": 64, "micro_batch": 64, "zero": 1}),
]


@pytest.mark.parametrize(
    ("seed", "questions"),
    [
        (4, 1),  # a question that takes a second
        pytest.param(5, 1, marks=pytest.mark.slow),
        pytest.param(6, 1, marks=pytest.mark.papers),
        pytest.param(1, 4, marks=pytest.mark.slow),
        pytest.param(2, 4, marks=pytest.mark.papers),
    ],
)
def test_no_configuration_beats_what_is_proved(seed, questions):
    found = attack(seed, questions=questions, tries=60, most_devices=2)
    assert found.questions > 0
    assert found.finds == []


@pytest.mark.parametrize(
    ("seed", "questions"), [(5, 2), pytest.param(9, 10, marks=pytest.mark.slow)]
)
def test_no_configuration_beats_what_is_proved_of_unlike_pools(seed, questions):
    found = attack(seed, questions=questions, tries=80, most_devices=4, about="pools")
    assert found.questions == questions
    assert found.finds == []


@pytest.mark.parametrize(
    ("seed", "questions"), [(6, 1), pytest.param(1, 8, marks=pytest.mark.slow)]
)
def test_no_run_that_a_framework_launches_beats_what_is_proved_of_it(seed, questions):
    found = attack(seed, questions=questions, tries=250, about="frameworks")
    assert found.questions > 0
    assert found.finds == []


def test_one_replica_in_a_pipeline_runs_the_stage_of_zero_that_was_asked_for():
    """It shards nothing; asked for ZeRO 2, Megatron once had only plans without a pipeline."""
    assert attack(3010001, questions=1, first=11, tries=250, about="frameworks").finds == []


@pytest.mark.parametrize("draw", ["78-13", pytest.param("81-18", marks=pytest.mark.slow)])
def test_ranks_of_unlike_pools_may_have_unlike_numbers_of_ways_to_run_a_block(draw, tmp_path):
    found = planned(drawn_pools(random.Random(draw), tmp_path, 0, 16))
    assert 0 < found.lower_bound_s <= found.step_time_s


def test_every_family_that_plans_may_have_is_attacked():
    """Attackers name families themselves, so that none is left out as the planner leaves it out."""
    of_their_own = layouts.SLICED | layouts.ON_HOST  # oracles of orders hold these
    assert {*FAMILIES, *ASKED} == {*layouts.BOUNDED} - of_their_own
    assert {*random_spaces.CHAINS} == {*layouts.CHAIN} - of_their_own - layouts.CUTS_HEAD


@pytest.mark.papers
@pytest.mark.parametrize("seed", range(10, 13))
def test_no_configuration_beats_what_is_proved_in_a_longer_attack(seed):
    assert attack(seed, questions=3, tries=250).finds == []


@pytest.mark.parametrize(("model", "cluster", "devices", "batch", "sequence", "how"), ONCE_BELOW)
def test_microbatches_of_any_size_are_bounded(model, cluster, devices, batch, sequence, how):
    """The bound on the replicated layouts alone, which is the highest."""
    job = {"cluster": cluster, "devices": devices, "global_batch": batch, "sequence": sequence}
    plan = trainwright.plan(model, **job, tp=1, pp=1, cp=1, top=0).document
    run = trainwright.estimate(model, **job, **how).document
    assert plan.lower_bound_s <= run.step_time_s * (1 + 1e-9)


@pytest.mark.parametrize("first", ["interleaved", "v-half"])
def test_a_schedule_list_may_begin_with_several_chunks(first):
    job = {"cluster": "dgx-h100", "devices": 8, "global_batch": 64, "sequence": 1024}
    both, alone = (
        trainwright.plan("gpt2", **job, schedule=names, tp=1, cp=1, top=0).document
        for names in (f"{first},zb-h1", "zb-h1")
    )
    assert both.step_time_s <= alone.step_time_s * (1 + 1e-12)
    assert alone.status is Status.OPTIMAL


@pytest.mark.slow
def test_the_free_space_has_a_name():
    job = {"cluster": "dgx-h100", "devices": 2, "global_batch": 4, "sequence": 512}
    free, plain = (trainwright.plan("gpt2", **job, framework=f) for f in ("any", None))
    assert free.document.step_time_s == plain.document.step_time_s
