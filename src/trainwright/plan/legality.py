"""Which combinations of degrees, batch and kernels can run at all: every rule, each with its fault.

The rules are those of the common launchers (Megatron-LM, DeepSpeed, torchtitan), and of arithmetic.
What a model's sizes allow is said by the model (`TransformerConfig.faults_at`), what a schedule
allows by its family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.errors import Fault, InvalidInput
from trainwright.model import PRECISIONS, RunShape
from trainwright.plan.axis_order import mapping_name

if TYPE_CHECKING:
    from trainwright.cluster import Accelerator, Pool
    from trainwright.model import TransformerConfig
    from trainwright.plan.configuration import Configuration


def broken_rules(
    configuration: Configuration, model: TransformerConfig, pool: Pool
) -> tuple[Fault, ...]:
    """Every rule that the configuration breaks for `model` on `pool`, in a fixed order."""
    found: list[Fault] = []
    for rule in RULES:
        found += rule(configuration, model, pool)
    return tuple(dict.fromkeys(found))


def run_shape(configuration: Configuration, *, precision: str) -> RunShape:
    """One microbatch of the configuration; raises `InvalidInput` where it cannot be cut so."""
    degrees, recipe = configuration.parallelism, configuration.recipe
    return RunShape(
        microbatch_size=configuration.microbatch_size,
        sequence_length=configuration.sequence_length,
        tensor_parallel=degrees.tensor,
        sequence_parallel=degrees.sequence_parallel,
        precision=recipe.numbers(precision),
        fused_attention=configuration.fused_attention,
        fused_cross_entropy=configuration.fused_cross_entropy,
        vocabulary_multiple=configuration.vocabulary_multiple,
        context_parallel=degrees.context,
        context_exchange=recipe.context_exchange,
        context_balanced=recipe.context_balanced,
        expert_parallel=degrees.expert,
        expert_tensor_parallel=degrees.expert_tensor,
        expert_imbalance=recipe.expert_imbalance,
        capacity_factor=recipe.capacity_factor,
        token_dispatcher=recipe.token_dispatcher,
    )


def _devices(configuration: Configuration, model: TransformerConfig, pool: Pool) -> Iterator[Fault]:
    """The degrees multiply to no more devices than there are."""
    used = configuration.parallelism.num_devices
    if used > pool.num_devices:
        wanted = f"tp x pp x dp x cp must be at most the {pool.num_devices} devices"
        nodes = -(-used // pool.devices_per_node)
        enough = f"; {nodes} nodes hold as many" if nodes > pool.num_nodes else ""
        yield Fault("devices", f"{wanted}, got {used}{enough}")


def _batch(configuration: Configuration, model: TransformerConfig, pool: Pool) -> Iterator[Fault]:
    """Every replica runs the same number of whole microbatches."""
    size, data = configuration.microbatch_size, configuration.parallelism.data
    if configuration.global_batch % (size * data):
        wanted = f"must be a multiple of micro-batch x dp ({size} x {data})"
        yield Fault("global_batch", f"{wanted}, got {configuration.global_batch}")


def _pipeline(
    configuration: Configuration, model: TransformerConfig, pool: Pool
) -> Iterator[Fault]:
    """Every virtual stage holds a block, and a stated split holds all of them."""
    degrees, blocks = configuration.parallelism, model.num_layers
    if configuration.num_stages > blocks:
        wanted = f"x virtual stages must be at most the {blocks} blocks"
        yield Fault("pipeline", f"{wanted}, got {degrees.pipeline} x {degrees.virtual_stages}")
    if degrees.pipeline == 1 and degrees.virtual_stages > 1:
        wanted = "must be 1 without pipeline stages"
        yield Fault("virtual_stages", f"{wanted}, got {degrees.virtual_stages}")
    split = configuration.blocks_per_stage
    if split is not None and sum(split) != blocks:
        yield Fault("blocks_per_stage", f"must add up to the {blocks} blocks, got {sum(split)}")


def _experts(configuration: Configuration, model: TransformerConfig, pool: Pool) -> Iterator[Fault]:
    """Experts are dealt out over whole groups of the devices of one pipeline rank."""
    degrees = configuration.parallelism
    spanned = degrees.expert * degrees.expert_shards
    if degrees.devices_per_rank % spanned:
        wanted = f"x expert-tensor must divide tp x cp x dp ({degrees.devices_per_rank})"
        yield Fault("expert", f"{wanted}, got {degrees.expert} x {degrees.expert_shards}")
    elif model.experts is not None and degrees.adjacent_devices % spanned:
        inside = degrees.adjacent_devices
        wanted = f"x expert-tensor must divide the {inside} devices that lie inside the pipeline"
        order = mapping_name(degrees.axis_order)
        given = f"got {degrees.expert} x {degrees.expert_shards} with {order}"
        yield Fault("expert", f"{wanted}, {given}")


def _copies(configuration: Configuration, model: TransformerConfig, pool: Pool) -> Iterator[Fault]:
    """Groups that each hold all sharded state are equal, and there is state that is sharded."""
    degrees = configuration.parallelism
    copies = degrees.state_copies
    if copies == 1:
        return
    if degrees.zero_stage == 0:
        yield Fault("state_copies", f"must be 1 without ZeRO, got {copies}; choose ZeRO 1, 2 or 3")
    if degrees.data % copies:
        yield Fault("state_copies", f"must divide dp ({degrees.data}), got {copies}")
    elif copies == degrees.data:
        unsharded = f"must be below dp ({degrees.data}), for one replica shards nothing"
        yield Fault("state_copies", f"{unsharded}, got {copies}; choose ZeRO 0")
    elif model.experts is not None and degrees.expert_data % copies:
        wanted = f"must divide the {degrees.expert_data} replicas of each expert"
        yield Fault("state_copies", f"{wanted}, got {copies}")


def _context(configuration: Configuration, model: TransformerConfig, pool: Pool) -> Iterator[Fault]:
    """Balanced context parallelism gives every rank an early and a late part."""
    c, s = configuration.parallelism.context, configuration.sequence_length
    if c > 1 and configuration.recipe.context_balanced and model.causal and s % (2 * c):
        yield Fault("sequence_length", f"must be a multiple of 2 x cp ({2 * c}), got {s}")


def _recompute(
    configuration: Configuration, model: TransformerConfig, pool: Pool
) -> Iterator[Fault]:
    """No stage recomputes more blocks than there are."""
    blocks = configuration.recompute_blocks
    if blocks is not None and blocks > model.num_layers:
        yield Fault("recompute_blocks", f"must be <= {model.num_layers}, got {blocks}")


def _precision(
    configuration: Configuration, model: TransformerConfig, pool: Pool
) -> Iterator[Fault]:
    """The device multiplies in the formats of the recipe."""
    yield from precision_faults(configuration.recipe.precision, pool.accelerator)


def precision_faults(precision: str | None, device: Accelerator) -> Iterator[Fault]:
    """A precision nobody models, or its formats that the device does not multiply in.

    That of the device where absent.
    """
    wanted = PRECISIONS.get(precision or device.default_precision)
    if wanted is None:
        yield Fault("precision", f'must be one of {", ".join(PRECISIONS)}, got "{precision}"')
        return
    for dtype in dict.fromkeys((wanted.matmul_dtype, wanted.base_dtype)):
        if dtype not in device.dtypes:
            offered = ", ".join(device.dtypes)
            yield Fault("precision", f"{device.name} multiplies in {offered}, not in {dtype}")


def _shape(configuration: Configuration, model: TransformerConfig, pool: Pool) -> Iterable[Fault]:
    """The sizes of the model can be cut as the degrees say."""
    name = configuration.recipe.precision or pool.accelerator.default_precision
    if name not in PRECISIONS:
        return ()  # `_precision` says so, and nothing has a size without
    faults: tuple[Fault, ...] = ()
    try:
        run = run_shape(configuration, precision=name)
    except InvalidInput as error:
        faults, degrees = error.faults, configuration.parallelism
        # A sequence that can be cut: the model's own rules are asked all the same.
        cut = replace(configuration, sequence_length=degrees.tensor * degrees.context)
        run = run_shape(cut, precision=name)
    return (*faults, *model.faults_at(run))


Rule = Callable[["Configuration", "TransformerConfig", "Pool"], Iterable[Fault]]
RULES: Final[tuple[Rule, ...]] = (
    _devices,
    _batch,
    _pipeline,
    _experts,
    _copies,
    _context,
    _recompute,
    _precision,
    _shape,
)
