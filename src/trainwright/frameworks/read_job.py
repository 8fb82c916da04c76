"""An existing job's own configuration, as options of a run: `estimate --from`, `improve --from`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.frameworks.stated_run import StatedRun
    from trainwright.options.inputs import ModelInput
    from trainwright.options.option import Options

_UNDESCRIBED: Final = "the model is not described"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedJob:
    """What a file states, and what the caller should know of how it was read."""

    name: str
    run: StatedRun
    warnings: tuple[str, ...]


def open_stated(framework: str, path: str | Path, *, names_model: bool = True) -> StatedJob:
    """Read a framework's configuration; raises `InvalidInput` with every fault of the file.

    Where a model is given beside the file (not `names_model`), that the file describes none is no
    warning.
    """
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.frameworks import read

    data = read_bytes(path, name="from")
    try:
        run = read(framework, data.decode(), folder=Path(path).parent)
    except UnicodeDecodeError:
        raise InvalidInput.of("from", f'must be a text file, got "{path}"') from None
    except InvalidInput as error:
        if error.faults[0].path == "from":
            raise
        raise InvalidInput(error.faults, source=str(path)) from None
    warnings = tuple(_warnings(run, Path(path).name, names_model=names_model))
    return StatedJob(name=Path(path).stem, run=run, warnings=warnings)


def _warnings(run: StatedRun, name: str, *, names_model: bool) -> Iterator[str]:
    if run.unknown:
        yield f"{name}: not known here and not used: {', '.join(run.unknown)}"
    for note in run.notes:
        if names_model or _UNDESCRIBED not in note:
            yield f"{name}: {note}"


def stated_model(job: StatedJob, model: str | Path | None) -> ModelInput:
    """The model named beside the file, or the one the file describes or names."""
    from trainwright.formats.document_json import encode
    from trainwright.options.inputs import ModelInput, embed, resolve_model

    if model is not None or (job.run.model is None and job.run.model_name is not None):
        found = resolve_model(model or job.run.model_name or "")
        if not isinstance(found, ModelInput):
            raise InvalidInput.of("model", "must be a model, not a profile, beside --from")
        return found
    if job.run.model is None:
        why = next((note for note in job.run.notes if _UNDESCRIBED in note), "it names none")
        raise InvalidInput.of("model", f"must be given beside this file: {why}")
    return ModelInput(
        config=job.run.model, embedded=embed("model", job.name, encode(job.run.model))
    )


def stated_options(job: StatedJob, given: Options) -> dict[str, Any]:
    """What the file states, replaced by what the caller gave."""
    stated = job.run.options
    stated.pop("recomputed_blocks", None)
    if "dp" not in stated and job.run.num_devices is not None:
        group = stated.get("tp", 1) * stated.get("pp", 1) * stated.get("cp", 1)
        if job.run.num_devices % group:
            problem = f"must be a multiple of tp*pp*cp = {group}, got {job.run.num_devices}"
            raise InvalidInput.of("devices of the file", problem)
        stated["dp"] = job.run.num_devices // group
    return {**stated, **{k: v for k, v in given.items() if v is not None}}


def with_stated_batch(
    job: StatedJob, options: dict[str, Any], *, num_devices: int
) -> dict[str, Any]:
    """The options with the batch of all replicas, where the file states that of each alone.

    Replicas that are not stated fill `num_devices`.
    """
    each = job.run.batch_per_replica
    if each is None or options.get("global_batch") is not None:
        return options
    group = (options.get("tp") or 1) * (options.get("pp") or 1) * (options.get("cp") or 1)
    replicas = options.get("dp") or max(num_devices // group, 1)
    return {**options, "global_batch": each * replicas}
