"""What a plan demands of the framework that runs it, without the plan itself.

A search fills this in from degrees alone, before any stage is cut; an exporter from a whole plan.
`plan.capability` compares it with what a framework can express.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from trainwright.plan.parallelism import Parallelism


class Placing(StrEnum):
    """How virtual stages lie on the ranks: one each, in a loop, in a V, or in any other way."""

    ONE = "one stage per rank"
    LOOP = "loop"
    V = "V"
    ANY = "wave"


class RecomputeForm(StrEnum):
    """Which blocks run their forward pass again, from the easiest pattern to the hardest.

    `FIRST` is the first k blocks of every stage, `MODULES` parts of every block ("selective"),
    `ANY` any set of whole blocks, `MIXED` parts of some blocks.
    """

    NONE = "none"
    ALL = "all blocks"
    FIRST = "first k blocks of every stage"
    MODULES = "parts of every block"
    ANY = "any set of blocks"
    MIXED = "parts of some blocks"


class FamilyShape(NamedTuple):
    """Where a named schedule places its stages, and whether its backward is split in two."""

    placing: Placing
    split_backward: bool = False


_ONE_SPLIT = FamilyShape(Placing.ONE, True)
_V_SPLIT = FamilyShape(Placing.V, True)
FAMILY_SHAPES: Final[Mapping[str, FamilyShape]] = MappingProxyType(
    {
        **dict.fromkeys(("gpipe", "1f1b", "eager-1f1b"), FamilyShape(Placing.ONE)),
        **dict.fromkeys(("interleaved", "breadth-first", "depth-first"), FamilyShape(Placing.LOOP)),
        **dict.fromkeys(("zb-h1", "zb-h2", "zb-1p", "zb-2p"), _ONE_SPLIT),
        **dict.fromkeys(
            ("zb-v", "v-zb", "zb-v-handmade", "v-half", "v-min", "adaptive-v", "dualpipe-v"),
            _V_SPLIT,
        ),
        "1f1b-v": FamilyShape(Placing.V),
        **dict.fromkeys(("gis", "gis-h"), FamilyShape(Placing.LOOP, True)),
        "wave": FamilyShape(Placing.ANY, True),
    }
)
_UNKNOWN: Final = FamilyShape(Placing.ANY, True)  # a searched schedule may do anything
_ONE_DEVICE: Final = Parallelism()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """Degrees, schedule and pattern of a plan; what is left out is not demanded.

    `shape` says how a schedule without a name is placed. `recompute_modules` are what `MODULES`
    repeats, "mlp_activation" where it is that of a dense block and "expert_activation" else.
    `ends_apart`: embedding or head make a stage without blocks. `has_experts` and `num_mtp_layers`
    are the model's, as are the `groups_per_token` of its experts, 0 without a limit; tokens that
    cross the network once for each node have `dispatches_once`, those in a format of their own
    `narrow_dispatch`. `axis_order` lists the axes "tensor", "context", "data", "pipeline" from the
    innermost out, where the plan depends on it.
    """

    parallelism: Parallelism = _ONE_DEVICE
    schedule: str = "1f1b"
    shape: FamilyShape | None = None
    unequal_chunks: bool = False
    uneven_stages: bool = False
    ends_apart: bool = False
    degrees_per_stage: bool = False
    recompute: RecomputeForm = RecomputeForm.NONE
    recompute_modules: frozenset[str] = frozenset()
    has_experts: bool = False
    num_mtp_layers: int = 0
    groups_per_token: int = 0
    dispatches_once: bool = False
    narrow_dispatch: bool = False
    axis_order: tuple[str, ...] | None = None
    optimizer: str = "adam"
    offload: bool = False

    @property
    def schedule_shape(self) -> FamilyShape:
        """That of the schedule; V for two chunks of a wave, one stage each for a single chunk."""
        found = self.shape or FAMILY_SHAPES.get(self.schedule, _UNKNOWN)
        chunks = self.parallelism.virtual_stages
        if found.placing is Placing.LOOP and chunks == 1:
            return found._replace(placing=Placing.ONE)
        if self.schedule == "wave" and chunks == 2:
            return found._replace(placing=Placing.V)
        return found

    @property
    def has_pipeline(self) -> bool:
        """Whether there is more than one rank to order."""
        return self.parallelism.pipeline > 1

    @property
    def zero_stage(self) -> int:
        """That of the plan, or 0 where there is nothing to shard over."""
        degrees = self.parallelism
        return degrees.zero_stage if degrees.data * degrees.context > 1 else 0
