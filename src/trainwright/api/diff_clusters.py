"""How two clusters of one name differ: every figure that is not the same, by its path.

Clusters of different names are told apart by these; a list of all their figures would say less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.results.request import Embedded


def cluster_facts(before: Embedded | None, after: Embedded | None) -> tuple[dict[str, Any], ...]:
    """The figures of both, flat; nothing where the names differ or one of them is absent."""
    if before is None or after is None or before.name != after.name:
        return {}, {}
    return dict(_leaves(before.content, "cluster")), dict(_leaves(after.content, "cluster"))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _leaves(entry, f"{path}.{key}")
    elif isinstance(value, list) and path.endswith(".sources"):
        for field, source in value:
            yield f"{path}.{field}", f"{source['origin']}: {source['source']}"
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _leaves(entry, f"{path}[{index}]")
    else:
        yield path, value
