"""Peaks of ranks as PyTorch's own tensors hold them, for many layouts: makes `dry_runs.csv`.

    python benchmarks/dry_runs.py               run all cases again and write the table
    python benchmarks/dry_runs.py --only TEXT   cases whose name holds TEXT, printed
    python benchmarks/dry_runs.py --missing     those that the table lacks, added at its end

Every case runs `lab/rank_program.py` on fake tensors (no GPU, no weights): FSDP2, tensor, context,
expert and pipeline parallelism are PyTorch's. Models have their own widths and `BLOCKS` of their
blocks, which all are alike. Of long pipelines the first two ranks, the middle and the last are run.
About 8 CPU minutes.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from trainwright.documents.runs import job_of_configuration
from trainwright.formats.catalog import cluster
from trainwright.formats.catalog import model as catalog_model
from trainwright.frameworks.dry_run import case_of
from trainwright.lab.verify_runs import RankDryRun, dry_runs
from trainwright.model import Recipe, TransformerConfig
from trainwright.plans import Parallelism
from trainwright.plans.configuration import Configuration
from trainwright.profile import Recompute

BATCH = 12
# Load of the heaviest expert over the mean, with which every fourth case of experts that are dealt
# out runs again.
HOT = 4.0
# Every tenth runs again with gradients that are reduced in 16 bit.
NARROW = "bf16"
BLOCKS = 16
TABLE = Path(__file__).parent / "dry_runs.csv"
DEGREES = ("tensor", "context", "pipeline", "data", "expert", "virtual_stages", "state_copies")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A catalog model and the run of it."""

    model: str
    run: Configuration

    @property
    def name(self) -> str:
        """Model, degrees and settings in one word."""
        degrees = self.run.parallelism
        parts = [
            f"{letter}{getattr(degrees, name)}"
            for letter, name in zip("tcpdevr", DEGREES, strict=True)
        ]
        sizes = f"s{self.run.sequence_length}-b{self.run.microbatch_size}"
        sizes += f"-m{self.run.num_microbatches}"
        hot = [f"hot{load:g}" for load in self.run.recipe.expert_loads]
        narrow = [f"sum{self.run.recipe.reduce_dtype}"] if self.run.recipe.reduce_dtype else []
        named = self.run.schedule in ("1f1b", "interleaved")
        order = [] if named else [self.run.schedule]
        pieces = [f"l{self.run.recipe.loss_chunk}"] if self.run.recipe.loss_chunk else []
        more = (*hot, *narrow, *pieces, *order)
        settings = (f"z{degrees.zero_stage}", self.run.recompute, sizes, *more)
        return "-".join((self.model, *parts, *settings))


# Of each model: layouts as (tensor, context, pipeline, data, expert, zero, microbatches, virtual
# stages, copies), recomputation modes, sequence lengths.
Layout = tuple[int, int, int, int, int, int, int, int, int]
NONE, SOME, ALL = Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL
Layouts = tuple[list[Layout], tuple[Recompute, ...], tuple[int, ...]]
MODELS: dict[str, Layouts] = {
    "llama3-8b": (
        [
            (1, 1, 1, 8, 1, 3, 1, 1, 1),
            (1, 1, 1, 64, 1, 3, 2, 1, 1),
            (1, 1, 1, 16, 1, 2, 1, 1, 2),
            (2, 1, 1, 4, 1, 3, 1, 1, 1),
            (8, 1, 1, 8, 1, 3, 1, 1, 1),
            (1, 2, 1, 4, 1, 3, 1, 1, 1),
            (1, 8, 1, 8, 1, 3, 1, 1, 1),
            (1, 1, 2, 4, 1, 2, 4, 1, 1),
            (2, 1, 4, 4, 1, 2, 8, 1, 1),
            (1, 1, 2, 4, 1, 2, 4, 2, 1),
        ],
        (NONE, SOME, ALL),
        (8192, 16384),
    ),
    "llama2-13b": (
        [(1, 1, 1, 16, 1, 3, 1, 1, 1), (4, 1, 1, 8, 1, 3, 2, 1, 1)],
        (NONE, ALL),
        (4096, 8192),
    ),
    "llama3-70b": (
        [
            (8, 1, 1, 16, 1, 3, 1, 1, 1),
            (1, 1, 1, 256, 1, 3, 1, 1, 1),
            (4, 4, 1, 16, 1, 3, 1, 1, 1),
            (8, 1, 4, 4, 1, 2, 8, 1, 1),
        ],
        (SOME, ALL),
        (8192, 32768),
    ),
    "llama3-405b": (
        [
            (8, 1, 1, 64, 1, 3, 1, 1, 1),
            (8, 2, 1, 64, 1, 3, 1, 1, 1),
            (8, 1, 8, 8, 1, 2, 8, 1, 1),
        ],
        (SOME, ALL),
        (8192, 32768),
    ),
    "qwen3-32b": (
        [(1, 1, 1, 32, 1, 3, 1, 1, 1), (4, 1, 2, 8, 1, 2, 4, 1, 1)],
        (NONE, ALL),
        (4096, 16384),
    ),
    "mixtral-8x7b": (
        [(1, 1, 1, 32, 1, 3, 1, 1, 1), (1, 1, 1, 32, 8, 3, 1, 1, 1), (1, 2, 2, 16, 8, 2, 4, 1, 1)],
        (NONE, SOME, ALL),
        (4096, 16384),
    ),
    "qwen3-30b-a3b": (
        [(1, 1, 1, 32, 1, 3, 1, 1, 1), (1, 1, 1, 32, 16, 3, 1, 1, 1), (1, 1, 4, 16, 8, 2, 8, 1, 1)],
        (NONE, SOME, ALL),
        (4096, 16384),
    ),
}
# Rows that came later, at the end of the table: tied words, layer norms and learned positions,
# biases, and experts beside tensor parallelism.
LATER: dict[str, Layouts] = {
    "gpt2-large": (
        [
            (1, 1, 1, 8, 1, 3, 1, 1, 1),
            (1, 1, 1, 4, 1, 2, 2, 1, 1),
            (2, 1, 1, 4, 1, 3, 1, 1, 1),
            (1, 1, 2, 4, 1, 2, 4, 1, 1),
            (2, 1, 2, 2, 1, 2, 4, 1, 1),
        ],
        (NONE, SOME, ALL),
        (512, 1024),
    ),
    "qwen2-1.5b": (
        [(1, 1, 1, 8, 1, 3, 1, 1, 1), (2, 1, 1, 4, 1, 3, 2, 1, 1), (1, 1, 2, 4, 1, 2, 4, 1, 1)],
        (NONE, SOME, ALL),
        (4096, 16384),
    ),
    "mixtral-8x7b": (
        [
            (2, 1, 1, 16, 8, 3, 1, 1, 1),
            (2, 1, 1, 16, 1, 3, 1, 1, 1),
            (4, 1, 2, 4, 8, 2, 4, 1, 1),
            (2, 1, 2, 8, 4, 2, 4, 2, 1),
        ],
        (NONE, SOME, ALL),
        (4096, 16384),
    ),
    "qwen3-30b-a3b": (
        [(2, 1, 1, 16, 16, 3, 1, 1, 1), (2, 1, 4, 4, 8, 2, 8, 1, 1)],
        (NONE, SOME, ALL),
        (4096, 16384),
    ),
}
# Then, states that every replica has whole.
UNSHARDED: dict[str, Layouts] = {
    "llama3-8b": (
        [
            (1, 1, 1, 8, 1, 0, 1, 1, 1),
            (1, 1, 1, 1, 1, 0, 2, 1, 1),
            (1, 1, 1, 8, 1, 0, 2, 1, 1),
            (2, 1, 1, 4, 1, 0, 1, 1, 1),
            (1, 1, 2, 4, 1, 0, 4, 1, 1),
        ],
        (NONE, SOME, ALL),
        (4096, 8192),
    ),
    "gpt2-large": (
        [(1, 1, 1, 8, 1, 0, 1, 1, 1), (2, 1, 2, 2, 1, 0, 4, 1, 1)],
        (NONE, SOME, ALL),
        (512, 1024),
    ),
    "qwen3-32b": ([(4, 1, 2, 8, 1, 0, 4, 1, 1)], (NONE, ALL), (4096,)),
    "mixtral-8x7b": (
        [(1, 1, 1, 8, 1, 0, 1, 1, 1), (4, 1, 1, 2, 1, 0, 2, 1, 1)],
        (NONE, ALL),
        (4096,),
    ),
}
# Then, states alone shared (Megatron-Core's way), and a loss of so many tokens at a time.
STATES_SHARED: dict[str, Layouts] = {
    "llama3-8b": (
        [
            (1, 1, 1, 8, 1, 1, 1, 1, 1),
            (2, 1, 1, 4, 1, 1, 2, 1, 1),
            (1, 2, 1, 4, 1, 1, 1, 1, 1),
            (1, 1, 2, 4, 1, 1, 4, 1, 1),
        ],
        (NONE, SOME, ALL),
        (4096, 8192),
    ),
    "gpt2-large": ([(2, 1, 1, 4, 1, 1, 1, 1, 1)], (NONE, ALL), (1024,)),
    "qwen3-30b-a3b": ([(1, 1, 1, 16, 8, 1, 2, 1, 1)], (NONE, ALL), (4096,)),
}
STATES_IN_V: Layouts = ([(1, 1, 2, 4, 1, 1, 4, 2, 1)], (NONE,), (4096, 8192))
IN_PIECES = 1024
PIECES: dict[str, Layouts] = {
    "llama3-8b": (
        [(1, 1, 1, 8, 1, 3, 1, 1, 1), (1, 2, 1, 4, 1, 2, 2, 1, 1), (1, 1, 1, 8, 1, 1, 1, 1, 1)],
        (NONE, SOME, ALL),
        (4096, 8192),
    ),
    "qwen2-1.5b": ([(1, 1, 1, 8, 1, 3, 1, 1, 1)], (NONE, ALL), (4096, 16384)),
    "qwen3-30b-a3b": ([(1, 1, 1, 16, 8, 3, 1, 1, 1)], (ALL,), (4096,)),
}
# Then, orders that split the backward or place stages in a V.
ORDERS: dict[str, dict[str, Layouts]] = {
    "zb-h1": {
        "llama3-8b": (
            [(1, 1, 4, 4, 1, 2, 8, 1, 1), (2, 1, 4, 4, 1, 2, 8, 1, 1)],
            (NONE,),
            (4096, 8192),
        ),
        "qwen3-30b-a3b": ([(1, 1, 4, 16, 8, 2, 8, 1, 1)], (NONE,), (4096,)),
    },
    "zb-1p": {"qwen2-1.5b": ([(1, 1, 2, 4, 1, 2, 4, 1, 1)], (NONE,), (4096, 16384))},
    "2bp": {"llama3-8b": ([(1, 1, 2, 4, 1, 2, 4, 1, 1)], (NONE,), (4096,))},
    "zb-v": {
        "llama3-8b": (
            [
                (1, 1, 4, 4, 1, 2, 8, 2, 1),
                (4, 1, 2, 4, 1, 2, 4, 2, 1),
                (1, 2, 2, 4, 1, 2, 4, 2, 1),
                (2, 1, 2, 4, 1, 0, 4, 2, 1),
            ],
            (NONE,),
            (4096, 8192),
        ),
        "llama3-70b": ([(8, 1, 4, 4, 1, 2, 8, 2, 1)], (NONE,), (8192,)),
        "llama3-405b": ([(8, 1, 8, 8, 1, 2, 16, 2, 1)], (NONE,), (8192,)),
        "mixtral-8x7b": (
            [(1, 1, 2, 16, 8, 2, 4, 2, 1), (2, 1, 2, 8, 4, 2, 4, 2, 1)],
            (NONE,),
            (4096,),
        ),
        "gpt2-large": ([(1, 1, 2, 4, 1, 2, 4, 2, 1)], (NONE,), (512, 1024)),
    },
    "dualpipe-v": {"llama3-8b": ([(1, 1, 4, 4, 1, 2, 8, 2, 1)], (NONE,), (4096, 8192))},
    "v-half": {
        "llama3-8b": ([(1, 1, 4, 4, 1, 2, 8, 2, 1)], (NONE,), (8192,)),
        "qwen3-32b": ([(4, 1, 2, 8, 1, 2, 4, 2, 1)], (NONE,), (4096,)),
    },
    "v-min": {"llama3-8b": ([(2, 1, 4, 4, 1, 2, 8, 2, 1)], (NONE,), (8192,))},
}


def cases() -> Iterator[Case]:
    """Every case, in the order of the table."""
    alike = list(_alike(MODELS))
    yield from alike
    dealt = [case for case in alike if case.run.parallelism.expert > 1]
    for case in dealt[::4]:
        hot = replace(case.run.recipe, expert_loads=(HOT,))
        yield replace(case, run=replace(case.run, recipe=hot))
    for case in alike[::10]:
        narrow = replace(case.run.recipe, reduce_dtype=NARROW)
        yield replace(case, run=replace(case.run, recipe=narrow))
    yield from _alike(LATER)
    yield from _alike(UNSHARDED)
    for schedule, models in ORDERS.items():
        yield from _alike(models, schedule)
    yield from _alike(STATES_SHARED)
    for case in _alike(PIECES):
        pieces = replace(case.run.recipe, loss_chunk=IN_PIECES)
        yield replace(case, run=replace(case.run, recipe=pieces))
    yield from _alike({"llama3-8b": STATES_IN_V}, "zb-v")


def _alike(models: dict[str, Layouts], schedule: str | None = None) -> Iterator[Case]:
    """Those in which experts, if any, take equally many tokens; 1F1B unless said otherwise."""
    for model, (layouts, modes, lengths) in models.items():
        chosen = product(enumerate(layouts), enumerate(modes), enumerate(lengths))
        for (i, layout), (j, mode), (k, length) in chosen:
            if len(modes) > 2 and (i + j + k) % 2:  # every second of the largest squares
                continue
            t, c, p, d, e, zero, m, v, copies = layout
            degrees = Parallelism(
                tensor=t,
                context=c,
                pipeline=p,
                data=d,
                expert=e,
                expert_tensor=1 if e > 1 else None,
                virtual_stages=v,
                sequence_parallel=t > 1,
                zero_stage=zero,
                state_copies=copies,
            )
            yield Case(
                model=model,
                run=Configuration(
                    parallelism=degrees,
                    microbatch_size=1,
                    global_batch=m * d,
                    sequence_length=length,
                    schedule=schedule or ("interleaved" if v > 1 else "1f1b"),
                    recompute=mode,
                    vocabulary_multiple=1,
                    recipe=Recipe(precision="bf16"),
                ),
            )


def model_of(case: Case) -> TransformerConfig:
    """The catalog's model with fewer blocks."""
    return replace(catalog_model(case.model).config, num_layers=BLOCKS)


def program_case(case: Case, model: TransformerConfig) -> dict[str, Any]:
    """The case as the program reads it, with the ranks that are worth a run."""
    job = job_of_configuration(case.run, model, cluster("dgx-h100"), model_name=case.model)
    last = case.run.parallelism.pipeline - 1
    made = case_of(job)
    return made | {"name": case.name, "ranks": sorted({0, min(1, last), last // 2, last})}


def rows_of(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """A row of the table for every rank that was run; one process for all, which saves a start."""
    made = [program_case(case, model_of(case)) for case in cases]
    by_name = {case.name: case for case in cases}
    return [row_of(by_name[run.name], run) for run in dry_runs(made)]


def row_of(case: Case, run: RankDryRun) -> dict[str, Any]:
    """What was asked, and what the rank held."""
    degrees = case.run.parallelism
    return {
        "name": case.name,
        "model": case.model,
        "blocks": BLOCKS,
        **{name: getattr(degrees, name) for name in DEGREES},
        "zero_stage": degrees.zero_stage,
        "recompute": str(case.run.recompute),
        "sequence_length": case.run.sequence_length,
        "microbatch_size": case.run.microbatch_size,
        "num_microbatches": case.run.num_microbatches,
        "schedule": case.run.schedule,
        "reduce_dtype": case.run.recipe.reduce_dtype or "fp32",
        "loss_chunk": case.run.recipe.loss_chunk or 0,
        "expert_load": next(iter(case.run.recipe.expert_loads), 1.0),
        "rank": run.rank,
        "allocated_bytes": int(run.allocated_bytes),
        "static_bytes": int(run.static_bytes),
        "by_class": json.dumps(run.by_class),
        "torch": run.torch,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=None, help="cases whose name holds this, printed")
    parser.add_argument("--missing", action="store_true", help="add what the table lacks")
    asked = parser.parse_args()
    chosen = [case for case in cases() if asked.only is None or asked.only in case.name]
    rows: list[dict[str, Any]] = []
    if asked.missing:
        with TABLE.open(newline="", encoding="utf-8") as file:
            rows += csv.DictReader(file)
        known = {row["name"] for row in rows}
        chosen = [case for case in chosen if case.name not in known]
    for first in range(0, len(chosen), BATCH):
        made = rows_of(chosen[first : first + BATCH])
        rows += made
        for row in made:
            size = f"{row['allocated_bytes'] / 2**30:.2f} GiB"
            print(f"{first}: {row['name']} rank {row['rank']}: {size}", file=sys.stderr)
        if asked.only is None or asked.missing:
            with TABLE.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
