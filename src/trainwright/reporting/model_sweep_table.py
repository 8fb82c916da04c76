"""Plans on several numbers of devices, one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.plan.status import OPTIMAL_TOLERANCE, Status, relative_gap
from trainwright.reporting.layout import layout_cells, layout_columns
from trainwright.reporting.model_plan_table import model_plan_report
from trainwright.reporting.text import add_row, table
from trainwright.units import GIB, format_bytes, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from trainwright.plan.results.model_sweep import ModelSweepResult, SweepRow

_KWH_J: Final = 3.6e6
_DAY_S: Final = 86_400.0
_FINE_GAP: Final = 1e-4


def model_sweep_report(document: ModelSweepResult) -> RenderableType:
    """One row per number of devices, why some have none, and the preferred plan in full."""
    from rich.console import Group
    from rich.text import Text

    request = document.request
    cluster = request.cluster.name if request.cluster else "?"
    parts: list[RenderableType] = [Text(f"{request.model.name} on {cluster}")]
    parts.append(_row_table(document))
    if document.training.tokens is not None:
        parts.append(_training_table(document))
    parts.extend(Text(line) for line in _notes(document))
    parts.extend(Text(f"warning: {warning}") for warning in document.warnings)
    if document.best_plan is not None:
        parts.append(Text(""))
        parts.append(model_plan_report(document.best_plan))
    return Group(*parts)


def _row_table(document: ModelSweepResult) -> RenderableType:
    plans = [row.parallelism for row in document.rows]
    made = table(
        None,
        (
            ("devices", "right"),
            ("step", "right"),
            ("tokens/s", "right"),
            ("/device", "right"),
            ("MFU", "right"),
            *layout_columns(plans),
            ("mb", "right"),
            ("schedule", "right"),
            ("GiB", "right"),
            ("gap", "right"),
            ("", "left"),
        ),
    )
    for index, row in enumerate(document.rows):
        known = _known_cells(row) if row.step_time_s is not None else [row.status.value] + [""] * 3
        add_row(
            made,
            str(row.devices),
            *known,
            *layout_cells(row.parallelism, plans),
            *_plan_cells(row),
            _mark(document, index),
        )
    return made


def _training_table(document: ModelSweepResult) -> RenderableType:
    """Totals of the whole training."""
    totals = _totals(document)
    made = table(
        "the whole training",
        (("devices", "right"), *((name, "right") for name in totals), ("", "left")),
    )
    for index, row in enumerate(document.rows):
        if row.step_time_s is not None:
            cells = (shown(row) for shown in totals.values())
            add_row(made, str(row.devices_used), *cells, _mark(document, index))
    return made


def _known_cells(row: SweepRow) -> list[str]:
    return [
        format_seconds(row.step_time_s or 0),
        f"{row.tokens_per_s or 0:,.0f}",
        f"{row.tokens_per_s_per_device or 0:,.0f}",
        f"{row.mfu or 0:.1%}",
    ]


def _plan_cells(row: SweepRow) -> list[str]:
    if row.step_time_s is None:
        return [""] * 4
    gap = "0 %" if row.status is Status.OPTIMAL else _gap(_whole_gap(row))
    memory = f"{(row.peak_memory_bytes or 0) / GIB:.1f}"
    return [str(row.micro_batch), row.schedule or "", memory, gap]


def _whole_gap(row: SweepRow) -> float:
    """How much faster a plan of any family that was allowed could be, at most."""
    if row.lower_bound_all_s is None:
        return row.gap or 0.0
    return max(row.gap or 0.0, relative_gap(row.step_time_s or 0.0, row.lower_bound_all_s))


def _gap(gap: float) -> str:
    return "<0.01 %" if gap < _FINE_GAP else format_percent_up(gap)


def _totals(document: ModelSweepResult) -> dict[str, Callable[[SweepRow], str]]:
    """Columns of the whole training, as far as its inputs are known."""
    training = document.training
    found: dict[str, Callable[[SweepRow], str]] = {
        "useful": lambda row: "" if row.goodput is None else f"{row.goodput:.1%}",
        "days": lambda row: "" if row.train_s is None else f"{row.train_s / _DAY_S:,.1f}",
    }
    if training.price_per_hour is not None:
        found["cost"] = lambda row: "" if row.cost is None else f"{row.cost:,.0f}"
    if training.power_watts is not None:
        found["MWh"] = lambda row: (
            "" if row.energy_j is None else f"{row.energy_j / _KWH_J / 1e3:,.4g}"
        )
    return found


def _mark(document: ModelSweepResult, index: int) -> str:
    marks = ["best"] if index == document.best else []
    marks += ["pareto"] if index in document.pareto else []
    used, asked = document.rows[index].devices_used, document.rows[index].devices
    marks += [f"uses {used}"] if used is not None and used != asked else []
    marks += ["late"] if is_late(document, index) else []
    return ", ".join(marks)


def is_late(document: ModelSweepResult, index: int) -> bool:
    """Whether the row misses the deadline, and so counts for no objective."""
    deadline_s, train_s = document.training.deadline_s, document.rows[index].train_s
    return deadline_s is not None and train_s is not None and train_s > deadline_s


def _notes(document: ModelSweepResult) -> Iterator[str]:
    for row in document.rows:
        if row.reason is not None:
            yield f"{row.devices} devices: {row.reason}"
    training = document.training
    if document.best is None:
        yield _nothing(document)
    else:
        best = document.rows[document.best].devices
        yield f"best by {document.objective}: {best} devices{_bound(document)}"
    if any(is_late(document, index) for index in range(len(document.rows))):
        days = f"{(training.deadline_s or 0.0) / _DAY_S:,.4g}"
        limit = f"the deadline of {days} {'day' if days == '1' else 'days'}"
        yield f"late rows miss {limit} and count for no objective"
    if document.pareto:
        yield from _front(document)
    if training.tokens is not None:
        yield (
            f"for {training.tokens:.4g} tokens, failures and checkpoints included: a device fails "
            f"every {training.device_mtbf_s / 3600:,.0f} h, a restart takes "
            f"{format_seconds(training.restart_s)}, a checkpoint is "
            f"{format_bytes(training.checkpoint_bytes)}"
        )
    if document.interrupted:
        yield "interrupted: rows that were not reached are unknown"


def _bound(document: ModelSweepResult) -> str:
    """What is proved of the objective, over all numbers of devices."""
    bound = document.objective_bound
    if document.devices_from is None or bound is None or document.gap is None:
        return ""
    where = f"of all plans on {_range(document)}"
    if document.status is Status.OPTIMAL:
        return f", the best {where}, proved"
    word = "more" if document.objective == "tokens-per-device" else "less"
    shown = objective_figure(document.objective, bound)
    return f"; none {where} has {word} than {shown}, gap <= {format_percent_up(document.gap)}"


def _range(document: ModelSweepResult) -> str:
    fewest, most = document.devices_from, document.rows[-1].devices
    return f"{most} devices" if fewest == most else f"{fewest} to {most} devices"


def _front(document: ModelSweepResult) -> Iterator[str]:
    both = " and ".join(document.pareto_objectives)
    yield f"no row beats those marked pareto in both {both}"
    if document.devices_from is None:
        return
    if document.pareto_within is None:
        yield "how far a plan between them may be better is not known: a search did not end"
        return
    if document.pareto_within <= OPTIMAL_TOLERANCE:
        yield f"of all plans on {_range(document)} none beats them, proved"
        return
    share = format_percent_up(document.pareto_within)
    yield f"for every plan on {_range(document)}, one of them is at most {share} worse in both"


def objective_figure(objective: str, value: float) -> str:
    """The figure of an objective with its unit."""
    match objective:
        case "step-time":
            return format_seconds(value)
        case "tokens-per-device":
            return f"{value:,.0f} tokens/s per device"
        case "energy":
            return f"{value / _KWH_J / 1e3:,.4g} MWh"
        case "devices":
            return f"{value:,.0f} devices"
        case _:
            return f"a cost of {value:,.0f}"


def _nothing(document: ModelSweepResult) -> str:
    times_s = [row.train_s for row in document.rows if row.train_s is not None]
    if times_s:
        proved = document.devices_from is not None and document.status is Status.INFEASIBLE
        what = f"no plan on {_range(document)}" if proved else "no row"
        shortest = f"{min(times_s) / _DAY_S:,.1f} days are the shortest of these"
        return f"{what} trains the tokens within the deadline; {shortest}"
    return "no plan was found on any of these numbers of devices"
