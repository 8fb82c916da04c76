"""Settings that a table leaves open: the legal choice that is predicted fastest and fits.

Microbatch sizes are powers of two that divide the batch, virtual stages divide the blocks of a
stage, recomputation is tried from none to full. The least recomputation that fits wins before
speed decides. A choice made here is an assumption, and is counted as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainwright.cluster import Cluster
from trainwright.errors import TrainwrightError, UnsupportedFeature
from trainwright.model import TransformerConfig
from trainwright.plan.measured_run import MeasuredRun
from trainwright.validation.lines import SoftwareLine
from trainwright.validation.predict import RunPrediction, predict
from trainwright.validation.question import Question, configuration_of

_LARGEST_MICROBATCH = 8
_MOST_VIRTUAL_STAGES = 24
RECOMPUTE_ORDER = ("none", "selective", "full")
# torchtitan's choice operator by operator keeps about what our selective mode keeps.
_SAME_AS = {"per_op": "selective"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question and its prediction; `assumed` names the settings chosen here."""

    question: Question
    prediction: RunPrediction
    assumed: tuple[str, ...] = ()


def answer(
    run: MeasuredRun, line: SoftwareLine, model: TransformerConfig, cluster: Cluster
) -> Answer:
    """Decide what is open, then predict; raises `UnsupportedFeature` where nothing is legal."""
    if run.global_batch is None:
        raise UnsupportedFeature("the global batch is not stated")
    assumed = tuple(
        name
        for name, value in (
            ("microbatch_size", run.microbatch_size),
            ("virtual_stages", run.virtual_stages),
            ("recompute", run.recompute or line.default_recompute),
        )
        if value is None
    )
    limit = cluster.accelerator.usable_bytes
    best: Answer | None = None
    refused: str | None = None
    for recompute in _recompute_choices(run, line):
        for question in _questions(run, line, model, cluster, recompute):
            try:
                found = Answer(question=question, prediction=predict(question), assumed=assumed)
            except TrainwrightError as error:
                refused = refused or str(error)
                continue
            if not assumed:
                return found
            if _is_better(found, best, limit):
                best = found
        if best is not None and _fits(best, limit):
            return best
    if best is None:
        raise UnsupportedFeature(refused or "no microbatch divides the batch")
    return best


def _is_better(found: Answer, best: Answer | None, limit: float) -> bool:
    if best is None:
        return True
    order = (not _fits(found, limit), found.prediction.step_time_s)
    return order < (not _fits(best, limit), best.prediction.step_time_s)


def _fits(found: Answer, limit: float) -> bool:
    peak = found.prediction.peak_memory_bytes
    return peak is None or peak <= limit


def _recompute_choices(run: MeasuredRun, line: SoftwareLine) -> tuple[str, ...]:
    stated = run.recompute or line.default_recompute
    if stated is None:
        return RECOMPUTE_ORDER
    mode = _SAME_AS.get(stated, stated)
    if mode not in RECOMPUTE_ORDER:
        raise UnsupportedFeature(f"recomputation {stated} is not modelled")
    return (mode,)


def _questions(
    run: MeasuredRun,
    line: SoftwareLine,
    model: TransformerConfig,
    cluster: Cluster,
    recompute: str,
) -> Iterator[Question]:
    for microbatch_size in _microbatches(run):
        for virtual_stages in _virtual_stages(run, model):
            yield Question(
                run=run,
                line=line,
                model=model,
                cluster=cluster,
                configuration=configuration_of(
                    run,
                    line,
                    model,
                    microbatch_size=microbatch_size,
                    recompute=recompute,
                    virtual_stages=virtual_stages,
                ),
            )


def _microbatches(run: MeasuredRun) -> Iterator[int]:
    assert run.global_batch is not None
    if run.microbatch_size is not None:
        if run.global_batch % (run.microbatch_size * run.data):
            raise UnsupportedFeature("the microbatches do not divide the batch")
        yield run.microbatch_size
        return
    size = 1
    while size <= _LARGEST_MICROBATCH:
        if run.global_batch % (size * run.data) == 0:
            yield size
        size *= 2


def _virtual_stages(run: MeasuredRun, model: TransformerConfig) -> Iterator[int]:
    if run.virtual_stages is not None:
        yield run.virtual_stages
        return
    if run.pipeline == 1 or run.schedule != "interleaved":
        yield 1
        return
    each = model.num_layers // run.pipeline
    degrees = [v for v in range(2, min(each, _MOST_VIRTUAL_STAGES) + 1) if each % v == 0]
    yield from degrees or [1]
