"""The rows of a sweep: from plans to totals, and which row is best."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.plan.results.model_sweep import SweepRow
from trainwright.plan.status import OPTIMAL_TOLERANCE, Status, relative_gap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.api.sweep_goal import Goal
    from trainwright.plan.results.model_plan import ModelPlanResult
    from trainwright.planning.objectives import Objective, Outcome

NEVER: Final = float("inf")


def best_row(rows: Sequence[SweepRow], goal: Goal) -> int | None:
    """The row of the least score, the first where several are; None where none counts."""
    scores = [row_score(row, goal, goal.objective) for row in rows]
    best = scores.index(min(scores))
    return best if scores[best] < NEVER else None


def pareto_rows(rows: Sequence[SweepRow], goal: Goal) -> tuple[int, ...]:
    """The rows that no other beats in both objectives, fewest devices first."""
    from trainwright.planning.objectives import pareto

    if not goal.pareto:
        return ()
    one, other = goal.pareto
    return tuple(
        sorted(pareto([(row_score(row, goal, one), row_score(row, goal, other)) for row in rows]))
    )


def row_score(row: SweepRow, goal: Goal, objective: Objective) -> float:
    """What the objective makes least; infinite without a plan or beyond the deadline."""
    from trainwright.planning.objectives import score

    if row.step_time_s is None:
        return NEVER
    return score(objective, _outcome(row, goal), deadline_s=goal.training.deadline_s)


def sweep_status(rows: Sequence[SweepRow], goal: Goal) -> Status:
    """How much is proved of the rows together; infeasible where none can meet the deadline."""
    found = {row.status for row in rows}
    if best_row(rows, goal) is None:
        done = found <= {Status.OPTIMAL, Status.GAP, Status.INFEASIBLE}
        late = all(_is_late(row, goal) for row in rows if row.step_time_s is not None)
        return Status.INFEASIBLE if done and late else Status.UNKNOWN
    proved = found <= {Status.OPTIMAL, Status.INFEASIBLE}
    return Status.OPTIMAL if proved else Status.GAP


def _is_late(row: SweepRow, goal: Goal) -> bool:
    """Whether even a step as short as its bound would miss the deadline."""
    deadline_s = goal.training.deadline_s
    if deadline_s is None or row.train_s is None or row.step_time_s is None:
        return False
    return row.train_s * ((row.lower_bound_s or 0.0) / row.step_time_s) > deadline_s


def plan_row(size: int, plan: ModelPlanResult, goal: Goal) -> SweepRow:
    """The row of a plan on at most `size` devices."""
    row = SweepRow(
        devices=size,
        status=plan.status,
        lower_bound_s=plan.lower_bound_s,
        lower_bound_all_s=plan.lower_bound_all_s,
        reason=plan.binding.description if plan.binding else None,
        search_s=plan.search_s,
    )
    if plan.step_time_s is None:
        return row
    row = replace(
        row,
        devices_used=plan.devices_used,
        step_time_s=plan.step_time_s,
        step_time_low_s=plan.step_time_low_s,
        step_time_high_s=plan.step_time_high_s,
        gap=plan.gap,
        tokens_per_s=plan.tokens_per_s,
        tokens_per_s_per_device=plan.tokens_per_s_per_device,
        mfu=plan.mfu,
        parallelism=plan.parallelism,
        schedule=plan.schedule,
        micro_batch=plan.micro_batch,
        peak_memory_bytes=max(plan.peak_memory_bytes_per_rank),
    )
    return with_totals(row, goal)


def on_more_devices(plan: ModelPlanResult, own: ModelPlanResult) -> ModelPlanResult:
    """A plan as the answer of a search on more devices that found none as fast, with its bound."""
    step_s, bound_s = plan.step_time_s or 0.0, own.lower_bound_s or 0.0
    all_s = own.lower_bound_all_s
    gap = relative_gap(step_s, bound_s)
    gap_all = None if all_s is None else relative_gap(step_s, all_s)
    return replace(
        plan,
        status=Status.OPTIMAL if max(gap, gap_all or 0.0) <= OPTIMAL_TOLERANCE else Status.GAP,
        lower_bound_s=min(bound_s, step_s),
        gap=gap,
        lower_bound_all_s=None if all_s is None else min(all_s, step_s),
        gap_all=gap_all,
        interrupted=own.interrupted,
        considered=own.considered,
        pruned=own.pruned,
        not_reached=own.not_reached,
        search_s=own.search_s,
        request=own.request,
    )


def with_totals(row: SweepRow, goal: Goal) -> SweepRow:
    """The row with what the whole training takes; as it is where there is no plan."""
    if row.step_time_s is None:
        return row
    total = _outcome(row, goal)
    return replace(
        row,
        goodput=total.goodput.share,
        checkpoint_interval_s=total.goodput.interval_s,
        train_s=total.train_s,
        cost=total.cost,
        energy_j=total.energy_j,
    )


def _outcome(row: SweepRow, goal: Goal) -> Outcome:
    from trainwright.planning.objectives import outcome

    assert row.devices_used and row.step_time_s is not None and row.tokens_per_s
    return outcome(
        goal.training,
        devices=row.devices_used,
        step_time_s=row.step_time_s,
        tokens_per_s=row.tokens_per_s,
        checkpoint_bytes=goal.checkpoint_bytes,
    )
