"""Every kind of document is read back as it was written."""

from __future__ import annotations

import json

import pytest

import trainwright
from small_placements import chain_file
from small_profiles import transformer, write_json
from trainwright.commands.catalog import CatalogResult, catalog
from trainwright.documents.difference import Difference
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.open import load_document
from trainwright.documents.placement import PlacementResult
from trainwright.documents.profile_plan import (
    EstimateResult,
    Explanation,
    PlanResult,
    explain_stages,
)
from trainwright.documents.registry import READABLE
from trainwright.formats.document_json import decode, encode

MODEL = {"cluster": "dgx-h100", "global_batch": 32, "sequence": 1024}


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """One of each kind and outcome."""
    tmp_path = tmp_path_factory.mktemp("documents")
    path = write_json(tmp_path / "small.json", transformer())
    planned = trainwright.plan(path, compare=True)
    planned.save(tmp_path / "plan.json")
    tight = {"plan": tmp_path / "plan.json", "memory": "5GiB"}
    return {
        "plan": planned.document,
        "infeasible": trainwright.plan(path, memory="2.5GB", recompute=False).document,
        "unknown": trainwright.plan(path, memory="2.1GB", planner="equal").document,
        "model-plan": trainwright.plan("gpt2", **MODEL).document,
        "model-plan per stage": trainwright.plan("gpt2", per_stage_degrees=True, **MODEL).document,
        "model-plan infeasible": trainwright.plan("gpt3-175b", **MODEL).document,
        "estimate": trainwright.estimate(path, plan=tmp_path / "plan.json").document,
        "estimate over": trainwright.estimate(path, **tight).document,
        "placement": trainwright.plan(chain_file(tmp_path)).document,
        "placement infeasible": trainwright.plan(chain_file(tmp_path), memory=1.0).document,
        "diff": trainwright.diff(planned, trainwright.plan(path, devices=4)).document,
        "catalog": catalog().document,
        "explanation": explain_stages(planned.stages, 16e9),
    }


@pytest.mark.slow
def test_decoding_what_was_encoded_gives_the_same_document(documents):
    seen = set()
    for name, document in documents.items():
        text = json.dumps(encode(document), allow_nan=False)
        assert decode(type(document), json.loads(text)) == document, name
        seen.add(type(document))
    assert seen == {
        *(PlanResult, ModelPlanResult, EstimateResult, PlacementResult),
        *(Difference, CatalogResult, Explanation),
    }


@pytest.mark.slow
def test_saved_documents_are_loaded_again(documents, tmp_path):
    for document in documents.values():
        if document.kind in READABLE:
            trainwright.Report(document).save(tmp_path / "it.json")
            assert load_document(tmp_path / "it.json") == document
            assert trainwright.explain(tmp_path / "it.json").explain()


@pytest.mark.slow
def test_keys_without_a_value_are_left_out_and_kind_comes_first(documents):
    for document in documents.values():
        written = encode(document)
        assert list(written)[:2] == ["kind", "format_version"]
        assert None not in written.values()
    assert "step_time_s" not in encode(documents["model-plan infeasible"])
