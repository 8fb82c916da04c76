"""The uniform candidates of a model: which degrees are offered."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainwright
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.model import Recipe, RunShape
from trainwright.model.run_shape import ContextExchange
from trainwright.planning.question.layouts import layouts_of
from trainwright.planning.question.question import (
    ANY,
    EVERYTHING,
    LARGEST_BATCH,
    LARGEST_SEQUENCE,
    USUAL_SETTINGS,
    Allowed,
    Candidate,
    Point,
    RunSettings,
    Span,
    Workload,
    context_degrees,
    dense_points,
    expert_points,
    microbatch_sizes,
    tensor_degrees,
)
from trainwright.plans.configuration import Configuration, broken_rules

MIXTURE = catalog.model("mixtral-8x7b").config


def offered(**changes):
    given = {
        "point": Point(microbatch_size=1, tensor=2),
        "allowed": EVERYTHING,
        "num_devices": 16,
        "num_blocks": 6,
        "num_microbatches": 12,
    }
    given |= changes
    layouts = layouts_of(given.pop("point"), given.pop("allowed"), **given)
    return list(zip(layouts.pipeline.tolist(), layouts.data.tolist(), strict=True))


@given(st.integers(1, 200), st.integers(1, 12), st.integers(1, 60), st.sampled_from([1, 2, 4, 8]))
def test_pairs_are_exactly_the_degrees_that_fit(devices, blocks, microbatches, tensor):
    found = offered(
        point=Point(microbatch_size=1, tensor=tensor),
        num_devices=devices,
        num_blocks=blocks,
        num_microbatches=microbatches,
    )
    wanted = {
        (p, d)
        for p in range(1, blocks + 1)
        for d in range(1, microbatches + 1)
        if microbatches % d == 0 and p * d * tensor <= devices
    }
    assert found == sorted(wanted, key=lambda x: (x[0], -x[1]))


def test_pairs_keep_to_what_is_allowed():
    assert {d for _, d in offered(allowed=Allowed(data=Span.only(1)))} == {1}
    assert {p for p, _ in offered(allowed=Allowed(pipeline=Span(least=2, most=3)))} == {2, 3}


def test_fewer_devices_than_a_tensor_group_offer_nothing():
    assert offered(num_devices=1) == []


def test_experts_are_dealt_out_over_whole_groups():
    point = Point(microbatch_size=1, tensor=2, expert=4, expert_tensor=1)
    assert {d for _, d in offered(point=point)} == {2, 4, 6}


def test_microbatches_are_all_that_divide_the_batch():
    every = (1, 2, 3, 4, 6, 8, 12, 24)
    assert microbatch_sizes(Workload(global_batch=24, sequence_length=8), ANY) == every
    assert microbatch_sizes(Workload(global_batch=7, sequence_length=8), ANY) == (1, 7)
    assert microbatch_sizes(Workload(global_batch=24, sequence_length=8), Span.only(3)) == (3,)
    span = Span(least=2, most=7)
    assert microbatch_sizes(Workload(global_batch=24, sequence_length=8), span) == (2, 3, 4, 6)


def test_tensor_degrees_divide_heads_and_sequence_and_may_cross_nodes():
    model = catalog.model("llama3-8b").config

    def degrees(sequence, *, allowed=ANY, limit=8):
        workload = Workload(global_batch=8, sequence_length=sequence)
        return tensor_degrees(model, workload, allowed, limit=limit)

    assert degrees(8192) == (1, 2, 4, 8)
    assert degrees(8190) == (1, 2)
    assert degrees(8191) == (1,)
    assert degrees(8192, allowed=Span.only(1)) == (1,)
    assert degrees(8192, limit=4) == (1, 2, 4)
    assert degrees(8192, limit=16) == (1, 2, 4, 8, 16)


def test_stages_mix_only_tensor_degrees_that_lie_in_a_node():
    job = {"cluster": "dgx-h100", "devices": 16, "global_batch": 4, "sequence": 512}
    with pytest.raises(InvalidInput, match="tp: must hold a degree whose groups lie in a"):
        trainwright.plan("llama3-8b", **job, tp=16, per_stage_degrees=True)


def test_context_degrees_halve_each_part_of_a_causal_sequence():
    def degrees(model, sequence, limit=64):
        workload = Workload(global_batch=8, sequence_length=sequence)
        return context_degrees(catalog.model(model).config, workload, ANY, limit=limit)

    assert degrees("llama3-8b", 48) == (1, 2, 3, 4, 6, 8, 12, 24)
    assert degrees("llama3-8b", 48, limit=5) == (1, 2, 3, 4)
    assert degrees("bert-large", 12) == (1, 2, 3, 4, 6, 12)


def test_experts_are_cut_like_the_rest_or_not_at_all_unless_a_range_is_named():
    def cuts(**named):
        points = expert_points(MIXTURE, Point(microbatch_size=1, tensor=8), Allowed(**named))
        return {point.expert_tensor for point in points}

    assert cuts() == {1, 8}
    assert cuts(expert_tensor=Span(least=1, most=8)) == {1, 2, 4, 8}
    assert cuts(expert_tensor=Span(least=2, most=4)) == {2, 4}
    assert cuts(expert_tensor=Span.only(4)) == {4}


def test_a_model_without_experts_has_one_way_to_deal_them_out():
    model, point = catalog.model("llama3-8b").config, Point(microbatch_size=1, tensor=2)
    assert list(expert_points(model, point, EVERYTHING)) == [point]
    assert list(expert_points(model, point, Allowed(expert=Span.only(2)))) == []


def test_experts_are_cut_like_the_rest_or_not_at_all():
    point = Point(microbatch_size=1, tensor=4)
    found = {(p.expert, p.expert_tensor) for p in expert_points(MIXTURE, point, EVERYTHING)}
    assert found == {(e, x) for e in (1, 2, 4, 8) for x in (1, 4)}
    narrowed = Allowed(expert=Span(least=4), expert_tensor=Span.only(2))
    found = {(p.expert, p.expert_tensor) for p in expert_points(MIXTURE, point, narrowed)}
    assert found == {(4, 2), (8, 2)}


@pytest.mark.parametrize("exchange", list(ContextExchange))
@pytest.mark.parametrize("model", ["nemotron-h-56b", "llama3-8b", "bert-large"])
def test_points_are_cut_along_the_sequence_where_the_model_allows_it(model, exchange):
    config, cluster = catalog.model(model).config, catalog.cluster("dgx-h100")
    ulysses = 2 if exchange is ContextExchange.ALL_TO_ALL_RING else None
    settings = RunSettings(recipe=Recipe(context_exchange=exchange, ulysses=ulysses))
    workload = Workload(global_batch=1, sequence_length=512)
    found = {
        (point.tensor, point.context)
        for point in dense_points(config, cluster, workload, EVERYTHING, settings, num_devices=8)
    }
    legal = set()
    for tensor, context in itertools.product(range(1, 9), range(1, 9)):
        if 8 % tensor or tensor * context > 8 or 512 % (2 * tensor * context):
            continue
        run = RunShape(
            microbatch_size=1,
            sequence_length=512,
            tensor_parallel=tensor,
            context_parallel=context,
            context_exchange=exchange,
            ulysses=ulysses,
        )
        if not any(config.faults_at(run)):
            legal.add((tensor, context))
    assert found == legal
    alone = model == "nemotron-h-56b" and exchange is not ContextExchange.ALL_TO_ALL
    assert any(context > 1 for _, context in found) is not alone


@pytest.mark.parametrize("model", ["mixtral-8x7b", "llama3-8b", "deepseek-v3", "bert-large"])
def test_every_candidate_is_legal(model):
    config, cluster = catalog.model(model).config, catalog.cluster("dgx-h100").with_nodes(2)
    pool, workload = cluster.pool_of(), Workload(global_batch=12, sequence_length=480)
    seen = 0
    for dense in dense_points(
        config, cluster, workload, EVERYTHING, USUAL_SETTINGS, num_devices=16
    ):
        for point in expert_points(config, dense, EVERYTHING):
            pairs = offered(
                point=point,
                num_blocks=config.num_layers,
                num_microbatches=12 // point.microbatch_size,
            )
            for pipeline, data in pairs[:: 1 + len(pairs) // 3]:
                candidate = Candidate(
                    microbatch_size=point.microbatch_size,
                    tensor=point.tensor,
                    context=point.context,
                    expert=point.expert,
                    expert_tensor=point.expert_tensor,
                    pipeline=pipeline,
                    data=data,
                )
                configuration = Configuration(
                    parallelism=candidate.degrees,
                    microbatch_size=point.microbatch_size,
                    global_batch=12,
                    sequence_length=480,
                )
                assert broken_rules(configuration, config, pool) == ()
                assert candidate.num_devices == candidate.degrees.num_devices <= 16
                assert replace(candidate).point == point
                seen += 1
    assert seen > 50


@pytest.mark.parametrize(
    ("batch", "sequence", "fault"),
    [
        (0, 1, "global_batch: must be from 1 to 1000000, got 0"),
        (LARGEST_BATCH + 1, 1, "global_batch: must be from 1 to 1000000, got 1000001"),
        (1, 0, "sequence_length: must be from 1 to 1000000000, got 0"),
        (1, LARGEST_SEQUENCE + 1, "sequence_length: must be from 1 to 1000000000"),
    ],
)
def test_a_workload_beyond_all_reason_is_refused(batch, sequence, fault):
    with pytest.raises(InvalidInput, match=fault):
        Workload(global_batch=batch, sequence_length=sequence)
