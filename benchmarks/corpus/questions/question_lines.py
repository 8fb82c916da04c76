"""A question of the corpus: its line, its options spelled out, and graphs that several share."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

Question = dict[str, Any]
Options = dict[str, Any]


def question(
    name: str,
    argv: Sequence[str],
    *,
    files: Mapping[str, str] | None = None,
    after: Sequence[Sequence[str]] = (),
    shared: bool = False,
) -> Question:
    """One line of the corpus; `shared` marks what needs the reference data."""
    made: Question = {"id": name, "argv": list(argv)}
    if files:
        made["files"] = dict(files)
    if shared:
        made["shared"] = True
    if after:
        made["after"] = [list(command) for command in after]
    return made


def spelled(options: Mapping[str, Any]) -> list[str]:
    """Options as arguments: `True` is a flag, a list repeats its option, `None` leaves it out."""
    found: list[str] = []
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                found += [f"--{name}"] if one is True else [f"--{name}", str(one)]
    return found


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def rounded(value: float, digits: int = 4) -> float:
    """Few digits, so that files stay short and mean the same on every machine."""
    return float(f"{value:.{digits}g}")


def without(options: Options, *names: str) -> Options:
    return {name: value for name, value in options.items() if name not in names}


def plan_of(name: str, options: Options, text: str, **more: Any) -> Question:
    """A question about p.json."""
    argv = ["plan", "p.json", *spelled(options), "--json"]
    return question(name, argv, files={"p.json": text}, **more)


def edges_of(shape: str, count: int, rng: Random) -> list[tuple[int, int]]:
    """Edges between layers 0 … count - 1, all from a smaller to a larger one."""
    chain = [(i, i + 1) for i in range(count - 1)]
    if shape == "chain":
        return chain
    if shape == "skip":  # every third layer also feeds the one three further on
        return chain + [(i, i + 3) for i in range(0, count - 3, 3)]
    if shape == "branches":  # two chains between a source and a sink
        left = [0, *range(1, count - 1, 2), count - 1]
        right = [0, *range(2, count - 1, 2), count - 1]
        return sorted({*pairwise(left), *pairwise(right)})
    if shape == "mask":  # one small layer that every other reads, as an attention mask
        return sorted({*chain[1:], *((0, i) for i in range(1, count))})
    assert shape == "dag", shape
    near = {(max(0, i - 1 - int(3 * rng.random())), i) for i in range(1, count)}
    far = {(int(i * rng.random()), i) for i in range(2, count) if rng.random() < 0.4}
    return sorted(near | far)
