"""Calibrations survive their file, and faults of a file are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.cluster import CONSTANTS, Calibration, Circumstance, Constant, Spread
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.formats.calibration_toml import (
    built_in_calibrations,
    calibrations_text,
    load_calibrations,
    write_calibrations,
)
from trainwright.provenance import Origin

shares = st.floats(min_value=0.05, max_value=0.95).map(lambda x: round(x, 4))


@given(
    st.lists(st.tuples(st.sampled_from(sorted(CONSTANTS)), shares), unique_by=lambda p: p[0]),
    st.text(st.characters(codec="utf-8"), max_size=9),
)
def test_what_is_written_is_read_back(
    tmp_path_factory, pairs: list[tuple[str, float]], text: str
) -> None:
    path = tmp_path_factory.mktemp("made") / "own.toml"
    made = Calibration(
        accelerator="H100-80GB-SXM",
        line=text,
        source=f'{text} "quoted" \\',
        constants=tuple(Constant(name=n, value=v, low=v / 2, high=v) for n, v in pairs),
        low_ratio=0.9,
        high_ratio=1.1,
        rows=2,
        spreads=tuple(
            Spread(when=when, low_ratio=0.8, high_ratio=1.3, rows=7) for when in Circumstance
        ),
    )
    write_calibrations(path, [made])
    (read,) = load_calibrations(path)
    assert (read.line, read.source) == (made.line, made.source)
    assert read.names == made.names
    assert read.spreads == made.spreads
    for here, there in zip(read.constants, made.constants, strict=True):
        assert here.value == pytest.approx(there.value)
    assert calibrations_text([read]) == path.read_text()


def test_every_fault_of_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('[[calibration]]\nline = 3\nspeed = 1\nlow_ratio = "x"\n')
    with pytest.raises(InvalidInput) as caught:
        load_calibrations(path)
    named = {fault.path for fault in caught.value.faults}
    assert {"calibration[0].line", "calibration[0].speed", "calibration[0].low_ratio"} <= named


GOOD = """
[[calibration]]
accelerator = "X"
line = "own"
source = ""
rows = 1
low_ratio = 0.9
high_ratio = 1.1
[calibration.constants]
gemm_max = { value = 0.5, low = 0.4, high = 0.6 }
host_pass_s = 1e-3
"""


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("rows = 1", "rows = nan", "calibration[0].rows: must be finite, got NaN"),
        ("rows = 1", "rows = -1", "calibration[0].rows: must be >= 0, got -1"),
        ("rows = 1", 'rows = "x"', 'calibration[0].rows: must be an integer, got "x" (string)'),
        ("rows = 1", "rows = 1979-05-27", "rows: must be an integer, got 1979-05-27 (date)"),
        ("value = 0.5", "value = nan", '["gemm_max"].value: must be finite, got NaN'),
        ("value = 0.5, low = 0.4", "value = 0, low = 0", "gemm_max: must be in (0, 1], got 0.0"),
        ("low = 0.4", "low = 0.7", "constants.gemm_max: must lie between low and high, got 0.7"),
        ("low = 0.4", "lo = 0.4", "lo: must be a field of this format, did you mean low?"),
        ("= 1e-3", "= inf", '["host_pass_s"].value: must be finite, got Infinity'),
        ("= 1e-3", "= true", '["host_pass_s"].value: must be a number, got true (boolean)'),
        ("= 1e-3", f"= 1{'0' * 400}", 'host_pass_s"].value: must be finite, got 100000000000…'),
        ("gemm_max", "gem_max", "calibration[0].constants.gem_max: must be one of gemm_max"),
        ("= 1.1", "= inf", "calibration[0].high_ratio: must be finite, got Infinity"),
        ("= 1.1", "= 0.9", "low_ratio: must be <= 1, and high_ratio >= 1, got 0.9 and 0.9"),
        ("= 1.1", f"= 1{'0' * 400}", "calibration[0].high_ratio: must be finite, got 1000"),
    ],
)
def test_a_fault_names_place_rule_and_value(old: str, new: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(GOOD)
    assert len(load_calibrations(path)) == 1
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InvalidInput) as caught:
        load_calibrations(path)
    assert fault in str(caught.value)
    assert caught.value.source == str(path)


def test_a_circumstance_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        '[[calibration]]\naccelerator = "X"\nline = "own"\nsource = ""\n'
        "low_ratio = 0.9\nhigh_ratio = 1.1\n"
        '[[calibration.spreads]]\nwhen = "mondays"\nlow_ratio = 0.9\nday = 1\n'
    )
    with pytest.raises(InvalidInput) as caught:
        load_calibrations(path)
    here = "calibration[0].spreads[0]"
    named = {fault.path for fault in caught.value.faults}
    assert named == {f"{here}.when", f"{here}.day", f"{here}.high_ratio"}


def test_a_share_above_its_peak_is_refused() -> None:
    constant = Constant(name="gemm_max", value=1.2, low=1.0, high=1.3)
    with pytest.raises(InvalidInput, match="gemm_max"):
        Calibration(
            accelerator="X",
            line="own",
            source="",
            constants=(constant,),
            low_ratio=0.9,
            high_ratio=1.1,
        )


def test_a_calibrated_cluster_has_the_constants_and_says_where_they_come_from() -> None:
    cluster = catalog.cluster("dgx-a100")
    values = {"gemm_max": 0.6, "scale_up_efficiency": 0.5, "scale_out_efficiency": 0.4}
    made = Calibration(
        accelerator="A100-80GB-SXM",
        line="own",
        source="here",
        constants=tuple(Constant(name=n, value=v, low=v, high=v) for n, v in values.items()),
        low_ratio=0.9,
        high_ratio=1.2,
    )
    found = made.applied(cluster)
    assert found.accelerator.efficiency.gemm.max == 0.6
    assert found.accelerator.efficiency.memory == cluster.accelerator.efficiency.memory
    assert [level.efficiency for level in found.levels] == [0.5, 0.4]
    assert found.accelerator.step_high_ratio == 1.2
    device = found.accelerator
    fitted = {"efficiency.gemm.max", "step_low_ratio", "step_high_ratio"}
    assert {name for name, known in device.sources if known.origin is Origin.FITTED} == fitted
    assert device.provenance_of("efficiency.gemm.max").source == "calibration own, here"
    for kept in ("efficiency.memory.max", "efficiency.attention_forward", "step_overhead_s"):
        assert device.provenance_of(kept) == cluster.accelerator.provenance_of(kept)
    for level, bare in zip(found.levels, cluster.levels, strict=True):
        known, stated = dict(level.sources), dict(bare.sources)
        assert known.pop("efficiency").origin is Origin.FITTED
        stated.pop("efficiency", None)
        assert known == stated


def test_a_constant_left_at_its_prior_is_no_fitted_one() -> None:
    """The llm-foundry runs of one A100 hold no 8-bit products and little host time."""
    (made,) = (
        c
        for c in built_in_calibrations()
        if (c.accelerator, c.line) == ("A100-80GB-SXM", "llm-foundry")
    )
    assert {c.name for c in made.constants if c.is_prior} == {
        "fp8_ratio",
        "host_pass_s",
        "scale_out_efficiency",
    }
    found = made.applied(catalog.cluster("dgx-a100"))
    for name in ("efficiency.fp8_ratio", "host_pass_s"):
        known = found.accelerator.provenance_of(name)
        assert known.origin is Origin.ASSUMED
        assert "llm-foundry, which its runs do not determine" in known.source
    assert dict(found.levels[1].sources)["efficiency"].origin is Origin.ASSUMED
    assert found.accelerator.provenance_of("efficiency.memory.max").origin is Origin.FITTED


@pytest.mark.parametrize("made", built_in_calibrations(), ids=lambda c: f"{c.accelerator}-{c.line}")
def test_each_built_in_line_marks_what_it_fitted_and_nothing_else(made: Calibration) -> None:
    found = made.applied(catalog.cluster("dgx-h100"))
    sources = {
        **dict(found.accelerator.sources),
        **{f"up.{k}": v for k, v in found.levels[0].sources},
        **{f"out.{k}": v for k, v in found.levels[1].sources},
    }
    fitted = {name for name, known in sources.items() if known.origin is Origin.FITTED}
    wanted = {c.name for c in made.fitted}
    assert len(fitted) == len(wanted) + 2  # and both ends of the range
    named = found.accelerator.provenance_of("step_low_ratio").source
    assert f"calibration {made.line} (" in named
    assert all(name in named for name in wanted)


def test_built_in_constants_are_of_accelerators_and_lines_named_once() -> None:
    keys = [(c.accelerator, c.line) for c in built_in_calibrations()]
    assert len(keys) == len(set(keys)) >= 10
    for made in built_in_calibrations():
        assert made.rows > 0 and made.source
        assert all(c.low <= c.value <= c.high for c in made.constants)
