"""Activations that wait on the host: what it frees, what it costs, and when it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainwright
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.model.recipe import Offload, Recipe
from trainwright.plans.configuration import Configuration
from trainwright.plans.plan import Parallelism
from trainwright.step.predict import price_configuration

LLAMA = catalog.model("llama3-8b").config
CLUSTER = catalog.cluster("dgx-h100").with_nodes(8)
RUN = Configuration(
    parallelism=Parallelism(tensor=8, pipeline=8, sequence_parallel=True),
    microbatch_size=1,
    global_batch=32,
    sequence_length=131_072,
)


def with_link(bytes_per_s):
    (pool,) = CLUSTER.pools
    host = replace(pool.accelerator.host, link_bytes_per_s=bytes_per_s)
    accelerator = replace(pool.accelerator, host=host)
    return replace(CLUSTER, pools=(replace(pool, accelerator=accelerator),))


def priced(schedule, cluster=CLUSTER, run=RUN, **degrees):
    degrees = replace(run.parallelism, **degrees)
    return price_configuration(LLAMA, cluster, replace(run, schedule=schedule, parallelism=degrees))


@pytest.mark.parametrize(("base", "offloaded", "chunks"), [("1f1b", "po-f", 1), ("gis", "po-h", 2)])
def test_over_a_fast_link_memory_comes_back_for_nothing(base, offloaded, chunks):
    alone = priced(base, virtual_stages=chunks)
    hosted = priced(offloaded, with_link(1e15), virtual_stages=chunks)
    assert hosted.step_time_s == pytest.approx(alone.step_time_s, rel=2e-3)
    activations = [max(r.memory.activation_bytes for r in s.stages) for s in (alone, hosted)]
    assert activations[1] < 0.6 * activations[0]


def test_no_step_is_shorter_than_the_copies_of_a_rank():
    link = 2e9
    slow = priced("po-f", with_link(link))
    assert slow.step_time_s > 1.5 * priced("po-f").step_time_s
    first = slow.stages[0].memory
    kept = first.activation_bytes / first.microbatches_in_flight
    stays = 9  # of the first rank: the last forwards, whose backwards follow soon
    assert slow.pipeline_s >= 2 * (RUN.num_microbatches - stays) * kept / link


def test_a_faster_link_never_takes_longer():
    steps = [priced("po-f", with_link(rate)).step_time_s for rate in (2e9, 1e10, 5e10, 1e12)]
    assert steps == sorted(steps, reverse=True)


def test_activations_do_not_go_to_the_host_twice():
    both = replace(RUN, recipe=Recipe(offload=Offload(activations=0.5)))
    with pytest.raises(InvalidInput, match="must leave activations to the schedule po-f"):
        priced("po-f", run=both)


def test_a_device_that_states_no_host_is_refused():
    (pool,) = CLUSTER.pools
    bare = replace(pool, accelerator=replace(pool.accelerator, host=None))
    with pytest.raises(InvalidInput, match="does not state"):
        priced("po-f", replace(CLUSTER, pools=(bare,)))


def test_the_plan_waits_on_the_host_where_it_is_named_and_says_as_much_as_the_estimate():
    asked = {
        "cluster": "dgx-h100",
        "devices": 64,
        "global_batch": 32,
        "sequence": 131_072,
        "memory": "48GiB",
        "tp": 8,
        "pp": 8,
        "dp": 1,
        "micro_batch": 1,
    }
    alone, hosted = (
        trainwright.plan("llama3-8b", framework="any", cp=1, schedule=families, **asked)
        for families in ("1f1b", ("1f1b", "po-f"))
    )
    assert hosted.schedule == "po-f"
    assert hosted.step_time_s < alone.step_time_s
    stages = hosted.to_dict()["stages"]
    blocks = [sum(1 <= layer <= 32 for layer in stage["layers"]) for stage in stages]
    again = trainwright.estimate("llama3-8b", schedule="po-f", zero=0, blocks=blocks, **asked)
    assert again.step_time_s == hosted.step_time_s
