"""Names for the arrays that the package passes around: what numbers they hold, not their shape.

Shapes stand in the docstring of whoever takes or gives an array. Only annotations use these names,
so they are imported under `TYPE_CHECKING` and cost nothing when a command starts.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
