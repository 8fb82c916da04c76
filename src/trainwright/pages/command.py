"""The command line that asks for a document again.

Names are kept only where they still mean what the document carries: a catalog entry whose content
has the same hash. Otherwise the note says that the input is the one embedded in the document.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from enum import Enum
from functools import singledispatch
from typing import TYPE_CHECKING, Any, Final

from trainwright.documents.explanation import ModelExplanation
from trainwright.documents.improvement import ImprovementResult
from trainwright.documents.mixed_plan import MixedPlanResult
from trainwright.documents.model_estimate import ModelEstimateResult
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.placement import PlacementResult
from trainwright.documents.profile_plan import EstimateResult, PlanResult
from trainwright.documents.schedule import ScheduleResult
from trainwright.documents.sweep import ModelSweepResult
from trainwright.documents.validation import ValidationResult
from trainwright.errors import InvalidInput
from trainwright.formats.codesign_document import CodesignResult
from trainwright.options.inputs import content_hash
from trainwright.options.question import DEFAULT_TOP
from trainwright.options.run import recipe_words
from trainwright.options.space import memory_words, model_space_words, profile_space_words
from trainwright.plans.parallelism import DATA_INSIDE, mapping_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.documents.model_estimate import ModelEstimateRequest
    from trainwright.plans.configuration import Configuration
    from trainwright.plans.request import Embedded, PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Shell words, and what has to be at hand for them to mean the same."""

    words: tuple[str, ...]
    note: str = ""

    @property
    def text(self) -> str:
        """As typed into a shell."""
        return shlex.join(self.words)


@singledispatch
def command_of(document: object) -> Command:
    """The command of a document; raises TypeError for one that no command makes."""
    raise TypeError(f"no command makes {type(document).__name__}")


@command_of.register(MixedPlanResult)
@command_of.register(ModelPlanResult)
def _(document: ModelPlanResult | MixedPlanResult) -> Command:
    request = document.request
    words = ["trainwright", "plan", request.model.name, *_cluster_words(request)]
    words += [*_workload_words(request), *model_space_words(request.space)]
    words += [*recipe_words(request.recipe, request.overlap), *memory_words(request.overheads)]
    if request.top is not None and request.top != DEFAULT_TOP:
        words += ["--top", str(request.top)]
    return Command(words=tuple(words), note=_note(request.model, request.cluster))


@command_of.register
def _(document: ImprovementResult) -> Command:
    words = ["trainwright", "improve", "RUN.json"]
    if document.framework is not None:
        words += ["--framework", document.framework]
    request = document.request
    run = shlex.join(_estimate_words(request))
    notes = (f"RUN.json is what this writes with -o: {run}", _estimate_note(request))
    return Command(words=tuple(words), note="; ".join(filter(None, notes)))


@command_of.register
def _(document: ValidationResult) -> Command:
    words = ["trainwright", "validate", document.folder]
    if document.profiles is not None:
        words += ["--profiles", document.profiles]
    return Command(words=tuple(words), note="the measured runs are not part of the document")


@command_of.register
def _(document: ModelExplanation) -> Command:
    made = command_of(document.plan)
    then = "its reasons are those of: trainwright explain, on the plan"
    return Command(words=made.words, note="; ".join(filter(None, (made.note, then))))


@command_of.register
def _(document: PlanResult) -> Command:
    request = document.request
    words = ["trainwright", "plan", request.model.name, *_setting_words(request)]
    words += profile_space_words(request.space)
    return Command(words=tuple(words), note=_note(request.model, None))


@command_of.register
def _(document: EstimateResult) -> Command:
    request = document.request
    words = ["trainwright", "estimate", request.model.name, "--plan", "PLAN.json"]
    words += _setting_words(request)
    note = "PLAN.json stands for this document; " + _note(request.model, None)
    return Command(words=tuple(words), note=note)


@command_of.register
def _(document: ModelEstimateResult) -> Command:
    request = document.request
    return Command(words=tuple(_estimate_words(request)), note=_estimate_note(request))


@command_of.register
def _(document: ModelSweepResult) -> Command:
    request, training = document.request, document.training
    words = ["trainwright", "plan", request.model.name]
    if request.cluster is not None:
        words += ["--cluster", request.cluster.name]
    words += ["--devices", ",".join(str(row.devices) for row in document.rows)]
    words += [*_workload_words(request), *model_space_words(request.space)]
    words += [*recipe_words(request.recipe, request.overlap), *memory_words(request.overheads)]
    words += ["--objective", document.objective]
    if document.pareto_objectives:
        words += ["--pareto", ",".join(document.pareto_objectives)]
    given = {
        "--tokens": training.tokens,
        "--price": training.price_per_hour,
        "--power": training.power_watts,
        "--mtbf": training.device_mtbf_s,
        "--checkpoint-bandwidth": training.checkpoint_bytes_per_s,
        "--restart": training.restart_s,
    }
    words += [word for name, v in given.items() if v is not None for word in (name, repr(v))]
    if training.deadline_s is not None:
        words += ["--deadline", f"{training.deadline_s!r}s"]  # bare, a short one is a slip
    return Command(words=tuple(words), note=_note(request.model, request.cluster))


@command_of.register
def _(document: PlacementResult) -> Command:
    request = document.request
    words = ["trainwright", "plan", request.model.name, *_setting_words(request)]
    words += profile_space_words(request.space)
    if request.cost_model is not None:
        words += ["--cost-model", request.cost_model]
    return Command(words=tuple(words), note=_note(request.model, None))


@command_of.register
def _(document: CodesignResult) -> Command:
    return Command(
        words=("trainwright", "codesign", "--recheck", "CHIP.json"),
        note="CHIP.json stands for this document: its search is repeated from its own request",
    )


@command_of.register
def _(document: ScheduleResult) -> Command:
    request = document.request
    words = ["trainwright", "schedule"]
    if request.method == "family":
        words += ["--family", request.family or document.family]
    elif request.method == "simulate":
        words += ["--simulate", request.orders_name or "ORDERS"]
    else:
        words += [f"--{request.method}"]
    words += ["--spec", "SPEC.json", "--microbatches", str(request.num_microbatches)]
    given = {
        "--placement": request.placement,
        "--virtual-stages": request.virtual_stages,
        "--group": request.group,
        "--max-activations": request.max_activations,
        "--seed": request.seed,
        "--evaluations": request.evaluations,
    }
    words += [word for name, v in given.items() if v is not None for word in (name, str(v))]
    if document.objective != "makespan":
        words += ["--objective", document.objective]
    return Command(
        words=tuple(words),
        note="SPEC.json stands for the costs embedded in the document: request.costs.content",
    )


def _estimate_words(request: ModelEstimateRequest) -> list[str]:
    words = ["trainwright", "estimate", request.model.name, *_named_cluster(request.cluster)]
    return [*words, *_run_words(request.configuration)]


def _estimate_note(request: ModelEstimateRequest) -> str:
    recipe = ", ".join(_unnamed_choices(request.configuration))
    stated = f"and as the document states: {recipe}" if recipe else ""
    return "; ".join(filter(None, (_note(request.model, request.cluster), stated)))


def _workload_words(request: PlanRequest) -> list[str]:
    workload = request.workload
    if workload is None:
        return []
    words, sequence = ["--global-batch", str(workload.global_batch)], workload.sequence_length
    return words if sequence is None else [*words, "--sequence", str(sequence)]


def _cluster_words(request: PlanRequest) -> list[str]:
    if request.cluster is None:
        return []
    words = _named_cluster(request.cluster)
    if request.num_devices is not None and request.num_devices != _devices(request.cluster):
        words += ["--devices", str(request.num_devices)]
    return words


def _named_cluster(cluster: Embedded) -> list[str]:
    """The catalog's cluster as it was sized, or the name the document has for it."""
    words, pools = ["--cluster", cluster.name], cluster.content["pools"]
    if len(pools) > 1:
        return words
    if len(pools[0]["levels"]) > 1:
        words += ["--nodes", str(_nodes(cluster))]
    if _is_catalog_cluster(cluster) is _Known.WITH_MEMORY:
        words += ["--memory", repr(_memory_bytes(cluster))]
    return words


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


def _setting_words(request: PlanRequest) -> list[str]:
    setting = request.setting
    if setting is None:
        return []
    return [
        *("--devices", str(setting.num_devices)),
        *("--memory", repr(setting.memory_bytes)),
        *("--bandwidth", repr(setting.bandwidth_bytes_per_s)),
        *("--microbatches", str(setting.num_microbatches)),
    ]


_RUN_OPTIONS: Final = {
    "tensor": "--tp",
    "pipeline": "--pp",
    "data": "--dp",
    "context": "--cp",
    "expert": "--ep",
    "expert_tensor": "--etp",
    "virtual_stages": "--virtual-stages",
}


def _run_words(run: Configuration) -> Iterator[str]:
    degrees = run.parallelism
    for name, option in _RUN_OPTIONS.items():
        degree = getattr(degrees, name)
        if degree is not None and (degree > 1 or name == "data"):
            yield from (option, str(degree))
    yield from ("--zero", str(degrees.zero_stage))
    if degrees.state_copies > 1:
        yield from ("--state-copies", str(degrees.state_copies))
    if degrees.axis_order != DATA_INSIDE:
        yield from ("--mapping", mapping_name(degrees.axis_order))
    yield from ("--micro-batch", str(run.microbatch_size))
    yield from ("--global-batch", str(run.global_batch))
    yield from ("--sequence", str(run.sequence_length))
    yield from ("--schedule", run.schedule)
    count = "" if run.recompute_blocks is None else f":{run.recompute_blocks}"
    yield from ("--recompute", f"{run.recompute}{count}")
    yield from memory_words(run.overheads)


def _unnamed_choices(run: Configuration) -> Iterator[str]:
    """Choices that differ from the default and that the command leaves out."""
    named = {"parallelism", "microbatch_size", "global_batch", "sequence_length", "schedule"}
    named |= {"recompute", "recompute_blocks", "overheads"}
    for field in fields(run):
        if field.name not in named and getattr(run, field.name) != field.default:
            yield field.name.replace("_", " ")
    degrees = run.parallelism
    if degrees.sequence_parallel != (degrees.tensor > 1):
        yield f"sequence parallel {'on' if degrees.sequence_parallel else 'off'}"


def _note(model: Embedded, cluster: Embedded | None) -> str:
    """Which names do not stand for what the document carries, as far as can be told here."""
    unknown = []
    if not _is_catalog_model(model):
        unknown.append(f"{model.kind} {model.name}")
    if cluster is not None and _is_catalog_cluster(cluster) is None:
        unknown.append(f"cluster {cluster.name}")
    if not unknown:
        return ""
    return f"{' and '.join(unknown)}: not as in the catalog, but as embedded in the document"


def _is_catalog_model(model: Embedded) -> bool:
    from trainwright.formats.catalog import model as catalog_model
    from trainwright.formats.document_json import encode

    try:
        found: dict[str, Any] = encode(catalog_model(model.name).config)
    except InvalidInput:
        return False
    return content_hash(found) == model.sha256


class _Known(Enum):
    """Whether a name of the catalog stands for what a document carries."""

    AS_IT_IS = "as it is"
    WITH_MEMORY = "with another memory"


def _is_catalog_cluster(cluster: Embedded) -> _Known | None:
    from trainwright.formats.document_json import encode
    from trainwright.options.clusters import resolve_cluster

    for known, memory_bytes in (
        (_Known.AS_IT_IS, None),
        (_Known.WITH_MEMORY, _memory_bytes(cluster)),
    ):
        try:
            found, _ = resolve_cluster(
                cluster.name, nodes=_nodes(cluster), devices=None, memory_bytes=memory_bytes
            )
        except InvalidInput:
            return None
        if content_hash(encode(found)) == cluster.sha256:
            return known
    return None
