"""The bounds of plans on several pools beside those of one pool, of the same layouts on one pool.

A pool alone is stages "across" one pool, so both bound it. Prints, for each question, the ratio of
the general bound to that of one pool over all layouts, and the CPU seconds of both.
"""

from __future__ import annotations

import time

import numpy as np

from trainwright.formats import catalog
from trainwright.planning.bounds.layers import PointWork
from trainwright.planning.bounds.pools import MixedShelf, Shape, mixed_points
from trainwright.planning.bounds.step import Batch, ChainWork, CoarseBounds
from trainwright.planning.question.layouts import layouts_of, schedules_of
from trainwright.planning.question.question import (
    Allowed,
    ModelQuestion,
    Span,
    Workload,
    room_of_devices,
)
from trainwright.planning.search.pools import MixedLayouts

QUESTIONS = (
    ("llama3-8b", "dgx-h100", 2, 64),
    ("llama3-8b", "dgx-a100", 4, 64),
    ("llama3-70b", "dgx-h100", 8, 128),
)
LENGTH = 4096
FAMILIES = ("1f1b", "zb-h1", "zb-h2")
ONE = Span.only(1)


def asked(model: str, cluster: str, nodes: int, batch: int) -> ModelQuestion:
    """The question on so many nodes of a cluster of the catalog."""
    where = catalog.cluster(cluster).with_nodes(nodes)
    return ModelQuestion(
        model=catalog.model(model).config,
        cluster=where,
        workload=Workload(global_batch=batch, sequence_length=LENGTH),
        num_devices=where.num_devices,
        allowed=Allowed(schedules=FAMILIES, virtual_stages=ONE, context=ONE),
    )


def compared(question: ModelQuestion) -> tuple[list[float], float, float]:
    """Ratios of all layouts that both find finite; CPU seconds of the general and the special."""
    shelf, ratios = MixedShelf.of(question), list[float]()
    layouts_on_pools = MixedLayouts(shelf)
    general_s = special_s = 0.0
    for point in mixed_points(question):
        shelf.profile(0, point)
        work, chain = PointWork.of(shelf.profile(0, point)), ChainWork.of(shelf.kinds(0, point))
        started = time.process_time()
        found = list(layouts_on_pools.bounded_as(Shape(name="across", pools=(0,)), point))
        general_s += time.process_time() - started
        layouts = layouts_of(
            point,
            Allowed(),
            num_devices=question.num_devices,
            num_blocks=question.model.num_layers,
            num_microbatches=question.workload.global_batch // point.microbatch_size,
        )
        keys = zip(layouts.pipeline.tolist(), layouts.data.tolist(), strict=True)
        place = {key: at for at, key in enumerate(keys) if not layouts.inside[at]}
        for bounded in found:
            (schedule,) = schedules_of(Allowed(schedules=(bounded.schedule,)))
            started = time.process_time()
            coarse = CoarseBounds(room_of_devices(question))
            batch = Batch.under(schedule, bounded.zero_stage, layouts)
            bounds_s = coarse.sharper_s(coarse.rough(work, point, batch, chain=chain))
            special_s += time.process_time() - started
            depths, data = bounded.grid.counts[:, 0].tolist(), bounded.grid.shared.tolist()
            for own_s, *key in zip(bounded.bounds_s.tolist(), depths, data, strict=True):
                at = place.get((key[0], key[1]))
                if at is not None and np.isfinite(bounds_s[at]):
                    ratios.append(own_s / float(bounds_s[at]))
    return ratios, general_s, special_s


def main() -> None:
    """A line for each question."""
    for model, cluster, nodes, batch in QUESTIONS:
        question = asked(model, cluster, nodes, batch)
        ratios, general_s, special_s = compared(question)
        low, tenth, middle, most = np.quantile(ratios, [0, 0.1, 0.5, 1])
        print(
            f"{model} on {question.num_devices} of {cluster}: {len(ratios)} layouts, "
            f"ratio {low:.3f} least, {tenth:.3f} tenth, {middle:.4f} median, {most:.4f} most; "
            f"{general_s:.2f} s against {special_s:.2f} s"
        )


if __name__ == "__main__":
    main()
