"""The whole command on the shared runs, and its protocol on made ones."""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import pytest

from trainwright.commands.validate import missed_targets, read_targets, validate
from trainwright.errors import InvalidInput

SHARED = os.environ.get("TRAINWRIGHT_SHARED")
needs_runs = pytest.mark.skipif(not SHARED, reason="TRAINWRIGHT_SHARED names no reference data")
SMALL = ("korthikanti", "sailor_mixed")
LARGER = ("megatron_scaling", "sailor_gh200", "simumax_b200")


def measured() -> Path:
    return Path(SHARED or "") / "data" / "measured"


@needs_runs
@pytest.mark.parametrize("files", [SMALL, pytest.param(LARGER, marks=pytest.mark.slow)])
def test_modelled_and_skipped_rows_add_up_to_the_file(files: tuple[str, ...]) -> None:
    document = validate(measured(), files=files).document
    assert {d.name for d in document.datasets} == set(files)
    for dataset in document.datasets:
        with (measured() / f"{dataset.name}.csv").open() as file:
            assert dataset.rows == sum(1 for _ in csv.DictReader(file))
        assert dataset.rows == dataset.modelled + sum(s.rows for s in dataset.skipped)


@pytest.mark.slow
def test_every_row_of_the_newest_performance_table_is_predicted() -> None:
    folder = Path(__file__).parents[2] / "benchmarks" / "newest_runs"
    (dataset,) = validate(folder).document.datasets
    assert (dataset.rows, dataset.modelled, dataset.skipped) == (18, 18, ())
    assert max(abs(run.step_time_s / run.measured_step_time_s - 1) for run in dataset.runs) < 0.5


@needs_runs
@pytest.mark.parametrize("table", ["measured/korthikanti", "measured2/fms_fsdp"])
def test_a_run_is_predicted_alike_under_any_name(tmp_path: Path, table: str) -> None:
    """Nothing is keyed by row, model, config, job or file: other names and order change nothing."""
    path = Path(SHARED or "") / "data" / f"{table}.csv"
    with path.open() as file:
        rows = list(csv.DictReader(file))
    (tmp_path / "models").mkdir()
    if (path.parent / "clusters").is_dir():
        shutil.copytree(path.parent / "clusters", tmp_path / "clusters")
    for index, row in enumerate(rows):
        row["row_id"] = f"other-{index}"
        row["model"] = f"renamed-{row['model']}"
        if row.get("job"):
            row["job"] = f"renamed-{row['job']}"
        if named := row.get("model_config"):
            config = path.parent / "models" / f"{named}.json"
            row["model_config"] = f"renamed-{named}"
            shutil.copy(config, tmp_path / "models" / f"renamed-{named}.json")
    with (tmp_path / "renamed.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(reversed(rows))
    (here,) = validate(path).document.datasets
    (there,) = validate(tmp_path).document.datasets
    assert here.time is not None and there.time is not None
    assert here.modelled == there.modelled == len(rows)
    assert here.time.mape == pytest.approx(there.time.mape, rel=1e-12)
    assert sorted(r.step_time_s or 0 for r in here.runs) == sorted(
        r.step_time_s or 0 for r in there.runs
    )


@needs_runs
def test_without_layer_profiles_the_rows_that_need_them_are_skipped_with_that_reason(
    tmp_path: Path,
) -> None:
    (dataset,) = validate(measured(), profiles=tmp_path, files=("sailor_mixed",)).document.datasets
    assert dataset.modelled == 0
    assert dataset.skipped[0].reason == "no layer profiles were given"


def test_what_fits_with_8_bit_inputs_of_activations_alone_is_taken_to_keep_them(
    tmp_path: Path,
) -> None:
    """MLPerf's LoRA on one B200 a replica, whose configuration says so (FP8_ACT=1)."""
    row = {
        "row_id": "one",
        "model": "llama2-70b",
        "model_config": "catalog:llama2-70b",
        "accelerator": "B200",
        "cluster_hint": "dgx-b200",
        "gpus": 8,
        "gpus_per_node": 8,
        "tp": 1,
        "pp": 1,
        "dp": 8,
        "cp": 1,
        "ep": 1,
        "seq_len": 8192,
        "global_batch_seqs": 8,
        "micro_batch_seqs": 1,
        "zero_stage": 1,
        "precision": "fp8",
        "recompute": "none",
        "software": "nemo",
        "vpp": 1,
        "step_time_s": 1.51395,
        "options": '{"lora_rank": 16, "lora_targets": "query,key,value,attention_output", '
        '"weight_bits": 8}',
    }

    def predicted(name: str, **changed: str) -> tuple[bool | None, tuple[str, ...]]:
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            writer.writeheader()
            writer.writerow(row | changed)
        (dataset,) = validate(tmp_path, files=(name,)).document.datasets
        return dataset.runs[0].fits, dataset.runs[0].assumed

    assert predicted("nemo") == (True, ("activation_input_dtype",))
    assert predicted("bf16", precision="bf16")[0] is False
    assert predicted("torchtitan", software="torchtitan")[0] is False


def test_targets_are_read_and_the_missed_ones_named() -> None:
    rows = Path(__file__).parents[2] / "examples" / "measured"
    document = validate(rows).document
    (missed,) = missed_targets(document, read_targets("korthikanti.time=0.0"))
    assert missed.startswith("korthikanti.time: mean error")
    assert missed_targets(document, read_targets("korthikanti.time=0.9")) == ()
    (unscored,) = missed_targets(document, read_targets("korthikanti.memory=0.9"))
    assert unscored == "korthikanti.memory: not scored"
    with pytest.raises(InvalidInput):
        read_targets("korthikanti.luck=0.9")


def test_repeats_are_collapsed_to_their_median(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "examples" / "measured" / "korthikanti.csv"
    header, first, second = source.read_text().splitlines()
    again = first.replace("table5-1", "table5-3").replace("18.13", "20.13")
    (tmp_path / "korthikanti.csv").write_text("\n".join((header, first, second, again)) + "\n")
    (dataset,) = validate(tmp_path).document.datasets
    assert (dataset.rows, dataset.modelled) == (3, 3)
    assert dataset.time is not None and dataset.time.n == 2
    repeated = next(run for run in dataset.runs if run.repeats == 2)
    assert repeated.measured_step_time_s == pytest.approx(19.13)
    rows = (f"{header},options", f"{first},", f'{again},"{{""dropout"": 0.0}}"')
    (tmp_path / "korthikanti.csv").write_text("\n".join(rows) + "\n")
    (dataset,) = validate(tmp_path).document.datasets
    assert [run.repeats for run in dataset.runs] == [1, 1]


def write_jobs(folder: Path, rows: list[dict[str, str]]) -> None:
    """Variants of the first example row, each changed in some columns."""
    source = Path(__file__).parents[2] / "examples" / "measured" / "korthikanti.csv"
    with source.open() as file:
        first = next(csv.DictReader(file))
    made = [
        {**first, "release": "1", **row, "row_id": f"row-{i}", "step_time_s": f"{18 + i}"}
        for i, row in enumerate(rows)
    ]
    with (folder / "korthikanti.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(made[0]))
        writer.writeheader()
        writer.writerows(made)


def test_a_run_that_ran_is_refused_where_its_device_is_too_small(tmp_path: Path) -> None:
    write_jobs(tmp_path, [{}, {"accelerator": "A100-40GB-SXM", "tp": "1", "dp": "8"}])
    (dataset,) = validate(tmp_path).document.datasets
    assert [run.fits for run in dataset.runs] == [True, False]
    assert dataset.refused == 0.5


@pytest.mark.parametrize(
    ("change", "jobs"), [({}, 1), ({"precision": "bf16"}, 0), ({"release": "2"}, 0)]
)
def test_layouts_are_ranked_within_one_number_format_and_release(
    tmp_path: Path, change: dict[str, str], jobs: int
) -> None:
    layouts: list[dict[str, str]] = [{"vpp": "1"}, {"vpp": "2"}, {"vpp": "3", **change}]
    write_jobs(tmp_path, layouts)
    (dataset,) = validate(tmp_path).document.datasets
    assert (dataset.modelled, dataset.ranked_groups) == (3, jobs)


def test_a_plan_is_ranked_by_its_time_in_the_release_it_is_compared_in(tmp_path: Path) -> None:
    """A faster repeat under a later release does not move the comparison under the first."""
    layouts: list[dict[str, str]] = [{"vpp": "1"}, {"vpp": "2"}, {"vpp": "3"}]
    write_jobs(tmp_path, layouts)
    (alone,) = validate(tmp_path).document.datasets
    later = {"vpp": "3", "release": "2"}
    write_jobs(tmp_path, [*layouts, later])
    (dataset,) = validate(tmp_path).document.datasets
    assert (dataset.rows, dataset.ranked_groups) == (4, 1)
    assert dataset.top1_regret is not None and alone.top1_regret is not None
    assert dataset.top1_regret.mean == alone.top1_regret.mean
    assert max(run.repeats for run in dataset.runs) == 2


def test_a_row_says_how_its_pipeline_ran_and_how_its_tokens_travelled(tmp_path: Path) -> None:
    """As DeepSeek-V3's report describes its run, no constant fitted to it or to its devices."""
    table = Path(__file__).parents[2] / "benchmarks" / "other_runs" / "other_runs.csv"
    with table.open() as file:
        (row,) = (row for row in csv.DictReader(file) if row["model"] == "deepseek-v3")
    once = '{"dispatches_once": true}'
    told = {
        "nothing": {"options": "", "schedule": "1f1b", "vpp": "1", "recompute": ""},
        "sent once": {"options": once, "schedule": "1f1b", "vpp": "1", "recompute": ""},
        "all": {},
    }
    steps = {}
    for name, changes in told.items():
        with (tmp_path / "one.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            writer.writeheader()
            writer.writerow({**row, **changes})
        (dataset,) = validate(tmp_path).document.datasets
        steps[name] = dataset.runs[0].step_time_s
    assert steps["nothing"] > 1.3 * steps["sent once"] > 1.6 * steps["all"]
    assert steps["all"] == pytest.approx(float(row["step_time_s"]), rel=0.1)
