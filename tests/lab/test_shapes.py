"""Rows of tables become the models they name, by exact sizes and by family."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from trainwright.commands.validate import known
from trainwright.errors import UnsupportedFeature
from trainwright.formats import catalog
from trainwright.formats.measured_csv import MeasuredRun
from trainwright.lab.predict import configuration_of
from trainwright.lab.run_shapes import (
    config_of,
    layout_stages,
    line_of,
    megatron_config,
    stage_blocks,
    updates_on_host,
    uses_fused_attention,
)
from trainwright.model import count_parameters

KNOWN = known()
ROW = MeasuredRun(
    row_id="made-1",
    table="made",
    model="llama-3-70b",
    accelerator="H100-80GB-SXM",
    num_devices=8,
    devices_per_node=8,
    tensor=1,
    pipeline=1,
    data=8,
    sequence_length=4096,
    num_layers=80,
    hidden_size=8192,
    ffn_size=28672,
    num_heads=64,
    num_kv_heads=8,
    vocabulary_size=128256,
)
SIZES = {
    "llama-3.1-405b": (126, 16384, 53248, 128, 8, 128256),
    "qwen3-30b-a3b": (48, 2048, 768, 32, 4, 151936),
    "mixtral-8x7b": (32, 4096, 14336, 32, 8, 32000),
    "nemotron-4-340b": (96, 18432, 73728, 96, 8, 256000),
    "deepseek-v2": (60, 5120, 12288, 128, 128, 102400),
}
# Published totals; see the catalog for their sources.
TOTALS = {
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "nemotron-4-340b": 341_029_195_776,
    "deepseek-v2": 235_741_434_880,
}


def row(name: str, **settings: str) -> MeasuredRun:
    expert = 8 if name == "mixtral-8x7b" else 1  # Mistral's sizes: its degree tells of experts
    found = replace(ROW, model=name, expert=expert, settings=MappingProxyType(settings))
    if name not in SIZES:
        return found
    layers, hidden, ffn, heads, kv, vocabulary = SIZES[name]
    return replace(
        found,
        num_layers=layers,
        hidden_size=hidden,
        ffn_size=ffn,
        num_heads=heads,
        num_kv_heads=kv,
        vocabulary_size=vocabulary,
    )


@pytest.mark.parametrize("name", sorted(TOTALS))
def test_the_families_have_their_published_parameters(name: str) -> None:
    run = row(name)
    assert count_parameters(config_of(run, line_of(run), KNOWN)) == TOTALS[name]


@pytest.mark.parametrize("name", sorted(TOTALS))
def test_the_name_of_a_model_decides_nothing(name: str) -> None:
    run = row(name)
    renamed = replace(run, model="renamed")
    assert config_of(renamed, line_of(run), KNOWN) == config_of(run, line_of(run), KNOWN)


def test_only_a_config_of_a_dense_model_may_leave_experts_open() -> None:
    dense, mixture = (catalog.model(name).config for name in ("llama3-8b", "mixtral-8x7b"))
    known = replace(KNOWN, models={"dense": dense, "mixture": mixture})
    for name, given in (("dense", dense), ("mixture", None), ("", None)):
        run = replace(ROW, states_experts=False, settings=MappingProxyType({"model_config": name}))
        if given is not None:
            assert config_of(run, line_of(run), known) == given
            continue
        with pytest.raises(UnsupportedFeature, match="not stated: ep"):
            config_of(run, line_of(run), known)


def test_adapters_of_a_row_lie_beside_weights_of_the_bits_it_states() -> None:
    options = {"lora_rank": 8, "lora_targets": "query,value"}
    for more, expected in (
        ({}, (0.0, None)),
        ({"weight_bits": 4}, (0.0, 4)),
        ({"weight_bits": "32", "lora_dropout": 0.05}, (0.05, 32)),
    ):
        adapters = config_of(replace(ROW, options=options | more), line_of(ROW), KNOWN).tuning
        assert adapters.low_rank is not None
        assert (adapters.low_rank.dropout, adapters.low_rank.bits) == expected


def test_sizes_that_nobody_published_are_a_gpt_or_a_gated_llama() -> None:
    plain = replace(ROW, hidden_size=3000, num_heads=30, ffn_size=12000, num_kv_heads=None)
    assert not config_of(plain, line_of(plain), KNOWN).gated
    gated = replace(plain, ffn_size=9000)
    assert config_of(gated, line_of(gated), KNOWN).gated


def test_windows_are_lent_by_a_model_of_the_very_vocabulary_alone() -> None:
    """GPT-Neo's sizes are those of many that attend in full; a padded vocabulary is anyone's."""
    sizes = {"num_layers": 12, "hidden_size": 768, "ffn_size": 3072, "num_heads": 12}
    lender = replace(
        KNOWN.architectures[0],
        family="windowed",
        sliding_window=256,
        vocabulary_size=50257,
        **{name: size for name, size in sizes.items() if name != "num_layers"},
    )
    known_one = replace(KNOWN, architectures=(lender,))
    run = replace(ROW, **sizes, num_kv_heads=12, vocabulary_size=50257)
    assert config_of(run, line_of(run), known_one).sliding_window == 256
    padded = replace(run, vocabulary_size=50368)
    assert config_of(padded, line_of(padded), known_one).sliding_window is None


def test_recipes_of_nemo_hide_tokens_that_leave_the_fast_network() -> None:
    run = replace(
        row("mixtral-8x7b", software="nemo"),
        num_devices=16,
        tensor=2,
        pipeline=2,
        data=4,
        expert=8,
        global_batch=8,
    )
    model = config_of(run, line_of(run), KNOWN)

    def hidden(run: MeasuredRun, *, virtual_stages: int, fast_domain: int) -> float:
        return configuration_of(
            run,
            line_of(run),
            model,
            microbatch_size=1,
            recompute="none",
            virtual_stages=virtual_stages,
            fast_domain=fast_domain,
        ).overlap.experts

    assert hidden(run, virtual_stages=2, fast_domain=4) > 0
    assert hidden(run, virtual_stages=1, fast_domain=4) == 0
    assert hidden(run, virtual_stages=2, fast_domain=16) == 0  # experts of 8 x tensor 2
    other = replace(run, settings=MappingProxyType({"software": "megatron-core"}))
    assert hidden(other, virtual_stages=2, fast_domain=4) == 0


def test_software_is_read_from_its_column() -> None:
    def kind(**settings: str) -> str:
        return str(line_of(row("llama-3-70b", **settings)).software.kind)

    assert kind(software="nemo") == "nemo"
    assert kind(software="megatron-deepspeed") == "deepspeed"
    assert kind(software="torchtitan", compiled="1") == "compiled-fsdp"
    assert kind(software="torchtitan", compiled="0") == "eager-fsdp"
    assert kind(software="something new") == kind() == "typical"


def test_zero_that_updates_on_the_host_is_deepspeeds_unless_a_column_names_another() -> None:
    said = {"note": "optimizer in host memory (CPU AdamW offload)"}
    sharded = replace(row("llama-3-70b", **said), zero_stage=3)
    assert line_of(sharded).name == "deepspeed"
    assert line_of(replace(sharded, zero_stage=0)).name == "typical"
    named = replace(row("llama-3-70b", **said, software="torchtitan"), zero_stage=3)
    assert line_of(named).name == "torchtitan" and updates_on_host(named)
    assert not updates_on_host(
        replace(sharded, options=MappingProxyType({"offload_optimizer": False}))
    )


def test_a_row_without_sizes_says_which_are_missing() -> None:
    with pytest.raises(UnsupportedFeature, match="ffn_size"):
        config_of(replace(ROW, ffn_size=None), line_of(ROW), KNOWN)


def test_a_megatron_row_takes_its_vocabulary_from_the_tokenizer() -> None:
    bare = replace(ROW, vocabulary_size=None, num_kv_heads=None)
    gpt = megatron_config(bare)
    assert gpt.vocabulary_size == 50257 and gpt.hidden_dropout == 0.1 and gpt.tied_embeddings
    settings = MappingProxyType({"tokenizer_type": "Llama2Tokenizer", "hidden_dropout": "0.0"})
    llama = megatron_config(replace(bare, settings=settings))
    assert llama.vocabulary_size == 32000 and llama.hidden_dropout == 0.0


def test_a_gated_width_that_is_not_stated_follows_the_public_rule() -> None:
    settings = MappingProxyType({"swiglu": "1"})
    run = replace(ROW, ffn_size=None, hidden_size=512, num_heads=8, settings=settings)
    assert megatron_config(run).ffn_size == 1344


def test_layouts_are_written_out_stage_by_stage() -> None:
    assert layout_stages("Et*2|(tt|)*2t|tmL") == ("Ett", "tt", "tt", "t", "tmL")
    run = replace(ROW, settings=MappingProxyType({"pipeline_layout": "Et*2|(tt|)*2t|tmL"}))
    assert stage_blocks(run, 8) == (2, 2, 2, 1, 1)


def test_stated_ends_leave_the_rest_to_the_stages_between() -> None:
    settings = {"decoder_first_pipeline_num_layers": "2", "decoder_last_pipeline_num_layers": "2"}
    run = replace(ROW, pipeline=4, data=2, settings=MappingProxyType(settings))
    assert stage_blocks(run, 12) == (2, 4, 4, 2)


def test_attention_is_fused_by_the_engine_unless_told_otherwise() -> None:
    def fused(**settings: str) -> bool:
        return uses_fused_attention(replace(ROW, settings=MappingProxyType(settings)))

    assert fused(transformer_impl="transformer_engine")
    assert fused(transformer_impl="transformer_engine", attention_backend="flash")
    assert not fused(transformer_impl="transformer_engine", attention_backend="unfused")
    assert not fused(transformer_impl="local")
