"""`trainwright.schedule` from Python."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainwright
from trainwright.documents.schedule import KINDS
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.execution import Budget
from trainwright.formats.schedule_json import LARGEST_AMOUNT, ScheduleSpec
from trainwright.plans.schedule import Action, ActionKind, Placement, Schedule
from trainwright.plans.status import Status
from trainwright.scheduling.families import FAMILIES

SIZE = {"ranks": 3, "microbatches": 6}
UNEQUAL = ScheduleSpec(
    forward_s=(1.0, 2.0, 1.5, 1.0, 1.0, 3.0), input_grad_s=(1.0,), weight_grad_s=(0.5,)
)


def same(first, second) -> bool:
    """Two documents, but for the time it took."""
    blank = {"generate_s": None, "search_s": None, "solver_s": None}
    return replace(first.document, **blank) == replace(second.document, **blank)


def test_numbers_and_plain_text_are_the_same_slots():
    by_number = trainwright.schedule(family="1f1b", forward=2, comm=0.5, **SIZE)
    by_text = trainwright.schedule(family="1f1b", forward="2", comm="0.5", **SIZE)
    assert same(by_number, by_text)


def test_the_report_answers_for_its_document():
    report = trainwright.schedule(family="gpipe", **SIZE)
    assert report.status in (Status.OPTIMAL, Status.GAP)
    assert report.makespan_s == report.timeline.makespan_s == report.document.makespan_s
    assert str(report).startswith("gpipe on 3 ranks")


@given(scale=st.floats(0.01, 100), family=st.sampled_from(["gpipe", "1f1b", "depth-first"]))
def test_times_scaled_by_a_factor_scale_every_time_by_it(scale, family):
    times = {"forward": 1.0, "input_grad": 1.5, "weight_grad": 0.5, "comm": 0.25}
    one = trainwright.schedule(family=family, **times, **SIZE).document
    scaled = {name: value * scale for name, value in times.items()}
    other = trainwright.schedule(family=family, **scaled, **SIZE).document
    for key in ("makespan_s", "span_s", "lower_bound_s"):
        assert getattr(other, key) == pytest.approx(getattr(one, key) * scale)
    assert other.bubble_of_span == pytest.approx(one.bubble_of_span)


@given(
    ranks=st.integers(1, 5),
    microbatches=st.integers(1, 9),
    comm=st.floats(0, 3),
    objective=st.sampled_from(["makespan", "span"]),
)
def test_no_schedule_beats_its_bounds(ranks, microbatches, comm, objective):
    found = trainwright.schedule(
        family="1f1b", ranks=ranks, microbatches=microbatches, comm=comm, objective=objective
    ).document
    value_s = found.makespan_s if objective == "makespan" else found.span_s
    assert found.lower_bound_s <= value_s * (1 + 1e-12)
    assert found.bound_at_peak.lower_bound_s <= value_s * (1 + 1e-12)
    assert 0 <= found.gap < 1


def test_the_critical_path_fills_the_makespan():
    found = trainwright.schedule(family="interleaved", comm=0.3, **SIZE).document
    path = found.critical_path
    assert sum(path.by_kind_s.values()) + path.transfer_s == pytest.approx(found.makespan_s)
    assert sum(path.by_rank_s) == pytest.approx(sum(path.by_kind_s.values()))
    assert sum(path.waits_for.values()) == path.num_actions


@pytest.mark.parametrize("family", ["po-f", "po-h", "vocab-1", "vocab-2", "chimera"])
def test_whatever_is_on_the_critical_path_has_a_word(family, tmp_path):
    times = {"forward_s": (1.0,), "input_grad_s": (1.0,), "weight_grad_s": (1.0,)}
    spec = ScheduleSpec(**times, offload_s=(9.0,), head_s=(2.0,))
    report = trainwright.schedule(family=family, ranks=4, microbatches=8, spec=spec)
    said = report.explain()
    for kind in report.document.critical_path.by_kind_s:
        assert KINDS[kind] in said
    report.save(tmp_path / "s.json")
    trainwright.report(tmp_path / "s.json")


@pytest.mark.slow
def test_a_search_copies_to_the_host_where_the_spec_says_how_long_that_takes(tmp_path):
    times = {"forward_s": (3.0,), "input_grad_s": (4.0,), "weight_grad_s": (2.0,)}
    asked = {"search": True, "placement": "loop", "ranks": 4, "microbatches": 12, "evaluations": 50}
    asked |= {"virtual_stages": 1, "max_activations": 2}
    plain = trainwright.schedule(spec=ScheduleSpec(**times), **asked)
    best = trainwright.schedule(spec=ScheduleSpec(**times, offload_s=(1.0,)), **asked)
    assert best.makespan_s < 0.9 * plain.makespan_s
    assert best.document.lower_bound_s < plain.document.lower_bound_s  # it is about the host, too
    best.save(tmp_path / "best.json")
    again = trainwright.explain(tmp_path / "best.json")
    assert again.document == best.document
    assert trainwright.verify(best, level=1).passed


def test_more_memory_never_gives_a_slower_schedule():
    times = {"forward": 3, "input_grad": 4, "weight_grad": 2, "evaluations": 3000}
    asked = {"search": True, "placement": "v", "ranks": 2, "microbatches": 4}
    spans = [
        trainwright.schedule(memory_limit=limit, **asked, **times).makespan_s
        for limit in (2, 3, 4, None)
    ]
    assert spans == sorted(spans, reverse=True)


def test_a_search_is_never_worse_than_a_family_with_its_memory():
    named = trainwright.schedule(family="interleaved", spec=UNEQUAL, **SIZE).document
    found = trainwright.schedule(
        search=True,
        placement="loop",
        spec=UNEQUAL,
        memory_limit=named.peak_activations,
        evaluations=2000,
        **SIZE,
    ).document
    assert found.makespan_s <= named.makespan_s
    assert found.peak_activations <= named.peak_activations


def test_the_lists_of_a_spec_say_how_many_chunks_there_are():
    assert (
        trainwright.schedule(family="interleaved", spec=UNEQUAL, **SIZE).document.chunks_per_rank
        == 2
    )
    one = replace(UNEQUAL, forward_s=(1.0, 2.0, 1.0))
    assert trainwright.schedule(family="1f1b", spec=one, **SIZE).document.chunks_per_rank == 1
    with pytest.raises(InvalidInput, match="forward_s: must have 3 entries or 1 for 3 stages"):
        trainwright.schedule(family="1f1b", spec=UNEQUAL, **SIZE)


def test_a_schedule_noun_can_be_priced():
    order = [Action(kind, 0, 0) for kind in (ActionKind.F, ActionKind.B)]
    report = trainwright.schedule(simulate=Schedule.from_orders([order]))
    assert report.status is Status.OPTIMAL
    assert report.makespan_s == 3


def test_a_cut_stage_is_priced_again_as_a_part(tmp_path):
    asked = {"search": True, "ranks": 2, "microbatches": 4, "evaluations": 3000}
    found = trainwright.schedule(**asked)
    assert found.document.parts_per_stage > 1
    found.save(tmp_path / "any.json")
    again = trainwright.schedule(simulate=tmp_path / "any.json")
    assert again.makespan_s == found.makespan_s
    own = found.document.bound_at_placement
    assert again.document.lower_bound_s == own.lower_bound_s >= found.document.lower_bound_s
    assert trainwright.explain(tmp_path / "any.json").document == found.document


@pytest.mark.parametrize("limit", [None, 2, 3])
@pytest.mark.parametrize("times", [{}, {"comm": 0.3}, {"forward": 2.0, "weight_grad": 0.5}])
def test_bound_gap_and_status_of_an_open_placement_agree(limit, times):
    found = trainwright.schedule(
        search=True, ranks=2, microbatches=3, memory_limit=limit, evaluations=300, **times
    ).document
    own = found.bound_at_placement
    assert found.tried > 1
    assert found.lower_bound_s <= own.lower_bound_s * (1 + 1e-9)
    assert own.lower_bound_s <= found.makespan_s * (1 + 1e-9)
    assert found.gap == pytest.approx(1 - found.lower_bound_s / found.makespan_s, abs=1e-9)
    assert found.gap >= own.gap - 1e-9
    assert (found.status is Status.OPTIMAL) == (found.gap <= 1e-9)


def test_a_bound_on_every_placement_tried_proves_the_best_of_them():
    found = trainwright.schedule(
        search=True, placement="any", ranks=3, microbatches=5, evaluations=1000
    ).document
    assert (found.makespan_s, found.lower_bound_s, found.gap) == (15.5, 15.5, 0.0)
    assert found.status is Status.OPTIMAL


@pytest.mark.parametrize("method", [{"family": "v-half"}, {"search": True, "evaluations": 50}])
def test_the_largest_times_are_added_up_without_overflow(method):
    one = trainwright.schedule(**method, placement="v", **SIZE).document
    times = dict.fromkeys(("forward", "input_grad", "weight_grad"), LARGEST_AMOUNT)
    largest = trainwright.schedule(**method, placement="v", **times, **SIZE).document
    assert largest.makespan_s == pytest.approx(one.makespan_s * LARGEST_AMOUNT)
    assert largest.gap == pytest.approx(one.gap)


@pytest.mark.parametrize("name", ["forward_s", "transfer_s", "forward_bytes", "static_bytes"])
def test_an_amount_in_a_spec_that_would_overflow_totals_is_named(name):
    ones = dict.fromkeys(("forward_s", "input_grad_s", "weight_grad_s"), (1.0,))
    with pytest.raises(InvalidInput, match=rf"{name}\[0\]: must be at most 1e\+100, so that"):
        ScheduleSpec(**{**ones, name: (1e308,)})


def recomputing() -> ScheduleSpec:
    """A rank with room for one activation, or for all where it recomputes."""
    return ScheduleSpec(
        forward_s=(2.0, 1.0),
        input_grad_s=(2.0,),
        weight_grad_s=(1.0,),
        transfer_s=(1.0,),
        forward_bytes=(4.0, 1.0),
        limit_bytes=(7.0, 3.0),
        recompute_saved_bytes=(3.0, 0.0),
        recompute_s=(0.5,),
    )


def test_a_bound_on_given_orders_holds_for_orders_that_recompute():
    stored = Schedule.from_orders(
        [
            [
                Action(kind, stage, microbatch)
                for microbatch in range(3)
                for kind in (ActionKind.F, ActionKind.B)
            ]
            for stage in range(2)
        ]
    )
    asked = {"spec": recomputing(), "ranks": 2, "microbatches": 3}
    alone = trainwright.schedule(simulate=stored, **asked).document
    found = trainwright.schedule(search=True, evaluations=200, **asked).document
    assert any("R" in row for row in found.orders)
    assert alone.lower_bound_s <= found.makespan_s < alone.makespan_s
    for more in ({}, {"search": True, "evaluations": 200}):
        front = trainwright.schedule(
            pareto=True, placement="loop", virtual_stages=1, **more, **asked
        ).document
        assert front.lower_bound_s <= found.makespan_s
        for point in front.points:
            roomy = point.peak_activations >= found.peak_activations
            assert not roomy or point.lower_bound_s <= found.makespan_s


@pytest.mark.parametrize("stages", [2, 4, 6])
def test_forwards_may_keep_nothing_where_gradients_do(stages):
    each = (1.0,) * stages
    spec = ScheduleSpec(
        forward_s=each,
        input_grad_s=each,
        weight_grad_s=each,
        forward_bytes=(2.0,),
        input_grad_bytes=(1.0,),
        limit_bytes=(9.0,),
        recompute_saved_bytes=(2.0,),
        recompute_s=(1.0,),
    )
    placement = "loop" if stages == 2 else "wave"
    asked = {"spec": spec, "ranks": 2, "microbatches": 3, "evaluations": 20}
    found = trainwright.schedule(search=True, placement=placement, **asked).document
    assert found.lower_bound_s <= found.makespan_s
    assert max(found.peak_memory_bytes_per_rank) <= 9.0


def test_what_is_recomputed_where_a_rank_waits_makes_no_step_longer(tmp_path):
    # Rank 0 recomputes before the first gradient comes back: 54 s was claimed of such pipelines.
    spec = ScheduleSpec(
        rank_of_stage=(0, 1),
        forward_s=(6.0, 3.0),
        input_grad_s=(4.0,),
        weight_grad_s=(3.0, 1.0),
        backward_s=(6.0, 5.5),
        transfer_s=(4.0,),
        forward_bytes=(1.0, 4.0),
        input_grad_bytes=(1.0, 0.0),
        static_bytes=(3.0, 2.0),
        limit_bytes=(5.0, 6.0),
        recompute_saved_bytes=(0.5, 2.0),
        recompute_s=(5.0, 3.0),
    )
    report = trainwright.schedule(search=True, spec=spec, microbatches=3, evaluations=20)
    document = report.document
    assert document.makespan_s == 52.0
    assert document.lower_bound_s <= document.bound_at_placement.lower_bound_s <= 52.0
    path = tmp_path / "schedule.json"
    report.save(path)
    assert "52 s" in str(trainwright.explain(path))


def test_one_placement_has_one_bound():
    found = trainwright.schedule(search=True, placement="v", evaluations=100, **SIZE).document
    assert found.bound_at_placement is None


def test_a_stage_is_not_cut_to_win_by_rounding():
    found = trainwright.schedule(search=True, ranks=1, microbatches=1).document
    assert (found.chunks_per_rank, found.makespan_s, found.lower_bound_s) == (1, 3.0, 3.0)
    assert found.status is Status.OPTIMAL


def test_unequal_stages_per_rank_are_taken_from_the_spec():
    placed = ScheduleSpec(
        forward_s=(1.0,), input_grad_s=(1.0,), weight_grad_s=(1.0,), rank_of_stage=(0, 0, 1, 1, 1)
    )
    report = trainwright.schedule(search=True, spec=placed, microbatches=4, evaluations=2000)
    assert report.document.rank_of_stage == (0, 0, 1, 1, 1)
    assert report.document.chunks_per_rank == 3


def test_an_interrupted_search_still_gives_a_schedule():
    budget = Budget()
    budget.interrupt()
    report = trainwright.schedule(search=True, placement="v", memory_limit=3, budget=budget, **SIZE)
    assert report.document.interrupted
    assert report.makespan_s >= report.document.lower_bound_s


def test_orders_that_pytorch_cannot_run_are_refused_where_they_are_written(tmp_path):
    order = Schedule.from_orders([[Action(kind, 0, 0) for kind in (ActionKind.F, ActionKind.B)]])
    idle = Schedule.of_ranks(
        [order.actions, order.actions[:0]],
        placement=Placement(rank_of_stage=(0,), num_ranks=2),
        num_microbatches=1,
    )
    report = trainwright.schedule(simulate=idle)
    report.save_orders(tmp_path / "idle.json")
    with pytest.raises(UnsupportedFeature, match="needs an action on every rank"):
        report.save_orders(tmp_path / "idle.csv")


def test_nothing_that_fits_can_neither_be_drawn_nor_written(tmp_path):
    report = trainwright.schedule(family="gpipe", memory_limit=0, **SIZE)
    assert report.status is Status.INFEASIBLE
    assert report.timeline is None
    for act in (report.save_gantt, report.save_orders):
        with pytest.raises(InvalidInput, match="there is none"):
            act(tmp_path / ("x.svg" if act == report.save_gantt else "x.csv"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_group_or_a_number_of_chunks_is_used_or_named_in_a_warning(family):
    size = {"family": family, "ranks": 4, "microbatches": 12}
    plain = trainwright.schedule(**size).document
    for name, value in (("group", 6), ("group", 3), ("virtual_stages", 3)):
        try:
            other = trainwright.schedule(**size, **{name: value}).document
        except InvalidInput as error:
            assert error.faults[0].path == name
            continue
        ignored = any(name.replace("_", "-") in warning for warning in other.warnings)
        assert (other.orders == plain.orders) == ignored, name


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"forward": float("nan")}, "forward: must be finite and >= 0, got nan"),
        ({"forward": -1.0}, "forward: must be finite and >= 0, got -1.0"),
        ({"forward": 1e308}, "forward: must be at most 1e.100, so that the total stays finite"),
        ({"comm": "1e101"}, "comm: must be at most 1e.100"),
        ({"forward": True}, "forward: must be a number or text with a unit, got True"),
        ({"memory_limit": -1}, "memory-limit: must be a whole number of activations"),
        ({"ranks": 2.5}, "ranks: must be a whole number from 1 to"),
        ({"group": 0}, "group: must be a whole number from 1 to"),
        ({"objective": "cost"}, "objective: must be makespan or span"),
    ],
)
def test_a_bad_argument_is_named(options, fault):
    with pytest.raises(InvalidInput, match=fault):
        trainwright.schedule(**{"family": "1f1b", **SIZE, **options})


def test_a_need_just_above_its_limit_is_printed_with_the_digits_that_differ():
    times = {"forward_s": (1.0,), "input_grad_s": (1.0,), "weight_grad_s": (1.0,)}
    spec = ScheduleSpec(**times, forward_bytes=(6.25,), limit_bytes=(6.0,))
    asked = {"ranks": 2, "microbatches": 2, "virtual_stages": 1, "placement": "loop"}
    report = trainwright.schedule(search=True, spec=spec, **asked)
    assert report.status is Status.INFEASIBLE
    assert "needs at least 6.25 B on rank 0" in str(report)
    assert "the limit is 6.0 B" in str(report)
