"""Where a plan lies on the pools of a cluster, and which networks lie between its parts.

A plan is a few *chains*: replicas of the whole pipeline that pass the same pools and run as many
microbatches each. Replica k of every stage belongs to one chain, in the order of the stage's
groups. In each pool, ranks take consecutive devices in order, and inside a rank the replicas; so a
plan on a single pool lies as `placement` says.

The replicas of a rank sum their gradients. Where they lie in several pools, either in one ring over
all, as slow as its slowest link, or pool by pool: all pools scatter side by side, the parts cross
`joint`, and all gather. There, too, the smallest piece counts as what every pool has
(`cluster.nested_hops`): its devices send and receive most of what crosses.

ZeRO 2 and 3 exchange with every microbatch, so replicas run as many, in one order, and wait for
each other: a layer takes as long as on the slowest pool that runs it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise, product
from operator import mul

import numpy as np

from trainwright.cluster import (
    Accelerator,
    Cluster,
    Hop,
    NetworkLevel,
    crossed_level,
    group_hops,
)
from trainwright.costing.communication import (
    Lines,
    all_gather_lines,
    all_reduce_lines,
    point_to_point_time_s,
)
from trainwright.errors import Fault, InvalidInput, UnsupportedFeature, refuse
from trainwright.plans import Plan, ReplicaGroup
from trainwright.plans.configuration import DEFAULT_OVERLAP, NO_OVERHEADS, MemoryOverheads, Overlap
from trainwright.plans.plan import Parallelism
from trainwright.plans.prediction import ChainPrediction, MixedPrediction, StepPrediction
from trainwright.profile import Profile
from trainwright.step import predict
from trainwright.step.pipeline import (
    PipelineShape,
    has_cut_head,
    keeps_to_room,
    placement_of,
)
from trainwright.step.stages import (
    CutHead,
    StageWork,
    cut_bytes,
    cut_head,
    group_axis_hops,
    group_replicas,
    hosted_weights,
    in_slices,
    stage_works,
    without_head,
)
from trainwright.step.zero import Replicas, tied_times_s

_WHOLE = 1e-6  # of a microbatch
AT_THEIR_PACE = 1  # the last ZeRO stage that exchanges nothing inside microbatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """`count` replicas of the pipeline from replica `first` on, of `num_microbatches` each.

    `groups` has the group of each stage that they belong to.
    """

    first: int
    count: int
    num_microbatches: int
    groups: tuple[ReplicaGroup, ...]


def chains_of(plan: Plan) -> tuple[Chain, ...]:
    """The chains of a plan, in the order of its replicas.

    Raises `UnsupportedFeature` where stages differ in replicas or tensor degrees, and
    `InvalidInput` where shares are no whole microbatches or not the same in all stages.
    """
    _refuse_unequal(plan)
    ends = [list(accumulate(group.count for group in s.replicas)) for s in plan.stages]
    cuts = sorted({0, *(end for own in ends for end in own)})
    chains, faults = [], []
    for first, after in pairwise(cuts):
        groups = tuple(
            stage.replicas[next(i for i, end in enumerate(own) if end > first)]
            for stage, own in zip(plan.stages, ends, strict=True)
        )
        shares = [plan.num_microbatches * group.share / group.count for group in groups]
        whole = round(shares[0])
        for number, share in enumerate(shares):
            if whole < 1 or abs(share - whole) > _WHOLE:
                wanted = f"must give replica {first} as many whole microbatches in every stage"
                faults.append(Fault(f"stages[{number}].replicas.share", f"{wanted}, got {share:g}"))
        chains.append(
            Chain(first=first, count=after - first, num_microbatches=whole, groups=groups)
        )
    if not faults and sum(c.count * c.num_microbatches for c in chains) != plan.num_microbatches:
        faults.append(Fault("stages.replicas.share", f"must add up to {plan.num_microbatches}"))
    if faults:
        raise InvalidInput(faults)
    return tuple(chains)


def _refuse_unequal(plan: Plan) -> None:
    first = plan.stages[0]
    tensor = first.replicas[0].tensor_parallel
    for number, stage in enumerate(plan.stages):
        if stage.data_parallel != first.data_parallel:
            raise UnsupportedFeature(
                f"stages[{number}].replicas: {stage.data_parallel} replicas behind "
                f"{first.data_parallel} are not priced on several pools",
                alternative="give all stages as many replicas",
            )
        for index, group in enumerate(stage.replicas):
            if group.tensor_parallel != tensor:
                raise UnsupportedFeature(
                    f"stages[{number}].replicas[{index}].tensor_parallel: degrees {tensor} and "
                    f"{group.tensor_parallel} in one plan are not priced on several pools",
                    alternative="give all groups one tensor degree",
                )


@dataclass(frozen=True, kw_only=True)  # no slots: what is asked for each rank is kept
class MixedPlacement:
    """A plan laid on the pools of a cluster."""

    plan: Plan
    cluster: Cluster

    @cached_property
    def chains(self) -> tuple[Chain, ...]:
        """The replicas of the pipeline; raises like `chains_of`."""
        return chains_of(self.plan)

    @cached_property
    def degrees(self) -> Parallelism:
        """Those of the plan, or what its stages say."""
        first = self.plan.stages[0]
        return self.plan.parallelism or Parallelism(
            pipeline=len(self.plan.stages),
            data=first.data_parallel,
            tensor=first.tensor_parallel,
        )

    @cached_property
    def rank_of_stage(self) -> tuple[int, ...]:
        """The pipeline rank of each virtual stage."""
        return placement_of(self.shape(self.chains[0])).rank_of_stage

    def shape(self, chain: Chain) -> PipelineShape:
        """The pipeline of one chain, slices of sequences being its microbatches."""
        p = self.degrees.pipeline
        return PipelineShape(
            family=self.plan.schedule,
            num_ranks=p,
            num_microbatches=predict.slices_of_plan(self.plan) * chain.num_microbatches,
            virtual_stages=max(1, len(self.plan.stages) // p),
            order=self.plan.order,
        )

    def pool_of(self, chain: Chain, rank: int) -> int:
        """The pool of a rank of a chain."""
        return chain.groups[self.rank_of_stage.index(rank)].pool

    def members(self, rank: int) -> dict[int, int]:
        """Replicas of a rank by pool."""
        found: dict[int, int] = {}
        for chain in self.chains:
            pool = self.pool_of(chain, rank)
            found[pool] = found.get(pool, 0) + chain.count
        return dict(sorted(found.items()))

    def pace_of(self, chain: Chain, rank: int) -> tuple[int, ...]:
        """The pool of a rank of a chain, and after it those of the replicas that it waits for."""
        own = self.pool_of(chain, rank)
        return (own, *self.members(rank)) if self.keep_pace else (own,)

    def replicas(self, rank: int) -> Replicas:
        """How the replicas of a rank spread over pools and networks."""
        members = self.members(rank)
        places = {pool: self._place(pool, rank) for pool in members}
        return mixed_replicas(self.cluster, self.degrees, members, places)

    def _place(self, pool: int, rank: int) -> tuple[int, int]:
        """First device and number of the ranks side by side in a pool; of one if they differ."""
        if pool in self._like_ranks:
            return 0, self._like_ranks[pool]
        chains = enumerate(self.chains)
        return min(self._starts[n, rank] for n, own in chains if self.pool_of(own, rank) == pool), 1

    @cached_property
    def _like_ranks(self) -> dict[int, int]:
        """Ranks by pool, where all have as many replicas there."""
        counts: dict[int, list[int]] = {}
        for rank in range(self.degrees.pipeline):
            for pool, count in self.members(rank).items():
                counts.setdefault(pool, []).append(count)
        return {pool: len(own) for pool, own in counts.items() if len(set(own)) == 1}

    @cached_property
    def _starts(self) -> dict[tuple[int, int], int]:
        """First device in its pool of (number of the chain, rank)."""
        size = self.degrees.tensor * self.degrees.context
        used = [0] * len(self.cluster.pools)
        starts = {}
        for rank in range(self.degrees.pipeline):
            for number, chain in enumerate(self.chains):
                pool = self.pool_of(chain, rank)
                starts[number, rank] = used[pool]
                used[pool] += chain.count * size
        return starts

    @cached_property
    def devices_used(self) -> tuple[int, ...]:
        """Devices of each pool that the plan occupies."""
        size, used = self.degrees.tensor * self.degrees.context, [0] * len(self.cluster.pools)
        for rank in range(self.degrees.pipeline):
            for pool, count in self.members(rank).items():
                used[pool] += count * size
        return tuple(used)

    def level_between(self, chain: Chain, sender: int, receiver: int) -> NetworkLevel | None:
        """The outermost level that a message of a chain from rank to rank crosses."""
        if sender == receiver:
            return None
        pool, other = self.pool_of(chain, sender), self.pool_of(chain, receiver)
        if pool != other:
            return self.cluster.joint
        number = self.chains.index(chain)
        step = np.arange(chain.count * self.degrees.tensor * self.degrees.context)
        return crossed_level(
            self.cluster.pools[pool].levels,
            self._starts[number, sender] + step,
            self._starts[number, receiver] + step,
        )

    def lines_of(self, chain: Chain) -> Lines:
        """The ways in which the ranks of a replica of a chain sum a tensor."""
        size, ranks = self.degrees.tensor * self.degrees.context, range(self.degrees.pipeline)
        spread = Counter(self.pool_of(chain, rank) for rank in ranks)
        strides = {
            pool: size * max(self.members(r)[pool] for r in ranks if self.pool_of(chain, r) == pool)
            for pool in spread
        }
        return lines_across(self.cluster, spread, strides)

    def faults(self) -> Iterator[Fault]:
        """Pools that are too small, and ranks whose chunks lie in several pools."""
        for index, (pool, used) in enumerate(
            zip(self.cluster.pools, self.devices_used, strict=True)
        ):
            if used > pool.num_devices:
                wanted = f"must use at most the {pool.num_devices} {pool.accelerator.name}"
                yield Fault("stages.replicas", f"{wanted} of pool {index}, got {used}")
        for chain in self.chains:
            for number, rank in enumerate(self.rank_of_stage):
                if chain.groups[number].pool != self.pool_of(chain, rank):
                    wanted = f"must lie in the pool of the other stages of rank {rank}"
                    yield Fault(f"stages[{number}].replicas.pool", wanted)

    @property
    def only_pool(self) -> int | None:
        """The pool of a plan that lies on one alone and whose replicas all run alike."""
        pools = {group.pool for chain in self.chains for group in chain.groups}
        return pools.pop() if len(pools) == len(self.chains) == 1 else None

    @property
    def keep_pace(self) -> bool:
        """Whether chains exchange with every microbatch, so that each waits for the others."""
        return self.degrees.zero_stage > AT_THEIR_PACE and len(self.chains) > 1

    def refuse_coupled(self) -> None:
        """Raise `UnsupportedFeature` for exchanges inside microbatches that chains cannot share."""
        degrees, pools = self.degrees, self.cluster.pools
        is_even = len({chain.num_microbatches for chain in self.chains}) == 1
        if self.keep_pace and not is_even:
            raise UnsupportedFeature(
                f"parallelism.zero_stage: ZeRO {degrees.zero_stage} exchanges with every "
                "microbatch, so all replicas run as many",
                alternative="give all replicas as many microbatches, or use ZeRO 0 or 1",
            )
        for rank in range(degrees.pipeline):
            first, *others = (pools[pool] for pool in self.members(rank))
            if is_even and all(pool == first for pool in others):
                continue
            if self.keep_pace and keeps_to_room(self.shape(self.chains[0])):
                raise UnsupportedFeature(
                    f"schedule: ZeRO {degrees.zero_stage} exchanges with every microbatch, in one "
                    f"order, and {self.plan.schedule} orders by the memory of each pool",
                    alternative="use another schedule, or ZeRO 0 or 1",
                )
            if degrees.tensor * degrees.context % (degrees.expert * degrees.expert_shards):
                raise UnsupportedFeature(
                    "parallelism.expert: experts dealt out over several replicas exchange with "
                    "every microbatch, and replicas on unlike pools run at their own pace",
                    alternative="deal them out inside a replica, or use one pool per stage",
                )


def processes_per_node(spans: Iterable[int], most: int) -> int:
    """The most processes, one number on every node, that fill spans of devices with whole nodes."""
    shared = math.gcd(*spans)
    return next(n for n in range(min(shared, most), 0, -1) if shared % n == 0)


def mixed_replicas(
    cluster: Cluster,
    degrees: Parallelism,
    members: Mapping[int, int],
    places: Mapping[int, tuple[int, int]],
) -> Replicas:
    """The groups of a pipeline rank with so many replicas in each pool.

    `places` say on which device of a pool the first of how many ranks begins that lie side by side
    there, each with as many replicas.
    """
    data = sum(members.values())
    if len(members) == 1:
        (pool,) = members
        start, ranks = places[pool]
        own = replace(degrees, data=data, pipeline=ranks)
        return group_replicas(cluster.pools[pool], own, start)
    t, c, stride = degrees.tensor, degrees.context, degrees.expert * degrees.expert_shards
    dense, expert = (
        [
            group_hops(
                cluster.pools[pool].levels,
                ranks=max(1, t * c * count // step),
                stride=step,
                tiles=places[pool][1],
                start=places[pool][0],
            )
            for pool, count in members.items()
        ]
        for step in (t, stride)
    )
    joint, sizes = cluster.joint, (data * c, max(1, t * c * data // stride))
    assert joint is not None, "several pools are joined"
    hosted = [hosted_weights(cluster.pools[pool]) for pool in members]
    on_host, link_s = min(share for share, _ in hosted), max(byte_s for _, byte_s in hosted)
    return Replicas(
        sizes=sizes,
        reduce=(_reduce_lines(dense, joint), _reduce_lines(expert, joint)),
        gather=(_gather_lines(dense, joint), _gather_lines(expert, joint)),
        zero_stage=degrees.zero_stage,
        held_weights=1.0 - on_host,
        fetch_byte_s=(on_host * link_s / sizes[0], on_host * link_s / sizes[1]),
    )


def at_any_depth(
    cluster: Cluster, degrees: Parallelism, members: Mapping[int, int]
) -> list[Replicas]:
    """The groups with so many replicas in each pool, of pipelines with any number of ranks there.

    Where groups fill units evenly they all lie alike.
    """
    most = 1
    for pool, count in members.items():
        span, own = degrees.tensor * degrees.context * count, cluster.pools[pool]
        for unit in accumulate((level.size for level in own.levels[:-1]), mul):
            if unit % span and span % unit:
                offsets = unit // math.gcd(span, unit)  # of the ranks' first devices
                most = max(most, min(offsets, own.num_devices // span))
    places = (dict.fromkeys(members, (0, depth)) for depth in range(1, most + 1))
    return list(dict.fromkeys(mixed_replicas(cluster, degrees, members, own) for own in places))


def cheapest(groups: list[Replicas]) -> Replicas:
    """Replicas that may use any way of any of the groups: parts cost no less than their sum."""
    first, *others = groups
    for group in others:
        first = replace(
            first,
            reduce=(first.reduce[0] + group.reduce[0], first.reduce[1] + group.reduce[1]),
            gather=(first.gather[0] + group.gather[0], first.gather[1] + group.gather[1]),
        )
    return first


def lines_across(cluster: Cluster, ranks: Mapping[int, int], strides: Mapping[int, int]) -> Lines:
    """Start and seconds per byte of each way in which so many ranks of each pool sum a tensor.

    In a pool they lie `strides` devices apart.
    """
    joint = cluster.joint
    groups = [
        group_hops(cluster.pools[pool].levels, ranks=count, stride=strides[pool])
        for pool, count in ranks.items()
    ]
    if len(groups) == 1:
        return all_reduce_lines(groups[0])
    assert joint is not None, "several pools are joined"
    return _reduce_lines(groups, joint)


def _reduce_lines(pools: list[tuple[Hop, ...]], joint: NetworkLevel) -> Lines:
    """Start and seconds per byte of each way to all-reduce over pools."""
    least, across = _across(pools, joint)
    return (
        *all_reduce_lines((_ring(pools, joint),)),
        *(
            (2 * s + a, 2 * x + b / least)
            for s, x in _inside(pools)
            for a, b in all_reduce_lines((across,))
        ),
    )


def _gather_lines(pools: list[tuple[Hop, ...]], joint: NetworkLevel) -> Lines:
    """Start and seconds per byte of each way to gather over pools, or to scatter."""
    least, across = _across(pools, joint)
    return (
        *all_gather_lines((_ring(pools, joint),)),
        *(
            (s + a, x + b / least)
            for s, x in _inside(pools)
            for a, b in all_gather_lines((across,))
        ),
    )


def _across(pools: list[tuple[Hop, ...]], joint: NetworkLevel) -> tuple[int, Hop]:
    """Members in the smallest pool, and how parts meet if every pool had as few."""
    sizes = [_size(hops) for hops in pools]
    least = min(sizes)
    return least, Hop(level=joint, ranks=math.ceil(sum(sizes) / least))


def _ring(pools: list[tuple[Hop, ...]], joint: NetworkLevel) -> Hop:
    """All members in one group, on links as slow as the slowest and as late as the latest."""
    levels = [joint, *(hop.level for hops in pools for hop in hops)]
    slowest = min(levels, key=lambda level: level.effective_bytes_per_s)
    latency_s = max(level.latency_s for level in levels)
    return Hop(level=replace(slowest, latency_s=latency_s), ranks=sum(map(_size, pools)))


def _inside(pools: list[tuple[Hop, ...]]) -> Iterator[tuple[float, float]]:
    """One pass inside all pools side by side: start and seconds per byte of each choice."""
    for ways in product(*(all_gather_lines(hops) or ((0.0, 0.0),) for hops in pools)):
        yield max(start_s for start_s, _ in ways), max(byte_s for _, byte_s in ways)


def _size(hops: tuple[Hop, ...]) -> int:
    return math.prod(hop.ranks for hop in hops)


# A plan on several kinds of devices, priced: every chain as a pipeline of its own
# --------------------------------------------------------------------------------
#     step = max over chains and ranks (end in the pipeline + exposed gradient synchronisation)
#            + the slowest optimizer + the longest overhead of a step
#
# Each chain is assembled and simulated by `assemble` as a uniform plan is, with the times of the
# device that each of its ranks runs on; a plan on one pool costs what `predict_step` says.
# Chains meet where replicas sum their gradients: the last one to come there ends the step.


def predict_mixed_step(
    plan: Plan,
    profiles: Mapping[int, Profile],
    cluster: Cluster,
    *,
    model_flops_per_sequence: float | None = None,
    overlap: Overlap = DEFAULT_OVERLAP,
    overheads: MemoryOverheads = NO_OVERHEADS,
) -> MixedPrediction:
    """Price one training step; `profiles` has one of the same layers for each pool in use.

    Raises `InvalidInput` where the plan breaks a rule or does not fit on the pools' devices,
    `UnsupportedFeature` naming the field for what cannot be priced on several pools. Not fitting
    into memory is no error.
    """
    placement = MixedPlacement(plan=plan, cluster=cluster)
    chains = tuple(
        ChainPrediction(
            count=chain.count,
            num_microbatches=chain.num_microbatches,
            pools=tuple(placement.pool_of(chain, rank) for rank in range(len(step.stages))),
            step=step,
        )
        for chain, step in _steps(placement, profiles, overlap, overheads)
    )
    priced = _together(chains, cluster)
    point = next(iter(profiles.values())).point
    devices = zip(placement.devices_used, (pool.accelerator for pool in cluster.pools), strict=True)
    return predict.with_throughput(
        priced,
        point,
        plan=plan,
        devices=devices,
        model_flops_per_sequence=model_flops_per_sequence,
    )


def mixed_works(
    plan: Plan,
    profiles: Mapping[int, Profile],
    cluster: Cluster,
    *,
    overlap: Overlap = DEFAULT_OVERLAP,
    overheads: MemoryOverheads = NO_OVERHEADS,
) -> tuple[tuple[Chain, predict.StepWork, predict.Layout], ...]:
    """What `predict_mixed_step` simulates of each chain; raises like that."""
    placement = MixedPlacement(plan=plan, cluster=cluster)
    if (alone := _alone(placement, profiles)) is not None:
        work, layout = predict.work_of_plan(*alone, overlap=overlap, overheads=overheads)
        return ((placement.chains[0], work, layout),)
    return tuple(_works(placement, profiles, overlap, overheads))


def _steps(
    placement: MixedPlacement,
    profiles: Mapping[int, Profile],
    overlap: Overlap,
    overheads: MemoryOverheads,
) -> Iterator[tuple[Chain, StepPrediction]]:
    if (alone := _alone(placement, profiles)) is not None:
        step = predict.predict_step(*alone, overlap=overlap, overheads=overheads)
        yield placement.chains[0], step
        return
    slices = predict.slices_of_plan(placement.plan)
    for chain, work, layout in _works(placement, profiles, overlap, overheads):
        yield chain, predict.of_whole_microbatches(predict.assemble_step(work, layout), slices)


def _alone(
    placement: MixedPlacement, profiles: Mapping[int, Profile]
) -> tuple[Plan, Profile, Cluster] | None:
    """What prices a plan on one pool: the special case, which knows every schedule and mapping."""
    refuse((*placement.faults(), *_layer_faults(placement.plan, profiles)))
    if (pool := placement.only_pool) is None:
        return None
    plan = as_run_by(placement.plan, placement.chains[0])
    return plan, profiles[pool], placement.cluster.alone(pool)


def _works(
    placement: MixedPlacement,
    profiles: Mapping[int, Profile],
    overlap: Overlap,
    overheads: MemoryOverheads,
) -> Iterator[tuple[Chain, predict.StepWork, predict.Layout]]:
    devices = [pool.accelerator for pool in placement.cluster.pools]
    placement.refuse_coupled()
    slices = predict.slices_of_plan(placement.plan)
    profiles = {pool: in_slices(profile, slices) for pool, profile in profiles.items()}
    replicas = [placement.replicas(rank) for rank in range(placement.degrees.pipeline)]
    works = [_work(placement, chain, profiles) for chain in placement.chains]
    if placement.keep_pace:
        works, devices = _waiting(works), _with_slowest_link(devices, profiles)
    for chain, work in zip(placement.chains, works, strict=True):
        places = (
            predict.RankPlace(accelerator=devices[placement.pool_of(chain, rank)], replicas=own)
            for rank, own in enumerate(replicas)
        )
        layout = predict.Layout(
            shape=placement.shape(chain),
            places=tuple(places),
            overlap=overlap,
            overheads=overheads,
        )
        yield chain, work, layout


def at_one_pace(profiles: Mapping[int, Profile]) -> Mapping[int, Profile]:
    """What layers cost in each of several pools whose replicas exchange with every microbatch.

    Before a layer its weights are gathered, or after it its gradients are summed, so that a forward
    or a gradient of it takes as long as in the slowest pool.
    """
    tables = [profile.costs.phases for profile in profiles.values()]
    first, *others = tables
    if first is None or all(each == first for each in others):
        return profiles
    longest = replace(
        first,
        **{
            each.name: np.max([getattr(own, each.name) for own in tables], axis=0)
            for each in fields(first)
        },
    )
    return {
        pool: replace(
            profile, costs=replace(profile.costs, phases=longest, duration_s=longest.total_s)
        )
        for pool, profile in profiles.items()
    }


def _waiting(works: list[predict.StepWork]) -> list[predict.StepWork]:
    """The chains' works, with all stages and all that lies between as long as in the slowest."""
    transfer_s = np.max([work.transfer_s for work in works], axis=0)
    tied_s = tuple(np.max([work.tied_s for work in works], axis=0).tolist())
    barrier_s = max((head.barrier_s for work in works for head in work.heads), default=0.0)
    longest = [
        {name: max(getattr(own, name) for own in parts) for name in _OF_STAGE}
        for parts in zip(*(work.parts for work in works), strict=True)
    ]
    found = []
    for work in works:
        parts = [replace(own, **times) for own, times in zip(work.parts, longest, strict=True)]
        count = len(work.stages)
        heads = tuple(CutHead(share=own, barrier_s=barrier_s) for own in parts[count:])
        stages = tuple(parts[:count])
        found.append(
            replace(work, stages=stages, heads=heads, transfer_s=transfer_s, tied_s=tied_s)
        )
    return found


_OF_STAGE = ("forward_s", "input_grad_s", "weight_grad_s")


def _with_slowest_link(devices: list[Accelerator], used: Iterable[int]) -> list[Accelerator]:
    """The pools' devices, whose hosts take copies no faster than any that is used."""
    hosts = [device.host for device in (devices[pool] for pool in used) if device.host is not None]
    if not hosts:
        return devices
    least = min(host.link_bytes_per_s for host in hosts)
    return [
        device
        if device.host is None or device.host.link_bytes_per_s <= least
        else replace(device, host=replace(device.host, link_bytes_per_s=least))
        for device in devices
    ]


def _layer_faults(plan: Plan, profiles: Mapping[int, Profile]) -> Iterator[Fault]:
    """Layers that the profiles do not have; those that no stage has."""
    placed = [layer for stage in plan.stages for layer in stage.layers]
    for index, profile in profiles.items():
        missing = sorted(set(profile.structure.ids) ^ set(placed))
        if missing:
            names = ", ".join(map(str, missing))
            yield Fault("stages", f"must hold every layer of profile {index} once; see {names}")


def _together(chains: tuple[ChainPrediction, ...], cluster: Cluster) -> MixedPrediction:
    steps = [chain.step for chain in chains]
    synced_s = max(step.pipeline_s + step.exposed_gradient_sync_s for step in steps)
    pipeline_s = max(step.pipeline_s for step in steps)
    optimizer_s = max(step.optimizer_s for step in steps)
    used = {pool for chain in chains for pool in chain.pools}
    overhead_s = max(cluster.pools[pool].accelerator.step_overhead_s for pool in used)
    return MixedPrediction(
        step_time_s=synced_s + optimizer_s + overhead_s,
        pipeline_s=pipeline_s,
        exposed_gradient_sync_s=synced_s - pipeline_s,
        optimizer_s=optimizer_s,
        chains=chains,
    )


def _work(
    placement: MixedPlacement, chain: Chain, profiles: Mapping[int, Profile]
) -> predict.StepWork:
    ranks = placement.rank_of_stage
    heads: tuple[CutHead, ...] = ()
    if has_cut_head(placement.shape(chain)):
        heads = _heads(placement, chain, profiles)
        profiles = {pool: without_head(profile) for pool, profile in profiles.items()}
    works = _stage_works(placement, chain, profiles)
    profile = profiles[chain.groups[0].pool]
    sent = cut_bytes(as_run_by(placement.plan, chain), profile)
    last = len(works) - 1
    sizes = [sent.get((stage, stage + 1), 0.0) for stage in range(last)]
    levels = [
        placement.level_between(chain, ranks[stage], ranks[stage + 1]) for stage in range(last)
    ]
    times_s = [point_to_point_time_s(b, level) for b, level in zip(sizes, levels, strict=True)]
    return predict.StepWork(
        stages=works,
        rank_of_stage=ranks,
        transfer_s=np.array(times_s),
        transfer_bytes=np.array(sizes),
        tied_s=tied_times_s(
            works,
            (stage.layers for stage in placement.plan.stages),
            profile.structure,
            ranks,
            lambda one, other: placement.level_between(chain, ranks[one], ranks[other]),
        ),
        gathered_input_bytes=predict.gathered_input_bytes(placement.degrees, profile),
        heads=heads,
    )


def _heads(
    placement: MixedPlacement, chain: Chain, profiles: Mapping[int, Profile]
) -> tuple[CutHead, ...]:
    """What each rank has of a head that is cut over all of them, at the prices of its own pool."""
    p, lines = placement.degrees.pipeline, placement.lines_of(chain)
    of_place: dict[tuple[int, ...], CutHead] = {}
    places = [placement.pace_of(chain, rank) for rank in range(p)]
    for pool, *beside in dict.fromkeys(places):
        of_place[pool, *beside] = cut_head(
            _profile_of(pool, beside, profiles),
            p,
            lines,
            group_axis_hops(placement.cluster.pools[pool], placement.degrees),
        )
    return tuple(of_place[place] for place in places)


def _profile_of(pool: int, beside: Iterable[int], profiles: Mapping[int, Profile]) -> Profile:
    """What layers cost in a pool where they wait for those of the pools `beside`."""
    return at_one_pace({own: profiles[own] for own in dict.fromkeys((pool, *beside))})[pool]


def as_run_by(plan: Plan, chain: Chain) -> Plan:
    """The plan with the options of one chain's groups."""
    stages = (
        replace(
            stage, options=group.options or stage.options, replicas=(replace(group, options=()),)
        )
        for stage, group in zip(plan.stages, chain.groups, strict=True)
    )
    return replace(plan, stages=tuple(stages))


def _stage_works(
    placement: MixedPlacement, chain: Chain, profiles: Mapping[int, Profile]
) -> tuple[StageWork, ...]:
    """Each stage at the prices of the pool that it runs in."""
    plan, pools = as_run_by(placement.plan, chain), placement.cluster.pools
    places = [placement.pace_of(chain, rank) for rank in placement.rank_of_stage]
    of_place = {
        (pool, *beside): stage_works(
            plan,
            _profile_of(pool, beside, profiles),
            group_axis_hops(pools[pool], placement.degrees),
        )
        for pool, *beside in dict.fromkeys(places)
    }
    return tuple(of_place[place][stage] for stage, place in enumerate(places))
