"""`trainwright profile`: what the layers of a model take, timed here or read from tables."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainwright.cluster import Pool
from trainwright.commands.output import check_output, emit
from trainwright.costing.measured import needed_bytes, profile_of_tables, profile_of_timings
from trainwright.documents import view
from trainwright.documents.printing import Report
from trainwright.errors import Fault, InvalidInput, MissingExtra, UnsupportedFeature, one_of
from trainwright.execution import Budget, Progress
from trainwright.execution import Budget as Limited
from trainwright.formats.catalog import open_cluster
from trainwright.formats.measured_csv import read_layer_files
from trainwright.formats.profile_json import write_profile
from trainwright.model import RunShape, layer_graph
from trainwright.model.run_shape import PRECISIONS, precision_named
from trainwright.options.inputs import display_name, naming_options, resolve_model
from trainwright.options.table import option_of
from trainwright.profile import Profile, ProfileFile, Recompute
from trainwright.profile.measured_model import LayerTiming
from trainwright.provenance import Origin, Provenance
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainwright.lab.layer_timing import Device
    from trainwright.model import LayerGraph, TransformerConfig


# What `profile` found: the profile it writes, and how sure each of its times is
# ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """A layer class at one tensor degree; phases and spread are absent in tables of others."""

    name: str
    num_layers: int
    tensor_parallel: int
    forward_s: float | None = None
    input_grad_s: float | None = None
    weight_grad_s: float | None = None
    duration_s: float
    saved_bytes: float
    transient_bytes: float
    spread: float | None = None
    num_repeats: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfileResult:
    """A profile of one point, a row per layer class and tensor degree, and what to know."""

    file: ProfileFile
    rows: tuple[LayerRow, ...]
    warnings: tuple[str, ...] = ()


# Timing every kind of layer of a model: on what, at which shapes, within which time
# ----------------------------------------------------------------------------------

DEFAULT_BUDGET_S: Final = 60.0


def graphs_of(
    config: TransformerConfig,
    degrees: Sequence[int],
    *,
    micro_batch: int,
    sequence: int,
    precision: str,
) -> list[LayerGraph]:
    """The layers of the model at each tensor degree."""
    with naming_options(option_of("profile")):
        return [
            layer_graph(
                config,
                RunShape(
                    microbatch_size=micro_batch,
                    sequence_length=sequence,
                    tensor_parallel=degree,
                    precision=precision_named(precision),
                ),
            )
            for degree in degrees
        ]


def open_device(kind: str | None) -> Device:
    """The device of a kind; raises `MissingExtra` without torch."""
    try:
        from trainwright.lab.layer_timing import find_device
    except ImportError as error:
        raise MissingExtra("timing layers needs PyTorch", extra="torch") from error
    return find_device(kind)


def time_all(
    config: TransformerConfig, graphs: Sequence[LayerGraph], device: Device, budget: Budget
) -> dict[tuple[int, int], LayerTiming]:
    """Timings by (layer class, tensor degree); what does not fit is refused before any work."""
    from trainwright.lab.layer_timing import refuse_untimed, time_layer

    refuse_untimed(config, graphs[0].run)
    _refuse_too_large(graphs, device)
    waiting = [(graph, index) for graph in graphs for index in range(len(graph.classes))]
    limit_s, started_s = budget.time_limit_s or DEFAULT_BUDGET_S, budget.elapsed_s
    timings = {}
    for done, (graph, index) in enumerate(waiting):
        layer, run = graph.classes[index], graph.run
        stage = f"timing {layer.kind} at tensor degree {run.tensor_parallel}"
        budget.poll(Progress(stage=stage, elapsed_s=budget.elapsed_s))
        if budget.interrupted:  # a profile without some layers is of no use
            raise KeyboardInterrupt
        first = graph.layers.index(index)
        choices = config.block(first - 1) if 0 < first <= config.num_layers else config
        left_s = max(0.0, limit_s - (budget.elapsed_s - started_s))
        share_s = left_s / (len(waiting) - done)
        timings[index, run.tensor_parallel] = time_layer(
            layer.kind, choices, run, device=device, time_limit_s=share_s
        )
    return timings


def _refuse_too_large(graphs: Sequence[LayerGraph], device: Device) -> None:
    for graph in graphs:
        for layer in graph.classes:
            needed = needed_bytes(layer, graph.run)
            if needed > device.available_bytes:
                raise UnsupportedFeature(
                    f"a layer of kind {layer.kind} at tensor degree {graph.run.tensor_parallel} "
                    f"needs about {format_bytes(needed)}, and {device.name} has "
                    f"{format_bytes(device.available_bytes)} free",
                    alternative="use a smaller --micro-batch or --sequence, or a larger --tp",
                )


# `trainwright profile`: what the layers of a model take, timed here or read from tables
# --------------------------------------------------------------------------------------

DEVICES: Final = ("cpu", "cuda")
TIMED_PRECISIONS: Final = ("bf16", "fp16", "fp32")
DEFAULT_SEQUENCE: Final = 2048


class ProfileReport(Report[LayerProfileResult]):
    """A profile with its table; what it saves is a profile file that `plan` takes."""

    __slots__ = ()

    @property
    def profile(self) -> Profile:
        """The profile itself."""
        return self.document.file.profiles[0]

    def renderable(self, *, verbose: bool = False) -> RenderableType:
        """The table of its layers."""
        return view.to_terminal(layer_profile_view(self.document), verbose=verbose)

    def to_dict(self) -> dict[str, Any]:
        """The profile file as JSON values."""
        return write_profile(self.document.file)


def profile_model(
    model: str | Path,
    *,
    device: str | None = None,
    sequence: int | None = None,
    micro_batch: int = 1,
    tp: Iterable[int] = (1,),
    precision: str | None = None,
    cluster: str | Path | None = None,
    budget: Budget | None = None,
) -> ProfileReport:
    """Time every kind of layer of `model` (a config or a catalog name) on the device at hand.

    `device` is "cuda" or "cpu"; CUDA if absent and there. `tp` are the degrees whose slices are
    timed, each on one device; `cluster` names the network on which the collectives between slices
    are priced, and without it they are left out, which a warning says. `sequence` is 2048 if
    absent, or the learned positions where they are fewer; `precision` bf16 on CUDA, fp32 on a CPU.
    The time limit of `budget` (60 s without one) is shared out among the layers, once torch is
    loaded; a layer needs one pass at least, however little is left.

    Raises `MissingExtra` without torch; `UnsupportedFeature` where CUDA is not there, a layer does
    not fit, or a part of the model cannot be timed; `InvalidInput` with every fault of the input.
    """
    degrees = _degrees(tp)
    _check_names(device=(device, DEVICES), precision=(precision, TIMED_PRECISIONS))
    given = resolve_model(model)
    config = given.config
    pool = None if cluster is None else _pool(cluster, max(degrees))
    found = open_device(device)
    chosen = precision or ("bf16" if found.kind == "cuda" else "fp32")
    length = sequence or min(DEFAULT_SEQUENCE, config.max_positions or DEFAULT_SEQUENCE)
    graphs = graphs_of(config, degrees, micro_batch=micro_batch, sequence=length, precision=chosen)
    budget = budget or Limited(time_limit_s=DEFAULT_BUDGET_S)
    timings = time_all(config, graphs, found, budget)
    made = _profile(graphs, timings, found, pool)
    warnings = [*given.warnings, *_measuring_warnings(made, timings, pool)]
    return _report(made, timings, warnings)


def import_layers(
    model: str,
    tables: Sequence[str | Path],
    *,
    accelerator: str,
    micro_batch: int = 1,
    tp: Iterable[int] = (1,),
    precision: str | None = None,
) -> ProfileReport:
    """The profile of `model` on `accelerator` from CSV tables of layer times and sizes.

    Needs no torch. Parameters keep the bytes of `precision`, fp32 if absent. Raises `InvalidInput`
    for a precision that is not modelled, and where the tables are faulty or lack what is asked for.
    """
    _check_names(precision=(precision, PRECISIONS))
    if micro_batch < 1:
        raise InvalidInput.of("micro-batch", f"must be >= 1, got {micro_batch}")
    made = profile_of_tables(
        read_layer_files([Path(table) for table in tables]),
        model,
        accelerator,
        microbatch_size=micro_batch,
        tensor_parallel=_degrees(tp),
        precision=precision_named(precision or "fp32"),
        source=f"layers of {model} on {accelerator}: {', '.join(map(display_name, tables))}",
    )
    return _report(made, {}, _interpolation_warnings(made, micro_batch))


def _degrees(tp: Iterable[int]) -> tuple[int, ...]:
    degrees = tuple(sorted(set(tp)))
    if not degrees or degrees[0] < 1:
        raise InvalidInput.of("tp", f"must be degrees >= 1, got {list(degrees)}")
    return degrees


def _check_names(**given: tuple[str | None, Collection[str]]) -> None:
    """Of each option the value, and the names that it may be."""
    faults = [
        Fault(option, one_of(known, value))
        for option, (value, known) in given.items()
        if value is not None and value not in known
    ]
    if faults:
        raise InvalidInput(faults)


def _pool(cluster: str | Path, widest: int) -> Pool:
    """The network that prices collectives; it must have devices for the widest group."""
    pool = open_cluster(str(cluster)).pool_of()
    if widest > pool.num_devices:
        raise InvalidInput.of(
            "tp", f"must be <= the {pool.num_devices} devices of the cluster, got {widest}"
        )
    return pool


def _profile(
    graphs: Sequence[LayerGraph],
    timings: dict[tuple[int, int], LayerTiming],
    device: Device,
    pool: Pool | None,
) -> Profile:
    from trainwright.lab.layer_timing import torch_version

    repeats = sorted(timing.num_repeats for timing in timings.values())
    source = f"{device.name}, torch {torch_version()}, medians of {repeats[0]} to {repeats[-1]}"
    source += " passes"
    if pool is not None:
        source += f"; collectives priced on {pool.accelerator.name}"
    return profile_of_timings(
        graphs,
        timings,
        device_kind=device.name,
        provenance=Provenance(origin=Origin.MEASURED, source=source),
        pool=pool,
    )


_WIDE_SPREAD: Final = 0.2


def _measuring_warnings(
    profile: Profile, timings: dict[tuple[int, int], LayerTiming], pool: Pool | None
) -> list[str]:
    """What makes these figures less than they seem."""
    warnings = []
    if pool is None and max(profile.point.tensor_parallel) > 1:
        warnings.append(
            "slices were timed without the collectives between them; --cluster prices those"
        )
    single = sum(timing.num_repeats == 1 for timing in timings.values())
    if single:
        warnings.append(f"the time was up: {single} of {len(timings)} layers ran a single pass")
    spreads = [timing.spread for timing in timings.values() if timing.spread is not None]
    if spreads and max(spreads) > _WIDE_SPREAD:
        warnings.append(
            f"times spread by up to {max(spreads):.0%} between passes: the device was not at rest"
        )
    return warnings


def _interpolation_warnings(profile: Profile, micro_batch: int) -> list[str]:
    if profile.costs.provenance.origin is Origin.MEASURED:
        return []
    return [f"microbatch {micro_batch} is not in the tables: times are interpolated"]


def _report(
    profile: Profile, timings: dict[tuple[int, int], LayerTiming], warnings: Iterable[str]
) -> ProfileReport:
    rows = tuple(_rows(profile, timings))
    file = ProfileFile(profiles=(profile,))
    return ProfileReport(LayerProfileResult(file=file, rows=rows, warnings=tuple(warnings)))


def _rows(profile: Profile, timings: dict[tuple[int, int], LayerTiming]) -> Iterable[LayerRow]:
    """One per layer class and tensor degree, nothing recomputed."""
    costs, layers = profile.costs, profile.structure.layers
    counts = Counter(layer.layer_class for layer in layers)
    names = {layer.layer_class: layer.name for layer in layers}
    for layer_class in range(costs.num_classes):
        for row in costs.rows_of(layer_class):
            if costs.recompute[row] is not Recompute.NONE:
                continue
            degree = int(costs.tensor_parallel[row])
            timing, phases = timings.get((layer_class, degree)), costs.phases
            yield LayerRow(
                name=names[layer_class],
                num_layers=counts[layer_class],
                tensor_parallel=degree,
                forward_s=None if phases is None else float(phases.forward_s[row]),
                input_grad_s=None if phases is None else float(phases.input_grad_s[row]),
                weight_grad_s=None if phases is None else float(phases.weight_grad_s[row]),
                duration_s=float(costs.duration_s[row]),
                saved_bytes=float(costs.saved_bytes[row]),
                transient_bytes=float(costs.transient_bytes[row]),
                spread=None if timing is None else timing.spread,
                num_repeats=None if timing is None else timing.num_repeats,
            )


# A measured profile as a table: seconds by phase with their spread, bytes kept and needed
# ----------------------------------------------------------------------------------------


def layer_profile_view(found: LayerProfileResult) -> Iterator[view.Line]:
    """One row per layer class and tensor degree t, then its origin and what to know.

    "input" and "weight" are the two gradients, "beside" the peak beyond what is saved.
    """
    yield view.table_of(
        "One layer, one microbatch",
        (
            view.words("layer", "name"),
            view.column("count", "num_layers"),
            view.column("t", "tensor_parallel"),
            view.column("forward", "forward_s"),
            view.column("input", "input_grad_s"),
            view.column("weight", "weight_grad_s"),
            view.column("total", "duration_s"),
            view.column("spread"),
            view.column("runs", "num_repeats"),
            view.column("saved", "saved_bytes"),
            view.column("beside", "transient_bytes"),
        ),
        (
            (
                row.name,
                row.num_layers,
                row.tensor_parallel,
                *map(view.seconds, (row.forward_s, row.input_grad_s, row.weight_grad_s)),
                view.seconds(row.duration_s),
                view.percent(row.spread),
                row.num_repeats,
                view.size(row.saved_bytes),
                view.size(row.transient_bytes),
            )
            for row in found.rows
        ),
        caption="one layer, one microbatch",
    )
    provenance = found.file.profiles[0].costs.provenance
    yield f"{provenance.origin}: {provenance.source}"
    yield from view.warning_lines(found.warnings)


# `trainwright profile`
# ---------------------


def command(
    model: str,
    *,
    budget: float,
    csv: tuple[str, ...] = (),
    accelerator: str | None = None,
    output: Path | None = None,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Measure layers, or read what others measured."""
    check_output(output, model, *csv)
    if csv:
        _warn_unused({name: options.pop(name, None) for name in ("device", "sequence", "cluster")})
        if accelerator is None:
            raise InvalidInput.of("accelerator", "must be given with --csv")
        report = import_layers(model, csv, accelerator=accelerator, **options)
    else:
        _warn_unused({"accelerator": accelerator})
        # Ctrl-C ends at once: a profile without some layers is of no use.
        watched = _tell if sys.stderr.isatty() else None
        limited = Budget(time_limit_s=budget, on_progress=watched)
        report = profile_model(model, budget=limited, **options)
    _emit(report, as_json=as_json, output=output)


def _tell(progress: Progress) -> None:
    print(progress.stage, file=sys.stderr)


def _emit(report: ProfileReport, *, as_json: bool, output: Path | None) -> None:
    """The table or the profile; a profile has no room for warnings, so they go beside it."""
    if as_json:
        for warning in report.document.warnings:
            print(f"warning: {view.printable(warning)}", file=sys.stderr)
    emit(report, as_json=as_json, output=output)


def _warn_unused(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            print(f"warning: --{name} was not used", file=sys.stderr)
