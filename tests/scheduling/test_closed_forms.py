"""What is known on paper: bubble, peak and work at unit times, and the formulas for other times.

At unit times and zero transfers a bubble is the span minus the busiest rank's work, in slots of one
chunk. Sources: Qi et al., ICLR 2024 and NeurIPS 2024; Narayanan et al., SC 2021; DualPipeV.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.plans.schedule import ActionKind, Placement, ScheduleCosts
from trainwright.scheduling.families import FAMILIES, FamilyRequest, generate
from trainwright.scheduling.orders import cut_microbatches
from trainwright.scheduling.simulate import simulate, validate
from trainwright.scheduling.weight_grads import list_schedule

F, I, W, B, R, O, D, L, V, T = ActionKind  # noqa: E741
SIZES = [2, 3, 4, 5, 6, 7, 8, 9, 12]


def bubble_and_peak(name: str, p: int, m: int, **options: int) -> tuple[float, int]:
    """At unit times; checks the work on the way."""
    schedule = generate(name, FamilyRequest(num_ranks=p, num_microbatches=m, **options))
    costs = ScheduleCosts.of(schedule.placement)
    timeline = simulate(schedule, costs)
    chunks = schedule.placement.num_stages // p
    assert timeline.work_by_rank_s.tolist() == [3.0 * m * chunks] * p
    return timeline.span_s - 3 * m * chunks, max(schedule.peak_activations)


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("rounds", [2, 4])
def test_bubbles_and_peaks_at_unit_times(p, rounds):
    m = rounds * p

    def known(name: str, **options: int) -> tuple[float, int]:
        return bubble_and_peak(name, p, m, **options)

    assert known("gpipe") == (3 * (p - 1), m)
    assert known("1f1b") == (3 * (p - 1), p)
    assert known("eager-1f1b") == (3 * (p - 1), 2 * p - 1)
    assert known("zb-h1") == (p - 1, p)
    assert known("zb-h2") == (0, 2 * p - 1)
    assert known("zb-1p") == (p - 1, p)
    assert known("zb-2p")[0] == 0
    assert known("zb-2p")[1] <= 2 * p
    for v in (1, 2, 3):
        assert known("interleaved", virtual_stages=v) == (3 * (p - 1), p * (v + 1) - 1)
        half = ceil(p / 2)
        assert known("gis", virtual_stages=v) == (2 * (p - 1), p * (v - 1) + p)
        gis_h = (2 * (p - 1) + (p - half) * (v - 1), half * (v - 1) + p)
        assert bubble_and_peak("gis-h", p, 2 * rounds * half, virtual_stages=v) == gis_h
        assert known("breadth-first", virtual_stages=v) == (3 * (p - 1), m * v)
    assert known("depth-first") == known("interleaved")


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("rounds", [2, 4])
def test_bubbles_and_peaks_in_v_at_unit_times(p, rounds):
    m = rounds * p

    def known(name: str) -> tuple[float, int]:
        return bubble_and_peak(name, p, m)

    assert known("zb-v") == (0, 2 * p)
    assert known("zb-v-handmade") == (0, 2 * p)
    assert known("wave") == (0, 2 * p)
    assert known("dualpipe-v") == (p - 1, 2 * p + 1)
    half = 1 if p == 2 else 3 * p - (4 if p % 2 else 7)
    third = 4 * p - (5 if p % 3 else 7)
    assert known("v-half")[0] <= half
    assert known("v-half")[1] <= 2 * (p // 2) + 2
    assert known("v-min")[0] <= third
    assert known("v-min")[1] <= 2 * ((p + 4) // 3)
    whole = {2: 4, 3: 8, 6: 22, 9: 36, 12: 52}.get(p, 5 * p - (5 if p % 3 == 1 else 7))
    assert known("1f1b-v")[0] <= whole
    assert known("1f1b-v")[1] == 2 * (2 * p // 3) + 2


@pytest.mark.parametrize("p", [2, 3, 5, 8])
@pytest.mark.parametrize("v", [1, 2, 3, 4, 5])
def test_a_wave_in_the_memory_of_1f1b_loses_at_most_one_stair(p, v):
    bubble, peak = bubble_and_peak("wave", p, 2 * p, virtual_stages=v)
    assert bubble <= p - 1
    assert peak <= v * p


@pytest.mark.parametrize("p", [4, 5, 8])
def test_adaptive_v_reaches_the_formula_at_every_limit(p):
    """3p-1-3k + max(3p, p+1+2ceil(k/2)), which is the bound 6p-1-3k up to k = 2p-2."""
    m = 2 * p
    for limit in range(2 * ((p + 4) // 3), 2 * p + 1):
        bubble, peak = bubble_and_peak("adaptive-v", p, m, max_activations=limit)
        assert bubble <= 3 * p - 1 - 3 * limit + max(3 * p, p + 1 + 2 * ceil(limit / 2))
        if limit <= 2 * p - 2:
            assert bubble >= 6 * p - 1 - 3 * limit
        assert peak <= limit


@pytest.mark.parametrize("p", SIZES)
def test_zero_bubble_schedules_hold_the_same_everywhere(p):
    for name, held in (("zb-h1", p), ("zb-h2", 2 * p - 1), ("zb-v-handmade", 2 * p)):
        schedule = generate(name, FamilyRequest(num_ranks=p, num_microbatches=4 * p))
        assert set(schedule.peak_activations) == {held}


@given(
    p=st.integers(2, 8),
    forward_s=st.sampled_from([1.0, 1.25, 1.5]),
    input_grad_s=st.sampled_from([1.0, 1.25, 1.5]),
    weight_grad_s=st.sampled_from([0.5, 0.75, 1.0]),
)
@cases(40)
def test_bubbles_for_other_times(p, forward_s, input_grad_s, weight_grad_s):
    """(p-1)(F+I-W), (p-1)(F+I-2W), and for groups (p-1)(F+I) + (v-1)(p-g)(F+I-W)."""
    f, i, w = forward_s, input_grad_s, weight_grad_s
    rounds = {"zb-h1": f + i - w, "zb-h2": f + i - 2 * w, "gis": f + i}
    for name, lost in rounds.items():
        schedule = generate(name, FamilyRequest(num_ranks=p, num_microbatches=4 * p))
        costs = ScheduleCosts.of(schedule.placement, forward_s=f, input_grad_s=i, weight_grad_s=w)
        timeline = simulate(schedule, costs)
        work_s = timeline.work_by_rank_s.max()
        assert timeline.span_s - work_s == pytest.approx(max((p - 1) * lost, 0.0))


# Schedules that use more than the computation of one pipeline
# ------------------------------------------------------------


def idle_and_peak(name: str, p: int, m: int, *, times: dict | None = None, **options: int):
    """Idle time of the makespan, at the times given or one slot each, and activations held."""
    request = FamilyRequest(num_ranks=p, num_microbatches=m, **options)
    costs = ScheduleCosts.of(FAMILIES[name].place(request), **(times or {}))
    schedule = generate(name, replace(request, costs=costs))
    validate(schedule)
    timeline = simulate(schedule, costs)
    return timeline.makespan_s - timeline.work_by_rank_s.max(), max(schedule.peak_activations)


@pytest.mark.parametrize("p", [2, 4, 6, 8])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_chimera_loses_p_minus_2_equal_slots(p, rounds):
    """Li and Hoefler, SC 2021, table 2: (D-2)/(2N+D-2), between D/2+1 and D activations."""
    halves = {"forward_s": 1.0, "input_grad_s": 0.5, "weight_grad_s": 0.5}
    idle, peak = idle_and_peak("chimera", p, rounds * p, times=halves)
    assert idle == p - 2
    assert p // 2 <= peak <= p
    schedule = generate("chimera", FamilyRequest(num_ranks=p, num_microbatches=4 * p))
    assert min(schedule.peak_activations) == p // 2 + 1


@pytest.mark.parametrize("stages", [2, 4, 8, 16])
@pytest.mark.parametrize(("overlapped_s", "weight_grad_s"), [(3.0, 1.0), (2.5, 0.75)])
@pytest.mark.parametrize(("name", "stages_of_rank"), [("dualpipe", 1), ("dualpipe-v", 2)])
def test_dualpipe_and_its_half_lose_what_their_authors_say(
    name, stages_of_rank, stages, overlapped_s, weight_grad_s
):
    """DeepSeek-V3, table 2, and the table of its program: (PP/2-1)(F&B + B - 3W), PP+1 held.

    The half has PP/2 ranks, each with two stages of the one copy of the model.
    """
    times = {"weight_grad_s": weight_grad_s, "pair_s": overlapped_s}
    idle, peak = idle_and_peak(name, stages // stages_of_rank, 4 * stages, times=times)
    backward_s = 1.0 + weight_grad_s
    assert idle <= (stages / 2 - 1) * (overlapped_s + backward_s - 3 * weight_grad_s) + 1e-9
    assert peak == stages + 1


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_2bp_loses_one_stair_and_keeps_every_microbatch(p, rounds):
    """Rae et al., table 1, 1F1B: (N-1)/(4N-1) where there are as many microbatches as ranks."""
    assert idle_and_peak("2bp", p, rounds * p) == (p - 1, rounds * p)


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("slices", [1, 2, 4, 8])
def test_seq1f1b_fills_the_pipeline_with_slices(p, slices):
    idle, peak = idle_and_peak("seq1f1b", p, 2 * p, num_slices=slices)
    assert (idle, peak) == (3 * (p - 1), p + slices - 1)


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize("rounds", [1, 2])
def test_slimpipe_holds_one_microbatch_and_a_few_slices(p, v, rounds):
    """Li et al., table 2: (p-1)/(nvm) of the work, 1/p + 2(p-1)/(npv) of a microbatch."""
    options = {"num_slices": rounds * p, "virtual_stages": v}
    idle, peak = idle_and_peak("slimpipe", p, 3, **options)
    assert (idle, peak) == (3 * (p - 1), v * rounds * p + 2 * (p - 1))


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize(("name", "barriers"), [("vocab-1", 2), ("vocab-2", 1)])
def test_a_cut_head_costs_one_activation_per_barrier_and_no_time(name, barriers, p):
    """Yeung et al., figure 10: p+2 and p+1 microbatches, and no rank waits in the steady state."""
    times = {"head_s": 1.0}
    few, peak = idle_and_peak(name, p, 4 * p, times=times)
    many, _ = idle_and_peak(name, p, 8 * p, times=times)
    assert few == many <= 3 * (p - 1)
    assert peak == p + barriers


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", ["vocab-1", "vocab-2"])
def test_a_cut_head_that_takes_no_time_leaves_1f1b_as_short_as_it_is(name, p):
    """Barriers alone cost memory, and no rank waits for one: also where the pipeline drains."""
    for m in (1, 2, p, 4 * p):
        request = FamilyRequest(num_ranks=p, num_microbatches=m)
        costs = ScheduleCosts.of(FAMILIES[name].place(request))
        schedule = generate(name, replace(request, costs=costs))
        validate(schedule)
        assert simulate(schedule, costs).makespan_s == 3 * (m + p - 1)


def test_with_less_room_a_cut_head_with_two_barriers_waits_in_every_round():
    p, grown = 8, []
    for m in (4 * p, 8 * p):
        placement = Placement.loop(p)
        costs = ScheduleCosts.of(placement, head_s=1.0)
        streams = [[(kind, rank) for kind in (B, V, F, T)] for rank in range(p)]
        schedule = list_schedule(
            streams,
            placement=placement,
            num_microbatches=m,
            costs=costs,
            held=[p - rank for rank in range(p)],
            head_barriers=2,
        )
        timeline = simulate(schedule, costs)
        grown.append(timeline.makespan_s - timeline.work_by_rank_s.max())
    assert grown[1] > grown[0] + p


@pytest.mark.parametrize("p", [4, 8, 12])
def test_offloading_everything_holds_four_activations_at_the_speed_of_1f1b(p):
    free = idle_and_peak("po-f", p, 4 * p, times={"offload_s": 1.5})
    assert free == (3 * (p - 1), 4)
    slow, peak = idle_and_peak("po-f", p, 4 * p, times={"offload_s": 3.0})
    assert slow > 3 * (p - 1) * 2  # the link is now the slowest: two copies of 3 per round of 3
    assert peak == 4


@pytest.mark.parametrize("p", [4, 8])
def test_offloading_the_longer_half_saves_more_than_half(p):
    _, whole = idle_and_peak("gis", p, 4 * p)
    idle, peak = idle_and_peak("po-h", p, 4 * p, times={"offload_s": 1.0})
    assert idle <= 3 * (p - 1)
    assert peak <= whole / 2


@pytest.mark.parametrize("p", [4, 8])
def test_more_waves_lose_less_time(p):
    waves = (1, 2, 4)
    found = [idle_and_peak("hanayo", p, p, virtual_stages=2 * w) for w in waves]
    lost = [idle / (2 * w) for w, (idle, _) in zip(waves, found, strict=True)]
    assert lost == sorted(lost, reverse=True)
    assert all(peak <= 2 * w * (p + 1) - 1 for w, (_, peak) in zip(waves, found, strict=True))
    assert lost[0] == 2 * (p - 1)
    assert all(idle <= 4.4 * (p - 1) for idle, _ in found)  # in chunk slots hardly more than one's
    # More microbatches than ranks follow each other without a bubble for each round of p.
    rounds = [idle_and_peak("hanayo", p, k * p, virtual_stages=2)[0] for k in (1, 2, 4, 8)]
    assert max(rounds) <= 4.4 * (p - 1)


@pytest.mark.parametrize("p", [2, 4, 8, 16])
@pytest.mark.parametrize("waves", [1, 2, 3, 4])
def test_waves_lose_no_more_than_hanayos_own_form(p, waves):
    """(2P - 2) / (3PW + P - 1) of a step of P microbatches whose backward takes two forwards.

    Liu et al., SC 2023, without exchanges. Ours lose less where waves are few: 4(p - 1) chunk slots
    or hardly more, where the form has up to 6(p - 1); at four waves both are alike.
    """
    idle, _ = idle_and_peak("hanayo", p, p, virtual_stages=2 * waves)
    lost = idle / (idle + 3 * p * 2 * waves)
    published = (2 * p - 2) / (3 * p * waves + p - 1)
    assert 0.8 * published <= lost <= 1.02 * published


@given(share=st.sampled_from([0.0, 0.3, 1.0]), slices=st.integers(1, 6), seconds=st.floats(0.5, 3))
@cases(25)
def test_slices_of_a_microbatch_add_up_to_it(share, slices, seconds):
    whole = ScheduleCosts.of(Placement.loop(2), forward_s=seconds)
    cut = cut_microbatches(whole, slices, attention_share=share)
    forward = cut.compute_s[F, 0] * slices
    forward += cut.slice_s[F, 0].sum() if cut.slice_s.size else 0.0
    assert forward == pytest.approx(seconds)
    later = np.diff(cut.slice_s[F, 0]) if cut.slice_s.size else np.zeros(0)
    assert later == pytest.approx(2 * share * seconds / slices**2)


def test_dualpipe_v_gains_from_overlap():
    request = FamilyRequest(num_ranks=4, num_microbatches=16)
    schedule = generate("dualpipe-v", request)
    apart = simulate(schedule, ScheduleCosts.of(schedule.placement))
    together = simulate(schedule, ScheduleCosts.of(schedule.placement, pair_s=2.5))
    assert apart.makespan_s == apart.span_s == 6 * 16 + 3
    assert together.makespan_s < apart.makespan_s
    kinds = schedule.actions[schedule.pairs, 0]
    assert (kinds == ActionKind.F).all()


@pytest.mark.parametrize("p", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("times", [(1, 1, 1), (3, 4, 2), (4, 5, 3)])
def test_stp_loses_the_published_bubble_and_hides_the_network_in_its_steady_state(p, times):
    """Bubble (p-1)(F + I - W); what the network leaves exposed does not grow with m."""
    f, i, w = times
    exposed = []
    for m in (3 * p - 1, 4 * p, 6 * p):
        schedule = generate("stp", FamilyRequest(num_ranks=p, num_microbatches=m))
        costs = {"forward_s": f, "input_grad_s": i, "weight_grad_s": w}
        alone = simulate(schedule, ScheduleCosts.of(schedule.placement, **costs))
        assert alone.makespan_s == 2 * m * (f + i + w) + (p - 1) * (f + i - w)
        assert max(schedule.peak_activations) == max(3 * p + 1, 4 * p - 1)
        between = np.where(schedule.actions[:, 0] == F, 1, 0)
        between[np.isin(schedule.actions[:, 0], [I, B])] = -1
        slices = map(schedule.rows_of, range(p))
        assert {int(np.cumsum(between[rows]).max()) for rows in slices} == {3 * p + 1}
        network = {F: 0.25 * f, I: 0.25 * i}
        braided = simulate(
            schedule, ScheduleCosts.of(schedule.placement, **costs, network_s=network)
        )
        hidden = 2 * m * 0.25 * (f + i)  # were all of it hidden
        exposed.append(braided.makespan_s - (2 * m * (f + i + w) - hidden))
    assert exposed[0] == pytest.approx(exposed[1]) == pytest.approx(exposed[2])


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [3, 4])
def test_stp_exposes_the_network_of_2p_and_1_forwards(p, rounds):
    """Whole backwards hide their exchange under their weight gradients, as the authors count."""
    schedule = generate("stp", FamilyRequest(num_ranks=p, num_microbatches=rounds * p))
    ends = np.zeros(schedule.num_actions, np.bool_)
    ends[schedule.pairs] = ends[schedule.pairs + 1] = True
    alone = (schedule.actions[:, 0] == F) & ~ends
    counts = [int(alone[schedule.rows_of(rank)].sum()) for rank in range(p)]
    assert max(counts) == 2 * p + 1
    assert min(counts) == 2 * p


def test_stp_of_few_microbatches_leaves_out_those_that_are_not_there():
    for m in (1, 3, 7):
        schedule = generate("stp", FamilyRequest(num_ranks=4, num_microbatches=m))
        validate(schedule)
        assert max(schedule.peak_activations) <= 15
