"""The routes: the page, what can be chosen, questions, and answers as documents and pages."""

from __future__ import annotations

import asyncio
import io
import json
import math
import threading
import zipfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from trainwright.cluster import Cluster
from trainwright.commands.export import bundle_of
from trainwright.commands.report import report
from trainwright.documents.open import Result
from trainwright.errors import InvalidInput, TrainwrightError, one_of
from trainwright.execution import Budget, Progress
from trainwright.formats.atomic_file import file_bytes
from trainwright.options.inputs import ModelInput
from trainwright.pages.command import Command, command_of
from trainwright.pages.gantt import asset, environment, policy, theme_css
from trainwright.pages.page import palette_css
from trainwright.plans.job import ExportBundle
from trainwright.provenance import __version__
from trainwright.units import GIB

if TYPE_CHECKING:
    from trainwright.commands.serve import App, Limits


# Questions of the live page: names of the catalog and bounded numbers, never a path
# ----------------------------------------------------------------------------------
# A question has a model of the catalog or the content of a `config.json`, a cluster of the catalog,
# and what the sliders stand for: devices, their memory, the bandwidth of the outermost network
# level, the batch.

_TOP = 12  # runners-up to pick from


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: a `model` of the catalog or a `config`; absent figures are the catalog's.

    `bandwidth_bytes_per_s` is that of one device across the outermost network level, `job` the
    name and the text of a framework's file, which describes the model, `cluster_file` the text of a
    TOML file in place of the catalog's `cluster`, and `options` are further ones of `plan` by
    keyword, of those in `OPTIONS`.
    """

    model: str | None = None
    config: dict[str, Any] | None = None
    job: tuple[str, str] | None = None
    cluster: str
    devices: int
    global_batch: int
    sequence: int
    memory_bytes: float | None = None
    bandwidth_bytes_per_s: float | None = None
    framework: str | None = None
    cluster_file: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """A model to choose."""

    name: str
    num_parameters: int
    max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """A cluster to choose, where its sliders start, and the lines of constants that its devices
    have; `most_devices` None grows without limit.
    """

    name: str
    accelerator: str
    devices: int
    devices_per_node: int
    most_devices: int | None
    memory_bytes: float
    bandwidth_bytes_per_s: float
    calibrations: tuple[str, ...] = ()


def answer(question: Question, budget: Budget) -> Result:
    """The best plan; raises `InvalidInput` with every fault of the question."""
    from trainwright.documents.model_search import plan_on_cluster
    from trainwright.options.question import model_call
    from trainwright.options.table import read

    given = _model(question)
    _require_options(question.options)
    asked: dict[str, Any] = {
        "cluster": cluster_of(question),
        "global_batch": question.global_batch,
        "sequence": question.sequence,
        "framework": question.framework,
        "top": _TOP,
        "devices": question.devices,
        "memory": question.memory_bytes,
        **question.options,
    }
    call = model_call(given, read("plan", asked))
    return Result(plan_on_cluster(call, budget, warnings=given.warnings))


def explained(found: Result, budget: Budget) -> Result:
    """The answer with what its choices buy."""
    from trainwright.documents.explanation import with_reasons

    return Result(with_reasons(found.document, budget))


# Options of a plan that a page may set, and what there is to choose from; text where that is empty.
# None of them names a file.
OPTIONS: Final[tuple[str, ...]] = (
    *("tp", "pp", "dp", "cp", "ep", "etp", "virtual_stages", "micro_batch", "zero"),
    *("state_copies", "recompute", "schedule", "mapping", "precision", "optimizer"),
    *("software", "calibration"),
)


def _require_options(options: Mapping[str, str]) -> None:
    from trainwright.formats.calibration_toml import built_in_calibrations

    for name in options:
        if name not in OPTIONS:
            raise InvalidInput.of("options", one_of(OPTIONS, name))
    lines = {"none", *(each.line for each in built_in_calibrations())}
    if (line := options.get("calibration")) is not None and line not in lines:
        raise InvalidInput.of("calibration", one_of(sorted(lines), line))


def cluster_of(question: Question) -> Cluster:
    """The catalog's cluster with the bandwidth asked for; not yet sized."""
    from trainwright.formats.catalog import cluster, cluster_names

    if question.cluster_file is not None:
        found = _own_cluster(question.cluster_file)
    else:
        _require("cluster", question.cluster, cluster_names())
        found = cluster(question.cluster)
    if question.bandwidth_bytes_per_s is None:
        return found
    pool = found.pool_of()
    outer = replace(pool.levels[-1], bandwidth_bytes_per_s=question.bandwidth_bytes_per_s)
    return replace(found, pools=(replace(pool, levels=(*pool.levels[:-1], outer)),))


def _own_cluster(text: str) -> Cluster:
    """A cluster of a TOML file's text, which reads no file that it may name."""
    import tomllib

    from trainwright.formats.catalog import accelerators
    from trainwright.formats.cluster_toml import read_cluster

    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput.of("cluster", f"must be TOML: {error}") from None
    found = read_cluster(document, name="cluster.toml", accelerators=accelerators())
    if len(found.pools) > 1:
        raise InvalidInput.of("cluster", "must have one kind of device on this page")
    return found


def model_choices() -> Iterator[ModelChoice]:
    """The models of the catalog."""
    from trainwright.formats.catalog import model, model_names
    from trainwright.model import count_parameters

    for name in model_names():
        config = model(name).config
        yield ModelChoice(
            name=name,
            num_parameters=count_parameters(config),
            max_positions=config.max_positions,
        )


def cluster_choices() -> Iterator[ClusterChoice]:
    """The clusters of the catalog that have one kind of device."""
    from trainwright.formats.calibration_toml import built_in_calibrations
    from trainwright.formats.catalog import cluster, cluster_names

    for name in cluster_names():
        found = cluster(name)
        if len(found.pools) > 1:
            continue
        pool = found.pool_of()
        known = built_in_calibrations()
        lines = sorted(
            each.line
            for each in known
            if each.accelerator == pool.accelerator.name and each.replaced
        )
        yield ClusterChoice(
            name=name,
            accelerator=pool.accelerator.name,
            devices=pool.num_devices,
            devices_per_node=pool.devices_per_node,
            most_devices=pool.num_devices if len(pool.levels) == 1 else None,
            memory_bytes=pool.accelerator.memory_bytes,
            bandwidth_bytes_per_s=pool.levels[-1].bandwidth_bytes_per_s,
            calibrations=("none", *lines),
        )


def framework_choices() -> tuple[str, ...]:
    """Frameworks that a plan can be limited to."""
    from trainwright.plans.capability import TARGETS

    return tuple(TARGETS)


def _model(question: Question) -> ModelInput:
    from trainwright.formats.catalog import model_names
    from trainwright.options.inputs import catalog_input, config_input

    if question.job is not None:
        from trainwright.frameworks.read_job import stated_in, stated_model

        name, text = question.job
        return stated_model(stated_in(text, name), None)
    if question.config is not None:
        if question.model is not None:
            raise InvalidInput.of("model", "must not be given together with a config")
        return config_input(question.config)
    if question.model is None:
        raise InvalidInput.of("model", "must be given, or else a config")
    _require("model", question.model, model_names())
    return catalog_input(question.model)


def _require(field: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise InvalidInput.of(field, f"must be a name of the catalog: {', '.join(known)}")


# What the browser may ask and what it is told: every field typed and bounded
# ---------------------------------------------------------------------------

_NAME: Final = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
_WORD: Final = Field(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9.,_-]*$")
MOST_DEVICES: Final = 65_536
GB: Final = 1e9


class JobFile(BaseModel):
    """A file of a framework's job, as text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=200)]
    text: Annotated[str, Field(max_length=900_000)]


class Stated(BaseModel):
    """What a job states, as the controls of the page have it, and what else is to be said."""

    model: str
    devices: int | None
    global_batch: int | None
    sequence: int | None
    options: dict[str, str]
    notes: list[str]


class Ask(BaseModel):
    """A question; `model` is a name of the catalog, `config` the content of a config.json.

    The search ends after `time_limit_s`, and after the server's own limit in any case. With a
    `ticket` it can be stopped before, and then says what it has.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, _NAME] | None = None
    config: dict[str, Any] | None = None
    job: JobFile | None = None
    cluster: Annotated[str, _NAME]
    devices: Annotated[int, Field(strict=True, ge=1, le=MOST_DEVICES)]
    global_batch: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    sequence: Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
    memory_gib: Annotated[float, Field(ge=1, le=4096, allow_inf_nan=False)] | None = None
    bandwidth_gb_per_s: Annotated[float, Field(ge=0.01, le=1e5, allow_inf_nan=False)] | None = None
    framework: Annotated[str, _NAME] | None = None
    cluster_file: Annotated[str, Field(max_length=100_000)] | None = None
    options: dict[Annotated[str, _NAME], Annotated[str, _WORD]] = {}
    ticket: Annotated[str, Field(pattern="^[0-9a-f]{8,32}$")] | None = None
    time_limit_s: Annotated[float, Field(ge=0.01, le=3600, allow_inf_nan=False)] | None = None

    @property
    def question(self) -> Question:
        """In SI units, as the api takes it."""
        bandwidth = self.bandwidth_gb_per_s
        return Question(
            model=self.model,
            config=self.config,
            job=None if self.job is None else (self.job.name, self.job.text),
            cluster=self.cluster,
            devices=self.devices,
            global_batch=self.global_batch,
            sequence=self.sequence,
            memory_bytes=None if self.memory_gib is None else self.memory_gib * GIB,
            bandwidth_bytes_per_s=None if bandwidth is None else bandwidth * GB,
            framework=self.framework,
            cluster_file=self.cluster_file,
            options=self.options,
        )


class Answered(BaseModel):
    """A plan that was made: under which id it can be fetched, its document, its command, and the
    frameworks that can run it as it is.

    Where it is not complete, the search was ended before it was over.
    """

    id: str
    is_complete: bool
    document: dict[str, Any]
    command: str
    command_note: str
    targets: list[str]


class Problem(BaseModel):
    """One broken rule: where, and what was wanted and found."""

    path: str
    problem: str


class Refused(BaseModel):
    """Why there is no answer."""

    faults: list[Problem]


class ModelItem(BaseModel):
    """A model of the catalog."""

    name: str
    num_parameters: int
    max_positions: int


class ClusterItem(BaseModel):
    """A cluster of the catalog, where its sliders start, the constants that its devices have."""

    name: str
    accelerator: str
    devices: int
    devices_per_node: int
    most_devices: int
    memory_gib: float
    bandwidth_gb_per_s: float
    calibrations: list[str]


class Choices(BaseModel):
    """Everything that can be chosen."""

    models: list[ModelItem]
    clusters: list[ClusterItem]
    frameworks: list[str]
    options: dict[str, list[str]]


# Answering questions, a few at a time, and keeping the last answers for their pages
# ----------------------------------------------------------------------------------

_LOOK_S = 0.05  # how often it is looked whether the reader still waits
_TELL_S = 0.25  # how often a search says how it stands
_REASONS_S = 20.0  # wall seconds for what the choices of a plan buy


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """How a search stands: seconds of the best step so far, up to which all were searched, and the
    gap between them, as a share of the step.

    The gap to all plans that the request admits is proved at the end, and may be larger.
    """

    stage: str
    elapsed_s: float
    step_time_s: float | None = None
    searched_s: float | None = None
    gap: float | None = None


def _told(budget: Budget, last: Sequence[Progress]) -> Told:
    if not last or not math.isfinite(last[0].best):
        return Told(stage="searching", elapsed_s=budget.elapsed_s)
    best_s, searched_s = last[0].best, min(last[0].lower_bound, last[0].best)
    return Told(
        stage="searching",
        elapsed_s=budget.elapsed_s,
        step_time_s=best_s,
        searched_s=searched_s,
        gap=1 - searched_s / best_s if searched_s > 0 else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An answer, its id and its command; not complete where the search was stopped."""

    id: str
    is_complete: bool
    result: Result
    command: Command


class BusyError(Exception):
    """More questions than are answered or may wait."""


class Planner:
    """Plans in threads, `max_running` at once; a question nobody waits for any more is stopped."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._free = asyncio.Semaphore(limits.max_running)
        self._num_asked = 0
        self._kept: OrderedDict[str, Made] = OrderedDict()
        self._pages: dict[str, str] = {}
        self._answers: dict[str, str] = {}  # the id of the whole answer to a question
        self._lock = threading.Lock()
        self._running: dict[str, Budget] = {}

    async def plan(
        self,
        question: Question,
        is_gone: Callable[[], Awaitable[bool]],
        *,
        time_limit_s: float | None = None,
    ) -> Made:
        """The best plan within both time limits; raises `BusyError`, or `InvalidInput`."""
        if self._num_asked >= self._limits.max_running + self._limits.max_waiting:
            raise BusyError
        self._num_asked += 1
        try:
            async with self._free:
                most_s = self._limits.time_limit_s
                budget = Budget(time_limit_s=min(time_limit_s or most_s, most_s))
                running = asyncio.create_task(asyncio.to_thread(answer, question, budget))
                while not (await asyncio.wait({running}, timeout=_LOOK_S))[0]:
                    if not budget.interrupted and await is_gone():
                        budget.interrupt()
                return self._keep(running.result(), is_complete=not budget.stopped)
        finally:
            self._num_asked -= 1

    async def search(
        self,
        question: Question,
        *,
        ticket: str | None = None,
        time_limit_s: float | None = None,
    ) -> AsyncIterator[Made | Told]:
        """How the search stands, a few times a second; then the plan; then the plan with its
        reasons. Raises as `plan`; whoever stops listening stops the search. A question whose whole
        answer is still kept has it at once.
        """
        asked = json.dumps(asdict(question), sort_keys=True)
        if (known := self._kept.get(self._answers.get(asked, ""))) is not None:
            yield known
            return
        if self._num_asked >= self._limits.max_running + self._limits.max_waiting:
            raise BusyError
        self._num_asked += 1
        budget: Budget | None = None
        try:
            async with self._free:
                most_s = self._limits.time_limit_s
                heard: list[Progress] = []
                budget = Budget(
                    time_limit_s=min(time_limit_s or most_s, most_s), on_progress=heard.append
                )
                if ticket is not None:
                    self._running[ticket] = budget
                running = asyncio.create_task(asyncio.to_thread(answer, question, budget))
                while not (await asyncio.wait({running}, timeout=_TELL_S))[0]:
                    del heard[:-1]
                    yield _told(budget, heard)
                result, stopped = running.result(), budget.stopped
                first = self._keep(result, is_complete=not stopped)
                yield first
                if stopped:
                    return
                if not result.stages:
                    self._answers[asked] = first.id
                    return
                budget = Budget(time_limit_s=_REASONS_S)
                explaining = asyncio.create_task(asyncio.to_thread(explained, result, budget))
                while not (await asyncio.wait({explaining}, timeout=_TELL_S))[0]:
                    yield Told(stage="what each choice buys", elapsed_s=budget.elapsed_s)
                whole = self._keep(explaining.result(), is_complete=True)
                self._answers[asked] = whole.id
                yield whole
        finally:
            if budget is not None:
                budget.interrupt()
            if ticket is not None:
                self._running.pop(ticket, None)
            self._num_asked -= 1

    def stop(self, ticket: str) -> bool:
        """Whether a search of this ticket ran; it ends with what it has."""
        budget = self._running.get(ticket)
        if budget is not None:
            budget.interrupt()
        return budget is not None

    def made(self, plan_id: str) -> Made | None:
        """An answer that is still kept."""
        return self._kept.get(plan_id)

    def page(self, plan_id: str, other_id: str | None = None) -> str | None:
        """The page of answers that are still kept, written when it is first asked for.

        With another one, both are compared on it.
        """
        ids = (plan_id,) if other_id is None else (plan_id, other_id)
        found = [made for each in ids if (made := self._kept.get(each)) is not None]
        if len(found) < len(ids):
            return None
        name = "/".join(ids)
        with self._lock:
            if name not in self._pages:
                self._pages[name] = report(*(made.result for made in found)).html
            return self._pages[name]

    def _keep(self, result: Result, *, is_complete: bool) -> Made:
        import hashlib

        text = result.to_json()
        made = Made(
            id=hashlib.sha256(text.encode()).hexdigest()[:24],
            is_complete=is_complete,
            result=result,
            command=command_of(result.document, file="plan.json"),
        )
        self._kept[made.id] = made
        self._kept.move_to_end(made.id)
        while len(self._kept) > self._limits.max_kept:
            oldest, _ = self._kept.popitem(last=False)
            for name in [each for each in self._pages if oldest in each.split("/")]:
                self._pages.pop(name)
            for name in [each for each, kept in self._answers.items() if kept == oldest]:
                self._answers.pop(name)
        return made


# The files of an export as one archive, the same bytes for the same files
# ------------------------------------------------------------------------

_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)  # the first date an archive can hold


def zipped(bundle: ExportBundle) -> bytes:
    """All files under the name of the target, without dates."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in bundle.files.items():
            entry = zipfile.ZipInfo(f"{bundle.target}/{name}", date_time=_LONG_AGO)
            archive.writestr(entry, file_bytes(name, text), zipfile.ZIP_DEFLATED)
    return made.getvalue()


# The page with the controls, and the policy that it is sent with
# ---------------------------------------------------------------

_SCRIPT = "live_page.js"


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """HTML and its content security policy."""

    html: str
    policy: str


@cache
def front_page() -> Front:
    """One page, its style and script inlined; it may talk to its own server and to no other."""
    style = "\n".join((*theme_css(), *palette_css(), asset("live_page.css")))
    script = asset(_SCRIPT)
    own = "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'"
    rules = f"{policy(style, [script])}; {own}; frame-ancestors 'none'"
    html = environment().get_template("live_page.html.j2").render(style=style, script=script)
    return Front(html=html, policy=rules)


# The routes: the page, what can be chosen, questions, and answers as documents and pages
# ---------------------------------------------------------------------------------------

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TICKET: Final = Path(pattern="^[0-9a-f]{8,32}$")
_PLAN_ID: Final = Path(pattern="^[0-9a-f]{24}$")
_TARGET: Final = Path(pattern=r"^[a-z][a-z0-9-]{0,40}([@-][0-9.]{1,10})?$")
_SAID: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": Refused, "description": "The body is not JSON."},
    403: {"model": Refused, "description": "The request comes from another page."},
    413: {"model": Refused, "description": "The body is too large."},
    415: {"model": Refused, "description": "The body is not application/json."},
    421: {"model": Refused, "description": "The host is not served here."},
    422: {"model": Refused, "description": "A rule is broken; every fault is named."},
    429: {"model": Refused, "description": "Too many questions at once."},
}
_AS_JSON: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/Refused"}}}
_UNKNOWN: Final[dict[int | str, dict[str, Any]]] = {
    404: {"content": _AS_JSON, "description": "No plan of this id is kept."},
    421: {"content": _AS_JSON, "description": "The host is not served here."},
    422: {"content": _AS_JSON, "description": "This is no id, or no target for this plan."},
}


def make_app(bounds: Limits) -> App:
    """The application; `bounds` limit its questions."""
    routes = _Routes(bounds)
    app = FastAPI(
        title="trainwright", version=__version__, docs_url=None, redoc_url=None, debug=False
    )
    app.add_api_route("/", routes.front, response_class=HTMLResponse, include_in_schema=False)
    app.add_api_route("/api/choices", routes.choices, response_model=Choices, responses=_one(421))
    app.add_api_route(
        "/api/plans", routes.plan, methods=["POST"], response_model=Answered, responses=_SAID
    )
    app.add_api_route(
        "/api/searches", routes.search, methods=["POST"], response_class=Response, responses=_SAID
    )
    app.add_api_route(
        "/api/jobs", routes.job, methods=["POST"], response_model=Stated, responses=_SAID
    )
    app.add_api_route(
        "/api/searches/{ticket}/stop",
        routes.stop,
        methods=["POST"],
        response_class=Response,
        responses=_UNKNOWN,
    )
    app.add_api_route(
        "/api/plans/{plan_id}", routes.document, response_class=Response, responses=_UNKNOWN
    )
    app.add_api_route(
        "/pages/{plan_id}", routes.page, response_class=HTMLResponse, responses=_UNKNOWN
    )
    app.add_api_route(
        "/pages/{plan_id}/{other_id}",
        routes.compared,
        response_class=HTMLResponse,
        responses=_UNKNOWN,
    )
    app.add_api_route(
        "/api/plans/{plan_id}/exports/{target}",
        routes.exported,
        response_class=Response,
        responses=_UNKNOWN,
    )
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(TrainwrightError, _on_error)
    made: App = app
    return made


def _one(status: int) -> dict[int | str, dict[str, Any]]:
    return {status: _SAID[status]}


class _Routes:
    """What the routes share: the planner and what can be chosen."""

    def __init__(self, limits: Limits) -> None:
        self._planner = Planner(limits)
        self._choices = _choices()

    async def front(self) -> Response:
        """The page with the controls."""
        page = front_page()
        return HTMLResponse(page.html, headers={**_HEADERS, "Content-Security-Policy": page.policy})

    async def choices(self) -> Choices:
        """The models, clusters and frameworks to choose from."""
        return self._choices

    def job(self, given: JobFile) -> Stated:
        """What a framework's file states of its run."""
        from trainwright.frameworks.read_job import stated_controls

        try:
            return Stated(**stated_controls(given.text, given.name, OPTIONS))
        except InvalidInput as error:
            if any(fault.path == "from" for fault in error.faults):  # nobody can name it here
                problem = "is not known by its content as a job of any framework"
                raise InvalidInput.of(given.name, problem) from None
            raise

    async def plan(self, ask: Ask, request: Request) -> Response:
        """The best plan within the time limit; stopped when nobody waits for it any more."""
        try:
            made = await self._planner.plan(
                ask.question, request.is_disconnected, time_limit_s=ask.time_limit_s
            )
        except BusyError:
            return _refused(429, Problem(path="plans", problem="are being made; try again"))
        return JSONResponse(_answered(made), headers=_HEADERS)

    async def search(self, ask: Ask) -> Response:
        """The same as lines of JSON: how the search stands, the plan, the plan with its reasons.

        A line has one key: "told", "plan" or "faults".
        """
        found = self._planner.search(ask.question, ticket=ask.ticket, time_limit_s=ask.time_limit_s)
        try:
            first = await anext(found)  # what is refused at once has a status of its own
        except BusyError:
            return _refused(429, Problem(path="plans", problem="are being made; try again"))

        async def lines() -> AsyncIterator[str]:
            try:
                yield _line(first)
                async for each in found:
                    yield _line(each)
            except TrainwrightError as error:
                yield json.dumps({"faults": [each.model_dump() for each in _problems(error)]})
            finally:
                await found.aclose()  # type: ignore[attr-defined]

        return StreamingResponse(lines(), media_type="application/x-ndjson", headers=_HEADERS)

    async def stop(self, ticket: str = _TICKET) -> Response:
        """End a search with what it has."""
        if not self._planner.stop(ticket):
            return _refused(404, Problem(path="ticket", problem="must be of a search that runs"))
        return Response(status_code=204, headers=_HEADERS)

    async def document(self, plan_id: str = _PLAN_ID) -> Response:
        """A plan that was made, as `trainwright plan --json` prints it."""
        made = self._planner.made(plan_id)
        if made is None:
            return _refused(404, _NOT_KEPT)
        kind = "application/json"
        named = {"Content-Disposition": 'attachment; filename="plan.json"'}
        return Response(made.result.to_json(), media_type=kind, headers={**_HEADERS, **named})

    def exported(self, plan_id: str = _PLAN_ID, target: str = _TARGET) -> Response:
        """The files that run a plan in a framework, as `trainwright export` writes them, zipped."""
        made = self._planner.made(plan_id)
        if made is None:
            return _refused(404, _NOT_KEPT)
        named = {"Content-Disposition": f'attachment; filename="{target}.zip"'}
        data = zipped(bundle_of(made.result, target))
        return Response(data, media_type="application/zip", headers={**_HEADERS, **named})

    def page(self, plan_id: str = _PLAN_ID) -> Response:
        """The page of a plan that was made, as `trainwright report` writes it."""
        return _framed(self._planner.page(plan_id))

    def compared(self, plan_id: str = _PLAN_ID, other_id: str = _PLAN_ID) -> Response:
        """Two plans that were made on one page, as `trainwright report` compares them."""
        return _framed(self._planner.page(plan_id, other_id))


def _framed(html: str | None) -> Response:
    """A page that only this server's own page may show inside itself."""
    if html is None:
        return _refused(404, _NOT_KEPT)
    framed = {"Content-Security-Policy": "frame-ancestors 'self'"}
    return HTMLResponse(html, headers={**_HEADERS, **framed})


def _answered(made: Made) -> dict[str, Any]:
    answered = Answered(
        id=made.id,
        is_complete=made.is_complete,
        document=made.result.to_dict(),
        command=made.command.text,
        command_note=made.command.note,
        targets=list(_targets(made.result)),
    )
    return answered.model_dump()


def _targets(found: Result) -> Iterator[str]:
    """Frameworks that can express a plan as it is."""
    from trainwright.documents.jobs import job_of
    from trainwright.documents.model_plan import ModelPlanResult
    from trainwright.documents.runs import gaps_of

    document = found.document
    if not isinstance(document, ModelPlanResult) or not document.stages:
        return
    job = job_of(document)
    yield from (name for name in framework_choices() if not gaps_of(job, name))


def _line(each: Made | Told) -> str:
    said = {"plan": _answered(each)} if isinstance(each, Made) else {"told": asdict(each)}
    return f"{json.dumps(said)}\n"


_NOT_KEPT: Final = Problem(path="plan_id", problem="must be a plan that is still kept")


def _choices() -> Choices:
    models = [
        ModelItem(
            name=model.name,
            num_parameters=model.num_parameters,
            max_positions=model.max_positions,
        )
        for model in model_choices()
    ]
    clusters = [
        ClusterItem(
            name=cluster.name,
            accelerator=cluster.accelerator,
            devices=cluster.devices,
            devices_per_node=cluster.devices_per_node,
            most_devices=min(cluster.most_devices or MOST_DEVICES, MOST_DEVICES),
            memory_gib=cluster.memory_bytes / GIB,
            bandwidth_gb_per_s=cluster.bandwidth_bytes_per_s / GB,
            calibrations=list(cluster.calibrations),
        )
        for cluster in cluster_choices()
    ]
    return Choices(
        models=models,
        clusters=clusters,
        frameworks=list(framework_choices()),
        options=_option_choices(),
    )


def _option_choices() -> dict[str, list[str]]:
    """What each option may be, where that is a list of names; text where it is empty."""
    from trainwright.formats.calibration_toml import built_in_calibrations

    lines = ["none", *sorted({each.line for each in built_in_calibrations()})]
    named = {
        "zero": ["0", "1", "2", "3", "0,1"],
        "recompute": ["none", "selective", "full"],
        "mapping": ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"],
        "precision": ["bf16", "fp16", "fp8", "fp32"],
        "optimizer": ["adam", "sgd"],
        "software": ["typical", "megatron-core", "nemo", "torchtitan", "deepspeed", "maxtext"],
        "calibration": lines,
    }
    return {name: named.get(name, []) for name in OPTIONS}


def _refused(status: int, *faults: Problem) -> Response:
    return JSONResponse(
        Refused(faults=list(faults)).model_dump(), status_code=status, headers=_HEADERS
    )


async def _on_bad_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if any(found["type"] == "json_invalid" for found in error.errors()):
        return _refused(400, Problem(path="body", problem="must be JSON"))
    faults = (
        Problem(path=".".join(map(str, found["loc"][1:])) or "body", problem=found["msg"])
        for found in error.errors()
    )
    return _refused(422, *faults)


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _refused(error.status_code, Problem(path="request", problem=str(error.detail)))


async def _on_error(_: Request, error: Exception) -> Response:
    return _refused(422, *_problems(error))


def _problems(error: Exception) -> tuple[Problem, ...]:
    if isinstance(error, InvalidInput):
        return tuple(Problem(path=fault.path, problem=fault.problem) for fault in error.faults)
    return (Problem(path="question", problem=str(error)),)
