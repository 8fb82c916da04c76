"""Numbers and lists of them, as options: 1,2,4 or 32GiB,80GiB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.cli.output import parse_count
from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence


def texts(given: str | None) -> tuple[str, ...] | None:
    """The parts between commas."""
    return None if given is None else tuple(p.strip() for p in given.split(",") if p.strip())


def counts(given: str | None, name: str) -> tuple[int, ...] | None:
    """Whole numbers >= 1."""
    parts = texts(given)
    return None if parts is None else tuple(parse_count(part, name) or 1 for part in parts)


def numbers(given: str | None, name: str) -> tuple[float, ...] | None:
    """Finite numbers >= 0."""
    parts = texts(given)
    return None if parts is None else tuple(number(part, name) or 0.0 for part in parts)


def number(given: str | None, name: str) -> float | None:
    """One finite number >= 0."""
    if given is None:
        return None
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise InvalidInput.of(name, f'must be a finite number >= 0, got "{given}"')
    return value


def any_number(given: str | None, name: str) -> float | None:
    """A number; what it may be is said where it is used."""
    if given is None:
        return None
    try:
        return float(given)
    except ValueError:
        raise InvalidInput.of(name, f'must be a number, got "{given}"') from None


def shares(given: Sequence[str] | None) -> dict[str, float] | None:
    """Of KIND=SHARE, repeated."""
    if not given:
        return None
    found = {}
    for text in given:
        kind, equals, share = text.partition("=")
        if not equals:
            raise InvalidInput.of("overlap", f'must be KIND=SHARE, got "{text}"')
        found[kind.strip()] = any_number(share, "overlap") or 0.0
    return found
