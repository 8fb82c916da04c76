"""The schedule simulator in readable Python: events in time order, one dictionary per idea.

The native simulator never looks at a clock; this one does nothing else. Both must agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainwright.plans.schedule import Action, ActionKind, Schedule
from trainwright.plans.schedule_costs import ScheduleCosts, TransferModel

F, I, W, B, R = ActionKind  # noqa: E741


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
    result = Run()
    events = {0.0}
    while events:
        clock = min(events)
        events.remove(clock)
        for rank, waiting in enumerate(blocks):
            while waiting:
                start_s = _start_s(schedule, costs, result, rank_free_s[rank], waiting[0])
                if start_s is None or start_s > clock:
                    events |= {start_s} - {None}
                    break
                block = waiting.pop(0)
                end_s = start_s + _block_s(costs, block)
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
    paired = {
        row - first
        for row in schedule.pairs.tolist()
        if 0 <= row - first < len(order) and costs.pair_s[order[row - first].stage] < float("inf")
    }
    return [
        order[at : at + 2] if at in paired else [action]
        for at, action in enumerate(order)
        if at - 1 not in paired
    ]


def _block_s(costs: ScheduleCosts, block: list[Action]) -> float:
    if len(block) == 2:
        return float(costs.pair_s[block[0].stage])
    return float(costs.duration_s[block[0].kind, block[0].stage])


def needs(schedule: Schedule, action: Action) -> list[tuple[Action, ...]]:
    """For each need of an action, the alternatives that meet it."""
    kind, s, j = action
    last = schedule.placement.num_stages - 1
    if kind is F:
        return [(Action(F, s - 1, j),)] if s > 0 else []
    if kind is W:
        return [(Action(I, s, j),)]
    own: list[tuple[Action, ...]] = [(Action(F, s, j),)]
    if kind is R or s == last:
        return own
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
            if met[0].stage != action.stage:
                arrivals.append(result.arrival_s[met[0]])
                receiving_s += _busy_s(costs, _transfer_s(schedule, costs, met[0]))
    return max(*arrivals, free_s + receiving_s)


def _neighbour(schedule: Schedule, action: Action) -> int | None:
    """The stage that needs the output of `action`."""
    if action.kind is F and action.stage < schedule.placement.num_stages - 1:
        return action.stage + 1
    if action.kind in (I, B) and action.stage > 0:
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
    """Highest level of a rank: allocations at starts, releases at ends."""
    memory = costs.memory
    level = peak = float(memory.static_bytes[rank])
    for kind, stage, _ in schedule.order(rank):
        delta = float(memory.delta_bytes[kind, stage])
        level += max(delta, 0.0)
        peak = max(peak, level + float(memory.transient_bytes[kind, stage]))
        level += min(delta, 0.0)
    return peak


def makespan_s(result: Run) -> float:
    return max(result.end_s.values()) - min(result.start_s.values())
