"""Every document and input has a JSON Schema, made from its types, that tells the truth."""

from __future__ import annotations

import json
import tomllib
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path

import jsonschema
import pytest

import reported
import trainwright
from trainwright import cluster
from trainwright.commands.catalog import catalog
from trainwright.documents.registry import KINDS, SCHEMAS, part, schema_of
from trainwright.errors import InvalidInput
from trainwright.formats.document_json import encode

STATED = {"cluster": "dgx-h100", "global_batch": 32, "sequence": 1024}
ONE_WAY = {"tp": 1, "pp": 1, "cp": 1, "schedule": "1f1b", "recompute": "none"}
TOO_LITTLE = {**ONE_WAY, "memory": "1GiB"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_is_a_sound_schema(name):
    schema = schema_of(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    references = {word for word in json.dumps(schema).split('"') if word.startswith("#/$defs/")}
    assert references <= {f"#/$defs/{inner}" for inner in schema.get("$defs", {})}


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_records_of_a_document_share_a_definition(kind):
    found = {}
    waiting = [part(KINDS[kind].record)]
    while waiting:
        record = waiting.pop()
        name = record.__name__.removesuffix("Record")
        if found.setdefault(name, record) is not record:
            pytest.fail(f"{name} is {record} and {found[name]}")
        for hint in typing.get_type_hints(record).values():
            waiting += [each for each in inner_types(hint) if each not in found.values()]


def inner_types(hint):
    if is_dataclass(hint):
        return [hint]
    return [each for argument in typing.get_args(hint) for each in inner_types(argument)]


DOCUMENTS = (
    ("model-plan", reported.small_plan),
    ("model-plan", lambda: trainwright.plan("gpt2", **TOO_LITTLE, **STATED).document),
    ("model-estimate", lambda: trainwright.estimate("gpt2", dp=8, **STATED).document),
    ("schedule", lambda: trainwright.schedule(family="1f1b", ranks=4, microbatches=8).document),
    ("plan", lambda: trainwright.plan(reported.PROFILE).document),
    ("catalog", lambda: catalog("families").document),
    *(
        pytest.param(kind, make, marks=pytest.mark.slow)
        for kind, make in (
            ("model-sweep", reported.model_sweep),
            ("model-plan", reported.mixed_plan),
            ("placement", reported.placement),
            ("whatif", reported.what_if),
            ("improvement", reported.improvement),
            ("validation", reported.validation),
            ("verification", reported.verification),
            ("codesign", reported.codesign),
        )
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "make"), DOCUMENTS)
def test_a_document_follows_its_schema_and_none_other(kind, make):
    document = json.loads(json.dumps(encode(make())))
    schema = schema_of(kind)
    jsonschema.validate(document, schema)
    for wrong in (
        document | {"kind": "nothing"},
        document | {"format_version": 99},
        {key: value for key, value in document.items() if key != "kind"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_clusters_that_are_built_in_follow_the_schema_of_clusters():
    validator = jsonschema.Draft202012Validator(schema_of("cluster"))
    folder = Path(cluster.__file__).parent / "catalog"
    values = [tomllib.loads(file.read_text(encoding="utf-8")) for file in folder.rglob("*.toml")]
    clusters = [value for value in values if "level" in value]
    assert len(clusters) > 5
    for value in clusters:
        validator.validate(value)
    assert not validator.is_valid({"level": [{"name": "nvlink"}], "surprise": 1})


def test_another_name_is_refused_with_those_that_there_are():
    with pytest.raises(InvalidInput, match=r"name: must be one of profile, .*model-plan"):
        schema_of("plans")


def test_the_version_is_that_of_the_record():
    for kind in KINDS:
        (version,) = (
            each.default
            for each in fields(part(KINDS[kind].record))
            if each.name == "format_version"
        )
        assert schema_of(kind)["properties"]["format_version"]["maximum"] == version
