"""Low-rank adapters as operators beside the products they adapt (see `tuning`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainwright.errors import InvalidInput
from trainwright.model.config import TransformerConfig
from trainwright.model.feed_forward import FeedForward
from trainwright.model.freezing import ADAPTER_MARK
from trainwright.model.graph import LayerClass
from trainwright.model.operator import Operator, Parameter, Phase, SavedTensor, Shard
from trainwright.model.primitives import elementwise, linear, linear_input
from trainwright.model.run_shape import RunShape
from trainwright.model.tuning import LowRank


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A target: the operator whose product it is part of, and its own inputs and outputs."""

    operator: str
    inputs: int
    outputs: int


def adapted_chain(
    chain: list[LayerClass], config: TransformerConfig, low_rank: LowRank, run: RunShape
) -> list[LayerClass]:
    """The chain with adapters; raises `InvalidInput` for a target that no layer has."""
    made = {id(layer): _adapted(layer, config, low_rank, run) for layer in chain}
    offered = {name for layer in chain for name, _ in _parts(config, layer)}
    if missing := [target for target in low_rank.targets if target not in offered]:
        known = ", ".join(sorted(offered))
        raise InvalidInput.of(
            "tuning.low_rank.targets", f'must be of {known} for this model, got "{missing[0]}"'
        )
    return [made[id(layer)] for layer in chain]


def _adapted(
    layer: LayerClass, config: TransformerConfig, low_rank: LowRank, run: RunShape
) -> LayerClass:
    wanted = [part for name, part in _parts(config, layer) if name in low_rank.targets]
    names = [name for name, _ in _parts(config, layer) if name in low_rank.targets]
    if not wanted:
        return layer
    operators: list[Operator] = []
    for operator in layer.operators:
        operators.append(operator)
        for name, part in zip(names, wanted, strict=True):
            if part.operator == operator.name:
                operators += _adapter(name, part, operator, low_rank, run)
    return replace(layer, operators=tuple(operators))


def _parts(config: TransformerConfig, layer: LayerClass) -> Iterator[tuple[str, _Part]]:
    """The targets that a layer has, by name."""
    h = config.hidden_size
    present = {op.name: op for op in layer.operators}

    def part(operator: str, inputs: int, outputs: int) -> _Part:
        return _Part(operator=operator, inputs=inputs, outputs=outputs)

    out = config.attention_output_size
    candidates = [
        ("query", part("query_key_value", h, config.query_size)),
        ("key", part("query_key_value", h, config.key_value_size)),
        ("value", part("query_key_value", h, config.key_value_size)),
        ("attention_output", part("attention_output", out, h)),
    ]
    if (latent := config.latent) is not None:
        rank, keys = latent.query_rank or h, latent.key_value_rank
        expanded = config.num_heads * (latent.plain_head_size + latent.value_head_size)
        candidates += [
            ("query", part("query", h, config.query_size)),
            ("query_down", part("query_down", h, rank)),
            ("query_up", part("query_up", rank, config.query_size)),
            ("key_value_down", part("key_value_down", h, keys + latent.rotary_head_size)),
            ("key_value_up", part("key_value_up", keys, expanded)),
        ]
    widths = {FeedForward.MLP: config.ffn_size}
    if config.experts is not None:
        widths[FeedForward.SHARED_EXPERT] = config.experts.shared_ffn_size
    for pair, width in widths.items():
        if config.gated:
            candidates.append(("gate", part(pair.first, h, width)))
        candidates.append(("up", part(pair.first, h, width)))
        candidates.append(("down", part(pair.last, width, h)))
    return ((name, candidate) for name, candidate in candidates if candidate.operator in present)


def _adapter(
    target: str, part: _Part, beside: Operator, low_rank: LowRank, run: RunShape
) -> tuple[Operator, ...]:
    """x A, its product with B, and the sum with what the frozen product gave."""
    assert beside.matrix is not None
    split, r, t = beside.matrix.split, low_rank.rank, run.tensor_parallel
    name = f"{beside.name}{ADAPTER_MARK}{target}"

    def matrix(letter: str, count: int, shards: int) -> Parameter:
        return Parameter(name=f"{name}_{letter}.weight", count=count, shards=shards)

    into = linear(
        f"{name}_a",
        run,
        inputs=part.inputs,
        outputs=r,
        split="none" if split == "column" else split,
        parameters=(matrix("a", part.inputs * r, t if split == "row" else 1),),
        saved=_kept_input(beside, part, low_rank, run, name),
    )
    inner = Shard.SEQUENCE if split == "sequence" else Shard.REPLICATED
    out = linear(
        f"{name}_b",
        run,
        inputs=r,
        outputs=part.outputs,
        split="none" if split == "row" else split,
        parameters=(matrix("b", r * part.outputs, t if split == "column" else 1),),
        saved=(linear_input(f"{name}_b.input", run, width=r, shard=inner),),
    )
    shards = {"column": t, "sequence": run.sequence_shards}.get(split, 1)
    elements = run.tokens * part.outputs / shards
    added = elementwise(f"{name}_sum", run, elements=elements, forward=(2, 1), backward=(0, 0))
    return (into, out, added)


def _kept_input(
    beside: Operator, part: _Part, low_rank: LowRank, run: RunShape, name: str
) -> tuple[SavedTensor, ...]:
    """The input that the product itself would keep; with dropout a copy and its mask."""
    own = tuple(tensor for tensor in beside.saved if tensor.until is Phase.WEIGHT_GRAD)
    if not low_rank.dropout:
        return own
    shard = own[0].shard if own else Shard.SEQUENCE
    copy = linear_input(f"{name}_a.input", run, width=part.inputs, shard=shard)
    mask = replace(copy, name=f"{name}_a.dropout_mask", element_bytes=1, serves_input_grad=True)
    return (copy, mask)
