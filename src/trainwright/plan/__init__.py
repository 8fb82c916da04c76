"""What a search returns: plans, predictions, and the documents that carry them."""

from trainwright.plan.overlap import MemoryOverheads, Overlap
from trainwright.plan.parallelism import Parallelism
from trainwright.plan.plan import Plan
from trainwright.plan.prediction import (
    CommunicationTime,
    StageCost,
    StageMemory,
    StagePrediction,
    StepPrediction,
    TimeBreakdown,
)
from trainwright.plan.stage import ReplicaGroup, Stage
from trainwright.plan.status import BoundKind, Status

__all__ = [
    "BoundKind",
    "CommunicationTime",
    "MemoryOverheads",
    "Overlap",
    "Parallelism",
    "Plan",
    "ReplicaGroup",
    "Stage",
    "StageCost",
    "StageMemory",
    "StagePrediction",
    "Status",
    "StepPrediction",
    "TimeBreakdown",
]
