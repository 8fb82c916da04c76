"""What a plan decides stands in the files of a target, or the export is refused by name."""

from __future__ import annotations

import dataclasses
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import trainwright
from export_jobs import STAMP, bundle, job
from trainwright.errors import Inexpressible, InvalidInput
from trainwright.frameworks import write
from trainwright.frameworks.jobs import Beside, read
from trainwright.frameworks.jobs.megatron import read_megatron
from trainwright.frameworks.jobs.torchtitan import read_torchtitan
from trainwright.frameworks.launch import Launcher
from trainwright.model import (
    ContextExchange,
    CudaGraph,
    Optimizer,
    Recipe,
    TokenDispatcher,
)
from trainwright.model.config import LowRank, Tuning
from trainwright.model.recipe import Offload
from trainwright.plans.capability import TARGETS, capability_of
from trainwright.plans.capability_table import Feature
from trainwright.plans.configuration import Configuration, Overlap
from trainwright.plans.job import OF_CORE, Job
from trainwright.plans.plan import PIPELINE_INSIDE, Parallelism
from trainwright.profile import Recompute

# What a format is called in the files of a target; None where it is what the target does unasked.
FORMATS = {
    "megatron": {"bf16": "--bf16", "fp16": "--fp16", "fp8": "--fp8-format", "fp32": None},
    "megatron-bridge": {
        "bf16": "'bf16_mixed'", "fp16": "'fp16_mixed'", "fp8": "fp8",
        "fp32": "mixed_precision = None",
    },
    "primus": {"bf16": "bf16: true", "fp16": "fp16: true", "fp8": "fp8", "fp32": "bf16: false"},
    "torchtitan@0.2": {"bf16": None, "fp32": '"float32"', "fp8": '"float8"'},
    "torchtitan@0.3": {"bf16": None, "fp32": "'float32'"},
    "deepspeed": {"bf16": '"bf16"', "fp16": '"fp16"', "fp32": None},
    "trl": {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp32": '"no"'},
    "accelerate": {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp32": '"no"'},
    "axolotl": {
        "bf16": "bf16: true", "fp16": "fp16: true", "fp8": "fp8: true", "fp32": "float32: true",
    },
    "llamafactory": {"bf16": "bf16: true", "fp16": "fp16: true", "fp32": None},
    "automodel": {"bf16": None},
    "maxtext": {"bf16": "dtype: bfloat16", "fp8": "quantization: fp8", "fp32": "dtype: float32"},
    "nanotron": {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"},
}  # fmt: skip


FSDP = ("pytorch", "torchtitan", "accelerate", "trl", "axolotl", "automodel", "maxtext")


def plain(target: str, precision: str) -> Job:
    zero = 3 if target.startswith(FSDP) else 1
    recipe = Recipe(precision=precision)
    return job("llama3-8b", data=8, zero_stage=zero, global_batch=16, recipe=recipe)


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32", "fp8"])
def test_a_number_format_is_in_the_files_or_refused(target: str, precision: str) -> None:
    words = FORMATS[target]
    assert (precision in words) == (precision in capability_of(target).precisions)
    if precision not in words:
        with pytest.raises(Inexpressible, match="precision"):
            bundle(plain(target, precision), target)
        return
    text = "".join(bundle(plain(target, precision), target).files.values())
    others = [word for name, word in words.items() if name not in (precision, "fp8") and word]
    if (word := words[precision]) is not None:
        assert word in text
    elif others:
        assert not any(word in text for word in others)


def test_a_capacity_is_in_the_files_or_refused() -> None:
    made = job(
        "mixtral-8x7b", data=8, expert=8, zero_stage=1, global_batch=16,
        recipe=Recipe(capacity_factor=1.25),
    )  # fmt: skip
    for target in TARGETS:
        try:
            files = bundle(made, target).files
        except Inexpressible as error:
            assert error.target == target
        else:
            text = "".join(files.values())
            assert "1.25" in text or target in ("pytorch", "deepspeed")


def test_replicas_of_experts_alone_are_sharded() -> None:
    made = job(
        "mixtral-8x7b", tensor=8, expert=2, expert_tensor=1, zero_stage=3, global_batch=8,
        sequence_parallel=True,
    )  # fmt: skip
    text = bundle(made, "megatron").files["megatron_args.sh"]
    assert read_megatron(text, Beside(vocabulary=32_000)).zero == 3


@pytest.mark.parametrize(
    ("data", "nodes", "each"), [(4, 1, 4), (8, 1, 8), (12, 2, 6), (16, 2, 8), (10, 2, 5)]
)
def test_as_many_processes_start_as_the_plan_has_devices(data: int, nodes: int, each: int) -> None:
    made = job("gpt2", data=data, zero_stage=1, global_batch=2 * data, sequence_length=512)
    files = write(made, STAMP, "megatron", launcher=Launcher.SLURM).files
    assert f'"${{NUM_NODES:-{nodes}}}" --nproc-per-node {each} ' in files["launch.sh"]
    assert f"#SBATCH --nodes={nodes}\n" in files["launch.slurm"]
    assert f"#SBATCH --gpus-per-node={each}\n" in files["launch.slurm"]


@pytest.mark.parametrize("script", ["launch.sh", "launch.slurm"])
def test_our_own_scripts_read_back(tmp_path, script: str) -> None:
    made = job("llama3-8b", tensor=4, data=4, zero_stage=1, global_batch=16, sequence_parallel=True)
    for name, text in write(made, STAMP, "megatron", launcher=Launcher.SLURM).files.items():
        (tmp_path / name).write_text(text)
    text = (tmp_path / script).read_text()
    run = read_megatron(text, Beside(folder=tmp_path, name=script, vocabulary=128_256))
    assert (run.tp, run.num_devices, run.zero, run.global_batch) == (4, 16, 1, 16)
    assert run.unknown == ()
    assert run.overlap == {"gradients": 0.9, "parameters": 0.9}


def test_a_pipeline_of_torchtitan_takes_the_batch_in_microbatches() -> None:
    made = job(
        "llama3-8b", pipeline=2, data=2, zero_stage=0, global_batch=32, microbatch_size=2
    )  # fmt: skip
    text = bundle(made, "torchtitan@0.2").files["torchtitan.toml"]
    stated = dict(re.findall(r"^(\w+) = (\d+)$", text, re.MULTILINE))
    assert stated["local_batch_size"] == "16"  # 8 microbatches of 2 on each replica
    assert stated["pipeline_parallel_microbatch_size"] == "2"
    assert stated["global_batch_size"] == "32"
    run = read_torchtitan(text)
    assert (run.micro_batch, run.batch_per_replica, run.global_batch) == (2, 16, 32)


def test_torchtitan_keeps_an_encoder_that_it_knows_beside_the_embedding() -> None:
    sizes = {"pipeline": 2, "data": 1, "zero_stage": 0, "global_batch": 4}
    made = job("kimi-k2.5", **sizes)
    text = bundle(made, "torchtitan@0.3").files["trainwright_config.py"]
    assert "from torchtitan.models.kimi_k2_7.config_registry import kimi_k2_5 as base" in text
    assert "[['vision_encoder', 'tok_embeddings', 'layers.0'," in text
    assert text.count("vision_encoder") == 1
    with pytest.raises(Inexpressible, match="no list of layers here names"):
        bundle(made, "torchtitan@0.2")
    with pytest.raises(Inexpressible, match="cp: must be 1"):
        bundle(job("kimi-k2.5", **(sizes | {"zero_stage": 2}), context=2), "torchtitan@0.3")


def test_a_model_is_registered_whatever_of_it_a_run_leaves_out() -> None:
    """Torchtitan has no layers for further tokens: plans for it leave them out, and say so."""
    sizes = {"pipeline": 2, "data": 1, "zero_stage": 0, "global_batch": 4}
    made = replace(job("kimi-k2.5", **sizes), model_name="qwen3.5-27b, no MTP layers")
    text = bundle(made, "torchtitan@0.3").files["trainwright_config.py"]
    assert "from torchtitan.models.qwen3_5.config_registry import qwen35_27b as base" in text
    own = job("nemotron-3-nano-30b-a3b", **sizes)
    asked = bundle(own, "torchtitan@0.3").asked_of_user[0]
    assert asked.endswith("torchtitan@0.3 has none with these recurrences")


def test_an_inner_stage_without_a_block_is_refused_by_its_option() -> None:
    with pytest.raises(InvalidInput, match="blocks: must give a block to every inner stage"):
        trainwright.estimate(
            "gpt2", cluster="dgx-h100", pp=4, dp=1, global_batch=8, sequence=512,
            blocks=[6, 0, 0, 6],
        )  # fmt: skip


OFFLOADS = {
    "megatron": "--optimizer-offload-fraction 0.5",
    "megatron-bridge": "optimizer.optimizer_offload_fraction=0.5",
    "primus": "optimizer_offload_fraction: 0.5",
    "deepspeed": '"offload_optimizer"',
}


@pytest.mark.parametrize("target", TARGETS)
def test_optimizer_states_on_the_host_are_in_the_files_or_refused(target: str) -> None:
    zero = 3 if target.startswith(FSDP) else 1
    recipe = Recipe(offload=Offload(optimizer=0.5))
    moved = job("llama3-8b", data=8, zero_stage=zero, global_batch=16, recipe=recipe)
    able = capability_of(target).can(Feature.OFFLOAD)
    if not able:
        with pytest.raises(Inexpressible, match="offload"):
            bundle(moved, target)
    elif target in OFFLOADS:
        assert OFFLOADS[target] in "".join(bundle(moved, target).files.values())


def test_a_share_of_the_optimizer_on_the_host_is_read_back() -> None:
    recipe = Recipe(offload=Offload(optimizer=0.5))
    moved = job("llama3-8b", data=8, zero_stage=1, global_batch=16, recipe=recipe)
    script = bundle(moved, "megatron").files["megatron_args.sh"]
    assert read_megatron(script, Beside()).on_host == {"optimizer": 0.5}


ADAPTERS = LowRank(rank=16, targets=("query", "value"), dropout=0.05)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bits", [None, 4, 8])
def test_adapters_are_in_the_files_or_refused(
    target: str, bits: int | None, tmp_path: Path
) -> None:
    zero = 3 if target.startswith(FSDP) else 1
    made = job("llama3-8b", data=8, zero_stage=zero, global_batch=16)
    low_rank = replace(ADAPTERS, bits=bits)
    made = replace(made, model=replace(made.model, tuning=Tuning(low_rank=low_rank)))
    try:
        found = bundle(made, target)
    except Inexpressible as error:
        assert error.faults[0].path in ("lora_rank", "weight_bits")
        assert target not in ("trl", "axolotl", "llamafactory")
        return
    if target not in ("trl", "axolotl", "llamafactory", "automodel"):
        assert any("adapted" in each for each in found.asked_of_user)
        return
    for name, text in found.files.items():
        (tmp_path / name).write_text(text)
    name = "sft.yaml" if target == "trl" else f"{target}.yaml"
    run = read(target, found.files[name], Beside(folder=tmp_path, name=name))
    stated = (run.lora_rank, run.lora_targets, run.lora_dropout, run.weight_bits)
    assert stated == (16, ("query", "value"), 0.05, bits)
    assert run.unknown == ()


@pytest.mark.parametrize("target", TARGETS)
def test_formats_of_optimizer_states_are_in_the_files_or_refused(target: str) -> None:
    zero = 3 if target.startswith(FSDP) else 1
    recipe = Recipe(main_weight_dtype="none", moment_dtypes=("bf16",))
    made = job("llama3-8b", data=8, zero_stage=zero, global_batch=16, recipe=recipe)
    try:
        found = bundle(made, target)
    except (Inexpressible, InvalidInput) as error:
        assert {fault.path for fault in error.faults} <= {"main_weight_dtype", "moment_dtypes"}
    else:
        said = " ".join(found.not_represented)
        assert target == "pytorch" or "number formats of gradients and optimizer state" in said


# Every choice of a plan, held against every target
# --------------------------------------------------
# A choice that changes the bundle is written, or noted by name; one that changes nothing is silent.

USUAL = {
    "precision": ["fp16", "fp32", "fp8", "tf32", "mxfp8", "nvfp4"],
    "optimizer": [each for each in Optimizer if each is not Optimizer.ADAM],
    "gradient_dtype": ["bf16"],
    "reduce_dtype": ["bf16"],
    "main_weight_dtype": ["none", "bf16"],
    "moment_dtypes": [("bf16",), ("int8",), ("fp32", "bf16")],
    "dropout": [0.1],
    "context_exchange": [ContextExchange.ALL_GATHER, ContextExchange.ALL_TO_ALL],
    "ulysses": [2],
    "context_balanced": [False],
    "capacity_factor": [1.25],
    "dispatch_dtype": ["fp8"],
    "token_dispatcher": [TokenDispatcher.HIERARCHICAL],
    "activation_input_dtype": ["fp8"],
    "fused_update": [False],
    "update_in_backward": [True],
    "loss_chunk": [256, 1024],
    "mlp_tile": [4096],
    "cuda_graph": [CudaGraph.LOCAL, CudaGraph.FULL_ITERATION],
    "cuda_graph_modules": [("attn",)],
    "offload": [
        Offload(activations=1.0), Offload(optimizer=1.0), Offload(optimizer=0.5),
        Offload(gradients=1.0), Offload(weights=1.0),
    ],
    "offload_modules": [("core_attn",), ("core_attn", "attn_proj")],
}  # fmt: skip
RUN = {
    "microbatch_size": [1],
    "global_batch": [128],
    "sequence_length": [8192],
    "schedule": ["gpipe", "zb-h1", "interleaved"],
    "recompute": [Recompute.FULL, Recompute.SELECTIVE],
    "recompute_blocks": [3],
    "recompute_modules": [("norm",), ("attention_core",)],
    "blocks_per_stage": [(17, 15)],
    "fused_attention": [False],
    "fused_cross_entropy": [True],
    "vocabulary_multiple": [4096],
}
DEGREES = {
    "tensor": [2],
    "pipeline": [2],
    "data": [4],
    "context": [2],
    "expert": [2],
    "expert_tensor": [1],
    "virtual_stages": [2],
    "sequence_parallel": [False],
    "zero_stage": [0, 2],
    "state_copies": [2],
    "axis_order": [PIPELINE_INSIDE],
}
OVERLAPS = {
    "gradients": [0.0], "parameters": [0.0], "tensor": [0.5], "experts": [0.5], "pipeline": [0.0],
    "host": [0.0],
}  # fmt: skip
# What is expected of the data or of a device, and nothing that a program is told.
EXPECTED = {"expert_imbalance", "expert_loads"}
BESIDE = {
    "schedule": {"pipeline": 2, "data": 4},
    "blocks_per_stage": {"pipeline": 2, "data": 4},
    "recompute_blocks": {"recompute": Recompute.FULL},
    "recompute_modules": {"recompute": Recompute.SELECTIVE},
    "virtual_stages": {"pipeline": 2, "data": 4},
    "axis_order": {"pipeline": 2, "data": 4},
    "sequence_parallel": {"tensor": 2, "data": 4, "sequence_parallel": True},
    "context_exchange": {"context": 2, "data": 4},
    "ulysses": {"context": 4, "data": 2},
    "context_balanced": {"context": 2, "data": 4},
    "tensor": {"sequence_parallel": True},
    "pipeline": {"zero_stage": 1},
    "capacity_factor": {"expert": 4},
    "dispatch_dtype": {"expert": 4},
    "token_dispatcher": {"expert": 4},
    "expert_tensor": {"expert": 4, "tensor": 2, "data": 4, "sequence_parallel": True},
}
RECIPE_BESIDE = {
    "ulysses": {"context_exchange": ContextExchange.ALL_TO_ALL_RING},
    "cuda_graph_modules": {"cuda_graph": CudaGraph.TRANSFORMER_ENGINE},
    "offload_modules": {"offload": Offload(activations=1.0)},
}
OVERLAP_BESIDE = {
    "tensor": {"tensor": 2, "data": 4, "sequence_parallel": True},
    "experts": {"expert": 4},
    "pipeline": {"pipeline": 2, "data": 4},
    "host": {"recipe": Recipe(offload=Offload(activations=1.0)), "recompute": Recompute.FULL},
}
OF_EXPERTS = {
    "capacity_factor", "dispatch_dtype", "token_dispatcher", "expert", "expert_tensor", "experts"
}  # fmt: skip


def test_no_choice_is_left_out_of_the_walk() -> None:
    names = {each.name for each in dataclasses.fields(Configuration)}
    assert names == {*RUN, "parallelism", "recipe", "overlap", "overheads"}
    assert {each.name for each in dataclasses.fields(Recipe)} == {*USUAL, *EXPECTED}
    assert {each.name for each in dataclasses.fields(Parallelism)} == {*DEGREES}
    assert {each.name for each in dataclasses.fields(Overlap)} == {*OVERLAPS}


def both_of(target: str, table: dict, name: str, value: object) -> tuple[Job, Job]:
    """A job that differs from another in a choice alone."""
    zero = 3 if target.startswith(FSDP) else 1
    model = "mixtral-8x7b" if name in OF_EXPERTS else "llama3-8b"
    base = {"data": 8, "zero_stage": zero, "global_batch": 64, "microbatch_size": 2}
    base |= (OVERLAP_BESIDE if table is OVERLAPS else BESIDE).get(name, {})
    changed: dict[str, object] = {name: value}
    if table is USUAL:
        changed = {"recipe": Recipe(**{name: value, **RECIPE_BESIDE.get(name, {})})}
    elif table is OVERLAPS:
        changed = {"overlap": replace(Overlap(), **{name: value})}
    if value == "interleaved":
        changed["virtual_stages"] = 2
    return job(model, **base), job(model, **base | changed)


@pytest.mark.parametrize("target", TARGETS)
def test_no_choice_of_a_plan_is_dropped_in_silence(target: str) -> None:
    silent, told = [], 0
    for table in (USUAL, RUN, DEGREES, OVERLAPS):
        for name, value in ((name, value) for name, values in table.items() for value in values):
            try:
                base, changed = both_of(target, table, name, value)
                without, found = bundle(base, target), bundle(changed, target)
            except (Inexpressible, InvalidInput):
                continue  # refused by name, or what the choice needs is
            told += 1
            if found == without:
                silent.append((name, value))
    assert silent == [], silent
    assert told > 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Further(Recipe):
    """A recipe with a choice that no table of a framework lists."""

    gradient_share: float = 1.0


@pytest.mark.parametrize("target", TARGETS)
def test_a_choice_that_no_table_lists_is_refused_unless_it_is_as_usual(target: str) -> None:
    usual = plain(target, "bf16")
    without, asked = (
        replace(usual, recipe=Further(precision="bf16", gradient_share=share))
        for share in (1.0, 0.25)
    )
    assert bundle(without, target) == bundle(usual, target)
    with pytest.raises(Inexpressible, match=f"gradient_share: 0.25: {target} is not known"):
        bundle(asked, target)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(moment_dtypes=("int8",)),
        Recipe(main_weight_dtype="none", moment_dtypes=("bf16",)),
        Recipe(update_in_backward=True),
        Recipe(offload=Offload(gradients=1.0, weights=1.0)),
        Recipe(loss_chunk=256),
        Further(gradient_share=0.25),
    ],
)
@pytest.mark.parametrize("zero", [1, 3])
def test_targets_that_a_refusal_names_express_the_plan(recipe: Recipe, zero: int) -> None:
    """Where a rule of Megatron forbids it, its arguments say it all the same."""
    made = job("llama3-8b", data=8, zero_stage=zero, global_batch=16, recipe=recipe)
    refused = []
    for target in TARGETS:
        try:
            bundle(made, target)
        except InvalidInput:
            assert target in OF_CORE
        except Inexpressible as error:
            refused.append(target)
            for other in error.alternatives:
                with suppress(InvalidInput):
                    bundle(made, other)
    assert refused


WITH_EXCHANGE = {
    "megatron": "megatron_args.sh",
    "primus": "primus.yaml",
    "torchtitan@0.2": "torchtitan.toml",
    "accelerate": "accelerate.yaml",
    "maxtext": "maxtext.yml",
}


@pytest.mark.parametrize("target", WITH_EXCHANGE)
@pytest.mark.parametrize("kind", [ContextExchange.RING, ContextExchange.ALL_GATHER])
def test_how_context_ranks_exchange_is_read_back(target: str, kind: ContextExchange) -> None:
    zero = 3 if target.startswith(FSDP) else 1
    recipe = Recipe(context_exchange=kind)
    made = job("llama3-8b", data=4, context=2, zero_stage=zero, global_batch=16, recipe=recipe)
    name = WITH_EXCHANGE[target]
    run = read(target.partition("@")[0], bundle(made, target).files[name], Beside(name=name))
    assert (run.context_exchange or "ring") == kind  # Megatron's own where nothing is said
    assert run.unknown == ()


@pytest.mark.parametrize(
    ("sizes", "exchange", "ulysses"),
    [((2, 1), "all_gather", None), ((1, 2), "all_to_all", None), ((2, 2), "all_to_all_ring", 2)],
)
def test_ranks_of_accelerate_that_trade_heads_are_read_as_such(sizes, exchange, ulysses) -> None:
    context, heads = sizes
    text = (
        "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
        f"parallelism_config:\n  parallelism_config_cp_size: {context}\n"
        f"  parallelism_config_sp_size: {heads}\n"
    )
    run = read("accelerate", text)
    assert (run.cp, run.context_exchange, run.ulysses) == (context * heads, exchange, ulysses)
