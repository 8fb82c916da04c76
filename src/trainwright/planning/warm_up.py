"""How many microbatches go forward on a rank before its first backward, by schedule family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from trainwright.planning.schedules import ONE_F_ONE_B
from trainwright.planning.v_memory import LEAST_OF_EITHER

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

# Forwards before the first backward of a rank with so many ranks from it on, at most m.
WARM_UP: Final[Mapping[str, Callable[[Ints], Ints]]] = {
    ONE_F_ONE_B: lambda ranks: ranks,
    "zb-h1": lambda ranks: ranks,
    "zb-h2": lambda ranks: 2 * ranks - 1,
    **LEAST_OF_EITHER,
}
