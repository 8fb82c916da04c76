"""Ask the program every stored question and compare its answers with the stored ones.

A question is a command line, with the small files it names. The program is imported once; each
command then runs in a process forked from it, through the entry point of the console script, so
that nothing here knows a name inside the program, and a crash ends one question only.

What is kept of a document: its figures (compared to relative 1e-12), and hashes of four parts, the
decision, the request, the alternatives and all the rest, with floats at twelve significant digits.
Seconds of effort, versions and hashes of sources are left out, as they may change; counts of
effort are kept apart, and a change of them is told but is no difference. See README.md.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import io
import json
import math
import os
import pkgutil
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

HERE: Final = Path(__file__).parent
QUESTIONS: Final = HERE / "questions"
ANSWERS: Final = HERE / "answers"
EXCEPTIONS: Final = HERE / "exceptions.toml"
START_UP: Final = "start_up.json"

SHARED: Final = "TRAINWRIGHT_SHARED"
RELATIVE: Final = 1e-12
DIGITS: Final = 12
NOTHING: Final = 1e-15  # what is left of a difference of equal sums
WALL_LIMIT_S: Final = 300  # ends a question that hangs; such a question has no answer
LONGEST_ERROR: Final = 300

# What a run may change without changing the answer.
EFFORT_SECONDS: Final = frozenset(
    {"search_s", "solver_s", "front_s", "stage_s", "generate_s", "elapsed_s", "cpu_s", "wall_s"}
)
SOURCES: Final = frozenset(
    {
        "trainwright_version", "version", "sha256", "plan_sha256", "source_sha256", "bytes",
        "command_line",
    }
)  # fmt: skip
# How much was searched: told apart, as a better bound may lower it without another answer.
EFFORT_COUNTS: Final = frozenset(
    {"considered", "pruned", "not_reached", "evaluated", "expanded", "nodes_searched", "priced"}
)
# What is decided, as documents of any kind call it.
DECISION: Final = frozenset(
    {
        "assignment", "best_plan", "changes", "chip", "cuts", "design", "micro_batch", "order",
        "orders", "parallelism", "placement", "plan", "plans", "recommended", "schedule", "stages",
        "actions",
    }
)  # fmt: skip
ALTERNATIVES: Final = frozenset({"alternatives", "front", "rows", "points", "without", "gains"})
# Documents inside documents, whose figures are kept too.
INNER: Final = ("run", "best_plan", "recommended", "before", "after", "plan")
# Figures that follow from others that are kept; they are in a hash all the same.
DERIVED: Final = frozenset(
    {
        "format_version", "step_time_low_s", "step_time_high_s", "tokens_per_s",
        "tokens_per_s_per_device", "optimizer_s", "exposed_gradient_sync_s",
        "memory_limit_bytes", "num_recomputed", "num_stages", "micro_batch",
    }
)  # fmt: skip

# What a rank says again of its pool, its chain and its share of the step.
OF_RANKS: Final = frozenset(
    {
        "chain", "rank", "pool", "device_kind", "count", "num_microbatches", "busy",
        "memory_bytes", "memory_limit_bytes", "margin_bytes",
    }
)  # fmt: skip

_HEX = re.compile(r"\b[0-9a-f]{64}\b")
_VERSION = re.compile(r"\btrainwright [0-9]+\.[0-9]+\.[0-9a-z.]+")
_SEARCHED = re.compile(
    r"(?im)^.*(\b(search|searched|solved|solver)\b.*\b(s|ms|min)\b|layouts considered,).*$"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Commands to run one after another in one folder, and the files they find there."""

    name: str
    group: str
    commands: tuple[tuple[str, ...], ...]
    files: Mapping[str, str] = field(default_factory=dict)
    shared: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Exempt:
    """A difference that is no fault, and why: a tie broken otherwise, or a defect mended."""

    question: str
    keys: tuple[str, ...]
    reason: str

    def covers(self, difference: Difference) -> bool:
        key = difference.key.rpartition(":")[2]
        return fnmatchcase(difference.question, self.question) and any(
            fnmatchcase(key, pattern) for pattern in self.keys
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One key of one question: `key` is N:NAME for command N where several run."""

    question: str
    key: str
    stored: object
    new: object


# Questions


def read_questions(folder: Path = QUESTIONS) -> list[Question]:
    """Every stored question; raises `ValueError` where two have one name."""
    questions = [
        _question(json.loads(line), path.stem)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
        if line.strip()
    ]
    twice = [name for name, count in Counter(q.name for q in questions).items() if count > 1]
    if twice:
        raise ValueError(f"questions with one id: {', '.join(twice)}")
    return questions


def _question(record: Mapping[str, Any], group: str) -> Question:
    return Question(
        name=record["id"],
        group=group,
        commands=(tuple(record["argv"]), *map(tuple, record.get("after", ()))),
        files=record.get("files", {}),
        shared=record.get("shared", False),
    )


def read_exceptions(path: Path = EXCEPTIONS) -> list[Exempt]:
    """What may differ; raises `ValueError` for one without a reason."""
    if not path.exists():
        return []
    exempts = []
    for entry in tomllib.loads(path.read_text()).get("exception", ()):
        if not entry.get("reason"):
            raise ValueError(f"exception without a reason: {entry}")
        exempts.append(
            Exempt(question=entry["question"], keys=tuple(entry["keys"]), reason=entry["reason"])
        )
    return exempts


# What is kept of an answer


def canonical(value: Any) -> Any:
    """The value without effort and sources, with floats as text of twelve digits."""
    if isinstance(value, dict):
        left_out = EFFORT_SECONDS | SOURCES | EFFORT_COUNTS
        found = {key: canonical(item) for key, item in value.items() if key not in left_out}
        if isinstance(ranks := found.get("ranks"), list):
            found["ranks"] = [_bare(rank) for rank in ranks]
        return found
    if isinstance(value, list):
        return [canonical(item) for item in value]
    if isinstance(value, float):
        return "0" if abs(value) < NOTHING else format(value, f".{DIGITS}g")
    return value


def _bare(rank: Any) -> Any:
    """A rank without what other keys of its document say too."""
    if not isinstance(rank, dict):
        return rank
    return {key: item for key, item in rank.items() if key not in OF_RANKS}


def hash_of(value: Any) -> str:
    """Of a canonical value; the order of keys is no part of it."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parts_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The canonical document in parts: what is decided, asked, second best, and all else."""
    parts: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, value in canonical(document).items():
        if key in INNER and isinstance(value, dict) and "kind" in value:
            for part, inner in parts_of(value).items():
                parts[part][key] = inner
        elif key in DECISION:
            parts["decision"][key] = value
        elif key == "request":
            parts["request"][key] = value
        elif key in ALTERNATIVES:
            parts["alternatives"][key] = value
        else:
            parts["rest"][key] = value
    return parts


def figures_of(document: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers at the top of a document, and of the documents in it, that say how good it is."""
    kept: dict[str, float] = {}
    left_out = DERIVED | EFFORT_SECONDS | EFFORT_COUNTS | SOURCES
    for key, value in document.items():
        if key in INNER and isinstance(value, dict):
            kept |= figures_of(value, f"{prefix}{key}.")
        elif key not in left_out and (value or not prefix) and _is_number(value):
            kept[prefix + key] = value
    return kept


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def effort_of(document: Any) -> int:
    """All counts of effort in a document in one number; 0 if it has none."""
    if isinstance(document, dict):
        return sum(
            value if key in EFFORT_COUNTS and isinstance(value, int) else effort_of(value)
            for key, value in document.items()
        )
    return sum(map(effort_of, document)) if isinstance(document, list) else 0


def answer_of(exit_code: int, out: str, err: str, written: Mapping[str, str]) -> dict[str, Any]:
    """What is kept of one command: texts are normalised, `written` maps new files to theirs."""
    answer: dict[str, Any] = {"exit": exit_code}
    document = _parsed(out)
    if isinstance(document, dict) and document.get("kind") == "refusal":
        document, out = None, ""  # it says what the error says
    if isinstance(document, dict):
        if "status" in document:
            answer["status"] = document["status"]
        answer["figures"] = figures_of(document)
        answer |= {part: hash_of(value) for part, value in sorted(parts_of(document).items())}
        if effort := effort_of(document):
            answer["effort"] = effort
    elif out.strip():
        answer["rest"] = hash_of(_text(out) if document is None else canonical(document))
    if err.strip():
        text = _plain(err).strip()
        if exit_code:
            digest = f" … {hash_of(text)}" if len(text) > LONGEST_ERROR else ""
            answer["error"] = text[:LONGEST_ERROR] + digest
        else:
            answer["messages"] = hash_of(text)
    if written:
        answer["files"] = hash_of({name: _file(text) for name, text in written.items()})
    return answer


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _file(text: str) -> Any:
    document = _parsed(text)
    return _text(text) if document is None else canonical(document)


def _text(text: str) -> str:
    """Without hashes, versions and the lines that say how long or how much was searched."""
    return _plain(_SEARCHED.sub("", text))


def _plain(text: str) -> str:
    return _VERSION.sub("trainwright", _HEX.sub("HASH", text))


# Comparison


def differences(
    question: str, stored: Mapping[str, Any] | None, new: Mapping[str, Any], *, effort: bool = False
) -> Iterator[Difference]:
    """Keys of an answer that changed, counts of effort among them only where `effort`."""
    if stored is None:
        yield Difference(question=question, key="answer", stored=None, new="no answer is stored")
        return
    before, after = stored["commands"], new["commands"]
    if len(before) != len(after):
        yield Difference(question=question, key="commands", stored=len(before), new=len(after))
    for number, (old, now) in enumerate(zip(before, after, strict=False)):
        prefix = f"{number}:" if len(after) > 1 else ""
        flat_old, flat_now = _flat(old), _flat(now)
        for key in sorted(flat_old.keys() | flat_now.keys()):
            if (key == "effort") != effort:
                continue
            first, second = flat_old.get(key), flat_now.get(key)
            if not _same(first, second):
                yield Difference(question=question, key=prefix + key, stored=first, new=second)


def _flat(answer: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in answer.items() if key != "figures"}
    return {**rest, **answer.get("figures", {})}


def _same(first: object, second: object) -> bool:
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return math.isclose(first, second, rel_tol=RELATIVE, abs_tol=NOTHING)
    return first == second


# Running


def import_program() -> None:
    """Everything the program is made of, once; what needs an extra that is absent is passed over.

    A command that runs later in a fork then spends its time on the answer.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import trainwright

    for found in pkgutil.walk_packages(
        trainwright.__path__, "trainwright.", onerror=lambda _name: None
    ):
        if not found.name.endswith("__main__"):
            try:
                importlib.import_module(found.name)
            except ImportError:
                continue
    import trainwright_start  # noqa: F401

    gc.collect()
    gc.freeze()  # nothing of this is ever freed: a fork need not look at it


def ask(question: Question, *, limit_s: int, shared: str) -> dict[str, Any]:
    """The answer of the program as it is now, with its CPU seconds.

    A command that runs out of `limit_s` seconds of wall has exit code "limit": no answer at all.
    """
    own = Path(tempfile.mkdtemp(prefix="corpus-")).resolve()
    folder = own / "model"  # what a `config.json` in it is called
    folder.mkdir()
    try:
        for name, text in question.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("{shared}", shared))
        answers, cpu_s, seen = [], 0.0, _files(folder)
        for command in question.commands:
            arguments = [word.replace("{shared}", shared) for word in command]
            code, used_s, out, err = _run(arguments, folder, limit_s)
            cpu_s += used_s
            now = _files(folder)
            written = {
                name: _placed(text, folder, shared)
                for name, text in now.items()
                if seen.get(name) != text
            }
            seen = now
            out, err = _placed(out, folder, shared), _placed(err, folder, shared)
            answers.append(answer_of(code, out, err, written))
            if code == -signal.SIGALRM:
                break
        return {"id": question.name, "commands": answers, "cpu_s": round(cpu_s, 3)}
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _placed(text: str, folder: Path, shared: str) -> str:
    text = text.replace(str(folder), "{folder}")
    return text.replace(shared, "{shared}") if shared else text


def _files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_bytes().decode(errors="replace")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _run(arguments: Sequence[str], folder: Path, limit_s: int) -> tuple[int, float, str, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            _become(arguments, folder, limit_s, out.fileno(), err.fileno())
        _, state, used = os.wait4(child, 0)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return os.waitstatus_to_exitcode(state), used.ru_utime + used.ru_stime, texts[0], texts[1]


def _become(arguments: Sequence[str], folder: Path, limit_s: int, out: int, err: int) -> None:
    """Be the program, to the end of the process."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(limit_s)
        os.chdir(folder)
        # Models are found in the catalog and in given files, never in a cache of this machine.
        os.environ |= {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "HF_HOME": str(folder)}
        os.environ.pop(SHARED, None)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8")
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w", closefd=False), encoding="utf-8", write_through=True
        )
        sys.argv = ["trainwright", *arguments]
        from trainwright_start import main

        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        # A defect of the program is an answer, too; its trace names lines, which may move.
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def ask_all(
    questions: Sequence[Question], *, jobs: int, limit_s: int, shared: str
) -> Iterator[dict[str, Any]]:
    """Answers, as they come; `jobs` questions are asked at a time."""
    waiting = list(reversed(questions))
    running: dict[int, Question] = {}
    with tempfile.TemporaryDirectory(prefix="corpus-answers-") as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                question = waiting.pop()
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        answer = ask(question, limit_s=limit_s, shared=shared)
                        Path(folder, str(os.getpid())).write_text(json.dumps(answer))
                        code = 0
                    finally:
                        os._exit(code)
                running[child] = question
            child, state = os.wait()
            question = running.pop(child)
            if state:
                raise RuntimeError(f"the runner failed on {question.name}")
            yield json.loads(Path(folder, str(child)).read_text())


# Start-up, of whole processes

_STARTED: Final = {
    "help": ("--help",),
    "plan": (
        "plan", "profile.json", "--devices", "4", "--memory", "16GiB", "--bandwidth", "25GiB/s",
        "--microbatches", "8",
    ),
    "estimate": (
        "estimate", "llama3-8b", "--cluster", "dgx-h100", "--nodes", "1", "--tp", "2", "--pp", "1",
        "--dp", "4", "--zero", "1", "--global-batch", "64", "--sequence", "4096", "--json",
    ),
}  # fmt: skip


def start_up(repeats: int = 5) -> dict[str, float]:
    """CPU seconds of whole processes, and of a fixed loop of this interpreter; best of several."""
    program = "from trainwright_start import main; main()"
    example = HERE.parents[1] / "examples" / "profile.json"
    best = {"loop": min(_loop_s() for _ in range(repeats))}
    for name, arguments in _STARTED.items():
        words = [str(example) if word == "profile.json" else word for word in arguments]
        times_s = []
        for _ in range(repeats):
            before = _children_s()
            done = subprocess.run(
                [sys.executable, "-c", program, *words], capture_output=True, check=False
            )
            times_s.append(_children_s() - before)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.decode()}")
        best[name] = min(times_s)
    return {name: round(seconds, 4) for name, seconds in best.items()}


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _loop_s() -> float:
    """How fast this machine is just now, to read ratios by."""
    started_s, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number * number % 7
    return time.process_time() - started_s


# Stored answers


def read_answers(folder: Path = ANSWERS) -> dict[str, dict[str, Any]]:
    """Every stored answer, by the name of its question."""
    records = (
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
        if line.strip()
    )
    return {record["id"]: record for record in records}


def store(
    questions: Iterable[Question], answers: Mapping[str, dict[str, Any]], groups: set[str]
) -> None:
    """Write the answers of these groups, one line each, in the order of the questions."""
    ANSWERS.mkdir(exist_ok=True)
    lines: dict[str, list[str]] = defaultdict(list)
    for question in questions:
        if question.group in groups and question.name in answers:
            record = answers[question.name]
            lines[question.group].append(
                json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"
            )
    for group, texts in lines.items():
        (ANSWERS / f"{group}.jsonl").write_text("".join(texts))


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 1 where an answer differs."""
    options = _options(arguments)
    every = read_questions()
    chosen = [
        question
        for question in every
        if (not options.group or question.group in options.group)
        and (not options.only or any(fnmatchcase(question.name, glob) for glob in options.only))
    ]
    if not chosen:
        print("no question is named so")
        return 2
    if options.list:
        for question in chosen:
            print(question.name, *(" ".join(words) for words in question.commands), sep="\n    ")
        return 0
    shared = os.environ.get(SHARED, "")
    shared = str(Path(shared).resolve()) if shared else ""
    asked = [question for question in chosen if shared or not question.shared]
    if skipped := len(chosen) - len(asked):
        print(f"{skipped} questions skipped: they need reference data, {SHARED} is not set")
    stored, exempts = read_answers(), read_exceptions()
    import_program()
    group_of = {question.name: question.group for question in every}
    answers: dict[str, dict[str, Any]] = {}
    found, excused, efforts, endless = [], [], [], []
    for answer in ask_all(asked, jobs=options.jobs, limit_s=options.wall_limit, shared=shared):
        name = answer["id"]
        answers[name] = answer
        if answer["commands"][-1]["exit"] == -signal.SIGALRM:
            endless.append(name)
            print(f"{name}: no answer within {options.wall_limit} s")
            continue
        efforts += differences(name, stored.get(name), answer, effort=True) if stored else ()
        for difference in differences(name, stored.get(name), answer):
            reason = next((e.reason for e in exempts if e.covers(difference)), None)
            (excused if reason else found).append(difference)
            if not options.store:
                _print(difference, reason)
    _print_cpu(answers, stored, group_of)
    started = {} if options.no_start_up else start_up()
    _print_start_up(started)
    same = len(answers) - len({difference.question for difference in found}) - len(endless)
    print(
        f"{len(answers)} questions: {same} as stored, {len(found)} differences,"
        f" {len(excused)} excepted, {len({d.question for d in efforts})} with another effort,"
        f" {len(endless)} without an answer"
    )
    if options.json:
        summary = {
            "differences": [_record(difference) for difference in found],
            "excepted": [_record(difference) for difference in excused],
            "effort": [_record(difference) for difference in efforts],
            "without_answer": endless,
            "cpu_s": round(sum(answer["cpu_s"] for answer in answers.values()), 3),
            "start_up_s": started,
        }
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    if options.store:
        kept = {name: answer for name, answer in answers.items() if name not in endless}
        store(every, {**stored, **kept}, {question.group for question in chosen})
        if started:
            (ANSWERS / START_UP).write_text(json.dumps(started) + "\n")
        return 1 if endless else 0
    return 1 if found or endless else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="GLOB", help="questions named so")
    parser.add_argument("--group", action="append", metavar="NAME", help="of this file")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="questions at a time")
    parser.add_argument("--store", action="store_true", help="write the answers")
    parser.add_argument("--list", action="store_true", help="print the questions alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a summary")
    parser.add_argument("--no-start-up", action="store_true", help="do not time whole processes")
    parser.add_argument("--wall-limit", type=int, default=WALL_LIMIT_S, metavar="SECONDS")
    return parser.parse_args(arguments)


def _print(difference: Difference, reason: str | None) -> None:
    why = f"  (excepted: {reason})" if reason else ""
    print(f"{difference.question}  {difference.key}{why}")
    print(f"    stored {difference.stored!r}\n    new    {difference.new!r}", flush=True)


def _record(difference: Difference) -> dict[str, object]:
    return {
        "question": difference.question,
        "key": difference.key,
        "stored": difference.stored,
        "new": difference.new,
    }


def _print_cpu(
    answers: Mapping[str, Mapping[str, Any]],
    stored: Mapping[str, Mapping[str, Any]],
    group_of: Mapping[str, str],
) -> None:
    """Ratios are over questions that have a stored answer, and of one machine: read them so."""
    now: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    both: Counter[str] = Counter()
    before: Counter[str] = Counter()
    for name, answer in answers.items():
        for group in (group_of[name], "all"):
            counts[group] += 1
            now[group] += answer["cpu_s"]
            if name in stored:
                both[group] += answer["cpu_s"]
                before[group] += stored[name]["cpu_s"]
    print(f"{'group':<14}{'questions':>10}{'CPU s':>10}{'stored':>10}{'ratio':>8}")
    for group in sorted(now, key=lambda name: (name == "all", name)):
        ratio = f"{both[group] / before[group]:.2f}" if before[group] else "-"
        print(f"{group:<14}{counts[group]:>10}{now[group]:>10.1f}{before[group]:>10.1f}{ratio:>8}")


def _print_start_up(started: Mapping[str, float]) -> None:
    path = ANSWERS / START_UP
    before = json.loads(path.read_text()) if path.exists() else {}
    for name, seconds in started.items():
        ratio = f"  {seconds / before[name]:.2f} of stored" if name in before else ""
        what = "a loop of Python, for scale" if name == "loop" else f"start-up of {name}"
        print(f"{what}: {seconds:.3f} s of CPU{ratio}")


if __name__ == "__main__":
    sys.exit(main())
