"""Which table a document gets."""

from __future__ import annotations

from importlib import import_module

import pytest
from generated.documents import document_types

from trainwright.commands.profile import LayerProfileResult
from trainwright.documents.printing import REPORTS, render


def test_every_named_document_exists_and_has_its_table():
    documents = {document.__name__ for document in (*document_types(), LayerProfileResult)}
    assert set(REPORTS) <= documents
    for module, function in REPORTS.values():
        assert callable(getattr(import_module(f"trainwright.{module}"), function))


def test_anything_else_has_none():
    with pytest.raises(TypeError, match="no table is known for int"):
        render(3)
