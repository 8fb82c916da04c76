"""PyTorch on tensors without data: what a rank holds."""

from dataclasses import replace

import pytest

from trainwright.documents.runs import job_of_configuration
from trainwright.formats.catalog import cluster, model
from trainwright.frameworks.dry_run import case_of
from trainwright.lab.verify_runs import RankDryRun, dry_run_check, dry_runs
from trainwright.plans import Parallelism
from trainwright.plans.configuration import Configuration
from trainwright.plans.job import Job

pytestmark = pytest.mark.torch

SMALL = replace(
    model("llama3-8b").config, num_layers=2, hidden_size=512, num_heads=8, num_kv_heads=4,
    head_size=64, ffn_size=1024, vocabulary_size=4096,
)  # fmt: skip
PARAMETERS = 2 * (512 * 512 * 2 + 2 * 512 * 256 + 3 * 512 * 1024 + 2 * 512) + 2 * 4096 * 512 + 512


def job(**degrees: int) -> Job:
    wide = degrees.get("tensor", 1) > 1
    run = Configuration(
        parallelism=Parallelism(zero_stage=3, sequence_parallel=wide, **degrees),
        microbatch_size=1,
        global_batch=4 * degrees.get("data", 1),
        sequence_length=2048,
        vocabulary_multiple=1,
    )
    return job_of_configuration(run, SMALL, cluster("dgx-h100"), model_name="small")


@pytest.fixture(scope="module")
def found() -> dict[str, RankDryRun]:
    jobs = {
        "alone": job(data=8),
        "tensor": job(data=4, tensor=2),
        "context": job(data=4, context=2),
        "pipeline": job(data=4, pipeline=2),
    }
    ran = dry_runs([case_of(each) | {"name": name} for name, each in jobs.items()])
    return {f"{run.name} {run.rank}": run for run in ran}


def test_every_rank_is_run(found: dict[str, RankDryRun]) -> None:
    assert set(found) == {"alone 0", "tensor 0", "context 0", "pipeline 0", "pipeline 1"}


def test_weights_and_moments_are_sharded_in_float32(found: dict[str, RankDryRun]) -> None:
    for name in ("alone 0", "tensor 0", "context 0"):
        assert found[name].static_bytes == pytest.approx(12 * PARAMETERS / 8, rel=0.05), name


def test_classes_add_up_to_the_peak(found: dict[str, RankDryRun]) -> None:
    for run in found.values():
        assert sum(run.by_class.values()) == run.allocated_bytes


def test_the_rank_with_the_logits_is_the_fullest(found: dict[str, RankDryRun]) -> None:
    assert found["pipeline 1"].allocated_bytes > found["pipeline 0"].allocated_bytes


def test_a_prediction_that_promises_too_little_fails(found: dict[str, RankDryRun]) -> None:
    enough = found["alone 0"].allocated_bytes
    assert dry_run_check(job(data=8), [enough]).outcome == "pass"
    assert dry_run_check(job(data=8), [0.9 * enough]).outcome == "fail"
