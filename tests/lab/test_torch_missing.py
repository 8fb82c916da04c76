"""Tracing without the extra is refused with what to install."""

import sys

import pytest

from trainwright.errors import MissingExtra
from trainwright.lab.torch_trace import trace_module
from trainwright.model import RunShape


def test_tracing_without_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith("trainwright.formats.torch_") and not name.endswith("torch_trace"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[torch\]'"):
        trace_module(object(), {}, run=RunShape(microbatch_size=1, sequence_length=1))  # type: ignore[arg-type]
