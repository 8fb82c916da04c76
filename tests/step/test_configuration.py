"""Configurations as launchers state them: layout, laws of the price, published memory."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainwright
from random_cases import cases
from trainwright.cluster import Cluster
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.model import ContextExchange, Recipe
from trainwright.plans import Parallelism, StepPrediction
from trainwright.plans.configuration import Configuration, MemoryOverheads, Overlap, even_blocks
from trainwright.plans.prediction import BESIDE
from trainwright.profile import Recompute
from trainwright.step.predict import price_configuration
from trainwright.units import GIB


def cluster(nodes: int = 4, name: str = "dgx-h100") -> Cluster:
    return catalog.cluster(name).with_nodes(nodes)


def run(**changes: object) -> Configuration:
    degrees = {
        name: changes.pop(name) for name in Parallelism.__dataclass_fields__ if name in changes
    }
    fields = {"microbatch_size": 1, "global_batch": 32, "sequence_length": 2048} | changes
    return Configuration(parallelism=Parallelism(**degrees), **fields)  # type: ignore[arg-type]


def price(model: str = "llama3-8b", nodes: int = 4, **changes: object) -> StepPrediction:
    return price_configuration(catalog.model(model).config, cluster(nodes), run(**changes))


MIXED = {
    "dense": ("llama3-8b", {"tensor": 2, "pipeline": 2, "data": 4, "context": 2}),
    "experts": (
        "mixtral-8x7b",
        {"tensor": 2, "pipeline": 2, "data": 8, "expert": 4, "expert_tensor": 1},
    ),
    "interleaved": (
        "llama3-8b",
        {"pipeline": 4, "data": 8, "virtual_stages": 2, "schedule": "interleaved"},
    ),
    "zero bubble": ("llama3-8b", {"pipeline": 4, "data": 8, "schedule": "zb-h1"}),
    "v-shaped": ("llama3-8b", {"pipeline": 4, "virtual_stages": 2, "schedule": "v-half"}),
    "sharded": ("llama3-8b", {"data": 32, "zero_stage": 3}),
}
mixes = st.sampled_from(sorted(MIXED))


def mixed(name: str, **changes: object) -> StepPrediction:
    model, degrees = MIXED[name]
    return price(model, **(degrees | changes))


@pytest.mark.parametrize("name", MIXED)
def test_memory_classes_add_up_to_the_peak(name: str) -> None:
    for stage in mixed(name).stages:
        memory = stage.memory
        classes = (
            memory.weight_bytes,
            memory.gradient_bytes,
            memory.optimizer_bytes,
            memory.opaque_bytes,
            memory.activation_bytes,
            memory.logits_bytes,
            memory.transient_bytes,
            memory.buffer_bytes,
            memory.workspace_bytes,
        )
        assert all(size >= 0 for size in classes)
        assert memory.total_bytes == pytest.approx(sum(classes))
        assert memory.workspace_bytes > 0


def test_what_is_beside_the_model_is_taken_off_and_priced_alike() -> None:
    """By planner, bounds and pricing, each of its classes; a class that one of them lacks fails."""
    each = {name: 1e9 * 2**k for k, name in enumerate(BESIDE)}
    kept = MemoryOverheads(**each, reserve_bytes=0.0, fragmentation=0.0)
    none = replace(kept, **dict.fromkeys(each, 0.0))
    beside = sum(each.values())
    assert kept.beside_bytes == beside > 0
    assert kept.room_bytes(80e9) == none.room_bytes(80e9) - beside
    priced, plain = (price(data=32, zero_stage=3, overheads=each) for each in (kept, none))
    assert priced.stages[0].memory.beside_bytes == beside
    assert priced.peak_memory_bytes == pytest.approx(plain.peak_memory_bytes + beside)
    options = {name.removesuffix("_bytes"): size for name, size in each.items()}
    around = {"cluster": "dgx-h100", "global_batch": 8, "sequence": 512, "dp": 8}
    ranks = trainwright.estimate("gpt2-xl", **around, **options).document.memory
    assert [rank.beside_bytes for rank in ranks] == [beside]


@cases(25)
@given(name=mixes, share=st.floats(0, 1), less=st.floats(0, 1), zero=st.integers(0, 3))
def test_overlap_moves_time_from_exposed_to_hidden_and_loses_none(
    name: str, share: float, less: float, zero: int
) -> None:
    low, high = sorted((share, less))
    few, many = (
        mixed(name, zero_stage=zero, overlap=Overlap(gradients=w, parameters=w))
        for w in (low, high)
    )
    assert many.step_time_s <= few.step_time_s * (1 + 1e-12)
    for before, after in zip(few.communication, many.communication, strict=True):
        assert before.kind == after.kind
        assert after.exposed_s >= 0 <= after.hidden_s
        if before.kind != "pipeline":  # what a transfer costs depends on what it waits for
            assert after.exposed_s + after.hidden_s == pytest.approx(
                before.exposed_s + before.hidden_s
            )
            assert after.exposed_s <= before.exposed_s * (1 + 1e-12)


@cases(25)
@given(name=mixes, factor=st.floats(1, 8), zero=st.integers(0, 3))
def test_a_faster_network_never_makes_a_step_slower(name: str, factor: float, zero: int) -> None:
    model, degrees = MIXED[name]
    (pool,) = cluster().pools
    levels = tuple(
        replace(level, bandwidth_bytes_per_s=factor * level.bandwidth_bytes_per_s)
        for level in pool.levels
    )
    faster = Cluster(name="faster", pools=(replace(pool, levels=levels),))
    config, asked = catalog.model(model).config, run(**(degrees | {"zero_stage": zero}))
    before = price_configuration(config, cluster(), asked)
    after = price_configuration(config, faster, asked)
    assert after.step_time_s <= before.step_time_s * (1 + 1e-12)
    assert after.peak_memory_bytes == before.peak_memory_bytes


@cases(20)
@given(name=mixes, zero=st.integers(1, 3))
def test_each_zero_stage_needs_no_more_static_memory(name: str, zero: int) -> None:
    less, more = (mixed(name, zero_stage=stage) for stage in (zero, zero - 1))
    for a, b in zip(less.stages, more.stages, strict=True):
        assert a.memory.static_bytes <= b.memory.static_bytes


@pytest.mark.parametrize("mode", [Recompute.SELECTIVE, Recompute.FULL])
def test_recomputing_trades_time_for_memory_and_hardware_work(mode: Recompute) -> None:
    keep = price(tensor=2, pipeline=4, fused_attention=False)
    drop = price(tensor=2, pipeline=4, fused_attention=False, recompute=mode)
    assert drop.peak_memory_bytes < keep.peak_memory_bytes
    assert drop.step_time_s > keep.step_time_s
    assert keep.hfu == keep.mfu
    assert drop.hfu > drop.mfu
    assert drop.hfu / drop.mfu < 4 / 3


def test_recomputing_a_part_of_the_blocks_lies_between() -> None:
    steps = [
        price(pipeline=4, recompute=Recompute.FULL, recompute_blocks=blocks) for blocks in (0, 3, 8)
    ]
    peaks = [step.peak_memory_bytes for step in steps]
    times = [step.step_time_s for step in steps]
    assert peaks == sorted(peaks, reverse=True)
    assert times == sorted(times)
    assert steps[0].peak_memory_bytes == price(pipeline=4).peak_memory_bytes


def test_virtual_stages_divide_the_bubble_and_hold_more() -> None:
    plain = price(pipeline=4, global_batch=8)
    chunked = price(pipeline=4, global_batch=8, virtual_stages=2, schedule="interleaved")
    assert chunked.bubble_of_makespan < plain.bubble_of_makespan
    assert chunked.stages[0].memory.activation_bytes > plain.stages[0].memory.activation_bytes


def test_context_ranks_share_activations_and_reduce_gradients_together() -> None:
    """Both runs spread over 16 devices; parameters are replicated over all of them."""
    data, context = price(data=16), price(data=8, context=2, global_batch=16)
    a, b = data.stages[0], context.stages[0]
    assert b.memory.activation_bytes == pytest.approx(a.memory.activation_bytes / 2, rel=1e-3)
    assert b.gradient_sync_s == pytest.approx(a.gradient_sync_s)
    assert b.memory.optimizer_bytes == a.memory.optimizer_bytes


def test_experts_are_sharded_over_their_own_group() -> None:
    """64 devices, 8 expert groups: dense state in 64 parts, expert state in 8 of 1/8."""
    step = price("mixtral-8x7b", nodes=8, data=64, expert=8, zero_stage=1, global_batch=64)
    config = catalog.model("mixtral-8x7b").config
    experts = 32 * 8 * 3 * 4096 * 14336
    dense = 46_702_792_704 - experts
    memory = step.stages[0].memory
    assert config.num_layers == 32
    assert memory.optimizer_bytes == pytest.approx(12 * (dense / 64 + experts / 8 / 8))
    assert memory.weight_bytes == pytest.approx(2 * (dense + experts / 8))


def test_selective_recomputation_keeps_the_published_bytes() -> None:
    """Korthikanti et al., 2022, table 2: 12.3516 GiB for 175B with t = 8, p = 8, v = 3.

    The embedding's ids and dropout mask come on top, of the 16 microbatches in its chunk.
    """
    step = price(
        "gpt3-175b",
        nodes=8,
        tensor=8,
        pipeline=8,
        virtual_stages=3,
        schedule="interleaved",
        sequence_parallel=True,
        fused_attention=False,
        recompute=Recompute.SELECTIVE,
        global_batch=64,
        recipe=Recipe(dropout=0.1, precision="bf16"),
    )
    embedding = 16 * (2048 * 12288 / 8 + 8 * 2048)
    kept = step.stages[0].memory.activation_bytes - embedding
    assert kept / GIB == pytest.approx(12.3516, rel=1e-4)


@pytest.mark.parametrize(
    ("blocks", "stages", "expected"),
    [
        (32, 4, (8, 8, 8, 8)),
        (126, 16, (7, *(8,) * 14, 7)),  # Llama 3 405B, its paper's section 3.3.2
        (94, 8, (11, 12, 12, 12, 12, 12, 12, 11)),
        (61, 16, (3, *(4,) * 14, 2)),
        (3, 2, (2, 1)),
    ],
)
def test_blocks_are_dealt_out_evenly(blocks: int, stages: int, expected: tuple[int, ...]) -> None:
    assert even_blocks(blocks, stages) == expected


@given(blocks=st.integers(1, 130), stages=st.integers(1, 130))
def test_every_block_has_a_stage_and_stages_differ_by_at_most_two(blocks: int, stages: int) -> None:
    counts = even_blocks(blocks, stages)
    assert len(counts) == stages
    assert sum(counts) == blocks
    assert max(counts) - min(counts) <= 2
    if stages <= blocks:
        assert min(counts) >= 0


def test_every_broken_rule_is_named_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        price(
            "mixtral-8x7b",
            nodes=1,
            tensor=3,
            pipeline=4,
            data=2,
            expert=5,
            global_batch=7,
            virtual_stages=3,
            schedule="interleaved",
            recipe=Recipe(precision="fp32"),
        )
    problems = {fault.path: fault.problem for fault in caught.value.faults}
    assert set(problems) >= {
        "devices",
        "global_batch",
        "expert",
        "expert_parallel",
        "tensor_parallel",
        "num_microbatches",
    }


TRADED = Recipe(context_exchange=ContextExchange.ALL_TO_ALL)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"pipeline": 40}, "x virtual stages must be at most the 32 blocks, got 40 x 1"),
        ({"virtual_stages": 2}, "must be 1 without pipeline stages, got 2"),
        ({"pipeline": 2, "virtual_stages": 2}, "must be 1 for the schedule 1f1b, got 2"),
        ({"schedule": "2f2b"}, "must be one of gpipe, 1f1b"),
        ({"context": 4, "sequence_length": 2044}, "must be a multiple of 2 x cp (8), got 2044"),
        (
            {"context": 4, "sequence_length": 2046, "recipe": TRADED},
            "must be a multiple of cp (4), got 2046",
        ),
        ({"recompute_blocks": 33}, "must be <= 32, got 33"),
        ({"pipeline": 2, "blocks_per_stage": (16, 15)}, "must add up to the 32 blocks, got 31"),
        ({"recipe": Recipe(precision="fp4")}, "fp4"),
    ],
)
def test_an_illegal_configuration_is_refused(changes: dict[str, object], fault: str) -> None:
    from trainwright.errors import TrainwrightError

    with pytest.raises(TrainwrightError) as caught:
        price(nodes=8, **changes)
    assert fault in str(caught.value)


def test_traded_heads_need_one_part_of_a_sequence_for_each_rank() -> None:
    with pytest.raises(InvalidInput, match="2 x cp"):
        price(context=4, sequence_length=2044)
    assert price(context=4, sequence_length=2044, recipe=TRADED).step_time_s > 0
