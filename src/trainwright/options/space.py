"""What a plan may use: from options to `Allowed`, and to and from a document's record.

A degree is a number or a range: `8`, `4..8`, `..8`, `4..`. Lists are separated by commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from trainwright.errors import Fault, InvalidInput, meant, one_of
from trainwright.options.clusters import ANY_FRAMEWORK
from trainwright.options.option import DEGREE, Options
from trainwright.options.table import fields_given, rows_of
from trainwright.planning.question.question import ANY, ZERO_STAGES, Allowed, ModelQuestion, Span
from trainwright.plans.capability import alternatives, capability_of, target_named
from trainwright.plans.capability_table import Feature
from trainwright.plans.plan import (
    AXIS_ORDERS,
    SEARCHED,
    AxisOrder,
    SpaceRecord,
    SpanRecord,
    mapping_name,
    mapping_named,
)
from trainwright.profile import USUAL_MODES, Recompute
from trainwright.scheduling.families import FAMILIES, family_named

# Fields of `Allowed` that are spans, as options.
SPANS: Final[Mapping[str, str]] = {
    path.removeprefix("space."): row.flag
    for row in rows_of("plan")
    for path in row.nouns
    if row.reader is DEGREE
}
_RANGE: Final = re.compile(r"\s*(\d[\d_]*)?\s*(\.\.)?\s*(\d[\d_]*)?\s*")


def allowed_by(options: Options, *, excluded: frozenset[str] = frozenset()) -> Allowed:
    """What the options leave; raises `InvalidInput` with the fault of every option.

    `excluded` are modes of recomputation that are left out.
    """
    faults: list[Fault] = []
    spans: dict[str, Span] = {}
    for name, given in fields_given("plan", "space", options).items():
        try:
            if name in SPANS:
                spans[name] = parse_span(given, SPANS[name])
        except InvalidInput as error:
            faults += error.faults
    for name in ("data", "tensor"):
        if options.get(f"{name}_parallel", True):
            continue
        if options.get(SPANS[name]) not in (None, 1, "1"):
            off = f"--no-{name}-parallel"
            faults.append(Fault(SPANS[name], f"must not be given together with {off}"))
        spans[name] = ANY.only(1)
    stages: tuple[int, ...] = ZERO_STAGES
    modes, families = _modes(options.get("recompute"), excluded, faults), None
    searches_orders = False
    try:
        stages = _zero_stages(options.get("zero"))
    except InvalidInput as error:
        faults += error.faults
    mappings = _mappings(options.get("mapping"), faults)
    if (schedules := options.get("schedule")) is not None:
        families, searches_orders = _families(schedules, faults)
    faults += (f for name, span in spans.items() for f in _span_faults(SPANS[name], span))
    faults += _link_faults(modes, families)
    framework = _framework(options.get("framework"), faults)
    if faults:
        raise InvalidInput(faults)
    return Allowed(
        **spans,
        only_bounded=(),
        recomputes_first=False,
        zero_stages=stages,
        mappings=mappings,
        recompute=modes,
        schedules=families,
        searches_orders=searches_orders,
        framework=framework,
    )


def _link_faults(modes: Sequence[Recompute], families: Sequence[str] | None) -> Iterator[Fault]:
    """Layers and orders that copy activations by themselves would share the link to the host."""
    copying = [name for name in families or () if FAMILIES[name].host_of is not None]
    if "offload" in modes and copying:
        problem = "must not list offload beside schedules that leave activations on the host"
        yield Fault("recompute", f"{problem}, got {', '.join(copying)}")


def _framework(name: str | None, faults: list[Fault]) -> str | None:
    if name is None or name == ANY_FRAMEWORK:
        return None
    try:
        return target_named(name)
    except InvalidInput as error:
        faults += (Fault("framework", fault.problem) for fault in error.faults)
    return None


def parse_span(given: str | int | Span, name: str) -> Span:
    """A number or a range; raises `InvalidInput` naming the option."""
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


def _zero_stages(given: Any) -> tuple[int, ...]:
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


def _mappings(given: Any, faults: list[Fault]) -> tuple[AxisOrder, ...]:
    """In one order, whatever the list's."""
    if given is None:
        return AXIS_ORDERS
    named = set()
    for word in _words(given):
        try:
            named.add(mapping_named(word))
        except InvalidInput as error:
            faults += error.faults
    return tuple(order for order in AXIS_ORDERS if order in named) or AXIS_ORDERS


def _modes(given: Any, excluded: frozenset[str], faults: list[Fault]) -> tuple[Recompute, ...]:
    modes: tuple[Recompute, ...] = USUAL_MODES
    if given is False:
        modes = (Recompute.NONE,)
    elif given is not True and given is not None:
        words = _words(given)
        unknown = [word for word in words if word not in set(Recompute)]
        faults += [Fault("recompute", one_of(Recompute, word)) for word in unknown]
        modes = tuple(mode for mode in Recompute if mode in words)
    for option in sorted(excluded - set(Recompute)):
        offered = ", ".join(Recompute)
        faults.append(
            Fault("exclude-option", f'must be one of {offered} for a model, got "{option}"')
        )
    left = tuple(mode for mode in modes if mode not in excluded)
    if modes and not left:
        given_up = ", ".join(sorted(excluded))
        wanted = f"must leave one of {', '.join(modes)}"
        faults.append(Fault("exclude-option", f"{wanted}, got {given_up}"))
    return left


def _families(
    given: str | Iterable[str], faults: list[Fault]
) -> tuple[tuple[str, ...] | None, bool]:
    """By the names of the registry, whatever alias was given, and whether orders are searched.

    All families are free where nothing but a search is asked for.
    """
    names: list[str] = []
    words = _words(given)
    for word in words:
        try:
            if word == SEARCHED:
                continue
            names.append(family_named(word).name)
        except InvalidInput as error:
            told = "did you mean" in str(error)
            hint = "" if told else meant(word, (SEARCHED,))
            faults += (Fault("schedule", f"{fault.problem}{hint}") for fault in error.faults)
    free = words == [SEARCHED]
    return None if free else tuple(dict.fromkeys(names)), SEARCHED in words


def record_of(
    allowed: Allowed,
    *,
    excluded: Iterable[str],
    per_stage_degrees: bool,
    recompute_modules: tuple[str, ...] | None,
) -> SpaceRecord:
    """As a document carries it."""
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
        recompute_modules=recompute_modules,
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
    """What a document's record allows; raises `InvalidInput` under the record's own keys."""
    spans: dict[str, Span] = {}
    for name in SPANS:
        stated: SpanRecord | None = getattr(record, name)
        spans[name] = ANY if stated is None else Span(least=stated.least, most=stated.most)
    modes = record.recompute_modes
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
        recomputes_first=False,
        zero_stages=record.zero_stages,
        recompute=tuple(
            mode for mode in map(Recompute, modes) if mode not in record.excluded_options
        ),
        schedules=families,
        searches_orders=SEARCHED in (record.schedules or ()),
        framework=record.framework,
        mappings=tuple(map(mapping_named, record.mappings)),
    )


def refuse_no_search(question: ModelQuestion, *, per_stage_degrees: bool) -> None:
    """Raise `InvalidInput` where orders are asked for and cannot be searched or run."""
    if not question.allowed.searches_orders:
        return

    if per_stage_degrees:
        raise InvalidInput.of(
            "schedule", f"{SEARCHED} must not be given together with --per-stage-degrees"
        )
    framework = question.allowed.framework
    if framework is not None and not capability_of(framework).can(Feature.CUSTOM_ORDER):
        how = capability_of(framework).cells[Feature.CUSTOM_ORDER].how
        able = ", ".join(alternatives(Feature.CUSTOM_ORDER))
        raise InvalidInput.of("schedule", f"{SEARCHED}: {framework} {how}; what can: {able}")
