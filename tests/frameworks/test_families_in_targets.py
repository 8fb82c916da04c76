"""Every family handed to every target: files with its knob or its orders, or a named refusal."""

from __future__ import annotations

import pytest

from export_jobs import STAMP, bundle, job
from trainwright.documents.runs import gaps_of
from trainwright.errors import Inexpressible, TrainwrightError
from trainwright.frameworks import write
from trainwright.frameworks.launch import Launcher
from trainwright.plans.capability import TARGETS, capability_of
from trainwright.plans.job import Job
from trainwright.scheduling.families import FAMILIES, FamilyRequest

# What Megatron takes for a schedule: the numbers of ranks and of chunks.
BY_NUMBERS = {
    ("megatron", "1f1b"): "--pipeline-model-parallel-size 4",
    ("megatron", "interleaved"): "--num-virtual-stages-per-pipeline-rank 2",
    ("megatron-bridge", "1f1b"): "pipeline_model_parallel_size = 4",
    ("megatron-bridge", "interleaved"): "virtual_pipeline_model_parallel_size = 2",
    ("primus", "1f1b"): "pipeline_model_parallel_size: 4",
    ("primus", "interleaved"): "num_virtual_stages_per_pipeline_rank: 2",
    ("deepspeed", "1f1b"): "pipeline",
}


def chunks_of(name: str) -> int:
    """Virtual stages per rank; of a family with a choice, two."""
    request = FamilyRequest(num_ranks=4, num_microbatches=16, virtual_stages=2)
    placement = FAMILIES[name].place(request)
    return placement.num_stages // placement.num_ranks


def made(name: str, *, zero_stage: int = 0) -> Job | None:
    """The family on four ranks of a model; None where a plan of it is refused before any file."""
    try:
        return job(
            "llama3-8b",
            schedule=name,
            pipeline=4,
            data=2,
            virtual_stages=chunks_of(name),
            zero_stage=zero_stage,
            global_batch=32,
        )
    except TrainwrightError as refusal:
        assert name in str(refusal) or "schedule" in str(refusal)
        return None


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_written_where_there_is_a_knob_and_refused_by_name_elsewhere(name):
    family, plain_job, sharded_job = FAMILIES[name], made(name), made(name, zero_stage=2)
    if plain_job is None or sharded_job is None:
        assert not family.planned
        return
    for target in TARGETS:
        own = capability_of(target)
        its_job = sharded_job if target == "automodel" else plain_job  # it always shards
        schedule_gaps = [gap for gap in gaps_of(its_job, target) if gap.field == "schedule"]
        if name in own.schedules:
            assert not schedule_gaps
            if gaps_of(its_job, target):  # of something else
                continue
            text = "".join(bundle(its_job, target).files.values())
            assert BY_NUMBERS.get((target, name), own.schedules[name]) in text, target
        elif gaps_of(its_job, target):
            with pytest.raises(Inexpressible) as refusal:
                write(its_job, STAMP, target, launcher=Launcher.TORCHRUN)
            fields = {gap.field for gap in gaps_of(its_job, target)}
            assert fields & {"schedule", "pipeline"}
            assert target in str(refusal.value)
            for gap in schedule_gaps:
                assert gap.value == name
                assert target not in gap.alternatives
        else:  # its orders travel in a file, which has room for computation alone
            assert family.shape(chunks_of(name)).is_plain
            assert any("F" in text for text in bundle(its_job, target).files.values())
