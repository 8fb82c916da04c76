"""Runs of Vocabulary Parallelism (arXiv:2411.05288): steps from profiled passes, and estimates.

`benchmarks/vocabulary_runs.csv` has the facts and says where each is printed.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import trainwright
from trainwright.formats.calibration_toml import framework_memory
from trainwright.plans.schedule import ScheduleCosts
from trainwright.scheduling.families import FAMILIES, FamilyRequest
from trainwright.scheduling.simulate import simulate

FILE = Path(__file__).parents[1] / "benchmarks" / "vocabulary_runs.csv"
RANKS, MICROBATCHES, BLOCKS, HIDDEN, HEADS = 8, 128, 32, 3072, 24
PEAK_FLOPS = 312e12  # of an A100, as the authors' script has it


def rows() -> list[dict[str, str]]:
    """One for each method, length and vocabulary."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def name_of(row: dict[str, str]) -> str:
    """What a row is called."""
    return f"{row['method']}, {row['sequence']} tokens, vocabulary {row['vocabulary']}"


def family_of(row: dict[str, str]) -> str:
    """Both baselines are 1F1B."""
    return row["method"] if row["method"] in FAMILIES else "1f1b"


def simulated_step_s(row: dict[str, str]) -> float:
    """With the profiled passes; those of the embedding belong to F and B, and T has none."""
    passes = {
        name: np.array(row[f"{name}_us"].split(), np.float64) * 1e-6
        for name in ("forward", "backward", "head", "embed", "embed_back")
    }
    half_s = (passes["backward"] + passes["embed_back"]) / 2
    asked = FamilyRequest(num_ranks=RANKS, num_microbatches=MICROBATCHES)
    family = FAMILIES[family_of(row)]
    costs = ScheduleCosts.of(
        family.place(asked),
        forward_s=passes["forward"] + passes["embed"],
        input_grad_s=half_s,
        weight_grad_s=half_s,
        head_s=passes["head"],
        head_grad_s=0.0,
    )
    schedule = family.generate(replace(asked, costs=costs))
    return float(simulate(schedule, costs).makespan_s)


def mfu_step_s(row: dict[str, str]) -> float:
    """Seconds of the step whose MFU is printed, by the formula of the authors' script."""
    b, s, h = MICROBATCHES, int(row["sequence"]), HIDDEN
    block = 8 * b * s * h**2 + 4 * b * s**2 * h + 16 * b * s * h**2
    flops = 3 * (2 * b * s * h * int(row["vocabulary"]) + BLOCKS * block)
    return flops / (RANKS * PEAK_FLOPS * float(row["mfu_percent"]) / 100)


@cache
def _estimated(family: str, sequence: int, vocabulary: int, blocks: str) -> Any:
    model = {
        "model_type": "gpt2",
        "n_embd": HIDDEN,
        "n_layer": BLOCKS,
        "n_head": HEADS,
        "n_positions": sequence,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
    }
    model |= dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)
    with TemporaryDirectory() as folder:
        file = Path(folder, "gpt.json")
        file.write_text(json.dumps(model), encoding="utf-8")
        return trainwright.estimate(
            file,
            cluster="dgx-a100",
            devices=RANKS,
            pp=RANKS,
            tp=1,
            dp=1,
            micro_batch=1,
            global_batch=MICROBATCHES,
            sequence=sequence,
            precision="fp16",
            schedule=family,
            blocks=blocks.replace(" ", ","),
        ).document


def estimated(row: dict[str, str]) -> Any:
    """The document of an estimate of the run."""
    sizes = int(row["sequence"]), int(row["vocabulary"])
    return _estimated(family_of(row), *sizes, row["blocks"])


def reserved_gib(row: dict[str, str]) -> float:
    """What Megatron's allocator takes for the tensors of the estimate, typically."""
    typical = framework_memory("megatron").reserved.typical
    return float(estimated(row).peak_memory_bytes * typical / 2**30)
