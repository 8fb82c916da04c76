"""The program as the system sees it: start, signals, pipes, encodings."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import trainwright.model
from small_profiles import write_json
from trainwright.commands.output import _spelled
from trainwright.formats.profile_json import write_profile
from trainwright.profile import ProfileFile

PROGRAM = (sys.executable, "-m", "trainwright")
HEAVY = {
    *("torch", "ortools", "matplotlib", "dask", "distributed"),
    *("numpy", "pydantic", "rich.console", "jinja2"),
}
PATIENCE_S = 120.0  # only to end a test that hangs


@pytest.fixture(scope="session")
def wide(tmp_path_factory) -> Path:
    """A profile that keeps the exact search busy for minutes, and has plans at once."""
    path = Path(__file__).parents[2] / "benchmarks" / "wide_graphs.py"
    spec = importlib.util.spec_from_file_location("wide_graphs", path)
    graphs = importlib.util.module_from_spec(spec)
    sys.modules["wide_graphs"] = graphs  # its dataclasses look their module up
    spec.loader.exec_module(graphs)
    profile = graphs.wide_profile(graphs.WideSpec(seed=1, degrees=(1, 2)))
    setting = graphs.wide_setting(profile, num_devices=256, tightness=0.5)
    content = write_profile(ProfileFile(profiles=(profile,), setting=setting))
    return write_json(tmp_path_factory.mktemp("wide") / "wide.json", content)


def call(*arguments: str, **settings) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        **settings,
    )


def test_the_module_is_the_program():
    done = call("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"trainwright {trainwright.__version__}\n"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("plan llama3-7", ["file,llama3-7", "plain,llama3-70b"]),
        ("plan x --cluster dgx-h", ["file,dgx-h", "plain,dgx-h100", "plain,dgx-h200"]),
        ("estimate x --schedule 1f1b,v-m", ["plain,1f1b,v-min"]),
        ("report out", ["file,out"]),
    ],
)
def test_a_shell_is_offered_names_and_files(words, offered, monkeypatch, run):
    monkeypatch.setenv("COMP_WORDS", f"trainwright {words}")
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ") + 1))
    monkeypatch.setenv("_TRAINWRIGHT_COMPLETE", "bash_complete")
    assert run().out.split() == offered


def test_the_script_of_a_shell_completes_the_program(run):
    assert "-F _trainwright_completion trainwright" in run("--completion", "bash").out


def test_a_name_from_outside_cannot_steer_the_terminal(folder, run):
    name = "x\x1b[31m\u202e.json"
    (folder / "small.json").rename(folder / name)
    done = run("plan", name, "--devices", "2", "--memory", "80GiB")
    assert done.code == 0
    assert done.out.startswith(r"x\x1b[31m\u202e.json: ")
    missing = run("plan", "no\x1b[31m.json", "--devices", "2")
    assert r"no\x1b[31m.json" in missing.err
    assert "\x1b" not in done.out + done.err + missing.out + missing.err


def test_errors_go_to_stderr_without_a_traceback(folder):
    done = call("plan", "small.json", "--memory", "80")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        'error: memory: a bare number is in bytes, got "80"; did you mean "80GiB"?\n'
    )


@pytest.mark.parametrize("module", ["trainwright", "trainwright.commands.main"])
def test_the_start_loads_nothing_heavy(module):
    code = f"import sys, {module}; print(*sorted({HEAVY} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_the_plan_of_a_profile_loads_no_planner_of_models(folder):
    """Half of the time of so small a question was spent on starting what it does not use."""
    code = """
import atexit, sys
rooms = ("planning", "step", "costing", "cluster", "scheduling", "frameworks", "chips")
rooms += ("model.config", "model.operator", "plans.configuration")
atexit.register(lambda: print([r for r in rooms if f"trainwright.{r}" in sys.modules]))
sys.argv = ["trainwright", "plan", "small.json", "--devices", "4", "--json"]
from trainwright_start import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert '"kind": "plan"' in done.stdout


def test_a_small_question_ends_without_looking_for_garbage(folder):
    code = """
import atexit, gc, sys
from trainwright_start import main
passes = []
gc.callbacks.append(lambda phase, _: phase == "start" and "trainwright.step" in sys.modules
                    and passes.append(len(gc.get_objects())))
atexit.register(lambda: print(passes, len(gc.get_objects()), "seen"))
sys.argv = ["trainwright", "plan", "small.json", "--cluster", "dgx-h100", "--global-batch", "64"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    last = done.stdout.splitlines()[-1]
    assert last.startswith("[] "), last  # none while it ran
    assert int(last.split()[-2]) < 1_000, last  # and nothing left to look through at the end


def test_the_names_of_a_model_are_those_that_are_typed():
    """They are loaded when they are first asked for, so no import at the start would say."""
    stub = ast.parse(Path(trainwright.model.__file__).with_suffix(".pyi").read_text())
    typed = {
        alias.name: getattr(importlib.import_module(node.module), alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {name: getattr(trainwright.model, name) for name in trainwright.model.__all__} == typed


def test_a_reader_that_leaves_is_no_error(folder):
    command = " ".join([*PROGRAM, "plan", "small.json", "--json"])
    done = subprocess.run(
        ["bash", "-c", f"{command} | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout in ("141\n", "0\n")  # 0 where all fitted into the pipe first
    assert done.stderr == ""


@pytest.mark.slow
def test_a_terminal_without_our_letters_shows_substitutes(folder):
    for encoding, duration in (("ascii", "335.5 us"), ("cp1252", "335.5 µs")):
        env = os.environ | {"PYTHONIOENCODING": encoding}
        done = call("plan", "small.json", env=env, encoding=encoding)
        assert done.returncode == 0
        assert duration in done.stdout
        assert "-----" in done.stdout
        assert "?" not in done.stdout


def test_columns_stay_under_each_other_where_arrows_are_spelled():
    table = (
        " change               step\n ────────\n tp 2→4, pp 8→4    62.9 s\n tp 2→4, dp   7.1 s\n"
    )
    assert _spelled(table, "utf-8") == table
    spelled = _spelled(table, "cp1252")
    assert spelled.splitlines()[2:] == [" tp 2->4, pp 8->4  62.9 s", " tp 2->4, dp  7.1 s"]
    assert [*map(len, spelled.splitlines())] == [*map(len, table.splitlines())]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_what_is_piped_is_as_wide_as_columns_says(run, monkeypatch, width):
    def printed(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        return run("plan", "small.json").out

    found, wide = printed(width), printed(400)
    assert max(map(len, found.splitlines())) <= width
    figures = {each.strip(";") for each in wide.split() if any(map(str.isdigit, each))}
    assert figures <= {each.strip(";") for each in found.split()}  # none is cut or left out


@pytest.mark.slow
def test_a_time_limit_ends_a_long_search_with_a_bound(wide):
    done = call("plan", wide, "--time-limit", "0.3s", "--json")
    document = json.loads(done.stdout)
    assert done.stderr == ""
    assert document["request"]["time_limit_s"] == 0.3
    assert document["interrupted"] is False
    if document["status"] == "unknown":
        assert done.returncode == 5
        assert "time_per_sample_s" not in document
    else:
        assert document["status"] == "gap"
        assert done.returncode == 0
        assert 0 < document["lower_bound_s"] <= document["time_per_sample_s"]
        assert document["gap"] > 1e-9


def test_ctrl_c_keeps_the_best_plan(wide):
    with watched("plan", wide, "--json") as (process, screen):
        read_until(screen, r"partitioning: \d+ s, best [\d.]+ s, gap [\d.]+%")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
        said = read_until(screen, "interrupted: keeping the best found so far")
    assert process.returncode == 130
    assert "Traceback" not in said
    document = json.loads(out)
    assert document["interrupted"] is True
    assert document["status"] == "gap"
    assert 0 < document["lower_bound_s"] < document["time_per_sample_s"]
    num_layers = len(document["request"]["model"]["content"]["points"][0]["layers"])
    placed = [layer for stage in document["stages"] for layer in stage["layers"]]
    assert sorted(placed) == list(range(num_layers))


@pytest.mark.slow
def test_ctrl_c_in_a_table_says_so(wide):
    with watched("plan", wide) as (process, screen):
        read_until(screen, r"best [\d.]+ s")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "interrupted: this is the best plan found so far" in out
    assert "gap <= " in out.splitlines()[0]


def test_a_second_ctrl_c_ends_a_search_that_does_not_listen():
    code = (
        "import time\n"
        "from trainwright.commands.output import budget\n"
        "with budget(None) as allowed:\n"
        "    while True:\n"
        "        print(allowed.interrupted, flush=True)\n"
        "        time.sleep(0.01)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "False\n"
        process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + PATIENCE_S
        while process.stdout.readline() != "True\n":
            assert process.poll() is None
            assert time.monotonic() < deadline, "the first Ctrl-C was not heard"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGINT  # a shell reports 130
    assert said == "\ninterrupted: keeping the best found so far\n"


@pytest.mark.slow
def test_ctrl_c_keeps_the_best_schedule():
    size = ("--ranks", "8", "--microbatches", "32", "--placement", "v", "--memory-limit", "8")
    endless = ("--forward", "1.3", "--comm", "0.05", "--evaluations", "1e9")  # misses its bound
    with watched("schedule", "--search", *size, *endless, "--json") as running:
        process, screen = running
        read_until(screen, r"search: \d+ s, best [\d.]+ s, gap [\d.]+%")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
        said = read_until(screen, "interrupted: keeping the best found so far")
    assert process.returncode == 130
    assert "Traceback" not in said
    document = json.loads(out)
    assert document["interrupted"] is True
    assert document["peak_activations"] <= 8
    assert 0 < document["lower_bound_s"] <= document["makespan_s"]


# Ctrl-C at the very moment that a module is looked for.
PRESSED_AT = """
import os, signal, sys, trainwright_start
signal.signal(signal.SIGINT, signal.default_int_handler)
moment = sys.argv.pop(1)
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
trainwright_start.main()
"""


@pytest.mark.parametrize(
    "module",
    [
        "trainwright",
        pytest.param("trainwright.commands.plan", marks=pytest.mark.slow),
        pytest.param("trainwright.commands.main", marks=pytest.mark.slow),
        "trainwright.documents.printing",
    ],
)
def test_ctrl_c_during_an_import_is_one_line(folder, module):
    before = sorted(folder.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", PRESSED_AT, module, "plan", "small.json"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted\n")
    assert sorted(folder.iterdir()) == before


def test_ctrl_c_while_a_file_is_written_leaves_it_whole(folder):
    code = (
        "import os, signal, sys, pathlib, trainwright_start\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "move = pathlib.Path.replace\n"
        "def press(self, target):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return move(self, target)\n"
        "pathlib.Path.replace = press\n"
        "trainwright_start.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "small.json", "-o", "plan.json"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted\n")
    assert sorted(path.name for path in folder.iterdir()) == ["plan.json", "small.json"]
    assert json.loads((folder / "plan.json").read_text(encoding="utf-8"))["status"] == "optimal"


@pytest.mark.parametrize(
    "module",
    [
        "trainwright",
        pytest.param("numpy", marks=pytest.mark.slow),
        pytest.param("trainwright.documents.printing", marks=pytest.mark.slow),
    ],
)
def test_a_background_job_does_not_hear_ctrl_c(folder, module):
    code = PRESSED_AT.replace("signal.default_int_handler", "signal.SIG_IGN")
    done = subprocess.run(
        [sys.executable, "-c", code, module, "plan", "small.json"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@contextmanager
def watched(*arguments) -> Iterator[tuple[subprocess.Popen, int]]:
    """The program with a terminal as stderr, so that it shows its progress there."""
    screen, terminal = pty.openpty()
    try:
        with subprocess.Popen(
            [*PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=terminal, text=True
        ) as process:
            os.close(terminal)
            try:
                yield process, screen
            finally:
                process.kill()
    finally:
        os.close(screen)


def read_until(screen: int, pattern: str) -> str:
    """What appears on the screen up to the first match of `pattern`."""
    seen, deadline = "", time.monotonic() + PATIENCE_S
    while not re.search(pattern, seen):
        left_s = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([screen], [], [], left_s)
        assert ready, f"{pattern!r} did not come in {PATIENCE_S} s, only {seen!r}"
        try:
            seen += os.read(screen, 4096).decode()
        except OSError as error:  # the program has ended
            raise AssertionError(f"{pattern!r} never came, only {seen!r}") from error
    return seen


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_pictures_of_memory_are_digits_where_a_stream_has_no_bars(encoding):
    spelled = _spelled("┬ rank 0 ▁▂▃▄▅▆▇█ · 3 mm²", encoding)
    assert spelled.encode(encoding).decode(encoding) == spelled
    assert spelled.startswith("+ rank 0 12345678 ")
