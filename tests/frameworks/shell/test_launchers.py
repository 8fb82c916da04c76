"""The trainer behind launchers, containers, profilers and shells."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwright.errors import InvalidInput
from trainwright.frameworks.shell import TrainerCall, read_batch, read_script


def trainer(script: str, **given: object) -> TrainerCall:
    return read_script(script, **given).trainer()  # type: ignore[arg-type]


def shown(call: TrainerCall) -> tuple[str, ...]:
    return (call.program.shown(), *(word.shown() for word in call.arguments))


TRAINED = ("train.py", "--lr", "1")


@pytest.mark.parametrize(
    "before",
    [
        "torchrun --nproc_per_node 8 --nnodes=2 --standalone",
        "/opt/bin/torchrun --nproc-per-node=gpu",
        "python -m torch.distributed.launch --nproc_per_node 8 --use_env",
        "python3.10 -u -m torch.distributed.run --nnodes 2 --rdzv_backend c10d",
        "accelerate launch --config_file a.yaml --num_processes 8 --use_deepspeed",
        "python -m accelerate.commands.launch --multi_gpu",
        "deepspeed --num_nodes 2 --num_gpus 8 --force_multi --hostfile h",
        "deepspeed --include=localhost:0,1 --master_port 1",
        "srun -N 2 -n16 --label --mpi=pmix --container-image x --no-container-mount-home python -u",
        "srun --nodes 2 singularity exec --nv -B /a:/b --bind=/c image.sif python",
        "apptainer run --nv --env A=1 docker://image torchrun --nproc_per_node 4",
        "docker run --rm -it --gpus all -v /a:/b -e X=1 --shm-size 1g --ipc=host image torchrun",
        "mpirun -np 16 -H a:8,b:8 -x PATH --mca btl tcp --bind-to none --allow-run-as-root python",
        "mpiexec -n 16 -ppn 8 --hostfile h python3",
        "nohup nice -n 5 numactl --cpunodebind=0 -m 0 python",
        "env -u A B=1 C=2 timeout 10h time -p python -W ignore",
        "nsys profile -o out -t cuda,nvtx --force-overwrite true torchrun --nproc_per_node 8",
        "CUDA_VISIBLE_DEVICES=0 OMP_NUM_THREADS=1 python",
        "conda run -n env --no-capture-output python",
        "uv run --with torch torchrun",
        "ray job submit --address http://h:1 --runtime-env-json {} -- python3",
        "taskset -c 0-3 stdbuf -oL python",
        "exec torchrun",
        "time torchrun --nproc_per_node=8",
        "enroot start --mount /a:/b image torchrun --nnodes 1",
        "composer -n 8",
        "ncu --set full -o out python",
    ],
)
def test_launchers_are_peeled_off(before: str) -> None:
    assert shown(trainer(f"{before} train.py --lr 1")) == TRAINED


@pytest.mark.parametrize(
    "script",
    [
        "bash -c 'python train.py --lr 1'",
        'srun --jobid 1 bash -lc "torchrun --node_rank \\$SLURM_PROCID train.py --lr 1"',
        "export CMD='train.py --lr 1'; srun bash -c 'torchrun $CMD'",
        "CMD='train.py --lr 1'; eval torchrun $CMD",
        "cat > run.sh <<'EOF'\ntorchrun train.py --lr $1\nEOF\nchmod +x run.sh; srun ./run.sh 1",
        "cat > run.sh <<EOF\ntorchrun train.py --lr 1\nEOF\nbash run.sh",
        "ssh -p 22 host 'cd x && torchrun train.py --lr 1'",
        'sbatch --wrap "torchrun train.py --lr 1"',
        "torchrun train.py --lr 1 2>&1 | tee log.txt",
        "(torchrun train.py --lr 1) > log 2>&1 &\nwait",
        "f() { torchrun train.py $@; }\nf --lr 1",
        "for lr in 1; do torchrun train.py --lr $lr; done",
        "torchrun \\\n  train.py \\\n  --lr 1 \\\n",
        "srun sh -c 'exec torchrun train.py --lr $0' 1",
        "A=(--lr 1)\ntorchrun train.py ${A[@]}",
    ],
)
def test_shells_inside_commands_are_followed(script: str) -> None:
    assert shown(trainer(script)) == TRAINED


def test_a_variable_that_is_not_exported_is_not_seen_by_a_shell_inside() -> None:
    call = trainer("A=1; export B=2; srun bash -c 'torchrun t.py $A $B'")
    assert call.arguments[0].is_unset
    assert call.arguments[1].text == "2"


def test_a_script_beside_is_followed_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "inner.sh").write_text("torchrun train.py --lr ${1:-9} --n $N\n")
    call = trainer("export N=4\nsrun bash inner.sh 1", folder=tmp_path)
    assert shown(call) == (*TRAINED, "--n", "4")
    assert [each.name for each in call.launchers] == ["srun", "torchrun"]


def test_launchers_say_how_many_processes_there_are() -> None:
    call = trainer("N=4; srun -N2 --ntasks-per-node 1 torchrun --nnodes $N --nproc-per-node=8 t.py")
    assert (str(call.nodes), str(call.processes_per_node)) == ("4", "8")
    call = trainer("accelerate launch --num_machines 2 --num_processes 16 t.py --nnodes 3")
    assert (str(call.nodes), str(call.processes)) == ("2", "16")
    call = trainer("mpirun -np 16 python t.py")
    assert (call.nodes, str(call.processes)) == (None, "16")
    call = trainer("torchrun --nnodes=$NODES t.py")
    assert call.nodes is not None
    assert call.nodes.unknowns[0].name == "NODES"


def test_modules_are_trainers_as_scripts_are() -> None:
    for script in ("torchrun --nnodes 1 -m torchtitan.train --x", "python -m torchtitan.train --x"):
        call = trainer(script)
        assert call.program.text == "torchtitan.train"
        assert [word.text for word in call.arguments] == ["--x"]


def test_programs_of_trainers_are_found() -> None:
    assert shown(trainer("llamafactory-cli train a.yaml")) == (
        "llamafactory-cli",
        "train",
        "a.yaml",
    )
    call = trainer("tune run --nproc_per_node 8 full_finetune --config llama")
    assert shown(call) == ("full_finetune", "--config", "llama")
    assert str(call.processes_per_node) == "8"


def test_a_distributed_trainer_comes_before_other_programs() -> None:
    script = """
    python preprocess.py --input a --output b --workers 8
    python -c "import torch; print(torch.__version__)"
    mkdir -p out
    torchrun train.py --lr 1
    python evaluate.py --all
    """
    run = read_script(script)
    assert [call.program.text for call in run.trainers] == [
        *("train.py", "preprocess.py", "evaluate.py")
    ]


def test_the_environment_of_a_trainer_is_what_the_script_exports() -> None:
    script = "export A=1 B=$X; C=3; D=4 torchrun t.py"
    environment = trainer(script, variables={"E": "5", "X": "x"}).environment
    assert {k: v.text for k, v in environment.items()} == {"A": "1", "B": "x", "D": "4"}


def test_a_script_without_a_trainer_says_so() -> None:
    with pytest.raises(InvalidInput, match="none of which starts a trainer"):
        read_script("ls /\nmkdir x").trainer()
    with pytest.raises(InvalidInput, match="no command"):
        read_script("hello=1").trainer()


def test_directives_to_slurm_are_data() -> None:
    batch = read_batch(
        "#!/bin/bash\n#SBATCH -N 4 --ntasks-per-node=2 # two\n#SBATCH --gres=gpu:a100:8\n"
        "##SBATCH --nodes=9\n#SBATCH <OPTIONS> --exclusive --job-name='a b'\n#SBATCH -c16\n"
    )
    assert (batch.nodes, batch.tasks_per_node, batch.tasks, batch.devices_per_node) == (4, 2, 8, 8)
    assert batch.option("job-name") == "a b"
    assert [each.line for each in batch.directives][-1] == 6
    assert batch.variables()["SLURM_CPUS_PER_TASK"] == "16"
    assert read_batch("#SBATCH --nodes=2-4").nodes is None
    assert read_batch("#SBATCH --nodes 2\n#SBATCH --gpus=16").devices_per_node == 8
    assert read_batch("#SBATCH --gpus-per-node h100:8").devices_per_node == 8
    one_each = "#SBATCH --ntasks-per-node 4 --gpus-per-task 1"
    assert read_batch(one_each).devices_per_node == 4
