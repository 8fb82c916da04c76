"""What a real run of a schedule gave, compared with the same model in one piece."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBytes:
    """What saved tensors of the small model hold on a rank, at most: counted and predicted.

    `largest_difference_bytes` is how far the two are apart after any action of the rank. Where a
    backward is split, a runtime may free the part of the input gradient before or with that of the
    weights, and both count as predicted.
    """

    rank: int
    peak_bytes: float
    predicted_peak_bytes: float
    largest_difference_bytes: float
    num_actions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCheck:
    """Largest differences over all steps, ranks and parameters.

    A gradient passes within `gradient_limit`, which is 1e-6 times the largest entry of the
    parameter's reference gradient, or 1e-6 where that entry is below 1; the one nearest to, or
    farthest beyond, its limit is given. `num_replicas` pipelines of `num_ranks` ran side by side,
    each on its own data, and `kept` is of the first. Where the run did not get to its end,
    `problem` says why and there are no differences.
    """

    passed: bool
    form: str
    num_ranks: int
    num_stages: int
    num_microbatches: int
    num_steps: int
    num_replicas: int = 1
    max_error: float | None = None
    gradient_limit: float | None = None
    worst_parameter: str | None = None
    loss_error: float | None = None
    loss_limit: float
    problem: str | None = None
    torch_version: str
    kept: tuple[KeptBytes, ...] = ()
