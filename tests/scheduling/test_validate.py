import numpy as np
import pytest
from hypothesis import given

from strategies_schedule import schedules
from trainwright.errors import InvalidInput
from trainwright.plans.schedule import Action, Placement, Schedule
from trainwright.scheduling.simulate import validate


def written(*orders: str, pairs: tuple[int, ...] = ()) -> Schedule:
    rows = [[Action.parse(text) for text in order.split()] for order in orders]
    return Schedule.from_orders(rows, pairs=pairs)


@given(schedules())
def test_schedules_built_by_readiness_are_legal(schedule):
    validate(schedule)


@pytest.mark.parametrize(
    ("orders", "problem"),
    [
        (("0F0 0F1 0B0",), "orders: either B or I must run once for stage 0 microbatch 1, got 1 F"),
        (("0F0 0F0 0B0",), "orders: F must run once for stage 0 microbatch 0, got 2 F, 1 B"),
        (("0F0 0I0",), "orders: W must run once where I does, and only there"),
        (("0F0 0B0 0W0",), "orders: W must run once where I does, and only there"),
        (("0F0 0I0 0B0 0W0",), "orders: either B or I must run once"),
        (("0F0 0R0 0R0 0B0",), "orders: R must run at most once"),
        (("0F0 0W0 0I0",), "orders[0][1]: 0W0 must come after 0I0"),
        (("0B0 0F0",), "orders[0][0]: 0B0 must come after 0F0"),
        (("0F0 0B0 0R0",), "orders[0][1]: 0B0 must come after 0R0"),
        (("0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1"), "orders: deadlock: 0B0 on rank 0 waits for 1B0"),
    ],
)
def test_the_first_broken_law_is_named(orders, problem):
    with pytest.raises(InvalidInput) as refused:
        validate(written(*orders))
    assert str(refused.value).startswith(problem)


def test_an_action_on_a_rank_that_does_not_own_its_stage_is_refused():
    schedule = Schedule(
        placement=Placement.loop(2),
        num_microbatches=1,
        actions=np.array([[0, 1, 0], [3, 1, 0], [0, 0, 0], [3, 0, 0]]),
        rank_offsets=np.array([0, 2, 4]),
    )
    with pytest.raises(InvalidInput, match="1F0 must run on rank 1, which owns stage 1"):
        validate(schedule)


def test_a_backward_cannot_run_together_with_the_forward_that_it_needs():
    with pytest.raises(InvalidInput, match="deadlock"):
        validate(written("0F0 0B0", pairs=(0,)))


@pytest.mark.parametrize("pairs", [(1,), (3,)])
def test_a_pair_begins_with_a_forward(pairs):
    with pytest.raises(InvalidInput, match="a pair must be F and then F, I, W or B on one rank"):
        validate(written("0F0 0B0 0F1 0B1", pairs=pairs))


@pytest.mark.parametrize(
    ("order", "row"),
    [("0F0 0F1 0B0 0B1", 1), ("0F0 0F1 0B0 0B1", 0), ("0F0 0I0 0F1 0W0 0I1 0W1", 2)],
)
def test_a_pair_of_a_forward_and_another_computation_is_legal(order, row):
    validate(written(order, pairs=(row,)))


def test_a_stage_on_two_ranks_is_refused():
    with pytest.raises(InvalidInput, match="stage 0 must be on one rank, is also on rank 0"):
        written("0F0 0B0", "0F1 0B1")


def test_a_placement_that_misses_a_stage_is_refused():
    with pytest.raises(InvalidInput, match="misses stage 1; no rank owns it"):
        written("0F0 0B0", "2F0 2B0")
