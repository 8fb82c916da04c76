"""Layers on a design's cores: what the search charges, and what a schedule makes of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from chips.jobs import BERT, GPT3
from strategies_layer import find_layer_faults
from trainwright.chips.design_times import ProductCache, exact_times
from trainwright.chips.layer_schedule import schedule_backward, schedule_forward
from trainwright.chips.space import space_of
from trainwright.cluster import REFERENCE_DESIGN, Surroundings
from trainwright.model import Phase
from trainwright.plans.status import Status

CHIP = REFERENCE_DESIGN


def layers(job, degree):
    chain = job.chain(degree)
    return chain, int(np.argmax(chain.class_counts))


def charged_s(chain, layer):
    """Forward and backward of a layer as the search has them."""
    space = space_of(CHIP)
    table = ProductCache(space, chain, Surroundings()).table(np.arange(1))
    times = exact_times(space, chain, Surroundings(), table)
    return times.forward_s[0, layer], times.backward_s[0, 0, layer]


@pytest.mark.parametrize(("job", "degree"), [(GPT3, 8), (GPT3, 4), (BERT, 1)])
def test_a_dense_forward_is_a_chain_of_what_the_search_charges(job, degree):
    chain, layer = layers(job, degree)
    found = schedule_forward(CHIP, Surroundings(), chain, layer)
    assert found.schedule.method == "chain"
    assert found.status is Status.OPTIMAL
    assert found.seconds == pytest.approx(charged_s(chain, layer)[0], rel=1e-12)
    assert found.seconds == pytest.approx(found.sequential_s, rel=1e-12)


@pytest.mark.parametrize(("job", "degree"), [(GPT3, 8), (GPT3, 4), (BERT, 2)])
def test_weight_gradients_run_beside_the_collectives_of_a_backward(job, degree):
    chain, layer = layers(job, degree)
    found = schedule_backward(CHIP, Surroundings(), chain, layer)
    assert found.sequential_s == pytest.approx(charged_s(chain, layer)[1], rel=1e-12)
    assert found.seconds < found.sequential_s
    assert found.traffic_s <= found.seconds
    assert found.lower_bound_s <= found.seconds
    assert not find_layer_faults(found.problem, found.schedule.runs)


def test_a_weight_gradient_waits_for_the_gradient_that_arrives_at_its_operator():
    chain, layer = layers(GPT3, 8)
    found = schedule_backward(CHIP, Surroundings(), chain, layer)
    runs = dict(zip(found.names, found.schedule.runs, strict=True))
    operators = [k.operator for k in chain.kernels[layer] if k.phase is Phase.INPUT_GRAD]
    for first, second in itertools.pairwise(operators):
        ready_s = runs[f"{second} input_grad"].end_s
        assert runs[f"{first} input_grad"].start_s >= ready_s
        if (name := f"{first} weight_grad") in runs:
            assert runs[name].start_s >= ready_s
