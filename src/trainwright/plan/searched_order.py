"""An order of actions that a search found, as a plan and its document carry it.

Microbatches of a stage follow each other, so a rank's order is a *word*: kinds and stages in the
order in which the rank runs them, without microbatches. Written `0F*3 7F 7I 0F`, where `*3` stands
for three of them in a row; letters are those of `plan.schedule`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trainwright.errors import Fault, InvalidInput

SEARCHED: Final = "searched"  # the schedule of a plan that carries such an order
_STEP: Final = r"\d{1,9}[FIW](?:\*[1-9]\d{0,8})?"
_WORD: Final = re.compile(rf"{_STEP}(?: {_STEP})*", re.ASCII)
_LONGEST_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedOrder:
    """`words` of the ranks, and the named family whose order the search began with.

    Only the writing is checked here; what orders a plan can have, `scheduling.words` knows.
    """

    family: str
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        if not self.words:
            yield Fault("words", "must have at least 1 entry, got 0")
        for rank, word in enumerate(self.words):
            if not _WORD.fullmatch(word):
                shown = word[:_LONGEST_SHOWN] + ("…" if len(word) > _LONGEST_SHOWN else "")
                yield Fault(f"words[{rank}]", f'must look like "0F*3 7F 7I", got "{shown}"')
