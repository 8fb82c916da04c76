"""The timeline of a priced step against its price, for schedules, recipes and overlaps."""

import numpy as np
import pytest

from trainwright.formats.catalog import model, open_cluster
from trainwright.plans.configuration import Configuration, MemoryOverheads, Overlap
from trainwright.plans.plan import Parallelism
from trainwright.profile import Recompute
from trainwright.step.account import network_use, step_timeline
from trainwright.step.predict import estimator_of, plan_of, point_of, price_configuration

RUNS = {
    "1f1b": {"degrees": {"tensor": 2, "pipeline": 4, "data": 2}},
    "interleaved": {
        "degrees": {"tensor": 2, "pipeline": 4, "data": 2, "virtual_stages": 2},
        "schedule": "interleaved",
    },
    "split backward": {"degrees": {"pipeline": 4, "data": 4}, "schedule": "zb-h1"},
    "v shape": {
        "degrees": {"pipeline": 4, "data": 4, "virtual_stages": 2},
        "schedule": "v-half",
    },
    "zero 3": {"degrees": {"pipeline": 2, "data": 8, "zero_stage": 3}},
    "blocking": {"degrees": {"pipeline": 8, "data": 2}, "overlap": Overlap(pipeline=0.4)},
    "recompute": {"degrees": {"pipeline": 4, "data": 4}, "recompute": Recompute.FULL},
    "overheads": {
        "degrees": {"tensor": 4, "pipeline": 4},
        "overheads": MemoryOverheads(workspace_bytes=2e9),
    },
    "one rank": {"degrees": {"tensor": 8, "data": 2}},
}


@pytest.fixture(params=RUNS, scope="module")
def case(request):
    """Plan, profile, cluster, overlap and overheads, and the priced step of a run."""
    given = dict(RUNS[request.param])
    degrees = Parallelism(**{"zero_stage": 1, **given.pop("degrees")})
    run = Configuration(
        parallelism=degrees,
        microbatch_size=1,
        global_batch=32 * degrees.data,
        sequence_length=2048,
        **given,
    )
    config, cluster = model("llama3-8b").config, open_cluster("dgx-h100").with_nodes(2)
    profile = estimator_of(config, cluster, run).profile(point_of(run))
    plan = plan_of(run, profile)
    step = price_configuration(config, cluster, run, profile)
    return plan, profile, cluster, {"overlap": run.overlap, "overheads": run.overheads}, step


def test_the_last_action_ends_with_the_priced_pipeline(case):
    plan, profile, cluster, shared, step = case
    timeline = step_timeline(plan, profile, cluster, **shared)
    assert float(timeline.end_s.max()) == pytest.approx(step.pipeline_s, rel=1e-12)


def test_every_rank_is_as_full_as_its_price_says(case):
    plan, profile, cluster, shared, step = case
    timeline = step_timeline(plan, profile, cluster, **shared)
    peaks = [stage.memory.total_bytes for stage in step.stages]
    assert timeline.peak_bytes == pytest.approx(peaks, rel=1e-12)
    curve = max(float(timeline.memory_curve(0).bytes.max()), 0.0)
    assert curve == pytest.approx(peaks[0], rel=1e-12)
    assert np.all(timeline.costs.memory.limit_bytes == cluster.accelerator.usable_bytes)


def test_all_microbatches_are_there(case):
    plan, profile, cluster, shared, _ = case
    timeline = step_timeline(plan, profile, cluster, **shared)
    assert timeline.schedule.num_microbatches == 32


def test_what_is_communicated_crosses_one_level_each(case):
    plan, _, cluster, _, step = case
    levels = network_use(plan, cluster, step)
    assert [level.name for level in levels] == ["nvlink", "infiniband"]
    carried = sorted(axis.kind for level in levels for axis in level.axes)
    used = sorted(part.kind for part in step.communication if part.exposed_s + part.hidden_s > 0)
    assert carried == used


def test_groups_within_a_node_stay_off_the_outer_network():
    run = Configuration(
        parallelism=Parallelism(tensor=8, data=2, sequence_parallel=True, zero_stage=1),
        microbatch_size=1,
        global_batch=8,
        sequence_length=2048,
    )
    config, cluster = model("llama3-8b").config, open_cluster("dgx-h100").with_nodes(2)
    profile = estimator_of(config, cluster, run).profile(point_of(run))
    step = price_configuration(config, cluster, run, profile)
    inner, outer = network_use(plan_of(run, profile), cluster, step)
    assert [(axis.kind, axis.ranks) for axis in inner.axes] == [("tensor", 8)]
    assert [(axis.kind, axis.ranks) for axis in outer.axes] == [
        ("gradients", 2),
        ("parameters", 2),
    ]
