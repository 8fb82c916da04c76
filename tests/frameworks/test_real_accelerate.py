"""Exported files through accelerate's own parser (1.15.0) and a real YAML reader."""

from __future__ import annotations

import pytest

from export_jobs import bundle, golden_jobs, job
from trainwright.frameworks.jobs.settings import parse_yaml
from trainwright.frameworks.nearest import check_bundle
from trainwright.frameworks.trainers import PREFIX
from trainwright.plans.job import Job
from trainwright.profile import Recompute

pytestmark = pytest.mark.exports
accelerate = pytest.importorskip("accelerate", reason="needs accelerate==1.15.0: make test-all")
yaml = pytest.importorskip("yaml", reason="needs pyyaml: make test-all")


def accelerate_jobs() -> dict[str, Job]:
    return {
        "fsdp": golden_jobs()["llama3-8b fsdp"],
        "zero 2 with tensor and context": job(
            "llama3-8b", data=4, tensor=2, context=2, sequence_parallel=True, zero_stage=2,
            global_batch=16, recompute=Recompute.NONE,
        ),
        "plain replicas": job("llama3-8b", data=8, zero_stage=0, global_batch=16),
    }  # fmt: skip


@pytest.mark.parametrize("name", accelerate_jobs())
def test_accelerate_reads_the_file(name: str) -> None:
    made = accelerate_jobs()[name]
    found = bundle(made, "accelerate")
    said = check_bundle(found, made)
    assert f"for {made.degrees.num_devices} processes" in said


@pytest.mark.parametrize("name", accelerate_jobs())
def test_the_degrees_make_a_parallelism_config(name: str) -> None:
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import TorchContextParallelConfig

    made = accelerate_jobs()[name]
    text = bundle(made, "accelerate").files["accelerate.yaml"]
    stated = yaml.safe_load(text).get("parallelism_config", {})
    values = {key.removeprefix(PREFIX): value for key, value in stated.items()}
    # Tensor parallelism makes it look for transformers, which is not installed for these tests.
    tensor, strategy = values.pop("tp_size", 1), values.pop("cp_comm_strategy", None)
    if strategy is not None:  # which the launcher hands on to the handler of context ranks
        assert TorchContextParallelConfig(cp_comm_strategy=strategy).cp_comm_strategy == strategy
    assert (strategy is not None) == (made.degrees.context > 1 and "cp_size" in values)
    parallel = ParallelismConfig(**values)
    if values:
        assert parallel.total_size * tensor == made.degrees.num_devices


@pytest.mark.parametrize("target", ["accelerate", "nanotron", "primus"])
def test_our_yaml_reads_alike_elsewhere(target: str) -> None:
    name = "llama3-8b fsdp" if target == "accelerate" else "mixtral ep 8"
    made = golden_jobs()[name]
    if target == "nanotron":
        made = job("llama3-8b", data=4, tensor=2, sequence_parallel=True, zero_stage=1,
                   global_batch=16)  # fmt: skip
    (text,) = (t for n, t in bundle(made, target).files.items() if n.endswith(".yaml"))
    assert yaml.safe_load(text) == parse_yaml(text)
