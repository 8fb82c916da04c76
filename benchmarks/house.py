"""How the code is built, in figures: files, lines, headers, circles, and rules told more than once.

    python benchmarks/house.py [--json]

Counts are read off the source, so anyone can repeat them. A rule's transcriptions are counted by
what its code cannot do without: the text that marks it is stated beside it.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src"
PACKAGE: Final = "trainwright"

# What marks a transcription: a file that matches all patterns of a line writes the rule out.
# A schedule family is named by its quoted registry name; one file defines it.
FAMILY: Final = re.compile(r"[\"']zb-h1[\"']")


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
    rooms: dict[str, int] = defaultdict(int)
    for name in known:
        rooms[".".join(name.split(".")[1:2]) or PACKAGE] += lines[name]
    return {
        "python_files": len(known),
        "python_lines": total,
        "header_share": round(sum(map(header_lines, trees.values())) / total, 3),
        "lines_by_room": dict(sorted(rooms.items(), key=lambda item: -item[1])),
        "longest_files": sorted(lines.items(), key=lambda item: -item[1])[:5],
        "median_file_lines": median(lines.values()),
        "median_function_lines": median(functions),
        "comments_per_100_lines": round(100 * comments / total, 1),
        "function_local_imports": sum(each.when == "local" for each in imported),
        "import_circles_at_start": circles(at_start),
        "import_circles_at_run_time": [len(group) for group in circles(at_run_time)],
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
        print(f"{name.replace('_', ' ')}: {value}")


if __name__ == "__main__":
    main()
