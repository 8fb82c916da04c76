"""Every example of docs/schedule-files.md works."""

from __future__ import annotations

import re
from pathlib import Path

from trainwright.formats.json_text import parse_json
from trainwright.formats.schedule_json import read_orders, read_schedule_spec
from trainwright.scheduling.validate import validate

PAGE = (Path(__file__).parents[2] / "docs" / "schedule-files.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def test_the_json_examples_are_read_by_their_readers():
    spec_text, orders_text = blocks("json")
    spec = read_schedule_spec(parse_json(spec_text.encode()))
    assert spec.placement is not None
    assert spec.placement.is_v
    memory = spec.costs(spec.placement).memory
    assert (memory.delta_bytes.sum(axis=0) == memory.delta_bytes[3]).all(), "F + I + W frees all"
    validate(read_orders(parse_json(orders_text.encode())))


def test_the_python_example_runs():
    (example,) = blocks("python")
    exec(example, {})


def test_the_commands_that_write_the_schemas_name_what_exists():
    (commands,) = blocks("sh")
    codes = re.findall(r'python -c "(.*)" >', commands)
    assert len(codes) == 2
    for code in codes:
        exec(code.replace("print(", "len("), {})
