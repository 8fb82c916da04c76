"""What designs and devices lose between their figures and a training run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chips.jobs import BERT, GPT3, some_designs
from trainwright.chips.design_times import ProductCache, exact_times, ideal_times
from trainwright.chips.technology import device_as_run, losses_of, with_losses
from trainwright.chips.workload import TrainingJob
from trainwright.cluster import REFERENCE_DESIGN, Surroundings, networked, template_device
from trainwright.cluster.calibration import software_named
from trainwright.errors import InvalidInput
from trainwright.formats.calibration_toml import built_in_efficiencies
from trainwright.formats.catalog import accelerators
from trainwright.options.clusters import expected

PERFECT = Surroundings(node_devices=4)
TYPICAL = with_losses(PERFECT, losses_of("typical"))


@pytest.mark.parametrize("job", [GPT3, BERT], ids=lambda job: job.name)
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_losses_never_make_a_layer_faster_and_bounds_hold_with_them(
    job: TrainingJob, precision: str
) -> None:
    space = some_designs(40, seed=7)
    chain = replace(job, precision=precision).chain(job.tensor_degrees[-1])
    exact, ideal = [], []
    for around in (PERFECT, TYPICAL):
        table = ProductCache(space, chain, around).table(np.arange(len(space)))
        exact.append(exact_times(space, chain, around, table))
        ideal.append(ideal_times(space, chain, around))
    for name in ("forward_s", "backward_s", "update_s"):
        perfect, typical = (getattr(times, name) for times in exact)
        assert (typical >= perfect).all()
        assert (typical > perfect).any()
        for least, times in zip(ideal, exact, strict=True):
            assert (getattr(least, name) <= getattr(times, name) * (1 + 1e-12)).all()


def test_a_design_loses_what_a_device_without_runs_of_its_own_does() -> None:
    stranger = replace(accelerators()["A100-80GB-SXM"], name="a device nobody measured")
    pool = networked(stranger, PERFECT, num_devices=8).pool_of()
    usual = built_in_efficiencies().applied_to(pool, software_named("typical"))
    device = usual.accelerator
    assert TYPICAL.efficiency.gemm.max == device.efficiency.gemm.max < 1
    assert TYPICAL.efficiency.memory.max == device.efficiency.memory.max < 1
    assert TYPICAL.efficiency.attention_forward == device.efficiency.attention_forward < 1
    assert TYPICAL.launch_s == device.launch_overhead_s
    assert TYPICAL.node_efficiency == usual.levels[0].efficiency < 1
    assert TYPICAL.link_efficiency == usual.levels[1].efficiency < TYPICAL.node_efficiency


def test_a_design_like_a_family_loses_what_a_new_device_of_it_does() -> None:
    known = built_in_efficiencies()
    new = replace(known, families={**known.families, "a new TPU": "tpu"})
    expected_of = new.calibration("a new TPU", software_named("maxtext"))
    found, nobody = losses_of("maxtext", "TPU"), losses_of("maxtext")
    assert found is not None
    assert nobody is not None
    for name in found.names:
        assert found.value(name, 0.0) == expected_of.value(name, 0.0)
    assert found.value("gemm_max", 0.0) > nobody.value("gemm_max", 0.0)
    own = losses_of("megatron-core", "a100-80gb-sxm")
    assert own is not None
    assert own.value("gemm_max", 0.0) == known.value_of(
        "gemm_max", "A100-80GB-SXM", software_named("megatron-core")
    )


@pytest.mark.parametrize(("software", "like"), [("typical", "a kettle"), ("none", "tpu")])
def test_what_a_design_is_like_must_be_known_and_of_use(software: str, like: str) -> None:
    with pytest.raises(InvalidInput, match="like"):
        losses_of(software, like)


def test_a_flat_network_loses_what_links_inside_nodes_do() -> None:
    flat = with_losses(Surroundings(), losses_of("typical"))
    assert flat.link_efficiency == flat.node_efficiency == TYPICAL.node_efficiency


def test_a_device_of_the_catalog_runs_as_plans_expect_it_but_for_its_host() -> None:
    device = accelerators()["H100-80GB-SXM"]
    pool = device_as_run(device, PERFECT, "typical")
    cluster = networked(device, PERFECT, num_devices=8)
    planned = expected(cluster, "typical").accelerator
    assert pool.accelerator == replace(planned, host_pass_s=0.0)
    assert device_as_run(device, PERFECT, None).accelerator == device


def test_without_software_nothing_is_lost() -> None:
    assert losses_of("none") is None
    assert with_losses(PERFECT, None) is PERFECT


def test_a_planned_design_keeps_the_losses_it_was_searched_with() -> None:
    device = template_device(REFERENCE_DESIGN, TYPICAL)
    assert device.efficiency == TYPICAL.efficiency
    levels = networked(device, TYPICAL, num_devices=8).levels
    assert [level.efficiency for level in levels] == [
        TYPICAL.node_efficiency,
        TYPICAL.link_efficiency,
    ]
