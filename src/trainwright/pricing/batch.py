"""Thousands of configurations of one model on one cluster: the same figures, shared work.

Every configuration is first told apart by small numbers: of how its layers are priced, how its
blocks are cut, how it is replicated, and of its schedule. Layers are priced once per way to cut
them, stages once per interval of blocks, schedules once per shape and times. The rest are arrays
over configurations and ranks. Illegal configurations are marked, not raised. The figures are those
of `price_configuration`; a test holds both against each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.model import model_flops_per_sequence, precision_named
from trainwright.plan.legality import broken_rules
from trainwright.pricing.batch_cuts import Boundaries, Cut, Cuts, boundaries_of, cut_of
from trainwright.pricing.batch_pipelines import Pipelines, distinct
from trainwright.pricing.batch_ranks import Pairs, rank_costs
from trainwright.pricing.block_sums import BlockSums, WorkRows
from trainwright.pricing.configuration import (
    estimator_of,
    point_of,
    schedule_faults,
    shape_of,
)
from trainwright.pricing.pipeline_run import PipelineShape
from trainwright.pricing.placement import RankSpacing, group_axis_hops, group_replicas
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from numpy.typing import NDArray

    from trainwright.cluster import Cluster
    from trainwright.model import TransformerConfig
    from trainwright.plan.configuration import Configuration
    from trainwright.pricing.sharding import Replicas

    Floats = NDArray[np.float64]

_AT_ONCE: Final = 20_000  # configurations whose ranks are laid out side by side


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
    prices = np.full((len(configurations), 3), np.nan)
    faults: list[tuple[Fault, ...]] = []
    for first in range(0, len(configurations), _AT_ONCE):
        numbered = _Numbered(model=model, cluster=cluster)
        some = configurations[first : first + _AT_ONCE]
        found = [numbered.faults_of(run) for run in some]
        legal = [index for index, own in enumerate(found) if not own]
        if legal:
            prices[[first + index for index in legal]] = numbered.prices()
        faults += found
    return BatchPrices(
        step_time_s=prices[:, 0],
        peak_memory_bytes=prices[:, 1],
        mfu=prices[:, 2],
        faults=tuple(faults),
    )


@dataclass(slots=True)
class _Numbered:
    """Legal configurations, told apart by numbers, and all that these numbers stand for."""

    model: TransformerConfig
    cluster: Cluster
    _num_devices: int = field(init=False)
    _made: dict[Hashable, Any] = field(default_factory=dict)
    _numbers: dict[str, dict[Any, int]] = field(default_factory=dict)
    _rows: WorkRows = field(default_factory=WorkRows)
    _cuts: list[Cut] = field(default_factory=list)
    _replicas: list[Replicas] = field(default_factory=list)
    # Of every legal configuration: cut, shape, replicas; devices' seconds per peak, overheads.
    _runs: list[tuple[int, int, int]] = field(default_factory=list)
    _peak_s: list[float] = field(default_factory=list)
    _overheads: list[tuple[float, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._num_devices = self.cluster.pool_of().num_devices

    def faults_of(self, run: Configuration) -> tuple[Fault, ...]:
        """Take a configuration in, unless it breaks a rule: then these."""
        try:
            self._take(run)
        except InvalidInput as error:
            return error.faults
        except UnsupportedFeature as error:
            return (Fault("configuration", str(error)),)
        return ()

    def prices(self) -> Floats:
        """Step time, peak memory and MFU of what was taken in, shape [n, 3]."""
        cut, shape, replicated = np.array(self._runs, dtype=np.int64).T
        first, pair = distinct(cut, replicated)
        pairs = Pairs(
            cut=cut[first],
            replicas=replicated[first],
            overlap=tuple(self._cuts[number].overlap for number in cut[first].tolist()),
        )
        device, table, laid = self.cluster.accelerator, self._rows.table(), Cuts.of(self._cuts)
        costs = rank_costs(table, laid, pairs, self._replicas, device)
        pipelines = Pipelines(
            table=table,
            cuts=self._cuts,
            laid=laid,
            shapes=self._shapes(),
            costs=costs,
            cut=cut,
            shape=shape,
            pair=pair,
        )
        ranks, of_pair = laid.ranks.chosen(cut), costs.ranks.places(pair)
        workspace_bytes, buffers = np.array(self._overheads).T
        buffer_bytes = laid.buffer_bytes[laid.ranks.places(cut)] * np.repeat(buffers, ranks.lengths)
        held_bytes = pipelines.held_bytes() + costs.static_bytes[of_pair] + buffer_bytes
        ends_s = pipelines.ends_s() + costs.exposed_sync_s[of_pair]
        step_s = np.maximum.reduceat(ends_s, ranks.starts) + costs.optimizer_s[pair]
        step_s += device.step_overhead_s
        peak_bytes = np.maximum.reduceat(held_bytes, ranks.starts) + workspace_bytes
        return np.column_stack([step_s, peak_bytes, np.array(self._peak_s) / step_s])

    def _take(self, run: Configuration) -> None:
        degrees = run.parallelism
        t, c, d = degrees.tensor, degrees.context, degrees.data
        pipeline = (run.schedule, degrees.pipeline, degrees.virtual_stages)
        spread = (t, c, degrees.expert, degrees.expert_tensor)
        sizes = (degrees.sequence_parallel, run.microbatch_size, run.sequence_length)
        kernels = (run.fused_attention, run.fused_cross_entropy, run.vocabulary_multiple)
        recipe = (self._same(run.recipe), self._same(run.overlap), run.recompute_modules)
        layers = self._number("layers", (*spread, *sizes, *kernels, *recipe))
        m, rest = divmod(run.global_batch, run.microbatch_size * d)
        self._require_legal(run, layers, m, is_whole=rest == 0)
        spacing = RankSpacing.of(degrees)
        boundaries, crossed = self._kept(
            ("boundaries", *pipeline, spacing.size, spacing.repeats),
            lambda: self._boundaries(run, spacing),
        )
        stages = (layers, run.recompute, run.recompute_blocks, run.blocks_per_stage)
        cut = self._kept(
            ("cut", *stages, *pipeline, crossed), lambda: self._cut(run, boundaries, layers)
        )
        apart = spacing.num_ranks if spacing.repeats > 1 else 1  # replicas, in pipelines
        replicated = self._kept(
            ("replicas", *spread, d, degrees.zero_stage, degrees.state_copies, apart),
            lambda: self._replicated(run),
        )
        self._runs.append((cut, self._number("shape", (*pipeline, m)), replicated))
        sequence_s = self._kept(
            ("ideal", run.sequence_length, run.recipe.precision), lambda: self._ideal_s(run)
        )
        self._peak_s.append(run.global_batch * sequence_s / degrees.num_devices)
        self._overheads.append((run.overheads.workspace_bytes, run.overheads.buffers))

    def _require_legal(
        self, run: Configuration, layers: int, microbatches: int, *, is_whole: bool
    ) -> None:
        """Rules are asked once for all runs that differ in nothing they look at."""
        degrees, pool = run.parallelism, self.cluster.pool_of()
        pipeline = (degrees.pipeline, degrees.virtual_stages)
        stages = (run.recompute_blocks, run.blocks_per_stage)
        spanned = degrees.expert * degrees.expert_shards
        copies = degrees.state_copies
        fits = (
            degrees.devices_per_rank % spanned,
            degrees.adjacent_devices % spanned,
            degrees.num_devices <= self._num_devices,
            copies == 1
            or (
                degrees.zero_stage,
                degrees.data % copies,
                degrees.data == copies,
                degrees.expert_data % copies,
            ),
        )
        broken: tuple[Fault, ...] = self._kept(
            ("legal", layers, *pipeline, *stages, *fits, is_whole),
            lambda: broken_rules(run, self.model, pool),
        )
        schedule: tuple[Fault, ...] = self._kept(
            ("schedule", run.schedule, *pipeline, microbatches),
            lambda: tuple(schedule_faults(run)),
        )
        if broken or schedule:
            raise InvalidInput((*broken_rules(run, self.model, pool), *schedule))

    def _boundaries(self, run: Configuration, spacing: RankSpacing) -> tuple[Boundaries, int]:
        """What ranks that lie so cross, and a number for it: many cross the same."""
        made = boundaries_of(shape_of(run), spacing, self.cluster.levels)
        return made, self._number("crossed", made)

    def _cut(self, run: Configuration, boundaries: Boundaries, layers: int) -> int:
        sums: BlockSums = self._kept(("sums", layers), lambda: self._sums(run))
        self._cuts.append(cut_of(run, boundaries, sums))
        return len(self._cuts) - 1

    def _sums(self, run: Configuration) -> BlockSums:
        point = replace(point_of(run), recompute=tuple(map(str, Recompute)))
        return BlockSums(
            profile=estimator_of(self.model, self.cluster, run).profile(point),
            tensor=run.parallelism.tensor,
            hops=group_axis_hops(self.cluster.pool_of(), run.parallelism),
            rows=self._rows,
        )

    def _replicated(self, run: Configuration) -> int:
        self._replicas.append(group_replicas(self.cluster.pool_of(), run.parallelism))
        return len(self._replicas) - 1

    def _ideal_s(self, run: Configuration) -> float:
        """Of a sequence on one device at its peak."""
        device = self.cluster.accelerator
        numbers = precision_named(run.recipe.precision or device.default_precision)
        flops = model_flops_per_sequence(self.model, run.sequence_length)
        return flops / device.peak(numbers.matmul_dtype)

    def _shapes(self) -> list[PipelineShape]:
        return [
            PipelineShape(family=family, num_ranks=p, virtual_stages=v, num_microbatches=m)
            for family, p, v, m in self._numbers["shape"]
        ]

    def _same(self, value: Hashable) -> int:
        """A number for equal values; a value is hashed only when it is first seen."""
        known = self._made.get(id(value))
        if known is None:
            known = self._made[id(value)] = (value, self._number("value", value))
        number: int = known[1]
        return number

    def _number(self, kind: str, key: Any) -> int:
        """A small number for a key, which is quicker to look up than the key."""
        numbers = self._numbers.setdefault(kind, {})
        return numbers.setdefault(key, len(numbers))

    def _kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
        return found
