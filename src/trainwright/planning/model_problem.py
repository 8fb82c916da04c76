"""A candidate of a model as a problem for the partitioner.

The partitioner adds bytes up, layer by layer. Three things of a stage do not add up: transients
count at their largest, weights that ZeRO-3 gathers likewise, and parameters tied between layers are
held once by a stage with both. What fits the *roomy* problem fits with all of them; beside it
stand two changes of a profile that take no plan away, for proofs that none fits. Gradient
synchronisation is left out; `pricing` knows how much of it hides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.costing.estimate import flat_setting
from trainwright.partitioning.restrictions import Restrictions, surviving_rows
from trainwright.planning.device_room import room_of_candidate
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.model_space import Candidate
    from trainwright.profile import Profile, Setting

    Floats = NDArray[np.float64]
    Problem = tuple[Profile, Setting]


def candidate_restrictions(candidate: Candidate) -> Restrictions:
    """The candidate's degrees alone; its profile has no options but those allowed."""
    return Restrictions(data_degrees=(candidate.data,), tensor_degrees=(candidate.tensor,))


def roomy_problem(question: ModelQuestion, candidate: Candidate, profile: Profile) -> Problem:
    """What fits here fits with transients, gathered weights and tied parameters too."""
    replicas, gathers = _replicas(candidate)[0], _gathers(candidate)
    gathered = _weights(profile) * (2 * (1 - 1 / replicas)) if gathers else None
    held = hold_tied_once(profile) if candidate.pipeline == 1 else profile
    setting = candidate_setting(question, candidate, profile)
    restrictions = candidate_restrictions(candidate)
    sharded = _sharded(held, candidate)
    return reserve_transients(sharded, setting, restrictions, gathered_bytes=gathered)


def _gathers(candidate: Candidate) -> bool:
    """Whether devices gather weights: a layer's and the next one's, or all they run if less."""
    return candidate.zero_stage == 3 and _replicas(candidate)[0] > 1


def _replicas(candidate: Candidate) -> tuple[int, int]:
    """Devices that share the state of the same dense parameters, and of the same experts."""
    point, data = candidate.point, candidate.data // candidate.state_copies
    return data * point.context, max(1, point.devices * data // point.expert_devices)


def candidate_setting(question: ModelQuestion, candidate: Candidate, profile: Profile) -> Setting:
    """The candidate's devices, those of a context group counted once, and microbatches."""
    num_microbatches = question.workload.global_batch // candidate.microbatch_size
    room = room_of_candidate(question, candidate, profile)
    setting = flat_setting(room, num_microbatches=num_microbatches)
    return replace(setting, num_devices=candidate.num_devices // candidate.context)


def reserve_transients(
    profile: Profile,
    setting: Setting,
    restrictions: Restrictions,
    *,
    gathered_bytes: Floats | None = None,
) -> Problem:
    """Room for transients, and for gathered weights of shape [R]: what fits here fits with them.

    The largest of the repeated layers is kept free on every device; a layer that exists once adds
    what it needs beyond that.
    """
    once = _exists_once(profile)
    repeated = ~once & surviving_rows(profile.costs, restrictions)
    reserve_bytes, beyond = 0.0, np.zeros(len(once))
    for needed in (profile.costs.transient_bytes, gathered_bytes):
        if needed is not None:
            largest = float(needed[repeated].max(initial=0.0))
            reserve_bytes += largest
            beyond += np.where(once, np.maximum(needed - largest, 0.0), 0.0)
    memory_bytes = max(1.0, setting.memory_bytes - reserve_bytes)
    return _with_static(profile, beyond), replace(setting, memory_bytes=memory_bytes)


def require_largest_transient(profile: Profile) -> Profile:
    """The largest transient of a layer that exists once: what does not fit here never fits.

    Some stage holds that layer, and while the layer runs its transient lies beside all the rest.
    """
    costs = profile.costs
    alone = np.where(_exists_once(profile), costs.transient_bytes, 0.0)
    least = np.minimum.reduceat(alone, costs.class_offsets[:-1])
    largest = np.arange(costs.num_classes) == least.argmax()
    rows = np.repeat(largest, np.diff(costs.class_offsets))
    return _with_static(profile, np.where(rows, alone, 0.0))


def _exists_once(profile: Profile) -> NDArray[np.bool_]:
    """Which rows belong to a layer that has its class for itself, shape [R]."""
    counts = np.bincount([layer.layer_class for layer in profile.structure.layers])
    return np.repeat(counts == 1, np.diff(profile.costs.class_offsets))


def _with_static(profile: Profile, added_bytes: Floats) -> Profile:
    costs = profile.costs
    static_bytes = costs.opaque_static_bytes + added_bytes
    return replace(profile, costs=replace(costs, opaque_static_bytes=static_bytes))


def _weights(profile: Profile) -> Floats:
    """Weight bytes of each row, shape [R]."""
    weights: Floats = profile.costs.static_bytes[:, :, StaticKind.WEIGHT].sum(axis=1)
    return weights


def hold_tied_once(profile: Profile) -> Profile:
    """Tied parameters are with the first of their layers alone: no plan holds less."""
    costs, layers = profile.costs, profile.structure.layers
    once, static = _exists_once(profile), costs.static_bytes.copy()
    for group in profile.structure.shared_parameters:
        for layer in group.layers[1:]:
            rows = np.array(costs.rows_of(layers[layer].layer_class))
            assert once[rows].all(), "a layer that shares parameters is one of its kind"
            weight = static[rows, 0, StaticKind.WEIGHT]
            tied = group.bytes / costs.tensor_parallel[rows]
            kept = np.where(weight > 0, 1 - np.minimum(1.0, tied / np.maximum(weight, 1e-300)), 1.0)
            static[rows, 0] *= kept[:, np.newaxis]
    return replace(profile, costs=replace(costs, static_bytes=static))


def _sharded(profile: Profile, candidate: Candidate) -> Profile:
    """State divided over the replicas by ZeRO, and no gradient synchronisation."""
    costs, shards = profile.costs, np.ones((2, len(StaticKind)))
    for first_stage, kind in (
        (1, StaticKind.OPTIMIZER),
        (2, StaticKind.GRADIENT),
        (3, StaticKind.WEIGHT),
    ):
        if candidate.zero_stage >= first_stage:
            shards[:, kind] = _replicas(candidate)
    surrogate = replace(
        costs,
        static_bytes=costs.static_bytes / shards,
        gradient_sync_bytes=np.zeros_like(costs.gradient_sync_bytes),
    )
    return replace(profile, costs=surrogate)
