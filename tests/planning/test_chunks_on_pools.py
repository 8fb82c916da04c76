"""Plans in V and in loops over several pools: drawn plans against the bounds of their candidate."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from exhaustive import has_its_ends
from exhaustive_pools import (
    TINY,
    asked,
    coarse_bound_s,
    every_candidate,
    every_group,
    every_step_s,
    fits,
)
from mixed_clusters import ETHERNET
from trainwright.cluster import Cluster
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.planning.bounds.pools import (
    Across,
    Beside,
    MixedShelf,
    Shape,
    mixed_schedules,
)
from trainwright.planning.question.layouts import (
    CHAIN,
    CUTS_HEAD,
    IN_V,
    KEEPS_TO_ROOM,
    LOOPED,
    ON_HOST,
    WHOLE_GROUPS,
)
from trainwright.planning.question.question import ModelQuestion, Point, RunSettings, Span
from trainwright.planning.search.pools import MixedLayouts, MixedSearch, plan_on_pools
from trainwright.planning.splits.pools import best_mixed_split
from trainwright.plans import Plan, ReplicaGroup, Stage
from trainwright.plans.configuration import Overlap
from trainwright.profile import Recompute
from trainwright.step.pools import predict_mixed_step

POINT = Point(microbatch_size=1, tensor=1)
FAMILIES = [family for family in (*IN_V, *LOOPED) if family not in ("stp", "slimpipe")]
OVERLAPS = (
    Overlap(),
    Overlap(gradients=0.0, parameters=0.0, pipeline=0.0),
    Overlap(gradients=1.0, parameters=1.0),
)
PLANS = 30  # drawn of each candidate


def drawn_cluster(draw: random.Random) -> Cluster:
    """Two to four pools of one to four devices, some of them with little memory."""
    pools = []
    for _ in range(draw.choice((2, 2, 3, 4))):
        pool = catalog.cluster(draw.choice(("dgx-a100", "dgx-h100"))).with_nodes(1).pools[0]
        device = replace(
            pool.accelerator,
            memory_bytes=draw.choice((8, 10, 14, 40)) * 2**30,
            memory_bandwidth_bytes_per_s=draw.uniform(1e12, 4e12),
        )
        level = replace(pool.levels[0], size=draw.choice((1, 2, 2, 4)))
        pools.append(replace(pool, levels=(level,), accelerator=device))
    joint = replace(ETHERNET, size=len(pools), bandwidth_bytes_per_s=draw.choice((1e9, 1e11)))
    return Cluster(name="drawn", pools=tuple(pools), joint=joint)


def drawn_question(draw: random.Random, family: str) -> ModelQuestion:
    question = asked(
        drawn_cluster(draw),
        batch=draw.choice((4, 6, 8, 12, 24)),
        model=replace(
            TINY, num_layers=draw.choice((4, 5, 6, 8)), tied_embeddings=draw.random() < 0.3
        ),
        schedules=(family,),
        zero_stages=(draw.choice((0, 1, 2, 3)),),
        tensor=Span.only(1),
        microbatch_size=Span.only(1),
    )
    return replace(question, settings=RunSettings(overlap=draw.choice(OVERLAPS)))


def drawn_candidate(draw: random.Random, question: ModelQuestion) -> Across | Beside | None:
    """None where what was drawn does not suit the pools."""
    (family,), (zero,) = question.allowed.schedules, question.allowed.zero_stages
    rooms, batch = [p.num_devices for p in question.cluster.pools], question.workload.global_batch
    pools = tuple(draw.sample(range(len(rooms)), draw.randint(2, len(rooms))))
    chunks = 2 if family in IN_V else draw.choice((2, 2, 3))
    common = {"point": POINT, "zero_stage": zero, "schedule": family, "virtual_stages": chunks}
    if draw.random() < 0.6:
        data = draw.choice((1, 1, 2, 4))
        most = [rooms[pool] // data for pool in pools]
        if batch % data or min(most) < 1:
            return None
        depths = tuple(draw.randint(1, m) for m in most)
        ranks, groups = sum(depths), batch // data
        found = Across(pools=pools, depths=depths, data=data, **common)
    else:
        ranks, pools = draw.choice((2, 2, 3, 4)), tuple(sorted(pools))
        most = [rooms[pool] // ranks for pool in pools]
        if min(most) < 1:
            return None
        replicas, groups = tuple(draw.randint(1, m) for m in most), batch
        unit = ranks if family in WHOLE_GROUPS else 1
        if sum(replicas) * unit > batch:
            return None
        if zero > 1 and (batch % (sum(replicas) * unit) or family in KEEPS_TO_ROOM):
            return None  # at one pace, in one order
        found = Beside(pools=pools, replicas=replicas, depth=ranks, **common)
    is_whole = family not in WHOLE_GROUPS or groups % ranks == 0
    return found if is_whole and ranks * chunks <= question.model.num_layers else None


def drawn_plan(draw: random.Random, question: ModelQuestion, candidate, profiles) -> Plan | None:
    """Any cuts, recomputation by layer and pool, and shares of the batch."""
    total, family = question.workload.global_batch, candidate.schedule
    layers = profiles[candidate.pools[0]].structure.layers
    num_stages = candidate.degrees.pipeline * candidate.virtual_stages
    ends = (0, *sorted(draw.sample(range(1, len(layers)), num_stages - 1)), len(layers))
    if family in LOOPED and not has_its_ends(layers, ends):
        return None
    if isinstance(candidate, Across):
        (groups,) = every_group(candidate, total)
    else:
        unit = candidate.depth if family in WHOLE_GROUPS else 1
        pools = [
            g for g, n in zip(candidate.pools, candidate.replicas, strict=True) for _ in [0] * n
        ]
        inner = sorted(draw.sample(range(1, total // unit), len(pools) - 1))
        shares = [unit * (b - a) for a, b in pairwise((0, *inner, total // unit))]
        if candidate.zero_stage > 1:
            shares = [total // len(pools)] * len(pools)
        groups = [
            tuple(
                ReplicaGroup(count=1, tensor_parallel=1, pool=pool, share=share / total)
                for pool, share in zip(pools, shares, strict=True)
            )
        ] * num_stages
    again = draw.choice((0.0, 0.5, 1.0, draw.random()))
    options = {
        pool: tuple(
            "full" if layer.name == "block" and draw.random() < again else "none"
            for layer in layers
        )
        for pool in candidate.pools
    }
    stages = tuple(
        Stage(
            layers=tuple(layer.id for layer in layers[a:b]),
            options=options[own[0].pool][a:b],
            replicas=tuple(replace(group, options=options[group.pool][a:b]) for group in own),
        )
        for (a, b), own in zip(pairwise(ends), groups, strict=True)
    )
    return Plan(
        stages=stages,
        num_microbatches=total,
        microbatch_size=1,
        schedule=family,
        parallelism=candidate.degrees,
    )


SEEDS = [pytest.param(seed, marks=() if seed < 4 else pytest.mark.slow) for seed in range(40)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_drawn_plan_in_chunks_on_pools_is_below_its_bounds(family: str, seed: int) -> None:
    draw = random.Random(f"{family} {seed}")
    question, candidate = drawn_question(draw, family), None
    while candidate is None:
        candidate = drawn_candidate(draw, question)
        question = question if candidate else drawn_question(draw, family)
    shelf = MixedShelf.of(question)
    split = best_mixed_split(shelf, candidate)
    profiles = {pool: shelf.profile(pool, POINT) for pool in candidate.pools}
    drawn = (drawn_plan(draw, question, candidate, profiles) for _ in range(PLANS))
    least_s = math.inf
    for plan in (*split.plans, *filter(None, drawn)):
        try:
            step = predict_mixed_step(
                plan, profiles, question.cluster, overlap=question.settings.overlap
            )
        except InvalidInput:  # a rule of the family, at one of the pools' numbers of microbatches
            continue
        if fits(question, step):
            least_s = min(least_s, step.step_time_s)
    assert split.bound_s <= least_s * (1 + 1e-12)
    assert coarse_bound_s(question, shelf, candidate) <= least_s * (1 + 1e-9)


def two_nodes(size: int, *, share: float = 1.0, memory_gib: float = 80) -> tuple[Cluster, Cluster]:
    """Two nodes of so many H100 as one pool of two levels, and as two pools that are joined.

    The network between them has a `share` of its bandwidth.
    """
    pool = catalog.cluster("dgx-h100").with_nodes(2).pools[0]
    pool = replace(
        pool, accelerator=replace(pool.accelerator, memory_bytes=int(memory_gib * 2**30))
    )
    inner, outer = replace(pool.levels[0], size=size), replace(pool.levels[1], size=2)
    outer = replace(outer, bandwidth_bytes_per_s=share * outer.bandwidth_bytes_per_s)
    one = Cluster(name="one", pools=(replace(pool, levels=(inner, outer)),))
    two = Cluster(name="two", pools=(replace(pool, levels=(inner,)),) * 2, joint=outer)
    return one, two


PLACEMENTS = {
    "one stage": [family for family in CHAIN if family not in (*CUTS_HEAD, *ON_HOST)],
    "V": [family for family in IN_V if family != "stp"],
    "loops": [family for family in LOOPED if family != "slimpipe"],
}
SPLIT_SEEDS = [pytest.param(s, marks=() if s < 3 else pytest.mark.slow) for s in range(24)]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("seed", SPLIT_SEEDS)
def test_one_pool_that_is_written_as_two_has_no_slower_a_plan(seed: int, placement: str) -> None:
    """Two may do better: they share out microbatches one by one, and ranks four by three."""
    draw = random.Random(f"{placement} {seed}")
    memory_gib, share = draw.choice((8, 10, 14, 80)), draw.choice((0.02, 0.2, 1.0))
    space = {
        "batch": draw.choice((4, 8, 8)),
        "model": replace(
            TINY, num_layers=draw.choice((4, 6, 7, 8)), tied_embeddings=draw.random() < 0.3
        ),
        "schedules": (draw.choice(PLACEMENTS[placement]),),
        "zero_stages": (draw.choice((0, 1)),),
        "virtual_stages": Span(most=3),
        "pipeline": Span(least=draw.choice((1, 2, 2))),
        "tensor": Span.only(1),
        "microbatch_size": Span.only(1),
    }
    clusters = two_nodes(draw.choice((1, 2, 2, 4)), share=share, memory_gib=memory_gib)
    one, two = (plan_on_pools(asked(c, sequence=4096, **space), Budget()) for c in clusters)
    if not one.priced:
        assert not two.priced
        return
    one_s, two_s = one.priced[0].step.step_time_s, two.priced[0].step.step_time_s
    assert two.lower_bound_s <= min(one_s, two_s) * (1 + 1e-12)
    assert two_s <= one_s * (1 + 1e-9)


@pytest.mark.parametrize("zero_stage", [2, 3])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_pools_that_are_alike_share_state_as_one(placement: str, zero_stage: int) -> None:
    space = {
        "batch": 8,
        "model": replace(TINY, num_layers=4),
        "schedules": PLACEMENTS[placement][:1],
        "zero_stages": (zero_stage,),
        "virtual_stages": Span(most=2),
        "data": Span(least=2),
        "tensor": Span.only(1),
        "microbatch_size": Span.only(1),
    }
    found = []
    for cluster in two_nodes(2, memory_gib=10):
        question = asked(cluster, sequence=4096, **space)
        found.append(plan_on_pools(question, Budget()).priced[0])
    one, two = found
    assert two.plan.parallelism is not None
    assert two.plan.parallelism.data > 1
    assert two.step.step_time_s == pytest.approx(one.step.step_time_s, rel=1e-9)


def test_pools_that_are_alike_are_used_in_one_order() -> None:
    pool = two_nodes(2)[1].pools[0]
    other = catalog.cluster("dgx-a100").with_nodes(1).pools[0]
    cluster = Cluster(name="three", pools=(pool, other, pool), joint=replace(ETHERNET, size=3))
    shapes = MixedLayouts(MixedShelf.of(asked(cluster))).shapes
    used = [shape.pools for shape in shapes if shape.name == "across"]
    assert {(0, 1), (1, 0), (0, 2), (0, 1, 2), (1, 0, 2), (0, 2, 1)} == set(used)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("seed", SPLIT_SEEDS)
def test_every_drawn_plan_on_unlike_pools_is_looked_through(seed: int, placement: str) -> None:
    """Against all plans of pipelines from pool to pool, priced one by one."""
    draw = random.Random(f"all {placement} {seed}")
    family = draw.choice(PLACEMENTS[placement])
    question = asked(
        drawn_pair(draw),
        batch=draw.choice((2, 4)),
        model=replace(TINY, num_layers=4),
        schedules=(family,),
        zero_stages=(draw.choice((0, 1, 3)),),
        recompute=(draw.choice((Recompute.NONE, Recompute.FULL)),),
        pipeline=Span(least=2),
        data=Span.only(1),
        tensor=Span.only(1),
        microbatch_size=Span.only(1),
    )
    question = replace(question, settings=RunSettings(overlap=draw.choice(OVERLAPS)))
    shelf = MixedShelf.of(question)
    every_s = [
        step_s
        for candidate in every_candidate(question)
        if isinstance(candidate, Across)
        for step_s in every_step_s(question, shelf, candidate)
    ]
    outcome = plan_on_pools(question, Budget())
    across = [each for each in outcome.priced if each.shape.name == "across"]
    if not every_s:
        assert not across
        return
    least_s, best_s = min(every_s), outcome.priced[0].step.step_time_s
    assert all(each.step.step_time_s >= least_s * (1 - 1e-9) for each in across)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    # Splits in V are not all looked through: orders follow from times.
    assert best_s <= least_s * (1.05 if placement == "V" else 1 + 1e-9)


def searched_beside(question: ModelQuestion) -> Iterator[tuple[list[float], MixedSearch]]:
    """The steps of all plans of each candidate beside each other, and a search of it alone."""
    shelf = MixedShelf.of(question)
    for candidate in every_candidate(question):
        every_s = every_step_s(question, shelf, candidate) if isinstance(candidate, Beside) else []
        if not every_s:
            continue
        search, shape = MixedSearch(shelf, Budget()), Shape(name="beside", pools=candidate.pools)
        search._find(0.0, shape, candidate, limit_s=math.inf, hurry=math.inf)
        search.finish()
        yield every_s, search


BESIDE_SEEDS = [pytest.param(s, marks=() if s < 12 else pytest.mark.slow) for s in range(60)]


@pytest.mark.parametrize("placement", ["one stage", "loops"])
@pytest.mark.parametrize("seed", BESIDE_SEEDS)
def test_pipelines_beside_each_other_are_looked_through(seed: int, placement: str) -> None:
    """Against all plans of each candidate, of unlike pools or alike, with every share and way."""
    draw = random.Random(f"beside {placement} {seed}")
    cluster, (overlap,) = drawn_pair(draw), draw.sample(OVERLAPS, 1)
    if draw.random() < 0.3:
        cluster = replace(cluster, pools=cluster.pools[1:] * 2)
    question = asked(
        cluster,
        batch=draw.choice((2, 3, 4, 5)),
        model=replace(TINY, num_layers=2 if placement == "one stage" else 4),
        schedules=(draw.choice(PLACEMENTS[placement]),),
        zero_stages=(draw.choice((0, 1, 2, 3)),),
        recompute=draw.choice(((Recompute.NONE,), (Recompute.FULL,))),
        tensor=Span.only(1),
        microbatch_size=Span.only(1),
    )
    question = replace(question, settings=RunSettings(overlap=overlap))
    for every_s, search in searched_beside(question):
        assert search.bounds.least <= min(every_s) * (1 + 1e-12)
        assert search.best_s >= min(every_s) * (1 - 1e-9)


FIRST_IS_SLOWER = (15, 21, 24, 39)  # their first splits by more than 1 %
V_SEEDS = [
    pytest.param(s, marks=() if s in FIRST_IS_SLOWER else pytest.mark.slow) for s in range(40)
]


@pytest.mark.parametrize("seed", V_SEEDS)
def test_pipelines_in_v_beside_each_other_are_looked_for_with_many_rooms(seed: int) -> None:
    """Against all plans: orders follow from times, so that splits of least bound may be slower."""
    draw = random.Random(f"beside V {seed}")
    question = asked(
        drawn_pair(draw, sizes=(2,)),
        batch=draw.choice((4, 5, 6)),
        model=replace(TINY, num_layers=draw.choice((4, 5)), tied_embeddings=draw.random() < 0.3),
        schedules=(draw.choice(PLACEMENTS["V"]),),
        zero_stages=(draw.choice((0, 1)),),
        recompute=(draw.choice((Recompute.NONE, Recompute.FULL)),),
        tensor=Span.only(1),
        microbatch_size=Span.only(1),
    )
    question = replace(question, settings=RunSettings(overlap=draw.choice(OVERLAPS)))
    for every_s, search in searched_beside(question):
        assert search.bounds.least <= min(every_s) * (1 + 1e-12)
        assert min(every_s) * (1 - 1e-9) <= search.best_s <= min(every_s) * 1.01


@pytest.mark.parametrize(
    ("family", "size", "layers", "memory_gib"), [("gpipe", 4, 6, 40), ("breadth-first", 2, 4, 14)]
)
def test_two_pools_prove_what_one_pool_proves(
    family: str, size: int, layers: int, memory_gib: float
) -> None:
    """Pipelines inside each pool, whose first split is not the best."""
    space = {
        "batch": 8,
        "model": replace(TINY, num_layers=layers, tied_embeddings=family != "gpipe"),
        "schedules": (family,),
        "zero_stages": (1,),
        "pipeline": Span(least=2),
        "virtual_stages": Span(most=2),
        "tensor": Span.only(1),
        "microbatch_size": Span.only(1),
    }
    one, two = (
        plan_on_pools(asked(cluster, sequence=4096, **space), Budget())
        for cluster in two_nodes(size, share=2.0, memory_gib=memory_gib)
    )
    assert two.priced[0].shape.name == "beside"
    assert two.priced[0].step.step_time_s == pytest.approx(one.priced[0].step.step_time_s, rel=1e-9)
    assert two.lower_bound_s == pytest.approx(two.priced[0].step.step_time_s, rel=1e-9)


def drawn_pair(draw: random.Random, sizes: tuple[int, ...] = (1, 2)) -> Cluster:
    """An A100 node before an H100 node, each of so many devices, one or two."""
    pools = []
    for name in ("dgx-a100", "dgx-h100"):
        pool = catalog.cluster(name).with_nodes(1).pools[0]
        device = replace(pool.accelerator, memory_bytes=draw.choice((8, 12, 40)) * 2**30)
        level = replace(pool.levels[0], size=draw.choice(sizes))
        pools.append(replace(pool, levels=(level,), accelerator=device))
    joint = replace(ETHERNET, bandwidth_bytes_per_s=draw.choice((1e9, 1e11)))
    return Cluster(name="drawn pair", pools=tuple(pools), joint=joint)


def test_v_and_loops_are_searched_on_several_pools_where_none_is_named() -> None:
    families = {own.family for own in mixed_schedules(asked(two_nodes(2)[1], schedules=None))}
    assert {"1f1b", "interleaved", "zb-v", "v-half", "v-min"} <= families
    assert "stp" not in families
