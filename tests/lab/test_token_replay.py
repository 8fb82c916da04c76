"""A replay of tokens agrees with what is legal, and says where orders are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies_schedule import schedules_with_costs
from trainwright.errors import InvalidInput
from trainwright.lab.token_replay import replay_tokens
from trainwright.plans.lowered import LoweredAction, LoweredKind, LoweredSchedule
from trainwright.plans.schedule import Placement, ScheduleMemory
from trainwright.scheduling.families import FAMILIES, FamilyRequest, generate
from trainwright.scheduling.lower import lower
from trainwright.scheduling.simulate import simulate


@given(schedules_with_costs())
def test_legal_orders_run_to_their_end_with_the_simulated_memory(drawn):
    schedule, costs = drawn
    lowered = lower(schedule, costs=costs)
    found = replay_tokens(lowered, costs.memory)
    assert found.num_steps == len(lowered.actions)
    assert found.peak_activations == schedule.peak_activations
    assert found.peak_bytes == pytest.approx(simulate(schedule, costs).peak_bytes.tolist())


@pytest.mark.parametrize("family", [name for name in FAMILIES if FAMILIES[name].is_plain])
def test_every_family_runs_to_its_end(family):
    schedule = generate(family, FamilyRequest(num_ranks=4, num_microbatches=8))
    memory = ScheduleMemory.of(schedule.placement)
    found = replay_tokens(lower(schedule), memory)
    assert found.peak_activations == schedule.peak_activations


@given(schedules_with_costs(), st.data())
def test_no_step_can_be_missing(drawn, data):
    schedule, costs = drawn
    lowered = lower(schedule, costs=costs)
    needed = np.flatnonzero(lowered.actions[:, 0] != LoweredKind.R).tolist()
    row = data.draw(st.sampled_from(needed))
    try:
        broken = lowered.without(row)
    except InvalidInput:
        return  # too few actions for so many stages and microbatches
    with pytest.raises(InvalidInput):
        replay_tokens(broken, costs.memory)


def written(*orders: str) -> LoweredSchedule:
    rows = [[LoweredAction.parse(text) for text in order.split()] for order in orders]
    return LoweredSchedule(
        placement=Placement.loop(len(rows)),
        num_microbatches=1 + max(step.microbatch for row in rows for step in row),
        actions=np.array([step for row in rows for step in row], np.int32),
        rank_offsets=np.cumsum([0, *map(len, rows)]),
    )


SOUND = (
    "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD",
    "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1REDUCE_GRAD",
)


def swapped(order: str, one: str, other: str) -> str:
    return " ".join({one: other, other: one}.get(cell, cell) for cell in order.split())


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        (
            (SOUND[0], swapped(SOUND[1], "1F0", "1B0")),
            "orders[1][1]: 1B0 comes when its stage has done nothing of it",
        ),
        (
            (SOUND[0], SOUND[1].replace("1RECV_F1 ", "")),
            "orders[1][4]: 1F1 runs when its input has not arrived",
        ),
        (
            (swapped(SOUND[0], "0SEND_F0", "0SEND_F1"), SOUND[1]),
            "orders[0][1]: 0SEND_F1 sends what was not made, or was sent before",
        ),
        (
            (SOUND[0], swapped(SOUND[1], "1RECV_F0", "1RECV_F1")),
            "orders[1][0]: 1RECV_F1 gets what was sent as 0SEND_F0",
        ),
        (
            (SOUND[0].replace(" 0RECV_B1", ""), SOUND[1]),
            "orders[0][6]: 0B1 runs when the gradient of its output has not arrived",
        ),
        (
            ("0RECV_B0 0F0 0SEND_F0 0B0 0REDUCE_GRAD", "1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE_GRAD"),
            "orders[0][0]: no rank can go on: rank 0 waits at 0RECV_B0, rank 1 waits at 1RECV_F0",
        ),
        (
            (SOUND[0].removesuffix(" 0REDUCE_GRAD"), SOUND[1]),
            "orders[0]: 0REDUCE_GRAD is missing",
        ),
        (
            (SOUND[0].replace("0B1 0REDUCE_GRAD", "0REDUCE_GRAD 0B1"), SOUND[1]),
            "orders[0][8]: 0B1 comes after the gradients were reduced",
        ),
        (
            (SOUND[0].replace(" 0B1", " 1B1"), SOUND[1]),
            "orders[0][7]: 1B1 is on rank 0, its stage on 1",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(orders, said):
    assert orders != SOUND
    lowered = written(*orders)
    with pytest.raises(InvalidInput) as refused:
        replay_tokens(lowered, ScheduleMemory.of(lowered.placement))
    assert str(refused.value) == said


def test_the_sound_orders_pass():
    lowered = written(*SOUND)
    found = replay_tokens(lowered, ScheduleMemory.of(lowered.placement))
    assert (found.num_messages, found.peak_activations) == (4, (2, 1))
