from __future__ import annotations

import gc
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from small_profiles import transformer, write_json
from trainwright.formats.piper_json import read_piper

# What is started in the background ignores Ctrl-C, and so do the programs that it starts in turn;
# some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Same examples on every run; no deadline, because the machines that run this differ widely.
settings.register_profile(
    "quick",
    deadline=None,
    derandomize=True,
    max_examples=6,  # the others in proportion, see random_cases
    suppress_health_check=[HealthCheck.too_slow],
)
# New examples on every run: pytest --hypothesis-profile=thorough
settings.register_profile(
    "thorough", settings.get_profile("quick"), derandomize=False, max_examples=400
)
settings.load_profile("quick")


# What is imported and collected stays: to look through it for garbage takes a tenth of a run.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """To collect without running uses no snapshot, and is no failure."""
    if config.option.collectonly:
        config.option.warn_unused_snapshots = True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Variants of laws that others hold are slow; what takes ten seconds runs with the papers."""
    here = Path(__file__).parent
    marks = {"variants.txt": pytest.mark.slow, "at_length.txt": pytest.mark.papers}
    named = {
        test: mark
        for name, mark in marks.items()
        for test in (here / name).read_text(encoding="utf-8").splitlines()
    }
    for item in items:
        if mark := named.get(item.nodeid.partition("tests/")[2]):
            item.add_marker(mark)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session")
def browser():
    """A Chromium that all tests of pages share; `Browser.open` sets its size and its theme."""
    from browser import chromium

    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def client():
    """A server that all tests of the live page share, with the usual limits."""
    from served import served

    with served() as made:
        yield made


@pytest.fixture
def noun():
    """A small profile."""
    return read_piper(transformer(), source="small.json")


@pytest.fixture
def path(tmp_path):
    """A small profile as a file."""
    return write_json(tmp_path / "small.json", transformer())
