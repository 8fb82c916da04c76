"""Every document and input has a JSON Schema, made from its types, that tells the truth."""

from __future__ import annotations

import csv
import json
import tomllib
import typing
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import reported
import trainwright
from reference import needs_reference, reference
from trainwright import cluster
from trainwright.chips import space
from trainwright.chips.room import read_room
from trainwright.chips.technology import read_technology
from trainwright.commands.catalog import catalog
from trainwright.commands.codesign import write_estimates, write_graph
from trainwright.commands.main import COMMANDS, main, read_config
from trainwright.documents.profile_plan import read_stages
from trainwright.documents.registry import KINDS, SCHEMAS, WITHOUT_SCHEMA, part, schema_of
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.execution import Budget
from trainwright.formats.catalog import _read, model_entries
from trainwright.formats.document_json import FileJournal, encode
from trainwright.formats.galvatron_json import read_galvatron
from trainwright.formats.hf_config import load_adapter
from trainwright.formats.hf_config import read_config as read_model
from trainwright.formats.hf_families import FAMILIES
from trainwright.formats.hf_towers import WRAPPERS
from trainwright.formats.measured_csv import (
    read_layer_files,
    read_measured_table,
    read_predictions,
)
from trainwright.formats.phaze_json import read_phaze
from trainwright.formats.piper_json import read_piper
from trainwright.formats.schedule_json import parse_orders
from trainwright.frameworks.jobs import FORMATS
from trainwright.frameworks.training_logs import read_log
from trainwright.options.table import rows_of_command
from trainwright.options.tool_rows import ARGUMENTS
from trainwright.plans.capability import TARGETS

EXAMPLES = Path(__file__).parents[2] / "examples"
STATED = {"cluster": "dgx-h100", "global_batch": 32, "sequence": 1024}
ONE_WAY = {"tp": 1, "pp": 1, "cp": 1, "schedule": "1f1b", "recompute": "none"}
TOO_LITTLE = {**ONE_WAY, "memory": "1GiB"}


LARGE = ("config",)  # takes a second to check, and others use it


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in SCHEMAS],
)
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
    with pytest.raises(InvalidInput, match=r'must be a name of: .*, got "plans"; .* "plan"'):
        schema_of("plans")


def test_the_version_is_that_of_the_record():
    for kind in KINDS:
        (version,) = (
            each.default
            for each in fields(part(KINDS[kind].record))
            if each.name == "format_version"
        )
        assert schema_of(kind)["properties"]["format_version"]["maximum"] == version


# Files of TOML and tables: a schema refuses what the reader does, but for limits and relations
# ----------------------------------------------------------------------------------------------


def as_toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    return json.dumps(value)


def written(folder, value):
    path = folder / "file.toml"
    lines = (f"{json.dumps(key)} = {as_toml(each)}" for key, each in value.items())
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def other_shapes(value):
    """The value with one entry at a time of another type, empty, or under another name."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        for other in ("x", True, [], [[]], {}, {"x": {}}, ["x"], 7.5):
            made = value.copy()
            made[key] = other
            yield made
        if isinstance(inner, dict | list):
            for other in other_shapes(inner):
                made = value.copy()
                made[key] = other
                yield made
    if isinstance(value, dict):
        yield value | {"surprise": 1.0}


BUILT_IN = tomllib.loads((Path(space.__file__).parent / "technology.toml").read_text())
CHIPS = {name: table for name, table in BUILT_IN.items() if name != "chips"} | {
    "process": "7nm",
    "package": "air",
    "memory": "hbm3",
    "voltage": 0.75,
    "least_area_share": 0.3,
    "ranges": {"width": [32, 64]},
    "areas": {"um2_per_mac": 500.0, "glb_um2": list(space.GLB_UM2)},
    "packages": {"bath": 900.0},
    "processes": {"2nm": BUILT_IN["processes"]["5nm"], "5nm": {"area": 0.2}},
}
OPTIONS = {"cluster": "dgx-h100", "global_batch": 32, "json": True}
TABLES = {
    "room": (
        tomllib.loads((EXAMPLES / "room.toml").read_text()) | {"memory": "hbm3"},
        lambda value, folder: read_room(written(folder, value), devices=8),
    ),
    "technology": (CHIPS, lambda value, folder: read_all(written(folder, value))),
    "plan-config": (
        {**OPTIONS, "overlap": ["dp=0.5"], "memory": "40GiB", "pp": "1..4", "time-limit": 5},
        lambda value, folder: read_config("plan", written(folder, value)),
    ),
    "estimate-config": (
        {**OPTIONS, "tp": 2, "overlap": "dp=0.5"},
        lambda value, folder: read_config("estimate", written(folder, value)),
    ),
}


def read_all(path):
    return read_room(None, devices=8, made_of=read_technology(path))


@pytest.mark.parametrize("name", TABLES)
def test_a_schema_of_toml_refuses_the_shapes_that_its_reader_does(name, tmp_path):
    validator = jsonschema.Draft202012Validator(schema_of(name))
    example, read = TABLES[name]
    read(example, tmp_path)
    assert validator.is_valid(example)
    refused = 0
    for value in other_shapes(example):
        is_known, problem = True, ""
        try:
            read(value, tmp_path)
        except InvalidInput as error:
            is_known, problem = False, str(error)
        if not validator.is_valid(value):
            refused += 1
            assert not is_known, value
        elif not is_known:
            assert any(word in problem for word in RELATIONS), (problem, value)
    assert refused > 2 * len(example)


# Limits, and rules about other values, of which a schema of shapes says nothing.
RELATIONS = (
    *("must be one of", "must be finite and", "must be from 0.5 to 1.2 volts", "must rise"),
    *("must be above 0 and at most 1", "must give buffers of at most"),
)


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tabled(folder, row):
    path = folder / "table.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(row))
        table.writeheader()
        table.writerow(row)
    return path


RUN = rows_of(EXAMPLES / "measured" / "korthikanti.csv")[0] | {
    "zero_stage": "1",
    "sequence_parallel": "true",
    "options": '{"loss_chunk": 8}',
}
LAYER_TABLES = {
    "layer-times": rows_of(EXAMPLES / "layers" / "layer_times.csv")[0],
    "layer-sizes": rows_of(EXAMPLES / "layers" / "layer_memory.csv")[0],
}
ROWS = {
    "measured-runs": (RUN, read_measured_table),
    "predictions": ({"row_id": "a", "step_time_s": "1.5", "other": "x"}, read_predictions),
    **{name: (row, lambda path: read_layer_files([path])) for name, row in LAYER_TABLES.items()},
}
CELLS = ("", "x", "-1", "0", "8", "8.0", "1e3", "+2", " 4 ", "1_000", ".5", "nan", "inf", "1e999")


@pytest.mark.parametrize("name", ROWS)
def test_a_schema_of_a_row_refuses_the_cells_that_its_reader_does(name, tmp_path):
    validator = jsonschema.Draft202012Validator(schema_of(name))
    row, read = ROWS[name]
    assert validator.is_valid(row)
    read(tabled(tmp_path, row))
    refused = 0
    for column in row:
        without = {key: value for key, value in row.items() if key != column}
        for value in (without, *(row | {column: cell} for cell in (*CELLS, "{}", "[1]", "True"))):
            is_read = True
            try:
                read(tabled(tmp_path, value))
            except InvalidInput:
                is_read = False
            if not validator.is_valid(value):
                refused += 1
                assert not is_read, (column, value)
            elif not is_read:
                of_value = value[column] in (".5", "1e999", "8.0", "1e3", "+2", "8", " 4 ", "1_000")
                assert of_value, (column, value)  # no whole number, not finite, or not from 0 on
    assert refused > len(row)


def test_the_tables_that_come_with_the_program_follow_their_schemas():
    for name, folder, pattern in (
        ("measured-runs", EXAMPLES / "measured", "*.csv"),
        ("layer-times", EXAMPLES / "layers", "*times.csv"),
        ("layer-sizes", EXAMPLES / "layers", "*memory.csv"),
    ):
        validator = jsonschema.Draft202012Validator(schema_of(name))
        (path,) = folder.glob(pattern)
        assert all(validator.is_valid(row) for row in rows_of(path)), path


# Files of others: a schema refuses nothing that the reader takes
# --------------------------------------------------------------


def changed(value):
    """The value with one thing left out or replaced, each place and each way once."""
    yield from (None, "x", -1, True, [], {})
    items = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, inner in items:
        if isinstance(value, dict):
            yield {name: each for name, each in value.items() if name != key}
        for other in changed(inner) if isinstance(inner, dict | list) else (None, "x", -1, {}):
            made = value.copy()
            made[key] = other
            yield made


def galvatron(tmp_path, **tables):
    for name, table in (GALVATRON | tables).items():
        (tmp_path / f"{name}_profiling_bf16_toy.json").write_text(json.dumps(table))
    return read_galvatron(tmp_path)


OTHER = {"2048": {"model_states": {"1": 8.0}, "activation": {"1": 3.0}}}
LAYER = {"parameter_size": 4.0, "tp_activation_per_bsz_dict": {"1": 3.0, "checkpoint": 1.0}}
GALVATRON = {
    "computation": {"layertype_0_bsz1_seq2048": 2.0, "layertype_other_bsz1_seq2048": 1.0},
    "memory": {
        "model_config": {"n_layers": [2]},
        "layertype_0": {"2048": LAYER},
        "other_memory_pp_on_first": OTHER,
        "other_memory_pp_on_last": OTHER,
    },
}
STAGE = {"layers": [0, 1], "options": {"0": "plain", "1": "plain"}, "data_parallel": 2}
STAGES = {"format_version": 1, "stages": [STAGE]}
READERS = {
    "stages": lambda value, _: read_stages(value),
    "piper-profile": lambda value, _: read_piper(value, given=HEADER),
    "placement-problem": lambda value, _: read_phaze(value, given=HEADER),
    "galvatron-times": lambda value, folder: galvatron(folder, computation=value),
    "galvatron-memory": lambda value, folder: galvatron(folder, memory=value),
}
HEADER = {
    "memory_bytes": 1e9,
    "num_devices": 2,
    "bandwidth_bytes_per_s": 1e9,
    "num_microbatches": 4,
}


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("piper-profile", json.loads((EXAMPLES / "profile.json").read_text())),
        ("placement-problem", json.loads((EXAMPLES / "placement.json").read_text())),
        ("galvatron-times", GALVATRON["computation"]),
        ("galvatron-memory", GALVATRON["memory"]),
        ("stages", STAGES),
    ],
)
def test_a_schema_of_a_foreign_file_refuses_nothing_that_is_read(name, example, tmp_path):
    validator, refused = jsonschema.Draft202012Validator(schema_of(name)), 0
    for value in (example, *changed(example)):
        if not isinstance(value, dict) or validator.is_valid(value):
            continue
        refused += 1
        with pytest.raises((InvalidInput, UnsupportedFeature)):
            READERS[name](value, tmp_path)
    assert validator.is_valid(example)
    assert refused > len(example)


# Texts and arrays of others and of our own: every reader's own table is what the schema says
# ------------------------------------------------------------------------------------------


def is_accepted(name, value):
    return jsonschema.Draft202012Validator(schema_of(name)).is_valid(value)


def cells(text):
    return [line.split(",") for line in text.splitlines()]


ORDERS_READ = (
    "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
    "0F0, 0F1 ,,0I0,0I1,0W0,0W1\n1F0,1B0,,1F1,1B1,,\n",
    "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n",
    "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n",
    "0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n",
)
ORDERS_REFUSED = ("0F0zzz,0B0\n", "F0\n", "0F\n", "0X0\n", "(0F0,0B0)\n", "0 F0\n", "0F0;0B0\n")


@pytest.mark.parametrize("text", ORDERS_READ)
def test_what_is_read_of_pytorchs_orders_follows_their_schema(text):
    parse_orders(text.encode())
    assert is_accepted("pytorch-csv", cells(text))


@pytest.mark.parametrize("text", ORDERS_REFUSED)
def test_cells_that_are_no_action_are_refused_by_schema_and_reader(text):
    assert not is_accepted("pytorch-csv", cells(text))
    with pytest.raises(InvalidInput):
        parse_orders(text.encode())


LOGS = (
    "iteration 7 | elapsed time per iteration (ms): 1,234.5 | x",
    "elapsed time per iteration (s): 1.25",
    "step: 10  loss: 3.1  memory: 42.96GiB(45.2%)  tps: 5,762  mfu: 20%",
    "epoch=0/micro_step=5, SamplesPerSec=61.2, MemAllocated=1GB",
    "samples/sec: 61.2 |",
)


@pytest.mark.parametrize("text", LOGS)
def test_a_log_that_times_a_step_follows_the_schema_of_logs(text):
    assert read_log(text).num_steps == 1
    assert is_accepted("training-log", text)
    silent = text.replace("elapsed", "passed").replace("amples", "eries").replace("tps", "fps")
    assert not is_accepted("training-log", silent)
    with pytest.raises(InvalidInput):
        read_log(silent)


def test_a_journal_follows_its_schema_line_by_line(tmp_path):
    path = tmp_path / "journal"
    FileJournal(path, about="a").append("batch", {"any": [1]})
    lines = path.read_text().splitlines()
    assert all(is_accepted("journal", json.loads(line)) for line in lines)
    for wrong in ({"key": "batch"}, {"value": 1}, [], "x", {"kind": "plan", "about": "a"}):
        path.write_text("\n".join([lines[0], json.dumps(wrong), ""]))
        assert not is_accepted("journal", wrong)
        with pytest.raises(InvalidInput, match="must be a journal"):
            FileJournal(path, about="a")


def test_the_archive_between_two_stages_follows_its_schema(tmp_path):
    few = {f"ranges.{axis}": each for axis, each in (("width", [64]), ("depth", [64]))}
    write_graph(tmp_path, ["bert-base"], devices=2, budget=Budget(), figures=few)
    write_estimates(tmp_path, budget=Budget())
    with np.load(tmp_path / "estimates.npz") as archive:
        found = {name: archive[name].tolist() for name in archive.files}
    assert len(found) > 1
    assert is_accepted("codesign-estimates", found)
    without = {name: value for name, value in found.items() if name != "about"}
    assert not is_accepted("codesign-estimates", without)
    assert not is_accepted("codesign-estimates", found | {"0_0": [[1.0]]})
    assert not is_accepted("codesign-estimates", found | {"0_0_9": [[[1.0]]]})


# Every file that an option or argument takes or makes has a schema or a reason
# ------------------------------------------------------------------------------

DOCUMENT = "model-plan"  # stands for all kinds
MODEL = ("config", "adapter-config", "profile", "piper-profile", "placement-problem", DOCUMENT)
MODEL += ("metis-profile", "galvatron-times", "galvatron-memory")
JOB = ("axolotl", "megatron", "training-log", "failed-log", "memory-snapshot", "script", "python")
FILES = {
    "plan model": MODEL,
    "estimate model": (*MODEL, *JOB),
    "codesign models": ("config",),
    "profile model": ("config",),
    "model model": ("config", "adapter-config", "profile"),
    "fit model": ("config", "adapter-config"),
    "support model": ("config",),
    "support device": ("cluster",),
    "improve document": (DOCUMENT, *JOB),
    "validate folders": ("measured-runs",),
    "calibrate sources": ("measured-runs", DOCUMENT),
    **{
        f"{command} {name}": (DOCUMENT,)
        for command, name in (
            *(("explain", "document"), ("export", "document"), ("verify", "document")),
            *(("diff", "first"), ("diff", "second"), ("whatif", "document")),
            ("report", "documents"),
        )
    },
    "cluster": ("cluster", "nccl-tests", "codesign"),
    "chip": ("cluster", "codesign"),
    "calibration": ("calibration-file",),
    "config": ("plan-config", "estimate-config"),
    "from": JOB,
    "plan": ("plan", "stages"),
    "simulate": ("orders", "pytorch-csv", "schedule"),
    "spec": ("schedule-spec", "schedule"),
    "orders": ("orders", "pytorch-csv"),
    "room": ("room",),
    "technology": ("technology",),
    "journal": ("journal",),
    "recheck": ("codesign", "machine-room"),
    "artifacts": ("codesign-graph", "codesign-estimates"),
    "exported": ("pytorch", "pytorch-csv"),
    "profiles": ("layer-times", "layer-sizes"),
    "predictions": ("predictions",),
    "log": ("training-log",),
    "csv": ("designs", "layer-times", "layer-sizes"),
    "gantt": ("chrome-trace",),
    "patch": JOB,
    "output": (DOCUMENT, "calibration-file", "profile", "script", *TARGETS, "dry-run"),
}
PICTURES = ("figure", "plot")
NO_FILES = ("catalog topic", "capture words")


def answer(name):
    """A schema, or the reason why there is none."""
    try:
        return schema_of(name)["title"]
    except UnsupportedFeature as error:
        assert error.alternative
        return str(error)


def test_every_file_that_is_read_or_written_has_a_schema_or_a_reason():
    arguments = {f"{name} {each.name}" for name, listed in ARGUMENTS.items() for each in listed}
    flags = {
        row.flag
        for name in COMMANDS
        for row in rows_of_command(name)
        if {"FILE", "PATH", "DIR", "FOLDER", "DOCUMENT"}
        & {*(row.metavar or row.reader.metavar).split()}
    }
    assert arguments | flags == FILES.keys() - {"cluster", "chip"} | {*PICTURES, *NO_FILES}
    assert all(answer(name) for names in FILES.values() for name in names)
    assert all(answer(name) for name in FORMATS)


def test_the_list_of_schemas_names_the_reasons_too(capsys):
    listed = {item.name: item for item in catalog("schemas").document.topics["schemas"]}
    assert list(listed) == [*SCHEMAS, *WITHOUT_SCHEMA, *FORMATS]
    for name in WITHOUT_SCHEMA:
        with pytest.raises(UnsupportedFeature, match=f"^{name} has no JSON Schema: "):
            schema_of(name)
        assert listed[name].source in answer(name)
    with pytest.raises(SystemExit, match="2"):
        main(["catalog", "--schema", "script", "--json"])
    said = capsys.readouterr()
    assert "docs/jobs.md#read-an-existing-job" in said.err
    assert json.loads(said.out)["fixes"] == [listed["script"].source]


# Models: what their reader asks of a file, family by family
# ----------------------------------------------------------


@cache
def config_validator():
    return jsonschema.Draft202012Validator(schema_of("config"))


def is_read(document):
    """Whether a file is read as a model; one that breaks a rule is not, whatever else may be."""
    try:
        read_model(document, name="m")
    except UnsupportedFeature:
        return None
    except InvalidInput:
        return False
    return True


def silent_file(family):
    """A file that says of a model no more than its type."""
    if family not in WRAPPERS:
        return {"model_type": family}
    if WRAPPERS[family].flat:
        return {"model_type": family, WRAPPERS[family].section: {}}
    return {"model_type": family, "text_config": {}, WRAPPERS[family].section: {}}


def test_a_schema_of_models_refuses_none_that_is_built_in():
    validator = config_validator()
    for entry in model_entries():
        config = dict(_read("trainwright.model", entry.name)["config"])
        assert is_read(config)
        validator.validate(config)


@needs_reference
def test_a_schema_of_models_refuses_no_public_file_that_is_read():
    validator, count = config_validator(), 0
    for path in sorted((reference() / "models" / "configs").glob("*.json")):
        content = json.loads(path.read_text())
        if is_read(content):
            validator.validate(content)
            count += 1
    assert count > 100


_FEW = ("hunyuan_v1_moe", "lfm2", "qwen2_vl")
WRONG = ("x", 1.5, True, [[1]], {"a": 1}, -1, 0, 1e308)


@pytest.mark.parametrize(
    "family",
    [
        name if name in _FEW else pytest.param(name, marks=pytest.mark.slow)
        for name in (*FAMILIES, *WRAPPERS)
    ],
)
def test_what_a_schema_of_models_refuses_its_reader_refuses_under_the_same_key(family):
    """Sections too; and whatever stands under a key, a file is read or refused, never a crash."""
    definitions = config_validator().schema["$defs"]
    told = {"$ref": f"#/$defs/{family}", "$defs": definitions}
    validator, document, refused = jsonschema.Draft202012Validator(told), silent_file(family), 0
    assert is_read(document) or family == "nemotron-nas"
    rule = definitions[family]
    own = rule["properties"] | rule.get("then", rule)["properties"]
    if "$ref" in rule.get("then", rule):
        own |= definitions["usual"]["properties"]
    section = WRAPPERS[family].section if family in WRAPPERS else None
    inner = [(section, key) for key in own.get(section, {}).get("properties", {})]
    for where, key in [(None, key) for key in own if key not in ("text_config", section)] + inner:
        for value in WRONG:
            part = {**document.get(where, {}), key: value} if where else value
            changed = {**document, (where or key): part}
            read = is_read(changed)
            if not validator.is_valid(changed):
                refused += 1
                assert read is not True, (where, key, value)
    assert refused > 20


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", "32"),
        ("num_hidden_layers", 20_000),
        ("hidden_size", 4096.5),
        ("vocab_size", True),
        ("attention_dropout", 1),
        ("attention_bias", "no"),
        ("hidden_act", "silly"),
        ("model_type", 5),
    ],
)
def test_a_schema_of_models_refuses_what_its_reader_refuses(key, value):
    validator = config_validator()
    assert validator.is_valid({"model_type": "llama"})
    assert not is_read({"model_type": "llama", key: value})
    assert not validator.is_valid({"model_type": "llama", key: value})
    inside = {"model_type": "llava", "text_config": {"model_type": "llama"}, "vision_config": {}}
    assert validator.is_valid(inside)
    inside["text_config"] |= {key: value}
    assert not is_read(inside)
    assert not validator.is_valid(inside)


def test_a_schema_of_models_leaves_types_and_keys_that_no_rule_reads_alone():
    validator = config_validator()
    assert validator.is_valid({"model_type": "of_tomorrow", "hidden_size": "wide"})
    assert validator.is_valid({"model_type": "llama", "of_tomorrow": ["wide"], "hidden_size": None})
    assert validator.is_valid({"architectures": ["LlamaForCausalLM"]})
    assert not validator.is_valid({"hidden_size": 64})


ADAPTERS = {"base_model_name_or_path": "a/b", "r": 8, "target_modules": ["q_proj"]}


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ({}, True),
        ({"target_modules": "all-linear", "use_dora": False, "lora_alpha": 16}, True),
        ({"target_modules": None, "target_parameters": ["mlp.experts.down_proj"]}, True),
        ({"r": 0}, False),
        ({"r": "8"}, False),
        ({"lora_dropout": 1}, False),
        ({"target_modules": None}, False),
        ({"target_modules": []}, False),
        ({"target_modules": ["mine"]}, False),
        ({"target_parameters": ["mlp.router.weight"]}, False),
        ({"peft_type": "IA3"}, False),
        ({"use_dora": True}, False),
        ({"base_model_name_or_path": ""}, False),
    ],
)
def test_a_schema_of_adapters_is_what_their_reader_takes(change, read, tmp_path):
    content = {key: value for key, value in (ADAPTERS | change).items() if value is not None}
    (tmp_path / "adapter_config.json").write_text(json.dumps(content))
    assert jsonschema.Draft202012Validator(schema_of("adapter-config")).is_valid(content) == read
    if read:
        load_adapter(tmp_path)
        return
    with pytest.raises((InvalidInput, UnsupportedFeature)):
        load_adapter(tmp_path)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_catalog_says_of_every_schema_what_it_is_of(name):
    if name not in LARGE:
        about = schema_of(name)["description"]
        assert " " in about
        assert not about.startswith("_")
