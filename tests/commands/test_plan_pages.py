"""The page on `plan` names every option of the space and every key of an explanation."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import trainwright
from trainwright.documents.explanation import ModelExplanation
from trainwright.options.space import SPANS
from trainwright.options.table import keywords_of
from trainwright.plans.plan import Parallelism

DOCS = Path(__file__).parents[2] / "docs"
EVERY_DOCUMENT = {"kind", "format_version", "warnings", "interrupted", "assumptions"}
KEYS_OF_THE_ISSUE = {
    *("step_time_s", "step_time_low_s", "step_time_high_s", "parallelism", "schedule"),
    *("micro_batch", "tokens_per_s", "mfu", "peak_memory_bytes_per_rank", "lower_bound_s"),
    *("gap", "considered", "pruned", "alternatives", "search_s"),
    *("status", "objective", "bound_kind", "time_per_sample_s", "devices_used", "num_stages"),
    *("stages", "request"),
}


def names(text: str) -> set[str]:
    return {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", code)}


def section(page: str, title: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.split(r"^#+ ", text.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_a_plan_has_the_keys_that_were_promised():
    job = {"cluster": "dgx-h100", "devices": 8, "global_batch": 8, "sequence": 256, "cp": 1}
    document = trainwright.plan("gpt2", **job, schedule="1f1b").to_dict()
    assert document.keys() >= KEYS_OF_THE_ISSUE
    assert isinstance(document["peak_memory_bytes_per_rank"], list)
    assert {field.name for field in fields(Parallelism)} - {"expert_tensor"} <= document[
        "parallelism"
    ].keys()


def test_every_option_of_the_space_is_on_the_page():
    text = section("plan.md", "Fix, bound, forbid")
    for option in (*SPANS.values(), "zero", "recompute", "schedule", "framework"):
        assert f"`--{option}`" in text
    assert {option.replace("-", "_") for option in SPANS.values()} <= set(keywords_of("plan"))


def test_every_key_of_an_explanation_is_on_the_page():
    keys = {field.name for field in fields(ModelExplanation)} - EVERY_DOCUMENT - {"search_s"}
    assert keys <= names(section("plan.md", "`explain` of a model's plan"))
