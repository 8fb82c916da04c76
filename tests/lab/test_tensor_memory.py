"""Peaks of torchtitan's published runs, from the account of tensors and the allocator."""

import pytest

from reference import needs_reference, reference
from trainwright.commands.validate import validate


@pytest.mark.slow
@needs_reference
def test_what_torchtitan_reserved_is_met_and_not_promised_too_little() -> None:
    document = validate(reference() / "measured", files=("torchtitan",)).document
    (found,) = document.datasets
    assert found.memory is not None
    assert found.memory.n >= 14
    assert found.memory.mape < 0.07
    assert found.false_fits == 0
