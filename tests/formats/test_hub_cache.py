"""Hub ids are looked up in the local cache, and only there."""

import json
from pathlib import Path

import pytest

import trainwright
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.formats.hf_config import cached_config, hub_cache, is_hub_id

CONFIG = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 1000}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def put(cache: Path, hub_id: str, commit: str, config: dict[str, object] | None) -> Path:
    folder = cache / f"models--{hub_id.replace('/', '--')}" / "snapshots" / commit
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_cached_model_is_named_after_its_hub_id(cache: Path) -> None:
    put(cache, "someone/tiny-gpt", "abc", CONFIG)
    found = catalog.open_model("someone/tiny-gpt")
    assert found.name == "tiny-gpt"
    assert found.config.num_layers == 2


def test_the_main_branch_goes_before_newer_snapshots(cache: Path) -> None:
    main = put(cache, "a/b", "one", CONFIG)
    put(cache, "a/b", "two", CONFIG | {"n_layer": 3})
    (cache / "models--a--b" / "refs").mkdir()
    (cache / "models--a--b" / "refs" / "main").write_text("one\n")
    assert cached_config("a/b", cache=cache) == main / "config.json"


def test_a_snapshot_without_a_config_is_passed_over(cache: Path) -> None:
    put(cache, "a/b", "weights-only", None)
    kept = put(cache, "a/b", "whole", CONFIG)
    assert cached_config("a/b", cache=cache) == kept / "config.json"


def test_an_absent_model_is_refused_with_what_would_bring_it(cache: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        trainwright.plan("meta-llama/Llama-3", cluster="dgx-h100", global_batch=8, sequence=128)
    (fault,) = caught.value.faults
    assert '"meta-llama/Llama-3" is not in the local Hugging Face cache' in fault.problem
    assert "hf download meta-llama/Llama-3 config.json" in fault.problem
    assert str(cache) in fault.problem


def test_an_absent_model_that_is_built_in_is_pointed_out(cache: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        catalog.open_model("meta-llama/Meta-Llama-3-8B")
    assert 'use the catalog\'s "llama3-8b"' in str(caught.value)


def test_only_two_plain_parts_are_a_hub_id() -> None:
    assert is_hub_id("meta-llama/Meta-Llama-3.1-8B")
    for name in ("llama3-8b", "../etc/passwd", "a/b/c", "/abs/path", "a/..", "a/", "a b/c"):
        assert not is_hub_id(name)


def test_the_place_of_the_cache_follows_the_clients_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub_cache() == tmp_path / ".cache" / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    assert hub_cache() == tmp_path / "hf" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "own"))
    assert hub_cache() == tmp_path / "own"
