"""The range of a step is that of its circumstance, where a calibration tells them apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.cluster import Calibration, Circumstance, Cluster, Spread
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.plans import Parallelism
from trainwright.plans.configuration import Configuration
from trainwright.step.account import circumstances, time_range

SHARED, EXPERTS = Circumstance.SHARED_NODES, Circumstance.EXPERTS


def calibrated(*spreads: Spread) -> Cluster:
    made = Calibration(
        accelerator="H100-80GB-SXM",
        line="own",
        source="here",
        constants=(),
        low_ratio=0.95,
        high_ratio=1.05,
        spreads=spreads,
    )
    return made.applied(catalog.cluster("dgx-h100").with_nodes(4))


def asked(**degrees: int) -> Configuration:
    return Configuration(
        parallelism=Parallelism(**degrees), sequence_length=4096, global_batch=64, microbatch_size=1
    )


@pytest.mark.parametrize(
    ("model", "degrees", "held"),
    [
        ("llama3-8b", {"tensor": 8, "data": 4}, set()),
        ("llama3-8b", {"tensor": 4, "data": 8}, {SHARED}),
        ("llama3-8b", {"tensor": 4, "context": 2, "data": 4}, set()),
        ("llama3-8b", {"tensor": 1, "data": 8}, set()),
        ("llama3-8b", {"tensor": 4, "pipeline": 8}, set()),
        ("mixtral-8x7b", {"tensor": 8, "data": 4}, {EXPERTS}),
        ("mixtral-8x7b", {"data": 32}, {SHARED, EXPERTS}),
    ],
)
def test_nodes_are_shared_where_a_group_has_several_replicas_on_each(model, degrees, held) -> None:
    config = catalog.model(model).config
    assert circumstances(config, calibrated(), asked(**degrees)) == held


def test_a_run_under_a_circumstance_has_its_range_and_others_keep_theirs() -> None:
    cluster = calibrated(Spread(when=SHARED, low_ratio=0.8, high_ratio=1.4))
    dense = catalog.model("llama3-8b").config
    apart = time_range(dense, cluster, asked(tensor=4, data=8))
    usual = time_range(dense, cluster, asked(tensor=8, data=4))
    assert (apart.low_ratio, apart.high_ratio) == (0.8, 1.4)
    assert (usual.low_ratio, usual.high_ratio) == (0.95, 1.05)
    assert usual.source == "fitted: calibration own (here; fitted: none)"
    own = "; 0.80 to 1.40 times where replicas of several nodes share their network"
    assert apart.source == usual.source + own


def test_without_a_calibration_the_range_is_the_assumed_one() -> None:
    cluster = catalog.cluster("dgx-h100").with_nodes(4)
    found = time_range(catalog.model("llama3-8b").config, cluster, asked(tensor=4, data=8))
    assert (found.low_ratio, found.high_ratio) == (0.95, 2.10)
    assert found.source.startswith("assumed")


@given(st.floats(min_value=0.01, max_value=3.0), st.floats(min_value=0.01, max_value=3.0))
def test_a_range_must_hold_the_prediction(low: float, high: float) -> None:
    if low <= 1 <= high:
        spread = Spread(when=EXPERTS, low_ratio=low, high_ratio=high)
        assert replace(spread, rows=3).rows == 3
    else:
        with pytest.raises(InvalidInput, match="low_ratio"):
            Spread(when=EXPERTS, low_ratio=low, high_ratio=high)
