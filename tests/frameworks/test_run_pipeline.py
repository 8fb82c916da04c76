"""The exported program runs its exported schedule: gradients are those of the whole model."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from export_jobs import bundle, golden_jobs, job
from trainwright.plans.job import Job

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs torch: make test-all")

USER = '''
"""Blocks are small linear layers; those of a plan's recomputation are checkpointed."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, NUM_STEPS = 4, 1


class Block(nn.Module):
    def __init__(self, number, again):
        super().__init__()
        torch.manual_seed(number)
        self.linear, self.again = nn.Linear(WIDTH, WIDTH), again

    def forward(self, x):
        def work(y):
            return y + torch.tanh(self.linear(y))

        return checkpoint(work, x, use_reentrant=False) if self.again else work(x)


def build(stage, mesh=None, plan=None):
    blocks = [layer for layer in stage["layers"] if layer["kind"] == "block"]
    return nn.Sequential(*(Block(b["block"], b["recompute"] == "full") for b in blocks))


def batch(step, mesh=None, plan=None):
    torch.manual_seed(1000 + step)
    size = plan["num_microbatches"] * plan["microbatch_size"]
    return torch.randn(size, WIDTH), torch.randn(size, WIDTH)


def loss(output, target):
    return (output - target).square().mean()


class Keep:
    """An optimizer that writes the gradients down."""

    def __init__(self, parameters):
        self.parameters = parameters

    def step(self):
        rank = torch.distributed.get_rank()
        torch.save([p.grad.clone() for p in self.parameters], f"gradients{rank}.pt")

    def zero_grad(self):
        pass


optimizer = Keep
'''


def whole_gradients(folder: Path, plan: dict[str, object]) -> dict[int, list[object]]:
    """By stage, the gradients of the unpartitioned model."""
    names: dict[str, object] = {}
    exec(USER, names)
    stages = plan["stages"]
    modules = [names["build"](stage) for stage in stages]  # type: ignore[operator,attr-defined]
    inputs, targets = names["batch"](0, None, plan)  # type: ignore[operator]
    count = plan["num_microbatches"]
    for part, wanted in zip(inputs.chunk(count), targets.chunk(count), strict=True):
        for module in modules:
            part = module(part)
        (names["loss"](part, wanted) / count).backward()  # type: ignore[operator]
    return {
        stage["stage"]: [p.grad for p in module.parameters()]
        for stage, module in zip(stages, modules, strict=True)
    }


def cases() -> dict[str, Job]:
    half = golden_jobs()["v-half mixed"]
    return {
        "1f1b": job("llama3-8b", pipeline=2, zero_stage=0, global_batch=4),
        "v-half mixed": replace(
            half, parallelism=replace(half.degrees, tensor=1, data=1, sequence_parallel=False),
            global_batch=8,
        ),
        "no pipeline": job("llama3-8b", zero_stage=0, global_batch=4),
    }  # fmt: skip


@pytest.mark.parametrize("name", cases())
def test_gradients_are_those_of_the_whole_model(name: str, tmp_path: Path) -> None:
    import json

    made = cases()[name]
    for file, text in bundle(made, "pytorch").files.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "user.py").write_text(USER)
    plan = json.loads((tmp_path / "stages.json").read_text())
    ranks = made.degrees.pipeline
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), "run_pipeline.py", "user:build"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = whole_gradients(tmp_path, plan)
    for rank in range(ranks):
        own = [s["stage"] for s in plan["stages"] if s["rank"] == rank]
        wanted = [gradient for stage in own for gradient in expected[stage]]
        found = torch.load(tmp_path / f"gradients{rank}.pt")
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert torch.allclose(one, other, atol=1e-6), rank
