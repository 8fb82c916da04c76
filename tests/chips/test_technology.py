"""Files that say what chips may be and are made of."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from trainwright.chips import space
from trainwright.chips.price import (
    DEFAULT_ENERGY,
    OF_LOGIC,
    USUAL_PROCESS,
    EnergyTable,
    VoltageCurve,
    built_in,
)
from trainwright.chips.request import request_of
from trainwright.chips.room import read_room
from trainwright.chips.space import AreaTable, DieModel, NumberFormat, area_mm2
from trainwright.chips.technology import (
    MemoryKind,
    Process,
    die_of,
    die_over_cores,
    dies,
    every_figure,
    memory_kinds,
    processes,
    read_technology,
)
from trainwright.cluster import Surroundings
from trainwright.commands.main import main
from trainwright.errors import InvalidInput
from trainwright.formats.catalog import accelerators


def written(folder: Path, text: str) -> Path:
    path = folder / "technology.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_one_process_governs_die_energy_and_voltage(tmp_path: Path) -> None:
    for name in processes():
        found, made_in = (
            read_technology(written(tmp_path, f'process = "{name}"')),
            processes()[name],
        )
        whole = DieModel(**found.die).die_area_mm2(100.0)
        assert whole == pytest.approx(100 * made_in.area * die_over_cores())
        for event in OF_LOGIC:
            assert found.energy[event] == getattr(made_in, event)
        assert found.energy["memory_byte_j"] == DEFAULT_ENERGY.memory_byte_j
        assert found.curve is not None
        assert (found.curve.volts, found.die["wafer_cost"]) == (made_in.volts, made_in.wafer_price)


def test_without_a_file_it_is_the_usual_process() -> None:
    found = read_technology(None)
    assert (found.process, found.energy) == (USUAL_PROCESS, asdict(DEFAULT_ENERGY))
    assert DieModel(**found.die) == die_of()


def test_newer_processes_are_denser_thriftier_and_dearer() -> None:
    ordered = list(processes().values())
    for name, rises in (("area", False), *((n, False) for n in OF_LOGIC), ("wafer_price", True)):
        values = [getattr(process, name) for process in ordered]
        assert values == sorted(values, reverse=not rises)


def test_what_a_file_states_goes_before_its_process(tmp_path: Path) -> None:
    text = 'process = "5nm"\n[energy]\nmac_j = 3e-13\n[die]\nwafer_cost = 1.0'
    found = read_technology(written(tmp_path, text))
    assert found.energy["mac_j"] == 3e-13
    assert (found.die["wafer_cost"], found.die["logic_scale"]) == (1.0, processes()["5nm"].area)


def test_a_single_figure_goes_before_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[memories.hbm3]\nstack_price = 1.0\nstack_gib = 12")
    found = read_technology(path, {"memories.hbm3.stack_price": 250, "process": "5nm"})
    assert found.memories["hbm3"].stack_price == 250
    assert found.memories["hbm3"].stack_gib == 12
    assert found.process == "5nm"
    with pytest.raises(InvalidInput, match='"process" is none'):
        read_technology(None, {"process": "5nm", "process.area": 1})


def test_a_new_process_memory_and_package_need_all_their_figures(tmp_path: Path) -> None:
    figures = "\n".join(f"{f.name} = 1.0" for f in fields(Process))
    text = 'process = "2nm"\nmemory = "hbm4"\npackage = "bath"\n[packages]\nbath = 3000\n'
    text += "[memories.hbm4]\nstack_gib = 48\nstack_bytes_per_s = 2e12\nstack_price = 500\n"
    text += f"stack_watts = 40\n[voltages]\nleast_volts = 0.9\n[processes.2nm]\n{figures}"
    found = read_technology(written(tmp_path, text))
    assert found.made_in == Process(**{f.name: 1.0 for f in fields(Process)})
    assert found.memories["hbm4"].stack_gib == 48
    assert found.package_watts == 3000
    with pytest.raises(InvalidInput, match=r"processes\.2nm: is new, so it must also have volts"):
        read_technology(None, {"processes.2nm.area": 0.1})


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def test_every_figure_is_settable_and_part_of_the_document() -> None:
    """Each leaf of the tree, set alone, changes what a request of chips or of a room embeds."""
    chips = {"devices": 8, "global_batch": 8, "sequence": 128, "tp": (1,)}

    def embedded(figures: Mapping[str, Any]) -> str:
        memory = next((n.split(".")[1] for n in figures if n.startswith("memories.")), "hbm2e")
        process = next((n.split(".")[1] for n in figures if n.startswith("processes.")), "7nm")
        package = next((n.split(".")[1] for n in figures if n.startswith("packages.")), "air")
        chosen = {"memory": memory, "process": process, "package": package, **figures}
        made_of = read_technology(None, chosen)
        options = {**chips, "technology": made_of, "stacks": (1,)}
        request, _ = request_of("bert-base", devices=8, options=options)
        return str(request) + str(read_room(None, devices=8, made_of=made_of))

    for name, value in leaves(every_figure()):
        usual = embedded({name: value} if name.split(".")[0] in ("memories", "processes") else {})
        if name == "room.memory":
            changed: Any = "hbm3e"
        elif name == "room.topology":
            changed = ["switch"]
        elif isinstance(value, (list, tuple)):
            changed = [*value[:-1], 1.5 * value[-1]] if name.startswith("areas") else [2]
        elif name == "die.reticle_mm2" or value > 1:
            changed = value * 0.99
        else:
            changed = value * 0.99 if value else 0.5
        if name.startswith("packages."):
            usual = embedded({name: value})
        assert embedded({name: changed}) != usual, name


def test_the_tree_has_every_field_of_every_table() -> None:
    tree = every_figure()
    held = {
        "processes": Process,
        "memories": MemoryKind,
        "formats": NumberFormat,
        "areas": AreaTable,
        "energy": EnergyTable,
        "die": DieModel,
        "voltages": VoltageCurve,
    }
    for name, kind in held.items():
        wanted = {f.name for f in fields(kind)} - ({"volts"} if name == "voltages" else set())
        each = tree[name].values() if name in ("processes", "memories", "formats") else [tree[name]]
        assert all(set(one) == wanted for one in each), name
    # What of the surroundings has no option of its own, loses nothing and is no choice.
    optional = {"clock_hz", "memory_bytes", "memory_bandwidth_bytes_per_s", "node_devices"}
    optional |= {"link_bandwidth_bytes_per_s", "node_bandwidth_bytes_per_s", "interface_mm2"}
    optional |= {"tensor_overlap", "gradient_overlap", "glb_bytes_per_cycle"}
    lost = {"link_efficiency", "node_efficiency", "efficiency"}  # of --software and --like
    assert {f.name for f in fields(Surroundings)} - optional - lost == set(tree["surroundings"])
    assert set(built_in()) - {"chips"} <= set(tree)


# Numbers that the code of the chip rooms has beside the tree, with what they are.
BESIDE_THE_TREE = {
    "price._WAY": "geometry of a square",
    "price.SAFE": "room for rounding",
    "space.TC_UM2_PER_MAC": "areas.um2_per_mac",
    "space.VC_UM2_PER_LANE": "areas.um2_per_lane",
    "space.CORE_BUFFER_UM2": "areas.core_buffer_um2",
    "space.GLB_UM2": "areas.glb_um2",
    "space.NUMBER_FORMATS": "formats",
    "space._PUBLISHED": "a slice of names",
    "space.BUCKET_UM2": "step of the published visiting order",
    "space.UM2_PER_MM2": "unit",
    "room._GB": "unit",
    "room._LARGEST": "limit of all axes and prices",
    "room._SHARE": "limit of a share",
    "room._VALUES": "limit of oversubscription, and how many values a list has",
    "technology._FIGURES": "how many values a list has",
    "technology._RANGE": "how many values a list has",
    "request.DEFAULT_GLOBAL_BATCH": "--global-batch",
    "request._ROTARY_SEQUENCE": "--sequence",
    "request._LARGE_MODEL": "--tp",
    "request._LARGE_DEGREES": "--tp",
    "request._DEGREES": "--tp",
}


@pytest.mark.parametrize("module", ["price", "technology", "space", "request", "room"])
def test_no_number_of_technology_hides_in_the_code(module: str) -> None:
    source = (Path(space.__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    numbers = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            found = [c for c in ast.walk(node.value) if isinstance(c, ast.Constant)]
            if any(type(c.value) in (int, float) for c in found):
                numbers.add(f"{module}.{ast.unparse(node.target)}")
    assert numbers <= set(BESIDE_THE_TREE)
    assert {n for n in BESIDE_THE_TREE if n.startswith(f"{module}.")} <= numbers


def test_a_request_that_lies_in_a_file_takes_no_other(tmp_path: Path) -> None:
    path = str(written(tmp_path, 'process = "7nm"'))
    with pytest.raises(SystemExit) as ended:
        main(("codesign", "--recheck", path, "--technology", path))
    assert ended.value.code == 2


def test_a_lower_voltage_is_slower_and_thriftier(tmp_path: Path) -> None:
    made_in = processes()["7nm"]
    found = read_technology(written(tmp_path, 'process = "7nm"\nvoltage = 0.6'))
    assert found.clock_factor == pytest.approx((0.3 / 0.45) ** 1.3 * 0.75 / 0.6)
    assert found.curve is None
    assert found.energy["mac_j"] == pytest.approx(made_in.mac_j * (0.6 / 0.75) ** 2)
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
        (
            "process = '9nm'",
            'process: must be one of 22nm, 16nm, 7nm, 5nm, got "9nm"; did you mean "7nm"',
        ),
        ("voltage = 0.2", "voltage: must be from 0.5 to 1.2 volts, got 0.2"),
        ("package = 'oil'", 'package: must be one of air, liquid, got "oil"'),
        ("[ranges]\nwidht = [2]", "ranges.widht: is not a known key"),
        ("[ranges]\nwidth = 2", "ranges.width: must be a list of whole numbers, got 2"),
        ("[energy]\nmac_j = '1'", "energy.mac_j: must be a number, got '1'"),
        ("die = 3", "die: must be a table"),
        ("colour = 3", "colour: is not a known key"),
        ("= 3", "technology: must be TOML"),
        ("[die]\nreticle_mm2 = 0", "die.reticle_mm2: must be finite and > 0, got 0.0"),
        ("[memories.hbm3]\nstack_gib = -1", "memories.hbm3.stack_gib: must be finite and > 0"),
        ("[memories.hbm3]\nprice = 1", "memories.hbm3.price: is not a known key"),
        ("[areas]\nglb_um2 = 4", "areas.glb_um2: must be a list of numbers, got 4"),
        ("[voltages]\nmost_volts = 0.6", "voltages.most_volts: must rise"),
        ("[packages]\nair = 0", "packages.air: must be a number > 0, got 0"),
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
    assert found["request"]["energy"]["mac_j"] == process.mac_j
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[room]\nstacks = [nan]", "stacks: must be a list of whole numbers > 0, got [nan]"),
        ("[room]\nrooms = [1]", "rooms: is not a known key"),
        ("[prices]\nload = -1", "prices.load: must be a number >= 0, got -1"),
    ],
)
def test_what_a_file_says_of_a_room_is_checked_where_no_room_is_sought(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(written(tmp_path, text))
    with pytest.raises(SystemExit) as ended:
        main(("codesign", "gpt2", "--devices", "8", "--technology", path))
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
