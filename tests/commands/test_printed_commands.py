"""The command that a page prints, run where the page says that it runs: it gives the document."""

from __future__ import annotations

import json
import shlex
from shutil import copytree

import pytest

import reported
import trainwright
from html_page import Page
from small_profiles import transformer
from trainwright.commands.main import main
from trainwright.documents.printing import Report
from trainwright.errors import InvalidInput
from trainwright.formats.catalog import open_cluster
from trainwright.formats.piper_json import read_piper

SPEC = {
    "kind": "schedule_spec",
    "num_microbatches": 4,
    "rank_of_stage": [0, 1],
    "forward_s": [0.013, 0.012],
    "input_grad_s": [0.013],
    "weight_grad_s": [0.009],
}
FITTED = """[[calibration]]
accelerator = "H100-80GB-SXM"
line = "own"
source = "a test"
rows = 9
low_ratio = 0.9
high_ratio = 1.1
[calibration.constants]
gemm_max = { value = 0.6, low = 0.5, high = 0.7 }
"""
CONFIG = """{"model_type": "llama", "hidden_size": 256, "intermediate_size": 688,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 1024, "max_position_embeddings": 2048}"""
JOB = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 \\
    --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 \\
    --micro-batch-size 1 --global-batch-size 16 --tensor-model-parallel-size $TP \\
    --vocab-size 1024 --bf16
"""
CLUSTER = """device_kind = "H100-80GB-SXM"

[[level]]
name = "nvlink"
size = 4
bandwidth_bytes_per_s = 200e9
latency_s = 5e-6
"""
ON_A_NODE = "--cluster dgx-h100 --nodes 1 --global-batch 16"
SIZED = "--global-batch 16 --sequence 512 --tp 2 --pp 1"


def written(folder):
    """A folder with all of these files."""
    folder.mkdir()
    for name, text in {
        "config.json": CONFIG,
        "job.sh": JOB,
        "mine.toml": CLUSTER,
        "options.toml": 'cluster = "dgx-h100"\nnodes = 1\nglobal-batch = 16\nsequence = 512\n',
        "fitted.toml": FITTED,
        "profile.json": json.dumps(transformer()),
        "spec.json": json.dumps(SPEC),
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "asked",
    [
        f"plan own/config.json {ON_A_NODE} --sequence 512 --tp 2 --pp 2 --no-reasons",
        f"plan own {ON_A_NODE} --sequence 512 --tp 1 --pp 1 --lora-rank 8 --software typical",
        f"plan own/config.json --cluster own/mine.toml {SIZED}",
        f"plan gpt2 --cluster own/mine.toml --calibration none {SIZED}",
        f"plan own/config.json --cluster dgx-h100 --devices 4,8 {SIZED}",
        f"plan own/config.json {ON_A_NODE} --sweep sequence=256,512 --sequence 512 --tp 1 --pp 1",
        "plan own/profile.json --devices 2 --memory 80GiB --no-data-parallel",
        f"plan own/profile.json {ON_A_NODE} --devices 2",
        "plan gpt2 --config own/options.toml --tp 2 --pp 1",
        f"estimate own/config.json {ON_A_NODE} --sequence 512 --zero 2 --lora-rank 8",
        f"estimate --from megatron own/job.sh {ON_A_NODE} --variable TP=2",
        f"estimate own/job.sh {ON_A_NODE} --variable TP=4 --calibration own/fitted.toml",
        pytest.param(
            f"improve --from megatron own/job.sh {ON_A_NODE} --variable TP=4",
            marks=pytest.mark.slow,
        ),
        "model own/config.json --sequence 512",
        "schedule --spec own/spec.json --family 1f1b --microbatches 4",
    ],
)
def test_a_question_from_files_is_printed_as_it_was_typed(asked, tmp_path, capsys, monkeypatch):
    def answer(line):
        with pytest.raises(SystemExit):
            main([*shlex.split(line), "--json"])
        return json.loads(capsys.readouterr().out)

    folder = written(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    document = answer(asked)
    assert document["kind"] != "refusal", document
    (tmp_path / "run.json").write_text(json.dumps(document), encoding="utf-8")
    html = trainwright.report(tmp_path / "run.json").html
    assert "in the folder that holds" in html
    assert str(tmp_path) not in html
    (printed,) = (t for _, t in Page(html).all("pre") if t.startswith("trainwright "))
    monkeypatch.chdir(tmp_path if asked.startswith("plan own ") else folder)
    again = answer(printed.removeprefix("trainwright "))
    names = {"name", "warnings", "command_line", "sha256"}  # of a folder, which is not said
    assert without(again, names) == without(document, names)


REPORTED = (
    *(reported.model_estimate, reported.profile_plan, reported.small_plan, reported.placement),
    *(reported.schedule, reported.model, reported.validation),
    *(
        pytest.param(make, marks=pytest.mark.slow)
        for make in (
            reported.model_plan,
            reported.model_sweep,
            reported.mixed_plan,
            reported.fit,
            reported.codesign,
            reported.machine_room,
            reported.improvement,
        )
    ),
)


@pytest.mark.parametrize("make", REPORTED, ids=lambda make: make.__name__)
def test_a_page_of_every_kind_prints_what_gives_its_document_again(
    make, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(reported.EXAMPLES)
    check_printed(Report(make()), tmp_path, capsys, monkeypatch)


def own(folder, **more):
    """An own model on an own cluster, as Python is asked."""
    asked = {"cluster": folder / "mine.toml", "global_batch": 16, "sequence": 512, "tp": 2, "pp": 1}
    return trainwright.plan(folder / "config.json", **(asked | more))


def priced(folder):
    """A plan of a profile with less memory than it was made for."""
    profile, plan = folder / "profile.json", folder / "plan.json"
    trainwright.plan(profile, devices=2, memory="80GiB").save(plan)
    return trainwright.estimate(profile, plan=plan, devices=2, memory="70GiB")


CALLS = {
    "own files": own,
    "adapters": lambda folder: own(folder, lora_rank=8),
    "a cluster as a value": lambda folder: own(
        folder, cluster=open_cluster("dgx-h100").with_nodes(1).with_bandwidth("inter", 1e9), tp=1
    ),
    "memory of its own": lambda folder: own(folder, cluster="dgx-h100", nodes=1, memory="70GiB"),
    "an estimate": lambda folder: trainwright.estimate(
        folder / "config.json",
        cluster=folder / "mine.toml",
        tp=2,
        dp=2,
        global_batch=8,
        sequence=256,
        zero=2,
    ),
    "of a job": lambda folder: trainwright.estimate(
        source=("megatron", folder / "job.sh"),
        cluster="dgx-h100",
        nodes=1,
        variable={"TP": "2"},
    ),
    "a profile as a value": lambda folder: trainwright.plan(
        read_piper(json.loads((folder / "profile.json").read_text())), devices=2, memory="80GiB"
    ),
    "a profile on a cluster": lambda folder: trainwright.plan(
        folder / "profile.json", cluster=folder / "mine.toml", devices=2, global_batch=16
    ),
    "a plan that is priced": priced,
    "an own spec": lambda folder: trainwright.schedule(
        spec=folder / "spec.json", family="1f1b", microbatches=4
    ),
    "several sizes": lambda folder: trainwright.sweep(
        folder / "config.json",
        cluster="dgx-h100",
        devices="4,8",
        global_batch=16,
        sequence=512,
        tp=2,
        pp=1,
    ),
    "what is changed": lambda folder: trainwright.what_if(own(folder), bandwidth="nvlink=100GB/s"),
    "an improvement": lambda folder: trainwright.improve(CALLS["an estimate"](folder)),
    "what fits": lambda folder: trainwright.fit(folder / "config.json", gpu="h100"),
    "a model": lambda folder: trainwright.describe_model(folder / "config.json", sequence=512),
    "a model as a value": lambda folder: trainwright.describe_model(json.loads(CONFIG)),
    "runs of a folder": lambda folder: trainwright.validate(
        reported.EXAMPLES / "measured", files=("korthikanti",)
    ),
}


SECONDS = {"an improvement", "what fits", "what is changed", "several sizes"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SECONDS)) for name in CALLS],
)
def test_a_call_from_python_is_printed_as_a_command_that_runs(name, tmp_path, capsys, monkeypatch):
    made = CALLS[name](written(tmp_path / "files"))
    check_printed(made, tmp_path, capsys, monkeypatch)


def test_the_plan_before_a_change_is_named_as_the_part_of_its_file_that_it_is(tmp_path):
    changed = trainwright.what_if(own(written(tmp_path / "files")), bandwidth="nvlink=100GB/s")
    changed.save(tmp_path / "changed.json")
    html = trainwright.report(tmp_path / "changed.json").html
    before, after = (t for _, t in Page(html).all("pre") if t.startswith("trainwright plan "))
    assert before.startswith("trainwright plan before.json --cluster before.json")
    assert after.startswith("trainwright plan changed.json --cluster changed.json")
    assert "before.json is &#34;before&#34; of changed.json, saved" in html


def test_runs_of_two_folders_of_one_name_are_asked_for_from_above(tmp_path):
    for name in ("a", "b"):
        copytree(reported.EXAMPLES / "measured", tmp_path / name / "runs")
    places = (tmp_path / "a" / "runs", tmp_path / "b" / "runs")
    asked = trainwright.validate(*places, files=("korthikanti",)).document.command_line
    assert asked.words[:3] == ("validate", "a/runs", "b/runs")
    assert asked.files == ("a/runs", "b/runs")


def test_what_is_left_out_needs_another_file():
    with pytest.raises(InvalidInput, match="needs two files with timed runs or more, got 1"):
        trainwright.validate(reported.EXAMPLES / "measured", leave_out="source")


# What another folder, another run of the search, or a proof that was made again may say.
_LEFT = {"name", "warnings", "command_line", "sha256", "runners_up", "recheck", "proof", "folder"}


def check_printed(made, tmp_path, capsys, monkeypatch):
    """The page of a result, and that of its file: what they print gives the result again."""
    document = json.loads(made.to_json())
    document = document.get("after", document)  # of a what-if the plan under the change
    for name in ("-saved as.json", f"{document['kind']}.json"):
        made.save(tmp_path / name)
    for shown in (made, tmp_path / "-saved as.json"):
        html = trainwright.report(shown).html
        typed = "in the folder that holds" in html
        monkeypatch.chdir(reported.EXAMPLES if typed else tmp_path)
        printed = [text for _, text in Page(html).all("pre") if text.startswith("trainwright ")]
        with pytest.raises(SystemExit):
            main([*shlex.split(printed[-1])[1:], "--json"])
        again = json.loads(capsys.readouterr().out)
        again.pop("orders_name", None)
        assert without(again, _LEFT) == without(document, _LEFT), printed[-1]


def without(value, names):
    """What two searches of one question have in common, but for what has these keys."""
    if isinstance(value, list):
        return [without(each, names) for each in value]
    if isinstance(value, dict):
        left = names | {"search_s", "solver_s", "generate_s", "front_s"}
        return {key: without(each, names) for key, each in value.items() if key not in left}
    return value


def test_two_files_of_one_name_are_not_said_to_lie_together(tmp_path, capsys, monkeypatch):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same").write_text(
            CONFIG if folder == "one" else CLUSTER, encoding="utf-8"
        )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(
            shlex.split(
                "estimate one/same --cluster two/same --global-batch 4 --sequence 64 --json"
            )
        )
    document = json.loads(capsys.readouterr().out)
    assert "command_line" not in document["request"]
    (tmp_path / "found.json").write_text(json.dumps(document), encoding="utf-8")
    html = trainwright.report(tmp_path / "found.json").html
    (printed,) = (t for _, t in Page(html).all("pre") if t.startswith("trainwright "))
    assert printed.startswith("trainwright estimate found.json --cluster found.json ")
    with pytest.raises(SystemExit):
        main([*shlex.split(printed.removeprefix("trainwright ")), "--json"])
    again = json.loads(capsys.readouterr().out)
    assert without(again, {"command_line", "warnings"}) == without(document, {"warnings"})


def test_no_document_keeps_a_secret_that_a_script_was_given(tmp_path, capsys):
    job = tmp_path / "job.sh"
    job.write_text("export HF_TOKEN=$HF_TOKEN TOKENIZER=$TOKENIZER\n" + JOB, encoding="utf-8")
    given = "--variable TP=2 --variable HF_TOKEN=hf_abc --variable TOKENIZER=gpt2"
    with pytest.raises(SystemExit):
        main(shlex.split(f"estimate {job} {ON_A_NODE} {given} --json"))
    typed = json.loads(capsys.readouterr().out)["request"]["command_line"]["words"]
    assert "HF_TOKEN=hidden" in typed
    assert "TOKENIZER=gpt2" in typed
    assert not any("hf_abc" in word for word in typed)
