"""Thousands of configurations of one model on one cluster: the same figures, shared work.

Layers are priced once per way to cut them, stages once per interval of blocks, schedules once per
shape and times, memory in flight once per shape as counts. What is left for a configuration is a
few sums. Illegal configurations are marked, not raised. The figures are those of
`price_configuration`; a test holds both against each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.model import model_flops_per_sequence, precision_named
from trainwright.plan.legality import broken_rules
from trainwright.pricing.batch_chunks import Boundaries, Chunks, boundaries_of, chunks_of
from trainwright.pricing.block_sums import BlockSums
from trainwright.pricing.configuration import estimator_of, point_of, schedule_faults, shape_of
from trainwright.pricing.peak_rows import PeakRows, peak_rows
from trainwright.pricing.pipeline_run import (
    TIMELESS,
    PipelineShape,
    PipelineTimes,
    peak_shape,
    schedule_of,
    shorter_shape,
    simulated_ends_s,
    steady_state,
)
from trainwright.pricing.placement import RankSpacing, group_axis_hops, group_replicas
from trainwright.pricing.sharding import (
    data_parallel_times,
    optimizer_time_s,
    static_shards,
)
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from numpy.typing import NDArray

    from trainwright.cluster import Accelerator, Cluster
    from trainwright.model import TransformerConfig
    from trainwright.plan.configuration import Configuration
    from trainwright.pricing.sharding import RankState, Replicas
    from trainwright.profile import Profile

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchPrices:
    """One entry per configuration; NaN where it is illegal, and then `faults` says why."""

    step_time_s: Floats
    peak_memory_bytes: Floats
    mfu: Floats
    faults: tuple[tuple[Fault, ...], ...]


def price_batch(
    model: TransformerConfig, cluster: Cluster, configurations: Sequence[Configuration]
) -> BatchPrices:
    """Time, peak memory and MFU of every configuration."""
    pricer = BatchPricer(model=model, cluster=cluster)
    prices = np.full((len(configurations), 3), np.nan)
    faults: list[tuple[Fault, ...]] = []
    for index, configuration in enumerate(configurations):
        found: tuple[Fault, ...] = ()
        try:
            prices[index] = pricer.price(configuration)
        except InvalidInput as error:
            found = error.faults
        except UnsupportedFeature as error:
            found = (Fault("configuration", str(error)),)
        faults.append(found)
    return BatchPrices(
        step_time_s=prices[:, 0],
        peak_memory_bytes=prices[:, 1],
        mfu=prices[:, 2],
        faults=tuple(faults),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ranks:
    """What data parallelism adds to each distinct stage per microbatch, and to each rank [p]."""

    added: tuple[tuple[float, float], ...]
    exposed_sync_s: Floats
    static_bytes: Floats
    optimizer_s: float


@dataclass(slots=True)
class BatchPricer:
    """Prices one configuration after another and remembers everything they share."""

    model: TransformerConfig
    cluster: Cluster
    _made: dict[Hashable, Any] = field(default_factory=dict)
    _numbers: dict[str, dict[tuple[Hashable, ...], int]] = field(default_factory=dict)

    def price(self, run: Configuration) -> tuple[float, float, float]:
        """Step time, peak memory and MFU; raises `InvalidInput` where the run is illegal."""
        degrees, layers = run.parallelism, self._layers(run)
        self._require_legal(run, layers)
        spread = (degrees.tensor, degrees.context, degrees.expert, degrees.expert_tensor)
        spacing = RankSpacing.of(degrees)
        apart = spacing.num_ranks if spacing.repeats > 1 else 1  # replicas, in pipelines
        replicated = self._number("replicated", (*spread, degrees.data, degrees.zero_stage, apart))
        shape = shape_of(run)
        stages = (layers, run.recompute, run.recompute_blocks, run.blocks_per_stage)
        pipeline = (shape.family, shape.num_ranks, shape.virtual_stages)
        boundaries: tuple[Boundaries, int] = self._kept(
            ("boundaries", *pipeline, spacing.size, spacing.repeats),
            lambda: self._boundaries(shape, spacing),
        )
        cut = self._number("cut", (*stages, *pipeline, boundaries[1]))
        chunks: Chunks = self._kept(
            ("chunks", cut), lambda: chunks_of(run, boundaries[0], self._sums(run, layers))
        )
        m = shape.num_microbatches
        ranks: _Ranks = self._kept(
            ("ranks", cut, replicated, m if degrees.zero_stage >= 2 else 0),
            lambda: self._ranks(run, chunks, m, replicated),
        )
        ends_s: Floats = self._kept(
            ("ends", cut, m, ranks.added),
            lambda: self._ends_s(run, shape, chunks, ranks, cut),
        )
        held_bytes = self._held_bytes(run, shape, chunks, ranks, cut) + ranks.static_bytes
        if run.overheads.buffers:
            held_bytes = held_bytes + chunks.buffer_bytes
        peak_bytes = float(held_bytes.max()) + run.overheads.workspace_bytes
        synced_s = float((ends_s + ranks.exposed_sync_s).max())
        step_s = synced_s + ranks.optimizer_s + self.cluster.accelerator.step_overhead_s
        return step_s, peak_bytes, self._mfu(run, step_s)

    def _ends_s(
        self,
        run: Configuration,
        shape: PipelineShape,
        chunks: Chunks,
        ranks: _Ranks,
        cut: int,
    ) -> Floats:
        """Ends of the ranks; steps of one pipeline and different lengths share a steady state."""
        shorter = shorter_shape(shape)
        if shorter is not None:
            # In a tuple, so that "there is none" is kept too.
            (state,) = self._kept(
                ("steady", cut, shorter.num_microbatches, ranks.added),
                lambda: (steady_state(shorter, _times(chunks, ranks, run)),),
            )
            if state is not None:
                ends_s: Floats = state.ends_s(shape.num_microbatches)
                return ends_s
        return simulated_ends_s(shape, _times(chunks, ranks, run))

    def _ranks(
        self, run: Configuration, chunks: Chunks, num_microbatches: int, replicated: int
    ) -> _Ranks:
        replicas: Replicas = self._kept(
            ("replicas", replicated),
            lambda: group_replicas(self.cluster.pool_of(), run.parallelism),
        )
        device = self.cluster.accelerator
        shared = data_parallel_times(
            chunks.distinct, replicas, run.overlap, num_microbatches=num_microbatches
        )
        static_bytes, exposed_s = np.empty((2, len(chunks.buffer_bytes)))
        optimizer_s = 0.0
        for group in chunks.groups:
            key = ("state", self._same(group.state), replicated)
            kept_bytes, update_s = self._kept(
                key, partial(_state_costs, group.state, replicas, device)
            )
            static_bytes[group.ranks] = kept_bytes
            exposed = sum([shared[i].exposed_sync_s for i in group.stages], start=group.tied_s)
            exposed_s[group.ranks] = exposed
            optimizer_s = max(optimizer_s, update_s)
        return _Ranks(
            added=tuple((each.added_forward_s, each.added_backward_s) for each in shared),
            exposed_sync_s=exposed_s,
            static_bytes=static_bytes,
            optimizer_s=optimizer_s,
        )

    def _boundaries(self, shape: PipelineShape, spacing: RankSpacing) -> tuple[Boundaries, int]:
        """What ranks that lie so cross, and a number for it: many cross the same."""
        made = boundaries_of(shape, spacing, self.cluster.levels)
        return made, self._number("boundaries", (made,))

    def _held_bytes(
        self,
        run: Configuration,
        shape: PipelineShape,
        chunks: Chunks,
        ranks: _Ranks,
        cut: int,
    ) -> Floats:
        """What the schedule holds on every rank; only a family that looks at times needs them."""
        if shape.family not in TIMELESS:
            schedule = schedule_of(shape, _times(chunks, ranks, run))
            return peak_rows(schedule).peaks(chunks.activations)
        enough = peak_shape(shape)
        found: Floats = self._kept(
            ("held", cut, enough.num_microbatches),
            lambda: _timeless_rows(enough).peaks(chunks.activations),
        )
        return found

    def _sums(self, run: Configuration, layers: int) -> BlockSums:
        profile: Profile = self._kept(
            ("profile", layers),
            lambda: estimator_of(self.model, self.cluster, run).profile(
                replace(point_of(run), recompute=("none", "selective", "full"))
            ),
        )
        found: BlockSums = self._kept(
            ("sums", layers, run.recompute, run.recompute_blocks is None),
            lambda: BlockSums(
                profile=profile,
                mode=run.recompute,
                mtp_mode=run.recompute if run.recompute_blocks is None else Recompute.NONE,
                tensor=run.parallelism.tensor,
                hops=group_axis_hops(self.cluster.pool_of(), run.parallelism),
            ),
        )
        return found

    def _layers(self, run: Configuration) -> int:
        """A number for what the price of a layer depends on."""
        degrees = run.parallelism
        cut = (degrees.tensor, degrees.context, degrees.expert, degrees.expert_tensor)
        shape = (degrees.sequence_parallel, run.microbatch_size, run.sequence_length)
        kernels = (run.fused_attention, run.fused_cross_entropy, run.vocabulary_multiple)
        recipe = (self._same(run.recipe), self._same(run.overlap), run.recompute_modules)
        return self._number("layers", (*cut, *shape, *kernels, *recipe))

    def _same(self, value: Hashable) -> int:
        """A number for equal values; a value is hashed only when it is first seen."""
        known = self._made.get(id(value))
        if known is None:
            known = self._made[id(value)] = (value, self._number("value", (value,)))
        number: int = known[1]
        return number

    def _number(self, kind: str, key: tuple[Hashable, ...]) -> int:
        """A small number for a key, which is quicker to look up than the key."""
        numbers = self._numbers.setdefault(kind, {})
        return numbers.setdefault(key, len(numbers))

    def _require_legal(self, run: Configuration, layers: int) -> None:
        """Rules are asked once for all runs that differ in nothing they look at."""
        degrees, pool = run.parallelism, self.cluster.pool_of()
        m, rest = divmod(run.global_batch, run.microbatch_size * degrees.data)
        pipeline = (degrees.pipeline, degrees.virtual_stages)
        stages = (run.recompute_blocks, run.blocks_per_stage)
        spanned = degrees.expert * degrees.expert_shards
        fits = (
            degrees.devices_per_rank % spanned,
            degrees.adjacent_devices % spanned,
            degrees.num_devices <= pool.num_devices,
        )
        broken: tuple[Fault, ...] = self._kept(
            ("legal", layers, *pipeline, *stages, *fits, rest == 0),
            lambda: broken_rules(run, self.model, pool),
        )
        schedule: tuple[Fault, ...] = self._kept(
            ("schedule", run.schedule, *pipeline, m), lambda: tuple(schedule_faults(run))
        )
        if broken or schedule:
            raise InvalidInput((*broken_rules(run, self.model, pool), *schedule))

    def _mfu(self, run: Configuration, step_s: float) -> float:
        length, device = run.sequence_length, self.cluster.accelerator
        precision = run.recipe.precision

        def ideal_s() -> float:
            """Of a sequence on one device at its peak."""
            numbers = precision_named(precision or device.default_precision)
            flops = model_flops_per_sequence(self.model, length)
            return flops / device.peak(numbers.matmul_dtype)

        sequence_s: float = self._kept(("ideal", length, precision), ideal_s)
        return run.global_batch * sequence_s / (step_s * run.parallelism.num_devices)

    def _kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
        return found


def _state_costs(state: RankState, replicas: Replicas, device: Accelerator) -> tuple[float, float]:
    """Bytes of a rank's state on one device, and seconds of its update."""
    kept_bytes = sum(static_shards(state, replicas)) + state.opaque_bytes
    return kept_bytes, optimizer_time_s(state, replicas, device)


def _times(chunks: Chunks, ranks: _Ranks, run: Configuration) -> PipelineTimes:
    pairs = list(zip(chunks.distinct, ranks.added, strict=True))
    return PipelineTimes(
        forward_s=chunks.of_stages([work.forward_s + forward for work, (forward, _) in pairs]),
        input_grad_s=chunks.of_stages([work.input_grad_s + back for work, (_, back) in pairs]),
        weight_grad_s=chunks.of_stages([work.weight_grad_s for work, _ in pairs]),
        transfer_s=chunks.transfer_s,
        blocking=1 - run.overlap.pipeline,
    )


@lru_cache(maxsize=1024)
def _timeless_rows(shape: PipelineShape) -> PeakRows:
    zeros = np.zeros(0)
    times = PipelineTimes(
        forward_s=zeros, input_grad_s=zeros, weight_grad_s=zeros, transfer_s=zeros
    )
    return peak_rows(schedule_of(shape, times))
