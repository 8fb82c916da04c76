"""`codesign` in Python: documents, rechecks, refusals."""

from __future__ import annotations

import copy
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.chips.tables import sensitivity_table
from trainwright.commands.codesign import Extras, cluster_of, plan_on_chip, recheck_document
from trainwright.errors import CheckFailed, InvalidInput
from trainwright.execution import Budget
from trainwright.formats.catalog import open_cluster
from trainwright.plans.status import Status

BARE = Extras(pareto=False, details=False)
SMALL = {"glb_mib": (8, 32), "width": (32, 128), "depth": (32, 128)}


def small(**options: object) -> trainwright.CodesignReport:
    given: dict[str, object] = {
        "devices": 64,
        "global_batch": 256,
        "ranges": SMALL,
        "schedule": ("1f1b",),
    }
    return trainwright.codesign("bert-large", **(given | options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def report() -> trainwright.CodesignReport:
    return small()


@pytest.mark.slow
def test_a_document_says_what_was_found_and_how_much_is_proved(
    report: trainwright.CodesignReport,
) -> None:
    found = report.to_dict()
    assert found["status"] == "optimal"
    assert found["candidates"] == found["visited"] + found["pruned"]
    best = found["best"]
    assert set(best) >= {
        "architecture",
        "plan",
        "tokens_per_s",
        "area_mm2",
        "power_watts",
        "energy_per_token_j",
    }
    plan = best["plan"]
    degrees = plan["tensor_parallel"] * plan["data_parallel"] * plan["pipeline_parallel"]
    assert degrees == plan["num_devices"] <= 64
    assert best["area_scope"] == "cores+buffers"
    assert best["area_mm2"] <= 278.83
    per_token = best["power_watts"] * 64 / best["tokens_per_s"]
    assert per_token == pytest.approx(best["energy_per_token_j"])
    assert {"tokens_per_s", "area_mm2", "power_watts"} <= set(found["pareto"][0])
    assert max(p["tokens_per_s"] for p in found["pareto"]) == best["tokens_per_s"]
    json.loads(report.to_json())


def test_details_say_what_limits_the_design(report: trainwright.CodesignReport) -> None:
    found = report.document
    assert sum(use.share for use in found.operators) == pytest.approx(1.0)
    assert all(0 <= use.utilisation <= 1 for use in found.operators)
    bounds = {use.bound for use in found.operators}
    assert bounds <= {"mac", "glb", "hbm", "vector", "launch"}
    gains = {gain.resource: gain.throughput_gain for gain in found.sensitivity}
    shown = {row[0].text: row[2].value for row in sensitivity_table(found).rows}
    whole = gains["surroundings"]
    assert list(shown)[5:7] == ["their interplay", "all of these at once"]
    assert sum(list(shown.values())[:6]) == pytest.approx(whole)
    assert whole >= max(list(shown.values())[:5])
    assert gains["clock_hz"] > 0
    assert all(gain >= -1e-12 for gain in gains.values())
    assert {chip.name for chip in found.real_chips} >= {"A100-80GB-SXM", "TPU-v4"}
    (fixed,) = found.fixed_strategies
    assert (fixed.feasible, fixed.reason) == (False, "needs 1024 devices")
    assert "best design" in report.explain()


@pytest.mark.slow
def test_a_published_strategy_is_never_faster_than_the_optimum() -> None:
    found = small(devices=1024, global_batch=4096, extras=Extras(pareto=False)).document
    (fixed,) = found.fixed_strategies
    assert found.best is not None
    assert fixed.step_time_s is not None
    assert fixed.step_time_s >= found.best.plan.step_time_s
    assert (fixed.pipeline_parallel, fixed.data_parallel, fixed.tensor_parallel) == (8, 128, 1)


def test_a_strategy_out_of_memory_leaves_the_optimum() -> None:
    found = trainwright.codesign(
        "gpt2-xl",
        devices=1024,
        global_batch=4096,
        memory=["2GiB"],
        ranges=SMALL,
        schedule=("1f1b",),
        extras=Extras(pareto=False),
    ).document
    (fixed,) = found.fixed_strategies
    assert found.status is Status.OPTIMAL
    if not fixed.feasible:
        assert fixed.reason == "out of memory"


@pytest.mark.slow
def test_a_saved_document_proves_itself_again(
    report: trainwright.CodesignReport, tmp_path: Path
) -> None:
    path = tmp_path / "chip.json"
    report.save(path)
    again = recheck_document(path, sample=50, seed=1, budget=Budget()).document
    assert again.recheck is not None
    assert again.recheck.confirmed == again.recheck.sampled > 0
    assert again.recheck.figures > 100
    whole = json.loads(path.read_text())

    def refused(message: str, change: Callable[[dict[str, Any]], None]) -> None:
        edited = copy.deepcopy(whole)
        change(edited)
        path.write_text(json.dumps(edited))
        with pytest.raises(CheckFailed, match=message):
            recheck_document(path, sample=5, seed=1, budget=Budget())

    says = ": the document says .*, its request gives "
    refused("best.objective" + says, lambda d: d["best"].update(objective=0.9))
    refused("best.power_watts" + says, lambda d: d["best"].update(power_watts=1.0))
    refused(
        r"real_chips\[0\].power_watts" + says, lambda d: d["real_chips"][0].update(power_watts=1.0)
    )
    refused(
        r"pareto\[0\].area_mm2.*; 1 more differ: hypervolume",
        lambda d: (d["pareto"][0].update(area_mm2=1.0), d.update(hypervolume=0.5)),
    )


def test_every_design_is_a_row_of_the_csv(tmp_path: Path) -> None:
    path = tmp_path / "designs.csv"
    found = small(extras=Extras(csv=path, details=False)).document
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == found.candidates
    assert found.best is not None
    assert min(float(row["objective"]) for row in rows) == found.best.objective
    assert all(float(row["bound"]) <= float(row["objective"]) for row in rows)
    assert sum(row["ended_by"] == "placement" for row in rows) == found.visited


def test_several_models_share_a_chip() -> None:
    found = trainwright.codesign(
        ["bert-large", "gpt2-xl"],
        devices=64,
        ranges=SMALL,
        schedule=("1f1b",),
        extras=BARE,
    ).document
    assert found.best is not None
    assert [plan.model for plan in found.best.plans] == ["bert-large", "gpt2-xl"]
    assert found.objective == "geometric"


@pytest.mark.slow
def test_memory_links_clock_and_microbatch_can_be_chosen() -> None:
    found = small(
        memory=["16GiB", "80GiB"],
        memory_bandwidth=[1e12, "2TB/s"],
        link_bandwidth=["100GB/s", "300GB/s"],
        clock=[1.05e9, 1.4e9],
        micro_batch=(1, 2),
        schedule=("1f1b",),
        extras=BARE,
    ).document
    assert found.searched == 32 * found.candidates
    assert found.best is not None
    around = found.best.architecture.surroundings
    assert around.clock_hz == 1.4e9
    assert around.memory_bandwidth_bytes_per_s == 2e12


def test_what_does_not_fit_is_infeasible_with_the_shortfall() -> None:
    found = trainwright.codesign("gpt3-175b", devices=8, memory=["16GiB"]).document
    assert found.status is Status.INFEASIBLE
    assert found.infeasible_because is not None
    assert "gpt3-175b needs at least" in found.infeasible_because


def test_a_limit_below_what_chips_draw_at_rest_opens_no_design() -> None:
    found = small(extras=BARE, tdp=1.0).document
    assert found.status is Status.INFEASIBLE
    assert "stays within 1 W on average" in (found.infeasible_because or "")
    assert found.visited == 0
    assert found.pruned_by["power"] == found.candidates


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "fastest"}, "objective"),
        ({"recompute": ("some",)}, "recompute"),
        ({"weights": (1.0, 2.0)}, "weights"),
        ({"energy": {"coal": 1.0}}, "energy"),
        ({"ranges": {"cores": (1,)}}, "ranges"),
        ({"max_area": 1e-6}, "space"),
        ({"max_area": 0.0}, "max-area"),
        ({"devices": 0}, "devices"),
        ({"global_batch": 5, "micro_batch": (2,)}, "global_batch"),
    ],
)
def test_requests_without_sense_are_refused_by_name(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        small(**options)


def test_formats_stacks_and_schedules_can_be_chosen() -> None:
    found = small(
        precision=("bf16", "fp8"),
        stacks=(1, 2),
        stack_area=12.0,
        stack_memory="8GiB",
        schedule=("1f1b", "v-half"),
        tdp=1e4,
        extras=BARE,
    ).document
    assert found.best is not None
    assert found.best.architecture.precision == "fp8"
    around = found.best.architecture.surroundings
    assert around.interface_mm2 in (12.0, 24.0)
    assert around.memory_bytes == around.interface_mm2 / 12 * 8 * 2**30
    parts = found.best.area_parts_mm2
    assert sum(parts.values()) == pytest.approx(found.best.area_mm2, rel=1e-12)
    assert parts["interfaces"] == around.interface_mm2
    assert found.searched == 4 * found.candidates == found.visited + found.pruned


@pytest.mark.slow
def test_a_limit_of_power_and_an_end_of_a_range_are_said() -> None:
    free = small(extras=Extras(pareto=False)).document
    assert free.best is not None
    watts = free.best.power_watts * 1.02  # a tenth more clock takes more
    found = small(extras=Extras(pareto=False), tdp=watts).document
    gains = {gain.resource: gain for gain in found.sensitivity}
    assert not gains["clock_hz"].fits
    assert gains["clock_hz"].throughput_gain > 0
    rows = {str(row[0].text): str(row[3].text) for row in sensitivity_table(found).rows}
    assert rows["clock"] == "over --tdp"
    assert rows["their interplay"] == ""
    assert found.best is not None
    ends = {end.axis: end for end in found.at_ends}
    chip = found.best.architecture
    for axis, value in (("glb_mib", chip.glb_bytes / 2**20), ("width", chip.width)):
        assert (axis in ends) == (value in SMALL[axis])
        assert ends[axis].widen == f"--set ranges.{axis}=[...]"


def test_a_die_beyond_the_reticle_warns_and_the_reticle_is_settable() -> None:
    assert not small(extras=BARE).document.warnings
    found = small(extras=BARE, figures={"die.reticle_mm2": 50}).document
    (warning,) = found.warnings
    assert "is larger than one exposure covers (50 mm2, die.reticle_mm2)" in warning


def test_a_faster_clock_costs_watts() -> None:
    slow, fast = (
        small(extras=BARE, clock=[hz], ranges={**SMALL, "num_tc": (8,)}).document.best
        for hz in (1.05e9, 1.4e9)
    )
    assert slow is not None
    assert fast is not None
    assert fast.peak_power_watts is not None
    assert slow.peak_power_watts is not None
    assert fast.peak_power_watts > slow.peak_power_watts * 1.4 / 1.05
    with pytest.raises(InvalidInput, match=r"clock: must be at most 1.6"):
        small(extras=BARE, clock=[1.8e9])


def test_stacks_settle_the_memory() -> None:
    with pytest.raises(InvalidInput, match="stacks settle memory"):
        small(stacks=(1,), memory=["16GiB"])


def _but_time(document: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in document.items() if name != "search_s"}


@pytest.mark.slow
def test_a_given_chip_gets_the_plan_of_the_planner() -> None:
    workload = {"devices": 16, "global_batch": 64, "sequence": 1024}
    for chip in ("dgx-h100", "A100-80GB-SXM", "TPU-v4"):
        found = plan_on_chip("gpt2-xl", chip=chip, **workload)  # type: ignore[arg-type]
        cluster = cluster_of(chip, devices=16, options={})
        want = trainwright.plan(
            "gpt2-xl",
            cluster=cluster,
            framework="any",
            micro_batch=1,
            recompute="none,full",
            **workload,  # type: ignore[arg-type]
        )
        assert found.status in (Status.OPTIMAL, Status.GAP)
        assert _but_time(found.to_dict()) == _but_time(want.to_dict())


def test_the_chip_of_a_document_gets_the_plan_of_the_planner(
    report: trainwright.CodesignReport, tmp_path: Path
) -> None:
    path = tmp_path / "chip.json"
    report.save(path)
    workload = {"devices": 2, "global_batch": 8, "sequence": 512}
    found = plan_on_chip("bert-large", chip=str(path), **workload)  # type: ignore[arg-type]
    want = trainwright.plan(
        "bert-large",
        cluster=path,
        micro_batch=1,
        recompute="none,full",
        framework="any",
        **workload,  # type: ignore[arg-type]
    )
    assert found.status is Status.OPTIMAL
    assert _but_time(found.to_dict()) == _but_time(want.to_dict())
    assert found.to_dict()["assumptions"]["times"].startswith("assumed: operators tiled onto")


@pytest.mark.slow
def test_the_planner_is_no_slower_on_the_chip_than_the_plan_it_was_found_with(
    report: trainwright.CodesignReport, tmp_path: Path
) -> None:
    path = tmp_path / "chip.json"
    report.save(path)
    best = report.document.best
    assert best is not None
    job = {"global_batch": 256, "sequence": 512, "schedule": "1f1b", "cp": 1}
    plan = trainwright.plan("bert-large", cluster=path, **job)  # type: ignore[arg-type]
    assert plan.to_dict()["step_time_s"] <= best.plan.step_time_s


def test_a_flat_network_of_chips_has_as_many_as_were_searched_for(
    report: trainwright.CodesignReport, tmp_path: Path
) -> None:
    path = tmp_path / "chip.json"
    report.save(path)
    with pytest.raises(InvalidInput, match="devices: must be at most the 64 of"):
        plan_on_chip("bert-large", chip=str(path), devices=65, sequence=512)


@pytest.mark.slow
def test_a_document_stands_for_the_chips_of_its_search(tmp_path: Path) -> None:
    path = tmp_path / "chip.json"
    small(devices=10, node_devices=4, global_batch=20, extras=BARE).save(path)
    workload = {"cluster": path, "global_batch": 20, "sequence": 512, "schedule": "1f1b"}
    sizes: tuple[dict[str, int], ...] = ({}, {"devices": 12}, {"nodes": 2})
    made = [trainwright.plan("bert-large", **workload, cp=1, tp=1, **size) for size in sizes]  # type: ignore[arg-type]
    assert [one.to_dict()["request"]["num_devices"] for one in made] == [10, 12, 8]
    used = [
        trainwright.estimate("bert-large", **workload | {"global_batch": 240}, **size)  # type: ignore[arg-type]
        for size in sizes
    ]
    assert [one.to_dict()["devices_used"] for one in used] == [10, 12, 8]


@pytest.mark.slow
@pytest.mark.parametrize("told", [{}, {"tensor_overlap": 0.5, "gradient_overlap": 0.25}])
def test_what_a_search_hid_and_pricing_does_not_is_said(
    told: dict[str, float], tmp_path: Path
) -> None:
    path = tmp_path / "chip.json"
    small(devices=4, global_batch=16, extras=BARE, **told).save(path)
    workload = {"cluster": path, "global_batch": 16, "sequence": 512}
    narrow = {"schedule": "1f1b", "cp": 1}
    said = "hid tensor exchanges under 50% and gradients under 25%"
    for made in (
        trainwright.plan("bert-large", **workload, **narrow),  # type: ignore[arg-type]
        trainwright.estimate("bert-large", **workload, schedule="1f1b"),  # type: ignore[arg-type]
    ):
        assert (said in "; ".join(made.to_dict()["warnings"])) is bool(told)
    job = tmp_path / "job.json"
    job.write_text('{"train_batch_size": 16}', encoding="utf-8")
    made = trainwright.improve(
        source=("deepspeed", job), model="bert-large", cluster=path, sequence=512
    )
    assert (said in "; ".join(made.document.warnings)) is bool(told)


@pytest.mark.parametrize("name", ["chip.json", "chip.txt", "chip"])
def test_a_document_is_known_by_its_content(
    report: trainwright.CodesignReport, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    report.save(path)
    assert open_cluster(str(path)).num_devices == 64


def test_a_file_that_is_neither_says_what_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "chip.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match="must be TOML, or the JSON document of a co-design"):
        open_cluster(str(path))


def test_another_document_is_refused_by_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "plan.txt"
    path.write_text('{"kind": "model-plan"}', encoding="utf-8")
    with pytest.raises(InvalidInput, match=r'request.cluster: is not there: "model-plan"'):
        open_cluster(str(path))


def test_what_cannot_be_read_is_called_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="chip: cannot be read, it is a folder"):
        plan_on_chip("gpt2-xl", chip=str(tmp_path), devices=16, sequence=1024)


def test_a_document_without_a_design_is_no_cluster(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    small(memory=["1MiB"]).save(path)
    with pytest.raises(InvalidInput, match="best: must be there"):
        trainwright.plan("bert-large", cluster=path, global_batch=64, sequence=512)


def test_the_size_of_nodes_and_their_links_are_chosen_with_the_chip() -> None:
    links = ("150GB/s", "900GB/s")
    asked = {"tp": (4,), "extras": BARE, "link_bandwidth": ["50GB/s"]}
    together = small(node_devices=(1, 4), node_bandwidth=links, **asked).document
    assert together.searched == 3 * together.candidates  # a node of one chip has no links inside
    alone = [
        small(node_devices=4, node_bandwidth=inside, **asked).document.best for inside in links
    ]
    alone.append(small(**asked).document.best)
    best = together.best
    assert best is not None
    assert best.objective == min(one.objective for one in alone if one is not None)
    around = best.architecture.surroundings
    assert (around.node_devices, around.node_bandwidth_bytes_per_s) == (4, 900e9)


def test_a_chip_that_is_fixed_has_one_network() -> None:
    with pytest.raises(InvalidInput, match="node-devices: must be a single value"):
        cluster_of("H100-80GB-SXM", devices=16, options={"node_devices": (4, 8)})


@pytest.mark.parametrize("name", ["link_bandwidth", "node_devices"])
def test_the_network_of_a_cluster_is_its_own(name: str) -> None:
    with pytest.raises(InvalidInput, match="has a network of its own"):
        plan_on_chip("gpt2-xl", chip="dgx-h100", devices=16, **{name: 2})  # type: ignore[arg-type]


def test_a_chip_that_is_nowhere_is_named_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match=r'chip: must be a file or one of .* "dgx-h100"'):
        plan_on_chip("gpt2-xl", chip="dgx-h10", devices=16, sequence=1024)


def test_what_searches_for_a_chip_is_refused_where_it_is_given() -> None:
    with pytest.raises(InvalidInput, match="the chip is fixed"):
        plan_on_chip("gpt2-xl", chip="dgx-h100", devices=16, max_area=100.0)
