"""What a model computes, keeps and passes on, from its hyper-parameters alone."""

from importlib import import_module
from typing import Any

# Where each name lives (`__init__.pyi` types them): a profile is planned without what a model is.
_HOMES = {
    "config": (
        "BESIDE_BLOCKS",
        "TRAIN_ALL",
        "Activation",
        "BlockChoice",
        "CompressedAttention",
        "Experts",
        "Head",
        "Indexer",
        "Keys",
        "LatentAttention",
        "LayerKind",
        "LowRank",
        "Norm",
        "Projection",
        "Tower",
        "TransformerConfig",
        "Tuning",
    ),
    "mixers": (
        "DeltaRule",
        "LinearAttention",
        "Mixer",
        "ShortConvolution",
        "StateSpace",
        "TimeMix",
    ),
    "operator": (
        "Exchange",
        "LayerClass",
        "LayerGraph",
        "MatrixShape",
        "Operator",
        "OperatorKind",
        "Parameter",
        "Phase",
        "SavedTensor",
        "Shard",
        "TensorEdge",
        "Work",
    ),
    "recipe": (
        "DEFAULT_RECIPE",
        "DISPATCH_BYTES",
        "NO_OFFLOAD",
        "STATE_BYTES",
        "Offload",
        "Optimizer",
        "Recipe",
    ),
    "run_shape": (
        "PRECISIONS",
        "ContextExchange",
        "CudaGraph",
        "Precision",
        "Routing",
        "RunShape",
        "TokenDispatcher",
        "precision_named",
    ),
    "transformer": (
        "count_parameters",
        "layer_graph",
        "model_flops_per_sequence",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF]


def __getattr__(name: str) -> Any:
    """Load a name when it is first asked for."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = found
    return found
