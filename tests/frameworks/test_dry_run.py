"""The case that the dry run's program reads, and what it refuses."""

import json
from dataclasses import replace

import pytest

from trainwright.documents.runs import job_of_configuration
from trainwright.errors import UnsupportedFeature
from trainwright.formats.catalog import cluster, model
from trainwright.frameworks.dry_run import CASE, PROGRAM, case_of, export_dry_run
from trainwright.model import CudaGraph, Offload, Recipe
from trainwright.plans import Parallelism
from trainwright.plans.configuration import Configuration
from trainwright.plans.job import Job, Stamp
from trainwright.profile import Recompute

RUN = Configuration(
    parallelism=Parallelism(tensor=2, data=4, pipeline=2, sequence_parallel=True, zero_stage=3),
    microbatch_size=1,
    global_batch=16,
    sequence_length=4096,
    recompute=Recompute.FULL,
    vocabulary_multiple=1,
)


DEALT = replace(RUN.parallelism, expert=2)
V = replace(
    RUN,
    parallelism=Parallelism(data=2, pipeline=2, virtual_stages=2, zero_stage=2),
    recompute=Recompute.NONE,
    schedule="zb-v",
)


def job(name: str = "llama3-8b", run: Configuration = RUN) -> Job:
    return job_of_configuration(run, model(name).config, cluster("dgx-h100"), model_name=name)


def test_a_case_states_every_block_once_and_every_rank() -> None:
    case = case_of(job())
    assert [block for stage in case["blocks_of_stage"] for block in stage] == list(range(32))
    assert case["ranks"] == [0, 1]
    assert case["degrees"] == {
        "pipeline": 2,
        "copies": 1,
        "shards": 4,
        "context": 1,
        "tensor": 2,
        "expert": 1,
    }
    assert (case["recompute"], case["schedule"], case["num_microbatches"]) == ("full", "1F1B", 4)


def test_an_order_that_pytorch_has_no_name_for_is_written_out() -> None:
    assert case_of(job())["orders"] is None
    case = case_of(job(run=V))
    assert (case["schedule"], case["rank_of_stage"]) == (None, [0, 1, 1, 0])
    actions = [line.split(",") for line in case["orders"]]
    counts = [{kind: sum(kind in each for each in line) for kind in "FIWB"} for line in actions]
    assert counts == [{"F": 16, "I": 16, "W": 16, "B": 0}] * 2


def test_states_that_are_not_shared_lie_whole_on_every_replica() -> None:
    whole = replace(RUN, parallelism=Parallelism(data=4, zero_stage=0))
    degrees = case_of(job(run=whole))["degrees"]
    assert (degrees["copies"], degrees["shards"]) == (4, 1)


def test_a_case_states_what_the_heaviest_experts_take() -> None:
    degrees = Parallelism(data=16, expert=8, expert_tensor=1, zero_stage=3)
    run = replace(RUN, parallelism=degrees)
    hot = replace(run, recipe=Recipe(expert_loads=(2.0,)))
    assert case_of(job("qwen3-30b-a3b", run))["model"]["experts"]["heaviest"] == 1
    # 16 experts a rank, one of them twice the mean, the others 126/127 of it.
    heaviest = case_of(job("qwen3-30b-a3b", hot))["model"]["experts"]["heaviest"]
    assert heaviest == pytest.approx((2 + 15 * 126 / 127) / 16)


def test_the_program_needs_nothing_of_ours() -> None:
    bundle = export_dry_run(job(), Stamp(trainwright_version="0", plan_sha256="0" * 64))
    assert "import trainwright" not in bundle.files[PROGRAM]
    assert "from trainwright" not in bundle.files[PROGRAM]
    assert json.loads(bundle.files[CASE])["model"]["ffn_size"] == 14336


@pytest.mark.parametrize(
    ("name", "run", "said"),
    [
        ("opt-1.3b", RUN, "family opt"),
        ("olmo2-7b", RUN, "norm after"),
        ("deepseek-v3", RUN, "latent attention; layers that predict further tokens"),
        ("mixtral-8x7b", replace(RUN, parallelism=DEALT), "experts that are dealt out and cut"),
        ("llama3-8b", replace(RUN, fused_cross_entropy=True), "fused cross entropy"),
        (
            "llama3-8b",
            replace(RUN, parallelism=replace(RUN.parallelism, zero_stage=1, state_copies=2)),
            "copies of sharded state beside ZeRO 1",
        ),
        (
            "llama3-8b",
            replace(RUN, parallelism=Parallelism(context=2, data=4, zero_stage=0)),
            "ZeRO 0 beside context",
        ),
        ("llama3-8b", replace(RUN, schedule="zb-h1"), "recomputation beside a split backward"),
        ("llama3-8b", replace(RUN, schedule="zb-h1"), "ZeRO 3 beside a split backward"),
        (
            "llama3-8b",
            replace(
                V, parallelism=Parallelism(data=2, pipeline=2, zero_stage=2), schedule="vocab-2"
            ),
            "a head cut over ranks",
        ),
        ("llama3-8b", replace(RUN, recipe=Recipe(gradient_dtype="bf16")), "another format"),
        ("llama3-8b", replace(RUN, recipe=Recipe(reduce_dtype="fp16")), "reduced in fp16"),
        ("llama3-8b", replace(RUN, recipe=Recipe(loss_chunk=1024)), "a loss in pieces beside"),
        ("llama3-8b", replace(RUN, recipe=Recipe(offload=Offload(optimizer=1))), "offload"),
        ("llama3-8b", replace(RUN, recipe=Recipe(cuda_graph=CudaGraph.LOCAL)), "CUDA graphs"),
    ],
)
def test_what_it_cannot_run_is_refused_by_name(name: str, run: Configuration, said: str) -> None:
    with pytest.raises(UnsupportedFeature, match=said):
        case_of(job(name, run))
