"""Measured profiles planned on a cluster: against exhaustion, and against the model itself."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, permutations, product
from random import Random

import pytest

import piper_examples
from exhaustive import LLAMA, one_a_node
from exhaustive_profiles import (
    GIB,
    MODES,
    drawn_question,
    least_by_exhaustion,
    question_of,
    random_profile,
)
from random_cases import marked
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.formats.piper_json import read_piper
from trainwright.formats.profile_json import read_profile, write_profile
from trainwright.planning.question.question import (
    Allowed,
    ModelQuestion,
    Point,
    Span,
    Workload,
    dense_points,
    estimate_profile,
)
from trainwright.planning.search.framework import plan_runnable
from trainwright.planning.search.search import plan_model
from trainwright.plans import Plan, Stage
from trainwright.plans.configuration import Configuration
from trainwright.plans.plan import Parallelism
from trainwright.profile import (
    Edge,
    ProfileFile,
    Structure,
)
from trainwright.profile.measured_model import measured_model
from trainwright.step.predict import require_legal
from trainwright.step.stages import cut_bytes


@pytest.mark.parametrize("seed", marked(range(16), slow=(3, 5, 11, 13), papers=(0, 1, 6, 14)))
def test_a_measured_chain_is_planned_as_exhaustion_plans_it(seed):
    question = drawn_question(seed)
    outcome, least_s = plan_model(question, Budget()), least_by_exhaustion(question)
    if math.isinf(least_s):
        assert not outcome.priced
        return
    assert outcome.priced[0].step.step_time_s == pytest.approx(least_s, rel=1e-9)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-9)


@pytest.mark.parametrize("seed", marked(range(4), papers=(1, 3)))
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


def test_tensor_groups_that_were_measured_stay_in_a_node():
    described = ModelQuestion(
        model=LLAMA,
        cluster=one_a_node(25e9),
        workload=Workload(global_batch=4, sequence_length=2048),
        num_devices=4,
        allowed=Allowed(context=Span.only(1), microbatch_size=Span.only(1)),
    )
    model = measured_model(
        tuple(
            estimate_profile(described.estimator(), described, Point(microbatch_size=1, tensor=t))
            for t in (1, 2)
        )
    )
    asked = replace(described, model=model)
    points = dense_points(
        model, asked.cluster, asked.workload, asked.allowed, asked.settings, num_devices=4
    )
    assert {point.tensor for point in points} == {1}
    run = Configuration(
        parallelism=Parallelism(tensor=2, data=2, sequence_parallel=True),
        microbatch_size=1,
        global_batch=4,
        sequence_length=2048,
    )
    with pytest.raises(InvalidInput, match="node of 1"):
        require_legal(model, asked.cluster, run)


# Layers that branch
# ------------------


def with_branches(rng, profile):
    """The layers of a chain under other edges: each reads one or two of those before it."""
    count, edges = len(profile.structure.layers), {}
    for target in range(1, count):
        for source in rng.sample(range(target), min(target, rng.choice((1, 2)))):
            edges[source, target] = rng.uniform(1e6, 2e8)
    made = tuple(Edge(source=u, target=v, bytes=size) for (u, v), size in edges.items())
    return replace(profile, structure=replace(profile.structure, edges=made))


def orders_of(structure):
    """Every order of the layers in which each follows what it reads."""
    before = [
        {edge.source for edge in structure.edges if edge.target == layer}
        for layer in range(len(structure.layers))
    ]
    for order in permutations(range(len(structure.layers))):
        if all(before[layer] <= set(order[:at]) for at, layer in enumerate(order)):
            yield order


def in_order(profile, order):
    """A chain of the layers in the order; what crosses a cut is sent by every stage on the way."""
    place = {layer: at for at, layer in enumerate(order)}
    edges = []
    for cut in range(len(order) - 1):
        size = 0.0
        for edge in profile.structure.edges:
            if place[edge.source] <= cut < place[edge.target]:
                size += edge.bytes
        edges.append(Edge(source=cut, target=cut + 1, bytes=size))
    layers = tuple(profile.structure.layers[layer] for layer in order)
    return replace(profile, structure=Structure(layers=layers, edges=tuple(edges)))


@pytest.mark.parametrize("seed", marked(range(8), slow=range(3), papers=range(3, 8)))
def test_layers_that_branch_are_planned_in_one_order_and_bounded_in_all(seed):
    rng = Random(700 + seed)
    profile = random_profile(rng, tells_state_apart=True)
    while len(profile.structure.layers) not in (3, 4):
        profile = random_profile(rng, tells_state_apart=True)
    profile = with_branches(rng, profile)
    question = question_of(rng, ("1f1b",), (0, 1), profile)
    question = replace(question, num_devices=min(2, question.num_devices))
    outcome = plan_runnable(question, Budget())
    (chosen,) = {
        tuple(profile.structure.ids.index(layer) for layer in each.structure.ids)
        for each in question.model.offered.values()
    }
    orders = list(orders_of(profile.structure))
    assert chosen in orders
    least_s = {}
    for order in orders:
        model = measured_model((in_order(profile, order),))
        least_s[order] = least_by_exhaustion(replace(question, model=model))
    if math.isinf(least_s[chosen]):
        assert not outcome.priced
        assert outcome.exhausted is (len(orders) == 1)
        return
    assert outcome.priced[0].step.step_time_s == pytest.approx(least_s[chosen], rel=1e-9)
    assert outcome.lower_bound_s <= min(least_s.values()) * (1 + 1e-9)
    if len(orders) > 1:
        assert question.model.is_in_one_order
        own_s = outcome.lower_bound_one_order_s
        assert outcome.lower_bound_s <= own_s <= least_s[chosen] * (1 + 1e-9)
    else:
        assert outcome.lower_bound_one_order_s is None


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_sends_every_edge_that_crosses_it(seed):
    rng = Random(900 + seed)
    profile = with_branches(rng, random_profile(rng, tells_state_apart=True))
    found = measured_model((profile,)).any_profile.structure
    order = [profile.structure.ids.index(layer) for layer in found.ids]
    assert tuple(order) in set(orders_of(profile.structure))
    expected = in_order(profile, order).structure.edges
    assert [edge.bytes for edge in found.edges] == pytest.approx([e.bytes for e in expected])
    assert [(e.source, e.target) for e in found.edges] == list(pairwise(range(len(order))))


def test_what_cutting_an_edge_adds_is_never_forgotten():
    """Of an edge that skips layers it is the most of any option of the degree, on top of bytes."""
    value = piper_examples.diamond()
    for node in value["nodes"]:  # its options keep the same state
        for option in node["TMPCs"]["1"]:
            option["parameterSize"] = 100.0
    given = read_piper(value).profiles[0]
    chain = measured_model((given,)).offered[1, 1]
    edges = given.structure.edges
    ids, place = chain.structure.ids, {}
    for at, layer in enumerate(ids):
        place[given.structure.ids.index(layer)] = at
    for stages in product((True, False), repeat=len(ids) - 1):
        cuts = [at for at, cut in enumerate(stages) if cut]
        if len(cuts) != 1:
            continue
        plan = Plan(
            stages=tuple(
                Stage.uniform(part, ("vanilla",) * len(part), data_parallel=1, tensor_parallel=1)
                for part in (ids[: cuts[0] + 1], ids[cuts[0] + 1 :])
            ),
            num_microbatches=4,
        )
        (sent,) = cut_bytes(plan, chain).values()
        direct = cut_bytes(plan, given)  # of two stages nothing is passed on
        assert sent >= sum(direct.values()) * (1 - 1e-12)
        crossing = [e for e in edges if place[e.source] <= cuts[0] < place[e.target]]
        assert sent <= 3 * sum(edge.bytes + 10 for edge in crossing)
