"""Wrong types and values in the files of frameworks: refused by name, and never another error."""

import copy
import json
import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.frameworks.jobs import Beside, read
from trainwright.frameworks.jobs.deepspeed import read_deepspeed
from trainwright.frameworks.jobs.megatron import read_megatron
from trainwright.frameworks.jobs.settings import parse_toml
from trainwright.frameworks.jobs.torchtitan import read_torchtitan
from trainwright.frameworks.torchtitan import to_toml

TITAN = {
    "model": {"name": "llama3", "flavor": "8B"},
    "training": {
        "seq_len": 4096,
        "global_batch_size": 64,
        "local_batch_size": 16,
        "mixed_precision_param": "bfloat16",
    },
    "parallelism": {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 4,
        "fsdp_reshard_after_forward": "default",
        "tensor_parallel_degree": 2,
        "context_parallel_degree": 1,
        "expert_parallel_degree": 1,
        "expert_tensor_parallel_degree": 1,
        "pipeline_parallel_degree": 2,
        "pipeline_parallel_schedule": "1F1B",
        "pipeline_parallel_schedule_csv": "",
        "pipeline_parallel_microbatch_size": 2,
        "module_fqns_per_model_part": [["layers.0"], ["layers.1"]],
        "enable_sequence_parallel": True,
    },
    "activation_checkpoint": {"mode": "full"},
}
SPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {
        "stage": 3,
        "mics_shard_size": 4,
        "zero_hpz_partition_size": 1,
        "offload_param": {"device": "cpu"},
    },
    "bf16": {"enabled": True},
    "fp16": {"enabled": False},
    "pipeline": {"activation_checkpoint_interval": 1},
}
WRONG = ("two", {}, [1], 1.5, True, 5, -7, 0)
# What is right among these, by field; a whole number >= 1 may be 5 everywhere else.
RIGHT = {
    "name": ("two",),
    "flavor": ("two",),
    "enable_sequence_parallel": (True,),
    "enabled": (True,),
    "pipeline_parallel_schedule_csv": ("two",),
    "offload_param": ({},),
    "stage": (0,),
    "zero_hpz_partition_size": (0, 5),
    "activation_checkpoint_interval": (0, 5),
    "expert_tensor_parallel_degree": (5,),
    "expert_parallel_degree": (5,),
    "context_parallel_degree": (5,),
    "tensor_parallel_degree": (5,),
    "seq_len": (5,),
}


def _paths(value, path=()):
    for key, inside in value.items():
        yield (*path, key)
        if isinstance(inside, dict):
            yield from _paths(inside, (*path, key))


def _with(document, path, value):
    changed = copy.deepcopy(document)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return changed


def _titan_text(document):
    """As TOML, also where a table is none."""
    plain = {name: value for name, value in document.items() if not isinstance(value, dict)}
    tables = {name: value for name, value in document.items() if isinstance(value, dict)}
    top = "".join(f"{name} = {_toml(value)}\n" for name, value in plain.items())
    return top + "".join(
        f"[{table}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())
        for table, values in tables.items()
    )


def _toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _wrong(document):
    for path in _paths(document):
        is_table = isinstance(document[path[0]], dict) and len(path) == 1
        for value in WRONG:
            fine = ({},) if is_table else RIGHT.get(path[-1], ())
            if not any(type(value) is type(each) and value == each for each in fine):
                yield path, value


def _is_count_that_fits(path, value):
    """5 in place of a batch or degree may fit or not by arithmetic; the other tests hold it."""
    return value == 5 and type(value) is int and path[-1] not in ("name", "mode")


@pytest.mark.parametrize(
    ("path", "value"), [case for case in _wrong(TITAN) if not _is_count_that_fits(*case)]
)
def test_torchtitan_refuses_a_wrong_value_by_name(path, value):
    text = _titan_text(_with(TITAN, path, value))
    assert tomllib.loads(text)
    with pytest.raises(InvalidInput) as caught:
        read_torchtitan(text)
    assert ".".join(path) in {fault.path for fault in caught.value.faults}
    assert all("must be" in fault.problem for fault in caught.value.faults)


@pytest.mark.parametrize(
    ("path", "value"), [case for case in _wrong(SPEED) if not _is_count_that_fits(*case)]
)
def test_deepspeed_refuses_a_wrong_value_by_name(path, value):
    with pytest.raises(InvalidInput) as caught:
        read_deepspeed(json.dumps(_with(SPEED, path, value)))
    assert ".".join(path) in {fault.path for fault in caught.value.faults}
    assert all("must be" in fault.problem for fault in caught.value.faults)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)


@cases(200)
@given(path=st.sampled_from(list(_paths(SPEED))), value=JSON)
def test_deepspeed_reads_or_refuses_anything(path, value):
    try:
        read_deepspeed(json.dumps(_with(SPEED, path, value)))
    except (InvalidInput, UnsupportedFeature) as error:
        assert str(error)


@cases(200)
@given(
    path=st.sampled_from(list(_paths(TITAN))),
    value=JSON.filter(lambda value: "null" not in json.dumps(value)) | st.dates() | st.times(),
)
def test_torchtitan_reads_or_refuses_anything(path, value):
    shown = _toml(value) if isinstance(value, (bool, int, float, str, list, dict)) else str(value)
    marked = _titan_text(_with(TITAN, path, "MARK"))
    text = re.sub('"MARK"', lambda _: shown, marked)
    try:
        read_torchtitan(text)
    except (InvalidInput, UnsupportedFeature) as error:
        assert str(error)


FLAGS = [
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "context-parallel-size",
    "vocab-size",
    "expert-model-parallel-size",
    "expert-tensor-parallel-size",
    "sequence-parallel",
    "num-layers",
    "hidden-size",
    "pipeline-model-parallel-layout",
    "num-virtual-stages-per-pipeline-rank",
    "micro-batch-size",
    "global-batch-size",
    "seq-length",
    "use-distributed-optimizer",
    "use-megatron-fsdp",
    "zero-stage",
    "deepspeed",
    "data-parallel-sharding-strategy",
    "recompute-granularity",
    "recompute-method",
    "recompute-num-layers",
    "recompute-modules",
    "recompute-activations",
    "checkpoint-activations",
    "bf16",
    "fp16",
    "fp8-format",
    "optimizer",
    "sgd-momentum",
    "make-vocab-size-divisible-by",
    "attention-backend",
    "exp-avg-dtype",
    "main-params-dtype",
    "use-precision-aware-optimizer",
    "moe-expert-capacity-factor",
    "decoder-first-pipeline-num-layers",
    "num-distributed-optimizer-instances",
    "ffn-hidden-size",
    "num-query-groups",
    "group-query-attention",
    "swiglu",
    "kv-channels",
    "normalization",
    "hidden-dropout",
    "num-experts",
    "moe-ffn-hidden-size",
    "moe-router-topk",
    "q-lora-rank",
    "multi-latent-attention",
    "moe-router-num-groups",
    "moe-router-group-topk",
    "kv-lora-rank",
    "mtp-num-layers",
    "moe-token-dispatcher-type",
    "moe-shared-expert-intermediate-size",
    "rampup-batch-size",
    "hybrid-layer-pattern",
    "tokenizer-type",
    "tokenizer-model",
    "rampup-batch-size",
    "deepspeed-config",
    "nnodes",
]
SCRIPT = """\
python run.py --num-layers 8 --hidden-size 64 --num-attention-heads 8 --vocab-size 100 \\
--num-experts 4 \\
--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 1 --bf16"""


@cases(200)
@given(
    flags=st.lists(
        st.sampled_from(FLAGS)
        | st.sampled_from(["moe-layer-freq", "num-layers-per-virtual-pipeline-stage"]),
        min_size=1,
        max_size=3,
    ),
    value=st.sampled_from(["", "0", "-1", "two", "1e400", "3", "[1]", "$X", "full", "1.5"])
    | st.text(max_size=5),
)
def test_megatron_reads_or_refuses_anything(flags, value):
    try:
        read_megatron(SCRIPT + "".join(f" --{flag} {value}" for flag in flags))
    except (InvalidInput, UnsupportedFeature) as error:
        assert str(error)


@pytest.mark.parametrize(
    "flag",
    [
        "tensor-model-parallel-size",
        "micro-batch-size",
        "num-layers-per-virtual-pipeline-stage",
        "num-virtual-stages-per-pipeline-rank",
        "moe-layer-freq",
    ],
)
def test_nothing_is_no_degree(flag):
    with pytest.raises(InvalidInput) as caught:
        read_megatron(f"{SCRIPT} --nproc-per-node 8 --{flag} 0")
    assert caught.value.faults[0].path == f"--{flag}"


def test_every_fault_of_a_file_is_named():
    text = _titan_text(
        _with(_with(TITAN, ("training", "seq_len"), "x"), ("activation_checkpoint", "mode"), 5)
    )
    with pytest.raises(InvalidInput) as caught:
        read_torchtitan(text + "[more]\n")
    assert {fault.path for fault in caught.value.faults} == {
        "training.seq_len",
        "activation_checkpoint.mode",
    }


def test_a_schedule_that_is_none_of_pytorchs_is_refused():
    text = _titan_text(_with(TITAN, ("parallelism", "pipeline_parallel_schedule"), "Foo"))
    with pytest.raises(InvalidInput, match=r"one of 1F1B, GPipe, .*Foo"):
        read_torchtitan(text)


def test_a_value_in_place_of_a_table_is_refused():
    with pytest.raises(InvalidInput, match="compile: must be a table, got 3"):
        read_torchtitan("compile = 3\n")


MODULE = """\
from torchtitan.models.llama3.config_registry import llama3_8b as base

def planned():
    config = base()
    {line}
    return config
"""


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("config.parallelism.tensor_parallel_degree = 'two'", "parallelism.tensor_parallel_degree"),
        ("config.parallelism.tensor_parallel_degree = TP", "parallelism.tensor_parallel_degree"),
        ("config.training.seq_len = {[]: 1}", "training.seq_len"),
        ("config.activation_checkpoint = other()", "activation_checkpoint.mode"),
        ("config.training.seq_len = (", "torchtitan"),
    ],
)
def test_wrong_values_of_a_module_are_refused(line, path):
    with pytest.raises(InvalidInput) as caught:
        read_torchtitan(MODULE.format(line=line))
    assert caught.value.faults[0].path == path


def test_what_a_module_computes_elsewhere_is_passed_over():
    found = read_torchtitan(MODULE.format(line="config.optimizer.lr = 2 * RATE"))
    assert found.model_name == "llama3-8b"


def _piped(local, **training):
    return read_torchtitan(
        to_toml(
            {
                "training": {"global_batch_size": 64, "local_batch_size": local, **training},
                "parallelism": {"pipeline_parallel_degree": 2, "data_parallel_shard_degree": 2},
            }
        )
    )


def test_accumulation_of_whole_pipelines_is_said():
    (note,) = _notes_of(_piped(8))
    assert note.startswith("the batch takes 4 accumulation steps of local_batch_size 8 x 2")
    assert note.endswith("local_batch_size = 32 makes one")
    assert not _notes_of(_piped(32))


def _notes_of(run):
    return [note for note in run.notes if "accumulation" in note]


def test_accumulation_on_an_unknown_number_of_replicas_is_said():
    text = to_toml(
        {
            "training": {"global_batch_size": 64, "local_batch_size": 8},
            "parallelism": {"pipeline_parallel_degree": 2},
        }
    )
    (note,) = _notes_of(read_torchtitan(text))
    assert note.startswith("on fewer than 8 replicas local_batch_size 8 is less")


@pytest.mark.parametrize("local", [0, "a", 5, 64])
def test_a_local_batch_that_does_not_fill_the_batch_is_refused(local):
    with pytest.raises(InvalidInput, match="local_batch_size"):
        _piped(local)


def test_microbatches_fill_a_local_batch():
    text = to_toml(
        {
            "training": {"local_batch_size": 5},
            "parallelism": {
                "pipeline_parallel_degree": 2,
                "pipeline_parallel_microbatch_size": 2,
            },
        }
    )
    with pytest.raises(InvalidInput, match="must be a multiple of pipeline_parallel_microbatch"):
        read_torchtitan(text)


def test_without_a_global_batch_it_is_that_of_all_replicas():
    found = _piped(8, global_batch_size=-1)
    assert (found.global_batch, found.batch_per_replica, found.dp) == (None, 8, 2)


def test_names_of_layers_in_a_list_are_no_parts_of_a_key():
    names = [f"layers.{number}" for number in range(30)]
    assert parse_toml(f"parts = [\n  {json.dumps(names)},\n]\n") == {"parts": [names]}


@pytest.mark.parametrize("part", [".a", ".'x.y'", '."b"'])
@pytest.mark.parametrize("first", ["a", '"a\\""'])
def test_a_key_of_many_parts_is_refused(first, part):
    assert parse_toml(f"{first}{20 * part} = 1")
    with pytest.raises(ValueError, match="more than 20 parts"):
        parse_toml(f"{first}{21 * part} = 1")


OF_PRESET = """modules:
  pre_trainer:
    framework: megatron
    model: llama3_8B.yaml
    overrides:
      multi_latent_attention: perhaps
"""


@pytest.mark.parametrize(
    ("name", "text", "file"),
    [
        ("neox", "fp32_allreduce: perhaps\n", "job.yml"),
        (
            "neuronx",
            "model_alignment_strategy: {dpo: {precompute_ref_log_probs: perhaps}}",
            "a.yml",
        ),
        ("neuronx", "model_alignment_strategy: {dpo: perhaps}\n", "job.yaml"),
        ("primus", OF_PRESET, "job.yaml"),
        ("megatron", "megatron sft --model Qwen/Qwen3-8B --freeze_llm perhaps\n", "job.sh"),
    ],
)
def test_no_reader_asks_for_a_key_after_its_check(name, text, file):
    with pytest.raises(InvalidInput, match=r"must be .*perhaps"):
        read(name, text, Beside(name=file))
