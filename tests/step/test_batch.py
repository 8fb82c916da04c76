"""The batch call: the same figures as one configuration at a time, faults in place of errors."""

from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exhaustive import eight_over_three_levels
from random_cases import cases
from trainwright.cluster import (
    REFERENCE_DESIGN,
    Cluster,
    Surroundings,
    networked,
    template_device,
)
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.model import LowRank, Recipe, TokenDispatcher, TransformerConfig, Tuning
from trainwright.plans import MemoryOverheads, Overlap, Parallelism
from trainwright.plans.configuration import Configuration
from trainwright.plans.parallelism import AXIS_ORDERS
from trainwright.plans.schedule import Schedule
from trainwright.profile import Recompute
from trainwright.scheduling.families import FAMILIES, FamilyRequest, family_named
from trainwright.step.batch import price_batch
from trainwright.step.memory import StageActivations, peak_rows, rank_peaks
from trainwright.step.predict import price_configuration

FROZEN = Tuning(num_frozen_blocks=3)
ADAPTED = Tuning(low_rank=LowRank(rank=8, targets=("query", "value")))
LLAMA = replace(catalog.model("llama3-8b").config, num_layers=6)
MODELS = (
    *(catalog.model(name).config for name in ("gpt2-xl", "mixtral-8x7b", "deepseek-v3")),
    *(LLAMA, replace(LLAMA, tuning=FROZEN), replace(LLAMA, tuning=ADAPTED)),
)
CLUSTER = catalog.cluster("dgx-h100").with_nodes(8)
CHIPS = Surroundings(node_devices=4)
CLUSTERS = (
    *(CLUSTER, catalog.cluster("gb200-nvl72"), eight_over_three_levels(20e9, 5e9)),
    networked(template_device(REFERENCE_DESIGN, CHIPS), CHIPS, num_devices=32),
)
# How many chunks a family makes of a rank, where it leaves no choice.
CHUNKS = {
    **dict.fromkeys(("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p"), 1),
    **dict.fromkeys(("zb-v", "v-half", "v-min", "adaptive-v", "1f1b-v", "dualpipe-v"), 2),
}
RECIPES = (
    *(Recipe(), Recipe(precision="fp32"), Recipe(precision="fp8"), Recipe(gradient_dtype="bf16")),
    *(Recipe(moment_dtypes=("bf16",)), Recipe(dropout=0.1), Recipe(expert_imbalance=1.3)),
    Recipe(dispatch_dtype="fp8", token_dispatcher=TokenDispatcher.HIERARCHICAL),
)


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    def one_of(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    family, pipeline, tensor = one_of(*FAMILIES), one_of(1, 2, 3, 4), one_of(1, 2, 4)
    chunks = CHUNKS.get(family) or one_of(2, 3)
    return Configuration(
        parallelism=Parallelism(
            tensor=tensor,
            pipeline=pipeline,
            data=one_of(1, 2, 4, 8),
            context=one_of(1, 1, 2),
            expert=one_of(1, 2, 4),
            expert_tensor=one_of(None, 1),
            virtual_stages=chunks if pipeline > 1 else 1,
            sequence_parallel=draw(st.booleans()),
            zero_stage=one_of(0, 1, 2, 3),
            axis_order=one_of(*AXIS_ORDERS),
            state_copies=one_of(1, 1, 2, 4),
        ),
        microbatch_size=one_of(1, 2),
        global_batch=one_of(16, 32, 33, 64),
        sequence_length=1024,
        schedule=family if pipeline > 1 else one_of("1f1b", "gpipe", family),
        recompute=one_of(*Recompute),
        recompute_blocks=one_of(None, 0, 3),
        fused_attention=draw(st.booleans()),
        fused_cross_entropy=draw(st.booleans()),
        vocabulary_multiple=one_of(64, 128),
        recipe=one_of(*RECIPES),
        overlap=one_of(Overlap(), Overlap(pipeline=0.0), Overlap(gradients=0, tensor=0.5)),
        overheads=one_of(MemoryOverheads(), MemoryOverheads(buffers=False)),
    )


@st.composite
def neighbours(draw: st.DrawFn) -> list[Configuration]:
    """Runs, and each again with one field of another: what two have in common is shared."""
    runs = draw(st.lists(configurations(), min_size=2, max_size=4))
    for run, other in zip(list(runs), [*runs[1:], runs[0]], strict=True):
        for noun, source, names in (
            (run.parallelism, other.parallelism, fields(Parallelism)),
            (run, other, fields(Configuration)),
        ):
            name = draw(st.sampled_from(names)).name
            with suppress(InvalidInput):
                mixed = replace(noun, **{name: getattr(source, name)})
                runs.append(replace(run, parallelism=mixed) if noun is not run else mixed)
    return draw(st.permutations(runs))


@cases(40)
@given(model=st.sampled_from(MODELS), cluster=st.sampled_from(CLUSTERS), runs=neighbours())
def test_a_batch_prices_as_one_at_a_time_does(
    model: TransformerConfig, cluster: Cluster, runs: list[Configuration]
) -> None:
    assert_prices_as_one_at_a_time(model, cluster, runs)


def assert_prices_as_one_at_a_time(
    model: TransformerConfig, cluster: Cluster, runs: list[Configuration]
) -> None:
    found = price_batch(model, cluster, runs)
    for index, run in enumerate(runs):
        try:
            step = price_configuration(model, cluster, run)
        except InvalidInput as error:
            assert found.faults[index] == error.faults
            assert np.isnan(found.step_time_s[index])
            continue
        assert found.faults[index] == ()
        assert found.step_time_s[index] == pytest.approx(step.step_time_s, rel=1e-9)
        assert found.peak_memory_bytes[index] == pytest.approx(step.peak_memory_bytes, rel=1e-9)
        assert found.mfu[index] == pytest.approx(step.mfu, rel=1e-9)


@pytest.mark.parametrize("replicas", [(8, 4), (4, 8)])
def test_copies_that_leave_nothing_to_shard_are_a_fault_beside_others(
    replicas: tuple[int, int],
) -> None:
    runs = [
        Configuration(
            parallelism=Parallelism(data=data, zero_stage=3, state_copies=4),
            microbatch_size=1,
            global_batch=64,
            sequence_length=1024,
        )
        for data in replicas
    ]
    assert_prices_as_one_at_a_time(LLAMA, CLUSTER, runs)
    assert [bool(own) for own in price_batch(LLAMA, CLUSTER, runs).faults] == [
        data == 4 for data in replicas
    ]


@pytest.mark.parametrize(
    "blocks",
    [(9, 7, 1, 2, 10, 3), pytest.param((4, 9, 8, 1, 6, 4), marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("family", ["wave", "v-min"])
def test_an_order_that_looks_at_times_hangs_on_no_last_bit(
    family: str, blocks: tuple[int, ...]
) -> None:
    """Stages are sums of blocks in the batch and of layers alone: equal but for their last bits."""
    chunks = CHUNKS.get(family, 3)
    count = 2 * chunks
    runs = [
        Configuration(
            parallelism=Parallelism(tensor=tensor, pipeline=2, virtual_stages=chunks),
            microbatch_size=1,
            global_batch=16,
            sequence_length=512,
            schedule=family,
            blocks_per_stage=(*blocks[: count - 1], sum(blocks[count - 1 :])),
            recompute=recompute,
        )
        for tensor in (1, 2, 4)
        for recompute in Recompute
    ]
    assert_prices_as_one_at_a_time(catalog.model("llama3-8b").config, CLUSTER, runs)


def test_a_long_step_is_extrapolated_to_the_same_figure() -> None:
    config = catalog.model("gpt2-xl").config
    runs = [
        Configuration(
            parallelism=Parallelism(pipeline=4, virtual_stages=v),
            microbatch_size=1,
            global_batch=2048,
            sequence_length=1024,
            schedule=family,
        )
        for v, family in ((1, "1f1b"), (1, "zb-h1"), (2, "interleaved"))
    ]
    found = price_batch(config, CLUSTER, runs)
    for time_s, run in zip(found.step_time_s, runs, strict=True):
        assert time_s == pytest.approx(price_configuration(config, CLUSTER, run).step_time_s)


def test_a_batch_priced_in_pieces_has_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    config = catalog.model("llama3-8b").config
    runs = [
        Configuration(
            parallelism=Parallelism(tensor=tensor, pipeline=pipeline, data=2, zero_stage=zero),
            microbatch_size=1,
            global_batch=batch,
            sequence_length=1024,
        )
        for tensor in (1, 2)
        for pipeline in (1, 4)
        for zero in (0, 1, 3)
        for batch in (15, 64)
    ]
    whole = price_batch(config, CLUSTER, runs)
    monkeypatch.setattr("trainwright.step.batch._AT_ONCE", 5)
    pieces = price_batch(config, CLUSTER, runs)
    assert pieces.faults == whole.faults
    assert any(whole.faults) and not all(whole.faults)
    np.testing.assert_array_equal(pieces.step_time_s, whole.step_time_s)
    np.testing.assert_array_equal(pieces.peak_memory_bytes, whole.peak_memory_bytes)


def test_a_batch_of_nothing_has_no_prices() -> None:
    assert price_batch(catalog.model("gpt2-xl").config, CLUSTER, []).faults == ()


def test_an_unknown_format_is_a_fault_of_its_configuration() -> None:
    config = catalog.model("gpt2-xl").config
    run = Configuration(
        parallelism=Parallelism(), microbatch_size=1, global_batch=8, sequence_length=512
    )
    odd = replace(run, recipe=replace(run.recipe, precision="fp4"))
    found = price_batch(config, CLUSTER, [run, odd])
    assert found.step_time_s[0] > 0
    assert "fp4" in str(found.faults[1][0])


COUNTED = ("gpipe", "1f1b", "eager-1f1b", "interleaved", "zb-h1", "zb-h2", "v-half", "zb-v")


@cases(60)
@given(
    family=st.sampled_from(COUNTED),
    p=st.integers(2, 4),
    groups=st.integers(2, 3),
    seed=st.integers(0, 10**6),
)
def test_counts_of_instants_give_the_peak_of_any_stages(
    family: str, p: int, groups: int, seed: int
) -> None:
    request = FamilyRequest(num_ranks=p, num_microbatches=p * groups, virtual_stages=2)
    schedule = family_named(family).generate(request)
    assert isinstance(schedule, Schedule)
    rng = np.random.default_rng(seed)
    shape = (4, schedule.placement.num_stages)
    kept, later, transient, logits = rng.integers(0, 9, shape).astype(float)
    stages = StageActivations(
        until_input_grad=kept, until_weight_grad=later, transient=transient, logits=0 * logits
    )
    expected = [peak.total_bytes for peak in rank_peaks(schedule, stages)]
    assert list(peak_rows(schedule).peaks(stages)) == expected
