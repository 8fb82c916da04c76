"""A head that is cut over all ranks of a pipeline: what moves, what stays, and what it is for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import trainwright
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats import catalog
from trainwright.plans.configuration import Configuration
from trainwright.plans.plan import Parallelism
from trainwright.scheduling.families import FAMILIES
from trainwright.step.predict import price_configuration

CLUSTER = catalog.cluster("dgx-h100").with_nodes(2)
LLAMA = replace(catalog.model("llama3-8b").config, vocabulary_size=256_000)
RUN = Configuration(
    parallelism=Parallelism(pipeline=8, data=2),
    microbatch_size=1,
    global_batch=32,
    sequence_length=4096,
)


def priced(schedule, model=LLAMA, run=RUN):
    return price_configuration(model, CLUSTER, replace(run, schedule=schedule))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("schedule", ["vocab-1", "vocab-2"])
def test_all_ranks_together_work_and_hold_as_much_as_with_a_whole_head(schedule, zero, tied):
    model = replace(LLAMA, tied_embeddings=tied)
    run = replace(RUN, parallelism=replace(RUN.parallelism, zero_stage=zero, tensor=2, pipeline=4))
    whole, cut = priced("1f1b", model, run), priced(schedule, model, run)
    for name in ("recompute_s", "tensor_parallel_s"):
        sums = [sum(getattr(rank, name) for rank in step.stages) for step in (whole, cut)]
        assert sums[0] == pytest.approx(sums[1])
    if zero == 0:  # else exchanges are hidden under other work
        works = [sum(r.forward_s + r.backward_s for r in step.stages) for step in (whole, cut)]
        assert works[0] == pytest.approx(works[1])
    weights = [sum(rank.memory.weight_bytes for rank in step.stages) for step in (whole, cut)]
    once = LLAMA.vocabulary_size * LLAMA.hidden_size * 2 / 2  # half of it in two bytes
    shards = RUN.parallelism.data if zero == 3 else 1
    assert weights[0] - weights[1] == pytest.approx(once / shards if tied else 0.0, rel=0.05)


@pytest.mark.parametrize("schedule", ["vocab-1", "vocab-2"])
def test_a_large_head_on_all_ranks_leaves_none_of_them_the_slowest(schedule):
    whole, cut = priced("1f1b"), priced(schedule)
    busy = [[r.forward_s + r.backward_s for r in step.stages] for step in (whole, cut)]
    assert max(busy[0]) > 1.5 * min(busy[0])
    assert max(busy[1]) < 1.05 * min(busy[1])
    assert cut.step_time_s < 0.8 * whole.step_time_s
    assert cut.peak_memory_bytes < whole.peak_memory_bytes


def test_a_head_that_nobody_shares_is_cut_in_vain():
    alone = replace(RUN, parallelism=Parallelism(data=2), global_batch=4)
    whole, cut = (priced(name, run=alone) for name in ("1f1b", "vocab-1"))
    assert cut.pipeline_s == pytest.approx(whole.pipeline_s)
    assert sum(r.memory.weight_bytes for r in cut.stages) == pytest.approx(
        sum(r.memory.weight_bytes for r in whole.stages)
    )


def test_a_model_that_predicts_further_tokens_keeps_its_head():
    with pytest.raises(UnsupportedFeature, match="no other layer uses it"):
        priced("vocab-2", replace(LLAMA, num_mtp_layers=1))


UNPRICED = [name for name, family in FAMILIES.items() if not family.is_priced]


@pytest.mark.parametrize("schedule", UNPRICED)
def test_orders_whose_step_is_not_priced_are_refused(schedule):
    degrees = replace(RUN.parallelism, virtual_stages=FAMILIES[schedule].num_chunks or 2)
    with pytest.raises(InvalidInput, match="must be one whose step is priced: gpipe, 1f1b"):
        priced(schedule, run=replace(RUN, parallelism=degrees))


@pytest.mark.slow
def test_a_256k_vocabulary_on_sixteen_stages_is_cut_by_the_plan(tmp_path):
    config = {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "vocab_size": 256_000,
        "max_position_embeddings": 8192,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    asked = {"cluster": "dgx-h100", "devices": 16, "global_batch": 64, "sequence": 4096}
    degrees = {"tp": 1, "pp": 16, "dp": 1, "micro_batch": 1}
    found, without = (
        trainwright.plan(path, framework="any", cp=1, schedule=families, **asked, **degrees)
        for families in (("1f1b", "zb-h1", "zb-h2", "vocab-2"), ("1f1b", "zb-h1", "zb-h2"))
    )
    assert found.schedule == "vocab-2"
    assert found.step_time_s < 0.6 * without.step_time_s
    assert found.gap < 0.05
    layers = [stage["layers"] for stage in found.to_dict()["stages"]]
    degrees |= {"blocks": [sum(1 <= layer <= 16 for layer in own) for own in layers], "zero": 0}
    again = trainwright.estimate(path, schedule="vocab-2", **asked, **degrees)
    assert again.step_time_s == found.step_time_s
