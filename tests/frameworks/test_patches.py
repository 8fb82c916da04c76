"""Copies of job files with a change in them: they state the run that was wanted, and nothing else
in them differs."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from job_files import SAME, cases
from reference import needs_reference, reference
from trainwright.commands.improve import _file_of, _of_file, _run_of
from trainwright.commands.main import main
from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs.dialects import DIALECTS, changed_words
from trainwright.frameworks.jobs.edit import edited_table, patched
from trainwright.frameworks.read_job import open_stated
from trainwright.model import LowRank
from trainwright.options.clusters import with_host
from trainwright.planning.reasons.improve import is_another_training, moves, trainings
from trainwright.plans.configuration import broken_rules
from trainwright.profile import Recompute

SCRIPT = """\
#!/bin/bash
# A comment with --micro-batch-size 9 that stays.
: "${MBS:=1}"
TP=4   # of a node
SP=${2:-on}
MODEL="--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --vocab-size 32000"
ARGS=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size ${PP:-2}
    --micro-batch-size ${MBS}
    --global-batch-size 64 --seq-length 4096
    --bf16 --unknown-flag 7
    --recompute-granularity full \\
    --recompute-method uniform
    --recompute-num-layers 1
)
if [ "$SP" = on ]; then
    ARGS+=(--sequence-parallel)
fi
torchrun --nproc_per_node 8 pretrain_gpt.py $MODEL "${ARGS[@]}" --save ckpt-tp$TP
"""


def opened(path: Path, name: str | None = None, **given: Any) -> tuple[Any, Any, Any, Any]:
    """The file, its model, its cluster and its run."""
    read = {key: given[key] for key in ("arguments", "variables", "vocabulary", "function")}
    nodes = given["nodes"]

    def of_text(text: str | None = None) -> Any:
        job = open_stated(name, path, **read, names_model=False, nodes=nodes, text=text)
        beside = {"sequence": given["sequence"], "global_batch": given["batch"]}
        return _of_file(job, given["model"], "dgx-h100", nodes, beside)[0]

    asked = of_text()
    file = _file_of((name, path), read, lambda text: _run_of(of_text(text)))
    return file, asked.model, asked.cluster, asked.configuration


NOTHING = {
    "arguments": (), "variables": {}, "vocabulary": None, "function": None, "nodes": None,
    "sequence": None, "batch": None, "model": None,
}  # fmt: skip


def lines_changed(before: str, after: str) -> list[str]:
    return [
        line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"
    ]


def test_a_script_is_changed_where_its_values_stand(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    file, model, _, run = opened(path, **NOTHING)
    degrees = replace(run.parallelism, tensor=2, data=2, pipeline=2)
    wanted = replace(run, parallelism=degrees, microbatch_size=2, recompute=Recompute.NONE)
    copy = patched(file, wanted, model)
    assert lines_changed(SCRIPT, copy) == [
        '- : "${MBS:=1}"',
        '+ : "${MBS:=2}"',
        "- TP=4   # of a node",
        "+ TP=2   # of a node",
        "-     --recompute-granularity full \\",
        "-     --recompute-method uniform",
        "-     --recompute-num-layers 1",
    ]


def test_a_flag_that_is_missing_goes_beside_the_others(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    file, model, _, run = opened(path, **NOTHING)
    wanted = replace(run, fused_cross_entropy=True)
    assert lines_changed(SCRIPT, patched(file, wanted, model)) == [
        "+     --cross-entropy-loss-fusion",
    ]


def test_arguments_of_the_hugging_face_trainer_are_changed_in_a_script(tmp_path: Path) -> None:
    path = tmp_path / "finetune.sh"
    path.write_text(
        "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B \\\n"
        "  --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --bf16 True \\\n"
        "  --gradient_checkpointing True --max_seq_length 2048 --deepspeed zero3.json\n"
    )
    file, model, _, run = opened(path, **NOTHING)
    text = patched(file, replace(run, recompute=Recompute.NONE, microbatch_size=4), model)
    assert "--per_device_train_batch_size 4 --gradient_accumulation_steps 4 --bf16" in text
    assert "--gradient_checkpointing false --max_seq_length" in text


def test_a_torchtitan_file_gathers_over_context_ranks_that_it_gains(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n\n'
        "[training]\nlocal_batch_size = 1\nseq_len = 8192\n\n"
        "[parallelism]\ndata_parallel_shard_degree = -1\n"
    )
    file, model, _, run = opened(path, **{**NOTHING, "nodes": 1})
    assert run.recipe.context_exchange == "all_gather"  # torchtitan's own, not the ring
    degrees = replace(run.parallelism, context=2, data=4)
    changed = lines_changed(file.text, patched(file, replace(run, parallelism=degrees), model))
    assert changed == [
        "+ global_batch_size = 8",
        "- data_parallel_shard_degree = -1",
        "+ data_parallel_shard_degree = 4",
        "+ context_parallel_degree = 2",
    ]


def test_what_a_file_has_no_word_for_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nbf16: true  # half\n")
    file, model, _, run = opened(path, **{**NOTHING, "nodes": 1})
    sharded = replace(run, parallelism=replace(run.parallelism, zero_stage=3))
    with pytest.raises(InvalidInput, match="no settings for this change"):
        patched(file, sharded, model)
    copy = patched(file, replace(run, recompute=Recompute.NONE), model)
    assert lines_changed(file.text, copy) == ["+ disable_gradient_checkpointing: true"]


@pytest.mark.parametrize(
    ("name", "text", "words", "wanted"),
    [
        ("a.yaml", "a:\n  b: 1 # one\n\n# end\nc: 2\n", {"a.b": 3},
         "a:\n  b: 3 # one\n\n# end\nc: 2\n"),
        ("a.yaml", "a:\n  b: 1\nc: 2", {"a.d": True}, "a:\n  b: 1\n  d: true\nc: 2"),
        ("a.yaml", "a:\n  b: 1\n", {"f.g": "full"}, "a:\n  b: 1\nf:\n  g: full\n"),
        ("a.yaml", "a: {b: 1}\nc: ''\n", {"a.e": 2, "c": "no"}, 'a: {b: 1, e: 2}\nc: "no"\n'),
        ("a.yaml", "x-y: 1\nz: 2\n", {"x_y": None}, "z: 2\n"),
        ("a.yaml", "x-y: 1\nz-a: 2\n", {"b_c": 3}, "x-y: 1\nz-a: 2\nb-c: 3\n"),
        ("a.json", '{\n  "a": {"b": 1},\n  "c": 2\n}', {"a.b": 4, "d": 1.5},
         '{\n  "a": {"b": 4},\n  "c": 2,\n  "d": 1.5\n}'),
        ("a.json", '{"a": 1, "b": 2}', {"a": None}, '{"b": 2}'),
        ("a.json", '{"a": 1, "b": 2}', {"b": None, "c.d": 3}, '{"a": 1, "c": {"d": 3}}'),
        ("a.toml", "[a]\nb = 1 # x\n\n[c]\nd = 'e' # y\n", {"a.b": 2, "c.d": "f"},
         '[a]\nb = 2 # x\n\n[c]\nd = "f" # y\n'),
        ("a.toml", "[a]\nb = [1, 2]\n\n[c]\nd = 1\n", {"a.e": True, "f.g": 1},
         "[a]\nb = [1, 2]\ne = true\n\n[c]\nd = 1\n\n[f]\ng = 1\n"),
        ("a.toml", "[a]\nb = 1\nc = 2", {"a.b": None}, "[a]\nc = 2"),
    ],
)  # fmt: skip
def test_a_table_keeps_all_but_the_settings(
    name: str, text: str, words: dict[str, Any], wanted: str
) -> None:
    assert edited_table(text, name, words) == wanted


def test_a_value_of_several_lines_is_not_cut() -> None:
    with pytest.raises(InvalidInput, match="several lines"):
        edited_table("[a]\nb = [\n  1,\n]\n", "a.toml", {"a.b": 2})
    with pytest.raises(InvalidInput, match="a block"):
        edited_table("a:\n- 1\n- 2\n", "a.yaml", {"a": 2})


# A file of each dialect that has words for what makes room, as short as its reader takes it; what
# of the moves it can say.
_ROOMY: dict[str, tuple[str, str, set[str]]] = {
    "megatron": (
        "train.sh",
        SCRIPT.replace(
            "--bf16", "--bf16 --use-distributed-optimizer --context-parallel-size 2"
        ).replace("TP=4", "TP=2"),
        {"host optimizer", "exchange all_to_all", "gradients bf16", "moments bf16"},
    ),
    "torchtitan": (
        "train.toml",
        '[model]\nname = "llama3"\nflavor = "8B"\n\n'
        "[training]\nlocal_batch_size = 1\nseq_len = 8192\n\n"
        "[parallelism]\ndata_parallel_shard_degree = -1\n",
        {"reduction bf16"},
    ),
    "deepspeed": (
        "ds.json",
        '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, '
        '"fp16": {"enabled": true}, "zero_optimization": {"stage": 2}, '
        '"data_types": {"grad_accum_dtype": "fp32"}}',
        {"host optimizer gradients", "gradients bf16"},
    ),
    "trl": (
        "sft.yaml",
        "model_name_or_path: Qwen/Qwen3-8B\nmax_length: 4096\nper_device_train_batch_size: 2\n"
        "gradient_checkpointing: true\nbf16: true\nloss_type: nll\n",
        {"loss 256 tokens at a time", "host activations", "moments int8", "optimizer adafactor"}
        | {"adapters LoRA", "adapters QLoRA"},
    ),
    "trl-script": (
        "sft.sh",
        "torchrun --nproc_per_node 8 sft.py --model_name_or_path Qwen/Qwen3-8B \\\n"
        "  --per_device_train_batch_size 2 --gradient_checkpointing True --bf16 True\n",
        {"loss 256 tokens at a time", "moments int8", "optimizer adafactor"}
        | {"adapters LoRA", "adapters QLoRA"},
    ),
    "trainer-script": (  # whose own program takes the arguments of transformers alone
        "run.sh",
        "torchrun --nproc_per_node 8 train.py --model_name_or_path Qwen/Qwen3-8B \\\n"
        "  --per_device_train_batch_size 2 --gradient_checkpointing True --bf16 True\n",
        {"moments int8", "optimizer adafactor"},
    ),
    "axolotl": (
        "axolotl.yaml",
        "base_model: Qwen/Qwen3-8B\nsequence_len: 4096\nmicro_batch_size: 2\n"
        "gradient_checkpointing: true\nbf16: true\noptimizer: adamw_torch\ndatasets: x\n",
        {"host activations", "moments int8", "optimizer adafactor", "update fused"}
        | {"adapters LoRA", "adapters QLoRA"},
    ),
    "llamafactory": (
        "llamafactory.yaml",
        "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: full\nbf16: true\n",
        {"moments int8", "optimizer adafactor", "adapters LoRA", "adapters QLoRA"},
    ),
    "torchtune": (
        "8B_full.yaml",
        "model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\nbatch_size: 2\n"
        "tokenizer:\n  max_seq_len: 4096\noptimizer:\n  _component_: torch.optim.AdamW\n"
        "enable_activation_checkpointing: true\ndtype: bf16\n",
        {"host activations", "host optimizer gradients weights", "moments int8"}
        | {"host activations optimizer gradients weights"},
    ),
    "llm-foundry": (
        "mpt.yaml",
        "model:\n  name: mpt_causal_lm\n  d_model: 2048\n  n_heads: 16\n  n_layers: 24\n"
        "  expansion_ratio: 4\n  max_seq_len: 2048\n  vocab_size: 50368\nmax_seq_len: 2048\n"
        "global_train_batch_size: 64\ndevice_train_microbatch_size: 2\nprecision: amp_bf16\n"
        "fsdp_config:\n  sharding_strategy: FULL_SHARD\n  activation_checkpointing: true\n"
        "train_loader:\n  name: text\n",
        {"host activations"},
    ),
    "maxtext": (
        "maxtext.yml",
        'base_config: "base.yml"\nmodel_name: "llama2-7b"\nper_device_batch_size: 2\n'
        'max_target_length: 4096\nremat_policy: "full"\n',
        {"host optimizer"},
    ),
}


@pytest.mark.parametrize("dialect", _ROOMY)
def test_what_makes_room_is_written_and_read_back(dialect: str, tmp_path: Path) -> None:
    name, text, sayable = _ROOMY[dialect]
    path = tmp_path / name
    path.write_text(text)
    beside = {"nodes": 1, "batch": 64}
    beside |= {"model": "gpt2", "sequence": 1024} if dialect == "deepspeed" else {}
    file, model, cluster, run = opened(path, **{**NOTHING, **beside})
    assert file.dialect == dialect
    rooms = {"loss", "feed-forward", "host", "exchange", "graphs", "update"}
    said = set()
    for move in (*moves(run, model, with_host(cluster).pool_of()), *trainings(run, model)):
        if move.dimension not in rooms and not is_another_training((move.dimension,)):
            continue
        words = changed_words(dialect, run, move.run, model, move.model)
        if words:
            said.add(f"{move.dimension} {move.choice}")
            copy = patched(file, move.run, model, move.model)
            added = [line for line in lines_changed(text, copy) if line[0] == "+"]
            assert 0 < len(added) <= len(words) + 2
    assert said == sayable
    assert DIALECTS[dialect].savings or DIALECTS[dialect].adapters


def test_a_format_without_words_for_narrow_weights_says_adapters_alone() -> None:
    low_rank = LowRank(rank=16, targets=("query", "value"))
    narrow = replace(low_rank, bits=4)
    for dialect in (each for each in DIALECTS.values() if each.adapters is not None):
        assert dialect.adapters(low_rank) != dialect.adapters(narrow)
    assert DIALECTS["automodel"].adapters(narrow) is None


def patches(case: dict[str, Any], each: int) -> tuple[int, list[str]]:
    """How many changes of a real file read back, and those that its text could not take."""
    beside = case["with"]
    nodes = beside.get("nodes") or (max(1, beside["devices"] // 8) if "devices" in beside else None)
    given = {
        "arguments": tuple(beside.get("args", ())), "variables": beside.get("env", {}),
        "vocabulary": beside.get("vocab"), "function": beside.get("function"), "nodes": nodes,
        "sequence": beside.get("seq"), "batch": beside.get("global_batch"),
        "model": beside.get("model"),
    }  # fmt: skip
    name = SAME.get(case["format"], case["format"])
    file, model, cluster, run = opened(reference() / "jobs" / case["file"], name, **given)
    if file.dialect is None or not file.can_edit:
        return 0, []
    seen: dict[str, int] = {}
    refused, good = [], 0
    for move in moves(run, model, cluster.pool_of()):
        if seen.get(move.dimension, 0) == each or broken_rules(move.run, model, cluster.pool_of()):
            continue
        words = changed_words(file.dialect, run, move.run, model)
        if not words:
            continue
        seen[move.dimension] = seen.get(move.dimension, 0) + 1
        try:
            copy = patched(file, move.run, model)
        except InvalidInput:
            refused.append(f"{move.dimension} {move.choice}")
            continue
        good += 1
        changed = [line for line in lines_changed(file.text, copy) if line[0] == "-"]
        assert len(changed) <= len(words) + 3, changed
    return good, refused


@needs_reference
@pytest.mark.parametrize(
    ("step", "least"),  # one file of so many, and how many can be changed
    [pytest.param(6, 13, marks=pytest.mark.slow), pytest.param(1, 90, marks=pytest.mark.papers)],
)
def test_changes_of_real_files_read_back_as_the_run_that_is_wanted(step: int, least: int) -> None:
    good, refused, files = 0, 0, 0
    for case in cases()[::step]:
        try:
            found, left = patches(case, each=1)
        except InvalidInput:  # a model that only its own files describe
            continue
        good, refused, files = good + found, refused + len(left), files + (found > 0)
    assert files >= least
    assert good >= 19 * refused  # what is refused is said, never written


# Each of another format or framework; what is given beside it.
TEN: dict[str, tuple[str, ...]] = {
    "axolotl__examples__archived__tiny-llama__qlora.yml": (),
    "LLaMA-Factory__examples__train_full__qwen3_full_sft.yaml": (),
    "alignment-handbook__recipes__zephyr-7b-beta__sft__config_qlora.yaml": (),
    "torchtune__recipes__configs__llama3_1__8B_full.yaml": (),
    "gpt-neox__configs__bf16_125M.yml": (),
    "nanotron__examples__doremi__configs__config_2.8b_llama.yaml": ("--nodes", "8"),
    "llm-foundry__scripts__train__yamls__pretrain__mpt-7b.yaml": (),
    "maxtext__src__maxtext__configs__gpu__models__llama2_70b.yml": ("--nodes", "3"),
    "*gpt3_mcore_te_tp1_pp4_vp1__model_config.yaml": (),
    "*examples__pretrain_gpt_distributed_with_mp.sh": ("--vocab-size", "50257"),
}


@needs_reference
@pytest.mark.slow
@pytest.mark.parametrize("name", TEN)
def test_a_real_file_is_patched_from_the_command_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = (reference() / "jobs" / "files").glob(name)
    copy, more = tmp_path / file.name, ("--cluster", "dgx-h100", *TEN[name], "--json")

    def document_of(*words: str) -> Any:
        with pytest.raises(SystemExit):
            main([*words, *more])
        return json.loads(capsys.readouterr().out)

    recommended = document_of("improve", str(file), "--patch", str(copy))["recommended"]
    back = document_of("estimate", str(copy))
    assert back["step_time_s"] == pytest.approx(recommended["step_time_s"], rel=1e-9)
    wanted = document_of("estimate", str(file), *recommended["options"].split())
    assert back["request"]["configuration"] == wanted["request"]["configuration"]
    changed = lines_changed(file.read_text(), copy.read_text())
    assert 0 < len([line for line in changed if line[0] == "+"]) <= 4
