"""What the MODEL argument means: told apart by content, then by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.api.inputs import ProfileInput, display_name, profile_input
from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from trainwright.plan.results.request import Embedded
    from trainwright.profile import Profile, ProfileFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """A model without a profile."""

    embedded: Embedded


def resolve_model(
    model: str | Path | Profile | ProfileFile, *, point: int | None
) -> ProfileInput | ModelInput:
    """Read a file or a folder, take a noun as it is, or look a name up in the catalog."""
    from trainwright.profile import Profile, ProfileFile

    if isinstance(model, Profile):
        model = ProfileFile(profiles=(model,))
    if isinstance(model, ProfileFile):
        return profile_input(model, name="profile", point=point)
    path = Path(model)
    if path.exists():
        return _read_file(path, point=point)
    raise InvalidInput.of("model", f'must be a file or the name of a catalog model, got "{model}"')


def _read_file(path: Path, *, point: int | None) -> ProfileInput | ModelInput:
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.detect import detect
    from trainwright.formats.json_text import parse_json
    from trainwright.formats.piper_json import read_piper
    from trainwright.formats.profile_json import read_profile

    value = parse_json(read_bytes(path), source=str(path))
    kind = detect(value, source=str(path))
    if kind == "piper":
        file = read_piper(value, source=str(path))
    elif kind == "profile":
        file = read_profile(value, source=str(path))
    else:
        raise InvalidInput.of("model", f"must be a profile, got {kind}", source=str(path))
    return profile_input(file, name=display_name(path), point=point)
