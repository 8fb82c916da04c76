"""Frameworks that compute the loss where the head is: no stage of their plans has one alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

import trainwright
from family_cases import case, every_cut, step_of
from trainwright.model import LayerKind
from trainwright.planning.bounds.stages import StageKinds
from trainwright.planning.question.layouts import together
from trainwright.planning.question.question import Allowed
from trainwright.planning.splits.types import best_family_split, bound_every_split

HEAD = {LayerKind.FINAL_NORM, LayerKind.LM_HEAD, LayerKind.LOSS}
ASKED = {
    "cluster": "dgx-h100",
    "devices": 8,
    "global_batch": 8,
    "sequence": 2048,
    "tp": 1,
    "dp": 1,
    "cp": 1,
    "virtual_stages": 1,
    "top": 0,
}


def test_what_is_in_one_stage_is_the_frameworks():
    assert together(Allowed()) == frozenset()
    assert together(Allowed(framework="megatron")) == HEAD
    assert together(Allowed(framework="torchtitan")) == HEAD - {LayerKind.FINAL_NORM}
    assert together(Allowed(framework="pytorch")) == frozenset()


@pytest.mark.parametrize("pipeline", [4, 8])
def test_a_plan_for_megatron_has_a_layout_that_megatron_launches(pipeline, tmp_path):
    """A head of 256,000 words takes as long as many blocks: parts of it once stood alone."""
    plan = trainwright.plan("gemma-2b", software="megatron", pp=pipeline, **ASKED)
    assert "megatron" in plan.document.launched_by()
    written = trainwright.export(plan, to="megatron", output=tmp_path / "files")
    assert written


def test_the_best_split_is_that_of_all_that_keep_norm_head_and_loss_in_one_stage():
    asked = case(blocks=5, pipeline=3, num_microbatches=4, model="gemma-2b", memory_gib=400)
    kinds = StageKinds.of(asked.profile, together=HEAD)
    names = [layer.name for layer in asked.profile.structure.layers]
    rows = [asked.profile.costs.rows_of(x.layer_class)[0] for x in asked.profile.structure.layers]
    steps_s = {
        cuts: step_of(asked, "1f1b", cuts, rows)[0].step_time_s
        for cuts in every_cut(len(names), 3)
        if not any({names[a - 1], names[a]} <= HEAD for a in cuts[1:-1])
    }
    split = best_family_split(replace(asked, kinds=kinds).question("1f1b"))
    assert split.bound_s <= min(steps_s.values()) * (1 + 1e-9)
    assert steps_s[split.cuts] <= 1.01 * min(steps_s.values())
    free_s = bound_every_split(asked.question("1f1b")).bound_s
    assert free_s < split.bound_s
    assert all(b > a for a, b in pairwise(split.cuts))
