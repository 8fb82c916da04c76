"""What the wheel and the source archive in a folder must hold, and must not.

Run by `make wheel` on `dist`; also fails where there is more than one of either. Needs no package.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

IN_WHEEL = (
    r"trainwright/__init__\.py",
    r"trainwright/py\.typed",
    r"trainwright/_native/_core\.[^/]*(so|pyd)",
    r"trainwright/.*\.toml",  # the catalogs
    r"trainwright/pages/.*\.html\.j2",
    r"trainwright/pages/.*\.css",
    r"trainwright/pages/.*\.js",
    r"trainwright_start/__init__\.py",
    r"trainwright-[^/]*\.dist-info/entry_points\.txt",
    r"trainwright-[^/]*\.dist-info/licenses/LICENSE",
)
NOT_IN_WHEEL = (r".*\.(cpp|hpp|pyi\.in)", r"(tests|docs|benchmarks|examples|native|wheels)/.*")
IN_SOURCE = (
    r"CMakeLists\.txt",
    r"pyproject\.toml",
    r"README\.md",
    r"LICENSE",
    r"Makefile",
    r"native/bind/bindings\.cpp",
    r"native/.*\.hpp",
    r"src/trainwright/_native/__init__\.py",
    r"src/trainwright/.*\.toml",
    r"src/trainwright_start/__init__\.py",
    r"docs/conf\.py",
    r"docs/generated/__init__\.py",
    r"examples/profile\.json",
    r"tests/conftest\.py",
    r"wheels/check_archives\.py",
)
NOT_IN_SOURCE = (
    r"benchmarks/reports/.*",
    r"\.(ci|github|venv)[^/]*/.*",
    r"(build|dist|out)/.*",
    r".*\.(so|o|pyc)",
)


def faults(names: Iterable[str], *, needed: Iterable[str], unwanted: Iterable[str]) -> list[str]:
    """Patterns that no name matches, and names that match what must not be there."""
    names = list(names)
    missing = [f"lacks {each}" for each in needed if not any(re.fullmatch(each, n) for n in names)]
    refused = [name for name in names if any(re.fullmatch(each, name) for each in unwanted)]
    return missing + [f"holds {name}" for name in refused]


def wheel_faults(path: Path) -> list[str]:
    """What is wrong with a wheel."""
    with zipfile.ZipFile(path) as archive:
        return faults(archive.namelist(), needed=IN_WHEEL, unwanted=NOT_IN_WHEEL)


def source_faults(path: Path) -> list[str]:
    """What is wrong with a source archive, whose names lie in one folder."""
    with tarfile.open(path) as archive:
        names = [member.name.partition("/")[2] for member in archive if member.isfile()]
    return faults(names, needed=IN_SOURCE, unwanted=NOT_IN_SOURCE)


def main(folder: Path) -> int:
    """Print what is wrong; 0 where nothing is."""
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    found = [f"{wheel.name} {fault}" for fault in wheel_faults(wheel)]
    found += [f"{source.name} {fault}" for fault in source_faults(source)]
    print("\n".join(found) if found else f"{wheel.name} and {source.name} hold what they must")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
