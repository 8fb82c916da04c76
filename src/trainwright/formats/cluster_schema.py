"""What a cluster file may say, as pydantic models, and their errors as faults.

The models only check: what a file leaves out is filled in where nouns are made of it. This module
imports pydantic, so it is itself imported only where a file of someone else is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from trainwright.errors import Fault, InvalidInput, meant, one_of
from trainwright.provenance import Origin
from trainwright.units import parse_memory

_LARGEST_MEMORY_GIB = 4096.0
_LONGEST_LATENCY_S = 1.0
_DTYPES = ("bf16", "fp16", "fp8", "fp4", "tf32", "fp32", "fp64")


def _memory(value: object) -> object:
    """A quantity such as "80 GiB"; a bare small number is a likely slip and refused."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"must be a quantity such as 80GiB, got {value!r}")
    try:
        return parse_memory(str(value))
    except InvalidInput as error:
        raise ValueError(error.faults[0].problem) from None


def _memory_gib(value: float) -> float:
    if value > _LARGEST_MEMORY_GIB:
        scale = 2**10 if value < 2**24 else 2**30  # MiB, as drivers show it, or bytes
        raise ValueError(f"is in GiB, got {value:g}; did you mean {value / scale:g}?")
    return value


def _rate(unit: str, least: float, most: float, scale: float) -> Callable[[float], float]:
    """Refuses what only a slip in the unit can mean, and says what was probably meant."""

    def check(value: float) -> float:
        if value < least:
            raise ValueError(f"is in {unit}, got {value:g}; did you mean {value * scale:g}?")
        if value > most:
            raise ValueError(f"is in {unit}, must be <= {most:g}, got {value:g}")
        return value

    return check


def _latency(value: float) -> float:
    if value > _LONGEST_LATENCY_S:
        raise ValueError(f"is in seconds, got {value:g}; did you mean {value * 1e-6:g}?")
    return value


def _source(text: str) -> str:
    origin = text.partition(":")[0].strip()
    if origin not in set(Origin):
        raise ValueError(f'must start with one of {", ".join(Origin)} and a colon, got "{text}"')
    return text


def _dtype(name: str) -> str:
    if name not in _DTYPES:
        raise ValueError(one_of(_DTYPES, name))
    return name


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Bandwidth = Annotated[Positive, AfterValidator(_rate("bytes per second", 1e6, 1e15, 1e9))]
Flops = Annotated[Positive, AfterValidator(_rate("FLOP per second", 1e9, 1e20, 1e12))]
Latency = Annotated[NotNegative, AfterValidator(_latency)]
Share = Annotated[float, Field(gt=0, le=1)]
Dtype = Annotated[str, AfterValidator(_dtype)]
Sources = dict[str, Annotated[str, AfterValidator(_source)]]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class GemmTable(_Table):
    """Efficiency of matrix products."""

    kind: Literal["saturating"] = "saturating"
    max: Share | None = None
    half_flops: NotNegative | None = None


class MemoryTable(_Table):
    """Efficiency of memory traffic."""

    max: Share | None = None
    half_bytes: NotNegative | None = None


class EfficiencyTable(_Table):
    """Shares of the peak."""

    gemm: GemmTable = GemmTable()
    attention_forward: Share | None = None
    attention_backward: Share | None = None
    memory: MemoryTable = MemoryTable()


Count = Annotated[int, Field(ge=1, le=10**6)]


class CoresTable(_Table):
    """The cores of a chip design, in the template's own names."""

    num_tc: Count
    num_vc: Count
    width: Annotated[int, Field(ge=2, le=10**6)]
    depth: Annotated[int, Field(ge=2, le=10**6)]
    glb_mib: Positive
    clock_hz: Annotated[Positive, AfterValidator(_rate("Hz", 1e6, 1e11, 1e9))] | None = None
    glb_bytes_per_cycle: Positive | None = None
    precision: Literal["bf16", "fp8", "fp32"] = "bf16"


class HostTable(_Table):
    """What a device has of its host."""

    link_bytes_per_s: Bandwidth
    memory_gib: Positive
    updates_per_s: Positive


class AcceleratorTable(_Table):
    """One device kind, by its peaks or by its cores."""

    cores: CoresTable | None = None
    peak_flops_per_s: Annotated[
        dict[Dtype, Flops] | None, Field(min_length=1, validate_default=True)
    ] = None
    memory_gib: Annotated[Positive, AfterValidator(_memory_gib)] | None = None
    memory: Annotated[float, BeforeValidator(_memory)] | None = None
    memory_bandwidth_bytes_per_s: Bandwidth
    launch_overhead_s: Latency | None = None
    usable_fraction: Share | None = None
    flops_per_exponential: NotNegative | None = None
    power_watts: Positive | None = None
    price_per_hour: Positive | None = None
    efficiency: EfficiencyTable | None = None
    host: HostTable | None = None
    sources: Sources = {}

    @field_validator("peak_flops_per_s")
    @classmethod
    def _one_speed(
        cls, peaks: dict[str, float] | None, info: ValidationInfo
    ) -> dict[str, float] | None:
        """Cores have the peak that follows from them; ones that are wrong are named elsewhere."""
        if "cores" not in info.data or (peaks is None) != (info.data["cores"] is None):
            return peaks
        if peaks is None:
            raise ValueError("required field is missing; a chip design gives cores instead")
        raise ValueError("must not be given with cores: it follows from them")

    @field_validator("efficiency")
    @classmethod
    def _no_share_of_a_peak(
        cls, stated: EfficiencyTable | None, info: ValidationInfo
    ) -> EfficiencyTable | None:
        if stated is not None and info.data.get("cores") is not None:
            raise ValueError("must not be given with cores: operators are tiled onto them")
        return stated

    @model_validator(mode="after")
    def _one_memory(self) -> AcceleratorTable:
        if (self.memory_gib is None) == (self.memory is None):
            raise ValueError('must give either memory_gib = 80 or memory = "80GiB"')
        return self


class JointTable(_Table):
    """The level that joins pools; its size is their number."""

    name: str
    bandwidth_bytes_per_s: Bandwidth
    latency_s: Latency
    efficiency: Share | None = None
    oversubscription: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    kind: Literal["switch", "ring", "torus", "mesh"] = "switch"
    sources: Sources = {}


class LevelTable(JointTable):
    """A level inside a pool."""

    size: Annotated[int, Field(ge=1, le=10**6)]


Levels = Annotated[tuple[LevelTable, ...], Field(min_length=1, strict=False)]


class PoolTable(_Table):
    """Devices of one kind."""

    device_kind: str
    num_devices: Annotated[int, Field(ge=1)] | None = None
    level: Levels


class ClusterFile(_Table):
    """A cluster: one pool written at the top, or several with a level that joins them."""

    name: str | None = None
    source: str = ""
    device_kind: str = ""
    num_devices: Annotated[int, Field(ge=1)] | None = None
    level: Annotated[tuple[LevelTable, ...], Field(strict=False)] = ()
    pool: Annotated[tuple[PoolTable, ...], Field(strict=False)] = ()
    joint: JointTable | None = None
    accelerator: dict[str, AcceleratorTable] = {}

    @model_validator(mode="after")
    def _one_form(self) -> ClusterFile:
        if self.pool and (self.level or self.device_kind):
            raise ValueError("must have device_kind and level, or pools of them, not both")
        if not self.pool and not (self.level and self.device_kind):
            raise ValueError("must have device_kind and at least one [[level]]")
        if (len(self.pool) > 1) != (self.joint is not None):
            raise ValueError("must have a [joint] level if, and only if, it has several pools")
        return self


def cluster_schema() -> dict[str, Any]:
    """The JSON Schema of a cluster file, as TOML is read; rules between fields are not in it."""
    made = ClusterFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | made


def faults_of(model: type[_Table], document: Mapping[str, Any]) -> Iterator[Fault]:
    """Every way in which `document` breaks the rules of `model`; empty where it is valid."""
    try:
        model.model_validate(document)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if (
                detail["type"] == "too_short"
                and len(detail["input"]) >= detail["ctx"]["min_length"]
            ):
                continue  # only what is wrong inside makes it so
            path = _path(detail["loc"]) or "cluster"
            yield Fault(path, _problem(dict(detail), model))


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        if part == "[key]":
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _problem(detail: dict[str, Any], model: type[_Table]) -> str:
    value, context = detail["input"], detail.get("ctx", {})
    shown = f'"{value}" (string)' if isinstance(value, str) else repr(value)
    match detail["type"]:
        case "missing":
            return "required field is missing"
        case "extra_forbidden":
            return _unknown_key(detail["loc"], model)
        case "greater_than":
            return f"must be > {context['gt']:g}, got {shown}"
        case "greater_than_equal":
            return f"must be >= {context['ge']:g}, got {shown}"
        case "less_than_equal":
            return f"must be <= {context['le']:g}, got {shown}"
        case "too_short":
            return f"must have at least {context['min_length']} entry, got {len(value)}"
        case "float_type" | "finite_number":
            return f"must be a finite number, got {shown}{_unit_hint(value)}"
        case "value_error":
            return str(context["error"])
        case kind:
            return f"must be {_WANTED.get(kind, kind)}, got {shown}".replace(
                "literal_error", str(context.get("expected"))
            )


_WANTED = {
    "int_type": "an integer",
    "string_type": "text",
    "tuple_type": "an array of tables, [[...]]",
    "dict_type": "a table",
    "model_type": "a table",
}


def _unit_hint(value: object) -> str:
    return "; the unit is in the key's name" if isinstance(value, str) else ""


_TABLES: dict[str, type[_Table]] = {
    "level": LevelTable,
    "pool": PoolTable,
    "joint": JointTable,
    "accelerator": AcceleratorTable,
    "cores": CoresTable,
    "efficiency": EfficiencyTable,
    "gemm": GemmTable,
    "memory": MemoryTable,
    "host": HostTable,
}


def _unknown_key(location: tuple[int | str, ...], model: type[_Table]) -> str:
    inside = [_TABLES[part] for part in location[:-1] if isinstance(part, str) and part in _TABLES]
    known = list((inside or [model])[-1].model_fields)
    near = meant(location[-1], known) or f"; known keys are {', '.join(known)}"
    return f"is not a known key{near}"
