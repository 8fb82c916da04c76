"""Run by test_real_deepspeed in a process of its own: one exported folder through DeepSpeed.

A process group of the planned size that moves nothing stands in for the cluster. Prints JSON: what
`DeepSpeedConfig` made of the file, and where its pipeline module cuts. Asked for a `stage` it runs
the engine at that stage on plain products, and prints the bytes that it holds.
"""

import json
import sys
from pathlib import Path


def main():
    asked = json.load(sys.stdin)
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group(
        "fake", store=FakeStore(), rank=0, world_size=asked["devices"]
    )
    import deepspeed

    # DeepSpeed would compile a kernel for minutes, and wait for ever on the lock of a compilation
    # that was killed; nothing is moved here.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="fake")
    if "stage" in asked:
        print(json.dumps(held_by_engine(asked)))
        return
    folder = Path(asked["folder"])
    from deepspeed.runtime.config import DeepSpeedConfig

    class Mpu:
        def get_data_parallel_world_size(self):
            return asked["data"]

    values = json.loads((folder / "ds_config.json").read_text())
    values |= asked["more"]
    try:
        config = DeepSpeedConfig(values, mpu=Mpu())
    except (AssertionError, ValueError, TypeError) as error:
        print(json.dumps({"refused": f"{type(error).__name__}: {error}"[:300]}))
        return
    found = {
        "batch": config.train_batch_size,
        "micro": config.train_micro_batch_size_per_gpu,
        "steps": config.gradient_accumulation_steps,
        "zero": config.zero_optimization_stage,
        "interval": config.pipeline.get("activation_checkpoint_interval"),
    }
    if (folder / "pipeline.py").exists():
        names = {}
        exec((folder / "pipeline.py").read_text(), names)
        layers = [torch.nn.Identity() for _ in range(names["BOUNDS"][-1])]
        module = names["pipeline"](layers, loss_fn=None)
        found["parts"] = list(module.parts)
        found["checkpointed"] = module.activation_checkpoint_interval
    print(json.dumps(found))


def held_by_engine(asked):
    """Bytes a parameter, at most in the backward pass of a microbatch and in an update."""
    import deepspeed
    import torch

    from trainwright.lab.rank_program import Held, watched

    layers, width = asked["layers"], asked["width"]
    zero = {
        "stage": asked["stage"],
        "overlap_comm": True,
        "reduce_bucket_size": asked["bucket"],
        "allgather_bucket_size": asked["bucket"],
        "stage3_prefetch_bucket_size": 0,
        "stage3_max_reuse_distance": 0,
        **({"sub_group_size": asked["group"]} if "group" in asked else {}),
    }
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }
    held, found = Held(), {}
    with watched(held), held:
        blocks = [torch.nn.Linear(width, width, bias=False) for _ in range(layers)]
        model = torch.nn.Sequential(*blocks)
        made = torch.optim.AdamW(model.parameters(), fused=True)
        engine, *_ = deepspeed.initialize(model=model, optimizer=made, config=settings)
        x = torch.randn(1, width, dtype=torch.bfloat16)
        for _ in range(4):  # two steps, of which the second has states
            held.forget_peak()
            engine.backward(engine(x).float().sum())
            found["backward"] = held.peak
            held.forget_peak()
            engine.step()
            found["update"] = held.peak
    return {name: size / (layers * width * width) for name, size in found.items()}


if __name__ == "__main__":
    main()
