"""Layouts that people say ran, or ran out of memory, against what `estimate` says of them.

Each row is one layout of a public issue or README, with the settings that its source states. What
ran out says little: the settings are those of a job that never took a step. So verdicts count, and
rows that are judged wrong stay here with the reason, or with what the source leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import trainwright as tw

ADAPTED = {"lora_rank": 8, "lora_targets": "all"}
OF_ATTENTION = "query,key,value,attention_output"
SHARDED = {"zero": 3, "software": "transformers"}
# Stanford Alpaca's command: 512 tokens, FSDP over decoder layers, attention of eager transformers.
ALPACA = {**SHARDED, "sequence": 512, "recompute": "none", "flash_attention": False}
# What FSDP moves to the host, and DeepSpeed where offload_param is said, too.
WHOLE = {"weights": 1.0, "optimizer": 1.0, "gradients": 1.0}
PLAIN = {"fused_update": False}  # adamw_torch, the default of transformers until it was fused
# LLaMA-Factory recomputes blocks unless told otherwise.
FACTORY = {
    **PLAIN,
    "software": "llamafactory with deepspeed",
    "sequence": 1024,
    "micro_batch": 1,
    "recompute": "full",
    "precision": "fp16",
}
LONG = {**SHARDED, "recompute": "full", "cluster": "dgx-h100"}
DOLLY = {
    "software": "llm-foundry",
    "cluster": "dgx-a100-40gb",
    "sequence": 2048,
    "global_batch": 64,
    "micro_batch": 8,
    "recompute": "full",
}
BRIDGE = {
    "cluster": "dgx-h100",
    "nodes": 4,
    "tp": 4,
    "pp": 4,
    "dp": 2,
    "zero": 1,
    "sequence": 4096,
    "global_batch": 32,
    "micro_batch": 1,
    "schedule": "interleaved",
    "precision": "fp8_tensorwise",
    "software": "megatron-bridge",
}
TUNED = {"software": "torchtune", "recompute": "full", "devices": 1, "lora_rank": 8} | {
    "lora_targets": "query,value"
}
V100, A100_40, A100_80 = "dgx2-v100", "dgx-a100-40gb", "dgx-a100"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`said` is where; `wrong` is why `estimate` says otherwise, of rows that it judges wrong.

    `peak` is the most that was held, in GiB, of the figure that `held` names, within `off` of it.
    """

    said: str
    ran: bool
    model: str
    run: dict[str, Any] = field(default_factory=dict)
    wrong: str | None = None
    peak: float | None = None
    held: str = "allocated"
    off: float = 0.10


OLD_FSDP = "FSDP of early 2023 gathers ahead without a limit (limit_all_gathers), several blocks"
OLD_LOSS = "transformers 4.41, which it names, has two more copies of the logits in float32"
PURE = {"main_weight_dtype": "none", "gradient_dtype": "bf16", "moment_dtype": "bf16"}
TITAN = {
    "software": "torchtitan",
    "devices": 8,
    "zero": 3,
    "sequence": 4096,
    "cluster": "dgx-h100",
    "recompute": "selective",
    "recompute_module": ["norm", "mlp_activation", "moe"],
}
ON_B200 = {
    **{key: value for key, value in TITAN.items() if key != "recompute_module"},
    "cluster": "dgx-b200",
    "recompute": "none",
}
LAYOUTS = [
    Layout(
        said="simplescaling/s1 issues 13 and 61: train/sft_multinode.sh on 16 H100, 32,768 tokens",
        ran=False,
        model="qwen2.5-32b",
        run={**LONG, "nodes": 2, "sequence": 32768, "global_batch": 16},
    ),
    Layout(
        said="simplescaling/s1 README: 20,000 tokens so as not to run out on 16 H100",
        ran=True,
        model="qwen2.5-32b",
        run={**LONG, "nodes": 2, "sequence": 20000, "global_batch": 16},
    ),
    Layout(
        said="simplescaling/s1 issue 13: the same on 8 H100",
        ran=False,
        model="qwen2.5-32b",
        run={**LONG, "nodes": 1, "sequence": 32768, "global_batch": 8},
    ),
    Layout(
        said="mosaicml/llm-foundry issue 54, a maintainer: 7b_dolly_sft.yaml by composer, 8 ranks",
        ran=True,
        model="mpt-7b",
        run={**DOLLY, "devices": 8, "zero": 3},
    ),
    Layout(
        said="mosaicml/llm-foundry issue 54, its author: `python train.py`, one process, no shards",
        ran=False,
        model="mpt-7b",
        run={**DOLLY, "devices": 1, "zero": 0},
    ),
    Layout(
        said="hiyouga/LlamaFactory issue 5977: ds_z3_config on 8 RTX 3090",
        ran=False,
        model="llama3-8b",
        run={**FACTORY, "cluster": "rtx-3090", "devices": 8, "zero": 3, "global_batch": 16},
    ),
    Layout(
        said="hiyouga/LlamaFactory issue 5977: ds_z3_offload_config on 8 RTX 3090",
        ran=True,
        model="llama3-8b",
        run={
            **FACTORY,
            "cluster": "rtx-3090",
            "devices": 8,
            "zero": 3,
            "global_batch": 16,
            "offload": WHOLE,
        },
    ),
    Layout(
        said="hiyouga/LlamaFactory issue 1221: LLaMA-7B, ZeRO-2 on 8 V100 of 32 GB, in the update",
        ran=False,
        model="llama2-7b",
        run={**FACTORY, "cluster": V100, "devices": 8, "zero": 2, "global_batch": 8},
    ),
    Layout(
        said="hiyouga/LlamaFactory issue 1221: the same by ZeRO-3",
        ran=True,
        model="llama2-7b",
        run={**FACTORY, "cluster": V100, "devices": 8, "zero": 3, "global_batch": 8},
    ),
    Layout(
        said="hiyouga/LlamaFactory issue 4133: Qwen1.5-7B, ZeRO-2 on 8 A100 of 40 GB, 512 tokens",
        ran=False,
        model="qwen-7b",
        run={
            **FACTORY,
            "cluster": A100_40,
            "devices": 8,
            "zero": 2,
            "global_batch": 8,
            "sequence": 512,
        },
        wrong="even by our account; nine devices are named for eight processes, and no phase",
    ),
    Layout(
        said="hiyouga/LlamaFactory issue 5545: QLoRA of 51,974 tokens on one H100",
        ran=False,
        model="llama3-8b",
        run={
            **FACTORY,
            **ADAPTED,
            "cluster": "dgx-h100",
            "devices": 1,
            "sequence": 51974,
            "global_batch": 8,
            "precision": "bf16",
            "weight_bits": 4,
            "software": "llamafactory",
        },
    ),
    Layout(
        said="hiyouga/LlamaFactory issue 4642: LoRA of Qwen2-7B, 32,768 tokens on A800",
        ran=False,
        model="qwen2.5-7b",
        run={
            **FACTORY,
            **ADAPTED,
            "cluster": A100_80,
            "devices": 8,
            "zero": 3,
            "sequence": 32768,
            "global_batch": 16,
            "precision": "bf16",
            "offload": {"optimizer": 1.0, "gradients": 1.0},
        },
        wrong=OLD_LOSS,
    ),
    Layout(
        said="hiyouga/LlamaFactory issue 6827: QLoRA of 70B on 2 L40S, in the midst of training",
        ran=False,
        model="llama3-70b",
        run={
            **FACTORY,
            **ADAPTED,
            "cluster": "l40s",
            "devices": 2,
            "sequence": 2048,
            "global_batch": 16,
            "precision": "bf16",
            "weight_bits": 4,
            "software": "llamafactory",
        },
    ),
    Layout(
        said="tatsu-lab/stanford_alpaca README: 4 A100 of 80 GB, 4 sequences a device",
        ran=True,
        model="llama2-7b",
        run={**ALPACA, "cluster": A100_80, "devices": 4, "global_batch": 128, "micro_batch": 4},
    ),
    Layout(
        said="tatsu-lab/stanford_alpaca issue 39: 8 A100 of 40 GB, 2 sequences a device",
        ran=True,
        model="llama2-7b",
        run={**ALPACA, "cluster": A100_40, "devices": 8, "global_batch": 128, "micro_batch": 2},
    ),
    Layout(
        said="tatsu-lab/stanford_alpaca issue 39: 8 A100 of 40 GB, 4 sequences a device",
        ran=False,
        model="llama2-7b",
        run={**ALPACA, "cluster": A100_40, "devices": 8, "global_batch": 128, "micro_batch": 4},
        wrong=OLD_FSDP,
    ),
    Layout(
        said="tatsu-lab/stanford_alpaca issue 190: 8 A100 of 40 GB, one sequence a device",
        ran=True,
        model="llama2-7b",
        run={**ALPACA, "cluster": A100_40, "devices": 8, "global_batch": 64, "micro_batch": 1},
    ),
    Layout(
        said="tatsu-lab/stanford_alpaca issue 223: 5 V100 of 32 GB, while a block is gathered",
        ran=False,
        model="llama2-7b",
        run={
            **ALPACA,
            "cluster": V100,
            "devices": 5,
            "global_batch": 40,
            "micro_batch": 1,
            "precision": "fp16",
        },
        wrong=OLD_FSDP,
    ),
    Layout(
        said="tatsu-lab/stanford_alpaca issue 221: one A100 of 80 GB",
        ran=False,
        model="llama2-7b",
        run={
            **ALPACA,
            "cluster": A100_80,
            "devices": 1,
            "global_batch": 8,
            "micro_batch": 1,
            "zero": 0,
            "precision": "bf16_autocast",
        },
    ),
    Layout(
        said="tatsu-lab/stanford_alpaca issue 56: two A100 of 80 GB",
        ran=True,
        model="llama2-7b",
        run={**ALPACA, "cluster": A100_80, "devices": 2, "global_batch": 64, "micro_batch": 1},
    ),
    Layout(
        said="huggingface/transformers issue 13329: GPT-J-6B on one A100 of 40 GB",
        ran=False,
        model="gpt-j-6b",
        run={
            **ALPACA,
            "cluster": A100_40,
            "devices": 1,
            "zero": 0,
            "global_batch": 1,
            "micro_batch": 1,
            "sequence": 1024,
            "precision": "fp16_autocast",
        },
    ),
    Layout(
        said="axolotl-ai-cloud/axolotl issue 1554: QLoRA of Mixtral by ZeRO-2 on 4 A10, on loading",
        ran=False,
        model="mixtral-8x7b",
        run={
            "cluster": "a10",
            "devices": 4,
            "zero": 2,
            "sequence": 1024,
            "global_batch": 4,
            "micro_batch": 1,
            "recompute": "full",
            "software": "axolotl with deepspeed",
            "lora_rank": 32,
            "lora_targets": "all",
            "weight_bits": 4,
        },
    ),
    Layout(
        said="axolotl-ai-cloud/axolotl issue 998: QLoRA of Mixtral on two cards of 24 GB",
        ran=False,
        model="mixtral-8x7b",
        run={
            "cluster": "rtx-3090",
            "devices": 2,
            "zero": 0,
            "sequence": 256,
            "global_batch": 2,
            "micro_batch": 1,
            "recompute": "full",
            "software": "axolotl",
            "precision": "fp16",
            "weight_bits": 4,
            "flash_attention": False,
            **ADAPTED,
        },
    ),
    Layout(
        said="meta-pytorch/torchtune issue 856: LoRA, two sequences of 8,192 on an RTX 4090",
        ran=False,
        model="llama3-8b",
        run={**TUNED, "cluster": "rtx-4090", "sequence": 8192, "global_batch": 2, "micro_batch": 2},
    ),
    Layout(
        said="meta-pytorch/torchtune issue 856: LoRA, one sequence of 2,048 on an RTX 4090",
        ran=True,
        model="llama3-8b",
        run={**TUNED, "cluster": "rtx-4090", "sequence": 2048, "global_batch": 1, "micro_batch": 1},
    ),
    Layout(
        said="meta-pytorch/torchtune issue 2071: LoRA of 70B on 8 RTX 4090, 512 tokens",
        ran=False,
        model="llama3-70b",
        run={
            "cluster": "rtx-4090",
            "devices": 8,
            "zero": 3,
            "sequence": 512,
            "global_batch": 8,
            "micro_batch": 1,
            "recompute": "full",
            "software": "torchtune",
            "lora_rank": 4,
            "lora_targets": "query,value",
        },
        wrong="the issue does not say in which phase; by our account it is even",
    ),
    Layout(
        said="NVIDIA/Megatron-LM issue 606: Llama-2-7B, 8 replicas on A100 of 40 GB, 64 tokens",
        ran=False,
        model="llama2-7b",
        run={
            "cluster": A100_40,
            "devices": 8,
            "zero": 0,
            "sequence": 64,
            "global_batch": 8,
            "micro_batch": 1,
            "recompute": "none",
            "software": "megatron",
        },
    ),
    Layout(
        said="NVIDIA/Megatron-LM issue 1308: Llama-3-70B on 16 devices of 80 GB, any layout",
        ran=False,
        model="llama3-70b",
        run={
            "cluster": "dgx-h100",
            "nodes": 2,
            "tp": 8,
            "pp": 2,
            "zero": 0,
            "sequence": 512,
            "global_batch": 16,
            "micro_batch": 1,
            "recompute": "full",
            "software": "megatron",
        },
        wrong="no log; states alone are 74 GiB, and by our account it is even",
    ),
    Layout(
        said="NVIDIA-NeMo/Megatron-Bridge pull request 3107: 5 stages a rank, in 30 to 60% of runs",
        ran=False,
        model="llama3-70b",
        run={**BRIDGE, "virtual_stages": 5},
    ),
    Layout(
        said="NVIDIA-NeMo/Megatron-Bridge pull request 3107: 10 stages a rank",
        ran=True,
        model="llama3-70b",
        run={**BRIDGE, "virtual_stages": 10},
        wrong="batch and recomputation are the recipe's, not stated; by our account 1 GiB less",
    ),
    Layout(
        said="Lightning-AI/lightning-thunder issue 2116: LitGPT, Llama-3-8B on 8 devices, in bf16",
        ran=True,
        model="llama3-8b",
        run={
            "cluster": "dgx-h100",
            "devices": 8,
            "zero": 3,
            "sequence": 8192,
            "global_batch": 8,
            "micro_batch": 1,
            "recompute": "full",
            "software": "litgpt",
            "main_weight_dtype": "none",
            "gradient_dtype": "bf16",
            "moment_dtype": "bf16",
        },
    ),
]


NEW = [
    Layout(
        said="axolotl-ai-cloud/axolotl pull request 2412: SmolLM2-1.7B, 16,384 tokens on one H100",
        ran=False,
        model="smollm2-1.7b",
        run={
            **PURE,
            "cluster": "dgx-h100",
            "devices": 1,
            "sequence": 16384,
            "global_batch": 1,
            "micro_batch": 1,
            "recompute": "none",
            "software": "axolotl",
            "moment_dtype": "int8",
        },
        wrong="axolotl keeps norms and embedding in float32, and so all that blocks pass on",
    ),
    Layout(
        said="axolotl-ai-cloud/axolotl issue 1522: QLoRA of 70B by FSDP on 2 RTX 3090, 512 tokens",
        ran=False,
        model="llama2-70b",
        run={
            "cluster": "rtx-3090",
            "devices": 2,
            "zero": 3,
            "sequence": 512,
            "global_batch": 8,
            "micro_batch": 1,
            "recompute": "full",
            "software": "axolotl",
            "lora_rank": 32,
            "lora_targets": "all",
            "weight_bits": 4,
        },
        wrong="even by our account; a later change of axolotl keeps the start from taking more",
    ),
    Layout(
        said="axolotl-ai-cloud/axolotl pull request 1742: qlora-fsdp-70b.yaml on 2 RTX 4090",
        ran=True,
        model="llama3-70b",
        run={
            "cluster": "rtx-4090",
            "devices": 2,
            "zero": 3,
            "sequence": 512,
            "global_batch": 8,
            "micro_batch": 1,
            "recompute": "full",
            "software": "axolotl with fsdp1",
            "offload": WHOLE,
            "lora_rank": 8,
            "lora_targets": "all",
            "weight_bits": 4,
        },
    ),
    Layout(
        said="axolotl-ai-cloud/axolotl issue 2531: Qwen2.5-32B, ZeRO-3 with offload on 8 H100",
        ran=False,
        model="qwen2.5-32b",
        run={
            "cluster": "dgx-h100",
            "devices": 8,
            "zero": 3,
            "sequence": 4096,
            "global_batch": 8,
            "micro_batch": 1,
            "recompute": "full",
            "software": "axolotl with deepspeed",
            "offload": {"optimizer": 1.0, "gradients": 1.0},
        },
        wrong="74 GiB of tensors: more than all weights in bf16, which nothing had sharded",
    ),
    Layout(
        said="hiyouga/LlamaFactory issue 260: a 7B in full on V100 of 32 GB, without sharding",
        ran=False,
        model="llama2-7b",
        run={
            **FACTORY,
            "cluster": V100,
            "devices": 8,
            "zero": 0,
            "global_batch": 8,
            "precision": "fp16_autocast",
            "software": "llamafactory",
        },
    ),
    Layout(
        said="hiyouga/LlamaFactory issue 469: a 7B, ZeRO-2, 4 sequences on each of 4 A100 of 40 GB",
        ran=False,
        model="llama2-7b",
        run={
            **FACTORY,
            "cluster": A100_40,
            "devices": 4,
            "zero": 2,
            "sequence": 768,
            "global_batch": 256,
            "micro_batch": 4,
        },
    ),
    Layout(
        said="hiyouga/LlamaFactory issue 5709: LoRA of 4,096 tokens with Unsloth on an L40",
        ran=False,
        model="llama3-8b",
        run={
            **FACTORY,
            **ADAPTED,
            "cluster": "l40",
            "devices": 1,
            "sequence": 4096,
            "global_batch": 4,
            "software": "llamafactory",
        },
        wrong="not known: no log, and by our account half of the device is left",
    ),
    Layout(
        said="meta-llama/llama-cookbook issue 413: Llama-2-7B in full on one A100 of 80 GB",
        ran=False,
        model="llama2-7b",
        run={
            **SHARDED,
            **PLAIN,
            "cluster": A100_80,
            "devices": 1,
            "zero": 0,
            "sequence": 512,
            "global_batch": 1,
            "micro_batch": 1,
            "recompute": "none",
            "precision": "fp32",
        },
    ),
    Layout(
        said="meta-llama/llama-cookbook issue 234: FSDP on 8 V100 of 16 GB, in the update",
        ran=False,
        model="llama2-7b",
        run={
            **SHARDED,
            **PLAIN,
            "cluster": "dgx1-v100",
            "devices": 8,
            "sequence": 512,
            "global_batch": 8,
            "micro_batch": 1,
            "recompute": "full",
            "precision": "fp16",
        },
    ),
    Layout(
        said="meta-pytorch/torchtune issue 979, a maintainer: LoRA of 8,192 tokens on one A100",
        ran=True,
        model="llama3-8b",
        run={
            "cluster": A100_80,
            "devices": 1,
            "sequence": 8192,
            "global_batch": 128,
            "micro_batch": 2,
            "recompute": "full",
            "software": "torchtune",
            "lora_rank": 8,
            "lora_targets": "query,value",
        },
    ),
    Layout(
        said="meta-pytorch/torchtune issue 987, a maintainer: 70B in full, paged Adam on 8 A100",
        ran=True,
        model="llama2-70b",
        run={
            **PURE,
            "cluster": A100_80,
            "devices": 8,
            "zero": 3,
            "sequence": 4096,
            "global_batch": 8,
            "micro_batch": 1,
            "recompute": "full",
            "software": "torchtune",
            "offload": {"optimizer": 1.0},
        },
        peak=51 / 1.0737,
    ),
    Layout(
        said="meta-pytorch/torchtune pull request 389: Llama-2-7B in full, all in bf16, one by one",
        ran=True,
        model="llama2-7b",
        run={
            **PURE,
            "cluster": A100_80,
            "devices": 1,
            "zero": 0,
            "sequence": 512,
            "global_batch": 1,
            "micro_batch": 1,
            "recompute": "full",
            "software": "torchtune",
        },
        peak=54 / 1.0737,
    ),
    Layout(
        said="NVIDIA-NeMo/Automodel pull request 2673: 70B by 8 stages on 32 H100, packs of 4",
        ran=False,
        model="llama3-70b",
        run={
            **PURE,
            "cluster": "dgx-h100",
            "nodes": 4,
            "pp": 8,
            "dp": 4,
            "zero": 2,
            "sequence": 1024,
            "global_batch": 128,
            "micro_batch": 4,
            "recompute": "none",
            "software": "automodel",
        },
    ),
    Layout(
        said="pytorch/torchtitan issue 1789: deepseek_v3_16b.toml, 8 sequences on each of 8 H100",
        ran=False,
        model="deepseek-v2-lite",
        run={**TITAN, "ep": 8, "global_batch": 64, "micro_batch": 8},
    ),
    Layout(
        said="pytorch/torchtitan issue 1789: deepseek_v3_16b.toml, 4 sequences on each of 8 H100",
        ran=True,
        model="deepseek-v2-lite",
        run={**TITAN, "ep": 8, "global_batch": 32, "micro_batch": 4},
        peak=73.32,
        held="reserved",
    ),
    Layout(
        said="pytorch/torchtitan issue 1789: the same with 8 sequences, no expert parallelism",
        ran=True,
        model="deepseek-v2-lite",
        run={**TITAN, "global_batch": 64, "micro_batch": 8},
        wrong="recomputation by operator keeps every second product alone; by our account all",
    ),
    *(
        Layout(
            said=f"pytorch/torchtitan pull request 1993: 16B on 8 B200, {size} of {length} tokens",
            ran=ran,
            model="deepseek-v2-lite",
            run={**ON_B200, "sequence": length, "global_batch": 8 * size, "micro_batch": size},
            peak=peak,
            held="reserved",
        )
        for size, length, ran, peak in (
            (4, 4096, True, None),
            (6, 4096, True, None),
            (8, 4096, False, None),
            (4, 6144, True, 0.88 * 178.4),
            (4, 8192, False, None),
        )
    ),
    *(
        Layout(
            said=f"tatsu-lab/stanford_alpaca issue 280: 4 A100 of 40 GB, offload, {size} at once",
            ran=size == 2,
            model="llama2-7b",
            run={
                **ALPACA,
                "cluster": A100_40,
                "devices": 4,
                "global_batch": 48 * size,
                "micro_batch": size,
                "offload": {"optimizer": 1.0, "gradients": 1.0},
            },
            wrong=wrong,
        )
        for size, wrong in ((2, None), (3, "not known: no log, and by our account half is left"))
    ),
]
# foundation-model-stack/fms-acceleration, scripts/benchmarks/refs/a100_80gb.csv at 876e2ed6f,
# without its own kernels: transformers 4.45 on A100 of 80 GB, 4,096 tokens, blocks recomputed,
# FSDP where there are two. Model, devices, sequences on each, adapters, GiB of tensors at most.
BENCHED = (
    *(("mistral-7b", 1, 4, False, 67.46), ("mistral-7b", 2, 2, False, 33.74)),
    *(("mistral-7b", 1, 8, False, 67.46), ("mistral-7b", 2, 4, False, 33.74)),
    *(("mixtral-8x7b", n, size, False, None) for n, size in ((1, 4), (2, 2), (1, 8), (2, 4))),
    *(("llama2-70b", n, size, False, None) for n, size in ((1, 4), (2, 2), (1, 8), (2, 4))),
    *(("mistral-7b", 1, 4, True, 24.87), ("mistral-7b", 2, 2, True, 14.10)),
    *(("mistral-7b", 1, 8, True, 36.08), ("mistral-7b", 2, 4, True, 20.45)),
    *(("mixtral-8x7b", 1, 4, True, None), ("mixtral-8x7b", 2, 2, True, 53.60)),
    *(("mixtral-8x7b", 1, 8, True, None), ("mixtral-8x7b", 2, 4, True, 60.40)),
    *(("llama2-70b", n, size, True, None) for n, size in ((1, 4), (2, 2), (1, 8), (2, 4))),
)
NEW += [
    Layout(
        said=f"fms-acceleration: {model}, {'LoRA' if adapted else 'all'}, {n} A100, {size} on each",
        ran=peak is not None,
        model=model,
        run={
            **PLAIN,
            **(
                {**ADAPTED, "lora_rank": 16, "lora_targets": OF_ATTENTION, "lora_dropout": 0.1}
                if adapted
                else PURE
            ),
            "cluster": A100_80,
            "devices": n,
            "zero": 3 if n > 1 else 0,
            "sequence": 4096,
            "global_batch": n * size,
            "micro_batch": size,
            "recompute": "full",
            "software": "transformers with fsdp1" if adapted and n > 1 else "transformers",
        },
        peak=peak,
    )
    for model, n, size, adapted, peak in BENCHED
]


# A third search, asked before anything was changed. The same benchmark at 04702cc9f, in fp16 with
# 4-bit weights: where nothing is sharded the rest is cast to float32, as by PEFT (TRL before 0.26);
# a plugin does not, as axolotl, and FSDP cannot. It is the first FSDP, with reentrant checkpoints.
PREPARED, CAST_BACK, FIRST = "transformers", "axolotl", "trl with fsdp1"
OF_AXOLOTL = "axolotl with fsdp1"
QUANTIZED = (
    *(("mistral-7b", 1, 4, PREPARED, 21.26), ("mistral-7b", 1, 8, PREPARED, 37.51)),
    *(("mixtral-8x7b", 1, 4, PREPARED, 43.23), ("mixtral-8x7b", 1, 8, PREPARED, 62.48)),
    *(("llama2-70b", 1, 4, PREPARED, None), ("llama2-70b", 1, 8, PREPARED, None)),
    *(("mistral-7b", 1, 4, CAST_BACK, 14.77), ("mistral-7b", 1, 8, CAST_BACK, 25.01)),
    *(("mixtral-8x7b", 1, 4, CAST_BACK, 33.73), ("mixtral-8x7b", 1, 8, CAST_BACK, 43.97)),
    *(("llama2-70b", 1, 4, CAST_BACK, 63.48), ("llama2-70b", 1, 8, CAST_BACK, None)),
    *(("mistral-7b", 2, 2, FIRST, 9.29), ("mistral-7b", 2, 4, FIRST, 15.45)),
    *(("mixtral-8x7b", 2, 2, FIRST, 20.40), ("mixtral-8x7b", 2, 4, FIRST, 27.35)),
    *(("llama2-70b", 2, 2, FIRST, 43.33), ("llama2-70b", 2, 4, FIRST, None)),
)
EVEN = "even by our account: 40.5 GiB of 39.6"
IN_SEGMENTS = (
    "65 GiB of tensors; with 43.3 of them the device showed 50.8, a sixth more than we have"
)
ADAPTERS = {"recompute": "full", "lora_targets": "all", "loss_chunk": 0}
FRESH = [
    Layout(
        said=f"fms-acceleration: QLoRA of {model} by {software}, {n} A100, {size} on each",
        ran=peak is not None,
        model=model,
        run=PLAIN
        | ADAPTERS
        | {"lora_rank": 16, "lora_targets": OF_ATTENTION, "weight_bits": 4}
        | {"precision": "fp16", "software": software, "cluster": A100_80, "devices": n}
        | {"zero": 3 if n > 1 else 0, "sequence": 4096}
        | {"global_batch": n * size, "micro_batch": size},
        wrong=IN_SEGMENTS if (model, n, size) == ("llama2-70b", 2, 4) else None,
        peak=peak,
        off=0.25 if n == 1 and model == "mixtral-8x7b" else 0.13,
    )
    for model, n, size, software, peak in QUANTIZED
]
# AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md: a loop of its own, adapters of rank 64 on all
# products; model, cards, bits, tokens, sequences on each, GiB that the allocator took.
AT_HOME = (
    *(("llama2-7b", "rtx-3090", 2, 4, *row) for row in ((512, 1, 4.98), (2048, 1, 5.21))),
    *(("llama2-7b", "rtx-4090", 2, 4, *row) for row in ((2048, 4, 11.22), (2048, 10, 20.97))),
    *(("llama2-7b", "rtx-3090", 2, None, *row) for row in ((512, 1, 10.24), (2048, 1, 10.22))),
    *(("llama2-7b", "rtx-4090", 2, None, *row) for row in ((2048, 4, 16.14), (2048, 6, 21.35))),
    ("yi-34b", "rtx-3090", 2, 4, 2048, 2, 23.05),
    *(("llama2-70b", "rtx-a5000", n, 4, 2048, 1, None) for n in (4, 8)),
    *(("llama2-70b", "rtx-6000-ada", n, 4, 2048, size, None) for n, size in ((2, 2), (4, 3))),
    *(("llama2-70b", A100_40, n, 4, 2048, size, None) for n, size in ((2, 1), (4, 4), (8, 4))),
    ("llama2-70b", "dgx-h100", 4, 4, 2048, 8, None),
)
FRESH += [
    Layout(
        said=f"fsdp_qlora: {model} in {bits or 16} bits, {n} {cluster}, {size} of {length} tokens",
        ran=True,
        model=model,
        run=ADAPTERS
        | {"lora_rank": 64, "software": OF_AXOLOTL, "cluster": cluster, "devices": n, "zero": 3}
        | ({} if bits is None else {"weight_bits": bits})
        | {"sequence": length, "global_batch": n * size, "micro_batch": size},
        wrong=EVEN if (cluster, n) == (A100_40, 4) else None,
        peak=peak,
        held="reserved",
        off=0.21,
    )
    for model, cluster, n, bits, length, size, peak in AT_HOME
]
# QwenLM/Qwen README at 03cd81f5e, Qwen-7B on A100 of 80 GB: GB by 256, 512, ... 8,192 tokens;
# its 4-bit weights are GPTQ's, beside which nothing is cast.
OF_QWEN = (
    ("LoRA", "transformers", (20.1, 20.4, 21.5, 23.8, 29.7, 36.6)),
    ("QLoRA", "transformers with deepspeed", (11.5, 11.5, 12.3, 13.9, 16.9, 23.5)),
)
FRESH += [
    Layout(
        said=f"Qwen README: {name} of Qwen-7B, {256 << at} tokens",
        ran=True,
        model="qwen-7b",
        run=PLAIN
        | ADAPTERS
        | {"lora_rank": 64, "lora_dropout": 0.05, "software": software, "cluster": A100_80}
        | ({"weight_bits": 4} if name == "QLoRA" else {})
        | {"devices": 1, "zero": 0, "sequence": 256 << at, "global_batch": 8},
        peak=peak,
        held="device",
        off=0.15,
    )
    for name, software, peaks in OF_QWEN
    for at, peak in enumerate(peaks)
]
WHOLE_72 = {**ADAPTERS, "lora_rank": 64, "cluster": A100_80, "devices": 4, "global_batch": 32}
ENGINE = "transformers with deepspeed"
OF_70B = {**ADAPTERS, "lora_rank": 8, "lora_dropout": 0.1, "sequence": 2048, "zero": 3}
EIGHT = {**OF_70B, "cluster": "dgx-h100", "devices": 8, "micro_batch": 8, "global_batch": 256}
TWO = {**OF_70B, "weight_bits": 4, "devices": 2, "micro_batch": 2, "global_batch": 8}
ALONE = {"recompute": "full", "devices": 1, "zero": 2, "global_batch": 1, "software": ENGINE}
TUNE = {"software": "torchtune", "loss_chunk": 512, "lora_targets": "all", "sequence": 2048}
NODE = {"cluster": A100_80, "devices": 8, "zero": 3}
FRESH += [
    *(
        Layout(said=said, ran=ran, model=model, run=run, peak=peak, held="device", off=off)
        for said, ran, model, run, peak, off in (
            (
                "Qwen README: all of Qwen-7B on 2 A100, 512 tokens",
                *(True, "qwen-7b"),
                {**ALONE, **PLAIN, "zero": 3, "devices": 2, "cluster": A100_80}
                | {"sequence": 512, "global_batch": 32},
                *(74.0, 0.10),
            ),
            (
                "Qwen README: LoRA of 72B on 4 A100, nothing sharded",
                *(False, "qwen2-72b", {**WHOLE_72, "zero": 0, "sequence": 256}, None, 0.0),
            ),
            (
                "peft, docs/source/accelerate/fsdp.md: LoRA of 70B on 8 H100, 72 to 80 GB",
                *(True, "llama2-70b", {**EIGHT, "software": "trl", "weight_bits": 32}),
                *(76 / 1.0737, 0.06),
            ),
            (
                "peft, docs/source/accelerate/deepspeed.md: LoRA of 70B on 8 H100",
                *(True, "llama2-70b", {**EIGHT, "software": "trl with deepspeed"}),
                *(64 / 1.0737, 0.15),
            ),
            (
                "peft, docs/source/accelerate/fsdp.md: QLoRA of 70B on 2 devices, no offload",
                *(True, "llama2-70b", {**TWO, "software": FIRST, "cluster": A100_40}),
                *(35.6 / 1.0737, 0.15),
            ),
            (
                "peft, docs/source/accelerate/deepspeed.md: QLoRA of 70B on 2 devices of 40 GB",
                *(True, "llama2-70b"),
                {**TWO, "software": "trl with deepspeed", "cluster": A100_40},
                *(36.6 / 1.0737, 0.15),
            ),
            (
                "OpenRLHF issue 698: Llama-3-8B by ZeRO-2 on one A100, in the update",
                *(False, "llama3-8b", {**ALONE, "cluster": A100_80, "sequence": 128}, None, 0.0),
            ),
            (
                "OpenRLHF issue 698: the same with --adam_offload",
                *(True, "llama3-8b"),
                {**ALONE, "cluster": A100_80, "sequence": 128}
                | {"offload": {"optimizer": 1.0, "gradients": 1.0}},
                *(None, 0.0),
            ),
            (
                "lqtrung1998/mwp_ReFT issue 12: CodeLlama-7B by ZeRO-2 on one A800, in the update",
                *(False, "llama2-7b", {**ALONE, "cluster": "hgx-a800", "sequence": 1024}),
                *(None, 0.0),
            ),
            (
                "LlamaFactory issue 3631: LoRA of Llama-3-8B by ZeRO-3 on 8 A800, 6 of 8,192",
                *(False, "llama3-8b"),
                {**FACTORY, **ADAPTED, "lora_targets": "query,value", "precision": "bf16"}
                | {"cluster": "hgx-a800", "devices": 8, "zero": 3, "sequence": 8192}
                | {"micro_batch": 6, "global_batch": 384},
                *(None, 0.0),
            ),
        )
    ),
    *(
        Layout(
            said=f"LlamaFactory issue 6531: LoRA by ZeRO-3 on 4 L20, {size} of 15,000 tokens",
            ran=size == 1,
            model="llama3-8b",
            run={**FACTORY, **ADAPTED, "precision": "bf16", "cluster": "l20", "devices": 4}
            | {"zero": 3, "sequence": 15000, "micro_batch": size, "global_batch": 32 * size},
        )
        for size in (1, 2)
    ),
    *(
        Layout(
            said=f"OPPO-PersonalAI/Agent_Foundation_Models issue 5: 7B on 8 A100, {length} tokens",
            ran=length == 16384,
            model="qwen2.5-7b",
            run={**FACTORY, **NODE, "precision": "bf16", "sequence": length, "global_batch": 32},
            peak=55 / 1.0737 if length == 16384 else None,
            held="device",
            off=0.30,
        )
        for length in (16384, 32768)
    ),
    *(
        Layout(
            said=f"huggingface/open-r1 issue 506: Qwen2.5-1.5B on 8 H20, {size} of 16,384 tokens",
            ran=size == 2,
            model="qwen2.5-1.5b",
            run={"software": "trl with deepspeed", "recompute": "full", "loss_chunk": 0}
            | {**NODE, "cluster": "hgx-h20", "sequence": 16384}
            | {"micro_batch": size, "global_batch": 8 * size},
        )
        for size in (2, 16)
    ),
    *(
        Layout(
            said=f"NeMo-Aligner, in NeMo RL issue 366: 8B by tensor 4 on 8 H100, {size} of 4,096",
            ran=size == 4,
            model="llama3-8b",
            run={"software": "nemo", "cluster": "dgx-h100", "devices": 8, "tp": 4, "zero": 1}
            | {"sequence_parallel": False, "recompute": "none", "sequence": 4096}
            | {"micro_batch": size, "global_batch": 128},
        )
        for size in (4, 8)
    ),
    *(
        Layout(
            said=f"torchtune README at 0031bfb08: {model}, adapters of {rank}, {cluster}",
            ran=True,
            model=model,
            run={**TUNE, "lora_rank": rank, "cluster": cluster, "devices": n, **more}
            | {"micro_batch": 2, "global_batch": 2 * n, "zero": 3 if n > 1 else 0},
            peak=peak,
            off=off,
        )
        for model, rank, cluster, n, more, peak, off in (
            ("llama3-8b", 8, "rtx-4090", 1, {"recompute": "full"}, 16.2, 0.10),
            ("llama3-8b", 8, "rtx-a6000", 1, {"recompute": "none"}, 30.3, 0.15),
            ("llama3-8b", 8, "rtx-4090", 1, {"recompute": "full", "weight_bits": 4}, 7.4, 0.10),
            ("llama3-70b", 16, A100_80, 8, {"recompute": "full"}, 27.6, 0.10),
            ("llama3-405b", 16, A100_80, 8, {"recompute": "full", "weight_bits": 4}, 41.7, 0.30),
        )
    ),
]


ALL = LAYOUTS + NEW + FRESH


@pytest.mark.slow
@pytest.mark.parametrize("layout", [pytest.param(each, id=each.said) for each in ALL])
def test_a_published_layout_is_said_to_fit_where_it_ran(layout: Layout) -> None:
    """Those that are judged wrong, too, so that a row is moved when its cause is mended."""
    found = tw.estimate(layout.model, **layout.run).document
    shown = f"{found.device_bytes} of {found.device_memory_bytes}, {found.fit_probability}"
    assert (found.fits is layout.ran) is (layout.wrong is None), shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [pytest.param(each, id=each.said) for each in ALL if each.peak is not None]
)
def test_a_published_peak_is_met(layout: Layout) -> None:
    found = tw.estimate(layout.model, **layout.run).document
    held = getattr(found, f"{layout.held}_bytes")
    assert held / 2**30 == pytest.approx(layout.peak, rel=layout.off)
