"""Schedules of the reference rows, as we make them: spans, peaks and bubble rates."""

from __future__ import annotations

import json

import numpy as np

from reference import reference
from trainwright.plans.schedule import ScheduleCosts, ScheduleMemory
from trainwright.scheduling.families import FamilyRequest, family_named, generate
from trainwright.scheduling.simulate import simulate

FAMILY_OF = {
    "1F1B": "1f1b",
    "1F1B-V": "1f1b-v",
    "Adaptive-V": "adaptive-v",
    "DualPipeV-sequential": "dualpipe-v",
    "Eager-1F1B": "eager-1f1b",
    "GIS": "gis",
    "GIS-H": "gis-h",
    "Interleaved-1F1B": "interleaved",
    "V-Half": "v-half",
    "V-Min": "v-min",
    "ZB-1p": "zb-1p",
    "ZB-2p": "zb-2p",
    "ZB-H1": "zb-h1",
    "ZB-H2": "zb-h2",
    "ZB-V": "zb-v",
    "ZB-V-handcrafted": "zb-v-handmade",
}
SEARCHED = ("V-Half", "V-Min", "Adaptive-V", "1F1B-V", "ZB-1p", "ZB-2p", "ZB-V")


def rows(file: str) -> list[dict]:
    return json.loads((reference() / "schedules" / file).read_text())


def measured(row: dict) -> tuple[float, int]:
    """Span and peak of our schedule for the row's question."""
    parameters = row["params"]
    question = {
        "num_ranks": row["p"],
        "num_microbatches": row["m"],
        "virtual_stages": parameters.get("chunks", 2),
        "group": parameters.get("group"),
        "max_activations": parameters.get("limit"),
    }
    name = FAMILY_OF[row["family"]]
    placement = family_named(name).place(FamilyRequest(**question))
    forward_s, input_grad_s, weight_grad_s, transfer_s = row.get("cost_FIW_comm", (1, 1, 1, 0))
    costs = ScheduleCosts.of(
        placement,
        forward_s=forward_s,
        input_grad_s=input_grad_s,
        weight_grad_s=weight_grad_s,
        transfer_s=transfer_s,
    )
    schedule = generate(name, FamilyRequest(**question, costs=costs))
    return simulate(schedule, costs).span_s, max(schedule.peak_activations)


def profiled_bubble(row: dict, name: str) -> tuple[float, float]:
    """Bubble as a share of the span and peak in bytes, of a row of Qi et al. 2024, table 5."""
    family = family_named(FAMILY_OF[name])
    times, delta = row["times_ms"], row["memory_delta"]
    request = FamilyRequest(num_ranks=row["p"], num_microbatches=row["m"])
    placement = family.place(request)
    memory = ScheduleMemory.of(
        placement,
        forward_bytes=delta["F"],
        input_grad_bytes=delta["I"],
        weight_grad_bytes=delta["W"],
    )
    costs = ScheduleCosts.of(
        placement,
        forward_s=times["F"],
        input_grad_s=times["I"],
        weight_grad_s=times["W"],
        transfer_s=times["comm"],
        memory=memory,
    )
    request = FamilyRequest(num_ranks=row["p"], num_microbatches=row["m"], costs=costs)
    timeline = simulate(generate(family.name, request), costs)
    return timeline.bubble_of_span, float(np.max(timeline.peak_bytes))
