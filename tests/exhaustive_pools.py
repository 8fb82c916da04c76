"""Every plan on two pools of a small space, one by one, and the bounds of a candidate."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from itertools import combinations, combinations_with_replacement, pairwise, product

from exhaustive import has_its_ends
from mixed_clusters import A100, ETHERNET, H100, with_memory
from trainwright.cluster import Cluster
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.model import Offload, Optimizer, Recipe
from trainwright.planning.bounds.pools import (
    Across,
    Beside,
    Grid,
    MixedShelf,
    MixedWork,
    Part,
    across_bounds_s,
    across_grid,
    beside_bounds_s,
    beside_grid,
    runs_alike,
)
from trainwright.planning.question.layouts import IN_V, LOOPED
from trainwright.planning.question.question import (
    Allowed,
    ModelQuestion,
    Point,
    RunSettings,
    Span,
    Workload,
)
from trainwright.plans import Parallelism, Plan, ReplicaGroup, Stage
from trainwright.plans.configuration import Overlap
from trainwright.profile import Recompute
from trainwright.step.pools import predict_mixed_step

TINY = replace(catalog.model("llama3-8b").config, num_layers=2, vocabulary_size=32000)
MODES = (Recompute.NONE, Recompute.FULL)


def pair(devices: int = 2, *, joint=ETHERNET) -> Cluster:
    """Two devices of each of two kinds, joined by Ethernet."""
    pools = []
    for name in ("dgx-a100", "dgx-h100"):
        pool = catalog.cluster(name).with_nodes(1).pools[0]
        level = replace(pool.levels[0], size=devices)
        pools.append(replace(pool, levels=(level,)))
    return Cluster(name="pair", pools=tuple(pools), joint=joint)


def alike_pair() -> Cluster:
    """Two H100 before two more, joined by Ethernet."""
    found = pair()
    return replace(found, pools=(found.pools[1],) * 2)


def asked(
    cluster: Cluster, *, batch: int = 4, sequence: int = 2048, model=TINY, **allowed
) -> ModelQuestion:
    space = {"recompute": MODES, "schedules": ("1f1b",), "context": Span.only(1)} | allowed
    return ModelQuestion(
        model=model,
        cluster=cluster,
        workload=Workload(global_batch=batch, sequence_length=sequence),
        num_devices=cluster.num_devices,
        allowed=Allowed(**space),
    )


def every_step_s(
    question: ModelQuestion, shelf: MixedShelf, candidate, *, allows=lambda plan: True
) -> list[float]:
    """Step times of all plans of a candidate that fit and are allowed."""
    point, p = candidate.point, candidate.degrees.pipeline
    profiles = {pool: shelf.profile(pool, point) for pool in candidate.pools}
    layers = profiles[candidate.pools[0]].structure.layers
    total = question.workload.global_batch // point.microbatch_size
    found = []
    for inner in combinations(range(1, len(layers)), p * candidate.virtual_stages - 1):
        ends = (0, *inner, len(layers))
        if candidate.schedule in LOOPED and not has_its_ends(layers, ends):
            continue
        cuts = list(pairwise(ends))
        for groups in every_group(candidate, total):
            used = sorted({group.pool for own in groups for group in own})
            ways = [every_way(layers, cuts, question.allowed.recompute) for _ in used]
            for chosen in product(*ways):
                options = dict(zip(used, chosen, strict=True))
                stages = [
                    Stage(
                        layers=tuple(layer.id for layer in layers[a:b]),
                        options=options[own[0].pool][a:b],
                        replicas=tuple(replace(g, options=options[g.pool][a:b]) for g in own),
                    )
                    for (a, b), own in zip(cuts, groups, strict=True)
                ]
                plan = Plan(
                    stages=tuple(stages),
                    num_microbatches=total,
                    microbatch_size=point.microbatch_size,
                    schedule=candidate.schedule,
                    parallelism=candidate.degrees,
                )
                if not allows(plan):
                    continue
                try:
                    step = predict_mixed_step(
                        plan, profiles, question.cluster, overlap=question.settings.overlap
                    )
                except InvalidInput:  # a rule of the family
                    break
                if fits(question, step):
                    found.append(step.step_time_s)
    return found


def every_group(candidate, total: int):
    """The replicas of each stage, with every share that leaves none without a microbatch."""
    tensor = candidate.point.tensor
    ranks = ranks_of_stages(candidate)
    if isinstance(candidate, Across):
        pools = [
            pool
            for pool, n in zip(candidate.pools, candidate.depths, strict=True)
            for _ in range(n)
        ]
        yield [
            (ReplicaGroup(count=candidate.data, tensor_parallel=tensor, pool=pools[rank]),)
            for rank in ranks
        ]
        return
    counts = zip(candidate.pools, candidate.replicas, strict=True)
    sizes = [pool for pool, n in counts for _ in range(n)]
    for dealt in product(range(1, total + 1), repeat=len(sizes)):
        if sum(dealt) != total:
            continue
        if not at_their_pace(candidate.zero_stage) and len(set(dealt)) > 1:
            continue
        groups = tuple(
            ReplicaGroup(count=1, tensor_parallel=tensor, pool=pool, share=m / total)
            for pool, m in zip(sizes, dealt, strict=True)
        )
        yield [groups] * len(ranks)


def ranks_of_stages(candidate) -> list[int]:
    """In V down and up again, else round and round."""
    p, v = candidate.degrees.pipeline, candidate.virtual_stages
    if candidate.schedule in IN_V:
        return [*range(p), *reversed(range(p))]
    return [*range(p)] * v


def every_way(layers, cuts, modes=MODES):
    """Options of all layers; of a stage's blocks only how many run in each mode matters."""
    if len({layer.layer_class for layer in layers}) == len(layers):  # no two are alike
        return [tuple(map(str, chosen)) for chosen in product(modes, repeat=len(layers))]
    per_stage = []
    for a, b in cuts:
        names = [layer.name for layer in layers[a:b]]
        blocks = [i for i, name in enumerate(names) if name == "block"]
        own = []
        for chosen in combinations_with_replacement(map(str, modes), len(blocks)):
            mode_of = dict(zip(blocks, chosen, strict=True))
            own.append(tuple(mode_of.get(i, "none") for i in range(b - a)))
        per_stage.append(own)
    return [tuple(x for stage in chosen for x in stage) for chosen in product(*per_stage)]


def is_launched(plan: Plan, cluster: Cluster) -> bool:
    """Whether a framework with one mode for all blocks launches it: replicas are alike.

    Its processes, stage by stage, fill nodes of one size, each in one pool.
    """
    groups = [group for stage in plan.stages for group in stage.replicas]
    processes = [group.pool for group in groups for _ in range(group.num_devices)]
    fills = False
    for size in range(1, min(pool.devices_per_node for pool in cluster.pools) + 1):
        nodes = [processes[at : at + size] for at in range(0, len(processes), size)]
        whole = all(len(node) == size and len(set(node)) == 1 for node in nodes)
        used = [node[0] for node in nodes]
        enough = all(used.count(i) <= pool.num_nodes for i, pool in enumerate(cluster.pools))
        fills = fills or (whole and enough)
    modes = {
        option
        for stage in plan.stages
        for group in stage.replicas
        for layer, option in zip(stage.layers, group.options or stage.options, strict=True)
        if layer in (1, 2)  # the blocks
    }
    shares = {group.share / group.count for group in groups}
    return fills and len(modes) == 1 and max(shares) - min(shares) < 1e-9


def fits(question: ModelQuestion, step) -> bool:
    pools = question.cluster.pools
    return all(
        stage.memory.total_bytes <= pools[pool].accelerator.usable_bytes
        for chain in step.chains
        for pool, stage in zip(chain.pools, chain.step.stages, strict=True)
    )


def every_candidate(question: ModelQuestion):
    """All degrees by brute force."""
    batch, model = question.workload.global_batch, question.model
    rooms = [pool.num_devices for pool in question.cluster.pools]
    families = [*families_with_chunks(question.allowed, model.num_layers)]
    for size, tensor, zero, (family, chunks) in product(
        (1, 2, 4), (1, 2), question.allowed.zero_stages, families
    ):
        if batch % size or any(room < tensor for room in rooms):
            continue
        if size not in question.allowed.microbatch_size or tensor not in question.allowed.tensor:
            continue
        deep, wide = question.allowed.pipeline, question.allowed.data
        point = Point(microbatch_size=size, tensor=tensor)
        shared = {"point": point, "zero_stage": zero, "schedule": family}
        shared["virtual_stages"] = chunks
        for order in ((0, 1), (1, 0)):
            most = [rooms[pool] // tensor for pool in order]
            for a, b, data in product(*(range(1, m + 1) for m in most), range(1, 5)):
                if (
                    max(a * data - most[0], b * data - most[1]) <= 0
                    and a + b in deep
                    and data in wide
                    and (a + b) * chunks <= model.num_layers
                    and is_piped(a + b, family)
                    and batch // size % data == 0
                ):
                    yield Across(pools=order, depths=(a, b), data=data, **shared)
        most = [room // tensor for room in rooms]
        for a, b, depth in product(*(range(1, m + 1) for m in most), range(1, 4)):
            inside = max(a * depth - most[0], b * depth - most[1]) <= 0
            inside &= depth in deep and a + b in wide
            inside &= depth * chunks <= model.num_layers and is_piped(depth, family)
            inside &= at_their_pace(zero) or batch // size % (a + b) == 0
            if inside and a + b <= batch // size:
                yield Beside(pools=(0, 1), replicas=(a, b), depth=depth, **shared)


def at_their_pace(zero: int) -> bool:
    """Whether replicas exchange nothing inside microbatches."""
    return zero < 2


def is_piped(ranks: int, family: str) -> bool:
    """Whether there is a pipeline, or the family is of one stage per rank."""
    return ranks > 1 or family not in (*LOOPED, *IN_V)


def families_with_chunks(allowed: Allowed, num_blocks: int):
    """The families with their chunks per rank: two in V, one in a chain, two or more in a loop."""
    for family in allowed.schedules:
        if family in LOOPED:
            yield from (
                (family, v) for v in range(2, num_blocks + 1) if v in allowed.virtual_stages
            )
        else:
            yield family, 2 if family in IN_V else 1


_NARROW = {"moment_dtypes": ("bf16",), "gradient_dtype": "bf16", "main_weight_dtype": "bf16"}
SLOW_JOINT = replace(ETHERNET, bandwidth_bytes_per_s=1e9)
_PLAIN = {"optimizer": Optimizer.SGD, "gradient_dtype": "bf16", "main_weight_dtype": "none"}
_LAYERS = (Recompute.NONE, Recompute.OFFLOAD, Recompute.FULL)


def on_hosts(
    memory_gib: float, recipe: Recipe, *modes: Recompute, batch: int = 4, **allowed
) -> ModelQuestion:
    """Long sequences on little memory, which hosts may hold for both kinds."""
    cluster = with_memory(with_memory(pair(), A100, memory_gib), H100, memory_gib)
    space = {"zero_stages": (1,), "tensor": Span.only(1), "microbatch_size": Span.only(1)}
    space |= {"recompute": modes or MODES} | allowed
    question = asked(cluster, batch=batch, sequence=8192, **space)
    return replace(question, settings=RunSettings(recipe=recipe))


CASES = {
    "small": asked(pair(), batch=3, zero_stages=(1,), tensor=Span.only(1)),
    "tied": asked(
        pair(joint=SLOW_JOINT),
        batch=3,
        model=replace(TINY, tied_embeddings=True),
        zero_stages=(1,),
        tensor=Span.only(1),
    ),
    "roomy": asked(pair(), zero_stages=(1,), microbatch_size=Span(most=2)),
    "tight A100": asked(
        with_memory(pair(), A100, 9.0), zero_stages=(0, 1), microbatch_size=Span.only(1)
    ),
    "all ZeRO stages": asked(with_memory(pair(), A100, 8.0), microbatch_size=Span.only(1)),
    "slow joint": asked(
        pair(joint=SLOW_JOINT),
        zero_stages=(0, 1),
        microbatch_size=Span.only(1),
    ),
    # Nothing hides, and transfers occupy ranks; or gradients hide under all of the backward.
    "nothing hidden": replace(
        asked(pair(), batch=3, zero_stages=(0, 1), tensor=Span.only(1)),
        settings=RunSettings(
            recipe=Recipe(**_NARROW),
            overlap=Overlap(gradients=0.0, parameters=0.0, pipeline=0.0),
        ),
    ),
    "all hidden": replace(
        asked(pair(joint=SLOW_JOINT), batch=3, zero_stages=(1,), tensor=Span.only(1)),
        settings=RunSettings(
            recipe=Recipe(optimizer=Optimizer.SGD),
            overlap=Overlap(gradients=1.0, parameters=1.0),
        ),
    ),
    "states on hosts": replace(
        asked(with_memory(pair(), A100, 4.5), batch=3, zero_stages=(0, 1), tensor=Span.only(1)),
        settings=RunSettings(recipe=Recipe(offload=Offload(optimizer=0.75, gradients=1.0))),
    ),
    "activations on hosts": on_hosts(6.0, Recipe(**_PLAIN, offload=Offload(activations=0.7))),
    "schedule that copies": on_hosts(5.0, Recipe(**_PLAIN), schedules=("po-f",), batch=3),
    "slices": on_hosts(6.0, Recipe(**_PLAIN), schedules=("seq1f1b",), batch=3),
    "slices, all ZeRO stages": on_hosts(
        6.0, Recipe(**_PLAIN), schedules=("seq1f1b",), zero_stages=(0, 1, 2, 3), batch=4
    ),
    "cut heads": on_hosts(6.0, Recipe(**_PLAIN), schedules=("vocab-1", "vocab-2"), batch=4),
    "cut heads, all ZeRO stages": asked(
        pair(),
        schedules=("vocab-1", "vocab-2"),
        model=replace(TINY, vocabulary_size=128_000),
        microbatch_size=Span.only(1),
    ),
    "alike, in step": asked(
        with_memory(with_memory(alike_pair(), 0, 9.0), 1, 9.0),
        zero_stages=(2, 3),
        tensor=Span.only(1),
        microbatch_size=Span.only(1),
    ),
    "unlike, in step": asked(
        with_memory(pair(joint=SLOW_JOINT), A100, 9.0),
        zero_stages=(2, 3),
        tensor=Span.only(1),
        microbatch_size=Span.only(1),
    ),
    "in V": asked(
        pair(),
        batch=3,
        model=replace(TINY, num_layers=4),
        schedules=("zb-v",),
        pipeline=Span.only(2),
        zero_stages=(1,),
        tensor=Span.only(1),
        microbatch_size=Span.only(1),
    ),
    "in V, tight": asked(
        with_memory(with_memory(pair(), A100, 12.0), H100, 13.0),
        batch=3,
        model=replace(TINY, num_layers=4),
        schedules=("zb-v", "v-half"),
        pipeline=Span.only(2),
        data=Span.only(1),
        zero_stages=(1,),
        tensor=Span.only(1),
        microbatch_size=Span.only(1),
    ),
    "in loops": asked(
        pair(),
        model=replace(TINY, num_layers=4),
        schedules=("interleaved", "breadth-first"),
        zero_stages=(0, 2),
        pipeline=Span.only(2),
        tensor=Span.only(1),
        microbatch_size=Span.only(1),
    ),
    "many held": on_hosts(7.0, Recipe(**_PLAIN), schedules=("gpipe", "eager-1f1b"), batch=4),
    "layers on hosts": on_hosts(6.0, Recipe(**_PLAIN), *_LAYERS),
    "layers on hosts, more room": on_hosts(7.0, Recipe(**_PLAIN), *_LAYERS),
}


@cache
def exhausted(name: str) -> list[tuple[Across | Beside, float]]:
    """The least step of every candidate of a case; infinite where nothing fits."""
    question = CASES[name]
    shelf = MixedShelf.of(question)
    return [
        (candidate, min(every_step_s(question, shelf, candidate), default=math.inf))
        for candidate in every_candidate(question)
    ]


def coarse_bound_s(question: ModelQuestion, shelf: MixedShelf, candidate) -> float:
    across, allowed = isinstance(candidate, Across), question.allowed
    counts, shared = (
        (candidate.depths, candidate.data) if across else (candidate.replicas, candidate.depth)
    )
    made = (across_grid if across else beside_grid)(question, candidate.point, candidate.pools)
    rows = [(tuple(c), s) for c, s in zip(made.counts.tolist(), made.shared.tolist(), strict=True)]
    at = rows.index((counts, shared))  # every candidate is in the grid
    grid = Grid(counts=made.counts[at : at + 1], shared=made.shared[at : at + 1])
    part = Part.of(candidate)
    degrees = Parallelism(
        tensor=candidate.point.tensor,
        sequence_parallel=candidate.point.tensor > 1,
        zero_stage=candidate.zero_stage,
    )
    alike = runs_alike(allowed, candidate.zero_stage)
    bounded = across_bounds_s if across else partial(beside_bounds_s, alike=alike)
    found = bounded(
        MixedWork.of(shelf, candidate.point, candidate.pools, part),
        candidate.point,
        grid,
        microbatches=part.slices
        * question.workload.global_batch
        // candidate.point.microbatch_size,
        zero_stage=candidate.zero_stage,
        schedule=candidate.schedule,
        degrees=degrees,
        in_turn=candidate.schedule not in (*LOOPED, *IN_V),
    )
    return float(found[0])
