"""What `plan --schedule searched` gains over the best plan of named families, and what it costs.

`python benchmarks/searched_orders.py` prints the tables of `reports/searched_orders_*`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import mean, median

import trainwright
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.planning.question.question import Allowed, ModelQuestion, Span, Workload
from trainwright.planning.search.framework import plan_runnable
from trainwright.planning.search.orders import with_searched_orders

H100 = {"cluster": "dgx-h100", "sequence": 8192}
QUESTIONS = (
    ("llama3-70b", {**H100, "devices": 64, "global_batch": 128}),
    ("gpt3-175b", {"cluster": "dgx-a100", "devices": 1024, "global_batch": 1536, "sequence": 2048}),
    ("llama3-405b", {**H100, "devices": 16384, "global_batch": 2048}),
    ("deepseek-v3", {**H100, "devices": 2048, "global_batch": 15360, "sequence": 4096}),
    ("llama3-8b", {**H100, "devices": 8, "global_batch": 32}),
    ("llama3-8b", {**H100, "devices": 8, "global_batch": 32, "tp": 1, "pp": 4}),
    ("llama3-8b", {**H100, "devices": 8, "global_batch": 32, "tp": 1, "pp": 8}),
    ("llama3-70b", {**H100, "devices": 64, "global_batch": 64, "tp": 4, "pp": 8}),
    (
        "mixtral-8x7b",
        {**H100, "devices": 32, "global_batch": 64, "sequence": 4096, "pp": "2..8"},
    ),
)
FAMILIES = (None, ("1f1b", "zb-h1", "zb-h2"), ("interleaved",), ("zb-v",), ("v-half",))
RANDOM = 12


def published() -> None:
    """Whole questions, as the command plans them."""
    for model, given in QUESTIONS:
        options = {"framework": "any", **given}
        named = trainwright.plan(model, **options).document
        found = trainwright.plan(model, **options, schedule="searched").document
        gain = 1 - found.step_time_s / named.step_time_s
        began = found.order.family if found.order else "-"
        print(
            f"| {model} | {named.schedule} | {named.step_time_s:.4f} | {began} "
            f"| {found.step_time_s:.4f} | {gain:.2%} | {named.search_s:.1f} "
            f"| {found.search_s:.1f} |"
        )


def small() -> None:
    """One pipeline of four H100 and 8 to 23 blocks of Llama 3 8B, 24 to 80 GiB, 12 x 4,096."""
    llama = catalog.model("llama3-8b").config
    node = catalog.cluster("dgx-h100").with_nodes(1)
    one = Span.only(1)
    for families in FAMILIES:
        gains, seconds, draw = [], [0.0, 0.0], random.Random(1)
        for _ in range(RANDOM):
            blocks, memory_gib = draw.randrange(8, 24), draw.choice((24, 30, 40, 60, 80))
            question = ModelQuestion(
                model=replace(llama, num_layers=blocks),
                cluster=node.with_memory(memory_gib * 2**30),
                workload=Workload(global_batch=12, sequence_length=4096),
                num_devices=4,
                allowed=Allowed(
                    tensor=one,
                    context=one,
                    microbatch_size=one,
                    data=one,
                    pipeline=Span.only(4),
                    zero_stages=(1,),
                    schedules=families,
                ),
            )
            budget = Budget()
            began_s = budget.cpu_s
            named = plan_runnable(question, budget)
            planned_s = budget.cpu_s
            if not named.priced:
                continue
            found = with_searched_orders(question, named, budget, num_alternatives=5)
            seconds[0] += planned_s - began_s
            seconds[1] += budget.cpu_s - planned_s
            steps_s = [each.priced[0].step.step_time_s for each in (named, found)]
            gains.append(1 - steps_s[1] / steps_s[0])
        names = "all" if families is None else ", ".join(families)
        print(
            f"| {names} | {len(gains)} | {mean(gains):.1%} | {median(gains):.1%} "
            f"| {max(gains):.1%} | {sum(gain == 0 for gain in gains)} | {seconds[0]:.1f} "
            f"| {seconds[1]:.1f} |"
        )


if __name__ == "__main__":
    published()
    small()
