"""The degrees of a plan, as a line and as columns that several tables share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.plan.parallelism import Parallelism

# (header, shown also where every plan of a table has degree 1)
_DEGREES: Final = (
    ("tp", True),
    ("pp", True),
    ("v", False),
    ("dp", True),
    ("cp", False),
    ("ep", False),
    ("etp", False),
    ("zero", True),
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
    return f"{' x '.join(parts)}, ZeRO-{degrees.zero_stage}"


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
    return tuple(str(values[name]) for name in _shown(plans))


def _shown(plans: Sequence[Parallelism | None]) -> list[str]:
    used = [_values(degrees) for degrees in plans if degrees is not None]
    return [name for name, always in _DEGREES if always or any(v[name] > 1 for v in used)]


def _values(degrees: Parallelism) -> dict[str, int]:
    return {
        "tp": degrees.tensor,
        "pp": degrees.pipeline,
        "v": degrees.virtual_stages,
        "dp": degrees.data,
        "cp": degrees.context,
        "ep": degrees.expert,
        "etp": degrees.expert_shards if degrees.expert > 1 else 1,
        "zero": degrees.zero_stage,
    }
