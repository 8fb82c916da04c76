"""The stages of a co-design apart, each from the files of the one before.

`graph` writes the request and the layers of every model, `estimate` every product on every core
configuration, `solve` searches. Together they give what `codesign` gives.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

from trainwright.api.codesign import CodesignReport, Extras, run_request
from trainwright.api.codesign_request import CodesignOptions, question_of, request_of
from trainwright.api.printed import Report
from trainwright.errors import InvalidInput
from trainwright.plan.results.codesign_stages import (
    ChainRecord,
    GraphResult,
    KernelRecord,
    LayerRecord,
    StageResult,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainwright.codesign.area import DieModel
    from trainwright.codesign.price import JobPricer
    from trainwright.codesign.question import CodesignQuestion
    from trainwright.codesign.workload import Chain
    from trainwright.execution import Budget
    from trainwright.plan.results.codesign import CodesignRequest

STAGES: Final = ("graph", "estimate", "solve")
GRAPH_FILE: Final = "graph.json"
ESTIMATES_FILE: Final = "estimates.npz"


def write_graph(
    folder: str | Path,
    models: Sequence[str | Path],
    *,
    devices: int,
    budget: Budget,
    **options: Unpack[CodesignOptions],
) -> Report[StageResult]:
    """The first stage: the request and the layers it is about, in `folder`/graph.json."""
    start_s = budget.cpu_s
    request, _ = request_of(models, devices=devices, **options)
    chains = tuple(_chains(question_of(request)))
    path = _folder(folder) / GRAPH_FILE
    Report(GraphResult(request=request, chains=chains)).save(path)
    kernels = sum(len(layer.kernels) for chain in chains for layer in chain.layers)
    return _stage("graph", path, {"chains": len(chains), "kernels": kernels}, budget, start_s)


def write_estimates(folder: str | Path, *, budget: Budget) -> Report[StageResult]:
    """The second stage: reads graph.json, writes `folder`/estimates.npz."""
    from trainwright.codesign.nodes import pricers
    from trainwright.formats import estimates_npz

    start_s = budget.cpu_s
    request = read_graph(folder).request
    question = question_of(request)
    found = {}
    for index, variant in enumerate(question.variants):
        for model, pricer in enumerate(pricers(question, variant)):
            for degree, figures in pricer.estimates().items():
                found[index, model, degree] = figures
    path = Path(folder) / ESTIMATES_FILE
    estimates_npz.write_estimates(path, found, about=_about(request))
    count = sum(figures[0].size for figures in found.values())
    return _stage("estimate", path, {"products": count}, budget, start_s)


def solve(
    folder: str | Path, *, extras: Extras, budget: Budget, die: DieModel | None = None
) -> CodesignReport:
    """The last stage: reads both files and searches."""
    from trainwright.codesign.nodes import pricers
    from trainwright.formats.estimates_npz import read_estimates

    request = read_graph(folder).request
    question = question_of(request)
    arrays = read_estimates(Path(folder) / ESTIMATES_FILE, about=_about(request))
    prepared: dict[int, tuple[JobPricer, ...]] = {}
    for index, variant in enumerate(question.variants):
        prepared[index] = pricers(question, variant)
        for model, pricer in enumerate(prepared[index]):
            mine = {t: figures for (v, m, t), figures in arrays.items() if (v, m) == (index, model)}
            pricer.load(mine)
    return run_request(request, extras=extras, budget=budget, die=die, prepared=prepared)


def read_graph(folder: str | Path) -> GraphResult:
    """The document of the first stage; raises `InvalidInput` where it is not there."""
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import decode_document
    from trainwright.formats.json_text import parse_json

    path = Path(folder) / GRAPH_FILE
    value = parse_json(read_bytes(path, name="artifacts"), source=str(path))
    return decode_document(value, {"codesign-graph": GraphResult}, source=str(path))


def _folder(folder: str | Path) -> Path:
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f'cannot be made, {error.strerror}: "{path}"'
        raise InvalidInput.of("artifacts", problem) from None
    return path


def _about(request: CodesignRequest) -> str:
    from trainwright.api.inputs import content_hash
    from trainwright.formats.document_json import encode

    return content_hash(encode(request))


def _stage(
    stage: str, path: Path, counts: dict[str, int], budget: Budget, start_s: float
) -> Report[StageResult]:
    spent_s = budget.cpu_s - start_s
    return Report(StageResult(stage=stage, file=str(path), counts=counts, stage_s=spent_s))


def _chains(question: CodesignQuestion) -> Iterator[ChainRecord]:
    sizes = {variant.microbatch_size: variant for variant in question.variants}
    for size, variant in sizes.items():
        for job in question.jobs_of(variant):
            for degree in sorted(set(job.tensor_degrees)):
                yield ChainRecord(
                    model=job.name,
                    tensor_parallel=degree,
                    microbatch_size=size,
                    layers=tuple(_layers(job.chain(degree))),
                )


def _layers(chain: Chain) -> Iterator[LayerRecord]:
    counts = chain.class_counts.tolist()
    for layer, kernels, count in zip(chain.graph.classes, chain.kernels, counts, strict=True):
        yield LayerRecord(
            kind=str(layer.kind),
            count=count,
            parameters=layer.num_parameters,
            kernels=tuple(
                KernelRecord(
                    operator=kernel.operator,
                    phase=str(kernel.phase),
                    products=tuple((p.batch, p.m, p.n, p.k) for p in kernel.products),
                    share=kernel.share,
                    flops=kernel.flops,
                    lane_cycles=kernel.lane_cycles,
                    memory_bytes=kernel.memory_bytes,
                )
                for kernel in kernels
            ),
        )
