"""Degrees of parallelism in words."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.parallelism import Parallelism

_NAMES = {
    "tensor": "tensor",
    "pipeline": "pipeline",
    "data": "data",
    "context": "context",
    "expert": "expert",
    "expert_tensor": "expert tensor",
    "virtual_stages": "virtual stages",
}


def describe(parallelism: Parallelism) -> str:
    """The degrees, those of 1 only where everyone expects them."""
    words = []
    for field, name in _NAMES.items():
        degree = getattr(parallelism, field)
        if degree is None or (degree == 1 and field not in ("tensor", "pipeline", "data")):
            continue
        sequence = field == "tensor" and parallelism.sequence_parallel
        words.append(f"{name} {degree}{' + sequence' if sequence else ''}")
    return f"{' × '.join(words)}, ZeRO-{parallelism.zero_stage}"


def changed(one: Parallelism, other: Parallelism) -> Iterator[tuple[str, str]]:
    """Every degree that differs, as (name, before → after)."""
    for field in fields(one):
        before, after = getattr(one, field.name), getattr(other, field.name)
        if before != after:
            yield field.name.replace("_", " "), f"{before} → {after}"
