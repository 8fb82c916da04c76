"""An existing torchtitan job: its TOML file, or the module written for 0.3, as a stated run."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import InvalidInput
from trainwright.frameworks.stated_run import StatedRun, StatedTable
from trainwright.frameworks.torchtitan import TITAN_02, TITAN_03, blocks_of
from trainwright.plans.plan import DEFAULT_SCHEDULE, usual_schedule

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
        "expert_parallel_comm_backend",
        *("pipeline_parallel_schedule", "pipeline_parallel_schedule_csv"),
        *("pipeline_parallel_microbatch_size", "module_fqns_per_model_part"),
        *("enable_sequence_parallel", "disable_loss_parallel", "context_parallel_rotate_method"),
    },
    "activation_checkpoint": {"mode", "selective_ac_option"},
}
_DISPATCHERS: Final = {"standard": "all_to_all", "deepep": "hierarchical"}
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


_MODES: Final = ("none", "selective", "full", "memory_budget")
_LOCAL_BATCH: Final = 8  # torchtitan's own, where the file does not say
_REPEATED: Final = (
    "the pipeline fills and drains in each accumulation step, which is priced once: the step takes "
    "longer than this"
)


def read_torchtitan(text: str) -> StatedRun:
    """The run that a file states; raises `InvalidInput` where it is neither TOML nor such a module.

    Every field that is used is checked, and all faults are raised together. A schedule from a CSV
    file is taken for the named one beside it, and a note says so.
    """
    tables, model_name = _tables(text)
    root = StatedTable(tables)
    for name in root:
        root.table(name)
    training, parallel = root.table("training"), root.table("parallelism")
    checkpoint = root.table("activation_checkpoint")
    ranks, tensor = _degree(parallel, "pipeline"), _degree(parallel, "tensor")
    context = _degree(parallel, "context")
    parts, chunks = _parts(parallel, ranks)
    replicas = _degree(parallel, "data_parallel_replicate_degree")
    shards = parallel.count("data_parallel_shard_degree", also=-1) or -1
    data = None if shards == -1 else replicas * shards
    zero = _zero(parallel, has_pipeline=ranks > 1, is_whole=shards == 1 and context == 1)
    mode = checkpoint.one_of("mode", _MODES, "selective")
    batch, micro_batch, accumulated = _batches(training, parallel, ranks, data)
    schedule = _schedule(parallel, ranks, chunks)
    backend = parallel.one_of("expert_parallel_comm_backend", ("", *_DISPATCHERS), "")
    sequence_parallel = parallel.switch("enable_sequence_parallel", default=True)
    half = training.one_of("mixed_precision_param", ("bfloat16", "float32"), "bfloat16")
    found = StatedRun(
        tp=tensor,
        pp=ranks,
        cp=context,
        ep=_degree(parallel, "expert"),
        etp=_degree(parallel, "expert_tensor"),
        dp=data,
        zero=zero,
        state_copies=replicas if zero else None,
        micro_batch=micro_batch,
        global_batch=batch,
        batch_per_replica=training.count("local_batch_size") or _LOCAL_BATCH,
        sequence=training.count("seq_len") or 2048,
        virtual_stages=chunks,
        schedule=schedule,
        blocks=blocks_of(parts) if parts else None,
        sequence_parallel=tensor > 1 and sequence_parallel,
        token_dispatcher=_DISPATCHERS.get(backend),
        recompute=mode if mode in ("none", "selective", "full") else None,
        precision="bf16" if half == "bfloat16" else None,
        model_name=model_name,
        unknown=tuple(_unknown(tables)),
        notes=(*accumulated, *_notes(parallel, mode)),
    )
    root.check()
    return found


def _tables(text: str) -> tuple[Mapping[str, Any], str | None]:
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        if "config_registry import" not in text:
            raise InvalidInput.of("torchtitan", f"is not a TOML file: {error}") from None
        return _assigned(text)
    root = StatedTable(tables)
    model = root.table("model")
    wanted = (model.text("name"), model.text("flavor"))
    root.check()
    names = {known: name for name, known in TITAN_02.models.items()}
    return tables, names.get(wanted)  # type: ignore[arg-type]


def _assigned(text: str) -> tuple[Mapping[str, Any], str | None]:
    """The tables of a module for 0.3: what its function sets."""
    tables: dict[str, dict[str, Any]] = {}
    model = None
    try:
        lines = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidInput.of("torchtitan", f"is not a Python module: {error}") from None
    for line in lines:
        if isinstance(line, ast.ImportFrom) and (line.module or "").endswith("config_registry"):
            names = {function: name for name, (_, function) in TITAN_03.models.items()}
            model = names.get(line.names[0].name)
        if not isinstance(line, ast.Assign):
            continue
        path = ast.unparse(line.targets[0]).split(".")[1:]
        if path == ["activation_checkpoint"]:
            made = ast.unparse(line.value)
            tables["activation_checkpoint"] = {"mode": _CHECKPOINTS.get(made, made)}
        elif len(path) == 2 and path[0] in _KNOWN:
            tables.setdefault(path[0], {})[path[1]] = _literal(line.value, ".".join(path))
    return tables, model


def _literal(value: ast.expr, path: str) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        shown = ast.unparse(value)
        raise InvalidInput.of(path, f"must be a value written out, got {shown}") from None


def _degree(parallel: StatedTable, name: str) -> int:
    whole = name if name.endswith("_degree") else f"{name}_parallel_degree"
    return parallel.count(whole) or 1


def _parts(parallel: StatedTable, ranks: int) -> tuple[list[list[str]], int]:
    """Modules of every stage, none where the file lists none, and stages per rank."""
    parts = parallel.names("module_fqns_per_model_part")
    if len(parts) % ranks:
        problem = f"must have a multiple of {ranks} stages, got {len(parts)}"
        parallel.fault("module_fqns_per_model_part", problem)
    return parts, max(len(parts) // ranks, 1)


def _batches(
    training: StatedTable, parallel: StatedTable, ranks: int, data: int | None
) -> tuple[int | None, int, tuple[str, ...]]:
    """Global batch where it is stated, microbatch, and what is to be said of accumulation.

    A pipeline takes `local_batch_size` in microbatches; where that times the replicas is less than
    the global batch, whole pipelines follow each other, each with a fill and a drain of its own.
    """
    batch = training.count("global_batch_size", also=-1)
    local = training.count("local_batch_size") or _LOCAL_BATCH
    size = parallel.count("pipeline_parallel_microbatch_size") or 1
    batch = None if batch == -1 else batch
    if ranks == 1:
        return batch, local, ()
    if local % size:
        problem = f"must be a multiple of pipeline_parallel_microbatch_size {size}, got {local}"
        training.fault("local_batch_size", problem)
    if batch is None or batch == local * (data or 0):
        return batch, size, ()
    if data is None:
        enough = -(-batch // local)
        note = (
            f"on fewer than {enough} replicas local_batch_size {local} is less than the "
            f"part of the batch that each has, and {_REPEATED}"
        )
        return batch, size, (note,)
    steps, left = divmod(batch, local * data)
    if left:
        problem = f"must be a multiple of local_batch_size x replicas = {local * data}, got {batch}"
        training.fault("global_batch_size", problem)
    note = (
        f"the batch takes {steps} accumulation steps of local_batch_size {local} x {data} "
        f"replicas; {_REPEATED}; local_batch_size = {batch // data} makes one"
    )
    return batch, size, (note,)


def _zero(parallel: StatedTable, *, has_pipeline: bool, is_whole: bool) -> int:
    policy = parallel.one_of(
        "fsdp_reshard_after_forward", ("default", "always", "never"), "default"
    )
    if is_whole:
        return 0
    return 2 if policy == "never" or (policy == "default" and has_pipeline) else 3


def _schedule(parallel: StatedTable, ranks: int, chunks: int) -> str:
    """PyTorch looks schedules up without regard to upper and lower case."""
    name = parallel.text("pipeline_parallel_schedule") or "1F1B"
    known = {theirs.lower(): own for theirs, own in _FAMILIES.items()}
    if name.lower() not in known:
        problem = f'must be one of {", ".join(_FAMILIES)}, got "{name}"'
        parallel.fault("pipeline_parallel_schedule", problem)
    if ranks == 1:
        return usual_schedule(chunks)
    return known.get(name.lower(), DEFAULT_SCHEDULE)


def _unknown(tables: Mapping[str, Any]) -> Iterator[str]:
    for table, known in _KNOWN.items():
        yield from (f"{table}.{key}" for key in _entries(tables, table) if key not in known)


def _entries(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = tables.get(name)
    return found if isinstance(found, dict) else {}


def _notes(parallel: StatedTable, mode: str) -> Iterator[str]:
    if parallel.text("pipeline_parallel_schedule_csv"):
        name = parallel.text("pipeline_parallel_schedule") or "1F1B"
        yield f"the order of actions is in a CSV file; it is priced as {name}"
    if mode == "selective":
        yield "torchtitan decides which operators to recompute; the default ones here are priced"
    if mode not in ("none", "selective", "full"):
        yield f"activation_checkpoint.mode {mode} is not priced"
