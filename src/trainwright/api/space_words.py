"""The options that a document's space was searched with; the inverse of `space_options`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.overlap import MemoryOverheads
    from trainwright.plan.results.request import SpaceRecord
    from trainwright.planning.allowed import Span


def _switched_off(space: SpaceRecord) -> Iterator[str]:
    for name in ("data_parallel", "tensor_parallel", "recompute"):
        if not getattr(space, name):
            yield f"--no-{name.replace('_', '-')}"
    for option in space.excluded_options:
        yield from ("--exclude-option", option)


def profile_space_words(space: SpaceRecord) -> Iterator[str]:
    """Of a profile's plan."""
    yield from _switched_off(space)
    if space.planner != "exact":
        yield from ("--planner", space.planner)
    if space.block_layer is not None:
        yield from ("--block-layer", space.block_layer)


def model_space_words(space: SpaceRecord) -> Iterator[str]:
    """Of a model's plan: what is allowed, where that is not everything."""
    from trainwright.api.space_options import SPANS, allowed_of, schedule_words
    from trainwright.plan.axis_order import AXIS_ORDERS, mapping_name
    from trainwright.planning.allowed import ANY, ZERO_STAGES
    from trainwright.profile import Recompute

    yield from _switched_off(space)
    allowed = allowed_of(space)
    off = {"data": not space.data_parallel, "tensor": not space.tensor_parallel}
    for name, option in SPANS.items():
        span = getattr(allowed, name)
        if span != ANY and not off.get(name, False):
            yield from (f"--{option}", _span_text(span))
    if allowed.zero_stages != ZERO_STAGES:
        yield from ("--zero", ",".join(map(str, allowed.zero_stages)))
    if allowed.mappings != AXIS_ORDERS:
        yield from ("--mapping", ",".join(map(mapping_name, allowed.mappings)))
    modes = tuple(m for m in Recompute if m not in space.excluded_options)
    if space.recompute and allowed.recompute != modes:
        yield from ("--recompute", ",".join(allowed.recompute))
    if (schedules := schedule_words(allowed)) is not None:
        yield from ("--schedule", ",".join(schedules))
    if allowed.framework is not None:
        yield from ("--framework", allowed.framework)
    if space.per_stage_degrees:
        yield "--per-stage-degrees"


def memory_words(overheads: MemoryOverheads | None) -> Iterator[str]:
    """What a device keeps beside the plan, where that is not the default."""
    from trainwright.plan.overlap import DEFAULT_OVERHEADS, NO_OVERHEADS

    given, usual = overheads or NO_OVERHEADS, DEFAULT_OVERHEADS
    if given.reserve_bytes != usual.reserve_bytes:
        yield from ("--reserve", repr(given.reserve_bytes))
    if given.workspace_bytes != usual.workspace_bytes:
        yield from ("--workspace", repr(given.workspace_bytes))
    if given.fragmentation != usual.fragmentation:
        yield from ("--fragmentation", repr(given.fragmentation))


def _span_text(span: Span) -> str:
    if span.most == span.least:
        return str(span.least)
    return f"{span.least}..{'' if span.most is None else span.most}"
