"""Files that say what chips may be and are made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwright.chips.energy import DEFAULT_ENERGY
from trainwright.chips.space import DieModel, area_mm2
from trainwright.chips.technology import (
    die_of,
    die_over_cores,
    dies,
    memory_kinds,
    processes,
    read_technology,
)
from trainwright.commands.main import main
from trainwright.errors import InvalidInput
from trainwright.formats.catalog import accelerators


def written(folder: Path, text: str) -> Path:
    path = folder / "technology.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_process_shrinks_the_die_and_the_energy_of_logic_alone(tmp_path: Path) -> None:
    found = read_technology(written(tmp_path, 'process = "7nm"'))
    made_in = processes()["7nm"]
    assert found.die is not None
    whole = die_of(found.die).die_area_mm2(100.0)
    assert whole == pytest.approx(100 * made_in.area * die_over_cores())
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
    assert die_of({**found.die, "overhead_share": 0.0}).die_area_mm2(50.0) == 50.0


def test_what_a_file_states_goes_before_its_process(tmp_path: Path) -> None:
    text = 'process = "5nm"\n[energy]\nmac_j = 3e-13\n[die]\nwafer_cost = 1.0'
    found = read_technology(written(tmp_path, text))
    assert found.energy["mac_j"] == 3e-13
    assert found.die is not None
    assert (found.die["wafer_cost"], found.die["logic_scale"]) == (1.0, processes()["5nm"].area)


def test_a_file_without_process_or_die_prices_no_die(tmp_path: Path) -> None:
    found = read_technology(written(tmp_path, "[ranges]\nwidth = [64, 128]"))
    assert (found.die, found.ranges) == (None, {"width": (64, 128)})
    assert read_technology(written(tmp_path, "[die]")).die == {}
    assert die_of({}) == DieModel()


def test_a_request_that_lies_in_a_file_takes_no_other(tmp_path: Path) -> None:
    path = str(written(tmp_path, 'process = "7nm"'))
    with pytest.raises(SystemExit) as ended:
        main(("codesign", "--recheck", path, "--technology", path))
    assert ended.value.code == 2


def test_a_lower_voltage_is_slower_and_thriftier(tmp_path: Path) -> None:
    made_in = processes()["7nm"]
    assert made_in.clock_at(made_in.volts) == 1.0
    found = read_technology(written(tmp_path, 'process = "7nm"\nvoltage = 0.6'))
    assert found.clock_factor == pytest.approx((0.3 / 0.45) ** 1.3 * 0.75 / 0.6)
    assert found.energy["mac_j"] == pytest.approx(
        DEFAULT_ENERGY.mac_j * made_in.energy * (0.6 / 0.75) ** 2
    )
    leaks = DEFAULT_ENERGY.leakage_watts_per_mm2 * 0.6 / 0.75
    assert found.energy["leakage_watts_per_mm2"] == pytest.approx(leaks)


def test_dies_of_real_chips_are_ten_times_their_cores_and_buffers() -> None:
    counted = {name: facts for name, facts in dies().items() if facts.cores is not None}
    assert {"A100-80GB-SXM", "H100-80GB-SXM", "TPU-v4"} <= set(counted)
    for facts in counted.values():
        assert facts.process is not None
        assert facts.die_mm2 is not None
        area = area_mm2(facts.cores) * processes()[facts.process].area if facts.cores else 0.0
        assert facts.die_mm2 / area == pytest.approx(die_over_cores(), rel=0.25)
    assert set(dies()) <= set(accelerators())
    assert {facts.process for facts in dies().values()} - {None} <= set(processes())


def test_generations_of_memory_are_faster_and_dearer() -> None:
    for name in ("stack_bytes_per_s", "stack_price", "stack_watts"):
        values = [getattr(kind, name) for kind in memory_kinds().values()]
        assert values == sorted(values)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("process = '9nm'", "process: must be one of 22nm, 16nm, 7nm, 5nm, got '9nm'"),
        ("voltage = 0.2", "voltage: must be a number of volts above 0.3, at most 1.5, got 0.2"),
        ("package = 'oil'", "package: must be one of air, liquid, got 'oil'"),
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
    assert best["die_area_mm2"] == pytest.approx(
        best["area_mm2"] * process.area * die_over_cores() + 60
    )
    assert found["request"]["die"]["interfaces_mm2"] == 60
    rows = {row["name"]: row for row in found["real_chips"]}
    known, unknown = rows["A100-80GB-SXM"], rows["B200"]
    densities = known["tokens_per_s"] / 826, best["tokens_per_s"] / best["die_area_mm2"]
    assert known["ratio_at_equal_process"] == known["ratio_at_equal_area"]  # both are of 7 nm
    assert known["ratio_at_equal_area"] == pytest.approx(densities[0] / densities[1])
    assert not {"die_area_mm2", "ratio_at_equal_area"} & set(unknown)
    assert best["cost_per_good_die"] > 0
