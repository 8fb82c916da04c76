"""Building blocks: what the block says holds for the schedule it repeats to."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies_schedule import placements
from trainwright.errors import InvalidInput
from trainwright.plans.schedule import Action, ActionKind, Placement, ScheduleCosts
from trainwright.scheduling import BuildingBlock, Pace, path_block, repeat
from trainwright.scheduling.families.grouped_interleaved import block as gis_block
from trainwright.scheduling.families.v_shape import one_f_one_b_block as one_f_one_b_v_block
from trainwright.scheduling.simulate import simulate, validate

F, I, W, B, R, *_ = ActionKind  # noqa: E741

paces = st.builds(Pace, st.integers(1, 5), st.integers(1, 3), st.integers(0, 3))
V_MIN_ON_TWO = BuildingBlock.of(
    Placement.v(2),
    period_slots=6,
    forward=[0, 1, 2, 3],
    input_grad=[7, 6, 5, 4],
    weight_grad=[8, 10, 9, 5],
)


def two_stages(**changes: list[float]) -> dict[str, object]:
    offsets = {"forward": [0, 1], "input_grad": [3, 2], "weight_grad": [4, 3], **changes}
    return {"placement": Placement.loop(2), "period_slots": 3, **offsets}


@given(placements(), paces, st.integers(1, 6))
def test_a_walk_gives_legal_schedules_without_collisions_or_lost_slots(placement, pace, m):
    block = path_block(placement, pace)
    assert not list(block.collisions())
    assert not list(block.early_starts())
    assert block.bubble_slots == 0
    validate(repeat(block, m))


@given(placements(), paces, st.integers(0, 9))
def test_a_long_schedule_holds_what_the_block_says(placement, pace, extra):
    shortest = path_block(placement, pace).period_slots
    block = path_block(placement, pace, period_slots=int(shortest) + extra)
    enough = 2 + int(block.lifespan_slots.max() // block.period_slots)
    peaks = repeat(block, 2 * enough).peak_activations
    assert peaks == block.peak_activations
    assert repeat(block, 1).peak_activations <= peaks


@given(placements(), paces, st.integers(1, 8), st.integers(0, 5))
def test_a_schedule_is_no_longer_than_its_block_says(placement, pace, m, extra):
    shortest = path_block(placement, pace).period_slots
    block = path_block(placement, pace, period_slots=int(shortest) + extra)
    schedule = repeat(block, m)
    one = max(slots.max() + 1 for slots in block.start_slots.values())
    makespan_s = simulate(schedule, ScheduleCosts.of(placement)).makespan_s
    assert makespan_s <= (m - 1) * block.period_slots + one
    assert block.bubble_slots == extra


@pytest.mark.parametrize("num_ranks", range(2, 13))
def test_whole_backwards_in_v_collide_nowhere(num_ranks):
    block = one_f_one_b_v_block(Placement.v(num_ranks))
    assert not list(block.collisions())
    assert max(block.peak_activations) == 2 * (2 * num_ranks // 3) + 2


@given(st.integers(2, 9), st.integers(1, 3), st.data())
def test_groups_fill_every_slot_of_a_period(num_ranks, chunks, data):
    group = data.draw(st.integers(-(-num_ranks // 2), num_ranks))
    placement = Placement.loop(num_ranks, virtual_stages=chunks)
    block = gis_block(placement, group=group, members=group)
    assert block.group == group
    assert block.bubble_slots == 0
    schedule = repeat(block, 3 * group)
    validate(schedule)
    assert max(schedule.peak_activations) == group * (chunks - 1) + num_ranks


def test_collisions_name_the_rank_and_both_actions():
    clash = BuildingBlock.of(**two_stages(period_slots=3, input_grad=[3, 2], weight_grad=[4, 3]))
    assert list(clash.collisions()) == [(0, Action(F, 0, 0), Action(I, 0, 0))]


def test_a_block_of_two_ranks_by_hand():
    assert not list(V_MIN_ON_TWO.collisions())
    assert not list(V_MIN_ON_TWO.early_starts())
    assert V_MIN_ON_TWO.lifespan_slots.ravel().tolist() == [9, 10, 8, 3]
    assert V_MIN_ON_TWO.peak_activations == (2, 4)
    assert V_MIN_ON_TWO.bubble_slots == 0
    first, second = (repeat(V_MIN_ON_TWO, 1).order(rank) for rank in (0, 1))
    assert " ".join(map(str, first)) == "0F0 3F0 3I0 3W0 0I0 0W0"
    assert " ".join(map(str, second)) == "1F0 2F0 2I0 1I0 2W0 1W0"


@pytest.mark.parametrize(
    ("offsets", "early"),
    [
        ({}, []),
        ({"forward": [0, 0.5]}, [(F, 1)]),
        ({"input_grad": [2, 2]}, [(I, 0)]),
        ({"input_grad": [3, 1]}, [(I, 1)]),
        ({"weight_grad": [4, 2]}, [(W, 1)]),
        ({"backward": [3, 2], "input_grad": None, "weight_grad": None}, [(B, 0)]),
    ],
)
def test_actions_before_their_input_are_named(offsets, early):
    block = BuildingBlock.of(**two_stages(**offsets))
    assert list(block.early_starts()) == [Action(kind, stage, 0) for kind, stage in early]


def test_a_longer_period_is_a_bubble_per_microbatch():
    block = BuildingBlock.of(**two_stages(period_slots=5))
    assert block.bubble_slots == 2
    assert block.peak_activations == (1, 1)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"period_slots": 0}, "period_slots: must be > 0, got 0"),
        ({"input_grad": None}, "start_slots: must hold F and B, F and I, or F, I and W, got F, W"),
        ({"backward": [3, 2]}, "start_slots: must hold F and B, F and I, or F, I and W"),
        ({"forward": [0, 1, 2, 3]}, "start_slots: must have one shape for all kinds"),
        ({"forward": [0, np.nan]}, "start_slots: must be finite"),
    ],
)
def test_offsets_that_cannot_be_are_refused(changes, problem):
    with pytest.raises(InvalidInput) as refused:
        BuildingBlock.of(**two_stages(**changes))
    assert str(refused.value).startswith(problem)
