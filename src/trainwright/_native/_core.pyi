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
def loop_rank_times_s(
    *,
    num_ranks: int,
    num_microbatches: int,
    block_forward_s: float,
    block_static_bytes: float,
    block_optimizer_s: float,
    forward_all_s: float,
    backward_all_s: float,
    usable_bytes: float,
    gathered_bytes: float,
    transient_bytes: float,
    under_backward: float,
    option_time_s: NDArray[np.float64],
    option_kept_bytes: NDArray[np.float64],
    least: NDArray[np.int64],
    most: NDArray[np.int64],
    edge_forward_s: NDArray[np.float64],
    edge_time_s: NDArray[np.float64],
    edge_kept_bytes: NDArray[np.float64],
    edge_static_bytes: NDArray[np.float64],
    edge_optimizer_s: NDArray[np.float64],
    transfer_s: NDArray[np.float64],
    extra_offset: NDArray[np.int64],
    shared_forward_s: NDArray[np.float64],
    shared_backward_s: NDArray[np.float64],
    shared_tail_s: NDArray[np.float64],
    instant_offset: NDArray[np.int64],
    held: NDArray[np.float64],
    running: NDArray[np.float64],
    warm: NDArray[np.float64],
    drain: NDArray[np.float64],
    turns: NDArray[np.int64],
    waits_twice: NDArray[np.int64],
) -> NDArray[np.float64]: ...
def peel(
    *,
    num_ranks: int,
    num_microbatches: int,
    max_activations: int,
    usable_bytes: float,
    gathered_share: float,
    floor_s: float,
    limit_s: float,
    kind_of: NDArray[np.int64],
    forward_s: NDArray[np.float64],
    input_grad_s: NDArray[np.float64],
    weight_grad_s: NDArray[np.float64],
    tail_s: NDArray[np.float64],
    optimizer_s: NDArray[np.float64],
    static_bytes: NDArray[np.float64],
    weight_bytes: NDArray[np.float64],
    largest_weight_bytes: NDArray[np.float64],
    level_offset: NDArray[np.int64],
    transient_bytes: NDArray[np.float64],
    beside_bytes: NDArray[np.float64],
    front_offset: NDArray[np.int64],
    front_bytes: NDArray[np.float64],
    front_time_s: NDArray[np.float64],
    forward_before_s: NDArray[np.float64],
    input_grad_before_s: NDArray[np.float64],
    transfer_s: NDArray[np.float64],
    near_in_flight: NDArray[np.float64],
    far_in_flight: NDArray[np.float64],
) -> tuple[
    float,
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.float64],
    NDArray[np.float64],
]: ...
def peel_evenly(
    *,
    num_ranks: int,
    num_microbatches: int,
    max_activations: int,
    usable_bytes: float,
    gathered_share: float,
    floor_s: float,
    limit_s: float,
    kind_of: NDArray[np.int64],
    forward_s: NDArray[np.float64],
    input_grad_s: NDArray[np.float64],
    weight_grad_s: NDArray[np.float64],
    tail_s: NDArray[np.float64],
    optimizer_s: NDArray[np.float64],
    static_bytes: NDArray[np.float64],
    weight_bytes: NDArray[np.float64],
    largest_weight_bytes: NDArray[np.float64],
    level_offset: NDArray[np.int64],
    transient_bytes: NDArray[np.float64],
    beside_bytes: NDArray[np.float64],
    front_offset: NDArray[np.int64],
    front_bytes: NDArray[np.float64],
    front_time_s: NDArray[np.float64],
    forward_before_s: NDArray[np.float64],
    input_grad_before_s: NDArray[np.float64],
    transfer_s: NDArray[np.float64],
    near_in_flight: NDArray[np.float64],
    far_in_flight: NDArray[np.float64],
    chunk_s: float,
) -> tuple[
    float,
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.float64],
    NDArray[np.float64],
]: ...
def peel_weighted(
    *,
    num_ranks: int,
    num_microbatches: int,
    max_activations: int,
    usable_bytes: float,
    gathered_share: float,
    floor_s: float,
    limit_s: float,
    kind_of: NDArray[np.int64],
    forward_s: NDArray[np.float64],
    input_grad_s: NDArray[np.float64],
    weight_grad_s: NDArray[np.float64],
    tail_s: NDArray[np.float64],
    optimizer_s: NDArray[np.float64],
    static_bytes: NDArray[np.float64],
    weight_bytes: NDArray[np.float64],
    largest_weight_bytes: NDArray[np.float64],
    level_offset: NDArray[np.int64],
    transient_bytes: NDArray[np.float64],
    beside_bytes: NDArray[np.float64],
    front_offset: NDArray[np.int64],
    front_bytes: NDArray[np.float64],
    front_time_s: NDArray[np.float64],
    forward_before_s: NDArray[np.float64],
    input_grad_before_s: NDArray[np.float64],
    transfer_s: NDArray[np.float64],
    near_in_flight: NDArray[np.float64],
    far_in_flight: NDArray[np.float64],
    forwards: NDArray[np.float64],
    input_grads: NDArray[np.float64],
    weight_grads: NDArray[np.float64],
    ranks: NDArray[np.float64],
    ends: NDArray[np.float64],
) -> tuple[
    float,
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.float64],
    NDArray[np.float64],
]: ...
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

class UniformProblem:
    def __init__(
        self,
        *,
        layer_class: NDArray[np.int32],
        transfer_s: NDArray[np.float64],
        saved_bytes: NDArray[np.float64],
        transient_bytes: NDArray[np.float64],
        static_bytes: NDArray[np.float64],
        sharded_bytes: NDArray[np.float64],
        sync_bytes: NDArray[np.float64],
        data_degrees: NDArray[np.int64],
        memory_bytes: float,
        link_byte_s: float,
        link_latency_s: float,
        sync_overlap: float = 0.0,
        update_shards: bool,
        tensor_degree: int,
        num_devices: int,
        num_microbatches: int,
    ) -> None: ...

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
    data_degree: int,
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
    ) -> None: ...

class ActionCosts:
    def __init__(
        self,
        *,
        duration_s: NDArray[np.float64],
        forward_transfer_s: NDArray[np.float64],
        backward_transfer_s: NDArray[np.float64],
        pair_s: NDArray[np.float64],
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

def peak_bytes(orders: Orders, memory: ActionMemory) -> NDArray[np.float64]: ...

class FilledOrders:
    complete: bool
    span_s: float
    makespan_s: float
    largest_idle_s: float
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

def fill_weight_grads(
    orders: Orders, costs: ActionCosts, memory: ActionMemory, *, tolerated_idle_s: float
) -> FilledOrders: ...
def improve_weight_grads(
    orders: Orders, costs: ActionCosts, memory: ActionMemory, *, span: bool, budget: int
) -> FilledOrders: ...

class ReorderedOrders:
    complete: bool
    num_moves: int
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

class OrderTrials:
    def __init__(
        self, costs: ActionCosts, memory: ActionMemory, *, enough_s: float, sweeps: int
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
