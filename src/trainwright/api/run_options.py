"""The options of a run, as `estimate` takes them, and the configuration they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trainwright.api.clusters import LARGEST_CLUSTER
from trainwright.api.recipe_options import (
    RECIPE_OPTION_OF,
    RecipeOptions,
    overlap_of,
    recipe_of,
    unknown_words,
)
from trainwright.errors import Fault, InvalidInput
from trainwright.units import parse_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainwright.api.model_options import ModelOptions
    from trainwright.plan.configuration import Configuration
    from trainwright.plan.overlap import MemoryOverheads
    from trainwright.plan.parallelism import Parallelism


class RunOptions(RecipeOptions, total=False):
    """Everything about a run but model and cluster; see `docs/costs.md` for the defaults.

    `recompute` is none, selective, full, or full:N for the first N blocks of each stage; sizes are
    bytes or text with a unit.
    """

    tp: int | None
    pp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    zero: int | None
    mapping: str | None
    state_copies: int | None
    micro_batch: int | None
    global_batch: int | None
    sequence: int | None
    recompute: str | None
    recompute_modules: Sequence[str] | None
    schedule: str | None
    virtual_stages: int | None
    blocks: Sequence[int] | None
    sequence_parallel: bool | None
    flash_attention: bool | None
    fused_cross_entropy: bool | None
    vocabulary_multiple: int | None
    reserve: str | float | None
    workspace: str | float | None
    fragmentation: float | None
    lora_rank: int | None
    lora_targets: Sequence[str] | None
    lora_dropout: float | None
    freeze_blocks: int | None
    freeze: Sequence[str] | None


# Names of nouns' fields, as options.
OPTION_OF: Final = {
    "tensor": "tp",
    "tensor_parallel": "tp",
    "pipeline": "pp",
    "data": "dp",
    "context": "cp",
    "context_parallel": "cp",
    "expert": "ep",
    "expert_parallel": "ep",
    "expert_tensor": "etp",
    "expert_tensor_parallel": "etp",
    "zero_stage": "zero",
    "axis_order": "mapping",
    "state_copies": "state-copies",
    "microbatch_size": "micro-batch",
    "num_microbatches": "global-batch / (micro-batch x dp)",
    "global_batch": "global-batch",
    "sequence_length": "sequence",
    "virtual_stages": "virtual-stages",
    "recompute_blocks": "recompute",
    "selective_modules": "recompute-modules",
    "blocks_per_stage": "blocks",
    "vocabulary_multiple": "vocabulary-multiple",
    **RECIPE_OPTION_OF,
    "workspace_bytes": "workspace",
    "reserve_bytes": "reserve",
}


def configuration_of(options: RunOptions, *, num_devices: int | None) -> Configuration:
    """The run; degrees of data parallelism that are not given fill `num_devices`.

    Raises `InvalidInput` with every option that is missing or has no meaning.
    """
    from trainwright.plan.configuration import Configuration

    faults = [*_missing(options), *_beyond_all(options), *unknown_words(options)]
    if faults:
        raise InvalidInput(faults)
    degrees = _degrees(options, num_devices)
    mode, blocks = _recompute(options.get("recompute") or "none")
    given = {
        "recompute_modules": _tuple(options.get("recompute_modules")),
        "blocks_per_stage": _tuple(options.get("blocks")),
        "fused_attention": options.get("flash_attention"),
        "fused_cross_entropy": options.get("fused_cross_entropy"),
        "vocabulary_multiple": options.get("vocabulary_multiple"),
    }
    default = "interleaved" if degrees.virtual_stages > 1 else "1f1b"
    return Configuration(
        parallelism=degrees,
        microbatch_size=options.get("micro_batch") or 1,
        global_batch=options["global_batch"] or 1,
        sequence_length=options["sequence"] or 1,
        schedule=options.get("schedule") or default,
        recompute=mode,
        recompute_blocks=blocks,
        recipe=recipe_of(options),
        overlap=overlap_of(options),
        overheads=overheads_of(options),
        **_stated(given),
    )


def devices_asked_for(options: RunOptions) -> int | None:
    """The devices that the degrees multiply to, where data parallelism is among them."""
    data = options.get("dp")
    if data is None:
        return None
    return (options.get("tp") or 1) * (options.get("pp") or 1) * (options.get("cp") or 1) * data


def _missing(options: RunOptions) -> Iterator[Fault]:
    for name in ("global_batch", "sequence"):
        if options.get(name) is None:
            flag = name.replace("_", "-")
            yield Fault(flag, f"must be given for a model, as --{flag} N")


def _beyond_all(options: RunOptions) -> Iterator[Fault]:
    """Degrees larger than any machine, before anything is multiplied with them."""
    for name in ("tp", "pp", "dp", "cp", "ep", "etp"):
        degree = options.get(name)
        if isinstance(degree, int) and degree > LARGEST_CLUSTER:
            yield Fault(name, f"must be <= {LARGEST_CLUSTER}, got {degree}")


def _degrees(options: RunOptions, num_devices: int | None) -> Parallelism:
    from trainwright.plan.axis_order import DATA_INSIDE, mapping_named
    from trainwright.plan.parallelism import Parallelism

    mapping = options.get("mapping")
    tensor, pipeline = options.get("tp") or 1, options.get("pp") or 1
    context = options.get("cp") or 1
    data = options.get("dp")
    if data is None:
        data = max(1, (num_devices or 1) // (tensor * pipeline * context))
    sequence_parallel = options.get("sequence_parallel")
    zero = options.get("zero")
    return Parallelism(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        context=context,
        expert=options.get("ep") or 1,
        expert_tensor=options.get("etp"),
        virtual_stages=options.get("virtual_stages") or 1,
        sequence_parallel=tensor > 1 if sequence_parallel is None else sequence_parallel,
        zero_stage=1 if zero is None else zero,
        state_copies=options.get("state_copies") or 1,
        axis_order=DATA_INSIDE if mapping is None else mapping_named(mapping),
    )


def _recompute(text: str) -> tuple[Any, int | None]:
    from trainwright.profile import Recompute

    mode, colon, count = text.partition(":")
    if mode not in set(Recompute) or (colon and not count.isdecimal()):
        offered = ", ".join((*Recompute, "full:N"))
        raise InvalidInput.of("recompute", f'must be one of {offered}, got "{text}"')
    return Recompute(mode), int(count) if colon else None


def overheads_of(options: RunOptions | ModelOptions) -> MemoryOverheads:
    """What a device keeps beside the model; raises `InvalidInput` under the names of fields."""
    from trainwright.plan.overlap import MemoryOverheads

    given = {
        "reserve_bytes": _bytes(options.get("reserve"), "reserve"),
        "workspace_bytes": _bytes(options.get("workspace"), "workspace"),
        "fragmentation": options.get("fragmentation"),
    }
    return MemoryOverheads(**_stated(given))


def _bytes(value: str | float | None, name: str) -> float | None:
    if isinstance(value, str) and value.strip() == "0":  # nothing, in any unit
        return 0.0
    return parse_memory(value, name=name) if isinstance(value, str) else value


def _tuple(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return tuple(values) if values else None


def _stated(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}
