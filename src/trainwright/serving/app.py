"""The routes: the page, what can be chosen, questions, and answers as documents and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from trainwright._version import __version__
from trainwright.api.explore import cluster_choices, framework_choices, model_choices
from trainwright.api.export import bundle_of
from trainwright.errors import InvalidInput, TrainwrightError
from trainwright.serving.front import front_page
from trainwright.serving.limits import Guard, Limits
from trainwright.serving.messages import (
    GB,
    GIB,
    MOST_DEVICES,
    Answered,
    Ask,
    Choices,
    ClusterItem,
    ModelItem,
    Problem,
    Refused,
)
from trainwright.serving.plans import BusyError, Planner
from trainwright.serving.zipping import zipped

if TYPE_CHECKING:
    from trainwright.serving.limits import App

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


def make_app(limits: Limits | None = None) -> App:
    """The application within its limits; 20 s a plan, two at a time, bodies of 1 MiB."""
    bounds = limits or Limits()
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
    return Guard(app, bounds)


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
