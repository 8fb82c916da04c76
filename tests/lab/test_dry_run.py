"""PyTorch on tensors without data: what a rank holds."""

from dataclasses import replace

import pytest

from trainwright.documents.runs import job_of_configuration
from trainwright.formats.catalog import cluster, model
from trainwright.frameworks.dry_run import case_of
from trainwright.lab.verify_runs import RankDryRun, dry_run_check, dry_runs
from trainwright.model import Recipe, TransformerConfig
from trainwright.model.recipe import DEFAULT_RECIPE
from trainwright.plans import Parallelism
from trainwright.plans.configuration import Configuration
from trainwright.plans.job import Job
from trainwright.step.fsdp2 import fsdp2_peaks
from trainwright.step.memory import accounts_for

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


def job(
    of: TransformerConfig = SMALL,
    *,
    schedule: str = "1f1b",
    recipe: Recipe = DEFAULT_RECIPE,
    **degrees: int,
) -> Job:
    wide = degrees.get("tensor", 1) > 1
    run = Configuration(
        parallelism=Parallelism(**({"zero_stage": 3} | degrees), sequence_parallel=wide),
        microbatch_size=1,
        global_batch=4 * degrees.get("data", 1),
        sequence_length=2048,
        schedule=schedule,
        vocabulary_multiple=1,
        recipe=recipe,
    )
    return job_of_configuration(run, of, cluster("dgx-h100"), model_name="small")


# Experts that are dealt out, and that are cut; words that are tied, on one stage and on two.
ODD = {
    "dealt": job(MIXED, data=4, tensor=2, expert=4, expert_tensor=1),
    "cut": job(MIXED, data=4, tensor=2),
    "tied": job(TIED, data=4, tensor=2),
    "apart": job(TIED, data=4, pipeline=2),
}
# Backward passes in two, in a line and in a V; states whole, and shared alone; a loss in pieces.
LATER = {
    "split": job(data=2, pipeline=2, tensor=2, zero_stage=2, schedule="zb-h1"),
    "split in a V": job(data=2, pipeline=2, virtual_stages=2, zero_stage=2, schedule="zb-v"),
    "whole": job(data=4, zero_stage=0),
    "states": job(data=4, zero_stage=1),
    "pieces": job(data=4, recipe=Recipe(loss_chunk=512)),
}


@pytest.fixture(scope="module")
def found() -> dict[str, RankDryRun]:
    jobs = {
        "alone": job(data=8),
        "tensor": job(data=4, tensor=2),
        "context": job(data=4, context=2),
        "pipeline": job(data=4, pipeline=2),
        **ODD,
        **LATER,
    }
    ran = dry_runs([case_of(each) | {"name": name} for name, each in jobs.items()])
    return {f"{run.name} {run.rank}": run for run in ran}


def test_every_rank_is_run(found: dict[str, RankDryRun]) -> None:
    first = ("alone", "tensor", "context", "pipeline", *ODD, *LATER)
    second = {"pipeline 1", "apart 1", "split 1", "split in a V 1"}
    assert set(found) == {f"{name} 0" for name in first} | second


def test_weights_and_moments_are_sharded_in_float32(found: dict[str, RankDryRun]) -> None:
    for name in ("alone 0", "tensor 0", "context 0"):
        assert found[name].static_bytes == pytest.approx(12 * PARAMETERS / 8, rel=0.05), name


def test_every_tensor_of_other_runs_is_known(found: dict[str, RankDryRun]) -> None:
    for name, odd in (ODD | LATER).items():
        run = odd.configuration()
        assert accounts_for(odd.model, run)
        for rank, peak in enumerate(fsdp2_peaks(odd.model, run)):
            held = found[f"{name} {rank}"].allocated_bytes
            assert peak.allocated_bytes == pytest.approx(held, rel=0.08), name


def test_states_are_whole_or_shared_as_zero_says(found: dict[str, RankDryRun]) -> None:
    """Float32 weights and moments; or 16-bit weights and float32 gradients beside shared states."""
    assert found["whole 0"].static_bytes == pytest.approx(12 * PARAMETERS, rel=0.05)
    assert found["states 0"].static_bytes == pytest.approx((6 + 12 / 4) * PARAMETERS, rel=0.05)


def test_weight_gradients_on_their_own_keep_what_was_saved_till_then(
    found: dict[str, RankDryRun],
) -> None:
    """PyTorch frees nothing with the gradients of inputs, so the last rank holds more."""
    one = fsdp2_peaks(SMALL, job(data=2, pipeline=2, tensor=2, zero_stage=2).configuration())
    assert found["split 1"].allocated_bytes > 1.05 * one[1].allocated_bytes


def test_classes_add_up_to_the_peak(found: dict[str, RankDryRun]) -> None:
    for run in found.values():
        assert sum(run.by_class.values()) == run.allocated_bytes


def test_the_rank_with_the_logits_is_the_fullest(found: dict[str, RankDryRun]) -> None:
    assert found["pipeline 1"].allocated_bytes > found["pipeline 0"].allocated_bytes


def test_a_prediction_that_promises_too_little_fails(found: dict[str, RankDryRun]) -> None:
    enough = found["alone 0"].allocated_bytes
    assert dry_run_check(job(data=8), [enough]).outcome == "pass"
    assert dry_run_check(job(data=8), [0.9 * enough]).outcome == "fail"
