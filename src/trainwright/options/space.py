"""What a plan may use: from options to `Allowed`, and to and from a document's record.

A degree is a number or a range: `8`, `4..8`, `..8`, `4..`. Lists are separated by commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trainwright.errors import Fault, InvalidInput
from trainwright.plans.plan import SEARCHED
from trainwright.plans.request import SpaceRecord, SpanRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainwright.planning.question.question import Allowed, ModelQuestion, Span
    from trainwright.plans.configuration import MemoryOverheads
    from trainwright.plans.parallelism import AxisOrder
    from trainwright.profile import Recompute

Degrees: TypeAlias = "str | int | Span | None"
Names: TypeAlias = "str | Iterable[str] | None"
Stages: TypeAlias = "str | int | Iterable[int] | None"

# Fields of `Allowed` that are spans, as options.
SPANS: Final[Mapping[str, str]] = {
    "tensor": "tp",
    "pipeline": "pp",
    "data": "dp",
    "context": "cp",
    "expert": "ep",
    "expert_tensor": "etp",
    "virtual_stages": "virtual-stages",
    "microbatch_size": "micro-batch",
    "state_copies": "state-copies",
}
OPTION_OF: Final[Mapping[str, str]] = {
    **SPANS,
    "zero_stages": "zero",
    "mappings": "mapping",
    "recompute": "recompute",
    "schedules": "schedule",
    "framework": "framework",
}
_RANGE: Final = re.compile(r"\s*(\d[\d_]*)?\s*(\.\.)?\s*(\d[\d_]*)?\s*")
OLD_MAPPINGS: Final = ("tp-cp-ep-dp-pp",)  # of documents without a list of mappings
OLD_ZERO_STAGE: Final = 1  # what documents without a list of stages were planned with


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """The options as given; None where the search is free to choose.

    `degrees` is by field of `Allowed`; `forbidden` are fields that a --no option sets to 1.
    """

    degrees: Mapping[str, Degrees]
    zero: Stages = None
    mappings: Names = None
    recompute: bool | Names = True
    schedules: Names = None
    framework: str | None = None
    forbidden: tuple[str, ...] = ()
    excluded: frozenset[str] = frozenset()


def allowed_by(options: SpaceOptions) -> Allowed:
    """What the options leave; raises `InvalidInput` with the fault of every option."""
    from trainwright.planning.question.question import ANY, ZERO_STAGES, Allowed

    faults: list[Fault] = []
    spans: dict[str, Span] = {}
    for name, given in options.degrees.items():
        try:
            spans[name] = ANY if given is None else parse_span(given, SPANS[name])
        except InvalidInput as error:
            faults += error.faults
    for name in options.forbidden:
        if options.degrees.get(name) not in (None, 1, "1"):
            off = f"--no-{name}-parallel"
            faults.append(Fault(SPANS[name], f"must not be given together with {off}"))
        spans[name] = ANY.only(1)
    stages: tuple[int, ...] = ZERO_STAGES
    modes, families = _modes(options, faults), None
    searches_orders = False
    try:
        stages = _zero_stages(options.zero)
    except InvalidInput as error:
        faults += error.faults
    mappings = _mappings(options.mappings, faults)
    if options.schedules is not None:
        families, searches_orders = _families(options.schedules, faults)
    faults += (f for name, span in spans.items() for f in _span_faults(SPANS[name], span))
    framework = _framework(options.framework, faults)
    if faults:
        raise InvalidInput(faults)
    return Allowed(
        **spans,
        only_bounded=(),
        zero_stages=stages,
        mappings=mappings,
        recompute=modes,
        schedules=families,
        searches_orders=searches_orders,
        framework=framework,
    )


def _framework(name: str | None, faults: list[Fault]) -> str | None:
    from trainwright.plans.capability import target_named

    if name is None or name == "any":
        return None
    try:
        return target_named(name)
    except InvalidInput as error:
        faults += (Fault("framework", fault.problem) for fault in error.faults)
    return None


def parse_span(given: str | int | Span, name: str) -> Span:
    """A number or a range; raises `InvalidInput` naming the option."""
    from trainwright.planning.question.question import Span

    if isinstance(given, Span):
        return given
    match = None if isinstance(given, bool) else _RANGE.fullmatch(str(given))
    low, dots, high = match.groups() if match else (None, None, None)
    if not (low or high):
        wanted = "must be a number or a range such as 8, 4..8, ..8 or 4.."
        raise InvalidInput.of(name, f'{wanted}, got "{given}"')
    least = int(low) if low else 1
    return Span(least=least, most=(int(high) if high else None) if dots else least)


def _span_faults(name: str, span: Span) -> Iterator[Fault]:
    most = span.most
    if span.least < 1 or (most is not None and most < 1):
        yield Fault(name, f"must be >= 1, got {span.least if span.least < 1 else most}")
    elif most is not None and most < span.least:
        yield Fault(
            name, f"must not be empty, got {span.least}..{most}; write {most}..{span.least}"
        )


def _words(given: str | Iterable[str]) -> list[str]:
    words = given.split(",") if isinstance(given, str) else given
    return list(dict.fromkeys(word.strip() for word in words))


def _zero_stages(given: Stages) -> tuple[int, ...]:
    from trainwright.planning.question.question import ZERO_STAGES

    if given is None:
        return ZERO_STAGES
    stages = given.split(",") if isinstance(given, str) else given
    listed = list(stages) if isinstance(stages, Iterable) else [stages]
    numbers = [stage.strip() if isinstance(stage, str) else stage for stage in listed]
    known = {str(stage): stage for stage in ZERO_STAGES}
    faults = [
        Fault("zero", f"must be 0, 1, 2 or 3, or a list such as 0,1; got {number}")
        for number in numbers
        if str(number) not in known
    ]
    if faults or not numbers:
        raise InvalidInput(faults or [Fault("zero", "must name at least one stage, got none")])
    return tuple(sorted({known[str(number)] for number in numbers}))


def _mappings(given: Names, faults: list[Fault]) -> tuple[AxisOrder, ...]:
    """In one order, whatever the list's."""
    from trainwright.plans.parallelism import AXIS_ORDERS, mapping_named

    if given is None:
        return AXIS_ORDERS
    named = set()
    for word in _words(given):
        try:
            named.add(mapping_named(word))
        except InvalidInput as error:
            faults += error.faults
    return tuple(order for order in AXIS_ORDERS if order in named) or AXIS_ORDERS


def _modes(options: SpaceOptions, faults: list[Fault]) -> tuple[Recompute, ...]:
    from trainwright.profile import Recompute

    given, modes = options.recompute, tuple(Recompute)
    if given is False:
        modes = (Recompute.NONE,)
    elif given is not True and given is not None:
        words = _words(given)
        for word in words:
            if word not in set(Recompute):
                offered = ", ".join(Recompute)
                faults.append(Fault("recompute", f'must list {offered}, got "{word}"'))
        modes = tuple(mode for mode in Recompute if mode in words)
    for option in sorted(options.excluded - set(Recompute)):
        offered = ", ".join(Recompute)
        faults.append(
            Fault("exclude-option", f'must be one of {offered} for a model, got "{option}"')
        )
    left = tuple(mode for mode in modes if mode not in options.excluded)
    if modes and not left:
        excluded = ", ".join(sorted(options.excluded))
        wanted = f"must leave one of {', '.join(modes)}"
        faults.append(Fault("exclude-option", f"{wanted}, got {excluded}"))
    return left


def _families(
    given: str | Iterable[str], faults: list[Fault]
) -> tuple[tuple[str, ...] | None, bool]:
    """By the names of the registry, whatever alias was given, and whether orders are searched.

    All families are free where nothing but a search is asked for.
    """
    from trainwright.scheduling.families import ALIASES, FAMILIES, family_named

    names: list[str] = []
    words = _words(given)
    for word in words:
        try:
            if word == SEARCHED:
                continue
            names.append(family_named(word).name)
        except InvalidInput as error:
            near = get_close_matches(word, (*FAMILIES, *ALIASES, SEARCHED), n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            faults += (Fault("schedule", f"{fault.problem}{hint}") for fault in error.faults)
    free = words == [SEARCHED]
    return None if free else tuple(dict.fromkeys(names)), SEARCHED in words


def record_of(allowed: Allowed, *, excluded: Iterable[str], per_stage_degrees: bool) -> SpaceRecord:
    """As a document carries it."""
    from trainwright.planning.question.question import ANY, Span
    from trainwright.plans.parallelism import mapping_name
    from trainwright.profile import Recompute

    spans: dict[str, Any] = {}
    for name in SPANS:
        span = getattr(allowed, name)
        spans[name] = None if span == ANY else SpanRecord(least=span.least, most=span.most)
    return SpaceRecord(
        data_parallel=allowed.data != Span.only(1),
        tensor_parallel=allowed.tensor != Span.only(1),
        recompute=allowed.recompute != (Recompute.NONE,),
        excluded_options=tuple(sorted(excluded)),
        per_stage_degrees=per_stage_degrees,
        **spans,
        zero_stages=allowed.zero_stages,
        recompute_modes=tuple(map(str, allowed.recompute)),
        schedules=schedule_words(allowed),
        framework=allowed.framework,
        mappings=tuple(map(mapping_name, allowed.mappings)),
    )


def schedule_words(allowed: Allowed) -> tuple[str, ...] | None:
    """What `--schedule` names, if it is given."""
    if not allowed.searches_orders:
        return allowed.schedules
    return (*(allowed.schedules or ()), SEARCHED)


def allowed_of(record: SpaceRecord) -> Allowed:
    """What a document's record allows, also one that an earlier version wrote.

    Raises `InvalidInput` under the record's own keys.
    """
    from trainwright.planning.question.question import ANY, Allowed, Span
    from trainwright.plans.parallelism import mapping_named
    from trainwright.profile import Recompute

    spans: dict[str, Span] = {}
    for name in SPANS:
        stated: SpanRecord | None = getattr(record, name)
        spans[name] = ANY if stated is None else Span(least=stated.least, most=stated.most)
    if not record.data_parallel:
        spans["data"] = Span.only(1)
    if not record.tensor_parallel:
        spans["tensor"] = Span.only(1)
    if not record.mappings:  # written before hybrid shard was searched
        spans["state_copies"] = Span.only(1)
    if record.micro_batch is not None:
        spans["microbatch_size"] = Span.only(record.micro_batch)
    old_zero = OLD_ZERO_STAGE if record.zero_stage is None else record.zero_stage
    modes = record.recompute_modes or (tuple(Recompute) if record.recompute else (Recompute.NONE,))
    unknown = [mode for mode in modes if mode not in set(Recompute)]
    if unknown:
        offered = ", ".join(Recompute)
        raise InvalidInput.of("recompute_modes", f'must list {offered}, got "{unknown[0]}"')
    families = record.schedules
    if families is not None and SEARCHED in families:
        families = tuple(family for family in families if family != SEARCHED) or None
    return Allowed(
        **spans,
        only_bounded=(),
        zero_stages=record.zero_stages or (old_zero,),
        recompute=tuple(
            mode for mode in map(Recompute, modes) if mode not in record.excluded_options
        ),
        schedules=families,
        searches_orders=SEARCHED in (record.schedules or ()),
        framework=record.framework,
        mappings=tuple(map(mapping_named, record.mappings or OLD_MAPPINGS)),
    )


# The options that a document's space was searched with; the inverse of `space_options`
# -------------------------------------------------------------------------------------


def _switched_off(space: SpaceRecord) -> Iterator[str]:
    for name in ("data_parallel", "tensor_parallel", "recompute"):
        if not getattr(space, name):
            yield f"--no-{name.replace('_', '-')}"
    for option in space.excluded_options:
        yield from ("--exclude-option", option)


def profile_space_words(space: SpaceRecord) -> Iterator[str]:
    """Of a profile's plan."""
    yield from _switched_off(space)
    if space.planner != "exact":
        yield from ("--planner", space.planner)
    if space.block_layer is not None:
        yield from ("--block-layer", space.block_layer)


def model_space_words(space: SpaceRecord) -> Iterator[str]:
    """Of a model's plan: what is allowed, where that is not everything."""
    from trainwright.planning.question.question import ANY, ZERO_STAGES
    from trainwright.plans.parallelism import AXIS_ORDERS, mapping_name
    from trainwright.profile import Recompute

    yield from _switched_off(space)
    allowed = allowed_of(space)
    off = {"data": not space.data_parallel, "tensor": not space.tensor_parallel}
    for name, option in SPANS.items():
        span = getattr(allowed, name)
        if span != ANY and not off.get(name, False):
            yield from (f"--{option}", _span_text(span))
    if allowed.zero_stages != ZERO_STAGES:
        yield from ("--zero", ",".join(map(str, allowed.zero_stages)))
    if allowed.mappings != AXIS_ORDERS:
        yield from ("--mapping", ",".join(map(mapping_name, allowed.mappings)))
    modes = tuple(m for m in Recompute if m not in space.excluded_options)
    if space.recompute and allowed.recompute != modes:
        yield from ("--recompute", ",".join(allowed.recompute))
    if (schedules := schedule_words(allowed)) is not None:
        yield from ("--schedule", ",".join(schedules))
    if allowed.framework is not None:
        yield from ("--framework", allowed.framework)
    if space.per_stage_degrees:
        yield "--per-stage-degrees"


def memory_words(overheads: MemoryOverheads | None) -> Iterator[str]:
    """What a device keeps beside the plan, where that is not the default."""
    from trainwright.plans.configuration import DEFAULT_OVERHEADS, NO_OVERHEADS

    given, usual = overheads or NO_OVERHEADS, DEFAULT_OVERHEADS
    if given.reserve_bytes != usual.reserve_bytes:
        yield from ("--reserve", repr(given.reserve_bytes))
    if given.workspace_bytes != usual.workspace_bytes:
        yield from ("--workspace", repr(given.workspace_bytes))
    if given.fragmentation != usual.fragmentation:
        yield from ("--fragmentation", repr(given.fragmentation))


def _span_text(span: Span) -> str:
    if span.most == span.least:
        return str(span.least)
    return f"{span.least}..{'' if span.most is None else span.most}"


def refuse_no_search(question: ModelQuestion, *, per_stage_degrees: bool) -> None:
    """Raise `InvalidInput` where orders are asked for and cannot be searched or run."""
    if not question.allowed.searches_orders:
        return
    from trainwright.plans.capability import alternatives, capability_of
    from trainwright.plans.capability_table import Feature

    if per_stage_degrees:
        raise InvalidInput.of(
            "schedule", f"{SEARCHED} must not be given together with --per-stage-degrees"
        )
    if len(question.cluster.pools) > 1:
        problem = f"{SEARCHED} is for clusters of one pool; plan on each pool alone"
        raise InvalidInput.of("schedule", problem)
    framework = question.allowed.framework
    if framework is not None and not capability_of(framework).can(Feature.CUSTOM_ORDER):
        how = capability_of(framework).cells[Feature.CUSTOM_ORDER].how
        able = ", ".join(alternatives(Feature.CUSTOM_ORDER))
        raise InvalidInput.of("schedule", f"{SEARCHED}: {framework} {how}; what can: {able}")
