"""What one device of a stage holds at its fullest, where the sizes of its layers were measured.

    P · parameters + k · saved bytes · microbatches in flight + gradients passed on + C

in float32 with attention that is not fused. The fullest moment is the start of a backward pass:
there are the gradients before and after one softmax, in the last stage those of the logits too.
P (bytes per parameter: weights, gradients twice, two moments of Adam), k (what the allocator holds
over what layers save) and C (device context, communicators) are fitted once per kind of device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.errors import UnsupportedFeature

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainwright.plan.measured_run import MeasuredRun
    from trainwright.profile.measured_layers import LayerSizes

_FLOAT_BYTES: Final = 4


def stage_peak_bytes(
    run: MeasuredRun,
    held: LayerSizes,
    own: range,
    *,
    tensor: int,
    in_flight: int,
    constants: Mapping[str, float],
) -> float:
    """Bytes of a device that holds the layers `own` of `held` at a tensor degree.

    `in_flight` microbatches are kept at most. Raises `UnsupportedFeature` where the run does not
    state its heads and vocabulary.
    """
    assert run.microbatch_size is not None and run.global_batch is not None
    parameters = sum(held[i][0] for i in own) + _tied_copy(run, held, own, tensor)
    saved_bytes = sum(held[i][2] for i in own) * run.microbatch_size * in_flight
    peak_bytes = constants["parameter_bytes"] * parameters + constants["saved_ratio"] * saved_bytes
    if run.global_batch // (run.microbatch_size * run.data) <= in_flight:
        peak_bytes -= _FLOAT_BYTES * parameters  # full only before the first gradients exist
    with_loss = own[-1] + 1 == len(held)
    peak_bytes += _backward_bytes(run, tensor, with_loss=with_loss)
    return peak_bytes + constants["fixed_bytes"]


def _tied_copy(run: MeasuredRun, held: LayerSizes, own: range, tensor: int) -> float:
    """Word embeddings that the last of several stages holds for a head without weights."""
    last = len(held) - 1
    embeddings = (run.vocabulary_size or 0) * (run.hidden_size or 0) / tensor
    needs_copy = own[-1] == last and own[0] > 0 and held[last][0] < embeddings
    return embeddings if needs_copy else 0.0


def _backward_bytes(run: MeasuredRun, tensor: int, *, with_loss: bool) -> float:
    if run.num_heads is None or run.vocabulary_size is None:
        raise UnsupportedFeature("the row does not state its heads and vocabulary")
    assert run.microbatch_size is not None
    scores = 2 * run.num_heads * run.sequence_length
    logits = run.vocabulary_size if with_loss else 0
    tokens = run.microbatch_size * run.sequence_length
    return _FLOAT_BYTES * tokens * (scores + logits) / tensor
