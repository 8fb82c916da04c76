"""What a table says is proved about a step."""

from __future__ import annotations

from dataclasses import replace

import reported
from trainwright.documents import plan_view
from trainwright.documents.plan_view import proof
from trainwright.model.recipe import Offload, Recipe
from trainwright.plans.plan import SpanRecord
from trainwright.plans.status import Status


def planned(framework, schedules, **space):
    found = replace(reported.model_plan(), status=Status.OPTIMAL, gap=0.0)
    space = {"framework": framework, "schedules": schedules, "state_copies": ONE, **space}
    asked = replace(found.request.space, **space)
    return replace(found, request=replace(found.request, space=asked))


ONE = SpanRecord(least=1, most=1)
WORDS = "no plan that the request admits is faster, proved"


def words(framework):
    """Of a framework, named or not, a proof is about what it launches."""
    launched = "" if framework is None else f" and {framework} launches"
    return f"no plan that the request admits{launched} is faster, proved"


def test_a_proof_is_about_every_plan_that_the_request_admits():
    for framework, schedules in (("megatron", None), (None, ("stp",))):
        assert proof(planned(framework, schedules)) == words(framework)


def test_a_proof_says_which_schedules_it_is_not_about():
    beside = "nothing is claimed of stp, seq1f1b, slimpipe, po-f unless named"
    assert proof(planned(None, None)) == f"{WORDS}; {beside}"


def test_a_proof_says_that_it_is_not_about_copies_of_state_nobody_named():
    beside = "nothing is claimed of other numbers of state copies unless named"
    for framework in ("megatron", None):
        free = planned(framework, ("1f1b",), state_copies=None)
        assert proof(free) == f"{words(framework)}; {beside}"
        none_sharded = planned(framework, ("1f1b",), state_copies=None, zero_stages=(0,))
        assert proof(none_sharded) == words(framework)
    few = replace(free, request=replace(free.request, num_devices=2))
    assert proof(few) == WORDS  # too few devices for two groups of several replicas
    found = planned("deepspeed", ("1f1b",), state_copies=None)
    assert proof(found) == words("deepspeed")  # which runs no copies


def test_a_proof_says_that_it_is_not_about_experts_cut_in_between_unless_that_is_asked():
    beside = "nothing is claimed of experts cut over some of a tensor group (--etp) unless named"
    found = planned("megatron", None, tensor=None)
    mixture = replace(found, parallelism=replace(found.parallelism, expert_tensor=1))
    wide = replace(mixture, request=replace(mixture.request, num_devices=16))
    assert proof(wide) == f"{words('megatron')}; {beside}"
    for space in ({"tensor": SpanRecord(most=2)}, {"expert_tensor": SpanRecord(most=8)}):
        narrow = replace(wide.request.space, **space)
        asked = replace(wide.request, space=narrow)
        assert proof(replace(wide, request=asked)) == words("megatron")
    assert proof(found) == words("megatron")  # has no experts


def test_a_proof_says_with_what_a_run_is_made_smaller():
    found = planned("megatron", None)
    recipe = Recipe(loss_chunk=1024, offload=Offload(optimizer=1.0))
    said = "the loss over 1024 tokens at a time and optimizer on the host"
    moved = replace(found, request=replace(found.request, recipe=recipe))
    assert proof(moved) == words("megatron").replace(" is faster", f" with {said} is faster")
    left = replace(moved, status=Status.GAP, gap=0.012)
    assert proof(left).endswith(
        f"to a proved bound on every plan that the request admits and megatron launches with {said}"
    )


def says(document):
    return "\n".join(plan_view.left_to_hide(document))


def test_a_head_that_is_alone_on_the_slowest_rank_is_told_of_where_the_target_cannot_cut_it():
    found = planned("megatron", None)
    body, head = replace(found.stages[0], rank=0), replace(found.stages[-1], rank=1)
    alone = replace(head, layers=head.layers[-1:])
    ranks = [replace(rank, forward_s=0.1 + 0.9 * rank.rank) for rank in found.ranks]
    short = replace(found, stages=(body, alone), ranks=tuple(ranks))
    assert "the head alone makes rank 1 the slowest" in says(short)
    assert not says(replace(short, stages=(body, head)))  # it has other layers, too
    light = [replace(rank, forward_s=1.0 - 0.9 * rank.rank) for rank in found.ranks]
    assert not says(replace(short, ranks=tuple(light)))
    named = replace(short.request.space, schedules=("1f1b",))
    assert not says(replace(short, request=replace(short.request, space=named)))


def test_exposed_tensor_parallelism_is_told_of_where_braids_are_not_searched():
    found = planned(None, None)
    exposed = replace(found, time_by_part_s={"tensor": 0.2 * found.step_time_s})
    assert "20.0% of the step waits for tensor parallelism" in says(exposed)
    assert "--schedule stp" in says(exposed)
    assert not says(replace(exposed, time_by_part_s={"tensor": 0.01 * found.step_time_s}))
    assert not says(replace(exposed, schedule="stp"))
    assert not says(planned("megatron", None))
