"""Reference data outside the repository: results of other programs and published figures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_FOLDER = os.environ.get("TRAINWRIGHT_SHARED")

needs_reference = pytest.mark.skipif(
    _FOLDER is None, reason="needs reference data: set TRAINWRIGHT_SHARED"
)


def reference() -> Path:
    """The folder of reference data."""
    assert _FOLDER is not None, "mark the test with needs_reference"
    return Path(_FOLDER) / "data"
