import pytest

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.schedule_json import format_compute_comms, parse_compute_comms
from trainwright.lab.gloo_check import with_swapped_microbatches, without_gradient_reduction
from trainwright.scheduling.families import FamilyRequest, generate
from trainwright.scheduling.lower import as_pytorch_runs, lower, validate_lowered


def csv_of(num_microbatches: int) -> str:
    request = FamilyRequest(num_ranks=2, num_microbatches=num_microbatches)
    return format_compute_comms(lower(generate("1f1b", request), sharded_stages=(0,)))


def test_a_missing_reduction_is_found_before_anything_runs():
    broken = parse_compute_comms(without_gradient_reduction(csv_of(3)))
    with pytest.raises(InvalidInput, match="0REDUCE_GRAD must appear once, got 0"):
        validate_lowered(broken)


def test_swapped_microbatches_are_legal_but_not_for_pytorch():
    broken = parse_compute_comms(with_swapped_microbatches(csv_of(12)))
    validate_lowered(broken)
    with pytest.raises(UnsupportedFeature, match="wrong gradients unless the last stage"):
        format_compute_comms(broken)
    repaired = as_pytorch_runs(broken.compute_only())
    assert repaired == parse_compute_comms(csv_of(12)).compute_only()


def test_swapping_twice_gives_the_file_back():
    csv = csv_of(12)
    assert with_swapped_microbatches(csv) != csv
    assert with_swapped_microbatches(with_swapped_microbatches(csv)) == csv
