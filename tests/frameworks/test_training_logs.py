"""Pasted log lines of three frameworks, and what a step takes by each."""

from __future__ import annotations

import pytest

from trainwright.errors import InvalidInput
from trainwright.frameworks.training_logs import read_log

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


FORK = """
 iteration  10/ 100 | elapsed time per iteration (s): 104.8 | samples per second: 19.5 | TFLOPs: 149
 iteration  11/ 100 | elapsed time per iteration (s): 105.2 | samples per second: 19.4 | TFLOPs: 148
"""
EARLY_TITAN = (
    "[rank1]:2024-04-01 17:54:52,734 - root - INFO - step: 9  memory: 9.5GiB(10%)  wps: 1,228"
)
EARLY_DEEPSPEED = """
[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/40, SamplesPerSec=80.0, MaxMemAllocated=9.0GB
[2022-03-11 02:07:14,130] [INFO] [timer.py:189:stop] 0/50, SamplesPerSec=80.0, MaxMemAllocated=9.5GB
"""


def test_forks_and_earlier_releases_print_other_words() -> None:
    assert step_s(FORK) == pytest.approx(105.0)
    assert step_s(EARLY_TITAN) == pytest.approx(64 * 8192 / 8 / 1228)
    assert step_s(EARLY_DEEPSPEED) == pytest.approx(0.8)
    assert read_log(EARLY_DEEPSPEED).peak_memory_bytes == 9.5 * 2**30


def test_an_average_over_the_run_is_not_its_steps() -> None:
    line = (
        "epoch=0/micro_step=9/global_step=9, RunningAvgSamplesPerSec=30.0, CurrSamplesPerSec=32.0"
    )
    assert read_log(f"{line}\n").sequences_per_s == (32.0,)


@pytest.mark.parametrize("escape", ["\x1b", "", "^["])
def test_colours_are_passed_over_with_and_without_their_escape(escape: str) -> None:
    text = f"[rank0]:{escape}[36mstep:  5 {escape}[34mtps: {escape}[1;32m5,762{escape}[39m done\n"
    assert read_log(text).tokens_per_s == (5762.0,)


def test_colours_of_grep_are_passed_over() -> None:
    found = "\x1b[01;31m\x1b[Kelapsed time per iteration (ms): \x1b[m\x1b[K1200.5 |\n"
    assert read_log(found).step_times_s == (1.2005,)


def test_a_last_line_that_breaks_off_counts_only_alone() -> None:
    whole = "iteration 1/9 | elapsed time per iteration (ms): 1200.5 |\n"
    assert read_log(whole + "iteration 2/9 | elapsed time per iteration (ms): 12").num_steps == 1
    assert read_log("elapsed time per iteration (ms): 1200").step_times_s == (1.2,)


@pytest.mark.parametrize("figure", ["1e999", "0", "nan", "-3"])
def test_a_figure_that_times_nothing_is_passed_over(figure: str) -> None:
    with pytest.raises(InvalidInput, match="must hold lines of"):
        read_log(f"elapsed time per iteration (ms): {figure} |\n")
