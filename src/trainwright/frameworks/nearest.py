"""The plan nearest to one that a framework cannot express, priced again.

Each gap has its own nearest choice: another schedule on the same stages, a ZeRO stage the framework
has, even stages. Recomputation is searched: of the patterns the framework knows, the fastest that
fits in memory.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from trainwright.cluster import Cluster
from trainwright.documents.jobs import Nearest, PricedLayout, with_orders
from trainwright.documents.model_search import changed
from trainwright.documents.runs import (
    able_targets,
    gaps_of,
    job_of_configuration,
    model_and_cluster,
    planned_job,
)
from trainwright.errors import (
    CheckFailed,
    Inexpressible,
    Infeasible,
    InvalidInput,
    MissingExtra,
    UnsupportedFeature,
)
from trainwright.formats.calibration_toml import deciding_memory
from trainwright.frameworks import needs_orders
from trainwright.frameworks.megatron import megatron_fields
from trainwright.model import TokenDispatcher
from trainwright.plans.capability import (
    Capability,
    RecomputeForm,
    capability_of,
    copy_features,
    dispatch_features,
    unsupported,
)
from trainwright.plans.capability_table import Feature
from trainwright.plans.configuration import Configuration, even_blocks, own_split
from trainwright.plans.job import ExportBundle, Job
from trainwright.plans.plan import Parallelism, mapping_name, usual_schedule
from trainwright.profile import Recompute
from trainwright.step.account import timeline_of
from trainwright.step.figures import missing_bytes
from trainwright.step.pools import mixed_works
from trainwright.step.predict import price_configuration
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from trainwright.documents.model_plan import ModelPlanResult
    from trainwright.model import Recipe

_HARD: Final = frozenset({"pipeline", "tensor", "context", "expert", "parallelism"})
_REGULAR: Final = frozenset(
    {RecomputeForm.NONE, RecomputeForm.ALL, RecomputeForm.FIRST, RecomputeForm.MODULES}
)


def nearest_job(
    job: Job, target: str, cluster: Cluster, before: PricedLayout, *, family: str | None = None
) -> tuple[Job, Nearest]:
    """The nearest job that `target` can express, and what it costs beside the one asked for.

    `family` is the schedule that stands for an order that was searched.

    Raises `Inexpressible` where no choice of a single gap helps, `Infeasible` where the nearest
    plans do not fit in memory.
    """
    account = deciding_memory(target, job.overheads)

    def tried(run: Configuration) -> Tried:
        step = price_configuration(job.model, cluster, run)
        limit_bytes = cluster.accelerator.usable_bytes
        lacking = missing_bytes(job.model, run, step, cluster.accelerator, account)
        needed_bytes = run.overheads.needed_bytes(step.peak_memory_bytes)
        return Tried(
            job=job_of_configuration(run, job.model, cluster, model_name=job.model_name),
            layout=PricedLayout(
                step_time_s=step.step_time_s, peak_memory_bytes=step.peak_memory_bytes
            ),
            needed_bytes=max(needed_bytes, limit_bytes + lacking),
            limit_bytes=limit_bytes,
            fits=lacking <= 0,
        )

    return _nearest(job, target, before, family, tried)


def nearest_on_pools(
    job: Job,
    target: str,
    document: ModelPlanResult,
    before: PricedLayout,
    *,
    family: str | None = None,
) -> tuple[Job, Nearest]:
    """The same on several pools, each rank and replica where the document has it."""
    model, cluster = model_and_cluster(document.request)

    def tried(run: Configuration) -> Tried:
        stated = changed(run, document)
        peak_bytes, limit_bytes = stated.tightest
        made = replace(
            planned_job(stated.document, model, cluster),
            recipe=run.recipe,
            recompute_modules=run.recompute_modules,
        )
        if needs_orders(target) and not gaps_of(made, target):
            own, settings = stated.priced, made.step_settings
            works = mixed_works(own.plan, own.profiles, stated.question.cluster, **settings)
            made = with_orders(made, timeline_of(*works[0][1:]))
        return Tried(
            job=made,
            layout=PricedLayout(
                step_time_s=stated.priced.step.step_time_s, peak_memory_bytes=peak_bytes
            ),
            needed_bytes=limit_bytes + stated.missing_bytes,
            limit_bytes=limit_bytes,
            fits=stated.missing_bytes <= 0 and stated.hosts_hold,
        )

    return _nearest(job, target, before, family, tried)


class Tried(NamedTuple):
    """A run as a job, and whether it fits."""

    job: Job
    layout: PricedLayout
    needed_bytes: float
    limit_bytes: float
    fits: bool


def _nearest(
    job: Job,
    target: str,
    before: PricedLayout,
    family: str | None,
    tried: Callable[[Configuration], Tried],
) -> tuple[Job, Nearest]:
    gaps = gaps_of(job, target)
    hard = [gap.fault for gap in gaps if gap.field in _HARD]
    if hard:
        raise Inexpressible(target, hard, alternatives=able_targets(job))
    own, found = capability_of(target), list[Tried]()
    named = job if family is None else replace(job, schedule=family)
    for run in _runs(_base(named, own), job, own):
        try:
            each = tried(run)
        except InvalidInput:  # a rule of the model or of the schedule
            continue
        if not gaps_of(each.job, target):
            found.append(each)
    if not found:
        faults = [gap.fault for gap in gaps]
        raise Inexpressible(target, faults, alternatives=able_targets(job))
    fitting = [each for each in found if each.fits]
    if not fitting:
        least = min(found, key=lambda each: each.needed_bytes)
        needed, limit = format_bytes(least.needed_bytes), format_bytes(least.limit_bytes)
        raise Infeasible(
            f"the nearest plan that {target} can express needs {needed} of {limit}; plan again "
            f"with --framework {target}, which searches only what it can run"
        )
    best = min(fitting, key=lambda each: each.layout.step_time_s)
    return best.job, Nearest(
        changes=tuple(_changes(job, best.job)),
        before=before,
        after=best.layout,
        memory_limit_bytes=best.limit_bytes,
    )


def _base(job: Job, own: Capability) -> Configuration:
    """The job with every gap but recomputation closed."""
    regular = job if job.recompute_form in _REGULAR else _without_recompute(job)
    run = regular.configuration()
    degrees = run.parallelism
    sharded = [replace(degrees, zero_stage=z) for z in own.zero_stages(degrees.pipeline)]
    known = [each for each in sharded if _is_sharded_so(job, each, own)] or sharded
    wanted = degrees.zero_stage
    degrees = min(known, key=lambda each: (abs(each.zero_stage - wanted), -each.zero_stage))
    if degrees.tensor > 1 and not own.can(Feature.NO_SEQUENCE_PARALLEL):
        degrees = replace(degrees, sequence_parallel=True)
    if job.model.experts is not None and not own.can(Feature.EXPERT_TENSOR):
        shards = degrees.tensor if own.can(Feature.EXPERTS_CUT) else 1
        if degrees.expert_shards != shards:
            degrees = replace(degrees, expert_tensor=shards)
    copied = copy_features(degrees, has_experts=job.model.experts is not None)
    if not (degrees.zero_stage and all(map(own.can, copied))):
        degrees = replace(degrees, state_copies=1)
    if degrees.axis_order not in own.axis_orders:
        degrees = replace(degrees, axis_order=own.axis_orders[0])
    chunks = degrees.virtual_stages
    if not own.can(Feature.LOOP):
        degrees, chunks = replace(degrees, virtual_stages=1), 1
    run = replace(run, parallelism=degrees, blocks_per_stage=None, recompute=Recompute.NONE)
    run = replace(run, recipe=_dispatched(run.recipe, job, own))
    if job.demands.has_pipeline and not own.runs(job.demands):
        run = replace(run, schedule=usual_schedule(chunks))
    blocks = job.blocks_per_stage
    keeps_stages = own.can(Feature.UNEVEN_STAGES) and len(blocks) == run.num_stages
    if run.num_stages > 1:
        even = even_blocks(job.model.num_layers, run.num_stages)
        if own.splits_itself:
            even = own_split(own.target, job.model, run.num_stages)
        run = replace(run, blocks_per_stage=blocks if keeps_stages else even)
    return replace(run, recompute_blocks=None, recompute_modules=None)


def _is_sharded_so(job: Job, degrees: Parallelism, own: Capability) -> bool:
    """Whether the framework shards what these degrees do, beside each other."""
    demands = replace(job.demands, parallelism=degrees)
    return "zero_stage" not in {gap.field for gap in unsupported(demands, own.target)}


def _dispatched(recipe: Recipe, job: Job, own: Capability) -> Recipe:
    """The recipe with tokens sent to experts as the framework can."""
    lacking = {feature for feature in dispatch_features(job.demands) if not own.can(feature)}
    if Feature.NARROW_DISPATCH in lacking:
        recipe = replace(recipe, dispatch_dtype=None)
    if lacking - {Feature.NARROW_DISPATCH}:
        recipe = replace(recipe, token_dispatcher=TokenDispatcher.ALL_TO_ALL)
    return recipe


def _without_recompute(job: Job) -> Job:
    plain = tuple(
        replace(stage, recompute=(Recompute.NONE,) * len(stage.kinds)) for stage in job.stages
    )
    return replace(job, stages=plain)


def _runs(base: Configuration, job: Job, own: Capability) -> Iterator[Configuration]:
    """The patterns of recomputation that the framework knows, on the base."""
    forms = own.recompute_forms()
    yield base
    if job.recompute_form is RecomputeForm.NONE:
        return
    if RecomputeForm.MODULES in forms:
        names = job.selected_modules
        known = None if own.modules is None else tuple(n for n in names if n in own.modules)
        yield replace(base, recompute=Recompute.SELECTIVE, recompute_modules=known or names)
    if RecomputeForm.FIRST in forms:
        for count in range(1, max(job.blocks_per_stage) + 1):
            yield replace(base, recompute=Recompute.FULL, recompute_blocks=count)
    yield replace(base, recompute=Recompute.FULL)


def _changes(job: Job, nearest: Job) -> Iterator[str]:
    """What is different, in words."""
    was, now = job.degrees, nearest.degrees
    for name in (
        "zero_stage",
        "state_copies",
        "virtual_stages",
        "sequence_parallel",
        "expert_tensor",
    ):
        if getattr(was, name) != getattr(now, name):
            yield f"{name}: {getattr(was, name)} becomes {getattr(now, name)}"
    if was.axis_order != now.axis_order:
        yield f"mapping: {mapping_name(was.axis_order)} becomes {mapping_name(now.axis_order)}"
    if job.recipe.dispatch_in_words != nearest.recipe.dispatch_in_words:
        was_sent, now_sent = job.recipe.dispatch_in_words, nearest.recipe.dispatch_in_words
        yield f"dispatch: {was_sent} becomes {now_sent}"
    if job.schedule != nearest.schedule:
        yield f"schedule: {job.schedule} becomes {nearest.schedule}"
    if job.blocks_per_stage != nearest.blocks_per_stage:
        yield f"blocks per stage: {_list(job.blocks_per_stage)} become " + _list(
            nearest.blocks_per_stage
        )
    if (old := _pattern(job)) != (new := _pattern(nearest)):
        yield f"recompute: {old} becomes {new}"


def _list(counts: tuple[int, ...]) -> str:
    return ",".join(map(str, counts))


def _pattern(job: Job) -> str:
    form = job.recompute_form
    if form is RecomputeForm.FIRST:
        return f"the first {job.first_recomputed} blocks of every stage"
    if form is RecomputeForm.MODULES:
        return f"{', '.join(job.selected_modules)} of every block"
    return form.value


# Exported files through the framework's own parser, where it is installed
# ------------------------------------------------------------------------
# This module is the only one of the exporters that imports a framework, and it does so when asked.
# What a parser does not look at is ours to check (`frameworks.megatron_rules`, the capability
# table).


_OF_CORE: Final = frozenset({"megatron", "megatron-bridge", "primus"})


def check_bundle(bundle: ExportBundle, job: Job) -> str:
    """What the parser said, in a line.

    Raises `CheckFailed` with its message, `MissingExtra` where it is not installed, and
    `UnsupportedFeature` for targets whose parser cannot run here.
    """
    if bundle.target in _OF_CORE:
        return _checked(bundle, "megatron.core", lambda: _in_megatron(job))
    if bundle.target == "accelerate":
        return _checked(bundle, "accelerate", lambda: _in_accelerate(bundle))
    raise UnsupportedFeature(
        f"the parser of {bundle.target} is not run from here",
        alternative="the files' own launch script runs it; checked here: megatron, accelerate",
    )


def _checked(bundle: ExportBundle, package: str, parse: Callable[[], str]) -> str:
    top = package.partition(".")[0]
    if find_spec(top) is None:
        raise MissingExtra(f"checking files for {bundle.target} needs {top}", extra="exports")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a framework's advice, not a verdict
            return parse()
    except (AssertionError, ValueError, TypeError, NotImplementedError) as error:
        raise CheckFailed(f"{package} refuses the files: {error}") from error


def _in_megatron(job: Job) -> str:
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    fields = megatron_fields(job)
    values = {name: value for name, value in fields.model.items() if value is not None}
    if job.degrees.pipeline > 1:
        import torch

        values["pipeline_dtype"] = torch.bfloat16
    values["bias_activation_fusion"] = False  # kernels of the device, which is not here
    if fields.latent:
        latent = {name: value for name, value in fields.latent.items() if value is not None}
        made = MLATransformerConfig(**values, **latent)
    else:
        made = TransformerConfig(**values)
    return f"megatron-core accepts {type(made).__name__} with {len(values)} fields"


def _in_accelerate(bundle: ExportBundle) -> str:
    from accelerate.commands.config.config_args import load_config_from_file

    (name,) = (name for name in bundle.files if name.endswith(".yaml"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(bundle.files[name], encoding="utf-8")
        made = load_config_from_file(str(path))
    return f"accelerate accepts {type(made).__name__} for {made.num_processes} processes"
