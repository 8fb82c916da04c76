"""Peak memory of megatron-core on Transformer Engine with fused gradient accumulation and loss.

    peak = static + activations in flight + dummy weight gradients + loss phase + fixed bytes

With gradient accumulation fused into the weight gradient's product, the engine hands autograd one
16-bit dummy per distinct weight shape and caches it for ever: 6 GiB for a 405 B model's shapes. The
last rank peaks either at the loss (5 bytes per logit, fitted) or at the
head's weight gradient (logits' gradient and the head's own); the second wins where h > 2 n, n being
the tokens of a microbatch on a device. Inferred from public measured peaks; see the accuracy page.
"""

from __future__ import annotations

from trainwright.model import LayerKind, layer_graph
from trainwright.plan import StepPrediction
from trainwright.plan.legality import run_shape
from trainwright.validation.question import Question

_ELEMENT = 2
_LOSS_COPIES = 2.5


def engine_peak_bytes(question: Question, step: StepPrediction) -> float:
    """The fullest rank of a step."""
    dummies = _dummy_gradient_bytes(question)
    peaks = []
    for rank, stage in enumerate(step.stages):
        memory = stage.memory
        peak = memory.static_bytes + memory.activation_bytes + memory.workspace_bytes + dummies
        if rank == len(step.stages) - 1:
            peak += _loss_phase_bytes(question)
        peaks.append(peak)
    return max(peaks)


def _dummy_gradient_bytes(question: Question) -> float:
    asked = question.configuration
    precision = asked.recipe.precision or question.cluster.accelerator.default_precision
    graph = layer_graph(question.model, run_shape(asked, precision=precision))
    shapes = {
        (op.matrix.inputs, op.matrix.outputs)
        for layer in graph.classes
        if layer.kind is LayerKind.BLOCK
        for op in layer.operators
        if op.matrix is not None and op.name != "router"
    }
    return _ELEMENT * sum(inputs * outputs for inputs, outputs in shapes)


def _loss_phase_bytes(question: Question) -> float:
    asked, model = question.configuration, question.model
    degrees = asked.parallelism
    tokens = asked.microbatch_size * asked.sequence_length / degrees.context
    multiple = asked.vocabulary_multiple * degrees.tensor
    width = -(-model.vocabulary_size // multiple) * multiple / degrees.tensor
    at_loss = _LOSS_COPIES * tokens
    at_head = tokens + model.hidden_size
    return _ELEMENT * width * max(at_loss, at_head)
