"""Drawn profiles of small chains, where they are planned, and every plan of them, one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, pairwise, product
from random import Random

import numpy as np

from exhaustive import has_its_ends, two_nodes_of_two
from mixed_clusters import ETHERNET
from trainwright.cluster import Cluster
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.planning.question.layouts import LOOPED, chunks_per_rank
from trainwright.planning.question.question import Allowed, Candidate, ModelQuestion, Span, Workload
from trainwright.plans import Plan, Stage
from trainwright.profile import (
    CostTable,
    Edge,
    Layer,
    Origin,
    PhaseTimes,
    Profile,
    ProfilePoint,
    Provenance,
    Recompute,
    Structure,
)
from trainwright.profile.measured_model import measured_model
from trainwright.step.predict import predict_step

MODES = (Recompute.NONE, Recompute.FULL)
GIB = 2**30
FAMILIES = (("1f1b",), ("zb-h1",), ("1f1b", "zb-h1"), ("1f1b", "interleaved"))


def random_profile(rng, *, tells_state_apart):
    """A chain of 2 to 6 layers, each with a cost of its own, at one or two tensor degrees."""
    count, degrees = rng.choice((2, 3, 3, 4, 4, 5, 6)), rng.choice(((1,), (1, 2)))
    rows = [(layer, t, mode) for layer in range(count) for t in degrees for mode in MODES]
    drawn = {}

    def of(name, layer, t, low, high):
        key = (name, layer, t)
        drawn.setdefault(key, rng.uniform(low, high) / t)
        return drawn[key]

    phases = [
        [of(name, layer, t, 0.001, 0.01) for layer, t, _ in rows] for name in ("forward", "i", "w")
    ]
    again = [phases[0][n] * (mode is Recompute.FULL) for n, (*_, mode) in enumerate(rows)]
    forward, input_grad, weight_grad, repeated = map(np.array, (*phases, again))
    times = PhaseTimes(
        forward_s=forward,
        input_grad_s=input_grad,
        weight_grad_s=weight_grad,
        recompute_s=repeated,
    )
    weights = np.array([of("state", layer, t, 0.1, 1) * GIB for layer, t, _ in rows])
    kept = np.array(
        [
            of("kept", layer, t, 0.2, 2) * GIB * (0.2 if m is Recompute.FULL else 1)
            for layer, t, m in rows
        ]
    )
    static = np.zeros((len(rows), 2, 3))
    if tells_state_apart:
        static[:, 0] = weights[:, np.newaxis] * (1, 1, 4)
    sync = np.stack((weights, np.zeros_like(weights)), axis=1)
    costs = CostTable(
        class_offsets=np.arange(count + 1) * len(degrees) * len(MODES),
        option_ids=tuple(str(mode) for *_, mode in rows),
        tensor_parallel=np.array([t for _, t, _ in rows]),
        recompute=tuple(mode for *_, mode in rows),
        duration_s=times.total_s,
        saved_until_input_grad_bytes=0.6 * kept,
        saved_until_weight_grad_bytes=0.4 * kept,
        transient_bytes=np.array(
            [of("kept", layer, t, 0, 1) * GIB * (m is Recompute.FULL) for layer, t, m in rows]
        ),
        static_bytes=static,
        opaque_static_bytes=weights * (0.1 if tells_state_apart else 6),
        gradient_sync_bytes=sync,
        boundary_offsets=np.zeros(len(rows) + 1, dtype=np.int64),
        boundary_bytes=np.zeros(0),
        provenance=Provenance(origin=Origin.MEASURED, source="drawn"),
        phases=times if rng.random() < 0.7 else None,
    )
    structure = Structure(
        layers=tuple(Layer(id=10 - n, name=f"layer {n}", layer_class=n) for n in range(count)),
        edges=tuple(
            Edge(source=n, target=n + 1, bytes=rng.uniform(1e6, 2e8)) for n in range(count - 1)
        ),
    )
    return Profile(structure=structure, costs=costs, point=ProfilePoint(tensor_parallel=degrees))


def question_of(rng, families, zero_stages, profile):
    """Where it is planned: memory that holds all of it, or hardly."""
    devices = rng.choice((1, 2, 4, 4, 4, 8))
    cluster = two_nodes_of_two(25e9) if devices == 4 else catalog.cluster("dgx-h100").with_nodes(1)
    return ModelQuestion(
        model=measured_model((profile,)),
        cluster=cluster.with_memory(rng.choice((2, 4, 6, 8, 12, 16, 40)) * GIB),
        workload=Workload(global_batch=rng.choice((2, 4)), sequence_length=1),
        num_devices=devices,
        allowed=Allowed(schedules=families, zero_stages=zero_stages, state_copies=Span.only(1)),
    )


def every_step_s(question, candidate, profile):
    """Steps of all cuts with all options of all layers that fit; no two layers are alike."""
    layers, stages = profile.structure.layers, candidate.pipeline * candidate.virtual_stages
    for inner in combinations(range(1, len(layers)), stages - 1):
        ends = (0, *inner, len(layers))
        if candidate.schedule in LOOPED and not has_its_ends(layers, ends):
            continue
        for chosen in product(map(str, MODES), repeat=len(layers)):
            plan = Plan(
                stages=tuple(
                    Stage.uniform(
                        tuple(layer.id for layer in layers[a:b]),
                        chosen[a:b],
                        data_parallel=candidate.data,
                        tensor_parallel=candidate.tensor,
                    )
                    for a, b in pairwise(ends)
                ),
                num_microbatches=question.workload.global_batch,
                microbatch_size=1,
                schedule=candidate.schedule,
                parallelism=candidate.degrees,
            )
            try:
                step = predict_step(
                    plan, profile, question.cluster, overlap=question.settings.overlap
                )
            except InvalidInput:  # a rule of the family
                return
            if step.peak_memory_bytes <= question.cluster.accelerator.usable_bytes:
                yield step.step_time_s


def least_by_exhaustion(question):
    """The shortest step of all degrees, splits and options, and whether some plan fits."""
    model, allowed = question.model, question.allowed
    batch, devices = question.workload.global_batch, question.num_devices
    node, best = question.cluster.pool_of().devices_per_node, math.inf
    sizes = range(1, devices + 1)
    for t, p, d in product(sizes, sizes, sizes):
        fits = t * p * d <= devices and batch % d == 0 and node % t == 0
        if not fits or (1, t) not in model.offered:
            continue
        profile = model.offered[1, t]
        for family, zero, order in product(
            allowed.schedules, allowed.zero_stages, allowed.mappings
        ):
            own = chunks_per_rank(family)
            for chunks in (2, 3) if own is None else (own,):
                if p * chunks > model.num_layers or (p == 1 and family != allowed.schedules[0]):
                    continue
                candidate = Candidate(
                    microbatch_size=1,
                    tensor=t,
                    pipeline=p,
                    data=d,
                    zero_stage=zero,
                    schedule=family,
                    virtual_stages=chunks,
                    axis_order=order,
                )
                best = min([best, *every_step_s(question, candidate, profile)])
    return best


def drawn_question(seed):
    """A chain and where it is planned; whether its profile tells state apart is drawn, too."""
    rng = Random(seed)
    known = rng.random() < 0.6
    profile = random_profile(rng, tells_state_apart=known)
    zero_stages = rng.choice(((0,), (0, 1), (2,), (3,))) if known else (0,)
    question = question_of(rng, FAMILIES[seed % len(FAMILIES)], zero_stages, profile)
    assert question.model.tells_state_apart is known
    return question


# Profiles on two pools of the same devices
# -----------------------------------------


def two_halls(rng: Random) -> Cluster:
    """One or two devices in each, on links and memories of their own, joined by a slow network."""
    one = catalog.cluster("dgx-h100").with_nodes(1).pools[0]
    sizes, rates = rng.choice(((1, 2), (2, 1), (1, 1))), (450e9, rng.choice((10e9, 450e9)))
    pools = tuple(
        replace(pool, accelerator=replace(pool.accelerator, memory_bytes=gib * GIB))
        for pool, gib in (
            (
                replace(
                    one, levels=(replace(one.levels[0], size=size, bandwidth_bytes_per_s=rate),)
                ),
                rng.choice((6, 8, 12, 16, 40)),
            )
            for size, rate in zip(sizes, rates, strict=True)
        )
    )
    joint = replace(ETHERNET, bandwidth_bytes_per_s=rng.choice((1e9, 12.5e9, 1e11)))
    return Cluster(name="halls", pools=pools, joint=joint)


def drawn_on_pools(seed: int) -> ModelQuestion:
    """A short chain on two pools; whether its profile tells state apart is drawn, too."""
    rng = Random(seed)
    known, short = rng.random() < 0.6, None
    while short is None or len(short.structure.layers) > 4:
        short = random_profile(rng, tells_state_apart=known)
    cluster, one = two_halls(rng), Span.only(1)
    return ModelQuestion(
        model=measured_model((short,)),
        cluster=cluster,
        workload=Workload(global_batch=rng.choice((2, 3)), sequence_length=1),
        num_devices=cluster.num_devices,
        allowed=Allowed(
            schedules=(rng.choice(("1f1b", "zb-h1")),),
            zero_stages=rng.choice(((0,), (0, 1), (1,), (2, 3), (0, 3))),
            recompute=MODES,
            state_copies=one,
            context=one,
            microbatch_size=one,
        ),
    )
