"""Training a part of a model: options of `estimate` that freeze it or lay adapters beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.api.inputs import embed, naming_options
from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainwright.api.models import ModelInput
    from trainwright.api.run_options import RunOptions
    from trainwright.model import LayerKind, LowRank

DEFAULT_TARGETS = ("query", "value")  # as in Hu et al., LoRA, 2021, section 7.1
_OPTION_OF = {
    "tuning.low_rank.rank": "lora-rank",
    "tuning.low_rank.targets": "lora-targets",
    "tuning.low_rank.dropout": "lora-dropout",
    "tuning.num_frozen_blocks": "freeze-blocks",
}


def tuned(given: ModelInput, options: RunOptions) -> ModelInput:
    """The model with what `options` freezes; as it is where they say nothing of it.

    Raises `InvalidInput` for layers, ranks or targets that the model does not have, and where the
    folder of an adapter is given adapters again.
    """
    from trainwright.formats.document_json import encode
    from trainwright.model import RunShape, layer_graph

    rank, blocks = options.get("lora_rank"), options.get("freeze_blocks")
    kinds = options.get("freeze") or ()
    faults = tuple(_faults(given, options))
    if faults:
        raise InvalidInput(faults)
    if rank is None and not blocks and not kinds:
        return given
    before = given.config.tuning
    low_rank = before.low_rank if rank is None else _low_rank(options)
    with naming_options(_OPTION_OF):
        config = replace(
            given.config,
            tuning=replace(
                before,
                low_rank=low_rank,
                num_frozen_blocks=before.num_frozen_blocks if blocks is None else blocks,
                frozen_kinds=(*before.frozen_kinds, *_kinds(kinds)),
            ),
        )
        layer_graph(config, RunShape(microbatch_size=1, sequence_length=1))  # knows the targets
    name = given.embedded.name + "".join(_suffixes(rank, blocks, kinds))
    return replace(given, config=config, embedded=embed("model", name, encode(config)))


def _faults(given: ModelInput, options: RunOptions) -> Iterator[Fault]:
    from trainwright.model import LayerKind

    if options.get("lora_rank") is None:
        for name in ("lora_targets", "lora_dropout"):
            if options.get(name) is not None:
                yield Fault(name.replace("_", "-"), "needs --lora-rank N")
    elif given.config.tuning.low_rank is not None:
        yield Fault("lora-rank", "the model is an adapter's folder, which has its own")
    offered = [kind for kind in LayerKind if kind is not LayerKind.LOSS]
    for kind in options.get("freeze") or ():
        if kind not in offered:
            yield Fault("freeze", f'must be one of {", ".join(offered)}, got "{kind}"')


def _low_rank(options: RunOptions) -> LowRank:
    from trainwright.model import LowRank

    return LowRank(
        rank=options.get("lora_rank") or 0,
        targets=tuple(options.get("lora_targets") or DEFAULT_TARGETS),
        dropout=options.get("lora_dropout") or 0.0,
    )


def _kinds(names: Sequence[str]) -> Iterator[LayerKind]:
    from trainwright.model import LayerKind

    return (LayerKind(name) for name in dict.fromkeys(names))


def _suffixes(rank: int | None, blocks: int | None, kinds: Sequence[str]) -> Iterator[str]:
    if rank is not None:
        yield f" + LoRA rank {rank}"
    if blocks:
        yield f", {blocks} blocks frozen"
    if kinds:
        yield f", {', '.join(dict.fromkeys(kinds))} frozen"
