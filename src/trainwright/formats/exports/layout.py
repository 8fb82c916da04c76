"""Megatron's pipeline layout: one string that says which stage holds which layers.

`E` is the embedding, `t` a block, `m` a layer that predicts further tokens, `L` head and loss; `|`
stands between stages, all ranks of the first chunk before those of the second. `x*n` repeats a
letter and `(...)*n` a group, groups do not nest, commas mean nothing, blanks are errors. Source:
`PipelineParallelLayerLayout` of megatron-core 0.16.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from trainwright.errors import InvalidInput
from trainwright.model import LayerKind
from trainwright.plan.job import StagePart

_LETTERS: Final = {LayerKind.EMBEDDING: "E", LayerKind.BLOCK: "t", LayerKind.MTP: "m"}
_TIMES: Final = re.compile(r"\*0*(\d+)")
_MOST_TIMES: Final = 2_048
_MOST_DIGITS: Final = 4
_SHORTEST_RUN: Final = 5
_SHORTEST_GROUP: Final = 3
_GROUP: Final = re.compile(r"\(([^()]+)\)\*(\d+)")
_RUN: Final = re.compile(r"([EtmL|])\*(\d+)")


def letters_of(stage: StagePart) -> str:
    """The stage as letters; head and loss are one `L`, norms have none."""
    letters = "".join(_LETTERS.get(kind, "") for kind in stage.kinds)
    return letters + ("L" if stage.has(LayerKind.LOSS) else "")


def format_layout(stages: Iterable[str]) -> str:
    """The shortest string of runs and groups that a greedy writer finds.

    Reading it back gives the same stages, which is asserted.
    """
    given = tuple(stages)
    text = "".join(_grouped(given))
    assert parse_layout(text) == given, f"the layout {text} reads back as it was"
    return text


def parse_layout(text: str) -> tuple[str, ...]:
    """The letters of every stage; raises `InvalidInput` for what the grammar does not know."""
    plain = text.replace(",", "")
    if any(len(n) > _MOST_DIGITS or int(n) > _MOST_TIMES for n in _TIMES.findall(plain)):
        raise InvalidInput.of("layout", f"must repeat nothing more than {_MOST_TIMES} times")
    plain = _GROUP.sub(lambda found: found[1] * int(found[2]), plain)
    plain = _RUN.sub(lambda found: found[1] * int(found[2]), plain)
    wrong = sorted(set(plain) - set("EtmL|"))
    if wrong:
        shown = ", ".join(map(repr, wrong))
        raise InvalidInput.of("layout", f"must hold E, t, m, L, |, x*n and (...)*n, got {shown}")
    return tuple(plain.split("|"))


def _grouped(stages: tuple[str, ...]) -> Iterator[str]:
    runs = [(stage, len(list(same))) for stage, same in groupby(stages)]
    for number, (stage, count) in enumerate(runs):
        ends = number == len(runs) - 1
        short = _runs(stage)
        separated = count - 1 if ends else count  # after the last stage stands no bar
        if stage and separated >= _SHORTEST_GROUP:
            yield f"({short}|)*{separated}" + (short if ends else "")
        else:
            yield "|".join([short] * count) + ("" if ends else "|")


def _runs(stage: str) -> str:
    parts = []
    for letter, same in groupby(stage):
        count = len(list(same))
        parts.append(f"{letter}*{count}" if count >= _SHORTEST_RUN else letter * count)
    return "".join(parts)
