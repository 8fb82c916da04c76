"""Timings lined up as a profile: times as timed, static bytes exact, collectives priced apart."""

from __future__ import annotations

import numpy as np
import pytest

from trainwright.costing.estimate import Estimator
from trainwright.costing.measured import needed_bytes, profile_of_timings
from trainwright.formats.catalog import model, open_cluster
from trainwright.model import LayerKind, RunShape, layer_graph
from trainwright.profile import Profile, ProfilePoint, Recompute, TimeKind
from trainwright.profile.measured_model import LayerTiming
from trainwright.provenance import Origin, Provenance

CONFIG = model("llama3-8b").config
DEGREES = (1, 2)
MADE_UP = Provenance(origin=Origin.MEASURED, source="made up")


def timing(scale: float) -> LayerTiming:
    return LayerTiming(
        forward_s=1.0 * scale,
        input_grad_s=1.5 * scale,
        weight_grad_s=0.5 * scale,
        spread=0.01,
        num_repeats=5,
        input_bytes=10.0,
        saved_until_input_grad_bytes=30.0,
        saved_until_weight_grad_bytes=40.0,
        transient_bytes=7.0,
    )


def profile(cluster: str | None = None) -> Profile:
    graphs = [
        layer_graph(CONFIG, RunShape(microbatch_size=1, sequence_length=512, tensor_parallel=t))
        for t in DEGREES
    ]
    timings = {(c, t): timing((c + 1) / t) for c in range(len(graphs[0].classes)) for t in DEGREES}
    pool = None if cluster is None else open_cluster(cluster).pool_of()
    return profile_of_timings(
        graphs, timings, device_kind="some device", provenance=MADE_UP, pool=pool
    )


def rows_of(found: Profile, kind: LayerKind) -> dict[tuple[int, Recompute], int]:
    layer = next(x for x in found.structure.layers if x.name == kind)
    costs = found.costs
    return {
        (int(costs.tensor_parallel[row]), costs.recompute[row]): row
        for row in costs.rows_of(layer.layer_class)
    }


def test_times_are_those_that_were_timed() -> None:
    found = profile()
    rows = rows_of(found, LayerKind.BLOCK)
    assert found.costs.duration_s[rows[1, Recompute.NONE]] == 2 * 3.0
    assert found.costs.duration_s[rows[2, Recompute.NONE]] == 3.0
    assert found.costs.phases is not None
    assert found.costs.phases.weight_grad_s[rows[2, Recompute.NONE]] == 0.5


def test_a_block_can_be_recomputed_from_its_input() -> None:
    costs = profile().costs
    rows = rows_of(profile(), LayerKind.BLOCK)
    kept, again = rows[1, Recompute.NONE], rows[1, Recompute.FULL]
    assert costs.duration_s[again] == costs.duration_s[kept] + 2 * 1.0
    assert (costs.saved_bytes[kept], costs.saved_bytes[again]) == (70.0, 10.0)
    assert costs.transient_bytes[again] == 7.0 + 60.0
    ends = rows_of(profile(), LayerKind.LM_HEAD)
    assert {mode for _, mode in ends} == {Recompute.NONE}


def test_all_but_times_and_activations_equals_the_estimate() -> None:
    point = ProfilePoint(
        sequence_length=512, tensor_parallel=DEGREES, precision="bf16", recompute=("none", "full")
    )
    estimate = Estimator(model=CONFIG, cluster=open_cluster("dgx-h100")).profile(point)
    found = profile()
    assert found.structure == estimate.structure
    assert found.costs.option_ids == estimate.costs.option_ids
    for name in ("static_bytes", "gradient_sync_bytes", "boundary_bytes", "tensor_parallel"):
        assert np.array_equal(getattr(found.costs, name), getattr(estimate.costs, name)), name
    assert found.costs.collectives is not None
    assert estimate.costs.collectives is not None
    for ours, theirs in zip(found.costs.collectives, estimate.costs.collectives, strict=True):
        assert sum(x.bytes for x in ours) == sum(x.bytes for x in theirs)


def test_a_cluster_adds_collectives_to_slices_only() -> None:
    apart, priced = profile(), profile("dgx-h100")
    added = priced.costs.duration_s - apart.costs.duration_s
    whole = priced.costs.tensor_parallel == 1
    assert not added[whole].any()
    kinds = priced.costs.time_by_kind_s
    assert kinds is not None
    assert kinds[:, TimeKind.TENSOR_PARALLEL] == pytest.approx(added)
    assert added[rows_of(priced, LayerKind.BLOCK)[2, Recompute.NONE]] > 0


def test_a_larger_microbatch_needs_more() -> None:
    small, large = (
        layer_graph(CONFIG, RunShape(microbatch_size=b, sequence_length=512)) for b in (1, 4)
    )
    for one, other in zip(small.classes, large.classes, strict=True):
        assert needed_bytes(other, large.run) > needed_bytes(one, small.run) > 0
