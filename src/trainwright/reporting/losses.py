"""What a runner-up loses against the plan, without the rounding errors of sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trainwright.plan.results.model_plan import Alternative

NEGLIGIBLE: Final = 5e-4  # of the step: not worth a word


def main_losses(other: Alternative) -> tuple[tuple[str, float], ...]:
    """The one or two parts of the step in which it loses most, in seconds, largest first."""
    worst = sorted(other.lost_s.items(), key=lambda part: -part[1])[:2]
    return tuple(
        (name, lost_s) for name, lost_s in worst if lost_s > 0 and is_noticed(lost_s, other)
    )


def is_noticed(changed_s: float, other: Alternative) -> bool:
    """Whether a change is more than a negligible part of the step."""
    return abs(changed_s) >= NEGLIGIBLE * other.step_time_s
