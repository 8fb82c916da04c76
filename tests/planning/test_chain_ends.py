"""What follows the way of a microbatch, against every plan of small models, each priced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from exhaustive import LLAMA, asked, every_candidate, every_step_s, two_nodes_of_two
from trainwright.formats import catalog
from trainwright.model import LowRank, Tuning
from trainwright.planning.bounds import step as coarse_bound
from trainwright.planning.bounds.layers import PointWork
from trainwright.planning.bounds.stages import StageKinds
from trainwright.planning.bounds.step import Batch, ChainWork, CoarseBounds
from trainwright.planning.question.layouts import layouts_of, schedules_of
from trainwright.planning.question.question import Allowed, RunSettings, Span, estimate_profile
from trainwright.plans.configuration import Overlap
from trainwright.plans.plan import DATA_INSIDE, PIPELINE_INSIDE
from trainwright.profile import Recompute

TIED = replace(catalog.model("gpt2").config, num_layers=4)
UNTIED = replace(TIED, tied_embeddings=False)
TUNED = replace(
    replace(LLAMA, num_layers=4, vocabulary_size=32_000),
    tuning=Tuning(low_rank=LowRank(rank=64, targets=("query", "up", "down"))),
)
FAMILIES = ("1f1b", "zb-h1", "interleaved", "zb-v")
SMALL = {
    "memory_gib": 60,
    "sequence": 256,
    "schedules": FAMILIES,
    "microbatch_size": Span.only(1),
    "context": Span.only(1),
    "tensor": Span.only(1),
    "mappings": (DATA_INSIDE,),
    "recompute": (Recompute.NONE,),
}
ALL_ZERO = {"zero_stages": (0, 1, 2, 3)}
BOTH = {"mappings": (DATA_INSIDE, PIPELINE_INSIDE)}
NOTHING_HIDES = RunSettings(overlap=Overlap(gradients=0, parameters=0, pipeline=0))
ALL_HIDES = RunSettings(overlap=Overlap(gradients=1, parameters=1, tensor=1, experts=1))
SLOW, FAST = two_nodes_of_two(2e9), two_nodes_of_two(200e9)
QUESTIONS = {
    "tied": asked(TIED, cluster=SLOW, **SMALL, zero_stages=(0, 1, 3)),
    "tied, fast, both orders": asked(
        TIED, cluster=FAST, **SMALL | BOTH, zero_stages=(1, 2), settings=ALL_HIDES
    ),
    "tied, nothing hides": asked(
        TIED, cluster=SLOW, batch=2, **SMALL, **ALL_ZERO, settings=NOTHING_HIDES
    ),
    "untied": asked(UNTIED, cluster=SLOW, batch=2, **SMALL, **ALL_ZERO),
    "adapters": asked(TUNED, cluster=SLOW, batch=2, **SMALL, **ALL_ZERO),
    "adapters, sharded": asked(
        TUNED, cluster=SLOW, batch=4, **SMALL | {"data": Span.only(2)}, zero_stages=(3,)
    ),
}

MARKS = {
    "adapters, sharded": (),
    "tied": pytest.mark.papers,
    "untied": pytest.mark.papers,
    "tied, nothing hides": pytest.mark.papers,
}


def coarse_s(question, candidate, profile):
    """The coarse bound of a candidate alone."""
    layouts = layouts_of(
        candidate.point,
        Allowed(pipeline=Span.only(candidate.pipeline), data=Span.only(candidate.data)),
        num_devices=question.num_devices,
        num_blocks=question.model.num_layers,
        num_microbatches=question.workload.global_batch // candidate.microbatch_size,
    )
    layouts = replace(
        layouts,
        virtual_stages=np.full(layouts.size, candidate.virtual_stages),
        inside=np.full(layouts.size, candidate.axis_order == PIPELINE_INSIDE),
    )
    (schedule,) = schedules_of(Allowed(schedules=(candidate.schedule,)))
    overlap = question.settings.overlap
    coarse = CoarseBounds(question.cluster, overlap)
    rough = coarse.rough(
        PointWork.of(profile),
        candidate.point,
        Batch.under(schedule, candidate.zero_stage, layouts),
        chain=ChainWork.of(StageKinds.of(profile, overlap)),
    )
    bounds_s = coarse.sharper_s(rough)
    assert bounds_s.shape == (1,)
    return float(bounds_s[0])


def bounded_and_best(question):
    """The coarse bound of each candidate and its shortest step, by candidate."""
    estimator, profiles, found = question.estimator(), {}, {}
    for candidate in every_candidate(question):
        point = candidate.point
        if point not in profiles:
            profiles[point] = estimate_profile(estimator, question, point)
        best_s = min(every_step_s(question, candidate, profiles[point]), default=None)
        if best_s is not None:
            found[candidate] = coarse_s(question, candidate, profiles[point]), best_s
    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, pytest.mark.slow)) for name in QUESTIONS],
)
def test_no_plan_is_shorter_than_the_way_of_a_microbatch_and_what_follows(name):
    found = bounded_and_best(QUESTIONS[name])
    assert {each.schedule for each in found} == set(FAMILIES)
    for candidate, (bound_s, best_s) in found.items():
        assert bound_s <= best_s * (1 + 1e-9), candidate


def test_the_exchange_of_a_tied_embedding_is_bounded(monkeypatch):
    """With one microbatch the bound is near; without the ends of the chain it is not."""
    question = replace(
        QUESTIONS["tied"],
        allowed=replace(
            QUESTIONS["tied"].allowed,
            schedules=("1f1b", "zb-h1"),
            pipeline=Span.only(4),
            data=Span.only(1),
            zero_stages=(0,),
        ),
        workload=replace(QUESTIONS["tied"].workload, global_batch=1),
    )
    sharp = bounded_and_best(question)
    monkeypatch.setattr(coarse_bound.CoarseBounds, "_ends_s", lambda *_, below_s: below_s)
    blunt = bounded_and_best(question)
    assert sharp
    for candidate, (bound_s, best_s) in sharp.items():
        assert bound_s > 0.9 * best_s, candidate
        assert blunt[candidate][0] < 0.6 * best_s
