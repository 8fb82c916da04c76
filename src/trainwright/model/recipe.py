"""How a model is trained, beside the degrees: number formats, optimizer, dropout, expert load.

Everything here changes memory or time, and everything has a default that documents can repeat.
Mixed 16-bit training keeps 2 bytes of weight, 4 of gradient and, in Adam, a float32 main weight
and two float32 moments; each of these sizes is an option of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import Fault, InvalidInput, refuse
from trainwright.model.run_shape import ContextExchange, Precision, TokenDispatcher, precision_named

if TYPE_CHECKING:
    from trainwright.model.config import TransformerConfig

# Bytes per number of the formats in which states can be kept.
STATE_BYTES: Final = MappingProxyType({"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1})
# Of those in which tokens can travel to experts; in 8 bit with a float32 scale per 128 numbers, as
# DeepSeek-V3 (2024, section 3.3) and its communication library have it.
DISPATCH_BYTES: Final = MappingProxyType(
    {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1 + 4 / 128}
)
_LARGEST_LOAD: Final = 10**6  # of an expert over the mean: more experts than any model has


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Shares, from 0 to 1, of what lies in the memory of the host between its uses.

    `activations` of what blocks keep for their backward pass; `optimizer` of the optimizer's
    states, which the host then updates; `gradients` of those that a device would hold for the
    update.
    """

    activations: float = 0.0
    optimizer: float = 0.0
    gradients: float = 0.0

    def __post_init__(self) -> None:
        refuse(tuple(self._faults()))

    def _faults(self) -> Iterator[Fault]:
        for each in fields(self):
            if not 0 <= (share := getattr(self, each.name)) <= 1:
                yield Fault(f"offload.{each.name}", f"must be from 0 to 1, got {share!r}")

    @property
    def in_words(self) -> str:
        """What lies there, as a list."""
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        return ", ".join(
            name if share == 1 else f"{share:.0%} of {name}"
            for name, share in held.items()
            if share
        )


NO_OFFLOAD: Final = Offload()


class Optimizer(StrEnum):
    """An optimizer, for the moments it keeps per parameter.

    ADAFACTOR keeps sums over rows and columns of the second moment alone, some thousandth of a
    number per parameter (Shazeer and Stern, 2018, without momentum, as transformers has it); LION
    one moment (Chen et al., 2023). MUON keeps one of matrices inside the blocks and leaves
    embedding and head to Adam (Jordan et al., 2024).
    """

    ADAM = "adam"
    SGD = "sgd"
    MOMENTUM = "momentum"
    MUON = "muon"
    LION = "lion"
    ADAFACTOR = "adafactor"

    @property
    def num_moments(self) -> int:
        """Running averages per parameter of a block."""
        none = (Optimizer.SGD, Optimizer.ADAFACTOR)
        return 2 if self is Optimizer.ADAM else int(self not in none)


# Parts of the names that PyTorch, transformers, bitsandbytes, DeepSpeed and Composer give to
# optimizers; the first that is found decides. AdamW decays weights, and keeps what Adam does.
_OPTIMIZERS: Final = (
    ("muon", Optimizer.MUON),
    ("adafactor", Optimizer.ADAFACTOR),
    ("lion", Optimizer.LION),
    ("adagrad", Optimizer.MOMENTUM),
    ("momentum", Optimizer.MOMENTUM),
    ("sgd", Optimizer.SGD),
    ("adam", Optimizer.ADAM),
)


def optimizer_named(name: str) -> tuple[Optimizer, str | None] | None:
    """What a name as `paged_adamw_8bit` keeps, and in which format; None where nobody knows it.

    States of 8 bit are numbers with a float32 for each 256 of them (Dettmers et al., 2022), which
    is left out. Paged states lie on the device while there is room.
    """
    word = name.lower().rpartition(".")[2]
    kind = next((known for part, known in _OPTIMIZERS if part in word), None)
    if kind is None:
        return None
    return kind, "int8" if "8bit" in word or "8_bit" in word else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One way to train. Absent fields take the default of what they qualify.

    `precision` is the 16-bit format of the device where absent. `gradient_dtype` is that of the
    gradient accumulator, float32 where absent; `main_weight_dtype` of the copy the optimizer
    updates ("none" without one; float32 where absent, none where weights are float32 themselves);
    `moment_dtypes` of the optimizer's moments, one for all or one each. `dispatch_dtype` is that in
    which tokens travel to their experts, and gradients to them in the backward pass; that of
    activations where absent, as is what comes back from experts in both passes. `dropout` replaces
    the model's rates; `offload` lies on the host, nothing where absent. The rest is described at
    `RunShape`.
    """

    precision: str | None = None
    optimizer: Optimizer = Optimizer.ADAM
    gradient_dtype: str | None = None
    main_weight_dtype: str | None = None
    moment_dtypes: tuple[str, ...] = ("fp32",)
    dropout: float | None = None
    context_exchange: ContextExchange = ContextExchange.RING
    context_balanced: bool = True
    expert_imbalance: float = 1.0
    capacity_factor: float | None = None
    dispatch_dtype: str | None = None
    token_dispatcher: TokenDispatcher = TokenDispatcher.ALL_TO_ALL
    loss_chunk: int | None = None
    mlp_tile: int | None = None
    offload: Offload | None = None

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        names = ", ".join(STATE_BYTES)
        given = [("gradient_dtype", self.gradient_dtype), ("main_weight_dtype", self._main_copy)]
        given += [("moment_dtypes", dtype) for dtype in self.moment_dtypes]
        for field, dtype in given:
            if dtype is not None and dtype not in STATE_BYTES:
                yield Fault(field, f'must be one of {names}, got "{dtype}"')
        if self.dispatch_dtype is not None and self.dispatch_dtype not in DISPATCH_BYTES:
            offered = ", ".join(DISPATCH_BYTES)
            yield Fault("dispatch_dtype", f'must be one of {offered}, got "{self.dispatch_dtype}"')
        if len(self.moment_dtypes) not in (1, max(1, self.optimizer.num_moments)):
            wanted = f"must be 1 format or one for each of {self.optimizer.num_moments} moments"
            yield Fault("moment_dtypes", f"{wanted}, got {len(self.moment_dtypes)}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            yield Fault("dropout", f"must be in [0, 1), got {self.dropout!r}")
        if not 1 <= self.expert_imbalance <= _LARGEST_LOAD:
            wanted = f"must be from 1 to {_LARGEST_LOAD}"
            yield Fault("expert_imbalance", f"{wanted}, got {self.expert_imbalance!r}")
        if self.capacity_factor is not None and not 0 < self.capacity_factor <= _LARGEST_LOAD:
            wanted = f"must be > 0 and at most {_LARGEST_LOAD}"
            yield Fault("capacity_factor", f"{wanted}, got {self.capacity_factor!r}")
        for name in ("loss_chunk", "mlp_tile"):
            if (tokens := getattr(self, name)) is not None and tokens < 1:
                yield Fault(name, f"must be >= 1 token, got {tokens}")

    @property
    def run_fields(self) -> dict[str, Any]:
        """The fields of a `RunShape` that are decided here, beside its precision."""
        held = self.offload or NO_OFFLOAD
        return {
            "context_exchange": self.context_exchange,
            "context_balanced": self.context_balanced,
            "expert_imbalance": self.expert_imbalance,
            "capacity_factor": self.capacity_factor,
            "token_dispatcher": self.token_dispatcher,
            "loss_chunk": self.loss_chunk,
            "mlp_tile": self.mlp_tile,
            "offloaded_activations": held.activations,
        }

    @property
    def dispatches_once(self) -> bool:
        """Whether one copy of a token serves all experts of a unit of devices."""
        return self.token_dispatcher is TokenDispatcher.HIERARCHICAL

    @property
    def dispatch_in_words(self) -> str:
        """How tokens travel to their experts."""
        copies = (
            "a copy per node, passed on inside" if self.dispatches_once else "a copy per expert"
        )
        return f"{copies}, in {self.dispatch_dtype or 'the format of activations'}"

    @property
    def _main_copy(self) -> str | None:
        return None if self.main_weight_dtype == "none" else self.main_weight_dtype

    def numbers(self, precision: str) -> Precision:
        """Bytes per element under this recipe, for the precision of the run.

        Raises `UnsupportedFeature` where the precision is not modelled.
        """
        base = precision_named(precision)
        main = self.main_weight_dtype or ("fp32" if base.weight_bytes < 4 else "none")
        states = 0 if main == "none" else STATE_BYTES[main]
        moments = self.moment_dtypes
        if len(moments) == 1:
            moments *= self.optimizer.num_moments
        states += sum(STATE_BYTES[dtype] for dtype in moments[: self.optimizer.num_moments])
        ends = STATE_BYTES[moments[0]] if self.optimizer is Optimizer.MUON else 0
        gradient, dispatch = self.gradient_dtype, self.dispatch_dtype
        offload = self.offload or NO_OFFLOAD
        return replace(
            base,
            dispatch_bytes=base.dispatch_bytes if dispatch is None else DISPATCH_BYTES[dispatch],
            gradient_bytes=base.gradient_bytes if gradient is None else STATE_BYTES[gradient],
            optimizer_bytes=states,
            end_state_bytes=ends,
            held_gradients=1 - offload.gradients,
            held_states=1 - offload.optimizer,
        )

    def applied(self, model: TransformerConfig) -> TransformerConfig:
        """The model with the dropout of this recipe."""
        if self.dropout is None:
            return model
        return replace(model, hidden_dropout=self.dropout, attention_dropout=self.dropout)


DEFAULT_RECIPE: Final = Recipe()
