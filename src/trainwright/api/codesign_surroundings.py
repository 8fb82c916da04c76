"""What the chips of a co-design search stand in: every combination of the values it may choose."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

from trainwright.errors import InvalidInput
from trainwright.plan.results.codesign import SurroundingsRecord
from trainwright.units import GIB, parse_hardware_bandwidth, parse_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainwright.api.codesign_request import CodesignOptions
    from trainwright.cluster import Surroundings

Quantity = str | float

# A stack of HBM2E as JEDEC JESD235 describes it: 1024 pins at 3.6 Gbit/s, eight layers of 16 Gbit.
STACK_BYTES: Final = 16.0 * GIB
STACK_BYTES_PER_S: Final = 460.8e9


class _Memory(NamedTuple):
    size_bytes: float
    bandwidth_bytes_per_s: float
    interface_mm2: float


def surroundings_records(options: CodesignOptions) -> tuple[SurroundingsRecord, ...]:
    """Every combination of the given values; what is not given takes its default."""
    from trainwright.cluster import Surroundings

    base = Surroundings()
    (inside,) = _values(
        _one(options.get("node_bandwidth")),
        base.node_bandwidth_bytes_per_s,
        "node-bandwidth",
        parse_hardware_bandwidth,
    )
    links = _values(
        options.get("link_bandwidth"),
        base.link_bandwidth_bytes_per_s,
        "link-bandwidth",
        parse_hardware_bandwidth,
    )
    clocks = tuple(options.get("clock_hz") or (base.clock_hz,))
    return tuple(
        SurroundingsRecord(
            clock_hz=clock,
            memory_bytes=memory.size_bytes,
            memory_bandwidth_bytes_per_s=memory.bandwidth_bytes_per_s,
            link_bandwidth_bytes_per_s=link,
            link_latency_s=base.link_latency_s,
            node_devices=options.get("node_devices") or base.node_devices,
            node_bandwidth_bytes_per_s=inside,
            launch_s=base.launch_s,
            glb_bytes_per_cycle=base.glb_bytes_per_cycle,
            interface_mm2=memory.interface_mm2,
            tensor_overlap=options.get("tensor_overlap") or 0.0,
            gradient_overlap=options.get("gradient_overlap") or 0.0,
        )
        for memory, link, clock in product(_memories(options, base), links, clocks)
    )


def _memories(options: CodesignOptions, base: Surroundings) -> Iterator[_Memory]:
    """Sizes with bandwidths, or numbers of stacks, which settle both."""
    sizes, paces = options.get("memory"), options.get("memory_bandwidth")
    stacks = options.get("memory_stacks")
    if stacks is None:
        for size, pace in product(
            _values(sizes, base.memory_bytes, "memory", parse_memory),
            _values(
                paces,
                base.memory_bandwidth_bytes_per_s,
                "memory-bandwidth",
                parse_hardware_bandwidth,
            ),
        ):
            yield _Memory(size, pace, 0.0)
        return
    if sizes or paces:
        given = "memory" if sizes else "memory-bandwidth"
        raise InvalidInput.of(given, "must not be given: stacks settle memory and its bandwidth")
    (size,) = _values(_one(options.get("stack_memory")), STACK_BYTES, "stack-memory", parse_memory)
    (pace,) = _values(
        _one(options.get("stack_bandwidth")),
        STACK_BYTES_PER_S,
        "stack-bandwidth",
        parse_hardware_bandwidth,
    )
    area = options.get("stack_area_mm2") or 0.0
    for count in stacks:
        if count < 1:
            raise InvalidInput.of("stacks", f"must be >= 1, got {count}")
        yield _Memory(count * size, count * pace, count * area)


def _one(value: Quantity | None) -> Sequence[Quantity] | None:
    return None if value is None else (value,)


def _values(
    given: Sequence[Quantity] | None, default: float, name: str, parse: Callable[..., float]
) -> tuple[float, ...]:
    if not given:
        return (default,)
    return tuple(parse(v, name=name) if isinstance(v, str) else float(v) for v in given)
