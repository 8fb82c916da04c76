"""Schedule documents read back: the same, or refused where they contradict themselves."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

import trainwright
from reference import needs_reference, reference
from trainwright.documents.open import load_document
from trainwright.documents.schedule import ScheduleResult
from trainwright.errors import InvalidInput
from trainwright.formats.schedule_json import ScheduleSpec
from trainwright.pages.command import command_of
from trainwright.scheduling.families import FAMILIES

SIZE = {"ranks": 3, "microbatches": 6}


def without_value(value) -> bool:
    """Whether some key, at any depth, is there without a value."""
    if isinstance(value, dict):
        return any(entry is None or without_value(entry) for entry in value.values())
    return isinstance(value, list) and any(entry is None or without_value(entry) for entry in value)


@pytest.mark.parametrize(
    "asked",
    [
        {"family": "dualpipe-v"},
        {"family": "v-half", "forward": "3ms", "input_grad": "3ms", "weight_grad": "2ms"},
        {"search": True, "memory_limit": 2, "evaluations": 2000},
        {"pareto": True, "placement": "v"},
        {"family": "1f1b", "memory_limit": 1},
        {"family": "1f1b", "memory_limit": 0},
    ],
    ids=str,
)
def test_a_document_is_read_as_it_was_written(asked, tmp_path):
    report = trainwright.schedule(**SIZE, **asked)
    report.save(tmp_path / "doc.json")
    assert load_document(tmp_path / "doc.json") == report.document
    assert not without_value(report.to_dict())
    assert trainwright.explain(tmp_path / "doc.json").explain() == report.explain()


@pytest.fixture
def edited(tmp_path):
    """The message for a document with some values changed by hand."""
    value = trainwright.schedule(family="zb-h1", **SIZE).to_dict()

    def refuse(**changes) -> str:
        (tmp_path / "doc.json").write_text(json.dumps(value | changes), encoding="utf-8")
        with pytest.raises(InvalidInput) as refused:
            load_document(tmp_path / "doc.json")
        return str(refused.value)

    return refuse


def test_an_edited_figure_is_refused_by_name(edited):
    assert "makespan_s: must be 20.0, as the request gives, got 19.0" in edited(makespan_s=19.0)
    assert "peak_activations" in edited(peak_activations=1)
    assert "chunks_per_rank" in edited(chunks_per_rank=2)


def test_a_claim_that_does_not_follow_is_refused(edited):
    assert "lower_bound_s: must be from 0 to the 20.0 found, got 21.0" in edited(lower_bound_s=21.0)
    assert "lower_bound_s: must be 20.0" in edited(lower_bound_s=10.0)
    assert "gap: must be 0.0" in edited(lower_bound_s=10.0, gap=0.5)
    assert 'status: must be "gap"' in edited(lower_bound_s=10.0, gap=0.5, status="optimal")
    assert "status: must fit a document without orders" in edited(orders=[], rank_of_stage=[])
    assert "objective: must be makespan or span" in edited(objective="cost")


def test_what_its_request_and_orders_give_cannot_be_edited(edited):
    own = trainwright.schedule(family="zb-h1", **SIZE).to_dict()
    assert "family: must be zb-h1" in edited(family="zb-v")
    both = edited(family="1f1b", request=own["request"] | {"family": "1f1b"})
    assert "family: must be another, whose orders these are" in both
    assert "family: must be given" in edited(request=own["request"] | {"method": "simulate"})
    assert "request.method: must be one of" in edited(request=own["request"] | {"method": "luck"})
    assert "bound: must be rank-work, as the request gives, got solver" in edited(bound="solver")
    assert "fits: must be True" in edited(fits=False)
    assert "interrupted: must be False" in edited(interrupted=True)
    assert "found_by: must be nothing" in edited(found_by="solver")
    assert "status: must be optimal" in edited(status="gap")
    other = own | {"request": own["request"] | {"max_activations": 2}}
    assert "status: must be infeasible" in edited(**other)


LOOKED_FOR = {"search": True, "evaluations": 1, "placement": "loop", "virtual_stages": 2}
LOOKED_FOR |= {"weight_grad": 0.1, "comm": 0.7}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "zb-v"}, "family: must be search"),
        ({"found_by": "1f1b"}, "found_by: must be search"),
        ({"found_by": "solver"}, "found_by: must be search"),
        ({"bound": "solver"}, "bound: must be "),
        ({"bound": "solver", "solver_s": 1.0}, "bound: must be "),
        ({"bound": "two-ranks"}, "bound: must be "),  # nothing is limited
        ({"lower_bound_s": 1.0, "gap": 0.9}, "lower_bound_s: must be "),
        ({"tried": 3}, "tried: must be nothing"),
        ({"fits": False}, "fits: must be True"),
    ],
    ids=str,
)
def test_what_is_said_of_a_search_is_held_against_its_orders(changes, message, tmp_path):
    found = trainwright.schedule(**SIZE, **LOOKED_FOR)
    assert found.document.gap > 0.01
    (tmp_path / "doc.json").write_text(json.dumps(found.to_dict() | changes), encoding="utf-8")
    with pytest.raises(InvalidInput) as refused:
        load_document(tmp_path / "doc.json")
    assert message in str(refused.value)


def test_a_request_of_another_size_is_refused(tmp_path):
    asked = {"ranks": 2, "microbatches": 3, "evaluations": 50}
    value = trainwright.schedule(search=True, placement="v", memory_limit=3, **asked).to_dict()
    larger = value["request"] | {"num_ranks": 4}
    for changes, message in (
        ({"request": larger}, "request.num_ranks: must be 2, as in the orders, got 4"),
        ({"parts_per_stage": -1}, "parts_per_stage: must be >= 1, got -1"),
    ):
        (tmp_path / "doc.json").write_text(json.dumps(value | changes), encoding="utf-8")
        with pytest.raises(InvalidInput) as refused:
            trainwright.explain(tmp_path / "doc.json")
        assert message in str(refused.value)
    with pytest.raises(InvalidInput, match="parts_per_stage: must be >= 1"):
        trainwright.schedule(simulate=tmp_path / "doc.json")


def test_a_solvers_bound_is_believed_where_a_solver_was_asked_for(tmp_path):
    value = trainwright.schedule(**SIZE, **LOOKED_FOR).to_dict()
    proved = {"bound": "solver", "lower_bound_s": value["makespan_s"], "gap": 0.0}
    value |= {**proved, "status": "optimal", "solver_s": 1.0, "interrupted": True}
    value["request"] |= {"method": "exact"}
    (tmp_path / "doc.json").write_text(json.dumps(value), encoding="utf-8")
    assert load_document(tmp_path / "doc.json").bound == "solver"


def test_points_of_a_front_are_priced_again(tmp_path):
    asked = {"pareto": True, "search": True, "evaluations": 1, "placement": "v"}
    value = trainwright.schedule(**SIZE, **asked).to_dict()
    for key, lie, message in (
        ("makespan_s", 1.0, "points[0].makespan_s: must be"),
        ("family", "1f1b", "points[0].family: must be"),
        ("bound", "solver", "points[0].bound: must be"),
        ("peak_activations", 1, "points[0].peak_activations: must be"),
    ):
        points = [value["points"][0] | {key: lie}, *value["points"][1:]]
        text = json.dumps(value | {"points": points})
        (tmp_path / "doc.json").write_text(text, encoding="utf-8")
        with pytest.raises(InvalidInput) as refused:
            load_document(tmp_path / "doc.json")
        assert message in str(refused.value)


def test_of_another_version_families_and_bounds_are_let_through_with_a_warning(tmp_path):
    value = trainwright.schedule(family="zb-h1", **SIZE).to_dict()
    value["request"] |= {"trainwright_version": "0.0.1", "family": "1f1b"}
    value |= {"family": "1f1b", "bound": "window"}
    (tmp_path / "doc.json").write_text(json.dumps(value), encoding="utf-8")
    (warning,) = load_document(tmp_path / "doc.json").warnings
    assert warning.startswith("made by version 0.0.1; ")
    (tmp_path / "doc.json").write_text(json.dumps(value | {"span_s": 1.0}), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"span_s: must be 20\.0"):
        load_document(tmp_path / "doc.json")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_document_of_every_family_asks_for_what_was_asked_and_is_read_again(family, tmp_path):
    report = trainwright.schedule(family=family, ranks=2, microbatches=4)
    report.save(tmp_path / "doc.json")
    assert report.document.request.num_microbatches == 4
    assert load_document(tmp_path / "doc.json") == report.document


def test_the_bound_beside_orders_that_break_a_limit_holds_for_them(tmp_path):
    """Within the limit one microbatch must follow another: no bound on that is about them."""
    spec = ScheduleSpec(
        forward_s=(1.0,),
        input_grad_s=(1.0,),
        weight_grad_s=(1.0,),
        forward_bytes=(2.0,),
        input_grad_bytes=(1.0,),
        limit_bytes=(1.0,),
    )
    orders = trainwright.schedule(family="1f1b", ranks=2, microbatches=2)
    for limits in ({"spec": spec}, {"memory_limit": 0}):
        over = trainwright.schedule(simulate=orders.timeline.schedule, **limits)
        found = over.document
        assert (found.fits, found.makespan_s, found.lower_bound_s) == (False, 9.0, 7.0)
        assert found.bound_at_peak.lower_bound_s <= 9.0
        over.save(tmp_path / "doc.json")
        assert load_document(tmp_path / "doc.json") == found


def test_orders_that_are_not_legal_are_refused(edited):
    assert "either B or I must run once" in edited(orders=["0F0", "1F0", "2F0"], microbatches=1)
    assert 'must look like "3F0"' in edited(orders=["hello", "", ""])


@needs_reference
@pytest.mark.parametrize("costs", ["unit_F_I_W_comm0", "F3_I4_W2_comm1"])
def test_published_orders_have_the_published_prices(costs):
    times = {"forward": 1, "input_grad": 1, "weight_grad": 1, "comm": 0}
    if costs != "unit_F_I_W_comm0":
        times = {"forward": 3, "input_grad": 4, "weight_grad": 2, "comm": 1}
    folder = reference() / "schedules" / "csv"
    rows = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    assert rows
    for row in rows:
        found = trainwright.schedule(simulate=folder / row["file"], **times).document
        assert found.makespan_s == row[costs]["makespan"], row["file"]
        assert found.span_s == row[costs]["span"], row["file"]
        assert list(found.peak_activations_per_rank) == row[costs]["peak_chunks"], row["file"]


# When a key is there.
TOLD = {
    "always": (
        "kind",
        "format_version",
        "status",
        "objective",
        "family",
        "ranks",
        "microbatches",
        "interrupted",
        "warnings",
        "request",
    ),
    "with a schedule": (
        "lower_bound_s",
        "bound",
        "bound_kind",
        "gap",
        "bound_at_peak",
        "chunks_per_rank",
        "rank_of_stage",
        "makespan_s",
        "span_s",
        "bubble_of_makespan",
        "bubble_of_span",
        "peak_activations",
        "peak_activations_per_rank",
        "fits",
        "critical_path",
        "orders",
    ),
    "where a search tried several": ("bound_at_placement",),
    "after a search or front": ("found_by",),
    "of more than the computation of one pipeline": ("pipelines", "slices", "head_barriers"),
    "where that is more than 1": ("parts_per_stage",),
    "where the spec gives bytes": (
        "peak_memory_bytes",
        "peak_memory_bytes_per_rank",
    ),
    "where `status` is `infeasible`": ("binding",),
    "after `--pareto`": ("points",),
    "after `--verify`": ("verification",),
    "after a search": (
        "evaluations",
        "tried",
    ),
    "for what was done": (
        "generate_s",
        "search_s",
        "solver_s",
    ),
}


def told_keys() -> dict[str, str]:
    return {key: when for when, keys in TOLD.items() for key in keys}


def test_it_is_told_of_every_key_when_it_is_there():
    assert set(told_keys()) == {field.name for field in fields(ScheduleResult)}


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        ({"family": "1f1b"}, {"always", "with a schedule"}),
        ({"family": "1f1b", "memory_limit": 1}, {"always", "where `status` is `infeasible`"}),
        (
            {"search": True, "evaluations": 50},
            {
                *("always", "with a schedule", "after a search or front", "after a search"),
                *("where a search tried several", "where that is more than 1"),
            },
        ),
    ],
)
def test_keys_are_there_when_they_should_be(asked, there):
    document = json.loads(trainwright.schedule(ranks=2, microbatches=3, **asked).to_json())
    held = {key for key, value in document.items() if value not in ([], ())}
    told = told_keys()
    wanted = {key for key, when in told.items() if when in there} - {"warnings"}
    by_work = {key for key, when in told.items() if when == "for what was done"}
    assert held - by_work - {"warnings"} == wanted


@pytest.mark.parametrize(
    "asked",
    [
        {"family": "interleaved", "ranks": 4, "microbatches": 8},
        {
            "family": "1f1b",
            "ranks": 3,
            "microbatches": 5,
            "comm": "0.3ms",
            "forward": "3ms",
            "input_grad": "4ms",
            "weight_grad": "2ms",
        },
    ],
)
def test_the_command_of_a_schedule_runs_as_it_is_printed(run, asked):
    found = trainwright.schedule(**asked).document
    printed = command_of(found)
    assert printed.note == ""
    again = run(*printed.words[1:], "--json")
    assert again.code == 0
    made = again.document
    assert made["request"]["costs"]["sha256"] == found.request.costs.sha256
    assert (made["makespan_s"], made["ranks"]) == (found.makespan_s, found.ranks)
