"""The profile of a given graph is that of the estimator at the same point."""

from dataclasses import replace

import numpy as np
import pytest

import trainwright
from trainwright.costing import Estimator
from trainwright.costing.measured import profile_of_graph
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.model import RunShape, layer_graph
from trainwright.profile import ProfilePoint

CLUSTER = catalog.cluster("dgx-h100")
RUN = RunShape(microbatch_size=2, sequence_length=1024)


@pytest.mark.parametrize("name", ["llama3-8b", "gpt2-xl", "gpt-oss-20b", "deepseek-v2-lite"])
def test_a_given_graph_is_priced_as_the_estimator_prices_it(name: str) -> None:
    model = catalog.model(name).config
    given = profile_of_graph(layer_graph(model, RUN), CLUSTER)
    point = ProfilePoint(
        microbatch_size=2,
        sequence_length=1024,
        tensor_parallel=(1,),
        precision="bf16",
        recompute=("none", "full"),
    )
    expected = Estimator(model=model, cluster=CLUSTER).profile(point)
    assert given.structure == expected.structure
    for field in ("duration_s", "static_bytes", "transient_bytes", "saved_until_weight_grad_bytes"):
        np.testing.assert_array_equal(getattr(given.costs, field), getattr(expected.costs, field))


def test_a_given_graph_can_be_planned() -> None:
    model = catalog.model("gpt2-xl").config
    profile = profile_of_graph(layer_graph(model, RUN), CLUSTER)
    plan = trainwright.plan(profile, devices=4, memory="80GiB", bandwidth="400GB/s", microbatches=8)
    assert plan.status == "optimal"


def test_a_graph_over_several_devices_is_refused() -> None:
    cut = layer_graph(catalog.model("gpt2-xl").config, replace(RUN, tensor_parallel=5))
    with pytest.raises(InvalidInput, match="must run on one device, is cut over 5"):
        profile_of_graph(cut, CLUSTER)
