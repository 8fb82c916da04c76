"""A script is data from a stranger: what it may cost is bounded, and any text has an answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import needs_reference, reference
from trainwright.errors import InvalidInput
from trainwright.frameworks.shell import read_script

DOUBLED = "\n".join(f"A{k + 1}=$A{k}$A{k}$A{k}$A{k}" for k in range(30))


@pytest.mark.parametrize(
    "script",
    [
        "A0=aaaaaaaa\n" + DOUBLED + "\ntrain $A30",
        DOUBLED,  # of a variable that is not set
        "A=(1 2 3 4)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40,
        "while true; do i=$((i+1)); done",
        "for ((;;)); do i=$((i+1)); done",
        "f() { f; f; }; f",
        "f() { n=$((n+1)); eval f; }; f",
        'X=\'eval "$X"\'; eval "$X"',
        "echo {1..9999999}",
        "train " + "{a,b}" * 40,
        "train " + "{1..999}{1..999}",
        "x=" + "$(echo " * 60 + ")" * 60,
        "x=" + "$((" * 200,
        "x=" + "${a:-" * 2000,
        "(" * 3000,
        "if true; then " * 2000,
        "seq 1 99999999 | while read x; do :; done; for i in {1..40000}; do y=$y$i; done",
        "[[ " + "a" * 40 + " =~ ^(a+)+$b ]]; [[ " + "a" * 400 + " == *a*a*a*a*a*b ]]",
        "case " + "a" * 2000 + " in *a*a*a*a*a*a*b) ;; esac; Y=${X//*a*a*a*b/}",
        "printf '%0999999999d' 1; printf -v X '%s' {1..40000}; " + "X=$X$X\n" * 20,
        "echo '9^9^9^9^9' | bc; x=$((9**9**9**9)); expr 9 : '\\(9*\\)*x'",
        "cat > a.sh <<'E'\n. ./a.sh\n. ./a.sh\nE\n. ./a.sh",
        "cat > a.sh <<'E'\nbash a.sh\nbash a.sh\nE\nbash a.sh",
        "x=$(" + "[ -f /x ] && " * 3000 + "true)",
        "\n".join(f"if [ -f /x{k} ]; then A=$A{k}; fi" for k in range(3000)),
        "train '" + "x" * 200_000,
        "a" * 200_000,
        '"' * 100_001,
        "$" * 100_000,
        "${x'" * 20_000,
        "{" * 100_000 + ",",
        "[[ " + "a " * 50_000 + "]]",
        "case x in " + "a|" * 50_000 + "b) ;; esac",
        "x=$((" + "1+" * 20_000 + "1))",
        "<" * 50_000 + "EOF",
        "a=(" * 30_000,
        "$[" * 45_000,
        "=~ " * 30_000,
        "(( a" * 20_000,
        "case x in\n a) y;;\n" * 5000,
        "X=a;" * 30_000,
        "\n".join(f"cat <<E{k}\nx\nE{k}" for k in range(3000)),
    ],
    ids=range(42),
)
def test_no_script_takes_long_or_much(script: str) -> None:
    start_s = time.process_time()
    try:
        read_script(script)
    except InvalidInput as error:
        assert str(error)
    assert time.process_time() - start_s < 5


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("A0=aaaaaaaa\n" + DOUBLED, "line 9: the script comes to a text of more than"),
        ("\nwhile true; do i=$((i+1)); done", "line 2: the script comes to more than"),
        ("f() { f; }\nf", "more than 32 levels of calls"),
        ("\n\necho {1..9999999}", "line 3: the script comes to a list of more than"),
        ("x" * 300_000, "must have at most"),
        ("a\0b", "must be text"),
    ],
)
def test_a_bound_is_named_with_the_line(script: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_script(script)


@needs_reference
@pytest.mark.parametrize("name", ["bomb.sh", "long.sh"])
def test_scripts_that_once_broke_the_program_are_read_or_refused_at_once(name: str) -> None:
    text = (reference() / "attacks" / name).read_text()
    start_s = time.process_time()
    try:
        read_script(text)
    except InvalidInput as error:
        assert name == "bomb.sh", error
    assert time.process_time() - start_s < 0.5


SEEDS = (Path(__file__).parent / "cases.txt").read_text().split("\n%%\n")
SCRAPS = [
    *("$(", "${", "}", ")", '"', "'", "`", "((", "))", "[[", "]]", "if ", "fi\n", "then "),
    *("else ",),
    *(
        "done\n",
        "do ",
        "while true; do ",
        "case x in ",
        "esac",
        "<<EOF\n",
        "EOF\n",
        "|",
        "&&",
        "||",
    ),
    *(";", "&", "\\", "\n", "$((", "*", "{a,b}", "{1..9}", "=", "+=", "[@]", "$@", "$#", "eval "),
    *(
        "source ",
        "exit ",
        "f() { ",
        "f; ",
        "declare -A ",
        "local ",
        "set -e\n",
        "shift\n",
        "<(",
        "<",
    ),
    *(">>", "bash -c ", "x=$x$x;", "unset ", "read a <<< ", "printf ", "sed s/", "99999999", "**"),
    *("?:", "\U000f0001", "\U00100001", "é", "\t", "--", "srun ", "${!", "${#", "${x//", ":-"),
]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.sampled_from([0, 0, 1, 5, 30])))
        put = draw(st.sampled_from(SCRAPS)) * draw(st.sampled_from([1, 1, 1, 3, 20]))
        text = text[:at] + put + text[end:]
    return text


@settings(max_examples=300, deadline=None)
@given(mutated())
def test_any_text_is_read_or_refused_with_a_reason(script: str) -> None:
    try:
        run = read_script(script, arguments=["--x", "a b"])
    except InvalidInput as error:
        assert str(error)
    else:
        for command in run.commands:
            assert all(word.parts == tuple(word.parts) for word in command.words)
        try:
            run.trainer()
        except InvalidInput as error:
            assert error.faults
