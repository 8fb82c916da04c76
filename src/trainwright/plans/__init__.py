"""What a search returns: plans, predictions, and the documents that carry them."""

from trainwright.plans.plan import Parallelism, Plan, ReplicaGroup, Stage
from trainwright.plans.prediction import (
    CommunicationTime,
    StageCost,
    StageMemory,
    StagePrediction,
    StepPrediction,
    TimeBreakdown,
)
from trainwright.plans.status import BoundKind, Status

__all__ = [
    "BoundKind",
    "CommunicationTime",
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
