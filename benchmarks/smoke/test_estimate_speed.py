"""Estimates by the thousand, in one call."""

from __future__ import annotations

import random
import time
from itertools import product

from trainwright.formats import catalog
from trainwright.plans import Parallelism
from trainwright.plans.configuration import Configuration
from trainwright.profile import Recompute
from trainwright.step.batch import price_batch

# Machines differ, and so does their load; a lost order of magnitude does not.
SLOWEST_RATIO = 5


def configurations(count: int) -> list[Configuration]:
    """Different legal runs of GPT-3 175B, in a fixed random order."""
    runs = []
    for tensor, pipeline, virtual, size, mode, zero, devices, batch, sequence in product(
        (1, 2, 4, 8),
        (1, 2, 4, 8, 16, 32),
        (1, 2, 3),
        (1, 2, 4, 8),
        Recompute,
        (0, 1, 2, 3),
        (128, 256, 512, 1024),
        (1024, 1536),
        (True, False),
    ):
        data = devices // (tensor * pipeline)
        whole = data * tensor * pipeline == devices and batch % (size * data) == 0
        if not whole or (sequence and tensor == 1) or (zero > 1 and pipeline > 1):
            continue
        microbatches = batch // (size * data)
        if virtual > 1 and (pipeline == 1 or 96 % (pipeline * virtual) or microbatches % pipeline):
            continue
        runs.append(
            Configuration(
                parallelism=Parallelism(
                    tensor=tensor,
                    pipeline=pipeline,
                    data=data,
                    virtual_stages=virtual,
                    zero_stage=zero,
                    sequence_parallel=sequence,
                ),
                microbatch_size=size,
                global_batch=batch,
                sequence_length=2048,
                schedule="interleaved" if virtual > 1 else "1f1b",
                recompute=mode,
            )
        )
    random.Random(0).shuffle(runs)
    return runs[:count]


def test_ten_thousand_configurations_a_second(benchmark) -> None:
    runs, model = configurations(10_000), catalog.model("gpt3-175b").config
    cluster = catalog.cluster("dgx-a100").with_nodes(128)
    assert len(runs) == 10_000
    taken: list[float] = []

    def timed() -> None:
        start_s = time.process_time()
        prices = price_batch(model, cluster, runs)
        taken.append(time.process_time() - start_s)
        assert not any(prices.faults)

    benchmark.pedantic(timed, rounds=3, warmup_rounds=1)
    assert min(taken) <= SLOWEST_RATIO * 1.0
