"""Which way to a schedule is asked for, and what only some of them need."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trainwright.errors import InvalidInput


class Method(StrEnum):
    """How a schedule is come by; the two last improve on what others found."""

    FAMILY = "family"
    SIMULATE = "simulate"
    SEARCH = "search"
    FRONT = "front"
    EXACT = "exact"
    SEARCHED_FRONT = "searched-front"

    @classmethod
    def of(
        cls, *, family: object, simulate: object, search: bool, exact: bool, pareto: bool
    ) -> Method:
        """The method that such options ask for; raises InvalidInput for none and for two."""
        asked = {
            "family": family is not None,
            "simulate": simulate is not None,
            "search": search or exact,
            "pareto": pareto,
        }
        names = [name for name, is_asked in asked.items() if is_asked]
        if not names:
            problem = "say which: --family NAME, --search, --exact, --pareto or --simulate FILE"
            raise InvalidInput.of("schedule", problem)
        if names == ["search", "pareto"] and not exact:
            return cls.SEARCHED_FRONT
        if len(names) > 1:
            first, second = ("exact" if name == "search" and exact else name for name in names[:2])
            raise InvalidInput.of(second, f"cannot be asked for together with --{first}")
        if names == ["search"]:
            return cls.EXACT if exact else cls.SEARCH
        return {"family": cls.FAMILY, "simulate": cls.SIMULATE, "pareto": cls.FRONT}[names[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What only a search, or a front, needs to know."""

    placement: str | None = None
    seed: int | None = None
    evaluations: int | None = None
