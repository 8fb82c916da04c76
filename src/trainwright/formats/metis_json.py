"""Metis' profiles: what each layer took at one tensor degree and batch size, a file for each.

Um et al., *Metis: Fast Automatic Distributed Training on Heterogeneous GPUs*, ATC 2024, measure a
model one configuration at a time. `DeviceType.A100_tp2_bs4.json` holds that of tensor degree 2 and
microbatches of 4 sequences; nothing inside says so. A folder of such files of one device is one
profile with a point for each. What a file says, and what it leaves open:

    time        `layer_compute_total_ms`, forward and backward of a layer, exchanges of its tensor
                group included
    parameters  `parameters_per_layer_bytes`, of whole layers at every degree
    memory      `layer_memory_total_mb` (of 2^20 bytes), all that a device reserved for a layer. At
                several sizes b of one degree, M(b) = state + k b splits it: k from the smallest and
                the largest size, the rest is state. At a single size, state is four times the
                parameters (weights, gradients and two moments of equal width; at least that is
                there under Adam) and the rest is taken for activations, which errs to the side of
                more memory.
    edges       `activation_parameters_bytes`, where it is there; else nothing is known

Times of the optimizer and of the batch are of a whole step on the measuring machine, so they are
left out, as a plan shares that work out anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from trainwright.errors import Fault, InvalidInput
from trainwright.formats import profile_json
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.document_json import decode
from trainwright.formats.json_text import scan_json
from trainwright.formats.records import NonEmpty, json_schema
from trainwright.profile import Origin, ProfileFile
from trainwright.units import MIB

_NAME: Final = re.compile(r"DeviceType\.(?P<device>\w+?)_tp(?P<tensor>\d+)_bs(?P<size>\d+)\.json")
_NAMED: Final = "DeviceType.DEVICE_tpDEGREE_bsSIZE.json"
_STATE_OF_PARAMETERS: Final = 4.0  # weights, gradients, two moments of Adam, all of one width


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersRecord:
    """Bytes by layer, in their order."""

    parameters_per_layer_bytes: Annotated[tuple[profile_json.Amount, ...], NonEmpty()]
    activation_parameters_bytes: Annotated[
        tuple[profile_json.Amount, ...], "of what a layer hands on"
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """The model that was measured."""

    model_name: str = ""
    parameters: ParametersRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionTimeRecord:
    """Times of one iteration."""

    layer_compute_total_ms: Annotated[
        tuple[profile_json.Amount, ...], NonEmpty(), "forward and backward"
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionMemoryRecord:
    """Memory of one iteration."""

    layer_memory_total_mb: Annotated[
        tuple[profile_json.Amount, ...], NonEmpty(), "reserved, in 2^20 bytes"
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetisRecord:
    """One configuration of a model, measured by Metis."""

    model: ModelRecord
    execution_time: ExecutionTimeRecord
    execution_memory: ExecutionMemoryRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """A file: what it holds, and the configuration that its name states."""

    source: str
    device: str
    tensor: int
    size: int
    record: MetisRecord

    @property
    def parameters_bytes(self) -> tuple[float, ...]:
        """Of whole layers."""
        return self.record.model.parameters.parameters_per_layer_bytes

    @property
    def memory_bytes(self) -> tuple[float, ...]:
        """What a device reserved for each layer."""
        reserved = self.record.execution_memory.layer_memory_total_mb
        return tuple(megabytes * MIB for megabytes in reserved)


def metis_schema() -> dict[str, Any]:
    """The JSON Schema of a file."""
    return json_schema(MetisRecord, title="Metis profile")


def read_metis(path: Path) -> tuple[ProfileFile, tuple[str, ...]]:
    """A file, or all of a folder, as a profile with a point for each; what they leave open.

    Raises `InvalidInput` with every fault of a file, for a name that does not state the
    configuration, and where the files are not of one model on one kind of device.
    """
    paths = [path]
    if path.is_dir():
        paths = sorted(each for each in path.iterdir() if _NAME.fullmatch(each.name))
    found = sorted(map(_read, paths), key=lambda one: (one.tensor, one.size))
    _refuse_mixture(found)
    points = []
    for one in found:
        alike = [other for other in found if other.tensor == one.tensor]
        points.append(_point(one, _per_sequence_bytes(alike)))
    record = profile_json.ProfileRecord(kind="profile", format_version=1, points=tuple(points))
    return profile_json.from_record(record), tuple(_left_open(found))


def _read(path: Path) -> _Measured:
    source = str(path)
    named = _NAME.fullmatch(path.name)
    if named is None or not int(named["tensor"]) or not int(named["size"]):
        problem = f"must be {_NAMED} for a profile of Metis, which states it nowhere else"
        raise InvalidInput.of("file name", f'{problem}, got "{path.name}"', source=source)
    text = scan_json(read_bytes(path, name="model"), source=source)
    record = decode(MetisRecord, text.value, source=source, text_faults=text.faults)
    count = len(record.execution_time.layer_compute_total_ms)
    edges = record.model.parameters.activation_parameters_bytes
    lengths = {
        "model.parameters.parameters_per_layer_bytes": len(
            record.model.parameters.parameters_per_layer_bytes
        ),
        "execution_memory.layer_memory_total_mb": len(
            record.execution_memory.layer_memory_total_mb
        ),
    } | ({"model.parameters.activation_parameters_bytes": len(edges)} if edges else {})
    wanted = f"must have {count} entries, as layer_compute_total_ms has"
    faults = [Fault(name, f"{wanted}, got {n}") for name, n in lengths.items() if n != count]
    if faults:
        raise InvalidInput(faults, source=source)
    return _Measured(
        source=path.name,
        device=named["device"],
        tensor=int(named["tensor"]),
        size=int(named["size"]),
        record=record,
    )


def _refuse_mixture(found: Sequence[_Measured]) -> None:
    """A plan is of one model on one kind of device."""
    first = found[0]
    for one in found[1:]:
        if one.device != first.device:
            kinds = ", ".join(dict.fromkeys(other.device for other in found))
            problem = (
                f"must be of one kind of device, got {kinds}; keep each in a folder of its own"
            )
            raise InvalidInput.of("model", problem)
        if one.parameters_bytes != first.parameters_bytes:
            problem = f"must be that of {first.source}: the files of a folder are of one model"
            path = "model.parameters.parameters_per_layer_bytes"
            raise InvalidInput.of(path, problem, source=one.source)


def _per_sequence_bytes(alike: Sequence[_Measured]) -> tuple[float, ...] | None:
    """By layer, what memory grows by with each sequence, at one degree; None at a single size."""
    least, most = alike[0], alike[-1]
    if least.size == most.size:
        return None
    more = most.size - least.size
    pairs = zip(least.memory_bytes, most.memory_bytes, strict=True)
    return tuple(max(0.0, (after - before) / more) for before, after in pairs)


def _point(one: _Measured, per_sequence: Sequence[float] | None) -> profile_json.PointRecord:
    record, count = one.record, len(one.parameters_bytes)
    handed = record.model.parameters.activation_parameters_bytes or (0.0,) * count
    known: dict[profile_json.OptionRecord, int] = {}
    layers = []
    for index in range(count):
        own_bytes, memory_bytes = one.parameters_bytes[index] / one.tensor, one.memory_bytes[index]
        if per_sequence is None:
            kept_bytes = max(0.0, memory_bytes - _STATE_OF_PARAMETERS * own_bytes)
        else:
            kept_bytes = min(memory_bytes, per_sequence[index] * one.size)
        option = profile_json.OptionRecord(
            id="measured",
            tensor_parallel=one.tensor,
            duration_s=record.execution_time.layer_compute_total_ms[index] / 1e3,
            saved_until_input_grad_bytes=kept_bytes,
            opaque_static_bytes=memory_bytes - kept_bytes,
            gradient_sync_bytes=profile_json.GradientSyncRecord(dense=own_bytes),
        )
        layers.append(
            profile_json.LayerRecord(id=index, layer_class=known.setdefault(option, len(known)))
        )
    return profile_json.PointRecord(
        point=profile_json.CircumstancesRecord(
            microbatch_size=one.size, tensor_parallel=(one.tensor,), device_kind=one.device
        ),
        provenance=profile_json.ProvenanceRecord(origin=Origin.IMPORTED, source=one.source),
        layers=tuple(layers),
        edges=tuple(
            profile_json.EdgeRecord(source=index, target=index + 1, bytes=handed[index])
            for index in range(count - 1)
        ),
        classes=tuple(profile_json.ClassRecord(options=(option,)) for option in known),
    )


def _left_open(found: Sequence[_Measured]) -> Iterator[str]:
    sizes: dict[int, list[int]] = {}
    for one in found:
        sizes.setdefault(one.tensor, []).append(one.size)
    yield from _single_sizes(sizes)
    if not all(one.record.model.parameters.activation_parameters_bytes for one in found):
        yield (
            "Metis: activation_parameters_bytes is not stated: what stages send each other counts "
            "as nothing but its latency"
        )
    yield "Metis: times of the optimizer and of loading batches are left out"


def _single_sizes(sizes: Mapping[int, Iterable[int]]) -> Iterator[str]:
    alone = [str(tensor) for tensor, own in sizes.items() if len(set(own)) == 1]
    if alone:
        yield (
            f"Metis: at tensor degree {', '.join(alone)} there is one batch size, so state is "
            f"taken for {_STATE_OF_PARAMETERS:g} times the parameters and the rest of a layer's "
            "memory for activations of one microbatch"
        )
