"""The degrees of a plan, as a line and as columns that several tables share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.plan.axis_order import DATA_INSIDE, mapping_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.plan.parallelism import Parallelism

# (header, shown also where every plan of a table has degree 1, or the usual order)
_DEGREES: Final = (
    ("tp", True),
    ("pp", True),
    ("v", False),
    ("dp", True),
    ("cp", False),
    ("ep", False),
    ("etp", False),
    ("zero", True),
    ("copies", False),
    ("order", False),
)


def layout_line(degrees: Parallelism) -> str:
    """The degrees above one in words."""
    sequence = " + sequence parallel" if degrees.sequence_parallel else ""
    virtual = f" x {degrees.virtual_stages} virtual" if degrees.virtual_stages > 1 else ""
    parts = [
        f"tensor {degrees.tensor}{sequence}",
        f"pipeline {degrees.pipeline}{virtual}",
        f"data {degrees.data}",
    ]
    if degrees.context > 1:
        parts.append(f"context {degrees.context}")
    if degrees.expert > 1:
        shards = degrees.expert_shards
        cut = "each whole" if shards == 1 else f"each cut {shards} ways"
        parts.append(f"expert {degrees.expert} ({cut})")
    return f"{' x '.join(parts)}, {sharding_words(degrees)}"


def sharding_words(degrees: Parallelism) -> str:
    """The ZeRO stage, and copies and the order of ranks where they are not the usual ones."""
    words = f"ZeRO-{degrees.zero_stage}"
    if degrees.state_copies > 1:
        words += f" in {degrees.state_copies} copies"
    if degrees.axis_order != DATA_INSIDE:
        words += f", ranks in the order {mapping_name(degrees.axis_order)}"
    return words


def layout_columns(plans: Sequence[Parallelism | None]) -> tuple[tuple[str, str], ...]:
    """Headers of the degrees that at least one of the plans uses."""
    return tuple((name, "right") for name in _shown(plans))


def layout_cells(
    degrees: Parallelism | None, plans: Sequence[Parallelism | None]
) -> tuple[str, ...]:
    """One plan's degrees under `layout_columns`; blank where stages differ or nothing fits."""
    if degrees is None:
        return ("",) * len(_shown(plans))
    values = _values(degrees)
    return tuple(values[name] for name in _shown(plans))


def _shown(plans: Sequence[Parallelism | None]) -> list[str]:
    used = [_values(degrees) for degrees in plans if degrees is not None]
    special = {name for each in used for name, value in each.items() if value != _PLAIN[name]}
    return [name for name, always in _DEGREES if always or name in special]


_PLAIN: Final = dict.fromkeys((name for name, _ in _DEGREES), "1") | {"order": "dp-pp"}


def _values(degrees: Parallelism) -> dict[str, str]:
    numbers = {
        "tp": degrees.tensor,
        "pp": degrees.pipeline,
        "v": degrees.virtual_stages,
        "dp": degrees.data,
        "cp": degrees.context,
        "ep": degrees.expert,
        "etp": degrees.expert_shards if degrees.expert > 1 else 1,
        "zero": degrees.zero_stage,
        "copies": degrees.state_copies,
    }
    outer = mapping_name(degrees.axis_order).split("-")[-2:]
    return {name: str(number) for name, number in numbers.items()} | {"order": "-".join(outer)}
