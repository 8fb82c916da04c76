"""Bundles of known plans, kept as snapshots; scripts and programs in them are well formed."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tomllib
from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion

from export_jobs import bundle, golden_jobs, job
from trainwright.errors import Inexpressible
from trainwright.formats.hf_config import read_config
from trainwright.frameworks.launch import Launcher
from trainwright.plans.capability import TARGETS
from trainwright.plans.job import ExportBundle

_LONG = 3_000
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}


def shown(found: ExportBundle) -> str:
    """The bundle as one text; long files by their hash."""
    parts = [f"command {' '.join(found.command)}", f"environment {dict(found.environment)}"]
    for name, text in found.files.items():
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        body = text if len(text) <= _LONG else f"{len(text)} characters, sha256 {digest}\n"
        parts.append(f"--- {name}\n{body}")
    return "\n".join(parts)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", golden_jobs())
def test_golden_bundle(name: str, target: str, snapshot: SnapshotAssertion) -> None:
    try:
        text = shown(bundle(golden_jobs()[name], target))
    except Inexpressible as error:
        text = str(error)
    assert text == snapshot


@pytest.mark.parametrize("launcher", Launcher)
@pytest.mark.parametrize("target", TARGETS)
def test_scripts_and_programs_are_well_formed(target: str, launcher: Launcher) -> None:
    flat = ("accelerate", "trl", "axolotl", "llamafactory", "automodel", "maxtext")
    pipelined = target not in flat
    made = job(
        "llama3-8b",
        data=8,
        tensor=2,
        sequence_parallel=True,
        pipeline=2 if pipelined else 1,
        zero_stage=1 if target in ("deepspeed", "nanotron") or "mega" in target else 0,
        global_batch=32,
        blocks_per_stage=(17, 15) if target != "nanotron" and pipelined else None,
    )
    if target == "primus" or not pipelined:
        made = job("llama3-8b", data=16, zero_stage=3, global_batch=32)
    if target == "nanotron":
        made = job("llama3-8b", data=4, zero_stage=1, global_batch=32)
    for name, text in bundle(made, target, launcher=launcher).files.items():
        if text.startswith("#!"):
            done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
            assert done.returncode == 0, done.stderr
        elif name.endswith(".py"):
            compile(text, name, "exec")
        elif name.endswith(".json"):
            json.loads(text)
        elif name.endswith(".toml"):
            tomllib.loads(text)
        if name.endswith((".py", ".toml", ".sh", ".yaml", ".slurm")):
            assert "written by trainwright 0.0.0 from plan 0123456789abcdef" in text


def test_the_script_passes_megatron_every_argument(tmp_path) -> None:
    """Run it with a stand-in for torchrun: quoting survives the shell."""
    made = golden_jobs()["llama3-70b uneven loop"]
    for name, text in bundle(made, "megatron").files.items():
        (tmp_path / name).write_text(text)
    stand_in = tmp_path / "torchrun"
    stand_in.write_text('#!/bin/sh\nfor a in "$@"; do echo "$a"; done\n')
    stand_in.chmod(0o755)
    done = subprocess.run(
        ["bash", "launch.sh", "--lr", "1e-4"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "MEGATRON_PATH": "/megatron"},
        capture_output=True,
        text=True,
        check=True,
    )
    given = done.stdout.splitlines()
    assert "/megatron/pretrain_gpt.py" in given
    assert given[given.index("--pipeline-model-parallel-layout") + 1] == "Et|(tt|)*38tttL"
    assert given[-2:] == ["--lr", "1e-4"]


def test_what_a_megatron_bundle_asks_for_is_exact() -> None:
    rotary = bundle(job("llama2-7b", data=8, global_batch=8), "megatron")
    asked = "\n".join(rotary.asked_of_user)
    assert "--rotary-base" in asked
    assert "NullTokenizer --vocab-size 31999" in asked
    assert any("rotary positions" in each for each in rotary.not_represented)
    known = bundle(golden_jobs()["llama3-70b uneven loop"], "megatron")
    assert "--rotary-base" not in "\n".join(known.asked_of_user)
    assert not any("rotary" in each or "epsilon" in each for each in known.not_represented)
    flags = known.files["megatron_args.sh"]
    assert "--rotary-base 500000\n" in flags and "--norm-epsilon 1e-05\n" in flags
    named = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    stated = read_config(LLAMA | {"rope_theta": 8e5, "rms_norm_eps": 1e-6}, name="own").config
    scaled = read_config(LLAMA | {"rope_theta": 8e5} | named, name="own").config
    assert stated == scaled
    plain = replace(job("llama2-7b", data=8, global_batch=8), model=stated, model_name="own")
    own = bundle(plain, "megatron")
    assert not any(flag in "\n".join(own.asked_of_user) for flag in ("--rotary", "--norm-eps"))
    assert "--rotary-base 800000\n" in own.files["megatron_args.sh"]
    assert "--norm-epsilon 1e-06\n" in own.files["megatron_args.sh"]
    own = bundle(replace(plain, model=scaled), "megatron")
    asked = "\n".join(own.asked_of_user)
    assert "--rotary-base" not in asked
    assert "--use-rope-scaling" in asked and "(yarn)" in asked
    assert "--norm-epsilon" in asked
    assert any("scaling of rotary positions (yarn)" in each for each in own.not_represented)
    learned = bundle(job("gpt2", data=8, global_batch=8), "megatron")
    assert "--rotary-base" not in "\n".join(learned.asked_of_user)
    assert "NullTokenizer --vocab-size 50256" in "\n".join(learned.asked_of_user)
    assert any("epsilon of norms" in each for each in learned.not_represented)
