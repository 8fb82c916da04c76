"""The document of `codesign`: the best chip with its plans, what was searched, the front."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from trainwright.cluster import (
    NO_LOSS,
    Calibration,
    ChipTemplate,
    Cluster,
    Efficiency,
    Surroundings,
    networked,
    template_device,
)
from trainwright.cluster.accelerator import CORE_BUFFER_BYTES_PER_UNIT
from trainwright.errors import InvalidInput
from trainwright.formats.document_json import decode_document
from trainwright.plans.plan import DEFAULT_SCHEDULE, FORMAT_VERSION, CommandLine, Embedded
from trainwright.plans.status import BoundKind, Status
from trainwright.provenance import RARE


@dataclass(frozen=True, slots=True, kw_only=True)
class SurroundingsRecord:
    """What a chip's cores stand in; see `trainwright.cluster.Surroundings`."""

    clock_hz: float
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    link_bandwidth_bytes_per_s: float
    link_latency_s: float
    node_devices: int
    node_bandwidth_bytes_per_s: float
    launch_s: float
    glb_bytes_per_cycle: float
    interface_mm2: float = 0.0
    tensor_overlap: float = 0.0
    gradient_overlap: float = 0.0
    link_efficiency: float = 1.0
    node_latency_s: float = 1e-6
    node_efficiency: float = 1.0
    efficiency: Efficiency = NO_LOSS

    @classmethod
    def of(cls, around: Surroundings) -> SurroundingsRecord:
        """Surroundings as a document carries them."""
        return cls(**{each.name: getattr(around, each.name) for each in fields(cls)})

    def surroundings(self) -> Surroundings:
        """What the record describes."""
        return Surroundings(**{each.name: getattr(self, each.name) for each in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureRecord:
    """One design: cores, arrays, buffers, and what surrounds them."""

    num_tc: int
    num_vc: int
    width: int
    depth: int
    width_vc: int
    glb_bytes: int
    tc_buffer_bytes: int
    vc_buffer_bytes: int
    peak_flops_per_s: float
    surroundings: SurroundingsRecord
    precision: str = "bf16"

    @property
    def buffer_bytes_per_mac(self) -> int:
        """Bytes of a core's buffer for each multiplier of its array."""
        return max(1, self.tc_buffer_bytes // (self.width * self.depth))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipPlanRecord:
    """How one model is trained on the design; `starts` is the first layer of each stage.

    Under a schedule in V rank r of p owns stages r and 2p-1-r. `recompute` is what all stages do,
    or "mixed" where they differ.
    """

    model: str
    step_time_s: float
    tokens_per_s: float
    energy_per_token_j: float
    power_watts: float
    mfu: float
    tensor_parallel: int
    data_parallel: int
    pipeline_parallel: int
    num_devices: int
    microbatch_size: int
    num_microbatches: int
    recompute: str
    recompute_per_stage: tuple[str, ...]
    schedule: str
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStrategyRecord:
    """A published strategy on the same design, evenly cut; why not, where it does not run."""

    model: str
    pipeline_parallel: int
    data_parallel: int
    tensor_parallel: int
    feasible: bool
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    recompute: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignRecord:
    """A design with its plans. With several models `tokens_per_s` is their geometric mean.

    `area_scope` says what the area holds. `power_watts` is the mean of a chip over a step,
    `peak_power_watts` that of its hungriest operator. `chip_cost_per_token` spreads the cost of all
    dies over three years of training. `relative_throughput` is that of the
    objective against the reference design, absent where the reference holds no plan.
    """

    architecture: ArchitectureRecord
    plan: ChipPlanRecord
    plans: tuple[ChipPlanRecord, ...]
    objective: float
    tokens_per_s: float
    area_mm2: float
    area_scope: str
    area_parts_mm2: dict[str, float]
    power_watts: float
    energy_per_token_j: float
    tokens_per_s_per_watt: float
    peak_power_watts: float | None = None
    die_area_mm2: float | None = None
    cost_per_good_die: float | None = None
    chip_cost_per_token: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """One design of the front, with its fastest plans."""

    architecture: str
    variant: int
    design: int
    tokens_per_s: float
    area_mm2: float
    power_watts: float
    energy_per_token_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRecord:
    """An operator of the model's most frequent layer on the best design: what binds it."""

    operator: str
    phase: str
    seconds: float
    share: float
    bound: str
    utilisation: float
    dataflow: str | None = None
    core_tile: tuple[int, ...] | None = None
    global_tile: tuple[int, ...] | None = None
    split: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerScheduleRecord:
    """The most frequent layer's kernels on the best design's cores, in one direction.

    The search charges `sequential_s`, every kernel spread over all cores, one after another; with
    `num_side_by_side` kernels on single cores or the link beside others, a layer takes `seconds`.
    """

    direction: str  # "forward", "backward"
    seconds: float
    sequential_s: float
    lower_bound_s: float
    gap: float
    status: Status
    method: str
    num_operators: int
    num_side_by_side: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityRecord:
    """What more of one resource buys: the gain in throughput, with plans sought anew.

    `design` is the chip that takes the place of the best, where more area allows one. `fits` says
    whether its mean power keeps to the limit.
    """

    resource: str
    factor: float
    throughput_gain: float
    design: str | None = None
    fits: bool = field(default=True, metadata={RARE: True})


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """An axis whose best value is the first or last that it might take, and what widens it."""

    axis: str
    value: str
    end: str  # "least", "most"
    widen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RealChipRecord:
    """A chip of the catalog on the first model, with the same network and number of devices.

    `process`, `die_area_mm2` and `power_watts` (its limit) are absent where nothing is published.
    `ratio_at_equal_area` is its throughput over the design's, both by the area of the die, as both
    are made; `ratio_at_equal_process` the same with the design's die drawn in the chip's process,
    where its hungriest operator draws `design_watts`.
    """

    name: str
    feasible: bool
    peak_flops_per_s: float
    process: str | None = None
    die_area_mm2: float | None = None
    power_watts: float | None = None
    memory_bytes: float | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    ratio_at_equal_area: float | None = None
    ratio_at_equal_process: float | None = None
    design_watts: float | None = None
    die_source: str = ""
    tokens_per_s: float | None = None
    tensor_parallel: int | None = None
    data_parallel: int | None = None
    pipeline_parallel: int | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesRecord:
    """Ranges of the template's variables and the area limits."""

    num_tc: tuple[int, ...]
    num_vc: tuple[int, ...]
    width: tuple[int, ...]
    depth: tuple[int, ...]
    glb_mib: tuple[int, ...]
    largest_um2: float
    least_share: float
    buffer_bytes_per_mac: tuple[int, ...] = field(
        default=(CORE_BUFFER_BYTES_PER_UNIT,), metadata={RARE: True}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatRecord:
    """What a multiplier of a number format takes against one of bfloat16."""

    area_factor: float
    energy_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AreasRecord:
    """Areas in µm² at 22 nm; buffers in powers of two from 1 KiB and from 2 MiB on."""

    um2_per_mac: float
    um2_per_lane: float
    core_buffer_um2: tuple[float, ...]
    glb_um2: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRecord:
    """Which voltage a clock takes; see `chips.energy.VoltageCurve`."""

    volts: float
    clock_hz: float
    threshold_volts: float
    alpha: float
    least_volts: float
    most_volts: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TechnologyRecord:
    """What chips are made of beside `energy` and `die`; `volts` where all clocks have the same."""

    areas: AreasRecord
    formats: dict[str, FormatRecord]
    volts: float | None = None
    curve: CurveRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One model with what it trains on."""

    model: Embedded
    sequence_length: int
    global_batch: int
    tensor_parallel: tuple[int, ...]
    recompute: tuple[str, ...]
    weight: float = 1.0
    schedules: tuple[str, ...] = (DEFAULT_SCHEDULE,)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodesignRequest:
    """Everything a search depends on; nothing outside the document is needed to run it again.

    `losses` are what every design loses to kernels and links, under `software` and as a new device
    `like` a family or an accelerator does; without them all of these are perfect. `process`,
    `energy`, `die` and `technology` say what chips are made of, as `chips.technology` reads it.
    """

    trainwright_version: str
    jobs: tuple[JobRecord, ...]
    num_devices: int
    rules: RulesRecord
    surroundings: tuple[SurroundingsRecord, ...]
    microbatch_sizes: tuple[int, ...]
    objective: str
    energy: dict[str, float]
    max_power_watts: float | None = None
    precisions: tuple[str, ...] = ("bf16",)
    max_mean_watts: float | None = None
    software: str | None = None
    like: str | None = field(default=None, metadata={RARE: True})
    losses: Calibration | None = None
    process: str | None = None
    die: dict[str, float] | None = None
    technology: TechnologyRecord | None = field(default=None, metadata={RARE: True})
    command_line: CommandLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckRecord:
    """Pruned designs priced in full: how many, and whether all are as bad as their bounds say.

    `figures` of the document were computed again and are the same.
    """

    sampled: int
    confirmed: int
    seed: int
    figures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CodesignResult:
    """The best design; `objective` is minimised and `lower_bound` refers to it.

    `candidates` are the designs inside the area rules, `searched` those times the variants
    (surroundings × microbatch sizes). Every one of them was visited (its placement was solved) or
    pruned by a bound or a limit, by level in `pruned_by`.
    """

    kind: str = "codesign"
    format_version: int = FORMAT_VERSION
    request: CodesignRequest
    status: Status
    bound_kind: BoundKind = BoundKind.PROVED
    objective: str
    search: str = "exact"
    best: DesignRecord | None = None
    lower_bound: float | None = None
    gap: float | None = None
    candidates: int
    searched: int
    visited: int
    pruned: int
    pruned_by: dict[str, int]
    visited_share: float
    space_sha256: str
    pareto: tuple[FrontPoint, ...] = ()
    pareto_objectives: tuple[str, ...] = ()
    pareto_epsilon: float | None = None
    hypervolume: float | None = None
    fixed_strategies: tuple[FixedStrategyRecord, ...] = ()
    reference: DesignRecord | None = None
    operators: tuple[OperatorRecord, ...] = ()
    layer_schedules: tuple[LayerScheduleRecord, ...] = ()
    sensitivity: tuple[SensitivityRecord, ...] = ()
    real_chips: tuple[RealChipRecord, ...] = ()
    at_ends: tuple[EndRecord, ...] = field(default=(), metadata={RARE: True})
    recheck: RecheckRecord | None = None
    infeasible_because: str | None = None
    search_s: float
    front_s: float | None = None
    warnings: tuple[str, ...] = ()


# The document of a machine room: chips and what stands around them, chosen together
# ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomRecord:
    """Values of every axis, from least to most capable, and prices; see `chips.room`."""

    devices: tuple[int, ...]
    stacks: tuple[int, ...]
    stack_gib: tuple[float, ...]
    node_devices: tuple[int, ...]
    node_gbytes_per_s: tuple[float, ...]
    topology: tuple[str, ...]
    cards: tuple[float, ...]
    oversubscription: tuple[float, ...]
    memory: str
    prices: dict[str, float]
    stack: dict[str, float] = field(default_factory=dict, metadata={RARE: True})  # of that memory


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomRequest:
    """What a search of systems depends on; budgets are of the whole system, None: no limit.

    `aim` is "time" (seconds), "cost" (dollars) or "energy" (joules) of a token. `chips` has the
    jobs, the designs and what all of them lose; its number of devices is the largest there may be.
    `wanted_front` is how near its front shall be to any system, None for no front.
    """

    trainwright_version: str
    chips: CodesignRequest
    room: RoomRecord
    aim: str
    wanted_gap: float
    wanted_front: float | None = None
    budget_dollars: float | None = None
    budget_watts: float | None = None
    budget_mm2: float | None = None
    command_line: CommandLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRecord:
    """One system with its figures; `plans` are of the models, in their order.

    `seconds_per_token` is of several models as the objective combines them; `watts` are rated,
    `dollars` what the system costs at once, `dollars_per_token` with its electricity.
    """

    architecture: ArchitectureRecord
    stacks: int
    devices: int
    stack_gib: float
    node_devices: int
    node_gbytes_per_s: float
    topology: str
    cards: float
    oversubscription: float
    seconds_per_token: float
    dollars_per_token: float
    joules_per_token: float
    watts: float
    dollars: float
    silicon_mm2: float
    plans: tuple[ChipPlanRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRecord:
    """A box of the certificate: its path, the axis it was cut along, the designs that went on.

    The path has 0 or 1 for the half of every cut before it. Designs are ranges of numbers of the
    space by stacks, as "3-7,12".
    """

    path: str
    axis: str | None = None
    left: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePartRecord:
    """A part of the first model's step: what takes it, and what binds that; parts add up to it."""

    part: str
    bound: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NextValueRecord:
    """The next value of an axis, planned anew: changes as shares of the aim as it is.

    `step_change` is what the step takes more, `rate_change` what a second of it costs or draws
    more; they add up to `value_change`, of which less is better. `dollars` is what the system costs
    more. `fits` says whether the budgets allow it. Behind the axes stand "all at once" and
    "interplay", which is all at once less all axes one by one.
    """

    axis: str
    now: str
    then: str
    step_change: float
    rate_change: float
    value_change: float
    dollars: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomProofRecord:
    """Certificates checked again: boxes, closed designs, those priced, systems tried.

    `drawn` systems are from the whole room, `near` ones a few values from those of the document.
    `of_front` closed designs are of the boxes of the front, `stood_for` such as another stands for.
    `searched` says that the whole search was made again and proved no less than is claimed.
    """

    boxes: int
    closed: int
    repriced: int
    drawn: int
    seed: int
    near: int = 0
    of_front: int = 0
    stood_for: int = 0
    searched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProofRecord:
    """Why a front covers all systems: `chips.room_front` explains it.

    Of designs those of `stands` (ranges, by stacks) stand for all within `of_designs`; the boxes
    that begin with them leave behind what a point covers within `within`.
    """

    of_designs: float
    within: float
    stands: dict[str, str]
    certificate: tuple[BranchRecord, ...]
    priced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomResult:
    """The best system of a machine room with its proof.

    `systems` counts all that the request admits, of which `priced` were priced in full. No system
    has less of the aim than `lower_bound`; `certificate` says why. Of every system one of `front`
    has at most 1 + `front_epsilon` times the seconds and dollars of a token and the watts, by the
    plans that are searched, and 1 + `front_epsilon_of_any_cut` by any cut of the layers;
    `front_proof` says why.
    """

    kind: str = "machine-room"
    format_version: int = FORMAT_VERSION
    request: RoomRequest
    status: Status
    bound_kind: BoundKind = BoundKind.PROVED
    objective: str
    best: SystemRecord | None = None
    value: float | None = None
    lower_bound: float | None = None
    gap: float | None = None
    systems: int
    priced: int
    space_sha256: str
    certificate: tuple[BranchRecord, ...] = ()
    front: tuple[SystemRecord, ...] = ()
    front_epsilon: float | None = None
    front_epsilon_of_any_cut: float | None = None
    front_proof: FrontProofRecord | None = None
    infeasible_because: str | None = None
    step_parts: tuple[TimePartRecord, ...] = ()
    next_values: tuple[NextValueRecord, ...] = ()
    at_ends: tuple[EndRecord, ...] = field(default=(), metadata={RARE: True})
    proof: RoomProofRecord | None = None
    search_s: float
    front_s: float | None = None
    warnings: tuple[str, ...] = ()


# The documents of the stages of `codesign`: the layers it is about, and what a stage wrote
# -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """One operator of a layer in one phase, as a chip sees it; products are [b, m, n, k]."""

    operator: str
    phase: str
    products: tuple[tuple[int, ...], ...]
    share: float
    flops: float
    lane_cycles: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """One class of layers: what it is, how many there are, what they do."""

    kind: str
    count: int
    parameters: int
    kernels: tuple[KernelRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRecord:
    """A model at one tensor degree and microbatch size."""

    model: str
    tensor_parallel: int
    microbatch_size: int
    layers: tuple[LayerRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphResult:
    """What the first stage leaves for the others: the request, and the layers it is about."""

    kind: str = "codesign-graph"
    format_version: int = FORMAT_VERSION
    request: CodesignRequest
    chains: tuple[ChainRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """A stage that was run: what it wrote, and how much of what."""

    kind: str = "codesign-stage"
    format_version: int = FORMAT_VERSION
    stage: str
    file: str
    counts: dict[str, int]
    stage_s: float


# The best design of a co-design document as a cluster: so many of that chip on its network
# -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundChip:
    """A design as a cluster of whole nodes, and what its search held beside that.

    `num_devices` is the number of chips it planned for, of which the last node may be partly used.
    `surroundings` are absent of a cluster that another kind of document carries.
    """

    cluster: Cluster
    num_devices: int
    surroundings: Surroundings | None = None


CHIPS: Final = {"codesign": CodesignResult, "machine-room": RoomResult}  # by kind


def read_chip(value: object, *, source: str) -> FoundChip:
    """Read a document of `codesign`, of chips or of whole systems.

    Raises `InvalidInput` where it is none or has no design.
    """
    document: CodesignResult | RoomResult = decode_document(value, CHIPS, source=source)
    best = document.best
    if best is None:
        raise InvalidInput.of("best", "must be there: the search found no design", source=source)
    if isinstance(best, SystemRecord):
        count, watts = best.devices, best.watts / best.devices
    else:
        assert isinstance(document, CodesignResult)
        count, watts = document.request.num_devices, best.power_watts
    return FoundChip(
        cluster=_cluster(best.architecture, num_devices=count, watts=watts),
        num_devices=count,
        surroundings=best.architecture.surroundings.surroundings(),
    )


def _cluster(made: ArchitectureRecord, *, num_devices: int, watts: float) -> Cluster:
    """A design in its surroundings, with its power, as a cluster."""
    chip = ChipTemplate(
        num_tc=made.num_tc,
        num_vc=made.num_vc,
        width=made.width,
        depth=made.depth,
        glb_bytes=made.glb_bytes,
        buffer_bytes_per_mac=made.buffer_bytes_per_mac,
    )
    around = made.surroundings.surroundings()
    device = template_device(
        chip,
        around,
        precision=made.precision,
        name=str(chip),
        power_watts=watts,
    )
    return networked(device, around, num_devices=num_devices)
