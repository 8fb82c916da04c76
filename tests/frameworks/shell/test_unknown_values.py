"""What cannot be known is named with its line, and only that is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwright.errors import InvalidInput
from trainwright.frameworks.shell import ScriptRun, Unknown, Value, read_script


def words(run: ScriptRun, k: int = -1) -> list[str]:
    return [word.shown() for word in run.commands[k].words]


def only_unknown(value: Value) -> Unknown:
    (found,) = value.unknowns
    return found


def test_an_unset_variable_is_named_with_its_line_inside_its_word() -> None:
    run = read_script("\nA=--n=$NODES-x\ntrain $A\n")
    unknown = only_unknown(run.commands[0].words[1])
    assert (unknown.kind, unknown.name, unknown.line) == ("unset", "NODES", 2)
    assert run.commands[0].words[1].parts == ("--n=", unknown, "-x")


def test_an_unset_variable_is_empty_to_tests_and_takes_its_default() -> None:
    run = read_script('if [ -z "$N" ]; then M=1; else M=2; fi\ntrain $M ${N:-8} ${N:+set}\n')
    assert words(run) == ["train", "1", "8"]


def test_a_default_reaches_through_variables_that_hold_an_unset_one() -> None:
    assert words(read_script("A=$SLURM_NNODES\ntrain ${A:-4}\n")) == ["train", "4"]


def test_given_variables_and_arguments_are_used() -> None:
    run = read_script("train $N $1 $# ${2:-d}", arguments=["a b"], variables={"N": "3"})
    assert words(run) == ["train", "3", "a", "b", "1", "d"]


def test_arithmetic_with_an_unset_variable_is_unknown_and_says_which() -> None:
    unknown = only_unknown(read_script("W=$((8 * NODES))\ntrain $W").commands[0].words[1])
    assert (unknown.name, unknown.derived) == ("NODES", True)
    assert not unknown.is_unset, "there would be a number"


def test_arithmetic_with_a_name_that_the_script_counts_up_starts_at_zero() -> None:
    assert words(read_script("((n++)); m=$((k + 1)); k=5; train $n $m")) == ["train", "1", "1"]


def test_the_output_of_a_program_is_unknown_and_goes_through_pipes() -> None:
    run = read_script("G=$(nvidia-smi -L | wc -l)\ntrain --gpus $G --all=$((G * 2))")
    for word in (run.commands[-1].words[2], run.commands[-1].words[3]):
        unknown = only_unknown(word)
        assert (unknown.kind, unknown.line) == ("program", 1)
        assert "nvidia-smi" in unknown.name


@pytest.mark.parametrize(
    "source", ["$RANDOM", "$(hostname)", "$(date +%s)", "$(nproc)", "$HOSTNAME"]
)
def test_what_differs_by_machine_is_unknown_and_never_empty(source: str) -> None:
    run = read_script(f'X={source}\n[ -n "$X" ] && train $X')
    assert only_unknown(run.commands[-1].words[1]).kind == "machine"
    assert not run.assumptions


def test_a_condition_that_is_not_known_leaves_only_what_it_changes_unknown() -> None:
    script = 'A="--a 1"\nif [ -f /data/x ]; then A="$A --fp8"; B=1; else B=2; fi\ntrain $A --b $B'
    run = read_script(script)
    found = run.commands[-1].words
    assert [word.text for word in found] == ["train", "--a", "1", None, "--b", None]
    assert only_unknown(found[3]).choices == ("--fp8", "")
    assert only_unknown(found[5]).choices == ("1", "2")
    assert only_unknown(found[5]).kind == "condition"
    assert [(each.line, each.taken) for each in run.assumptions] == [(2, "both")]


def test_an_array_that_a_condition_may_extend_keeps_its_other_elements() -> None:
    script = "A=(--a 1)\nif grep -q x /etc/y; then A+=(--fp8 --z 2); fi\nA+=(--c)\ntrain ${A[@]}"
    texts = [word.text for word in read_script(script).commands[-1].words]
    assert texts == ["train", "--a", "1", None, "--c"]


def test_a_condition_that_changes_nothing_is_not_mentioned() -> None:
    run = read_script("if [ ! -d /data ]; then mkdir -p /data; wget x; fi\ntrain")
    assert run.assumptions == ()


def test_a_way_that_ends_the_script_is_not_taken_where_that_is_not_known() -> None:
    run = read_script('[[ -f ${IMAGE} ]] || { echo "no image"; exit 1; }\ntrain 1')
    assert words(run) == ["train", "1"]
    assert run.assumptions[0].taken == "other"


def test_a_script_that_only_wants_a_variable_is_read_on() -> None:
    run = read_script('if [ -z "$ROOT" ]; then echo "set ROOT"; exit 1; fi\ntrain $ROOT/x')
    assert words(run) == ["train", "${ROOT}/x"]
    (assumption,) = run.assumptions
    assert (assumption.line, assumption.unknowns[0].name) == (1, "ROOT")


def test_a_script_that_only_wants_arguments_is_read_on() -> None:
    run = read_script('usage() { echo "use: $0 N"; exit 1; }\n[ $# -lt 1 ] && usage\ntrain $1')
    assert words(run) == ["train", "$1"]
    assert only_unknown(run.commands[-1].words[1]).kind == "argument"


def test_a_required_variable_is_asked_for_and_ends_nothing() -> None:
    run = read_script('X=${NODES:?set it}\ntrain $X "${1?}"')
    assert [each.name for word in run.commands[0].words for each in word.unknowns] == [
        "NODES",
        "$1",
    ]


def test_a_script_that_ends_early_says_where_and_what_it_printed() -> None:
    run = read_script('case small in big) ;; *) echo "unknown size"; exit 3;; esac\ntorchrun a.py')
    assert run.end is not None
    assert (run.end.line, run.end.status, run.end.said) == (1, 3, "unknown size")
    with pytest.raises(InvalidInput, match="unknown size"):
        run.trainer()


def test_placeholders_are_unknown_and_redirect_nothing() -> None:
    script = 'D=<path to data>/x\nE="<PATH TO IT>"\ntrain --data $D $E "<pad>" --load <ckpt>\n'
    found = read_script(script).commands[-1].words
    assert [word.shown() for word in found] == [
        *("train", "--data", "<path to data>/x", "<PATH TO IT>", "<pad>", "--load", "<ckpt>")
    ]
    assert [word.text for word in found].count(None) == 3


def test_slurm_sets_what_is_asked_for_and_the_rest_is_unknown() -> None:
    script = "#!/bin/bash\n#SBATCH --nodes=4\ntrain $SLURM_NNODES $SLURM_JOB_ID ${SLURM_X:-1}"
    found = read_script(script).commands[0].words
    assert found[1].text == "4"
    assert only_unknown(found[2]).kind == "slurm"
    assert words(read_script("train ${SLURM_NNODES:-1}")) == ["train", "1"]


def test_programs_are_taken_to_succeed() -> None:
    assert words(read_script("wget x || exit 1; N=$(ls | wc -l) || N=1; a && train 1")) == [
        "train",
        "1",
    ]


def test_a_loop_that_waits_for_something_is_passed() -> None:
    run = read_script("while ! nc -z h 1; do sleep 1; done\nwhile true; do train; sleep 60; done")
    assert words(run)[0] == "sleep"
    assert [word for word in run.commands if word.words[0].text == "train"]


def test_holes_of_a_script_that_was_put_together_stay_holes() -> None:
    run = read_script('CMD="train --n $NODES"\neval "$CMD --m 1"\nbash -c "$CMD"')
    assert words(run, 0) == ["train", "--n", "${NODES}", "--m", "1"]
    assert only_unknown(run.commands[1].words[2]).name == "NODES"


def test_files_that_a_script_writes_are_kept_with_their_holes() -> None:
    script = 'Z=2\nF=ds.$RANDOM.json\ncat <<EOF > ./$F\n{"stage": $Z, "n": $N}\nEOF\ntrain --cfg $F'
    run = read_script(script)
    content = run.file(run.commands[-1].words[2])
    assert content is not None
    assert content.shown() == '{"stage": 2, "n": ${N}}\n'
    assert list(run.files) == ["ds.${RANDOM}.json"]


def test_a_file_beside_the_script_is_sourced_and_one_elsewhere_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "env.sh").write_text("N=4\n")
    (tmp_path / "secret.sh").write_text("N=5\n")
    (folder / "link.sh").symlink_to(tmp_path / "secret.sh")
    head = 'D=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\n'
    run = read_script(head + 'source "$D/env.sh"\ntrain $N', folder=folder)
    assert words(run) == ["train", "4"]
    for name in ("../secret.sh", str(tmp_path / "secret.sh"), "link.sh", "none.sh", "$X/env", "."):
        run = read_script(f"source {name}\ntrain $N", folder=folder)
        assert [each.line for each in run.not_sourced] == [1]
        assert only_unknown(run.commands[-1].words[1]).kind == "sourced"
        assert words(read_script(f"cat {name} | train $(cat {name})", folder=folder))[0] == "train"


def test_characters_that_stand_for_holes_cannot_be_smuggled_in() -> None:
    run = read_script("train \U000f0000 \U00100005", variables={"X": "\U00100000"})
    assert [word.text for word in run.commands[0].words[1:]] == ["\ufffd", "\ufffd"]
