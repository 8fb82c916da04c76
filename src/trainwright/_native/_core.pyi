from collections.abc import Callable
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

class PartitionProblem:
    def __init__(
        self,
        *,
        edge_source: NDArray[np.int32],
        edge_target: NDArray[np.int32],
        edge_bytes: NDArray[np.float64],
        tensor_degrees: NDArray[np.int32],
        option_offset: NDArray[np.int64],
        option_time_s: NDArray[np.float64],
        option_gradient_bytes: NDArray[np.float64],
        option_saved_bytes: NDArray[np.float64],
        option_static_bytes: NDArray[np.float64],
        option_boundary_offset: NDArray[np.int64],
        option_boundary_bytes: NDArray[np.float64],
        num_layers: int,
        memory_bytes: float,
        bandwidth_bytes_per_s: float,
        num_devices: int,
        num_microbatches: int,
        data_degrees: NDArray[np.int64],
    ) -> None: ...

class PartitionStage:
    layers: list[int]
    data_degree: int
    tensor_degree: int
    option_rows: list[int]

class RejectedStage:
    layers: list[int]
    data_degree: int
    tensor_degree: int
    num_in_flight: int
    threshold_s: float

class PartitionResult:
    status: str
    time_per_sample_s: float
    lower_bound_s: float
    stages: list[PartitionStage]
    audit: list[RejectedStage]
    counters: dict[str, int]
    solver_s: float
    interrupted: bool
    time_limited: bool
    restricted: bool

def solve_partition(
    problem: PartitionProblem,
    *,
    time_limit_s: float,
    poll: Callable[[float, float, float], bool] | None,
    max_downsets: int | None = None,
    max_pairs: int | None = None,
    priced_from: int | None = None,
    audit_sample: int = 0,
    audit_seed: int = 0,
) -> PartitionResult: ...
def unbeaten_ways(takes: NDArray[np.float64]) -> NDArray[np.int64]: ...
def fitting_times_s(
    *,
    num_ranks: int,
    level_offset: NDArray[np.int64],
    level_bytes: NDArray[np.float64],
    way_offset: NDArray[np.int64],
    ways: NDArray[np.float64],
    room_bytes: NDArray[np.float64],
    rows: NDArray[np.float64],
) -> NDArray[np.float64]: ...
def least_chain_cut(
    *,
    num_microbatches: int,
    tie: float,
    kind_of: NDArray[np.int64],
    forward_s: NDArray[np.float64],
    weight_grad_s: NDArray[np.float64],
    time_s: NDArray[np.float64],
    tail_s: NDArray[np.float64],
    transfer_s: NDArray[np.float64],
    order: NDArray[np.int64],
) -> tuple[float, NDArray[np.int64]]: ...

class LoopBlocks:
    def __init__(
        self,
        *,
        forward_s: float,
        static_bytes: float,
        optimizer_s: float,
        transient_bytes: float,
        time_s: NDArray[np.float64],
        kept_bytes: NDArray[np.float64],
    ) -> None: ...
    def replace(
        self,
        *,
        forward_s: float = ...,
        static_bytes: float = ...,
        optimizer_s: float = ...,
        transient_bytes: float = ...,
        time_s: NDArray[np.float64] = ...,
        kept_bytes: NDArray[np.float64] = ...,
    ) -> LoopBlocks: ...
    @property
    def forward_s(self) -> float: ...
    @property
    def static_bytes(self) -> float: ...
    @property
    def optimizer_s(self) -> float: ...
    @property
    def transient_bytes(self) -> float: ...
    @property
    def time_s(self) -> NDArray[np.float64]: ...
    @property
    def kept_bytes(self) -> NDArray[np.float64]: ...

class LoopEdges:
    def __init__(
        self,
        *,
        forward_s: NDArray[np.float64],
        time_s: NDArray[np.float64],
        kept_bytes: NDArray[np.float64],
        static_bytes: NDArray[np.float64],
        optimizer_s: NDArray[np.float64],
    ) -> None: ...
    def replace(
        self,
        *,
        forward_s: NDArray[np.float64] = ...,
        time_s: NDArray[np.float64] = ...,
        kept_bytes: NDArray[np.float64] = ...,
        static_bytes: NDArray[np.float64] = ...,
        optimizer_s: NDArray[np.float64] = ...,
    ) -> LoopEdges: ...
    @property
    def forward_s(self) -> NDArray[np.float64]: ...
    @property
    def time_s(self) -> NDArray[np.float64]: ...
    @property
    def kept_bytes(self) -> NDArray[np.float64]: ...
    @property
    def static_bytes(self) -> NDArray[np.float64]: ...
    @property
    def optimizer_s(self) -> NDArray[np.float64]: ...

class LoopSharing:
    def __init__(
        self,
        *,
        under_backward: float,
        offset: NDArray[np.int64],
        forward_s: NDArray[np.float64],
        backward_s: NDArray[np.float64],
        tail_s: NDArray[np.float64],
    ) -> None: ...
    def replace(
        self,
        *,
        under_backward: float = ...,
        offset: NDArray[np.int64] = ...,
        forward_s: NDArray[np.float64] = ...,
        backward_s: NDArray[np.float64] = ...,
        tail_s: NDArray[np.float64] = ...,
    ) -> LoopSharing: ...
    @property
    def under_backward(self) -> float: ...
    @property
    def offset(self) -> NDArray[np.int64]: ...
    @property
    def forward_s(self) -> NDArray[np.float64]: ...
    @property
    def backward_s(self) -> NDArray[np.float64]: ...
    @property
    def tail_s(self) -> NDArray[np.float64]: ...

class LoopOrder:
    def __init__(
        self,
        *,
        instant_offset: NDArray[np.int64],
        held: NDArray[np.float64],
        running: NDArray[np.float64],
        warm: NDArray[np.float64],
        drain: NDArray[np.float64],
        turns: NDArray[np.int64],
        waits_twice: NDArray[np.int64],
    ) -> None: ...
    def replace(
        self,
        *,
        instant_offset: NDArray[np.int64] = ...,
        held: NDArray[np.float64] = ...,
        running: NDArray[np.float64] = ...,
        warm: NDArray[np.float64] = ...,
        drain: NDArray[np.float64] = ...,
        turns: NDArray[np.int64] = ...,
        waits_twice: NDArray[np.int64] = ...,
    ) -> LoopOrder: ...
    @property
    def instant_offset(self) -> NDArray[np.int64]: ...
    @property
    def held(self) -> NDArray[np.float64]: ...
    @property
    def running(self) -> NDArray[np.float64]: ...
    @property
    def warm(self) -> NDArray[np.float64]: ...
    @property
    def drain(self) -> NDArray[np.float64]: ...
    @property
    def turns(self) -> NDArray[np.int64]: ...
    @property
    def waits_twice(self) -> NDArray[np.int64]: ...

class LoopRanks:
    def __init__(
        self,
        *,
        num_ranks: int,
        num_microbatches: int,
        forward_all_s: float,
        backward_all_s: float,
        forward_s: NDArray[np.float64],
        backward_s: NDArray[np.float64],
        usable_bytes: float,
        gathered_bytes: float,
        least: NDArray[np.int64],
        most: NDArray[np.int64],
        again_s: NDArray[np.float64],
        spared_bytes: NDArray[np.float64],
        transfer_s: NDArray[np.float64],
        blocks: LoopBlocks,
        edges: LoopEdges,
        sharing: LoopSharing,
        order: LoopOrder,
    ) -> None: ...
    def replace(
        self,
        *,
        num_ranks: int = ...,
        num_microbatches: int = ...,
        forward_all_s: float = ...,
        backward_all_s: float = ...,
        forward_s: NDArray[np.float64] = ...,
        backward_s: NDArray[np.float64] = ...,
        usable_bytes: float = ...,
        gathered_bytes: float = ...,
        least: NDArray[np.int64] = ...,
        most: NDArray[np.int64] = ...,
        again_s: NDArray[np.float64] = ...,
        spared_bytes: NDArray[np.float64] = ...,
        transfer_s: NDArray[np.float64] = ...,
        blocks: LoopBlocks = ...,
        edges: LoopEdges = ...,
        sharing: LoopSharing = ...,
        order: LoopOrder = ...,
    ) -> LoopRanks: ...
    @property
    def num_ranks(self) -> int: ...
    @property
    def num_microbatches(self) -> int: ...
    @property
    def forward_all_s(self) -> float: ...
    @property
    def backward_all_s(self) -> float: ...
    @property
    def forward_s(self) -> NDArray[np.float64]: ...
    @property
    def backward_s(self) -> NDArray[np.float64]: ...
    @property
    def usable_bytes(self) -> float: ...
    @property
    def gathered_bytes(self) -> float: ...
    @property
    def least(self) -> NDArray[np.int64]: ...
    @property
    def most(self) -> NDArray[np.int64]: ...
    @property
    def again_s(self) -> NDArray[np.float64]: ...
    @property
    def spared_bytes(self) -> NDArray[np.float64]: ...
    @property
    def transfer_s(self) -> NDArray[np.float64]: ...
    @property
    def blocks(self) -> LoopBlocks: ...
    @property
    def edges(self) -> LoopEdges: ...
    @property
    def sharing(self) -> LoopSharing: ...
    @property
    def order(self) -> LoopOrder: ...

def loop_rank_times_s(loop: LoopRanks) -> NDArray[np.float64]: ...

class PeelKinds:
    def __init__(
        self,
        *,
        forward_s: NDArray[np.float64],
        input_grad_s: NDArray[np.float64],
        weight_grad_s: NDArray[np.float64],
        tail_s: NDArray[np.float64],
        optimizer_s: NDArray[np.float64],
        static_bytes: NDArray[np.float64],
        weight_bytes: NDArray[np.float64],
        largest_weight_bytes: NDArray[np.float64],
        freed_bytes: NDArray[np.float64],
    ) -> None: ...
    def replace(
        self,
        *,
        forward_s: NDArray[np.float64] = ...,
        input_grad_s: NDArray[np.float64] = ...,
        weight_grad_s: NDArray[np.float64] = ...,
        tail_s: NDArray[np.float64] = ...,
        optimizer_s: NDArray[np.float64] = ...,
        static_bytes: NDArray[np.float64] = ...,
        weight_bytes: NDArray[np.float64] = ...,
        largest_weight_bytes: NDArray[np.float64] = ...,
        freed_bytes: NDArray[np.float64] = ...,
    ) -> PeelKinds: ...
    @property
    def forward_s(self) -> NDArray[np.float64]: ...
    @property
    def input_grad_s(self) -> NDArray[np.float64]: ...
    @property
    def weight_grad_s(self) -> NDArray[np.float64]: ...
    @property
    def tail_s(self) -> NDArray[np.float64]: ...
    @property
    def optimizer_s(self) -> NDArray[np.float64]: ...
    @property
    def static_bytes(self) -> NDArray[np.float64]: ...
    @property
    def weight_bytes(self) -> NDArray[np.float64]: ...
    @property
    def largest_weight_bytes(self) -> NDArray[np.float64]: ...
    @property
    def freed_bytes(self) -> NDArray[np.float64]: ...

class PeelFronts:
    def __init__(
        self,
        *,
        level_offset: NDArray[np.int64],
        transient_bytes: NDArray[np.float64],
        beside_bytes: NDArray[np.float64],
        point_offset: NDArray[np.int64],
        kept_bytes: NDArray[np.float64],
        time_s: NDArray[np.float64],
        tail_s: NDArray[np.float64],
    ) -> None: ...
    def replace(
        self,
        *,
        level_offset: NDArray[np.int64] = ...,
        transient_bytes: NDArray[np.float64] = ...,
        beside_bytes: NDArray[np.float64] = ...,
        point_offset: NDArray[np.int64] = ...,
        kept_bytes: NDArray[np.float64] = ...,
        time_s: NDArray[np.float64] = ...,
        tail_s: NDArray[np.float64] = ...,
    ) -> PeelFronts: ...
    @property
    def level_offset(self) -> NDArray[np.int64]: ...
    @property
    def transient_bytes(self) -> NDArray[np.float64]: ...
    @property
    def beside_bytes(self) -> NDArray[np.float64]: ...
    @property
    def point_offset(self) -> NDArray[np.int64]: ...
    @property
    def kept_bytes(self) -> NDArray[np.float64]: ...
    @property
    def time_s(self) -> NDArray[np.float64]: ...
    @property
    def tail_s(self) -> NDArray[np.float64]: ...

class PeelProblem:
    def __init__(
        self,
        *,
        num_ranks: int,
        num_microbatches: int,
        max_activations: int,
        usable_bytes: float,
        gathered_share: float,
        floor_s: float,
        limit_s: float,
        weighs_ends: bool,
        kind_of: NDArray[np.int64],
        kind_offset: NDArray[np.int64],
        forward_before_s: NDArray[np.float64],
        input_grad_before_s: NDArray[np.float64],
        outer_forward_s: NDArray[np.float64],
        outer_input_grad_s: NDArray[np.float64],
        inner_forward_s: NDArray[np.float64],
        inner_input_grad_s: NDArray[np.float64],
        transfer_s: NDArray[np.float64],
        rank_time_s: NDArray[np.float64],
        rank_forward_s: NDArray[np.float64],
        near_in_flight: NDArray[np.float64],
        far_in_flight: NDArray[np.float64],
        kinds: PeelKinds,
        fronts: PeelFronts,
    ) -> None: ...
    def replace(
        self,
        *,
        num_ranks: int = ...,
        num_microbatches: int = ...,
        max_activations: int = ...,
        usable_bytes: float = ...,
        gathered_share: float = ...,
        floor_s: float = ...,
        limit_s: float = ...,
        weighs_ends: bool = ...,
        kind_of: NDArray[np.int64] = ...,
        kind_offset: NDArray[np.int64] = ...,
        forward_before_s: NDArray[np.float64] = ...,
        input_grad_before_s: NDArray[np.float64] = ...,
        outer_forward_s: NDArray[np.float64] = ...,
        outer_input_grad_s: NDArray[np.float64] = ...,
        inner_forward_s: NDArray[np.float64] = ...,
        inner_input_grad_s: NDArray[np.float64] = ...,
        transfer_s: NDArray[np.float64] = ...,
        rank_time_s: NDArray[np.float64] = ...,
        rank_forward_s: NDArray[np.float64] = ...,
        near_in_flight: NDArray[np.float64] = ...,
        far_in_flight: NDArray[np.float64] = ...,
        kinds: PeelKinds = ...,
        fronts: PeelFronts = ...,
    ) -> PeelProblem: ...
    @property
    def num_ranks(self) -> int: ...
    @property
    def num_microbatches(self) -> int: ...
    @property
    def max_activations(self) -> int: ...
    @property
    def usable_bytes(self) -> float: ...
    @property
    def gathered_share(self) -> float: ...
    @property
    def floor_s(self) -> float: ...
    @property
    def limit_s(self) -> float: ...
    @property
    def weighs_ends(self) -> bool: ...
    @property
    def kind_of(self) -> NDArray[np.int64]: ...
    @property
    def kind_offset(self) -> NDArray[np.int64]: ...
    @property
    def forward_before_s(self) -> NDArray[np.float64]: ...
    @property
    def input_grad_before_s(self) -> NDArray[np.float64]: ...
    @property
    def outer_forward_s(self) -> NDArray[np.float64]: ...
    @property
    def outer_input_grad_s(self) -> NDArray[np.float64]: ...
    @property
    def inner_forward_s(self) -> NDArray[np.float64]: ...
    @property
    def inner_input_grad_s(self) -> NDArray[np.float64]: ...
    @property
    def transfer_s(self) -> NDArray[np.float64]: ...
    @property
    def rank_time_s(self) -> NDArray[np.float64]: ...
    @property
    def rank_forward_s(self) -> NDArray[np.float64]: ...
    @property
    def near_in_flight(self) -> NDArray[np.float64]: ...
    @property
    def far_in_flight(self) -> NDArray[np.float64]: ...
    @property
    def kinds(self) -> PeelKinds: ...
    @property
    def fronts(self) -> PeelFronts: ...

class PeelWeights:
    def __init__(
        self,
        *,
        forwards: NDArray[np.float64],
        input_grads: NDArray[np.float64],
        weight_grads: NDArray[np.float64],
        ranks: NDArray[np.float64],
        ends: NDArray[np.float64],
    ) -> None: ...
    def replace(
        self,
        *,
        forwards: NDArray[np.float64] = ...,
        input_grads: NDArray[np.float64] = ...,
        weight_grads: NDArray[np.float64] = ...,
        ranks: NDArray[np.float64] = ...,
        ends: NDArray[np.float64] = ...,
    ) -> PeelWeights: ...
    @property
    def forwards(self) -> NDArray[np.float64]: ...
    @property
    def input_grads(self) -> NDArray[np.float64]: ...
    @property
    def weight_grads(self) -> NDArray[np.float64]: ...
    @property
    def ranks(self) -> NDArray[np.float64]: ...
    @property
    def ends(self) -> NDArray[np.float64]: ...

class OrderSplits:
    def __init__(
        self,
        *,
        num_ways: int,
        num_blocks: int,
        limit_s: float,
        near: float,
        least: NDArray[np.int64],
        forward_s: NDArray[np.float64],
        backward_s: NDArray[np.float64],
        block_forward_s: NDArray[np.float64],
        block_backward_s: NDArray[np.float64],
        after_s: NDArray[np.float64],
        block_after_s: NDArray[np.float64],
        transfer_s: NDArray[np.float64],
        block_held: NDArray[np.float64],
        room: NDArray[np.float64],
    ) -> None: ...
    def replace(
        self,
        *,
        num_ways: int = ...,
        num_blocks: int = ...,
        limit_s: float = ...,
        near: float = ...,
        least: NDArray[np.int64] = ...,
        forward_s: NDArray[np.float64] = ...,
        backward_s: NDArray[np.float64] = ...,
        block_forward_s: NDArray[np.float64] = ...,
        block_backward_s: NDArray[np.float64] = ...,
        after_s: NDArray[np.float64] = ...,
        block_after_s: NDArray[np.float64] = ...,
        transfer_s: NDArray[np.float64] = ...,
        block_held: NDArray[np.float64] = ...,
        room: NDArray[np.float64] = ...,
    ) -> OrderSplits: ...
    @property
    def num_ways(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def limit_s(self) -> float: ...
    @property
    def near(self) -> float: ...
    @property
    def least(self) -> NDArray[np.int64]: ...
    @property
    def forward_s(self) -> NDArray[np.float64]: ...
    @property
    def backward_s(self) -> NDArray[np.float64]: ...
    @property
    def block_forward_s(self) -> NDArray[np.float64]: ...
    @property
    def block_backward_s(self) -> NDArray[np.float64]: ...
    @property
    def after_s(self) -> NDArray[np.float64]: ...
    @property
    def block_after_s(self) -> NDArray[np.float64]: ...
    @property
    def transfer_s(self) -> NDArray[np.float64]: ...
    @property
    def block_held(self) -> NDArray[np.float64]: ...
    @property
    def room(self) -> NDArray[np.float64]: ...

class LeastOfOrder:
    @property
    def step_s(self) -> float: ...
    @property
    def reached_s(self) -> float: ...
    @property
    def blocks(self) -> NDArray[np.float64]: ...

def least_of_order(
    splits: OrderSplits, orders: Orders, start: LeastOfOrder | None = None
) -> LeastOfOrder: ...

class WholeLoop:
    def __init__(
        self,
        *,
        num_blocks: int,
        limit_s: float,
        most_actions: int,
        least: NDArray[np.int64],
        forward_s: NDArray[np.float64],
        backward_s: NDArray[np.float64],
        after_s: NDArray[np.float64],
        rank_after_s: NDArray[np.float64],
        transfer_s: NDArray[np.float64],
        most_of_rank: NDArray[np.int64],
        static_bytes: float,
        under_backward: float,
        block_time_s: NDArray[np.float64],
        block_bytes: NDArray[np.float64],
        instant_offset: NDArray[np.int64],
        held: NDArray[np.float64],
        room_bytes: NDArray[np.float64],
        exchanged_s: NDArray[np.float64],
    ) -> None: ...
    def replace(
        self,
        *,
        num_blocks: int = ...,
        limit_s: float = ...,
        most_actions: int = ...,
        least: NDArray[np.int64] = ...,
        forward_s: NDArray[np.float64] = ...,
        backward_s: NDArray[np.float64] = ...,
        after_s: NDArray[np.float64] = ...,
        rank_after_s: NDArray[np.float64] = ...,
        transfer_s: NDArray[np.float64] = ...,
        most_of_rank: NDArray[np.int64] = ...,
        static_bytes: float = ...,
        under_backward: float = ...,
        block_time_s: NDArray[np.float64] = ...,
        block_bytes: NDArray[np.float64] = ...,
        instant_offset: NDArray[np.int64] = ...,
        held: NDArray[np.float64] = ...,
        room_bytes: NDArray[np.float64] = ...,
        exchanged_s: NDArray[np.float64] = ...,
    ) -> WholeLoop: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def limit_s(self) -> float: ...
    @property
    def most_actions(self) -> int: ...
    @property
    def least(self) -> NDArray[np.int64]: ...
    @property
    def forward_s(self) -> NDArray[np.float64]: ...
    @property
    def backward_s(self) -> NDArray[np.float64]: ...
    @property
    def after_s(self) -> NDArray[np.float64]: ...
    @property
    def rank_after_s(self) -> NDArray[np.float64]: ...
    @property
    def transfer_s(self) -> NDArray[np.float64]: ...
    @property
    def most_of_rank(self) -> NDArray[np.int64]: ...
    @property
    def static_bytes(self) -> float: ...
    @property
    def under_backward(self) -> float: ...
    @property
    def block_time_s(self) -> NDArray[np.float64]: ...
    @property
    def block_bytes(self) -> NDArray[np.float64]: ...
    @property
    def instant_offset(self) -> NDArray[np.int64]: ...
    @property
    def held(self) -> NDArray[np.float64]: ...
    @property
    def room_bytes(self) -> NDArray[np.float64]: ...
    @property
    def exchanged_s(self) -> NDArray[np.float64]: ...

class LeastOfWhole:
    @property
    def step_s(self) -> float: ...
    @property
    def actions(self) -> int: ...
    @property
    def blocks(self) -> NDArray[np.int64]: ...

def least_of_whole(loop: WholeLoop, orders: Orders) -> LeastOfWhole: ...

class PeelResult:
    @property
    def cost(self) -> float: ...
    @property
    def near(self) -> NDArray[np.int64]: ...
    @property
    def far(self) -> NDArray[np.int64]: ...
    @property
    def near_point(self) -> NDArray[np.int64]: ...
    @property
    def far_point(self) -> NDArray[np.int64]: ...
    @property
    def rank_s(self) -> NDArray[np.float64]: ...
    @property
    def ends_s(self) -> NDArray[np.float64]: ...

def peel(problem: PeelProblem) -> PeelResult: ...
def peel_reaches(problem: PeelProblem) -> bool: ...
def peel_evenly(problem: PeelProblem, *, chunk_s: float) -> PeelResult: ...
def peel_weighted(problem: PeelProblem, weights: PeelWeights) -> PeelResult: ...
def estimate_products(
    machines: NDArray[np.float64], products: NDArray[np.float64]
) -> tuple[
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    tuple[NDArray[np.float64], ...],
]: ...
def output_stationary_cycles(
    *, rows: float, columns: float, m: float, n: float, k: float
) -> float: ...

class Sharing:
    def __init__(
        self,
        *,
        layer_bytes: NDArray[np.float64],
        beside_bytes: NDArray[np.float64],
        gradients_start_s: NDArray[np.float64],
        gradients_byte_s: NDArray[np.float64],
        parameters_start_s: NDArray[np.float64],
        parameters_byte_s: NDArray[np.float64],
        beside_s: NDArray[np.float64],
        update_parts: NDArray[np.float64],
        gradients_under: float,
        parameters_under: float,
    ) -> None: ...
    def replace(
        self,
        *,
        layer_bytes: NDArray[np.float64] = ...,
        beside_bytes: NDArray[np.float64] = ...,
        gradients_start_s: NDArray[np.float64] = ...,
        gradients_byte_s: NDArray[np.float64] = ...,
        parameters_start_s: NDArray[np.float64] = ...,
        parameters_byte_s: NDArray[np.float64] = ...,
        beside_s: NDArray[np.float64] = ...,
        update_parts: NDArray[np.float64] = ...,
        gradients_under: float = ...,
        parameters_under: float = ...,
    ) -> Sharing: ...
    @property
    def layer_bytes(self) -> NDArray[np.float64]: ...
    @property
    def beside_bytes(self) -> NDArray[np.float64]: ...
    @property
    def gradients_start_s(self) -> NDArray[np.float64]: ...
    @property
    def gradients_byte_s(self) -> NDArray[np.float64]: ...
    @property
    def parameters_start_s(self) -> NDArray[np.float64]: ...
    @property
    def parameters_byte_s(self) -> NDArray[np.float64]: ...
    @property
    def beside_s(self) -> NDArray[np.float64]: ...
    @property
    def update_parts(self) -> NDArray[np.float64]: ...
    @property
    def gradients_under(self) -> float: ...
    @property
    def parameters_under(self) -> float: ...

class UniformProblem:
    def __init__(
        self,
        *,
        layer_class: NDArray[np.int32],
        transfer_s: NDArray[np.float64],
        saved_bytes: NDArray[np.float64],
        transient_bytes: NDArray[np.float64],
        sync_bytes: NDArray[np.float64],
        data_degrees: NDArray[np.int64],
        sharing: Sharing,
        memory_bytes: float,
        tensor_degree: int,
        num_devices: int,
        num_microbatches: int,
    ) -> None: ...
    def replace(
        self,
        *,
        layer_class: NDArray[np.int32] = ...,
        transfer_s: NDArray[np.float64] = ...,
        saved_bytes: NDArray[np.float64] = ...,
        transient_bytes: NDArray[np.float64] = ...,
        sync_bytes: NDArray[np.float64] = ...,
        data_degrees: NDArray[np.int64] = ...,
        sharing: Sharing = ...,
        memory_bytes: float = ...,
        tensor_degree: int = ...,
        num_devices: int = ...,
        num_microbatches: int = ...,
    ) -> UniformProblem: ...
    @property
    def layer_class(self) -> NDArray[np.int32]: ...
    @property
    def transfer_s(self) -> NDArray[np.float64]: ...
    @property
    def saved_bytes(self) -> NDArray[np.float64]: ...
    @property
    def transient_bytes(self) -> NDArray[np.float64]: ...
    @property
    def sync_bytes(self) -> NDArray[np.float64]: ...
    @property
    def data_degrees(self) -> NDArray[np.int64]: ...
    @property
    def sharing(self) -> Sharing: ...
    @property
    def memory_bytes(self) -> float: ...
    @property
    def tensor_degree(self) -> int: ...
    @property
    def num_devices(self) -> int: ...
    @property
    def num_microbatches(self) -> int: ...

def fastest_uniform_plans(
    problem: UniformProblem,
    *,
    forward_s: NDArray[np.float64],
    backward_s: NDArray[np.float64],
    update_s: NDArray[np.float64],
    cutoff_s: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.int64], list[list[int]], list[list[int]]]: ...

class FamilyOrder:
    def __init__(
        self,
        *,
        orders: Orders,
        counts: NDArray[np.int32],
        count_offset: NDArray[np.int64],
    ) -> None: ...

def fastest_family_plans(
    problem: UniformProblem,
    order: FamilyOrder,
    *,
    forward_s: NDArray[np.float64],
    backward_s: NDArray[np.float64],
    weight_grad_s: NDArray[np.float64],
    update_s: NDArray[np.float64],
    pending_bytes: NDArray[np.float64],
    restored_bytes: NDArray[np.float64],
    cutoff_s: NDArray[np.float64],
    option: int,
    degree: int,
) -> tuple[NDArray[np.float64], list[list[int]]]: ...
def one_f_one_b_ends_s(
    *,
    forward_s: NDArray[np.float64],
    backward_s: NDArray[np.float64],
    in_flight: NDArray[np.int64],
    replicas: NDArray[np.int64],
    feed_offset: NDArray[np.int64],
    feed_target: NDArray[np.int32],
    feed_s: NDArray[np.float64],
    num_microbatches: int,
) -> NDArray[np.float64]: ...

class Orders:
    def __init__(
        self,
        *,
        actions: NDArray[np.int32],
        rank_offsets: NDArray[np.int64],
        rank_of_stage: NDArray[np.int32],
        pairs: NDArray[np.int64],
        num_microbatches: int,
        num_pipelines: int = 1,
        head_barriers: int = 0,
    ) -> None: ...

class ActionCosts:
    def __init__(
        self,
        *,
        duration_s: NDArray[np.float64],
        forward_transfer_s: NDArray[np.float64],
        backward_transfer_s: NDArray[np.float64],
        pair_s: NDArray[np.float64],
        network_s: NDArray[np.float64],
        slice_s: NDArray[np.float64],
        barrier_s: float,
        model: str,
        blocking_fraction: float,
    ) -> None: ...

class Simulation:
    @property
    def complete(self) -> bool: ...
    @property
    def start_s(self) -> NDArray[np.float64]: ...
    @property
    def end_s(self) -> NDArray[np.float64]: ...
    @property
    def forward_arrival_s(self) -> NDArray[np.float64]: ...
    @property
    def backward_arrival_s(self) -> NDArray[np.float64]: ...
    @property
    def blocked_rows(self) -> NDArray[np.int64]: ...

def simulate(orders: Orders, costs: ActionCosts) -> Simulation: ...
def latest_starts(
    orders: Orders, costs: ActionCosts, deadline_s: NDArray[np.float64]
) -> NDArray[np.float64]: ...

class FixedOrder:
    def __init__(self, orders: Orders) -> None: ...
    def ends_s(
        self,
        duration_s: NDArray[np.float64],
        forward_transfer_s: NDArray[np.float64],
        backward_transfer_s: NDArray[np.float64],
    ) -> NDArray[np.float64]: ...

class ActionMemory:
    def __init__(
        self,
        *,
        delta_bytes: NDArray[np.float64],
        transient_bytes: NDArray[np.float64],
        static_bytes: NDArray[np.float64],
        limit_bytes: NDArray[np.float64],
    ) -> None: ...

def one_machine_s(
    head_s: NDArray[np.float64], work_s: NDArray[np.float64], tail_s: NDArray[np.float64]
) -> float: ...
def cyclic_v(
    *,
    duration_s: NDArray[np.float64],
    forward_transfer_s: NDArray[np.float64],
    backward_transfer_s: NDArray[np.float64],
    delta_bytes: NDArray[np.float64],
    transient_bytes: NDArray[np.float64],
    room_bytes: NDArray[np.float64],
    longest_period_s: float,
    width: int,
    rounds: int,
    exact: bool,
) -> tuple[float, NDArray[np.float64]]: ...
def crossings_s(
    *,
    forward_s: list[float],
    input_grad_s: list[float],
    weight_grad_s: list[float],
    forward_gap_s: list[float],
    input_grad_gap_s: list[float],
    beyond_forward_s: list[float],
    beyond_input_grad_s: list[float],
    down_s: list[float],
    up_s: list[float],
    pending: list[list[float]],
    late: list[list[float]],
    room: list[float],
    head_s: float,
    own_head_s: float,
    tail_s: float,
    num_microbatches: int,
    num_labels: int,
    most_labels: int,
    poll: Callable[[], bool] | None = None,
) -> float: ...
def two_ranks_s(
    *,
    forward_s: list[float],
    input_grad_s: list[float],
    weight_grad_s: list[float],
    forward_transfer_s: list[float],
    backward_transfer_s: list[float],
    pending: list[list[float]],
    late: list[list[float]],
    room: list[list[float]],
    rank: int,
    num_microbatches: int,
    makespan: bool,
    enough_s: float,
    num_labels: int,
    poll: Callable[[], bool] | None = None,
) -> tuple[float, bool]: ...
def undominated_rows(rows: NDArray[np.int64]) -> NDArray[np.int64]: ...
def fullest_rows(
    actions: NDArray[np.int32], owned: NDArray[np.int64], kinds: NDArray[np.int64]
) -> NDArray[np.int64]: ...
def peak_bytes(
    orders: Orders, memory: ActionMemory, costs: ActionCosts | None = None
) -> NDArray[np.float64]: ...

class FilledOrders:
    complete: bool
    span_s: float
    makespan_s: float
    @property
    def actions(self) -> NDArray[np.int32]: ...
    @property
    def rank_offsets(self) -> NDArray[np.int64]: ...

class StreamProblem:
    def __init__(
        self,
        *,
        rank_of_stage: NDArray[np.int32],
        num_ranks: int,
        num_microbatches: int,
        duration_s: NDArray[np.float64],
        forward_transfer_s: NDArray[np.float64],
        backward_transfer_s: NDArray[np.float64],
        fused: NDArray[np.bool_],
        recomputed: NDArray[np.bool_],
        resource_delta: NDArray[np.float64],
        resource_transient: NDArray[np.float64],
        resource_room: NDArray[np.float64],
        objective: str,
    ) -> None: ...
    @property
    def num_actions(self) -> int: ...

class FoundOrders:
    @property
    def actions(self) -> NDArray[np.int32]: ...
    @property
    def rank_offsets(self) -> NDArray[np.int64]: ...
    @property
    def span_s(self) -> float: ...
    @property
    def makespan_s(self) -> float: ...
    @property
    def winner(self) -> str: ...
    @property
    def winning_start(self) -> int: ...
    @property
    def work(self) -> int: ...
    @property
    def interrupted(self) -> bool: ...

class MovedOrders:
    @property
    def actions(self) -> NDArray[np.int32]: ...
    @property
    def value_s(self) -> float: ...
    @property
    def work(self) -> int: ...
    @property
    def complete(self) -> bool: ...
    @property
    def interrupted(self) -> bool: ...

def anneal_moves(
    orders: Orders,
    costs: ActionCosts,
    *,
    resource_delta: NDArray[np.float64],
    resource_transient: NDArray[np.float64],
    resource_room: NDArray[np.float64],
    objective: str,
    seed: int,
    work: int,
    stop_at_s: float,
    poll: Callable[[float], bool] | None,
) -> MovedOrders: ...
def fill_weight_grads(
    orders: Orders, costs: ActionCosts, memory: ActionMemory, *, tolerated_idle_s: float
) -> FilledOrders: ...
def improve_weight_grads(
    orders: Orders, costs: ActionCosts, memory: ActionMemory, *, span: bool, budget: int
) -> FilledOrders: ...

class ReorderedOrders:
    complete: bool
    @property
    def actions(self) -> NDArray[np.int32]: ...

def reorder(
    orders: Orders,
    costs: ActionCosts,
    memory: ActionMemory,
    *,
    from_s: float,
    until_s: float,
    sweeps: int,
) -> ReorderedOrders: ...
def justify(
    orders: Orders,
    costs: ActionCosts,
    memory: ActionMemory,
    *,
    after_s: NDArray[np.float64],
    most_activations: int,
    rounds: int,
) -> ReorderedOrders: ...

class OrderTrials:
    def __init__(
        self,
        costs: ActionCosts,
        memory: ActionMemory,
        *,
        span: bool,
        enough_s: float,
        sweeps: int,
        held: list[int],
    ) -> None: ...
    def add(self, order: Orders) -> bool: ...
    def best(self, *, num_finalists: int, rounds: int, simulations: int) -> FilledOrders: ...

def zero_bubble_orders(
    num_microbatches: int,
    costs: ActionCosts,
    memory: ActionMemory,
    *,
    late_warm_up: bool,
    prefer_backward: bool,
    tolerant: bool,
) -> FilledOrders: ...
def search_schedule(
    problem: StreamProblem,
    starts: list[Orders],
    *,
    seed: int,
    work: int,
    stop_at_s: float,
    poll: Callable[[float], bool] | None,
) -> FoundOrders: ...
def search_repeating(
    problem: StreamProblem,
    starts: list[Orders],
    *,
    seed: int,
    work: int,
    stop_at_s: float,
    poll: Callable[[float], bool] | None,
) -> FoundOrders: ...
def search_heated(
    problem: StreamProblem,
    starts: list[Orders],
    *,
    seed: int,
    work: int,
    stop_at_s: float,
    poll: Callable[[float], bool] | None,
) -> FoundOrders: ...

class PlacementLayers:
    def __init__(
        self,
        *,
        parameter_bytes: NDArray[np.float64],
        static_bytes: NDArray[np.float64],
        activation_bytes: NDArray[np.float64],
        is_split: NDArray[np.uint8],
        edge_source: NDArray[np.int32],
        edge_target: NDArray[np.int32],
        edge_bytes: NDArray[np.float64],
    ) -> None: ...

class PlacementRules:
    def __init__(
        self,
        *,
        tensor_parallel: int,
        num_devices: int,
        num_microbatches: int,
        max_data_parallel: int,
        bandwidth_bytes_per_s: float,
        sync_factor: float,
        sync_first_stage: bool,
        cap_in_flight: bool,
    ) -> None: ...

class PlacedChains(TypedDict):
    time_s: NDArray[np.float64]
    data_parallel: NDArray[np.int64]
    stage_offset: NDArray[np.int64]
    stage_end: NDArray[np.int32]
    stopped: bool

class PlacedGraph(TypedDict):
    complete: bool
    stopped: bool
    time_s: float
    data_parallel: int
    stage_offset: NDArray[np.int64]
    layers: NDArray[np.int32]

def place_chain(
    *,
    forward_s: NDArray[np.float64],
    backward_s: NDArray[np.float64],
    cutoff_s: NDArray[np.float64],
    layers: PlacementLayers,
    memory_bytes: float,
    recompute: str,
    rules: PlacementRules,
    poll: Callable[[], bool] | None,
) -> PlacedChains: ...
def place_graph(
    *,
    forward_s: NDArray[np.float64],
    backward_s: NDArray[np.float64],
    max_stage_sets: int,
    layers: PlacementLayers,
    memory_bytes: float,
    recompute: str,
    rules: PlacementRules,
    poll: Callable[[], bool] | None,
) -> PlacedGraph: ...
