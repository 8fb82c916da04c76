"""Layouts that others publish in tables, asked as their sources state them.

Settings and outcomes stand in one table of the source, so neither was chosen; all rows of a table
are here that the catalog's models can say. Rows that are judged wrong say why.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.step.test_published_layouts import PURE, WHOLE, Layout

import trainwright as tw

GB = 1e9 / 2**30
ADAPTED = {"recompute": "full", "lora_targets": "all"}
ALONE = {"devices": 1, "zero": 0}

# hiyouga/LLaMA-Factory wiki, Performance comparison: LLaMA2-7B, one sequence, on an A100 of 40 GB
# with FlashAttention-2; GB by tokens.
FACTORY = {**ADAPTED, **ALONE, "software": "llamafactory", "lora_rank": 8}
BY_TOKENS = ((1024, 6), (2048, 7), (4096, 9), (8192, 12), (16384, 19), (32768, 32), (65536, None))
ROWS = [
    Layout(
        said=f"LLaMA-Factory wiki: QLoRA of LLaMA2-7B, {tokens} tokens",
        ran=held is not None,
        model="llama2-7b",
        run=FACTORY
        | {"weight_bits": 4, "cluster": "dgx-a100-40gb", "sequence": tokens}
        | {"micro_batch": 1, "global_batch": 4},
        peak=held,
        held="device",
        off=0.13,
    )
    for tokens, held in BY_TOKENS
]
ROWS += [
    Layout(
        said="LLaMA-Factory wiki: LoRA of LLaMA2-7B, four of 1,024 tokens",
        ran=True,
        model="llama2-7b",
        run={**FACTORY, "cluster": "dgx-a100-40gb", "sequence": 1024}
        | {"micro_batch": 4, "global_batch": 8},
        peak=17.0,
        held="device",
    )
]

# unslothai/unsloth README, context length benchmarks: QLoRA of rank 32 on all products by
# transformers and PEFT with FlashAttention-2; the most tokens that fit a card of so many GB. A
# quarter more ran out by definition. 98.5 % of a card's GB are there in GiB, as on others.
PREPARED = {**ADAPTED, **ALONE, "software": "transformers", "cluster": "dgx-a100", "loss_chunk": 0}
PREPARED |= {"lora_rank": 32, "weight_bits": 4, "micro_batch": 1, "global_batch": 1}
MOST = (
    *(("llama3-8b", *row) for row in ((12, 932), (16, 2551), (24, 5789), (40, 12264))),
    *(("llama3-8b", *row) for row in ((48, 15502), (80, 28454))),
    ("llama3-70b", 80, 6916),
)
TRIED = (
    *((model, card, tokens, True) for model, card, tokens in MOST),
    *((model, card, int(1.25 * tokens), False) for model, card, tokens in MOST),
    *(("llama3-8b", 8, 256, False), ("llama3-70b", 48, 512, False)),
)
ROWS += [
    Layout(
        said=f"Unsloth README, Hugging Face: {model}, {tokens} tokens on {card} GB",
        ran=ran,
        model=model,
        run={**PREPARED, "sequence": tokens, "memory": f"{0.985 * card:.2f}GiB"}
        | {"optimizer": "adamw_8bit"},
    )
    for model, card, tokens, ran in TRIED
]

# AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md, weights on the host; GiB that the allocator took.
OFFLOADED = {**ADAPTED, "software": "axolotl with fsdp1", "devices": 2, "zero": 3}
OFFLOADED |= {"offload": WHOLE, "lora_rank": 64, "loss_chunk": 0}
ON_HOSTS = (
    *(("yi-34b", card, 4, 2048, 4, 22.98) for card in ("rtx-3090", "rtx-4090")),
    *(("llama2-70b", card, 4, 2048, 2, 14.92) for card in ("rtx-3090", "rtx-4090")),
    *(("llama2-7b", "rtx-4090", *row) for row in ((None, 2048, 10, 22.69), (4, 2048, 12, 22.38))),
    *(("mistral-7b", "rtx-4090", 4, *row) for row in ((2048, 12, 22.54), (24576, 1, 22.54))),
    ("llama2-70b", "rtx-a5000", 4, 2048, 2, None),
)
ROWS += [
    Layout(
        said=f"fsdp_qlora: {model} in {bits or 16} bits from the host, {size} of {tokens}, {card}",
        ran=True,
        model=model,
        run={**OFFLOADED, "cluster": card, "sequence": tokens}
        | {"micro_batch": size, "global_batch": 2 * size}
        | ({} if bits is None else {"weight_bits": bits}),
        peak=peak,
        held="reserved",
        off=0.27,
    )
    for model, card, bits, tokens, size, peak in ON_HOSTS
]
FIRST = {**ADAPTED, "software": "trl with fsdp1", "zero": 3, "weight_bits": 4, "loss_chunk": 0}
FIRST |= {"lora_dropout": 0.1}
ROWS += [
    Layout(
        said="peft, docs/source/accelerate/fsdp.md: QLoRA of 70B on 2 devices from the host",
        ran=True,
        model="llama2-70b",
        run={**FIRST, "lora_rank": 8, "sequence": 2048, "devices": 2, "micro_batch": 2}
        | {"global_batch": 8, "cluster": "rtx-3090", "offload": WHOLE},
        peak=19.6 * GB,
        held="device",
    ),
    *(
        Layout(
            said=f"philschmid.de, fsdp-qlora-llama3: QLoRA of 70B on {n} {card}, 3,072 tokens",
            ran=True,
            model="llama3-70b",
            run={**FIRST, "lora_rank": 16, "sequence": 3072, "devices": n, "micro_batch": 1}
            | {"global_batch": n, "cluster": card}
            | ({"offload": WHOLE} if moved else {}),
            peak=peak,
            held="device",
            off=0.30,
        )
        for n, card, moved, peak in (
            (4, "rtx-4090", True, 22 * GB),
            (2, "dgx-a100-40gb", False, None),
        )
    ),
    Layout(
        said="llama-cookbook issue 100, a maintainer: 7B by FSDP on 4 A100 of 40 GB, all in bf16",
        ran=True,
        model="llama2-7b",
        run={**PURE, "software": "transformers", "cluster": "dgx-a100-40gb", "devices": 4}
        | {"zero": 3, "recompute": "none", "sequence": 512, "micro_batch": 4, "global_batch": 16}
        | {"flash_attention": False},
        peak=29 * GB,
        held="reserved",
        off=0.12,
    ),
    *(
        Layout(
            said=f"Vertex AI, lora-qlora: QLoRA of openLLaMA-7B, {size} sequences on {card}",
            ran=True,
            model="llama2-7b",
            run={**ADAPTED, **ALONE, "software": "transformers", "lora_rank": 16}
            | {"weight_bits": 4, "sequence": 512, "cluster": card}
            | {"micro_batch": size, "global_batch": size}
            | ({"precision": "fp16"} if card == "dgx1-v100" else {}),
        )
        for card, size in (("l4", 12), ("dgx1-v100", 8), ("dgx-a100-40gb", 24))
    ),
]

# Lightning-AI/litgpt, tutorials/resource-tables.md: A100 of 40 GB, 1,304 tokens, adapters of rank 8
# on queries and values, all in bf16; GB of tensors by model, devices, sequences, bits.
LITGPT = {**PURE, "software": "litgpt", "cluster": "dgx-a100-40gb", "sequence": 1304}
LITGPT |= {"lora_rank": 8, "lora_targets": "query,value", "lora_dropout": 0.05}
STEEP = "its rows grow by 7.3 GiB a sequence where we have 5.1; nothing in its source explains it"
SHARED = "its FSDP held 15 GiB beside its shards, whatever the batch: more than all frozen weights"
OF_LITGPT = (
    *(("llama2-7b", 1, 1, None, 21.30, None), ("llama2-7b", 1, 2, None, 29.07, None)),
    *(("llama2-7b", 1, 4, None, None, STEEP), ("llama2-7b", 1, 1, 4, 14.14, None)),
    *(("llama2-13b", 1, 1, None, 38.12, None), ("llama2-13b", 1, 1, 4, 23.14, None)),
    *(("llama2-13b", 1, 2, None, None, None), ("llama2-13b", 1, 4, None, None, None)),
    *(("llama2-7b", 2, size, None, peak, None) for size, peak in ((1, 22.18), (4, 23.39))),
    *(("llama2-13b", 2, 1, None, None, SHARED), ("llama2-13b", 4, 1, None, 35.57, None)),
)
ROWS += [
    Layout(
        said=f"LitGPT: LoRA of {model} in {bits or 16} bits, {n} A100, {size} at once",
        ran=peak is not None,
        model=model,
        run={**LITGPT, "devices": n, "zero": 3 if n > 1 else 0}
        | {"recompute": "full" if n > 1 else "none", "micro_batch": size, "global_batch": 128}
        | ({} if bits is None else {"weight_bits": bits}),
        wrong=wrong,
        peak=None if peak is None or bits or n > 1 else peak * GB,
        off=0.16,
    )
    for model, n, size, bits, peak, wrong in OF_LITGPT
]
# torchtune README: 8B in full with states that the host pages, each updated in the backward pass.
ROWS += [
    Layout(
        said="torchtune README at 0031bfb08: llama3-8b in full on one RTX 4090",
        ran=True,
        model="llama3-8b",
        run={**PURE, **ALONE, "software": "torchtune", "cluster": "rtx-4090", "recompute": "full"}
        | {"sequence": 2048, "micro_batch": 2, "global_batch": 2, "loss_chunk": 512}
        | {"offload": {"optimizer": 1.0}, "update_in_backward": True},
        peak=18.9,
    )
]

# huggingface/trl issue 5713, report of its author: Qwen3 on nodes of 8 H100, one sequence each,
# blocks recomputed; GB that trackio shows of the fullest device. Model, tokens, nodes, ranks that
# share a sequence: rings under FSDP2, heads that are traded under ZeRO-3.
OF_TRL = {"cluster": "dgx-h100", "zero": 3, "recompute": "full", "micro_batch": 1, "loss_chunk": 0}
TRADED = {"software": "trl with deepspeed", "context_exchange": "all_to_all"}
RINGS = {"software": "trl"}
NEAR = "75 % likely to fit by our account; its rows with half the tokens on a device hold 7 % more"
MEASURED = (
    *(("qwen3-4b", 16384, 2, cp, RINGS, peak) for cp, peak in ((1, 43.4), (2, 25.4), (4, 19.2))),
    *(("qwen3-4b", 32768, 2, cp, RINGS, peak) for cp, peak in ((2, 44.4), (4, 26.3))),
    *(("qwen3-4b", 32768, 4, cp, RINGS, peak) for cp, peak in ((2, 43.3), (4, 25.2), (8, 17.7))),
    ("qwen3-4b", 32768, 1, 1, RINGS, None),
    *(("qwen3-4b", 16384, 1, cp, TRADED, peak) for cp, peak in ((2, 39.3), (4, 30.2))),
    *(("qwen3-4b", 32768, 2, cp, TRADED, peak) for cp, peak in ((2, 51.6), (4, 38.2), (8, 28.0))),
    ("qwen3-4b", 32768, 2, 16, TRADED, 20.4),
    *(
        ("qwen3-30b-a3b", length, 2, 1, RINGS, peak)
        for length, peak in ((16384, 69.5), (32768, None))
    ),
    *(("qwen3-30b-a3b", 16384, 2, cp, TRADED, peak) for cp, peak in ((1, 78.0), (2, 61.3))),
    ("qwen3-30b-a3b", 32768, 2, 2, TRADED, 54.0),
    *(("qwen3-30b-a3b", 65536, 2, cp, TRADED, peak) for cp, peak in ((4, 54.4), (2, None))),
)
ROWS += [
    Layout(
        said=f"TRL 5713: {model}, {length} tokens, {nodes} nodes, {cp} to each, {run['software']}",
        ran=peak is not None,
        model=model,
        run={**OF_TRL, **run, "nodes": nodes, "cp": cp, "sequence": length}
        | {"global_batch": 8 * nodes // cp},
        wrong=NEAR if (nodes, cp, length) == (1, 1, 32768) else None,
        peak=None if peak is None else peak * GB,
        held="device",
        off=0.51 if model == "qwen3-30b-a3b" and cp > 1 else 0.29,
    )
    for model, length, nodes, cp, run, peak in MEASURED
]

# unslothai, docs "Unsloth benchmarks": the most tokens of its own QLoRA of rank 32 on all products,
# hidden states of blocks on the host; a quarter more ran out by definition.
OF_UNSLOTH = {**ADAPTED, **ALONE, "software": "unsloth", "cluster": "dgx-a100", "lora_rank": 32}
OF_UNSLOTH |= {"weight_bits": 4, "micro_batch": 1, "global_batch": 1, "optimizer": "adamw_8bit"}
EVEN = "even: the tensors of our account alone leave no 3 % of the card, or 50 % likely to fit"
SMALL = "even: 8.2 of 8.5 GB, of which 743 tokens more are 0.2"
LONGEST = (
    *(("llama3-8b", *row) for row in ((8, 2972), (12, 21848), (16, 40724), (24, 78475))),
    *(("llama3-8b", *row) for row in ((40, 153977), (48, 191728), (80, 342733))),
    *(("llama3-70b", *row) for row in ((48, 12106), (80, 89389))),
)
WRONG = {("llama3-8b", 80, True): EVEN, ("llama3-70b", 48, True): EVEN}
WRONG |= {("llama3-70b", 80, True): EVEN, ("llama3-8b", 8, False): SMALL}
ROWS += [
    Layout(
        said=f"Unsloth: {model}, {int(share * tokens)} tokens on {card} GB",
        ran=share == 1,
        model=model,
        run={**OF_UNSLOTH, "sequence": int(share * tokens), "memory": f"{0.985 * card:.2f}GiB"}
        | {"offload": {"activations": 1.0}},
        wrong=WRONG.get((model, card, share == 1)),
    )
    for model, card, tokens in LONGEST
    for share in (1, 1.25)
]


# snowflakedb/ArcticTraining, projects/sequence-parallelism: one sequence on so many H100 (H200
# where a row says so), heads traded under ZeRO-3, its optimizer on the host; each
# file's length ran. GiB that a device showed. Without kernels of Liger logits are whole.
STATES = {"optimizer": 1.0, "gradients": 1.0}
OF_ARCTIC = {"zero": 3, "dp": 1, "micro_batch": 1, "global_batch": 1, "recompute": "full"}
OF_ARCTIC |= {"gradient_dtype": "bf16", "reduce_dtype": "bf16", "context_exchange": "all_to_all"}
LIGER = {"software": "transformers with deepspeed-liger", "loss_chunk": 256}
PLAIN = {"software": "transformers with deepspeed"}
KEPT = {**STATES, "activations": 1.0}
ALONE_ON_HOST = (
    "one device of eight is priced with an eighth of the host's memory, and had all of it"
)
UNCOUNTED = "145.9 GiB by our account, where 126.8 were held"
BY_LENGTH = (
    *(("llama3-8b", 1, tokens, PLAIN, WHOLE, None, None) for tokens in (36_000,)),
    ("llama3-8b", 1, 500_000, LIGER, {**WHOLE, **KEPT}, 4096, None),
    ("qwen3-32b", 1, 230_000, LIGER, {**WHOLE, **KEPT}, 5120, None),
    ("llama3-8b", 8, 32_000, PLAIN, STATES, None, None),
    ("llama3-8b", 8, 160_000, LIGER, STATES, None, None),
    ("llama3-8b", 8, 1_100_000, LIGER, STATES, None, None),
    ("llama3-8b", 8, 1_200_000, LIGER, STATES, 4096, None),
    ("llama3-8b", 8, 2_400_000, LIGER, KEPT, None, None),
    ("llama3-8b", 8, 3_800_000, LIGER, KEPT, 4096, None),
    ("llama3-8b", 16, 8_000_000, LIGER, KEPT, 4096, None),
    ("llama3-8b", 32, 36_000, PLAIN, STATES, None, None),
    ("llama3-8b", 32, 15_500_000, LIGER, KEPT, 4096, None),
    *(("qwen3-32b", 8 * k, n * 10_000, LIGER, KEPT, 5120, None) for k, n in ((1, 155), (2, 400))),
    ("qwen3-32b", 32, 7_000_000, LIGER, KEPT, 5120, 71.55),
    ("qwen3-32b", 64, 15_000_000, LIGER, KEPT, 5120, 71.0),
    ("llama3-70b", 8, 200_000, LIGER, STATES, 8192, None),
    ("llama3-70b", 16, 1_200_000, LIGER, KEPT, 8192, None),
    ("llama3-70b", 32, 4_000_000, LIGER, KEPT, 8192, 47.7),
    ("llama3-70b", 64, 10_000_000, LIGER, KEPT, 8192, 53.83),
)
ON_H200 = (
    ("llama3-8b", 1, 65_000, PLAIN, WHOLE, None, 137.36),
    ("llama3-8b", 1, 300_000, LIGER, WHOLE, None, 134.96),
    ("llama3-8b", 1, 650_000, LIGER, {**WHOLE, **KEPT}, None, 126.81),
    ("llama3-8b", 1, 1_200_000, LIGER, {**WHOLE, **KEPT}, 4096, 136.15),
)
MISSED = {230_000: ALONE_ON_HOST, 1_200_000: ALONE_ON_HOST, 650_000: UNCOUNTED}
ROWS += [
    Layout(
        said=f"ArcticTraining: {model}, {tokens} tokens on {cp} in {cluster}",
        ran=True,
        model=model,
        run={**OF_ARCTIC, **kernels, "cluster": cluster, "nodes": -(-cp // 8), "cp": cp}
        | {"sequence": tokens, "offload": offload, **({"mlp_tile": tile} if tile else {})},
        wrong=MISSED.get(tokens) if cp == 1 else None,
        peak=peak,
        held="device",
        off=0.18 if tile else 0.16,
    )
    for cluster, rows in (("dgx-h100", BY_LENGTH), ("dgx-h200", ON_H200))
    for model, cp, tokens, kernels, offload, tile, peak in rows
]

# jzhang38/EasyContext, README: Llama 2 in rings under ZeRO-3, all on the host but what is at work.
ROWS += [
    Layout(
        said=f"EasyContext: {model}, {tokens} tokens on {devices}",
        ran=True,
        model=model,
        run={**OF_ARCTIC, "software": "accelerate with deepspeed", "cluster": "dgx-a100"}
        | {"context_exchange": "ring", "nodes": devices // 8, "cp": devices, "offload": WHOLE}
        | {"sequence": tokens, "loss_chunk": 8192},
    )
    for model, tokens, devices in (
        *(("llama2-7b", tokens, 8) for tokens in (65_536, 131_072, 524_288, 704_512)),
        ("llama2-13b", 1_048_576, 16),
    )
]


def asked(layout: Layout) -> Any:
    return tw.estimate(layout.model, changes=False, **layout.run).document


@pytest.mark.slow
@pytest.mark.parametrize("layout", [pytest.param(each, id=each.said) for each in ROWS])
def test_a_published_layout_is_said_to_fit_where_it_ran(layout: Layout) -> None:
    found = asked(layout)
    shown = f"{found.device_bytes} of {found.device_memory_bytes}, {found.fit_probability}"
    assert (found.fits is layout.ran) is (layout.wrong is None), shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [pytest.param(each, id=each.said) for each in ROWS if each.peak is not None]
)
def test_a_published_peak_is_met(layout: Layout) -> None:
    held = getattr(asked(layout), f"{layout.held}_bytes")
    assert held / 2**30 == pytest.approx(layout.peak, rel=layout.off)
