"""What the commands of a page print, put below them when the site is built.

A line `<!-- output -->` stands for what the last command before it printed, and
`<!-- output: N lines -->` for as much of it. The page's commands run in order in a folder of their
own that holds the examples, so a page never shows an output that its commands no longer give.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
_MARK = r"^<!-- output(?:: (\d+) lines)? -->$"
_PARTS = re.compile(rf"^```sh\n(.*?)^```$|{_MARK}", re.DOTALL | re.MULTILINE)
_SHOWN = (0, 3)  # done; what was asked for does not fit, which is an answer


def with_outputs(text: str) -> str:
    """A page's text with the outputs it asks for; raises `CalledProcessError` for a bad command."""
    if not re.search(_MARK, text, re.MULTILINE):
        return text
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(EXAMPLES, Path(name) / "examples")
        return "".join(_parts(text, Path(name)))


def _parts(text: str, folder: Path) -> Iterator[str]:
    position, printed = 0, ""
    for found in _PARTS.finditer(text):
        yield text[position : found.start()]
        position = found.end()
        if found[1] is None:
            yield _block(printed, most=int(found[2] or 1_000))
            continue
        yield found[0]
        for command in found[1].replace("\\\n", " ").splitlines():
            if command.startswith("trainwright "):
                printed = _run(command, folder)
    yield text[position:]


def _run(command: str, folder: Path) -> str:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode not in _SHOWN:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def _block(printed: str, *, most: int) -> str:
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    cut = [*lines[:most], "…"] if len(lines) > most else lines
    return "\n".join(("```text", *cut, "```"))
