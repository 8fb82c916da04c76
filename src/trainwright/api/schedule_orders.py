"""Orders to price: a file, a schedule, or a schedule document with costs of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.api.inputs import display_name
from trainwright.plan.schedule import Schedule

if TYPE_CHECKING:
    from trainwright.api.schedule_inputs import ScheduleCase


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOrders:
    """Orders, where they come from, and the costs that came with them."""

    schedule: Schedule
    name: str
    source: str | None = None
    case: ScheduleCase | None = None


def open_orders(given: str | Path | Schedule) -> GivenOrders:
    """Read orders: JSON, PyTorch's CSV or a schedule document, told apart by content.

    Raises InvalidInput with every fault of the file.
    """
    if isinstance(given, Schedule):
        return GivenOrders(schedule=given, name="orders")
    from trainwright.api.schedule_document import case_of, schedule_of
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import decode_document
    from trainwright.formats.json_text import scan_json
    from trainwright.formats.schedule_json import is_json, parse_orders, read_orders
    from trainwright.plan.results.schedule import ScheduleResult

    data, source, name = read_bytes(given, name="simulate"), str(given), display_name(given)
    if not is_json(data):
        return GivenOrders(schedule=parse_orders(data, source=source), name=name, source=source)
    text = scan_json(data, source=source, what="orders")
    if text.value.get("kind") != "schedule":
        schedule = read_orders(text.value, source=source, text_faults=text.faults)
        return GivenOrders(schedule=schedule, name=name, source=source)
    kinds = {"schedule": ScheduleResult}
    document = decode_document(text.value, kinds, source=source, text_faults=text.faults)
    return GivenOrders(
        schedule=schedule_of(document, source=source),
        name=name,
        source=source,
        case=case_of(document, source=source),
    )
