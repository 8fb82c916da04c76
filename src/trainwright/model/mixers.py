"""Layers that mix tokens without attention: state space, delta rule, linear attention, convolution.

All have one form, token by token, with a state S of fixed size in place of a cache that grows:

    u = x W_in            one or several products, of the normed hidden state
    u = conv(u)           a causal convolution over the last few tokens, channel by channel
    S = a S + v kᵀ        the recurrence; a delta rule first takes out what S holds under k
    y = norm(S q) gate    read, normed, gated
    x = x + y W_out

A kind says its widths, its own parameters and what the recurrence costs; `recurrence` makes
operators of them. The recurrence is run in chunks (Dao and Gu, 2024, section 6; Yang et al., 2024),
so that all its work is products of matrices: within a chunk of Q tokens as attention is, between
chunks through the state. Model FLOPs count the recurrence itself, which no choice of Q changes.

Heads can be cut by tensor parallelism, for every head has a state of its own. The sequence cannot,
for each token needs the state of the one before; context parallelism must trade it for heads
(all-to-all), and recomputation of a part would have to run the whole recurrence again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from trainwright.errors import Fault
from trainwright.model.run_shape import ContextExchange, RunShape
from trainwright.provenance import RARE

CHUNK: Final = 256  # tokens of a chunk in the public kernels of Mamba-2; others take 64 to 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product [tokens, inputs] x [inputs, outputs]; whole on every device unless `is_cut`."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    is_cut: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """Mamba-2: heads of one decay each, B and C shared by groups of heads (Dao and Gu, 2024).

    With a `time_rank` it is Mamba-1 (Gu and Dao, 2023): every channel decays by itself, B, C and
    the step come of the convolved input, the step through a narrow product; `inner_norms` are
    Jamba's.
    """

    inner_size: int
    state_size: int
    num_heads: int = 1
    num_groups: int = 1
    kernel: int = 4
    convolution_bias: bool = True
    bias: bool = False
    gated_norm: bool = True
    time_rank: int | None = None
    inner_norms: bool = False

    @property
    def name(self) -> str:
        """What tables call it."""
        return "state space (Mamba-2)" if self.time_rank is None else "state space (Mamba-1)"

    @property
    def heads(self) -> int:
        """Parts that can be computed apart."""
        return self.num_heads if self.time_rank is None else self.inner_size

    @property
    def output_size(self) -> int:
        """Width of what the recurrence gives."""
        return self.inner_size

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        if self.time_rank is not None:
            return self.inner_size
        return self.inner_size + 2 * self.num_groups * self.state_size

    def products(self, hidden_size: int) -> tuple[Product, ...]:
        """Before the recurrence: input and gate, with Mamba-2 also B, C and the step."""
        d, n = self.inner_size, self.state_size
        if self.time_rank is None:
            outputs = d + self.channels + self.num_heads
            return (Product(name="in", inputs=hidden_size, outputs=outputs, bias=self.bias),)
        rank = self.time_rank
        return (
            Product(name="in", inputs=hidden_size, outputs=2 * d, bias=self.bias),
            Product(name="step_b_c", inputs=d, outputs=rank + 2 * n),
            Product(name="step", inputs=rank, outputs=d, bias=True),
        )

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        """Decay, skip and, with Mamba-2, the step's bias; norms of Jamba's step, B and C."""
        if self.time_rank is None:
            yield from (("decay", self.heads), ("skip", self.heads), ("step_bias", self.heads))
            return
        yield from (("decay", self.inner_size * self.state_size), ("skip", self.inner_size))
        if self.inner_norms:
            yield "step_b_c_norms", self.time_rank + 2 * self.state_size

    @property
    def norm_size(self) -> int:
        """Weights of the gated norm, 0 without it."""
        return self.inner_size if self.gated_norm and self.time_rank is None else 0

    @property
    def flops_per_token(self) -> float:
        """Two FLOPs each for writing B x into the state and reading it with C."""
        return 4.0 * self.inner_size * self.state_size

    @property
    def chunk_flops_per_token(self) -> float:
        """Beyond the recurrence: scores of a chunk and their product, half masked."""
        if self.time_rank is not None:
            return 0.0  # scanned step by step, without products of matrices
        return float(CHUNK * (self.num_groups * self.state_size + self.inner_size))

    @property
    def chunk(self) -> int:
        """Tokens between states that are written out; 0 where none are."""
        return CHUNK if self.time_rank is None else 0

    @property
    def state_elements(self) -> float:
        """Of one sequence: the state, and the last inputs of the convolution."""
        return float(self.inner_size * self.state_size + self.channels * self.kernel)

    def faults_at(self, run: RunShape) -> Iterator[Fault]:
        """Degrees that cut neither heads nor groups."""
        yield from _head_faults("state-space heads", self.heads, run)
        t = run.tensor_parallel
        if self.time_rank is None and self.num_groups % t and t % self.num_groups:
            problem = f"must divide the {self.num_groups} state-space groups or be a multiple"
            yield Fault("tensor_parallel", f"{problem}, got {t}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRule:
    """Gated delta rule: a write first takes out what the state holds under its key.

    One decay per head (gated delta net, Yang et al., 2024), or one per feature of the key through a
    narrow product, with the gate through another (`narrow_size`; Kimi Linear, 2025) or, as a
    `whole_gate`, through a product of the hidden state (Kimi K3, 2026).
    """

    num_key_heads: int
    num_value_heads: int
    key_size: int
    value_size: int
    kernel: int = 4
    narrow_size: int | None = None
    gate_bias: bool = False
    whole_gate: bool = field(default=False, metadata={RARE: True})

    @property
    def name(self) -> str:
        """What tables call it."""
        return "gated delta rule" if self.narrow_size is None else "Kimi delta attention"

    @property
    def heads(self) -> int:
        """Parts that can be computed apart."""
        return self.num_value_heads

    @property
    def _keys(self) -> int:
        return self.num_key_heads * self.key_size

    @property
    def output_size(self) -> int:
        """Width of all value heads."""
        return self.num_value_heads * self.value_size

    @property
    def channels(self) -> int:
        """Query, key and value pass the convolution."""
        return 2 * self._keys + self.output_size

    def products(self, hidden_size: int) -> tuple[Product, ...]:
        """Query, key and value, the gate, the decay and the strength of a write."""
        h, keys, values = hidden_size, self._keys, self.output_size
        if self.narrow_size is None:
            wide, narrow = 2 * keys + 2 * values, 2 * self.num_value_heads
            return (
                Product(name="query_key_value_gate", inputs=h, outputs=wide),
                Product(name="strength_decay", inputs=h, outputs=narrow),
            )
        n = self.narrow_size
        made = (
            Product(name="query_key_value", inputs=h, outputs=self.channels),
            Product(name="decay_down", inputs=h, outputs=n, is_cut=False),
            Product(name="decay_up", inputs=n, outputs=keys),
            Product(name="strength", inputs=h, outputs=self.num_value_heads),
        )
        if self.whole_gate:
            return (*made, Product(name="gate", inputs=h, outputs=values, bias=self.gate_bias))
        return (
            *made,
            Product(name="gate_down", inputs=h, outputs=n, is_cut=False),
            Product(name="gate_up", inputs=n, outputs=values, bias=self.gate_bias),
        )

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        """The decay of each head and its bias, which Kimi's has per feature."""
        yield "decay", self.num_value_heads
        yield "decay_bias", self.num_value_heads if self.narrow_size is None else self._keys

    @property
    def norm_size(self) -> int:
        """One norm for all heads."""
        return self.value_size

    @property
    def convolution_bias(self) -> bool:
        """Whether channels have a bias."""
        return False

    @property
    def bias(self) -> bool:
        """Whether the last product has a bias."""
        return False

    @property
    def flops_per_token(self) -> float:
        """Read under the key, write, read under the query: two FLOPs each per state element."""
        return 6.0 * self.output_size * self.key_size

    @property
    def chunk_flops_per_token(self) -> float:
        """Beyond the recurrence: scores among keys and with queries, the inverse of a chunk."""
        width = self.num_value_heads * (3 * self.key_size + 2 * self.value_size)
        return float(self.chunk * width)

    chunk: int = CHUNK // 4  # 64, that of the public kernels

    @property
    def state_elements(self) -> float:
        """Of one sequence: the state, and the last inputs of the convolution."""
        return float(self.output_size * self.key_size + self.channels * self.kernel)

    def faults_at(self, run: RunShape) -> Iterator[Fault]:
        """Degrees that do not cut the heads."""
        yield from _head_faults("linear-attention value heads", self.num_value_heads, run)
        yield from _head_faults("linear-attention key heads", self.num_key_heads, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """Attention without softmax, a fixed decay per head (lightning attention, Qin et al., 2024)."""

    num_heads: int
    head_size: int

    @property
    def name(self) -> str:
        """What tables call it."""
        return "lightning attention"

    @property
    def heads(self) -> int:
        """Parts that can be computed apart."""
        return self.num_heads

    @property
    def output_size(self) -> int:
        """Width of all heads."""
        return self.num_heads * self.head_size

    def products(self, hidden_size: int) -> tuple[Product, ...]:
        """Query, key and value, and the gate."""
        width = self.output_size
        return (
            Product(name="query_key_value", inputs=hidden_size, outputs=3 * width),
            Product(name="gate", inputs=hidden_size, outputs=width),
        )

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        """None: decays are fixed."""
        yield from ()

    @property
    def norm_size(self) -> int:
        """One norm over all heads."""
        return self.output_size

    channels: int = 0
    kernel: int = 0
    convolution_bias: bool = False
    bias: bool = False

    @property
    def flops_per_token(self) -> float:
        """Write into the state and read it."""
        return 4.0 * self.output_size * self.head_size

    @property
    def chunk_flops_per_token(self) -> float:
        """Beyond the recurrence: scores of a chunk and their product, half masked."""
        return float(self.chunk * 2 * self.output_size)

    chunk: int = CHUNK

    @property
    def state_elements(self) -> float:
        """Of one sequence."""
        return float(self.output_size * self.head_size)

    def faults_at(self, run: RunShape) -> Iterator[Fault]:
        """Degrees that do not cut the heads."""
        yield from _head_faults("linear-attention heads", self.num_heads, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfChannels:
    """What works on each channel by itself."""

    width: int

    @property
    def heads(self) -> int:
        """Parts that can be computed apart: channels."""
        return self.width

    @property
    def output_size(self) -> int:
        """Channels."""
        return self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution(_OfChannels):
    """A gated convolution over a few tokens and no state beyond them (LFM2, 2025)."""

    kernel: int
    bias: bool = False

    @property
    def name(self) -> str:
        """What tables call it."""
        return "short convolution"

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        return self.width

    @property
    def convolution_bias(self) -> bool:
        """Whether channels have a bias."""
        return self.bias

    def products(self, hidden_size: int) -> tuple[Product, ...]:
        """Two gates and the input."""
        outputs = 3 * self.width
        return (Product(name="in", inputs=hidden_size, outputs=outputs, bias=self.bias),)

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        """None."""
        yield from ()

    norm_size: int = 0
    flops_per_token: float = 0.0
    chunk_flops_per_token: float = 0.0
    chunk: int = 0

    @property
    def state_elements(self) -> float:
        """The last inputs of the convolution."""
        return float(self.width * self.kernel)

    def faults_at(self, run: RunShape) -> Iterator[Fault]:
        """Degrees that do not cut the channels."""
        yield from _head_faults("channels of the convolution", self.width, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeMix(_OfChannels):
    """RWKV-4: of each channel a weighed mean of all values before, by a learned decay (Peng, 2023).

    Key, value and receptance come of the token mixed with the one before, by learned weights.
    """

    hidden_size: int

    @property
    def name(self) -> str:
        """What tables call it."""
        return "RWKV time mix"

    def products(self, hidden_size: int) -> tuple[Product, ...]:
        """Key, value and receptance."""
        outputs = 3 * self.width
        return (Product(name="key_value_receptance", inputs=hidden_size, outputs=outputs),)

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        """Decay and weight of the token itself by channel; three mixes by feature."""
        yield from (("decay", self.width), ("first", self.width), ("mix", 3 * self.hidden_size))

    norm_size: int = 0
    channels: int = 0
    kernel: int = 0
    convolution_bias: bool = False
    bias: bool = False
    flops_per_token: float = 0.0  # element by element, without products
    chunk_flops_per_token: float = 0.0
    chunk: int = 0

    @property
    def state_elements(self) -> float:
        """Numerator, denominator and largest exponent of each channel; the token before."""
        return float(3 * self.width + self.hidden_size)

    def faults_at(self, run: RunShape) -> Iterator[Fault]:
        """Degrees that do not cut the channels."""
        yield from _head_faults("channels of the time mix", self.width, run)


Mixer: TypeAlias = StateSpace | DeltaRule | LinearAttention | ShortConvolution | TimeMix


def _head_faults(what: str, count: int, run: RunShape) -> Iterator[Fault]:
    t, c = run.tensor_parallel, run.context_parallel
    if count % t:
        yield Fault("tensor_parallel", f"must divide the {count} {what}, got {t}")
    elif c > 1 and run.context_exchange is not ContextExchange.ALL_TO_ALL:
        problem = f"must be 1 with a {run.context_exchange} exchange: of {what} each token needs "
        yield Fault("context_parallel", f"{problem}the state of the last (all_to_all can), got {c}")
    elif count % (t * c):
        problem = f"x tp must divide the {count} {what}, got {t * c}"
        yield Fault("context_parallel", problem)
