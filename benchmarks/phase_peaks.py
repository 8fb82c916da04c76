"""What a rank holds while FSDP2 builds a model and while a checkpoint is saved or loaded.

PyTorch's own FSDP2 runs as one of eight ranks of a fake process group; every storage is
counted until it is freed, as dry runs count it. Blocks of one matrix stand for a model. A host is
no other device here, so what is moved off the device is read from the sizes of single tensors.

    python benchmarks/phase_peaks.py        # needs torch
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, str(Path(__file__).parents[1] / "src" / "trainwright" / "lab"))
from rank_program import Held, watched

RANKS, BLOCKS, SIDE = 8, 16, 1024
WHOLE = BLOCKS * SIDE * SIDE * 4  # bytes of all weights in float32


def model(device: str) -> nn.Module:
    """Blocks of one matrix each."""
    blocks = (nn.Linear(SIDE, SIDE, bias=False, device=device) for _ in range(BLOCKS))
    return nn.Sequential(*blocks)


def sharded(made: nn.Module) -> nn.Module:
    """The model with a unit of FSDP2 for every block."""
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in made:
        fully_shard(block, mesh=mesh)
    return fully_shard(made, mesh=mesh)


def on_meta() -> nn.Module:
    """Sharded before it has weights, as torchtitan does."""
    return sharded(model("meta")).to_empty(device="cpu")


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model after a step of Adam."""
    made = on_meta()
    optimizer = torch.optim.AdamW(made.parameters())
    made(torch.zeros(4, SIDE)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return made, optimizer


def phase(name: str, prepare: Callable[[], object], run: Callable[[object], object]) -> None:
    """Print what is held before, and at the most while `run` does its work."""
    held = Held()
    with watched(held), held:
        ready = prepare()
        before = held.total
        held.forget_peak()
        kept = run(ready)
        peak = held.peak
        del kept
    print(f"{name:<58} {before / WHOLE:8.3f} {peak / WHOLE:8.3f}")


def main() -> None:
    """Every phase, as shares of all weights in float32."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    whole, single = StateDictOptions(full_state_dict=True), StateDictOptions()
    print(f"torch {torch.__version__}, {RANKS} ranks; shares of all weights in float32")
    print(f"{'phase':<58} {'before':>8} {'peak':>8}")
    phase("built on meta, sharded, then given weights", lambda: None, lambda _: on_meta())
    phase("built whole on every rank, then sharded", lambda: None, lambda _: sharded(model("cpu")))
    phase(
        "weights saved shard by shard", on_meta, lambda m: get_model_state_dict(m, options=single)
    )
    phase("weights saved whole", on_meta, lambda m: get_model_state_dict(m, options=whole))
    for name, options in (("shard by shard", single), ("whole", whole)):
        phase(
            f"states of Adam saved {name}",
            trained,
            lambda pair, options=options: get_optimizer_state_dict(*pair, options=options),
        )
    full = {f"{n}.weight": (SIDE, SIDE) for n in range(BLOCKS)}

    def load(made: nn.Module) -> None:
        given = {name: torch.empty(shape) for name, shape in full.items()}
        set_model_state_dict(made, given, options=StateDictOptions(full_state_dict=True))

    phase("a whole checkpoint loaded, read on the device", on_meta, load)


if __name__ == "__main__":
    main()
