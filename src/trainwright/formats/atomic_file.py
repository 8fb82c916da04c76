"""Files read whole and written whole: a reader never sees half a document.

Text goes to a temporary file beside the target, which then takes the target's name. Every failure
becomes an `InvalidInput` that says what to change; nothing is left behind.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainwright.errors import InvalidInput
from trainwright.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    temporary = target.with_name(f".trainwright-{secrets.token_hex(8)}")
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
