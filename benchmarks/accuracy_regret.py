"""Why one job of vTrain is ranked wrong, and how much of that is luck."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mean

from accuracy_bounds import perfect_regrets, smooth_floor
from accuracy_runs import Figures, Tables, jobs_of, measured_s, predicted_s, regret_of, time_error
from fit_calibrations import APART, CONSTANTS, DEFAULTS, collapsed

from trainwright.lab.fitting import answer, fit_line, prior_of
from trainwright.lab.run_shapes import Known, cluster_of, config_of, line_of
from trainwright.lab.validate import Outcome
from trainwright.plans.measured_run import MeasuredRun
from trainwright.step.account import circumstances

DRAWS = 20_000
SEED = 1
OUTLIER = 0.10  # log errors beyond this are left out of the second drawing


def vtrain_regret(tables: Tables) -> Figures:
    found = tables.outcomes("vtrain_multi")
    jobs = jobs_of(found, lambda o: (o.run.model, o.run.num_devices, o.run.global_batch))
    wrong = max(jobs, key=lambda plans: regret_of(plans, predicted_s))
    pick, best = min(wrong, key=predicted_s), min(wrong, key=lambda o: measured_s(o) or math.nan)
    same = sorted(
        (o for o in wrong if _degrees(o.run) == _degrees(pick.run)),
        key=lambda o: o.run.microbatch_size or 0,
    )
    filling: dict[object, list[Outcome]] = defaultdict(list)
    for outcome in wrong:
        if outcome.run.tensor * outcome.run.context >= (outcome.run.devices_per_node):
            filling[_degrees(outcome.run)].append(outcome)
    filled = [_smooth(plans) for plans in filling.values()]
    return {
        "jobs": len(jobs),
        "ranked wrong": sum(regret_of(plans, predicted_s) > 0.01 for plans in jobs),
        "regret, mean, %": 100 * mean(regret_of(plans, predicted_s) for plans in jobs),
        "regret of the middle of the range, mean, %": 100
        * mean(regret_of(plans, _middle) for plans in jobs),
        "fastest against picked, %": 100 * (_ratio(pick, best) - 1),
        "block passes one after the other, picked": _passes(pick.run),
        "block passes one after the other, fastest": _passes(best.run),
        **{
            f"picked layout, microbatch {o.run.microbatch_size}, error, %": 100 * time_error(o)
            for o in same
        },
        **{
            f"picked layout, microbatch {b.run.microbatch_size} against "
            f"{a.run.microbatch_size}, %": 100 * (_ratio(b, a) - 1)
            for a, b in pairwise(same)
        },
        "picked layout, least error of a + bx + c/x, %": 100 * _smooth(same),
        "layouts that fill nodes, the same, least, %": 100 * min(filled),
        "layouts that fill nodes, the same, most, %": 100 * max(filled),
        **_luck(tables, found, jobs),
    }


def _luck(tables: Tables, found: Sequence[Outcome], jobs: Sequence[Sequence[Outcome]]) -> Figures:
    """The regret of a perfect predictor where runs scatter as unseen errors of their kind do."""
    errors = _unseen(tables)
    calm = {name: e for name, e in errors.items() if abs(e) <= OUTLIER}
    figures: Figures = {"unseen errors left out as outliers": len(errors) - len(calm)}
    for kind, drawn in (("all errors", errors), ("without outliers", calm)):
        pools: dict[bool, list[float]] = defaultdict(list)
        for outcome in found:
            if outcome.run.row_id in drawn:
                pools[_apart(outcome.run, tables.known)].append(drawn[outcome.run.row_id])
        centred = {side: [e - mean(pool) for e in pool] for side, pool in pools.items()}
        drawn_from = [
            [(predicted_s(o), centred[_apart(o.run, tables.known)]) for o in plans]
            for plans in jobs
        ]
        regrets = perfect_regrets(drawn_from, draws=DRAWS, seed=SEED)
        figures[f"perfect predictor, {kind}, mean regret, %"] = 100 * float(regrets.mean())
        figures[f"perfect predictor, {kind}, at most 3 %, % of draws"] = 100 * float(
            (regrets <= 0.03).mean()
        )
    return figures


def _unseen(tables: Tables) -> dict[str, float]:
    """log(measured / predicted) of each run under constants fitted without its fold."""
    runs = collapsed(tables.runs("vtrain_multi"))
    line = line_of(runs[0]).name
    priors = [prior_of(name, DEFAULTS[name]) for name in CONSTANTS[line]]
    bare = replace(tables.known, calibrations=())
    made = fit_line(runs, bare, priors, source="floors", apart=APART[line])
    return {run.row_id: -e for run, e in zip(made.runs, made.unseen, strict=True)}


def _apart(run: MeasuredRun, catalog: Known) -> bool:
    """Whether the run's kind of steps has a range of its own."""
    line = line_of(run)
    asked = answer(run, line, config_of(run, line), cluster_of(run, line, catalog)).question
    return APART[line.name] in circumstances(asked.model, asked.cluster, asked.configuration)


def _middle(outcome: Outcome) -> float:
    assert outcome.prediction is not None
    return (outcome.prediction.step_time_low_s + outcome.prediction.step_time_high_s) / 2


def _degrees(run: MeasuredRun) -> tuple[int, int, int]:
    return run.tensor, run.pipeline, run.data


def _ratio(a: Outcome, b: Outcome) -> float:
    return (measured_s(a) or math.nan) / (measured_s(b) or math.nan)


def _passes(run: MeasuredRun) -> float:
    """Blocks that a step runs one after the other, in microbatches."""
    assert run.global_batch and run.microbatch_size and run.num_layers
    microbatches = run.global_batch // (run.microbatch_size * run.data)
    return (microbatches + run.pipeline - 1) * run.num_layers / run.pipeline


def _smooth(plans: Sequence[Outcome]) -> float:
    sizes = [float(o.run.microbatch_size or 0) for o in plans]
    return smooth_floor(sizes, [measured_s(o) or math.nan for o in plans])
