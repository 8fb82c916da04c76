"""A term that ZeRO does not have, added in its one place: all that prices or bounds follows.

Every stage holds a gibibyte more and exposes a millisecond more after its last microbatch. Only
`exposed` and `state_bytes` of `step.zero` know. Estimates, bounds, planners, chip searches,
documents and pages are asked as they are, and held against exhaustion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest

import exhaustive_pools as pools
import exhaustive_profiles as profiles
import trainwright
from chips.jobs import job, question, some_designs
from exhaustive import LLAMA, asked, least_steps_s
from mixed_clusters import two_kinds
from random_cases import marked
from random_spaces import CHAINS, LOOPED, random_question
from trainwright._native._core import fastest_family_plans
from trainwright.chips.document import expert_plan
from trainwright.chips.plans import Shape, order_of, problem_of
from trainwright.chips.population import populate
from trainwright.chips.price import JobPricer
from trainwright.chips.request import CodesignQuestion
from trainwright.chips.room import Limits, RoomPricer, read_room
from trainwright.chips.room_search import RoomOutcome, RoomSearch
from trainwright.chips.search import least_bytes, search
from trainwright.chips.workload import TrainingJob
from trainwright.commands.codesign import Extras, recheck_document
from trainwright.errors import CheckFailed, InvalidInput
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.planning.bounds.pools import MixedShelf
from trainwright.planning.question.question import Span
from trainwright.planning.reasons.infeasible import diagnose_model
from trainwright.planning.search.pools import plan_mixed
from trainwright.planning.search.search import plan_model
from trainwright.planning.splits.pools import best_mixed_split
from trainwright.plans import Parallelism
from trainwright.plans.configuration import Configuration
from trainwright.plans.status import Status
from trainwright.step import zero
from trainwright.step.predict import price_configuration
from trainwright.units import GIB, format_bytes

TERM_S = 1e-3
TERM_BYTES = float(GIB)
SLOW, PAPERS = pytest.mark.slow, pytest.mark.papers


def add_the_term(patch: pytest.MonkeyPatch) -> None:
    exposed, state_bytes = zero.exposed, zero.state_bytes

    def more_exposed(*rows):  # type: ignore[no-untyped-def]
        found = exposed(*rows)
        return found._replace(last_gradients_s=found.last_gradients_s + TERM_S)

    def more_state(*rows, **held):  # type: ignore[no-untyped-def]
        found = np.array(state_bytes(*rows, **held))
        found[..., 0] += TERM_BYTES
        return found

    patch.setattr(zero, "exposed", more_exposed)
    patch.setattr(zero, "state_bytes", more_state)


@pytest.fixture
def term(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    add_the_term(monkeypatch)
    yield


# Estimates
# ---------


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2), ("v-half", 2)])
def test_an_estimate_has_it_for_each_stage(schedule: str, chunks: int, zero_stage: int) -> None:
    model, cluster = replace(LLAMA, num_layers=4), catalog.cluster("dgx-h100")
    run = Configuration(
        parallelism=Parallelism(pipeline=2, virtual_stages=chunks, data=2, zero_stage=zero_stage),
        microbatch_size=1,
        global_batch=8,
        sequence_length=1024,
        schedule=schedule,
    )
    usual = price_configuration(model, cluster, run)
    with pytest.MonkeyPatch.context() as patch:
        add_the_term(patch)
        found = price_configuration(model, cluster, run)
    assert found.step_time_s == pytest.approx(usual.step_time_s + chunks * TERM_S, rel=1e-12)
    for rank, other in zip(found.stages, usual.stages, strict=True):
        more = rank.memory.total_bytes - other.memory.total_bytes
        assert more == pytest.approx(chunks * TERM_BYTES, rel=1e-12)


# Planners, against every plan of small spaces
# --------------------------------------------


def holds_against_exhaustion(question) -> None:  # type: ignore[no-untyped-def]
    least_s = min(least_steps_s.__wrapped__(question).values(), default=math.inf)
    outcome = plan_model(question, Budget())
    found_s = min((one.step.step_time_s for one in outcome.priced), default=math.inf)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-9)
    assert found_s == pytest.approx(least_s, rel=1e-9)


@pytest.mark.usefixtures("term")
@pytest.mark.parametrize(
    "seed", marked(range(20), slow=(2, 3, 4, 6, 7, 8, 9), papers=range(10, 20))
)
@pytest.mark.parametrize("families", [CHAINS, LOOPED], ids=["chains", "loops"])
def test_the_planner_finds_and_bounds_the_best(seed: int, families: tuple[str, ...]) -> None:
    holds_against_exhaustion(random_question(Random(seed), families, most_plans=150))


@pytest.mark.usefixtures("term")
@pytest.mark.parametrize(
    ("family", "memory_gib"),
    [
        *(pytest.param(*one, marks=SLOW) for one in (("zb-v", 60), ("v-half", 30))),
        *(pytest.param(*one, marks=PAPERS) for one in (("zb-v", 30), ("v-half", 60))),
        *(pytest.param("v-min", memory_gib, marks=PAPERS) for memory_gib in (30, 60)),
    ],
)
def test_so_it_does_in_v(family: str, memory_gib: float) -> None:
    one = Span.only(1)
    holds_against_exhaustion(
        asked(
            replace(LLAMA, num_layers=4),
            memory_gib=memory_gib,
            devices=2,
            batch=3,
            schedules=(family,),
            zero_stages=(0,),
            pipeline=Span.only(2),
            context=one,
            microbatch_size=one,
            tensor=one,
        )
    )


@pytest.mark.usefixtures("term")
@pytest.mark.parametrize("seed", marked((2, 3, 4, 7, 8, 9), slow=(2, 3, 4), papers=(7, 8, 9)))
def test_a_measured_profile_is_planned_with_it(seed: int) -> None:
    question = profiles.drawn_question(seed)
    outcome, least_s = plan_model(question, Budget()), profiles.least_by_exhaustion(question)
    if math.isinf(least_s):
        assert not outcome.priced
        return
    assert outcome.priced[0].step.step_time_s == pytest.approx(least_s, rel=1e-9)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-9)


@pytest.mark.usefixtures("term")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "small" else PAPERS) for n in pools.CASES]
)
def test_plans_on_two_pools_have_it_and_their_bounds_hold(name: str) -> None:
    question = pools.CASES[name]
    shelf, outcome = MixedShelf.of(question), plan_mixed(question, Budget())
    best_s = min((p.step.step_time_s for p in outcome.priced), default=math.inf)
    alone_s = [p.step.step_time_s for p in outcome.priced if p.shape.name == "alone"]
    exhausted = pools.exhausted.__wrapped__(name)
    assert best_s == pytest.approx(min([*(s for _, s in exhausted), *alone_s]), rel=1e-9)
    for candidate, least_s in exhausted:
        assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
        assert best_mixed_split(shelf, candidate).bound_s <= least_s * (1 + 1e-12)
        assert pools.coarse_bound_s(question, shelf, candidate) <= least_s * (1 + 1e-9)


def test_what_is_planned_changes_with_it() -> None:
    """So that the comparisons above are no comparisons of what nobody sees."""
    question = asked(replace(LLAMA, num_layers=2), memory_gib=9.5)
    usual = plan_model(question, Budget()).priced[0]
    with pytest.MonkeyPatch.context() as patch:
        add_the_term(patch)
        found = plan_model(question, Budget()).priced[0]
    assert found.candidate != usual.candidate
    assert found.step.step_time_s > usual.step.step_time_s + TERM_S


@SLOW
@pytest.mark.usefixtures("term")
def test_what_would_be_enough_counts_it() -> None:
    one = Span.only(1)
    question = asked(
        replace(LLAMA, num_layers=2), memory_gib=2, tensor=one, context=one, microbatch_size=one
    )
    assert not plan_model(question, Budget()).priced
    relaxed = diagnose_model(question, Budget()).relaxations
    (memory,) = [fix.value for fix in relaxed if fix.change == "memory"]
    for enough, fits in ((memory * (1 + 1e-9), True), (memory * 0.9, False)):
        larger = replace(question, cluster=question.cluster.with_memory(enough))
        assert bool(plan_model(larger, Budget()).priced) is fits
        if not fits:
            assert math.isinf(min(least_steps_s.__wrapped__(larger).values(), default=math.inf))


# Chip searches
# -------------

CHIP_JOB = job("gpt2-xl", 1024, (1,), layers=14, global_batch=16, schedules=("1f1b", "v-half"))


def chips(memory_gib: float, trained: TrainingJob = CHIP_JOB) -> CodesignQuestion:
    return question(trained, space=some_designs(30, 3), devices=8, memory_gib=memory_gib)


def test_a_chip_search_proves_the_best_of_all_designs_with_it() -> None:
    asked_for = chips(4)
    usual = search(asked_for, Budget()).best
    with pytest.MonkeyPatch.context() as patch:
        add_the_term(patch)
        outcome = search(asked_for, Budget())
        every, _ = populate(asked_for, Budget(), scale_s=outcome.scale_s)
    found = outcome.best
    assert usual is not None
    assert found is not None
    assert outcome.status is Status.OPTIMAL
    assert found.cost == pytest.approx(every.cost.min(), rel=1e-12)
    assert found.plans[0].step_s >= usual.plans[0].step_s + TERM_S
    assert (usual.plans[0].schedule, found.plans[0].schedule) == ("v-half", "1f1b")


def plans_of_1f1b(memory_gib: float) -> list[tuple[float, tuple[int, ...]]]:
    asked_for = chips(memory_gib, replace(CHIP_JOB, schedules=("1f1b",)))
    pricer = JobPricer(asked_for.jobs[0], asked_for.variants[0], asked_for)
    plans = pricer.plans(pricer.times(np.arange(8)), np.full(8, np.inf))
    return [(plan.step_s, plan.starts) for plan in plans if plan is not None]


def plans_in_v(memory_gib: float) -> list[tuple[float, tuple[int, ...]]]:
    asked_for = chips(memory_gib)
    variant = asked_for.variants[0]
    (times,) = JobPricer(CHIP_JOB, variant, asked_for).times(np.arange(8))
    chain = CHIP_JOB.chain(1)
    order = order_of(
        Shape(
            family="v-half",
            num_ranks=2,
            num_microbatches=4,
            input_grad=1,
            weight_grad=1,
        )
    )
    step_s, starts = fastest_family_plans(
        problem_of(chain, job=CHIP_JOB, surroundings=variant.surroundings, num_devices=8),
        order,
        forward_s=times.forward_s,
        backward_s=times.backward_s.reshape(8, -1),
        weight_grad_s=times.weight_grad_s,
        update_s=times.update_s,
        pending_bytes=chain.pending_bytes,
        restored_bytes=chain.restored_bytes.ravel(),
        cutoff_s=np.full(8, np.inf),
        option=0,
        degree=CHIP_JOB.data_degrees.tolist().index(4),
    )
    return list(zip(step_s.tolist(), map(tuple, starts), strict=True))


@pytest.mark.parametrize(("plans", "chunks"), [(plans_of_1f1b, 1), (plans_in_v, 2)])
def test_kernels_of_chip_plans_have_it_once_for_each_stage(
    plans: Callable[[float], list[tuple[float, tuple[int, ...]]]], chunks: int
) -> None:
    """The plans are those of devices with as much less memory, and take as much longer."""
    usual = plans(4.0)
    with pytest.MonkeyPatch.context() as patch:
        add_the_term(patch)
        found = plans(4.0 + chunks * TERM_BYTES / GIB)
    assert len(usual) == 8
    for (step_s, starts), (other_s, others) in zip(found, usual, strict=True):
        assert starts == others
        assert step_s == pytest.approx(other_s + chunks * TERM_S, rel=1e-12)


@SLOW
def test_a_machine_room_is_bounded_and_priced_with_it() -> None:
    room = replace(
        read_room(None, devices=8),
        devices=(4, 8),
        stacks=(1, 3),
        stack_gib=(2.0, 8.0),
        node_devices=(2,),
        node_gbytes_per_s=(50.0, 300.0),
        topology=("switch",),
        cards=(0.5,),
        oversubscription=(1.0,),
    )
    rows, asked_for = np.arange(6), question(CHIP_JOB, space=some_designs(6, 5), devices=8)

    def searched() -> tuple[RoomOutcome, float]:
        pricer = RoomPricer(asked_for, room, None)
        every = (
            pricer.price(stacks, room.system(place), rows)[0].pace_s.min()
            for stacks in room.stacks
            for place in product(*(range(size) for size in room.sizes))
            if pricer.is_sound(stacks, room.system(place))
        )
        found = RoomSearch(pricer, aim="time", limits=Limits(), gap=0.01, budget=Budget()).run()
        return found, min(every)

    usual, usual_least = searched()
    with pytest.MonkeyPatch.context() as patch:
        add_the_term(patch)
        outcome, least = searched()
    for found, exact in ((usual, usual_least), (outcome, least)):
        assert found.best is not None
        assert found.lower_bound is not None
        assert found.lower_bound <= exact <= found.best.value
        assert found.lower_bound >= found.best.value * 0.99 * (1 - 1e-9)
    assert least >= usual_least + TERM_S / (CHIP_JOB.global_batch * CHIP_JOB.sequence_length)


@pytest.mark.parametrize("data_degree", [1, 2])
def test_a_published_strategy_has_it(data_degree: int) -> None:
    asked_for = chips(40)
    (times,) = JobPricer(CHIP_JOB, asked_for.variants[0], asked_for).times(np.arange(1))
    strategy = Parallelism(pipeline=3, data=data_degree, tensor=1)
    around = {"job": CHIP_JOB, "surroundings": asked_for.variants[0].surroundings}
    usual = expert_plan(CHIP_JOB.chain(1), times, strategy, **around)
    with pytest.MonkeyPatch.context() as patch:
        add_the_term(patch)
        found = expert_plan(CHIP_JOB.chain(1), times, strategy, **around)
        tight = replace(around["surroundings"], memory_bytes=0.9 * TERM_BYTES)
        assert (
            expert_plan(CHIP_JOB.chain(1), times, strategy, job=CHIP_JOB, surroundings=tight)
            is None
        )
    assert found is not None
    assert usual is not None
    assert found.step_s == pytest.approx(usual.step_s + TERM_S, rel=1e-12)


def test_what_no_chip_holds_counts_it() -> None:
    asked_for = {
        "job": CHIP_JOB,
        "surroundings": chips(4).variants[0].surroundings,
        "num_devices": 16,
    }
    usual = least_bytes(CHIP_JOB.chain(1), **asked_for)
    with pytest.MonkeyPatch.context() as patch:
        add_the_term(patch)
        assert least_bytes(CHIP_JOB.chain(1), **asked_for) == pytest.approx(usual + TERM_BYTES)


# Documents and pages
# -------------------

MIXED = {"cluster": two_kinds(), "global_batch": 32, "sequence": 1024, "tp": 1, "pp": 2}
MIXED |= {"micro_batch": 1, "zero": 1, "schedule": "1f1b", "recompute": "none", "top": 0}


def test_documents_and_pages_have_it_and_are_refused_where_it_is_unknown(tmp_path: Path) -> None:
    run = {"cluster": "dgx-h100", "global_batch": 32, "sequence": 1024, "tp": 1, "schedule": "1f1b"}
    usual = trainwright.estimate("gpt2-xl", **run, pp=2, dp=4).to_dict()
    estimate, plan = tmp_path / "estimate.json", tmp_path / "plan.json"
    with pytest.MonkeyPatch.context() as patch:
        add_the_term(patch)
        found = trainwright.estimate("gpt2-xl", **run, pp=2, dp=4)
        found.save(estimate)
        trainwright.plan("gpt2-xl", **run).save(plan)
        page = trainwright.report(estimate, plan).html
    document = found.to_dict()
    assert document["peak_memory_bytes"] == usual["peak_memory_bytes"] + TERM_BYTES
    assert document["step_time_s"] == pytest.approx(usual["step_time_s"] + TERM_S)
    assert format_bytes(document["peak_memory_bytes"]) in page
    for file in (estimate, plan):
        with pytest.raises(InvalidInput, match=r"memory|step_time_s"):
            trainwright.report(file)


def test_a_document_of_several_pools_and_its_page_have_it(tmp_path: Path) -> None:
    usual = trainwright.plan("gpt2-xl", **MIXED).document
    file = tmp_path / "plan.json"
    with pytest.MonkeyPatch.context() as patch:
        add_the_term(patch)
        made = trainwright.plan("gpt2-xl", **MIXED)
        made.save(file)
        page = trainwright.report(file).html
    found = made.document
    assert {each.pool for each in found.ranks} == {0, 1}
    assert found.step_time_s >= usual.step_time_s + TERM_S
    assert found.peak_memory_bytes == pytest.approx(usual.peak_memory_bytes + TERM_BYTES)
    assert format_bytes(found.peak_memory_bytes) in page
    with pytest.raises(InvalidInput, match=r"memory|step_time_s"):
        trainwright.report(file)


def test_what_is_asked_beside_a_plan_has_it() -> None:
    run = {"cluster": "dgx-h100", "global_batch": 32, "sequence": 1024, "tp": 1, "schedule": "1f1b"}

    def answers() -> tuple[float, float, float, float]:
        changed = trainwright.what_if(trainwright.plan("gpt2", **run), devices=4).document
        job = trainwright.improve(trainwright.estimate("gpt2", **run, pp=2, dp=4)).document
        trained = trainwright.fit("gpt2", gpu="A100-40GB").document.rows[0]
        return (
            changed.after.step_time_s,
            job.best_known_s,
            job.lower_bound_s,
            trained.largest_microbatch * -TERM_S,
        )

    usual = answers()
    with pytest.MonkeyPatch.context() as patch:
        add_the_term(patch)
        found = answers()
    for more, less in zip(found, usual, strict=True):
        assert more >= less + TERM_S * (1 - 1e-9)


def test_a_certificate_of_chips_has_it_and_is_refused_where_it_is_unknown(tmp_path: Path) -> None:
    def designed() -> trainwright.CodesignReport:
        ranges = {"glb_mib": (8, 32), "width": (32, 128), "depth": (32, 128)}
        asked_for = {"devices": 64, "global_batch": 256, "schedule": ("1f1b",)}
        return trainwright.codesign(
            "bert-large", ranges=ranges, extras=Extras(pareto=False, details=False), **asked_for
        )

    usual, file = designed().document, tmp_path / "chips.json"
    with pytest.MonkeyPatch.context() as patch:
        add_the_term(patch)
        made = designed()
        made.save(file)
        again = recheck_document(file, sample=20, seed=1, budget=Budget()).document
    assert again.recheck is not None
    assert again.recheck.confirmed == 20
    assert made.document.best.tokens_per_s < usual.best.tokens_per_s
    with pytest.raises(CheckFailed):
        recheck_document(file, sample=20, seed=1, budget=Budget())
