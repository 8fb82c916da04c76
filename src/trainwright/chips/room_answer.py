"""The answer of a machine room: from the outcome of a search to its document and its tables."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright._version import __version__
from trainwright.chips.document import architecture_record, plan_record
from trainwright.chips.request import question_of
from trainwright.chips.room import AIMS, AXES, Limits, Room, RoomPricer, standing_in
from trainwright.chips.room_proof import Branch, prove
from trainwright.chips.room_search import RoomSearch, least_of
from trainwright.chips.search import Design
from trainwright.chips.tables import core_rows
from trainwright.documents.view import Facts, column, number, percent, seconds, table_of, words
from trainwright.errors import CheckFailed, InvalidInput
from trainwright.formats.codesign_document import (
    BranchRecord,
    NextValueRecord,
    RoomProofRecord,
    RoomRecord,
    RoomRequest,
    RoomResult,
    SystemRecord,
    TimePartRecord,
)
from trainwright.plans.plan import DEFAULT_SCHEDULE
from trainwright.plans.status import relative_gap
from trainwright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.arrays import Indices
    from trainwright.chips.room_search import Found, RoomOutcome
    from trainwright.documents.view import Line, Table
    from trainwright.execution import Budget
    from trainwright.formats.codesign_document import CodesignRequest

USUAL_GAP = 0.01
_UNITS = {"time": "seconds_per_token", "cost": "dollars_per_token", "energy": "joules_per_token"}
_PARTS = ("mac", "vector", "hbm", "glb", "launch")


def room_request(
    chips: CodesignRequest,
    room: Room,
    *,
    aim: str,
    gap: float,
    dollars: float | None = None,
    watts: float | None = None,
    silicon_mm2: float | None = None,
) -> RoomRequest:
    """The request as its document carries it; raises `InvalidInput` with what is wrong."""
    if aim not in AIMS:
        raise InvalidInput.of("aim", f'must be one of {", ".join(AIMS)}, got "{aim}"')
    if not 0 <= gap < 1:
        raise InvalidInput.of("gap", f"must be at least 0 and below 1, got {gap!r}")
    limits = {"budget-money": dollars, "budget-power": watts, "budget-area": silicon_mm2}
    for name, limit in limits.items():
        if limit is not None and not limit > 0:
            raise InvalidInput.of(name, f"must be > 0, got {limit!r}")
    for name in ("surroundings", "microbatch_sizes", "precisions"):
        if len(getattr(chips, name)) > 1:
            option = {"surroundings": "clock", "precisions": "precision"}.get(name, "micro-batch")
            raise InvalidInput.of(option, "must be a single value: the room has axes of its own")
    jobs = tuple(replace(job, schedules=(DEFAULT_SCHEDULE,)) for job in chips.jobs)
    return RoomRequest(
        trainwright_version=__version__,
        chips=replace(chips, jobs=jobs),
        room=RoomRecord(**asdict(room)),
        aim=aim,
        wanted_gap=gap,
        budget_dollars=dollars,
        budget_watts=watts,
        budget_mm2=silicon_mm2,
    )


def pricer_of(request: RoomRequest) -> RoomPricer:
    """What prices the systems of a request."""
    room = Room(**asdict(request.room))
    chips = request.chips
    return RoomPricer(question_of(chips), room, chips.losses, chips.die)


def limits_of(request: RoomRequest) -> Limits:
    """Its budgets."""
    return Limits(
        dollars=request.budget_dollars,
        watts=request.budget_watts,
        silicon_mm2=request.budget_mm2,
    )


def answer(request: RoomRequest, budget: Budget) -> RoomResult:
    """Search the systems of a request, and say what binds the best and what more would buy."""
    pricer, limits = pricer_of(request), limits_of(request)
    aim, gap = request.aim, request.wanted_gap
    outcome = RoomSearch(pricer, aim=aim, limits=limits, gap=gap, budget=budget).run()
    best, bound = outcome.best, outcome.lower_bound
    room, space = pricer.room, pricer.question.space
    made = RoomResult(
        request=request,
        status=outcome.status,
        objective=_UNITS[aim],
        value=None if best is None else best.value,
        lower_bound=bound,
        gap=None if best is None or bound is None else relative_gap(best.value, bound),
        systems=len(space) * len(room.stacks) * int(np.prod(room.sizes)),
        priced=outcome.priced,
        space_sha256=space.checksum(),
        certificate=tuple(_branches(outcome)),
        search_s=outcome.solver_s,
    )
    if best is None:
        return made
    return replace(
        made,
        best=system_record(pricer, best),
        front=tuple(system_record(pricer, one) for one in least_of(outcome.seen, (0, 1, 3))),
        step_parts=tuple(step_parts(pricer, best)),
        next_values=tuple(next_values(pricer, best, aim, limits)),
    )


def recheck(document: RoomResult, *, sample: int, seed: int, budget: Budget) -> RoomResult:
    """The document with its certificate checked; raises `CheckFailed` where it proves nothing."""
    request, best = document.request, document.best
    pricer = pricer_of(request)
    if pricer.question.space.checksum() != document.space_sha256:
        raise CheckFailed("the space of designs is another than that of the certificate")
    bound = np.inf if document.lower_bound is None else document.lower_bound
    if best is not None:
        _check_best(pricer, document, best, bound)
    tree = {
        one.path: Branch(
            None if one.axis is None else AXES.index(one.axis),
            {int(stacks): _designs(text) for stacks, text in one.left.items()},
        )
        for one in document.certificate
    }
    found = prove(
        pricer,
        tree,
        aim=request.aim,
        limits=limits_of(request),
        lower_bound=bound,
        sample=sample,
        seed=seed,
        budget=budget,
    )
    return replace(document, proof=RoomProofRecord(**asdict(found), seed=seed))


def _check_best(pricer: RoomPricer, document: RoomResult, best: SystemRecord, bound: float) -> None:
    """The best system priced again, and its place above the bound."""
    room, value = pricer.room, document.value
    place = tuple(getattr(room, name).index(getattr(best, name)) for name in AXES)
    chip, space = best.architecture, pricer.question.space
    key = (chip.num_tc, chip.num_vc, chip.width, chip.depth, chip.glb_bytes)
    names = ("num_tc", "num_vc", "width", "depth")
    same = np.all([space.column(n) == v for n, v in zip(names, key, strict=False)], axis=0)
    rows = np.flatnonzero(same & (space.column("glb_mib") * 2**20 == chip.glb_bytes))
    figures, _ = pricer.price(best.stacks, room.system(place), rows)
    kept = limits_of(document.request).kept(figures)
    again = float(np.where(kept, figures.of(document.request.aim), np.inf).min(initial=np.inf))
    if value is None or not np.isclose(again, value, rtol=1e-9, atol=0.0) or value < bound:
        raise CheckFailed(f"the best system has {again:.9g} of the aim, the document says {value}")


def _designs(text: str) -> Indices:
    """Numbers from ranges, as `BranchRecord` has them."""
    parts = [tuple(map(int, part.split("-"))) for part in text.split(",")] if text else []
    every = [np.arange(part[0], part[-1] + 1) for part in parts]
    return np.concatenate(every) if every else np.zeros(0, dtype=np.int64)


def _ranges(rows: Indices) -> str:
    cuts = np.flatnonzero(np.diff(rows) > 1) + 1
    runs = [(int(run[0]), int(run[-1])) for run in np.split(rows, cuts) if run.size]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _branches(outcome: RoomOutcome) -> Iterator[BranchRecord]:
    for path, closing in sorted(outcome.tree.items()):
        yield BranchRecord(
            path=path,
            axis=None if closing.axis is None else AXES[closing.axis],
            left={str(s): _ranges(np.sort(rows)) for s, rows in closing.left.items()},
        )


def system_record(pricer: RoomPricer, found: Found) -> SystemRecord:
    """A priced system as a document carries it."""
    system = pricer.room.system(found.place)
    around = pricer.surroundings(found.stacks, system)
    variant = pricer.variant(around)
    question = replace(pricer.question, surroundings=(around,), num_devices=system.devices)
    design = Design(variant=0, index=found.design, plans=found.plans, cost=found.value)
    one = np.array([found.design])
    plans = []
    for made, job, plan in zip(
        pricer.pricers(found.stacks), question.jobs_of(variant), found.plans, strict=True
    ):
        joules = float(standing_in(made, around, system.devices).energies_j(one, [plan])[0])
        plans.append(plan_record(question, job, plan, joules, design))
    pace_s, cost, energy_j, watts, dollars, silicon_mm2 = found.figures
    return SystemRecord(
        architecture=architecture_record(question, found.design, variant),
        stacks=found.stacks,
        **system._asdict(),
        seconds_per_token=pace_s,
        dollars_per_token=cost,
        joules_per_token=energy_j,
        watts=watts,
        dollars=dollars,
        silicon_mm2=silicon_mm2,
        plans=tuple(plans),
    )


# Why: where the step of the first model goes, and what the next value of each axis buys
# --------------------------------------------------------------------------------------


def step_parts(pricer: RoomPricer, found: Found) -> Iterator[TimePartRecord]:
    """The step of the first model, by kind of layer and what binds its kernels; adds up to it.

    Kernels count on the rank that is busiest: all microbatches of an even share of the layers.
    What ranks wait for (the filling of the pipeline, longer ranks, transfers, the exchange of
    gradients, the update) is what is left.
    """
    from trainwright.chips.price import uses_of

    system, plan = pricer.room.system(found.place), found.plans[0]
    around = pricer.surroundings(found.stacks, system)
    job = pricer.question.jobs_of(pricer.variant(around))[0]
    chain = job.chain(plan.tensor_degree)
    times = job.num_microbatches / plan.data_degree / plan.num_ranks
    totals: dict[tuple[str, str], float] = {}
    repeated = sum(str(mode) == "full" for mode in plan.recompute) / len(plan.recompute)
    links = chain.collective_s(around)
    for index, (layer, count) in enumerate(
        zip(chain.graph.classes, chain.class_counts.tolist(), strict=True)
    ):
        kind = str(layer.kind)
        for use in uses_of(pricer.question.space, found.design, around, chain, index):
            again = repeated if chain.repeats[index] and use.kernel.phase == "forward" else 0.0
            key = (kind, use.bound)
            totals[key] = totals.get(key, 0.0) + use.seconds * count * times * (1.0 + again)
        sent = sum(float(each[index]) for phase, each in links.items())
        sent += repeated * float(links[next(p for p in links if p == "forward")][index])
        if sent:
            key = (kind, "tensor links")
            totals[key] = totals.get(key, 0.0) + sent * count * times
    totals["pipeline and replicas", "waiting"] = plan.step_s - sum(totals.values())
    for (part, bound), spent_s in sorted(totals.items(), key=lambda item: -item[1]):
        yield TimePartRecord(part=part, bound=bound, seconds=spent_s, share=spent_s / plan.step_s)


def next_values(
    pricer: RoomPricer, found: Found, aim: str, limits: Limits
) -> Iterator[NextValueRecord]:
    """Every axis one value up, or down from its last, with the same design planned anew."""
    room, one = pricer.room, np.array([found.design])
    now = dict(zip(AXES, found.place, strict=True))
    alone = room.system(found.place).node_devices == 1
    for axis in ("stacks", *AXES):
        values = getattr(room, axis)
        if alone and axis in ("node_gbytes_per_s", "topology"):
            continue  # a domain of one chip has no links
        at = values.index(found.stacks) if axis == "stacks" else now[axis]
        after = at + 1 if at + 1 < len(values) else at - 1
        if after < 0:
            continue
        stacks = values[after] if axis == "stacks" else found.stacks
        place = tuple(after if name == axis else now[name] for name in AXES)
        if not pricer.is_sound(stacks, room.system(place)):
            continue
        figures, _ = pricer.price(stacks, room.system(place), one)
        value, pace_s = float(figures.of(aim)[0]), float(figures.pace_s[0])
        if not np.isfinite(value):
            continue
        yield NextValueRecord(
            axis=axis,
            now=f"{values[at]:g}" if axis != "topology" else values[at],
            then=f"{values[after]:g}" if axis != "topology" else values[after],
            step_gain=found.figures[0] / pace_s - 1.0,
            value_gain=found.value / value - 1.0,
            dollars=float(figures.dollars[0]) - found.figures[4],
            fits=bool(limits.kept(figures)[0]),
        )


# What a terminal and a page show of it
# -------------------------------------

_NAMES = {
    "stacks": "memory stacks",
    "stack_gib": "GiB of a stack",
    "node_devices": "chips of a domain",
    "node_gbytes_per_s": "GB/s in a domain",
    "cards": "network cards",
}


def room_view(found: RoomResult) -> Iterator[Line]:
    """The verdict, the best system, why, and the front."""
    yield Facts(title="machine room", rows=tuple(_summary(found)))
    if found.best is None:
        return
    yield Facts(title="best system", rows=tuple(_system(found.best)))
    yield _plans(found.best)
    yield _why(found)
    yield _next(found)
    if len(found.front) > 1:
        yield _front(found)


def _summary(found: RoomResult) -> Iterator[tuple[str, str]]:
    yield "status", str(found.status)
    yield "aim", found.objective.replace("_", " ")
    yield "systems", f"{found.systems:,}, of which {found.priced:,} were priced in full"
    if found.value is not None and found.gap is not None:
        yield "value", f"{found.value:.4g}, proved to be within {found.gap:.2%} of the best"
    yield "CPU", f"{found.search_s:.1f} s search, {len(found.certificate):,} boxes"
    if found.proof is not None:
        proof = found.proof
        yield (
            "rechecked",
            f"{proof.repriced:,} of {proof.closed:,} closed designs, {proof.drawn:,} systems",
        )
    for warning in found.warnings:
        yield "warning", warning


def _system(best: SystemRecord) -> Iterator[tuple[str, str]]:
    around = best.architecture.surroundings
    yield from core_rows(best.architecture)
    size = f"{best.stacks} stacks of {best.stack_gib:g} GiB"
    yield "memory", f"{size}, {around.memory_bandwidth_bytes_per_s / 1e12:.4g} TB/s"
    domain = f"{best.node_devices} chips, {best.node_gbytes_per_s:g} GB/s each, {best.topology}"
    yield "domain", domain if best.node_devices > 1 else "single chips"
    yield "network", f"{best.cards:g} cards a chip, oversubscribed {best.oversubscription:g}:1"
    yield "devices", f"{best.devices:,}, {best.silicon_mm2:,.0f} mm2 of dies"
    yield "price", f"{best.dollars:,.0f} dollars, {best.dollars_per_token * 1e9:.4g} for 1e9 tokens"
    yield "power", f"{best.watts / 1e3:,.4g} kW rated, {best.joules_per_token:.4g} J a token"


def _plans(best: SystemRecord) -> Table:
    return table_of(
        "Plans",
        (
            words("model"),
            column("tensor", "tensor_parallel", "t"),
            column("data", "data_parallel", "d"),
            column("pipeline", "pipeline_parallel", "p"),
            words("recompute"),
            column("step", "step_time_s"),
            column("tokens/s", "tokens_per_s"),
            column("MFU", "mfu"),
        ),
        (
            (
                plan.model,
                *(plan.tensor_parallel, plan.data_parallel, plan.pipeline_parallel),
                plan.recompute,
                seconds(plan.step_time_s),
                number(plan.tokens_per_s),
                percent(plan.mfu),
            )
            for plan in best.plans
        ),
        caption="plans",
    )


def _why(found: RoomResult) -> Table:
    from trainwright.chips.tables import BOUNDS

    total = sum(part.seconds for part in found.step_parts)
    rows = [(p.part, BOUNDS.get(p.bound, p.bound), p.seconds, p.share) for p in found.step_parts]
    return table_of(
        "What binds",
        (
            words("layers", "part"),
            words("bound by", "bound"),
            column("time", "seconds"),
            column("share"),
        ),
        (
            (part, bound, seconds(spent_s), percent(share))
            for part, bound, spent_s, share in (*rows, ("step", "", total, 1.0))
        ),
        caption="where the first model's step goes",
    )


def _next(found: RoomResult) -> Table:
    return table_of(
        "What the next value buys",
        (
            words("axis"),
            words("from", "now"),
            words("to", "then"),
            column("speed", "step_gain"),
            column("aim", "value_gain"),
            column("dollars"),
            words("", "fits"),
        ),
        (
            (
                _NAMES.get(one.axis, one.axis),
                one.now,
                one.then,
                percent(one.step_gain, digits=2, sign=True),
                percent(one.value_gain, digits=2, sign=True),
                number(one.dollars, "+,.0f"),
                "" if one.fits else "over budget",
            )
            for one in sorted(found.next_values, key=lambda one: -one.value_gain)
        ),
        caption="the next value of each axis, planned anew",
    )


def _front(found: RoomResult) -> Table:
    shown = found.front[:: max(1, len(found.front) // 12)][:12]
    return table_of(
        "The front",
        (
            words("cores", "cores"),
            column("devices"),
            column("GiB", "memory_gib"),
            column("domain", "node_devices"),
            column("cards"),
            column("step", "step_time_s"),
            column("dollars"),
            column("per 1e9 tokens", "dollars_per_token"),
            column("kW", "watts"),
        ),
        (
            (
                f"{one.architecture.num_tc} x {one.architecture.width} x {one.architecture.depth}",
                one.devices,
                number(one.stacks * one.stack_gib, "g"),
                one.node_devices,
                number(one.cards, "g"),
                format_seconds(one.plans[0].step_time_s),
                number(one.dollars, ",.0f"),
                number(one.dollars_per_token * 1e9, ".4g"),
                number(one.watts / 1e3, ".4g"),
            )
            for one in shown
        ),
        caption=f"of priced systems, those that none beats: {len(shown)} of {len(found.front)}",
    )
