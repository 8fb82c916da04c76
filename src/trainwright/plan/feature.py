"""The features of a plan that frameworks differ in: the rows of the capability table."""

from __future__ import annotations

from enum import StrEnum


class Feature(StrEnum):
    """One row of the table; the value is its title."""

    PIPELINE = "pipeline stages"
    UNEVEN_STAGES = "uneven stages"
    LOOP = "several stages per rank"
    UNEQUAL_CHUNKS = "different stage count per rank"
    V_PLACEMENT = "V placement"
    ANY_PLACEMENT = "wave or arbitrary placement"
    CUSTOM_ORDER = "custom order of actions"
    SPLIT_BACKWARD = "backward split in two"
    ENDS_APART = "embedding or head on a stage of their own"
    MTP = "multi-token prediction layers"
    RECOMPUTE_ALL = "recompute all blocks, or none"
    RECOMPUTE_FIRST = "recompute the first k blocks of every stage"
    RECOMPUTE_MODULES = "recompute parts of every block"
    RECOMPUTE_ANY = "recompute any set of blocks"
    RECOMPUTE_MIXED = "recompute parts of some blocks"
    ZERO_1 = "ZeRO 1"
    ZERO_2 = "ZeRO 2 without pipeline"
    ZERO_3 = "ZeRO 3 without pipeline"
    ZERO_2_PIPELINE = "ZeRO 2 with pipeline"
    ZERO_3_PIPELINE = "ZeRO 3 with pipeline"
    UNSHARDED_BESIDE = "ZeRO 0 beside context or expert parallel"
    UNSHARDED_TENSOR = "ZeRO 0 replicas beside tensor parallel"
    HYBRID_SHARD = "state sharded inside groups of replicas"
    HYBRID_SHARD_EXPERTS = "such groups with ZeRO 2 or 3 beside split experts"
    OFFLOAD = "optimizer state on the host"
    TENSOR = "tensor parallel"
    SEQUENCE_PARALLEL = "sequence parallel beside it"
    NO_SEQUENCE_PARALLEL = "tensor parallel without sequence parallel"
    CONTEXT = "context parallel"
    EXPERT = "expert parallel"
    EXPERTS_CUT = "experts cut as the rest"
    EXPERTS_WHOLE = "experts whole beside tensor parallel"
    EXPERT_TENSOR = "experts cut in another way"
    DEGREES_PER_STAGE = "degrees that differ between stages"
