"""What is said to bind does, what is said to help does, and less of it does not."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from instances import profile_of, setting_of
from random_cases import cases
from small_profiles import GB, transformer
from strategies import OPTION_IDS, piper_objects
from trainwright.execution import Budget
from trainwright.formats.piper_json import read_piper
from trainwright.partitioning.downset_dp import UNRESTRICTED, Restrictions, solve
from trainwright.partitioning.profile_planner import Feasibility, diagnose
from trainwright.plans.status import Status

NO_RECOMPUTE = Restrictions(recompute=False)

restrictions = st.builds(
    Restrictions,
    data_parallel=st.booleans(),
    tensor_parallel=st.booleans(),
    recompute=st.booleans(),
    excluded_options=st.frozensets(st.sampled_from(OPTION_IDS), max_size=1),
)


def small(**options):
    file = read_piper(transformer(**options), source="small.json")
    return file.profiles[0], file.setting


@st.composite
def tight_problems(draw):
    """A profile of at most four layers and a setting with little memory."""
    piper = draw(piper_objects(max_layers=4, max_devices=4))
    memory_bytes = draw(st.integers(1, 30).map(float))
    return profile_of(piper), replace(setting_of(piper), memory_bytes=memory_bytes)


def status(profile, setting, allowed, **changes):
    return solve(profile, replace(setting, **changes), restrictions=allowed).status


def explained(profile, setting, allowed=UNRESTRICTED):
    found = diagnose(profile, setting, restrictions=allowed, budget=Budget())
    return found.binding, {fix.change: fix for fix in found.relaxations}


def test_a_layer_too_large_on_its_own_misses_the_exact_bytes():
    profile, setting = small(memory_bytes=0.7 * GB)
    binding, fixes = explained(profile, setting)
    # At degree 4 and recomputing, embedding and head keep 0.0125 GB beside 0.8 GB of state.
    assert binding.kind == "layer"
    assert binding.layers == (0,)
    assert binding.missing_bytes == pytest.approx(0.1125 * GB, rel=1e-12)
    assert set(fixes) == {"memory"}


def test_a_stage_too_large_misses_the_exact_bytes():
    profile, setting = small(devices=4, memory_bytes=3 * GB)
    binding, fixes = explained(profile, setting)
    # One stage at degree 4: six blocks of 0.4 GB state and 0.025 GB kept, two ends of 0.8125 GB.
    assert binding.kind == "stage"
    assert binding.layers == tuple(range(8))
    assert binding.missing_bytes == pytest.approx((6 * 0.425 + 2 * 0.8125 - 3) * GB, rel=1e-12)
    assert fixes["memory"].value == pytest.approx((6 * 0.425 + 2 * 0.8125) * GB, rel=1e-12)
    assert fixes["devices"].value == 6


def test_too_few_devices_for_every_degree_are_named():
    value = transformer(devices=1)
    for node in value["nodes"]:
        del node["TMPCs"]["1"]
    file = read_piper(value, source="small.json")
    binding, fixes = explained(file.profiles[0], file.setting)
    assert binding.kind == "devices"
    assert "layer 0 offers no option that 1 devices" in binding.description
    assert set(fixes) == {"devices"}
    assert fixes["devices"].value == 2


def test_degrees_that_do_not_fit_together_are_named():
    value = transformer(num_blocks=1, devices=3)
    for degree, node in zip(("1", "2", "4"), value["nodes"], strict=True):
        node["TMPCs"] = {degree: node["TMPCs"][degree]}
    file = read_piper(value, source="small.json")
    binding, fixes = explained(file.profiles[0], replace(file.setting, num_devices=6))
    assert binding.kind == "devices"
    assert binding.layers == ()
    assert "6 devices are too few" in binding.description
    assert fixes["devices"].value == 7


def test_lifting_a_restriction_is_offered_where_it_is_enough():
    profile, setting = small(memory_bytes=2.5 * GB)
    _, fixes = explained(profile, setting, NO_RECOMPUTE)
    assert "recompute" in fixes
    _, fixes = explained(profile, setting, Restrictions(tensor_parallel=False))
    assert "tensor-parallel" in fixes
    named = Restrictions(excluded_options=frozenset({"activation recomp", "odd"}))
    _, fixes = explained(profile, setting, named)
    assert fixes["exclude-option"].description == 'allow the option "activation recomp"'


def test_the_least_memory_is_told_apart_from_nearly_as_little():
    value = transformer(num_blocks=1, devices=1, memory_bytes=1.0)
    for node in value["nodes"]:
        (plain, lean), node["TMPCs"] = node["TMPCs"]["1"], {}
        plain["memoryUsageA"] = lean["memoryUsageA"] = 0.0
        plain["memoryUsageB"], lean["memoryUsageB"] = 1_000_010.0, 1_000_000.0
        node["TMPCs"]["1"] = [plain, lean]
    file = read_piper(value, source="small.json")
    _, fixes = explained(file.profiles[0], file.setting)
    assert fixes["memory"].value == 3_000_000.0


def test_a_tiny_limit_does_not_hide_what_is_enough():
    for limit in (1.0, 5e-324):
        profile, setting = small(memory_bytes=limit)
        _, fixes = explained(profile, setting)
        assert fixes["memory"].value == pytest.approx(2.175 * GB)
        assert (
            status(profile, setting, UNRESTRICTED, memory_bytes=fixes["memory"].value) == "optimal"
        )


def test_memory_beyond_all_floats_is_told_in_finite_numbers():
    value = transformer(num_blocks=1)
    for node in value["nodes"]:
        for configs in node["TMPCs"].values():
            for config in configs:
                config["memoryUsageA"] = config["memoryUsageB"] = 1.7e308
    file = read_piper(value, source="small.json")
    binding, fixes = explained(file.profiles[0], file.setting)
    assert binding.kind == "layer"
    assert math.isfinite(binding.missing_bytes)
    assert fixes == {}


def test_a_spent_budget_explains_without_searching():
    profile, setting = small(memory_bytes=2 * GB)
    budget = Budget()
    budget.interrupt()
    found = diagnose(profile, setting, restrictions=UNRESTRICTED, budget=budget)
    assert found.binding is None  # it takes a search to say more than that some layer is too large
    profile, setting = small(memory_bytes=GB / 100)
    found = diagnose(profile, setting, restrictions=UNRESTRICTED, budget=budget)
    assert found.binding.kind == "layer"


def test_the_same_question_has_the_same_explanation():
    profile, setting = small(memory_bytes=2 * GB)
    assert explained(profile, setting) == explained(profile, setting)


@pytest.mark.slow
@cases(60)
@given(tight_problems(), restrictions)
def test_every_fix_is_enough_and_the_smallest(problem, allowed):
    profile, setting = problem
    assume(status(profile, setting, allowed) is Status.INFEASIBLE)
    binding, fixes = explained(profile, setting, allowed)
    assert binding.missing_bytes > 0 or binding.kind == "devices"

    if "memory" in fixes:
        enough = fixes["memory"].value
        assert status(profile, setting, allowed, memory_bytes=enough) is Status.OPTIMAL
        less = enough * (1 - 1e-8)
        assert status(profile, setting, allowed, memory_bytes=less) is Status.INFEASIBLE
    else:
        most = sys.float_info.max
        assert status(profile, setting, allowed, memory_bytes=most) is Status.INFEASIBLE

    if "devices" in fixes:
        enough = fixes["devices"].value
        assert status(profile, setting, allowed, num_devices=enough) is Status.OPTIMAL
        assert status(profile, setting, allowed, num_devices=enough - 1) is Status.INFEASIBLE
    else:
        assert status(profile, setting, allowed, num_devices=10**6) is Status.INFEASIBLE

    for change, lifted in (
        ("recompute", replace(allowed, recompute=True)),
        ("tensor-parallel", replace(allowed, tensor_parallel=True)),
        ("data-parallel", replace(allowed, data_parallel=True)),
        ("exclude-option", replace(allowed, excluded_options=frozenset())),
    ):
        helps = lifted != allowed and status(profile, setting, lifted) is Status.OPTIMAL
        assert (change in fixes) == helps


@cases(50)
@given(tight_problems())
def test_a_binding_layer_is_the_largest_and_misses_what_it_needs(problem):
    profile, setting = problem
    assume(status(profile, setting, UNRESTRICTED) is Status.INFEASIBLE)
    binding, _ = explained(profile, setting)
    if binding.kind == "layer":
        costs, structure = profile.costs, profile.structure
        needs = {
            layer.id: min(
                costs.saved_bytes[row] + costs.total_static_bytes[row]
                for row in costs.rows_of(layer.layer_class)
                if costs.tensor_parallel[row] <= setting.num_devices
            )
            for layer in structure.layers
        }
        (layer,) = binding.layers
        assert needs[layer] == max(needs.values())
        assert binding.missing_bytes == needs[layer] - setting.memory_bytes


@cases(50)
@given(tight_problems())
def test_feasibility_does_not_depend_on_times(problem):
    profile, setting = problem
    question = Feasibility.of(profile, setting, restrictions=UNRESTRICTED, budget=Budget())
    with_times = solve(profile, setting)
    assert question.fits() == (with_times.plan is not None)
    least = question.least_memory()
    if with_times.plan is not None:
        assert least is not None
        assert least <= max(cost.memory_bytes for cost in with_times.stage_costs)
