"""Quantities as people write them, and as code keeps them (SI base units in floats).

Binary prefixes (KiB, MiB, …) are powers of 1024, decimal ones (kB, MB, …) powers of 1000; `b` is a
bit and `B` a byte, so `800Gb/s` is 100 GB/s. A bare number is in base units.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Final

from trainwright.errors import InvalidInput, one_of

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30

_NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*")
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_PREFIXES = _DECIMAL | _BINARY
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_SECONDS |= {"min": 60.0, "h": 3600.0, "d": 86400.0}
_PLAIN_MEMORY_FLOOR: Final = MIB
_PLAIN_DEADLINE_FLOOR_S: Final = 3600.0
_HARDWARE_FLOOR_BYTES_PER_S: Final = 1e6


def _byte_units(suffix: str = "") -> dict[str, float]:
    table = {f"{prefix}B{suffix}": factor for prefix, factor in _PREFIXES.items()}
    bits = {f"{prefix}b{suffix}": factor / 8 for prefix, factor in _PREFIXES.items()}
    return table | bits


_BYTES = _byte_units()
_BYTES_PER_SECOND = _byte_units("/s") | {f"{p}bps": f / 8 for p, f in _DECIMAL.items()}


def _parse(text: str, units: dict[str, float], *, name: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None or (match[2] and match[2] not in units):
        raise InvalidInput.of(name, f'must be a quantity such as {example}, got "{text}"')
    value = float(match[1]) * units.get(match[2], 1.0)
    if not math.isfinite(value):
        raise InvalidInput.of(name, f'must be finite, got "{text}"')
    return value, match[2]


def _in_bytes(text: str, unit: str) -> str:
    """The same number in bytes, with the decimal prefix and the binary one: a question."""
    number, prefix = text.strip().removesuffix(unit).strip(), unit[:-1]
    binary = f"{prefix[0].upper()}iB" if prefix else "B"
    meant = dict.fromkeys((f"{number}{prefix}B", f"{number}{binary}"))
    return f"did you mean {' or '.join(meant)}?"


def parse_memory(text: str, *, name: str = "memory") -> float:
    """Read a memory size in bytes; bits and a bare number below 1 MiB are refused as slips."""
    value, unit = _parse(text, _BYTES, name=name, example="80GiB")
    if value <= 0:
        raise InvalidInput.of(name, f'must be > 0, such as 80GiB, got "{text}"')
    if unit.endswith("b"):
        raise InvalidInput.of(name, f'is in bytes, got bits, "{text}"; {_in_bytes(text, unit)}')
    if not unit and value < _PLAIN_MEMORY_FLOOR:
        raise InvalidInput.of(
            name, f'a bare number is in bytes, got "{text}"; did you mean "{text.strip()}GiB"?'
        )
    return value


def parse_bandwidth(text: str, *, name: str = "bandwidth") -> float:
    """Read a bandwidth in bytes per second."""
    value, _ = _parse(text, _BYTES_PER_SECOND, name=name, example="25GiB/s or 400Gb/s")
    if value <= 0:
        raise InvalidInput.of(name, f'must be > 0, such as 25GiB/s or 400Gb/s, got "{text}"')
    return value


def parse_hardware_bandwidth(text: str, *, name: str = "bandwidth") -> float:
    """Read a bandwidth of a link or memory of a cluster; below 1 MB/s is refused as a slip."""
    value = parse_bandwidth(text, name=name)
    if value >= _HARDWARE_FLOOR_BYTES_PER_S:
        return value
    bare = text.strip()
    if bare.endswith("s"):
        raise InvalidInput.of(name, f'must be >= 1 MB/s, got "{text}"')
    hint = f'did you mean "{bare}Gb/s" or "{bare}GB/s"?'
    raise InvalidInput.of(name, f'a bare number is in bytes per second, got "{text}"; {hint}')


def parse_duration(text: str, *, name: str = "duration") -> float:
    """Read a duration in seconds."""
    value, _ = _parse(text, _SECONDS, name=name, example="30s or 5min")
    if value < 0:
        raise InvalidInput.of(name, f'must be >= 0, such as 30s or 5min, got "{text}"')
    return value


def parse_deadline(text: str, *, name: str = "deadline") -> float:
    """Read a deadline in seconds; a bare number below an hour is refused as a slip."""
    value, unit = parse_duration(text, name=name), _NUMBER.sub(r"\2", text)
    if not unit and 0 < value < _PLAIN_DEADLINE_FLOOR_S:
        hint = f'did you mean "{text.strip()}d"?'
        raise InvalidInput.of(name, f'a bare number is in seconds, got "{text}"; {hint}')
    return value


def parse_time_unit(text: str) -> float:
    """Read the name of a second or a part of one: how many seconds it is."""
    units = {unit: seconds for unit, seconds in _SECONDS.items() if seconds <= 1}
    if text not in units:
        raise InvalidInput.of("time-unit", one_of(units, text))
    return units[text]


class TimeUnit(StrEnum):
    """What a time of 1 stands for: a second, or a slot where times only have proportions."""

    SECONDS = "s"
    SLOTS = "slots"

    def describe(self, value: float) -> str:
        """Print a time with its unit."""
        return format_seconds(value) if self is TimeUnit.SECONDS else f"{value:.6g} slots"


def parse_action_time(text: str, *, name: str) -> tuple[float, TimeUnit]:
    """Read what an action takes; a bare number counts slots and is kept as seconds."""
    value, unit = _parse(text, _SECONDS, name=name, example="1 or 3.5ms")
    if value < 0:
        raise InvalidInput.of(name, f'must be >= 0, such as 1 or 3.5ms, got "{text}"')
    return value, TimeUnit.SECONDS if unit else TimeUnit.SLOTS


def format_bytes(value: float) -> str:
    """Print bytes with a binary prefix and three or four significant digits."""
    magnitude = abs(value)
    if magnitude >= 1e6 * 2.0**40:
        return f"{value / 2.0**40:.4g} TiB"
    for name, factor in (("TiB", 2.0**40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if magnitude >= factor:
            return f"{value / factor:.2f} {name}"
    return f"{value:.0f} B"


def format_bytes_up(value: float) -> str:
    """Print bytes as a size that is at least `value` when read back: what to ask for."""
    for name, factor in (("TiB", 2.0**40), ("GiB", GIB), ("MiB", MIB)):
        if value >= factor:
            return f"{math.ceil(value / factor * 100) / 100:.2f} {name}"
    return f"{math.ceil(value)} B"


def format_bandwidth(value: float) -> str:
    """Print a bandwidth with a decimal prefix."""
    for name, factor in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if value >= factor:
            return f"{value / factor:.4g} {name}"
    return f"{value:.4g} B/s"


def format_seconds(value: float) -> str:
    """Print a duration with the prefix that leaves one to three digits before the point."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g} s"
    for name, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {name}"
    return f"{value / 1e-9:.4g} ns"


def without_noise(part_s: float, whole_s: float) -> float:
    """A part of a step, 0 where it is only rounding: below 1 ps or 1e-9 of the step. In seconds."""
    return part_s if abs(part_s) >= max(1e-12, 1e-9 * whole_s) else 0.0


def format_part(part_s: float, whole_s: float) -> str:
    """Print a part of a step without the rounding errors of sums."""
    return format_seconds(without_noise(part_s, whole_s))


def format_count(count: int, noun: str) -> str:
    """Print a number of things: "1 device", "8 devices", "8 microbatches"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith('ch') else 's'}"


_FINEST: Final = 1e-6  # what is less is printed as one of the last digit


def format_percent_up(fraction: float) -> str:
    """Print a gap as a percentage, rounded up so that the printed claim stays true."""
    if fraction <= 0:
        return "0%"
    digits = max(2, 1 - math.floor(math.log10(max(fraction, _FINEST) * 100)))
    scale = 10.0**digits
    return f"{math.ceil(fraction * 100 * scale - 1e-9) / scale:.{digits}f}%"
