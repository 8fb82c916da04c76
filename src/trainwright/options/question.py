"""The options of `plan` on a model, and the question they ask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trainwright.cluster import Accelerator, Cluster
from trainwright.cluster.calibration import TYPICAL
from trainwright.errors import Fault, InvalidInput, UnsupportedFeature, refuse
from trainwright.formats.calibration_toml import deciding_memory
from trainwright.formats.document_json import decode
from trainwright.model import (
    DEFAULT_RECIPE,
    NO_OFFLOAD,
    PRECISIONS,
    Head,
    Offload,
    TransformerConfig,
)
from trainwright.options import clusters
from trainwright.options.inputs import (
    ModelInput,
    ProfileInput,
    embed_cluster,
    inside,
    naming_options,
)
from trainwright.options.option import Options
from trainwright.options.run import (
    as_program_trains,
    as_trained,
    modules_of,
    overheads_of,
    overlap_of,
    recipe_of,
    refuse_formats,
    refuse_unknown_words,
    tuned,
)
from trainwright.options.space import SPANS, allowed_by, allowed_of, record_of, refuse_no_search
from trainwright.options.table import fields_given, option_of
from trainwright.planning.question.question import (
    ANY,
    Allowed,
    ModelQuestion,
    RunSettings,
    Workload,
    context_degrees,
    dense_points,
    measured_sizes,
    microbatch_sizes,
    tensor_degrees,
)
from trainwright.plans import configuration
from trainwright.plans.capability import Capability, capability_of, unsupported
from trainwright.plans.capability_table import (
    MOVES_GRADIENTS,
    MOVES_LAYERS,
    MOVES_WEIGHTS,
    USUAL_LOSS_CHUNK,
    Feature,
)
from trainwright.plans.job import training_demands
from trainwright.plans.plan import Embedded, WorkloadRecord
from trainwright.plans.status import ALL_BF16
from trainwright.profile import USUAL_MODES, Profile, Recompute
from trainwright.profile.measured_model import MeasuredModel, measured_model
from trainwright.profile.profile import divisors
from trainwright.provenance import __version__
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.model import Recipe
    from trainwright.planning.search.search import ModelOutcome
    from trainwright.profile.measured_model import Trained


# What `plan` was asked about a model, to and from the request of its document
# ----------------------------------------------------------------------------

DEFAULT_TOP: Final = 5
FASTEST, SIMPLE = "fastest", "simple"  # what `--prefer` says
Noun = TypeVar("Noun")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A question about a model, and how much of the answer is wanted.

    `model` is what the document embeds; `excluded_options` are names as they were given, known or
    not; `top` is the number of runners-up; `prefers_simple` takes the simpler of plans that
    predictions do not tell apart; `warnings` are about what was read for it. `otherwise` is to be
    asked in turn where nothing fits: the question for other frameworks, where none was named.
    `leaner` is what the question does to keep less than was asked for, if anything.
    """

    model: Embedded
    question: ModelQuestion
    excluded_options: frozenset[str] = frozenset()
    per_stage_degrees: bool = False
    top: int = DEFAULT_TOP
    prefers_simple: bool = False
    warnings: tuple[str, ...] = ()
    otherwise: tuple[ModelCall, ...] = ()
    leaner: Leaner | None = None


def request_of(call: ModelCall, *, time_limit_s: float | None) -> configuration.PlanRequest:
    """The request that a document carries."""
    question = call.question
    workload = question.workload
    return configuration.PlanRequest(
        trainwright_version=__version__,
        model=call.model,
        cluster=embed_cluster(question.cluster),
        workload=WorkloadRecord(
            global_batch=workload.global_batch,
            sequence_length=known_length(question),
            precision=workload.precision,
        ),
        num_devices=question.num_devices,
        overheads=question.overheads,
        recipe=_unless_usual(question.settings.recipe, DEFAULT_RECIPE),
        overlap=_unless_usual(question.settings.overlap, configuration.DEFAULT_OVERLAP),
        kernels=_unless_usual(question.settings.kernels, configuration.USUAL_KERNELS),
        space=record_of(
            question.allowed,
            excluded=call.excluded_options,
            per_stage_degrees=call.per_stage_degrees,
            recompute_modules=question.settings.recompute_modules,
        ),
        top=call.top,
        prefer=SIMPLE if call.prefers_simple else None,
        effort=None if question.effort == 1 else question.effort,
        software=question.software,
        time_limit_s=time_limit_s,
    )


def _one_if_none(length: int | None) -> int:
    """A length for layers whose times say nothing of it; 0 stays, to be refused."""
    return 1 if length is None else length


def known_length(question: ModelQuestion) -> int | None:
    """Tokens of a sequence; None where a profile does not say."""
    if isinstance(question.model, MeasuredModel):
        return question.model.sequence_length
    return question.workload.sequence_length


def _unless_usual(value: Noun, usual: Noun) -> Noun | None:
    return None if value == usual else value


def call_of(request: configuration.PlanRequest) -> ModelCall:
    """What was asked; raises `InvalidInput` under the keys of the document."""
    space, stated, where = request.space, request.workload, request.cluster
    missing = [
        Fault(f"request.{name}", "required field is missing")
        for name, part in (("cluster", where), ("workload", stated))
        if part is None
    ]
    if missing or where is None or stated is None:
        raise InvalidInput(missing)
    model = _model_in(request, stated)
    cluster = decode(Cluster, where.content, path="request.cluster.content")
    with inside("request.space"):
        allowed = allowed_of(space)
    if request.recipe is not None:
        with inside("request.recipe"):
            for pool in cluster.pools:
                refuse_formats(request.recipe, pool.accelerator)
    with inside("request"):
        question = ModelQuestion(
            model=model,
            cluster=cluster,
            workload=Workload(
                global_batch=stated.global_batch,
                sequence_length=_one_if_none(stated.sequence_length),
                precision=stated.precision,
            ),
            num_devices=request.num_devices or cluster.num_devices,
            allowed=allowed,
            overheads=request.overheads or configuration.NO_OVERHEADS,
            settings=RunSettings(
                recipe=request.recipe or DEFAULT_RECIPE,
                overlap=request.overlap or configuration.DEFAULT_OVERLAP,
                kernels=request.kernels or configuration.USUAL_KERNELS,
                recompute_modules=space.recompute_modules,
            ),
            account=deciding_memory(
                request.software or allowed.framework,
                request.overheads or configuration.NO_OVERHEADS,
            ),
            software=request.software,
            effort=1.0 if request.effort is None else request.effort,
        )
    return ModelCall(
        model=request.model,
        question=question,
        excluded_options=frozenset(space.excluded_options),
        per_stage_degrees=space.per_stage_degrees,
        top=DEFAULT_TOP if request.top is None else request.top,
        prefers_simple=request.prefer == SIMPLE,
    )


def _model_in(request: configuration.PlanRequest, stated: WorkloadRecord) -> Trained:
    """What a request is about: a description, or a profile as the options left it."""
    if request.model.kind != "profile" and stated.sequence_length is None:
        raise InvalidInput.of("request.workload.sequence_length", "required field is missing")
    return trained_in(
        request.model, sequence=stated.sequence_length, excluded=request.space.excluded_options
    )


def trained_in(given: Embedded, *, sequence: int | None, excluded: Iterable[str] = ()) -> Trained:
    """What a document embeds; raises `InvalidInput` under the keys of its request."""
    if given.kind == "profile":
        from trainwright.formats.profile_json import read_profile

        with inside("request.model.content"):
            file = read_profile(given.content)
        return measured_by(file.profiles, sequence=sequence, excluded=excluded)
    return decode(TransformerConfig, given.content, path="request.model.content")


def measured_by(
    profiles: Sequence[Profile], *, sequence: int | None, excluded: Iterable[str] = ()
) -> MeasuredModel:
    """Profiles of a file as the options leave them; raises `InvalidInput` naming options.

    Of points that differ in it, those of the sequence length are taken.
    """
    known = [sequence in (None, each.point.sequence_length) for each in profiles]
    found = measured_model([*compress(profiles, known)] or profiles)
    if sequence is not None:
        found = found.with_sequence(sequence)
    return found.without(names) if (names := frozenset(excluded)) else found


def _refuse_other_devices(cluster: Cluster) -> None:
    """A profile says what layers cost on one kind of device; pools of it may differ in memory."""
    devices = [pool.accelerator for pool in cluster.pools]
    if any(_speed(each) != _speed(devices[0]) for each in devices):
        kinds = ", ".join(device.name for device in devices)
        raise UnsupportedFeature(
            f"cluster: {cluster.name} has several pools, of {kinds}, and a profile was measured on "
            "one kind of device",
            alternative="plan it on the pools of one kind",
        )


def _speed(device: Accelerator) -> tuple[object, ...]:
    """What tells devices apart by how long layers take on them."""
    peaks = (device.peak_flops_per_s, device.memory_bandwidth_bytes_per_s)
    return (device.name, *peaks, device.efficiency, device.launch_overhead_s, device.cores)


def refuse_empty_mixed_space(question: ModelQuestion) -> None:
    """Raise `InvalidInput` where no pool has a point that the options allow."""
    free = replace(question.allowed, pipeline=ANY, data=ANY)  # of all pools together
    refused = []
    for pool in range(len(question.cluster.pools)):
        cluster = question.cluster.alone(pool)
        try:
            refuse_empty_space(
                replace(question, cluster=cluster, num_devices=cluster.num_devices, allowed=free)
            )
        except InvalidInput as error:
            refused.append(error)
    if len(refused) == len(question.cluster.pools):
        raise refused[0]


# The options of `plan` on a model, and the question they ask
# -----------------------------------------------------------

QUESTION_OPTION_OF: Final = option_of("plan")
LARGEST_TOP: Final = 1000


def model_call(given: ModelInput | ProfileInput, options: Options) -> ModelCall:
    """The question that the options ask, as they were read; raises `InvalidInput` naming options.

    Of a profile it has what was measured in place of the model.
    """
    document = None
    if isinstance(given, ModelInput):
        document = given.document
        given = tuned(given, options)
        given = as_trained(given, options)
    where = clusters.opened(options.get("cluster"), document=document)
    cluster, num_devices = clusters.resolve_pools(
        where,
        nodes=options.get("nodes"),
        devices=options.get("devices"),
        memory_bytes=options.get("memory"),
    )
    cluster = clusters.priced_as_run(cluster, options, measured=not isinstance(given, ModelInput))
    larger = clusters.grown(where.cluster, cluster, nodes=options.get("nodes"))
    replaced = clusters.replaced_figures(where.cluster, cluster)
    excluded = frozenset(options.get("exclude_option", ()))
    batch, sequence = options.get("global_batch"), options.get("sequence")
    trained: Trained
    if isinstance(given, ModelInput):
        trained = given.config
    else:
        _refuse_other_devices(cluster)
        trained = measured_by(given.points, sequence=sequence, excluded=excluded)
        sequence = _one_if_none(trained.sequence_length)
    workload = resolve_workload(global_batch=batch, sequence=sequence)
    settings = _settings(options, cluster)
    modes = excluded if isinstance(given, ModelInput) else frozenset()
    if options.get("recompute") in (None, True):
        modes |= {*map(str, USUAL_MODES)} - {*map(str, configuration.modes_beside(settings.recipe))}
    allowed = allowed_by(options, excluded=modes)
    allowed = of_what_is_told_apart(trained, allowed, options.get("zero"))
    allowed = _of_precision(allowed, settings.recipe.precision)
    if configuration.is_wide(trained):
        allowed = _of_stages(allowed, (2, 3), "float32 shards")
    if settings.recipe.offload is not None and settings.recipe.offload.weights:
        allowed = _of_one_rank(_of_stages(allowed, (3,), "weights on the host"))
    effort, named = options.get("effort"), allowed.framework
    program = clusters.software_named_by(options, framework=named)
    with naming_options(QUESTION_OPTION_OF):
        overheads = overheads_of(options)
    with naming_options(QUESTION_OPTION_OF):
        question = ModelQuestion(
            model=trained,
            cluster=cluster,
            workload=Workload(
                global_batch=workload.global_batch,
                sequence_length=_one_if_none(workload.sequence_length),
                precision=settings.recipe.precision,
            ),
            num_devices=num_devices,
            allowed=allowed,
            overheads=overheads,
            settings=settings,
            account=deciding_memory(program, overheads),
            software=program if program != named else None,
            effort=1.0 if effort is None else effort,
        )
    _refuse_full_device(question)
    notes = (*where.warnings, *larger, *replaced)
    per_stage_degrees = options.get("per_stage_degrees", False)
    if options.get("framework") is None and not per_stage_degrees:
        launchable, said = _launchable(question, options)
        notes = (*notes, *said)
    else:
        launchable = (question,)
    launchable, moved = _as_fsdp_moves(launchable)
    launchable, kept = _as_layers_move(launchable)
    notes = (*notes, *moved, *kept)
    question, *others = launchable
    _refuse_weights_on_host(question)
    refuse_empty_space(question)
    refuse_no_search(question, per_stage_degrees=per_stage_degrees)
    top = options.get("top")
    if top is not None and not 0 <= top <= LARGEST_TOP:
        raise InvalidInput.of("top", f"must be from 0 to {LARGEST_TOP}, got {top}")
    prefer = options.get("prefer") or FASTEST
    if prefer not in (FASTEST, SIMPLE):
        raise InvalidInput.of("prefer", f'must be {FASTEST} or {SIMPLE}, got "{prefer}"')
    call = ModelCall(
        model=given.embedded,
        question=question,
        excluded_options=excluded,
        per_stage_degrees=per_stage_degrees,
        top=DEFAULT_TOP if top is None else top,
        prefers_simple=prefer == SIMPLE,
        warnings=notes,
    )
    return replace(call, otherwise=tuple(replace(call, question=each) for each in others))


def _of_precision(allowed: Allowed, precision: str | None) -> Allowed:
    """What a number format leaves: autocast copies weights that lie whole on each device."""
    wanted = PRECISIONS.get(precision or "")
    if wanted is None or not wanted.casts:
        return allowed
    return _of_stages(allowed, (0, 1), wanted.name)


def _of_stages(allowed: Allowed, known: tuple[int, ...], beside: str) -> Allowed:
    """What is left of the ZeRO stages where it takes one of those known."""
    left = tuple(stage for stage in allowed.zero_stages if stage in known)
    if not left:
        stages, wanted = ", ".join(map(str, allowed.zero_stages)), " or ".join(map(str, known))
        raise InvalidInput.of("zero", f"must be {wanted} beside {beside}, got {stages}")
    return replace(allowed, zero_stages=left)


def _of_one_rank(allowed: Allowed) -> Allowed:
    """What is left without a pipeline."""
    if 1 not in allowed.pipeline:
        raise InvalidInput.of("pp", "must be 1 beside weights on the host")
    return replace(allowed, pipeline=allowed.pipeline.only(1))


def _refuse_weights_on_host(question: ModelQuestion) -> None:
    """Raise `InvalidInput` where the framework leaves weights on the devices."""
    offload, framework = question.settings.recipe.offload, question.allowed.framework
    if framework is None or offload is None or not offload.weights:
        return
    if framework not in MOVES_WEIGHTS:
        raise InvalidInput.of("offload", f"weights: {framework} keeps them on devices")


def _as_fsdp_moves(
    questions: tuple[ModelQuestion, ...],
) -> tuple[tuple[ModelQuestion, ...], tuple[str, ...]]:
    """The questions with all on the host that FSDP takes there, and what is said of that.

    `CPUOffloadPolicy` moves whole shards: of weights, of gradients and of optimizer states. Under
    ZeRO-2 a device has gathered weights all the same, so that only ZeRO-3 saves those
    (torch.distributed.fsdp, fully_shard).
    """
    found, notes = list[ModelQuestion](), dict[str, None]()
    for question in questions:
        offload, allowed = question.settings.recipe.offload, question.allowed
        framework = allowed.framework
        if offload is None or framework not in MOVES_GRADIENTS or not offload.holds_states:
            found.append(question)
            continue
        shards = 3 in allowed.zero_stages and 1 in allowed.pipeline
        whole = replace(offload, optimizer=1.0, gradients=1.0, weights=float(shards))
        if whole != offload:
            said = f"offload: FSDP moves all it shards: {whole.in_words} are planned on the host"
            if shards and allowed.zero_stages != (3,):
                said += "; --zero 2 keeps weights on devices"
            notes[said] = None
            if shards:
                allowed = _of_one_rank(replace(allowed, zero_stages=(3,)))
            recipe = replace(question.settings.recipe, offload=whole)
            question = _trained(replace(question, allowed=allowed), recipe)
        found.append(question)
    return tuple(found), tuple(notes)


def _as_layers_move(
    questions: tuple[ModelQuestion, ...],
) -> tuple[tuple[ModelQuestion, ...], tuple[str, ...]]:
    """The questions without what cannot stand beside whole layers on the host, and what is said.

    Raises `InvalidInput` where that leaves nothing. Pipelines are a matter of degrees, which the
    search asks about by itself.
    """
    found, notes = list[ModelQuestion](), dict[str, None]()
    for question in questions:
        allowed, recipe = question.allowed, question.settings.recipe
        moves = (recipe.offload or NO_OFFLOAD).activations > 0 and not recipe.offload_modules
        framework = allowed.framework
        if not moves or framework not in MOVES_LAYERS:
            found.append(question)
            continue
        if not isinstance(question.model, MeasuredModel):
            demands = training_demands(question.model, recipe, question.precision)
            gaps = unsupported(demands, framework)
            refuse(gap.fault for gap in gaps if gap.field == "offload")
        if Recompute.NONE not in allowed.recompute:
            problem = f"must list none: {framework} moves whole layers without recomputation"
            raise InvalidInput.of("recompute", problem)
        if (*allowed.recompute,) != (Recompute.NONE,):
            notes[
                f"offload: {framework} moves whole layers without recomputation, on one pipeline "
                "rank; --offload-modules moves parts of every layer beside both"
            ] = None
        found.append(replace(question, allowed=replace(allowed, recompute=(Recompute.NONE,))))
    return tuple(found), tuple(notes)


def _launchable(
    question: ModelQuestion, options: Options
) -> tuple[tuple[ModelQuestion, ...], tuple[str, ...]]:
    """The question about plans of each framework that can run what is asked; itself if none can.

    The first is the program that the options name, if that is one of them, or the first of the
    `usual_frameworks`; another than the usual one is said with its reason. Of whom a speed is
    expected stays as it is.
    """
    from trainwright.planning.search.framework import frameworks_for, in_words

    if isinstance(question.model, MeasuredModel) or len(question.cluster.pools) > 1:
        return (question,), ()
    able, why_not = frameworks_for(question, first=question.program)
    said = in_words(able, why_not)
    like = question.program or TYPICAL.name
    asked = tuple(
        replace(
            question,
            allowed=replace(question.allowed, framework=found),
            settings=_settings({**options, "framework": found}, question.cluster),
            software=None if like == found else like,
        )
        for found in able
    )
    return asked or (question,), () if said is None else (f"framework: {said}",)


# What a framework may cut into pieces, or move to the host, where a plan does not fit without
# -------------------------------------------------------------------------------------------

_TILE: Final = 16384  # tokens
_MOST_PIECES: Final = 2  # what is cut: the loss, and feed-forward parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaner:
    """A question that keeps less on a device, in words, and as options of `plan` that ask it.

    `asked` is the question that it keeps less than. The higher the `rung` the less is kept, whoever
    launches it.
    """

    rung: int
    words: str
    options: str
    question: ModelQuestion
    asked: ModelQuestion

    @property
    def option(self) -> str:
        """The option that does most of it."""
        return "offload" if self.question.settings.recipe.offload else self.options.split()[0][2:]

    def after(self, first: Leaner, *, fits: str) -> str:
        """What is said of its plan where the `first` that fits is itself, or one that is slower.

        Nothing `fits` as asked, in words that are no more than is known.
        """
        than = "" if self is first else f", which is quicker than with {first.words}"
        return f"{self.option}: nothing {fits} as asked; planned with {self.words}{than}"


def leaner_calls(calls: Iterable[ModelCall]) -> list[ModelCall]:
    """Those that keep ever less on a device, as far as the frameworks of the calls can, by rung.

    They differ in the recipe, which their documents carry.
    """
    found = [
        (each.rung, replace(call, question=each.question, leaner=each))
        for call in calls
        for each in leaner_questions(call.question)
    ]
    return [call for _, call in sorted(found, key=lambda one: one[0])]


_BRIEF_S: Final = 2.0  # CPU seconds for a look at what is leaner than what fits


def may_be_quicker(call: ModelCall, best_s: float, budget: Budget) -> bool:
    """Whether a brief look at a leaner call finds a plan that fits and is quicker than the best.

    Room that is made dear may buy less recomputation, or smaller groups.
    """
    from trainwright.planning.search.framework import sketch_runnable

    part = budget.part(cpu_limit_s=_BRIEF_S, stage="something fits; trying to keep less")
    if budget.stopped:
        return False
    return sketch_runnable(call.question, part, to_beat_s=best_s) is not None


def saying_what_fits(
    call: ModelCall, first: ModelCall, outcome: ModelOutcome, budget: Budget, *, fits: str
) -> ModelCall:
    """The call of a ladder whose outcome is told, with why: the `first` of it that fits."""
    assert first.leaner is not None, "a leaner call than the one asked for is on the ladder"
    assert call.leaner is not None, "and so are those behind it"
    more = (call.leaner.after(first.leaner, fits=fits), *_in_16_bit(call.leaner, outcome, budget))
    return replace(call, warnings=(*call.warnings, *more))


def _in_16_bit(leaner: Leaner, outcome: ModelOutcome, budget: Budget) -> Iterator[str]:
    """Whether nothing waits on the host where all is in 16 bit, which is not chosen silently."""
    from trainwright.planning.reasons.infeasible import all_in_16_bit
    from trainwright.planning.search.framework import sketch_runnable

    narrow = all_in_16_bit(leaner.asked)
    if leaner.question.settings.recipe.offload is None or narrow is None or budget.stopped:
        return
    part = budget.part(cpu_limit_s=_BRIEF_S, stage="something fits; trying all in 16 bit")
    best_s = outcome.priced[0].step.step_time_s
    found = sketch_runnable(narrow, part, to_beat_s=best_s)
    if found is not None:
        yield (
            "offload: all in bf16, which changes what is computed, fits without it at "
            f"{format_seconds(found.step.step_time_s)} a step: {ALL_BF16}"
        )


def leaner_questions(question: ModelQuestion) -> Iterator[Leaner]:
    """What the framework of a question can do to keep less and compute the same, the least first.

    The loss, then feed-forward parts over some of the tokens at a time; activations, the states of
    the optimizer and both on the host; all of it. Of blocks whose activations lie there, these are
    the inputs alone, as all frameworks that can do it recompute the rest. What the question states
    of the host stands; without a framework none could do it.
    """
    framework, recipe = question.allowed.framework, question.settings.recipe
    if framework is None or recipe.offload is not None:
        return
    if isinstance(question.model, MeasuredModel) or len(question.cluster.pools) > 1:
        return
    pieces, words, options = _pieces(question, capability_of(framework))
    for count in range(1, len(words) + 1):
        yield Leaner(
            rung=count,
            words=" and ".join(words[:count]) + " over some of the tokens at a time",
            options=" ".join(options[:count]),
            question=_trained(question, replace(recipe, **dict(pieces[:count]))),
            asked=question,
        )
    cluster, modes = clusters.with_host(question.cluster), question.allowed.recompute
    if cluster.accelerator.host is None:
        return
    for rung, offload, whole in _rungs(framework):
        if offload.activations and Recompute.FULL not in modes:
            continue
        if whole and not pieces:
            continue
        allowed = question.allowed
        if offload.weights and 3 in allowed.zero_stages and 1 in allowed.pipeline:
            allowed = _of_one_rank(replace(allowed, zero_stages=(3,)))
        else:
            offload = replace(offload, weights=0.0)
        if offload.activations:
            allowed = replace(allowed, recompute=(Recompute.FULL,))
        moved = replace(recipe, **(dict(pieces) if whole else {}), offload=offload)
        shares = {each.name: getattr(offload, each.name) for each in fields(offload)}
        flags = [f"--offload {name}=1" for name, share in shares.items() if share]
        flags += ["--recompute full"] if offload.activations and modes != (Recompute.FULL,) else []
        also = f", {' and '.join(words)} over some of the tokens at a time" if whole else ""
        yield Leaner(
            rung=_MOST_PIECES + rung,
            words=f"{offload.in_words} on the host{also}",
            options=" ".join([*flags, *(options if whole else ())]),
            question=_trained(replace(question, cluster=cluster, allowed=allowed), moved),
            asked=question,
        )


def _trained(question: ModelQuestion, recipe: Recipe) -> ModelQuestion:
    return replace(question, settings=replace(question.settings, recipe=recipe))


def _pieces(
    question: ModelQuestion, own: Capability
) -> tuple[list[tuple[str, Any]], list[str], list[str]]:
    """Fields of the recipe that cut tokens where it does not, in words, and as options."""
    recipe, model = question.settings.recipe, question.model
    assert not isinstance(model, MeasuredModel), "the times of a profile are those of its layers"
    found: list[tuple[str, Any, str, str]] = []
    if recipe.loss_chunk is None and own.can(Feature.LOSS_CHUNK) and model.head is Head.LANGUAGE:
        found.append(("loss_chunk", USUAL_LOSS_CHUNK, "the loss", "--loss-chunk"))
    dense = model.mlp and model.experts is None
    if recipe.mlp_tile is None and own.can(Feature.MLP_TILE) and dense:
        found.append(("mlp_tile", _TILE, "feed-forward parts", "--mlp-tile"))
    fields_of = [(name, size) for name, size, _, _ in found]
    return fields_of, [each[2] for each in found], [f"{each[3]} {each[1]}" for each in found]


def _rungs(framework: str) -> Iterator[tuple[int, Offload, bool]]:
    """What a framework moves to the host, ever more of it, and whether it cuts tokens, too.

    The first number tells how much that is: activations, states of the optimizer, both, and both
    beside such cuts.
    """
    own, whole = capability_of(framework), 1.0 if framework in MOVES_GRADIENTS else 0.0
    keeps = own.can(Feature.OFFLOAD_RECOMPUTED)
    states = own.can(Feature.OFFLOAD)
    kept = Offload(activations=1.0 if keeps else 0.0)
    moved = Offload(optimizer=1.0, gradients=whole, weights=whole)
    both = replace(moved, activations=kept.activations)
    if keeps:
        yield 1, kept, False
    if states:
        yield 2, moved, False
    if keeps and states:
        yield 3, both, False
    if keeps or states:
        yield 4, both if states else kept, True


def of_what_is_told_apart(model: Trained, allowed: Allowed, stated: Any = None) -> Allowed:
    """ZeRO shards nothing of a profile that does not tell what its bytes are."""
    if not isinstance(model, MeasuredModel) or model.tells_state_apart:
        return allowed
    if stated is not None and 0 not in allowed.zero_stages:
        problem = (
            "must hold 0: the profile does not tell weights, gradients and optimizer states apart, "
            "so that nothing can be sharded"
        )
        raise InvalidInput.of("zero", problem)
    return replace(allowed, zero_stages=(0,))


def _settings(options: Options, cluster: Cluster) -> RunSettings:
    """How the model trains; raises `InvalidInput` naming options."""
    from trainwright.planning.bounds.pools import common_precision

    refuse_unknown_words(options)
    if len(cluster.pools) == 1:
        options = as_program_trains(options, cluster.accelerator)
    with naming_options(QUESTION_OPTION_OF):
        settings = RunSettings(
            recipe=recipe_of(options),
            overlap=overlap_of(options),
            kernels=configuration.Kernels(**fields_given("plan", "kernels", options)),
            recompute_modules=modules_of(options),
        )
        for pool in cluster.pools:
            refuse_formats(settings.recipe, pool.accelerator)
    if len(cluster.pools) > 1 and settings.recipe.precision == common_precision(cluster, None):
        settings = replace(settings, recipe=replace(settings.recipe, precision=None))
    return settings


def _refuse_full_device(question: ModelQuestion) -> None:
    """Raise `InvalidInput` where what is kept of a device leaves nothing for a plan."""
    kept = question.overheads
    usable_bytes = max(pool.accelerator.usable_bytes for pool in question.cluster.pools)
    if kept.room_bytes(usable_bytes) <= 0:
        wanted = f"must leave something of the {format_bytes(usable_bytes)} usable on a device"
        parts = {"reserve_bytes": kept.reserve_bytes, **kept.beside}
        named = ((QUESTION_OPTION_OF[each], size) for each, size in parts.items())
        *others, (name, most) = sorted(named, key=lambda part: part[1])
        beside = " and ".join(f"{format_bytes(less)} of {other}" for other, less in others)
        raise InvalidInput.of(name, f"{wanted}, got {format_bytes(most)} beside {beside}")


def refuse_empty_space(question: ModelQuestion) -> None:
    """Raise `InvalidInput` for each option that leaves nothing to choose, with what is offered."""
    if len(question.cluster.pools) > 1:
        refuse_empty_mixed_space(question)
        return
    refuse(_nothing_left(question))


def _nothing_left(question: ModelQuestion) -> Iterator[Fault]:
    allowed, workload, model = question.allowed, question.workload, question.model
    limit = question.num_devices
    if isinstance(model, MeasuredModel):
        yield from _not_measured(question, model)
        yield from _too_many(question)
        return
    if not tensor_degrees(model, workload, allowed.tensor, limit=limit):
        offered = tensor_degrees(model, workload, ANY, limit=limit)
        yield _none_of("tp", allowed.tensor, offered, "the model, its sequence and devices allow")
    if not microbatch_sizes(workload, allowed.microbatch_size):
        offered = microbatch_sizes(workload, ANY)
        yield _none_of("micro-batch", allowed.microbatch_size, offered, "divide the global batch")
    tensors = tensor_degrees(model, workload, allowed.tensor, limit=limit) or (1,)
    dividing = context_degrees(model, workload, ANY, limit=limit)
    offered = tuple(
        c
        for c in dividing
        if any(question.settings.takes_context(model, tensor=t, context=c) for t in tensors)
    )
    if not any(c in allowed.context for c in offered):
        problems = (
            question.settings.context_problem(model, tensor=t, context=c)
            for c in dividing
            if c in allowed.context
            for t in tensors
        )
        if (problem := next(problems, None)) is not None:
            yield Fault("cp", problem)
        else:
            yield _none_of("cp", allowed.context, offered, "divide the sequence evenly")
    if model.experts is not None:
        shares = divisors(model.experts.num_experts)
        if not any(share in allowed.expert for share in shares):
            what = f"divide the {model.experts.num_experts} experts"
            yield _none_of("ep", allowed.expert, shares, what)
    else:
        for name in ("expert", "expert_tensor"):
            if getattr(allowed, name).least > 1:
                yield Fault(SPANS[name], "must be 1: the model has no experts; leave it out")
    yield from _no_replicas(question, microbatch_sizes(workload, allowed.microbatch_size))
    yield from _too_many(question)
    yield from _not_run_together(question)


def _not_run_together(question: ModelQuestion) -> Iterator[Fault]:
    """What keeps the framework from running any degrees that are allowed, beside each other.

    Nothing where there is one that it cannot run at all: a search says which, and what it can.
    """
    from trainwright.planning.question.layouts import RunnableDegrees
    from trainwright.planning.search.framework import runnable_spaces

    own = RunnableDegrees.of(question)
    try:
        runnable_spaces(question.allowed, question.repeated_modules)
    except InvalidInput:
        return
    for fault in () if own is None else own.faults_of(question.allowed):
        yield replace(fault, path={**SPANS, "zero_stage": "zero"}.get(fault.path, fault.path))


def _not_measured(question: ModelQuestion, model: MeasuredModel) -> Iterator[Fault]:
    """Sizes, degrees and modes that the profile does not have."""
    allowed, workload = question.allowed, question.workload
    sizes = measured_sizes(model, workload, allowed.microbatch_size)
    if not sizes:
        known = ", ".join(map(str, model.sizes()))
        if allowed.microbatch_size == ANY:
            problem = f"must be a multiple of a microbatch of the profile ({known} sequences)"
            yield Fault("global-batch", f"{problem}, got {workload.global_batch}")
        else:
            span = shown(allowed.microbatch_size)
            problem = f"must hold one of {known}, which the profile has and divides the batch"
            yield Fault("micro-batch", f"{problem}, got {span}")
        return
    for name in ("context", "expert", "expert_tensor"):
        if 1 not in getattr(allowed, name):
            yield Fault(SPANS[name], "must hold 1: the profile has no other; leave it out")
    degrees = sorted({t for size in sizes for t in model.degrees(size, allowed.recompute)})
    if not degrees:
        modes = ", ".join(allowed.recompute)
        yield Fault("recompute", f"must leave every layer of the profile an option, got {modes}")
    elif not any(
        dense_points(
            model,
            question.cluster,
            workload,
            replace(allowed, context=ANY, expert_tensor=ANY),
            question.settings,
            num_devices=question.num_devices,
        )
    ):
        yield _none_of(
            "tp", allowed.tensor, degrees, "the profile has; one must fill a node evenly"
        )
    yield from _no_replicas(question, sizes)


def _too_many(question: ModelQuestion) -> Iterator[Fault]:
    """More stages than blocks, more devices than there are."""
    allowed, model = question.allowed, question.model
    stages = allowed.pipeline.least * allowed.virtual_stages.least
    if stages > model.num_layers:
        both = "x virtual-stages " if allowed.virtual_stages.least > 1 else ""
        problem = f"{both}must be at most the {model.num_layers} blocks, got {stages}"
        yield Fault("pp", problem)
    least = allowed.tensor.least * allowed.pipeline.least
    least *= allowed.data.least * allowed.context.least
    if least > question.num_devices:
        problem = f"must be at most the {question.num_devices} devices, got at least {least}"
        yield Fault("tp x pp x dp x cp", f"{problem}; lower a degree or give more --devices")


def _no_replicas(question: ModelQuestion, sizes: Iterable[int]) -> Iterator[Fault]:
    """Replicas that can share the batch in no microbatch size, copies beyond all of them."""
    allowed, batch = question.allowed, question.workload.global_batch
    shares = sorted({share for size in sizes for share in divisors(batch // size)})
    offered = [share for share in shares if share <= question.num_devices]
    if offered and not any(share in allowed.data for share in shares):
        yield _none_of("dp", allowed.data, offered, "divide the batch")
    if allowed.state_copies.least > max(1, question.num_devices // 2):
        most = max(1, question.num_devices // 2)  # each of at least two replicas
        problem = f"must be at most {most} on {question.num_devices} devices"
        yield Fault("state-copies", f"{problem}, got {shown(allowed.state_copies)}")


def _none_of(option: str, span: object, offered: Iterable[int], what: str) -> Fault:
    choices = ", ".join(map(str, offered))
    return Fault(option, f"must hold one of {choices}, which {what}, got {shown(span)}")


def shown(span: object) -> str:
    """A span as it is written on the command line."""
    least, most = getattr(span, "least", 1), getattr(span, "most", None)
    if least == most:
        return str(least)
    return f"{least}..{'' if most is None else most}"


def resolve_workload(*, global_batch: int | None, sequence: int | None) -> WorkloadRecord:
    """The workload, or every part of it that is missing."""
    missing = [
        Fault(name, f"must be given, as --{name} N")
        for name, value in (("global-batch", global_batch), ("sequence", sequence))
        if value is None
    ]
    if missing:
        raise InvalidInput(missing)
    assert global_batch is not None
    assert sequence is not None
    return WorkloadRecord(global_batch=global_batch, sequence_length=sequence)
