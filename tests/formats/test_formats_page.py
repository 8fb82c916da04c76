"""Every example of docs/formats.md works."""

from __future__ import annotations

import re
from pathlib import Path

from trainwright.formats.json_text import parse_json
from trainwright.formats.piper_json import read_piper
from trainwright.formats.profile_json import read_profile
from trainwright.options.inputs import detect

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def test_the_examples_are_read_by_their_readers():
    piper, own = blocks("json")
    value = parse_json(piper.encode())
    assert detect(value) == "piper"
    (profile,) = read_piper(value).profiles
    assert [layer.name for layer in profile.structure.layers] == ["embedding", "head"]
    value = parse_json(own.encode())
    assert detect(value) == "profile"
    (profile,) = read_profile(value).profiles
    assert [layer.layer_class for layer in profile.structure.layers] == [0, 1, 1, 0]
    assert profile.structure.shared_parameters[0].layers == (0, 3)


def test_the_python_example_runs():
    (example,) = blocks("python")
    exec(example, {"piper_text": blocks("json")[0]})


def test_the_command_that_writes_the_schema_names_what_exists():
    (command,) = blocks("sh")
    code = re.search(r'python -c "(.*)" >', command)
    exec(code[1].replace("print(", "len("), {})
