"""What `make wheel` refuses to ship."""

from __future__ import annotations

import io
import tarfile
import zipfile

from check_archives import IN_SOURCE, IN_WHEEL, faults, main, source_faults, wheel_faults

WHEEL = (
    "trainwright/__init__.py",
    "trainwright/py.typed",
    "trainwright/_native/_core.cpython-311-x86_64-linux-gnu.so",
    "trainwright/model/catalog/gpt2.toml",
    "trainwright/pages/assets/report_page.html.j2",
    "trainwright/pages/assets/gantt.css",
    "trainwright/pages/assets/gantt_draw.js",
    "trainwright_start/__init__.py",
    "trainwright-0.1.0.dist-info/entry_points.txt",
    "trainwright-0.1.0.dist-info/licenses/LICENSE",
)
SOURCE = (
    "CMakeLists.txt",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "Makefile",
    "native/bind/bindings.cpp",
    "native/partition/level_sweep.hpp",
    "src/trainwright/_native/__init__.py",
    "src/trainwright/model/catalog/gpt2.toml",
    "src/trainwright_start/__init__.py",
    "docs/conf.py",
    "docs/generated/__init__.py",
    "examples/profile.json",
    "tests/conftest.py",
    "wheels/check_archives.py",
)


def write_wheel(folder, names):
    path = folder / "trainwright-0.1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def write_source(folder, names):
    path = folder / "trainwright-0.1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"trainwright-0.1.0/{name}"), io.BytesIO())
    return path


def test_complete_archives_pass(tmp_path, capsys):
    assert not wheel_faults(write_wheel(tmp_path, WHEEL))
    assert not source_faults(write_source(tmp_path, SOURCE))
    assert main(tmp_path) == 0
    assert "hold what they must" in capsys.readouterr().out


def test_each_missing_file_is_named(tmp_path):
    for names, needed, write, check in (
        (WHEEL, IN_WHEEL, write_wheel, wheel_faults),
        (SOURCE, IN_SOURCE, write_source, source_faults),
    ):
        assert len(names) == len(needed)
        for index in range(len(names)):
            rest = [*names[:index], *names[index + 1 :]]
            assert check(write(tmp_path, rest)) == [f"lacks {needed[index]}"]


def test_reports_builds_and_sources_are_refused(tmp_path, capsys):
    write_wheel(tmp_path, [*WHEEL, "tests/conftest.py", "trainwright/_native/sweep.cpp"])
    write_source(tmp_path, [*SOURCE, "benchmarks/reports/x.md", ".ci/run", "build/venv/a.o"])
    assert main(tmp_path) == 1
    printed = capsys.readouterr().out
    for name in ("tests/conftest.py", "sweep.cpp", "reports/x.md", ".ci/run", "build/venv/a.o"):
        assert f"{name}\n" in printed


def test_a_name_must_match_whole():
    assert faults(["a/LICENSE.txt"], needed=[r"LICENSE"], unwanted=[r"a"]) == ["lacks LICENSE"]
