"""Pages of the site that are written from the code when the site is built.

A page says where with a line `<!-- generated: NAME -->`; NAME is a key of `PARTS`. What its
commands print is put below them (`outputs`). None of it is stored, so none can be out of date.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generated.commands import commands_part
from generated.documents import documents_part
from generated.outputs import REPORTS, gallery_part, with_outputs, write_gallery
from generated.python import python_part
from generated.reports import reports_part, write_reports
from generated.targets import targets_part

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PARTS: dict[str, Callable[[], str]] = {
    "commands": commands_part,
    "documents": documents_part,
    "gallery": gallery_part,
    "python": python_part,
    "reports": reports_part,
    "targets": targets_part,
}
_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def fill(text: str) -> str:
    """A page's text with its generated parts; raises `KeyError` for a part that does not exist."""
    return _MARK.sub(lambda mark: PARTS[mark[1]](), text)


def _fill_source(app: Sphinx, page: str, source: list[str]) -> None:
    keep = Path(app.outdir, "gallery", REPORTS)
    source[0] = with_outputs(fill(source[0]), keep=keep)


def _write_pages(app: Sphinx, config: object) -> None:
    write_gallery(Path(app.srcdir))
    write_reports(Path(app.srcdir))


def setup(app: Sphinx) -> dict[str, Any]:
    """Entry point of the Sphinx extension."""
    app.connect("config-inited", _write_pages)
    app.connect("source-read", _fill_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
