"""Every stage the search rejected was rejected by a proof.

The search keeps a sample of its rejections, those skipped in groups included. Each is proved again
by a knapsack written straight from the cost model: all choices of options, reduced only by dropping
choices that are both slower and larger.
"""

from __future__ import annotations

import numpy as np
import pytest
from wide_graphs import WideSpec, star_profile, wide_profile, wide_setting

from trainwright._native import _core
from trainwright.partitioning.downset_dp import Restrictions, compile_problem

SPECS = (
    WideSpec(seed=3),
    WideSpec(seed=4, degrees=(1, 2), options_per_degree=3, varied=True),
    WideSpec(seed=5, degrees=(2, 4), varied=True),
)


def options_of(profile, layer, degree):
    """(time, synchronised bytes, saved bytes, static bytes, sync bytes per edge) of each option."""
    costs = profile.costs
    edges = [
        index
        for ends in (profile.structure.in_edges(), profile.structure.out_edges())
        for index in ends[layer]
    ]
    rows = costs.rows_of(profile.structure.layers[layer].layer_class)
    for row in range(rows.start, rows.stop):
        if costs.tensor_parallel[row] != degree:
            continue
        start, stop = costs.boundary_offsets[row], costs.boundary_offsets[row + 1]
        sync = costs.boundary_bytes[start:stop] if stop > start else np.zeros(len(edges))
        yield (
            costs.duration_s[row],
            costs.gradient_sync_bytes[row].sum(),
            costs.saved_bytes[row],
            costs.total_static_bytes[row],
            dict(zip(edges, sync, strict=True)),
        )


def choices_of(profile, setting, rejected, layer):
    """What each option of the layer adds to time and memory of the rejected stage."""
    d, bandwidth = rejected.data_degree, setting.bandwidth_bytes_per_s
    inside = set(rejected.layers)
    for time_s, synced, saved, static, sync in options_of(profile, layer, rejected.tensor_degree):
        cut = sum(
            edge.bytes + sync[index]
            for index, edge in enumerate(profile.structure.edges)
            if layer in (edge.source, edge.target)
            and not (edge.source in inside and edge.target in inside)
        )
        traffic_s = 2 * cut / (d * bandwidth)
        gradients_s = 4 * (d - 1) / d * synced / (setting.num_microbatches * bandwidth)
        yield time_s / d + traffic_s + gradients_s, saved * rejected.num_in_flight + static


def least_time_s(profile, setting, rejected):
    """The fastest choice that fits into memory; infinity if none does."""
    time, memory = np.zeros(1), np.zeros(1)
    for layer in rejected.layers:
        choices = np.array(list(choices_of(profile, setting, rejected, layer)))
        if len(choices) == 0:
            return np.inf
        time = np.add.outer(time, choices[:, 0]).ravel()
        memory = np.add.outer(memory, choices[:, 1]).ravel()
        fits = memory <= setting.memory_bytes  # what is left only adds to it
        order = np.lexsort((memory[fits], time[fits]))
        time, memory = time[fits][order], memory[fits][order]
        least_so_far = np.minimum.accumulate(np.concatenate(([np.inf], memory[:-1])))
        time, memory = time[memory < least_so_far], memory[memory < least_so_far]
    return min(time, default=np.inf)


def audited(profile, setting, *, max_pairs, seed=7):
    native = compile_problem(profile, setting, Restrictions()).native
    return _core.solve_partition(
        native,
        time_limit_s=float("inf"),
        poll=None,
        max_pairs=max_pairs,
        audit_sample=60,
        audit_seed=seed,
    )


def prove_again(profile, setting, found):
    assert len(found.audit) == 60
    for rejected in found.audit:
        proved_s = least_time_s(profile, setting, rejected)
        assert proved_s > rejected.threshold_s * (1 - 1e-12), rejected.layers


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("max_pairs", [0, None])
def test_rejected_stages_of_a_star_are_proved_again(spec, max_pairs):
    profile = star_profile(spec, width=7)
    setting = wide_setting(profile, num_devices=12, tightness=0.4)
    found = audited(profile, setting, max_pairs=max_pairs)
    assert found.status == "optimal"
    prove_again(profile, setting, found)


@pytest.mark.slow
def test_rejected_stages_of_a_wide_graph_are_proved_again():
    profile = wide_profile(WideSpec(seed=0))
    setting = wide_setting(profile, num_devices=32, tightness=0.5)
    prove_again(profile, setting, audited(profile, setting, max_pairs=None))


def test_the_same_seed_samples_the_same_rejections():
    profile = star_profile(SPECS[0], width=7)
    setting = wide_setting(profile, num_devices=12, tightness=0.4)

    def sample(seed):
        found = audited(profile, setting, max_pairs=0, seed=seed)
        return [(stage.layers, stage.data_degree, stage.threshold_s) for stage in found.audit]

    assert sample(1) == sample(1) != sample(2)


def test_the_knapsack_that_proves_again_finds_a_cheaper_choice_where_there_is_one():
    profile = star_profile(SPECS[0], width=7)
    setting = wide_setting(profile, num_devices=12, tightness=0.4)
    found = audited(profile, setting, max_pairs=0)
    slowest = max(stage.threshold_s for stage in found.audit)
    accepted = [s for s in found.audit if least_time_s(profile, setting, s) <= 100 * slowest]
    assert accepted
