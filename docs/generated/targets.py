"""What each framework can run: the capability table, for the page on jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainwright.plans.capability import TARGETS, Cell, Support, capability_of
from trainwright.plans.capability_table import Feature

_MARKS = {Support.YES: "yes", Support.GLOBAL: "one value", Support.CODE: "in code", Support.NO: "–"}


def targets_part() -> str:
    """The table, the schedules of each target and the reasons, as Markdown."""
    return "\n".join((*_table(), "", *_schedules(), "", *_reasons(), ""))


def _table() -> Iterator[str]:
    yield _row("plan feature", TARGETS)
    yield _row("---", ("---",) * len(TARGETS))
    yield _row("version", TARGETS.values())
    for feature in Feature:
        cells = (capability_of(target).cells[feature] for target in TARGETS)
        yield _row(feature.value, (_MARKS[cell.support] for cell in cells))
    optimizers = (", ".join(sorted(capability_of(target).optimizers)) for target in TARGETS)
    yield _row("optimizers", optimizers)
    yield _row("number formats", (", ".join(capability_of(t).precisions) for t in TARGETS))
    orders = ("<br>".join("-".join(order) for order in _orders(target)) for target in TARGETS)
    yield _row("order of ranks, innermost first", orders)


def _orders(target: str) -> tuple[tuple[str, ...], ...]:
    return capability_of(target).axis_orders


def _schedules() -> Iterator[str]:
    yield "### Schedules by name\n"
    yield "Where a custom order of actions is possible, every other family goes into a file.\n"
    for target in TARGETS:
        own = capability_of(target).schedules
        named = ", ".join(f"`{family}` ({name})" for family, name in own.items())
        yield f"- {target}: {named or 'none'}"


def _reasons() -> Iterator[str]:
    yield "### How, and why not\n"
    for feature in Feature:
        found: dict[Cell, list[str]] = {}
        for target in TARGETS:
            cell = capability_of(target).cells[feature]
            if cell.how:
                found.setdefault(cell, []).append(target)
        for cell, targets in found.items():
            how = cell.how if cell.support is Support.NO else f"{_MARKS[cell.support]}: {cell.how}"
            yield f"- **{feature.value}**, {', '.join(targets)}: {how}"


def _row(first: str, rest: Iterable[str]) -> str:
    return "| " + " | ".join((first, *rest)) + " |"
