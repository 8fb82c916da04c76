"""The routes: the page, what can be chosen, questions, and answers as documents and pages."""

from __future__ import annotations

import asyncio
import io
import threading
import zipfile
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from trainwright._version import __version__
from trainwright.commands.export import bundle_of
from trainwright.commands.report import report
from trainwright.documents.open import Result
from trainwright.errors import InvalidInput, TrainwrightError
from trainwright.execution import Budget
from trainwright.formats.atomic_file import file_bytes
from trainwright.pages.command import command_of
from trainwright.pages.gantt_html import asset, environment, policy, theme_css
from trainwright.pages.page import palette_css

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from trainwright.cluster import Cluster
    from trainwright.commands.serve import App, Limits
    from trainwright.options.inputs import ModelInput
    from trainwright.pages.command import Command
    from trainwright.plans.job import ExportBundle


# Questions of the live page: names of the catalog and bounded numbers, never a path
# ----------------------------------------------------------------------------------
# A question has a model of the catalog or the content of a `config.json`, a cluster of the catalog,
# and what the sliders stand for: devices, their memory, the bandwidth of the outermost network
# level, the batch.

_TOP = 12  # runners-up to pick from


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: a `model` of the catalog or a `config`; absent figures are the catalog's.

    `bandwidth_bytes_per_s` is that of one device across the outermost network level.
    """

    model: str | None = None
    config: Mapping[str, Any] | None = None
    cluster: str
    devices: int
    global_batch: int
    sequence: int
    memory_bytes: float | None = None
    bandwidth_bytes_per_s: float | None = None
    framework: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """A model to choose."""

    name: str
    num_parameters: int
    max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """A cluster to choose, and where its sliders start; `most_devices` None grows without limit."""

    name: str
    accelerator: str
    devices: int
    devices_per_node: int
    most_devices: int | None
    memory_bytes: float
    bandwidth_bytes_per_s: float


def answer(question: Question, budget: Budget) -> Result:
    """The best plan; raises `InvalidInput` with every fault of the question."""
    from trainwright.documents.model_plan import plan_model
    from trainwright.options.question import model_call

    given = _model(question)
    call = model_call(
        given,
        {
            "cluster": cluster_of(question),
            "global_batch": question.global_batch,
            "sequence": question.sequence,
            "framework": question.framework,
            "top": _TOP,
            "devices": question.devices,
            "memory": question.memory_bytes,
        },
    )
    return Result(plan_model(call, budget, warnings=given.warnings))


def cluster_of(question: Question) -> Cluster:
    """The catalog's cluster with the bandwidth asked for; not yet sized."""
    from trainwright.formats.catalog import cluster, cluster_names

    _require("cluster", question.cluster, cluster_names())
    found = cluster(question.cluster)
    if question.bandwidth_bytes_per_s is None:
        return found
    pool = found.pool_of()
    outer = replace(pool.levels[-1], bandwidth_bytes_per_s=question.bandwidth_bytes_per_s)
    return replace(found, pools=(replace(pool, levels=(*pool.levels[:-1], outer)),))


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
    from trainwright.formats.catalog import cluster, cluster_names

    for name in cluster_names():
        found = cluster(name)
        if len(found.pools) > 1:
            continue
        pool = found.pool_of()
        yield ClusterChoice(
            name=name,
            accelerator=pool.accelerator.name,
            devices=pool.num_devices,
            devices_per_node=pool.devices_per_node,
            most_devices=pool.num_devices if len(pool.levels) == 1 else None,
            memory_bytes=pool.accelerator.memory_bytes,
            bandwidth_bytes_per_s=pool.levels[-1].bandwidth_bytes_per_s,
        )


def framework_choices() -> tuple[str, ...]:
    """Frameworks that a plan can be limited to."""
    from trainwright.plans.capability import TARGETS

    return tuple(TARGETS)


def _model(question: Question) -> ModelInput:
    from trainwright.formats.catalog import model_names
    from trainwright.options.inputs import catalog_input, config_input

    if question.config is not None:
        if question.model is not None:
            raise InvalidInput.of("model", "must not be given together with a config")
        return config_input(question.config, name="config.json")
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
MOST_DEVICES: Final = 65_536
GIB: Final = 2**30
GB: Final = 1e9


class Ask(BaseModel):
    """A question; `model` is a name of the catalog, `config` the content of a config.json.

    The search ends after `time_limit_s`, and after the server's own limit in any case.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, _NAME] | None = None
    config: dict[str, Any] | None = None
    cluster: Annotated[str, _NAME]
    devices: Annotated[int, Field(strict=True, ge=1, le=MOST_DEVICES)]
    global_batch: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    sequence: Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
    memory_gib: Annotated[float, Field(ge=1, le=4096, allow_inf_nan=False)] | None = None
    bandwidth_gb_per_s: Annotated[float, Field(ge=0.01, le=1e5, allow_inf_nan=False)] | None = None
    framework: Annotated[str, _NAME] | None = None
    time_limit_s: Annotated[float, Field(ge=0.01, le=3600, allow_inf_nan=False)] | None = None

    @property
    def question(self) -> Question:
        """In SI units, as the api takes it."""
        bandwidth = self.bandwidth_gb_per_s
        return Question(
            model=self.model,
            config=self.config,
            cluster=self.cluster,
            devices=self.devices,
            global_batch=self.global_batch,
            sequence=self.sequence,
            memory_bytes=None if self.memory_gib is None else self.memory_gib * GIB,
            bandwidth_bytes_per_s=None if bandwidth is None else bandwidth * GB,
            framework=self.framework,
        )


class Answered(BaseModel):
    """A plan that was made: under which id it can be fetched, its document, its command.

    Where it is not complete, time was up before the search was over.
    """

    id: str
    is_complete: bool
    document: dict[str, Any]
    command: str
    command_note: str


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
    """A cluster of the catalog and where its sliders start."""

    name: str
    accelerator: str
    devices: int
    devices_per_node: int
    most_devices: int
    memory_gib: float
    bandwidth_gb_per_s: float


class Choices(BaseModel):
    """Everything that can be chosen."""

    models: list[ModelItem]
    clusters: list[ClusterItem]
    frameworks: list[str]


# Answering questions, a few at a time, and keeping the last answers for their pages
# ----------------------------------------------------------------------------------

_LOOK_S = 0.05  # how often it is looked whether the reader still waits


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
        self._lock = threading.Lock()

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

    def made(self, plan_id: str) -> Made | None:
        """An answer that is still kept."""
        return self._kept.get(plan_id)

    def page(self, plan_id: str) -> str | None:
        """The page of an answer that is still kept, written when it is first asked for."""
        found = self._kept.get(plan_id)
        if found is None:
            return None
        with self._lock:
            if plan_id not in self._pages:
                self._pages[plan_id] = report(found.result).html
            return self._pages[plan_id]

    def _keep(self, result: Result, *, is_complete: bool) -> Made:
        import hashlib

        text = result.to_json()
        made = Made(
            id=hashlib.sha256(text.encode()).hexdigest()[:24],
            is_complete=is_complete,
            result=result,
            command=command_of(result.document),
        )
        self._kept[made.id] = made
        self._kept.move_to_end(made.id)
        while len(self._kept) > self._limits.max_kept:
            oldest, _ = self._kept.popitem(last=False)
            self._pages.pop(oldest, None)
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
        "/api/plans/{plan_id}", routes.document, response_class=Response, responses=_UNKNOWN
    )
    app.add_api_route(
        "/pages/{plan_id}", routes.page, response_class=HTMLResponse, responses=_UNKNOWN
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

    async def plan(self, ask: Ask, request: Request) -> Response:
        """The best plan within the time limit; stopped when nobody waits for it any more."""
        try:
            made = await self._planner.plan(
                ask.question, request.is_disconnected, time_limit_s=ask.time_limit_s
            )
        except BusyError:
            return _refused(429, Problem(path="plans", problem="are being made; try again"))
        answered = Answered(
            id=made.id,
            is_complete=made.is_complete,
            document=made.result.to_dict(),
            command=made.command.text,
            command_note=made.command.note,
        )
        return JSONResponse(answered.model_dump(), headers=_HEADERS)

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
        html = self._planner.page(plan_id)
        if html is None:
            return _refused(404, _NOT_KEPT)
        framed = {"Content-Security-Policy": "frame-ancestors 'self'"}
        return HTMLResponse(html, headers={**_HEADERS, **framed})


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
        )
        for cluster in cluster_choices()
    ]
    return Choices(models=models, clusters=clusters, frameworks=list(framework_choices()))


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
    if isinstance(error, InvalidInput):
        faults = (Problem(path=fault.path, problem=fault.problem) for fault in error.faults)
        return _refused(422, *faults)
    return _refused(422, Problem(path="question", problem=str(error)))
