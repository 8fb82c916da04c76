"""What software each schema of measured runs was produced with, and how that software behaves.

A table of runs comes from one publication, and a publication from one line of software: which
kernels attention and loss use, whether communication overlaps, how vocabularies are padded. All of
it is a property of the schema (and of the accelerator, where one table spans generations, or of the
kernels, where a table says which), never of a row. Sources are those of the published tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from trainwright.plan.measured_run import MeasuredRun
from trainwright.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareLine:
    """A framework at a point in its history.

    `node_bytes_per_s` is the network of a whole node, one direction, where it is not the usual one
    of the device; `gradient_dtype` that of the gradients on the wire.
    """

    name: str
    fused_attention: bool = True
    fused_cross_entropy: bool = False
    overlaps_gradients: bool = True
    dropout: float = 0.0
    vocabulary_multiple: int = 128
    node_bytes_per_s: float | None = None
    gradient_dtype: str | None = None
    default_recompute: str | None = None
    pads_experts: bool = False
    caches_dummy_gradients: bool = False
    fixed_bytes: float = 0.0


MEGATRON_2021: Final = SoftwareLine(
    name="megatron-2021",
    fused_attention=False,
    overlaps_gradients=False,
    dropout=0.1,
)
_LINES: Final = {
    "vtrain_multi": replace(
        MEGATRON_2021, name="megatron-deepspeed-2022", node_bytes_per_s=100e9, gradient_dtype="fp16"
    ),
    "megatron_scaling": MEGATRON_2021,
    "korthikanti": replace(MEGATRON_2021, name="megatron-2022"),
    "published_runs": replace(MEGATRON_2021, name="megatron-deepspeed-2021"),
    "simumax_b200": SoftwareLine(
        name="megatron-core-2025-b200",
        fused_cross_entropy=True,
        overlaps_gradients=False,
        pads_experts=True,
        caches_dummy_gradients=True,
        fixed_bytes=300.0 * MIB,
    ),
    "sailor_gh200": SoftwareLine(
        name="sailor", fused_attention=False, overlaps_gradients=False, dropout=0.1
    ),
    "sailor_mixed": SoftwareLine(
        name="sailor", fused_attention=False, overlaps_gradients=False, dropout=0.1
    ),
    "mosaicml_fsdp": SoftwareLine(
        name="llm-foundry", vocabulary_multiple=1, node_bytes_per_s=200e9
    ),
    "torchtitan": SoftwareLine(name="torchtitan", vocabulary_multiple=1),
    "megatron_ci": SoftwareLine(
        name="megatron-core-ci", fused_attention=False, overlaps_gradients=False, dropout=0.1
    ),
    "nemo_releases": SoftwareLine(name="nemo"),
    "dgxc": SoftwareLine(name="nemo"),
}
_MEGATRON_CORE: Final = SoftwareLine(name="megatron-core")
# Megatron's tables of 2021 are on A100; those on later devices are of megatron-core.
_FIRST_DEVICES: Final = ("V100", "A100")


def line_of(run: MeasuredRun) -> SoftwareLine:
    """The software behind a run; an unknown schema counts as a current megatron-core."""
    line = _LINES.get(run.schema, _MEGATRON_CORE)
    if run.setting("compiled") is not None and not run.flag("compiled"):
        return replace(line, name=f"{line.name}-eager")
    if run.precision == "fp8_rowwise":  # scaled products of other libraries than tensor-wise ones
        return replace(line, name=f"{line.name}-rowwise")
    megatron = line.name.startswith(("megatron-2021", "megatron-2022", "megatron-deepspeed-2021"))
    if megatron and not run.accelerator.startswith(_FIRST_DEVICES):
        return _MEGATRON_CORE
    return line
