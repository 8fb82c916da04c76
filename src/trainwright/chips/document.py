"""From the outcome of a co-design search to its document."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright._native._core import one_f_one_b_ends_s
from trainwright.chips.design_times import LayerTimes
from trainwright.chips.layer_schedule import CoreSchedule, schedule_backward, schedule_forward
from trainwright.chips.plans import UniformPlan, fastest_plans
from trainwright.chips.population import Population, populate
from trainwright.chips.price import JobPricer, operator_uses
from trainwright.chips.request import CodesignQuestion, Variant, rules_of
from trainwright.chips.search import (
    AREA,
    MEMORY,
    PEAK,
    PLACEMENT,
    POWER,
    WORK,
    CodesignOutcome,
    Design,
    pricers,
    search,
)
from trainwright.chips.space import (
    AREA_SCOPE,
    FIELDS,
    SpaceRules,
    area_parts_mm2,
    enumerate_designs,
    subspace,
)
from trainwright.chips.technology import (
    DieFacts,
    device_as_run,
    dies,
    energy_in,
    processes,
    surroundings_in,
)
from trainwright.chips.workload import RULES, Chain, Replication, TrainingJob, tensor_hops
from trainwright.cluster import Accelerator, Pool, Surroundings, peak_flops_per_s
from trainwright.costing.layer import Platform, price_layer
from trainwright.execution import Budget
from trainwright.formats import codesign_document
from trainwright.model import Phase, model_flops_per_sequence, precision_named
from trainwright.model.config import block_indices
from trainwright.plans.plan import Parallelism
from trainwright.plans.status import relative_gap
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.arrays import Floats


# Published strategies ("experts"), priced on a design beside its optimum
# -----------------------------------------------------------------------
# A strategy is a depth, a data and a tensor degree; its blocks are dealt out evenly, ⌈L/p⌉ to a
# stage as far as they last, the layers before them go to the first stage and those behind to the
# last. The table is PHAZE's (Wang et al., ICML 2024), after the papers of the models.


EXPERTS: Final = {
    "opt-350m": Parallelism(pipeline=12, data=85, tensor=1),
    "bert-large": Parallelism(pipeline=8, data=128, tensor=1),
    "gpt2-xl": Parallelism(pipeline=32, data=32, tensor=1),
    "megatron-gpt2-2.5b": Parallelism(pipeline=8, data=32, tensor=4),
    "megatron-gpt2-8.3b": Parallelism(pipeline=8, data=16, tensor=8),
    "gpt3-175b": Parallelism(pipeline=32, data=8, tensor=4),
    "llama2-7b": Parallelism(pipeline=8, data=128, tensor=1),
}


def even_starts(chain: Chain, depth: int) -> tuple[int, ...]:
    """First layer of each stage; stages that no block is left for do not exist."""
    blocks = block_indices(chain.graph.kinds)
    size = math.ceil(len(blocks) / depth)
    return (0, *(blocks[k] for k in range(size, len(blocks), size)))


def expert_plan(
    chain: Chain,
    times: LayerTimes,
    strategy: Parallelism,
    *,
    job: TrainingJob,
    surroundings: Surroundings,
) -> UniformPlan | None:
    """The strategy on the one design of `times`, at its faster recompute mode; None: out of memory.

    Replicas that the microbatches do not divide over take the larger share.
    """
    starts = even_starts(chain, strategy.pipeline)
    m = math.ceil(job.num_microbatches / strategy.data)
    replication = Replication.over(strategy.data, surroundings)
    transfers_s = chain.transfer_s(surroundings)
    best: UniformPlan | None = None
    for option, mode in enumerate(chain.recompute):
        if not _fits(chain, option, starts, replication, m, surroundings.memory_bytes):
            continue
        step_s = _step_s(chain, times, option, starts, replication, m, transfers_s)
        if best is None or step_s < best.step_s:
            best = UniformPlan(
                step_s=step_s,
                tensor_degree=strategy.tensor,
                data_degree=strategy.data,
                recompute=(Recompute(mode),) * len(starts),
                starts=starts,
            )
    return best


def _fits(
    chain: Chain,
    option: int,
    starts: tuple[int, ...],
    replication: Replication,
    m: int,
    memory_bytes: float,
) -> bool:
    for rank, stage in enumerate(np.split(chain.layer_class, starts[1:])):
        in_flight = min(len(starts) - rank, m)
        held = (
            replication.beside_bytes
            + replication.layer_bytes(chain.static_bytes)[stage].sum()
            + in_flight * chain.saved_bytes[option, stage].sum()
            + chain.transient_bytes[option, stage].max()
        )
        if held > memory_bytes:
            return False
    return True


def _step_s(
    chain: Chain,
    times: LayerTimes,
    option: int,
    starts: tuple[int, ...],
    replication: Replication,
    m: int,
    transfers_s: Floats,
) -> float:
    stages = np.split(chain.layer_class, starts[1:])
    count = len(stages)
    forward_s = np.array([times.forward_s[0, stage].sum() for stage in stages])
    backward_s = np.array([times.backward_s[0, option, stage].sum() for stage in stages])
    ends_s = one_f_one_b_ends_s(
        forward_s=forward_s,
        backward_s=backward_s,
        in_flight=np.array([min(count - i, m) for i in range(count)], dtype=np.int64),
        replicas=np.ones(count, dtype=np.int64),
        feed_offset=np.array([min(i, count - 1) for i in range(count + 1)], dtype=np.int64),
        feed_target=np.arange(1, count, dtype=np.int32),
        feed_s=np.array([transfers_s[start - 1] for start in starts[1:]]),
        num_microbatches=m,
    )
    sync_bytes = np.array([chain.sync_bytes[stage].sum() for stage in stages])
    update_s = np.array([times.update_s[0, stage].sum() for stage in stages])
    exposed_s = replication.exposed_s(sync_bytes, forward_s, backward_s)
    return float((ends_s + exposed_s + update_s / replication.update_parts).max())


# Chips of the catalog on the same models, network and number of devices, in the same units
# -----------------------------------------------------------------------------------------
# A real chip's layers are priced by the roofline that `estimate` uses, with the constants expected
# of it; plans are sought as for a template, which loses what a device without runs of its own does.


def real_chip_plan(
    pool: Pool, job: TrainingJob, *, links: Surroundings, num_devices: int
) -> UniformPlan | None:
    """The fastest uniform plan of a model on `num_devices` real chips; None: it does not fit.

    `pool` is what `device_as_run` makes of the chip in the network of `links`.
    """
    device, surroundings = pool.accelerator, surroundings_in(pool, links)
    best: UniformPlan | None = None
    for degree in sorted(set(job.tensor_degrees)):
        if degree > num_devices:
            continue
        chain = job.chain(degree, precision=precision_named(device.default_precision))
        (found,) = fastest_plans(
            chain,
            real_times(device, chain, surroundings),
            job=job,
            surroundings=surroundings,
            num_devices=num_devices,
            cutoff_s=np.array([np.inf if best is None else best.step_s]),
        )
        best = found or best
    return best


def real_times(device: Accelerator, chain: Chain, surroundings: Surroundings) -> LayerTimes:
    """Layers of a chain on a real chip, as those of one design."""
    hops = tensor_hops(surroundings, chain.tensor_degree)
    platform = Platform(
        accelerator=device,
        dtype=device.default_precision,
        hops=dict.fromkeys(("tensor", "expert_tensor"), hops) | {"expert": (), "context": ()},
    )
    rules = {mode: RULES[mode] for mode in chain.recompute}
    forward = np.zeros((1, len(chain.kernels)))
    backward = np.zeros((1, len(chain.recompute), len(chain.kernels)))
    weight_grad = np.zeros((1, len(chain.kernels)))
    for index, layer in enumerate(chain.graph.classes):
        prices = {p.recompute: p for p in price_layer(layer, chain.graph.run, rules, platform)}
        for option, mode in enumerate(chain.recompute):
            repeated = mode is Recompute.FULL and chain.repeats[index]
            phase_s = prices[mode].phase_s
            forward[0, index] = phase_s[Phase.FORWARD]
            weight_grad[0, index] = phase_s[Phase.WEIGHT_GRAD]
            backward[0, option, index] = phase_s[Phase.INPUT_GRAD] + phase_s[Phase.WEIGHT_GRAD]
            backward[0, option, index] += phase_s[Phase.RECOMPUTE] if repeated else 0.0
    pace = surroundings.memory_bandwidth_bytes_per_s * surroundings.efficiency.memory.max
    return LayerTimes(
        forward_s=forward,
        backward_s=backward,
        weight_grad_s=weight_grad,
        update_s=(chain.update_bytes / pace)[None, :],
    )


# The layer schedules of a chosen design, as a document carries them
# ------------------------------------------------------------------


def layer_records(
    question: CodesignQuestion, design: Design
) -> Iterator[codesign_document.LayerScheduleRecord]:
    """The first model's most frequent layer on a design, forward and backward."""
    variant = question.variants[design.variant]
    chain = question.jobs_of(variant)[0].chain(design.plans[0].tensor_degree)
    chip = question.space.template(design.index)
    most = int(np.argmax(chain.class_counts))
    for direction, schedule in (("forward", schedule_forward), ("backward", schedule_backward)):
        yield _record(direction, schedule(chip, variant.surroundings, chain, most))


def _record(direction: str, found: CoreSchedule) -> codesign_document.LayerScheduleRecord:
    return codesign_document.LayerScheduleRecord(
        direction=direction,
        seconds=found.seconds,
        sequential_s=found.sequential_s,
        lower_bound_s=found.lower_bound_s,
        gap=found.gap,
        status=found.status,
        method=found.schedule.method,
        num_operators=len(found.names),
        num_side_by_side=sum(not run.spread for run in found.schedule.runs),
    )


# From the outcome of a co-design search to its document
# ------------------------------------------------------


def result_of(
    request: codesign_document.CodesignRequest, question: CodesignQuestion, outcome: CodesignOutcome
) -> codesign_document.CodesignResult:
    """The search itself: what was asked, found, visited and pruned."""
    ledger = outcome.ledger
    searched = ledger.bounds.size
    visited = ledger.count(PLACEMENT)
    levels = {level: ledger.count(level) for level in (PEAK, WORK, POWER, MEMORY)}
    if len(question.variants) > 1:
        levels[AREA] = ledger.count(AREA)
    best, bound = outcome.best, outcome.lower_bound
    return codesign_document.CodesignResult(
        request=request,
        status=outcome.status,
        objective="step_time_s" if len(question.jobs) == 1 else str(question.objective),
        lower_bound=bound,
        gap=None if best is None or bound is None else relative_gap(best.cost, bound),
        candidates=len(question.space),
        searched=searched,
        visited=visited,
        pruned=sum(levels.values()),
        pruned_by=levels,
        visited_share=visited / searched,
        space_sha256=question.space.checksum(),
        search_s=outcome.solver_s,
    )


def design_record(question: CodesignQuestion, design: Design) -> codesign_document.DesignRecord:
    """A design with its figures, model by model."""
    variant = question.variants[design.variant]
    jobs = question.jobs_of(variant)
    index = np.array([design.index])
    priced = pricers(question, variant)
    energies = [
        float(pricer.energies_j(index, [plan])[0])
        for pricer, plan in zip(priced, design.plans, strict=True)
    ]
    plans = tuple(
        plan_record(question, job, plan, energy_j, design)
        for job, plan, energy_j in zip(jobs, design.plans, energies, strict=True)
    )
    area = question.area_mm2(design.variant, design.index)
    weights = question.weights
    tokens = float(np.exp(np.log([p.tokens_per_s for p in plans]) @ weights))
    power = max(p.power_watts for p in plans)
    die = question.die
    whole = die.die_area_mm2(area)
    cost = die.cost_per_good_die(whole)
    return codesign_document.DesignRecord(
        architecture=architecture_record(question, design.index, variant),
        plan=plans[0],
        plans=plans,
        objective=design.cost,
        tokens_per_s=tokens,
        area_mm2=area,
        area_scope=AREA_SCOPE + ("+interfaces" if variant.making.interface_mm2 else ""),
        area_parts_mm2=area_parts_mm2(
            question.space.template(design.index),
            mac_factor=variant.making.mac_factor,
            interface_mm2=variant.making.interface_mm2,
            table=question.space.table,
        ),
        power_watts=power,
        energy_per_token_j=float(np.array([p.energy_per_token_j for p in plans]) @ weights),
        tokens_per_s_per_watt=tokens / (power * question.num_devices),
        peak_power_watts=float(max(p.hungriest_watts(index)[0] for p in priced)),
        die_area_mm2=whole,
        cost_per_good_die=cost,
        chip_cost_per_token=cost * question.num_devices / (tokens * die.lifetime_s),
    )


def of_reticle(question: CodesignQuestion, design: codesign_document.DesignRecord) -> Iterator[str]:
    """That a die is larger than one exposure, where it is."""
    whole, most = design.die_area_mm2, question.die.reticle_mm2
    if whole is not None and whole > most:
        yield reticle_words(whole, most)


def reticle_words(die_mm2: float, reticle_mm2: float) -> str:
    """What a die beyond the reticle means."""
    return (
        f"a die of {die_mm2:,.0f} mm2 is larger than one exposure covers ({reticle_mm2:,.0f} mm2, "
        "die.reticle_mm2): it would be made of several, and priced so"
    )


def _peak(question: CodesignQuestion, design: Design) -> float:
    variant = question.variants[design.variant]
    return peak_flops_per_s(question.space.template(design.index), variant.surroundings)


def plan_record(
    question: CodesignQuestion,
    job: TrainingJob,
    plan: UniformPlan,
    energy_j: float,
    design: Design,
) -> codesign_document.ChipPlanRecord:
    """A plan on a design of the question, with the joules of its step on all chips."""
    flops = model_flops_per_sequence(job.model, job.sequence_length) * job.global_batch
    peak = _peak(question, design) * question.num_devices
    return codesign_document.ChipPlanRecord(
        model=job.name,
        step_time_s=plan.step_s,
        tokens_per_s=job.tokens_per_step / plan.step_s,
        energy_per_token_j=energy_j / job.tokens_per_step,
        power_watts=energy_j / plan.step_s / question.num_devices,
        mfu=flops / plan.step_s / peak,
        tensor_parallel=plan.tensor_degree,
        data_parallel=plan.data_degree,
        pipeline_parallel=plan.num_ranks,
        num_devices=plan.num_devices,
        microbatch_size=job.microbatch_size,
        num_microbatches=job.num_microbatches // plan.data_degree,
        recompute=plan.recompute_name,
        recompute_per_stage=tuple(map(str, plan.recompute)),
        schedule=plan.schedule,
        starts=plan.starts,
    )


def architecture_record(
    question: CodesignQuestion, index: int, variant: Variant
) -> codesign_document.ArchitectureRecord:
    """A design of the space in what surrounds it."""
    chip, around = question.space.template(index), variant.surroundings
    return codesign_document.ArchitectureRecord(
        num_tc=chip.num_tc,
        num_vc=chip.num_vc,
        width=chip.width,
        depth=chip.depth,
        width_vc=chip.width_vc,
        glb_bytes=chip.glb_bytes,
        tc_buffer_bytes=chip.tc_buffer_bytes,
        vc_buffer_bytes=chip.vc_buffer_bytes,
        peak_flops_per_s=peak_flops_per_s(chip, around),
        surroundings=codesign_document.SurroundingsRecord.of(around),
        precision=variant.precision,
    )


def front_points(
    question: CodesignQuestion, found: Population
) -> Iterator[codesign_document.FrontPoint]:
    """The designs of a population as points of the front."""
    tokens = np.array([job.tokens_per_step for job in question.jobs], dtype=np.float64)
    rates = np.exp(np.log(tokens / found.steps_s) @ question.weights)
    for row in range(len(found)):
        yield codesign_document.FrontPoint(
            architecture=str(question.space.template(int(found.index[row]))),
            variant=int(found.variant[row]),
            design=int(found.index[row]),
            tokens_per_s=float(rates[row]),
            area_mm2=float(found.area_mm2[row]),
            power_watts=float(found.power_watts[row]),
            energy_per_token_j=float(found.energy_per_token_j[row]),
        )


def fixed_strategies(
    question: CodesignQuestion, design: Design
) -> Iterator[codesign_document.FixedStrategyRecord]:
    """The published strategy of every model that has one, on a design."""
    variant = question.variants[design.variant]
    for job in question.jobs_of(variant):
        strategy = EXPERTS.get(job.name)
        if strategy is None:
            continue
        plan, reason = None, None
        if strategy.num_devices > question.num_devices:
            reason = f"needs {strategy.num_devices} devices"
        else:
            alone = JobPricer.at_degree(job, variant, question, strategy.tensor)
            times = alone.times(np.array([design.index]))[0]
            plan = expert_plan(
                alone.chains[0], times, strategy, job=job, surroundings=variant.surroundings
            )
            reason = None if plan is not None else "out of memory"
        yield codesign_document.FixedStrategyRecord(
            model=job.name,
            pipeline_parallel=strategy.pipeline,
            data_parallel=strategy.data,
            tensor_parallel=strategy.tensor,
            feasible=plan is not None,
            step_time_s=None if plan is None else plan.step_s,
            tokens_per_s=None if plan is None else job.tokens_per_step / plan.step_s,
            recompute=None if plan is None else plan.recompute_name,
            reason=reason,
        )


def operator_records(
    question: CodesignQuestion, design: Design
) -> Iterator[codesign_document.OperatorRecord]:
    """The first model's most frequent layer on a design, operator by operator."""
    variant = question.variants[design.variant]
    plan = design.plans[0]
    chain = question.jobs_of(variant)[0].chain(plan.tensor_degree)
    uses = operator_uses(question, design, chain)
    total = sum(use.seconds for use in uses)
    for use in uses:
        tiles = use.tiles
        yield codesign_document.OperatorRecord(
            operator=use.kernel.operator,
            phase=str(use.kernel.phase),
            seconds=use.seconds,
            share=use.seconds / total,
            bound=use.bound,
            utilisation=use.utilisation,
            dataflow=None if tiles is None else str(tiles.dataflow),
            core_tile=None if tiles is None else tiles.core,
            global_tile=None if tiles is None or not tiles.whole[0] else tiles.whole,
            split=None if tiles is None else tiles.split,
        )


def sensitivity_records(
    request: codesign_document.CodesignRequest,
    question: CodesignQuestion,
    outcome: CodesignOutcome,
    budget: Budget,
) -> Iterator[codesign_document.SensitivityRecord]:
    """What a tenth more of each resource buys, and twice the cores or the global buffer."""
    for gain in sensitivities(question, outcome, rules_of(request), budget):
        yield codesign_document.SensitivityRecord(
            resource=gain.resource,
            factor=gain.factor,
            throughput_gain=gain.gain,
            design=gain.design,
            fits=gain.fits,
        )


def watts_in(question: CodesignQuestion, design: Design, process: str) -> float:
    """What the hungriest operator of a design draws, were it made in a built-in process."""
    made_in, curve = processes()[process], question.curve
    drawn = replace(
        question,
        space=subspace(question.space, np.array([design.index])),
        energy=energy_in(made_in, asdict(question.energy)),
        die=replace(question.die, logic_scale=made_in.area),
        curve=None if curve is None else replace(curve, volts=made_in.volts),
    )
    one = np.zeros(1, dtype=np.int64)
    priced = pricers(drawn, drawn.variants[design.variant])
    return float(max(each.hungriest_watts(one)[0] for each in priced))


def real_chip_records(
    question: CodesignQuestion,
    devices: dict[str, Accelerator],
    design: Design,
    request: codesign_document.CodesignRequest,
) -> Iterator[codesign_document.RealChipRecord]:
    """Chips of the catalog on the first model, same network, software and number of devices."""
    variant = question.variants[design.variant]
    links = request.surroundings[question.surroundings.index(variant.surroundings)].surroundings()
    job = question.jobs_of(variant)[0]
    area_mm2 = question.area_mm2(design.variant, design.index)
    own_rate = job.tokens_per_step / design.plans[0].step_s

    def denser(rate: float | None, facts: DieFacts, process: str | None) -> float | None:
        """Throughput by area over the design's, which is drawn in `process` if any is given."""
        if rate is None or facts.die_mm2 is None:
            return None
        die = question.die
        if process is not None:
            die = replace(die, logic_scale=processes()[process].area)
        own_mm2 = die.die_area_mm2(area_mm2)
        return rate / facts.die_mm2 / (own_rate / own_mm2)

    watts: dict[str, float] = {}
    for name, device in devices.items():
        pool = device_as_run(device, links, request.software)
        plan = real_chip_plan(pool, job, links=links, num_devices=question.num_devices)
        rate = None if plan is None else job.tokens_per_step / plan.step_s
        facts = dies().get(name, DieFacts(source=""))
        same = facts.process and denser(rate, facts, facts.process)
        if facts.process is not None and facts.process not in watts:
            watts[facts.process] = watts_in(question, design, facts.process)
        yield codesign_document.RealChipRecord(
            name=name,
            feasible=plan is not None,
            peak_flops_per_s=device.peak(device.default_precision),
            process=facts.process,
            die_area_mm2=facts.die_mm2,
            power_watts=device.power_watts,
            memory_bytes=device.memory_bytes,
            memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
            ratio_at_equal_area=denser(rate, facts, None),
            ratio_at_equal_process=same or None,
            design_watts=watts.get(facts.process or ""),
            die_source=facts.source,
            tokens_per_s=rate,
            tensor_parallel=None if plan is None else plan.tensor_degree,
            data_parallel=None if plan is None else plan.data_degree,
            pipeline_parallel=None if plan is None else plan.num_ranks,
            source=str(pool.accelerator.provenance_of("efficiency.gemm.max").origin),
        )


# Where two documents differ, figure by figure
# --------------------------------------------


def differences(
    stored: object, again: object, path: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Where two values of a document differ by more than a rounding, and both."""
    pairs: list[tuple[str, object, object]]
    if is_dataclass(stored) and is_dataclass(again):
        names = [each.name for each in fields(again)]
        pairs = [(f"{path}.{n}".lstrip("."), getattr(stored, n), getattr(again, n)) for n in names]
    elif isinstance(stored, dict) and isinstance(again, dict) and set(stored) == set(again):
        pairs = [(f"{path}.{name}", stored[name], again[name]) for name in again]
    elif isinstance(stored, tuple) and isinstance(again, tuple) and len(stored) != len(again):
        yield path, f"{len(stored)} entries", len(again)
        return
    elif isinstance(stored, tuple) and isinstance(again, tuple):
        both = enumerate(zip(stored, again, strict=True))
        pairs = [(f"{path}[{at}]", one, other) for at, (one, other) in both]
    else:
        numbers = all(isinstance(v, (int, float)) for v in (stored, again))
        same = stored == again
        if numbers and not same:
            same = math.isclose(stored, again, rel_tol=1e-9)  # type: ignore[arg-type]
        if not same:
            yield path, stored, again
        return
    for name, one, other in pairs:
        yield from differences(one, other, name)


def count_figures(value: object) -> int:
    """How many figures and words a value of a document has."""
    if is_dataclass(value):
        return sum(count_figures(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, (tuple, dict)):
        return sum(map(count_figures, value.values() if isinstance(value, dict) else value))
    return int(value is not None)


def told(found: Iterator[tuple[str, object, object]], other: str) -> str | None:
    """The first differences in words; None where there is none."""
    every = list(found)
    if not every:
        return None
    path, stored, again = every[0]
    words = f"{path}: the document says {stored}, {other} {again}"
    more = [path for path, *_ in every[1:]]
    if more:
        named = ", ".join(more[:5]) + (" and others" if len(more) > 5 else "")
        words += f"; {len(more)} more differ: {named}"
    return words


# What limits a design: the gain in throughput of a little more of each resource
# ------------------------------------------------------------------------------
# A gain is the best design's throughput with plans sought anew, everything else alike: finite
# differences, not derivatives, as plans change in steps. The area's is a search of a larger space.

RESOURCES: Final = (
    "clock_hz",
    "memory_bytes",
    "memory_bandwidth_bytes_per_s",
    "link_bandwidth_bytes_per_s",
    "glb_bytes_per_cycle",
)
_NO_LIMIT_UM2: Final = 1e12
TWICE: Final = ("num_tc", "num_vc", "glb_mib")
TOGETHER: Final = "surroundings"  # all of `RESOURCES` at once
WITH_PORT: Final = "num_tc+port"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """`factor` times a resource gives 1 + `gain` times the throughput.

    `design` is the chip that takes the place of the best, where one does. `fits` says whether its
    mean power keeps to the limit.
    """

    resource: str
    factor: float
    gain: float
    design: str | None = None
    fits: bool = True


def sensitivities(
    question: CodesignQuestion,
    outcome: CodesignOutcome,
    rules: SpaceRules,
    budget: Budget,
    *,
    factor: float = 1.1,
) -> tuple[Gain, ...]:
    """Gains of the best design by `factor` of each surrounding resource, of all of them at once and
    of area, and by twice the cores of a class or the global buffer, whatever their area.
    Empty without a best design.

    All cores take their operands through one port of the global buffer, which more of them do not
    widen: twice the cores can gain less than a tenth more area, for which the whole space is
    searched again and another shape of cores found. `WITH_PORT` is twice the cores and the port.
    """
    best = outcome.best
    if best is None:
        return ()
    variant = question.variants[best.variant]
    base = replace(
        question,
        space=subspace(question.space, np.array([best.index])),
        surroundings=(variant.surroundings,),
        microbatch_sizes=(variant.microbatch_size,),
        max_power_watts=None,
        max_mean_watts=None,
    )
    limit = question.max_mean_watts

    def gain(name: str, factor: float, changed: CodesignQuestion) -> Iterator[Gain]:
        found, _ = populate(changed, budget, scale_s=outcome.scale_s)
        if not len(found):  # the budget ended it
            return
        first = int(found.cost.argmin())
        fits = limit is None or bool(found.power_watts[first] <= limit)
        least = float(found.cost[first])
        yield Gain(resource=name, factor=factor, gain=best.cost / least - 1.0, fits=fits)

    around = variant.surroundings
    gains: list[Gain] = []
    for name in RESOURCES:
        more = replace(base, surroundings=(_more(around, name, factor),))
        gains += gain(name, factor, more)
    for name in RESOURCES:
        around = _more(around, name, factor)
    gains += gain(TOGETHER, factor, replace(base, surroundings=(around,)))
    for name in TWICE:
        changed = _twice(base, name)
        if changed is not None:
            gains += gain(name, 2.0, changed)
            if name == "num_tc":
                wider = (_more(variant.surroundings, "glb_bytes_per_cycle", 2.0),)
                gains += gain(WITH_PORT, 2.0, replace(changed, surroundings=wider))
    return (*gains, _area_gain(question, outcome, rules, budget, factor))


def _more(surroundings: Surroundings, name: str, factor: float) -> Surroundings:
    return replace(surroundings, **{name: getattr(surroundings, name) * factor})


def _twice(base: CodesignQuestion, name: str) -> CodesignQuestion | None:
    values = dict(zip(FIELDS, base.space.designs[:, 0].tolist(), strict=True))
    values[name] *= 2
    if name == "glb_mib" and values[name] > max(SpaceRules().glb_mib):
        return None  # beyond the area table
    rules = SpaceRules(
        **{name: (value,) for name, value in values.items()},
        largest_um2=_NO_LIMIT_UM2,
        least_share=0.0,
    )
    return replace(base, space=enumerate_designs(rules, table=base.space.table))


def _area_gain(
    question: CodesignQuestion,
    outcome: CodesignOutcome,
    rules: SpaceRules,
    budget: Budget,
    factor: float,
) -> Gain:
    assert outcome.best is not None
    wider = replace(rules, largest_um2=rules.largest_um2 * factor)
    makings = [variant.making for variant in question.variants]
    larger = replace(question, space=enumerate_designs(wider, makings, question.space.table))
    found = search(larger, budget).best
    reached = np.inf if found is None else found.cost
    gain = max(0.0, outcome.best.cost / reached - 1.0)  # where the budget ended it early
    design = str(larger.space.template(found.index)) if found is not None and gain else None
    return Gain(resource="area", factor=factor, gain=gain, design=design)
