"""Run by test_real_torchtitan in a process of its own: one exported folder through torchtitan.

Prints JSON: what its parser made of the configuration, which stages it gives every rank, and what
`check_names` says of the real model built without memory. Importing its models wants triton (1 GB),
which a CPU never calls: torch's own users of it are imported first, then a finder answers for the
rest. The other way round torch itself fails.
"""

import importlib
import importlib.machinery
import json
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock


class _Triton(importlib.machinery.PathFinder):
    """Answers every name under triton with a module that has everything."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            return importlib.machinery.ModuleSpec(name, cls, is_package=True)
        return None

    @staticmethod
    def create_module(spec):
        made = ModuleType(spec.name)
        made.__path__ = []
        made.__getattr__ = lambda name: MagicMock(name=name)
        return made

    @staticmethod
    def exec_module(module):
        pass


def stand_in_for_triton():
    for name in (
        "torch._inductor.compile_fx",
        "torch._inductor.runtime.triton_heuristics",
        "torch.utils.flop_counter",
        "torch._dynamo",
        "torch.distributed.tensor",
        "torch.distributed.fsdp",
        "torch.nn.attention.flex_attention",
    ):
        importlib.import_module(name)
    import torch.utils._triton

    torch.utils._triton.has_triton_package = lambda: False
    sys.meta_path.insert(0, _Triton)


class _Mesh:
    """As much of a device mesh as the split of a model asks for."""

    def __init__(self, rank, size):
        self.rank, self.ranks = rank, size

    def get_local_rank(self):
        return self.rank

    def size(self):
        return self.ranks

    def get_group(self, *_):
        return None


def stages_of_every_rank(pipeline_parallel, parallelism):
    """The stages that torchtitan builds on each rank, from a model of empty modules."""
    from torch import nn

    names = parallelism.module_fqns_per_model_part
    model = nn.Module()
    for name in ("tok_embeddings", "norm", "output", "lm_head"):
        setattr(model, name, nn.Identity())
    model.layers = nn.ModuleDict(
        {n.split(".")[1]: nn.Identity() for stage in names for n in stage if "." in n}
    )
    split = getattr(pipeline_parallel, "pipeline_module_split", None)
    if split is None:
        mapping = pipeline_parallel._get_pp_rank_to_stage_indices_mapping
        ranks = parallelism.pipeline_parallel_degree
        found = [
            mapping(rank, ranks, parallelism.pipeline_parallel_schedule, len(names))
            for rank in range(ranks)
        ]
        return [list(each) for each in found]
    pipeline_parallel.PipelineStage = lambda module, index, *_, **__: index
    return [
        list(
            split(
                model,
                _Mesh(rank, parallelism.pipeline_parallel_degree),
                parallelism.pipeline_parallel_schedule,
                None,
                names,
            )[0]
        )
        for rank in range(parallelism.pipeline_parallel_degree)
    ]


def parsed(asked):
    """The configuration, by torchtitan's own parser."""
    from torchtitan.config import ConfigManager

    if asked["version"].startswith("0.2"):
        return ConfigManager().parse_args(["--job.config_file", asked["file"], *asked["more"]])
    sys.path.insert(0, str(Path(asked["file"]).parent))
    given = ["--module", "trainwright_config", "--config", "planned"]
    return ConfigManager().parse_args([*given, *asked["more"]])


def model_of(config, version):
    """The model of the configuration, without memory."""
    import torch

    with torch.device("meta"):
        if version.startswith("0.2"):
            from torchtitan.protocols.train_spec import get_train_spec

            spec = get_train_spec(config.model.name)
            arguments = spec.model_args[config.model.flavor]
            arguments.update_from_config(config)
            return spec.model_cls(arguments)
        return config.model_spec.model.build()


def main():
    asked = json.load(sys.stdin)
    stand_in_for_triton()
    found = {}
    try:
        config = parsed(asked)
    except (ValueError, SystemExit) as error:
        print(json.dumps({"refused": f"{type(error).__name__}: {error}"}))
        return
    parallelism = config.parallelism
    found["parallelism"] = {
        name: getattr(parallelism, name) for name in asked["wanted"] if hasattr(parallelism, name)
    }
    found["training"] = {
        name: getattr(config.training, name)
        for name in ("seq_len", "local_batch_size", "global_batch_size")
    }
    checkpoint = config.activation_checkpoint
    found["recompute"] = getattr(checkpoint, "mode", None) or type(checkpoint).__qualname__
    if parallelism.pipeline_parallel_degree > 1:
        from torchtitan.distributed import pipeline_parallel

        found["stages"] = stages_of_every_rank(pipeline_parallel, parallelism)
        names = {}
        exec(Path(asked["file"]).with_name("check_names.py").read_text(), names)
        names["check_names"](model_of(config, asked["version"]))
        found["names"] = "agree"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
