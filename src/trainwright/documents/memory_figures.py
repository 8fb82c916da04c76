"""Allocated, reserved and device memory of the fullest rank, as documents and screens have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from trainwright.cluster.framework_memory import TYPICAL_MEMORY, Figure
from trainwright.documents.view import column, size, table_of, words
from trainwright.formats.framework_memory_toml import deciding_memory, framework_memory
from trainwright.plans.request import FORMAT_VERSION
from trainwright.profile.measured_model import MeasuredModel
from trainwright.step.figures import fullest_figures, missing_bytes
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from trainwright.cluster import Accelerator, Cluster
    from trainwright.cluster.framework_memory import FrameworkMemory
    from trainwright.documents.view import Table
    from trainwright.model import TransformerConfig
    from trainwright.plans import StepPrediction
    from trainwright.plans.configuration import Configuration
    from trainwright.step.figures import MemoryFigures

_WORDS: Final = {
    Figure.ALLOCATED: "allocated: tensors",
    Figure.RESERVED: "reserved: the allocator",
    Figure.DEVICE: "device: with context and communicators",
}
_DOUBTFUL: Final = 0.9  # below, a run that fits by its margins is worth a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDocument:
    """A document about a step, with the memory of a device of the fullest rank, where known.

    By the account of `memory_account`, `allocated_bytes` are in tensors, `reserved_bytes` taken by
    the allocator, and `device_bytes` shown by the device, each from `_low` to `_high` in nine of
    ten runs; with `fit_probability` they stay within `device_memory_bytes`.
    """

    kind: str
    format_version: int = FORMAT_VERSION
    allocated_bytes: float | None = None
    allocated_low_bytes: float | None = None
    allocated_high_bytes: float | None = None
    reserved_bytes: float | None = None
    reserved_low_bytes: float | None = None
    reserved_high_bytes: float | None = None
    device_bytes: float | None = None
    device_low_bytes: float | None = None
    device_high_bytes: float | None = None
    device_memory_bytes: float | None = None
    fit_probability: float | None = None
    memory_account: str | None = None


class ShowsMemory(Protocol):
    """A document with the three figures, each with the ends of its range; these are read here."""

    @property
    def device_bytes(self) -> float | None:
        """What the device shows."""

    @property
    def device_memory_bytes(self) -> float | None:
        """What the device has."""

    @property
    def fit_probability(self) -> float | None:
        """How probable it is that the first stays within the second."""

    @property
    def memory_account(self) -> str | None:
        """Whose account it is."""


def figure_fields(
    model: TransformerConfig | MeasuredModel | None,
    run: Configuration,
    step: StepPrediction,
    device: Accelerator,
    *,
    framework: str | None,
) -> dict[str, Any]:
    """The fields of `StepDocument` of a run's fullest rank, under its framework's account.

    Of measured layers, as where stages differ in degrees (None), nothing is known beside.
    """
    account = framework_memory(framework)
    known = None if isinstance(model, MeasuredModel) else model
    found = fullest_figures(known, run, step, device, account)
    return _fields(found, account, device, run.overheads.reserve_bytes)


def run_fits(
    model: TransformerConfig | MeasuredModel,
    run: Configuration,
    step: StepPrediction,
    cluster: Cluster,
    *,
    framework: str | None,
) -> bool:
    """Whether a device of the cluster holds the run, by the rule of `step.figures`."""
    known = None if isinstance(model, MeasuredModel) else model
    account = deciding_memory(framework, run.overheads)
    return missing_bytes(known, run, step, cluster.accelerator, account) <= 0


def _fields(
    found: MemoryFigures, account: FrameworkMemory, device: Accelerator, reserve_bytes: float
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    shown = found.on_device(device.memory_bytes)
    for figure in Figure:
        ranged = shown.of(figure)
        fields[f"{figure}_bytes"] = ranged.typical_bytes
        fields[f"{figure}_low_bytes"] = ranged.low_bytes
        fields[f"{figure}_high_bytes"] = ranged.high_bytes
    return {
        **fields,
        "device_memory_bytes": device.memory_bytes,
        "fit_probability": found.fit_probability(device.memory_bytes - reserve_bytes),
        "memory_account": account.name,
    }


def figure_table(document: ShowsMemory) -> Table | None:
    """The figures with their ranges; None where the document has none."""
    if document.device_bytes is None:
        return None
    return table_of(
        "A device of the fullest rank, as three tools show it",
        (
            words("figure"),
            column("bytes", "bytes"),
            column("from", "low_bytes"),
            column("to, 90 %", "high_bytes"),
        ),
        (
            (
                text,
                size(getattr(document, f"{figure}_bytes")),
                size(getattr(document, f"{figure}_low_bytes")),
                size(getattr(document, f"{figure}_high_bytes")),
            )
            for figure, text in _WORDS.items()
        ),
        caption="a device of the fullest rank, as three tools show it",
        note=f"By the account of {document.memory_account}. {fit_line(document).capitalize()}.",
    )


def fit_line(document: ShowsMemory) -> str:
    """How probable it is that the device's figure stays within its memory."""
    limit, chance = format_bytes(document.device_memory_bytes or 0.0), document.fit_probability or 0
    shown = f"{min(max(chance, 0.01), 0.99):.0%}"
    if not 0.01 <= chance <= 0.99:
        shown = f"{'above' if chance > 0.5 else 'below'} {shown}"
    return f"stays within the device's {limit} with probability {shown}"


def account_words(account: str | None) -> str:
    """By whose account of memory, to open or end a clause."""
    return f"by the account of {'typical software' if account == TYPICAL_MEMORY else account}"


def doubt(document: ShowsMemory) -> str | None:
    """A warning where a plan that keeps its margins may fail all the same."""
    probability = document.fit_probability
    if probability is None or probability >= _DOUBTFUL:
        return None
    shown = format_bytes(document.device_bytes or 0.0)
    account = account_words(document.memory_account)
    return (
        f"memory: {account} a device shows {shown}; it {fit_line(document)}; "
        "--fit-probability 0.9 asks for a surer one"
    )
