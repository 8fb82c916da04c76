from __future__ import annotations

import pytest

from instances import profile_of
from trainwright.errors import InvalidInput
from trainwright.partitioning.downset_dp import (
    UNRESTRICTED,
    Restrictions,
    surviving_data_degrees,
    surviving_rows,
)
from trainwright.profile import Setting

SETTING = Setting(num_devices=8, memory_bytes=1.0, bandwidth_bytes_per_s=1.0, num_microbatches=12)


@pytest.fixture(scope="module")
def costs():
    figures = dict.fromkeys(("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB"), 1)
    table = {
        t: [
            figures | {"id": id_, "syncTimeFw": {}, "syncTimeBw": {}}
            for id_ in ("vanilla", "activation recomp", "offload")
        ]
        for t in ("1", "2", "4")
    }
    return profile_of({"nodes": [{"id": 0, "name": "a", "TMPCs": table}], "edges": []}).costs


def survivors(costs, **restrictions):
    kept = surviving_rows(costs, Restrictions(**restrictions))
    rows = zip(costs.tensor_parallel.tolist(), costs.option_ids, kept.tolist(), strict=True)
    return {(t, option) for t, option, keep in rows if keep}


def test_without_restrictions_every_row_and_every_divisor_survives(costs):
    assert surviving_rows(costs, UNRESTRICTED).all()
    assert surviving_data_degrees(SETTING, UNRESTRICTED) == (1, 2, 3, 4, 6)


def test_without_tensor_parallelism_only_degree_1_survives(costs):
    assert {t for t, _ in survivors(costs, tensor_parallel=False)} == {1}


def test_without_recompute_no_option_that_recomputes_survives(costs):
    assert {option for _, option in survivors(costs, recompute=False)} == {"vanilla", "offload"}


def test_excluded_options_go_by_their_id(costs):
    kept = survivors(costs, excluded_options=frozenset({"vanilla", "never heard of"}))
    assert {option for _, option in kept} == {"activation recomp", "offload"}


def test_restrictions_add_up(costs):
    kept = survivors(
        costs, recompute=False, excluded_options=frozenset({"offload"}), tensor_degrees=(2, 3)
    )
    assert kept == {(2, "vanilla")}


def test_without_data_parallelism_only_degree_1_survives():
    assert surviving_data_degrees(SETTING, Restrictions(data_parallel=False)) == (1,)


def test_of_the_wanted_data_degrees_those_that_divide_the_microbatches_survive():
    assert surviving_data_degrees(SETTING, Restrictions(data_degrees=(6, 5, 12, 2))) == (2, 6)
    assert surviving_data_degrees(SETTING, Restrictions(data_degrees=(5,))) == ()


@pytest.mark.parametrize("name", ["data_degrees", "tensor_degrees"])
def test_impossible_degrees_are_refused(name):
    with pytest.raises(InvalidInput, match=f"{name}: must have at least 1 entry, got 0"):
        Restrictions(**{name: ()})
    with pytest.raises(InvalidInput, match=f"{name}: must be >= 1, got -2"):
        Restrictions(**{name: (1, -2)})
