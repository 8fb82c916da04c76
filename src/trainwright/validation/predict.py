"""The predicted step and memory of one question."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainwright.plan import StepPrediction
from trainwright.pricing import predict_step
from trainwright.pricing.configuration import estimator_of, plan_of, point_of
from trainwright.pricing.interval import time_range
from trainwright.validation.engine_memory import engine_peak_bytes
from trainwright.validation.megatron_memory import megatron_memory
from trainwright.validation.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """Seconds of a step with the ends of the 90 % interval; bytes of a device where modelled."""

    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    peak_memory_bytes: float | None = None
    static_memory_bytes: float | None = None

    def within(self, low_ratio: float, high_ratio: float) -> RunPrediction:
        """The same with the interval from `low_ratio` to `high_ratio` times the step."""
        return replace(
            self,
            step_time_low_s=self.step_time_s * low_ratio,
            step_time_high_s=self.step_time_s * high_ratio,
        )


def predict(question: Question) -> RunPrediction:
    """Price one question; raises like `Estimator.profile` and `predict_step`."""
    step = price(question)
    time_s = step.step_time_s
    spread = time_range(question.model, question.cluster, question.configuration)
    peak_bytes, static_bytes = _memory(question, step)
    return RunPrediction(
        step_time_s=time_s,
        step_time_low_s=time_s * spread.low_ratio,
        step_time_high_s=time_s * spread.high_ratio,
        peak_memory_bytes=peak_bytes,
        static_memory_bytes=static_bytes,
    )


def _memory(question: Question, step: StepPrediction) -> tuple[float, float]:
    """Peak and static bytes of the rank that the table reports."""
    run = question.run
    if run.schema == "megatron_ci":
        found = megatron_memory(run, question, step.stages[-1].memory)
        return found.peak_bytes, found.static_bytes
    static_bytes = max(stage.memory.static_bytes for stage in step.stages)
    if question.line.caches_dummy_gradients:
        return engine_peak_bytes(question, step), static_bytes
    return step.peak_memory_bytes, static_bytes


def price(question: Question) -> StepPrediction:
    """The step of a question, stage by stage."""
    model, cluster, asked = question.model, question.cluster, question.configuration
    profile = estimator_of(model, cluster, asked).profile(point_of(asked))
    plan = plan_of(asked, profile.structure)
    return predict_step(plan, profile, cluster, overlap=asked.overlap, overheads=asked.overheads)
