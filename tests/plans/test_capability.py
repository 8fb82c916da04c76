"""What frameworks can run: the table agrees with itself, the schedules and the documentation."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.formats.hf_config import read_config
from trainwright.plans.capability import (
    TARGETS,
    Demands,
    RecomputeForm,
    alternatives,
    capability_of,
    target_named,
    unsupported,
)
from trainwright.plans.capability_table import AXIS_ORDERS, CELLS, OPTIMIZERS, SCHEDULES, Feature
from trainwright.plans.job import unwritable
from trainwright.plans.plan import Parallelism
from trainwright.plans.schedule import ActionKind, FamilyShape, Placing
from trainwright.scheduling.families import ALIASES, FAMILIES, FamilyRequest


def targets_for(demands: Demands) -> tuple[str, ...]:
    return tuple(name for name in TARGETS if not unsupported(demands, name))


degrees = st.builds(
    Parallelism,
    tensor=st.sampled_from((1, 2, 4)),
    pipeline=st.sampled_from((1, 4)),
    data=st.sampled_from((1, 8)),
    context=st.sampled_from((1, 2)),
    expert=st.sampled_from((1, 2)),
    expert_tensor=st.sampled_from((None, 1, 2)),
    virtual_stages=st.sampled_from((1, 2, 3)),
    sequence_parallel=st.booleans(),
    zero_stage=st.integers(0, 3),
    state_copies=st.sampled_from((1, 2)),
)
shapes = {name: family.shape(3) for name, family in FAMILIES.items()}
shapes["searched"] = FamilyShape(Placing.ANY, split_backward=True)


def demands_of(schedule: str, **rest: Any) -> Demands:
    """What a plan under a family, or under a searched order, demands."""
    return Demands(schedule=schedule, shape=shapes[schedule], **rest)


demands = st.builds(
    demands_of,
    parallelism=degrees,
    schedule=st.sampled_from(tuple(shapes)),
    unequal_chunks=st.booleans(),
    uneven_stages=st.booleans(),
    ends_apart=st.booleans(),
    recompute=st.sampled_from(RecomputeForm),
    has_experts=st.booleans(),
    num_mtp_layers=st.integers(0, 1),
    optimizer=st.sampled_from(("adam", "sgd", "momentum", "muon")),
    offload=st.booleans(),
)
targets = st.sampled_from(tuple(TARGETS))


def test_every_feature_has_a_cell_for_every_target() -> None:
    assert set(CELLS) == set(Feature)
    assert {len(row) for row in CELLS.values()} == {len(TARGETS)}
    assert set(SCHEDULES) == set(AXIS_ORDERS) == set(OPTIMIZERS) == set(TARGETS)
    words = {cell.split()[0] for row in CELLS.values() for cell in row}
    assert words == {"yes", "global", "code", "no"}


def test_what_a_target_cannot_do_has_a_reason() -> None:
    for row in CELLS.values():
        assert all(len(cell.split()) > 1 for cell in row if cell.startswith("no"))


def test_schedules_of_targets_are_families() -> None:
    known = {*FAMILIES, *ALIASES}
    assert all(set(named) <= known for named in SCHEDULES.values())


@pytest.mark.parametrize("name", [*FAMILIES, *ALIASES])
def test_the_shape_of_a_family_is_that_of_its_orders(name: str) -> None:
    family = FAMILIES[ALIASES.get(name, name)]
    for chunks in (1, 2, 3):
        request = FamilyRequest(num_ranks=4, num_microbatches=12, virtual_stages=chunks)
        schedule = family.generate(request)
        assert schedule is not None
        split = bool((schedule.actions[:, 0] == ActionKind.I).any())
        assert family.shape(chunks) == FamilyShape(
            schedule.placement.placing,
            split,
            is_plain=schedule.is_plain and not family.braids and not schedule.has_copies,
            host_of=family.host_of,
        )
        assert (family.host_of is not None) == schedule.has_copies


@given(demands=demands, target=targets)
def test_a_gap_names_its_field_and_targets_without_it(demands: Demands, target: str) -> None:
    for gap in unsupported(demands, target):
        assert gap.target == target
        assert gap.target not in gap.alternatives
        for other in gap.alternatives:
            assert gap.field not in {g.field for g in unsupported(demands, other)} or (
                gap.reason not in {g.reason for g in unsupported(demands, other)}
            )
        assert gap.value in str(gap.fault)


@given(demands=demands, target=targets)
def test_demanding_less_never_opens_a_gap(demands: Demands, target: str) -> None:
    simpler = replace(
        demands,
        uneven_stages=False,
        ends_apart=False,
        unequal_chunks=False,
        recompute=RecomputeForm.NONE,
        num_mtp_layers=0,
        parallelism=replace(demands.parallelism, state_copies=1),
        offload=False,
    )
    fields = {gap.field for gap in unsupported(demands, target)}
    assert {gap.field for gap in unsupported(simpler, target)} <= fields


def test_megatron_shards_gradients_only_without_a_pipeline() -> None:
    own = capability_of("megatron")
    assert own.zero_stages(1) == (0, 1, 2, 3)
    assert own.zero_stages(4) == (0, 1)
    assert capability_of("torchtitan").zero_stages(4) == (0, 2, 3)


@pytest.mark.parametrize(
    ("experts", "zero", "gap"),
    [
        ({"expert": 2}, 3, True),
        ({"expert": 2}, 2, True),
        ({"tensor": 2, "expert_tensor": 1}, 3, True),
        ({"expert": 2}, 1, False),
        ({}, 3, False),
    ],
)
def test_megatron_copies_shards_of_split_experts_with_zero_1_only(
    experts: dict[str, int], zero: int, gap: bool
) -> None:
    copied = Parallelism(data=8, state_copies=2, zero_stage=zero, **experts)
    for target in ("megatron", "megatron-bridge", "primus"):
        wanted = Demands(parallelism=copied, has_experts=True)
        assert ("state_copies" in {g.field for g in unsupported(wanted, target)}) is gap
        dense = replace(wanted, has_experts=False)
        assert "state_copies" not in {g.field for g in unsupported(dense, target)}


def test_v_half_with_any_recomputation_runs_in_primus_and_pytorch_only() -> None:
    wanted = Demands(
        parallelism=Parallelism(pipeline=4, data=2, virtual_stages=2),
        schedule="v-half",
        recompute=RecomputeForm.ANY,
    )
    assert targets_for(wanted) == ("primus", "pytorch")
    assert {gap.field for gap in unsupported(wanted, "megatron")} == {"schedule", "recompute"}
    assert {gap.field for gap in unsupported(wanted, "torchtitan")} == {"recompute"}


def test_degrees_that_differ_between_stages_run_nowhere() -> None:
    assert alternatives(Feature.DEGREES_PER_STAGE) == ()
    assert targets_for(Demands(degrees_per_stage=True)) == ()


def test_a_searched_schedule_needs_a_file_of_orders() -> None:
    parallelism = Parallelism(pipeline=4, virtual_stages=2)
    searched = Demands(
        parallelism=parallelism, schedule="searched", shape=FamilyShape(Placing.V, True)
    )
    assert targets_for(searched) == ("torchtitan@0.2", "torchtitan@0.3", "pytorch")


def test_sharding_over_one_replica_asks_for_nothing() -> None:
    alone = Demands(parallelism=Parallelism(tensor=2, sequence_parallel=True, zero_stage=1))
    assert "zero_stage" not in {gap.field for gap in unsupported(alone, "torchtitan")}


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("torchtitan", "torchtitan@0.3"),
        ("torchtitan-0.2", "torchtitan@0.2"),
        ("torchtitan@0.2", "torchtitan@0.2"),
        ("megatron@core-0.16", "megatron"),
    ],
)
def test_versions_may_be_left_out_or_hyphenated(given_name: str, name: str) -> None:
    assert target_named(given_name) == name


@pytest.mark.parametrize("name", ["megatron@core-0.11", "colossal", ""])
def test_an_unknown_target_lists_the_known_ones(name: str) -> None:
    with pytest.raises(InvalidInput, match="must be one of megatron, megatron-bridge"):
        target_named(name)


@pytest.mark.parametrize("target", ["trl", "axolotl", "llamafactory", "automodel", "maxtext"])
def test_trainers_of_causal_models_train_no_others(target: str) -> None:
    both_ways = catalog.model("bert-large").config
    assert [fault.problem for fault in unwritable(both_ways, target)] == [
        "has attention to later tokens"
    ]
    t5 = {"model_type": "t5", "num_layers": 2, "d_model": 64, "d_kv": 16, "num_heads": 4}
    (fault,) = unwritable(read_config(t5, name="t5").config, target)
    assert fault.problem == "has a decoder that attends to an encoder"
    assert not unwritable(catalog.model("llama3-8b").config, target)
    assert not unwritable(both_ways, "pytorch")
