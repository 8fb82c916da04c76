"""The files of an export as one archive, the same bytes for the same files."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Final

from trainwright.formats.export_folder import file_bytes

if TYPE_CHECKING:
    from trainwright.plan.bundle import ExportBundle

_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)  # the first date an archive can hold


def zipped(bundle: ExportBundle) -> bytes:
    """All files under the name of the target, without dates."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in bundle.files.items():
            entry = zipfile.ZipInfo(f"{bundle.target}/{name}", date_time=_LONG_AGO)
            archive.writestr(entry, file_bytes(name, text), zipfile.ZIP_DEFLATED)
    return made.getvalue()
