"""Clusters of two kinds of devices, and plans on them, for tests."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from trainwright.cluster import Cluster, NetworkLevel
from trainwright.costing import Estimator
from trainwright.formats import catalog
from trainwright.plans import Parallelism, Plan, ReplicaGroup, Stage
from trainwright.profile import Profile, ProfilePoint

A100, H100 = 0, 1
ETHERNET = NetworkLevel(name="ethernet", size=2, bandwidth_bytes_per_s=12.5e9, latency_s=20e-6)


def two_kinds(nodes: int = 1, *, names: tuple[str, str] = ("dgx-a100", "dgx-h100")) -> Cluster:
    """So many nodes of each of two catalog clusters, joined by Ethernet."""
    pools = tuple(catalog.cluster(name).with_nodes(nodes).pools[0] for name in names)
    return Cluster(name="old and new", pools=pools, joint=ETHERNET)


def profiles_of(
    cluster: Cluster, model: str = "llama3-8b", *, degree: int = 2, length: int = 2048
) -> dict[int, Profile]:
    """The estimated profile of each pool."""
    point = ProfilePoint(
        sequence_length=length,
        tensor_parallel=(degree,),
        sequence_parallel=degree > 1,
        precision="bf16",
    )
    config = catalog.model(model).config
    return {
        pool: Estimator(model=config, cluster=cluster.alone(pool)).profile(point)
        for pool in range(len(cluster.pools))
    }


def group(pool: int, count: int, share: float = 1.0, *, tensor: int = 2) -> ReplicaGroup:
    """Replicas of a stage in a pool."""
    return ReplicaGroup(count=count, tensor_parallel=tensor, pool=pool, share=share)


def staged(
    profile: Profile,
    replicas: list[tuple[ReplicaGroup, ...]],
    *,
    cuts: tuple[int, ...] | None = None,
    microbatches: int = 16,
    zero: int = 0,
    schedule: str = "1f1b",
) -> Plan:
    """A plan of even stages, or cut as told, with the replicas of each."""
    layers = profile.structure.layers
    p = len(replicas)
    cuts = cuts or tuple(round(i * len(layers) / p) for i in range(p + 1))
    stages = tuple(
        Stage(
            layers=tuple(layer.id for layer in layers[a:b]),
            options=("none",) * (b - a),
            replicas=groups,
        )
        for (a, b), groups in zip(pairwise(cuts), replicas, strict=True)
    )
    first = stages[0]
    return Plan(
        stages=stages,
        num_microbatches=microbatches,
        microbatch_size=1,
        schedule=schedule,
        parallelism=Parallelism(
            tensor=first.replicas[0].tensor_parallel,
            pipeline=p,
            data=first.data_parallel,
            sequence_parallel=first.replicas[0].tensor_parallel > 1,
            zero_stage=zero,
        ),
    )


def with_memory(cluster: Cluster, pool: int, gib: float) -> Cluster:
    """The cluster with another memory of the devices of one pool."""
    pools = list(cluster.pools)
    device = replace(pools[pool].accelerator, memory_bytes=gib * 2**30)
    pools[pool] = replace(pools[pool], accelerator=device)
    return replace(cluster, pools=tuple(pools))
