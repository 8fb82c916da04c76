"""Several numbers of devices: `64..4096` doubles, `64,96,128` lists, and both may be mixed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from trainwright.api.clusters import LARGEST_CLUSTER
from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

Sizes: TypeAlias = "str | int | Iterable[int]"
MOST_SIZES: Final = 64


def parse_sizes(given: Sizes) -> tuple[int, ...]:
    """The numbers in increasing order; raises `InvalidInput` naming the option."""
    if isinstance(given, int):
        return (given,)
    parts = given.split(",") if isinstance(given, str) else given
    sizes = sorted({size for part in parts for size in _part(part)})
    if not sizes:
        raise InvalidInput.of("devices", "must name at least one number, got none")
    if sizes[-1] > LARGEST_CLUSTER:
        raise InvalidInput.of("devices", f"must be <= {LARGEST_CLUSTER}, got {sizes[-1]}")
    if len(sizes) > MOST_SIZES:
        problem = f"must be at most {MOST_SIZES} numbers, got {len(sizes)}"
        raise InvalidInput.of("devices", problem)
    return tuple(sizes)


def is_several(devices: str | None) -> bool:
    """Whether the text of --devices asks for a table."""
    return devices is not None and ("," in devices or ".." in devices)


def _part(part: str | int) -> Iterator[int]:
    if isinstance(part, int) and not isinstance(part, bool) and part >= 1:
        yield part
        return
    low, dots, high = str(part).partition("..")
    first = _count(low, part)
    if not dots:
        yield first
        return
    last = _count(high, part)
    if last < first:
        raise InvalidInput.of("devices", f"must not be empty, got {part}; write {high}..{low}")
    size = first
    while size < last:
        yield size
        size *= 2
    yield last


def _count(text: str, part: object) -> int:
    stripped = text.strip()
    if not stripped.isdecimal() or int(stripped) < 1:
        wanted = "must be a whole number >= 1, a range such as 64..4096 or a list such as 64,96"
        raise InvalidInput.of("devices", f'{wanted}, got "{part}"')
    return int(stripped)
