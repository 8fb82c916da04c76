"""`plan` on a profiled model: the exact partitioner, or the equal split, as a document."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.documents import view
from trainwright.documents.printing import counted, ranges
from trainwright.errors import Fault, InvalidInput
from trainwright.execution import Budget
from trainwright.formats.document_json import decode, encode
from trainwright.formats.json_text import show_typed
from trainwright.formats.records import (
    COUNT,
    WHOLE,
    array_schema,
    map_schema,
    object_schema,
    titled,
)
from trainwright.options.inputs import ProfileInput, inside, setting_record
from trainwright.partitioning.downset_dp import Restrictions
from trainwright.partitioning.evaluate import evaluate, find_overflows, time_per_sample_s
from trainwright.partitioning.profile_planner import baselines, diagnose, search, slowdown
from trainwright.plans.plan import (
    FORMAT_VERSION,
    FlatRequest,
    Plan,
    SettingRecord,
    SpaceRecord,
    Stage,
)
from trainwright.plans.prediction import StageCost, TimeBreakdown
from trainwright.plans.status import Baseline, Binding, BoundKind, Relaxation, Status, relative_gap
from trainwright.plugins import PARTITIONERS, PlugIn, plug_in
from trainwright.profile import Profile, Recompute, Setting
from trainwright.profile.profile import BLOCK_LAYER
from trainwright.provenance import __version__
from trainwright.units import format_bytes, format_percent_up, format_seconds

if TYPE_CHECKING:
    from trainwright.documents.model_plan import ModelPlanResult
    from trainwright.documents.placement import PlacementResult

    Priced = tuple[Plan, Profile, Setting, tuple[StageCost, ...]]


# The document of `plan` and `estimate` on a profile
# --------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """One stage; `options` maps layer id (as text) to option id, `num_recomputed` counts layers."""

    layers: tuple[int, ...]
    data_parallel: int
    tensor_parallel: int
    options: dict[str, str]
    num_recomputed: int
    time_per_sample_s: float
    breakdown: TimeBreakdown
    memory_bytes: float
    microbatches_in_flight: int

    def __post_init__(self) -> None:
        check_stage(self.layers, self.data_parallel, self.tensor_parallel)


def check_stage(layers: tuple[int, ...], data_parallel: int, tensor_parallel: int) -> None:
    """Refuse a stage without layers or devices: no document of ours holds one."""
    faults = [] if layers else [Fault("layers", "must have at least 1 entry, got 0")]
    degrees = {"data_parallel": data_parallel, "tensor_parallel": tensor_parallel}
    faults += [Fault(n, f"must be >= 1, got {d}") for n, d in degrees.items() if d < 1]
    if faults:
        raise InvalidInput(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """Plan, proof and price of a profiled model.

    `time_per_sample_s` is seconds per microbatch at steady state; `lower_bound_s` and `gap` refer
    to `objective`. `interrupted` says that Ctrl-C, no time limit, left something undone. Keys
    without a value are left out.
    """

    kind: str = "plan"
    format_version: int = FORMAT_VERSION
    status: Status
    objective: str = "time_per_sample_s"
    time_per_sample_s: float | None = None
    lower_bound_s: float | None = None
    bound_kind: BoundKind | None = None
    gap: float | None = None
    devices_used: int | None = None
    num_stages: int | None = None
    stages: tuple[StageRecord, ...] = ()
    binding: Binding | None = None
    relaxations: tuple[Relaxation, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    solver_s: float | None = None
    search_s: float | None = None
    counters: dict[str, int] = field(default_factory=dict)
    request: FlatRequest


# The document of `estimate --plan` on a profile: a given plan, priced
# --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowRecord:
    """A stage (index, from 0) that does not fit, and the bytes it misses."""

    stage: int
    missing_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateResult:
    """Price of a plan someone else made; complete also where it does not fit."""

    kind: str = "estimate"
    format_version: int = FORMAT_VERSION
    fits: bool
    time_per_sample_s: float
    devices_used: int
    num_stages: int
    stages: tuple[StageRecord, ...]
    overflows: tuple[OverflowRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    request: FlatRequest


# Which stage limits time, which limits memory: read off a plan's own figures
# ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What binds. Stages are indices from 0; `time_share` says what the slowest is busy with.

    `idle_fraction` is the share of device time that waits for the slowest stage, over all stages.
    """

    kind: str = "explanation"
    format_version: int = FORMAT_VERSION
    slowest_stage: int
    time_kind: str
    time_share: dict[str, float]
    fullest_stage: int
    free_bytes: float | None
    idle_fraction: float


def explain_stages(
    stages: tuple[StageRecord, ...], memory_limit_bytes: float | None
) -> Explanation:
    """Explain priced stages; the first stage wins a tie."""
    times = [stage.time_per_sample_s for stage in stages]
    slowest = times.index(max(times))
    breakdown = stages[slowest].breakdown
    spent = {
        "compute": breakdown.compute_s,
        "edge traffic": breakdown.edge_traffic_s,
        "gradient sync": breakdown.gradient_sync_s,
    }
    total = sum(spent.values())
    memories = [stage.memory_bytes for stage in stages]
    fullest = memories.index(max(memories))
    return Explanation(
        slowest_stage=slowest,
        time_kind=max(spent, key=spent.__getitem__),
        time_share={kind: value / total if total > 0 else 0.0 for kind, value in spent.items()},
        fullest_stage=fullest,
        free_bytes=None if memory_limit_bytes is None else memory_limit_bytes - memories[fullest],
        idle_fraction=_idle_fraction(stages, times[slowest]),
    )


def _idle_fraction(stages: tuple[StageRecord, ...], slowest_s: float) -> float:
    devices = [stage.data_parallel * stage.tensor_parallel for stage in stages]
    busy = sum(n * stage.time_per_sample_s for n, stage in zip(devices, stages, strict=True))
    return 1 - busy / (sum(devices) * slowest_s) if slowest_s > 0 else 0.0


# The plan inside a document, or a plan written by hand
# -----------------------------------------------------
# Only the decisions are read: `stages`, each with `layers`, `data_parallel`, `tensor_parallel` and
# `options` (layer id as text → option id). Prices in the file are ignored; `estimate` makes new
# ones.


@dataclass(frozen=True, slots=True)
class _Found:
    """Values of one stage, or `None` where a fault was found."""

    layers: tuple[int, ...] | None
    data_parallel: int | None
    tensor_parallel: int | None
    options: dict[str, str] | None

    @property
    def complete(self) -> bool:
        values = (self.layers, self.data_parallel, self.tensor_parallel, self.options)
        return None not in values


def read_stages(value: object, *, source: str | None = None) -> tuple[Stage, ...]:
    """Stages of a plan; raises `InvalidInput` with every fault."""
    if isinstance(value, dict) and not _is_integer(version := value.get("format_version", 1)):
        problem = f"must be an integer, got {show_typed(version)}"
        raise InvalidInput.of("format_version", problem, source=source)
    stages = value.get("stages") if isinstance(value, dict) else None
    if not isinstance(stages, list) or not stages:
        problem = "must be a non-empty array of stages (layers, data_parallel, tensor_parallel, "
        raise InvalidInput.of("stages", problem + "options)", source=source)
    faults: list[Fault] = []
    made: list[Stage] = []
    for index, stage in enumerate(stages):
        path = f"stages[{index}]"
        if not isinstance(stage, dict):
            faults.append(Fault(path, "must be an object"))
            continue
        found = _read_stage(stage, path, faults)
        missing = list(_missing_options(found, path))
        faults += missing
        if not missing and found.complete:
            made.append(_stage(found))
    if faults:
        raise InvalidInput(faults, source=source)
    return tuple(made)


def stages_schema() -> dict[str, Any]:
    """The JSON Schema of a plan by hand; that options are of the stage's layers is not in it."""
    layers = array_schema(WHOLE, least=1) | {"uniqueItems": True}
    options = map_schema({"type": "string"})
    degrees = dict.fromkeys(("data_parallel", "tensor_parallel"), COUNT)
    stage = object_schema({"layers": layers, "options": options}, degrees)
    body = object_schema({"stages": array_schema(stage, least=1)}, {"format_version": WHOLE})
    return titled("stages", body, about="Stages of a profile, for `estimate --plan`.")


def _read_stage(stage: dict[str, Any], path: str, faults: list[Fault]) -> _Found:
    layers = stage.get("layers")
    if not isinstance(layers, list) or not layers or not all(map(_is_integer, layers)):
        faults.append(Fault(f"{path}.layers", "must be a non-empty array of layer ids"))
        layers = None
    elif len(set(layers)) < len(layers):
        faults.append(Fault(f"{path}.layers", "must be unique"))
        layers = None
    degrees: list[int | None] = []
    for name in ("data_parallel", "tensor_parallel"):
        degree = stage.get(name, 1)
        if not _is_integer(degree) or degree < 1:
            faults.append(Fault(f"{path}.{name}", f"must be an integer >= 1, got {degree!r}"))
            degrees.append(None)
        else:
            degrees.append(degree)
    options = stage.get("options")
    if not isinstance(options, dict) or not all(isinstance(o, str) for o in options.values()):
        faults.append(Fault(f"{path}.options", "must map each layer id to an option id"))
        options = None
    return _Found(tuple(layers) if layers else None, degrees[0], degrees[1], options)


def _missing_options(found: _Found, path: str) -> Iterator[Fault]:
    if found.layers is None or found.options is None:
        return
    for layer in found.layers:
        if str(layer) not in found.options:
            yield Fault(f"{path}.options", f"must have an entry for layer {layer}, got none")
    known = set(map(str, found.layers))
    for key in found.options:
        if key not in known:
            yield Fault(f'{path}.options["{key}"]', "must be the id of a layer of this stage")


def _stage(found: _Found) -> Stage:
    assert found.layers and found.data_parallel and found.tensor_parallel
    options = found.options or {}
    return Stage.uniform(
        found.layers,
        tuple(options[str(layer)] for layer in found.layers),
        data_parallel=found.data_parallel,
        tensor_parallel=found.tensor_parallel,
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def read_setting(value: object, *, source: str | None = None) -> Setting | None:
    """The setting a plan document was made for; `None` for a plan that does not say."""
    request = value.get("request") if isinstance(value, dict) else None
    setting = request.get("setting") if isinstance(request, dict) else None
    if setting is None:
        return None
    return to_setting(decode(SettingRecord, setting, path="request.setting", source=source))


def to_setting(record: SettingRecord) -> Setting:
    """The noun of a recorded setting; raises `InvalidInput` for values out of range."""
    return Setting(
        num_devices=record.num_devices,
        memory_bytes=record.memory_bytes,
        bandwidth_bytes_per_s=record.bandwidth_bytes_per_s,
        num_microbatches=record.num_microbatches,
    )


# `plan` on a profiled model: the exact partitioner, or the equal split, as a document
# ------------------------------------------------------------------------------------

PLANNERS = ("exact", "equal")
ALL_LAYERS = "all"
_LONG_BATCH_S: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileQuestion:
    """A profile to plan, where, and how.

    `block_layer` is the name of the layers that the equal split deals out, or "all"; `None` leaves
    the choice to the profile.
    """

    given: ProfileInput
    setting: Setting
    restrictions: Restrictions
    planner: str | PlugIn = "exact"
    block_layer: str | None = None
    compare: bool = False
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS and not isinstance(self.planner, PlugIn):
            found = plug_in("planner", PARTITIONERS, self.planner, PLANNERS)
            object.__setattr__(self, "planner", found)

    @property
    def planner_name(self) -> str:
        """As a document has it."""
        return self.planner.name if isinstance(self.planner, PlugIn) else self.planner

    @property
    def splits_equally(self) -> bool:
        """Whether an equal split is asked for, alone or beside the plan."""
        return self.planner == "equal" or self.compare


def plan_profile(question: ProfileQuestion, budget: Budget) -> PlanResult:
    """Search, and where nothing fits say why; compare with the baselines if asked."""
    started_s = budget.cpu_s
    profile, setting = question.given.profile, question.setting
    block_layer = _block_layer(question) if question.splits_equally else None
    _refuse_endless_times(profile, setting)
    outcome = search(
        profile,
        setting,
        restrictions=question.restrictions,
        planner=question.planner,
        block_layer=block_layer,
        budget=budget,
    )
    diagnosis, beside = None, tuple[Baseline, ...]()
    if outcome.status is Status.INFEASIBLE:
        diagnosis = diagnose(profile, setting, restrictions=question.restrictions, budget=budget)
    if question.compare:
        beside = tuple(
            baselines(
                profile,
                setting,
                restrictions=question.restrictions,
                best_time_s=outcome.time_per_sample_s,
                block_layer=block_layer,
                budget=budget,
            )
        )
    stages = stage_records(outcome.plan, outcome.stage_costs, profile) if outcome.plan else ()
    return PlanResult(
        status=outcome.status,
        time_per_sample_s=outcome.time_per_sample_s,
        lower_bound_s=outcome.lower_bound_s,
        bound_kind=BoundKind.PROVED,
        gap=outcome.gap,
        devices_used=outcome.plan.devices_used if outcome.plan else None,
        num_stages=len(stages) or None,
        stages=stages,
        binding=diagnosis.binding if diagnosis else None,
        relaxations=diagnosis.relaxations if diagnosis else (),
        baselines=beside,
        interrupted=was_cut_short(budget.interrupted, outcome.status, is_compared=question.compare),
        warnings=(
            *question.given.warnings,
            *question.warnings,
            *_warnings(question),
            *unit_warnings(question.given, outcome.time_per_sample_s, setting),
        ),
        solver_s=outcome.solver_s,
        search_s=budget.cpu_s - started_s,
        counters=dict(outcome.counters),
        request=profile_request(question, budget),
    )


def was_cut_short(interrupted: bool, status: Status, *, is_compared: bool = False) -> bool:
    """Whether Ctrl-C left something undone: after a proof of the plan only what compares it."""
    return interrupted and (status is not Status.OPTIMAL or is_compared)


def _block_layer(question: ProfileQuestion) -> str | None:
    """The name of the layers to deal out equally; `None` for all."""
    chosen = question.block_layer
    if chosen == ALL_LAYERS:
        return None
    names = {layer.name for layer in question.given.profile.structure.layers}
    if chosen is None:
        return BLOCK_LAYER if BLOCK_LAYER in names else None
    if chosen not in names:
        wanted = f"must be the name of at least one layer, or {ALL_LAYERS}"
        raise InvalidInput.of("block-layer", f'{wanted}, got "{chosen}"')
    return chosen


def _refuse_endless_times(profile: Profile, setting: Setting) -> None:
    """Times beyond all floats have no order, so a search over them would prove nothing."""
    costs, edges = profile.costs, profile.structure.edges
    longest_s, most_bytes = 0.0, 2 * sum(edge.bytes for edge in edges)
    with np.errstate(over="ignore"):
        boundary = np.concatenate(([0.0], np.cumsum(costs.boundary_bytes)))
        moved = np.diff(boundary[costs.boundary_offsets]) + costs.gradient_sync_bytes.sum(axis=1)
    for layer in profile.structure.layers:
        rows = costs.rows_of(layer.layer_class)
        longest_s += float(costs.duration_s[rows].max())
        most_bytes += float(moved[rows].max())
    if not math.isfinite(longest_s):
        raise InvalidInput.of("model", "must have times that add up to a finite number of seconds")
    if not math.isfinite(4 * most_bytes / setting.bandwidth_bytes_per_s):
        value = setting.bandwidth_bytes_per_s
        raise InvalidInput.of("bandwidth", f"must move all bytes in finite time, got {value!r}")


def _warnings(question: ProfileQuestion) -> Iterator[str]:
    """Options that were given and change nothing."""
    if question.block_layer is not None and not question.splits_equally:
        yield "block-layer applies to equal splits only and was not used"
    offered = set(question.given.profile.costs.option_ids)
    for option in sorted(question.restrictions.excluded_options - offered):
        yield f'exclude-option: the profile has no option "{option}"'


def unit_warnings(
    given: ProfileInput, time_per_sample_s: float | None, setting: Setting
) -> Iterator[str]:
    """A batch that takes this long is more likely one whose times were never in seconds."""
    if given.unit_assumed and time_per_sample_s is not None:
        batch_s = time_per_sample_s * setting.num_microbatches
        if batch_s > _LONG_BATCH_S:
            yield (
                f"a batch of {setting.num_microbatches} microbatches takes {batch_s:,.0f} s: the "
                "times in the file are read as seconds; if they are milliseconds, use "
                "--time-unit ms"
            )


def profile_request(question: ProfileQuestion, budget: Budget) -> FlatRequest:
    """The question as a document carries it."""
    restrictions = question.restrictions
    return FlatRequest(
        trainwright_version=__version__,
        model=question.given.embedded,
        setting=setting_record(question.setting),
        space=SpaceRecord(
            data_parallel=restrictions.data_parallel,
            tensor_parallel=restrictions.tensor_parallel,
            recompute=restrictions.recompute,
            excluded_options=tuple(sorted(restrictions.excluded_options)),
            planner=question.planner_name,
            block_layer=question.block_layer if question.splits_equally else None,
        ),
        time_limit_s=budget.time_limit_s,
    )


def stage_records(
    plan: Plan, costs: tuple[StageCost, ...], profile: Profile
) -> tuple[StageRecord, ...]:
    """The stages of a priced plan, as a document carries them."""
    return tuple(
        StageRecord(
            layers=stage.layers,
            data_parallel=stage.data_parallel,
            tensor_parallel=stage.tensor_parallel,
            options={str(layer): option for layer, option in stage.option_of.items()},
            num_recomputed=count_recomputed(stage, profile),
            time_per_sample_s=cost.time_per_sample_s,
            breakdown=cost.breakdown,
            memory_bytes=cost.memory_bytes,
            microbatches_in_flight=cost.microbatches_in_flight,
        )
        for stage, cost in zip(plan.stages, costs, strict=True)
    )


def overflow_records(costs: tuple[StageCost, ...], setting: Setting) -> tuple[OverflowRecord, ...]:
    """The stages that do not fit, as a document carries them."""
    return tuple(
        OverflowRecord(stage=over.stage, missing_bytes=over.missing_bytes)
        for over in find_overflows(costs, setting)
    )


def count_recomputed(stage: Stage, profile: Profile) -> int:
    """How many layers of the stage run under an option that recomputes."""
    return _count(stage, profile, lambda mode: mode.repeats)


def count_offloaded(stage: Stage, profile: Profile) -> int:
    """How many layers of the stage run under an option that leaves activations on the host."""
    return _count(stage, profile, lambda mode: mode is Recompute.OFFLOAD)


def _count(stage: Stage, profile: Profile, counts: Callable[[Recompute], bool]) -> int:
    table = profile.costs
    class_of = {layer.id: layer.layer_class for layer in profile.structure.layers}

    def is_counted(layer: int, option: str) -> bool:
        return any(
            table.option_ids[row] == option
            and table.tensor_parallel[row] == stage.tensor_parallel
            and counts(table.recompute[row])
            for row in table.rows_of(class_of[layer])
        )

    return sum(is_counted(layer, option) for layer, option in stage.option_of.items())


# The figures of a document about a profile, computed again from what it carries
# ------------------------------------------------------------------------------


def remake_plan(document: PlanResult) -> PlanResult:
    """The document with every figure that follows from its plan, if it has one.

    Raises `InvalidInput` where the profile cannot be read or the plan breaks a rule or a limit.
    """
    if not document.stages:
        return document
    plan, profile, setting, costs = _price(document)
    overflows = find_overflows(costs, setting)
    if overflows:
        raise InvalidInput(
            Fault(
                f"stages[{over.stage}].memory_bytes",
                f"must be at most {setting.memory_bytes!r}, needs {over.missing_bytes!r} more",
            )
            for over in overflows
        )
    time_s = time_per_sample_s(costs)
    return replace(
        document,
        time_per_sample_s=time_s,
        gap=relative_gap(time_s, document.lower_bound_s or 0.0),
        devices_used=plan.devices_used,
        num_stages=len(plan.stages),
        stages=stage_records(plan, costs, profile),
        interrupted=was_cut_short(
            document.interrupted, document.status, is_compared=bool(document.baselines)
        ),
        baselines=tuple(
            replace(other, slowdown=slowdown(other.time_per_sample_s, time_s))
            for other in document.baselines
        ),
    )


def remake_estimate(document: EstimateResult) -> EstimateResult:
    """The document with every figure that follows from its plan; see `remake_plan`."""
    plan, profile, setting, costs = _price(document)
    overflows = overflow_records(costs, setting)
    return replace(
        document,
        fits=not overflows,
        time_per_sample_s=time_per_sample_s(costs),
        devices_used=plan.devices_used,
        num_stages=len(plan.stages),
        stages=stage_records(plan, costs, profile),
        overflows=overflows,
    )


def _price(document: PlanResult | EstimateResult) -> Priced:
    profile, setting = profile_of_request(document.request), _setting(document.request)
    plan = Plan(stages=read_plan(document), num_microbatches=setting.num_microbatches)
    return plan, profile, setting, evaluate(plan, profile, setting)


def profile_of_request(request: FlatRequest) -> Profile:
    """The one profile that a request carries."""
    with inside("request.model.content"):
        from trainwright.formats.profile_json import read_profile

        file = read_profile(request.model.content)
    if len(file.profiles) != 1:
        problem = f"must have 1 entry, got {len(file.profiles)}"
        raise InvalidInput.of("request.model.content.points", problem)
    return file.profiles[0]


def _setting(request: FlatRequest) -> Setting:
    if request.setting is None:
        raise InvalidInput.of("request.setting", "required field is missing")
    with inside("request.setting"):
        return to_setting(request.setting)


def read_plan(document: PlanResult | ModelPlanResult | EstimateResult) -> tuple[Stage, ...]:
    """The decisions of a document."""
    return read_stages({"stages": [encode(stage) for stage in document.stages]})


# A plan as a table a tired engineer understands: what runs where, and what binds
# -------------------------------------------------------------------------------

_STAGE_COLUMNS: Final = (
    *view.STAGE_COLUMNS,
    view.column("time", "time_per_sample_s"),
    view.column("compute", "compute_s"),
    view.column("traffic", "edge_traffic_s"),
    view.column("sync", "gradient_sync_s"),
    view.column("memory", "memory_bytes"),
    view.column("of limit", "memory_share"),
    view.column("held", "microbatches_in_flight"),
    view.MARKS,
)


def plan_view(document: PlanResult) -> Iterator[view.Line]:
    """Headline, stages, what binds or what would make it fit, and the baselines."""
    yield from _headline(document)
    yield from _stages(document.stages, document.request)
    yield from reason_lines(document, "plan")
    if document.baselines:
        yield baseline_table(document.baselines)
    yield from view.warning_lines(document.warnings)


def estimate_view(document: EstimateResult) -> Iterator[view.Line]:
    """The price of a given plan, and which stages overflow."""
    verdict = "fits" if document.fits else "does NOT fit"
    yield (
        f"{document.request.model.name}: {format_seconds(document.time_per_sample_s)} per "
        f"microbatch on {counted(document.devices_used, 'device')}, "
        f"{counted(document.num_stages, 'stage')}: {verdict}"
    )
    yield from _stages(document.stages, document.request)
    yield from overflow_lines(document)
    yield from view.warning_lines(document.warnings)


def overflow_lines(document: EstimateResult) -> Iterator[str]:
    """Which stages do not fit, and by how much."""
    for over in document.overflows:
        yield f"stage {over.stage} overflows by {format_bytes(over.missing_bytes)}"


def _stages(stages: tuple[StageRecord, ...], request: FlatRequest) -> Iterator[view.Line]:
    if stages:
        limit_bytes = request.setting.memory_bytes if request.setting else None
        yield stage_table(stages, limit_bytes)
        yield from _what_binds(explain_stages(stages, limit_bytes), limit_bytes)


def _headline(document: PlanResult) -> Iterator[str]:
    name = document.request.model.name
    if document.time_per_sample_s is None:
        yield f"{name}: {plan_verdict(document)}"
        return
    yield (
        f"{name}: {format_seconds(document.time_per_sample_s)} per microbatch on "
        f"{_used(document)}, {counted(len(document.stages), 'stage')}: {plan_verdict(document)}"
    )


def _used(document: PlanResult) -> str:
    setting = document.request.setting
    if setting is None or setting.num_devices == document.devices_used:
        return counted(document.devices_used or 0, "device")
    return f"{document.devices_used} of {setting.num_devices} devices"


def proved_words(status: Status, gap: float | None, what: str) -> str:
    """What is proved of a plan or placement, or of there being none."""
    if status is Status.GAP:
        return f"gap <= {format_percent_up(gap or 0.0)}"
    return {
        Status.OPTIMAL: "optimal, proved",
        Status.INFEASIBLE: f"infeasible, proved: no {what} fits",
        Status.UNKNOWN: f"unknown: the limit was reached before a {what} or a proof was found",
    }[status]


def plan_verdict(document: PlanResult) -> str:
    """What is proved of the plan, or of there being none."""
    if document.request.space.planner == "equal":
        return "the best equal split" if document.stages else "no equal split fits; others may"
    return proved_words(document.status, document.gap, "plan")


def stage_table(stages: tuple[StageRecord, ...], limit_bytes: float | None) -> view.Table:
    """One row per stage."""
    slowest_s = max(stage.time_per_sample_s for stage in stages)
    slowest = [at for at, stage in enumerate(stages) if stage.time_per_sample_s == slowest_s]
    return view.table_of(
        "Plan",
        _STAGE_COLUMNS,
        (
            (
                index,
                ranges(stage.layers),
                stage.data_parallel,
                stage.tensor_parallel,
                view.recomputed_of(stage.num_recomputed, len(stage.layers)),
                view.seconds(stage.time_per_sample_s),
                view.seconds(stage.breakdown.compute_s),
                view.seconds(stage.breakdown.edge_traffic_s),
                view.seconds(stage.breakdown.gradient_sync_s),
                view.size(stage.memory_bytes),
                view.percent(stage.memory_bytes / limit_bytes if limit_bytes else None),
                stage.microbatches_in_flight,
                ", ".join(
                    ["slowest"] * (index in slowest)
                    + ["over"] * is_over(stage.memory_bytes, limit_bytes)
                ),
            )
            for index, stage in enumerate(stages)
        ),
        marked=slowest,
        note="Times of one microbatch, over all replicas of a stage. Marked: the slowest stage.",
    )


def is_over(memory_bytes: float, limit_bytes: float | None) -> bool:
    """Whether a device needs more than there is, beyond rounding."""
    return limit_bytes is not None and memory_bytes > limit_bytes * (1 + 1e-12)


def reason_lines(document: PlanResult | PlacementResult, what: str) -> Iterator[str]:
    """Why nothing fits and what would change that, or that a search was cut short."""
    if document.binding is not None:
        yield f"why: {document.binding.description}"
    yield from view.relaxation_lines(document.relaxations)
    if document.interrupted:
        yield f"interrupted: this is the best {what} found so far"


def _what_binds(found: Explanation, limit_bytes: float | None) -> Iterator[str]:
    share = found.time_share[found.time_kind]
    yield (
        f"time binds in stage {found.slowest_stage}, {share:.0%} of it {found.time_kind}; "
        f"devices wait {found.idle_fraction:.1%} of the time for it"
    )
    if limit_bytes is not None and found.free_bytes is not None:
        free = found.free_bytes
        state = f"{format_bytes(free)} free" if free >= 0 else f"{format_bytes(-free)} missing"
        yield f"memory is fullest in stage {found.fullest_stage}: {state} of " + format_bytes(
            limit_bytes
        )


def baseline_table(baselines: tuple[Baseline, ...]) -> view.Table:
    """Restricted modes and equal splits, each beside the plan."""
    return view.table_of(
        "Restricted modes and equal splits",
        (
            view.words("plan"),
            view.column("time", "time_per_sample_s"),
            view.column("slowdown"),
            view.column("stages", "num_stages"),
        ),
        (
            (
                other.name,
                str(other.status)
                if other.time_per_sample_s is None
                else view.seconds(other.time_per_sample_s),
                None
                if other.slowdown is None
                else view.Cell(text=f"{other.slowdown:.3f}x", value=other.slowdown),
                other.num_stages or "",
            )
            for other in baselines
        ),
        caption="compared with",
    )
