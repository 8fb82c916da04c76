"""A folder of exported files, written whole or not at all.

Everything goes to a new folder beside the target, which then takes its name. Texts whose names end
in `.gz` are compressed, without a time, so that the same plan gives the same bytes.

A hidden list beside the files, in the format of `sha256sum --check`, says what was written. Where a
folder is written again, what that list names and the new files do not is removed, but for files
that were changed since.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainwright.errors import InvalidInput
from trainwright.formats.atomic_file import explained

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LIST: Final = ".trainwright.sha256"
_LISTED: Final = re.compile(r"([0-9a-f]{64})  ([^/\\]+)")


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
    """Write all files, or none.

    With `force` into a folder that holds others: what an earlier export left there unchanged goes,
    all else stays.
    """
    check_folder(folder, force=force)
    target = Path(os.path.realpath(folder))
    temporary = target.with_name(f".trainwright-{secrets.token_hex(8)}")
    with explained(folder):
        try:
            temporary.mkdir()
            listed = []
            for name, text in files.items():
                path, data = temporary / name, file_bytes(name, text)
                path.write_bytes(data)
                listed.append(f"{_hash(data)}  {name}\n")
                if text.startswith("#!"):
                    path.chmod(0o755)
            (temporary / LIST).write_text("".join(listed), encoding="utf-8")
            _take_place(temporary, target, (*files, LIST))
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _take_place(temporary: Path, target: Path, names: tuple[str, ...]) -> None:
    if target.is_dir() and not any(target.iterdir()):
        target.rmdir()
    if not target.exists():
        temporary.rename(target)
        return
    stale = [path for path in _written_before(target) if path.name not in names]
    for name in names:
        (temporary / name).replace(target / name)
    for path in stale:
        path.unlink()


def _written_before(folder: Path) -> Iterator[Path]:
    """Files of an earlier export, as they were written."""
    listing = folder / LIST
    if not listing.is_file():
        return
    for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
        found = _LISTED.fullmatch(line)
        if found is None:
            continue
        path = folder / found[2]
        if path.is_file() and not path.is_symlink() and _hash(path.read_bytes()) == found[1]:
            yield path


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
