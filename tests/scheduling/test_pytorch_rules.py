import numpy as np
import pytest
from hypothesis import given

from strategies_schedule import schedules
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.plans.schedule import Action, ActionKind, Placement, Schedule
from trainwright.scheduling.lower import as_pytorch_runs
from trainwright.scheduling.simulate import validate


def written(*orders: str) -> Schedule:
    return Schedule.from_orders([[Action.parse(text) for text in o.split()] for o in orders])


@given(schedules())
def test_the_last_stage_meets_its_microbatches_in_order(schedule):
    idle = (np.diff(schedule.rank_offsets) == 0).any()
    if idle or (schedule.actions[:, 0] == ActionKind.R).any():
        with pytest.raises(UnsupportedFeature):
            as_pytorch_runs(schedule)
        return
    renamed = as_pytorch_runs(schedule)
    validate(renamed)
    last = schedule.placement.num_stages - 1
    assert renamed.forward_order(last).tolist() == list(range(schedule.num_microbatches))
    assert renamed.actions[:, :2].tolist() == schedule.actions[:, :2].tolist()
    assert as_pytorch_runs(renamed) == renamed


def test_renaming_is_the_same_on_every_rank():
    given = written("0F0 0F1 0B1 0B0", "1F1 1F0 1B1 1B0")
    assert as_pytorch_runs(given) == written("0F1 0F0 0B0 0B1", "1F0 1F1 1B0 1B1")


def test_recompute_actions_are_refused_with_what_can_be_done():
    with pytest.raises(UnsupportedFeature, match="checkpoint inside the module"):
        as_pytorch_runs(written("0F0 0R0 0B0"))


def test_a_rank_without_actions_is_refused():
    schedule = Schedule(
        placement=Placement(rank_of_stage=(0,), num_ranks=2),
        num_microbatches=1,
        actions=np.array([[0, 0, 0], [3, 0, 0]]),
        rank_offsets=np.array([0, 2, 2]),
    )
    with pytest.raises(UnsupportedFeature, match="rank 1 has none; place a stage there"):
        as_pytorch_runs(schedule)


def test_an_illegal_schedule_is_refused_as_such():
    with pytest.raises(InvalidInput, match="deadlock: 0B0 on rank 0 waits for 1B0"):
        as_pytorch_runs(written("0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1"))
