"""Tables of layer times and sizes become a profile that the planner takes."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from trainwright.costing.measured import profile_of_tables
from trainwright.errors import InvalidInput
from trainwright.model.run_shape import FP32
from trainwright.profile import Profile
from trainwright.profile.measured_model import MeasuredLayers
from trainwright.provenance import Origin

END, BLOCK = (0.1, 0.0, 0.5), (1.0, 2.0, 0.5)
SIZES = ((100.0, 8.0, 4.0), (50.0, 8.0, 32.0), (50.0, 8.0, 32.0), (90.0, 40.0, 16.0))
TABLES = MeasuredLayers(
    times_s=MappingProxyType(
        {
            ("m", "A", 1, 1): (END, BLOCK, BLOCK, END),
            ("m", "A", 4, 1): tuple((4 * f, 4 * b, u) for f, b, u in (END, BLOCK, BLOCK, END)),
            ("m", "A", 1, 2): (END, (0.6, 1.2, 0.5), (0.7, 1.2, 0.5), END),
        }
    ),
    sizes=MappingProxyType({("m", 1): SIZES, ("m", 2): SIZES}),
)


def profile(
    layers: MeasuredLayers = TABLES,
    model: str = "m",
    accelerator: str = "A",
    *,
    microbatch_size: int = 1,
    tensor_parallel: tuple[int, ...] = (1,),
) -> Profile:
    return profile_of_tables(
        layers,
        model,
        accelerator,
        microbatch_size=microbatch_size,
        tensor_parallel=tensor_parallel,
        precision=FP32,
        source="tables",
    )


def test_forward_and_backward_add_up_and_the_update_is_left_out() -> None:
    found = profile()
    assert found.costs.duration_s.tolist() == [0.1, 3.0, 0.1]
    assert [layer.name for layer in found.structure.layers] == [
        "embedding",
        "block",
        "block",
        "lm_head",
    ]
    assert found.costs.static_bytes[1].sum() == 50.0 * FP32.static_bytes
    assert found.costs.provenance.origin is Origin.MEASURED


def test_layers_share_a_class_only_where_they_agree_at_every_degree() -> None:
    assert profile().structure.num_classes == 3
    both = profile(tensor_parallel=(2, 1))
    assert both.structure.num_classes == 4
    assert both.costs.tensor_parallel.tolist() == [1, 2] * 4


def test_sizes_grow_with_the_microbatch() -> None:
    found = profile(microbatch_size=4)
    assert found.costs.saved_bytes.tolist() == [16.0, 128.0, 64.0]
    assert [edge.bytes for edge in found.structure.edges] == [32.0] * 3


def test_a_microbatch_between_two_is_interpolated_and_marked() -> None:
    found = profile(microbatch_size=2)
    assert found.costs.duration_s == pytest.approx([0.2, 6.0, 0.2])
    assert found.costs.provenance.origin is Origin.INTERPOLATED


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"model": "x"}, 'times of model "x"; it has m'),
        ({"accelerator": "B"}, 'times of m on "B"; it has A'),
        ({"tensor_parallel": (1, 4)}, r"at tensor degree 4; it has times at \[1, 2\]"),
        ({"layers": replace(TABLES, sizes={})}, r"sizes at \[\]"),
    ],
)
def test_what_the_tables_lack_is_named_with_what_they_have(asked, told) -> None:
    with pytest.raises(InvalidInput, match=told):
        profile(**asked)
