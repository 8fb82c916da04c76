"""Small chains cut from catalog models, with every split of them that a family could run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np

from trainwright.costing.estimate import Estimator
from trainwright.formats import catalog
from trainwright.model import TRAIN_ALL, Tuning
from trainwright.planning.bounds.stages import StageKinds, nearly_even
from trainwright.planning.question.layouts import (
    CHAIN,
    CUTS_HEAD,
    LOOPED,
    ON_HOST,
    SLICED,
    published_in_flight,
)
from trainwright.planning.question.question import (
    Allowed,
    ModelQuestion,
    Point,
    Workload,
    estimate_profile,
)
from trainwright.planning.splits.types import SplitQuestion
from trainwright.plans import Plan, Stage
from trainwright.plans.plan import Parallelism
from trainwright.profile import USUAL_MODES, Recompute, StaticKind
from trainwright.step.pipeline import slices_of
from trainwright.step.predict import predict_step
from trainwright.step.stages import cut_head, in_slices, waiting_for_host, without_head


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A chain of layers on a cluster, under degrees, m microbatches per replica."""

    kinds: StageKinds
    degrees: Parallelism
    cluster: object
    num_microbatches: int

    @property
    def profile(self):
        return self.kinds.profile

    @property
    def asked(self):
        """Positional arguments of the search under 1F1B."""
        return self.kinds, self.degrees, self.cluster

    def question(self, family: str) -> SplitQuestion:
        """What the searches of a family are asked."""
        kinds, head = self.kinds, None
        if family in CUTS_HEAD:
            kinds = StageKinds.of(without_head(self.profile), kinds.overlap)
            head = cut_head(self.profile, self.degrees.pipeline, (), {})
        slices = slices_of(family, self.degrees.pipeline)  # each a microbatch of cut costs
        if family in SLICED:
            kinds = StageKinds.of(in_slices(self.profile, slices), kinds.overlap)
        hosted = None
        if family in ON_HOST:
            link = self.cluster.accelerator.host.link_bytes_per_s
            hosted = StageKinds.of(waiting_for_host(self.profile, link), kinds.overlap)
        return SplitQuestion(
            kinds=kinds,
            head=head,
            hosted=hosted,
            degrees=self.degrees,
            cluster=self.cluster,
            family=family,
            num_microbatches=slices * self.num_microbatches,
        )

    def with_degrees(self, **changes) -> Case:
        return replace(self, degrees=replace(self.degrees, **changes))


def case(
    *,
    blocks: int,
    pipeline: int,
    virtual_stages: int = 1,
    data: int = 1,
    num_microbatches: int = 8,
    memory_gib: float = 80,
    zero_stage: int = 1,
    model: str = "llama3-8b",
    cluster: str = "dgx-h100",
    nodes: int = 1,
    sequence_length: int = 4096,
    tuning: Tuning = TRAIN_ALL,
    dense: tuple[int, ...] = (),
    modes: tuple[Recompute, ...] = USUAL_MODES,
) -> Case:
    config = replace(catalog.model(model).config, num_layers=blocks, tuning=tuning)
    if config.experts is not None:
        config = replace(config, experts=replace(config.experts, dense_layers=dense))
    devices = catalog.cluster(cluster).with_nodes(nodes).with_memory(memory_gib * 2**30)
    question = ModelQuestion(
        model=config,
        cluster=devices,
        workload=Workload(global_batch=num_microbatches * data, sequence_length=sequence_length),
        num_devices=devices.num_devices,
        allowed=Allowed(recompute=modes),
    )
    estimator = Estimator(model=config, cluster=devices)
    profile = estimate_profile(estimator, question, Point(microbatch_size=1, tensor=1))
    return Case(
        kinds=StageKinds.of(profile),
        degrees=Parallelism(
            pipeline=pipeline, data=data, virtual_stages=virtual_stages, zero_stage=zero_stage
        ),
        cluster=devices,
        num_microbatches=num_microbatches,
    )


def filled_to(cluster, memory_bytes):
    """The cluster with no byte more on a device."""
    pool = cluster.pool_of()
    device = replace(pool.accelerator, memory_bytes=memory_bytes, usable_fraction=1.0)
    return replace(cluster, pools=(replace(pool, accelerator=device),))


def every_cut(num_layers: int, num_stages: int):
    """All ways to cut so many layers into stages, as positions from 0 to the last."""
    for inner in combinations(range(1, num_layers), num_stages - 1):
        yield (0, *inner, num_layers)


def plan_of(asked: Case, family: str, cuts, rows) -> Plan:
    """The plan in which layer i runs as row rows[i] of the cost table."""
    layers, costs = asked.profile.structure.layers, asked.profile.costs
    return Plan(
        stages=tuple(
            Stage.uniform(
                tuple(layer.id for layer in layers[a:b]),
                tuple(costs.option_ids[row] for row in rows[a:b]),
                data_parallel=asked.degrees.data,
                tensor_parallel=asked.degrees.tensor,
            )
            for a, b in pairwise(cuts)
        ),
        num_microbatches=asked.num_microbatches * asked.degrees.data,
        microbatch_size=1,
        schedule=family,
        parallelism=asked.degrees,
    )


def step_of(asked: Case, family: str, cuts, rows):
    """The predicted step, and whether it fits into memory."""
    step = predict_step(plan_of(asked, family, cuts, rows), asked.profile, asked.cluster)
    return step, step.peak_memory_bytes <= asked.cluster.accelerator.usable_bytes


def is_one_of(lengths, cuts) -> bool:
    """Whether a split has stages of such lengths (`StageLengths`)."""
    inside = np.clip(cuts, lengths.first, lengths.after)
    counts = np.diff(inside)
    edges = cuts[1] >= lengths.first and cuts[-2] <= lengths.after
    return edges and bool(((lengths.least <= counts) & (counts <= lengths.most)).all())


def is_searched(asked: Case, family: str, cuts, rows, step) -> bool:
    """Whether a plan that fits is in the space that the family's bound is on."""
    if family in CHAIN:
        return True
    even = nearly_even(asked.profile, asked.degrees.pipeline * asked.degrees.virtual_stages)
    if even is None:
        return False
    if family in LOOPED:
        return is_one_of(even, tuple(cuts))
    is_stage = even.stages(asked.kinds.num_layers)
    return all(is_stage[a, b] for a, b in pairwise(cuts)) and published_order_fits(
        asked, family, cuts, rows, step
    )


def published_order_fits(asked: Case, family: str, cuts, rows, step) -> bool:
    """Whether every rank has room for the counts of `published_in_flight`, of all bytes kept.

    Beside them lies what the gradient of one of both chunks needs.
    """
    costs, p = asked.profile.costs, asked.degrees.pipeline
    stages = [rows[a:b] for a, b in pairwise(cuts)]
    kept = [sum(costs.saved_bytes[row] for row in own) for own in stages]
    transient = [max(costs.transient_bytes[row] for row in own) for own in stages]
    near, far = published_in_flight(family, p, asked.num_microbatches)
    for rank, part in enumerate(step.stages):
        memory = part.memory
        held = memory.weight_bytes + memory.gradient_bytes + memory.optimizer_bytes
        own = [*stages[rank], *stages[2 * p - 1 - rank]]
        weights = [costs.static_bytes[row, :, StaticKind.WEIGHT].sum() for row in own]
        gathered = 0.0
        if asked.degrees.zero_stage == 3:
            gathered = min(2 * max(weights) * (1 - 1 / asked.degrees.data), sum(weights))
        full = near[:, rank] * kept[rank] + far[:, rank] * kept[2 * p - 1 - rank]
        beside = min(transient[rank], transient[2 * p - 1 - rank])
        if held + gathered + beside + full.max() > asked.cluster.accelerator.usable_bytes:
            return False
    return True


def rows_of_split(asked: Case, split) -> list[int]:
    """A row for every layer, as `split.chosen` counts them; heavier rows of a class first."""
    layers, costs = asked.profile.structure.layers, asked.profile.costs
    rows = []
    for (a, b), chosen in zip(pairwise(split.cuts), split.chosen, strict=True):
        left = list(chosen)
        for layer in layers[a:b]:
            row = max(row for row in costs.rows_of(layer.layer_class) if left[row])
            left[row] -= 1
            rows.append(row)
    return rows
