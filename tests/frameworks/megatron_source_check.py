"""Run by test_megatron_source in a process of its own: exported flags through Megatron's parser.

No device is needed: stand-ins answer for one. Prints JSON, what the parser and then
`core_transformer_config_from_args` made of the flags, or what either refused.
"""

import json
import os
import sys
import types
import typing


def main():
    asked = json.load(sys.stdin)
    os.environ.update(RANK="0", WORLD_SIZE=str(asked["world"]))
    if not hasattr(typing, "override"):  # of Python 3.12
        import typing_extensions

        typing.override = typing_extensions.override
    import torch

    hopper = types.SimpleNamespace(major=9, minor=0)
    torch.cuda.get_device_properties = lambda *_: hopper
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
    from megatron.training.arguments import (
        core_transformer_config_from_args,
        parse_args,
        validate_args,
    )

    sys.argv = ["pretrain_gpt.py", *asked["flags"]]
    try:
        args = parse_args()
        validate_args(args)
        config = core_transformer_config_from_args(args)
        init_num_microbatches_calculator(  # as Megatron does once it has its arguments
            args.rank,
            args.rampup_batch_size,
            args.global_batch_size,
            args.micro_batch_size,
            args.data_parallel_size,
            args.decrease_batch_size_if_needed,
        )
    except (AssertionError, ValueError, RuntimeError) as error:
        print(json.dumps({"refused": f"{type(error).__name__}: {error}"[:300]}))
        return
    wanted = (
        "num_layers",
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
        "sequence_parallel",
        "recompute_granularity",
    )
    found = {name: getattr(config, name) for name in wanted}
    found["data_parallel_size"] = args.data_parallel_size
    found["global_batch_size"] = args.global_batch_size
    found["arguments"] = {name: getattr(args, name) for name in asked["arguments"]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
