"""An existing job's own configuration, as options of a run: `estimate --from`, `improve --from`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainwright.cluster import Accelerator
from trainwright.cluster.calibration import as_compiled
from trainwright.cluster.framework_memory import on_engine
from trainwright.errors import InvalidInput, sourced
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.catalog import changed_model, model_names
from trainwright.formats.document_json import encode
from trainwright.frameworks.jobs import Beside, read, settings
from trainwright.frameworks.jobs.detect import Pasted, format_of, logged_format, pasted_in, untraced
from trainwright.frameworks.launch import predicted_for
from trainwright.model.transformer import adapter_targets
from trainwright.options.inputs import ModelInput, embed, resolve_model
from trainwright.options.option import Options
from trainwright.options.run import ALL_TARGETS
from trainwright.plans.capability import TARGETS, capability_of
from trainwright.plans.capability_table import PRODUCTS
from trainwright.plans.configuration import own_split
from trainwright.plans.status import MemorySnapshot, OutOfMemory
from trainwright.units import format_count

if TYPE_CHECKING:
    from trainwright.model import TransformerConfig

_LARGEST: Final = 2**22  # of files that are looked into for a job
# What a JSON of a job has; any other is a model, a profile or a document.
_OF_JOBS: Final = (
    *("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"),
    *("trainwright_stages", '"tp_size"'),
)
_LARGEST_LOG: Final = 2**28
_COMPOSED: Final = ("llm-foundry", "olmo", "levanter")
_ASKED: Final = "must be given beside this file (as MODEL --from FORMAT FILE)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedJob:
    """What a file states, and what the caller should know of how it was read.

    `framework` is that of the file's format, `software` what to expect the speed of, `nodes` what
    the caller gave in place of the file's own.
    """

    name: str
    framework: str | None
    run: settings.StatedRun
    warnings: tuple[str, ...]
    nodes: int | None = None
    software: str | None = None


def _small_text(path: Path, largest: int, *, errors: str = "strict") -> str:
    """The text of a file; nothing of one that is large, no text or cannot be read."""
    try:
        is_small = path.is_file() and path.stat().st_size <= largest
        return path.read_text(errors=errors) if is_small else ""
    except (OSError, ValueError):
        return ""


def job_format(path: str | Path) -> str | None:
    """The format of a file of a framework's job, told by its content; None where it is none.

    Raises `InvalidInput` naming the line of a file that ends in .yaml and is not YAML.
    """
    where = Path(path)
    text = untraced(_as_started(_small_text(where, _LARGEST)))
    if not text or (where.suffix == ".json" and not any(key in text for key in _OF_JOBS)):
        return None
    found = format_of(text, where.name, where.parent)
    if found is None and (pasted := pasted_in(text, where.name, where.parent)) is not None:
        return pasted.format
    if found is None and where.suffix.lower() in (".yaml", ".yml"):
        with sourced(str(path)):
            settings.parse_yaml(text)
    return found


def failure_of(path: str | Path) -> OutOfMemory | None:
    """What a log says of an allocation that failed; None of any other file, readable or not."""
    from trainwright.frameworks.training_logs import read_out_of_memory

    return read_out_of_memory(_small_text(Path(path), _LARGEST_LOG, errors="replace"))


def snapshot_of(path: str | Path) -> MemorySnapshot | None:
    """The fullest device of a memory snapshot; None of any other file, readable or not.

    Raises `InvalidInput` for a pickle that is none.
    """
    from trainwright.frameworks.training_logs import LARGEST, is_snapshot, read_snapshot

    where = Path(path)
    try:
        with where.open("rb") as file:
            if not is_snapshot(file.read(3)) or where.stat().st_size > LARGEST:
                return None
            file.seek(0)
            data = file.read()
    except OSError:
        return None
    found = read_snapshot(data, source=str(path))
    return max(found, key=lambda device: device.allocated_bytes, default=None)


def how_to_read(options: Options) -> dict[str, Any]:
    """What the options say of how a file is read, as `open_stated` takes it."""
    return {
        "arguments": options.get("argument", ()),
        "variables": options.get("variable"),
        "vocabulary": options.get("vocab_size"),
        "function": options.get("function"),
        "nodes": options.get("nodes"),
    }


def open_stated(
    framework: str | None,
    path: str | Path,
    *,
    names_model: bool = True,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    vocabulary: int | None = None,
    function: str | None = None,
    nodes: int | None = None,
    text: str | None = None,
) -> StatedJob:
    """Read a framework's file, whose format its content says where none is named.

    `arguments` and `variables` are those of a script, `vocabulary` the size that a tokenizer
    decides, `function` the one to read of a Python module. Where a model is given beside the file
    (not `names_model`), that the file describes none is no warning. With `nodes` the run has as
    many, whatever the file says. With `text` the file is read as if that stood in it. Raises
    `InvalidInput` with every fault of the file.
    """
    where = Path(path)
    beside = Beside(
        folder=where.parent,
        name=where.name,
        arguments=tuple(arguments),
        variables=dict(variables or {}),
        vocabulary=vocabulary,
        function=function,
    )
    text = text_of(path) if text is None else text
    pasted = pasted_in(text, where.name, where.parent)
    if pasted is not None and framework in (None, "log", pasted.format):
        framework, text = pasted.format, pasted.text
    try:
        run = read(framework, text, beside)
    except InvalidInput as error:
        if error.faults[0].path == "from":
            raise
        raise InvalidInput(error.faults, source=str(path)) from None
    if nodes is not None and run.num_devices is not None:
        each = run.devices_per_node
        run = replace(run, dp=None, num_devices=None if each is None else nodes * each)
    warnings = tuple(_warnings(run, where.name, names_model=names_model))
    if pasted is not None:
        warnings = (_said_of(pasted, where.name), *warnings)
    named = format_of(text, where.name, where.parent) or framework
    return StatedJob(
        name=where.stem,
        framework=named,
        run=run,
        warnings=warnings,
        nodes=nodes,
        software=predicted_for(text)
        or on_engine(as_compiled(run.program or named, run.compiled), run.sharded_by),
    )


def _said_of(pasted: Pasted, name: str) -> str:
    left = f", but not those of {' and '.join(pasted.left)}" if pasted.left else ""
    return f"{name}: the settings are those of {pasted.format} that stand in it{left}"


def stated_in(text: str, name: str) -> StatedJob:
    """A job that came as text alone, as `name`: nothing that it names is looked for.

    Raises `InvalidInput` with every fault of the text, and for a model outside of the catalog.
    """
    pasted = pasted_in(text, name)
    kind = None if pasted is None else pasted.format
    text = text if pasted is None else pasted.text
    run = read(kind, text, Beside(name=name))
    if run.model is None and run.model_name is not None:
        known = settings.catalog_name(run.model_name) or run.model_name
        if known not in model_names():
            problem = f"must be chosen: {name} names {run.model_name}, which the catalog lacks"
            raise InvalidInput.of("model", problem)
        run = replace(run, model_name=known)
    warnings = tuple(_warnings(run, name, names_model=True))
    if pasted is not None:
        warnings = (_said_of(pasted, name), *warnings)
    return StatedJob(
        name=Path(name).stem, framework=kind or format_of(text, name), run=run, warnings=warnings
    )


def stated_controls(text: str, name: str, options: Iterable[str]) -> dict[str, Any]:
    """A job that came as text: its model, sizes and those of `options` that it states, as text.

    Raises as `stated_in`.
    """
    job = stated_in(text, name)
    model = stated_model(job, None)
    job = job_of_model(job, model.config)
    stated = stated_options(job, {}, model.config)
    degrees = (stated.get(degree) or 1 for degree in ("tp", "pp", "cp", "dp"))
    devices = job.run.num_devices or math.prod(degrees)
    stated = with_stated_batch(job, stated, num_devices=devices)
    return {
        "model": model.embedded.name,
        "devices": devices,
        "global_batch": stated.get("global_batch"),
        "sequence": stated.get("sequence"),
        "options": {each: str(stated[each]) for each in options if stated.get(each) is not None},
        "notes": [*job.warnings, *model.warnings],
    }


def text_of(path: str | Path) -> str:
    """What stands in a job's file; raises `InvalidInput` where it is no text."""
    try:
        return _as_started(read_bytes(path, name="from").decode())
    except UnicodeDecodeError:
        raise InvalidInput.of("from", f'must be a text file, got "{path}"') from None


# What `set -x` shows of a launcher that a script starts, each word quoted as bash would.
_TRACED: Final = re.compile(
    r"^\++ ((?:[A-Za-z_]\w*=\S* )*(?:\S*/)?"
    r"(?:torchrun|accelerate|deepspeed|llamafactory-cli|axolotl|trl|python3?|srun|mpirun) .*)$",
    re.MULTILINE,
)


def _as_started(text: str) -> str:
    """A log that only shows the commands it is the output of, as a script of them; others as is."""
    if logged_format(text) is not None:
        return text
    traced = dict.fromkeys(_TRACED.findall(text))  # a job that is started again shows them again
    return "\n".join(("#!/bin/bash", *traced, "")) if traced else text


def _warnings(run: settings.StatedRun, name: str, *, names_model: bool) -> Iterator[str]:
    if run.unknown:
        yield f"{name}: not known here and not used: {', '.join(run.unknown)}"
    for note in run.notes:
        if names_model or settings.UNDESCRIBED not in note:
            yield f"{name}: {note}"
    if run.recomputed_blocks and run.recompute is None:
        first = _first_of_stage(run, run.recomputed_blocks)
        listed = format_count(len(run.recomputed_blocks), "block")
        yield f"{name}: {listed} one by one recompute: priced as the first {first} of each stage"
    said = [each for each in run.offload if "param" in each and settings.BETWEEN not in each]
    if said and run.zero != 3:
        yield f"{name}: weights are priced on the device: ZeRO-3 alone brings them layer by layer"
    if any(settings.BETWEEN in each for each in run.offload):
        what = f"what is offloaded {settings.BETWEEN}"
        yield f"{name}: {what} is priced on the device, where a step needs it"
    if any("nvme" in each for each in run.offload):
        yield f"{name}: offload to NVMe is priced as that to the host's memory"
    if run.weight_bits is not None and run.lora_rank is None:
        yield f"{name}: weights of {run.weight_bits}bit train without adapters: priced in 16 bits"


def stated_model(job: StatedJob, model: str | Path | None) -> ModelInput:
    """The model named beside the file, or the one the file describes or names."""
    if model is None and job.run.model_name is not None and job.run.model_changes:
        config = _changed(job.run.model_name, job.run.model_changes)
        return ModelInput(config=config, embedded=embed("model", job.name, encode(config)))
    if model is not None or (job.run.model is None and job.run.model_name is not None):
        return resolve_model(model) if model is not None else _resolved(job.run.model_name or "")
    if job.run.model is None:
        why = next(
            (note for note in job.run.notes if settings.UNDESCRIBED in note), "it names none"
        )
        raise InvalidInput.of("model", f"{_ASKED}: {why}")
    return ModelInput(
        config=job.run.model, embedded=embed("model", job.name, encode(job.run.model))
    )


def _changed(name: str, changes: Mapping[str, Any]) -> TransformerConfig:
    """The catalog's model of a name with other values of keys of its `config.json`."""
    known = settings.catalog_name(name)
    if known is None:
        wanted = f"{_ASKED}, which changes {', '.join(changes)} of {name}"
        raise InvalidInput.of("model", f"{wanted}: a config.json with these")
    return changed_model(known, changes).config


def _resolved(name: str) -> ModelInput:
    """The catalog's model of a name, or that of the local cache; asks for it where neither is."""
    try:
        return resolve_model(settings.catalog_name(name) or name)
    except InvalidInput:
        wanted = f"{_ASKED}, which names {name}: a catalog model or its config.json"
        raise InvalidInput.of("model", wanted) from None


def on_known_host(
    job: StatedJob, options: Options, device: Accelerator
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options without what lies on a host that the device does not describe, and what is said.

    A file is priced all the same: what it offloads stays on the device then.
    """
    if not job.run.on_host or device.host is not None:
        return dict(options), ()
    kept = {name: value for name, value in options.items() if name != "offload"}
    return kept, (f"{job.name}: offload is not priced: {device.name} does not state its host",)


def job_of_model(job: StatedJob, model: TransformerConfig) -> StatedJob:
    """The job with what it states that `model` has.

    Of the products that adapters are asked for, those count that the model has, as for their
    libraries, and a warning names the others. Where it has none, known ones stay, to be refused,
    and of names that nobody knows adapters lie beside every product. Parts before its text are
    frozen only where it has some. Layers on the host are a share of its own.
    """
    offload = tuple(
        _OF_LAYERS.sub(lambda it: f"{int(it[1]) / model.num_layers:.6g} of activations", each)
        for each in job.run.offload
    )
    if offload != job.run.offload:
        job = replace(job, run=replace(job.run, offload=offload))
    if job.run.freeze is not None and not model.towers:
        text = tuple(part for part in job.run.freeze if part in settings.TEXT)
        job = replace(job, run=replace(job.run, freeze=text or None))
    wanted, offered = job.run.lora_targets or (), adapter_targets(model)
    kept = tuple(each for each in wanted if each in offered)
    if kept == wanted or wanted == (ALL_TARGETS,):
        return job
    left = ", ".join(each for each in wanted if each not in kept)
    if kept:
        warning = f"{job.name}: adapters beside {left} are left out: the model has no such product"
    elif set(wanted) & set(PRODUCTS.values()):
        return job
    else:
        kept = (ALL_TARGETS,)
        warning = f"{job.name}: adapters beside {left}, which is not known, are beside all products"
    run = replace(job.run, lora_targets=kept)
    return replace(job, run=run, warnings=(*job.warnings, warning))


_OF_LAYERS: Final = re.compile(r"activations of (\d+) layers")


def stated_options(
    job: StatedJob, given: Options, model: TransformerConfig | None = None
) -> dict[str, Any]:
    """What the file states, replaced by what the caller gave.

    A framework that takes no stages cuts `model` by a rule of its own.

    What follows from something that the caller replaces goes with it: the split of another
    pipeline, its chunks where there is none, modules of another mode of recomputation,
    sequence parallelism without tensor parallelism, and formats that depend on what is sharded.
    """
    sharded = given.get("zero")
    run = job.run if sharded is None else replace(job.run, zero=sharded)
    stated: dict[str, Any] = run.options
    listed = stated.pop("recomputed_blocks", None)
    if listed and "recompute" not in stated:
        stated["recompute"] = f"full:{_first_of_stage(job.run, listed)}"
    replaced = {name: value for name, value in given.items() if value is not None}
    gone = {
        "sequence_parallel": replaced.get("tp") == 1,
        "blocks": bool(replaced.keys() & {"pp", "virtual_stages"}),
        "virtual_stages": replaced.get("pp") == 1,
        "schedule": replaced.get("pp") == 1,
        "recompute_module": "recompute" in replaced,
    }
    stated = {name: value for name, value in stated.items() if not gone.get(name)}
    if "dp" not in stated and "dp" not in replaced and job.run.num_devices is not None:
        merged = {**stated, **replaced}
        group = merged.get("tp", 1) * merged.get("pp", 1) * merged.get("cp", 1)
        if job.run.num_devices % group:
            problem = (
                f"must be a multiple of tp*pp*cp = {group}, got {job.run.num_devices}: give --nodes"
            )
            raise InvalidInput.of("devices of the file", problem)
        stated["dp"] = job.run.num_devices // group
    overlap = {**(stated.pop("overlap", None) or {}), **(given.get("overlap") or {})}
    found = {**stated, **replaced, "overlap": overlap}
    own = capability_of(job.framework) if job.framework in TARGETS else None
    if model is not None and own is not None and own.splits_itself and "blocks" not in found:
        stages = found.get("pp", 1) * found.get("virtual_stages", 1)
        found |= {"blocks": own_split(own.target, model, stages)} if stages > 1 else {}
    return found


def left_open(job: StatedJob, options: Options) -> Iterator[str]:
    """What the file does not state of a run that is priced by `options`, and what stands for it."""
    run = job.run
    if options.get("micro_batch") is None:
        yield f"{job.name}: the microbatch is not in this file: taken as 1; give --micro-batch"
    if run.is_cut and options.get("pp") is None:
        yield f"{job.name}: a pipeline, and of how many stages is not in this file: give --pp"
    group = [options.get(degree) or 1 for degree in ("tp", "pp", "cp")]
    if run.num_devices is None or run.dp is None or options.get("dp") != run.dp:
        return
    if run.num_devices != math.prod(group) * run.dp:
        each = format_count(math.prod(group), "device")
        yield (
            f"{job.name}: {run.num_devices} devices, {run.dp} replicas of {each}: priced are "
            f"{math.prod(group) * run.dp}; give --pp, --tp or --dp"
        )


# What a job's file states where it does not name it; anything else that it leaves out is open.
_UNSAID: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("tp", "pp", "cp", "ep", "virtual_stages"), 1),
    **dict.fromkeys(("offload", "lora_rank", "loss_chunk", "mlp_tile"), None),
}
_OF_PARTS: Final = ("deepspeed", "accelerate")  # whose files state parts of a run


def replaced_options(job: StatedJob, given: Options) -> tuple[str, ...]:
    """The options by which a caller changes the run that a file states, as they are typed."""
    stated = stated_options(job, {})
    whole = {} if job.framework in _OF_PARTS else _UNSAID
    known = {**whole, **stated}
    changed = (
        name
        for name, value in given.items()
        if value is not None and name in known and value != known[name] and name != "overlap"
    )
    return tuple(f"--{name.replace('_', '-')}" for name in changed)


def _first_of_stage(run: settings.StatedRun, listed: Sequence[int]) -> int:
    """Of how many blocks of a stage alike a list of recomputed ones would be."""
    stages = (run.pp or 1) * (run.virtual_stages or 1)
    return math.ceil(len(listed) / stages)


def with_stated_batch(
    job: StatedJob, options: dict[str, Any], *, num_devices: int
) -> dict[str, Any]:
    """The options with the batch of all replicas, where the file states that of each alone.

    Replicas that are not stated fill `num_devices`. Composer's microbatch is never larger than
    what the batch leaves for a replica.
    """
    each, batch = job.run.batch_per_replica, options.get("global_batch")
    group = (options.get("tp") or 1) * (options.get("pp") or 1) * (options.get("cp") or 1)
    replicas = options.get("dp") or max(num_devices // group, 1)
    size = options.get("micro_batch")
    own = size is not None and size == job.run.micro_batch
    if batch is not None and own and job.framework in _COMPOSED:
        share = max(batch // replicas, 1)
        return {**options, "micro_batch": min(size or share, share)}
    if each is None or batch is not None:
        return options
    return {**options, "global_batch": each * replicas}
