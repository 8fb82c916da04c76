"""A step on several kinds of devices: chains side by side, stages on different kinds."""

from collections import Counter
from dataclasses import replace

import pytest
from tests.mixed_clusters import A100, ETHERNET, H100, group, profiles_of, staged, two_kinds

from trainwright.cluster import Cluster
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats import catalog
from trainwright.plans import Plan, Stage
from trainwright.plans.plan import Parallelism
from trainwright.plans.prediction import MixedPrediction
from trainwright.step.pools import MixedPlacement, chains_of, mixed_replicas, predict_mixed_step
from trainwright.step.predict import predict_step
from trainwright.step.stages import group_replicas

CLUSTER = two_kinds()
PROFILES = profiles_of(CLUSTER)


def of_one_kind(pool: int, *, pipeline: int, data: int, schedule: str, zero: int) -> Stage:
    return staged(PROFILES[pool], [(group(pool, data),)] * pipeline, schedule=schedule, zero=zero)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "seq1f1b", "vocab-1"])
@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize(("pipeline", "data"), [(1, 4), (2, 2), (4, 1)])
def test_a_plan_on_one_pool_costs_what_it_costs_without_the_other(
    pipeline: int, data: int, schedule: str, zero: int
) -> None:
    plan = of_one_kind(H100, pipeline=pipeline, data=data, schedule=schedule, zero=zero)
    alone = predict_step(plan, PROFILES[H100], CLUSTER.alone(H100))
    mixed = predict_mixed_step(plan, PROFILES, CLUSTER)
    assert mixed.step_time_s == pytest.approx(alone.step_time_s, rel=1e-12)
    (chain,) = mixed.chains
    assert chain.step.stages == alone.stages
    assert chain.pools == (H100,) * pipeline


def test_stages_run_at_the_pace_of_their_own_devices() -> None:
    plan = staged(PROFILES[0], [(group(A100, 2),), (group(H100, 2),)])
    (chain,) = predict_mixed_step(plan, PROFILES, CLUSTER).chains
    for rank, pool in enumerate((A100, H100)):
        alike = staged(PROFILES[0], [(group(pool, 2),)] * 2)
        alone = predict_step(alike, PROFILES[pool], CLUSTER.alone(pool))
        assert chain.step.stages[rank].forward_s == alone.stages[rank].forward_s
        assert chain.step.stages[rank].memory == alone.stages[rank].memory


def test_what_passes_between_pools_crosses_their_joint() -> None:
    plan = staged(PROFILES[0], [(group(A100, 2),), (group(H100, 2),)])
    (chain,) = predict_mixed_step(plan, PROFILES, CLUSTER).chains
    size = PROFILES[0].structure.edges[0].bytes
    expected = ETHERNET.latency_s + size / ETHERNET.effective_bytes_per_s
    assert chain.step.stages[0].send_s == pytest.approx(expected)


def test_the_chain_that_ends_last_ends_the_step() -> None:
    plan = staged(PROFILES[0], [(group(A100, 2, 0.5), group(H100, 2, 0.5))])
    step = predict_mixed_step(plan, PROFILES, CLUSTER)
    slow, fast = step.chains
    assert [c.num_microbatches for c in step.chains] == [4, 4]
    assert slow.step.pipeline_s > 1.5 * fast.step.pipeline_s
    assert step.slowest == 0
    assert step.pipeline_s == slow.step.pipeline_s


def test_shares_in_proportion_to_speed_shorten_the_step() -> None:
    even, fitted = (
        predict_mixed_step(
            staged(PROFILES[0], [(group(A100, 2, 1 - s), group(H100, 2, s))], microbatches=32),
            PROFILES,
            CLUSTER,
        )
        for s in (0.5, 0.6875)
    )
    assert fitted.step_time_s < 0.8 * even.step_time_s
    assert [c.num_microbatches for c in fitted.chains] == [5, 11]


def test_gradients_of_mixed_replicas_cross_the_joint_in_a_ring_or_pool_by_pool() -> None:
    placement = MixedPlacement(
        plan=staged(PROFILES[0], [(group(A100, 4, 0.5), group(H100, 4, 0.5))]), cluster=CLUSTER
    )
    replicas = placement.replicas(0)
    assert replicas.sizes[0] == 8
    inner = [pool.levels[0] for pool in CLUSTER.pools]
    byte_s = [1 / level.effective_bytes_per_s for level in (*inner, ETHERNET)]
    ring = 2 * 7 / 8 * max(byte_s)
    by_pool = 2 * 3 / 4 * max(byte_s[:2]) + 2 * 1 / 2 * byte_s[2] / 4
    slopes = [slope for _, slope in replicas.reduce[0]]
    assert any(slope == pytest.approx(ring) for slope in slopes)
    assert min(slopes) == pytest.approx(by_pool)


def test_replicas_of_one_pool_are_grouped_as_if_it_were_alone() -> None:
    plan = staged(PROFILES[0], [(group(H100, 4),)], zero=1)
    placement = MixedPlacement(plan=plan, cluster=CLUSTER)
    assert placement.members(0) == {H100: 4}
    alone = mixed_replicas(CLUSTER.alone(H100), placement.degrees, {0: 4}, {0: (0, 2)})
    assert placement.replicas(0) == alone


def test_chains_are_cut_where_any_stage_changes_its_group() -> None:
    plan = staged(
        PROFILES[0],
        [
            (group(A100, 1, 0.25), group(H100, 3, 0.75)),
            (group(A100, 2, 0.5), group(H100, 2, 0.5)),
        ],
    )
    chains = chains_of(plan)
    assert [(c.first, c.count, c.num_microbatches) for c in chains] == [
        (0, 1, 4),
        (1, 1, 4),
        (2, 2, 4),
    ]
    pools = [tuple(g.pool for g in c.groups) for c in chains]
    assert pools == [(A100, A100), (H100, A100), (H100, H100)]


def test_options_of_a_group_replace_those_of_the_stage() -> None:
    plan = staged(PROFILES[0], [(group(A100, 2, 0.5), group(H100, 2, 0.5))])
    (stage,) = plan.stages
    names = [layer.name for layer in PROFILES[0].structure.layers]
    again = tuple("full" if name == "block" else "none" for name in names)
    groups = (replace(stage.replicas[0], options=again), stage.replicas[1])
    changed = replace(plan, stages=(replace(stage, replicas=groups),))
    before, after = (predict_mixed_step(p, PROFILES, CLUSTER).chains for p in (plan, changed))
    assert after[0].step.stages[0].recompute_s > 0 == before[0].step.stages[0].recompute_s
    assert after[1].step.stages[0].forward_s == before[1].step.stages[0].forward_s
    assert after[1].step.stages[0].recompute_s == 0


def test_shares_that_are_no_whole_microbatches_are_refused() -> None:
    plan = staged(PROFILES[0], [(group(A100, 2, 0.6), group(H100, 2, 0.4))])
    with pytest.raises(InvalidInput, match=r"stages\[0\].replicas.share.*whole microbatches"):
        predict_mixed_step(plan, PROFILES, CLUSTER)


def test_a_pool_is_not_used_beyond_its_devices() -> None:
    plan = staged(PROFILES[0], [(group(A100, 3),), (group(A100, 3),)], microbatches=15)
    with pytest.raises(InvalidInput, match=r"at most the 8 A100.* of pool 0, got 12"):
        predict_mixed_step(plan, PROFILES, CLUSTER)


def test_tensor_degrees_that_differ_are_refused_by_their_field() -> None:
    plan = staged(PROFILES[0], [(group(A100, 2),), (group(H100, 2, tensor=4),)])
    with pytest.raises(UnsupportedFeature, match=r"stages\[1\].replicas\[0\].tensor_parallel"):
        predict_mixed_step(plan, PROFILES, CLUSTER)


def test_stages_with_different_replicas_are_refused_by_their_field() -> None:
    plan = staged(PROFILES[0], [(group(A100, 2),), (group(H100, 1),)])
    with pytest.raises(UnsupportedFeature, match=r"stages\[1\].replicas"):
        predict_mixed_step(plan, PROFILES, CLUSTER)


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [
        *(("1f1b", 1), ("gpipe", 1), ("seq1f1b", 1), ("slimpipe", 2), ("po-f", 1), ("zb-v", 2)),
        *(("vocab-1", 1), ("vocab-2", 1)),
    ],
)
def test_nodes_that_are_pools_cost_what_nodes_of_one_pool_cost(schedule: str, chunks: int) -> None:
    whole = catalog.cluster("dgx-h100").with_nodes(2)
    (pool,), node = whole.pools, whole.with_nodes(1).pools[0]
    apart = Cluster(name="apart", pools=(node, node), joint=replace(pool.levels[-1], size=2))
    profile = profiles_of(whole)[0]
    rank_of = [0, 1] if chunks == 1 else [0, 1, 1, 0] if schedule == "zb-v" else [0, 1, 0, 1]

    def plan_in(pools: list[int]) -> Plan:
        plan = staged(profile, [(group(own, 4),) for own in pools], microbatches=16)
        degrees = replace(plan.parallelism, pipeline=2, virtual_stages=chunks, zero_stage=1)
        return replace(plan, schedule=schedule, parallelism=degrees)

    expected = predict_step(plan_in([0] * len(rank_of)), profile, whole)
    found = predict_mixed_step(plan_in(rank_of), {0: profile, 1: profile}, apart)
    (chain,) = found.chains
    assert chain.pools == (0, 1)
    assert found.step_time_s == pytest.approx(expected.step_time_s, rel=1e-12)
    assert chain.step.communication == expected.communication
    for own, like in zip(chain.step.stages, expected.stages, strict=True):
        assert own.memory.by_class == pytest.approx(like.memory.by_class, rel=1e-12)
        assert own.memory.microbatches_in_flight == like.memory.microbatches_in_flight
        assert own.forward_s == pytest.approx(like.forward_s, rel=1e-12)


@pytest.mark.parametrize("schedule", ["vocab-1", "vocab-2"])
def test_a_cut_head_runs_at_the_pace_of_each_pool(schedule: str) -> None:
    def priced(first: int, last: int) -> MixedPrediction:
        plan = staged(PROFILES[0], [(group(first, 2),), (group(last, 2),)], schedule=schedule)
        return predict_mixed_step(plan, PROFILES, CLUSTER)

    (mixed,), (old,), (new,) = (
        priced(*pools).chains for pools in ((A100, H100), (A100, A100), (H100, H100))
    )
    for rank, alone in ((0, old), (1, new)):
        own, like = mixed.step.stages[rank], alone.step.stages[rank]
        assert (own.forward_s, own.backward_s) == (like.forward_s, like.backward_s)
        weight_bytes = own.memory.weight_bytes
        assert weight_bytes == pytest.approx(like.memory.weight_bytes, rel=1e-12)
    assert new.step.pipeline_s < mixed.step.pipeline_s < old.step.pipeline_s * (1 + 1e-3)


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "vocab-1"])
def test_replicas_that_exchange_with_every_microbatch_wait_for_the_slowest(
    schedule: str, zero: int
) -> None:
    both = (group(A100, 2, 0.5), group(H100, 2, 0.5))
    plan = staged(PROFILES[0], [both, both], zero=zero, schedule=schedule)
    found = predict_mixed_step(plan, PROFILES, CLUSTER)
    slow, fast = found.chains
    assert slow.step.pipeline_s == fast.step.pipeline_s
    # Where the fast pool has the slow one's layers and links, all is as slow.
    pools = (CLUSTER.pools[A100], replace(CLUSTER.pools[H100], levels=CLUSTER.pools[A100].levels))
    old = replace(CLUSTER, pools=pools)
    expected = predict_mixed_step(plan, dict.fromkeys(PROFILES, PROFILES[A100]), old)
    assert found.pipeline_s == pytest.approx(expected.pipeline_s, rel=1e-2)
    for own, like in zip(slow.step.stages, expected.chains[0].step.stages, strict=True):
        assert own.forward_s >= like.forward_s * (1 - 1e-12)
        assert own.memory.total_bytes == pytest.approx(like.memory.total_bytes)
    apart = replace(plan, parallelism=replace(plan.parallelism, zero_stage=1))
    assert predict_mixed_step(apart, PROFILES, CLUSTER).chains[1].step.pipeline_s < (
        fast.step.pipeline_s
    )


@pytest.mark.parametrize(
    ("shares", "schedule", "named"),
    [
        ((0.25, 0.75), "1f1b", r"parallelism\.zero_stage: ZeRO 2 .* all replicas run as many"),
        ((0.5, 0.5), "v-fit", "schedule: ZeRO 2 .* v-fit orders by the memory of each pool"),
    ],
)
def test_replicas_that_cannot_wait_for_each_other_are_refused(
    shares: tuple[float, float], schedule: str, named: str
) -> None:
    groups = tuple(group(pool, 2, own) for pool, own in zip((A100, H100), shares, strict=True))
    stages = 4 if schedule == "v-fit" else 1
    plan = staged(PROFILES[0], [groups] * stages, zero=2, schedule=schedule)
    degrees = replace(plan.parallelism, pipeline=max(1, stages // 2), virtual_stages=min(2, stages))
    with pytest.raises(UnsupportedFeature, match=named):
        predict_mixed_step(replace(plan, parallelism=degrees), PROFILES, CLUSTER)


@pytest.mark.parametrize(
    ("data", "pipeline", "least"),
    [(3, 8, 1.0), (8, 3, 1.0), (12, 2, 0.9), (10, 2, 0.9), (6, 4, 0.9)],
)
def test_groups_cost_alike_on_one_pool_and_on_a_pool_for_each_of_its_nodes(
    data: int, pipeline: int, least: float
) -> None:
    """But for what passes inside the larger pieces: pools count it, nodes of a pool do not."""
    (pool,) = catalog.cluster("dgx-h100").with_nodes(3).pools
    inner, outer = pool.levels
    node = replace(pool, levels=(inner,))
    pools = Cluster(name="nodes", pools=(node,) * 3, joint=replace(outer, size=3))
    degrees = Parallelism(data=data, pipeline=pipeline, zero_stage=1)
    one = group_replicas(pool, degrees)
    several = []
    for rank in range(pipeline):
        devices = range(rank * data, (rank + 1) * data)
        members = Counter(device // 8 for device in devices)
        several.append(mixed_replicas(pools, degrees, members, dict.fromkeys(members, (0, 1))))
    for lines in ("reduce", "gather"):
        own_s, *found_s = (
            min(slope for _, slope in getattr(each, lines)[0]) for each in (one, *several)
        )
        assert least * max(found_s) * (1 - 1e-9) <= own_s <= max(found_s) * (1 + 1e-9)
