"""Another PyTorch is refused with a clear word, before anything runs."""

from __future__ import annotations

import pytest

from trainwright.errors import UnsupportedFeature

pytestmark = pytest.mark.torch


def test_the_installed_pytorch_has_the_runtime():
    from trainwright.lab.gloo_steps import find_runtime

    assert find_runtime().__name__ == "_PipelineScheduleRuntime"


def test_a_pytorch_without_the_runtime_is_refused(monkeypatch):
    from torch.distributed import pipelining

    from trainwright.lab.gloo_steps import find_runtime

    monkeypatch.delattr(pipelining.schedules, "_PipelineScheduleRuntime")
    with pytest.raises(UnsupportedFeature, match=r"has no pipeline runtime .*; use torch 2\.13"):
        find_runtime()


def test_a_pytorch_that_cannot_load_lowered_files_is_refused(monkeypatch):
    from torch.distributed import pipelining

    from trainwright.lab.gloo_steps import find_runtime

    runtime = pipelining.schedules._PipelineScheduleRuntime
    monkeypatch.setattr(runtime, "_load_csv", lambda self, filename: None)
    with pytest.raises(UnsupportedFeature, match="cannot load lowered schedules"):
        find_runtime()
