"""`plan` on a cluster of two kinds of devices: the document, its table, and what refuses it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.mixed_clusters import A100, ETHERNET, H100, two_kinds, with_memory

from trainwright.cluster import Cluster
from trainwright.commands.estimate import estimate
from trainwright.commands.explain import explain
from trainwright.commands.export import bundle_of, export
from trainwright.commands.improve import Improved, improve
from trainwright.commands.plan import plan
from trainwright.commands.sweep import sweep
from trainwright.commands.verify import verify
from trainwright.documents.explanation import reasons, recommended_plan, with_reasons
from trainwright.documents.model_estimate import ModelEstimateResult
from trainwright.documents.model_plan import BusiestRank, ModelPlanResult, PoolRecord
from trainwright.documents.model_search import launch_gaps, planned_on_pools, priced_parts
from trainwright.documents.open import Result, load_explained_document, recheck
from trainwright.documents.printing import Report
from trainwright.documents.reasons import changes_of
from trainwright.documents.sweep import on_more_devices
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.formats.document_json import content_hash, decode_document, encode
from trainwright.options.clusters import calibrated, opened, without_host
from trainwright.pages.command import command_of
from trainwright.planning.reasons.why import moves_on_pools
from trainwright.plans.prediction import RankRecord
from trainwright.plans.status import Status
from trainwright.step.pools import chains_of

NARROW = {
    "global_batch": 32,
    "sequence": 2048,
    "micro_batch": 1,
    "tp": 2,
    "cp": 1,
    "zero": "1",
    "schedule": "1f1b",
    "recompute": "none",
}


@cache
def planned(**options: object) -> Result:
    return plan("llama3-8b", cluster=two_kinds(), **(NARROW | options))  # type: ignore[arg-type]


def document(**options: object) -> ModelPlanResult:
    found = planned(**options).document
    assert found.on_pools
    return found


def test_several_kinds_are_faster_than_the_better_one_alone() -> None:
    found = document()
    assert found.status in (Status.OPTIMAL, Status.GAP)
    assert found.layout in ("across", "beside")
    assert found.fits
    assert {group.devices_used for group in found.groups} == {8}
    alone = [other for other in found.alternatives if other.layout == "alone"]
    assert {other.pools for other in alone} == {(A100,), (H100,)}
    assert all(other.slowdown > 1.1 for other in alone)
    assert (found.lower_bound_s or 0) <= (found.step_time_s or 0)
    assert (found.gap or 0) < 0.02


def test_a_cluster_of_like_pools_has_the_document_of_one_pool(tmp_path: Path) -> None:
    level = 'name = "nvlink"\nsize = 4\nbandwidth_bytes_per_s = 450e9\nlatency_s = 3e-6\n'
    around = 'name = "ethernet"\nbandwidth_bytes_per_s = 12.5e9\nlatency_s = 20e-6\n'
    kind = 'device_kind = "H100-80GB-SXM"\n'
    plain = f'name = "like"\n{kind}[[level]]\n{level}[[level]]\nsize = 2\n{around}'
    pool = f"[[pool]]\n{kind}[[pool.level]]\n{level}"
    pools = f'name = "like"\n{2 * pool}[joint]\n{around}'
    given: list[str | Cluster] = []
    for name, text in (("plain", plain), ("pools", pools)):
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        given.append(str(path))
    own = opened(tmp_path / "plain.toml").cluster
    node = replace(own.pools[0], levels=own.levels[:1])
    given.append(replace(own, pools=(node, node), joint=own.levels[1]))
    found = []
    for cluster in given:
        made = plan("llama3-8b", cluster=cluster, **NARROW).document  # type: ignore[arg-type]
        found.append(replace(made, search_s=None))
    assert found[0].step_time_s
    assert found[0] == found[1] == found[2]


def test_every_rank_says_its_kind_and_the_room_of_that_kind() -> None:
    found = document(pp=2, dp=4)
    assert [rank.device_kind for rank in found.ranks if rank.chain == 0] == [
        found.groups[rank.pool].device_kind for rank in found.ranks if rank.chain == 0
    ]
    for rank in found.ranks:
        assert rank.memory_limit_bytes == found.groups[rank.pool].memory_limit_bytes
        assert rank.margin_bytes < rank.memory_limit_bytes - rank.memory_bytes
    assert sum(group.layer_share for group in found.groups) == pytest.approx(1.0)


@pytest.mark.parametrize("degrees", [{"pp": 2, "dp": 4}, {"pp": 1, "dp": 8}])
def test_where_the_step_of_every_rank_goes_adds_up_to_the_step(degrees: dict[str, int]) -> None:
    found = document(**degrees)
    step_s = found.step_time_s or 0.0
    assert sum(found.time_by_part_s.values()) == pytest.approx(step_s)
    parts = priced_parts(found)
    assert len(parts) == len(found.ranks)
    for rank, own in zip(found.ranks, parts, strict=True):
        assert sum(own.values()) == pytest.approx(step_s)
        assert min(own.values()) >= 0
        waits_s = own["bubble"] + own["transfers"]
        after_s = own["data"] + own["optimizer"] + own["overhead"]
        assert waits_s <= step_s - after_s - rank.busy * step_s + 1e-9


def test_one_pool_and_several_have_one_document() -> None:
    alone = plan("llama3-8b", cluster="dgx-h100", **NARROW).document  # type: ignore[arg-type]
    one, several = encode(alone), encode(document())
    assert one["kind"] == several["kind"] == "model-plan"
    assert not alone.on_pools
    assert several.keys() - one.keys() == {"fits", "layout", "groups", "pipeline_s", "binding"}
    assert {*one["ranks"][0]} == {*several["ranks"][0]}
    assert {*several["stages"][0]} - {*one["stages"][0]} == {"replicas"}
    assert {*one["stages"][0]} - {*several["stages"][0]} == {"options"}
    assert {*one["request"]} >= {*several["request"]}
    for rank in alone.ranks:
        assert rank.count == alone.parallelism.data  # type: ignore[union-attr]
        assert rank.count * rank.num_microbatches == NARROW["global_batch"]
        assert rank.memory_bytes == rank.memory.total_bytes
        assert 0 < rank.busy <= 1
        assert rank.margin_bytes >= 0


POOL = PoolRecord(
    pool=0,
    device_kind="H100-80GB-SXM",
    num_devices=8,
    devices_used=8,
    layer_share=1.0,
    busy=1.0,
    peak_memory_bytes=1e9,
    memory_limit_bytes=8e10,
)
ENDS = BusiestRank(
    pool=0, device_kind="H100-80GB-SXM", chain=0, rank=0, resource="compute", description="busy"
)


@pytest.mark.parametrize(
    "told",
    [
        {"fits": False},
        {"layout": "across"},
        {"layout": "nonsense"},
        {"pipeline_s": 1.0},
        {"groups": (POOL,)},
        {"binding": ENDS},
    ],
    ids=lambda told: next(iter(told)),
)
def test_a_plan_on_one_pool_says_nothing_of_several(told: dict[str, Any]) -> None:
    alone = plan("llama3-8b", cluster="dgx-h100", **NARROW).document  # type: ignore[arg-type]
    assert recheck(alone) == alone
    with pytest.raises(InvalidInput, match=next(iter(told))):
        recheck(replace(alone, **told))


@pytest.mark.parametrize(
    "told",
    [
        {"groups": ()},
        {"binding": None},
        {"room_bytes": 1e9},
        {"memory_limit_bytes": 8e10},
        {"peak_memory_bytes_per_rank": (1e9,)},
        {"device_bytes": 1e9},
        {"time_per_sample_s": 0.1},
    ],
    ids=lambda told: next(iter(told)),
)
def test_a_plan_on_several_pools_says_nothing_of_one_alone(told: dict[str, Any]) -> None:
    found = document()
    assert recheck(found) == found
    with pytest.raises(InvalidInput, match=next(iter(told))):
        recheck(replace(found, **told))


@pytest.mark.parametrize("pools", [None, 3, {}])
def test_a_cluster_without_pools_is_refused_by_its_field(pools: object) -> None:
    found = document()
    assert found.request.cluster is not None
    content = {**found.request.cluster.content, "pools": pools}
    made = replace(found.request.cluster, content=content, sha256=content_hash(content))
    with pytest.raises(InvalidInput, match="pools"):
        recheck(replace(found, request=replace(found.request, cluster=made)))


def test_the_faster_kind_gets_more_of_the_layers() -> None:
    found = document(pp=2, dp=4)
    assert found.layout == "across"
    slow, fast = found.groups
    assert fast.layer_share > 1.5 * slow.layer_share
    assert min(slow.busy, fast.busy) > 0.6


def test_the_faster_kind_gets_more_of_the_microbatches() -> None:
    found = document(pp=1, dp=8)
    assert found.layout == "beside"
    each = {rank.device_kind: rank.num_microbatches for rank in found.ranks}
    assert each["H100-80GB-SXM"] >= 2 * each["A100-80GB-SXM"]
    assert sum(rank.count * rank.num_microbatches for rank in found.ranks) == 32


def test_what_binds_names_the_group() -> None:
    binding = document().binding
    assert binding is not None
    assert binding.device_kind == document().groups[binding.pool].device_kind
    text = planned().explain()
    assert f"what binds: rank {binding.rank} on {binding.device_kind}" in text
    assert "A100-80GB-SXM" in text
    assert "other ways to use the pools" in text


def test_a_kind_too_small_for_its_stages_is_left_out() -> None:
    cluster = with_memory(two_kinds(), A100, 1.0)
    found = plan("llama3-8b", cluster=cluster, **NARROW).document  # type: ignore[arg-type]
    assert found.on_pools
    assert found.layout == "alone"
    assert [group.devices_used for group in found.groups] == [0, 8]


@pytest.mark.slow
def test_what_to_change_is_asked_for_by_its_options(tmp_path: Path) -> None:
    found = with_reasons(document(), Budget())
    changes = {change.options: change for change in changes_of(found)}
    assert changes["--tp 1.."].ratio < 1  # tp is fixed at 2
    assert changes["--zero 0"].ratio > 1
    freed = document(tp="1..")
    assert freed.step_time_s <= changes["--tp 1.."].step_time_s * (1 + 1e-9)
    assert document(zero="0").step_time_s <= changes["--zero 0"].step_time_s * (1 + 1e-9)
    path = tmp_path / "mixed.json"
    Result(found).save(path)
    assert load_explained_document(path) == found
    assert "--tp 1.." in explain(path).explain()


@pytest.mark.slow
def test_where_nothing_fits_it_says_what_of_that_which_was_fixed_would_be_enough() -> None:
    cluster = with_memory(with_memory(two_kinds(), A100, 20.0), H100, 20.0)
    found = plan("llama3-8b", cluster=cluster, **NARROW, pp=1).document  # type: ignore[arg-type]
    assert found.status is Status.INFEASIBLE
    assert {change.options for change in changes_of(found)} >= {"--pp 1.."}
    freed = plan("llama3-8b", cluster=cluster, **(NARROW | {"pp": "1.."}))  # type: ignore[arg-type]
    assert freed.fits


def test_a_document_is_read_back_and_explained_the_same(tmp_path: Path) -> None:
    path = tmp_path / "mixed.json"
    planned().save(path)
    assert load_explained_document(path) == planned().document
    assert explain(path).explain() == planned().explain()


def test_a_document_whose_figures_do_not_follow_is_refused(tmp_path: Path) -> None:
    content = json.loads(planned().to_json())
    content["step_time_s"] *= 0.9
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidInput, match="step_time_s: must be"):
        explain(path)


def test_stages_on_two_kinds_are_exported_node_by_node() -> None:
    bundle = bundle_of(planned(pp=2, dp=4), "megatron")
    assert "H100-80GB-SXM" in bundle.files["launch.sh"].split("set -euo")[0]
    assert "# node 0: H100-80GB-SXM\n# node 1: A100-80GB-SXM" in bundle.files["launch.sh"]
    assert "- 0: H100-80GB-SXM\n- 1: A100-80GB-SXM" in bundle.files["README.md"]
    assert '--nnodes "${NUM_NODES:-2}" --nproc-per-node 8' in bundle.files["launch.sh"]
    assert "--pipeline-model-parallel-layout" in bundle.files["megatron_args.sh"]
    told = export(planned(pp=2, dp=4), "chrome-trace").document
    assert [file.name for file in told.files] == ["trace.json.gz"]


def test_another_plan_on_the_same_pools_has_another_hash() -> None:
    hashes = {export(planned(pp=2, dp=n), "megatron").document.plan_sha256 for n in (2, 4)}
    assert len(hashes) == 2


@pytest.mark.parametrize(
    ("degrees", "target", "options", "fault"),
    [
        ({"pp": 1, "dp": 8}, "megatron", {}, r"stages\[0\]\.replicas: .*number of microbatch"),
        ({"pp": 2, "dp": 4}, "maxtext", {}, r"stages.replicas.device_kind: several kinds"),
        ({"pp": 2, "dp": 4}, "nanotron", {}, r"stages that differ in blocks"),
        ({"pp": 2, "dp": 4}, "megatron", {"launcher": "slurm"}, r"launcher: an allocation"),
    ],
)
def test_what_cannot_be_exported_is_refused_by_its_field(
    degrees: dict[str, int], target: str, options: dict[str, object], fault: str
) -> None:
    with pytest.raises((UnsupportedFeature, InvalidInput), match=fault):
        export(planned(**degrees), target, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "change"),
    [
        ("pytorch", {"zero": 2}),
        ("torchtitan@0.2", {"zero": 2}),
        ("nanotron", {"blocks": [18, 14]}),
    ],
)
def test_the_nearest_plan_of_a_framework_is_priced_on_the_same_pools(
    target: str, change: dict[str, object]
) -> None:
    before = document(pp=2, dp=4)
    nearest = export(planned(pp=2, dp=4), target, allow_nearest=True).document.nearest
    assert nearest is not None
    assert nearest.before.step_time_s == before.step_time_s
    run = stated(before) | change
    priced = plan_of(estimate("llama3-8b", cluster=two_kinds(), **run))  # type: ignore[arg-type]
    assert nearest.after.step_time_s == pytest.approx(priced.step_time_s, rel=1e-12)
    assert nearest.after.peak_memory_bytes == max(rank.memory_bytes for rank in priced.ranks)


@pytest.mark.parametrize("names", [("dgx-h100", "dgx-h100"), ("dgx-a100", "dgx-h100")])
def test_zero_3_beside_each_other_is_planned_and_estimated_at_one_pace(
    names: tuple[str, str],
) -> None:
    options = NARROW | {"zero": "3", "pp": 1, "dp": 8}
    cluster, slowest = (  # of another memory, or two that are alike would be one
        with_memory(two_kinds(names=own), 1, 79.0) for own in (names, (names[0],) * 2)
    )
    found = plan("llama3-8b", cluster=cluster, **options).document  # type: ignore[arg-type]
    assert found.layout == "beside"
    priced = plan_of(estimate("llama3-8b", cluster=cluster, **stated(found)))  # type: ignore[arg-type]
    assert priced.step_time_s == pytest.approx(found.step_time_s, rel=1e-12)
    one, other = found.ranks
    assert (one.forward_s, one.backward_s) == (other.forward_s, other.backward_s)
    alike = plan_of(estimate("llama3-8b", cluster=slowest, **stated(found)))  # type: ignore[arg-type]
    assert found.step_time_s == pytest.approx(alike.step_time_s, rel=1e-3)
    shares = [
        f"{rank.count}x{rank.num_microbatches + more}:{rank.pool}"
        for rank, more in ((one, 1), (other, -1))
    ]
    with pytest.raises(UnsupportedFeature, match="so all replicas run as many"):
        estimate("llama3-8b", cluster=cluster, **stated(found) | {"pool": shares})  # type: ignore[arg-type]


@pytest.mark.parametrize("degrees", [{"pp": 2, "dp": 4}, {"pp": 1, "dp": 8}])
def test_every_chain_is_verified(degrees: dict[str, int]) -> None:
    found = verify(planned(**degrees), level=1).document
    assert found.passed
    chains = {rank.chain for rank in document(**degrees).ranks}
    names = [check.name for check in found.checks if check.name.startswith("orders")]
    assert len(names) == len(chains)
    named = {rank.device_kind for rank in document(**degrees).ranks if len(chains) > 1}
    assert all(any(kind in name for name in names) for kind in named)


@pytest.mark.torch
def test_chains_with_unlike_numbers_of_microbatches_train_the_same_model_side_by_side() -> None:
    found = verify(planned(pp=1, dp=8), self_test=True).document
    assert found.passed
    run = found.runs[0]
    assert run.num_replicas == 4
    assert {run.num_microbatches, *run.num_microbatches_beside} == {2, 6}
    assert all(control.caught for control in found.controls)


def test_a_plan_that_was_edited_does_not_pass(tmp_path: Path) -> None:
    content = json.loads(planned(pp=1, dp=8).to_json())
    for replica in content["stages"][0]["replicas"]:
        replica["num_microbatches"] = 4
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(content))
    assert not verify(path, level=0).passed


@cache
def planned_small(**options: object) -> Result:
    """A small model on four devices of each kind, of which all neighbours are soon priced."""
    whole = two_kinds()
    pools = (replace(p, levels=(replace(p.levels[0], size=4), *p.levels[1:])) for p in whole.pools)
    small = {"dp": 2, "sequence": 1024}
    cluster = replace(whole, pools=tuple(pools))
    return plan("gpt2-medium", cluster=cluster, **(NARROW | small | options))  # type: ignore[arg-type]


@cache
def improved(**degrees: int) -> Improved:
    return improve(planned_small(**degrees))


@pytest.mark.parametrize(
    "degrees", [{"pp": 2, "dp": 2}, pytest.param({"pp": 1, "dp": 4}, marks=pytest.mark.slow)]
)
def test_improve_prices_the_neighbours_and_finds_the_best_plan(
    degrees: dict[str, int], tmp_path: Path
) -> None:
    report = improved(**degrees)
    found, base_s = report.document, planned_small(**degrees).document.step_time_s or 0.0
    assert found.planned is not None
    assert found.planned.step_time_s == found.best_known_s
    assert (found.lower_bound_s or 0.0) <= (found.best_known_s or 0.0) * (1 + 1e-9)
    assert found.run.step_time_s == base_s
    assert found.recommended in found.changes
    times_s = [change.step_time_s for change in found.changes]
    assert times_s == sorted(times_s)
    assert max(times_s) < base_s
    assert min(times_s) >= (found.lower_bound_s or 0.0) * (1 - 1e-9)
    path = tmp_path / "improvement.json"
    report.save(path)
    assert explain(path).explain() == report.explain()
    content = json.loads(path.read_text())
    content["changes"][0]["step_time_s"] *= 0.9
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidInput, match=r"changes\[0\]\.step_time_s: must be"):
        explain(path)
    content["changes"][0]["options"] = "--tp 7"
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidInput, match=r'changes\[0\]\.options: is no change: "--tp 7"'):
        explain(path)


def test_a_change_is_what_plan_prices_under_its_option() -> None:
    found = improved(pp=2, dp=2).document
    (changed,) = (each for each in found.changes if each.options == "--schedule zb-h1")
    asked = planned_small(pp=2, dp=2, schedule="zb-h1").document
    assert (asked.lower_bound_s or 0.0) <= changed.step_time_s * (1 + 1e-9)
    plan_of_it = recommended_plan(replace(found, recommended=changed))
    assert plan_of_it.schedule == "zb-h1"
    assert plan_of_it.step_time_s == changed.step_time_s
    cuts = [stage.layers for stage in plan_of_it.stages]
    assert cuts == [stage.layers for stage in planned_small(pp=2, dp=2).document.stages]


def test_every_neighbour_holds_all_layers_and_microbatches() -> None:
    for degrees in ({"pp": 2, "dp": 4}, {"pp": 1, "dp": 8}):
        shelf, plan_found = planned_on_pools(document(**degrees))
        layers = sorted(layer for stage in plan_found.stages for layer in stage.layers)
        moves = list(moves_on_pools(shelf, plan_found))
        assert len({options for _, options, _ in moves}) == len(moves)
        for _, _, changed in moves:
            assert sorted(layer for stage in changed.stages for layer in stage.layers) == layers
            chains = chains_of(changed)
            sequences = sum(chain.count * chain.num_microbatches for chain in chains)
            assert sequences * (changed.microbatch_size or 1) == NARROW["global_batch"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"framework": "megatron"}, "framework: must be any, .* plan with --framework megatron"),
        ({"patch": "copy.sh"}, "patch: needs a framework's file"),
        ({"cluster": "dgx-h100"}, "cluster: belongs to --from"),
    ],
)
def test_what_is_about_one_pool_is_refused_by_improve(options: dict[str, str], fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        improve(planned(), **options)  # type: ignore[arg-type]


def test_reasons_name_what_of_which_pool_would_help_most() -> None:
    found = reasons(planned(pp=1, dp=8)).document
    assert found.plan == document(pp=1, dp=8)
    resources = {gain.resource for gain in found.gains}
    assert {"peak FLOP/s of A100-80GB-SXM", "bandwidth between pools"} <= resources
    assert found.binding in resources
    assert sum(found.time_by_part_s.values()) == pytest.approx(found.plan.step_time_s)


def test_degrees_of_each_stage_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeature, match=r"^per-stage-degrees: "):
        plan("llama3-8b", cluster=two_kinds(), **NARROW, per_stage_degrees=True)  # type: ignore[arg-type]


@pytest.mark.slow
def test_three_kinds_are_used_in_the_best_order() -> None:
    two = two_kinds()
    third = catalog.cluster("dgx-a100-40gb").with_nodes(1).pools[0]
    joint = replace(ETHERNET, size=3)
    three = replace(two, pools=(*two.pools, third), joint=joint)
    found = plan("llama3-8b", cluster=three, top=19, **NARROW).document  # type: ignore[arg-type]
    assert found.on_pools
    assert {rank.pool for rank in found.ranks} == {0, 1, 2}
    assert (found.step_time_s or 0) < (document().step_time_s or 0)
    assert [other.slowdown for other in found.alternatives] == sorted(
        other.slowdown for other in found.alternatives
    )


@pytest.mark.slow
def test_experts_stay_inside_one_kind() -> None:
    narrow = NARROW | {"tp": 1, "recompute": "none,full"}
    found = plan("mixtral-8x7b", cluster=two_kinds(2), **narrow).document  # type: ignore[arg-type]
    assert found.on_pools
    assert found.fits
    assert found.parallelism is not None
    if found.layout == "beside":
        assert found.parallelism.expert == 1


def stated(found: ModelPlanResult) -> dict[str, object]:
    """The layout of a plan, as options of `estimate` state it."""
    degrees = found.parallelism
    assert degrees is not None
    chains: dict[int, list[RankRecord]] = {}
    for rank in found.ranks:
        chains.setdefault(rank.chain, []).append(rank)
    modes = {option for stage in found.stages for option in stage.first_options.values()}
    return {
        "global_batch": NARROW["global_batch"],
        "sequence": NARROW["sequence"],
        "tp": degrees.tensor,
        "pp": degrees.pipeline,
        "virtual_stages": degrees.virtual_stages,
        "zero": degrees.zero_stage,
        "micro_batch": found.micro_batch,
        "schedule": found.schedule,
        "recompute": next((mode for mode in ("full", "offload") if mode in modes), "none"),
        "blocks": [sum(0 < layer <= 32 for layer in stage.layers) for stage in found.stages],
        "pool": [
            f"{own[0].count}x{own[0].num_microbatches}:{','.join(str(rank.pool) for rank in own)}"
            for own in chains.values()
        ],
    }


def plan_of(report: Report[Any]) -> ModelPlanResult:
    """The plan whose price an estimate on several pools says."""
    assert report.document.kind == "model-estimate"
    found: ModelPlanResult = report.document.plan
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"pp": 2, "dp": 4},
        {"pp": 1, "dp": 8},
        {"pp": 4, "dp": 2, "schedule": "zb-h1", "zero": "2"},
        {"pp": 4, "dp": 2, "recompute": "full", "zero": "3"},
        {"pp": 2, "dp": 8, "tp": 1, "zero": "0,1"},
        {"pp": 2, "dp": 2, "schedule": "v-half", "virtual_stages": 2},
        {"pp": 2, "dp": 4, "offload": {"optimizer": 1.0, "gradients": 1.0}},
        {"pp": 2, "dp": 8, "tp": 1, "offload": {"activations": 0.6}, "sequence": 8192},
        {"pp": 2, "dp": 4, "recompute": "offload", "memory": "40GiB"},
        {"pp": 2, "dp": 4, "schedule": "seq1f1b"},
        {"pp": 2, "dp": 4, "schedule": "po-f"},
    ],
)
def test_an_estimate_of_a_plans_layout_has_the_figures_of_the_plan(
    options: dict[str, object],
) -> None:
    found = plan("llama3-8b", cluster=two_kinds(), **(NARROW | options)).document  # type: ignore[arg-type]
    assert found.on_pools
    same = {name: own for name, own in options.items() if name in ("offload", "memory", "sequence")}
    whole = estimate("llama3-8b", cluster=two_kinds(), **(stated(found) | same)).document  # type: ignore[arg-type]
    assert isinstance(whole, ModelEstimateResult)
    priced = whole.plan
    assert priced is not None
    assert priced.on_pools
    assert [stage.layers for stage in priced.stages] == [stage.layers for stage in found.stages]
    assert priced.layout == found.layout
    figures = ("step_time_s", "step_time_low_s", "step_time_high_s", "pipeline_s", "optimizer_s")
    for name in (*figures, "tokens_per_s", "mfu", "exposed_gradient_sync_s", "peak_memory_bytes"):
        assert getattr(priced, name) == pytest.approx(getattr(found, name), rel=1e-12)
    for name in (*figures, "tokens_per_s", "mfu", "peak_memory_bytes", "devices_used", "fits"):
        assert getattr(whole, name) == getattr(priced, name)
    for held, rank in zip(whole.memory, found.ranks, strict=True):
        assert held.total_bytes == pytest.approx(rank.memory_bytes, rel=1e-12)
        assert (held.chain, held.rank, held.pool) == (rank.chain, rank.rank, rank.pool)
    assert whole.margin_bytes == min(rank.margin_bytes for rank in priced.ranks)
    for own, rank in zip(priced.ranks, found.ranks, strict=True):
        assert own.memory.by_class == pytest.approx(rank.memory.by_class, rel=1e-12)
        assert own.margin_bytes == pytest.approx(rank.margin_bytes, rel=1e-12)
        assert (own.pool, own.count, own.num_microbatches) == (
            *(rank.pool, rank.count, rank.num_microbatches),
        )
    assert priced.host_bytes_per_rank == pytest.approx(found.host_bytes_per_rank, rel=1e-12)
    on_host = "offload" in (*options, options.get("recompute"))
    assert (max(found.host_bytes_per_rank, default=0.0) > 0) == on_host
    assert priced.fits
    assert (priced.lower_bound_s, priced.gap) == (0.0, 1.0)


STATED = {"global_batch": 32, "sequence": 2048, "tp": 2}


def test_memory_and_nodes_are_those_of_every_pool_as_its_file_would_say() -> None:
    degrees = NARROW | {"pp": 2, "dp": 8}
    asked = plan("llama3-8b", cluster=two_kinds(), nodes=4, memory="60GiB", **degrees).document  # type: ignore[arg-type]
    said = plan("llama3-8b", cluster=two_kinds(2).with_memory(60.0 * 2**30), **degrees).document  # type: ignore[arg-type]
    assert asked.on_pools
    assert said.on_pools
    assert asked == replace(said, search_s=asked.search_s)
    assert {group.num_devices for group in asked.groups} == {16}
    assert max(group.memory_limit_bytes for group in asked.groups) < 60 * 2**30
    asked_of = {"cluster": two_kinds(), "nodes": 4, "memory": "60GiB"}
    priced = plan_of(estimate("llama3-8b", **asked_of, **stated(asked)))  # type: ignore[arg-type]
    assert priced.step_time_s == pytest.approx(asked.step_time_s, rel=1e-12)
    assert priced.ranks[0].margin_bytes == pytest.approx(asked.ranks[0].margin_bytes, rel=1e-12)


def test_each_pool_has_the_constants_that_a_calibration_has_of_its_device(tmp_path: Path) -> None:
    tables = {
        name: f'[[calibration]]\nline = "own"\naccelerator = "{name}"\n'
        'source = "runs of our own"\nlow_ratio = 0.9\nhigh_ratio = 1.1\n[calibration.constants]\n'
        for name in ("A100-80GB-SXM", "H100-80GB-SXM")
    }
    gemm = {"A100-80GB-SXM": 0.5, "H100-80GB-SXM": 0.7}
    path, halves = tmp_path / "both.toml", {}
    for name, table in tables.items():
        halves[name] = tmp_path / f"{name}.toml"
        halves[name].write_text(f"{table}gemm_max = {gemm[name]}\n")
    path.write_text("".join(each.read_text() for each in halves.values()))
    found = plan("llama3-8b", cluster=two_kinds(), calibration=path, pp=2, **NARROW).document  # type: ignore[arg-type]
    assert found.on_pools
    pools = planned_on_pools(found)[0].cluster.pools
    assert {pool.accelerator.name: pool.accelerator.efficiency.gemm.max for pool in pools} == gemm
    for at, pool in enumerate(pools):
        alone = calibrated(two_kinds().alone(at), halves[pool.accelerator.name])
        assert without_host(alone).pools == (pool,)
    priced = estimate(
        "llama3-8b",
        cluster=two_kinds(),
        calibration=path,
        **stated(found),  # type: ignore[arg-type]
    ).document
    assert priced.step_time_s == pytest.approx(found.step_time_s, rel=1e-12)
    assert found.step_time_s != document(pp=2).step_time_s
    with pytest.raises(InvalidInput, match="must hold constants of H100-80GB-SXM; it has own"):
        plan("llama3-8b", cluster=two_kinds(), calibration=halves["A100-80GB-SXM"], **NARROW)  # type: ignore[arg-type]


@pytest.mark.parametrize("pp", [2, 3])
@pytest.mark.parametrize("schedule", ["vocab-1", "vocab-2"])
def test_a_head_that_is_cut_over_pools_is_estimated_as_planned(schedule: str, pp: int) -> None:
    found = document(schedule=schedule, pp=pp)
    assert (found.layout, found.schedule) == ("across", schedule)
    priced = plan_of(estimate("llama3-8b", cluster=two_kinds(), **stated(found)))  # type: ignore[arg-type]
    assert priced.step_time_s == pytest.approx(found.step_time_s, rel=1e-12)
    assert priced.ranks == found.ranks
    assert found.gap is not None
    assert 0 < found.gap < 0.15


def test_an_estimate_on_several_pools_is_read_priced_and_exported_like_a_plan(
    tmp_path: Path,
) -> None:
    report = estimate(
        "llama3-8b",
        cluster=two_kinds(),
        **STATED,  # type: ignore[arg-type]
        pp=2,
        blocks="22,10",
        pool="H100-80GB-SXM,A100-80GB-SXM",
    )
    text = report.explain()
    assert "nothing is proved about other plans, for none was looked for" in text
    assert "layouts considered" not in text
    path = tmp_path / "stated.json"
    report.save(path)
    assert load_explained_document(path) == report.document
    assert "# node 0: H100-80GB-SXM" in bundle_of(path, "megatron").files["launch.sh"]
    assert verify(path, level=0).passed


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("step_time_s", 1.0, "^step_time_s: must be "),
        ("memory.1.total_bytes", 1.0, r"^memory\[1\]\.total_bytes: must be "),
        ("request.configuration.fused_attention", False, "^request.configuration: must be what "),
        ("request.configuration.recompute", "full", "^plan.recompute: must be one of none"),
        ("plan.ranks.0.count", 2, r"^plan\."),
        ("request.model.name", "another", "^request.model: must be that of plan.request"),
    ],
)
def test_an_estimate_on_several_pools_that_was_edited_is_refused(
    path: str, value: object, fault: str
) -> None:
    report = estimate("llama3-8b", cluster=two_kinds(), **STATED, pp=2, pool="1,0")  # type: ignore[arg-type]
    content = json.loads(report.to_json())
    *inner, last = path.split(".")
    at = content
    for name in inner:
        at = at[int(name)] if name.isdecimal() else at[name]
    at[int(last) if last.isdecimal() else last] = value
    document = decode_document(content, {"model-estimate": ModelEstimateResult}, source="")
    with pytest.raises(InvalidInput, match=fault):
        recheck(document)


def test_the_command_of_an_estimate_on_several_pools_says_where_its_ranks_lie() -> None:
    report = estimate("llama3-8b", cluster=two_kinds(), **STATED, pool=["4x2:0", "4x6:1"])  # type: ignore[arg-type]
    assert "--pool 4x2:0 --pool 4x6:1" in command_of(report.document).text


def test_replicas_may_cross_pools_in_ways_of_their_own() -> None:
    chains = ["2x8:0,1", "2x8:1,0"]
    made = plan_of(estimate("llama3-8b", cluster=two_kinds(), **STATED, pp=2, pool=chains))  # type: ignore[arg-type]
    assert made.layout == "woven"
    assert [rank.pool for rank in made.ranks] == [0, 1, 1, 0]


def test_what_does_not_fit_is_priced_in_full_and_says_what_finds_changes() -> None:
    small = with_memory(two_kinds(), A100, 8.0)
    report = estimate("llama3-8b", cluster=small, **STATED, pool=["4x2:0", "4x6:1"])  # type: ignore[arg-type]
    assert not report.document.fits
    assert min(rank.margin_bytes for rank in report.document.memory) < 0
    assert report.document.memory[report.document.heaviest_rank].device_kind == "A100-80GB-SXM"
    assert report.document.verdict == "does not fit"
    assert "changes that fit are found by: trainwright improve" in report.explain()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, r"^pool: must be given, as --pool 1: .* 0 \(A100-80GB-SXM\)"),
        ({"pool": ["0", "1"]}, "^pool: must say how many replicas run how many"),
        ({"pool": ["4x2:0", "4x5:1"]}, "^pool: must share out the 32 sequences .* got 28 x 1"),
        ({"pool": "0,1"}, "^pool: must name one pool, or that of each of the 1 "),
        ({"pp": 2, "pool": "0,2"}, '^pool: must be one of .*, got "2"'),
        ({"pool": "4x8:0", "dp": 2}, "^dp: must be the 4 replicas of --pool, got 2"),
        ({"pool": "0", "dp": 8}, "^pool: must use at most the 8 A100"),
        ({"pp": 2, "pool": "0,1", "blocks": "20,11"}, "^blocks: must add up to the 32 blocks"),
        ({"pp": 2, "pool": "0,1", "precision": "fp8"}, "^precision: A100-80GB-SXM multiplies in"),
        ({"pp": 2, "pool": "0,1", "nodes": 3}, "^nodes: must be dealt out to the pools as 1:1"),
        ({"pp": 2, "pool": "0,1", "calibration": "x"}, "^calibration: must be a file of"),
        ({"pp": 2, "pool": "0,1", "mapping": "tp-cp-ep-pp-dp"}, "^mapping, state-copies: "),
    ],
)
def test_a_layout_that_cannot_be_is_refused_by_its_option(
    options: dict[str, object], fault: str
) -> None:
    with pytest.raises((InvalidInput, UnsupportedFeature), match=fault):
        estimate("llama3-8b", cluster=two_kinds(), **(STATED | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"sequence_parallel": False},
        {"flash_attention": False},
        {"fused_cross_entropy": True, "vocabulary_multiple": 1},
        {"recompute": "selective", "recompute_module": ["layernorm"]},
    ],
)
def test_one_pool_of_several_prices_a_run_as_the_pool_by_itself(
    options: dict[str, object], tmp_path: Path
) -> None:
    asked: dict[str, object] = STATED | {"pp": 2, "dp": 2} | options
    alone = estimate("llama3-8b", cluster=two_kinds().alone(A100), **asked).document  # type: ignore[arg-type]
    report = estimate("llama3-8b", cluster=two_kinds(), pool="0", **asked)  # type: ignore[arg-type]
    for name in ("step_time_s", "peak_memory_bytes", "mfu", "pipeline_s"):
        assert getattr(report.document, name) == pytest.approx(getattr(alone, name), rel=1e-12)
    usual = estimate("llama3-8b", cluster=two_kinds(), pool="0", **STATED, pp=2, dp=2).document  # type: ignore[arg-type]
    assert usual.step_time_s != report.document.step_time_s
    report.save(tmp_path / "stated.json")
    assert load_explained_document(tmp_path / "stated.json") == report.document


def test_a_jobs_own_file_is_priced_on_several_pools(tmp_path: Path) -> None:
    words = {
        "num-layers": 32,
        "hidden-size": 4096,
        "ffn-hidden-size": 14336,
        "num-attention-heads": 32,
        "num-query-groups": 8,
        "seq-length": 2048,
        "vocab-size": 128256,
        "micro-batch-size": 1,
        "global-batch-size": 32,
        "tensor-model-parallel-size": 2,
        "pipeline-model-parallel-size": 2,
    }
    flags = ("group-query-attention", "sequence-parallel", "use-distributed-optimizer", "bf16")
    flags += ("overlap-grad-reduce", "overlap-param-gather")
    text = " ".join([*(f"--{k} {v}" for k, v in words.items()), *(f"--{flag}" for flag in flags)])
    path = tmp_path / "job.args"
    path.write_text(f"{text} --swiglu --disable-bias-linear --normalization RMSNorm")
    found = plan_of(estimate(source=("megatron", path), cluster=two_kinds(), pool="1,0"))
    assert found.on_pools
    assert found.parallelism is not None
    assert (found.parallelism.tensor, found.parallelism.pipeline, found.micro_batch) == (2, 2, 1)
    assert [rank.pool for rank in found.ranks] == [H100, A100]
    assert found.request.software is not None


def test_the_format_that_pools_share_may_be_stated() -> None:
    stated = document(pp=2, dp=4, precision="bf16", gradient_dtype=None)
    assert stated == replace(document(pp=2, dp=4), search_s=stated.search_s)


def test_a_recipe_and_what_hides_are_of_all_pools(tmp_path: Path) -> None:
    trained = {"optimizer": "sgd", "gradient_dtype": "bf16", "overlap": {"gradients": 0.0}}
    options = NARROW | {"pp": 2, "dp": 4} | trained
    report = plan("llama3-8b", cluster=two_kinds(), **options)  # type: ignore[arg-type]
    found, usual = report.document, document(pp=2, dp=4)
    assert found.on_pools
    assert found.request.recipe is not None
    assert found.ranks[0].memory.by_class["optimizer"] < usual.ranks[0].memory.by_class["optimizer"]
    assert found.exposed_gradient_sync_s != usual.exposed_gradient_sync_s
    priced = plan_of(estimate("llama3-8b", cluster=two_kinds(), **stated(found), **trained))  # type: ignore[arg-type]
    assert priced.on_pools
    assert priced.step_time_s == pytest.approx(found.step_time_s, rel=1e-12)
    assert priced.ranks[0].margin_bytes == pytest.approx(found.ranks[0].margin_bytes, rel=1e-12)
    report.save(tmp_path / "plan.json")
    assert recheck(found) == found
    assert load_explained_document(tmp_path / "plan.json") == found


def test_one_pool_has_no_pool_to_choose() -> None:
    with pytest.raises(InvalidInput, match=r"^pool: must be left out: dgx-h100 is one pool"):
        estimate("llama3-8b", cluster="dgx-h100", **STATED, pool="0")  # type: ignore[arg-type]


def test_each_row_of_a_sweep_over_several_pools_is_their_plan_in_proportion(
    tmp_path: Path,
) -> None:
    cluster, journal = two_kinds(2), tmp_path / "sweep.jsonl"
    asked = NARROW | {"cluster": cluster, "journal": journal}
    report = sweep("llama3-8b", devices="8,16,32", **asked)  # type: ignore[arg-type]
    found = report.document
    for row in found.rows:
        own = cluster.with_devices(row.devices)
        assert [pool.num_devices for pool in own.pools] == [row.devices // 2] * 2
        alone = plan("llama3-8b", cluster=own, **NARROW).document  # type: ignore[arg-type]
        assert alone.on_pools
        assert (row.step_time_s, row.lower_bound_s) == (alone.step_time_s, alone.lower_bound_s)
        assert (row.layout, row.peak_memory_bytes) == (alone.layout, alone.peak_memory_bytes)
    assert found.best_plan.on_pools
    assert found.best_plan.devices_used == found.rows[found.best or 0].devices_used
    report.save(path := tmp_path / "sweep.json")
    assert load_explained_document(path) == found
    again = sweep("llama3-8b", devices="8,16,32", **asked).document  # type: ignore[arg-type]
    assert replace(again, search_s=found.search_s) == found
    assert "several kinds" in report.explain()


def test_a_sweep_halves_several_pools_down_to_their_least_share_of_nodes() -> None:
    found = sweep(
        "llama3-8b",
        cluster=two_kinds(2),
        devices=32,
        objective="tokens-per-device",
        **NARROW,  # type: ignore[arg-type]
    ).document
    assert [row.devices for row in found.rows] == [16, 32]
    assert (found.devices_from, found.gap) == (None, None)  # nothing is claimed between the rows


def test_a_plan_of_a_smaller_row_stands_in_on_pools_of_more_devices() -> None:
    few = document(pp=2, dp=4)
    more = plan("llama3-8b", cluster=two_kinds(2), **NARROW, pp=2, dp=4).document  # type: ignore[arg-type]
    assert more.on_pools
    found = on_more_devices(few, more)
    assert found.on_pools
    assert [group.num_devices for group in found.groups] == [16, 16]
    assert [group.devices_used for group in found.groups] == [8, 8]
    assert found.step_time_s == pytest.approx(few.step_time_s)
    assert recheck(found) == found


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"devices": "8,9"}, "^devices: must be dealt out to the pools as 8:8, got 9"),
        ({"devices": "16", "objective": "cost", "tokens": 1e12}, "^price: must be given for cost"),
        ({"devices": "16", "objective": "energy", "tokens": 1e12}, "^power: must be given"),
    ],
)
def test_a_sweep_over_several_pools_asks_for_what_they_do_not_agree_on(
    options: dict[str, object], fault: str
) -> None:
    with pytest.raises(InvalidInput, match=fault):
        sweep("llama3-8b", cluster=two_kinds(), **(NARROW | options))  # type: ignore[arg-type]


def test_clusters_of_one_pool_and_of_several_are_rows_of_one_sweep() -> None:
    clusters = {"cluster": ("examples/old-and-new.toml", "dgx-h100")}
    found = sweep("llama3-8b", sweep=clusters, **NARROW).document  # type: ignore[arg-type]
    assert [row.devices for row in found.rows] == [16, 8]
    assert [row.layout for row in found.rows] == [document().layout, None]
    assert not found.best_plan.on_pools


@pytest.mark.parametrize(
    ("framework", "options"),
    [
        ("megatron", {"pp": 2, "dp": 4, "schedule": None}),
        ("megatron", {"pp": 1, "dp": 8, "schedule": None}),
        ("torchtitan", {"pp": 4, "dp": 2, "schedule": "zb-h1", "zero": "2"}),
        ("megatron", {"pp": 2, "dp": 4, "schedule": None, "recompute": "none,full"}),
        ("deepspeed", {"pp": 1, "dp": 16, "tp": 1, "zero": "1", "schedule": None}),
    ],
)
def test_a_plan_for_a_framework_runs_alike_on_all_pools_and_is_exported(
    framework: str, options: dict[str, object], tmp_path: Path
) -> None:
    result = planned(framework=framework, **options)
    found = result.document
    assert found.on_pools
    assert found.layout in ("across", "beside")
    assert len({rank.num_microbatches for rank in found.ranks}) == 1
    assert all(
        own.options == stage.replicas[0].options for stage in found.stages for own in stage.replicas
    )
    assert not any(warning.startswith("framework: ") for warning in found.warnings)
    assert export(result, framework).document.files
    free = document(framework="any", **options)
    assert (free.lower_bound_s or 0) <= (found.step_time_s or 0) * (1 + 1e-12)
    text = " ".join(result.explain().split())
    name = found.request.space.framework
    assert f"plan of the space that {name} launches (replicas alike on all pools)" in text
    result.save(path := tmp_path / "launched.json")
    assert load_explained_document(path) == found


def test_improve_keeps_to_what_the_framework_of_the_plan_launches() -> None:
    result = planned_small(framework="megatron", pp=2, schedule=None)
    found = improve(result).document
    assert found.changes
    for change in found.changes:
        changed = recommended_plan(replace(found, recommended=change))
        assert not launch_gaps(changed, planned_on_pools(changed)[0].question)
        assert "zb-h" not in change.options
    assert found.planned is None or found.planned.request.space.framework == "megatron"
    with pytest.raises(InvalidInput, match=r"^framework: must be megatron, .* --framework trl"):
        improve(result, framework="trl")


@pytest.mark.parametrize(
    ("framework", "options", "said"),
    [
        (
            "maxtext",
            {"zero": "3"},
            "^framework: maxtext compiles one program .* planned alone$",
        ),
        (
            "automodel",
            {"pp": 2, "zero": "2"},
            "^framework: no pipeline from pool to pool: auto",
        ),
    ],
)
def test_what_a_framework_cannot_do_on_unlike_pools_is_said_with_who_can(
    framework: str, options: dict[str, object], said: str
) -> None:
    found = document(framework=framework, **(NARROW | options | {"schedule": None}))
    assert found.layout == "alone"
    assert any(re.search(said, warning) for warning in found.warnings)
    assert not any(other.layout == "across" for other in found.alternatives)


def test_a_schedule_without_plans_on_several_kinds_leaves_each_alone_and_says_so() -> None:
    found = document(schedule="stp", pp=2)
    assert found.layout == "alone"
    assert any(warning.startswith("schedule: several pools") for warning in found.warnings)


@pytest.mark.parametrize(("schedule", "chunks"), [("interleaved", 2), ("zb-v", 2)])
def test_chunks_of_a_rank_lie_in_one_of_several_pools(schedule: str, chunks: int) -> None:
    found = document(schedule=schedule, pp=2, virtual_stages=chunks)
    assert (found.layout, found.schedule) == ("across", schedule)
    assert 0 < found.lower_bound_s <= found.step_time_s
    pools = [{own.pool for own in stage.replicas} for stage in found.stages]
    assert all(len(own) == 1 for own in pools)
    turned = [pools[1], pools[0]] if schedule == "zb-v" else pools[:2]
    assert pools[2:] == turned
    assert pools[0] != pools[1]
