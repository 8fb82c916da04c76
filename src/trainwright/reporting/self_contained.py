"""Pages that need nothing else: no network, no library, no font, and a policy that enforces it.

Styles and scripts are inlined as they are; a content security policy admits exactly these, by their
hashes, and nothing from outside. Templates escape every value.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jinja2 import Environment


@cache  # a page is compiled once by a process that writes several
def environment() -> Environment:
    """Templates of this package; they escape, and an unknown name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("trainwright.reporting", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def asset(name: str) -> str:
    """The text of a style or a script of this package."""
    return resources.files("trainwright.reporting").joinpath(name).read_text(encoding="utf-8")


def policy(style: str, scripts: Sequence[str]) -> str:
    """Only the style and the scripts of this page, by their hashes."""
    hashes = " ".join(map(_hash, scripts))
    return f"default-src 'none'; style-src {_hash(style)}; script-src {hashes}"


def script_safe(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
