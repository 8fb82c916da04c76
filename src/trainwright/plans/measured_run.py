"""One training run that somebody measured: what was trained, how it was laid out, what came out.

The columns every published table shares are fields; those of one table alone stay text in
`settings`, by column name; `options` are those of its JSON column. What a table does not state is
`None`, never a default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from trainwright.errors import InvalidInput

_PUBLISHED: Final = re.compile(r"arXiv:\d+\.\d+|github\.com/[\w.-]+/[\w.-]+")
# Arguments of megatron-core that its tests always state, and no other table has as columns.
_ARGUMENTS: Final = ("transformer_impl", "max_position_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One row of a table of measured runs. `table` names the table, and decides nothing.

    Degrees count devices; `num_devices` is tensor × pipeline × data × context. Times are seconds of
    one step, memory bytes of one device (`settings["memory_rank"]` says which).
    """

    row_id: str
    table: str
    model: str
    accelerator: str
    num_devices: int
    devices_per_node: int
    tensor: int
    pipeline: int
    data: int
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    virtual_stages: int | None = None
    sequence_length: int = 1
    global_batch: int | None = None
    microbatch_size: int | None = None
    precision: str = "bf16"
    recompute: str | None = None
    schedule: str | None = None
    zero_stage: int | None = None
    sequence_parallel: bool | None = None
    num_layers: int | None = None
    hidden_size: int | None = None
    ffn_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    vocabulary_size: int | None = None
    step_time_s: float | None = None
    peak_memory_bytes: float | None = None
    static_memory_bytes: float | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def setting(self, name: str) -> str | None:
        """A column of this table alone; `None` where it is empty or absent."""
        return self.settings.get(name) or None

    def flag(self, name: str) -> bool:
        """Whether a 0/1 column says 1; an empty one says no."""
        return self.settings.get(name, "").strip().lower() in ("1", "1.0", "true")

    def number(self, name: str) -> float | None:
        """A numeric column of this table alone; `None` where it is empty or not a number."""
        try:
            return float(self.settings.get(name, ""))
        except ValueError:
            return None

    @property
    def states_arguments(self) -> bool:
        """Whether the row states the command line of a megatron-core run."""
        return any(self.setting(name) for name in _ARGUMENTS)

    @property
    def publication(self) -> str | None:
        """Where the row was published: the first paper or repository that `source` names."""
        found = _PUBLISHED.search(self.setting("source") or "")
        return found.group() if found else None

    @property
    def recompute_mode(self) -> tuple[str | None, int | None]:
        """Recomputation, and of how many blocks of a stage where it stops: `full:21`."""
        mode, _, blocks = (self.recompute or "").partition(":")
        return mode or None, int(blocks) if blocks.isdecimal() else None

    @property
    def layout(self) -> tuple[object, ...]:
        """What tells two plans of one job apart."""
        return (
            self.tensor,
            self.pipeline,
            self.data,
            self.context,
            self.expert,
            self.expert_tensor,
            self.virtual_stages,
            self.microbatch_size,
            self.recompute,
            self.zero_stage,
            self.sequence_parallel,
            self.settings.get("stage_replicas", ""),
            self.settings.get("layers_per_stage", ""),
            self.settings.get("state_copies", ""),
            str(self.options.get("blocks", "")),
        )


# What a training log says about one run: how fast, and how full
# --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """The figures of a log, line by line, in whichever of three forms its framework prints.

    `step_times_s` are seconds per step (Megatron-LM), `tokens_per_s` per device (torchtitan),
    `sequences_per_s` of the whole run (DeepSpeed).
    """

    framework: str
    step_times_s: tuple[float, ...] = ()
    tokens_per_s: tuple[float, ...] = ()
    sequences_per_s: tuple[float, ...] = ()
    peak_memory_bytes: float | None = None

    @property
    def num_steps(self) -> int:
        """Lines that time a step."""
        return len(self.step_times_s or self.tokens_per_s or self.sequences_per_s)

    def step_time_s(self, *, global_batch: int, sequence_length: int, num_devices: int) -> float:
        """The median step; the first fifth of the lines is left out as warm-up."""
        if not self.num_steps:
            raise InvalidInput.of("log", "must hold at least 1 line that times a step")
        if self.step_times_s:
            return median(_settled(self.step_times_s))
        if self.tokens_per_s:
            tokens = global_batch * sequence_length / num_devices
            return tokens / median(_settled(self.tokens_per_s))
        return global_batch / median(_settled(self.sequences_per_s))


def _settled(values: tuple[float, ...]) -> tuple[float, ...]:
    return values[len(values) // 5 :]
