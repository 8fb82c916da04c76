"""How devices are numbered over the axes of a plan, from the axis whose neighbours lie closest.

Groups that exchange something for every layer, tensor and context, always lie innermost: any other
place only puts them farther apart. What is left to choose is whether replicas or the ranks of the
pipeline come next. Megatron-LM has both (`--use-tp-pp-dp-mapping`), most frameworks the first.
"""

from __future__ import annotations

from typing import Final

from trainwright.errors import InvalidInput

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
