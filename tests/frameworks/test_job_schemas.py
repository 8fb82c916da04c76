"""JSON Schemas of files of frameworks, made by their readers: they refuse nothing that is read."""

from __future__ import annotations

import copy
import json

import jsonschema
import pytest

from job_files import SAME, cases
from reference import reference
from trainwright.errors import InvalidInput, TrainwrightError
from trainwright.frameworks.jobs import FORMATS, Beside, job_schema, read
from trainwright.frameworks.jobs.settings import parse_settings, parse_toml
from trainwright.frameworks.jobs.torchtitan import KIND, read_stages

# Scripts and programs, and files that are flattened before a key is asked for.
NONE = {
    *("megatron", "log", "megatron-bridge", "primus", "flame", "olmo-core"),
    *("openrlhf", "roll", "pipeline-rl", "skyrl", "colossalai"),
}
DESCRIBED = [name for name in FORMATS if name not in NONE]
OF_TOML = ("torchtitan", "prime-rl")
WRONG = ("x", -1, {}, [1], 1.5)


def keys_of(schema, path=()):
    for key, inside in schema.get("properties", {}).items():
        yield (*path, key)
        yield from keys_of(inside, (*path, key))


def with_key(path, value):
    for key in reversed(path):
        value = {key: value}
    return value


def as_toml(value):
    if isinstance(value, dict):
        inside = (f"{json.dumps(key)} = {as_toml(each)}" for key, each in value.items())
        return "{" + ", ".join(inside) + "}"
    return json.dumps(value)


def written(name, value):
    if name in OF_TOML:
        return "\n".join(f"{json.dumps(key)} = {as_toml(each)}" for key, each in value.items())
    return json.dumps(value)


def is_valid(name, value):
    return jsonschema.Draft202012Validator(job_schema(name)).is_valid(value)


def test_readers_of_mappings_have_a_schema_and_others_none():
    assert {name for name in FORMATS if job_schema(name) is None} == NONE


@pytest.mark.parametrize("name", DESCRIBED)
def test_what_the_schema_of_a_format_refuses_its_reader_refuses(name):
    schema = job_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({})
    refused = 0
    for path in keys_of(schema):
        for value in WRONG:
            file = with_key(path, value)
            if validator.is_valid(file):
                continue
            refused += 1
            with pytest.raises(TrainwrightError):
                read(name, written(name, file), Beside(name="job.yaml"))
    assert refused > 10


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["file"])
def test_real_files_that_are_read_follow_the_schema_of_their_format(case):
    name = SAME.get(case["format"], case["format"])
    path = reference() / "jobs" / case["file"]
    if name in NONE or path.suffix in (".py", ".sh"):
        return
    text = path.read_text()
    file = parse_toml(text) if name in OF_TOML else parse_settings(text)
    before = copy.deepcopy(file)
    try:
        read(name, text, Beside(folder=path.parent, name=path.name))
    except InvalidInput:
        return
    assert is_valid(name, file)
    assert file == before
    known = {key for key, *_ in keys_of(job_schema(name))}
    assert known & file.keys()


def test_a_file_of_stages_is_told_all_its_faults_at_once():
    file = {"kind": KIND, "stages": [], "expert": "x", "zero_stage": 7, "precision": 3}
    with pytest.raises(InvalidInput) as refused:
        read_stages(json.dumps(file))
    assert {each.path for each in refused.value.faults} == {
        *("stages", "expert", "zero_stage", "precision")
    }
    for other in ({}, {"kind": "plan"}):
        with pytest.raises(InvalidInput, match=f'kind: must be .*"?{KIND}'):
            read_stages(json.dumps(other))
