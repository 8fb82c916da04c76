"""Every example of docs/formats.md works."""

from __future__ import annotations

import re
from pathlib import Path

from trainwright.formats.json_text import parse_json
from trainwright.formats.piper_json import read_piper
from trainwright.formats.profile_json import read_profile
from trainwright.formats.schedule_json import read_orders, read_schedule_spec
from trainwright.options.inputs import detect
from trainwright.scheduling.simulate import validate

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def test_the_examples_are_read_by_their_readers():
    piper, own, placement, spec_text, orders_text = blocks("json")
    value = parse_json(piper.encode())
    assert detect(value) == "piper"
    (profile,) = read_piper(value).profiles
    assert [layer.name for layer in profile.structure.layers] == ["embedding", "head"]
    value = parse_json(own.encode())
    assert detect(value) == "profile"
    (profile,) = read_profile(value).profiles
    assert [layer.layer_class for layer in profile.structure.layers] == [0, 1, 1, 0]
    assert profile.structure.shared_parameters[0].layers == (0, 3)
    assert detect(parse_json(placement.encode())) == "phaze"
    spec = read_schedule_spec(parse_json(spec_text.encode()))
    assert spec.placement is not None
    assert spec.placement.is_v
    memory = spec.costs(spec.placement).memory
    assert (memory.delta_bytes.sum(axis=0) == memory.delta_bytes[3]).all(), "F + I + W frees all"
    validate(read_orders(parse_json(orders_text.encode())))


def test_the_python_examples_run():
    known = {"piper_text": blocks("json")[0]}
    for example in blocks("python"):
        exec(example, known)
