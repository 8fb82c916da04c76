"""Run by test_real_trainers in a process of its own: an exported file through its trainer.

What the file leaves to the user is filled in. Nothing is trained, and there is no GPU: what asks
for one is told of the CPU. Prints JSON of what the trainer understood, or how it refused.
"""

import json
import sys
from pathlib import Path
from types import ModuleType

import yaml


def axolotl(stated, _):
    # Context parallelism asks for a library of CUDA kernels.
    sys.modules.setdefault("ring_flash_attn", ModuleType("ring_flash_attn"))
    from axolotl.utils.schemas.config import AxolotlInputConfig

    user = {"datasets": [{"path": "data", "type": "alpaca"}], "learning_rate": 1e-4}
    found = AxolotlInputConfig(**user, **stated)
    unknown = set(stated) - set(AxolotlInputConfig.model_fields)
    names = ("tensor_parallel_size", "context_parallel_size", "dp_shard_size", "lora_r", "adapter")
    return {"unknown": sorted(unknown), **{name: getattr(found, name) for name in names}}


def llamafactory(stated, folder):
    """Its arguments; DeepSpeed itself would be asked for to read the JSON that they name."""
    from llamafactory.hparams.parser import _TRAIN_ARGS
    from transformers import HfArgumentParser

    own = {name: value for name, value in stated.items() if name != "deepspeed"}
    found = HfArgumentParser(_TRAIN_ARGS).parse_dict(_on_cpu(own, dataset="data"))
    values = {name: value for part in found for name, value in vars(part).items()}
    names = ("cutoff_len", "finetuning_type", "lora_rank", "quantization_bit")
    named = stated.get("deepspeed")
    return {name: values[name] for name in names} | {
        "deepspeed": named is not None and (folder / named).is_file()
    }


def trl(stated, _):
    from transformers import HfArgumentParser
    from trl import ModelConfig, ScriptArguments, SFTConfig

    parser = HfArgumentParser((ScriptArguments, SFTConfig, ModelConfig))
    found = parser.parse_dict(_on_cpu(stated, dataset_name="data"))
    values = {name: value for part in found for name, value in vars(part).items()}
    return {name: values[name] for name in ("max_length", "loss_type", "lora_r", "use_peft")}


def automodel(stated, _):
    from nemo_automodel.recipes._dist_utils import parse_distributed_section

    found = parse_distributed_section(stated["distributed"])
    names = ("tp_size", "cp_size", "pp_size", "ep_size", "dp_size", "activation_checkpointing")
    return {name: found[name] for name in names}


def _on_cpu(stated, **user):
    kept = {name: value for name, value in stated.items() if name not in ("bf16", "fp16")}
    return {"output_dir": "out", "use_cpu": True, **user, **kept}


def main():
    asked = json.load(sys.stdin)
    stated = yaml.safe_load(Path(asked["file"]).read_text())
    try:
        found = globals()[asked["trainer"]](stated, Path(asked["file"]).parent)
    except (ValueError, TypeError, KeyError) as error:
        found = {"refused": f"{type(error).__name__}: {error}"[:1000]}
    print(json.dumps(found))


main()
