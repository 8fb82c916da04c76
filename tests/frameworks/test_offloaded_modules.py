"""Activations of layers and of modules on the host: priced, exported to Megatron, read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import trainwright
from export_jobs import bundle, job
from trainwright.cluster import Accelerator
from trainwright.costing.layer import KEEP_ALL, LayerPrice, Platform, layer_prices
from trainwright.errors import Inexpressible, InvalidInput
from trainwright.formats.catalog import cluster, model
from trainwright.frameworks.jobs.bridge import read_bridge
from trainwright.frameworks.jobs.megatron import read_megatron
from trainwright.frameworks.jobs.pretraining import read_primus
from trainwright.frameworks.jobs.settings import Beside
from trainwright.frameworks.read_job import StatedJob, job_of_model
from trainwright.model import LayerKind, Offload, Recipe, RunShape, layer_graph
from trainwright.plans.capability import TARGETS, Feature, capability_of
from trainwright.profile import Recompute

TOKENS = 4096
DEVICE = cluster("dgx-h100").accelerator
NO_HOPS = dict.fromkeys(("tensor", "context", "expert", "expert_tensor"), ())
ALL = Offload(activations=1.0)
OF_ATTENTION = ("core_attn", "attn_proj")
SELECTIVE = {"recompute": Recompute.SELECTIVE, "recompute_modules": ("norm",)}
READERS = {
    "megatron": ("megatron_args.sh", read_megatron),
    "megatron-bridge": ("trainwright_recipe.py", read_bridge),
    "primus": ("primus.yaml", read_primus),
}


def blocks(name: str, recipe: Recipe, device: Accelerator = DEVICE) -> list[LayerPrice]:
    """The price of each class of blocks, of which every tensor is kept."""
    run = RunShape(
        microbatch_size=1,
        sequence_length=TOKENS,
        precision=recipe.numbers("bf16"),
        fused_attention=True,
        **recipe.run_fields,
    )
    platform = Platform(accelerator=device, dtype="bf16", hops=NO_HOPS)
    return [
        price
        for layer in layer_graph(model(name).config, run).classes
        if layer.kind is LayerKind.BLOCK
        for price in layer_prices(layer, run, {Recompute.NONE: KEEP_ALL}, platform)
    ]


def kept_of_blocks(name: str, recipe: Recipe) -> list[float]:
    return [price.activations.kept for price in blocks(name, recipe)]


# What a token leaves on the host, in numbers of two bytes, counted by hand from the tensors that
# autograd keeps inside each module (Llama 3 8B: 4,096 wide, 8 of 32 heads for keys and values).
@pytest.mark.parametrize(
    ("modules", "numbers"),
    [
        (("core_attn",), 4096 + 2 * 1024),
        (OF_ATTENTION, 4096 + 2 * 1024 + 4096),
        (("qkv_linear",), 2 * 4096),  # the norm before it is a part of it
        (("qkv_linear", *OF_ATTENTION), 4 * 4096 + 2 * 1024),
    ],
)
def test_modules_leave_what_they_keep_on_the_host(modules: tuple[str, ...], numbers: int) -> None:
    (whole,) = kept_of_blocks("llama3-8b", Recipe())
    (rest,) = kept_of_blocks("llama3-8b", Recipe(offload=ALL, offload_modules=modules))
    assert whole - rest == 2 * TOKENS * numbers
    half = Recipe(offload=Offload(activations=0.5), offload_modules=modules)
    assert whole - kept_of_blocks("llama3-8b", half)[0] == TOKENS * numbers


def test_norms_of_latent_attention_and_of_experts_are_modules_of_their_own() -> None:
    whole = kept_of_blocks("deepseek-v3", Recipe())
    names = ("attn_norm", "mlp_norm", "expert_fc1", "moe_act")
    moved = [
        [a - b for a, b in zip(whole, kept_of_blocks("deepseek-v3", recipe), strict=True)]
        for recipe in (Recipe(offload=ALL, offload_modules=(name,)) for name in names)
    ]
    of_token = [[each / (2 * TOKENS) for each in every] for every in moved]
    assert of_token[0] == [7168, 7168]
    assert sorted(of_token[1]) == [0, 7168]  # the first blocks are dense
    assert sorted(of_token[2]) == [0, 8 * 7168]
    assert sorted(of_token[3]) == [0, 8 * 2 * 2048]


def step(**given: object) -> tuple[float, float]:
    given = {"tp": 2, "pp": 2, "dp": 2, "global_batch": 32, "sequence": 8192} | given
    found = trainwright.estimate("llama3-8b", cluster="dgx-h100", **given).document
    return found.step_time_s, max(rank.total_bytes for rank in found.memory)


def test_more_modules_hold_less_and_take_no_less_time() -> None:
    chain = [None, ("core_attn",), OF_ATTENTION, ("qkv_linear", *OF_ATTENTION)]
    asked = [
        {} if m is None else {"offload": {"activations": 1.0}, "offload_modules": m} for m in chain
    ]
    found = [step(**each) for each in asked]
    assert [peak for _, peak in found] == sorted((peak for _, peak in found), reverse=True)
    assert len({peak for _, peak in found}) == len(found)
    assert [time for time, _ in found] == sorted(time for time, _ in found)
    everything_s, least = step(offload={"activations": 1.0})
    assert everything_s > found[-1][0]
    assert least < found[-1][1]


def test_an_output_that_two_modules_keep_is_copied_twice() -> None:
    """Over a link so slow that every byte shows."""
    assert DEVICE.host is not None
    slow = replace(DEVICE, host=replace(DEVICE.host, link_bytes_per_s=1e6))

    def block_s(modules: tuple[str, ...]) -> float:
        recipe = Recipe(offload=ALL, offload_modules=modules)
        (price,) = blocks("llama3-8b", recipe, slow)
        return sum(price.phase_s.values())

    moved = {m: block_s(m) * 1e6 / 2 / (2 * TOKENS) for m in (("core_attn",), OF_ATTENTION)}
    assert moved["core_attn",] == pytest.approx(2 * 4096 + 2 * 1024, rel=1e-3)
    assert moved[OF_ATTENTION] == pytest.approx(3 * 4096 + 2 * 1024, rel=1e-3)


def of_modules(name: str, modules: tuple[str, ...], share: float = 1.0, **given: object):
    recipe = Recipe(offload=Offload(activations=share), offload_modules=modules)
    return job(name, zero_stage=1, global_batch=16, recipe=recipe, **given)


@pytest.mark.parametrize("target", READERS)
@pytest.mark.parametrize(
    ("name", "modules", "given"),
    [
        ("llama3-8b", OF_ATTENTION, {"data": 8}),
        ("llama3-8b", ("qkv_linear", "core_attn"), {"pipeline": 2, "tensor": 2, "data": 2}),
        ("llama3-8b", OF_ATTENTION, {"data": 8, **SELECTIVE}),
        ("mixtral-8x7b", ("mlp_norm", "expert_fc1", "moe_act"), {"expert": 8, "data": 8}),
    ],
)
def test_what_is_exported_reads_back(
    target: str, name: str, modules: tuple[str, ...], given: dict, tmp_path: Path
) -> None:
    found = bundle(of_modules(name, modules, sequence_parallel="tensor" in given, **given), target)
    assert found.environment["NVTE_CPU_OFFLOAD_V1"] == "1"
    for each, text in found.files.items():
        (tmp_path / each).write_text(text)
    file, read = READERS[target]
    run = read(found.files[file], Beside(folder=tmp_path, name=file))
    assert (run.on_host, run.offload_modules) == ({"activations": 1.0}, modules)
    assert run.unknown == ()


def test_tensors_that_are_priced_on_the_host_are_large_enough_to_go() -> None:
    """Keys of 1,024 numbers a token, cut in 8, have half of the elements that go by default."""
    given = {"tensor": 8, "data": 1, "sequence_parallel": True, "sequence_length": TOKENS}
    small = bundle(of_modules("llama3-8b", ("core_attn",), **given), "megatron")
    assert f"--min-offloaded-tensor-size {TOKENS * 1024 // 8}\n" in small.files["megatron_args.sh"]
    large = bundle(of_modules("llama3-8b", ("core_attn",), data=8), "megatron")
    assert "--min-offloaded-tensor-size" not in large.files["megatron_args.sh"]


def test_what_core_016_cannot_run_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"a share of 0.5: name fewer modules, or take 0.19"):
        bundle(of_modules("llama3-8b", OF_ATTENTION, 0.5, data=8), "megatron")
    recorded = Recipe(offload=ALL, offload_modules=OF_ATTENTION, cuda_graph="transformer_engine")
    asked = job("llama3-8b", data=8, zero_stage=1, global_batch=16, recipe=recorded)
    with pytest.raises(InvalidInput, match="excludes CUDA graphs before core"):
        bundle(asked, "megatron")


@pytest.mark.parametrize("target", TARGETS)
def test_other_targets_keep_modules_on_the_device(target: str) -> None:
    if capability_of(target).can(Feature.OFFLOAD_MODULES):
        assert target in READERS
        return
    zero = 3 if target.startswith(("torchtitan", "pytorch")) else 1
    made = of_modules("llama3-8b", OF_ATTENTION, data=8)
    made = replace(made, parallelism=replace(made.degrees, zero_stage=zero))
    with pytest.raises(Inexpressible, match=r"core_attn, attn_proj: .*what can: megatron, "):
        bundle(made, target)


def of_layers(name: str, share: float, **given: object):
    given = {"data": 8, "zero_stage": 1, "global_batch": 16} | given
    recipe = given.pop("recipe", Recipe(offload=Offload(activations=share)))
    return job(name, recipe=recipe, **given)


@pytest.mark.parametrize("target", READERS)
def test_blocks_on_the_host_are_refused_with_what_to_do(target: str) -> None:
    asked = job("llama3-8b", data=8, global_batch=16, recompute=Recompute.OFFLOAD)
    with pytest.raises(Inexpressible, match="plan with --offload"):
        bundle(asked, target)


@pytest.mark.parametrize("target", READERS)
@pytest.mark.parametrize(
    ("name", "count", "given"),
    [
        ("llama3-8b", 12, {}),
        ("llama3-8b", 1, {"tensor": 2, "data": 4, "sequence_parallel": True}),
        ("qwen3-30b-a3b", 46, {"expert": 8}),
    ],
)
def test_whole_layers_on_the_host_read_back(
    target: str, name: str, count: int, given: dict, tmp_path: Path
) -> None:
    share = count / model(name).config.num_layers
    found = bundle(of_layers(name, float(f"{share:.6g}"), **given), target)
    assert "NVTE_CPU_OFFLOAD_V1" not in found.environment
    for each, text in found.files.items():
        (tmp_path / each).write_text(text)
    file, read = READERS[target]
    run = read(found.files[file], Beside(folder=tmp_path, name=file))
    stated = StatedJob(name=file, framework=target, run=run, warnings=())
    run = job_of_model(stated, model(name).config).run
    assert run.on_host == {"activations": pytest.approx(share, rel=1e-5)}
    assert (run.offload_modules, run.unknown) == (None, ())


@pytest.mark.parametrize(
    ("name", "share", "given", "said"),
    [
        ("llama3-8b", 0.3, {}, r"9.6 of 32 layers: .*activations=0.28125 or 0.3125"),
        ("llama3-8b", 1.0, {}, r"all but two at most: activations=0.9375"),
        ("llama3-8b", 31 / 32, {}, r"all but two at most: activations=0.9375"),
        ("llama3-8b", 0.5, {"pipeline": 2, "data": 4}, "beside a pipeline: .*one pipeline rank"),
        ("llama3-8b", 0.5, {"recompute": Recompute.FULL}, "beside recomputation: "),
        ("llama3-8b", 0.5, SELECTIVE, "beside recomputation: "),
        ("deepseek-v3", 1 / 61, {"expert": 8}, "keep other amounts than the rest"),
    ],
)
@pytest.mark.parametrize("target", READERS)
def test_what_whole_layers_exclude_is_refused_by_name(
    target: str, name: str, share: float, given: dict, said: str
) -> None:
    with pytest.raises(Inexpressible, match=said):
        bundle(of_layers(name, share, **given), target)


def test_whole_layers_exclude_graphs_and_what_predicts_more_tokens() -> None:
    on_host = Offload(activations=0.5)
    recorded = Recipe(offload=on_host, cuda_graph="transformer_engine")
    with pytest.raises(Inexpressible, match="without CUDA graphs"):
        bundle(of_layers("llama3-8b", 0.5, recipe=recorded), "megatron")
    more = of_layers("llama3-8b", 0.5)
    more = replace(more, model=replace(more.model, num_mtp_layers=1))
    with pytest.raises(Inexpressible, match="multi-token prediction on the device"):
        bundle(more, "megatron")


@pytest.mark.parametrize(("layers", "moved"), [(32, 1), (32, 12), (32, 30), (5, 3)])
def test_what_waits_of_whole_layers_is_what_a_share_of_all_leaves(layers: int, moved: int) -> None:
    """Transformer Engine's own order of events, layer by layer, with what each holds as 1.

    DefaultOffloadSynchronizer of transformer_engine/pytorch/cpu_offload.py (2.10): layer i is let
    go before layer N - k + i starts, and comes back when layer N - 1 - k + i starts backward.
    """
    held, peak = set[int](), 0
    for layer in range(layers):
        held -= {gone for gone in range(moved) if layers - moved + gone == layer}
        held.add(layer)
        peak = max(peak, len(held))
    for layer in reversed(range(layers)):
        held |= {back for back in range(moved) if layers - 1 - moved + back == layer}
        assert layer in held
        peak = max(peak, len(held))
        held.remove(layer)
    (whole,) = kept_of_blocks("llama3-8b", Recipe())
    (rest,) = kept_of_blocks("llama3-8b", Recipe(offload=Offload(activations=moved / layers)))
    assert layers * rest == pytest.approx(peak * whole)


def test_a_plan_of_megatron_leaves_whole_layers_on_the_host(tmp_path: Path) -> None:
    """On one pipeline rank, without recomputation, where the count of layers is whole."""
    asked = {"cluster": "dgx-h100", "global_batch": 64, "sequence": 8192, "framework": "megatron"}
    found = trainwright.plan("llama3-8b", offload={"activations": 0.25}, **asked)
    assert found.document.status == "optimal"
    trainwright.export(found, "megatron", output=tmp_path)
    text = (tmp_path / "megatron_args.sh").read_text()
    assert "--cpu-offloading-num-layers 8\n" in text
    assert "--pipeline-model-parallel-size 1\n" in text
    assert "recompute" not in text
    for given, said in (
        ({"pp": 2}, "beside a pipeline"),
        ({"recompute": ("full",)}, "must list none"),
        ({"offload": {"activations": 1.0}}, "activations=0.9375"),
    ):
        with pytest.raises(InvalidInput, match=said):
            trainwright.plan("llama3-8b", **({"offload": {"activations": 0.25}} | given), **asked)


def test_orders_that_copy_are_refused_with_what_moves_beside_their_computation() -> None:
    asked = job("llama3-8b", pipeline=4, data=2, global_batch=16, schedule="po-f")
    with pytest.raises(Inexpressible, match="with --schedule 1f1b it moves what --offload-modules"):
        bundle(asked, "megatron")


ARGUMENTS = """\
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --bf16 \\
 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 16 \\
 --tokenizer-type NullTokenizer --vocab-size 32000 --swiglu {more}
"""
SWITCH = "--fine-grained-activation-offloading"


def test_modules_of_a_job_are_priced_and_the_rest_is_named() -> None:
    more = f"{SWITCH} --offload-modules attn_norm qkv_linear core_attn gdp_qkv moe_act"
    run = read_megatron(ARGUMENTS.format(more=f"{more} --activation-offload-fraction 0.8"))
    assert (run.on_host, run.offload_modules) == ({"activations": 0.8}, ("qkv_linear", "core_attn"))
    said = [note for note in run.notes if "offload-modules" in note]
    assert said == [
        "--offload-modules attn_norm moves nothing of such a model",
        "--offload-modules moe_act moves nothing of such a model",
        "--offload-modules gdp_qkv is not priced",
    ]
    assert run.unknown == ()
    off = read_megatron(ARGUMENTS.format(more="--offload-modules core_attn"))
    assert (off.on_host, off.offload_modules) == ({}, None)


@pytest.mark.parametrize(
    "beside",
    [f"{SWITCH} --offload-modules core_attn", "--cuda-graph-impl transformer_engine"],
)
def test_a_job_that_excludes_full_recomputation_is_improved(beside: str, tmp_path: Path) -> None:
    job_file = tmp_path / "job.sh"
    job_file.write_text(ARGUMENTS.format(more=f"--tensor-model-parallel-size 4 {beside}"))
    found = trainwright.improve(job_file, cluster="dgx-h100", framework="megatron").document
    assert found.changes
    assert not any("--recompute full" in change.options for change in found.changes)


# Megatron-LM's functional tests, tests/functional_tests/test_cases/moe of core_v0.16.1, on 8 H100:
# gpt3_moe_mcore_te_tp2_pp2_ep4_etp1(_no_mtp_no_a2a_ovlp)_fine_grained_offloading, whose last rank
# logs `mem-max-allocated-bytes` (the last entry of golden_values_dev_dgx_h100.json).
OWN_TEST = r"""
MODEL_ARGS:
  --num-layers: 15
  --moe-layer-freq: ([0]*3+[1]*12)
  --pipeline-model-parallel-layout: {layout} # as a shell wants it
  --hidden-size: 1024
  --ffn-hidden-size: 4096
  --num-attention-heads: 32
  --kv-channels: 128
  --seq-length: 4096
  --micro-batch-size: 1
  --global-batch-size: 8
  --tensor-model-parallel-size: 2
  --sequence-parallel: true
  --pipeline-model-parallel-size: 2
  --expert-model-parallel-size: 4
  --expert-tensor-parallel-size: 1
  --use-distributed-optimizer: true
  --attention-backend: unfused
  --recompute-granularity: selective
  --recompute-modules: "[layernorm mla_up_proj mlp moe_act]"
  --make-vocab-size-divisible-by: 3232
  --normalization: RMSNorm
  --swiglu: true
  --disable-bias-linear: true
  --untie-embeddings-and-output-weights: true
  --multi-latent-attention: true
  --qk-layernorm: true
  --q-lora-rank: 1536
  --kv-lora-rank: 512
  --qk-head-dim: 128
  --qk-pos-emb-head-dim: 64
  --v-head-dim: 128
  --num-experts: 32
  --moe-ffn-hidden-size: 1024
  --moe-shared-expert-intermediate-size: 1024
  --moe-router-topk: 4
  --moe-router-group-topk: 2
  --moe-router-num-groups: 4
  --moe-grouped-gemm: true
  --moe-token-dispatcher-type: alltoall
  --attention-dropout: 0.0
  --hidden-dropout: 0.0
  --position-embedding-type: rope
  --bf16: true
{more}"""
MOVED = """\
  --fine-grained-activation-offloading: true
  --offload-modules: "[expert_fc1 moe_act attn_norm mlp_norm qkv_linear core_attn attn_proj]"
"""


@pytest.mark.parametrize(
    ("layout", "more", "measured_bytes"),
    [
        (r"Et*3\\|\\(tt\\|\\)*6L", "", 7_202_046_464),
        (r"Et*3\\|\\(tt\\|\\)*6mL", "  --mtp-num-layers: 1\n", 8_255_527_424),
    ],
)
def test_peaks_of_megatrons_own_tests_are_near(
    layout: str, more: str, measured_bytes: int, tmp_path: Path
) -> None:
    """Kept on the device, their activations would take 1.8 times the memory."""
    peaks = []
    for name, moved in (("moved", MOVED), ("kept", "")):
        file = tmp_path / f"{name}.yaml"
        file.write_text(OWN_TEST.format(layout=layout, more=more + moved))
        found = trainwright.estimate(
            source=("megatron", file), cluster="dgx-h100", vocab_size=50257, software="megatron"
        ).document
        peaks.append(found.memory[-1].total_bytes)
    assert peaks[0] == pytest.approx(measured_bytes, rel=0.06)
    assert peaks[1] > 1.8 * measured_bytes


def test_a_plan_leaves_modules_on_the_host_and_is_exported(tmp_path: Path) -> None:
    asked = {"cluster": "dgx-h100", "global_batch": 64, "sequence": 8192, "framework": "megatron"}
    given = {"offload": {"activations": 1.0}, "offload_modules": OF_ATTENTION}
    with pytest.raises(InvalidInput, match="must not list full where modules leave theirs"):
        trainwright.plan("llama3-8b", **asked, **given, recompute=["none", "full"])
    found = trainwright.plan("llama3-8b", **asked, **given)
    trainwright.export(found, "megatron", output=tmp_path)
    assert "--offload-modules core_attn attn_proj\n" in (tmp_path / "megatron_args.sh").read_text()
    found.save(tmp_path / "plan.json")
    assert found.document.request.recipe.offload_modules == OF_ATTENTION
    assert trainwright.explain(tmp_path / "plan.json").document  # priced again, or refused


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"offload_modules": ("core_attn",)}, "needs --offload activations=SHARE beside it"),
        ({"offload_modules": ("attn_proj",)}, "must name core_attn beside attn_proj"),
        ({"offload_modules": ("moe_act",)}, "must not name moe_act of a model without experts"),
        ({"offload_modules": ("attn_norm",)}, "must not name attn_norm, which is part of"),
        ({"offload_modules": ("mlp",)}, 'must be one of attn_norm, .*, got "mlp"'),
        ({"offload_modules": ("core_attn",), "recompute": "full"}, "must not be full where"),
    ],
)
def test_modules_that_cannot_be_are_refused(given: dict, said: str) -> None:
    beside = {} if len(given["offload_modules"]) == 1 and "SHARE" in said else {"activations": 1.0}
    with pytest.raises(InvalidInput, match=said):
        step(**({"offload": beside} if beside else {}), **given)
