"""Small questions of co-design that tests share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainwright.chips.request import CodesignQuestion, Objective
from trainwright.chips.space import DesignSpace, enumerate_designs, subspace
from trainwright.chips.workload import TrainingJob
from trainwright.cluster import Surroundings
from trainwright.formats.catalog import model
from trainwright.model import TransformerConfig
from trainwright.units import GIB

SPACE = enumerate_designs()


def job(
    name: str,
    sequence: int,
    degrees: tuple[int, ...],
    *,
    layers: int | None = None,
    schedules: tuple[str, ...] = ("1f1b",),
    **fields: int,
) -> TrainingJob:
    """A catalog model, perhaps with fewer layers, under 1F1B unless said otherwise."""
    config: TransformerConfig = model(name).config
    if layers is not None:
        config = replace(config, num_layers=layers)
    return TrainingJob(
        name=name,
        model=config,
        sequence_length=sequence,
        tensor_degrees=degrees,
        schedules=schedules,
        **{"global_batch": 256, **fields},
    )


GPT3 = job("gpt3-175b", 2048, (4, 8))
BERT = job("bert-large", 512, (1, 2))
GPT2_XL = job("gpt2-xl", 1024, (1,))


def some_designs(count: int, seed: int = 0) -> DesignSpace:
    """A random part of the whole space."""
    rows = np.random.default_rng(seed).choice(len(SPACE), count, replace=False)
    return subspace(SPACE, np.sort(rows))


def question(
    *jobs: TrainingJob,
    space: DesignSpace | None = None,
    devices: int = 256,
    memory_gib: float = 80,
    objective: Objective = Objective.GEOMETRIC,
    **fields: object,
) -> CodesignQuestion:
    """A search of 300 designs unless said otherwise."""
    return CodesignQuestion(
        space=some_designs(300) if space is None else space,
        jobs=jobs or (GPT3,),
        num_devices=devices,
        surroundings=(Surroundings(memory_bytes=memory_gib * GIB),),
        objective=objective,
        **fields,  # type: ignore[arg-type]
    )
