"""What a script passes to programs, held to what a real bash passes to them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.frameworks.shell import read_script

CASES = (Path(__file__).parent / "cases.txt").read_text().split("\n%%\n")
PROBE = 'probe() { printf "%s\\0" "$#" "$@"; }\n'
NEEDS_BASH = pytest.mark.skipif(shutil.which("bash") is None, reason="compares with bash")


def passed_by_bash(script: str, arguments: list[str], folder: Path) -> list[list[str]]:
    (folder / "s.sh").write_text(PROBE + script)
    done = subprocess.run(
        ["bash", "s.sh", *arguments],
        cwd=folder,
        capture_output=True,
        timeout=20,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
    )
    parts = done.stdout.decode().split("\0")[:-1]
    found = []
    while parts:
        count = int(parts[0].rpartition("\n")[2])
        found.append(parts[1 : 1 + count])
        parts = parts[1 + count :]
    return found


def passed_here(script: str, arguments: list[str]) -> list[list[str | None]]:
    run = read_script(script, name="s.sh", arguments=arguments)
    probes = [each.words[1:] for each in run.commands if each.words[0].text == "probe"]
    return [[word.text for word in words] for words in probes]


@NEEDS_BASH
@pytest.mark.parametrize("case", CASES)
def test_arguments_are_those_that_bash_passes(case: str, tmp_path: Path) -> None:
    arguments: list[str] = []
    if case.startswith("#args "):
        head, case = case.split("\n", 1)
        arguments = head.split()[1:]
    assert passed_here(case, arguments) == passed_by_bash(case, arguments, tmp_path)


OPERATORS = ["+", "-", "*", "&", "|", "^", "<", ">", "<=", "==", "!=", "&&", "||", "<<", ">>"]
LETTERS = st.text("ab ,:=\t'\"\\$*{}[]()#~!-/\n;&|<>`?", max_size=12)


@NEEDS_BASH
@settings(max_examples=40, deadline=None)
@given(value=LETTERS, other=LETTERS)
def test_values_go_through_quotes_splitting_and_arrays_as_in_bash(value: str, other: str) -> None:
    single = value.replace("'", "'\\''")
    script = f"""set -f  # names of files are not expanded here
X='{single}'
A=("$X" $X "a$X"b)
probe "$X" $X "${{A[@]}}" "${{#X}}" "${{X%a*}}" "${{X#*a}}" "${{X/a/Z}}" x${{X}}y
for w in $X; do probe "$w"; done
case "$X" in a*) probe begins;; *b) probe ends;; *) probe other;; esac
[[ $X == *a* ]] && probe has
Y=$(cat <<'EOF'
{value}
EOF
)
"""
    with tempfile.TemporaryDirectory() as folder:
        assert passed_here(script, [other]) == passed_by_bash(script, [other], Path(folder))


@NEEDS_BASH
@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.integers(0, 40).map(str) | st.sampled_from(["a", "b", "-a", "!b", "~a"]),
        lambda inner: (
            st.builds(
                "({} {} {})".format,
                inner,
                st.sampled_from(
                    [
                        "+",
                        "-",
                        "*",
                        "&",
                        "|",
                        "^",
                        "<",
                        ">",
                        "<=",
                        "==",
                        "!=",
                        "&&",
                        "||",
                        "<<",
                        ">>",
                    ]
                ),
                inner,
            )
            | st.builds("({} ? {} : {})".format, inner, inner, inner)
        ),
        max_leaves=6,
    )
)
def test_expressions_have_the_value_that_bash_gives_them(expression: str) -> None:
    script = f"a=7; b=3; probe $(( {expression} ))\n"
    with tempfile.TemporaryDirectory() as folder:
        assert passed_here(script, []) == passed_by_bash(script, [], Path(folder))
