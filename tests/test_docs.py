"""Everything the pages show is run: Python, commands, JSON and TOML, links and options.

Each page gets a folder of its own with the files its examples take for granted. Commands that set a
machine up are recognised by their first word and left alone; all others must end with exit code 0.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

import click
import pytest

from trainwright.commands.main import app, main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SETS_A_MACHINE_UP = {"make", "pip", "git", "cd", "export", "apt-get"}
NEEDS_A_SHELL = re.compile(r"[|<>&;$*]")
PATIENCE_S = 120  # only to end a test that hangs

SHELL = ("sh", "bash", "shell", "console")
AT_LENGTH = {"plan", "jobs", "codesign", "tutorial", "cookbook"}  # a minute each


def _named(page: Path) -> str:
    return page.stem


on_each_page = pytest.mark.parametrize("page", PAGES, ids=_named)


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks in one of these languages."""
    text = page.read_text(encoding="utf-8")
    fence = rf"^```(?:{'|'.join(languages)})\n(.*?)^```$"
    return re.findall(fence, text, flags=re.DOTALL | re.MULTILINE)


def on_pages_with(*languages: str, at_length: Collection[str] = ()) -> pytest.MarkDecorator:
    """The pages that show something in one of these languages."""
    shown = [
        pytest.param(page, marks=pytest.mark.papers if page.stem in at_length else pytest.mark.slow)
        for page in PAGES
        if blocks(page, *languages)
    ]
    return pytest.mark.parametrize("page", shown, ids=_named)


@pytest.fixture
def folder(tmp_path, monkeypatch, capfd) -> Path:
    """Where the examples run: the repository's examples, two plans of one, a Piper profile."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(ROOT / "examples" / "profile.json", tmp_path)
    (tmp_path / "docs").mkdir()
    piper = blocks(ROOT / "docs" / "formats.md", "json")[0]
    (tmp_path / "piper.json").write_text(piper, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # workers of a parallel run have 80
    for name, devices in (("plan.json", "16"), ("other.json", "8")):
        call(f"trainwright plan profile.json --devices {devices} -o {name}")
    capfd.readouterr()
    return tmp_path


def call(command: str) -> int:
    """The exit code of a shell line."""
    if SETS_A_MACHINE_UP & {command.split()[0]}:
        return 0
    program, *arguments = shlex.split(command, comments=True)
    if program == "trainwright" and not NEEDS_A_SHELL.search(command):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return ended.value.code
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-c", command],
        env=os.environ | {"PATH": path},
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Commands with the output the page shows for them."""
    for block in blocks(page, *SHELL[:-1]):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith("#"):
                yield line, []
    for block in blocks(page, SHELL[-1]):
        for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            command, *output = part.splitlines()
            yield command, [line.rstrip() for line in output if line.strip()]


@on_pages_with(*SHELL, at_length=AT_LENGTH)
def test_commands_do_what_the_page_says(page, folder, capfd):
    for command, output in commands(page):
        assert call(command) == 0, f"{command}\n{capfd.readouterr().err}"
        printed = capfd.readouterr().out.splitlines()
        for line in output:
            assert line in printed, command
    for written in (folder / "docs").iterdir():
        stored = (ROOT / "docs" / written.name).read_text(encoding="utf-8")
        assert written.read_text(encoding="utf-8") == stored, f"docs/{written.name} is out of date"


@on_pages_with("python")
def test_python_runs(page, folder, capfd):
    known = {"piper_text": (folder / "piper.json").read_text(encoding="utf-8")}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), known)


@on_each_page
def test_json_and_toml_can_be_read(page):
    for block in blocks(page, "json"):
        json.loads(block)
    for block in blocks(page, "toml"):
        tomllib.loads(block)


@on_each_page
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?:|mailto:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.fixture(scope="module")
def known_options() -> set[str]:
    """The long options of all commands."""
    with click.Context(app) as context:
        commands = [app.get_command(context, name) for name in app.list_commands(context)]
    parameters = [each for command in (app, *commands) for each in command.params]
    names = [name for each in parameters for name in (*each.opts, *each.secondary_opts)]
    return {name for name in names if name.startswith("--")} | {"--help"}


@on_each_page
def test_options_exist(page, known_options):
    """Inline code such as `--memory 8GiB` names an option of some command."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for code in re.findall(r"`([^`\n]+)`", prose):
        if code.startswith(("--", "trainwright ")):
            assert set(re.findall(r"--[a-z][a-z-]*", code)) <= known_options, code
