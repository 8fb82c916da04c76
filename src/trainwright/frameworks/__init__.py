"""Files for training frameworks: one module per target, written from a job and read back.

A target cannot be asked for what it does not express: `write` raises before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from trainwright.documents.runs import able_targets, gaps_of
from trainwright.documents.view import printable
from trainwright.errors import Fault, Inexpressible, InvalidInput
from trainwright.frameworks.launch import launch_scripts, readme
from trainwright.frameworks.megatron_rules import broken_megatron_rules, setup_of
from trainwright.frameworks.stated_run import PRODUCTS
from trainwright.model import TRAIN_ALL, Activation, Head, Norm
from trainwright.plans.capability import CHROME_TRACE, DRY_RUN, OTHER_TARGETS, TARGETS, target_named

if TYPE_CHECKING:
    from trainwright.frameworks.launch import Launcher
    from trainwright.model import TransformerConfig
    from trainwright.plans.job import ExportBundle, Job, Stamp
# Where each target is written; a picture of the schedule is no framework.
_WRITERS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "megatron": ("megatron", "export_megatron"),
        "megatron-bridge": ("megatron_bridge", "export_megatron_bridge"),
        "primus": ("primus", "export_primus"),
        "torchtitan@0.2": ("torchtitan", "export_torchtitan_02"),
        "torchtitan@0.3": ("torchtitan", "export_torchtitan_03"),
        "pytorch": ("pytorch", "export_pytorch"),
        "deepspeed": ("deepspeed", "export_deepspeed"),
        **{
            name: ("trainers", f"export_{name}")
            for name in ("accelerate", "nanotron", "trl", "axolotl", "llamafactory")
        },
        "automodel": ("trainers", "export_automodel"),
        "maxtext": ("trainers", "export_maxtext"),
    }
)
_OF_CORE: Final = frozenset({"megatron", "megatron-bridge", "primus"})
# Targets whose files say what the model is; the others run a model of the user's own.
_WITH_MODEL: Final = _OF_CORE | {"nanotron"}
# Targets around the trainer of transformers, whose `optim` knows optimizers of 8 bit.
_OF_TRANSFORMERS: Final = frozenset({"trl", "axolotl", "llamafactory"})
# Targets that run a model and an optimizer of the user's own code.
_OWN_CODE: Final = frozenset(
    {"pytorch", "deepspeed", "accelerate", "torchtitan@0.2", "torchtitan@0.3"}
)
# Targets whose files say which low-rank adapters are trained; with weights in few bits beside them.
_ADAPTS: Final = frozenset({"trl", "axolotl", "llamafactory", "automodel"})
_QUANTIZES: Final = _ADAPTS - {"automodel"}
# Targets that take the order of every action from a file.
_WITH_ORDERS: Final = frozenset({"pytorch", "torchtitan@0.2", "torchtitan@0.3", CHROME_TRACE})


def export_target(name: str) -> str:
    """The target of a name; raises `InvalidInput` listing all, the trace among them."""
    if name in OTHER_TARGETS:
        return name
    try:
        return target_named(name)
    except InvalidInput:
        names = ", ".join((*TARGETS, *OTHER_TARGETS))
        raise InvalidInput.of("to", f'must be one of {names}, got "{name}"') from None


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
    if target == CHROME_TRACE:
        from trainwright.frameworks.chrome_trace import export_trace

        return export_trace(job, stamp)
    if target == DRY_RUN:
        from trainwright.frameworks.dry_run import export_dry_run

        return export_dry_run(job, stamp)
    if faults := (*_unsaid_tuning(job, target), *_unsaid_formats(job, target)):
        raise Inexpressible(target, faults, alternatives=())
    if faults := unwritable(job.model, target):
        raise Inexpressible(target, faults, alternatives=sorted(set(_WRITERS) - _WITH_MODEL))
    if job.model.towers and len(job.stages) > 1:
        fault = Fault("pipeline", "has an encoder, which no list of layers here names")
        raise Inexpressible(target, (fault,), alternatives=())
    if target == "megatron" and job.model.is_recurrent:
        from trainwright.frameworks.megatron import unsaid_of_stages

        if faults := tuple(Fault("pipeline", what) for what in unsaid_of_stages(job)):
            raise Inexpressible(target, faults, alternatives=())
    if target in _OF_CORE:
        _refuse_illegal(job, target)
    module, function = _WRITERS[target]
    bundle: ExportBundle = _function(module, function)(job, stamp)
    if target in _OWN_CODE and job.model.tuning != TRAIN_ALL:
        asked = (*bundle.asked_of_user, "a model whose weights are frozen and adapted as planned")
        bundle = replace(bundle, asked_of_user=asked)
    scripts = launch_scripts(bundle, job, launcher, stamp)
    page = printable(readme(bundle, job, launcher, stamp))
    return replace(bundle, files={**bundle.files, **scripts, "README.md": page})


def _unsaid_tuning(job: Job, target: str) -> Iterator[Fault]:
    """What of the weights that train the files of a target would leave out."""
    tuning = job.model.tuning
    if tuning == TRAIN_ALL or target in _OWN_CODE:
        return
    low_rank = tuning.low_rank
    if low_rank is None or replace(tuning, low_rank=None) != TRAIN_ALL:
        yield Fault("freeze", f"{target} trains all weights in what is exported")
    if low_rank is not None and target not in _ADAPTS:
        yield Fault(
            "lora_rank", f"{low_rank.rank}: {target} trains all weights in what is exported"
        )
    elif low_rank is not None and not {*low_rank.targets} <= {*PRODUCTS.values()}:
        left = ", ".join(each for each in low_rank.targets if each not in {*PRODUCTS.values()})
        yield Fault("lora_targets", f"{left}: have no name that all models share")
    elif low_rank is not None and low_rank.bits is not None and target not in _QUANTIZES:
        problem = f"{low_rank.bits}: {target} keeps 16 bits of a weight in what is exported"
        yield Fault("weight_bits", problem)


def _unsaid_formats(job: Job, target: str) -> Iterator[Fault]:
    """Number formats of the optimizer's state that the files of a target would leave out."""
    recipe = job.recipe
    if target in _OF_CORE or target in _OWN_CODE - {"deepspeed", "accelerate"}:
        return
    if recipe.main_weight_dtype not in (None, "fp32"):
        said = recipe.main_weight_dtype
        yield Fault("main_weight_dtype", f"{said}: {target} keeps fp32 in what is exported")
    eight_bit = target in _OF_TRANSFORMERS and recipe.optimizer in ("adam", "lion")
    if {*recipe.moment_dtypes} not in ({"fp32"}, {"int8"} if eight_bit else {"fp32"}):
        said = ", ".join(recipe.moment_dtypes)
        yield Fault("moment_dtypes", f"{said}: {target} keeps fp32 in what is exported")


def unwritable(model: TransformerConfig, target: str) -> tuple[Fault, ...]:
    """What of a model the files of a target cannot say, however it is trained."""
    if target not in _WITH_MODEL:
        return ()
    if target == "megatron" and model.is_recurrent:
        from trainwright.frameworks.megatron import unsaid_of_hybrid

        own = (Fault("model", f"has {what}") for what in unsaid_of_hybrid(model))
        return (*own, *_beyond_gpt(model))
    alone = not (model.attends and model.mlp)
    uneven = {
        "blocks that differ in kind": model.choices or model.mixer is not None,
        "blocks without attention or without a feed-forward part": alone,
    }
    kinds = (Fault("model", f"has {what}") for what, has in uneven.items() if has)
    return (*kinds, *_beyond_gpt(model))


def _beyond_gpt(model: TransformerConfig) -> Iterator[Fault]:
    """What of a model's blocks the arguments of a GPT cannot say."""
    unsaid = {
        "a head of classes, or none": model.head is not Head.LANGUAGE,
        "norms behind the halves of a block alone": model.norm_after,
        "attention and feed-forward part side by side": model.parallel,
        "query and key norms over all heads": model.query_key_norm_whole,
        "a gate on what attention gives": model.attention_gate,
        "value heads of a size of their own": model.value_size,
        "norms without weights": model.norm is Norm.WITHOUT_WEIGHT,
        "attention to keys that an indexer chose": model.latent is not None
        and model.latent.indexer is not None,
        "attention in chunks": model.chunked,
        "an encoder": model.towers,
        "attention to compressed entries": model.compressed,
        "several residual streams": model.streams > 1,
        "inputs of each block's own": model.layer_inputs,
        "experts with norms of their own": model.experts is not None and model.experts.apart,
        "an activation that learns (xielu)": model.activation is Activation.XIELU,
    }
    for what, has in unsaid.items():
        if has:
            yield Fault("model", f"has {what}")


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
