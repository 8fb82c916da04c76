"""What a caller may hand in as a model, and the quantities beside it."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.results.request import Embedded, SettingRecord
from trainwright.units import parse_bandwidth, parse_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainwright.profile import Profile, ProfileFile, Setting
    from trainwright.profile.placement_case import PlacementCase


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileInput:
    """A profiled model: its profile, the setting its file states, and itself as embedded JSON.

    `unit_assumed` says that its times were taken for seconds without the file saying so.
    """

    profile: Profile
    setting: Setting | None
    embedded: Embedded
    unit_assumed: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementInput:
    """A placement problem, its setting replaced where the caller says so, and itself as JSON."""

    case: PlacementCase
    embedded: Embedded
    warnings: tuple[str, ...] = ()


def embed(kind: str, name: str, content: dict[str, Any]) -> Embedded:
    """Wrap an input for a document, with the hash of its canonical JSON."""
    return Embedded(kind=kind, name=name, sha256=content_hash(content), content=content)


def content_hash(content: dict[str, Any]) -> str:
    """The SHA-256 of canonical JSON: keys sorted, no blanks."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def profile_input(file: ProfileFile, *, name: str, point: int | None) -> ProfileInput:
    """Pick one point of a profile file; with several, `point` (an index) must say which."""
    from trainwright.formats.profile_json import write_profile

    count = len(file.profiles)
    if point is None and count > 1:
        raise InvalidInput.of("point", f"must say which of the {count} points (0 to {count - 1})")
    index = point or 0
    if not 0 <= index < count:
        raise InvalidInput.of("point", f"must be from 0 to {count - 1}, got {index}")
    one = replace(file, profiles=(file.profiles[index],))
    return ProfileInput(
        profile=one.profiles[0],
        setting=one.setting,
        embedded=embed("profile", name, write_profile(one)),
    )


_OPTION_OF = {
    "num_devices": "devices",
    "memory_bytes": "memory",
    "bandwidth_bytes_per_s": "bandwidth",
    "num_microbatches": "microbatches",
}


def setting_overrides(
    *,
    devices: int | None,
    memory: str | float | None,
    bandwidth: str | float | None,
    microbatches: int | None,
) -> dict[str, float]:
    """What the caller gave, as fields of `Setting`; text is read with its unit.

    Raises `InvalidInput` naming the option where a value breaks the rule of its field.
    """
    stated = {
        "num_devices": devices,
        "memory_bytes": parse_memory(memory) if isinstance(memory, str) else memory,
        "bandwidth_bytes_per_s": (
            parse_bandwidth(bandwidth) if isinstance(bandwidth, str) else bandwidth
        ),
        "num_microbatches": microbatches,
    }
    given = {name: value for name, value in stated.items() if value is not None}
    faults = [
        Fault(_OPTION_OF[name], f"must be {wanted}, got {given[name]!r}")
        for name, (wanted, kinds) in _KINDS.items()
        if name in given and (type(given[name]) is bool or not isinstance(given[name], kinds))
    ]
    if faults:
        raise InvalidInput(faults)
    if given.get("memory_bytes", 0.0) > LARGEST_MEMORY_BYTES:
        problem = f"must be at most 1PiB, as no device has more, got {memory!r}"
        raise InvalidInput.of("memory", problem)
    _make_setting({"num_devices": 1, "memory_bytes": 1.0, **_HARMLESS, **given})
    return given


LARGEST_MEMORY_BYTES: Final = 2.0**50  # thousands of times what a device has
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "num_devices": ("a whole number", (int,)),
    "memory_bytes": ("a number of bytes, or text with a unit", (int, float)),
    "bandwidth_bytes_per_s": ("a number of bytes per second, or text with a unit", (int, float)),
    "num_microbatches": ("a whole number", (int,)),
}
_HARMLESS = {"bandwidth_bytes_per_s": 1.0, "num_microbatches": 1}


def resolve_setting(stated: Setting | None, overrides: Mapping[str, float]) -> Setting:
    """The setting a profile states, with the caller's overrides; every missing field is named."""
    values = {name: overrides.get(name, getattr(stated, name, None)) for name in _OPTION_OF}
    missing = [_OPTION_OF[name] for name, value in values.items() if value is None]
    if missing:
        raise InvalidInput(
            Fault(option, f"the profile does not state it; give --{option}") for option in missing
        )
    return _make_setting(values)


def _make_setting(values: dict[str, Any]) -> Setting:
    from trainwright.profile import Setting

    with naming_options(_OPTION_OF):
        return Setting(**values)


@contextmanager
def naming_options(option_of: Mapping[str, str]) -> Iterator[None]:
    """Let faults of a noun's fields name the options they came from."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(
            (Fault(option_of.get(fault.path, fault.path), fault.problem) for fault in error.faults),
            source=error.source,
        ) from None


def setting_record(setting: Setting) -> SettingRecord:
    """The setting as a document carries it."""
    return SettingRecord(
        num_devices=setting.num_devices,
        memory_bytes=setting.memory_bytes,
        bandwidth_bytes_per_s=setting.bandwidth_bytes_per_s,
        num_microbatches=setting.num_microbatches,
    )


def display_name(path: str | Path) -> str:
    """How a file is named in documents: without folders, which mean nothing elsewhere."""
    return Path(path).name
