"""What `plan` was asked about a model, to and from the request of its document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from trainwright._version import __version__
from trainwright.api.inputs import embed
from trainwright.api.recipe_options import refuse_formats
from trainwright.api.recompute import inside
from trainwright.api.space_options import allowed_of, record_of
from trainwright.errors import Fault, InvalidInput
from trainwright.plan.results.request import Embedded, PlanRequest, WorkloadRecord

if TYPE_CHECKING:
    from trainwright.planning.model_question import ModelQuestion

DEFAULT_TOP: Final = 5
Noun = TypeVar("Noun")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A question about a model, and how much of the answer is wanted.

    `model` is what the document embeds; `excluded_options` are names as they were given, known or
    not; `top` is the number of runners-up; `warnings` are about what was read for it.
    """

    model: Embedded
    question: ModelQuestion
    excluded_options: frozenset[str] = frozenset()
    per_stage_degrees: bool = False
    top: int = DEFAULT_TOP
    warnings: tuple[str, ...] = ()


def request_of(call: ModelCall, *, time_limit_s: float | None) -> PlanRequest:
    """The request that a document carries."""
    from trainwright.formats.document_json import encode
    from trainwright.model import DEFAULT_RECIPE
    from trainwright.plan.overlap import DEFAULT_OVERLAP

    question = call.question
    workload = question.workload
    return PlanRequest(
        trainwright_version=__version__,
        model=call.model,
        cluster=embed("cluster", question.cluster.name, encode(question.cluster)),
        workload=WorkloadRecord(
            global_batch=workload.global_batch,
            sequence_length=workload.sequence_length,
            precision=workload.precision,
        ),
        num_devices=question.num_devices,
        overheads=question.overheads,
        recipe=_unless_usual(question.settings.recipe, DEFAULT_RECIPE),
        overlap=_unless_usual(question.settings.overlap, DEFAULT_OVERLAP),
        space=record_of(
            question.allowed,
            excluded=call.excluded_options,
            per_stage_degrees=call.per_stage_degrees,
        ),
        top=call.top,
        time_limit_s=time_limit_s,
    )


def _unless_usual(value: Noun, usual: Noun) -> Noun | None:
    return None if value == usual else value


def call_of(request: PlanRequest) -> ModelCall:
    """What was asked; raises `InvalidInput` under the keys of the document."""
    from trainwright.cluster import Cluster
    from trainwright.formats.document_json import decode
    from trainwright.model import DEFAULT_RECIPE, TransformerConfig
    from trainwright.plan.overlap import DEFAULT_OVERLAP, NO_OVERHEADS
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.model_space import Workload
    from trainwright.planning.run_settings import RunSettings

    space, stated, where = request.space, request.workload, request.cluster
    missing = [
        Fault(f"request.{name}", "required field is missing")
        for name, part in (("cluster", where), ("workload", stated))
        if part is None
    ]
    if missing or where is None or stated is None:
        raise InvalidInput(missing)
    model = decode(TransformerConfig, request.model.content, path="request.model.content")
    cluster = decode(Cluster, where.content, path="request.cluster.content")
    with inside("request.space"):
        allowed = allowed_of(space)
    if request.recipe is not None and len(cluster.pools) == 1:
        with inside("request.recipe"):
            refuse_formats(request.recipe, cluster.accelerator)
    with inside("request"):
        question = ModelQuestion(
            model=model,
            cluster=cluster,
            workload=Workload(
                global_batch=stated.global_batch,
                sequence_length=stated.sequence_length,
                precision=stated.precision,
            ),
            num_devices=request.num_devices or cluster.num_devices,
            allowed=allowed,
            overheads=request.overheads or NO_OVERHEADS,
            settings=RunSettings(
                recipe=request.recipe or DEFAULT_RECIPE, overlap=request.overlap or DEFAULT_OVERLAP
            ),
        )
    return ModelCall(
        model=request.model,
        question=question,
        excluded_options=frozenset(space.excluded_options),
        per_stage_degrees=space.per_stage_degrees,
        top=DEFAULT_TOP if request.top is None else request.top,
    )
