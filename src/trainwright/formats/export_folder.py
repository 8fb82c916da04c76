"""A folder of exported files, written whole or not at all.

Everything goes to a new folder beside the target, which then takes its name. Texts whose names end
in `.gz` are compressed, without a time, so that the same plan gives the same bytes.
"""

from __future__ import annotations

import gzip
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.errors import InvalidInput
from trainwright.formats.atomic_file import explained

if TYPE_CHECKING:
    from collections.abc import Mapping


def file_bytes(name: str, text: str) -> bytes:
    """What is written for a text."""
    data = text.encode()
    return gzip.compress(data, compresslevel=6, mtime=0) if name.endswith(".gz") else data


def check_folder(folder: str | Path, *, force: bool = False) -> None:
    """Raise what `write_folder` would raise, before any work is done; changes nothing."""
    target = Path(os.path.realpath(folder))
    with explained(folder):
        if target.exists() and not target.is_dir():
            raise InvalidInput.of("output", f'must be a folder, got the file "{folder}"')
        if not force and target.is_dir() and any(target.iterdir()):
            problem = f'must be a new or empty folder, got "{folder}"; choose another or --force'
            raise InvalidInput.of("output", problem)
        parent = target.parent
        if not parent.exists():
            problem = f'must lie in a folder that exists, and "{Path(folder).parent}" does not'
            raise InvalidInput.of("output", problem)
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            problem = f'must lie in a folder that can be written, got "{folder}"'
            raise InvalidInput.of("output", problem)


def write_folder(folder: str | Path, files: Mapping[str, str], *, force: bool = False) -> None:
    """Write all files, or none; with `force` into a folder that holds others, which stay."""
    check_folder(folder, force=force)
    target = Path(os.path.realpath(folder))
    temporary = target.with_name(f".trainwright-{secrets.token_hex(8)}")
    with explained(folder):
        try:
            temporary.mkdir()
            for name, text in files.items():
                path = temporary / name
                path.write_bytes(file_bytes(name, text))
                if text.startswith("#!"):
                    path.chmod(0o755)
            _take_place(temporary, target, files)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _take_place(temporary: Path, target: Path, names: Mapping[str, str]) -> None:
    if target.is_dir() and not any(target.iterdir()):
        target.rmdir()
    if not target.exists():
        temporary.rename(target)
        return
    for name in names:
        (temporary / name).replace(target / name)
