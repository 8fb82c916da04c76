"""PyTorch on tensors without data: what a rank holds."""

from dataclasses import replace

import pytest

from trainwright.documents.runs import job_of_configuration
from trainwright.formats.catalog import cluster, model
from trainwright.frameworks.dry_run import case_of
from trainwright.lab.verify_runs import RankDryRun, dry_run_check, dry_runs
from trainwright.model import TransformerConfig
from trainwright.plans import Parallelism
from trainwright.plans.configuration import Configuration
from trainwright.plans.job import Job
from trainwright.step.fsdp2 import accounts_for, fsdp2_peaks

pytestmark = pytest.mark.torch

SMALL = replace(
    model("llama3-8b").config, num_layers=2, hidden_size=512, num_heads=8, num_kv_heads=4,
    head_size=64, ffn_size=1024, vocabulary_size=4096,
)  # fmt: skip
PARAMETERS = 2 * (512 * 512 * 2 + 2 * 512 * 256 + 3 * 512 * 1024 + 2 * 512) + 2 * 4096 * 512 + 512


MIXED = replace(
    model("mixtral-8x7b").config, num_layers=2, hidden_size=512, num_heads=8, num_kv_heads=4,
    head_size=64, ffn_size=1024, vocabulary_size=4096,
)  # fmt: skip
TIED = replace(
    model("gpt2").config, num_layers=2, hidden_size=512, num_heads=8, num_kv_heads=8, head_size=64,
    ffn_size=1024, vocabulary_size=4096, max_positions=2048,
)  # fmt: skip


def job(of: TransformerConfig = SMALL, **degrees: int) -> Job:
    wide = degrees.get("tensor", 1) > 1
    run = Configuration(
        parallelism=Parallelism(zero_stage=3, sequence_parallel=wide, **degrees),
        microbatch_size=1,
        global_batch=4 * degrees.get("data", 1),
        sequence_length=2048,
        vocabulary_multiple=1,
    )
    return job_of_configuration(run, of, cluster("dgx-h100"), model_name="small")


# Experts that are dealt out, and that are cut; words that are tied, on one stage and on two.
ODD = {
    "dealt": job(MIXED, data=4, tensor=2, expert=4, expert_tensor=1),
    "cut": job(MIXED, data=4, tensor=2),
    "tied": job(TIED, data=4, tensor=2),
    "apart": job(TIED, data=4, pipeline=2),
}


@pytest.fixture(scope="module")
def found() -> dict[str, RankDryRun]:
    jobs = {
        "alone": job(data=8),
        "tensor": job(data=4, tensor=2),
        "context": job(data=4, context=2),
        "pipeline": job(data=4, pipeline=2),
        **ODD,
    }
    ran = dry_runs([case_of(each) | {"name": name} for name, each in jobs.items()])
    return {f"{run.name} {run.rank}": run for run in ran}


def test_every_rank_is_run(found: dict[str, RankDryRun]) -> None:
    alone = {f"{name} 0" for name in ("alone", "tensor", "context", "pipeline", *ODD)}
    assert set(found) == alone | {"pipeline 1", "apart 1"}


def test_weights_and_moments_are_sharded_in_float32(found: dict[str, RankDryRun]) -> None:
    for name in ("alone 0", "tensor 0", "context 0"):
        assert found[name].static_bytes == pytest.approx(12 * PARAMETERS / 8, rel=0.05), name


def test_every_tensor_of_experts_and_tied_words_is_known(found: dict[str, RankDryRun]) -> None:
    for name, odd in ODD.items():
        run = odd.configuration()
        assert accounts_for(odd.model, run)
        for rank, peak in enumerate(fsdp2_peaks(odd.model, run)):
            held = found[f"{name} {rank}"].allocated_bytes
            assert peak.allocated_bytes == pytest.approx(held, rel=0.08), name


def test_classes_add_up_to_the_peak(found: dict[str, RankDryRun]) -> None:
    for run in found.values():
        assert sum(run.by_class.values()) == run.allocated_bytes


def test_the_rank_with_the_logits_is_the_fullest(found: dict[str, RankDryRun]) -> None:
    assert found["pipeline 1"].allocated_bytes > found["pipeline 0"].allocated_bytes


def test_a_prediction_that_promises_too_little_fails(found: dict[str, RankDryRun]) -> None:
    enough = found["alone 0"].allocated_bytes
    assert dry_run_check(job(data=8), [enough]).outcome == "pass"
    assert dry_run_check(job(data=8), [0.9 * enough]).outcome == "fail"
