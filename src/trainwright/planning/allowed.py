"""What the user fixes, bounds or forbids in the search for a model's plan; the default is all.

Each degree has a span of its own; what the model, the batch and the cluster allow is decided by
`plan.legality`, what a framework can run by `plan.capability`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.axis_order import AXIS_ORDERS, AxisOrder
from trainwright.profile import Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Whole numbers from `least` to `most`, both included; no upper end where `most` is None."""

    least: int = 1
    most: int | None = None

    @classmethod
    def only(cls, value: int) -> Span:
        """The span that holds one number."""
        return cls(least=value, most=value)

    def __contains__(self, value: int) -> bool:
        return self.least <= value and (self.most is None or value <= self.most)


ANY: Final = Span()
ZERO_STAGES: Final = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The degrees, batch sizes and methods that a plan may use.

    `expert_tensor` is the number of devices that share one expert. `schedules` None is every family
    that the planner searches; `searches_orders` asks for orders that none of them has, too.
    `framework` None is every plan, whether or not something runs it.
    `mappings` are orders of the axes on the network; `state_copies` is searched where shards fill
    units of the network unless it is narrowed.
    """

    tensor: Span = ANY
    pipeline: Span = ANY
    data: Span = ANY
    context: Span = ANY
    expert: Span = ANY
    expert_tensor: Span = ANY
    virtual_stages: Span = ANY
    microbatch_size: Span = ANY
    state_copies: Span = ANY
    zero_stages: tuple[int, ...] = ZERO_STAGES
    recompute: tuple[Recompute, ...] = tuple(Recompute)
    schedules: tuple[str, ...] | None = None
    searches_orders: bool = False
    framework: str | None = None
    mappings: tuple[AxisOrder, ...] = AXIS_ORDERS

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Span):
                if value.least < 1:
                    yield Fault(field.name, f"must be >= 1, got {value.least}")
                if value.most is not None and value.most < value.least:
                    yield Fault(field.name, f"must not be empty, got {value.least}..{value.most}")
        for stage in self.zero_stages:
            if stage not in ZERO_STAGES:
                yield Fault("zero_stages", f"must be 0, 1, 2 or 3, got {stage}")
        for name in ("zero_stages", "recompute", "schedules", "mappings"):
            if getattr(self, name) == ():
                yield Fault(name, "must have at least 1 entry, got 0")


EVERYTHING: Final = Allowed()
