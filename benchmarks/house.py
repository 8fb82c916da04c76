"""How the code is built, in figures: files, lines, headers, circles, and rules told more than once.

    python benchmarks/house.py [--json]

Counts are read off the source, so anyone can repeat them. A rule's transcriptions are counted by
what its code cannot do without: the text that marks it is stated beside it. Behind a count stands
what was wanted of it, and why it is missed where it is (`WANTED`).
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from io import StringIO
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src"
PACKAGE: Final = "trainwright"

# What marks a transcription: a file with a line of code that matches writes the rule out itself.
# Comments and docstrings do not count, and neither does a call of the function that has the rule.
#
#   exchange     what is exchanged less what hides it: `time - under`, `time - overlap * under`
#   state        bytes of state over the parts they are cut into
#   chain        (w - 1) forwards or backwards fill a wait: the recurrence of a chain of stages
#   hull         a corner of a lower hull is taken back
#   best first   the node of the least bound is taken off a heap
#   Piper        4 (d - 1) / d of the gradients: the published charge of replicas
RULES: Final = {
    "exchange": re.compile(r"(?<!1) - (?:\w+[._])*(?:under|overlap)\w*"),
    "state": re.compile(
        r"(?:static|state|shard(?:ed)?|optimizer|gradient|weight)_?(?:bytes)?\w*(?:\[[^\]]*\])?(?:\.\w+\(\))?"
        r" / (?:shards\(|parts|replicas|data|static_cast<double>\(d\)|\w*\.?data_degree|d\b)"
    ),
    "chain": re.compile(r"\((?:w|in_flight|warm_up) - 1\) \*"),
    "hull": re.compile(r"hull\w*\.(?:pop|pop_back)\("),
    "best first": re.compile(r"bound.*heappop\("),
    "Piper": re.compile(r"\b4(?:\.0)? \* \(\w+ - 1\)"),
}
# A schedule family is named by its quoted registry name; one file defines it.
FAMILY: Final = re.compile(r"[\"']zb-h1[\"']")
# A run is shaped by all options that change layers only where more than its size is given.
SHAPED: Final = re.compile(r"RunShape\([^)]*tensor_parallel=", re.S)
# Degrees in a class: so many of these names are its fields.
DEGREES: Final = frozenset(
    {"tensor", "pipeline", "data", "context", "expert", "tp", "pp", "dp", "cp", "ep"}
    | {"tensor_degree", "data_degree", "tensor_parallel", "pipeline_parallel", "data_parallel"}
)
_LEAST_DEGREES: Final = 2
_NUMBERS: Final = frozenset({"int", "int | None"})  # else a share of time, or a span of degrees
# Records of documents and of files have flat keys, which programs read.
_RECORDS: Final = ("trainwright.documents.", "trainwright.formats.")
# Small questions on which the way from the front door to the price of a step is counted.
_SMALL: Final = ("gpt2-xl", "--cluster", "dgx-h100", "--global-batch", "8", "--sequence", "1024")
# A question of the usual size, with all that is told of its plan.
_WHOLE: Final = (
    *("plan", "llama3-8b", "--cluster", "dgx-h100", "--devices", "16"),
    *("--global-batch", "64", "--sequence", "8192"),
)
# Frames that are no calls: from Python 3.12 on they are none.
_NO_CALLS: Final = ("<listcomp>", "<setcomp>", "<dictcomp>")
# What is wanted of a count, with the reason where it is missed.
WANTED: Final = {
    "python_files": "300 at most",
    "python_lines": "70,000; missed: statements are more, and none was found that nobody reaches",
    "lines_by_kind": "statements are the fewest lines that the same code can have",
    "header_share": "0.08 at most",
    "longest_files": "900 lines, but for one idea",
    "comments_per_100_lines": "where a reader would ask why; equations stand in docstrings",
    "function_local_imports": "for start-up of commands, extras and what is loaded by its name",
    "import_circles_at_start": "none",
    "import_circles_at_run_time": "none",
    "places_that_state_a_rule": "one of each, and a native one in a hot loop",
    "classes_with_degrees": "about 8",
    "calls_and_files_to_predict_step": "10 calls in 7 files at most",
    "ways_to_predict_step": "between the command and the price of a plan: the call and those asked "
    "in its place; a question with what fits its account; the parts of its space; the plans of a "
    "split; whether one fits",
    "functions_and_files_entered_by_a_plan": "640 in 115; missed by functions, of which half have "
    "at most 8 lines: a plan has more beside it, what its framework keeps, runners-up of other "
    "kinds, what people run",
    "files_that_name_zb-h1": "2",
    "docs_pages": "about 16",
    "docs_words": "30,000 at most",
}
FRONT_DOOR: Final = {
    "estimate": ("estimate", *_SMALL, "--tp", "1", "--pp", "2", "--dp", "4"),
    "plan": ("plan", *_SMALL, "--tp", "1", "--schedule", "1f1b"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import of a module of the package by another; `when` is top, local or typing."""

    source: str
    target: str
    when: str


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(name: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    """The imports of a module, wherever they stand."""

    def walk(node: ast.AST, when: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inside = when
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                inside = "typing"
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                inside = "local" if when == "top" else when
            if isinstance(child, ast.ImportFrom) and (child.module or "").startswith(PACKAGE):
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    target = full if full in known else str(child.module)
                    yield Import(source=name, target=target, when=inside)
            yield from walk(child, inside)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), "top")


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other (Tarjan 1972), larger than one."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while True:
                group.append(stack.pop())
                if group[-1] == node:
                    break
            if len(group) > 1:
                groups.append(sorted(group))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return groups


def header_lines(tree: ast.Module) -> int:
    """Lines of a file before its first statement that is neither docstring nor import."""
    for node in tree.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not (is_text or is_typing or isinstance(node, ast.Import | ast.ImportFrom)):
            return node.lineno - 1
    return tree.body[-1].end_lineno or 0 if tree.body else 0


def lines_by_kind(text: str, tree: ast.Module) -> Counter[str]:
    """Lines of a file by what they are; of a statement over several lines the first, and the rest.

    The first are the fewest lines that the code can have: a statement each, of any length, and
    neither docstrings, comments nor blank lines.
    """
    kinds = ["blank" if not line.strip() else "rest of statements" for line in text.splitlines()]
    for number, line in enumerate(text.splitlines()):
        if line.lstrip().startswith("#"):
            kinds[number] = "comments"
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            kinds[node.lineno - 1] = "statements"
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRINGS) and node.body and _is_text(node.body[0]):
            first = node.body[0]
            kinds[first.lineno - 1 : first.end_lineno] = ["docstrings"] * _height(first)
    return Counter(kinds)


_WITH_DOCSTRINGS: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _height(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def code_of(text: str) -> str:
    """Python without docstrings and comments, statement by statement."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [x for x in body if not _is_text(x)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def transcriptions(texts: dict[str, str], native: list[Path]) -> dict[str, dict[str, list[str]]]:
    """For each rule the files that write it out, in Python and in C++."""
    python = {name: code_of(text) for name, text in texts.items()}
    core = {
        str(path.relative_to(ROOT / "native")): re.sub(r"//.*", "", path.read_text("utf-8"))
        for path in native
    }
    return {
        rule: {
            language: sorted(name for name, text in files.items() if mark.search(text))
            for language, files in (("python", python), ("native", core))
        }
        for rule, mark in RULES.items()
    }


def classes_with_degrees(trees: dict[str, ast.Module]) -> list[str]:
    """Classes of which several fields are parallel degrees."""
    found = []
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                fields = {
                    item.target.id
                    for item in node.body
                    if isinstance(item, ast.AnnAssign)
                    and isinstance(item.target, ast.Name)
                    and ast.unparse(item.annotation) in _NUMBERS
                }
                if len(fields & DEGREES) >= _LEAST_DEGREES:
                    found.append(f"{name}.{node.name}")
    return sorted(found)


def _run_watched(
    arguments: tuple[str, ...], look: Callable[[FrameType, str, object], None]
) -> None:
    """Run the front door with nothing printed; `look` at every call."""
    from trainwright_start import main as front_door

    given, sys.argv = sys.argv, [PACKAGE, *arguments]
    sys.setprofile(look)
    try:
        with redirect_stdout(StringIO()), suppress(SystemExit):
            front_door()
    finally:
        sys.setprofile(None)
        sys.argv = given


def way_to(function: str, arguments: tuple[str, ...]) -> list[tuple[str, str]]:
    """Files and names of the calls inside the package from the front door to a function."""
    way: list[tuple[str, str]] = []

    def look(at: FrameType, event: str, _: object) -> None:
        if way or event != "call" or at.f_code.co_name != function:
            return
        frame: FrameType | None = at
        while frame is not None:
            own = frame.f_code.co_filename.startswith(str(SOURCE / PACKAGE))
            if own and frame.f_code.co_name not in _NO_CALLS:
                file = Path(frame.f_code.co_filename).relative_to(SOURCE)
                way.append((str(file), frame.f_code.co_qualname))
            frame = frame.f_back

    _run_watched(arguments, look)
    return way[::-1]


def entered(arguments: tuple[str, ...]) -> tuple[int, int]:
    """How many functions with a name of their own a command enters, and how many files with one."""
    found: set[CodeType] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.add(frame.f_code)

    _run_watched(arguments, look)
    own = [
        code
        for code in found
        if code.co_filename.startswith(str(SOURCE / PACKAGE))
        and code.co_flags & CO_OPTIMIZED  # neither a module nor the body of a class
        and not code.co_name.startswith("<")
    ]
    return len(own), len({code.co_filename for code in own})


def counts() -> dict[str, object]:
    """All figures by what they count."""
    known = modules()
    texts = {name: path.read_text(encoding="utf-8") for name, path in known.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = {name: text.count("\n") for name, text in texts.items()}
    imported = [i for name, path in known.items() for i in imports_of(name, path, known)]
    at_run_time: dict[str, set[str]] = defaultdict(set)
    at_start: dict[str, set[str]] = defaultdict(set)
    for each in imported:
        if each.when != "typing" and each.source != each.target:
            at_run_time[each.source].add(each.target)
            if each.when == "top":
                at_start[each.source].add(each.target)
    functions = [
        (node.end_lineno or 0) - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    total = sum(lines.values())
    comments = sum(len(re.findall(r"^\s*#", text, re.M)) for text in texts.values())
    native = [*(ROOT / "native").rglob("*.cpp"), *(ROOT / "native").rglob("*.hpp")]
    pages = sorted((ROOT / "docs").glob("*.md"))
    carriers = classes_with_degrees(trees)
    reached = entered(_WHOLE)  # first, as much is remembered
    ways = {name: way_to("predict_step", arguments) for name, arguments in FRONT_DOOR.items()}
    rooms: dict[str, int] = defaultdict(int)
    for name in known:
        rooms[".".join(name.split(".")[1:2]) or PACKAGE] += lines[name]
    return {
        "python_files": len(known),
        "python_lines": total,
        "lines_by_kind": dict(
            sum((lines_by_kind(text, trees[name]) for name, text in texts.items()), Counter())
        ),
        "header_share": round(sum(map(header_lines, trees.values())) / total, 3),
        "lines_by_room": dict(sorted(rooms.items(), key=lambda item: -item[1])),
        "longest_files": sorted(lines.items(), key=lambda item: -item[1])[:5],
        "median_file_lines": median(lines.values()),
        "median_function_lines": median(functions),
        "comments_per_100_lines": round(100 * comments / total, 1),
        "function_local_imports": sum(each.when == "local" for each in imported),
        "import_circles_at_start": circles(at_start),
        "import_circles_at_run_time": [len(group) for group in circles(at_run_time)],
        "places_that_state_a_rule": transcriptions(texts, native),
        "places_that_shape_a_run": sorted(n for n, text in texts.items() if SHAPED.search(text)),
        "classes_with_degrees": [n for n in carriers if not n.startswith(_RECORDS)],
        "records_with_degrees": [n for n in carriers if n.startswith(_RECORDS)],
        "calls_and_files_to_predict_step": {
            name: (len(way), len({file for file, _ in way})) for name, way in ways.items()
        },
        "ways_to_predict_step": {
            name: [f"{file} {call}" for file, call in way] for name, way in ways.items()
        },
        "functions_and_files_entered_by_a_plan": reached,
        "files_that_name_zb-h1": sorted(n for n, text in texts.items() if FAMILY.search(text)),
        "native_files": len(native),
        "native_lines": sum(path.read_text(encoding="utf-8").count("\n") for path in native),
        "docs_pages": len(pages),
        "docs_words": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
    }


def main() -> None:
    """Print the figures, as JSON where asked."""
    found = counts()
    if "--json" in sys.argv[1:]:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        wanted = f"   [wanted: {WANTED[name]}]" if name in WANTED else ""
        print(f"{name.replace('_', ' ')}: {value}{wanted}")


if __name__ == "__main__":
    main()
