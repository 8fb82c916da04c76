"""Measured profiles planned on a cluster: against exhaustion, and against the model itself."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from exhaustive import LLAMA
from exhaustive_profiles import (
    GIB,
    MODES,
    drawn_question,
    least_by_exhaustion,
    question_of,
    random_profile,
)
from trainwright.errors import UnsupportedFeature
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.formats.profile_json import read_profile, write_profile
from trainwright.planning.question.question import (
    Allowed,
    ModelQuestion,
    Point,
    Span,
    Workload,
    estimate_profile,
)
from trainwright.planning.search.search import plan_model
from trainwright.profile import (
    Edge,
    ProfileFile,
)
from trainwright.profile.measured_model import measured_model


@pytest.mark.parametrize("seed", range(16))
def test_a_measured_chain_is_planned_as_exhaustion_plans_it(seed):
    question = drawn_question(seed)
    outcome, least_s = plan_model(question, Budget()), least_by_exhaustion(question)
    if math.isinf(least_s):
        assert not outcome.priced
        return
    assert outcome.priced[0].step.step_time_s == pytest.approx(least_s, rel=1e-9)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_in_v_of_a_measured_chain_is_below_its_bound(seed):
    rng = Random(100 + seed)
    profile = random_profile(rng, tells_state_apart=True)
    question = question_of(rng, ("1f1b", "zb-v"), (0, 1), profile)
    outcome, least_s = plan_model(question, Budget()), least_by_exhaustion(question)
    assert outcome.priced or math.isinf(least_s)
    if outcome.priced:
        assert outcome.lower_bound_s <= outcome.priced[0].step.step_time_s * (1 + 1e-9)
        assert outcome.lower_bound_s <= least_s * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_profile_of_a_model_written_and_read_is_planned_as_the_model(seed):
    rng = Random(seed)
    model = replace(LLAMA, num_layers=rng.choice((2, 4, 8)), tied_embeddings=rng.random() < 0.5)
    cluster = catalog.cluster("dgx-h100").with_nodes(1).with_memory(rng.choice((16, 40)) * GIB)
    described = ModelQuestion(
        model=model,
        cluster=cluster,
        workload=Workload(global_batch=8, sequence_length=2048),
        num_devices=8,
        allowed=Allowed(
            context=Span.only(1), tensor=Span(most=2), microbatch_size=Span(most=2), recompute=MODES
        ),
    )
    profiles = tuple(
        estimate_profile(described.estimator(), described, Point(microbatch_size=b, tensor=t))
        for b in (1, 2)
        for t in (1, 2)
    )
    file = read_profile(write_profile(ProfileFile(profiles=profiles)))
    measured = replace(described, model=measured_model(file.profiles))
    ours, theirs = plan_model(measured, Budget()), plan_model(described, Budget())
    assert bool(ours.priced) == bool(theirs.priced)
    assert ours.considered == theirs.considered
    assert ours.lower_bound_s == pytest.approx(theirs.lower_bound_s, rel=1e-9)
    for own, other in zip(ours.priced, theirs.priced, strict=True):
        assert own.step.step_time_s == pytest.approx(other.step.step_time_s, rel=1e-9)
        assert own.plan == other.plan


def test_branches_are_refused_with_what_can_plan_them():
    profile = random_profile(Random(3), tells_state_apart=True)
    count = len(profile.structure.layers)
    assert count > 2
    edges = (*profile.structure.edges, Edge(source=0, target=count - 1, bytes=1.0))
    branched = replace(profile, structure=replace(profile.structure, edges=edges))
    with pytest.raises(UnsupportedFeature, match="leads to 2 layers; plan it without --cluster"):
        measured_model((branched,))
