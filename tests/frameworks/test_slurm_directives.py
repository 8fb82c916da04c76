"""Sizes of a batch job, as sbatch reads them from the directives of its script."""

from __future__ import annotations

import pytest

from trainwright.frameworks.jobs.megatron import read_megatron
from trainwright.frameworks.shell import read_batch

DEVICES, NODES, TASKS = "SLURM_GPUS_ON_NODE", "SLURM_NNODES", "SLURM_NTASKS"


@pytest.mark.parametrize(
    ("directives", "devices"),
    [
        (["--gres=gpu:8,nvme:100"], "8"),
        (["--gres=nvme:100,gpu:h100:4"], "4"),
        (["--gpus-per-node=8", "--gres=tmpdisk:1600"], "8"),
        (["--gpus-per-node=8", "--gres=gpu:4"], "8"),
        (["--gres=gpu:8(S:0-1)"], "8"),
        (["--gres=gpu:a100:2,gpu:h100:4"], "6"),
        (["--gpus-per-node=h100:8"], "8"),
        (["--gres=tmpdisk:1600"], None),
        (["-N 2 --gres=gpu:8"], "8"),
        (["--exclusive --gpus-per-node 4 # of 8"], "4"),
    ],
)
def test_devices_are_those_among_the_resources_of_a_node(
    directives: list[str], devices: str | None
) -> None:
    found = read_batch("".join(f"#SBATCH {each}\n" for each in directives)).variables()
    assert found.get(DEVICES) == devices


@pytest.mark.parametrize(
    ("line", "nodes", "tasks"),
    [
        ("-N2", "2", None),
        ("-N 2 -n 16", "2", "16"),
        ("-n16 --job-name=x -N 2", "2", "16"),
        ("--nodes=2 16", "2", None),
        ("--ntasks=12 --nodes 2 --ntasks-per-node=8", "2", "12"),
        ("--nodes=2 --ntasks-per-node=8", "2", "16"),
        ("--nodes=2-4 --ntasks-per-node=8", None, None),
        ("--exclusive --nodes=3 # --nodes=5", "3", None),
    ],
)
def test_every_option_of_a_line_counts(line: str, nodes: str | None, tasks: str | None) -> None:
    found = read_batch(f"#!/bin/bash\n#SBATCH {line}\nsrun hostname\n").variables()
    assert (found.get(NODES), found.get(TASKS)) == (nodes, tasks)


@pytest.mark.parametrize(
    ("line", "devices"),
    [
        ("--nodes=4 --ntasks-per-node=1 --gpus-per-node=8", 32),
        ("--nodes=4 --ntasks-per-node=8 --gpus-per-node=8", 32),
        ("--nodes=4 --gpus-per-node=8", 32),
        ("-N 4 -n 4 --gres=gpu:8", 32),
        ("-N 4 -n 32 --gres=gpu:8", 32),
        ("-n 32 --ntasks-per-node=8 --gres=gpu:8", 32),
        ("--nodes=4 --ntasks-per-node=8", 32),
        ("--ntasks=32", 32),
        ("--nodes=4 --ntasks-per-node=4 --gpus-per-node=8", None),
        ("--ntasks=4 --gpus-per-node=8", None),
        ("--gpus-per-node=8", None),
    ],
)
def test_one_task_of_a_node_stands_for_all_its_devices(line: str, devices: int | None) -> None:
    script = f"#SBATCH {line}\nsrun python pretrain_gpt.py --tensor-model-parallel-size 4\n"
    assert read_megatron(script).num_devices == devices


def test_a_size_that_the_script_computes_is_not_known() -> None:
    script = "export SLURM_NTASKS=$((4 * 8))\nsrun python x.py --tensor-model-parallel-size 4\n"
    assert read_megatron(script).num_devices is None


@pytest.mark.parametrize(
    ("asked", "devices"),
    [
        ("select=8:ncpus=8:mpiprocs=4:ngpus=4", 32),
        ("select=2:ngpus=8", 16),
        ("walltime=1:00:00", None),
    ],
)
def test_nodes_and_devices_that_pbs_is_asked_for_are_read(asked: str, devices: int | None) -> None:
    words = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512"
    words += " --max-position-embeddings 512 --micro-batch-size 1 --vocab-size 1000"
    count = 4 if "mpiprocs=4" in asked else 8
    start = f"mpirun -np $(wc -l < $PBS_NODEFILE) --npernode {count}"
    text = f"#!/bin/bash\n#PBS -P group\n#PBS -l {asked}\n{start} python pretrain_gpt.py {words}\n"
    assert read_megatron(text).num_devices == devices


def test_variables_of_slurm_are_not_those_of_pbs() -> None:
    found = read_batch("#PBS -l select=8:ngpus=4\n").variables()
    assert NODES not in found
    assert found == {"PBS_O_WORKDIR": "."}
