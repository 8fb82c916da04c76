"""Which table a document gets."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import pytest

from trainwright.plan import results
from trainwright.reporting.render import REPORTS, render


def test_every_named_document_exists_and_has_its_table():
    modules = [
        import_module(f"{results.__name__}.{m.name}") for m in iter_modules(results.__path__)
    ]
    defined = {name for module in modules for name in vars(module)}
    assert set(REPORTS) <= defined
    for module, function in REPORTS.values():
        assert callable(getattr(import_module(f"trainwright.reporting.{module}"), function))


def test_anything_else_has_none():
    with pytest.raises(TypeError, match="no table is known for int"):
        render(3)
