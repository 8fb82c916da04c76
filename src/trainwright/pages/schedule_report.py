"""What `schedule` returns: a document that prints itself, draws itself and runs for real."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.documents.printing import Report, render
from trainwright.documents.schedule import ScheduleResult
from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainwright.documents.schedule import Answer
    from trainwright.documents.schedule_methods import GivenOrders
    from trainwright.execution import Budget
    from trainwright.options.schedule import Method, ScheduleCase, SearchOptions
    from trainwright.pages.gantt import GanttPanel, MemoryUnit
    from trainwright.plans.status import Status
    from trainwright.plans.timeline import Timeline
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

        from trainwright.formats.pytorch_csv import format_compute_comms, format_compute_only
        from trainwright.formats.schedule_json import write_orders
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
        found = self.document
        return f"{found.family}: {found.ranks} ranks, {found.microbatches} microbatches"

    def _memory_unit(self) -> MemoryUnit:
        from trainwright.pages.gantt import MemoryUnit

        in_bytes = self.document.peak_memory_bytes is not None
        return MemoryUnit.BYTES if in_bytes else MemoryUnit.ACTIVATIONS

    def _time_unit(self) -> TimeUnit:
        return self.document.request.time_unit

    def _drawing(self) -> str:
        """The picture for a terminal, empty where it would not be legible."""
        import numpy as np

        from trainwright.pages.gantt_text import gantt_text

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
