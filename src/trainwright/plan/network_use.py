"""What a step sends across each network level, as seconds of one device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisUse:
    """One purpose of communication: groups of `ranks` meet here, for so many seconds of a step."""

    kind: str
    ranks: int
    exposed_s: float
    hidden_s: float

    @property
    def total_s(self) -> float:
        """Seconds under way, whether anything waits for them or not."""
        return self.exposed_s + self.hidden_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelUse:
    """A network level, innermost first, and what crosses nothing further out.

    A group that spans several levels counts at the outermost, whose links are the slowest and
    decide. `effective_bytes_per_s` is what one device gets.
    """

    name: str
    size: int
    effective_bytes_per_s: float
    axes: tuple[AxisUse, ...] = ()

    @property
    def busy_s(self) -> float:
        """Seconds of a step under way across this level, one purpose after the other."""
        return sum(axis.total_s for axis in self.axes)
