"""`trainwright profile`: what the layers of a model take, timed here or read from tables."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from trainwright.api.printed import Report
from trainwright.api.profile_timing import DEFAULT_BUDGET_S, graphs_of, open_device, time_all
from trainwright.errors import Fault, InvalidInput
from trainwright.plan.results.layer_profile import LayerProfileResult, LayerRow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from trainwright.cluster import Pool
    from trainwright.execution import Budget
    from trainwright.measuring.profile_layers import Device
    from trainwright.model import LayerGraph
    from trainwright.profile import Profile
    from trainwright.profile.layer_timing import LayerTiming

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

    def to_dict(self) -> dict[str, Any]:
        """The profile file as JSON values."""
        from trainwright.formats.profile_json import write_profile

        return write_profile(self.document.file)


def profile_model(
    model: str | Path,
    *,
    device: str | None = None,
    sequence: int | None = None,
    micro_batch: int = 1,
    tensor: Iterable[int] = (1,),
    precision: str | None = None,
    cluster: str | Path | None = None,
    budget: Budget | None = None,
) -> ProfileReport:
    """Time every kind of layer of `model` (a config or a catalog name) on the device at hand.

    `device` is "cuda" or "cpu"; CUDA if absent and there. `tensor` are the degrees whose slices are
    timed, each on one device; `cluster` names the network on which the collectives between slices
    are priced, and without it they are left out, which a warning says. `sequence` is 2048 if
    absent, or the learned positions where they are fewer; `precision` bf16 on CUDA, fp32 on a CPU.
    The time limit of `budget` (60 s without one) is shared out among the layers, once torch is
    loaded; a layer needs one pass at least, however little is left.

    Raises `MissingExtra` without torch; `UnsupportedFeature` where CUDA is not there, a layer does
    not fit, or a part of the model cannot be timed; `InvalidInput` with every fault of the input.
    """
    from trainwright.api.models import ModelInput, resolve_model
    from trainwright.execution import Budget as Limited

    degrees = _degrees(tensor)
    _check_names(device=(device, DEVICES), precision=(precision, TIMED_PRECISIONS))
    given = resolve_model(model)
    if not isinstance(given, ModelInput):
        raise InvalidInput.of("model", "must be a model; this one is a profile already")
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
    tensor: Iterable[int] = (1,),
    precision: str | None = None,
) -> ProfileReport:
    """The profile of `model` on `accelerator` from CSV tables of layer times and sizes.

    Needs no torch. Parameters keep the bytes of `precision`, fp32 if absent. Raises `InvalidInput`
    for a precision that is not modelled, and where the tables are faulty or lack what is asked for.
    """
    from pathlib import Path

    from trainwright.api.inputs import display_name
    from trainwright.costing.measured_tables import profile_of_tables
    from trainwright.formats.measured_csv import read_layer_files
    from trainwright.model.precision import PRECISIONS, precision_named

    _check_names(precision=(precision, PRECISIONS))
    if micro_batch < 1:
        raise InvalidInput.of("micro-batch", f"must be >= 1, got {micro_batch}")
    made = profile_of_tables(
        read_layer_files([Path(table) for table in tables]),
        model,
        accelerator,
        microbatch_size=micro_batch,
        tensor_parallel=_degrees(tensor),
        precision=precision_named(precision or "fp32"),
        source=f"layers of {model} on {accelerator}: {', '.join(map(display_name, tables))}",
    )
    return _report(made, {}, _interpolation_warnings(made, micro_batch))


def _degrees(tensor: Iterable[int]) -> tuple[int, ...]:
    degrees = tuple(sorted(set(tensor)))
    if not degrees or degrees[0] < 1:
        raise InvalidInput.of("tensor", f"must be degrees >= 1, got {list(degrees)}")
    return degrees


def _check_names(**given: tuple[str | None, Collection[str]]) -> None:
    """Of each option the value, and the names that it may be."""
    faults = [
        Fault(option, f'must be one of {", ".join(known)}, got "{value}"')
        for option, (value, known) in given.items()
        if value is not None and value not in known
    ]
    if faults:
        raise InvalidInput(faults)


def _pool(cluster: str | Path, widest: int) -> Pool:
    """The network that prices collectives; it must have devices for the widest group."""
    from trainwright.formats.catalog import open_cluster

    pool = open_cluster(str(cluster)).pool_of()
    if widest > pool.num_devices:
        raise InvalidInput.of(
            "tensor", f"must be <= the {pool.num_devices} devices of the cluster, got {widest}"
        )
    return pool


def _profile(
    graphs: Sequence[LayerGraph],
    timings: dict[tuple[int, int], LayerTiming],
    device: Device,
    pool: Pool | None,
) -> Profile:
    from trainwright.costing.measured_graph import profile_of_timings
    from trainwright.measuring.profile_layers import torch_version
    from trainwright.provenance import Origin, Provenance

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
    from trainwright.provenance import Origin

    if profile.costs.provenance.origin is Origin.MEASURED:
        return []
    return [f"microbatch {micro_batch} is not in the tables: times are interpolated"]


def _report(
    profile: Profile, timings: dict[tuple[int, int], LayerTiming], warnings: Iterable[str]
) -> ProfileReport:
    from trainwright.profile import ProfileFile

    rows = tuple(_rows(profile, timings))
    file = ProfileFile(profiles=(profile,))
    return ProfileReport(LayerProfileResult(file=file, rows=rows, warnings=tuple(warnings)))


def _rows(profile: Profile, timings: dict[tuple[int, int], LayerTiming]) -> Iterable[LayerRow]:
    """One per layer class and tensor degree, nothing recomputed."""
    from trainwright.profile import Recompute

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
