"""How long the joint planner searches large questions, and the gap it leaves.

`benchmarks/models/moe-2t.json` is a made-up mixture of experts with 2 trillion parameters, in the
form of DeepSeek-V3 with hyper-parameters of our own: 84 blocks, of which 3 are dense, 256 experts
of which a token visits 8, hidden size 10,240, one layer of multi-token prediction.

    python benchmarks/planner_search.py [CASE ...]
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.planning.question.question import ModelQuestion, Workload
from trainwright.planning.search.search import plan_model
from trainwright.plans.configuration import DEFAULT_OVERHEADS

MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question, and after how many wall seconds its search is stopped."""

    model: str
    cluster: str
    devices: int
    batch: int
    sequence: int
    time_limit_s: float = 600.0

    @property
    def question(self) -> ModelQuestion:
        """As the command asks it."""
        return ModelQuestion(
            model=catalog.open_model(self.model).config,
            cluster=catalog.cluster(self.cluster).with_nodes(self.devices // 8),
            workload=Workload(global_batch=self.batch, sequence_length=self.sequence),
            num_devices=self.devices,
            overheads=DEFAULT_OVERHEADS,
        )


CASES = {
    "llama3-70b": Case(
        model="llama3-70b", cluster="dgx-h100", devices=64, batch=128, sequence=8192
    ),
    "gpt3-175b": Case(
        model="gpt3-175b", cluster="dgx-a100", devices=1024, batch=1536, sequence=2048
    ),
    "deepseek-v3": Case(
        model="deepseek-v3", cluster="dgx-h100", devices=2048, batch=15360, sequence=4096
    ),
    "llama3-405b": Case(
        model="llama3-405b", cluster="dgx-h100", devices=16384, batch=2048, sequence=8192
    ),
    "moe-2t": Case(
        model=str(MODELS / "moe-2t.json"),
        cluster="dgx-h100",
        devices=100_000,
        batch=40_000,
        sequence=4096,
    ),
}


def main(names: list[str]) -> None:
    """Print a row per case; the memory is the largest so far."""
    for name in names or CASES:
        asked, start_s = CASES[name], time.process_time()
        found = plan_model(asked.question, Budget(time_limit_s=asked.time_limit_s))
        spent_s = time.process_time() - start_s
        step_s = found.priced[0].step.step_time_s if found.priced else float("inf")
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        print(
            f"{name:12} {spent_s:6.1f} s  {peak_gb:.2f} GB  step {step_s:.4f} s  "
            f"bound {found.lower_bound_s:.4f} s  gap {1 - found.lower_bound_s / step_s:.2%}  "
            f"{found.considered:,} considered, {found.not_reached:,} not reached"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
