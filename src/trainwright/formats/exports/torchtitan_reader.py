"""An existing torchtitan job: its TOML file, or the module written for 0.3, as a stated run."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import InvalidInput
from trainwright.formats.exports.torchtitan_names import TITAN_02, TITAN_03, blocks_of
from trainwright.plan.stated_run import StatedRun

if TYPE_CHECKING:
    from collections.abc import Mapping

# What this reader uses, by table; other keys of these tables are reported.
_KNOWN: Final = {
    "training": {
        *("seq_len", "global_batch_size", "local_batch_size", "disable_cuda_graphs", "dtype"),
        *("steps", "dataset", "dataset_path", "max_norm", "mixed_precision_param", "gc_freq"),
        *("mixed_precision_reduce", "gc_debug"),
    },
    "parallelism": {
        *("data_parallel_replicate_degree", "data_parallel_shard_degree"),
        *("fsdp_reshard_after_forward", "tensor_parallel_degree", "context_parallel_degree"),
        *("expert_parallel_degree", "expert_tensor_parallel_degree", "pipeline_parallel_degree"),
        *("pipeline_parallel_schedule", "pipeline_parallel_schedule_csv"),
        *("pipeline_parallel_microbatch_size", "module_fqns_per_model_part"),
        *("enable_sequence_parallel", "disable_loss_parallel", "context_parallel_rotate_method"),
    },
    "activation_checkpoint": {"mode", "selective_ac_option"},
}
_FAMILIES: Final = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved",
    "LoopedBFS": "breadth-first",
    "InterleavedZeroBubble": "zb-1p",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
}
_CHECKPOINTS: Final = {
    "None": "none",
    "FullAC.Config()": "full",
    "SelectiveAC.Config()": "selective",
}


def read_torchtitan(text: str) -> StatedRun:
    """The run that a file states; raises `InvalidInput` where it is neither TOML nor such a module.

    A schedule from a CSV file is taken for the named one beside it, and a note says so.
    """
    tables, model_name = _tables(text)
    training = tables.get("training", {})
    parallel, checkpoint = tables.get("parallelism", {}), tables.get("activation_checkpoint", {})
    ranks = parallel.get("pipeline_parallel_degree", 1)
    parts = parallel.get("module_fqns_per_model_part")
    chunks = len(parts) // ranks if parts else 1
    replicas, shards = _data(parallel)
    tensor = parallel.get("tensor_parallel_degree", 1)
    if ranks > 1:
        micro_batch = parallel.get("pipeline_parallel_microbatch_size", 1)
    else:
        micro_batch = training.get("local_batch_size", 8)
    mode = checkpoint.get("mode", "selective")
    return StatedRun(
        tp=tensor,
        pp=ranks,
        cp=parallel.get("context_parallel_degree", 1),
        ep=parallel.get("expert_parallel_degree", 1),
        etp=parallel.get("expert_tensor_parallel_degree", 1),
        dp=None if shards is None else replicas * shards,
        zero=_zero(parallel, shards),
        state_copies=replicas if _zero(parallel, shards) else None,
        micro_batch=micro_batch,
        global_batch=training.get("global_batch_size"),
        sequence=training.get("seq_len", 2048),
        virtual_stages=chunks,
        schedule=_schedule(parallel, ranks, chunks),
        blocks=blocks_of(parts) if parts else None,
        sequence_parallel=tensor > 1 and parallel.get("enable_sequence_parallel", True),
        recompute=mode if mode in ("none", "selective", "full") else None,
        precision="bf16"
        if training.get("mixed_precision_param", "bfloat16") == "bfloat16"
        else None,
        model_name=model_name,
        unknown=tuple(_unknown(tables)),
        notes=tuple(_notes(parallel, mode)),
    )


def _tables(text: str) -> tuple[Mapping[str, Any], str | None]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if "config_registry import" not in text:
            raise InvalidInput.of("torchtitan", f"is not a TOML file: {error}") from None
        return _assigned(text)
    model = tables.get("model", {})
    wanted = (model.get("name"), model.get("flavor"))
    names = {known: name for name, known in TITAN_02.models.items()}
    return tables, names.get(wanted)


def _assigned(text: str) -> tuple[Mapping[str, Any], str | None]:
    """The tables of a module for 0.3: what its function sets."""
    tables: dict[str, dict[str, Any]] = {}
    model = None
    for line in ast.walk(ast.parse(text)):
        if isinstance(line, ast.ImportFrom) and (line.module or "").endswith("config_registry"):
            names = {function: name for name, (_, function) in TITAN_03.models.items()}
            model = names.get(line.names[0].name)
        if not isinstance(line, ast.Assign):
            continue
        path = ast.unparse(line.targets[0]).split(".")[1:]
        if path == ["activation_checkpoint"]:
            mode = _CHECKPOINTS.get(ast.unparse(line.value), "")
            tables["activation_checkpoint"] = {"mode": mode}
        elif len(path) == 2:
            tables.setdefault(path[0], {})[path[1]] = ast.literal_eval(line.value)
    return tables, model


def _data(parallel: Mapping[str, Any]) -> tuple[int, int | None]:
    """Replicas and shards of each; None where the shards are what is left of the devices."""
    shards = parallel.get("data_parallel_shard_degree", -1)
    return parallel.get("data_parallel_replicate_degree", 1), None if shards < 0 else shards


def _zero(parallel: Mapping[str, Any], shards: int | None) -> int:
    if shards == 1 and parallel.get("context_parallel_degree", 1) == 1:
        return 0
    policy = parallel.get("fsdp_reshard_after_forward", "default")
    keeps = policy == "never" or (
        policy == "default" and parallel.get("pipeline_parallel_degree", 1) > 1
    )
    return 2 if keeps else 3


def _schedule(parallel: Mapping[str, Any], ranks: int, chunks: int) -> str | None:
    if ranks == 1:
        return "interleaved" if chunks > 1 else "1f1b"
    return _FAMILIES.get(parallel.get("pipeline_parallel_schedule", "1F1B"))


def _unknown(tables: Mapping[str, Any]) -> Iterator[str]:
    for table, known in _KNOWN.items():
        yield from (f"{table}.{key}" for key in tables.get(table, {}) if key not in known)


def _notes(parallel: Mapping[str, Any], mode: str) -> Iterator[str]:
    if parallel.get("pipeline_parallel_schedule_csv"):
        name = parallel.get("pipeline_parallel_schedule", "1F1B")
        yield f"the order of actions is in a CSV file; it is priced as {name}"
    if mode == "selective":
        yield "torchtitan decides which operators to recompute; the default ones here are priced"
    if mode not in ("none", "selective", "full"):
        yield f"activation_checkpoint.mode {mode} is not priced"
