"""Megatron's rules: each is broken by some setup, and says so with its numbers."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.frameworks.megatron_rules import (
    MEGATRON_RULES,
    MegatronSetup,
    Where,
    broken_megatron_rules,
    divisors_of,
    nearest_multiples,
)

GOOD = MegatronSetup(
    layers=8,
    hidden=64,
    heads=8,
    kv_groups=4,
    sequence=128,
    world=32,
    tp=2,
    pp=2,
    sequence_parallel=True,
    global_batch=32,
    max_connections="1",
)
EVEN = ("Ett", "ttttttL")
BROKEN: dict[int, tuple[dict[str, Any], str]] = {
    1: (
        {"world": 32, "pp": 6, "layers": 12},
        "world 32 is not a multiple of tp*pp*cp = 12; nearest: 24, 36",
    ),
    2: (
        {"world": 64, "pp": 4, "ep": 6, "etp": 2, "experts": 12, "global_batch": 64},
        "expert grid etp*ep*pp = 48 does not divide world 64",
    ),
    3: (
        {"heads": 40, "hidden": 640, "tp": 16, "kv_groups": 8, "world": 64, "global_batch": 64},
        "40 heads cannot be split over tp=16; legal tp: 1 2 4 5 8 10 20 40",
    ),
    4: (
        {"kv_groups": 6, "heads": 12, "tp": 4, "hidden": 96},
        "6 KV groups and tp=4: neither divides the other",
    ),
    5: (
        {"sequence": 130, "cp": 4, "sequence_parallel": False},
        "seq 130 is not a multiple of 2*cp = 8",
    ),
    6: (
        {"sequence": 8200, "tp": 8, "cp": 2},
        "seq 8200 is not a multiple of tp*cp = 16; activations would be cut",
    ),
    7: ({"tp": 1}, "sequence parallel has no meaning at tp=1"),
    8: (
        {"ep": 8, "experts": 8, "sequence_parallel": False},
        "ep=8 with tp=2 trains only with sequence parallel on",
    ),
    9: (
        {"ep": 3, "experts": 8, "world": 48, "global_batch": 48},
        "8 experts cannot be split over ep=3; legal ep: 1 2 4 8",
    ),
    10: ({"global_batch": 30}, "global batch 30 is not a multiple of mbs*dp = 8; nearest: 24, 32"),
    11: ({"layers": 10, "pp": 4}, "10 layers over pp=4: use a layout, or 8, 12 layers"),
    12: (
        {"layout": ("Et", *["t"] * 29, "L"), "pp": 16, "layers": 30},
        "layout has 31 stages, pp=16; nearest: 16, 32",
    ),
    13: ({"layout": ("Ett", "tttttttL")}, "layout holds 9 decoder layers, model has 8"),
    14: (
        {"layout": ("Ettm", "ttttt", "t", "L"), "mtp_layers": 1},
        "MTP must sit in the last chunk of its rank",
    ),
    15: (
        {"layout": EVEN, "virtual_stages": 2},
        "layout and --num-virtual-stages-per-pipeline-rank are exclusive",
    ),
    16: ({"layout": ("Ettt", "t", "", "ttttL")}, "stage 2 is empty; merge it"),
    17: ({"pp": 1, "virtual_stages": 2}, "interleaving needs pp > 1"),
    18: (
        {"pp": 4, "virtual_stages": 2, "global_batch": 40, "layers": 16},
        "m=10 leaves a last group of 2 < pp=4; use m=8 or 12",
    ),
    19: (
        {"recompute": "full", "recompute_method": "block", "recompute_layers": 99},
        "recompute count 99 > 4 layers in the largest stage",
    ),
    20: (
        {"recompute": "selective", "recompute_modules": ("everything",)},
        "recompute modules are core_attn moe_act",
    ),
    21: (
        {"recompute": "selective", "recompute_modules": ("moe_act",)},
        "moe_act needs grouped GEMM",
    ),
    22: ({"activation_offload": True}, "offloading activations excludes a pipeline, got pp=2"),
    23: ({"pipeline_dtype": False}, "pp=2 needs pipeline_dtype in the configuration object"),
    24: ({"torch_fsdp2": True}, "Torch-FSDP2 excludes pp=2"),
    25: (
        {"megatron_fsdp": True, "ckpt_format": "fsdp_dtensor"},
        "Megatron-FSDP needs CUDA_DEVICE_MAX_CONNECTIONS unset or > 1, got 1",
    ),
    26: (
        {"vocabulary": 50257, "padded_vocabulary": 50304},
        "multiple of 128*tp = 256, 50432; planned with 50304",
    ),
    27: ({"hidden": 66}, "hidden 66 is not a multiple of 8 heads; nearest: 64, 72"),
    28: (
        {"optimizer": "muon", "distributed_optimizer": True},
        "muon excludes the distributed optimizer",
    ),
    29: (
        {"pipeline_inside": True, "cp": 2, "world": 32},
        "with the pipeline inside data parallelism, etp*ep = 2 must be tp*cp = 4",
    ),
    30: ({"moments": ("fp16", "fp32")}, "needs the distributed optimizer; choose ZeRO 1"),
}


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({"offload_share": 0.5}, "core 0.16 moves all that modules keep, got a share of 0.5"),
        ({"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1}, "got full"),
        ({"cuda_graphs": True}, "excludes CUDA graphs before core 0.19"),
        ({"recurrent": True}, "got a model with recurrent layers"),
        ({"pp": 1, "activation_offload": True}, "excludes the offloading of whole layers"),
    ],
)
def test_modules_on_the_host_stand_beside_little(beside: dict, said: str) -> None:
    alone = replace(GOOD, offload_modules=("core_attn",))
    assert broken_megatron_rules(alone) == ()
    (fault,) = broken_megatron_rules(replace(alone, **beside))
    assert said in str(fault)
    assert "(rule 22)" in str(fault)


def test_a_legal_setup_breaks_nothing() -> None:
    assert broken_megatron_rules(GOOD) == ()


def test_every_rule_is_numbered_in_order() -> None:
    assert [rule.number for rule in MEGATRON_RULES] == list(range(1, 31))
    assert all(rule.where for rule in MEGATRON_RULES)
    assert all(Where.NOBODY not in rule.where or len(rule.where) == 1 for rule in MEGATRON_RULES)


@pytest.mark.parametrize("number", range(1, 31))
def test_a_broken_rule_says_so_with_its_numbers(number: int) -> None:
    changes, message = BROKEN[number]
    found = [str(fault) for fault in broken_megatron_rules(replace(GOOD, **changes))]
    assert any(message in each and f"(rule {number})" in each for each in found), found


def test_main_weights_are_fp32_or_fp16() -> None:
    sharded = replace(GOOD, distributed_optimizer=True)
    assert broken_megatron_rules(replace(sharded, main_weights="fp16")) == ()
    (fault,) = broken_megatron_rules(replace(sharded, main_weights="bf16"))
    assert "weights are fp32 or fp16, got bf16 (rule 30)" in str(fault)


def test_moments_are_floats() -> None:
    sharded = replace(GOOD, distributed_optimizer=True)
    assert broken_megatron_rules(replace(sharded, moments=("fp8", "bf16"))) == ()
    (fault,) = broken_megatron_rules(replace(sharded, moments=("int8", "fp16")))
    assert "moments are fp32, fp16, bf16 or fp8, got int8 (rule 30)" in str(fault)


def test_all_rules_are_reported_at_once() -> None:
    wrong = replace(GOOD, sequence=129, global_batch=30, layers=9, pipeline_dtype=False)
    text = " ".join(map(str, broken_megatron_rules(wrong)))
    assert all(f"(rule {number})" in text for number in (6, 10, 11, 23))


@given(value=st.integers(1, 10_000), unit=st.integers(1, 500))
def test_nearest_multiples_surround_the_value(value: int, unit: int) -> None:
    found = [int(each) for each in nearest_multiples(value, unit).split(", ")]
    assert all(each % unit == 0 and each > 0 for each in found)
    assert found[-1] > value or found == [unit]
    assert found[0] <= value or found[0] == unit


@given(value=st.integers(1, 2_000))
def test_divisors_divide(value: int) -> None:
    found = divisors_of(value)
    assert found[0] == 1
    assert found[-1] == value
    assert all(value % d == 0 for d in found)
