"""What a search may use: Piper's restricted modes, and degrees fixed from outside.

A restriction only ever removes options or degrees, so a restricted optimum is never better than the
full one. Nothing is an error here: a layer that keeps no option at some degree does not offer that
degree, and a search that is left with nothing answers `infeasible`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.profile import CostTable, Recompute, Setting

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """Which axes and options a plan may use; the default allows everything.

    `data_parallel` or `tensor_parallel` false fixes that degree to 1 in every stage; `recompute`
    false drops every option that recomputes anything; `excluded_options` drops options by id. The
    two tuples of degrees, where given, are the only ones allowed.
    """

    data_parallel: bool = True
    tensor_parallel: bool = True
    recompute: bool = True
    excluded_options: frozenset[str] = frozenset()
    data_degrees: tuple[int, ...] | None = None
    tensor_degrees: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for name in ("data_degrees", "tensor_degrees"):
            degrees: tuple[int, ...] | None = getattr(self, name)
            if degrees is not None and not degrees:
                yield Fault(name, "must have at least 1 entry, got 0")
            for degree in degrees or ():
                if degree < 1:
                    yield Fault(name, f"must be >= 1, got {degree}")


UNRESTRICTED: Final = Restrictions()


def surviving_rows(costs: CostTable, restrictions: Restrictions) -> NDArray[np.bool_]:
    """Which rows of the table the restrictions leave, as a mask of shape [R]."""
    kept = np.ones(costs.num_rows, dtype=np.bool_)
    if not restrictions.tensor_parallel:
        kept &= costs.tensor_parallel == 1
    if restrictions.tensor_degrees is not None:
        kept &= np.isin(costs.tensor_parallel, restrictions.tensor_degrees)
    if not restrictions.recompute:
        kept &= np.array([mode is Recompute.NONE for mode in costs.recompute], dtype=np.bool_)
    if restrictions.excluded_options:
        excluded = restrictions.excluded_options
        kept &= np.array([option not in excluded for option in costs.option_ids], dtype=np.bool_)
    return kept


def surviving_data_degrees(setting: Setting, restrictions: Restrictions) -> tuple[int, ...]:
    """The data-parallel degrees the restrictions leave, ascending; may be empty.

    A degree that does not divide the number of microbatches, or exceeds the devices, never counts.
    """
    allowed = setting.data_parallel_degrees
    if not restrictions.data_parallel:
        allowed = (1,)
    if restrictions.data_degrees is not None:
        allowed = tuple(d for d in allowed if d in restrictions.data_degrees)
    return allowed
