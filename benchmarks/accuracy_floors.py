"""What measured tables allow at best: every figure of "How near the tables let a prediction come".

`python benchmarks/accuracy_floors.py [DIR]` prints them for the measured runs in DIR, by default
those of `$TRAINWRIGHT_SHARED`; about 20 CPU seconds, most of them to fit one line of software
again for the errors of runs it has not seen. `docs/accuracy.md` says what the figures mean.
"""

from __future__ import annotations

import math
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

from accuracy_bounds import repeats_width, single_figure_errors
from accuracy_regret import vtrain_regret
from accuracy_runs import Figures, Tables, jobs_of, memory_error, predicted_s, regret_of, time_error
from fit_calibrations import STAGED_MEMORY_PRIORS

from trainwright.lab.fitting import fit, fold_of
from trainwright.lab.run_shapes import line_of
from trainwright.lab.scores import Quality, median_of, quality_of
from trainwright.lab.staged import DEFAULTS as STAGED_DEFAULTS
from trainwright.lab.staged import stage_peaks_bytes, staged_constants
from trainwright.lab.validate import Outcome
from trainwright.plans.measured_run import MeasuredRun
from trainwright.profile.measured_layers import MeasuredLayers
from trainwright.units import GIB


def gh200_memory(tables: Tables) -> Figures:
    found = tables.outcomes("sailor_gh200")
    alike: dict[object, list[Outcome]] = defaultdict(list)
    for outcome in found:
        alike[_seen_by_memory(outcome.run)].append(outcome)
    pairs = [group for group in alike.values() if len(group) > 1]
    lost = [sum(single_figure_errors([_peak(o) for o in group])) for group in pairs]
    errors = {o.run.row_id: abs(memory_error(o)) for o in found}
    worst = max(found, key=lambda o: abs(memory_error(o)))
    twin = next(o for group in pairs if worst in group for o in group if o is not worst)
    like_worst = [o for o in found if o.run.data == worst.run.data and o is not worst]
    left_out = _memory_left_out(found, tables.layers)
    stages = stage_peaks_bytes(worst.run, tables.layers, staged_constants(worst.run, tables.known))
    without = worst.run.row_id
    return {
        "plans": len(found),
        "pairs that no column of memory tells apart": len(pairs),
        "floor of the pairs, %": 100 * sum(lost) / len(found),
        "of it the largest pair, %": 100 * max(lost) / len(found),
        "that pair, GiB, lower": _peak(worst) / GIB,
        "that pair, GiB, higher": _peak(twin) / GIB,
        "reached, mean, %": 100 * mean(errors.values()),
        "reached, median, %": 100 * median(errors.values()),
        "reached without the worst plan, mean, %": 100 * _without(errors, without),
        "layouts left out, mean, %": 100 * mean(left_out.values()),
        "layouts left out, without the worst plan, mean, %": 100 * _without(left_out, without),
        "other plans of as many replicas, largest, %": 100
        * max(abs(memory_error(o)) for o in like_worst),
        **{f"worst plan, stage {i}, GiB": peak / GIB for i, peak in enumerate(stages)},
    }


def _seen_by_memory(run: MeasuredRun) -> tuple[object, ...]:
    """What a device's memory depends on: neither replicas nor the length of the step."""
    assert run.global_batch is not None and run.microbatch_size is not None
    in_flight = min(run.pipeline, run.global_batch // (run.microbatch_size * run.data))
    split = run.setting("layers_per_stage")
    return (run.model, run.tensor, run.pipeline, split, run.microbatch_size, in_flight)


def _peak(outcome: Outcome) -> float:
    return median_of([run.peak_memory_bytes for run in outcome.runs]) or math.nan


def _without(errors: Mapping[str, float], row: str) -> float:
    return mean(error for name, error in errors.items() if name != row)


def _memory_left_out(found: Sequence[Outcome], layers: MeasuredLayers) -> dict[str, float]:
    """Errors of each plan under constants fitted without the rows of its layout."""
    rows = [run for outcome in found for run in outcome.runs]

    def peak(run: MeasuredRun, values: Mapping[str, float]) -> float:
        return max(stage_peaks_bytes(run, layers, {**STAGED_DEFAULTS, **values}))

    errors = {}
    for outcome in found:
        rest = [run for run in rows if run.layout != outcome.run.layout]

        def residuals(
            values: Mapping[str, float], rest: Sequence[MeasuredRun] = rest
        ) -> list[float]:
            return [math.log(peak(r, values) / (r.peak_memory_bytes or 1.0)) for r in rest]

        fitted = fit(residuals, STAGED_MEMORY_PRIORS)
        values = {c.name: c.value for c in fitted.constants}
        errors[outcome.run.row_id] = abs(peak(outcome.run, values) / _peak(outcome) - 1)
    return errors


def megatron_memory(tables: Tables) -> Figures:
    found = [o for o in tables.outcomes("megatron_ci") if quality_of(o.runs) is Quality.RECORDED]
    figures: Figures = {}
    for kind in ("static", "peak"):
        name = f"{kind}_memory_bytes"
        known = [o for o in found if any(getattr(run, name) is not None for run in o.runs)]
        folds: dict[int, list[float]] = defaultdict(list)
        for outcome in known:
            folds[fold_of(outcome.run)].append(abs(memory_error(outcome, name)))
        every = [error for fold in folds.values() for error in fold]
        means = sorted(mean(fold) for fold in folds.values())
        figures |= {
            f"{kind}, groups": len(every),
            f"{kind}, mean, %": 100 * mean(every),
            f"{kind}, median, %": 100 * median(every),
            f"{kind}, folds of layouts above 1 %": sum(each > 0.01 for each in means),
            f"{kind}, least fold, %": 100 * means[0],
            f"{kind}, worst fold, %": 100 * means[-1],
            f"{kind}, least median of a fold, %": 100 * min(map(median, folds.values())),
            f"{kind}, largest median of a fold, %": 100 * max(map(median, folds.values())),
        }
    return figures


def widths(tables: Tables) -> Figures:
    figures: Figures = {}
    for name in ("sailor_gh200", "nemo_releases", "megatron_ci"):
        repeats = [
            [run.step_time_s for run in o.runs if run.step_time_s is not None]
            for o in tables.outcomes(name)
        ]
        figures[f"{name}, filled by repeats alone, %"] = 100 * repeats_width(repeats)
    titan = tables.outcomes("torchtitan")
    longest = max(titan, key=lambda o: o.run.sequence_length)
    figures["torchtitan, longest sequence, tokens"] = longest.run.sequence_length
    figures["torchtitan, its step against the prediction, %"] = 100 * (
        1 / (1 + time_error(longest)) - 1
    )
    figures["sailor_mixed, largest share of a step in its reduction, %"] = 100 * max(
        (run.number("grad_reduce_time_s") or 0.0) / (run.step_time_s or math.nan)
        for run in tables.runs("sailor_mixed")
    )
    return figures


def all_jobs(tables: Tables) -> Figures:
    found = [o for path in sorted(tables.folder.glob("*.csv")) for o in tables.outcomes(path.stem)]
    by_release = [
        replace(outcome, runs=tuple(run for run in outcome.runs if _release(run) == release))
        for outcome in found
        for release in sorted({_release(run) for run in outcome.runs})
    ]

    def job(outcome: Outcome) -> tuple[object, ...]:
        run = outcome.run
        batch = run.sequence_length, run.global_batch
        return run.table, run.model, run.accelerator, run.num_devices, *batch, line_of(run).name

    kinds = {
        "format and release fixed": jobs_of(
            by_release, lambda o: (job(o), o.run.precision, _release(o.run))
        ),
        "release alone fixed": jobs_of(by_release, lambda o: (job(o), _release(o.run))),
        "neither fixed": jobs_of(found, job),
    }
    figures: Figures = {}
    for kind, jobs in kinds.items():
        figures[f"jobs, {kind}"] = len(jobs)
        figures[f"regret, {kind}, mean, %"] = 100 * mean(regret_of(j, predicted_s) for j in jobs)
    return figures


def _release(run: MeasuredRun) -> str:
    return run.setting("release") or ""


PARTS: dict[str, Callable[[Tables], Figures]] = {
    "GH200, memory": gh200_memory,
    "vTrain, regret": vtrain_regret,
    "Memory of Megatron tests": megatron_memory,
    "Widths of ranges": widths,
    "Regret over all tables": all_jobs,
}


def main(folder: Path) -> None:
    tables = Tables(folder)
    for title, part in PARTS.items():
        print(f"## {title}\n\n| figure | value |\n|---|--:|")
        for name, value in part(tables).items():
            print(f"| {name} | {value:.{0 if value == round(value) else 1}f} |")
        print()


if __name__ == "__main__":
    shared = Path(os.environ.get("TRAINWRIGHT_SHARED", "../shared")) / "data" / "measured"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else shared)
