"""Rows that state too little, too much or nonsense are counted or refused, whatever they hold."""

from __future__ import annotations

import csv
import tempfile
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.commands.validate import validate
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.measured_csv import MeasuredRun
from trainwright.lab.validate import DEFAULTS, predict_staged
from trainwright.profile.measured_model import MeasuredLayers

EXAMPLE = Path(__file__).parents[2] / "examples" / "measured" / "korthikanti.csv"
ODD = ("", "0", "1", "3", "7", "-1", "1.5", "x", "nan", "1e30", "999999999", "full", "Ω")

SETTINGS = {"stage_replicas": "D x1:tp2,D x1:tp2/D x1:tp2,D x1:tp2", "layers_per_stage": "2|2"}
STAGED = MeasuredRun(
    row_id="a",
    table="made",
    model="m",
    accelerator="D",
    num_devices=8,
    devices_per_node=2,
    tensor=2,
    pipeline=2,
    data=2,
    sequence_length=16,
    global_batch=16,
    microbatch_size=2,
    hidden_size=8,
    num_heads=4,
    vocabulary_size=100,
    settings=MappingProxyType(SETTINGS),
)
LAYERS = MeasuredLayers(
    times_s={("m", "D ", 2, 2): ((1e-3, 2e-3, 1e-4),) * 4},
    sizes={("m", 2): ((100.0, 10.0, 50.0),) * 4},
)


def staged(run: MeasuredRun, **settings: str) -> float:
    given = replace(run, settings=MappingProxyType({**run.settings, **settings}))
    return predict_staged(given, LAYERS, DEFAULTS).step_time_s


def test_a_run_whose_stages_are_stated_is_priced() -> None:
    assert staged(STAGED) > (4 + 1) * 2 * 3e-3


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"layers_per_stage": "2|3"}, 'layers per stage "2|3" do not add up to 4'),
        ({"layers_per_stage": "4|0"}, 'layers per stage "4|0" do not add up to 4'),
        ({"layers_per_stage": "2|x"}, 'layers per stage "2|x" do not add up to 4'),
        ({"layers_per_stage": ""}, 'layers per stage "" do not add up to 4'),
        ({"layers_per_stage": "4"}, "layers and replicas are stated of different numbers"),
        ({"stage_replicas": "D x1/D x1"}, 'stage replica "D x1" is not TYPExCOUNT:tpN'),
        ({"stage_replicas": "D x1:tp0/D x1:tp2"}, 'stage replica "D x1:tp0" is not'),
        ({"stage_replicas": "E x1:tp2/E x1:tp2"}, "no layer profile of m on E"),
    ],
)
def test_stages_that_do_not_add_up_are_a_reason(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(UnsupportedFeature, match=reason.replace("|", r"\|")):
        staged(STAGED, **settings)


@pytest.mark.parametrize("size", [None, 3, 64])
def test_microbatches_that_do_not_divide_are_a_reason(size: int | None) -> None:
    with pytest.raises(UnsupportedFeature, match="microbatches"):
        staged(replace(STAGED, microbatch_size=size))


with EXAMPLE.open(newline="") as table:
    ROWS = list(csv.DictReader(table))
cells = st.tuples(st.sampled_from(list(ROWS[0])), st.sampled_from(ODD))


@cases(25)
@given(st.tuples(*(cells for _ in ROWS)))
def test_any_cell_may_hold_anything(changes: tuple[tuple[str, str], ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with (Path(folder) / EXAMPLE.name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(ROWS[0]))
            writer.writeheader()
            writer.writerows(
                {**row, column: cell} for row, (column, cell) in zip(ROWS, changes, strict=True)
            )
        try:
            (dataset,) = validate(folder).document.datasets
        except InvalidInput as error:
            assert all(fault.path.startswith("line ") for fault in error.faults)
            return
    skipped = sum(reason.rows for reason in dataset.skipped)
    assert dataset.rows == dataset.modelled + skipped == len(ROWS)


def test_a_part_of_a_table_is_predicted_as_in_the_whole(tmp_path: Path) -> None:
    header, *lines = EXAMPLE.read_text().splitlines()
    (whole,) = validate(EXAMPLE.parent).document.datasets
    for index, line in enumerate(lines):
        (tmp_path / EXAMPLE.name).write_text(f"{header}\n{line}\n")
        (part,) = validate(tmp_path).document.datasets
        assert part.runs == (whole.runs[index],)
