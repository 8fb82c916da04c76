from hypothesis import given
from hypothesis import strategies as st

from trainwright.plans.schedule import ScheduleCosts
from trainwright.scheduling.families import FamilyRequest, generate
from trainwright.scheduling.simulate import simulate

ranks = st.integers(1, 8)
microbatches = st.integers(1, 20)
times = st.sampled_from([0.5, 1.0, 2.0, 3.25])


@given(ranks, microbatches, times, times, times)
def test_the_bubble_is_one_stair_up_and_one_down(p, m, f, i, w):
    schedule = generate("1f1b", FamilyRequest(num_ranks=p, num_microbatches=m))
    costs = ScheduleCosts.of(schedule.placement, forward_s=f, input_grad_s=i, weight_grad_s=w)
    timeline = simulate(schedule, costs)
    assert timeline.span_s == timeline.makespan_s == (m + p - 1) * (f + i + w)
    assert max(schedule.peak_activations) == min(m, p)


@given(ranks, microbatches)
def test_eager_warm_up_costs_memory_and_no_time(p, m):
    request = FamilyRequest(num_ranks=p, num_microbatches=m)
    plain, eager = generate("1f1b", request), generate("eager-1f1b", request)
    costs = ScheduleCosts.of(plain.placement)
    assert simulate(eager, costs).makespan_s == simulate(plain, costs).makespan_s
    assert max(eager.peak_activations) == min(m, 2 * p - 1)


def test_eager_warm_up_hides_transfers():
    """Specification of eager 1F1B: p=8, m=32, unit times, transfers 1: bubble 35 instead of 89."""
    request = FamilyRequest(num_ranks=8, num_microbatches=32)
    bubbles = []
    for name in ("1f1b", "eager-1f1b"):
        schedule = generate(name, request)
        costs = ScheduleCosts.of(schedule.placement, transfer_s=1.0)
        bubbles.append(simulate(schedule, costs).span_s - 3 * 32)
    assert bubbles == [89.0, 35.0]


def test_unequal_stages_wait_for_the_slowest():
    schedule = generate("1f1b", FamilyRequest(num_ranks=3, num_microbatches=8))
    costs = ScheduleCosts.of(
        schedule.placement,
        forward_s=[1.0, 3.0, 2.0],
        input_grad_s=[1.0, 3.0, 2.0],
        weight_grad_s=[1.0, 3.0, 2.0],
        transfer_s=0.5,
    )
    timeline = simulate(schedule, costs)
    # Rank 1 computes 72 s and cannot start before stage 0's forward, nor end after its backward.
    assert timeline.work_by_rank_s.tolist() == [24.0, 72.0, 48.0]
    assert timeline.makespan_s >= 1.5 + 72.0 + 2.5
