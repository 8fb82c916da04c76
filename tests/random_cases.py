"""How many random cases a law is tried on: in proportion, so that one profile is few or many.

Also the paths into a value, at which cases change it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any, TypeVar

    Test = TypeVar("Test", bound=Callable[..., None])

_USUAL = 25  # what the numbers at the tests are relative to
_LEAST = 5


def cases(number: int) -> Callable[[Test], Test]:
    """A decorator: `number` cases where a law without it has 25, scaled by the profile's own."""
    scaled = math.ceil(number * settings().max_examples / _USUAL)
    decorate: Callable[[Test], Test] = settings(max_examples=max(scaled, min(number, _LEAST)))
    return decorate


def marked(
    seeds: Iterable[int], *, slow: Collection[int] = (), papers: Collection[int] = ()
) -> list[Any]:
    """Seeds for `parametrize`, of which some take long enough for a marker."""
    marks = {
        seed: [pytest.mark.slow] * (seed in slow) + [pytest.mark.papers] * (seed in papers)
        for seed in seeds
    }
    return [pytest.param(seed, marks=those) for seed, those in marks.items()]


def every_third(kinds: Iterable[str], *, always: Collection[str] = ()) -> list[Any]:
    """Kinds for `parametrize`, alike ones together: a third and those named, the rest at length."""
    return [
        pytest.param(kind, marks=[pytest.mark.papers] * (number % 3 > 0 and kind not in always))
        for number, kind in enumerate(kinds)
    ]


def places(value, path=()):
    """Every path into a value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in entries:
        yield (*path, key)
        if isinstance(entry, (dict, list)):
            yield from places(entry, (*path, key))
