"""A small profile as a noun and as a file."""

from __future__ import annotations

import pytest

from small_profiles import transformer, write_json
from trainwright.formats.piper_json import read_piper


@pytest.fixture
def noun():
    return read_piper(transformer(), source="small.json")


@pytest.fixture
def path(tmp_path):
    return write_json(tmp_path / "small.json", transformer())
