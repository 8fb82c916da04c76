"""How many ways each axis is cut, where all stages agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from trainwright.errors import Fault, InvalidInput

# How devices are numbered over the axes of a plan, from the axis whose neighbours lie closest
# --------------------------------------------------------------------------------------------
# Groups that exchange something for every layer, tensor and context, always lie innermost: any
# other place only puts them farther apart. What is left to choose is whether replicas or the ranks
# of the pipeline come next. Megatron-LM has both (`--use-tp-pp-dp-mapping`), most frameworks the
# first.

AxisOrder = tuple[str, ...]
DATA_INSIDE: Final[AxisOrder] = ("tensor", "context", "data", "pipeline")
PIPELINE_INSIDE: Final[AxisOrder] = ("tensor", "context", "pipeline", "data")
AXIS_ORDERS: Final = (DATA_INSIDE, PIPELINE_INSIDE)
_SHORT: Final = {"tensor": "tp", "context": "cp", "data": "dp", "pipeline": "pp"}
# Experts are dealt out over the devices of a rank, so they have a place but no order of their own.
_EXPERTS: Final = "ep"


def mapping_name(order: AxisOrder) -> str:
    """As Megatron spells it: tp-cp-ep-dp-pp or tp-cp-ep-pp-dp."""
    inner, outer = order[:2], order[2:]
    return "-".join((*(_SHORT[axis] for axis in inner), _EXPERTS, *(_SHORT[a] for a in outer)))


MAPPINGS: Final = tuple(map(mapping_name, AXIS_ORDERS))


def mapping_named(name: str) -> AxisOrder:
    """The order of a name, experts named or not; raises `InvalidInput` listing the names."""
    wanted = name.strip().lower()
    for order, known in zip(AXIS_ORDERS, MAPPINGS, strict=True):
        if wanted in (known, known.replace(f"-{_EXPERTS}", "")):
            return order
    offered = " or ".join(MAPPINGS)
    raise InvalidInput.of("mapping", f'must be {offered}, got "{name}"')


# How many ways each axis is cut, where all stages agree
# ------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Uniform degrees of a plan. Expert degrees divide the data × context × tensor group.

    Each expert is cut `expert_tensor` ways, as many as `tensor` where absent. `axis_order` lists
    the axes as devices are numbered, closest neighbours first. `state_copies` is how many groups of
    replicas each hold all state that ZeRO shards (hybrid shard); 1 shards it over all of them.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    virtual_stages: int = 1
    sequence_parallel: bool = False
    zero_stage: int = 0
    axis_order: AxisOrder = DATA_INSIDE
    state_copies: int = 1

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or field.name == "axis_order":
                continue
            least = 0 if field.name in ("zero_stage", "sequence_parallel") else 1
            if value < least:
                yield Fault(field.name, f"must be >= {least}, got {value}")
        if self.zero_stage > 3:
            yield Fault("zero_stage", f"must be 0, 1, 2 or 3, got {self.zero_stage}")
        if self.axis_order not in AXIS_ORDERS:
            given = "-".join(self.axis_order)
            yield Fault("axis_order", f"must be the order of {' or '.join(MAPPINGS)}, got {given}")

    @property
    def num_devices(self) -> int:
        """Devices the plan occupies."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def devices_per_rank(self) -> int:
        """Devices of one pipeline rank."""
        return self.tensor * self.data * self.context

    @property
    def adjacent_devices(self) -> int:
        """Devices of one pipeline rank that follow on each other; as many apart lie its ranks."""
        inside = self.tensor * self.context
        is_apart = self.axis_order == PIPELINE_INSIDE and self.pipeline > 1
        return inside if is_apart else inside * self.data

    @property
    def expert_shards(self) -> int:
        """Devices that share one expert."""
        return self.expert_tensor or self.tensor

    @property
    def expert_data(self) -> int:
        """Replicas of each expert; degrees that do not divide evenly are a fault of legality."""
        replicas = self.tensor * self.context * self.data // (self.expert * self.expert_shards)
        return max(1, replicas)
