"""Files for training frameworks: one module per target, written from a job and read back.

A target cannot be asked for what it does not express: `write` raises before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

from trainwright.documents.runs import able_targets, gaps_of
from trainwright.documents.view import printable
from trainwright.errors import (
    Fault,
    Inexpressible,
    InvalidInput,
    TrainwrightError,
    UnsupportedFeature,
    one_of,
)
from trainwright.frameworks.launch import Launcher, launch_scripts, readme
from trainwright.frameworks.megatron_rules import broken_megatron_rules, setup_of
from trainwright.model import TRAIN_ALL
from trainwright.plans.capability import CHROME_TRACE, DRY_RUN, OTHER_TARGETS, TARGETS, target_named
from trainwright.plans.capability_table import own_reduction
from trainwright.plans.job import (
    OF_CORE,
    OWN_CODE,
    ExportBundle,
    Job,
    Stamp,
    choices_of,
    unsaid_training,
    unwritable,
)

# Targets that write DeepSpeed's JSON, which says in what gradients are summed.
_WITH_JSON: Final = frozenset({"deepspeed", "llamafactory"})
# Where each target is written; a picture of the schedule is no framework.
_WRITERS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "megatron": ("megatron", "export_megatron"),
        "megatron-bridge": ("megatron", "export_megatron_bridge"),
        "primus": ("trainers", "export_primus"),
        "torchtitan@0.2": ("torchtitan", "export_torchtitan_02"),
        "torchtitan@0.3": ("torchtitan", "export_torchtitan_03"),
        "pytorch": ("pytorch", "export_pytorch"),
        "deepspeed": ("trainers", "export_deepspeed"),
        **{
            name: ("trainers", f"export_{name}")
            for name in ("accelerate", "nanotron", "trl", "axolotl", "llamafactory")
        },
        "automodel": ("trainers", "export_automodel"),
        "maxtext": ("trainers", "export_maxtext"),
    }
)
# Targets that take the order of every action from a file.
_WITH_ORDERS: Final = frozenset(
    {"pytorch", "torchtitan@0.2", "torchtitan@0.3", CHROME_TRACE, DRY_RUN}
)


def export_target(name: str) -> str:
    """The target of a name; raises `InvalidInput` listing all, the trace among them."""
    if name in OTHER_TARGETS:
        return name
    try:
        return target_named(name)
    except InvalidInput:
        raise InvalidInput.of("to", one_of((*TARGETS, *OTHER_TARGETS), name)) from None


def needs_orders(target: str) -> bool:
    """Whether the files of a target hold the order of every action."""
    return target in _WITH_ORDERS


def write(job: Job, stamp: Stamp, target: str, *, launcher: Launcher) -> ExportBundle:
    """The files of a job for a target, with a script that starts them and a README.

    Raises `Inexpressible` with everything that the target cannot say, `InvalidInput` with every
    rule of the framework that the job breaks.
    """
    if gaps := gaps_of(job, target):
        faults = tuple(dict.fromkeys(gap.fault for gap in gaps))
        raise Inexpressible(target, faults, alternatives=able_targets(job))
    if len(set(job.node_kinds)) > 1 and launcher == "slurm":
        raise UnsupportedFeature(
            "launcher: an allocation of slurm has nodes of one kind, and the plan's differ",
            alternative="use torchrun, and start each node by its rank",
        )
    if target == CHROME_TRACE:
        from trainwright.frameworks.chrome_trace import export_trace

        return export_trace(job, stamp)
    if target == DRY_RUN:
        from trainwright.frameworks.dry_run import export_dry_run

        return export_dry_run(job, stamp)
    untrained = unsaid_training(job.model, job.recipe, target)
    if faults := untrained or unwritable(job.model, target):
        raise Inexpressible(target, faults, alternatives=able_targets(job))
    if job.model.towers:
        from trainwright.frameworks.torchtitan import faults_of_encoder

        if faults := tuple(faults_of_encoder(job, target)):
            raise Inexpressible(target, faults, alternatives=())
    if target in OF_CORE and job.model.is_recurrent:
        from trainwright.frameworks.megatron import unsaid_of_stages

        if faults := tuple(Fault("plan", what) for what in unsaid_of_stages(job, target)):
            raise Inexpressible(target, faults, alternatives=())
    if target in OF_CORE:
        _refuse_illegal(job, target)
    bundle = _written(job, stamp, target)
    if unsaid := tuple(_unsaid(bundle, job, stamp, target)):
        stamp = replace(stamp, unsaid=unsaid)
        bundle = _written(job, stamp, target)
        bundle = replace(bundle, not_represented=(*unsaid, *bundle.not_represented))
    if target in OWN_CODE and job.model.tuning != TRAIN_ALL:
        own, asked = job.model.tuning, bundle.asked_of_user
        if own.reference:
            asked = (*asked, "a frozen copy of the model that answers beside it, as planned")
        if replace(own, reference=False) != TRAIN_ALL:
            asked = (*asked, "a model whose weights are frozen and adapted as planned")
        bundle = replace(bundle, asked_of_user=asked)
    scripts = launch_scripts(bundle, job, launcher, stamp)
    page = printable(readme(bundle, job, launcher, stamp))
    return replace(bundle, files={**bundle.files, **scripts, "README.md": page})


def _written(job: Job, stamp: Stamp, target: str) -> ExportBundle:
    module, function = _WRITERS[target]
    bundle: ExportBundle = _function(module, function)(job, stamp)
    return bundle


def _unsaid(bundle: ExportBundle, job: Job, stamp: Stamp, target: str) -> Iterator[str]:
    """Choices of how the job trains that nothing written would differ without."""
    own, recipe = own_reduction(target, job.precision), job.recipe
    if own is not None and recipe.reduce_dtype == own:  # what is written does so by itself
        job = replace(job, recipe=replace(recipe, reduce_dtype=None))
    elif own is not None and target not in _WITH_JSON and job.demands.zero_stage:
        yield f"gradients summed in {recipe.reduce_dtype or recipe.gradient_dtype or 'fp32'}"
    for what, other in choices_of(job, target):
        if gaps_of(other, target) or unsaid_training(other.model, other.recipe, target):
            continue  # the other has no files, so that these say something of it
        try:
            is_said = _written(other, stamp, target) != bundle
        except TrainwrightError:  # nor has this one
            continue
        if not is_said:
            yield what


def _refuse_illegal(job: Job, target: str) -> None:
    """Raise `InvalidInput` with every rule of Megatron that the job breaks."""
    from trainwright.frameworks.megatron import layout_of, letters_of

    letters = tuple(map(letters_of, job.stages)) if layout_of(job) else None
    broken = broken_megatron_rules(setup_of(job, letters=letters))
    if broken:
        raise InvalidInput(broken, source=f"the plan for {target}")


def _function(module: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
