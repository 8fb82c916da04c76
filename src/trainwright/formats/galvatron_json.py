"""Galvatron's profiles: a table of times and a table of memory, of a model's layer types.

Miao et al., *Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic
Parallelism*, VLDB 2022. A model is two files of one ending, such as
`computation_profiling_bf16_llama-7b.json` and `memory_profiling_bf16_llama-7b.json`; one names the
other. Times are milliseconds, sizes 2^20 bytes, both of one sequence:

    layertype_K_bszB_seqS      forward of a layer of type K in microbatches of B sequences
    layertype_other_bszB_seqS  forward of all that is no layer: embedding and head, half each;
                               some releases write `layertype_other_0`
    layertype_K[S]             `parameter_size` P at 32 bit, and by tensor degree what a layer
                               keeps; under "checkpoint" its input, which is what stages send
    other_memory_pp_on_first,  of the embedding and of the head: `model_states` (which are 4 P) and
    other_memory_pp_on_last    `activation`, by tensor degree

Galvatron takes a backward for two forwards, and so does this reader: one for each gradient. State
is 4 P: under 16 bit half of P each for weights and gradients and 3 P for the optimizer, else P, P
and 2 P. Times are measured without tensor parallelism only, and at other degrees Galvatron divides
them; that is no measurement, so the profile has degree 1.

The tables may speak of different sequence lengths; a point is one that both have. A file whose name
ends in `_attention` or `_mlp` has half of each layer under the keys of a whole one.

The files do not say how many layers the model has. `model_config.n_layers` in the memory file does,
a number or one for each type, as in the files of Galvatron's visualizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.formats import profile_json
from trainwright.formats.atomic_file import exists, read_bytes
from trainwright.formats.document_json import decode
from trainwright.formats.json_text import in_document_order, quote, scan_json, show_typed
from trainwright.formats.records import (
    AMOUNT,
    COUNT,
    POSITIVE,
    Above,
    array_schema,
    map_schema,
    object_schema,
    titled,
)
from trainwright.model import LayerKind
from trainwright.profile import Origin, ProfileFile, Recompute
from trainwright.profile.profile import LARGEST_COUNT
from trainwright.units import MIB

_TIMES, _SIZES = "computation_profiling_", "memory_profiling_"
_HALF: Final = ("bf16", "fp16")
_PRECISIONS: Final = (*_HALF, "fp32")
_TIME_KEY: Final = re.compile(
    r"layertype_(?:(?P<kind>\d+)|other(?:_0)?)_bsz(?P<size>\d+)_seq(?P<length>\d+)"
)
_BY_PART: Final = re.compile(r"layertype_.*_(attention|mlp)")
_PARTS: Final = ("_attention", "_mlp")
_BY_LENGTHS: Final = re.compile(r"layertype_.*_seq\[.*")
_ALONE, _CHECKPOINT = "1", "checkpoint"
_MEMORY_KEYS: Final = ("other_memory_pp_on_first", "other_memory_pp_on_last", "model_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMemoryRecord:
    """Of one layer, in 2^20 bytes: parameters at 32 bit, and what a sequence keeps by degree."""

    parameter_size: Annotated[float, Above(0)]
    tp_activation_per_bsz_dict: dict[str, profile_json.Amount]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMemoryRecord:
    """Of the embedding or the head, in 2^20 bytes by tensor degree."""

    model_states: dict[str, profile_json.Amount]
    activation: dict[str, profile_json.Amount]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Layers of one type: parameters at 32 bit, what a sequence keeps, and keeps of its input."""

    name: str
    parameters_bytes: float
    kept_bytes: float
    input_bytes: float | None = None


def times_schema() -> dict[str, Any]:
    """The JSON Schema of a table of times; totals of whole models are passed over."""
    key = re.sub(r"\?P<\w+>", "", _TIME_KEY.pattern)
    return titled(
        "Galvatron's times",
        {"type": "object", "patternProperties": {f"^{key}$": AMOUNT}},
        about="Times of layers in milliseconds, as Galvatron measures them.",
    )


def memory_schema() -> dict[str, Any]:
    """The JSON Schema of a table of memory, told how many layers there are."""
    sizes = map_schema(AMOUNT)
    layer = object_schema({"parameter_size": POSITIVE, "tp_activation_per_bsz_dict": sizes})
    other = object_schema({"model_states": sizes, "activation": sizes})
    layers = {"n_layers": {"anyOf": [COUNT, array_schema(COUNT, least=1)]}}
    made = object_schema({"model_config": object_schema(layers)})
    made["patternProperties"] = {
        r"^layertype_\d+(_sp)?$": map_schema(layer),
        "^other_memory_pp_on_(first|last)(_sp)?$": map_schema(other),
    }
    return titled("Galvatron's memory", made, about="Memory of layers, as Galvatron measures it.")


def read_galvatron(path: Path) -> tuple[ProfileFile, tuple[str, ...]]:
    """The profile of either file, or of their folder: a point for each microbatch and length.

    Also what Galvatron leaves open, in words. Raises `InvalidInput` with every fault of a file,
    and where the other file is not beside it; `UnsupportedFeature` for layers measured in parts.
    """
    times_file, sizes_file = _both(path)
    times = _times(times_file)
    precision = times_file.name.removeprefix(_TIMES).partition("_")[0]
    if precision not in _PRECISIONS:
        wanted = f"must be {_TIMES}PRECISION_MODEL.json, PRECISION one of {', '.join(_PRECISIONS)}"
        raise InvalidInput.of("file name", f'{wanted}, got "{times_file.name}"')
    text = scan_json(read_bytes(sizes_file, name="model"), source=str(sizes_file))
    if text.faults:
        raise InvalidInput(in_document_order(text.faults, text.value), source=str(sizes_file))
    counts = _num_layers(text.value, source=str(sizes_file))
    lengths = _lengths(text.value)
    shared = {at: ms for at, ms in times.items() if at[1] in lengths}
    points = []
    # where no length is shared the first is looked for, and its entry is missed by name
    for (size, length), forward_ms in sorted((shared or times).items()):
        kinds = _kinds(text.value, length, len(counts), source=str(sizes_file))
        missing = [f"layertype_{k}" for k in (*range(len(counts)), "other") if k not in forward_ms]
        if missing:
            key = f"{missing[0]}_bsz{size}_seq{length}"
            raise InvalidInput.of(key, "required field is missing", source=str(times_file))
        chain = [
            (kinds[0], forward_ms["other"] / 2),
            *(
                (kinds[1 + number], forward_ms[number])
                for number, count in enumerate(counts)
                for _ in range(count)
            ),
            (kinds[-1], forward_ms["other"] / 2),
        ]
        points.append(_point(chain, size, length, precision, times_file.name))
    record = profile_json.ProfileRecord(kind="profile", format_version=1, points=tuple(points))
    unsized = {length for _, length in times} - lengths
    return profile_json.from_record(record), tuple(_left_open(text.value, unsized))


def _both(path: Path) -> tuple[Path, Path]:
    """The tables of times and of memory that belong together."""
    if path.is_dir():
        found = sorted(path.glob(f"{_TIMES}*.json"))
        if len(found) != 1:
            names = ", ".join(each.name for each in found) or "none"
            problem = f"must hold one table of times, or name one of them, got {names}"
            raise InvalidInput.of("model", problem, source=str(path))
        (path,) = found
    for own, other in ((_TIMES, _SIZES), (_SIZES, _TIMES)):
        if path.name.startswith(own):
            beside = path.with_name(other + path.name.removeprefix(own))
            if not exists(beside):
                problem = f"must lie beside {path.name}: Galvatron writes two tables of a model"
                raise InvalidInput.of(beside.name, problem, source=str(path.parent))
            return (path, beside) if own == _TIMES else (beside, path)
    wanted = f"must be {_TIMES}PRECISION_MODEL.json or {_SIZES}PRECISION_MODEL.json"
    raise InvalidInput.of("file name", f'{wanted}, got "{path.name}"', source=str(path))


def _times(path: Path) -> dict[tuple[int, int], dict[int | str, float]]:
    """By (microbatch, sequence length) the forward of a sequence in ms, by type of layer."""
    source = str(path)
    text = scan_json(read_bytes(path, name="model"), source=source)
    found: dict[tuple[int, int], dict[int | str, float]] = {}
    faults = list(in_document_order(text.faults, text.value))
    for key, value in text.value.items():
        if _BY_PART.fullmatch(key) or path.stem.endswith(_PARTS):
            raise UnsupportedFeature(
                f"{path.name}: {key}: layers measured in parts are not put together here",
                alternative="profile whole layers (Galvatron's profile unit all)",
            )
        if _BY_LENGTHS.fullmatch(key):
            raise UnsupportedFeature(
                f"{path.name}: {key}: types of layers with lengths of their own are not put "
                "together here",
                alternative="profile a model whose layers see one sequence length",
            )
        named = _TIME_KEY.fullmatch(key)
        if named is None:
            continue  # totals of whole models, from which the times of layers were taken
        size, length = int(named["size"]), int(named["length"])
        if not (1 <= size <= LARGEST_COUNT and 1 <= length <= LARGEST_COUNT):
            faults.append(Fault(key, "must name a batch size and a sequence length >= 1"))
        elif not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e12:
            faults.append(Fault(key, f"must be milliseconds >= 0, got {show_typed(value)}"))
        else:
            own = found.setdefault((size, length), {})
            own["other" if named["kind"] is None else int(named["kind"])] = float(value)
    if not found and not faults:
        problem = "must have keys such as layertype_0_bsz1_seq4096"
        faults.append(Fault("document", f"{problem}; older tables do not state the length"))
    if faults:
        raise InvalidInput(faults, source=source)
    return found


def _num_layers(value: Mapping[str, Any], *, source: str) -> tuple[int, ...]:
    """How many layers there are of each type."""
    config = value.get("model_config")
    stated = config.get("n_layers") if isinstance(config, dict) else None
    counts = stated if isinstance(stated, list) else [stated]
    kinds = len({key.removesuffix("_sp") for key in value if key.startswith("layertype_")})
    if not kinds:
        raise InvalidInput.of("layertype_0", "required field is missing", source=source)
    is_sound = all(type(n) is int and 1 <= n <= LARGEST_COUNT for n in counts)
    if not is_sound or len(counts) != kinds:
        example = '"model_config": {"n_layers": 32}'
        wanted = f"must be the number of layers of each of {kinds} types, as {example}"
        got = "nothing" if stated is None else show_typed(stated)
        problem = f"{wanted}, got {got}; Galvatron's tables do not state it, so add it"
        raise InvalidInput.of("model_config.n_layers", problem, source=source)
    return tuple(counts)


def _lengths(value: Mapping[str, Any]) -> set[int]:
    """The sequence lengths of which every part of the memory table has an entry."""
    parts = (
        {int(length) for length in own if length.isdecimal()}
        for key, own in value.items()
        if key.startswith(("layertype_", *_MEMORY_KEYS[:2])) and isinstance(own, dict)
    )
    return set.intersection(*found) if (found := list(parts)) else set()


def _kinds(value: Mapping[str, Any], length: int, count: int, *, source: str) -> list[_Kind]:
    """The embedding, the types of layers and the head, at a sequence length."""
    first, last = (
        _other(value, name, length, kind, source=source)
        for name, kind in zip(_MEMORY_KEYS, (LayerKind.EMBEDDING, LayerKind.LM_HEAD), strict=False)
    )
    found = [first]
    for number in range(count):
        own, path = _at_length(value, f"layertype_{number}", length, source=source)
        record = decode(LayerMemoryRecord, own, path=path, source=source)
        kept = record.tp_activation_per_bsz_dict
        missing = [key for key in (_ALONE, _CHECKPOINT) if key not in kept]
        if missing:
            where = f"{path}.tp_activation_per_bsz_dict"
            problem = f"must have an entry {quote(missing[0])}, got {', '.join(kept) or 'none'}"
            raise InvalidInput.of(where, problem, source=source)
        found.append(
            _Kind(
                name=LayerKind.BLOCK,
                parameters_bytes=record.parameter_size * MIB,
                kept_bytes=kept[_ALONE] * MIB,
                input_bytes=kept[_CHECKPOINT] * MIB,
            )
        )
    return [*found, last]


def _other(
    value: Mapping[str, Any], name: str, length: int, kind: LayerKind, *, source: str
) -> _Kind:
    own, path = _at_length(value, name, length, source=source)
    record = decode(OtherMemoryRecord, own, path=path, source=source)
    for field in ("model_states", "activation"):
        if _ALONE not in getattr(record, field):
            problem = f"must have an entry {quote(_ALONE)}, that of tensor degree 1"
            raise InvalidInput.of(f"{path}.{field}", problem, source=source)
    return _Kind(
        name=kind,
        parameters_bytes=record.model_states[_ALONE] * MIB / 4,
        kept_bytes=record.activation[_ALONE] * MIB,
    )


def _at_length(
    value: Mapping[str, Any], name: str, length: int, *, source: str
) -> tuple[object, str]:
    """An entry of the memory table and its path; with sequence parallelism it is the same here."""
    key = name if name in value else f"{name}_sp"
    if not isinstance(found := value.get(key), dict):
        raise InvalidInput.of(name, "required field is missing", source=source)
    if str(length) not in found:
        problem = f"must have an entry {quote(str(length))}, the length at which times were taken"
        raise InvalidInput.of(key, f"{problem}, got {', '.join(found) or 'none'}", source=source)
    return found[str(length)], f"{key}.{length}"


def _point(
    chain: Sequence[tuple[_Kind, float]], size: int, length: int, precision: str, source: str
) -> profile_json.PointRecord:
    known: dict[tuple[_Kind, float], int] = {}
    layers = tuple(
        profile_json.LayerRecord(
            id=at, name=kind.name, layer_class=known.setdefault((kind, ms), len(known))
        )
        for at, (kind, ms) in enumerate(chain)
    )
    sent = [kind.input_bytes for kind, _ in chain]
    edges = [
        profile_json.EdgeRecord(source=at, target=at + 1, bytes=size * (after or before or 0.0))
        for at, (before, after) in enumerate(pairwise(sent))
    ]
    return profile_json.PointRecord(
        point=profile_json.CircumstancesRecord(
            microbatch_size=size, sequence_length=length, precision=precision
        ),
        provenance=profile_json.ProvenanceRecord(origin=Origin.IMPORTED, source=source),
        layers=layers,
        edges=tuple(edges),
        classes=tuple(
            profile_json.ClassRecord(
                options=tuple(_options(kind, ms * size / 1e3, size, precision))
            )
            for kind, ms in known
        ),
    )


def _options(
    kind: _Kind, forward_s: float, size: int, precision: str
) -> Iterator[profile_json.OptionRecord]:
    """The layer as it is, and checkpointed where its input is known."""
    own = kind.parameters_bytes
    # bytes per parameter, of 16 in all: 2, 2 and 12 under 16 bit, 4, 4 and 8 under 32
    trained = own / 2 if precision in _HALF else own
    state = profile_json.StateBytesRecord(
        weight=trained, gradient=trained, optimizer=4 * own - 2 * trained
    )

    def option(
        name: str, mode: Recompute, kept_bytes: float, again_s: float
    ) -> profile_json.OptionRecord:
        return profile_json.OptionRecord(
            id=name,
            recompute=mode,
            duration_s=3 * forward_s + again_s,
            phases=profile_json.PhasesRecord(
                forward_s=forward_s,
                input_grad_s=forward_s,
                weight_grad_s=forward_s,
                recompute_s=again_s,
            ),
            saved_until_input_grad_bytes=size * kept_bytes,
            # what a checkpointed layer makes anew is there while its backward runs
            transient_bytes=size * (kind.kept_bytes - kept_bytes) if again_s else 0.0,
            static_bytes=profile_json.StaticBytesRecord(dense=state),
            gradient_sync_bytes=profile_json.GradientSyncRecord(dense=trained),
        )

    yield option("plain", Recompute.NONE, kind.kept_bytes, 0.0)
    if kind.input_bytes is not None and kind.input_bytes < kind.kept_bytes:
        yield option(_CHECKPOINT, Recompute.FULL, kind.input_bytes, forward_s)


def _left_open(sizes: Mapping[str, Any], unsized: set[int]) -> Iterator[str]:
    if unsized:
        shown = ", ".join(map(str, sorted(unsized)))
        yield f"Galvatron: sequence length {shown} has no entry in the table of memory, left out"
    degrees = {
        degree
        for key, by_length in sizes.items()
        if key.startswith("layertype_") and isinstance(by_length, dict)
        for own in by_length.values()
        if isinstance(own, dict)
        for degree in own.get("tp_activation_per_bsz_dict", ())
        if degree.isdigit() and degree != _ALONE
    }
    if degrees:
        shown = ", ".join(sorted(degrees, key=int))
        yield f"Galvatron: times at tensor degree {shown} are not measured, plans have degree 1"
    yield "Galvatron: a backward takes twice the forward, embedding and head half of the rest each"
