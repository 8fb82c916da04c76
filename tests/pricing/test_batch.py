"""The batch call: the same figures as one configuration at a time, faults in place of errors."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.plan import Overlap, Parallelism
from trainwright.plan.configuration import Configuration
from trainwright.plan.schedule import Schedule
from trainwright.pricing.batch import price_batch
from trainwright.pricing.configuration import price_configuration
from trainwright.pricing.memory_curve import StageActivations, rank_peaks
from trainwright.pricing.peak_rows import peak_rows
from trainwright.profile import Recompute
from trainwright.scheduling.families import FamilyRequest, family_named

MODELS = ("gpt2-xl", "llama3-8b", "mixtral-8x7b", "deepseek-v3")
CLUSTER = catalog.cluster("dgx-h100").with_nodes(8)


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    tensor, pipeline = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    virtual = draw(st.sampled_from([1, 2])) if pipeline > 1 else 1
    chunked = draw(st.sampled_from(["interleaved", "depth-first"]))
    plain = draw(st.sampled_from(["1f1b", "gpipe", "zb-h1"]))
    return Configuration(
        parallelism=Parallelism(
            tensor=tensor,
            pipeline=pipeline,
            data=draw(st.sampled_from([1, 2, 4])),
            context=draw(st.sampled_from([1, 2])),
            expert=draw(st.sampled_from([1, 2])),
            expert_tensor=draw(st.sampled_from([None, 1])),
            virtual_stages=virtual,
            sequence_parallel=draw(st.booleans()),
            zero_stage=draw(st.integers(0, 3)),
        ),
        microbatch_size=draw(st.sampled_from([1, 2])),
        global_batch=draw(st.sampled_from([16, 32, 33])),
        sequence_length=1024,
        schedule=plain if virtual == 1 else chunked,
        recompute=draw(st.sampled_from(list(Recompute))),
        recompute_blocks=draw(st.sampled_from([None, 0, 3])),
        fused_attention=draw(st.booleans()),
        overlap=Overlap(pipeline=draw(st.sampled_from([0.0, 1.0]))),
    )


@cases(25)
@given(model=st.sampled_from(MODELS), runs=st.lists(configurations(), min_size=1, max_size=6))
def test_a_batch_prices_as_one_at_a_time_does(model: str, runs: list[Configuration]) -> None:
    config = catalog.model(model).config
    found = price_batch(config, CLUSTER, runs)
    for index, run in enumerate(runs):
        try:
            step = price_configuration(config, CLUSTER, run)
        except InvalidInput as error:
            assert found.faults[index] == error.faults
            assert np.isnan(found.step_time_s[index])
            continue
        assert found.faults[index] == ()
        assert found.step_time_s[index] == pytest.approx(step.step_time_s, rel=1e-9)
        assert found.peak_memory_bytes[index] == pytest.approx(step.peak_memory_bytes, rel=1e-9)
        assert found.mfu[index] == pytest.approx(step.mfu, rel=1e-9)


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


def test_a_family_that_looks_at_times_is_priced_too() -> None:
    """Its order may hang on the last bit of a sum, so the figures agree only nearly."""
    config = catalog.model("llama3-8b").config
    run = Configuration(
        parallelism=Parallelism(pipeline=4, virtual_stages=2),
        microbatch_size=1,
        global_batch=16,
        sequence_length=1024,
        schedule="v-half",
    )
    found = price_batch(config, CLUSTER, [run])
    step = price_configuration(config, CLUSTER, run)
    assert found.step_time_s[0] == pytest.approx(step.step_time_s, rel=1e-2)
    assert found.peak_memory_bytes[0] == pytest.approx(step.peak_memory_bytes, rel=1e-2)


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
    monkeypatch.setattr("trainwright.pricing.batch._AT_ONCE", 5)
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


FAMILIES = ("gpipe", "1f1b", "eager-1f1b", "interleaved", "zb-h1", "zb-h2", "v-half", "zb-v")


@cases(60)
@given(
    family=st.sampled_from(FAMILIES),
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
