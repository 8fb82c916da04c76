"""Questions about small models on DGX H100 nodes, and their plans, each found once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from trainwright.cluster import Cluster
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.model import TransformerConfig
from trainwright.planning.question.question import Allowed, ModelQuestion, Span, Workload
from trainwright.planning.search.search import plan_model
from trainwright.profile import Recompute


def cluster_of(nodes: int, *, memory_gib: float | None = None, slow: bool = False) -> Cluster:
    cluster = catalog.cluster("dgx-h100").with_nodes(nodes)
    if memory_gib is not None:
        cluster = cluster.with_memory(memory_gib * 2**30)
    (pool,) = cluster.pools
    if slow:
        inner, outer = pool.levels
        pool = replace(pool, levels=(inner, replace(outer, bandwidth_bytes_per_s=1e9)))
    return replace(cluster, pools=(pool,))


def question(
    model: str | TransformerConfig = "gpt2",
    *,
    nodes: int = 1,
    batch: int = 32,
    sequence: int = 1024,
    memory_gib: float | None = None,
    slow: bool = False,
    num_devices: int | None = None,
    **allowed,
) -> ModelQuestion:
    cluster = cluster_of(nodes, memory_gib=memory_gib, slow=slow)
    config = catalog.model(model).config if isinstance(model, str) else model
    return ModelQuestion(
        model=config,
        cluster=cluster,
        workload=Workload(global_batch=batch, sequence_length=sequence),
        num_devices=num_devices or cluster.num_devices,
        allowed=Allowed(**{"zero_stages": (1,)} | allowed),
    )


def narrowed(asked: ModelQuestion, **allowed) -> ModelQuestion:
    return replace(asked, allowed=replace(asked.allowed, **allowed))


ONE = Span.only(1)
KEEP_ALL = (Recompute.NONE,)


@cache
def planned(asked: ModelQuestion):
    return plan_model(asked, Budget())


def best_s(asked: ModelQuestion) -> float:
    return planned(asked).priced[0].step.step_time_s


SMALL = question()
TIGHT = question(
    "llama3-8b",
    batch=16,
    sequence=4096,
    memory_gib=24,
    schedules=("1f1b", "interleaved", "zb-h1"),
    context=ONE,
)
