"""Jobs for tests of exporters: the golden ones, and random legal ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from trainwright.cluster import Cluster
from trainwright.documents.jobs import with_orders
from trainwright.documents.runs import job_of_configuration
from trainwright.errors import InvalidInput
from trainwright.formats.catalog import cluster, model
from trainwright.frameworks import needs_orders, write
from trainwright.frameworks.launch import Launcher
from trainwright.model import LayerKind, Optimizer, Recipe, TokenDispatcher, TransformerConfig
from trainwright.plans.configuration import Configuration
from trainwright.plans.job import ExportBundle, Job, StagePart, Stamp
from trainwright.plans.plan import AXIS_ORDERS, Parallelism
from trainwright.profile import Recompute
from trainwright.step.account import step_timeline
from trainwright.step.predict import estimator_of, plan_of, point_of, require_legal

STAMP = Stamp(trainwright_version="0.0.0", plan_sha256="0123456789abcdef" * 4)


@cache
def config_of(name: str) -> TransformerConfig:
    return model(name).config


@cache
def cluster_of(nodes: int) -> Cluster:
    return cluster("dgx-h100").with_nodes(nodes)


def job(name: str, **given: Any) -> Job:
    """A job of a catalog model; `given` are degrees and fields of a configuration."""
    fields = Parallelism.__dataclass_fields__
    degrees = Parallelism(**{key: given.pop(key) for key in list(given) if key in fields})
    run = Configuration(
        parallelism=degrees,
        microbatch_size=given.pop("microbatch_size", 1),
        global_batch=given.pop("global_batch"),
        sequence_length=given.pop("sequence_length", 4096),
        **given,
    )
    return job_of_run(name, run)


def job_of_run(name: str, run: Configuration) -> Job:
    return job_of_configuration(run, config_of(name), cluster_of(2), model_name=name)


def golden_jobs() -> dict[str, Job]:
    """Those whose bundles are kept as snapshots."""
    half = job(
        "llama3-8b",
        schedule="v-half",
        tensor=2,
        sequence_parallel=True,
        pipeline=4,
        data=2,
        virtual_stages=2,
        zero_stage=0,
        global_batch=32,
        recompute=Recompute.FULL,
        recompute_blocks=2,
    )
    return {
        "llama3-70b uneven loop": job(
            "llama3-70b",
            schedule="interleaved",
            tensor=4,
            sequence_parallel=True,
            pipeline=8,
            data=2,
            virtual_stages=5,
            zero_stage=1,
            global_batch=128,
            sequence_length=8192,
            blocks_per_stage=(1, *[2] * 38, 3),
        ),
        "deepseek-v3 with mtp": job(
            "deepseek-v3",
            schedule="interleaved",
            pipeline=16,
            data=8,
            expert=8,
            expert_tensor=1,
            virtual_stages=2,
            zero_stage=1,
            global_batch=256,
            blocks_per_stage=(1, *[2] * 29, 2, 0),
            recompute=Recompute.FULL,
        ),
        "mixtral ep 8": job(
            "mixtral-8x7b",
            tensor=2,
            sequence_parallel=True,
            pipeline=4,
            data=8,
            expert=8,
            expert_tensor=1,
            zero_stage=1,
            global_batch=64,
        ),
        "deepseek-v2 once to a node": job(
            "deepseek-v2",
            data=16,
            expert=8,
            zero_stage=1,
            global_batch=64,
            recipe=Recipe(token_dispatcher=TokenDispatcher.HIERARCHICAL),
        ),
        "llama3-8b fsdp": job(
            "llama3-8b", data=16, zero_stage=3, global_batch=64, recompute=Recompute.FULL
        ),
        "v-half mixed": replace(half, stages=tuple(map(_every_other, half.stages))),
    }


def _every_other(stage: StagePart) -> StagePart:
    """Every second block of the stage recomputed, which starts with one that is not."""
    modes = tuple(
        Recompute.FULL if kind is LayerKind.BLOCK and at % 2 else Recompute.NONE
        for at, kind in enumerate(stage.kinds)
    )
    return replace(stage, recompute=modes)


def bundle(made: Job, target: str, *, launcher: Launcher = Launcher.TORCHRUN) -> ExportBundle:
    """What is written for a target; orders are added where it takes them."""
    return write(ordered(made, target), STAMP, target, launcher=launcher)


def ordered(made: Job, target: str) -> Job:
    if not needs_orders(target) or made.degrees.pipeline == 1:
        return made
    plain = replace(
        made,
        stages=tuple(replace(s, recompute=(Recompute.NONE,) * len(s.kinds)) for s in made.stages),
    )
    run, where = plain.configuration(), cluster_of(16)
    profile = estimator_of(made.model, where, run).profile(point_of(run))
    timeline = step_timeline(
        plan_of(run, profile), profile, where, overlap=made.overlap, overheads=made.overheads
    )
    return with_orders(made, timeline)


_SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "v-half", "v-min", "wave")


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Legal jobs of three models, with uneven stages and any pattern of recomputation."""
    name = draw(st.sampled_from(("llama3-8b", "mixtral-8x7b", "gpt2-xl")))
    config = config_of(name)
    pipeline = draw(st.sampled_from((1, 1, 2, 4)))
    schedule = draw(st.sampled_from(_SCHEDULES)) if pipeline > 1 else "1f1b"
    chunks = {"interleaved": 2, "zb-v": 2, "v-half": 2, "v-min": 2, "wave": 3}.get(schedule, 1)
    data = draw(st.sampled_from((1, 2, 8)))
    tensor = draw(st.sampled_from([t for t in (1, 2, 4) if not config.num_heads % t]))
    experts = config.experts is not None
    expert = draw(st.sampled_from((1, 2))) if experts and data > 1 else 1
    zero_stage = draw(st.integers(0, 3))
    degrees = Parallelism(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        context=draw(st.sampled_from((1, 1, 2))),
        expert=expert,
        expert_tensor=draw(st.sampled_from((None, 1))) if experts else None,
        virtual_stages=chunks,
        sequence_parallel=tensor > 1 and (expert > 1 or draw(st.booleans())),
        zero_stage=zero_stage,
        state_copies=draw(st.sampled_from((1, 1, 2))) if zero_stage and data > 2 else 1,
        axis_order=draw(st.sampled_from(AXIS_ORDERS)),
    )
    run = Configuration(
        parallelism=degrees,
        microbatch_size=draw(st.sampled_from((1, 2))),
        global_batch=2 * data * pipeline * draw(st.sampled_from((2, 4))),
        sequence_length=1024,
        schedule=schedule,
        recompute=draw(st.sampled_from(Recompute)),
        recompute_blocks=draw(st.sampled_from((None, None, 1, 3))),
        recompute_modules=draw(st.sampled_from((None, ("norm",)))),
        blocks_per_stage=draw(_splits(config.num_layers, pipeline * chunks)),
        recipe=Recipe(
            optimizer=draw(st.sampled_from((Optimizer.ADAM, Optimizer.ADAM, Optimizer.SGD))),
            token_dispatcher=draw(st.sampled_from(TokenDispatcher)),
            dispatch_dtype=draw(st.sampled_from((None, None, "bf16", "fp8"))),
        ),
    )
    try:
        require_legal(config, cluster_of(16), run)
    except InvalidInput:
        assume(False)
    made = job_of_run(name, run)
    if draw(st.booleans()):
        return made
    return replace(made, stages=tuple(map(_every_other, made.stages)))


def _splits(num_layers: int, num_stages: int) -> st.SearchStrategy[tuple[int, ...] | None]:
    """No split stated, or one with a block moved from the last stage to the first."""
    share, rest = divmod(num_layers, num_stages)
    if num_stages == 1 or share < 2:
        return st.none()
    counts = [share + (stage < rest) for stage in range(num_stages)]
    counts[0] += 1
    counts[-1] -= 1
    return st.sampled_from((None, tuple(counts)))
