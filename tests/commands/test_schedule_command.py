"""`trainwright schedule`: the document, the files beside it, refusals, signals."""

from __future__ import annotations

import json
import sys

import pytest

from trainwright.formats.schedule_json import parse_orders
from trainwright.scheduling.families import FAMILIES
from trainwright.scheduling.simulate import validate

PROMISED = {
    *("status", "objective", "family", "ranks", "microbatches", "chunks_per_rank"),
    *("makespan_s", "span_s", "bubble_of_span", "bubble_of_makespan"),
    *("peak_activations", "peak_activations_per_rank"),
    *("lower_bound_s", "bound", "bound_kind", "gap", "generate_s"),
}
SMALL = ("schedule", "--family", "interleaved", "--ranks", "4", "--microbatches", "8")
LOOKED_FOR = ("schedule", "--search", "--ranks", "2", "--microbatches", "4", "--placement", "v")
QUICK = ("--evaluations", "2000")
TIGHT = ("--memory-limit", "3")
SPEC = {
    "kind": "schedule_spec",
    "num_microbatches": 4,
    "rank_of_stage": [0, 1, 1, 0],
    "forward_s": [0.013, 0.012, 0.012, 0.015],
    "input_grad_s": [0.013],
    "weight_grad_s": [0.009],
    "transfer_s": [0.0007],
    "forward_bytes": [3e9],
    "input_grad_bytes": [-1e9],
    "static_bytes": [20e9, 22e9],
    "limit_bytes": [40e9],
}
SLOTS = {
    "kind": "schedule_spec",
    "forward_s": [1],
    "input_grad_s": [1],
    "weight_grad_s": [1],
}
DEADLOCK = "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"


@pytest.fixture
def spec(folder):
    (folder / "spec.json").write_text(json.dumps(SPEC), encoding="utf-8")
    return "spec.json"


def test_a_family_prints_one_document_with_the_promised_keys(run):
    done = run(*SMALL, "--forward", "1", "--input-grad", "1", "--weight-grad", "1", "--json")
    assert (done.code, done.err) == (0, "")
    document = done.document
    assert document.keys() >= PROMISED
    assert document["kind"] == "schedule"
    assert (document["ranks"], document["microbatches"], document["chunks_per_rank"]) == (4, 8, 2)
    assert document["span_s"] == 3 * 2 * 8 + 3 * (4 - 1)  # spec: bubble 3(p-1)
    assert document["peak_activations"] == 4 * (2 + 1) - 1
    assert document["bubble_of_span"] == pytest.approx(1 - 48 / 57)
    assert document["bound_kind"] == "proved"
    assert document["lower_bound_s"] <= document["makespan_s"]
    assert "peak_memory_bytes" not in document


def test_the_help_says_where_families_are_listed(run):
    help_text = " ".join(run("schedule", "--help").out.split())
    assert "trainwright catalog families" in help_text
    listed = run("catalog", "families").out
    assert all(family in listed for family in FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_asked_for_by_its_name(run, family):
    done = run("schedule", "--family", family, "--ranks", "4", "--microbatches", "16", "--json")
    assert done.code == 0, done.err
    assert done.document["family"] == family
    assert 0 <= done.document["gap"] < 1


def test_the_request_can_be_asked_again(run):
    first = run(*SMALL, "--comm", "0.5", "--json").document
    request = first["request"]
    assert (request["method"], request["family"]) == ("family", "interleaved")
    assert request["costs"]["content"]["transfer_s"] == [0.5]
    again = run(*SMALL, "--comm", "0.5", "--json").document
    for document in (first, again):
        document.pop("generate_s")
    assert first == again


def test_what_was_written_can_be_priced_again(run, folder):
    first = run(
        *SMALL, "--comm", "2", "-o", "doc.json", "--orders", "orders.csv", "--json"
    ).document
    run(*SMALL, "--orders", "orders.json", "--json")
    run(*SMALL, "--orders", "lowered.csv", "--orders-form", "compute_comms", "--json")
    assert "SEND_F" in (folder / "lowered.csv").read_text(encoding="utf-8")
    for name in ("orders.csv", "orders.json", "lowered.csv"):
        validate(parse_orders((folder / name).read_bytes(), source=name))
        again = run("schedule", "--simulate", name, "--comm", "2", "--json").document
        assert again["makespan_s"] == first["makespan_s"]
        assert again["orders"] == first["orders"]
    own_costs = run("schedule", "--simulate", "doc.json", "--json").document
    assert own_costs["makespan_s"] == first["makespan_s"]
    other = run("schedule", "--simulate", "doc.json", "--comm", "0", "--json").document
    assert other["makespan_s"] < first["makespan_s"]


def test_a_spec_for_other_microbatches_than_the_orders_is_named(run, spec):
    run("schedule", "--search", "--spec", spec, "--microbatches", "3", *QUICK, "-o", "three.json")
    done = run("schedule", "--simulate", "three.json", "--spec", spec)
    assert done.code == 2
    assert "num_microbatches: must be 3, as in the orders, or left out, got 4" in done.err
    assert run("schedule", "--simulate", "three.json").code == 0


def test_a_search_repeats_and_stays_within_the_limit(run):
    first, second = (run(*LOOKED_FOR, *QUICK, *TIGHT, "--json").document for _ in range(2))
    assert first["orders"] == second["orders"]
    assert first["peak_activations"] <= 3
    assert first["found_by"]
    assert 0 < first["lower_bound_s"] <= first["makespan_s"]
    assert first["search_s"] >= 0


def test_the_objective_is_what_bound_and_gap_are_about(run):
    document = run(*LOOKED_FOR, *QUICK, "--objective", "span", "--json").document
    assert document["objective"] == "span"
    gap = (document["span_s"] - document["lower_bound_s"]) / document["span_s"]
    assert document["gap"] == pytest.approx(max(0.0, gap))


def test_times_with_units_are_seconds_and_plain_ones_are_slots(run):
    times = ("--forward", "3ms", "--input-grad", "3ms", "--weight-grad", "2ms")
    in_seconds = run(*SMALL, *times)
    assert " ms" in in_seconds.out
    assert "slots" not in in_seconds.out
    assert "57 slots" in run(*SMALL).out


def test_a_spec_carries_placement_microbatches_and_bytes(run, spec):
    document = run("schedule", "--search", "--spec", spec, *QUICK, "--json").document
    assert document["rank_of_stage"] == [0, 1, 1, 0]
    assert (document["ranks"], document["microbatches"]) == (2, 4)
    assert document["peak_memory_bytes"] <= 40e9
    assert document["peak_memory_bytes"] == max(document["peak_memory_bytes_per_rank"])
    assert document["request"]["costs"]["name"] == "spec.json"


def test_a_limit_below_any_schedules_need_is_infeasible_and_names_the_minimum(run, spec):
    done = run(*LOOKED_FOR, "--memory-limit", "1", "--json")
    assert done.code == 3
    document = done.document
    assert document["status"] == "infeasible"
    assert document["binding"]["least"] == 2
    assert "makespan_s" not in document
    done = run("schedule", "--search", "--spec", spec, "--memory-limit", "21GiB")
    assert done.code == 3
    assert "every schedule needs at least 26.08 GiB on rank 1" in done.out
    enough = done.out.split("raise the limit to ")[1].strip().replace(" ", "")
    done = run("schedule", "--search", "--spec", spec, "--memory-limit", enough, *QUICK)
    assert done.code == 0


def test_a_family_above_the_limit_says_what_it_needs_and_what_fits(run):
    narrow = ("schedule", "--family", "1f1b", "--ranks", "8", "--microbatches", "8")
    done = run(*narrow, "--memory-limit", "4", "--json")
    assert done.code == 3
    binding = done.document["binding"]
    assert (binding["needed"], binding["limit"], binding["least"]) == (8, 4, 1)
    assert any("--search" in fix for fix in binding["fixes"])
    assert run(*narrow, "--memory-limit", "8").code == 0


def test_orders_above_the_limit_are_priced_all_the_same(run):
    run(*SMALL, "--orders", "orders.json")
    done = run("schedule", "--simulate", "orders.json", "--memory-limit", "5", "--json")
    assert done.code == 3
    assert done.document["fits"] is False
    assert done.document["span_s"] == 57


def test_the_front_has_no_dominated_point(run):
    asked = ("schedule", "--pareto", "--search", "--ranks", "3", "--microbatches", "6")
    document = run(*asked, *QUICK, "--json").document
    points = document["points"]
    memory = [point["peak_activations"] for point in points]
    time_s = [point["makespan_s"] for point in points]
    assert memory == sorted(set(memory))
    assert time_s == sorted(set(time_s), reverse=True)
    assert document["makespan_s"] == time_s[-1]
    limited = run(*asked, *QUICK, "--memory-limit", str(memory[0]), "--json").document
    assert limited["peak_activations"] <= memory[0]


@pytest.mark.parametrize("name", ["g.svg", "g.html", "g.json", "g.json.gz"])
def test_pictures_follow_the_suffix(run, folder, name):
    assert run(*SMALL, "--gantt", name).code == 0
    start = (folder / name).read_bytes()[:15].lower()
    assert start.startswith({"g.svg": b"<svg", "g.html": b"<!doctype html"}.get(name, start[:1]))
    assert (folder / name).stat().st_size > 1000


def test_a_limit_on_activations_is_drawn(run, folder):
    asked = ("schedule", "--family", "v-half", "--ranks", "4", "--microbatches", "8")
    run(*asked, "--gantt", "open.svg")
    run(*asked, "--memory-limit", "6", "--gantt", "limited.svg")
    assert "of 6 act." not in (folder / "open.svg").read_text(encoding="utf-8")
    assert "of 6 act." in (folder / "limited.svg").read_text(encoding="utf-8")


def test_small_schedules_are_drawn_and_large_ones_are_not(run):
    assert "rank 0 F" in run(*SMALL).out
    assert "F forward, B backward" in run(*SMALL).out
    assert (
        "rank 0 F"
        not in run(
            "schedule", "--family", "gpipe", *("--ranks", "32"), *("--microbatches", "64")
        ).out
    )


def test_explain_shows_the_table_again(run):
    shown = run(*SMALL, "--comm", "0.25", "-o", "doc.json")
    assert run("explain", "doc.json").out == shown.out
    shown = run(*LOOKED_FOR[:-2], *QUICK, "-o", "any.json")
    assert run("explain", "any.json").out == shown.out


def test_diff_compares_schedules_with_schedules_only(run):
    run(*SMALL, "-o", "a.json")
    run(*SMALL, "--comm", "1", "-o", "b.json")
    assert run("diff", "a.json", "a.json").out == "no difference\n"
    found = run("diff", "a.json", "b.json").out
    assert "slower" in found
    assert "makespan" in found
    run("plan", "small.json", "-o", "plan.json")
    done = run("diff", "a.json", "plan.json")
    assert (done.code, done.out) == (2, "")
    assert "schedule and plan have nothing in common" in done.err


def test_other_commands_refuse_a_schedule_in_words(run):
    run(*SMALL, "-o", "doc.json")
    for command in (("plan", "doc.json"), ("estimate", "small.json", "--plan", "doc.json")):
        done = run(*command)
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "say which: --family NAME, --search"),
        (("--family", "1f2b"), "family: must be one of gpipe, 1f1b"),
        (("--family", "1f1b", "--search"), "cannot be asked for together with --family"),
        (("--family", "1f1b", "--exact"), "exact: cannot be asked for together with --family"),
        (("--family", "1f1b"), "ranks: must be given: --ranks N"),
        (("--family", "1f1b", "--ranks", "4"), "microbatches: must be given"),
        (("--family", "1f1b", "--ranks", "0", "--microbatches", "4"), "ranks: must be a whole"),
        (
            ("--search", "--ranks", "1e9", "--microbatches", "1"),
            "ranks: must be a whole number from",
        ),
        (
            ("--family", "1f1b", "--ranks", "5000", "--microbatches", "1000000"),
            "at most 10,000,000 actions are scheduled",
        ),
        (
            ("--family", "interleaved", "--ranks", "4", "--microbatches", "6"),
            "microbatches: must be a multiple of 4 ranks for interleaved, got 6; use 4 or 8",
        ),
        ((*SMALL[1:], "--forward", "-1"), 'forward: must be >= 0, such as 1 or 3.5ms, got "-1"'),
        ((*SMALL[1:], "--comm", "nan"), "comm: must be a quantity such as 1 or 3.5ms"),
        ((*SMALL[1:], "--forward", "1e999"), 'forward: must be finite, got "1e999"'),
        ((*SMALL[1:], "--forward", "3ms", "--comm", "2"), "comm: must have a unit as forward has"),
        ((*SMALL[1:], "--forward", "3ms"), "weight-grad: must be given, as forward is in seconds"),
        ((*SMALL[1:], "--memory-limit", "3.5"), "memory-limit: must be a whole number"),
        ((*SMALL[1:], "--memory-limit", "-3"), "memory-limit: must be a whole number"),
        ((*SMALL[1:], "--memory-limit", "4GiB"), "memory-limit: a size needs forward_bytes"),
        (
            (*SMALL[1:], "--memory-limit", "4", "--max-activations", "4"),
            "memory-limit: counts what max-activations does",
        ),
        ((*SMALL[1:], "--objective", "cost"), 'objective: must be makespan or span, got "cost"'),
        ((*SMALL[1:], "--orders", "x.txt"), "orders: must end in .json or .csv"),
        ((*SMALL[1:], "--orders", "x.csv", "--orders-form", "xml"), "orders-form: must be one of"),
        ((*SMALL[1:], "--gantt", "x.png"), "gantt: must end in one of .svg, .html"),
        ((*SMALL[1:], "--gantt", "nowhere/x.svg"), "output: cannot be written"),
        ((*LOOKED_FOR[1:-1], "u"), 'placement: must be one of v, loop, wave, any, got "u"'),
        ((*LOOKED_FOR[1:], "--virtual-stages", "3"), "virtual-stages: V has 2 per rank, got 3"),
        (("--pareto", *LOOKED_FOR[2:-1], "any"), "placement: must be one placement for a front"),
        (("--simulate", "missing.csv"), "simulate: cannot be read"),
    ],
)
def test_bad_input_is_named(run, options, message):
    done = run("schedule", *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_a_deadlock_is_shown_as_its_cycle(run, folder):
    (folder / "stuck.csv").write_text(DEADLOCK, encoding="utf-8")
    done = run("schedule", "--simulate", "stuck.csv")
    assert (done.code, done.out) == (2, "")
    assert (
        "deadlock: 0B0 on rank 0 waits for 1B0, which rank 1 runs only after 1F1; 1F1 on"
        in done.err
    )


def test_orders_that_miss_a_stage_are_named(run, folder):
    (folder / "hole.csv").write_text("0F0,0B0\n2F0,2B0\n", encoding="utf-8")
    done = run("schedule", "--simulate", "hole.csv")
    assert done.code == 2
    assert "misses stage 1; no rank owns it" in done.err


def test_a_spec_for_other_stages_is_named_with_its_file(run, spec):
    done = run("schedule", "--family", "gpipe", "--ranks", "3", "--spec", spec)
    assert done.code == 2
    assert "ranks: must be 2, as in the spec, or left out, got 3" in done.err
    done = run("schedule", "--family", "gpipe", "--spec", spec)
    assert done.code == 2
    assert (
        "error in spec.json: rank_of_stage: must be the placement of the schedule (0, 1)"
        in done.err
    )


def test_a_spec_with_a_wrong_value_is_refused_with_its_place(run, folder):
    bad = SPEC | {"forward_s": [0.013, -1, 0.012, 0.015], "rank_of_stage": [0, 2, 2, 0]}
    (folder / "bad.json").write_text(json.dumps(bad), encoding="utf-8")
    done = run("schedule", "--search", "--spec", "bad.json")
    assert done.code == 2
    assert "forward_s[1]: must be >= 0, got -1" in done.err


@pytest.mark.parametrize("stages", [3, 6, 12])
def test_a_placement_in_a_spec_that_is_not_the_one_asked_for_is_blamed(run, folder, stages):
    loop = SLOTS | {"rank_of_stage": [stage % 3 for stage in range(stages)]}
    (folder / "loop.json").write_text(json.dumps(loop), encoding="utf-8")
    asked = ("--spec", "loop.json", "--placement", "v", "--microbatches", "4")
    done = run("schedule", "--search", *asked, *QUICK)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error in loop.json: rank_of_stage: ")


def test_lists_of_a_spec_that_are_not_for_v_are_blamed(run, folder):
    (folder / "six.json").write_text(json.dumps(SLOTS | {"forward_s": [1] * 6}), encoding="utf-8")
    size = ("--spec", "six.json", "--ranks", "2", "--microbatches", "4")
    done = run("schedule", "--search", *size, "--placement", "v")
    assert done.code == 2
    assert "placement: V has 2 stages per rank, the spec 3; wave takes any number" in done.err
    assert run("schedule", "--search", *size, "--placement", "wave", *QUICK).code == 0


@pytest.mark.parametrize(
    ("hole", "said"),
    [
        ("0F0,0F1,0B0\n", "got 1 F; 0B1 is missing"),
        ("0F0,0B0,0B1\n", "F must run once for stage 0 microbatch 1, got 1 B; 0F1 is missing"),
        ("0F0,0F1,0I0,0W0,0I1\n", "got 1 F, 1 I; 0W1 is missing"),
        (DEADLOCK, "deadlock: 0B0 on rank 0 waits for 1B0"),
    ],
)
def test_orders_that_cannot_run_are_named_with_their_file(run, folder, hole, said):
    (folder / "hole.csv").write_text(hole, encoding="utf-8")
    done = run("schedule", "--simulate", "hole.csv")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error in hole.csv: orders: ")
    assert said in done.err


def test_microbatches_that_are_renumbered_are_told_of(run, folder):
    (folder / "x.csv").write_text("0F1,0F0,0B1,0B0\n", encoding="utf-8")
    done = run("schedule", "--simulate", "x.csv", "--orders", "y.csv", "--json")
    assert (folder / "y.csv").read_text(encoding="utf-8").strip() == "0F0,0F1,0B0,0B1"
    (warning,) = done.document["warnings"]
    assert warning.startswith("microbatches are renumbered in y.csv: PyTorch's last stage")
    same = run("schedule", "--simulate", "x.csv", "--orders", "y.json", "--json")
    assert same.document["warnings"] == []
    assert run(*SMALL, "--orders", "y.csv", "--json").document["warnings"] == []


def test_a_form_without_orders_is_named_in_a_warning(run):
    document = run(*SMALL, "--orders-form", "compute_comms", "--json").document
    assert document["warnings"] == ["orders-form does not apply without orders and was not used"]


def test_a_time_that_overflows_is_refused_by_its_name(run):
    done = run(*SMALL, "--forward", "1e308", "--json")
    assert (done.code, done.document["kind"]) == (2, "refusal")
    assert "forward: must be at most 1e+100, so that the total stays finite, got" in done.err


def test_a_trace_counts_what_is_counted(run, folder, spec):
    run(*SMALL, "--gantt", "slots.json")
    run("schedule", "--search", "--spec", spec, *QUICK, "--gantt", "bytes.json")
    for unit, name in (("activations", "slots.json"), ("bytes", "bytes.json")):
        events = json.loads((folder / name).read_text(encoding="utf-8"))["traceEvents"]
        counters = [event for event in events if event["ph"] == "C"]
        assert counters
        assert {key for event in counters for key in event["args"]} == {unit}


def test_an_option_without_effect_is_named_in_a_warning(run):
    options = ("--seed", "3", "--placement", "v", "--time-limit", "9s")
    document = run(*SMALL, *options, "--json").document
    assert document["warnings"] == [
        "placement does not apply to interleaved and was not used",
        "seed does not apply to interleaved and was not used",
        "time-limit does not apply to interleaved and was not used",
    ]


def test_an_infeasible_document_has_no_orders_to_price(run):
    run(*LOOKED_FOR, "--memory-limit", "1", "-o", "none.json", "--orders", "none.csv")
    done = run("schedule", "--simulate", "none.json")
    assert done.code == 2
    assert "orders: must hold orders, this document is infeasible and has none" in done.err
    assert run("explain", "none.json").code == 0


def test_a_time_limit_ends_a_search(run):
    done = run(*LOOKED_FOR, *TIGHT, "--evaluations", "100000000", "--time-limit", "300ms", "--json")
    assert done.code == 0
    assert done.document["request"]["time_limit_s"] == 0.3


def test_a_schedule_that_cannot_be_drawn_is_shown_all_the_same(run, folder):
    large = ("schedule", "--family", "1f1b", "--ranks", "64", "--microbatches", "64")
    done = run(*large, "--gantt", "large.svg", "--json")
    assert done.code == 2
    assert done.document["ranks"] == 64
    assert "an SVG of 8,192 actions is more than a viewer can show; write HTML" in done.err
    assert not (folder / "large.svg").exists()
    assert run(*large, "--gantt", "large.html").code == 0


@pytest.mark.parametrize(
    ("option", "module", "extra"),
    [("--verify", "torch", "torch"), ("--exact", "ortools.sat.python", "exact")],
)
def test_a_missing_extra_is_named_before_any_work(run, monkeypatch, option, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    how = ("--search",) if option == "--verify" else ()
    endless = ("schedule", *how, *LOOKED_FOR[2:], *TIGHT, "--evaluations", "1e9")
    done = run(*endless, option)
    assert (done.code, done.out) == (2, "")
    assert f"pip install '.[{extra}]'" in done.err
