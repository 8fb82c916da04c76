"""What the commands of a page print, put below them when the site is built; and the gallery.

A line `<!-- output -->` stands for what the last command before it printed, and
`<!-- output: N lines -->` for as much of it. The page's commands run in order in a folder of their
own that holds the examples, so a page never shows an output that its commands no longer give.

A question of the gallery (`gallery.toml`) is a page of its own: two sentences around commands,
their output, and the report that the last of them writes, shown inside the page. These pages are
written for each build and stored nowhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
_MARK = r"^<!-- output(?:: (\d+) lines)? -->$"
_PARTS = re.compile(rf"^```sh\n(.*?)^```$|{_MARK}", re.DOTALL | re.MULTILINE)
REPORTS = "pages"  # beside the pages of the gallery, what their commands wrote
_SHOWN = (0, 3)  # done; what was asked for does not fit, which is an answer


def with_outputs(text: str, *, keep: Path | None = None) -> str:
    """A page's text with the outputs it asks for; raises `CalledProcessError` for a bad command.

    Pages that its commands write are kept in the folder `keep`.
    """
    if not re.search(_MARK, text, re.MULTILINE):
        return text
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(EXAMPLES, Path(name) / "examples")
        filled = "".join(_parts(text, Path(name)))
        for page in () if keep is None else Path(name).glob("*.html"):
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copy(page, keep)
        return filled


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One of the gallery, as its file has it: `shown` counts lines of the output."""

    name: str
    title: str
    ask: str
    commands: list[str]
    answer: str
    shown: int
    document: str
    dear: bool = False

    @property
    def text(self) -> str:
        """Its page, before its commands have run."""
        lines = "\n".join(self.commands)
        page, where = f"{self.name}.html", f"{REPORTS}/{self.name}.html"
        return f"""# {self.title}

{self.ask}

```sh
{lines}
```

<!-- output: {self.shown} lines -->

{self.answer}

```sh
trainwright report {self.document} -o {page} --title "{self.title}"
```

<iframe src="{where}" title="The page of this answer" loading="lazy"></iframe>
<a href="{where}">The page by itself</a>
"""


def questions() -> list[Question]:
    """All of the gallery, in order."""
    text = Path(__file__).with_name("gallery.toml").read_text(encoding="utf-8")
    return [Question(**each) for each in tomllib.loads(text)["question"]]


def gallery_part() -> str:
    """What each question asks, with a link to its page."""
    found = questions()
    rows = [f"| [{each.title}](gallery/{each.name}.md) | {each.ask} |" for each in found]
    names = [f"gallery/{each.name}" for each in found]
    tree = ["```{toctree}", ":hidden:", "", *names, "```"]
    return "\n".join(("| question | asked of |", "| --- | --- |", *rows, "", *tree, ""))


def write_gallery(docs: Path) -> None:
    """The pages of the questions, into a folder that is made anew."""
    folder = docs / "gallery"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for each in questions():
        (folder / f"{each.name}.md").write_text(each.text, encoding="utf-8")
