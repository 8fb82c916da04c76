"""Where the parts of every kind of document stand."""

from __future__ import annotations

import pytest
from generated.documents import document_types, heading

from trainwright.documents.printing import render
from trainwright.documents.registry import KINDS, part


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_of_a_kind_exists_and_its_record_has_that_kind(kind):
    parts = KINDS[kind]
    assert part(parts.record) in document_types()
    assert heading(part(parts.record)) == kind
    for name in (parts.view, parts.remake, parts.page):
        assert name is None or callable(part(name))


def test_anything_else_has_none():
    with pytest.raises(TypeError, match="no kind of document is known for int"):
        render(3)
