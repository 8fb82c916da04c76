"""Options that several commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the document as JSON, nothing else.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the document to this file.")
]
Devices = Annotated[str | None, typer.Option("--devices", help="Number of devices.", metavar="N")]
Memory = Annotated[
    str | None,
    typer.Option("--memory", help="Memory per device, such as 80GiB.", metavar="SIZE"),
]
Bandwidth = Annotated[
    str | None,
    typer.Option(
        "--bandwidth", help="From each device to the others, such as 25GiB/s.", metavar="RATE"
    ),
]
Microbatches = Annotated[
    str | None,
    typer.Option("--microbatches", help="Microbatches per batch of a profile.", metavar="N"),
]
TimeUnit = Annotated[
    str | None,
    typer.Option(
        "--time-unit",
        help="Of the times in a Piper profile: s (if absent), ms, us.",
        metavar="UNIT",
    ),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        help="Fitted constants: a file of `calibrate`, or a line of `catalog calibrations`.",
        metavar="FILE",
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option("--time-limit", help="Stop after this long, such as 30s.", metavar="TIME"),
]
Point = Annotated[
    str | None,
    typer.Option("--point", help="Which point of a profile with several (from 0).", metavar="N"),
]
Reserve = Annotated[
    str | None,
    typer.Option("--reserve", help="Memory to keep free; 0 if absent.", metavar="SIZE"),
]
Workspace = Annotated[
    str | None,
    typer.Option("--workspace", help="Memory of libraries; 64MiB if absent.", metavar="SIZE"),
]
Fragmentation = Annotated[
    str | None,
    typer.Option(
        "--fragmentation",
        help="What the allocator wastes, of the peak; 0.05 if absent.",
        metavar="X",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision", help="bf16, fp16, fp8, fp32 or tf32; 16 bit if absent.", metavar="NAME"
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer", help="adam, momentum, muon or sgd; adam if absent.", metavar="NAME"
    ),
]
GradientDtype = Annotated[
    str | None,
    typer.Option("--gradient-dtype", help="Of gradients; fp32 if absent.", metavar="DTYPE"),
]
MainWeightDtype = Annotated[
    str | None,
    typer.Option(
        "--main-weight-dtype",
        help="Of the optimizer's weights, or none; fp32 beside 16-bit weights if absent.",
        metavar="DTYPE",
    ),
]
MomentDtype = Annotated[
    list[str] | None,
    typer.Option(
        "--moment-dtype",
        help="Of the optimizer's moments, once or once each; fp32 if absent.",
        metavar="DTYPE",
    ),
]
Dropout = Annotated[
    str | None, typer.Option("--dropout", help="Rate; the model's own if absent.", metavar="SHARE")
]
ContextExchange = Annotated[
    str | None,
    typer.Option(
        "--context-exchange",
        help="ring, all_gather or all_to_all; ring if absent.",
        metavar="NAME",
    ),
]
ExpertImbalance = Annotated[
    str | None,
    typer.Option(
        "--expert-imbalance",
        help="Load of the heaviest experts over the mean; 1 if absent.",
        metavar="X",
    ),
]
CapacityFactor = Annotated[
    str | None,
    typer.Option(
        "--capacity-factor", help="Pad and drop to this share of the mean load.", metavar="X"
    ),
]
Overlap = Annotated[
    list[str] | None,
    typer.Option(
        "--overlap",
        help="KIND=SHARE (repeatable): of gradients or parameters (0.9 if absent), tensor or "
        "experts (0), pipeline (1).",
        metavar="KIND=SHARE",
    ),
]
DispatchDtype = Annotated[
    str | None,
    typer.Option(
        "--dispatch-dtype",
        help="Of tokens on their way to experts: fp8, bf16, fp16 or fp32; that of activations if "
        "absent.",
        metavar="DTYPE",
    ),
]
TokenDispatcher = Annotated[
    str | None,
    typer.Option(
        "--token-dispatcher",
        help="all_to_all (a copy per expert; if absent) or hierarchical (a copy per node, passed "
        "on inside).",
        metavar="NAME",
    ),
]
Source = Annotated[
    tuple[str, Path] | None,
    typer.Option(
        "--from",
        help="An existing job: megatron, torchtitan or deepspeed, and its file.",
        metavar="FORMAT FILE",
    ),
]
