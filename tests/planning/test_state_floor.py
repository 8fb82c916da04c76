"""What a model's state takes at least, over all devices, against runs that are priced."""

from __future__ import annotations

import pytest

import trainwright
from model_questions import question
from trainwright.planning.search.plans import is_more_than_all_devices_hold, least_state_bytes

LAYOUTS = (
    {"dp": 16, "zero": 3},
    {"dp": 16, "zero": 1},
    {"tp": 4, "dp": 4, "zero": 2},
    {"tp": 2, "pp": 2, "dp": 4, "zero": 1},
    {"pp": 4, "cp": 2, "dp": 2, "zero": 3},
    {"dp": 16, "zero": 3, "state_copies": 2},
    {"dp": 16, "ep": 4, "zero": 1},
    {"dp": 8, "tp": 2, "ep": 8, "zero": 3},
)
MODELS = ("llama3-8b", "gpt2", "mixtral-8x7b", "deepseek-v2-lite", "bert-base")


def state_of(model, layout):
    """Weights, gradients and optimizer states that all devices of a priced run hold."""
    run = trainwright.estimate(
        model, cluster="dgx-h100", nodes=2, global_batch=16, sequence=512, **layout
    ).document
    degrees = run.request.configuration.parallelism
    each = sum(
        rank.weight_bytes + rank.gradient_bytes + rank.optimizer_bytes for rank in run.memory
    )
    return each * degrees.devices_per_rank


@pytest.mark.parametrize("model", MODELS)
def test_no_run_holds_less_than_the_floor(model):
    floor = least_state_bytes(question(model, batch=16, sequence=512))
    for layout in LAYOUTS:
        if "ep" in layout and model not in ("mixtral-8x7b", "deepseek-v2-lite"):
            continue
        assert state_of(model, layout) >= floor * (1 - 1e-9), layout


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_fully_sharded_replicas_hold_just_the_floor(model):
    floor = least_state_bytes(question(model, batch=16, sequence=512))
    assert state_of(model, {"dp": 16, "zero": 3}) == pytest.approx(floor, rel=1e-3)


@pytest.mark.parametrize(("devices", "too_few"), [(1, True), (2, False)])
def test_an_8b_model_has_more_state_than_one_device(devices, too_few):
    asked = question("llama3-8b", batch=16, sequence=512, num_devices=devices)
    assert is_more_than_all_devices_hold(asked) is too_few
