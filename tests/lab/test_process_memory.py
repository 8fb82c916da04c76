"""What megatron-core's allocator gives out for states: blocks of tensors added up by hand."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from reference import needs_reference, reference
from trainwright.commands.validate import known, validate
from trainwright.formats.measured_csv import MeasuredRun
from trainwright.lab.validate import predictor
from trainwright.units import MIB

# A test of Megatron-LM: 12 blocks of 512 features, a vocabulary of 50257, tied ends.
RUN = MeasuredRun(
    row_id="made-1",
    table="made",
    model="gpt",
    accelerator="A100-80GB-SXM",
    num_devices=8,
    devices_per_node=8,
    tensor=2,
    pipeline=2,
    data=2,
    sequence_length=1024,
    global_batch=32,
    microbatch_size=4,
    precision="bf16",
    recompute="none",
    num_layers=12,
    hidden_size=512,
    ffn_size=2048,
    num_heads=8,
    num_kv_heads=8,
    vocabulary_size=50257,
    settings=MappingProxyType(
        {"transformer_impl": "transformer_engine", "max_position_embeddings": "1024"}
    ),
)
WORKSPACES = (2 * 8.125 + 4) * MIB
PASSED_ON = 2 * 2 * 4 * 1024 * 512  # input and gradient of the last stage


def static_bytes(run: MeasuredRun) -> float:
    prediction, _ = predictor(known(), None)(run)
    assert prediction.static_memory_bytes is not None
    return prediction.static_memory_bytes


def block(tensor: int) -> int:
    """Parameters of a block of `RUN` on one device of a tensor group."""
    products = 12 * 512**2 // tensor
    return products + (3 * 512 + 4 * 512) // tensor + 2 * 512 + 4 * 512


def test_large_tensors_lie_in_segments_of_whole_steps_where_little_is_left() -> None:
    words = 25216 * 512  # padded to a multiple of 2 · 128
    held = words + 6 * block(2) + 2 * 512
    # 49.25 MiB for the main copy of the words and each moment, 85.4 for all gradients; of 24.6 MiB
    # of 16-bit words more than 1 MiB is left, which is split off.
    beyond = 3 * (50 * MIB - 4 * words) + (86 * MIB - 4 * held)
    assert 0 < beyond < 4 * MIB
    assert static_bytes(RUN) == 18 * held + WORKSPACES + PASSED_ON + beyond


def test_nothing_lies_beyond_where_a_mib_or_more_is_split_off() -> None:
    alone = replace(RUN, tensor=4, pipeline=1)
    held = 12672 * 512 + 1024 * 512 + 12 * block(4) + 2 * 512
    # Of the words 24.75 MiB lie in 26, of all gradients 62.9 in 64.
    assert static_bytes(alone) == pytest.approx(18 * held + WORKSPACES, abs=0.02 * MIB)


def test_the_last_shard_of_a_distributed_optimizer_is_a_piece_of_the_first_tensors() -> None:
    whole = replace(RUN, tensor=1, pipeline=1, data=8, zero_stage=1)
    held = 50304 * 512 + 1024 * 512 + 12 * block(1) + 2 * 512
    # A piece of the words of 30.6 MiB lies in 32, gradients of 244.6 in 246, weights in 124.
    assert static_bytes(whole) == pytest.approx(6 * held + 12 * held / 8 + WORKSPACES, abs=2048)


@pytest.mark.slow
@needs_reference
def test_many_public_tests_are_met_to_a_block() -> None:
    (found,) = validate(reference() / "measured", files=("megatron_ci",)).document.datasets
    off = [
        abs(run.static_memory_bytes - run.measured_static_memory_bytes)
        for run in found.runs
        if run.static_memory_bytes is not None and run.measured_static_memory_bytes is not None
    ]
    assert sum(size < 0.03 * MIB for size in off) >= 25  # of 233, where one constant met one
    assert found.static_memory is not None
    assert found.static_memory.mape < 0.0096


def test_a_layout_says_how_many_stages_a_rank_has_and_modules_leave_the_device() -> None:
    """Of eight stages, ranks have four each; Megatron's words are those of its arguments."""
    given = {**RUN.settings, "pipeline_layout": "Et*5|(t|)*6tL"}
    run = replace(RUN, num_layers=12, virtual_stages=1, settings=MappingProxyType(given))
    prediction, _ = predictor(known(), None)(run)
    even = replace(run, virtual_stages=4, settings=RUN.settings, num_layers=16)
    assert prediction.static_memory_bytes is not None
    # Rank 1 has stages 1, 3, 5 and 7: four blocks and the head, in place of eight.
    assert static_bytes(even) - prediction.static_memory_bytes > 12 * 3 * block(2) / 2
    words = {"offload_modules": "[core_attn attn_proj]"}
    moved = {**RUN.settings, **words, "fine_grained_activation_offloading": "1"}
    kept, gone = (
        predictor(known(), None)(replace(RUN, settings=MappingProxyType(each)))[0]
        for each in ({**RUN.settings, **words}, moved)
    )
    assert kept.peak_memory_bytes is not None
    assert gone.peak_memory_bytes is not None
    # Queries, keys and values, of a head of 64 each, and attention's output, for six blocks.
    assert kept.peak_memory_bytes - gone.peak_memory_bytes == pytest.approx(
        6 * 4 * 2 * 4 * 1024 * 512 / 2, rel=1e-6
    )


@needs_reference
def test_megatrons_tests_of_modules_on_the_host_are_met() -> None:
    """Their peak is in the backward pass of a block whose attention is not fused."""
    (table,) = validate(reference() / "measured", files=("megatron_ci",)).document.datasets
    moved = {f"megatron_ci-{number:04d}" for number in (687, 688, 689, 690)}
    runs = [run for run in table.runs if run.row_id in moved]
    assert len(runs) == 4
    for run in runs:
        assert run.peak_memory_bytes == pytest.approx(run.measured_peak_memory_bytes, rel=0.05)
        assert run.static_memory_bytes == pytest.approx(run.measured_static_memory_bytes, rel=0.03)
