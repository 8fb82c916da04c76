"""The estimator: options, phases, bytes, what it refuses, and its laws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.cluster import Hop
from trainwright.costing import Estimator, flat_setting
from trainwright.costing import layer as kept_prices
from trainwright.costing.communication import collective_time_s
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats import catalog
from trainwright.formats.profile_json import read_profile, write_profile
from trainwright.model import Recipe, Routing, TokenDispatcher, count_parameters, transformer
from trainwright.profile import USUAL_MODES, Profile, ProfileFile, ProfilePoint, TimeKind
from trainwright.units import GIB


def estimator(model: str = "llama3-8b", cluster: str = "dgx-h100", nodes: int = 2) -> Estimator:
    return Estimator(
        model=catalog.model(model).config, cluster=catalog.cluster(cluster).with_nodes(nodes)
    )


def point(**fields: object) -> ProfilePoint:
    given_fields = {"microbatch_size": 1, "sequence_length": 4096} | fields
    return ProfilePoint(**given_fields)  # type: ignore[arg-type]


def row(profile: Profile, name: str, degree: int, option: str = "none") -> int:
    layer = next(x for x in profile.structure.layers if x.name == name)
    costs = profile.costs
    return next(
        r
        for r in costs.rows_of(layer.layer_class)
        if costs.tensor_parallel[r] == degree and costs.option_ids[r] == option
    )


def test_the_chain_has_every_end_as_a_layer_of_its_own() -> None:
    profile = estimator().profile(point())
    names = [layer.name for layer in profile.structure.layers]
    assert names == ["embedding", *["block"] * 32, "final_norm", "lm_head", "loss"]
    assert profile.structure.num_classes == 5
    assert [(e.source, e.target) for e in profile.structure.edges] == [
        (i, i + 1) for i in range(35)
    ]


def test_blocks_offer_each_degree_under_each_recompute_mode() -> None:
    profile = estimator().profile(point(tensor_parallel=(1, 2, 4, 8)))
    costs = profile.costs
    block = next(x for x in profile.structure.layers if x.name == "block")
    offered = {
        (int(costs.tensor_parallel[r]), costs.option_ids[r])
        for r in costs.rows_of(block.layer_class)
    }
    assert offered == {(t, str(mode)) for t in (1, 2, 4, 8) for mode in USUAL_MODES}
    for name in ("embedding", "final_norm", "lm_head", "loss"):
        layer = next(x for x in profile.structure.layers if x.name == name)
        assert {costs.option_ids[r] for r in costs.rows_of(layer.layer_class)} == {"none"}


def test_blanks_of_the_point_are_filled_and_shown() -> None:
    filled = estimator().profile(ProfilePoint(sequence_length=128, tensor_parallel=(2,))).point
    assert filled.microbatch_size == 1
    assert filled.precision == "bf16"
    assert filled.recompute == ("none", "selective", "full")
    assert filled.kernels == ("fused_attention", "unfused_cross_entropy")
    assert filled.device_kind == "H100-80GB-SXM"
    assert filled.network_levels == (("tensor", ("nvlink",)),)
    assert (
        estimator("gpt2", "dgx2-v100").profile(ProfilePoint(sequence_length=128)).point.precision
        == "fp16"
    )


def test_a_filled_point_is_a_fixed_point() -> None:
    source = estimator()
    profile = source.profile(point(tensor_parallel=(1, 2)))
    assert source.profile(profile.point) == profile


def test_static_bytes_are_eighteen_per_parameter() -> None:
    profile = estimator().profile(point())
    total = sum(
        profile.costs.total_static_bytes[row(profile, layer.name, 1)]
        for layer in profile.structure.layers
    )
    assert total == 18 * count_parameters(catalog.model("llama3-8b").config)


def test_gradients_are_synchronised_in_float32() -> None:
    profile = estimator().profile(point(tensor_parallel=(2,)))
    r = row(profile, "block", 2)
    weight = profile.costs.static_bytes[r, 0, 0]
    assert profile.costs.gradient_sync_bytes[r, 0] == 2 * weight
    assert profile.costs.gradient_sync_bytes[r, 1] == 0


def test_experts_have_their_own_bytes() -> None:
    profile = estimator("mixtral-8x7b").profile(point())
    r = row(profile, "block", 1)
    expert = 3 * 4096 * 14336 * 8
    assert profile.costs.static_bytes[r, 1].tolist() == [2 * expert, 4 * expert, 12 * expert]
    assert profile.costs.gradient_sync_bytes[r, 1] == 4 * expert


def test_full_recomputation_repeats_the_forward_pass() -> None:
    profile = estimator().profile(point(tensor_parallel=(8,), sequence_parallel=True))
    phases = profile.costs.phases
    assert phases is not None
    full, none = (row(profile, "block", 8, mode) for mode in ("full", "none"))
    assert phases.recompute_s[full] == pytest.approx(phases.forward_s[full], rel=1e-12)
    assert phases.recompute_s[none] == 0
    repeated = [c for c in (profile.costs.collectives or ())[full] if c.phase == "recompute"]
    assert len(repeated) == 4


def test_phases_and_kinds_both_add_up_to_the_duration() -> None:
    profile = estimator().profile(point(tensor_parallel=(1, 2, 8), sequence_parallel=True))
    costs = profile.costs
    assert costs.phases is not None
    assert costs.time_by_kind_s is not None
    np.testing.assert_allclose(costs.phases.total_s, costs.duration_s, rtol=1e-12)
    np.testing.assert_allclose(costs.time_by_kind_s.sum(axis=1), costs.duration_s, rtol=1e-12)
    alone = costs.tensor_parallel == 1
    communication = costs.time_by_kind_s[:, TimeKind.TENSOR_PARALLEL]
    assert (communication[alone] == 0).all()


def test_recomputing_trades_time_for_memory() -> None:
    profile = estimator().profile(point(tensor_parallel=(2,)))
    rows = [row(profile, "block", 2, mode) for mode in ("none", "selective", "full")]
    times, saved = profile.costs.duration_s[rows], profile.costs.saved_bytes[rows]
    assert (np.diff(times) > 0).all()
    assert (np.diff(saved) < 0).all()


def test_selective_recomputes_the_attention_core_where_it_stores_scores() -> None:
    source = estimator("gpt3-175b", "dgx-a100")
    fused, unfused = (
        source.profile(point(sequence_length=2048, kernels=(kernel,)))
        for kernel in ("fused_attention", "unfused_attention")
    )
    none, selective = (row(unfused, "block", 1, mode) for mode in ("none", "selective"))
    scores = unfused.costs.saved_bytes[none] - unfused.costs.saved_bytes[selective]
    assert scores == 5 * 96 * 2048**2
    only_core = replace(source, selective_modules=("attention_core",))
    statistics = only_core.profile(fused.point).costs.saved_bytes
    assert statistics[none] - statistics[selective] == 4 * 96 * 2048


def test_an_unknown_module_to_recompute_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be of attention_core, norm, mlp_activation"):
        replace(estimator(), selective_modules=("dropout",))


def test_edges_carry_a_slice_per_device() -> None:
    profile = estimator().profile(point(tensor_parallel=(1, 4)))
    hidden, logits = profile.structure.edges[5], profile.structure.edges[-1]
    assert hidden.bytes == 2 * 4096 * 4096 / 4
    assert profile.costs.boundary_of(row(profile, "block", 4)).tolist() == [0, 0]
    extra = profile.costs.boundary_of(row(profile, "block", 1)).tolist()
    assert [hidden.bytes + x for x in extra] == [2 * 4096 * 4096] * 2
    assert logits.bytes > hidden.bytes


def test_tied_embeddings_are_shared_parameters() -> None:
    profile = estimator("gpt2").profile(point(sequence_length=512))
    (group,) = profile.structure.shared_parameters
    assert group.layers == (0, len(profile.structure.layers) - 2)
    assert group.bytes == 2 * 50304 * 768
    assert estimator().profile(point()).structure.shared_parameters == ()


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"sequence_length": None}, "sequence_length: must be given"),
        ({"tensor_parallel": ()}, "tensor_parallel: must have at least 1"),
        ({"tensor_parallel": (3,)}, "tensor_parallel: must divide the 32 heads, got 3"),
        ({"tensor_parallel": (32,)}, "tensor_parallel: must be in 1..16, got 32"),
        (
            {"recompute": ("some",)},
            'recompute: must be one of none, offload, selective, full, got "some"',
        ),
        ({"kernels": ("magic",)}, "kernels: must be one of"),
        (
            {"kernels": ("fused_attention", "unfused_attention")},
            "kernels: must not name both",
        ),
        (
            {"sequence_length": 4095, "tensor_parallel": (2,), "sequence_parallel": True},
            "sequence_length: must be a multiple of tp",
        ),
    ],
)
def test_an_impossible_point_is_refused(fields: dict[str, object], fault: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        estimator().profile(point(**fields))
    assert fault in str(caught.value)


def test_a_sequence_beyond_learned_positions_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be <= the 2048 learned positions"):
        estimator("gpt3-175b").profile(point(sequence_length=4096))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"precision": "int3"}, 'precision "int3" is not modelled'),
        ({"precision": "fp16", "device_kind": "TPU"}, "has no TPU"),
    ],
)
def test_what_is_not_priced_is_refused_by_name(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedFeature, match=message):
        estimator().profile(point(**fields))


def test_a_device_without_the_format_is_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="has no bf16 peak"):
        estimator("gpt2", "dgx2-v100").profile(point(sequence_length=512, precision="bf16"))


def test_flat_setting_takes_the_outermost_network_in_use() -> None:
    one, two = (catalog.cluster("dgx-h100").with_nodes(n) for n in (1, 2))
    assert flat_setting(one, num_microbatches=4).bandwidth_bytes_per_s == 450e9 * 0.75
    setting = flat_setting(two, num_microbatches=4)
    assert setting.bandwidth_bytes_per_s == 50e9 * 0.8
    assert setting.num_devices == 16
    assert setting.memory_bytes == pytest.approx(79.6 * GIB * 0.97)


models = st.sampled_from(["llama3-8b", "gpt2", "bert-large", "mixtral-8x7b", "bloom-176b"])


@cases(25)
@given(model=models, microbatch=st.integers(1, 4), length=st.sampled_from([64, 256, 512]))
def test_every_price_is_positive_and_grows_with_the_microbatch(
    model: str, microbatch: int, length: int
) -> None:
    source = estimator(model)
    fields = {"sequence_length": length, "tensor_parallel": (1, 4), "sequence_parallel": True}
    small, large = (
        source.profile(point(microbatch_size=b, **fields)).costs
        for b in (microbatch, microbatch + 1)
    )
    assert (small.duration_s > 0).all()
    assert (large.duration_s >= small.duration_s * (1 - 1e-12)).all()
    assert (large.saved_bytes > small.saved_bytes).all()
    np.testing.assert_array_equal(large.static_bytes, small.static_bytes)
    np.testing.assert_allclose(
        small.saved_bytes / microbatch, large.saved_bytes / (microbatch + 1), rtol=1e-12
    )


@cases(25)
@given(model=models)
def test_more_tensor_parallelism_never_takes_more_memory_or_compute(model: str) -> None:
    source = estimator(model)
    degrees = tuple(t for t in source.model.tensor_degrees(range(1, 9)) if 512 % t == 0)
    profile = source.profile(
        point(sequence_length=512, tensor_parallel=degrees, sequence_parallel=True)
    )
    costs = profile.costs
    assert costs.time_by_kind_s is not None
    compute = costs.time_by_kind_s[:, TimeKind.COMPUTE]
    padding = 1.02  # the vocabulary is padded further at larger degrees
    for layer in profile.structure.layers[:2]:
        for mode in ("none", "full") if layer.name == "block" else ("none",):
            rows = [row(profile, layer.name, t, mode) for t in degrees]
            for column in (compute, costs.saved_bytes, costs.total_static_bytes):
                assert (column[rows][1:] <= column[rows][:-1] * padding).all()


ONCE = Recipe(token_dispatcher=TokenDispatcher.HIERARCHICAL)


@pytest.mark.parametrize(
    ("ranks", "shards", "inside", "nodes"),
    [
        (4, 1, 4, 1),  # a part of a node
        (8, 1, 8, 1),  # a node
        (4, 2, 4, 1),  # a node, two devices an expert
        (32, 1, 8, 4),
        (16, 2, 4, 4),
        (256, 1, 8, 32),
    ],
)
def test_tokens_cross_the_levels_of_their_group_once_a_unit(
    ranks: int, shards: int, inside: int, nodes: int
) -> None:
    """Whatever part of nodes an expert group takes; eight devices to a node."""
    model, cluster = catalog.model("deepseek-v3").config, catalog.cluster("hgx-h800").with_nodes(32)
    near, far = cluster.levels
    source = Estimator(model=model, cluster=cluster, recipe=ONCE)
    profile = source.profile(
        point(expert_parallel=ranks, expert_tensor_parallel=shards, recompute=("none",))
    )
    flat = Estimator(model=model, cluster=cluster).profile(profile.point)
    routing = Routing(
        num_experts=256, experts_per_token=8, num_groups=8, groups_per_token=4, ranks=ranks
    )
    token_bytes = 4096 * 7168 * 2
    starts_s = (inside - 1) * near.latency_s + (nodes - 1) * far.latency_s
    carried_s = [
        routing.units_met(1) * (1 - 1 / inside) * token_bytes / near.effective_bytes_per_s,
        routing.units_met(inside) * (1 - 1 / nodes) * token_bytes / far.effective_bytes_per_s,
    ]
    costs, other = profile.costs, flat.costs
    assert costs.time_by_kind_s is not None
    assert other.time_by_kind_s is not None
    experts = [  # of the layer that predicts a further token, whose block has experts
        table.time_by_kind_s[row(found, "mtp", 1), TimeKind.EXPERT_PARALLEL]
        for found, table in ((profile, costs), (flat, other))
    ]
    gathered_s = 4 * collective_time_s(
        "all_gather", 8 * shards * token_bytes, (Hop(level=near, ranks=shards),)
    )
    expected_s = 4 * (starts_s + max(carried_s)) + (gathered_s if shards > 1 else 0.0)
    assert experts[0] == pytest.approx(expected_s)
    assert experts[0] < experts[1]


def test_a_profile_of_tokens_sent_once_is_read_back_and_broken_routing_is_refused() -> None:
    model, cluster = catalog.model("deepseek-v3").config, catalog.cluster("hgx-h800")
    source = Estimator(model=model, cluster=cluster, recipe=ONCE)
    profile = source.profile(point(expert_parallel=8, expert_tensor_parallel=1))
    written = write_profile(ProfileFile(profiles=(profile,)))
    assert read_profile(written).profiles == (profile,)
    (entry,) = written["points"]
    found = [
        each
        for layer in entry["classes"]
        for option in layer["options"]
        for each in option["collectives"]
        if "routing" in each
    ]
    assert found[0]["routing"] == {
        "num_experts": 256,
        "experts_per_token": 8,
        "num_groups": 8,
        "groups_per_token": 4,
        "ranks": 8,
    }
    found[0]["routing"]["ranks"] = 0
    with pytest.raises(InvalidInput, match="ranks: must divide the 256 experts, got 0"):
        read_profile(written)


def test_layers_without_experts_cost_the_same_however_experts_are_dealt_out() -> None:
    model = replace(catalog.model("deepseek-v3").config, num_layers=5)
    cluster = catalog.cluster("dgx-h100").with_nodes(8)
    for expert, expert_tensor in ((8, 1), (16, 2), (4, 1)):
        point = ProfilePoint(
            sequence_length=4096,
            tensor_parallel=(2,),
            sequence_parallel=True,
            expert_parallel=expert,
            expert_tensor_parallel=expert_tensor,
        )
        warm = Estimator(model=model, cluster=cluster)._priced(point)
        transformer._ends.cache_clear()
        transformer._dense_block.cache_clear()
        kept_prices._made_prices.cache_clear()
        assert Estimator(model=model, cluster=cluster)._priced(point) == warm
