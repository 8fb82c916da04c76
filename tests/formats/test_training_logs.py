"""Pasted log lines of three frameworks, and what a step takes by each."""

from __future__ import annotations

import pytest

from trainwright.errors import InvalidInput
from trainwright.formats.training_logs import read_log

MEGATRON = """
 iteration 10/ 100 | elapsed time per iteration (ms): 9999.0 | learning rate: 1.0E-05 |
 iteration 20/ 100 | elapsed time per iteration (ms): 1200.5 | learning rate: 1.0E-05 |
 iteration 30/ 100 | elapsed time per iteration (ms): 1201.5 | learning rate: 1.0E-05 |
 iteration 40/ 100 | elapsed time per iteration (ms): 1199.5 | learning rate: 1.0E-05 |
 iteration 50/ 100 | elapsed time per iteration (ms): 1200.5 | learning rate: 1.0E-05 |
[Rank 0] (after 10 iterations) memory (MB) | allocated: 100.0 | max allocated: 2048.0 | reserved: 1
"""
TORCHTITAN = """
[rank0]:\x1b[31mstep: 10  \x1b[32mloss:  7.1  \x1b[33mmemory: 42.50GiB(45.2%)  \x1b[34mtps: 5,762
[rank0]:step: 20  loss:  6.9  memory: 42.75GiB(45.2%)  tps: 5,770  tflops: 334  mfu: 33.8%
"""
DEEPSPEED = "RunningAvgSamplesPerSec=30.0, CurrSamplesPerSec=32.0, MemAllocated=2.1GB"


def step_s(text: str) -> float:
    return read_log(text).step_time_s(global_batch=64, sequence_length=8192, num_devices=8)


def test_megatron_prints_milliseconds_and_the_first_lines_are_warm_up() -> None:
    assert step_s(MEGATRON) == pytest.approx(1.2005)
    assert read_log(MEGATRON).peak_memory_bytes == 2048 * 2**20


def test_torchtitan_prints_tokens_per_second_of_one_device() -> None:
    assert step_s(TORCHTITAN) == pytest.approx(64 * 8192 / 8 / 5766)
    assert read_log(TORCHTITAN).peak_memory_bytes == 42.75 * 2**30


def test_deepspeed_prints_samples_per_second_of_the_whole_run() -> None:
    assert step_s(DEEPSPEED) == pytest.approx(2.0)
    assert read_log(DEEPSPEED).framework == "DeepSpeed"


def test_a_text_without_such_lines_is_refused_with_what_is_read() -> None:
    with pytest.raises(InvalidInput, match="Megatron-LM"):
        read_log("loss 3.2\nstep 4\n")
