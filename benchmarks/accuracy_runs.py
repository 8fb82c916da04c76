"""The measured runs of a folder beside their predictions, for the studies of this directory."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trainwright.commands.validate import find_profiles, known
from trainwright.formats.measured_csv import read_layer_tables, read_measured
from trainwright.lab.run_shapes import Known
from trainwright.lab.scores import LEAST_LAYOUTS, median_of
from trainwright.lab.validate import Outcome, outcomes, predictor
from trainwright.plans.measured_run import MeasuredRun
from trainwright.profile.measured_layers import MeasuredLayers


@dataclass(frozen=True)
class Tables:
    """The measured runs of a folder and their predictions."""

    folder: Path

    @cached_property
    def known(self) -> Known:
        return known()

    @cached_property
    def layers(self) -> MeasuredLayers:
        profiles = find_profiles(self.folder, None)
        assert profiles is not None, "the tables of layers are missing"
        return read_layer_tables(profiles)

    def runs(self, name: str) -> tuple[MeasuredRun, ...]:
        return tuple(read_measured(self.folder / f"{name}.csv"))

    def outcomes(self, name: str) -> list[Outcome]:
        found = outcomes(self.runs(name), predictor(self.known, self.layers))
        return [outcome for outcome in found if outcome.prediction is not None]


Figures = dict[str, float]


def measured_s(outcome: Outcome) -> float | None:
    return median_of([run.step_time_s for run in outcome.runs])


def time_error(outcome: Outcome) -> float:
    """Relative, of the step."""
    assert outcome.prediction is not None
    return outcome.prediction.step_time_s / (measured_s(outcome) or math.nan) - 1


def memory_error(outcome: Outcome, name: str = "peak_memory_bytes") -> float:
    measured = median_of([getattr(run, name) for run in outcome.runs])
    return (getattr(outcome.prediction, name) or math.nan) / (measured or math.nan) - 1


def predicted_s(outcome: Outcome) -> float:
    assert outcome.prediction is not None
    return outcome.prediction.step_time_s


def jobs_of(found: Iterable[Outcome], key: Callable[[Outcome], object]) -> list[list[Outcome]]:
    """Runs of one job, by `key`, where at least three layouts were timed.

    What a job leaves open is part of a layout: here the number format.
    """
    jobs: dict[object, dict[object, Outcome]] = defaultdict(dict)
    for outcome in found:
        if measured_s(outcome) is not None:
            layout = outcome.run.layout, outcome.run.precision
            jobs[key(outcome)].setdefault(layout, outcome)
    return [list(plans.values()) for plans in jobs.values() if len(plans) >= LEAST_LAYOUTS]


def regret_of(plans: Sequence[Outcome], by: Callable[[Outcome], float]) -> float:
    """How much slower the plan of least `by` is than the fastest."""
    pick = min(plans, key=by)
    return (measured_s(pick) or math.nan) / min(measured_s(o) or math.nan for o in plans) - 1
