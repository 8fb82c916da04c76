"""Why orders cannot run: the cycle of waits.

Every rank that does not finish waits for one action, which its rank runs only after the action it
waits with itself. Following these waits from rank to rank ends in a cycle, or at an action that no
rank runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainwright.plan.schedule import Action, ActionKind

if TYPE_CHECKING:
    from trainwright._native._core import Simulation
    from trainwright.plan.lowered import LoweredAction
    from trainwright.plan.schedule import Schedule

_F, _I, _W, _B, _R = ActionKind


class Wait(NamedTuple):
    """`action`, next on `rank`, waits for `needed` of `needed_rank`, if that ever runs it."""

    rank: int
    action: Action | LoweredAction
    needed: Action | LoweredAction
    needed_rank: int
    exists: bool = True


def find_cycle(schedule: Schedule, simulation: Simulation) -> tuple[Wait, ...]:
    """The waits that form a cycle, or a single wait for an action that nobody runs."""
    waits: dict[int, Wait] = {}
    blocked = simulation.blocked_rows.tolist()
    rank = next(rank for rank, row in enumerate(blocked) if row >= 0)
    while rank not in waits:
        wait = _wait_of(schedule, simulation, rank, blocked[rank])
        if not wait.exists:
            return (wait,)
        waits[rank] = wait
        rank = wait.needed_rank
    chain = list(waits.values())
    return tuple(chain[list(waits).index(rank) :])


def describe_cycle(cycle: tuple[Wait, ...]) -> str:
    """One sentence that a user can act on."""
    if not cycle[0].exists:
        wait = cycle[0]
        return f"{wait.action} on rank {wait.rank} waits for {wait.needed}, which no rank runs"
    links = [
        f"{wait.action} on rank {wait.rank} waits for {wait.needed}, "
        f"which rank {wait.needed_rank} runs only after {following.action}"
        for wait, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True)
    ]
    return "deadlock: " + "; ".join(links)


def _wait_of(schedule: Schedule, simulation: Simulation, rank: int, row: int) -> Wait:
    action = schedule.action(row)
    if _has_input(schedule, simulation, action):
        action = schedule.action(row + 1)  # the forward of a pair waits for its backward's input
    needed = _missing_input(schedule, simulation, action)
    owner = schedule.placement.rank_of_stage[needed.stage]
    start, end = schedule.rank_offsets[owner : owner + 2]
    later = schedule.actions[max(start, simulation.blocked_rows[owner]) : end]
    same = (later[:, 1] == needed.stage) & (later[:, 2] == needed.microbatch)
    fused = same & (later[:, 0] == _B)
    if needed.kind is _I and fused.any():
        needed = needed._replace(kind=_B)
    exists = bool((same & (later[:, 0] == needed.kind)).any())
    exists = exists and simulation.blocked_rows[owner] >= 0
    return Wait(rank, action, needed, owner, exists)


def _has_input(schedule: Schedule, simulation: Simulation, action: Action) -> bool:
    if action.kind is not _F or action.stage == 0:
        return action.kind is _F
    producer = (action.stage - 1) * schedule.num_microbatches + action.microbatch
    return bool(simulation.forward_arrival_s[producer] >= 0)


def _missing_input(schedule: Schedule, simulation: Simulation, action: Action) -> Action:
    kind, stage, microbatch = action
    if kind is _F:
        return Action(_F, stage - 1, microbatch)
    if kind is _W:
        return Action(_I, stage, microbatch)
    ran_forward = simulation.forward_arrival_s[stage * schedule.num_microbatches + microbatch] >= 0
    if kind is _R or not ran_forward:
        return Action(_F, stage, microbatch)
    return Action(_I, stage + 1, microbatch)
