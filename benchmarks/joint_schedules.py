"""What choosing degrees and schedule together gains over choosing one after the other.

For every case: the best plan under 1F1B; the best schedule at that plan's degrees; the best degrees
for ZB-V, the schedule with the least bubble; and the best of both at once. Each plan is priced by
the simulator with its best split and recomputation, ZeRO 1. Last the best plan of the default space
of `trainwright plan`: all degrees, microbatch sizes, ZeRO stages and families.

    python benchmarks/joint_schedules.py
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from trainwright.cluster import Cluster
from trainwright.costing.estimate import Estimator
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.planning.bounds.stages import StageKinds
from trainwright.planning.question.layouts import LOOPED, chunks_per_rank
from trainwright.planning.question.question import ModelQuestion, Point, Workload, estimate_profile
from trainwright.planning.search.search import plan_model
from trainwright.planning.splits.types import SplitQuestion, best_family_split
from trainwright.plans import Plan, Stage
from trainwright.plans.plan import Parallelism
from trainwright.step.predict import predict_step

FAMILIES = ("1f1b", "zb-h1", "interleaved", "zb-v", "v-half", "v-min")
CHUNKS = (2, 3, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question, and the degrees that are tried."""

    model: str
    cluster: str
    nodes: int
    batch: int
    sequence: int
    tensor: tuple[int, ...]
    pipeline: tuple[int, ...]


CASES = (
    Case(
        model="llama3-70b",
        cluster="dgx-h100",
        nodes=8,
        batch=256,
        sequence=8192,
        tensor=(2, 4, 8),
        pipeline=(4, 8, 16),
    ),
    Case(
        model="llama3-70b",
        cluster="dgx-h100",
        nodes=8,
        batch=512,
        sequence=8192,
        tensor=(2, 4, 8),
        pipeline=(4, 8),
    ),
    Case(
        model="gpt3-175b",
        cluster="dgx-a100",
        nodes=16,
        batch=256,
        sequence=2048,
        tensor=(2, 4, 8),
        pipeline=(8, 16),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A priced plan."""

    family: str
    degrees: Parallelism
    step_s: float
    bound_s: float
    recomputed: float
    peak_gib: float
    cuts: tuple[int, ...]

    @property
    def key(self) -> tuple[int, int]:
        """What a schedule is swapped at."""
        return self.degrees.tensor, self.degrees.pipeline

    def __str__(self) -> str:
        d = self.degrees
        return (
            f"| {self.family} | {d.tensor} | {d.pipeline} | {d.virtual_stages} | {d.data} | "
            f"{self.step_s:.2f} | {self.bound_s:.2f} | {100 * self.recomputed:.1f}% | "
            f"{self.peak_gib:.1f} |"
        )


def asked(case: Case) -> ModelQuestion:
    """The case as a question to the planner."""
    cluster = catalog.cluster(case.cluster).with_nodes(case.nodes)
    return ModelQuestion(
        model=catalog.model(case.model).config,
        cluster=cluster,
        workload=Workload(global_batch=case.batch, sequence_length=case.sequence),
        num_devices=cluster.num_devices,
    )


def plans(case: Case) -> Iterator[Row]:
    """The best plan of every family at all degrees."""
    question = asked(case)
    cluster = question.cluster
    estimator = Estimator(model=question.model, cluster=cluster)
    for tensor in case.tensor:
        point = Point(microbatch_size=1, tensor=tensor)
        kinds = StageKinds.of(estimate_profile(estimator, question, point))
        for pipeline in case.pipeline:
            data, rest = divmod(cluster.num_devices, tensor * pipeline)
            if rest or not data or case.batch % data:
                continue
            for family in FAMILIES:
                own = chunks_per_rank(family)
                for chunks in CHUNKS if own is None else (own,):
                    degrees = Parallelism(
                        tensor=tensor,
                        pipeline=pipeline,
                        data=data,
                        virtual_stages=chunks,
                        sequence_parallel=tensor > 1,
                        zero_stage=1,
                    )
                    if family in LOOPED and case.batch // data % pipeline:
                        continue
                    row = priced(kinds, degrees, cluster, family, case.batch)
                    if row is not None:
                        yield row


def priced(
    kinds: StageKinds, degrees: Parallelism, cluster: Cluster, family: str, batch: int
) -> Row | None:
    """The best split of a candidate, if it fits."""
    split = best_family_split(
        SplitQuestion(
            kinds=kinds,
            degrees=degrees,
            cluster=cluster,
            family=family,
            num_microbatches=batch // degrees.data,
        )
    )
    if not split.cuts:
        return None
    layers, costs = kinds.profile.structure.layers, kinds.profile.costs
    stages = []
    for (a, b), chosen in zip(pairwise(split.cuts), split.chosen, strict=True):
        left, options = list(chosen), []
        for layer in layers[a:b]:
            row = max(row for row in costs.rows_of(layer.layer_class) if left[row])
            left[row] -= 1
            options.append(costs.option_ids[row])
        stages.append(
            Stage.uniform(
                tuple(layer.id for layer in layers[a:b]),
                tuple(options),
                data_parallel=degrees.data,
                tensor_parallel=degrees.tensor,
            )
        )
    plan = Plan(
        stages=tuple(stages),
        num_microbatches=batch,
        microbatch_size=1,
        schedule=family,
        parallelism=degrees,
    )
    step = predict_step(plan, kinds.profile, cluster)
    if step.peak_memory_bytes > cluster.accelerator.usable_bytes:
        return None
    return Row(
        family=family,
        degrees=degrees,
        step_s=step.step_time_s,
        bound_s=split.bound_s,
        recomputed=sum(s.recompute_s for s in step.stages) / sum(s.forward_s for s in step.stages),
        peak_gib=step.peak_memory_bytes / 2**30,
        cuts=split.cuts,
    )


def main() -> None:
    """Print a table per case."""
    for case in CASES:
        start_s = time.process_time()
        rows = sorted(plans(case), key=lambda row: row.step_s)
        first = next(row for row in rows if row.family == "1f1b")
        swapped = next(row for row in rows if row.key == first.key)
        reverse = next(row for row in rows if row.family == "zb-v")
        print(f"\n{case}\n")
        print(
            "| | family | tensor | pipeline | chunks | data | step s | bound s | recomputed | GiB |"
        )
        print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
        for name, row in (
            ("best under 1F1B", first),
            ("then the schedule", swapped),
            ("ZB-V, then degrees", reverse),
            ("both at once", rows[0]),
        ):
            print(f"| {name} {row}")
        print(f"\nboth at once: layers {[b - a for a, b in pairwise(rows[0].cuts)]}")
        for name, row in (("degrees, then schedule", swapped), ("schedule first", reverse)):
            print(f"gain over {name}: {100 * (row.step_s / rows[0].step_s - 1):.1f}%")
        print(f"{len(rows)} plans, {time.process_time() - start_s:.0f} CPU s; the ten best:\n")
        for row in rows[:10]:
            print(row)
        print_default(case)


def print_default(case: Case) -> None:
    """The best plan that `trainwright plan` finds, and how far from the best it can be."""
    start_s = time.process_time()
    found = plan_model(asked(case), Budget(), num_alternatives=0)
    (best,) = found.priced
    step_s = best.step.step_time_s
    bound_s = found.lower_bound_s
    print(f"\ndefault space: {best.candidate}")
    print(
        f"{step_s:.2f} s, at most {100 * (1 - bound_s / step_s):.1f}% from the best of "
        f"{found.considered}, {time.process_time() - start_s:.1f} CPU s"
    )


if __name__ == "__main__":
    main()
