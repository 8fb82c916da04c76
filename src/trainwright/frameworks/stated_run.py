"""A run as the configuration of a framework states it: what is not stated is absent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trainwright.model import TransformerConfig

_ABOUT_THE_FILE = frozenset(
    {"model", "model_name", "model_changes", "num_devices", "devices_per_node"}
    | {"batch_per_replica", "offload", "unknown", "notes"}
)


# What holds several values, by the option that takes them one by one.
_REPEATED: Final = {"recompute_modules": "recompute_module", "moment_dtypes": "moment_dtype"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRun:
    """Options of a run by their names in the table of options.

    `recomputed_blocks` are indices in the model where the file lists them one by one. `model` is
    there where the file describes one in full, else perhaps its name, with `model_changes` of keys
    of its `config.json`; `num_devices` are all that the file starts, `devices_per_node` those of a
    node; `batch_per_replica` are the sequences of each replica, where they and not the global batch
    are stated. `offload` says what lies in the host's memory, `weight_bits` how many bits a weight
    beside adapters has. `unknown` are settings that this reader does not know, `notes` what it left
    out knowingly.
    """

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    zero: int | None = None
    mapping: str | None = None
    state_copies: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    sequence: int | None = None
    recompute: str | None = None
    recompute_modules: tuple[str, ...] | None = None
    recomputed_blocks: tuple[int, ...] | None = None
    schedule: str | None = None
    virtual_stages: int | None = None
    blocks: tuple[int, ...] | None = None
    sequence_parallel: bool | None = None
    flash_attention: bool | None = None
    fused_cross_entropy: bool | None = None
    vocabulary_multiple: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    gradient_dtype: str | None = None
    reduce_dtype: str | None = None
    main_weight_dtype: str | None = None
    moment_dtypes: tuple[str, ...] | None = None
    dropout: float | None = None
    capacity_factor: float | None = None
    token_dispatcher: str | None = None
    context_exchange: str | None = None
    ulysses: int | None = None
    overlap: Mapping[str, float] | None = None
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] | None = None
    lora_dropout: float | None = None
    activation_input_dtype: str | None = None
    loss_chunk: int | None = None
    cuda_graph: str | None = None
    cuda_graph_modules: tuple[str, ...] | None = None
    offload: tuple[str, ...] = ()
    weight_bits: int | None = None
    model: TransformerConfig | None = None
    model_name: str | None = None
    model_changes: Mapping[str, Any] | None = None
    num_devices: int | None = None
    devices_per_node: int | None = None
    batch_per_replica: int | None = None
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """What is stated of the run itself, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.lora_rank is None:
            found["weight_bits"] = None
        stated = {
            name: value
            for name, value in found.items()
            if value is not None and name not in _ABOUT_THE_FILE
        }
        if shares := self.on_host:
            stated["offload"] = shares
        for several, option in _REPEATED.items():
            if several in stated:
                stated[option] = stated.pop(several)
        return stated

    @property
    def on_host(self) -> dict[str, float]:
        """Shares of what lies in the host's memory, as the option `offload` takes them.

        Whoever moves weights there moves gradients, too.
        """
        said = " ".join(self.offload)
        found = dict.fromkeys((kind for kind in ("activations", "optimizer") if kind in said), 1.0)
        if part := re.search(r"([0-9.e-]+) of optimizer", said):
            found["optimizer"] = float(part[1])
        if "param" in said or "gradients" in said:
            found["gradients"] = 1.0
        return found
