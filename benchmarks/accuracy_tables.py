"""Markdown tables of a `trainwright validate DIR --json` document read from standard input."""

from __future__ import annotations

import json
import sys
from typing import Any

QUANTITIES = ("time", "memory", "static_memory", "memory_apart", "static_memory_apart")


def share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def main(document: dict[str, Any]) -> None:
    print("| file | rows / modelled | quantity | n | mean | median | p90 | max | bias |")
    print("|---|--:|---|--:|--:|--:|--:|--:|--:|")
    for dataset in document["datasets"]:
        head = f"{dataset['name']} | {dataset['rows']} / {dataset['modelled']}"
        for quantity in QUANTITIES:
            record = dataset.get(quantity)
            if record is None:
                continue
            keys = ("mape", "median_ape", "p90_ape", "max_ape", "bias")
            figures = " | ".join(share(record[key]) for key in keys)
            print(f"| {head} | {quantity} | {record['n']} | {figures} |")
            head = " | "
    print("\n| file | tau | regret mean / max | false fits | in the interval | interval width |")
    print("|---|--:|--:|--:|--:|--:|")
    for dataset in document["datasets"]:
        tau, regret = dataset.get("kendall_tau"), dataset.get("top1_regret") or {}
        print(
            f"| {dataset['name']} | {'–' if tau is None else f'{tau:.2f}'} "
            f"| {share(regret.get('mean'))} / {share(regret.get('max'))} "
            f"| {share(dataset.get('false_fits'))} | {share(dataset.get('interval_coverage'))} "
            f"| {share(dataset.get('interval_width'))} |"
        )
    print(f"\nPooled coverage {share(document.get('pooled_interval_coverage'))}%.\n")
    for dataset in document["datasets"]:
        for skipped in dataset.get("skipped", ()):
            print(f"* {dataset['name']}: {skipped['rows']} rows, {skipped['reason']}")


if __name__ == "__main__":
    main(json.load(sys.stdin))
