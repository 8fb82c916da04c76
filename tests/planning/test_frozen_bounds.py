"""Bounds of models that train in part: replicas gather what was updated, and bounds say no more."""

from itertools import product

import numpy as np
import pytest

from family_cases import case, every_cut, is_searched, step_of
from trainwright.model import TRAIN_ALL, LowRank, Tuning
from trainwright.planning.bounds.layers import PointWork
from trainwright.planning.bounds.step import Batch, ChainWork, CoarseBounds
from trainwright.planning.question.layouts import Layouts, Schedule
from trainwright.planning.question.question import Point, Span
from trainwright.planning.splits.chain import best_chain_split
from trainwright.planning.splits.types import best_family_split

ADAPTERS = Tuning(low_rank=LowRank(rank=64, targets=("query", "attention_output", "up", "down")))
TUNINGS = {"all": TRAIN_ALL, "adapters": ADAPTERS, "half": Tuning(num_frozen_blocks=2)}


def asked(tuning: Tuning, *, pipeline: int, zero_stage: int, virtual_stages: int = 1):
    """Microbatches so short that gathered weights do not hide under them."""
    return case(
        blocks=4,
        pipeline=pipeline,
        virtual_stages=virtual_stages,
        data=4,
        num_microbatches=2,
        sequence_length=256,
        zero_stage=zero_stage,
        tuning=tuning,
    )


def least_step_s(one, family: str) -> float:
    """Of every split that the family is searched with, without recomputation; memory is plenty."""
    costs = one.profile.costs
    rows = [costs.rows_of(x.layer_class)[0] for x in one.profile.structure.layers]
    found = []
    stages = one.degrees.pipeline * one.degrees.virtual_stages
    for cuts in every_cut(one.kinds.num_layers, stages):
        step, fits = step_of(one, family, cuts, rows)
        assert fits
        if is_searched(one, family, cuts, rows, step):
            found.append(step.step_time_s)
    return min(found)


def coarse_bound_s(one) -> float:
    degrees = one.degrees
    layouts = Layouts(
        pipeline=np.array([degrees.pipeline]),
        data=np.array([degrees.data]),
        num_microbatches=np.array([one.num_microbatches]),
        virtual_stages=np.array([1]),
        inside=np.array([False]),
        copies=np.array([1]),
        like=np.array([degrees.pipeline]),
    )
    schedule = Schedule(family="1f1b", virtual_stages=Span.only(1))
    coarse = CoarseBounds(one.cluster)
    rough = coarse.rough(
        PointWork.of(one.profile),
        Point(microbatch_size=1, tensor=1),
        Batch.under(schedule, degrees.zero_stage, layouts),
        chain=ChainWork.of(one.kinds),
    )
    bounds_s = coarse.sharper_s(rough)
    return float(bounds_s[0])


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
@pytest.mark.parametrize("tuning", sorted(TUNINGS))
def test_without_a_pipeline_every_bound_is_the_step(tuning, zero_stage):
    one = asked(TUNINGS[tuning], pipeline=1, zero_stage=zero_stage)
    least_s = least_step_s(one, "1f1b")
    found = best_chain_split(one.question("1f1b"))
    assert found.bound_s == pytest.approx(least_s, rel=1e-9)
    assert coarse_bound_s(one) == pytest.approx(least_s, rel=1e-9)


@pytest.mark.parametrize(
    ("family", "tuning", "zero_stage"),
    [
        *product(("1f1b", "zb-h1"), ("adapters", "half"), (1, 2)),
        pytest.param("zb-v", "adapters", 2, marks=pytest.mark.slow),
        *(
            pytest.param("zb-v", *one, marks=pytest.mark.papers)
            for one in (("adapters", 1), ("half", 1), ("half", 2))
        ),
    ],
)
def test_no_split_of_a_pipeline_beats_its_bounds(family, tuning, zero_stage):
    chunks = 2 if family == "zb-v" else 1
    one = asked(TUNINGS[tuning], pipeline=2, zero_stage=zero_stage, virtual_stages=chunks)
    least_s = least_step_s(one, family)
    split = best_family_split(one.question(family))
    assert 0.5 * least_s < split.bound_s <= least_s * (1 + 1e-9)


def test_adapters_alone_make_the_step_shorter_where_gathers_show():
    whole, light = (
        least_step_s(asked(tuning, pipeline=1, zero_stage=1), "1f1b")
        for tuning in (TRAIN_ALL, ADAPTERS)
    )
    assert light < 0.5 * whole
