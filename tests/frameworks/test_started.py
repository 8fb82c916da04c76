"""Scripts that start a trainer on a file of settings are read as that file, and what follows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from export_jobs import STAMP, job
from trainwright.errors import InvalidInput
from trainwright.frameworks import write
from trainwright.frameworks.jobs import Beside, read
from trainwright.frameworks.jobs.detect import format_of
from trainwright.frameworks.jobs.settings import StatedRun
from trainwright.frameworks.launch import Launcher
from trainwright.frameworks.read_job import job_format, open_stated

FSDP = ("torchtitan@0.2", "torchtitan@0.3", "accelerate", "axolotl", "automodel", "maxtext")
OTHERS = ("deepspeed", "nanotron", "llamafactory")


@pytest.mark.parametrize("script", ["launch.sh", "launch.slurm"])
@pytest.mark.parametrize("target", [*FSDP, *OTHERS])
def test_our_own_scripts_read_back_as_the_files_they_start(
    tmp_path: Path, target: str, script: str
) -> None:
    zero = 3 if target in FSDP else 1
    made = job("llama3-8b", data=16, zero_stage=zero, global_batch=64, sequence_length=2048)
    for name, text in write(made, STAMP, target, launcher=Launcher.SLURM).files.items():
        (tmp_path / name).write_text(text)
    assert job_format(tmp_path / script) == target.partition("@")[0]
    run = open_stated(None, tmp_path / script).run
    assert run.zero == zero
    assert run.num_devices in ((16, None) if target == "maxtext" else (16,))
    assert run.sequence in (2048, None)
    assert run.precision == "bf16"
    assert run.unknown == ()


AXOLOTL = "base_model: meta-llama/Meta-Llama-3-8B\nsequence_len: 4096\nmicro_batch_size: 2\n"
TITAN = (
    '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 2048\n'
)
OLMO = "global_train_batch_size: 512\nmodel:\n  d_model: 2048\n  n_layers: 16\n  n_heads: 16\n"


def read_in(folder: Path, script: str, **files: str) -> StatedRun:
    """A script beside files, whose names have _ for their last dot."""
    for name, text in files.items():
        (folder / ".".join(name.rsplit("_", 1))).write_text(text)
    (folder / "train.sh").write_text(script)
    assert format_of(script, "train.sh", folder) != "megatron"
    return read(None, script, Beside(folder=folder, name="train.sh"))


@pytest.mark.parametrize(
    "line",
    [
        "axolotl train llama.yml --micro-batch-size 4",
        "accelerate launch -m axolotl.cli.train llama.yml --micro_batch_size=4",
        'CONFIG=llama.yml\nsrun bash -c "axolotl train $CONFIG --micro-batch-size 4"',
    ],
)
def test_words_behind_the_file_replace_what_it_says(tmp_path: Path, line: str) -> None:
    run = read_in(tmp_path, f"#!/bin/bash\n{line}\n", llama_yml=AXOLOTL)
    assert (run.model_name, run.sequence, run.micro_batch) == (
        "meta-llama/Meta-Llama-3-8B", 4096, 4,
    )  # fmt: skip
    assert "what stands behind llama.yml on the command line replaces what it says" in run.notes


def test_nodes_are_those_of_slurm_around_the_trainer(tmp_path: Path) -> None:
    script = (
        "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\n"
        'CONFIG_FILE=${CONFIG_FILE:-"./llama.toml"}\n'
        "srun torchrun --nnodes 4 --nproc_per_node 8 -m torchtitan.train "
        "--job.config_file ${CONFIG_FILE} --training.seq_len 8192 "
        "--parallelism.tensor_parallel_degree=2\n"
    )
    run = read_in(tmp_path, script, llama_toml=TITAN)
    assert (run.num_devices, run.devices_per_node) == (32, 8)
    assert (run.model_name, run.sequence, run.tp, run.micro_batch) == ("llama3-8b", 8192, 2, 1)


def test_a_file_that_the_script_writes_is_read(tmp_path: Path) -> None:
    script = f"#!/bin/bash\ncat > made.yml <<EOF\n{AXOLOTL}EOF\naxolotl train made.yml\n"
    run = read_in(tmp_path, script)
    assert (run.sequence, run.micro_batch) == (4096, 2)
    assert run.num_devices is None  # axolotl starts its own processes


def test_what_the_file_says_tells_whose_it_is(tmp_path: Path) -> None:
    script = "#!/bin/bash\ntorchrun --nproc_per_node 8 scripts/train.py conf.yaml\n"
    assert read_in(tmp_path, script, conf_yaml=OLMO).num_devices == 8
    assert format_of(script, "train.sh", tmp_path) == "olmo"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("axolotl train llama.yml", "starts axolotl on llama.yml, which is not beside it"),
        ("torchrun -m torchtitan.train --job.config_file x.toml", "torchtitan on x.toml, which is"),
        ("torchrun --nproc_per_node 8 train.py --lr 3", "starts train.py with no argument of"),
        ("axolotl train ../up.yml", "starts axolotl on up.yml, which is not beside it"),
    ],
)
def test_what_cannot_be_read_is_asked_for(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "up.yml").write_text(AXOLOTL)
    with pytest.raises(InvalidInput, match=said):
        read(None, f"#!/bin/bash\n{line}\n", Beside(folder=tmp_path / "in", name="train.sh"))


def test_a_word_that_is_not_known_is_said(tmp_path: Path) -> None:
    script = "#!/bin/bash\naxolotl train llama.yml --micro-batch-size $SIZE\n"
    run = read_in(tmp_path, script, llama_yml=AXOLOTL)
    assert run.micro_batch == 2
    assert "micro_batch_size: ${SIZE} is not known, and what llama.yml says is used" in run.notes


SIZES = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512"


@pytest.mark.parametrize(
    ("program", "is_known"), [("pretrain_gpt.py", True), ("tools/train.py", False)]
)
def test_a_program_that_is_not_known_is_named(program: str, is_known: bool) -> None:
    script = f"torchrun --nproc_per_node 8 {program} {SIZES} --vocab-size 1000 --bf16"
    notes = " ".join(read("megatron", script).notes)
    assert ("train.py is not known to be a program of Megatron" in notes) is not is_known


def test_words_that_others_have_too_do_not_make_a_script_one_of_megatron() -> None:
    words = "--model_type=llama_v2 --hidden_width=4096 --num_layers=32 --bf16"
    with pytest.raises(InvalidInput, match=r"starts train\.py with no argument of Megatron"):
        read(None, f"#!/bin/bash\nsrun torchrun --nproc_per_node=8 train.py {words}\n")
    assert read(None, f"#!/bin/bash\ntorchrun --nproc_per_node=8 pretrain_gpt.py {words}\n")
