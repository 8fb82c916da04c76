"""Memory of stages with measured layers: each term on sizes small enough to add up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainwright.errors import UnsupportedFeature
from trainwright.formats.measured_csv import MeasuredRun
from trainwright.lab.validate import stage_peak_bytes
from trainwright.profile.measured_model import LayerSizes

RUN = MeasuredRun(
    row_id="row",
    table="sailor_gh200",
    model="small",
    accelerator="GH200-96GB",
    num_devices=4,
    devices_per_node=4,
    tensor=2,
    pipeline=2,
    data=1,
    sequence_length=16,
    global_batch=8,
    microbatch_size=1,
    hidden_size=8,
    num_heads=4,
    vocabulary_size=100,
)
# Embedding, two blocks, a head with weights of its own: parameters, output bytes, saved bytes.
HELD = ((500.0, 0.0, 10.0), (300.0, 0.0, 1000.0), (300.0, 0.0, 1000.0), (400.0, 0.0, 50.0))
CONSTANTS = {"parameter_bytes": 20.0, "saved_ratio": 1.5, "fixed_bytes": 7.0}
SCORES = 2 * 4 * 16 * 4 * 16 / 2
LOGITS = 4 * 16 * 100 / 2


def peak(run: MeasuredRun, own: range, in_flight: int, *, held: LayerSizes = HELD) -> float:
    return stage_peak_bytes(run, held, own, tensor=2, in_flight=in_flight, constants=CONSTANTS)


def test_a_first_stage_holds_weights_saved_tensors_and_gradients_of_scores() -> None:
    assert peak(RUN, range(2), 2) == 20 * 800 + 1.5 * 1010 * 2 + SCORES + 7


def test_the_last_stage_holds_gradients_of_logits_too() -> None:
    assert peak(RUN, range(2, 4), 1) == 20 * 700 + 1.5 * 1050 + SCORES + LOGITS + 7


def test_a_head_without_weights_needs_the_embeddings_on_the_last_of_several_stages() -> None:
    tied = (*HELD[:3], (8.0, 0.0, 50.0))
    own_weights, copy = peak(RUN, range(2, 4), 1), peak(RUN, range(2, 4), 1, held=tied)
    assert copy - own_weights == 20 * (8 + 100 * 8 / 2 - 400)
    whole = 20 * 1108 + 1.5 * 2060 + SCORES + LOGITS + 7
    assert peak(RUN, range(4), 1, held=tied) == whole


def test_a_stage_that_is_never_full_again_is_full_without_gradients() -> None:
    few = replace(RUN, global_batch=2)
    assert peak(RUN, range(2), 2) - peak(few, range(2), 2) == 4 * 800


def test_a_row_without_heads_is_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="heads and vocabulary"):
        peak(replace(RUN, num_heads=None), range(2), 2)
