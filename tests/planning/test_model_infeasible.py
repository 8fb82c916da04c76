"""What is said to help a model that does not fit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from model_questions import (
    KEEP_ALL,
    ONE,
    TIGHT,
    cluster_of,
    narrowed,
    planned,
    question,
)
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.planning.question.question import ANY, Span
from trainwright.planning.reasons.infeasible import (
    diagnose_model,
    eased,
    priced_relaxations,
    relaxed,
)
from trainwright.profile import USUAL_MODES, Recompute
from trainwright.units import GIB

# The leanest layout of the first is its widest and deepest; of the second a shallower one, whose
# replicas share more of the state.
LARGE = (
    question(
        "llama3-70b",
        batch=16,
        sequence=4096,
        num_devices=4,
        schedules=("1f1b",),
        recompute=KEEP_ALL,
    ),
    question(
        "llama3-70b",
        batch=64,
        sequence=2048,
        schedules=("1f1b",),
        zero_stages=(3,),
        tensor=ONE,
    ),
)


def in_turn(own):
    """One of the large questions in a test that takes a while, the other at length."""
    for_all = zip(("pipeline", "sharded"), LARGE, strict=True)
    return [
        pytest.param(each, id=name, marks=pytest.mark.slow if name == own else pytest.mark.papers)
        for name, each in for_all
    ]


def v_of_23_blocks(memory_gib):
    """Four ranks in V that recompute nothing: all hold what only the first does under 1F1B."""
    return question(
        replace(catalog.model("llama3-8b").config, num_layers=23),
        batch=8,
        sequence=4096,
        memory_gib=memory_gib,
        num_devices=4,
        tensor=ONE,
        context=ONE,
        pipeline=Span.only(4),
        microbatch_size=ONE,
        schedules=("zb-v",),
        recompute=KEEP_ALL,
    )


@cache
def diagnosed(asked):
    assert planned(asked).priced == ()
    return diagnose_model(asked, Budget())


class TestInfeasible:
    """What is said to help a model that does not fit was tried, and does."""

    def fix(self, found, change):
        (fix,) = [fix for fix in found.relaxations if fix.change == change]
        return fix

    @pytest.mark.parametrize("asked", LARGE, ids=["pipeline", "sharded"])
    def test_a_stage_binds(self, asked):
        assert planned(asked).exhausted
        binding = diagnosed(asked).binding
        assert binding.kind == "stage"
        assert binding.missing_bytes > 0
        assert binding.layers

    @pytest.mark.parametrize("asked", in_turn("pipeline"))
    def test_that_much_memory_is_enough_and_a_little_less_is_not(self, asked):
        enough = self.fix(diagnosed(asked), "memory").value

        def fits(memory_bytes):
            cluster = asked.cluster.with_memory(memory_bytes)
            return bool(planned(replace(asked, cluster=cluster)).priced)

        assert fits(enough * (1 + 1e-9))
        # Of the reserve for transients some may be spare; 3% less is surely not enough.
        assert not fits(enough * 0.97)

    @pytest.mark.parametrize("asked", in_turn("sharded"))
    def test_that_many_devices_are_enough_and_a_node_less_is_not(self, asked):
        enough = self.fix(diagnosed(asked), "devices").value
        for nodes, fits in ((enough // 8, True), (enough // 8 - 1, False)):
            cluster = cluster_of(nodes)
            larger = replace(asked, cluster=cluster, num_devices=cluster.num_devices)
            assert bool(planned(larger).priced) is fits

    def test_more_of_the_node_is_offered_first(self):
        asked = question("llama3-8b", batch=16, sequence=4096, num_devices=1)
        found = diagnose_model(asked, Budget())
        fix = self.fix(found, "devices")
        assert fix.value == 2
        assert fix.description == "2 devices (1 node)"
        assert planned(replace(asked, num_devices=2)).priced
        assert "states alone are 134.62 GiB; one has room" in found.binding.description

    @pytest.mark.slow
    def test_what_was_switched_off_is_offered_where_that_is_enough(self):
        asked = question(
            "llama3-8b",
            batch=16,
            sequence=8192,
            memory_gib=50,
            zero_stages=(0,),
            schedules=("1f1b",),
            microbatch_size=Span.only(4),
            recompute=KEEP_ALL,
            tensor=ONE,
            context=ONE,
        )
        assert not planned(asked).priced
        offered = {fix.change for fix in diagnose_model(asked, Budget()).relaxations}
        lifted = {
            "recompute": narrowed(asked, recompute=USUAL_MODES),
            "tensor-parallel": narrowed(asked, tensor=ANY),
            "micro-batch": narrowed(asked, microbatch_size=ANY),
            "zero": narrowed(asked, zero_stages=(3,)),
        }
        enough = {change for change, easier in lifted.items() if planned(easier).priced}
        assert {"tensor-parallel", "micro-batch"} <= offered & set(lifted) <= enough

    def test_an_excluded_mode_of_recomputation_is_offered_by_name(self):
        asked = narrowed(TIGHT, recompute=KEEP_ALL, tensor=ONE)
        (fix,) = [fix for fix, _ in eased(asked) if fix.change == "recompute"]
        assert fix.description == "allow recomputation"
        partly = narrowed(asked, recompute=(Recompute.NONE, Recompute.FULL))
        described = [fix.description for fix, _ in eased(partly)]
        assert 'allow the option "selective"' in described
        for _, allowed in eased(asked):
            assert allowed != asked.allowed

    def test_where_1f1b_would_fit_the_schedule_binds_and_nothing_else_is_offered(self):
        found = diagnosed(v_of_23_blocks(40))
        assert found.binding.kind == "schedule"
        assert "zb-v" in found.binding.description
        (fix,) = found.relaxations
        assert fix.change == "schedule"
        eased_question = relaxed(v_of_23_blocks(40), fix)
        assert [found.plan.schedule for found in planned(eased_question).priced] == ["1f1b"]

    @pytest.mark.parametrize("only", [{"num_devices": 1}, {"num_devices": 4, "pipeline": ONE}])
    def test_families_of_a_pipeline_are_not_said_to_lack_memory_where_none_is_left(self, only):
        asked = question("gpt2", batch=8, sequence=128, schedules=("zb-v", "interleaved"), **only)
        binding = diagnosed(asked).binding
        assert binding.description.startswith("zb-v, interleaved: a pipeline of at least 2 ranks")

    @pytest.mark.parametrize(
        "memory_gib",
        [pytest.param(36, marks=pytest.mark.papers), pytest.param(40, marks=pytest.mark.slow)],
    )
    def test_memory_grows_until_it_is_enough_for_the_families_asked_for(self, memory_gib):
        asked = v_of_23_blocks(memory_gib)
        offered = diagnosed(asked).relaxations
        kept = list(priced_relaxations(asked, offered, Budget()))
        assert all(fix.step_time_s is not None for fix in kept)
        (memory,) = [fix for fix in kept if fix.change == "memory"]
        too_little = [fix.value for fix in offered if fix.change == "memory"]  # enough for 1F1B
        assert memory.value > max([memory_gib * GIB, *too_little])
        plan = planned(relaxed(asked, memory)).priced[0]
        assert plan.plan.schedule == "zb-v"
        assert plan.step.step_time_s == pytest.approx(memory.step_time_s, rel=1e-9)
        slightly_less = relaxed(asked, replace(memory, value=memory.value * 0.95))
        assert planned(slightly_less).priced == ()

    def test_it_is_deterministic(self):
        assert diagnose_model(LARGE[0], Budget()) == diagnosed(LARGE[0])
