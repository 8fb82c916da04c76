"""The layer schedules of a chosen design, as a document carries them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.results.codesign import LayerScheduleRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.codesign.layer_cores import CoreSchedule
    from trainwright.codesign.nodes import Design
    from trainwright.codesign.question import CodesignQuestion


def layer_records(question: CodesignQuestion, design: Design) -> Iterator[LayerScheduleRecord]:
    """The first model's most frequent layer on a design, forward and backward."""
    from trainwright.codesign.layer_cores import schedule_backward, schedule_forward

    variant = question.variants[design.variant]
    chain = question.jobs_of(variant)[0].chain(design.plans[0].tensor_degree)
    chip = question.space.template(design.index)
    most = int(np.argmax(chain.class_counts))
    for direction, schedule in (("forward", schedule_forward), ("backward", schedule_backward)):
        yield _record(direction, schedule(chip, variant.surroundings, chain, most))


def _record(direction: str, found: CoreSchedule) -> LayerScheduleRecord:
    return LayerScheduleRecord(
        direction=direction,
        seconds=found.seconds,
        sequential_s=found.sequential_s,
        lower_bound_s=found.lower_bound_s,
        gap=found.gap,
        status=found.status,
        method=found.schedule.method,
        num_operators=len(found.names),
        num_side_by_side=sum(not run.spread for run in found.schedule.runs),
    )
