"""The command line that asks for a document again.

Names are kept only where they still mean what the document carries: a catalog entry whose content
has the same hash. In place of any other input stands the document itself, which carries it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import singledispatch
from typing import Any, Final, NamedTuple

from trainwright.cluster import Cluster
from trainwright.cluster.calibration import TYPICAL, line_of
from trainwright.documents.explanation import ModelExplanation
from trainwright.documents.fit import FitResult
from trainwright.documents.improvement import ImprovementResult
from trainwright.documents.model_estimate import ModelEstimateRequest, ModelEstimateResult
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.model_summary import ModelSummary
from trainwright.documents.placement import PlacementResult
from trainwright.documents.profile_plan import EstimateResult, PlanResult
from trainwright.documents.runs import stated_length
from trainwright.documents.schedule import ScheduleRequest, ScheduleResult
from trainwright.documents.sweep import ModelSweepResult
from trainwright.documents.validation import ValidationResult
from trainwright.errors import InvalidInput
from trainwright.formats.catalog import model as catalog_model
from trainwright.formats.catalog import model_names
from trainwright.formats.codesign_document import CodesignResult, RoomResult
from trainwright.formats.document_json import content_hash, decode, encode
from trainwright.model import DEFAULT_RECIPE
from trainwright.options import clusters
from trainwright.options.question import DEFAULT_TOP
from trainwright.options.space import allowed_of, schedule_words
from trainwright.options.table import option_of, words_of
from trainwright.planning.question.question import EVERYTHING
from trainwright.planning.search.framework import USUAL_FRAMEWORKS
from trainwright.plans import configuration
from trainwright.plans.capability import known_target
from trainwright.plans.capability_table import own_choices
from trainwright.plans.plan import DATA_INSIDE, Embedded, FlatRequest, Parallelism
from trainwright.profile import USUAL_MODES
from trainwright.units import TimeUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Shell words, and what has to be at hand for them to mean the same."""

    words: tuple[str, ...]
    note: str = ""

    @property
    def text(self) -> str:
        """As typed into a shell."""
        return shlex.join(self.words)


def command_of(document: Any, *, file: str = "", part: str = "", of: str = "") -> Command:
    """The command of a document: what was typed, where that was kept, else by its fields.

    `file` is the name of the document's own file, which stands for the inputs that no other name
    means; without one it is a name to save it under, that of the `part` that it is `of` another
    file. Raises TypeError for a document that no command makes.
    """
    typed = getattr(getattr(document, "request", document), "command_line", None)
    if typed is not None:
        files = " and ".join(typed.files)
        note = f"in the folder that holds {files}" if files else ""
        return Command(words=("trainwright", *typed.words), note=note)
    own = file or f"{part or document.kind}.json"
    own = f"./{own}" if own.startswith("-") else own  # which is no option
    made = _of_fields(document, own)
    if made.note or own not in made.words:
        return made
    saved = "" if file else ", saved"
    what = f'"{part}" of {of}' if part else "this document"
    return replace(made, note=f"{own} is {what}{saved}; it carries what was asked")


@singledispatch
def _of_fields(document: object, own: str) -> Command:
    """The command by what the document keeps; `own` stands where its own file is to be read."""
    raise TypeError(f"no command makes {type(document).__name__}")


@_of_fields.register
def _(document: ModelPlanResult, own: str) -> Command:
    return _made("plan", document.request, _asked(document.request, own), own)


@_of_fields.register
def _(document: ModelSweepResult, own: str) -> Command:
    request = document.request
    asked = _asked(request, own)
    sizes = ",".join(dict.fromkeys(str(row.devices) for row in document.rows))
    kept = {
        **asked,
        "machine": asked["machine"]._replace(nodes=None, devices=sizes),
        "sweep": document,
        "training": document.training,
    }
    return _made("plan", request, kept, own)


@_of_fields.register(PlacementResult)
@_of_fields.register(PlanResult)
def _(document: PlanResult | PlacementResult, own: str) -> Command:
    kept = {**_of_a_profile(document.request), "compare": bool(getattr(document, "baselines", ()))}
    return _made("plan", document.request, kept, own)


@_of_fields.register
def _(document: EstimateResult, own: str) -> Command:
    kept = {"plan": own, "setting": document.request.setting}
    return _made("estimate", document.request, kept, own)


@_of_fields.register
def _(document: ModelEstimateResult, own: str) -> Command:
    kept = _of_a_run(document.request, own)
    if document.plan is not None:
        kept["chains"] = tuple(_chains(document.plan))
    return _made("estimate", document.request, kept, own)


def _chains(plan: ModelPlanResult) -> Iterator[str]:
    """Where the replicas of a plan lie, as `--pool` says it."""
    for number in sorted({rank.chain for rank in plan.ranks}):
        own = [rank for rank in plan.ranks if rank.chain == number]
        pools = ",".join(str(rank.pool) for rank in own)
        yield f"{own[0].count}x{own[0].num_microbatches}:{pools}"


@_of_fields.register
def _(document: ImprovementResult, own: str) -> Command:
    words = words_of("improve", {"improvement": document})
    return Command(words=("trainwright", "improve", own, *words))


@_of_fields.register
def _(document: FitResult, own: str) -> Command:
    request = document.request
    device = request.cluster.content["pools"][0]["accelerator"]["name"]
    asked = {field.name: getattr(request, field.name) for field in fields(request)}
    words = words_of("fit", {"fit": {**asked, "gpu": f"{request.num_devices}x{device}"}})
    return Command(words=("trainwright", "fit", _model(request.model, own), *words))


@_of_fields.register
def _(document: ValidationResult, own: str) -> Command:
    words = words_of("validate", {"validation": document})
    note = "the measured runs are not part of the document"
    return Command(words=("trainwright", "validate", document.folder, *words), note=note)


@_of_fields.register
def _(document: ModelExplanation, own: str) -> Command:
    return _of_fields(document.plan, own)  # whose reasons `plan` finds beside it


@_of_fields.register
def _(document: ModelSummary, own: str) -> Command:
    is_own = document.description is not None or document.name not in model_names()
    words = ["trainwright", "model", own if is_own else document.name]
    words += ["--sequence", str(document.sequence_length)]
    words += ["--images", str(document.images)] if document.images else []
    words += ["--image-size", str(document.image_size)] if document.image_size else []
    if is_own and document.description is None:
        words[2] = document.name
        note = f"{document.name} is the folder of its adapters"
        return Command(words=tuple(words), note=note)
    return Command(words=tuple(words))


@_of_fields.register(RoomResult)
@_of_fields.register(CodesignResult)
def _(document: CodesignResult | RoomResult, own: str) -> Command:
    return Command(words=("trainwright", "codesign", "--recheck", own))


@_of_fields.register
def _(document: ScheduleResult, own: str) -> Command:
    request = document.request
    kept: dict[str, Any] = {
        "request": request,
        "objective": document.objective,
        "spec": own,
        "family": None,
    }
    match request.method:
        case "family":
            kept["family"] = request.family or document.family
        case "simulate":
            kept["simulate"] = own
        case "searched-front":
            kept |= {"search": True, "pareto": True}
        case method:
            kept["pareto" if method == "front" else method] = True
    if (uniform := _uniform(request)) is not None:
        words = words_of("schedule", {**kept, "spec": None})
        return Command(words=("trainwright", "schedule", *words, *uniform))
    return Command(words=("trainwright", "schedule", *words_of("schedule", kept)))


_TIMES: Final = {
    "forward_s": "--forward",
    "input_grad_s": "--input-grad",
    "weight_grad_s": "--weight-grad",
    "transfer_s": "--comm",
}


def _uniform(request: ScheduleRequest) -> tuple[str, ...] | None:
    """The times of stages that are all alike, as options; None of other costs."""
    content = request.costs.content
    times = {key: value for key, value in content.items() if key not in ("kind", "format_version")}
    alike = times.keys() <= _TIMES.keys() and all(len(value) == 1 for value in times.values())
    if request.costs.name != "uniform" or not alike:
        return None
    unit = "s" if request.time_unit is TimeUnit.SECONDS else ""
    named = ((_TIMES[key], f"{value[0]!r}{unit}") for key, value in times.items())
    return tuple(word for pair in named for word in pair)


def _made(
    name: str,
    request: FlatRequest | ModelEstimateRequest,
    kept: Mapping[str, Any],
    own: str,
) -> Command:
    words = tuple(words_of(name, kept, usual=_USUAL))
    cluster = getattr(request, "cluster", None)
    software = getattr(request, "software" if name == "plan" else "framework", None)
    priced = () if cluster is None else _priced(cluster, software)
    if not priced and name == "estimate" and software == TYPICAL.name:  # asked for by name
        priced = ("--software", TYPICAL.name)
    words = (*words, *_unlike_its_program(request))
    if isinstance(request, configuration.PlanRequest) and request.model.kind == "model":
        words, priced = _for_whom(request, words, priced)
    return Command(words=("trainwright", name, _model(request.model, own), *words, *priced))


def _unlike_its_program(request: FlatRequest | ModelEstimateRequest) -> tuple[str, ...]:
    """What says that a run does not do what its program does by itself."""
    zero = None
    if isinstance(request, configuration.PlanRequest):
        program, recipe = request.space.framework or request.software, request.recipe
    elif isinstance(request, FlatRequest):
        return ()
    else:
        program, recipe = request.framework, request.configuration.recipe
        zero = request.configuration.parallelism.zero_stage
    if recipe is None or request.cluster is None or program is None:
        return ()
    cluster = decode(Cluster, request.cluster.content)
    precision = recipe.precision or cluster.pools[0].accelerator.default_precision
    own = own_choices(known_target(program) or program, precision, program=program, zero=zero)
    words = {
        "gradient_dtype": "fp32",
        "loss_chunk": "0",
        "reduce_dtype": recipe.gradient_dtype or "fp32",
    }
    flags = option_of("plan")
    lacking = ((f"--{flags[name]}", words[name]) for name in own if getattr(recipe, name) is None)
    return tuple(word for pair in lacking for word in pair)


def _for_whom(
    request: configuration.PlanRequest, words: tuple[str, ...], priced: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Whose plans are asked for, and of whom a speed is expected, where that is not by default."""
    framework, like = request.space.framework, request.software
    if framework is None:
        pools = 0 if request.cluster is None else len(request.cluster.content["pools"])
        free = pools == 1 and not request.space.per_stage_degrees
        return (*words, *(("--framework", clusters.ANY_FRAMEWORK) if free else ())), priced
    if like != TYPICAL.name:
        return words, priced
    if framework == USUAL_FRAMEWORKS[0]:
        at = words.index("--framework")
        return (*words[:at], *words[at + 2 :]), priced
    return words, priced or ("--software", TYPICAL.name)


def _priced(cluster: Embedded, software: str | None) -> tuple[str, ...]:
    """The option that prices the cluster as the document did.

    One that the document carries is as it was priced, whatever software is named.
    """
    if (known := _in_the_catalog(cluster, software)) is not None:
        return known.priced
    if software is None or line_of(_sources(cluster)) is None:
        return ("--calibration", clusters.NO_CALIBRATION)
    return () if software == TYPICAL.name else ("--software", software)


def _sources(cluster: Embedded) -> Iterator[str]:
    """What the figures of its first devices are said to rest on."""
    return (each["source"] for _, each in cluster.content["pools"][0]["accelerator"]["sources"])


# What documents keep, by the heads of the table's nouns
# ------------------------------------------------------

# A device is asked of a plan and an estimate as it is by default, where nobody says otherwise.
_USUAL: Final[Mapping[str, Any]] = {
    "recipe": DEFAULT_RECIPE,
    "overlap": configuration.DEFAULT_OVERLAP,
    "kernels": configuration.USUAL_KERNELS,
    "overheads": configuration.USUAL_OVERHEADS,
    "space": EVERYTHING,
    "parallelism": {"tensor": 1, "pipeline": 1, "context": 1, "expert": 1, "virtual_stages": 1}
    | {"state_copies": 1, "axis_order": DATA_INSIDE},
    "run": {field.name: field.default for field in fields(configuration.Configuration)}
    | {"schedule": None},
    "request": {"top": DEFAULT_TOP},
}


class _Machine(NamedTuple):
    """A cluster by its name, with what sizes it."""

    cluster: str
    nodes: int | None = None
    memory_bytes: float | None = None
    devices: int | None = None


def _asked(request: configuration.PlanRequest, own: str) -> dict[str, Any]:
    """Of the plan of a model, or of a profile on a cluster."""
    space = request.space
    allowed = allowed_of(space)
    modes = tuple(mode for mode in USUAL_MODES if mode not in space.excluded_options)
    if allowed.recompute == modes:  # what is excluded says it
        allowed = replace(allowed, recompute=EVERYTHING.recompute)
    return {
        "machine": None if request.cluster is None else _machine(request, own),
        "workload": request.workload,
        "space": allowed,
        "schedules": schedule_words(allowed),
        "record": space,
        "searched": space,
        "recipe": request.recipe,
        "overlap": request.overlap,
        "kernels": request.kernels,
        "overheads": request.overheads or configuration.NO_OVERHEADS,
        "request": request,
    }


def _of_a_profile(request: FlatRequest) -> dict[str, Any]:
    space = request.space
    asked = {"cost_model": request.cost_model}
    return {"setting": request.setting, "flat": space, "record": space, "request": asked}


def _of_a_run(request: ModelEstimateRequest, own: str) -> dict[str, Any]:
    run = request.configuration
    count = "" if run.recompute_blocks is None else f":{run.recompute_blocks}"
    degrees = run.parallelism
    kept = {name: getattr(degrees, name) for name in Parallelism.__dataclass_fields__}
    if degrees.sequence_parallel == (degrees.tensor > 1):
        kept["sequence_parallel"] = None
    return {
        "machine": _named(request.cluster, own),
        "parallelism": kept,
        "run": {
            **{
                name: getattr(run, name)
                for name in configuration.Configuration.__dataclass_fields__
            },
            "sequence_length": stated_length(run),
        },
        "recompute": f"{run.recompute}{count}",
        "recipe": run.recipe,
        "overlap": run.overlap,
        "overheads": run.overheads,
    }


def _machine(request: configuration.PlanRequest, own: str) -> _Machine:
    assert request.cluster is not None
    named, count = _named(request.cluster, own), request.num_devices
    if count is None or count == _devices(request.cluster):
        return named
    return named._replace(devices=count)


def _named(cluster: Embedded, own: str) -> _Machine:
    """The catalog's cluster as it was sized, or the one that the document carries."""
    known = _in_the_catalog(cluster)
    if known is None:
        return _Machine(own)
    sized = len(cluster.content["pools"][0]["levels"]) > 1
    return _Machine(
        cluster.name, nodes=_nodes(cluster) if sized else None, memory_bytes=known.memory_bytes
    )


def _nodes(cluster: Embedded) -> int:
    return _devices(cluster) // int(cluster.content["pools"][0]["levels"][0]["size"])


def _memory_bytes(cluster: Embedded) -> float:
    return float(cluster.content["pools"][0]["accelerator"]["memory_bytes"])


def _devices(cluster: Embedded) -> int:
    count = 0
    for pool in cluster.content["pools"]:
        devices = 1
        for level in pool["levels"]:
            devices *= int(level["size"])
        count += devices
    return count


def _model(model: Embedded, own: str) -> str:
    """The catalog's name of a model, or the document that carries it."""
    try:
        found: dict[str, Any] = encode(catalog_model(model.name).config)
    except InvalidInput:
        return own
    return model.name if content_hash(found) == model.sha256 else own


class _Known(NamedTuple):
    """How a name of the catalog stands for what a document carries."""

    memory_bytes: float | None  # in place of the catalog's
    priced: tuple[str, ...]  # the option that gives its devices the efficiencies they have


def _in_the_catalog(cluster: Embedded, software: str | None = None) -> _Known | None:
    if len(cluster.content["pools"]) > 1:
        return None

    for memory_bytes in (None, _memory_bytes(cluster)):
        try:
            found, _ = clusters.resolve_cluster(
                cluster.name, nodes=_nodes(cluster), devices=None, memory_bytes=memory_bytes
            )
        except InvalidInput:
            return None
        for sized in (clusters.without_host(found), found):
            for priced, each in _pricings(sized, cluster, software):
                if content_hash(encode(_holding(each, cluster))) == cluster.sha256:
                    return _Known(memory_bytes, priced)
    return None


def _holding(found: Cluster, cluster: Embedded) -> Cluster:
    """The cluster whose devices hold what those of the document do of overlap."""
    said = cluster.content["pools"][0]["accelerator"].get("held_overlap", ())
    (pool,) = found.pools
    held = replace(pool.accelerator, held_overlap=tuple(said))
    return replace(found, pools=(replace(pool, accelerator=held),))


def _pricings(
    found: Cluster, cluster: Embedded, software: str | None
) -> Iterator[tuple[tuple[str, ...], Cluster]]:
    """The cluster as its description says, and with what the line it names knows of it.

    What shards a program's model ("trl with deepspeed") is of the software that is named alone.
    """
    yield ("--calibration", clusters.NO_CALIBRATION), found
    line = line_of(_sources(cluster))
    if line is not None:
        if line == TYPICAL.name:  # what is expected where nobody names a program
            yield (), clusters.expected(found, None)
        if software not in (None, TYPICAL.name):
            yield ("--software", software), clusters.expected(found, software)
        yield ("--software", line), clusters.expected(found, line)
        with suppress(InvalidInput):  # a file that is not built in
            yield ("--calibration", line), clusters.calibrated(found, line)
