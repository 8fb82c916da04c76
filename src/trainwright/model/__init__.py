"""What a model computes, keeps and passes on, from its hyper-parameters alone."""

from trainwright.model.config import Activation, Norm, TransformerConfig
from trainwright.model.graph import LayerClass, LayerGraph, TensorEdge
from trainwright.model.layer_kind import LayerKind
from trainwright.model.operator import (
    Exchange,
    MatrixShape,
    Operator,
    OperatorKind,
    Parameter,
    Phase,
    SavedTensor,
    Shard,
    Work,
)
from trainwright.model.parts import Experts, LatentAttention
from trainwright.model.precision import PRECISIONS, Precision, precision_named
from trainwright.model.recipe import (
    DEFAULT_RECIPE,
    DISPATCH_BYTES,
    STATE_BYTES,
    Optimizer,
    Recipe,
)
from trainwright.model.routing import Routing
from trainwright.model.run_shape import ContextExchange, RunShape, TokenDispatcher
from trainwright.model.transformer import (
    count_parameters,
    layer_graph,
    model_flops_per_sequence,
)
from trainwright.model.tuning import TRAIN_ALL, LowRank, Tuning

__all__ = [
    "DEFAULT_RECIPE",
    "DISPATCH_BYTES",
    "PRECISIONS",
    "STATE_BYTES",
    "TRAIN_ALL",
    "Activation",
    "ContextExchange",
    "Exchange",
    "Experts",
    "LatentAttention",
    "LayerClass",
    "LayerGraph",
    "LayerKind",
    "LowRank",
    "MatrixShape",
    "Norm",
    "Operator",
    "OperatorKind",
    "Optimizer",
    "Parameter",
    "Phase",
    "Precision",
    "Recipe",
    "Routing",
    "RunShape",
    "SavedTensor",
    "Shard",
    "TensorEdge",
    "TokenDispatcher",
    "TransformerConfig",
    "Tuning",
    "Work",
    "count_parameters",
    "layer_graph",
    "model_flops_per_sequence",
    "precision_named",
]
