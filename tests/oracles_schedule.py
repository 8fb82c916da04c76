"""The schedule simulator in readable Python: events in time order, one dictionary per idea.

The native simulator never looks at a clock; this one does nothing else. Both must agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainwright.plans.schedule import Action, ActionKind, Schedule, ScheduleCosts, TransferModel

F, I, W, B, R, O, D, L, V, T = ActionKind  # noqa: E741


@dataclass
class Run:
    """What happened: start and end of every action, arrival of every output another stage needs."""

    start_s: dict[Action, float] = field(default_factory=dict)
    end_s: dict[Action, float] = field(default_factory=dict)
    arrival_s: dict[Action, float] = field(default_factory=dict)
    deadlocked: bool = False


def run(schedule: Schedule, costs: ScheduleCosts) -> Run:
    """Advance a clock from event to event; at each, start whatever can start."""
    orders = [list(schedule.order(rank)) for rank in range(schedule.num_ranks)]
    blocks = [_blocks(schedule, costs, rank) for rank in range(schedule.num_ranks)]
    rank_free_s = [0.0] * schedule.num_ranks
    link_free_s: dict[tuple[int, int], float] = {}
    host_free_s = [0.0] * schedule.num_ranks
    result = Run()
    events = {0.0}
    while events:
        clock = min(events)
        events.remove(clock)
        for rank, waiting in enumerate(blocks):
            while waiting:
                on_host = waiting[0][0].kind in (O, L)
                free_s = max(rank_free_s[rank], host_free_s[rank] if on_host else 0.0)
                start_s = _start_s(schedule, costs, result, free_s, waiting[0])
                if start_s is None or start_s > clock:
                    events |= {start_s} - {None}
                    break
                block = waiting.pop(0)
                end_s = start_s + _block_s(schedule, costs, block)
                if on_host:
                    host_free_s[rank] = end_s
                else:
                    rank_free_s[rank] = end_s
                for action in block:
                    result.start_s[action], result.end_s[action] = start_s, end_s
                    rank_free_s[rank] += _send(schedule, costs, result, link_free_s, rank, action)
                events |= {end_s, rank_free_s[rank], *map(result.arrival_s.get, block)} - {None}
    result.deadlocked = any(blocks)
    assert result.deadlocked or len(result.end_s) == sum(map(len, orders))
    return result


def _blocks(schedule: Schedule, costs: ScheduleCosts, rank: int) -> list[list[Action]]:
    """Actions one by one, overlapped pairs together."""
    order = list(schedule.order(rank))
    first = int(schedule.rank_offsets[rank])
    paired = set()
    for row in schedule.pairs.tolist():
        pair = order[row - first : row - first + 2] if row >= first else []
        if len(pair) == 2 and _overlaps(schedule, costs, pair):
            paired.add(row - first)
    return [
        order[at : at + 2] if at in paired else [action]
        for at, action in enumerate(order)
        if at - 1 not in paired
    ]


def _alone_s(schedule: Schedule, costs: ScheduleCosts, action: Action) -> float:
    extra_s = 0.0
    if costs.slice_s.size:
        of_slice = action.microbatch % schedule.num_slices
        extra_s = float(costs.slice_s[action.kind, action.stage, of_slice])
    return float(costs.duration_s[action.kind, action.stage]) + extra_s


def _overlaps(schedule: Schedule, costs: ScheduleCosts, pair: list[Action]) -> bool:
    if _is_measured(costs, pair):
        return True
    apart_s = sum(_alone_s(schedule, costs, action) for action in pair)
    return bool(costs.network_s.size) and _block_s(schedule, costs, pair) < apart_s


def _is_measured(costs: ScheduleCosts, pair: list[Action]) -> bool:
    return pair[1].kind in (I, B) and costs.pair_s[pair[0].stage] < float("inf")


def _block_s(schedule: Schedule, costs: ScheduleCosts, block: list[Action]) -> float:
    each_s = [_alone_s(schedule, costs, action) for action in block]
    if len(block) == 1:
        return each_s[0]
    if _is_measured(costs, block):
        return float(costs.pair_s[block[0].stage])
    network_s = sum(float(costs.network_s[action.kind, action.stage]) for action in block)
    return max(*each_s, network_s, sum(each_s) - network_s)


def needs(schedule: Schedule, action: Action) -> list[tuple[Action, ...]]:
    """For each need of an action, the alternatives that meet it."""
    kind, s, j = action
    length = schedule.placement.num_stages // schedule.placement.num_pipelines
    if kind is F:
        return [(Action(F, s - 1, j),)] if s % length else []
    if kind in (W, D, L, V):
        return [(Action({W: I, D: O, L: O, V: F}[kind], length - 1 if kind is V else s, j),)]
    shards = [owned[0] for owned in schedule.placement.stages_of_rank if owned]
    if kind is T:
        return [(Action(V, shard, j),) for shard in shards]
    own: list[tuple[Action, ...]] = [(Action(F, s, j),)]
    if kind is O:
        return own
    if bool((schedule.actions == (O, s, j)).all(axis=1).any()):
        own.append((Action(L, s, j),))
    if kind is R:
        return own
    if s % length == length - 1:
        gate = [None, V, T][schedule.head_barriers]
        return [*own, *((Action(gate, shard, j),) for shard in shards if gate is not None)]
    return [*own, (Action(I, s + 1, j), Action(B, s + 1, j))]


def _start_s(
    schedule: Schedule, costs: ScheduleCosts, result: Run, free_s: float, block: list[Action]
) -> float | None:
    arrivals, receiving_s = [0.0], 0.0
    for action in block:
        for alternatives in needs(schedule, action):
            met = [need for need in alternatives if need in result.end_s]
            if not met:
                return None
            if met[0].kind in (V, T) or action.kind is V:
                arrivals.append(result.end_s[met[0]] + costs.barrier_s)
            elif met[0].kind in (O, L):
                arrivals.append(result.end_s[met[0]])
            elif met[0].stage != action.stage:
                arrivals.append(result.arrival_s[met[0]])
                receiving_s += _busy_s(costs, _transfer_s(schedule, costs, met[0]))
    return max(*arrivals, free_s + receiving_s)


def _neighbour(schedule: Schedule, action: Action) -> int | None:
    """The stage that needs the output of `action`."""
    length = schedule.placement.num_stages // schedule.placement.num_pipelines
    if action.kind is F and (action.stage + 1) % length:
        return action.stage + 1
    if action.kind in (I, B) and action.stage % length:
        return action.stage - 1
    return None


def _transfer_s(schedule: Schedule, costs: ScheduleCosts, action: Action) -> float:
    ranks = schedule.placement.rank_of_stage
    neighbour = _neighbour(schedule, action)
    if neighbour is None or ranks[neighbour] == ranks[action.stage]:
        return 0.0
    if action.kind is F:
        return float(costs.forward_transfer_s[action.stage])
    return float(costs.backward_transfer_s[neighbour])


def _busy_s(costs: ScheduleCosts, transfer_s: float) -> float:
    blocking = costs.transfer_model is TransferModel.BLOCKING
    return costs.blocking_fraction * transfer_s if blocking else 0.0


def _send(
    schedule: Schedule,
    costs: ScheduleCosts,
    result: Run,
    link_free_s: dict[tuple[int, int], float],
    rank: int,
    action: Action,
) -> float:
    """Note when the output arrives; returns for how long sending keeps the rank busy."""
    neighbour = _neighbour(schedule, action)
    if neighbour is None:
        return 0.0
    transfer_s = _transfer_s(schedule, costs, action)
    begin_s = result.end_s[action]
    receiver = schedule.placement.rank_of_stage[neighbour]
    if costs.transfer_model is TransferModel.LINK and receiver != rank:
        begin_s = max(begin_s, link_free_s.get((rank, receiver), 0.0))
        link_free_s[rank, receiver] = begin_s + transfer_s
    result.arrival_s[action] = begin_s + transfer_s
    return _busy_s(costs, transfer_s)


def peak_bytes(schedule: Schedule, costs: ScheduleCosts, rank: int) -> float:
    """Highest level of a rank: allocations at starts, releases at ends; pairs as one action."""
    memory = costs.memory
    level = peak = float(memory.static_bytes[rank])
    for block in _blocks(schedule, costs, rank):
        delta = [float(memory.delta_bytes[kind, stage]) for kind, stage, _ in block]
        level += sum(max(each, 0.0) for each in delta)
        beside = sum(float(memory.transient_bytes[kind, stage]) for kind, stage, _ in block)
        peak = max(peak, level + beside)
        level += sum(min(each, 0.0) for each in delta)
    return peak


def makespan_s(result: Run) -> float:
    return max(result.end_s.values()) - min(result.start_s.values())
