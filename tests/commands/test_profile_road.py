"""A measured profile on a cluster is asked what a model is asked, and answers as the model does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mixed_clusters import ETHERNET
from trainwright import diff, estimate, explain, improve, plan, reasons, sweep, verify, what_if
from trainwright.cluster import Cluster
from trainwright.commands.export import bundle_of, export
from trainwright.documents.jobs import _places_in, job_of
from trainwright.documents.runs import layer_kinds
from trainwright.errors import Inexpressible, InvalidInput, UnsupportedFeature
from trainwright.formats import catalog
from trainwright.formats.document_json import decode
from trainwright.formats.profile_json import write_profile
from trainwright.lab.verify_orders import subject_of
from trainwright.options.inputs import resolve_model
from trainwright.planning.question.question import (
    Allowed,
    ModelQuestion,
    Point,
    Workload,
    estimate_profile,
)
from trainwright.profile import ProfileFile, Recompute

BATCH = {"global_batch": 16, "sequence": 1024}
SIZES, DEGREES = (1, 2), (1, 2)


@pytest.fixture(scope="module")
def roads(tmp_path_factory):
    """A model's file, what it is estimated to cost as a file, and the cluster it is priced on."""
    folder = tmp_path_factory.mktemp("roads")
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "gpt2",
                "n_layer": 6,
                "n_embd": 768,
                "n_head": 12,
                "n_positions": 1024,
                "vocab_size": 50257,
                "tie_word_embeddings": False,
            }
        )
    )
    priced = {"cluster": "dgx-a100-40gb", "nodes": 1, "calibration": "none"}
    made = estimate(folder / "config.json", **priced, **BATCH).document
    cluster = decode(Cluster, made.request.cluster.content, path="cluster")
    config = catalog.model("gpt2").config
    config = decode(type(config), made.request.model.content, path="model")
    question = ModelQuestion(
        model=config,
        cluster=cluster,
        workload=Workload(global_batch=16, sequence_length=1024),
        num_devices=8,
        allowed=Allowed(recompute=(Recompute.NONE, Recompute.FULL)),
    )
    profiles = tuple(
        estimate_profile(question.estimator(), question, Point(microbatch_size=b, tensor=t))
        for b in SIZES
        for t in DEGREES
    )
    path = folder / "profile.json"
    path.write_text(json.dumps(write_profile(ProfileFile(profiles=profiles))))
    return folder / "config.json", path, cluster


RUNS = (
    {"pp": 2, "dp": 4},
    {"pp": 3, "dp": 2, "zero": 2, "recompute": "full:1"},
    {"tp": 2, "pp": 2, "virtual_stages": 3, "micro_batch": 2, "zero": 1},
    {"pp": 4, "schedule": "zb-h1", "recompute": "full", "blocks": "1,2,2,1"},
)


@pytest.mark.parametrize("options", RUNS)
def test_a_stated_run_costs_the_same_by_both_roads(roads, options):
    config, profile, cluster = roads
    told = estimate(config, cluster=cluster, calibration="none", **BATCH, **options).document
    usual = {"zero": 1, "micro_batch": 1, **options}
    known = estimate(profile, cluster=cluster, global_batch=16, **usual).document
    assert known.step_time_s == pytest.approx(told.step_time_s, rel=1e-12)
    assert known.tokens_per_s == pytest.approx(told.tokens_per_s, rel=1e-12)
    for own, other in zip(known.memory, told.memory, strict=True):
        assert own.total_bytes == pytest.approx(other.total_bytes, rel=1e-12)
        assert own.margin_bytes == pytest.approx(other.margin_bytes, rel=1e-9)
    assert known.step_time_low_s is None
    assert known.mfu is None


def test_a_step_is_drawn_the_same_by_both_roads(roads):
    config, profile, cluster = roads
    told = estimate(config, cluster=cluster, calibration="none", **BATCH, **RUNS[1])
    usual = {"zero": 1, "micro_batch": 1, **RUNS[1]}
    known = estimate(profile, cluster=cluster, global_batch=16, **usual)
    traces = [
        json.loads(bundle_of(each, "chrome-trace").files["trace.json.gz"])["traceEvents"]
        for each in (told, known)
    ]
    spans = [[event for event in own if event["ph"] == "X"] for own in traces]
    assert len(spans[0]) == len(spans[1]) > 50
    for own, other in zip(*spans, strict=True):
        assert (own["name"], own["pid"], own["tid"]) == (other["name"], other["pid"], other["tid"])
        assert own["ts"] == pytest.approx(other["ts"], abs=1e-5)
        assert own["dur"] == pytest.approx(other["dur"], abs=1e-5)
    with pytest.raises(UnsupportedFeature, match="is a profile: it says what layers cost"):
        bundle_of(known, "pytorch")


@pytest.mark.parametrize("options", RUNS)
def test_orders_are_verified_the_same_by_both_roads(roads, options):
    config, profile, cluster = roads
    told = estimate(config, cluster=cluster, calibration="none", **BATCH, **options)
    usual = {"zero": 1, "micro_batch": 1, **options}
    known = estimate(profile, cluster=cluster, global_batch=16, **usual)
    found = [verify(each, level=1, self_test=True).document for each in (told, known)]
    for each in found:
        assert each.passed, each.checks
    subjects = [subject_of(each.document) for each in (told, known)]
    for one, other in zip(*(each.stages for each in subjects), strict=True):
        assert [name for name in one if name.startswith("block")] == [
            name for name in other if name.startswith("block")
        ]
    assert subjects[0].is_sharded == subjects[1].is_sharded
    assert subjects[0].data_parallel == subjects[1].data_parallel
    assert [replace(each, detail="") for each in found[0].checks if each.level == 0] == [
        replace(each, detail="") for each in found[1].checks if each.level == 0
    ]


def test_plans_of_a_profile_are_verified_on_one_pool_and_on_several(roads):
    _, profile, cluster = roads
    alone = plan(profile, cluster=cluster, global_batch=16, pp="2..", zero="2")
    several = plan(profile, cluster=halls(cluster), global_batch=16, micro_batch=1, tp=1)
    assert several.document.layout != "alone"
    for made in (alone, several):
        found = verify(made, level=1, self_test=True).document
        assert found.passed, found.checks
        assert all(control.caught for control in found.controls)
        assert "a profile does not say what its layers are" in found.notes[0]
    edited = replace(alone.document, pipeline_s=1.0)
    assert not verify(edited, level=1).document.passed
    nothing = plan(profile, cluster=cluster, global_batch=16, memory="100MB").document
    assert not nothing.stages
    with pytest.raises(InvalidInput, match="holds no plan: its status is"):
        verify(nothing, level=0)
    with pytest.raises(InvalidInput, match="dry-run: must be left out: a profile says what"):
        verify(alone, dry_run=True)


@pytest.mark.slow
def test_an_improvement_is_the_same_by_both_roads(roads):
    config, profile, cluster = roads
    options = {"pp": 4, "dp": 2, "recompute": "full"}
    told = improve(
        estimate(config, cluster=cluster, calibration="none", **BATCH, **options)
    ).document
    known = improve(
        estimate(profile, cluster=cluster, global_batch=16, zero=1, micro_batch=1, **options)
    ).document
    assert known.run.step_time_s == pytest.approx(told.run.step_time_s, rel=1e-12)
    # A model has more to choose from: other degrees, sizes and kernels.
    assert told.best_known_s <= known.best_known_s * (1 + 1e-9)
    shared = {each.options: each for each in told.changes}
    same = [(each, shared[each.options]) for each in known.changes if each.options in shared]
    assert same
    for own, other in same:
        assert own.step_time_s == pytest.approx(other.step_time_s, rel=1e-12)
    assert known.lower_bound_s <= known.best_known_s * (1 + 1e-9)
    assert not any("attention" in each.options for each in known.changes)
    assert not any("cross-entropy" in each.options for each in known.changes)


def test_a_change_of_a_profile_can_be_asked_for_as_it_is_said(roads, run):
    _, profile, _ = roads
    asked = ("estimate", str(profile), "--cluster", "dgx-a100-40gb", "--nodes", "1")
    asked += ("--global-batch", "16", "--pp", "4", "--dp", "2", "--recompute", "full")
    run(*asked, "-o", "run.json")
    changes = run("improve", "run.json", "--json").document["changes"]
    assert changes
    for change in changes:
        again = run(*asked, *change["options"].split(), "--json").document
        assert again["step_time_s"] == pytest.approx(change["step_time_s"], rel=1e-12)
    tensor = run(*asked, "--tp", "2", "--dp", "1", "--sequence-parallel", "--json").document
    assert tensor["step_time_s"] > 0
    failed = run(*asked, "--tp", "2", "--dp", "1", "--no-sequence-parallel")
    assert failed.code == 2
    assert "sequence-parallel: must be left on" in failed.err


def test_an_improvement_of_a_profile_is_read_again_and_an_edited_one_refused(roads, tmp_path):
    _, profile, cluster = roads
    made = improve(estimate(profile, cluster=cluster, global_batch=16, pp=4, recompute="full"))
    path = tmp_path / "improved.json"
    made.save(path)
    assert explain(path).document == made.document
    text = json.loads(path.read_text())
    text["changes"][0]["step_time_s"] *= 0.9
    path.write_text(json.dumps(text))
    with pytest.raises(InvalidInput, match="changes"):
        explain(path)


@pytest.mark.slow
def test_a_plan_without_recomputation_is_a_run_that_costs_the_same(roads):
    _, profile, cluster = roads
    asked = {"global_batch": 16, "recompute": "none", "schedule": "1f1b", "top": 0}
    for depth in (2, 1):
        found = plan(profile, cluster=cluster, pp=depth, **asked)
        assert found.document.stages
        run = improve(found).document.run
        assert run.step_time_s == pytest.approx(found.document.step_time_s, rel=1e-12)
    compared = diff(found, estimate(profile, cluster=cluster, global_batch=16, pp=2))
    assert compared.document.same_model


def test_blocks_may_have_to_recompute_though_the_ends_offer_nothing_of_the_kind(roads):
    config, profile, cluster = roads
    asked = {"cluster": cluster, "global_batch": 16, "tp": 1, "micro_batch": 2, "top": 0}
    told = plan(config, sequence=1024, cp=1, calibration="none", recompute="full", **asked).document
    known = plan(profile, recompute="full", **asked).document
    assert known.step_time_s == pytest.approx(told.step_time_s, rel=1e-12)
    assert known.lower_bound_s == pytest.approx(told.lower_bound_s, rel=1e-9)
    assert sum(stage.num_recomputed for stage in known.stages) == 6
    with pytest.raises(InvalidInput, match="recompute: must leave every layer"):
        plan(profile, recompute="selective", **asked)


def test_a_sequence_length_chooses_among_points_that_differ_in_it(roads, tmp_path):
    _, profile, cluster = roads
    content = json.loads(profile.read_text())
    longer = json.loads(profile.read_text())["points"]
    for point in longer:
        point["point"]["sequence_length"] = 2048
    content["points"] += longer
    both = tmp_path / "both.json"
    both.write_text(json.dumps(content))
    asked = {"cluster": cluster, "global_batch": 16, "recompute": "none", "top": 0}
    alone, chosen = plan(profile, **asked), plan(both, sequence=1024, **asked)
    assert chosen.document.step_time_s == alone.document.step_time_s
    with pytest.raises(InvalidInput, match="--sequence takes those of one of 1024, 2048"):
        plan(both, **asked)
    chosen.save(tmp_path / "plan.json")
    assert explain(tmp_path / "plan.json").document.step_time_s == alone.document.step_time_s


JOBS = ({"pp": 1, "tp": 2}, {"pp": 3, "schedule": "1f1b"}, {"pp": 2, "schedule": "interleaved"})


@pytest.mark.parametrize("options", JOBS)
def test_a_plan_is_the_same_job_by_both_roads_once_the_model_is_named(roads, options):
    config, profile, cluster = roads
    asked = {"cluster": cluster, "global_batch": 16, "micro_batch": 1, "zero": 1, "top": 0}
    asked |= {"recompute": "none,full", **options}
    told = plan(config, sequence=1024, cp=1, calibration="none", framework="any", **asked)
    known, described = plan(profile, **asked), resolve_model(config)
    assert job_of(known.document, described) == job_of(told.document)
    stated = {"cluster": cluster, "global_batch": 16, "micro_batch": 1, "zero": 1, **options}
    told = estimate(config, sequence=1024, calibration="none", **stated)
    assert job_of(estimate(profile, **stated).document, described) == job_of(told.document)


def test_a_profile_is_exported_as_the_model_that_is_named(roads, tmp_path):
    config, profile, cluster = roads
    asked = {"cluster": cluster, "global_batch": 16, "pp": 2, "schedule": "1f1b", "zero": 1}
    found = plan(profile, recompute="none", top=0, **asked)
    made = export(found, "megatron", model=config, output=tmp_path / "job").document
    assert "does not say how the model trains" in made.warnings[-1]
    script = "".join(file.read_text() for file in (tmp_path / "job").glob("*.sh"))
    assert "--pipeline-model-parallel-size 2" in script
    with pytest.raises(Inexpressible, match="runs with options such as --schedule or --zero"):
        export(found, "pytorch", model=config)
    with pytest.raises(InvalidInput, match="must have 6 blocks, as the profile has, got 12"):
        export(found, "megatron", model="gpt2")
    with pytest.raises(InvalidInput, match="must be a model, not a profile"):
        export(found, "megatron", model=profile)
    with pytest.raises(InvalidInput, match="the document says what its model is"):
        export(estimate("gpt2", sequence=1024, **asked), "megatron", model="gpt2")


def test_ends_that_are_one_layer_of_the_profile_are_all_that_the_model_has_there():
    model = catalog.model("gpt2").config
    kinds = [*layer_kinds(model)]
    first, last = kinds.index("block"), len(kinds) - 1 - kinds[::-1].index("block")
    blocks = ["block"] * model.num_layers
    assert _places_in(model, kinds) == [*range(len(kinds) + 1)]
    places = _places_in(model, ["embedding", *blocks, "lm_head"])
    assert places == [0, *range(first, last + 2), len(kinds)]
    assert _places_in(model, blocks) == [0, *range(first + 1, last + 1), len(kinds)]
    for chain in (["layer"] * 14, [*blocks[:6], "mixer", *blocks[6:]]):
        with pytest.raises(UnsupportedFeature, match="no blocks in one row"):
            _places_in(model, chain)
    with pytest.raises(InvalidInput, match="must have 2 and 1"):
        _places_in(model, ["embedding", "dropout", *blocks, "lm_head"])


SPACE = {"tp": "..2", "micro_batch": "..2", "recompute": "none,full", "schedule": "1f1b"}
GOAL = {"tokens": 1e9, "price": 2.0, "objective": "cost", "pareto": "step-time,cost"}


def test_objectives_and_sweeps_choose_the_same_by_both_roads(roads):
    config, profile, cluster = roads
    asked = {"cluster": cluster, "global_batch": 16, "top": 0, **SPACE, **GOAL}
    told = sweep(config, devices="2..8", sequence=1024, cp=1, calibration="none", **asked).document
    known = sweep(profile, devices="2..8", **asked).document
    assert known.status == told.status
    assert known.best == told.best
    # A checkpoint holds the padded vocabulary, too: totals differ in the sixth digit.
    assert known.objective_value == pytest.approx(told.objective_value, rel=1e-4)
    for own, other in zip(known.rows, told.rows, strict=True):
        assert own.step_time_s == pytest.approx(other.step_time_s, rel=1e-12)
        assert own.lower_bound_s == pytest.approx(other.lower_bound_s, rel=1e-9)
        assert own.parallelism == other.parallelism


@pytest.mark.slow
def test_a_changed_cluster_changes_a_plan_alike_by_both_roads(roads):
    config, profile, cluster = roads
    # Exchanges of a tensor group are in the times of measured layers, whatever its links.
    asked = {"cluster": cluster, "global_batch": 16, "top": 0, **SPACE, "tp": 1}
    told = plan(config, sequence=1024, cp=1, calibration="none", framework="any", **asked)
    known = plan(profile, **asked)
    for change in ({"memory": "3GiB"}, {"devices": 4}, {"bandwidth": "nvlink=30GB/s"}):
        own, other = what_if(known, **change).document, what_if(told, **change).document
        assert own.after.status == other.after.status
        assert own.after.step_time_s == pytest.approx(other.after.step_time_s, rel=1e-12)
    assert "MFU" in what_if(told, devices=4).explain()
    assert "MFU" not in what_if(known, devices=4).explain()
    with pytest.raises(InvalidInput, match="flops-scale: must be left out"):
        what_if(known, flops_scale=2.0)
    with pytest.raises(InvalidInput, match="1024"):
        what_if(known, sequence=2048)


def halls(cluster: Cluster) -> Cluster:
    """Four and two devices of the cluster's kind, the two on slower links."""
    pool = cluster.pool_of()
    level = pool.levels[0]
    pools = (
        replace(pool, levels=(replace(level, size=4),)),
        replace(pool, levels=(replace(level, size=2, bandwidth_bytes_per_s=32e9),)),
    )
    joint = replace(ETHERNET, bandwidth_bytes_per_s=100e9, latency_s=2e-6)
    return Cluster(name="halls", pools=pools, joint=joint)


def test_a_plan_on_several_pools_is_the_same_by_both_roads(roads, tmp_path):
    config, profile, cluster = roads
    asked = {"cluster": halls(cluster), "global_batch": 16, "micro_batch": 1, "tp": 1}
    asked |= {"recompute": "none,full", "top": 2}
    told = plan(config, sequence=1024, cp=1, calibration="none", **asked).document
    found = plan(profile, **asked)
    known = found.document
    assert known.status == told.status
    assert known.layout == told.layout != "alone"
    assert known.step_time_s == pytest.approx(told.step_time_s, rel=1e-12)
    assert known.lower_bound_s == pytest.approx(told.lower_bound_s, rel=1e-9)
    assert known.step_time_low_s is None
    found.save(tmp_path / "halls.json")
    again = explain(tmp_path / "halls.json").document
    assert again.step_time_s == known.step_time_s
    assert improve(found).document.best_known_s <= known.step_time_s * (1 + 1e-9)
    one_idle = what_if(found, pool="1", devices=0).document.after
    assert one_idle.step_time_s > known.step_time_s


def test_a_profile_is_of_one_kind_of_device(roads):
    _, profile, cluster = roads
    other = catalog.cluster("dgx-h100").with_nodes(1).pools[0]
    kinds = Cluster(name="kinds", pools=(cluster.pool_of(), other), joint=ETHERNET)
    with pytest.raises(UnsupportedFeature, match="measured on one kind of device"):
        plan(profile, cluster=kinds, global_batch=16)


def test_reasons_name_what_a_measured_plan_uses_and_nothing_else(run):
    asked = ("--cluster", "dgx-a100-40gb", "--nodes", "1", "--global-batch", "8", "--pp", "2")
    run("plan", "small.json", *asked, "--no-recompute", "--top", "0", "-o", "plan.json")
    found = reasons("plan.json").document
    assert all(stage.num_recomputed == 0 for stage in found.plan.stages)
    assert "recomputation" not in {each.name for each in found.without}
    resources = {gain.resource for gain in found.gains}
    assert resources.isdisjoint({"peak FLOP/s", "memory bandwidth"})
    assert resources >= {"nvlink bandwidth", "memory"}


def test_totals_need_the_length_of_a_sequence(run):
    asked = ("--cluster", "dgx-a100-40gb", "--devices", "2,4", "--global-batch", "8", "--json")
    failed = run("plan", "small.json", *asked)
    assert failed.code == 2
    assert "sequence: must be given" in failed.err
    found = run("plan", "small.json", *asked, "--sequence", "512", "--top", "0").document
    assert [row["devices"] for row in found["rows"]] == [2, 4]
    assert found["rows"][0]["tokens_per_s"] == pytest.approx(
        8 * 512 / found["rows"][0]["step_time_s"]
    )
    both = run("plan", "small.json", *asked, "--framework", "megatron")
    assert "framework: must be given for a model only" in both.err


def test_what_the_file_does_not_have_is_refused_by_its_option(roads):
    _, profile, cluster = roads
    with pytest.raises(InvalidInput) as caught:
        estimate(profile, cluster=cluster, global_batch=24, tp=4, micro_batch=3, cp=2)
    named = {fault.path for fault in caught.value.faults}
    assert {"micro-batch", "cp"} <= named
    with pytest.raises(InvalidInput, match="selective"):
        estimate(profile, cluster=cluster, global_batch=16, recompute="selective")
    with pytest.raises(InvalidInput, match="for a model only"):
        estimate(profile, cluster=cluster, global_batch=16, flash_attention=False)
    with pytest.raises(InvalidInput, match="what a framework would build"):
        improve(estimate(profile, cluster=cluster, global_batch=16), framework="megatron")


def test_bytes_of_unknown_kind_are_a_class_of_their_own(run):
    asked = ("--cluster", "dgx-a100-40gb", "--nodes", "1", "--global-batch", "8")
    document = run("estimate", "small.json", *asked, "--pp", "2", "--json").document
    classes = ("weight", "gradient", "optimizer", "opaque", "activation", "logits")
    classes += ("transient", "buffer", "workspace")
    for rank in document["memory"]:
        assert rank["opaque_bytes"] > 0
        assert sum(rank[f"{name}_bytes"] for name in classes) == pytest.approx(rank["total_bytes"])
    assert "opaque" in run("estimate", "small.json", *asked, "--pp", "2").out
    assert "tokens_per_s" not in document
    failed = run("estimate", "small.json", *asked, "--pp", "2", "--zero", "1")
    assert failed.code == 2
    assert "zero: must be 0" in failed.err
