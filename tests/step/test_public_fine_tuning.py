"""What people say that fine-tuning took on one card, beside what is predicted of the device."""

from __future__ import annotations

from statistics import mean

import trainwright as tw

GB = 1e9
# LLaMA-Factory's wiki, "Performance comparison": LLaMA2-7B in 4 bit, rank 8 beside all products,
# FlashAttention-2, one sequence, A100 of 40 GB: gigabytes by tokens, rounded; 65,536 ran out.
LLAMA_FACTORY = {1024: 6, 2048: 7, 4096: 9, 8192: 12, 16384: 19, 32768: 32}
# Qwen's README (QwenLM/Qwen), LoRA of 64 beside all products of Qwen-7B in 16 bit, one sequence.
QWEN_LORA = {256: 20.1, 1024: 21.5, 2048: 23.8, 4096: 29.7, 8192: 36.6}


def device_gb(model: str, tokens: int, *, rank: int, bits: int | None) -> float:
    document = tw.estimate(
        model,
        cluster="dgx-a100",
        devices=1,
        global_batch=1,
        sequence=tokens,
        recompute="full",
        precision="bf16",
        lora_rank=rank,
        lora_targets="all",
        weight_bits=bits,
        software="llamafactory",
    ).document
    assert document.device_bytes is not None
    return document.device_bytes / GB


def test_a_card_holds_what_users_of_adapters_read_off_it() -> None:
    errors = [
        device_gb("llama2-7b", tokens, rank=8, bits=4) / said - 1
        for tokens, said in LLAMA_FACTORY.items()
    ]
    errors += [
        device_gb("qwen-7b", tokens, rank=64, bits=None) / said - 1
        for tokens, said in QWEN_LORA.items()
    ]
    assert mean(map(abs, errors)) < 0.05
    assert max(map(abs, errors)) < 0.10


def test_the_longest_sequence_lies_between_the_one_that_ran_and_the_one_that_did_not() -> None:
    found = tw.fit("llama2-7b", gpu="A100-40GB", lora_rank=8, software="llamafactory").document
    longest = [way.longest_sequence for way in found.rows if "QLoRA" in way.way]
    assert len(longest) == 1
    assert 32768 <= longest[0] < 65536
