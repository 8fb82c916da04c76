"""The documents of the stages of `codesign`: the layers it is about, and what a stage wrote."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan.results.codesign import CodesignRequest
from trainwright.plan.results.request import FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """One operator of a layer in one phase, as a chip sees it; products are [b, m, n, k]."""

    operator: str
    phase: str
    products: tuple[tuple[int, ...], ...]
    share: float
    flops: float
    lane_cycles: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """One class of layers: what it is, how many there are, what they do."""

    kind: str
    count: int
    parameters: int
    kernels: tuple[KernelRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRecord:
    """A model at one tensor degree and microbatch size."""

    model: str
    tensor_parallel: int
    microbatch_size: int
    layers: tuple[LayerRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphResult:
    """What the first stage leaves for the others: the request, and the layers it is about."""

    kind: str = "codesign-graph"
    format_version: int = FORMAT_VERSION
    request: CodesignRequest
    chains: tuple[ChainRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """A stage that was run: what it wrote, and how much of what."""

    kind: str = "codesign-stage"
    format_version: int = FORMAT_VERSION
    stage: str
    file: str
    counts: dict[str, int]
    stage_s: float
