"""Whoever works beside a search, it ends with the same plan, bound and counts."""

from __future__ import annotations

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from trainwright.execution import Budget
from trainwright.execution.executor import LocalPool, executor_of
from trainwright.formats import catalog
from trainwright.planning.question.question import Allowed, ModelQuestion, Span, Workload
from trainwright.planning.search.framework import plan_runnable
from trainwright.planning.search.prefetch import Foresight
from trainwright.planning.search.search import plan_model

HAS_DASK = importlib.util.find_spec("distributed") is not None


@dataclass
class Threads:
    """A crew of this process."""

    pool: ThreadPoolExecutor
    size: int = 2
    parcels: int = 0

    def hand(self, work, item):
        self.parcels += 1
        return self.pool.submit(work, item)


def question(**allowed) -> ModelQuestion:
    cluster = catalog.cluster("dgx-h100").with_nodes(2)
    return ModelQuestion(
        model=replace(catalog.model("llama3-8b").config, num_layers=12),
        cluster=cluster.with_memory(24 * 2**30),
        workload=Workload(global_batch=32, sequence_length=4096),
        num_devices=16,
        allowed=Allowed(**allowed),
    )


def facts(outcome):
    """All that an outcome says, but for what its profiles hold: those have no equality."""
    plans = [(found.candidate, found.plan, found.step) for found in outcome.priced]
    return plans, replace(outcome, priced=())


NARROW = question(context=Span.only(1), zero_stages=(1,), schedules=("1f1b", "interleaved", "zb-v"))


@pytest.mark.slow
def test_a_search_with_helpers_is_the_search_without(monkeypatch):
    made = []
    born = Foresight.__init__

    def noted(self, *given):
        born(self, *given)
        made.append(self)

    monkeypatch.setattr(Foresight, "__init__", noted)
    alone = plan_model(NARROW, Budget())
    with ThreadPoolExecutor(2) as pool:
        crew = Threads(pool)
        helped = plan_model(NARROW, Budget(), crew=crew)
    assert crew.parcels > 2
    assert facts(helped) == facts(alone)
    assert [search.taken > 0 for search in made] == [False, True]


def test_a_short_search_asks_nobody():
    with ThreadPoolExecutor(2) as pool:
        crew = Threads(pool)
        tiny = replace(NARROW, allowed=replace(NARROW.allowed, pipeline=Span.only(2)))
        plan_model(
            replace(tiny, allowed=replace(tiny.allowed, schedules=("1f1b",))), Budget(), crew=crew
        )
    assert crew.parcels == 0


@pytest.mark.slow
def test_a_schedule_that_runs_at_no_near_depth_leaves_its_point_for_the_others():
    outcome = plan_model(question(context=Span.only(1), schedules=("v-half",)), Budget())
    assert {found.candidate.schedule for found in outcome.priced} == {"v-half"}


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [{"framework": "megatron"}, {"schedules": ("v-half",)}])
def test_two_processes_find_what_one_finds(allowed):
    asked = question(**allowed)
    alone = plan_runnable(asked, Budget())
    with LocalPool(workers=2).crew() as crew:
        helped = plan_runnable(asked, Budget(), crew=crew)
        again = plan_runnable(asked, Budget(), crew=crew)
    assert facts(helped) == facts(again) == facts(alone)


@pytest.mark.slow
def test_workers_that_die_cost_time_and_not_the_answer():
    with LocalPool(workers=2).crew() as crew:
        crew.hand(os._exit, 1)
        with pytest.warns(UserWarning, match="goes on in this process"):
            helped = plan_model(NARROW, Budget(), crew=crew)
    assert facts(helped) == facts(plan_model(NARROW, Budget()))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_DASK, reason="needs the extra [dask]")
@pytest.mark.filterwarnings("default")  # of what Dask itself leaves open
def test_a_dask_cluster_of_two_workers_finds_what_one_process_finds():
    from distributed import LocalCluster

    asked = question(framework="megatron")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        executor_of(cluster.scheduler_address.replace("tcp", "dask")).crew() as crew,
    ):
        assert crew.size == 2
        helped = plan_runnable(asked, Budget(), crew=crew)
    assert facts(helped) == facts(plan_runnable(asked, Budget()))
