"""Files read whole and written whole: a reader never sees half a document.

Text goes to a temporary file beside the target, which then takes the target's name. Every failure
becomes an `InvalidInput` that says what to change; nothing is left behind.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from trainwright.errors import InvalidInput
from trainwright.units import MIB

LARGEST_FILE: Final = 2**29  # ten times what any input needs; a device may have no end

_REASONS: Final = {
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a part of its path is not a folder",
    errno.EISDIR: "it is a folder",
    errno.EACCES: "permission is denied",
    errno.EPERM: "permission is denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.ENAMETOOLONG: "its name is too long",
    errno.ELOOP: "its links go round in circles",
}


def exists(path: str | Path) -> bool:
    """Whether something is there; a name that no file can have names nothing."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def read_bytes(path: str | Path, *, name: str = "file", most: int = LARGEST_FILE) -> bytes:
    """The bytes of a file, at most `most`; `name` is what the caller calls it in messages."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        fix = "name a file that can be read"
        if str(path) == "-":
            fix = "for standard input name /dev/stdin"
        problem = f'cannot be read, {_reason(error)}: "{path}"; {fix}'
        raise InvalidInput.of(name, problem) from None
    if not data:
        raise InvalidInput.of(name, f'must not be empty, got the empty file "{path}"')
    if len(data) > most:
        raise InvalidInput.of(name, f'must be at most {most / MIB:g} MiB, got more in "{path}"')
    return data


def read_toml(path: str | Path, *, name: str) -> dict[str, Any]:
    """The tables of a TOML file; `name` is what the caller calls it in messages."""
    import tomllib  # which a command that reads none need not load

    data = read_bytes(path, name=name)
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput.of(name, f"must be TOML: {error}", source=str(path)) from None


def write_text(path: str | Path, text: str) -> None:
    """Write a file in one step, as UTF-8; raises `InvalidInput` for `output` where that fails."""
    with explained(path):
        data = text.encode()
    write_bytes(path, data)


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file in one step; raises `InvalidInput` for `output` where that fails."""
    with explained(path):
        target = _target(path)
        if _is_device(target):
            target.write_bytes(data)
            return
        _refuse_unwritable(target)
        temporary = _create_beside(target, data)
        try:
            temporary.replace(target)
        except BaseException:
            temporary.unlink()
            raise


def check_writable(path: str | Path) -> None:
    """Raise what `write_text` would raise, before any work is done; changes nothing."""
    with explained(path):
        target = _target(path)
        if not _is_device(target):
            _refuse_unwritable(target)
            _create_beside(target, b"").unlink()


def _target(path: str | Path) -> Path:
    """The file itself where `path` is a link to it: a link stays a link."""
    return Path(os.path.realpath(path))


def _is_device(target: Path) -> bool:
    """Whether something is there that renaming would destroy, such as /dev/stdout or a pipe."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _refuse_unwritable(target: Path) -> None:
    """Renaming replaces write-protected files too; that is not for us to decide."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _create_beside(target: Path, data: bytes) -> Path:
    temporary = target.with_name(f".trainwright-{os.urandom(8).hex()}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return temporary


@contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """Turn what the system says of a path that cannot be written into an `InvalidInput`."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = _reason(error)
        if isinstance(error, FileNotFoundError) and not exists(Path(path).parent):
            reason = "its folder does not exist"
        problem = f'cannot be written, {reason}: "{path}"; choose another path'
        raise InvalidInput.of("output", problem) from None


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return _REASONS.get(error.errno, os.strerror(error.errno))
    return "it is not a valid path"


# A folder of exported files, written whole or not at all
# -------------------------------------------------------
# Everything goes to a new folder beside the target, which then takes its name. Texts whose names
# end in `.gz` are compressed, without a time, so that the same plan gives the same bytes.
#
# A hidden list beside the files, in the format of `sha256sum --check`, says what was written. Where
# a folder is written again, what that list names and the new files do not is removed, but for files
# that were changed since.

LIST: Final = ".trainwright.sha256"
_LISTED: Final = re.compile(r"([0-9a-f]{64})  ([^/\\]+)")


def file_bytes(name: str, text: str) -> bytes:
    """What is written for a text."""
    data = text.encode()
    if not name.endswith(".gz"):
        return data
    import gzip  # 1 ms at the start of every command

    return gzip.compress(data, compresslevel=6, mtime=0)


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
    temporary = target.with_name(f".trainwright-{os.urandom(8).hex()}")
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
