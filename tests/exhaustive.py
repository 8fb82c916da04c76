"""Every legal plan of a small space, one by one: what the joint planner is held against."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import accumulate, combinations, pairwise, product
from operator import mul

from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.planning.question.layouts import LOOPED, chunks_per_rank
from trainwright.planning.question.question import (
    USUAL_SETTINGS,
    Allowed,
    Candidate,
    ModelQuestion,
    Span,
    Workload,
    estimate_profile,
    rank_buffer_bytes,
)
from trainwright.plans import Plan, Stage
from trainwright.plans.configuration import NO_OVERHEADS, Configuration, broken_rules
from trainwright.plans.plan import PIPELINE_INSIDE, Parallelism
from trainwright.profile import Recompute
from trainwright.step.predict import predict_step

LLAMA = catalog.model("llama3-8b").config
MIXTRAL = catalog.model("mixtral-8x7b").config
TINY_MIXTURE = replace(
    MIXTRAL,
    num_layers=2,
    ffn_size=4096,
    experts=replace(MIXTRAL.experts, num_experts=4, ffn_size=4096),
)
MODES = (Recompute.NONE, Recompute.FULL)


def asked(
    model,
    *,
    memory_gib,
    devices=4,
    batch=4,
    sequence=2048,
    overheads=NO_OVERHEADS,
    settings=USUAL_SETTINGS,
    cluster=None,
    **allowed,
):
    cluster = cluster or catalog.cluster("dgx-h100").with_nodes(1)
    cluster = cluster.with_memory(memory_gib * 2**30)
    return ModelQuestion(
        model=model,
        cluster=cluster,
        workload=Workload(global_batch=batch, sequence_length=sequence),
        num_devices=devices,
        overheads=overheads,
        settings=settings,
        allowed=Allowed(**{"recompute": MODES, "schedules": ("1f1b",)} | allowed),
    )


def two_nodes_of_two(between_bytes_per_s):
    """H100 devices in pairs, two pairs joined by a network."""
    cluster = catalog.cluster("dgx-h100").with_nodes(2)
    inner, outer = cluster.levels
    joint = replace(outer, bandwidth_bytes_per_s=between_bytes_per_s)
    pool = replace(cluster.pools[0], levels=(replace(inner, size=2), joint))
    return replace(cluster, pools=(pool,))


def one_a_node(between_bytes_per_s):
    """Four H100 devices, each in a node of its own."""
    cluster = catalog.cluster("dgx-h100").with_nodes(4)
    inner, outer = cluster.levels
    joint = replace(outer, bandwidth_bytes_per_s=between_bytes_per_s)
    pool = replace(cluster.pools[0], levels=(replace(inner, size=1), joint))
    return replace(cluster, pools=(pool,))


def eight_over_three_levels(rack_bytes_per_s, hall_bytes_per_s):
    """H100 devices in pairs, two pairs to a rack, two racks to a hall."""
    cluster = two_nodes_of_two(rack_bytes_per_s)
    inner, rack = cluster.levels
    hall = replace(rack, name="hall", bandwidth_bytes_per_s=hall_bytes_per_s)
    return replace(cluster, pools=(replace(cluster.pools[0], levels=(inner, rack, hall)),))


def every_candidate(question):
    """All degrees by brute force; the rules of legality decide."""
    model, allowed = question.model, question.allowed
    devices = question.num_devices
    counts = range(1, devices + 1)
    batch = question.workload.global_batch
    alone = "1f1b" if "1f1b" in allowed.schedules else allowed.schedules[0]
    cuts = (None,) if model.experts is None else (1, 2, 4)
    for size, tp, cp, pp, dp in product(range(1, batch + 1), counts, counts, counts, counts):
        if tp * cp * pp * dp > devices or size > batch:
            continue
        degrees = {"tensor": tp, "context": cp, "pipeline": pp, "data": dp, "microbatch_size": size}
        if any(degree not in getattr(allowed, name) for name, degree in degrees.items()):
            continue
        orders = allowed.mappings if min(pp, dp) > 1 else allowed.mappings[:1]
        for ep, etp, zero, order in product(counts, cuts, allowed.zero_stages, orders):
            if etp not in (None, 1, tp):
                continue
            inside = order == PIPELINE_INSIDE and min(pp, dp) > 1
            if inside and ep * (etp or tp) != tp * cp:
                continue
            uniform = Parallelism(
                tensor=tp,
                pipeline=pp,
                data=dp,
                context=cp,
                expert=ep,
                expert_tensor=etp,
                sequence_parallel=tp > 1,
                zero_stage=zero,
                axis_order=order,
            )
            for copies in every_copies(question, uniform):
                yield from candidates_of(
                    question, replace(uniform, state_copies=copies), size, alone
                )


def candidates_of(question, degrees, size, alone):
    """The legal candidates of some degrees, under every family."""
    model = question.model
    configuration = Configuration(
        parallelism=degrees,
        microbatch_size=size,
        global_batch=question.workload.global_batch,
        sequence_length=question.workload.sequence_length,
        recipe=question.settings.recipe,
    )
    if broken_rules(configuration, model, question.cluster.pool_of()):
        return
    pp = degrees.pipeline
    for family, chunks in families(question.allowed, model.num_layers):
        if pp * chunks <= model.num_layers and (pp > 1 or family == alone):
            yield Candidate(
                microbatch_size=size,
                tensor=degrees.tensor,
                pipeline=pp,
                data=degrees.data,
                context=degrees.context,
                expert=degrees.expert,
                expert_tensor=degrees.expert_tensor,
                zero_stage=degrees.zero_stage,
                schedule=family,
                virtual_stages=chunks,
                axis_order=degrees.axis_order,
                state_copies=degrees.state_copies,
            )


def every_copies(question, degrees):
    """One copy of sharded state, and the numbers that are searched beside it."""
    allowed, rank = question.allowed.state_copies, degrees.devices_per_rank
    units = list(accumulate((level.size for level in question.cluster.levels), mul))[:-1]
    for copies in range(1, degrees.data + 1):
        if copies == 1:
            is_asked = 1 in allowed
        elif degrees.zero_stage == 0 or degrees.data == copies:
            is_asked = False
        elif allowed == Span():
            is_asked = degrees.pipeline == 1 and degrees.zero_stage > 1
            is_asked &= any(rank == copies * unit for unit in units)
        else:
            is_asked = copies in allowed
        if is_asked:
            yield copies


def families(allowed, num_blocks):
    """The allowed families with their virtual stages; those of a loop have any number."""
    for family in allowed.schedules:
        chunks = chunks_per_rank(family)
        many = range(2, num_blocks + 1) if chunks is None else (chunks,)
        yield from ((family, count) for count in many)


def every_step_s(question, candidate, profile):
    """Step times of all plans of a candidate that fit with its buffers.

    Of several chunks per rank the first has the embedding, the last what follows the blocks.
    """
    layers, costs = profile.structure.layers, profile.costs
    options = [[costs.option_ids[r] for r in costs.rows_of(x.layer_class)] for x in layers]
    stages = candidate.pipeline * candidate.virtual_stages
    overheads = replace(question.overheads, buffers=False)
    own_bytes = rank_buffer_bytes(candidate, profile) if question.overheads.buffers else 0.0
    for inner in combinations(range(1, len(layers)), stages - 1):
        ends = (0, *inner, len(layers))
        if candidate.schedule in LOOPED and not has_its_ends(layers, ends):
            continue
        cuts = list(pairwise(ends))
        for chosen in product(*options):
            if any(not _in_order(chosen[a:b]) for a, b in cuts):
                continue
            plan = Plan(
                stages=tuple(
                    Stage.uniform(
                        tuple(layer.id for layer in layers[a:b]),
                        tuple(chosen[a:b]),
                        data_parallel=candidate.data,
                        tensor_parallel=candidate.tensor,
                    )
                    for a, b in cuts
                ),
                num_microbatches=question.workload.global_batch // candidate.microbatch_size,
                microbatch_size=candidate.microbatch_size,
                schedule=candidate.schedule,
                parallelism=candidate.degrees,
            )
            try:
                step = predict_step(
                    plan,
                    profile,
                    question.cluster,
                    overlap=question.settings.overlap,
                    overheads=overheads,
                )
            except InvalidInput:  # a rule of the family
                return
            if holds(question, step.peak_memory_bytes + own_bytes):
                yield step.step_time_s


def has_its_ends(layers, cuts) -> bool:
    """Whether all that precedes the blocks is in the first stage, what follows them in the last."""
    blocks = [number for number, layer in enumerate(layers) if layer.name == "block"]
    return cuts[1] >= blocks[0] and cuts[-2] <= blocks[-1] + 1


def _in_order(options) -> bool:
    """Of blocks of one stage only how many recompute matters: those that do come first."""
    again = [option == Recompute.FULL for option in options]
    first = again.index(True) if any(again) else 0
    return again[first : first + sum(again)] == [True] * sum(again)


@cache
def least_steps_s(question):
    """The least step of each number of devices that some plan uses."""
    estimator = question.estimator()
    profiles, least_s = {}, {}
    for candidate in every_candidate(question):
        point, devices = candidate.point, candidate.num_devices
        if point not in profiles:
            profiles[point] = estimate_profile(estimator, question, point)
        found_s = min(every_step_s(question, candidate, profiles[point]), default=None)
        if found_s is not None:
            least_s[devices] = min(found_s, least_s.get(devices, found_s))
    return least_s


def least_step_s(question):
    """The shortest step of all plans."""
    return min(least_steps_s(question).values())


def crossings(candidate, cluster):
    """For each level, how many neighbours of the pipeline are in different units, for any pair."""
    inside, unit, found = candidate.tensor * candidate.context, 1, []
    for level in cluster.levels:
        unit *= level.size
        found.append(
            sum(
                any(
                    device_of(candidate, rank, data, k) // unit
                    != device_of(candidate, rank + 1, data, k) // unit
                    for data in range(candidate.data)
                    for k in range(inside)
                )
                for rank in range(candidate.pipeline - 1)
            )
        )
    return found


def device_of(candidate, rank, data, inside):
    """The device of a pipeline rank, a replica and a place among tensor and context."""
    p, d, size = candidate.pipeline, candidate.data, candidate.tensor * candidate.context
    if candidate.axis_order == PIPELINE_INSIDE:
        return (data * p + rank) * size + inside
    return (rank * d + data) * size + inside


def distinct(question):
    """Candidates; where nothing is replicated all ZeRO stages are one.

    Of two mappings the second counts where it brings neighbours of the pipeline nearer.
    """
    seen = set()
    for candidate in every_candidate(question):
        usual = replace(candidate, axis_order=question.allowed.mappings[0])
        if candidate != usual and not any(
            ours < theirs
            for ours, theirs in zip(
                crossings(candidate, question.cluster),
                crossings(usual, question.cluster),
                strict=True,
            )
        ):
            continue
        dense = candidate.data * candidate.context
        experts = dense * candidate.tensor // candidate.point.expert_devices
        alike = dense == 1 and experts <= 1
        key = replace(candidate, zero_stage=question.allowed.zero_stages[0] if alike else 9)
        key = key if alike else candidate
        if key not in seen:
            seen.add(key)
            yield key


def on_four_ranks(blocks: int, memory_gib: float, schedules: tuple[str, ...]) -> ModelQuestion:
    """A Llama of so many blocks in one pipeline, where splits that fit are rarely even."""
    return asked(
        replace(LLAMA, num_layers=blocks),
        memory_gib=memory_gib,
        batch=12,
        sequence=4096,
        schedules=schedules,
        zero_stages=(1,),
        tensor=Span.only(1),
        context=Span.only(1),
        microbatch_size=Span.only(1),
        pipeline=Span.only(4),
        data=Span.only(1),
    )


def holds(question: ModelQuestion, peak_bytes: float) -> bool:
    """Whether a device has room for a plan that peaks there, by its margins alone."""
    usable_bytes = question.cluster.accelerator.usable_bytes
    return question.overheads.needed_bytes(peak_bytes) <= usable_bytes
