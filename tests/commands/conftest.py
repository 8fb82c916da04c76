"""Commands in process: in a folder of its own that holds a small profile."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from small_profiles import transformer, write_json
from trainwright.commands.main import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout; NaN and a second document are failures."""
        assert self.out.count("\n") == 1
        assert self.out.endswith("}\n")
        found = json.loads(self.out, parse_constant=_refuse)
        assert isinstance(found, dict)
        return found

    @property
    def report(self) -> str:
        """Everything a person sees, for a snapshot."""
        return f"{self.out}--- stderr\n{self.err}--- exit code {self.code}"


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


Run = Callable[..., Outcome]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; holds `small.json`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    write_json(tmp_path / "small.json", transformer())
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the program with these arguments."""

    def call(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Outcome(code=code, out=printed.out, err=printed.err)

    return call
