"""Axes whose best value lies at an end of what it might be: there the range decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.chips.space import FIELDS
from trainwright.formats.codesign_document import EndRecord
from trainwright.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.formats.codesign_document import (
        ArchitectureRecord,
        RoomRecord,
        RulesRecord,
        SurroundingsRecord,
        SystemRecord,
    )

# Where an axis ends by nature: a chip has a core, a domain a chip.
_NATURAL: Final = {
    "num_tc": 1,
    "num_vc": 1,
    "stacks": 1,
    "node_devices": 1,
    "oversubscription": 1.0,
    "devices": 1,
}


def at_end(axis: str, value: float, values: tuple[float, ...], widen: str) -> Iterator[EndRecord]:
    """That a value is the least or the most of an axis that may have others."""
    if len(set(values)) < 2 or value == _NATURAL.get(axis):
        return
    for end, limit in (("least", min(values)), ("most", max(values))):
        if value == limit:
            yield EndRecord(axis=axis, value=f"{value:g}", end=end, widen=widen)


def ends_of_chip(
    rules: RulesRecord, design: ArchitectureRecord, others: tuple[SurroundingsRecord, ...]
) -> Iterator[EndRecord]:
    """Ends at which a design lies: of its template's ranges, and of what surrounds it."""
    per_mac = max(1, design.tc_buffer_bytes // (design.width * design.depth))
    values = {
        **{name: getattr(design, name) for name in FIELDS[:4]},
        "glb_mib": design.glb_bytes // MIB,
        "buffer_bytes_per_mac": per_mac,
    }
    for name in FIELDS:
        yield from at_end(name, values[name], getattr(rules, name), f"--set ranges.{name}=[...]")
    for name, option in _LISTED.items():
        listed = tuple(float(getattr(each, name)) for each in others)
        if name == "memory_bytes":  # what a process can use of it is less
            continue
        yield from at_end(name, float(getattr(design.surroundings, name)), listed, option)


_LISTED: Final = {
    "clock_hz": "--clock",
    "memory_bandwidth_bytes_per_s": "--memory-bandwidth or --stacks",
    "link_bandwidth_bytes_per_s": "--link-bandwidth",
    "node_devices": "--node-devices",
    "glb_bytes_per_cycle": "--buffer-port",
}


def end_words(found: EndRecord) -> str:
    """An end in a sentence."""
    axis = AXIS_WORDS.get(found.axis, found.axis.replace("_", " "))
    return (
        f"the best lies at the end of the range of {axis}, {found.value}, the {found.end}: "
        f"widen it with {found.widen}"
    )


AXIS_WORDS: Final = {
    "num_tc": "tensor cores",
    "num_vc": "vector cores",
    "glb_mib": "MiB of the global buffer",
    "clock_hz": "clocks",
    "memory_bandwidth_bytes_per_s": "memory bandwidth",
    "link_bandwidth_bytes_per_s": "link bandwidth",
    "glb_bytes_per_cycle": "bytes a cycle of the global buffer",
    "stacks": "memory stacks",
    "stack_gib": "GiB of a stack",
    "node_devices": "chips of a domain",
    "node_gbytes_per_s": "GB/s in a domain",
    "cards": "network cards",
}


def ends_of_system(room: RoomRecord, rules: RulesRecord, best: SystemRecord) -> Iterator[EndRecord]:
    """Ends at which a system lies, its chip's among them."""
    for axis in _OF_ROOM:
        if axis == "node_gbytes_per_s" and best.node_devices == 1:
            continue  # a domain of one chip has no links
        more = axis == "devices" and best.devices == max(room.devices)
        widen = "--devices" if more else f"--set room.{axis}=[...]"
        yield from at_end(axis, float(getattr(best, axis)), getattr(room, axis), widen)
    yield from ends_of_chip(rules, best.architecture, ())


_OF_ROOM: Final = (
    *("devices", "stacks", "stack_gib", "node_devices", "node_gbytes_per_s"),
    *("cards", "oversubscription"),
)
