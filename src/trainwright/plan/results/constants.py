"""The document of `explain --constants`: what a cluster is known by, and where from."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan.results.request import FORMAT_VERSION
from trainwright.provenance import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConstant:
    """A constant `of` a device or network level: `value` in SI units or a share, `text` as printed.

    A range has a `high_value`, too.
    """

    of: str
    constant: str
    value: float
    high_value: float | None = None
    text: str
    origin: Origin
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantsResult:
    """Every constant of a document's cluster, device by device and level by level."""

    kind: str = "constants"
    format_version: int = FORMAT_VERSION
    cluster: str
    constants: tuple[ClusterConstant, ...]
