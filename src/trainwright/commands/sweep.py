"""`plan` on several numbers of devices: the best plan of each, and which of them to prefer.

A journal holds every search that came to its end, under a hash of all that it was asked: the same
command, or one for other numbers of devices, takes what is in it as if it had just been found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from trainwright.commands.model import open_model_of
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.model_search import plan_on_cluster
from trainwright.documents.printing import Report, counted
from trainwright.documents.registry import records
from trainwright.documents.sweep import (
    LARGEST_POOL,
    NEVER,
    Goal,
    ModelSweepResult,
    SearchedObjective,
    SweepRow,
    TrainingRecord,
    best_row,
    best_words,
    bounded,
    fewest_devices,
    goal_of,
    objective_aim,
    objectives_to_search,
    on_more_devices,
    own_figures,
    pareto_rows,
    plan_row,
    row_score,
    sweep_status,
    words_of_setting,
)
from trainwright.documents.view import Table
from trainwright.errors import Fault, InvalidInput
from trainwright.execution import Budget
from trainwright.execution import Budget as NoLimit
from trainwright.execution.budget import Journal
from trainwright.execution.executor import Crew, executor_of
from trainwright.formats import document_json
from trainwright.options.clusters import MOST_SIZES, Sizes, parse_sizes
from trainwright.options.inputs import ModelInput, kind_of, no_placement, unused
from trainwright.options.option import Option, Options
from trainwright.options.question import ModelCall, model_call, request_of
from trainwright.options.table import read, refuse_foreign, rows_of, verb
from trainwright.planning.question.question import ModelQuestion
from trainwright.planning.reasons.objectives import Objective
from trainwright.planning.search.framework import plan_runnable
from trainwright.plans.status import Status

_MOST_REFINEMENTS: Final = 8
_SAID: Final = {"yes": True, "no": False}
_NOT_OF_A_PLAN: Final = ("sweep", "training")  # heads of nouns
_NOT_SWEPT: Final = ("jobs", "journal", "top", "point", "time_unit")


class SweepReport(Report[ModelSweepResult]):
    """The answer of `sweep`."""

    __slots__ = ()

    @property
    def status(self) -> Status:
        """How much is proved about the rows together."""
        return self.document.status

    def _main(self, tables: Sequence[Table]) -> Table:
        """A row for each that was asked for, not the ranks of the best."""
        return tables[0]

    def _in_brief(self) -> str:
        told = f"{super()._in_brief()}, {counted(len(self.document.rows), 'row')}"
        return ": ".join((told, *best_words(self.document)))


def _with_sweep(faults: Iterable[Fault], options: Options) -> Iterator[Fault]:
    """The faults; of one value that was given as several, how a row is asked for each."""
    for fault in faults:
        name, said = fault.path.replace("-", "_"), fault.problem
        value = options.get(name)
        if isinstance(value, (list, tuple)) and "; " not in said:
            said += f'; for a row each give sweep={{"{name}": {value!r}}}'
        yield replace(fault, problem=said)


@verb
def sweep(
    model: str | Path,
    *,
    devices: Sizes | None = None,
    budget: Budget | None = None,
    **options: Any,
) -> SweepReport:
    """The best plan of `model` for each of `devices` ("64..4096", "64,96" or numbers), or `sweep`.

    `sweep` gives options their values, {"sequence": (2048, 4096), "precision": ("bf16", "fp8")},
    and each combination has a row; tokens per device then say which is best, if nothing else does.
    Several pools share each number as the cluster does. `objective` says which row is best:
    step-time, tokens-per-device, cost, energy or devices
    (fewest that train `tokens` within `deadline`); `pareto` names two of them. A single number with
    an objective stands for itself, a half of it, a quarter, … down to one node. `price` is per
    device and hour, `power` in watts per device; `deadline`, `mtbf` (of a device) and `restart` are
    seconds or text with a unit, `checkpoint_bandwidth` of one device likewise. `jobs` processes or
    a Dask cluster help with each row. A file `journal` keeps what is found as it is found, so that
    a sweep which was ended, however it was, goes on from there. All other options are those of
    `plan`. Raises `InvalidInput` with every fault of the input.
    """
    try:
        options = read("sweep", options, own=("devices", "budget"))
    except InvalidInput as error:
        raise InvalidInput(_with_sweep(error.faults, options)) from None
    swept = dict(options.pop("sweep", {}))
    devices = swept.pop("devices", devices)
    settings = settings_of(swept)
    if devices is None and not swept:
        raise InvalidInput.of("devices", "must be given, or else sweep")
    budget, executor = budget or NoLimit(), executor_of(options.get("jobs"))
    on_cluster = options.get("cluster") is not None
    given = no_placement(open_model_of(model, options), model)
    if not isinstance(given, ModelInput) and not on_cluster:
        problem = "several numbers and objectives need a --cluster; without one a profile takes one"
        raise InvalidInput.of("devices", problem)
    refuse_foreign("sweep", kind_of(given, on_cluster=on_cluster), unused(given, options))
    sizes: tuple[int | None, ...] = (None,)
    if devices is not None:
        if options.get("nodes") is not None:
            raise InvalidInput.of("nodes", "must not be given together with several devices")
        sizes = parse_sizes(devices)

    def call_for(size: int | None, setting: Options = MappingProxyType({})) -> ModelCall:
        try:
            return model_call(given, {**options, "devices": size, **setting})
        except InvalidInput as error:
            raise InvalidInput(_with_sweep(error.faults, options)) from None

    prices = _price_by_cluster(options.get("price"), settings)
    calls = [(call_for(size, each), each) for each in settings for size in sizes]
    largest, last = calls[-1]
    if prices:
        options = {**options, "price": prices[last["cluster"]]}
    if largest.question.allowed.searches_orders:
        problem = "searched is for one number of devices; sweep named families, then plan one row"
        raise InvalidInput.of("schedule", problem)
    by_default = {"objective": Objective.TOKENS_PER_DEVICE} if swept else {}
    goal = goal_of(largest, {**by_default, **options})
    cluster = largest.question.cluster
    if len(calls) == 1 and not swept:
        sizes = _halves(largest.question.num_devices, cluster.least_share)
        calls = [(call_for(size), {}) for size in sizes]
    journal = None if options.get("journal") is None else _journal(options["journal"])
    with executor.crew() as crew:
        found = _Rows(goal, budget, crew, journal)
        for at, (call, setting) in enumerate(calls):
            own: dict[str, float | None] = {}
            if setting.get("cluster") is not None:
                own = own_figures(call, goal, prices.get(setting["cluster"], options.get("price")))
                own |= {} if options.get("power") is None else {"power_watts": None}
            found.add(call, at=at if swept else None, setting=setting, own=own)
        if swept:
            pass  # rows are answers to different questions: none bounds another
        elif (
            largest.per_stage_degrees
            or len(cluster.pools) > 1
            or largest.question.num_devices > LARGEST_POOL
        ):
            found.refine(call_for, cluster.least_share)
        else:
            found.search_between(largest)
    return SweepReport(found.document(largest, given.warnings))


def _price_by_cluster(price: Any, settings: Iterable[Options]) -> dict[str, float]:
    """What devices of each swept cluster cost, where prices were told apart."""
    if not isinstance(price, tuple):
        return {}
    clusters = [*dict.fromkeys(each["cluster"] for each in settings if "cluster" in each)]
    if len(clusters) != len(price):
        told = f"{len(price)} for {len(clusters)}"
        raise InvalidInput.of("price", f"must be one, or one for each swept cluster, got {told}")
    return dict(zip(clusters, price, strict=True))


def settings_of(swept: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """Each combination of the values, the last option's changing first, read as the options are.

    Raises `InvalidInput` for an option that no plan depends on, and for more than `MOST_SIZES`.
    """
    rows = {row.name: row for row in rows_of("sweep")}
    for name in swept:
        row = rows.get(name)
        head = row.nouns[0].partition(".")[0] if row is not None and row.nouns else ""
        if row is not None and (head in _NOT_OF_A_PLAN or name in _NOT_SWEPT):
            raise InvalidInput.of("sweep", f"must name an option that plans depend on, got {name}")
    found = [
        dict(zip(swept, each, strict=True))
        for each in islice(product(*swept.values()), MOST_SIZES + 1)
    ]
    if len(found) > MOST_SIZES:
        raise InvalidInput.of("sweep", f"must have at most {MOST_SIZES} combinations")
    return [read("sweep", {name: _said(rows.get(name), v) for name, v in s.items()}) for s in found]


def _said(row: Option | None, value: Any) -> Any:
    """A value of a switch as one."""
    if row is None or not row.reader.is_flag or not isinstance(value, str):
        return value
    if value not in _SAID:
        raise InvalidInput.of(row.flag, f'must be yes or no, got "{value}"')
    return _SAID[value]


def _halves(size: int, node: int) -> tuple[int, ...]:
    """The number, its half, … as long as they fill whole nodes."""
    sizes = [size]
    while sizes[-1] % (2 * node) == 0:
        sizes.append(sizes[-1] // 2)
    return tuple(reversed(sizes))


def _journal(path: Path) -> Journal:
    """That of plans; one of another command is refused."""
    return document_json.FileJournal(path, about="plans of models")


class _Rows:
    """Plans by number of devices, as they come in; searches that ended go to the journal."""

    def __init__(
        self, goal: Goal, budget: Budget, crew: Crew | None, journal: Journal | None
    ) -> None:
        self.goal, self.budget, self.crew, self.journal = goal, budget, crew, journal
        self.started_s = budget.cpu_s
        self.plans: dict[int, ModelPlanResult] = {}  # by number of devices, or by place
        self.rows: dict[int, SweepRow] = {}
        self.fewest: int | None = None
        self.searched: list[SearchedObjective] = []

    def add(
        self,
        call: ModelCall,
        *,
        at: int | None = None,
        setting: Options = MappingProxyType({}),
        own: Mapping[str, float | None] = MappingProxyType({}),
    ) -> None:
        """Plan one size, or the setting `at` its place, unless time is up."""
        size, key = call.question.num_devices, self._key(call)
        place = size if at is None else at
        told = {name.replace("_", "-"): str(value) for name, value in setting.items()} or None
        known = self._known(key)
        if known is not None:
            asked = request_of(call, time_limit_s=self.budget.time_limit_s)
            kind = document_json.document_type(known, records(("model-plan",)))
            self.plans[place] = replace(document_json.decode(kind, known), request=asked)
        elif self.budget.stopped:
            self.rows[place] = SweepRow(devices=size, status=Status.UNKNOWN, settings=told)
            return
        else:
            self.budget.stage = f"planning for {words_of_setting(told, size)}"
            self.plans[place] = plan_on_cluster(call, self.budget, crew=self.crew)
            self.budget.stage = None
            self._keep(key, lambda: document_json.encode(self.plans[place]))
        row = plan_row(size, self.plans[place], self.goal, **own)
        self.rows[place] = replace(row, settings=told)

    def _key(self, call: ModelCall, *more: object) -> str:
        """Of all that a search is asked; empty where nothing is kept."""
        if self.journal is None:
            return ""
        asked = document_json.encode(request_of(call, time_limit_s=None))
        return document_json.content_hash({"request": asked, "more": list(more)})

    def _known(self, key: str) -> Any:
        """What a search gave that is in the journal, or None."""
        return None if self.journal is None else self.journal.find(key)

    def _keep(self, key: str, value: Callable[[], object]) -> None:
        """Write down what a search gave, if it came to its end."""
        if self.journal is not None and not self.budget.stopped:
            self.journal.append(key, value())

    def let_no_row_be_slower(self) -> None:
        """A plan may leave devices idle: where a gap hides it, that of a smaller row stands in."""
        best: ModelPlanResult | None = None
        for size in sorted(self.plans):
            own = self.plans[size]
            if own.step_time_s is None:
                continue
            if best is not None and own.step_time_s > (best.step_time_s or 0.0):
                own = on_more_devices(best, own)
                self.plans[size] = own
                self.rows[size] = plan_row(size, own, self.goal)
            best = own

    def search_between(self, largest: ModelCall) -> None:
        """The best of each objective on any number of devices up to the largest, with a bound."""
        self.fewest = fewest_devices(self.rows.values())
        for objective in objectives_to_search(self.goal):
            if self.budget.stopped:
                return
            key = self._key(
                largest, str(objective), self.fewest, document_json.encode(self.goal.training)
            )
            known = self._known(key)
            if known is None:
                searched, sizes = self._search(objective, largest.question, self.fewest)
                self._keep(key, partial(_searched_json, searched, sizes))
            else:
                searched, sizes = (
                    document_json.decode(SearchedObjective, known["searched"]),
                    known["sizes"],
                )
            self.searched.append(searched)
            for size in sizes:
                if size not in {row.devices_used for row in self.rows.values()}:
                    own = replace(largest.question, num_devices=size)
                    self.add(replace(largest, question=own))

    def _search(
        self, objective: Objective, question: ModelQuestion, fewest: int
    ) -> tuple[SearchedObjective, list[int]]:
        """What is proved of an objective, and the devices that its best plans use."""
        started_s = self.budget.cpu_s
        aim = objective_aim(objective, self.goal, fewest=fewest, most=question.num_devices)
        outcome = plan_runnable(question, self.budget, num_alternatives=0, aim=aim, crew=self.crew)
        proved = outcome.priced or not outcome.exhausted
        searched = SearchedObjective(
            objective=str(objective),
            bound=outcome.lower_bound_s if proved else None,
            search_s=self.budget.cpu_s - started_s,
        )
        return searched, [best.plan.devices_used for best in outcome.priced]

    def refine(self, call_for: Callable[[int], ModelCall], node: int) -> None:
        """For the fewest devices: halve the distance to the next smaller number that is too few."""
        if self.goal.objective is not Objective.DEVICES:
            return
        for _ in range(_MOST_REFINEMENTS):
            goal = self.goal
            enough = [
                n for n, row in self.rows.items() if row_score(row, goal, goal.objective) < NEVER
            ]
            high = min(enough, default=0)
            low = max((size for size in self.rows if size < high), default=high)
            middle = (low + high) // 2 // node * node
            if not low < middle < high or self.budget.stopped:
                return
            self.add(call_for(middle))

    def document(self, largest: ModelCall, warnings: Sequence[str]) -> ModelSweepResult:
        """All rows by number of devices, and what to prefer."""
        if not any(row.settings for row in self.rows.values()):
            self.let_no_row_be_slower()
        sizes = sorted(self.rows)
        rows = tuple(self.rows[size] for size in sizes)
        best = best_row(rows, self.goal)
        training = self.goal.training
        document = ModelSweepResult(
            status=sweep_status(rows, self.goal),
            objective=str(self.goal.objective),
            rows=rows,
            best=best,
            devices_from=self.fewest,
            searched=tuple(self.searched),
            pareto_objectives=tuple(map(str, self.goal.pareto)),
            pareto=pareto_rows(rows, self.goal),
            training=TrainingRecord(
                tokens=training.tokens,
                price_per_hour=training.price_per_hour,
                power_watts=training.power_watts,
                deadline_s=training.deadline_s,
                device_mtbf_s=training.device_mtbf_s,
                checkpoint_bytes_per_s=training.checkpoint_bytes_per_s,
                checkpoint_bytes=self.goal.checkpoint_bytes,
                restart_s=training.restart_s,
            ),
            interrupted=self.budget.interrupted,
            warnings=_warnings(warnings, self.plans.values()),
            search_s=self.budget.cpu_s - self.started_s,
            best_plan=None if best is None else self.plans[sizes[best]],
            request=request_of(largest, time_limit_s=self.budget.time_limit_s),
        )
        return bounded(document, self.goal)


def _searched_json(searched: SearchedObjective, sizes: list[int]) -> dict[str, object]:
    return {"searched": document_json.encode(searched), "sizes": sizes}


def _warnings(given: Sequence[str], plans: Iterable[ModelPlanResult]) -> tuple[str, ...]:
    each = (warning for plan in plans for warning in plan.warnings)
    return tuple(dict.fromkeys((*given, *each)))
