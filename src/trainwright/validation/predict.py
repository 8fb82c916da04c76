"""The predicted step and memory of one question.

Stages are priced by `pricing`; interleaved schedules follow from the plain pipeline in closed form
(Narayanan et al., 2021): with v chunks per device the warm-up and cool-down shrink by v,

    m (F + B) + (p - 1) (F + B) / v

F and B being the times of the busiest device for one microbatch. Gradients are synchronised under
the last backward where the software overlaps, after it otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan import StepPrediction
from trainwright.pricing import predict_step
from trainwright.validation.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """Seconds of a step with the ends of the 90 % interval; bytes of a device where modelled."""

    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    peak_memory_bytes: float | None = None
    static_memory_bytes: float | None = None


def predict(question: Question) -> RunPrediction:
    """Price one question; raises like `Estimator.profile` and `predict_step`."""
    profile = question.profile()
    plan = question.plan(profile)
    step = predict_step(plan, profile, question.cluster)
    time_s = step_time_s(question, step)
    return RunPrediction(
        step_time_s=time_s,
        step_time_low_s=time_s,
        step_time_high_s=time_s,
        peak_memory_bytes=step.peak_memory_bytes,
        static_memory_bytes=max(stage.memory.static_bytes for stage in step.stages),
    )


def step_time_s(question: Question, step: StepPrediction) -> float:
    """Makespan, exposed synchronisation, optimizer, and what the host does once a step."""
    pipeline_s = step.pipeline_s
    if question.virtual_stages > 1:
        busiest_s = max(stage.forward_s + stage.backward_s for stage in step.stages)
        extra = (len(step.stages) - 1) / question.virtual_stages
        sends_s = 2 * max(stage.send_s for stage in step.stages) * (len(step.stages) - 1)
        pipeline_s = busiest_s * (question.num_microbatches + extra) + sends_s
    if question.line.overlaps_gradients:
        sync_s = step.exposed_gradient_sync_s
    else:
        sync_s = max(stage.gradient_sync_s for stage in step.stages)
    overhead_s = question.cluster.accelerator.step_overhead_s
    return pipeline_s + sync_s + step.optimizer_s + overhead_s
