"""Files that say what chips may be and are made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwright.chips.energy import DEFAULT_ENERGY
from trainwright.chips.space import DieModel
from trainwright.chips.technology import processes, read_technology
from trainwright.commands.main import main
from trainwright.errors import InvalidInput


def written(folder: Path, text: str) -> Path:
    path = folder / "technology.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_process_shrinks_the_die_and_the_energy_of_logic_alone(tmp_path: Path) -> None:
    found = read_technology(written(tmp_path, 'process = "7nm"'))
    made_in = processes()["7nm"]
    assert found.die is not None
    assert found.die.die_area_mm2(100.0) == pytest.approx(100 * made_in.area)
    assert found.energy["mac_j"] == DEFAULT_ENERGY.mac_j * made_in.energy
    assert "memory_byte_j" not in found.energy


def test_newer_processes_are_denser_thriftier_and_dearer() -> None:
    ordered = list(processes().values())
    for name, rises in (("area", False), ("energy", False), ("wafer_price", True)):
        values = [getattr(process, name) for process in ordered]
        assert values == sorted(values, reverse=not rises)


def test_22_nm_is_what_areas_and_energies_are_stated_at(tmp_path: Path) -> None:
    found = read_technology(written(tmp_path, 'process = "22nm"'))
    assert all(getattr(DEFAULT_ENERGY, name) == joules for name, joules in found.energy.items())
    assert found.die is not None
    assert found.die.die_area_mm2(50.0) == 50.0


def test_what_a_file_states_goes_before_its_process(tmp_path: Path) -> None:
    text = 'process = "5nm"\n[energy]\nmac_j = 3e-13\n[die]\nwafer_cost = 1.0'
    found = read_technology(written(tmp_path, text))
    assert found.energy["mac_j"] == 3e-13
    assert found.die is not None
    assert (found.die.wafer_cost, found.die.logic_scale) == (1.0, processes()["5nm"].area)


def test_a_file_without_process_or_die_prices_no_die(tmp_path: Path) -> None:
    found = read_technology(written(tmp_path, "[ranges]\nwidth = [64, 128]"))
    assert (found.die, found.ranges) == (None, {"width": (64, 128)})
    assert read_technology(written(tmp_path, "[die]")).die == DieModel()


@pytest.mark.parametrize("stage", ["--recheck", "--stage"])
def test_a_request_that_lies_in_a_file_takes_no_other(stage: str, tmp_path: Path) -> None:
    path = str(written(tmp_path, 'process = "7nm"'))
    rest = [path] if stage == "--recheck" else ["graph", "bert-base", "--devices", "4"]
    if stage == "--stage":
        rest += ["--artifacts", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main(("codesign", stage, *rest, "--technology", path))
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("process = '9nm'", "process: must be one of 22nm, 16nm, 7nm, 5nm, got '9nm'"),
        ("[ranges]\nwidht = [2]", "ranges.widht: is not a known key"),
        ("[ranges]\nwidth = 2", "ranges.width: must be a list of whole numbers, got 2"),
        ("[energy]\nmac_j = '1'", "energy.mac_j: must be a number, got '1'"),
        ("die = 3", "die: must be a table"),
        ("colour = 3", "colour: is not a known key"),
        ("= 3", "technology: must be TOML"),
    ],
)
def test_a_fault_is_named_by_its_place(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault.replace("[", r"\[")):
        read_technology(written(tmp_path, text))


def test_codesign_takes_ranges_energies_and_a_die_from_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (
        'process = "7nm"\nleast_area_share = 0\n[ranges]\nnum_tc = [4]\nnum_vc = [4]\n'
        "width = [64]\ndepth = [64]\nglb_mib = [4, 8]\n[die]\ninterfaces_mm2 = 60"
    )
    asked = ["codesign", "bert-base", "--devices", "4", "--global-batch", "16", "--no-pareto"]
    path = written(tmp_path, text)
    with pytest.raises(SystemExit) as ended:
        main((*asked, "--schedule", "1f1b", "--technology", str(path), "--json"))
    assert not ended.value.code
    found = json.loads(capfd.readouterr().out)
    best, process = found["best"], processes()["7nm"]
    assert found["request"]["rules"]["num_tc"] == [4]
    assert found["request"]["energy"]["mac_j"] == DEFAULT_ENERGY.mac_j * process.energy
    assert best["die_area_mm2"] == pytest.approx(best["area_mm2"] * process.area + 60)
    assert best["cost_per_good_die"] > 0
