"""What `schedule` returns: a document that prints itself, draws itself and runs for real."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.documents.printing import Report, render
from trainwright.documents.schedule import (
    KINDS,
    ScheduleResult,
    front_table,
    name_of,
    rank_table,
    value_of,
)
from trainwright.documents.view import Facts, Notes
from trainwright.errors import InvalidInput
from trainwright.pages.blocks import (
    Bar,
    BarChart,
    Gantt,
    Part,
    Point,
    Verdict,
    card,
    folded,
    gap_card,
    proved_state,
    section,
    time_against_memory,
)
from trainwright.pages.subject import Content, figures, provenance_section, reproduce_section
from trainwright.plans.status import Status
from trainwright.units import format_bytes, format_count, format_percent_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trainwright.documents.schedule import Answer, FrontPoint, ScheduleResult
    from trainwright.documents.schedule_methods import GivenOrders
    from trainwright.documents.view import Table
    from trainwright.execution import Budget
    from trainwright.options.schedule import Method, ScheduleCase, SearchOptions
    from trainwright.pages.blocks import Card, Scatter, Section
    from trainwright.pages.gantt import GanttPanel, MemoryUnit
    from trainwright.pages.subject import Figure, Subject
    from trainwright.plans.lowered import Timeline
    from trainwright.plans.status import Status
    from trainwright.units import TimeUnit

ORDER_FORMS = ("json", "compute_only", "compute_comms")
_FORM_OF_SUFFIX = {".json": "json", ".csv": "compute_only"}
_PICTURES = (".svg", ".html", ".json", ".json.gz")
_WIDTH = 110
_MOST_DRAWN_RANKS = 16
_MOST_DRAWN_ACTIONS = 100  # on one rank


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleReport(Report[ScheduleResult]):
    """The document, and the schedule with its times; None where nothing fits."""

    timeline: Timeline | None = None

    @property
    def status(self) -> Status:
        """How much is proved."""
        return self.document.status

    @property
    def makespan_s(self) -> float | None:
        """Last end minus first start."""
        return self.document.makespan_s

    @property
    def gap(self) -> float | None:
        """How much shorter, relatively, the objective could be at most."""
        return self.document.gap

    def renderable(self, *, verbose: bool = False) -> RenderableType:
        """The tables; small schedules are drawn below them."""
        from rich.console import Group
        from rich.text import Text

        drawing = self._drawing()
        tables = render(self.document, verbose=verbose)
        return Group(tables, Text(drawing, no_wrap=True)) if drawing else tables

    def verified(self) -> ScheduleReport:
        """The same report with what real runs on PyTorch gave (extra [torch]).

        A family on more than 4 ranks is folded: its schedule on 4 ranks is run in its place.
        Raises UnsupportedFeature where that, or PyTorch, cannot do it.
        """
        from trainwright.lab.verify_runs import verify_folded

        found = verify_folded(self.document, self._found())
        return replace(self, document=replace(self.document, verification=found))

    @property
    def verification_passed(self) -> bool:
        """Whether real runs were asked for and gave the right gradients."""
        return self.document.verification is not None and self.document.verification.passed

    def save_orders(self, path: str | Path, *, form: str | None = None) -> None:
        """Write the orders: JSON, or PyTorch's CSV with transfers (`compute_comms`) or without.

        Where `form` is left out, the suffix tells: .json, or .csv for `compute_only`. Raises
        UnsupportedFeature for what PyTorch cannot run, InvalidInput without a schedule.
        """
        from trainwright.formats.atomic_file import write_text

        write_text(path, self.orders_text(order_form(path, form)))

    def notes_on_orders(self, path: str | Path, *, form: str | None = None) -> tuple[str, ...]:
        """What `save_orders` changes in the orders it writes."""
        from trainwright.scheduling.lower import meets_in_order

        if order_form(path, form) == "json" or meets_in_order(self._found().schedule):
            return ()
        return (
            f"microbatches are renumbered in {path}: PyTorch's last stage must meet 0, 1, 2, …",
        )

    def with_warnings(self, *warnings: str) -> ScheduleReport:
        """The same report with more warnings."""
        every = (*self.document.warnings, *warnings)
        return replace(self, document=replace(self.document, warnings=every))

    def orders_text(self, form: str) -> str:
        """The orders as the text of a file in one of `ORDER_FORMS`."""
        import json

        from trainwright.formats.schedule_json import (
            format_compute_comms,
            format_compute_only,
            write_orders,
        )
        from trainwright.scheduling.lower import as_pytorch_runs, lower

        timeline = self._found()
        if form == "json":
            return json.dumps(write_orders(timeline.schedule)) + "\n"
        runnable = as_pytorch_runs(timeline.schedule)
        if form == "compute_only":
            return format_compute_only(runnable)
        return format_compute_comms(lower(runnable, costs=timeline.costs))

    def save_gantt(self, path: str | Path) -> None:
        """Draw into a .svg (up to 5,000 actions), a .html, or a Chrome trace (.json, .json.gz)."""
        from trainwright.formats.atomic_file import write_text
        from trainwright.frameworks.chrome_trace import write_chrome_trace
        from trainwright.pages.gantt_html import gantt_html
        from trainwright.pages.gantt_svg import gantt_svg

        suffix = picture_form(path)
        if suffix.startswith(".json"):
            write_chrome_trace(path, self._found(), memory_unit=self._memory_unit().value)
            return
        panel = self.panel()
        if suffix == ".svg":
            text = gantt_svg(
                panel.timeline,
                critical=panel.critical,
                title=panel.title,
                memory_unit=panel.memory_unit,
                time_unit=panel.time_unit,
            )
        else:
            text = gantt_html(panel)
        write_text(path, text)

    def panel(self) -> GanttPanel:
        """The schedule as pictures take it, with its critical path and limits.

        Raises InvalidInput where nothing fits.
        """
        from trainwright.pages.gantt import GanttPanel
        from trainwright.scheduling.simulate import critical_path

        timeline = self._with_limit(self._found())
        return GanttPanel(
            timeline=timeline,
            title=self._title(),
            critical=critical_path(timeline),
            memory_unit=self._memory_unit(),
            time_unit=self._time_unit(),
        )

    def _found(self) -> Timeline:
        if self.timeline is None:
            raise InvalidInput.of("schedule", "there is none: nothing fits the limit")
        return self.timeline

    def _with_limit(self, timeline: Timeline) -> Timeline:
        """A limit on activations as that of the memory drawn, where that counts them."""
        import numpy as np

        limit, memory = self.document.request.max_activations, timeline.costs.memory
        if limit is None or self._memory_unit() == "bytes":
            return timeline
        limit *= self.document.parts_per_stage or 1
        limited = replace(memory, limit_bytes=np.minimum(memory.limit_bytes, limit))
        return replace(timeline, costs=replace(timeline.costs, memory=limited))

    def _title(self) -> str:
        return f"{self.document.family}: {_sizes(self.document)}"

    def _memory_unit(self) -> MemoryUnit:
        from trainwright.pages.gantt import MemoryUnit

        in_bytes = self.document.peak_memory_bytes is not None
        return MemoryUnit.BYTES if in_bytes else MemoryUnit.ACTIVATIONS

    def _time_unit(self) -> TimeUnit:
        return self.document.request.time_unit

    def _drawing(self) -> str:
        """The picture for a terminal, empty where it would not be legible."""
        import numpy as np

        from trainwright.pages.gantt import gantt_text

        if self.timeline is None:
            return ""
        schedule = self.timeline.schedule
        longest = int(np.diff(schedule.rank_offsets).max())
        if schedule.num_ranks > _MOST_DRAWN_RANKS or longest > _MOST_DRAWN_ACTIONS:
            return ""
        return "\n" + gantt_text(
            self._with_limit(self.timeline),
            width=_WIDTH,
            memory_unit=self._memory_unit(),
            time_unit=self._time_unit(),
        )


def report_on(
    answer: Answer,
    case: ScheduleCase,
    options: SearchOptions,
    *,
    method: Method,
    orders: GivenOrders | None,
    budget: Budget,
) -> ScheduleReport:
    """The report of an answer."""
    from trainwright.documents.schedule import document_of, request_of

    request = request_of(
        case,
        answer,
        options,
        method=method,
        orders_name=orders.name if orders else None,
        time_limit_s=budget.time_limit_s,
    )
    return ScheduleReport(document_of(answer, case, request), answer.timeline)


def check_targets(
    *,
    orders: str | Path | None,
    orders_form: str | None,
    gantt: str | Path | None,
    verify: bool,
) -> None:
    """Refuse what cannot be written, not in that form, or not be run, before any work is done."""
    if verify:
        from trainwright.lab.gloo_check import require_pytorch

        require_pytorch()
    from trainwright.formats.atomic_file import check_writable

    if orders is not None:
        order_form(orders, orders_form)
        check_writable(orders)
    if gantt is not None:
        picture_form(gantt)
        check_writable(gantt)


def order_form(path: str | Path, form: str | None) -> str:
    """What to write into `path`; raises InvalidInput where neither form nor suffix tells."""
    if form is None:
        form = _FORM_OF_SUFFIX.get(Path(path).suffix)
        if form is None:
            raise InvalidInput.of("orders", f'must end in .json or .csv, got "{path}"')
    elif form not in ORDER_FORMS:
        raise InvalidInput.of(
            "orders-form", f'must be one of {", ".join(ORDER_FORMS)}, got "{form}"'
        )
    return form


def picture_form(path: str | Path) -> str:
    """The suffix that says what to draw; raises InvalidInput for any other."""
    for suffix in reversed(_PICTURES):
        if str(path).endswith(suffix):
            return suffix
    raise InvalidInput.of("gantt", f'must end in one of {", ".join(_PICTURES)}, got "{path}"')


# ----------------------------------------------------------------------------------------------
# The page of a pipeline schedule.


_COLORS = {"F": "compute", "I": "traffic", "W": "sync", "B": "tensor", "R": "recompute"}
_COLORS |= {"O": "hidden", "D": "unused", "L": "buffers", "V": "expert", "T": "context"}


def _sizes(document: ScheduleResult) -> str:
    batches = format_count(document.microbatches, "microbatch")
    return f"{format_count(document.ranks, 'rank')}, {batches}"


def schedule_content(subject: Subject[ScheduleResult]) -> Content:
    """Everything the page says about a schedule."""
    document = subject.document
    return Content(
        title=f"{name_of(document)}: {_sizes(document)}",
        subtitle=f"Schedule: {_verdict(document)} · objective {document.objective}",
        figures=tuple(_figures(document)),
        sections=tuple(_sections(subject)),
    )


def _verdict(document: ScheduleResult) -> str:
    if document.status is Status.OPTIMAL:
        return "optimal, proved"
    if document.status is Status.GAP:
        return f"at most {format_percent_up(document.gap or 0.0)} from the best"
    return str(document.status)


def _figures(document: ScheduleResult) -> Iterator[Figure]:
    time = document.request.time_unit.describe
    makespan, bubble = document.makespan_s, document.bubble_of_makespan
    peak = document.peak_activations
    yield from figures(
        ("makespan_s", "makespan", makespan, time(makespan or 0.0)),
        ("bubble_of_makespan", "bubble", bubble, f"{bubble or 0.0:.2%}"),
        ("peak_activations", "activations", peak, f"{peak}"),
        ("ranks", "ranks", document.ranks, f"{document.ranks}"),
    )


def _sections(subject: Subject[ScheduleResult]) -> Iterator[Section]:
    document = subject.document
    yield section(
        "summary", "The answer", _answer(document), label="Answer", cards=_cards(document)
    )
    if subject.panel is not None:
        gantt = Gantt(note=f"{subject.panel.num_bars:,} actions.")
        yield section("schedule", "Schedule and memory over time", gantt)
    if len(document.points) > 1:
        yield section("alternatives", "Memory against time", *_front(document))
    yield _why(document) if document.makespan_s is None else folded(_why(document))
    if document.peak_activations_per_rank:
        yield folded(section("plan", "The ranks", rank_table(document)))
    yield provenance_section(subject, {"costs": f"as {document.request.costs.name} states them"})
    yield reproduce_section(subject, (document.request.costs,))


def _answer(document: ScheduleResult) -> Verdict:
    """How long the work of a pipeline takes, and how near the best that is."""
    if document.makespan_s is None:
        why = document.binding.description if document.binding else "no order was found in time"
        none = document.status is Status.INFEASIBLE
        return Verdict(state="Nothing fits" if none else "No schedule yet", said=why, tone="bad")
    takes = document.request.time_unit.describe(document.makespan_s)
    held = format_count(document.peak_activations or 0, "activation")
    said = (
        f"{format_count(document.microbatches, 'microbatch')} on "
        f"{format_count(document.ranks, 'rank')} in {takes}, {document.bubble_of_span or 0:.2%} "
        f"of it bubble. A rank holds at most {held}."
    )
    if document.fits is False:
        return Verdict(state="Does not fit", said=said, tone="bad")
    state, tone = proved_state(document.status, document.gap, "A schedule")
    return Verdict(state=state, said=said, tone=tone)


def _cards(document: ScheduleResult) -> Iterator[Card]:
    time = document.request.time_unit.describe
    if document.makespan_s is None or document.span_s is None:
        yield card("status", str(document.status), tone="bad")
        return
    yield card("makespan", time(document.makespan_s), "of all ranks")
    if document.span_s != document.makespan_s:
        yield card("span", time(document.span_s), "of the rank longest at work")
    yield card("bubble", f"{document.bubble_of_span or 0:.2%}", "of the span")
    yield card("activations held", str(document.peak_activations), "at most on a rank")
    if document.peak_memory_bytes is not None:
        note, tone = ("over the limit", "bad") if document.fits is False else ("", "plain")
        yield card("peak memory", format_bytes(document.peak_memory_bytes), note, tone)
    if document.lower_bound_s is not None:
        yield gap_card(
            document.status,
            bound_text=f"{time(document.lower_bound_s)}, by {document.bound}",
            gap=document.gap or 0.0,
            what=document.objective,
            verb="is shorter than",
        )
    if document.verification is not None:
        passed = document.verification.passed
        word, tone = ("passed", "good") if passed else ("failed", "bad")
        yield card("verified", word, "gradients of a real run", tone)


def _why(document: ScheduleResult) -> Section:
    blocks: list[BarChart | Facts | Notes] = []
    path, makespan_s = document.critical_path, document.makespan_s
    if path is not None and makespan_s:
        time = document.request.time_unit.describe
        parts = [
            Part(kind=_COLORS[kind], label=KINDS[kind], amount=spent_s, text=time(spent_s))
            for kind, spent_s in path.by_kind_s.items()
        ]
        if path.transfer_s > 0:
            text = time(path.transfer_s)
            parts.append(
                Part(kind="transfers", label="transfers", amount=path.transfer_s, text=text)
            )
        bar = Bar(label="", parts=tuple(parts), total=time(makespan_s))
        blocks.append(BarChart(title="The critical path", bars=(bar,), label=""))
        waits = ", ".join(f"{reason} {count:,}" for reason, count in path.waits_for.items())
        rows = (
            ("actions on the critical path", f"{path.num_actions:,}"),
            ("what they waited for", waits),
        )
        blocks.append(Facts(rows=rows))
    if document.binding is not None:
        lines = (document.binding.description, *document.binding.fixes)
        blocks.append(Notes(title="What does not fit", lines=lines, tone="bad"))
    title = "Why it is not shorter" if document.makespan_s is not None else "Why nothing fits"
    return section("why", title, *blocks)


def _front(document: ScheduleResult) -> Iterator[Table | Scatter]:
    if all(point.peak_memory_bytes is not None for point in document.points):
        points = [_point(document, point) for point in document.points]
        yield time_against_memory(points, limit_bytes=None)
    yield front_table(document)


def _point(document: ScheduleResult, point: FrontPoint) -> Point:
    value_s, held = value_of(document, point), point.peak_memory_bytes or 0.0
    time = document.request.time_unit.describe(value_s)
    return Point(
        name=point.family,
        x=value_s,
        y=held,
        x_text=time,
        y_text=format_bytes(held),
        facts=(
            (document.objective, time),
            ("peak memory", format_bytes(held)),
            ("activations", str(point.peak_activations)),
            ("bubble of span", f"{point.bubble_of_span:.2%}"),
        ),
    )
