"""The fit: it finds what generated the data, keeps its prior without data, and bears outliers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.lab.fitting import Prior, fit, prior_of

WORK = [(1.0, 0.1), (2.0, 0.5), (4.0, 3.0), (8.0, 1.0), (3.0, 9.0), (5.0, 5.0)]


def seconds(values: Mapping[str, float]) -> list[float]:
    return [c / values["gemm_max"] + m / values["memory_max"] for c, m in WORK]


def residuals_against(truth: Sequence[float]):  # type: ignore[no-untyped-def]
    def residuals(values: Mapping[str, float]) -> list[float]:
        return [math.log(p / t) for p, t in zip(seconds(values), truth, strict=True)]

    return residuals


PRIORS = (prior_of("gemm_max", 0.7), prior_of("memory_max", 0.7))


@given(st.floats(min_value=0.4, max_value=0.95), st.floats(min_value=0.4, max_value=0.95))
def test_exact_data_give_back_their_constants(gemm: float, memory: float) -> None:
    truth = seconds({"gemm_max": gemm, "memory_max": memory})
    found = fit(residuals_against(truth), PRIORS)
    values = {c.name: c.value for c in found.constants}
    assert values["gemm_max"] == pytest.approx(gemm, rel=0.04)
    assert values["memory_max"] == pytest.approx(memory, rel=0.04)
    assert all(c.low <= c.value <= c.high for c in found.constants)


def test_one_wild_row_moves_the_fit_little() -> None:
    truth = seconds({"gemm_max": 0.6, "memory_max": 0.8})
    truth[0] *= 2
    found = fit(residuals_against(truth), PRIORS)
    values = {c.name: c.value for c in found.constants}
    assert values["gemm_max"] == pytest.approx(0.6, rel=0.03)


def test_rows_that_say_nothing_leave_the_prior_and_its_interval() -> None:
    (constant,) = fit(
        lambda _: [0.0], (Prior(name="step_overhead_s", value=0.1, width=0.7),)
    ).constants
    assert constant.value == pytest.approx(0.1)
    assert constant.high / constant.value == pytest.approx(math.exp(1.645 * 0.7), rel=1e-3)


def test_a_share_never_exceeds_its_peak() -> None:
    truth = [0.5 * t for t in seconds({"gemm_max": 1.0, "memory_max": 1.0})]
    found = fit(residuals_against(truth), PRIORS)
    assert all(c.value <= 1.0 and c.high <= 1.0 for c in found.constants)


def test_unseen_residuals_are_those_of_a_fit_without_the_fold() -> None:
    noise = [1 + 0.03 * math.sin(7.0 * i) for i in range(30)]
    exact = seconds({"gemm_max": 0.6, "memory_max": 0.8}) * 5
    truth = [t * n for t, n in zip(exact, noise, strict=True)]
    folds = [i % 5 for i in range(30)]

    def residuals_of(kept: Sequence[int], values: Mapping[str, float]) -> list[float]:
        predicted = seconds(values) * 5
        return [math.log(predicted[i] / truth[i]) for i in kept]

    whole = fit(lambda values: residuals_of(range(30), values), PRIORS, folds=folds)
    for fold in set(folds):
        kept = [i for i, own in enumerate(folds) if own != fold]
        held = [i for i, own in enumerate(folds) if own == fold]
        found = fit(lambda values, kept=kept: residuals_of(kept, values), PRIORS)
        values = {c.name: c.value for c in found.constants}
        for index, residual in zip(held, residuals_of(held, values), strict=True):
            assert whole.unseen[index] == pytest.approx(residual, abs=0.002)
