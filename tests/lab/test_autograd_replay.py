"""Real autograd in the order of a schedule: gradients, and bytes that follow its curve."""

from __future__ import annotations

import pytest

from trainwright.errors import InvalidInput
from trainwright.lab.token_replay import compare_curve, whole_model
from trainwright.plans.lowered import LoweredKind
from trainwright.scheduling.families import FAMILIES, FamilyRequest, generate
from trainwright.scheduling.lower import lower


def test_a_curve_that_is_not_given_back_is_off_by_what_stays():
    seen = [("0F0", 0.0), ("0F1", 10.0), ("0B0", 20.0), ("0B1", 10.0), ("", 10.0)]
    found = compare_curve(0, seen, [10])
    assert (found.peak_bytes, found.predicted_peak_bytes) == (20.0, 20.0)
    assert found.largest_difference_bytes == 10.0


def test_a_split_backward_may_free_early_or_late():
    for after_input in (0.0, 4.0, 10.0):
        seen = [("0F0", 0.0), ("0I0", 10.0), ("0W0", after_input), ("", 0.0)]
        assert compare_curve(0, seen, [10]).largest_difference_bytes == 0
    early = [("0F0", 0.0), ("0I0", 7.0), ("0W0", 7.0), ("", 0.0)]
    assert compare_curve(0, early, [10]).largest_difference_bytes == 3


def test_actions_of_a_pair_count_both():
    seen = [("0F0", 0.0), ("(0F1;0B0)OVERLAP_F_B", 10.0), ("0B1", 10.0), ("", 0.0)]
    found = compare_curve(0, seen, [10])
    assert (found.largest_difference_bytes, found.num_actions) == (0, 4)


# On four ranks and fewer every family is run by real processes; on five these at length.
AT_LENGTH = {
    *("eager-1f1b", "zb-h2", "zb-1p", "zb-2p", "zb-v-handmade", "v-min", "gis", "gis-h"),
    *("stp", "hanayo", "2bp", "breadth-first"),
}


@pytest.mark.torch
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=pytest.mark.papers if name in AT_LENGTH else ())
        for name in FAMILIES
        if FAMILIES[name].is_plain
    ],
)
def test_every_family_unfolded_trains_the_same_model(family):
    from trainwright.lab.autograd_replay import replay_autograd

    schedule = generate(family, FamilyRequest(num_ranks=5, num_microbatches=10))
    count = schedule.placement.num_stages
    mixed = [("block",), ("block:full", "block"), ("block:selective",), ("block:offload", "block")]
    stages = whole_model(tuple(mixed[at % 4] for at in range(count)))
    found = replay_autograd(lower(schedule), stages)
    assert found.error <= 2e-7
    assert found.loss_error <= 1e-6
    assert found.kept_bytes < found.kept_without_recompute_bytes
    assert [rank.largest_difference_bytes for rank in found.ranks] == [0] * 5
    assert all(rank.peak_bytes > 0 for rank in found.ranks)


@pytest.mark.torch
def test_gradients_that_are_not_reduced_are_off():
    from trainwright.lab.autograd_replay import replay_autograd

    lowered = lower(generate("zb-h1", FamilyRequest(num_ranks=2, num_microbatches=4)))
    reduces = lowered.actions[:, 0] == LoweredKind.REDUCE_GRAD
    broken = lowered.without(int(reduces.argmax()))
    stages = whole_model((("block",), ("block",)))
    assert replay_autograd(broken, stages).error > 0.05


@pytest.mark.torch
def test_a_missing_input_is_named_with_its_place():
    from trainwright.lab.autograd_replay import replay_autograd

    lowered = lower(generate("1f1b", FamilyRequest(num_ranks=2, num_microbatches=2)))
    receives = lowered.actions[:, 0] == LoweredKind.RECV_F
    broken = lowered.without(int(receives.argmax()))
    with pytest.raises(InvalidInput, match=r"orders\[1\]\[0\]: 1RECV_F1 gets what was sent"):
        replay_autograd(broken, whole_model((("block",), ("block",))))


@pytest.mark.torch
def test_a_recomputed_layer_keeps_its_input_alone_and_an_offloaded_one_nothing():
    from trainwright.lab import autograd_replay as tiny
    from trainwright.lab.autograd_replay import kept_by_stage

    plain, full, selective, moved = (
        kept_by_stage((("embedding",), (name,), ("head",)))[1]
        for name in ("block", "block:full", "block:selective", "block:offload")
    )
    assert full == 4 * tiny.MICROBATCH_SIZE * tiny.SEQUENCE * tiny.WIDTH
    assert moved == 0 < full < selective < plain


@pytest.mark.torch
def test_the_process_is_left_as_it_was():
    import torch

    from trainwright.lab.autograd_replay import replay_autograd

    threads = torch.get_num_threads()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    lowered = lower(generate("1f1b", FamilyRequest(num_ranks=2, num_microbatches=2)))
    replay_autograd(lowered, whole_model((("block",), ("block",))))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.rand(3), expected)
