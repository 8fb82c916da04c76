"""Run by test_real_deepspeed in a process of its own: one exported folder through DeepSpeed.

A process group of the planned size that moves nothing stands in for the cluster. Prints JSON: what
`DeepSpeedConfig` made of the file, and where its pipeline module cuts.
"""

import json
import sys
from pathlib import Path


def main():
    asked = json.load(sys.stdin)
    folder = Path(asked["folder"])
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


if __name__ == "__main__":
    main()
