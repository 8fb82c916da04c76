"""Placing a chain of layers at one tensor width, for one speed of the layers or for thousands.

The dynamic program of PHAZE (Wang et al., ICML 2024, section 4) with an exact, much smaller state;
see `native/placement.hpp` for the recurrence. Co-design asks the same question for every chip, so
what does not depend on the chip (sizes, edges, what fits) is laid out once and only the times are
handed over per design. A design of 98 layers on 1,024 devices takes 1 to 2 ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright._native import _core
from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from trainwright.partitioning.placement_rules import PlacementRules
    from trainwright.profile.placement_case import Optimizer, WidthTable
    from trainwright.profile.setting import Setting

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedChains:
    """The best placement of each of A designs; `time_s` is of a batch, infinite where none fits.

    Design a has stages `stage_offset[a]` to `stage_offset[a + 1]`; stage k ends before layer
    `stage_end[k]`. `data_parallel` is 0 where nothing fits. `stopped` says that some designs were
    not looked at in full.
    """

    time_s: Floats
    data_parallel: Ints
    stage_offset: Ints
    stage_end: NDArray[np.int32]
    stopped: bool = False

    @property
    def num_stages(self) -> Ints:
        """Stages of each design, shape [A]; 0 where nothing fits."""
        return np.diff(self.stage_offset)

    def stages_of(self, design: int) -> tuple[range, ...]:
        """Layer indices of each stage of a design, in pipeline order."""
        ends = self.stage_end[self.stage_offset[design] : self.stage_offset[design + 1]].tolist()
        return tuple(range(a, b) for a, b in zip([0, *ends], ends, strict=False))


def place_many(
    forward_s: Floats,
    backward_s: Floats,
    table: WidthTable,
    setting: Setting,
    *,
    rules: PlacementRules,
    optimizer: Optimizer,
    recompute: bool,
    cutoff_s: Floats | None = None,
    max_data_parallel: int | None = None,
    poll: Callable[[], bool] | None = None,
) -> PlacedChains:
    """Place the layers of `table` with other times: `forward_s` and `backward_s`, shape [A, L].

    The times in the table itself are not read. A placement that takes longer than `cutoff_s`
    (seconds, shape [A]) is not looked for, and its design comes back infinite. `recompute` says
    whether activations may be computed again. Exact for chains; layers of a graph that branches
    are taken in the table's order. `poll` is asked a few times a second whether to stop; designs
    not reached then are infinite. The interpreter lock is released meanwhile.
    Raises `InvalidInput` for times of another shape.
    """
    shape = (forward_s.shape[0], table.num_layers)
    if forward_s.shape != shape or backward_s.shape != shape:
        wanted = f"must be of shape [designs, {table.num_layers}]"
        raise InvalidInput.of("times", f"{wanted}, got {forward_s.shape} and {backward_s.shape}")
    if cutoff_s is None:
        cutoff_s = np.full(shape[0], np.inf)
    found = _core.place_chain(
        forward_s=np.ascontiguousarray(forward_s, np.float64),
        backward_s=np.ascontiguousarray(backward_s, np.float64),
        cutoff_s=np.ascontiguousarray(cutoff_s, np.float64),
        layers=native_layers(table, rules.copies[optimizer]),
        memory_bytes=setting.memory_bytes,
        recompute=recompute_mode(rules, recompute=recompute),
        rules=native_rules(table, setting, rules, max_data_parallel),
        poll=poll,
    )
    return PlacedChains(**found)


def native_layers(table: WidthTable, copies: float) -> _core.PlacementLayers:
    """Sizes and edges for the core, with `copies` of the parameters in memory."""
    return _core.PlacementLayers(
        parameter_bytes=table.parameter_bytes,
        static_bytes=table.parameter_bytes * copies,
        activation_bytes=table.activation_bytes,
        is_split=table.is_split.astype(np.uint8),
        edge_source=np.array([edge.source for edge in table.edges], dtype=np.int32),
        edge_target=np.array([edge.target for edge in table.edges], dtype=np.int32),
        edge_bytes=np.array([edge.bytes for edge in table.edges], dtype=np.float64),
    )


def native_rules(
    table: WidthTable, setting: Setting, rules: PlacementRules, max_data_parallel: int | None
) -> _core.PlacementRules:
    """The machine and the rules for the core."""
    return _core.PlacementRules(
        tensor_parallel=table.tensor_parallel,
        num_devices=setting.num_devices,
        num_microbatches=setting.num_microbatches,
        max_data_parallel=max_data_parallel or setting.num_devices,
        bandwidth_bytes_per_s=setting.bandwidth_bytes_per_s,
        sync_factor=rules.sync_factor,
        sync_first_stage=rules.sync_first_stage,
        cap_in_flight=rules.caps_in_flight,
    )


def recompute_mode(rules: PlacementRules, *, recompute: bool) -> str:
    """When stages recompute, in the core's words."""
    if not recompute:
        return "never"
    return "per_stage" if rules.recompute_by_stage else "always"
