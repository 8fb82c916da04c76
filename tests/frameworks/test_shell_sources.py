"""Scripts that source others: what lies beside them is read, what is missing is said."""

import pytest

from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs.megatron import read_megatron
from trainwright.frameworks.read_job import open_stated

ARGS = "MODEL_ARGS=(\n  --tensor-model-parallel-size 4\n  --micro-batch-size 2\n)\n"
RUN = 'torchrun --nproc-per-node 8 pretrain_gpt.py "${MODEL_ARGS[@]}" "$@"\n'


@pytest.mark.parametrize(
    "line",
    [
        ". ./args.sh",
        "source args.sh",
        'source "args.sh"  # of this folder',
        '. "$(dirname "$0")/args.sh"',
        'source "$(dirname "${BASH_SOURCE[0]}")/args.sh"',
        'source "${BASH_SOURCE%/*}/args.sh"',
        'HERE=$(cd "$(dirname "$0")" && pwd)\nsource "$HERE/args.sh"',
        'NAME=args\n. "./${NAME}.sh"',
        "[ -f args.sh ] && . ./args.sh",
        "if [ -f args.sh ]; then source args.sh; fi",
        "source more.sh",
    ],
)
def test_a_sourced_file_of_the_folder_is_read(tmp_path, line):
    (tmp_path / "args.sh").write_text(ARGS)
    (tmp_path / "more.sh").write_text("source ./args.sh\n")
    script = tmp_path / "run.sh"
    script.write_text(f"{line}\n{RUN}")
    run = open_stated("megatron", script).run
    assert (run.tp, run.micro_batch, run.num_devices) == (4, 2, 8)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (". ./absent.sh", "there is no such file"),
        (". ../args.sh", "outside the script's folder"),
        (". /etc/hostname", "outside the script's folder"),
        (". ./link.sh", "outside the script's folder"),
        (". ./folder", "there is no such file"),
        ('. "$WHERE/args.sh"', "known only when the script runs"),
        (". ./loop.sh", "levels of calls"),
        (". ./bytes.sh", "it is not text"),
    ],
)
def test_an_array_that_nothing_sets_is_refused_with_the_line_that_may_have(tmp_path, line, why):
    (tmp_path / "args.sh").write_text(ARGS)
    home = tmp_path / "job"
    (home / "folder").mkdir(parents=True)
    (home / "link.sh").symlink_to(tmp_path / "args.sh")
    (home / "loop.sh").write_text(". ./loop.sh\n")
    (home / "bytes.sh").write_bytes(b"\xff\xfe\x00")
    script = home / "run.sh"
    script.write_text(f"#!/bin/bash\n{line}\n{RUN}")
    with pytest.raises(InvalidInput) as caught:
        open_stated("megatron", script)
    (fault,) = caught.value.faults
    assert fault.path in ("MODEL_ARGS", "line 2")
    assert "line 2 sources" in fault.problem or fault.path == "line 2"
    assert why in fault.problem


def test_every_array_that_nothing_sets_is_named():
    found = read_megatron('torchrun pretrain_gpt.py ${A_ARGS[@]} "${B_ARGS[*]}" --bf16 ${C[@]:-}')
    assert [note.split()[0] for note in found.notes if "not set" in note] == ["A_ARGS", "B_ARGS"]


@pytest.mark.parametrize("sign", ["+", ":+"])
def test_an_array_used_only_if_it_is_set_may_be_unset(sign):
    use = f'pretrain_gpt.py --bf16 ${{MORE[@]{sign}"${{MORE[@]}}"}}'
    assert read_megatron(use).precision == "bf16"
    assert read_megatron(f"MORE=(--tensor-model-parallel-size 4)\n{use}").tp == 4


def test_a_list_of_arguments_that_nothing_sets_is_said():
    found = read_megatron("pretrain_gpt.py --bf16 $EXTRA_ARGS ${MORE_OPTS} --save $WHERE")
    assert [note for note in found.notes if "not set here" in note] == [
        "EXTRA_ARGS is not set here, and what it holds is not used",
        "MORE_OPTS is not set here, and what it holds is not used",
    ]


def test_nothing_of_a_sourced_file_is_run(tmp_path):
    (tmp_path / "args.sh").write_text(f"touch {tmp_path}/ran\n$(touch {tmp_path}/ran)\n{ARGS}")
    (tmp_path / "run.sh").write_text(f". ./args.sh\n{RUN}")
    assert open_stated("megatron", tmp_path / "run.sh").run.tp == 4
    assert not (tmp_path / "ran").exists()


def test_arguments_in_quotes_over_several_lines_are_one_value():
    text = 'GPT_ARGS="\n  --tensor-model-parallel-size 2 \\\n  --bf16\n"\nN="--nnodes 3"\n'
    found = read_megatron(f"{text}torchrun $N --nproc-per-node 8 run.py $GPT_ARGS --lr 1\n")
    assert (found.tp, found.precision, found.num_devices) == (2, "bf16", 24)


def test_a_variable_that_names_itself_keeps_what_it_held():
    text = 'A="--tensor-model-parallel-size 2"\nA="$A --micro-batch-size 3"\nrun.py ${A} --lr 1'
    found = read_megatron(text)
    assert (found.tp, found.micro_batch) == (2, 3)


def test_a_strategy_that_is_none_is_refused():
    with pytest.raises(InvalidInput, match="optim_grads_params, got"):
        read_megatron("--use-megatron-fsdp --data-parallel-sharding-strategy zero3")
