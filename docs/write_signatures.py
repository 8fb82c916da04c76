"""The public names with their types, `src/trainwright/__init__.pyi`: written from the table.

A verb that takes its options as keywords of the table is written out; what is written out in the
source is only named.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path

import trainwright

STUB = Path(trainwright.__file__).with_suffix(".pyi")
WIDTH = 100


def stub() -> str:
    """The whole file."""
    verbs, needed = [], {}
    for name, module in sorted(trainwright._HOMES.items()):
        value = getattr(trainwright, name)
        if "__signature__" in getattr(value, "__dict__", ()):
            made = _verb(name, inspect.signature(value))
            verbs.append(made)
            needed |= _imported(value.__module__, set(re.findall(r"\b[A-Z]\w+\b", made)))
        else:
            needed[name] = f"trainwright.{module}"
    head = '"""Public names with their types, written by docs/write_signatures.py."""'
    public = sorted(trainwright.__all__, key=lambda name: (name[0].islower(), name))
    names = "".join(f'    "{name}",\n' for name in public)
    lines = [head, "", *_imports(needed), "", "__all__ = [", f"{names}]", ""]
    return "\n".join([*lines, *verbs]) + "\n"


def _imports(needed: dict[str, str]) -> list[str]:
    """Sorted as ruff sorts them, the standard library first."""
    lines, was_ours = [], False
    for module in sorted(
        set(needed.values()), key=lambda each: (each[:12] == "trainwright.", each)
    ):
        is_ours = module.startswith("trainwright.")
        if is_ours and not was_ours:
            lines.append("")
        was_ours = is_ours
        names = [name for name in needed if needed[name] == module]
        names.sort(key=lambda name: (name[0].islower(), name))
        # What is public and not listed is said twice: so a stub hands on what it imports.
        unlisted = [name for name in names if name in trainwright._RESULTS]
        lines += [f"from {module} import {name} as {name}" for name in unlisted]
        names = [name for name in names if name not in unlisted]
        if not names:
            continue
        line = f"from {module} import {', '.join(names)}"
        if len(line) > WIDTH:
            line = f"from {module} import (\n" + "".join(f"    {n},\n" for n in names) + ")"
        lines.append(line)
    return lines


def _verb(name: str, signature: inspect.Signature) -> str:
    lines, is_keyword = [], False
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not is_keyword:
            lines.append("    *,")
            is_keyword = True
        default = "" if each.default is each.empty else " = ..."
        lines.append(f"    {each.name}: {each.annotation}{default},")
    return "\n".join([f"def {name}(", *lines, f") -> {signature.return_annotation}: ..."])


def _imported(module: str, names: set[str]) -> dict[str, str]:
    """Where the names come from: the imports of the module, or of the readers of options."""
    usual = dict.fromkeys(("Callable", "Iterable", "Mapping", "Sequence"), "collections.abc")
    found = {**usual, "Path": "pathlib", "Cluster": "trainwright.cluster"}
    tree = ast.parse(Path(sys.modules[module].__file__).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            found |= {alias.asname or alias.name: node.module for alias in node.names}
        if isinstance(
            node, (ast.ClassDef, ast.TypeAlias if hasattr(ast, "TypeAlias") else ast.ClassDef)
        ):
            found.setdefault(node.name, module)
    return {name: found[name] for name in names if name in found}


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
