"""The three figures of memory: laws, and layouts that ran or ran out of memory."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainwright as tw
from trainwright.cluster import Accelerator, Cluster, Pool
from trainwright.cluster.framework_memory import Figure, FrameworkMemory, Share, figure_in
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.formats.calibration_toml import framework_memories, framework_memory
from trainwright.model import Recipe, layer_graph
from trainwright.model.config import TransformerConfig
from trainwright.plans import Parallelism, StepPrediction
from trainwright.plans.configuration import USUAL_OVERHEADS, Configuration, run_shape
from trainwright.profile import Recompute
from trainwright.step.figures import (
    MemoryFigures,
    figures_of,
    fullest_figures,
    memory_figures,
    missing_bytes,
    num_groups,
    phase_memories,
    start_bytes,
)
from trainwright.step.predict import price_configuration
from trainwright.units import GIB

FIGURES = (Figure.ALLOCATED, Figure.RESERVED, Figure.DEVICE)


@pytest.mark.parametrize("account", framework_memories(), ids=lambda account: account.name)
def test_every_field_that_an_account_sets_has_a_source(account: FrameworkMemory) -> None:
    plain = {"name", "software", "sources"}
    empty = FrameworkMemory(
        name="",
        allocated=account.allocated,
        reserved=account.reserved,
        context_bytes=0,
        communicator_bytes=0,
        sources={},
    )
    names = FrameworkMemory.__dataclass_fields__.keys() - plain
    own = {name for name in names if getattr(account, name) != getattr(empty, name)}
    assert own | {"allocated", "reserved"} == set(account.sources)


@pytest.mark.parametrize(
    ("program", "account"),
    [
        ("megatron-deepspeed", "deepspeed"),
        ("Megatron-LM", "megatron"),
        ("torchtitan@0.3", "fsdp2"),
        ("fms-fsdp", "fsdp2"),
        ("trl", "hugging-face"),
        ("transformers", "hugging-face-peft"),
        ("trl with deepspeed", "hugging-face-deepspeed"),
        ("llamafactory", "hugging-face-deepspeed"),
        ("llamafactory with fsdp1", "hugging-face-fsdp1"),
        ("transformers with fsdp1", "hugging-face-fsdp1"),
        ("nanotron", "nanotron"),
        ("maxtext", "xla"),
        ("something else", "typical"),
        (None, "typical"),
    ],
)
def test_programs_have_the_account_of_their_framework(program: str | None, account: str) -> None:
    assert framework_memory(program).name == account


def test_a_note_says_which_figure_was_measured() -> None:
    assert figure_in("nvidia-smi snapshot, with CUDA context") is Figure.DEVICE
    assert figure_in("max_memory_reserved, worst rank") is Figure.RESERVED
    assert figure_in("torch.cuda.max_memory_allocated") is Figure.ALLOCATED
    assert figure_in("torch peak (allocated or reserved not stated)") is None
    assert figure_in(None) is None


def test_a_range_must_rise() -> None:
    with pytest.raises(InvalidInput, match="must rise from low over typical to high"):
        Share(low=1.1, typical=1.0, high=1.2)


sizes = st.floats(min_value=1e6, max_value=1e12)
accounts = st.sampled_from(framework_memories())


@given(sizes, sizes, accounts, st.integers(1, 64), st.integers(1, 64))
def test_more_is_held_from_figure_to_figure_and_with_more_bytes(
    one: float, other: float, account: FrameworkMemory, data: int, tensor: int
) -> None:
    degrees = Parallelism(data=data, tensor=tensor)
    less, more = (figures_of(size, account, degrees) for size in sorted((one, other)))
    for end in ("low_bytes", "typical_bytes", "high_bytes"):
        ends = [getattr(less.of(figure), end) for figure in FIGURES]
        assert ends == sorted(ends)
        assert all(getattr(less.of(f), end) <= getattr(more.of(f), end) for f in FIGURES)


@given(sizes, accounts)
def test_the_probability_of_fitting_is_that_of_the_range(
    size: float, account: FrameworkMemory
) -> None:
    found = figures_of(size, account, Parallelism(data=8))
    assert found.fit_probability(found.device.typical_bytes) == pytest.approx(0.5)
    assert found.fit_probability(found.device.high_bytes) == pytest.approx(0.95)
    assert found.fit_probability(found.device.low_bytes) == pytest.approx(0.05)
    assert found.fit_probability(0) == 0
    assert found.fit_probability(math.inf) == 1


@given(sizes, sizes, accounts, st.floats(min_value=1, max_value=1e12))
def test_what_is_needed_is_at_most_what_a_large_device_shows(
    size: float, update: float, account: FrameworkMemory, limit: float
) -> None:
    found = figures_of(size, account, Parallelism(data=8), update_bytes=update)
    plain = figures_of(size, account, Parallelism(data=8))
    assert found.needed == plain.needed == plain.device  # what is cached can be given back
    assert found.device.typical_bytes > found.needed.typical_bytes
    here = found.on_device(limit)
    assert found.needed.typical_bytes <= here.device.typical_bytes <= found.device.typical_bytes
    assert here.device.typical_bytes <= max(limit, found.needed.typical_bytes)
    assert here.fit_probability(limit) == found.fit_probability(limit)


def test_groups_are_the_degrees_above_one() -> None:
    assert num_groups(Parallelism()) == 0
    assert num_groups(Parallelism(data=8)) == 1
    assert num_groups(Parallelism(tensor=2, pipeline=2, data=2)) == 3
    assert num_groups(Parallelism(context=2)) == 2  # replicas reduce over it, too


def test_gradients_that_are_scattered_as_they_are_made_pass_through_two_buckets() -> None:
    cluster = catalog.cluster("dgx-h100").with_nodes(1)
    model, account = catalog.model("llama3-8b").config, framework_memory("deepspeed")

    def beside(stage: int) -> float:
        """What the account adds to the predicted peak, by ZeRO stage."""
        run = Configuration(
            parallelism=Parallelism(data=8, zero_stage=stage),
            microbatch_size=1,
            global_batch=8,
            sequence_length=8192,
            recompute=Recompute.FULL,
            recipe=Recipe(gradient_dtype="bf16", main_weight_dtype="none"),
        )
        step = price_configuration(model, cluster, run)
        found = memory_figures(model, run, step, account, device=cluster.accelerator)[0]
        return found.allocated.typical_bytes - step.peak_memory_bytes

    assert beside(2) - beside(1) == pytest.approx(2 * 2 * 5e8)
    assert beside(3) == pytest.approx(beside(2))


# Layouts of 176 to 206 billion parameters that were tried before BLOOM was trained, as nvidia-smi
# showed the fullest node in GB of 2**30 bytes, or that ran out of memory. None of these rows is in
# a table that a constant was taken from. Source: github.com/bigscience-workshop/bigscience,
# train/tr11-176B-ml/chronicles-prequel.md, tables of 2022-02-25 and 02-28; 384 A100 of 80 GB. One
# more ran out there, with 206 billion parameters (82 blocks, 8 x 4 x 12): by this account it fits,
# as does the one of 203 billion that took 67 GB on the same degrees. The source does not say why.
RAN_OUT = math.inf
TRIED = [
    # blocks, hidden, heads, dtype; dp, tp, pp, microbatch, GB
    (72, 14336, 64, "fp16", 6, 8, 8, 4, 52),
    (72, 14336, 64, "fp16", 12, 8, 4, 2, 53),
    (72, 14336, 64, "fp16", 12, 8, 4, 4, 59),
    (72, 14336, 64, "fp16", 24, 8, 2, 1, 65),
    (72, 14336, 64, "fp16", 24, 8, 2, 2, 76),
    (72, 14336, 64, "fp16", 48, 8, 1, 1, RAN_OUT),
    (72, 14336, 64, "fp16", 8, 4, 12, 4, 60),
    (72, 14336, 64, "fp16", 8, 4, 12, 2, 44),
    (72, 14336, 64, "fp16", 16, 4, 6, 4, 75),
    (72, 14336, 64, "fp16", 16, 4, 6, 2, 57),
    (72, 14336, 64, "fp16", 16, 2, 12, 2, 63),
    (72, 14336, 64, "fp16", 32, 2, 6, 2, RAN_OUT),
    (72, 14336, 64, "fp16", 32, 2, 6, 1, RAN_OUT),
    (72, 14336, 64, "fp16", 8, 2, 24, 1, 44),
    (72, 14336, 64, "fp16", 8, 2, 24, 2, 53),
    (100, 12288, 64, "bf16", 16, 4, 6, 2, RAN_OUT),
    (100, 12288, 64, "bf16", 16, 4, 6, 1, RAN_OUT),
    (100, 12288, 64, "bf16", 8, 8, 6, 2, 61),
    (100, 12288, 64, "bf16", 8, 8, 6, 4, 72),
    (94, 13312, 128, "bf16", 8, 4, 12, 2, 67),
    (70, 14336, 64, "bf16", 4, 8, 12, 2, 40),
    (70, 14336, 64, "bf16", 8, 4, 12, 2, 59),
    (70, 14336, 64, "bf16", 8, 4, 12, 4, 73),
]
A100 = catalog.cluster("dgx-a100").with_nodes(48)


def tried(blocks: int, hidden: int, heads: int) -> TransformerConfig:
    return replace(
        catalog.model("bloom-176b").config,
        num_layers=blocks,
        hidden_size=hidden,
        ffn_size=4 * hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_size=hidden // heads,
        vocabulary_size=250880,
    )


def fullest(row: tuple[int, int, int, str, int, int, int, int, float]) -> MemoryFigures:
    blocks, hidden, heads, dtype, data, tensor, pipeline, microbatch, _ = row
    model, split = tried(blocks, hidden, heads), None
    if dtype == "bf16" and blocks % pipeline:  # embedding and head count as a block each
        each = (blocks + 2) // pipeline
        split = (each - 1, *([each] * (pipeline - 2)), each - 1)
    run = Configuration(
        parallelism=Parallelism(tensor=tensor, pipeline=pipeline, data=data, zero_stage=1),
        microbatch_size=microbatch,
        global_batch=2048 // (microbatch * data) * microbatch * data,
        sequence_length=2048,
        recompute=Recompute.FULL,
        blocks_per_stage=split,
        fused_attention=False,
        vocabulary_multiple=1,
        recipe=Recipe(precision=dtype, gradient_dtype="fp16" if dtype == "fp16" else "fp32"),
    )
    step = price_configuration(model, A100, run)
    account = framework_memory("deepspeed")
    ranks = memory_figures(model, run, step, account, device=A100.accelerator)
    return max(ranks, key=lambda rank: rank.device.typical_bytes)


@pytest.mark.slow
def test_layouts_of_megatron_deepspeed_that_ran_are_within_10_percent() -> None:
    ran = [row for row in TRIED if row[-1] is not RAN_OUT]
    errors = [fullest(row).device.typical_bytes / (row[-1] * GIB) - 1 for row in ran]
    assert sum(map(abs, errors)) / len(errors) < 0.07
    too_small = [fullest(row).device.high_bytes * 1.05 < row[-1] * GIB for row in ran]
    assert not any(too_small)


@pytest.mark.slow
def test_layouts_that_ran_out_of_memory_do_not_fit_and_those_that_ran_do() -> None:
    limit = A100.accelerator.memory_bytes
    for row in TRIED:
        probability = fullest(row).fit_probability(limit)
        assert probability < 0.5 if row[-1] is RAN_OUT else probability > 0.5, row


def started(stage: int, **degrees: int) -> Configuration:
    return Configuration(
        parallelism=Parallelism(zero_stage=stage, sequence_parallel=True, tensor=8, **degrees),
        microbatch_size=1,
        global_batch=128,
        sequence_length=4096,
        schedule="interleaved" if degrees.get("virtual_stages", 1) > 1 else "1f1b",
        recompute=Recompute.FULL,
        overheads=USUAL_OVERHEADS,
    )


def test_megatron_holds_weights_twice_before_its_first_step() -> None:
    """2 bytes of weight, 2 of the buffer it is copied to, 4 of gradient, of each parameter."""
    cluster, model = catalog.cluster("dgx-h100").with_nodes(64), catalog.model("llama3-70b").config
    device, account = cluster.accelerator, framework_memory("megatron-core")
    run = started(1, data=64)
    step = price_configuration(model, cluster, run)
    held = step.stages[0].memory
    start = start_bytes(run, held, device, account)
    assert start == pytest.approx(2 * held.weight_bytes + held.gradient_bytes)
    assert start > step.peak_memory_bytes  # states are sharded 64 ways, nothing is kept
    shown = fullest_figures(model, run, step, device, account)
    assert shown.allocated.typical_bytes == start
    phases = phase_memories(model, run, step, device, account)
    assert [each.phase for each in phases] == ["initialisation", "step", "checkpoint"]
    assert phases[1].device_bytes == step.peak_memory_bytes
    # A device between the two has no room for the start, so the run does not fit.
    tight = replace(device, memory_bytes=start, usable_fraction=1.0)
    assert missing_bytes(model, run, step, tight, account) > 0
    assert missing_bytes(model, run, step, tight, framework_memory(None)) <= 0
    alone = started(0, data=64)
    assert start_bytes(alone, held, device, account) == 0  # gradients have no weights beside them


def test_chunks_of_a_rank_are_copied_one_after_the_other() -> None:
    cluster, model = catalog.cluster("dgx-h100").with_nodes(16), catalog.model("llama3-70b").config
    account, found = framework_memory("megatron-core"), {}
    for chunks in (1, 4):
        run = started(1, data=4, pipeline=4, virtual_stages=chunks)
        held = price_configuration(model, cluster, run).stages[1].memory
        copied = start_bytes(run, held, cluster.accelerator, account)
        found[chunks] = (copied - held.gradient_bytes) / held.weight_bytes
    assert found == {1: pytest.approx(2), 4: pytest.approx(1.25)}


@pytest.mark.parametrize(("name", "built"), [("llama3-8b", True), ("llama3-70b", False)])
def test_deepspeed_builds_a_model_whole_where_it_fits(name: str, built: bool) -> None:
    cluster, model = catalog.cluster("dgx-h100").with_nodes(8), catalog.model(name).config
    run = replace(started(3, data=8), parallelism=Parallelism(data=64, zero_stage=3))
    step = price_configuration(model, cluster, run)
    account = framework_memory("deepspeed")
    start = start_bytes(run, step.stages[0].memory, cluster.accelerator, account)
    whole = 2 * layer_graph(model, run_shape(run, precision="bf16")).num_parameters
    assert start == (pytest.approx(whole, rel=1e-3) if built else 0)
    phases = phase_memories(model, run, step, cluster.accelerator, account)
    assert phases[-1].host_bytes == pytest.approx(whole, rel=1e-3)


# Layouts of MaxText that ran, with their chip. Source: github.com/AI-Hypercomputer/maxtext,
# src/maxtext/configs/tpu/v4/README.md and v5p/README.md with 22b.sh, 52b.sh, 32b.sh and 64b.sh
# beside them; the policy "minimal" keeps products.
FULL, SELECTIVE = Recompute.FULL, Recompute.SELECTIVE
COMPILED = [
    # chip; blocks, hidden, feed-forward, heads, their size; tensor, data, sequences, recompute
    ("TPU-v4", 48, 6144, 24576, 24, 128, 1, 64, 13, FULL),
    ("TPU-v4", 32, 12288, 49152, 32, 128, 1, 192, 7, FULL),
    ("TPU-v5p", 32, 8192, 28672, 64, 128, 4, 16, 24, SELECTIVE),
    ("TPU-v5p", 64, 8192, 28672, 64, 128, 4, 16, 12, SELECTIVE),
]


CompiledRow = tuple[str, int, int, int, int, int, int, int, int, Recompute]


def compiled(row: CompiledRow, program: str) -> tuple[StepPrediction, MemoryFigures, Accelerator]:
    chip, blocks, hidden, inner, heads, head, tensor, data, size, mode = row
    model = replace(
        catalog.model("llama2-7b").config,
        num_layers=blocks,
        hidden_size=hidden,
        ffn_size=inner,
        num_heads=heads,
        num_kv_heads=heads,
        head_size=head,
    )
    run = Configuration(
        parallelism=Parallelism(
            tensor=tensor, data=data, zero_stage=3, sequence_parallel=tensor > 1
        ),
        microbatch_size=size,
        global_batch=size * data,
        sequence_length=2048,
        recompute=mode,
        vocabulary_multiple=1,
    )
    device = catalog.accelerators()[chip]
    level = replace(catalog.cluster("dgx-h100").levels[0], size=tensor * data)
    cluster = Cluster(name="slice", pools=(Pool(accelerator=device, levels=(level,)),))
    step = price_configuration(model, cluster, run)
    account = framework_memory(program)
    return step, fullest_figures(model, run, step, device, account), device


@pytest.mark.parametrize("row", COMPILED, ids=lambda row: f"{row[0]}-{row[2]}-{row[1]}")
def test_what_a_compiler_places_by_its_lifetime_fits_where_it_ran(row: CompiledRow) -> None:
    step, found, device = compiled(row, "maxtext")
    assert found.fit_probability(device.memory_bytes) > 0.5
    assert found.allocated.typical_bytes > 0.6 * device.memory_bytes  # which was filled
    assert found.allocated.typical_bytes < step.peak_memory_bytes
    _, eager, _ = compiled(row, "typical")
    assert eager.allocated.typical_bytes == step.peak_memory_bytes


@pytest.mark.parametrize(
    ("software", "zero", "is_anew"),
    [
        ("trl", 0, True),
        ("trl", 3, True),
        ("trl with deepspeed", 2, True),
        ("trl with deepspeed", 3, False),  # whose buffer of gradients stays
        ("megatron", 1, False),
    ],
)
def test_a_step_of_one_microbatch_has_no_gradients_at_its_loss(
    software: str, zero: int, is_anew: bool
) -> None:
    model, cluster = catalog.model("qwen3-8b").config, catalog.cluster("dgx-h100")
    run = Configuration(
        parallelism=Parallelism(data=8 if zero else 1, zero_stage=zero),
        microbatch_size=1,
        global_batch=16 if zero else 2,
        sequence_length=4096,
        vocabulary_multiple=1,
    )
    once = replace(run, global_batch=run.global_batch // 2)
    several, alone = (
        memory_figures(
            model,
            each,
            price_configuration(model, cluster, each),
            framework_memory(software),
            device=cluster.accelerator,
        )[0].allocated.typical_bytes
        for each in (run, once)
    )
    gradients = price_configuration(model, cluster, run).stages[0].memory.gradient_bytes
    largest = 2.0 * model.vocabulary_size * model.hidden_size  # which another is added to
    assert (alone < several) is is_anew
    assert several - alone <= gradients + largest


@pytest.mark.parametrize(("zero", "devices"), [(0, 1), (3, 2), (2, 8)])
def test_an_update_that_is_not_fused_needs_a_copy_of_a_moment_of_a_rank(
    zero: int, devices: int
) -> None:
    """Where activations, which are gone then, held less; the allocator wants room for both."""
    run = {"cluster": "dgx-a100", "devices": devices, "zero": zero, "sequence": 512, "top": 0}
    run |= {"global_batch": devices, "micro_batch": 1, "recompute": "full", "software": "trl"}
    run |= {"main_weight_dtype": "none", "gradient_dtype": "bf16", "moment_dtype": "bf16"}
    run |= {"precision": "bf16", "changes": False}
    del run["top"]
    whole, copied = (
        tw.estimate("mistral-7b", **run, fused_update=fused).document for fused in (True, False)
    )
    least = 2 * 7.24e9 / (devices if zero else 1)
    assert copied.reserved_bytes - whole.reserved_bytes >= 0.95 * least
    assert copied.allocated_bytes >= (10 if zero != 2 else 8) * 7.24e9 / devices
    in_8_bit = {**run, "moment_dtype": "int8"}
    assert (
        tw.estimate("mistral-7b", **in_8_bit, fused_update=False).document.device_bytes
        == tw.estimate("mistral-7b", **in_8_bit).document.device_bytes
    )


@pytest.mark.parametrize(("zero", "devices"), [(0, 1), (3, 4)])
def test_experts_that_nothing_quantizes_stay_in_16_bit(zero: int, devices: int) -> None:
    run = {"cluster": "dgx-h200", "devices": devices, "zero": zero, "recompute": "full"}
    run |= {"global_batch": devices, "sequence": 2048, "lora_rank": 8, "weight_bits": 4}
    whole, narrow = (
        tw.estimate("qwen3-30b-a3b", software=name, loss_chunk=256, changes=False, **run).document
        for name in ("trl", "axolotl")
    )
    experts = 48 * 128 * 3 * 2048 * 768
    beyond = (2 - 4.127 / 8) * experts * (1 / devices + (devices > 1) * 2 * (1 - 1 / devices) / 48)
    added = (whole.allocated_bytes or 0.0) - (narrow.allocated_bytes or 0.0)
    assert added == pytest.approx(beyond, rel=0.01)
    assert any("leaves experts in 16 bit" in each for each in whole.warnings)
    assert not any("experts in 16 bit" in each for each in narrow.warnings)


@pytest.mark.parametrize(
    ("more", "keeps"),
    [
        ({}, True),
        ({"zero": 2}, False),
        ({"recompute": "none"}, False),
        ({"lora_rank": None}, False),
    ],
)
def test_the_first_fsdp_keeps_what_frozen_blocks_read_and_its_gradient(
    more: dict[str, object], keeps: bool
) -> None:
    run = {"cluster": "dgx-h100", "devices": 8, "zero": 3, "recompute": "full", "lora_rank": 8}
    run |= {"global_batch": 8, "sequence": 16384, "loss_chunk": 256, "changes": False} | more
    run = {name: value for name, value in run.items() if value is not None}
    first, second = (
        tw.estimate("llama3-70b", software=name, **run).document
        for name in ("trl with fsdp1", "trl")
    )
    gradients = 80 * 16384 * 8192 * 2.0
    added = (first.allocated_bytes or 0.0) - (second.allocated_bytes or 0.0)
    assert added == (pytest.approx(gradients, rel=0.1) if keeps else 0.0)


@pytest.mark.parametrize(("zero", "is_cut"), [(2, False), (3, True)])
def test_zero_3_of_deepspeed_updates_group_by_group(zero: int, is_cut: bool) -> None:
    """A group has 1e9 parameters, of which a rank of two has nearly four here."""
    run = Configuration(
        parallelism=Parallelism(data=2, zero_stage=zero),
        microbatch_size=1,
        global_batch=32,
        sequence_length=512,
        recompute=Recompute.FULL,
        recipe=Recipe(precision="bf16", gradient_dtype="bf16", fused_update=False),
        overheads=USUAL_OVERHEADS,
    )
    model, cluster = catalog.model("qwen-7b").config, catalog.cluster("dgx-a100")
    step = price_configuration(model, cluster, run)
    account, device = framework_memory("trl with deepspeed"), cluster.accelerator
    by_group, at_once = (
        fullest_figures(model, run, step, device, replace(account, update_parameters=size))
        for size in (account.update_parameters, 0.0)
    )
    own = step.stages[0].memory.optimizer_bytes / 12
    spared = at_once.reserved.typical_bytes - by_group.reserved.typical_bytes
    least = (account.update_bytes + 4) * (own - account.update_parameters)
    assert spared == (pytest.approx(account.reserved.typical * least) if is_cut else 0.0)


@pytest.mark.parametrize(
    ("software", "zero", "dtype"),
    [("trl with deepspeed", 2, "bf16"), ("trl with deepspeed", 0, "fp32"), ("trl", 2, "fp32")],
)
def test_gradients_under_deepspeed_are_of_16_bit(software: str, zero: int, dtype: str) -> None:
    run = {"cluster": "dgx-a100", "devices": 2, "global_batch": 2, "sequence": 512, "zero": zero}
    found = tw.estimate("llama3.2-1b", software=software, **run).document
    said = tw.estimate("llama3.2-1b", software=software, gradient_dtype=dtype, **run).document
    assert found.allocated_bytes == said.allocated_bytes


@pytest.mark.parametrize("stage", [2, 3])
def test_float32_shards_of_frozen_weights_are_fsdps_alone(stage: int) -> None:
    """Their bytes beside 16-bit ones are those of the shards, and DeepSpeed has none."""
    asked = {"cluster": "dgx-h100", "nodes": 1, "global_batch": 8, "sequence": 512, "zero": stage}
    asked |= {"recompute": "full", "lora_rank": 8}
    narrow, wide = (
        tw.estimate("qwen3-8b", software="trl", **asked, **more).document
        for more in ({}, {"weight_bits": 32})
    )
    frozen = 8.19e9 / 8
    beyond = wide.allocated_bytes - narrow.allocated_bytes
    assert beyond == pytest.approx((4 if stage == 2 else 2) * frozen, rel=0.01)
    with pytest.raises(InvalidInput, match="DeepSpeed"):
        tw.estimate("qwen3-8b", software="trl with deepspeed", weight_bits=32, **asked)
    with pytest.raises(InvalidInput, match="2 or 3"):
        tw.estimate("qwen3-8b", software="trl", weight_bits=32, **asked | {"zero": 1})


@pytest.mark.parametrize("degrees", [{"tp": 2, "pp": 2}, {"tp": 1, "pp": 4}, {"tp": 4, "pp": 1}])
@pytest.mark.parametrize("software", ["pytorch", "torchtitan", "megatron", "deepspeed", "trl"])
def test_zero_of_one_replica_spares_nothing(software: str, degrees: dict[str, int]) -> None:
    """What a framework launches then has no ZeRO: a search needs to look at no more than that."""
    asked = {"cluster": "dgx-h100", "devices": 4, "global_batch": 8, "sequence": 1024, "dp": 1}
    asked |= {"software": software, "recompute": "selective", **degrees}
    plain, *sharded = (tw.estimate("gpt2", zero=zero, **asked).document for zero in range(4))
    assert all(each.device_bytes >= plain.device_bytes for each in sharded)
    assert all(each.step_time_s == plain.step_time_s for each in sharded)
