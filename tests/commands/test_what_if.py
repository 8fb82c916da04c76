"""A plan asked again with something different, and runs compared with each other."""

from __future__ import annotations

import copy
import json
from collections import Counter
from dataclasses import replace

import pytest

import trainwright
from reported import EXAMPLES, mixed_plan
from trainwright.commands.diff import changes
from trainwright.commands.explain import explain_constants
from trainwright.documents.difference import cluster_facts
from trainwright.documents.printing import Report
from trainwright.errors import InvalidInput
from trainwright.plans.status import Status

JOB = {
    "cluster": "dgx-h100",
    "devices": 16,
    "global_batch": 32,
    "sequence": 4096,
    "cp": 2,
    "top": 0,
    "calibration": "none",
    "schedule": "1f1b",  # what is asked again does not depend on it
}
EVERY_FAMILY = {key: value for key, value in JOB.items() if key != "schedule"}
TIGHT = {"memory": "24GiB", "zero": 1}


@pytest.fixture(scope="module")
def tight():
    """Llama-3 8B in so little memory that it recomputes."""
    return trainwright.plan("llama3-8b", **TIGHT, **JOB, framework="any")


@pytest.fixture(
    scope="module",
    params=[JOB, pytest.param(EVERY_FAMILY, marks=pytest.mark.papers)],
    ids=["1f1b", "every family"],
)
def improvable(request):
    return trainwright.plan("llama3-8b", **TIGHT, **request.param)


def written(document):
    """The trace of one step."""
    return trainwright.export(Report(document), "chrome-trace").document.files


def test_a_change_gives_the_plan_of_the_changed_question(tight):
    report = trainwright.what_if(tight, memory="80GiB", global_batch=64, devices=32)
    asked = {**JOB, "global_batch": 64, "devices": 32}
    again = trainwright.plan("llama3-8b", memory="80GiB", zero=1, **asked).document
    after = report.document.after
    assert after.stages == again.stages
    assert after.step_time_s == again.step_time_s
    assert after.request.space == tight.document.request.space
    assert report.document.before == tight.document
    changed = [change.key for change in report.document.changes]
    assert changed == ["num_devices", "global_batch", "memory_bytes"]
    assert report.document.time_ratio == after.step_time_s / tight.step_time_s
    assert written(report.document) == written(after)
    gain = after.tokens_per_s / tight.document.tokens_per_s
    assert f"{gain:.4g}x as many tokens per second; its steps, of another" in report.explain()


@pytest.mark.parametrize(
    "change",
    [
        {"memory": "60GiB"},
        pytest.param({"bandwidth": "intra=4TB/s"}, marks=pytest.mark.slow),
        {"bandwidth": ["inter=400GB/s", "nvlink=4TB/s"]},
        pytest.param({"flops_scale": 1.5}, marks=pytest.mark.slow),
        pytest.param({"devices": 32}, marks=pytest.mark.slow),
    ],
)
def test_more_of_anything_is_never_slower(improvable, change):
    found = trainwright.what_if(improvable, **change).document
    assert found.time_ratio <= 1 + 1e-9
    assert len(found.changes) >= 1


@pytest.mark.slow
def test_what_no_longer_fits_says_why(tight):
    report = trainwright.what_if(tight, memory="2GiB")
    assert report.status is Status.INFEASIBLE
    assert report.document.time_ratio is None
    assert "with these changes: infeasible" in report.explain()
    assert report.document.after.relaxations


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, "whatif: must change something: --devices, --memory"),
        ({"bandwidth": "inter=800"}, 'did you mean "800Gb/s" or "800GB/s"'),
        ({"memory": "80Gb"}, "did you mean 80GB or 80GiB"),
        ({"devices": 16}, "whatif: must change something"),
        (
            {"bandwidth": "800Gb/s"},
            'bandwidth: must be LEVEL=RATE, as inter=800Gb/s, got "800Gb/s"',
        ),
        ({"bandwidth": "pcie=1GB/s"}, "bandwidth: must be one of intra, inter, nvlink, infini"),
        ({"bandwidth": "inter=fast"}, "bandwidth: must be a quantity"),
        ({"flops_scale": 0.0}, "flops-scale: must be finite and > 0, got 0.0"),
        ({"global_batch": 0}, "global-batch: must be from 1"),
    ],
)
def test_a_bad_change_is_named(tight, change, fault):
    with pytest.raises(InvalidInput, match=fault):
        trainwright.what_if(tight, **change)


def test_a_what_if_is_read_back(tight, tmp_path):
    """Explained as it was printed; compared, it stands for the plan with the changes."""
    report, path = trainwright.what_if(tight, memory="80GiB"), tmp_path / "whatif.json"
    report.save(path)
    assert trainwright.explain(path).explain() == report.explain()
    assert explain_constants(path).explain() == explain_constants(report.document.after).explain()
    found = trainwright.diff(tight, path).document
    assert found == trainwright.diff(tight, report.document.after).document
    assert found.time_ratio == report.document.time_ratio
    assert trainwright.diff(report, path).explain() == "no difference\n"


def test_a_what_if_edited_by_hand_is_found_out(tight, tmp_path):
    written = trainwright.what_if(tight, memory="80GiB").to_dict()
    written["after"]["step_time_s"] /= 2
    (tmp_path / "whatif.json").write_text(json.dumps(written), encoding="utf-8")
    with pytest.raises(InvalidInput, match="step_time_s"):
        trainwright.explain(tmp_path / "whatif.json")


def test_only_plans_of_models_are_asked_again(path):
    plan = trainwright.plan(path)
    with pytest.raises(InvalidInput, match=r'kind: must be "model-plan", .* got "plan"'):
        trainwright.what_if(plan, memory="80GiB")
    plan.save(path)
    with pytest.raises(InvalidInput, match="plan the profile again with what changes"):
        trainwright.what_if(path, memory="80GiB")


class TestOnSeveralPools:
    """The same questions of a plan on two kinds of devices."""

    A100, H100 = "A100-80GB-SXM", "H100-80GB-SXM"

    def test_a_slower_network_between_pools_is_planned_with(self, tmp_path):
        report = trainwright.what_if(Report(mixed_plan()), bandwidth="joint=1GB/s")
        (change,) = report.document.changes
        assert (change.key, change.after) == ("joint bandwidth_bytes_per_s", 1e9)
        assert report.document.time_ratio > 1
        report.save(tmp_path / "whatif.json")
        assert trainwright.explain(tmp_path / "whatif.json").explain() == report.explain()
        written = json.loads((tmp_path / "whatif.json").read_text())
        written["after"]["ranks"][0]["busy"] /= 2
        (tmp_path / "whatif.json").write_text(json.dumps(written))
        with pytest.raises(InvalidInput, match=r"after\.ranks\[0\]\.busy: must be"):
            trainwright.explain(tmp_path / "whatif.json")

    @pytest.mark.parametrize(
        ("change", "key"),
        [
            ({"flops_scale": 1.2}, f"{A100} peak bf16 flops_per_s"),
            ({"flops_scale": 1.2, "pool": H100}, f"{H100} peak bf16 flops_per_s"),
            ({"memory": "200GiB", "pool": "1"}, f"{H100} memory_bytes"),
            ({"bandwidth": "joint=1TB/s"}, "joint bandwidth_bytes_per_s"),
        ],
    )
    def test_more_of_a_pool_is_never_slower(self, change, key):
        found = trainwright.what_if(Report(mixed_plan()), **change).document
        assert found.after.lower_bound_s <= mixed_plan().step_time_s * (1 + 1e-9)
        assert key in {each.key for each in found.changes}
        assert ("pool" in change or "bandwidth" in change) == (len(found.changes) == 1)

    def test_another_batch_is_planned_again_as_plan_would(self):
        found = trainwright.what_if(Report(mixed_plan()), global_batch=128).document
        assert found.after.request.workload.global_batch == 128
        assert found.after.layout == "across"
        assert found.after.lower_bound_s <= found.after.step_time_s

    def test_without_one_of_two_pools_the_plan_is_one_on_one_pool(self, tmp_path):
        free = trainwright.plan("llama2-7b", **OLD_AND_NEW, pp="1..2")
        report = trainwright.what_if(free, pool=self.A100, devices=0)
        before, after = report.document.before, report.document.after
        assert (before.on_pools, after.on_pools) == (True, False)
        assert after.request.num_devices == 8
        assert after.lower_bound_s >= before.lower_bound_s * (1 - 1e-9)
        (gone,) = (
            each for each in report.document.changes if each.key == f"{self.A100} num_devices"
        )
        assert (gone.before, gone.after) == (8, None)
        path = tmp_path / "whatif.json"
        report.save(path)
        assert trainwright.explain(path).explain() == report.explain()
        found = trainwright.diff(free, after).document
        assert found.time_ratio == report.document.time_ratio
        keys = {each.key for each in found.result_changes}
        assert {"step_time_s", "compute_s", "use_of_pools", "devices_used"} <= keys

    @pytest.mark.parametrize(
        ("change", "fault"),
        [
            ({}, "whatif: must change something: --devices"),
            ({"pool": "0"}, "whatif: must change something: --devices"),
            ({"devices": 4}, f"devices: must be given of one pool, by --pool: {A100}, {H100}"),
            ({"pool": "B200", "devices": 4}, r"pool: must be one of 0 \(A100.*, got \"B200\""),
            (
                {"pool": "0", "devices": 13},
                f"devices: must be at most the 8 {A100} of a",
            ),
            ({"bandwidth": "pcie=1GB/s"}, "bandwidth: must be one of intra, inter, joint"),
            ({"pool": "0", "bandwidth": "joint=1GB/s"}, "bandwidth: must be one of intra, inter"),
            ({"memory": "80"}, "memory"),
        ],
    )
    def test_a_bad_change_is_named(self, change, fault):
        with pytest.raises(InvalidInput, match=fault):
            trainwright.what_if(Report(mixed_plan()), **change)

    def test_a_plan_does_not_differ_from_itself_and_two_uses_of_pools_do(self, tmp_path):
        path = tmp_path / "mixed.json"
        Report(mixed_plan()).save(path)
        assert trainwright.diff(path, Report(mixed_plan())).explain() == "no difference\n"
        found = trainwright.diff(path, Report(mixed_plan("beside"))).document
        assert found.same_model
        changed = {each.key: (each.before, each.after) for each in found.result_changes}
        assert changed["use_of_pools"] == ("across", "beside")
        assert len(found.stage_changes) == 2
        assert found.stage_changes[0].after.data_parallel == 16


OLD_AND_NEW = {
    "cluster": EXAMPLES / "old-and-new.toml",
    "global_batch": 64,
    "sequence": 2048,
    "tp": 1,
    "cp": 1,
    "micro_batch": 1,
    "zero": 1,
    "recompute": "none",
    "schedule": "1f1b",
    "top": 0,
    "calibration": "none",
}


class TestDiffOfRuns:
    def estimate(self, **options):
        asked = {"cluster": "dgx-h100", "nodes": 2, "global_batch": 32, "sequence": 4096}
        asked["calibration"] = "none"
        return trainwright.estimate("llama3-8b", **asked, **options)

    def test_of_two_estimates_shows_layout_and_price(self):
        one, two = self.estimate(tp=4), self.estimate(tp=2, recompute="full", optimizer="sgd")
        found = trainwright.diff(one, two).document
        asked = {change.key: (change.before, change.after) for change in found.request_changes}
        assert asked["tensor"] == (4, 2)
        assert asked["recompute"] == ("none", "full")
        assert asked.keys() == {"tensor", "data", "recompute", "optimizer"}
        assert not asked.keys() & {change.key for change in found.result_changes}
        assert found.time_ratio == two.document.step_time_s / one.document.step_time_s
        assert found.same_model
        assert trainwright.diff(one, one).explain() == "no difference\n"

    def test_of_two_estimates_shows_their_splits(self):
        one, two = self.estimate(pp=2), self.estimate(pp=2, blocks=[17, 15])
        found = trainwright.diff(one, two).document
        (asked,) = found.request_changes
        assert (asked.key, asked.before, asked.after) == ("blocks_per_stage", [16, 16], [17, 15])

    def test_of_a_plan_and_an_estimate_shows_options_of_either(self, tight):
        one = self.estimate(pp=2, dp=8, flash_attention=False, vocabulary_multiple=64)
        found = trainwright.diff(one, tight).document
        asked = {change.key: (change.before, change.after) for change in found.request_changes}
        assert asked["fused_attention"] == (False, True)
        assert asked["vocabulary_multiple"] == (64, 128)
        split = {change.key: change.before for change in found.result_changes}
        assert split["blocks_per_stage"] == [16, 16]

    def test_of_a_plan_and_an_estimate_compares_what_is_recomputed(self, tight):
        run = self.estimate(pp=2, dp=8, recompute="full:3")
        report = trainwright.diff(run, tight)
        (found,) = (c for c in report.document.result_changes if c.key == "recompute_per_stage")
        assert found.before == ["full 3, none 13"] * 2
        first, last = (Counter(stage.options.values()) for stage in tight.document.stages)
        blocks = first["none"] - 1  # beside the embedding
        assert found.after == [f"none {blocks}, selective {first['selective']}", "none"]
        assert last.keys() == {"none"}
        assert "recomputation of each stage" in report.explain()
        again = trainwright.diff(run, self.estimate(pp=2, dp=8)).document
        assert "recompute_per_stage" not in {c.key for c in again.result_changes}

    def test_prints_times_by_what_they_are(self):
        shown = trainwright.diff(self.estimate(tp=4, pp=2), self.estimate(tp=2, pp=4)).explain()
        assert "exposed transfers between stages" in shown
        assert "_s " not in shown

    def test_sources_of_figures_are_named_by_figure(self):
        one = self.estimate(tp=4)
        two = copy.deepcopy(one.document.request.cluster.content)
        ((name, source),) = two["pools"][0]["levels"][0]["sources"]
        source |= {"origin": "fitted", "source": "12 runs"}
        changed = replace(one.document.request.cluster, content=two)
        facts = cluster_facts(one.document.request.cluster, changed)
        (found,) = changes(*facts)
        assert found.key == f"cluster.pools[0].levels[0].sources.{name}"
        assert found.before.startswith("datasheet: NVLink")
        assert found.after == "fitted: 12 runs"

    def test_of_a_plan_and_an_estimate_compares_what_both_state(self, tight, tmp_path):
        one = self.estimate(tp=4)
        one.save(tmp_path / "estimate.json")
        tight.save(tmp_path / "plan.json")
        found = trainwright.diff(tmp_path / "estimate.json", tmp_path / "plan.json").document
        assert found.time_ratio == tight.step_time_s / one.document.step_time_s
        assert "step_time_s" in {change.key for change in found.result_changes}
        assert not {"recipe", "space"} & {change.key for change in found.request_changes}

    def test_refuses_what_has_nothing_in_common(self, path):
        with pytest.raises(InvalidInput, match="model-estimate and plan have nothing in common"):
            trainwright.diff(self.estimate(tp=4), trainwright.plan(path))
        sweep = trainwright.sweep("gpt2", **{**JOB, "devices": "4,8", "sequence": 1024})
        best = trainwright.diff(sweep, sweep.document.best_plan).document
        assert not best.result_changes


def test_two_plans_of_a_model_differ_in_their_layouts(tight):
    other = trainwright.plan("llama3-8b", memory="24GiB", tp="4..8", **JOB)
    found = trainwright.diff(tight, other).document
    asked = {change.key: (change.before, change.after) for change in found.request_changes}
    assert asked["tensor"] == (None, "4..8")
    assert "tensor" in {change.key for change in found.result_changes}
