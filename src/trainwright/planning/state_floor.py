"""Is the state of a model alone more than all devices together hold?

Every plan keeps each weight, gradient and optimizer state at least once, however it is cut and
sharded, so its fullest device holds at least the total over the number of devices. Tensor groups
repeat norms and pad the vocabulary, so the total is least without any. One profile is priced; where
the answer is yes, no layout has to be looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.planning.device_room import room_of_devices
from trainwright.planning.model_problem import hold_tied_once
from trainwright.planning.model_question import estimate_profile
from trainwright.planning.model_space import Point

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainwright.planning.model_question import ModelQuestion
    from trainwright.profile import Profile

_HAIR = 1 - 1e-9  # sums of floats may round


def is_more_than_all_devices_hold(question: ModelQuestion) -> bool:
    """Whether no plan on the question's devices can hold the state of its model."""
    room_bytes = room_of_devices(question).accelerator.usable_bytes
    return least_state_bytes(question) * _HAIR > room_bytes * question.num_devices


def least_state_bytes(question: ModelQuestion) -> float:
    """Weights, gradients and optimizer states over all devices, each once."""
    expert_tensor = None if question.model.experts is None else 1
    whole = Point(microbatch_size=1, tensor=1, expert_tensor=expert_tensor)
    return float(state_bytes(estimate_profile(question.estimator(), question, whole)).sum())


def state_bytes(profile: Profile) -> NDArray[np.float64]:
    """Of the whole model before sharding over replicas, tied parameters once: shape [2, 3]."""
    held = hold_tied_once(profile)
    first = held.costs.class_offsets[[layer.layer_class for layer in held.structure.layers]]
    total: NDArray[np.float64] = held.costs.static_bytes[first].sum(axis=0)
    return total
