"""The template set to real chips, held to their training runs: `real_chips.py DIR...`.

Each chip of `CHIPS` is described as a design is: cores, lanes, buffers, clock, memory. Its measured
runs are priced four ways: by the roofline of its catalog entry with the constants pooled for it, by
its cores with the same constants, by its cores with what its family, the power it may draw and the
software say where no run of the chip was fitted (`codesign --like CHIP` before anyone measured it),
and by its cores with what is known of no device at all (`codesign`). Left out are rows in fewer
than 16 bits, as the template multiplies one format, tests of software, rows whose pace the host
sets, and those of pipelines that stall. Prints a table of errors, and the furthest rows.
Without folders it prints what the hungriest operator of each chip draws by the energies of its
process, beside its published power.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.chips.price import EnergyTable, JobPricer
from trainwright.chips.request import CodesignQuestion
from trainwright.chips.space import DieModel, area_mm2, space_of
from trainwright.chips.technology import dies, losses_of, read_technology, with_losses
from trainwright.chips.workload import TrainingJob
from trainwright.cluster import ChipTemplate, Circumstance, Surroundings, template_device
from trainwright.commands.validate import known
from trainwright.errors import TrainwrightError
from trainwright.formats.catalog import model
from trainwright.formats.measured_csv import measured_files, read_beside, read_measured
from trainwright.lab.fitting import answer
from trainwright.lab.pooling import Pool, around, pooled, pooled_runs, power_shifts, refit_without
from trainwright.lab.predict import price
from trainwright.lab.run_shapes import cluster_of, config_of, line_of
from trainwright.step.account import circumstances
from trainwright.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainwright.cluster import Calibration
    from trainwright.cluster.calibration import PooledEfficiencies
    from trainwright.formats.measured_csv import MeasuredRun
    from trainwright.lab.pooling import PooledFit
    from trainwright.lab.predict import Question
    from trainwright.lab.run_shapes import Known, SoftwareLine

MOST_ROWS = 60  # of a table and chip, evenly chosen
SHOWN = 4
WAYS = ("roofline", "cores", "cores, unseen", "cores, of no device")
STALLING = ("nanotron",)  # software whose pipelines stall for a reason that no plan states


# Cores, clock, and the bytes a clock from the buffer that all share: of GPUs what the second-level
# cache moves (NVIDIA's architecture papers: 5,120 on both). On Hopper two multiprocessors of a
# cluster get at once what one of them reads (multicast, ibid.), so that two equal tiles take three
# operands in place of four. TPU v5p has the cores of v4.
L2_BYTES, MULTICAST = 5120.0, 4 / 3
A100, H100, TPU = (dies()[name].cores for name in ("A100-80GB-SXM", "H100-80GB-SXM", "TPU-v4"))
CHIPS = {
    "A100-40GB-SXM": (A100, 1.41e9, L2_BYTES),
    "A100-80GB-SXM": (A100, 1.41e9, L2_BYTES),
    "H100-80GB-SXM": (H100, 1.83e9, L2_BYTES * MULTICAST),
    "H100-96GB-HBM2e-500W": (H100, 1.83e9, L2_BYTES * MULTICAST),
    "TPU-v4": (TPU, 1.05e9, 8192.0),
    "TPU-v5p": (TPU, 1.75e9, 8192.0),
}


def as_cores(question: Question, line: SoftwareLine, constants: Calibration) -> Question:
    """The question on the cores of its chip, with these constants."""
    pool = question.cluster.pool_of()
    device = pool.accelerator
    chip, clock_hz, port = CHIPS[device.name]
    assert chip is not None
    cores = template_device(
        chip,
        Surroundings(
            clock_hz=clock_hz,
            memory_bytes=device.usable_bytes,
            memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
            glb_bytes_per_cycle=port,
        ),
        name=device.name,
    )
    made = constants.on_pool(replace(pool, accelerator=cores))
    return replace(question, cluster=replace(question.cluster, pools=(made,)))


def priced(run: MeasuredRun, found: Known, unseen: PooledEfficiencies) -> tuple[float, ...] | None:
    """Seconds of a step each way; None for a row that the template does not express."""
    line = line_of(run)
    if line.software.kind in STALLING or run.states_arguments:  # a test states its arguments
        return None
    asked = answer(run, line, config_of(run, line, found), cluster_of(run, line, found)).question
    if asked.configuration.recipe.precision not in (None, "bf16", "fp16"):
        return None
    held = circumstances(asked.model, asked.cluster, asked.configuration)
    if Circumstance.HOST_BOUND in held:
        return None
    assert found.efficiencies is not None
    known_of = (
        found.efficiencies.calibration(run.accelerator, line.software),
        unseen.calibration(run.accelerator, line.software),
        found.efficiencies.calibration("a chip design", line.software),
    )
    questions = (asked, *(as_cores(asked, line, constants) for constants in known_of))
    return tuple(price(one).step_time_s for one in questions)


def without_runs_of(
    chips: Iterable[str], pool: Pool, found: PooledFit
) -> dict[str, PooledEfficiencies]:
    """What all runs but those of each chip say."""
    made = {}
    for chip in chips:
        own = [number for number, run in enumerate(pool.runs) if run.device == chip]
        made[chip] = pooled(pool, refit_without(pool, found, own), {})
    return made


# What chips draw, and what is published of that
# ----------------------------------------------
# A layer of GPT-3 in bf16 over eight chips, which lose what their family does. Every energy is that
# of the chip's process in `technology.toml`; none was fitted to a power limit. Each chip runs at
# its own clock at the nominal voltage, and its die is the published one.


class Published(NamedTuple):
    """A chip as a design, with its published power and die; memory in bytes/s, links of a chip."""

    cores: ChipTemplate
    clock_hz: float
    port: float
    memory: float
    links: float
    process: str
    die_mm2: float
    watts: float | None
    like: str


V100 = ChipTemplate(
    num_tc=80,  # multiprocessors of 512 multipliers with 352 KiB of registers and shared memory
    num_vc=160,
    width=16,
    depth=32,
    glb_bytes=6 * MIB,
    buffer_bytes_per_mac=352 * KIB // 512,
)
assert A100 and H100 and TPU
POWERS = {
    "TPU v4": Published(TPU, 1.05e9, 8192.0, 1.2e12, 300e9, "7nm", 600, 192, "tpu"),
    "TPU v5p": Published(TPU, 1.75e9, 8192.0, 2.765e12, 600e9, "5nm", 600, None, "tpu"),
    "A100 80 GB": Published(A100, 1.41e9, L2_BYTES, 2.0e12, 300e9, "7nm", 826, 400, "ampere"),
    "H100 SXM": Published(
        H100, 1.83e9, L2_BYTES * MULTICAST, 3.35e12, 450e9, "5nm", 814, 700, "hopper"
    ),
    "V100 SXM2": Published(V100, 1.53e9, 2048.0, 0.9e12, 150e9, "16nm", 815, 300, "ampere"),
}


def drawn_by(chip: Published) -> tuple[float, dict[str, float]]:
    """Watts in the hungriest operator, and the share of them that each energy has."""
    around = Surroundings(
        clock_hz=chip.clock_hz,
        memory_bandwidth_bytes_per_s=chip.memory,
        glb_bytes_per_cycle=chip.port,
        link_bandwidth_bytes_per_s=chip.links,
        node_bandwidth_bytes_per_s=chip.links,
        node_devices=8,
    )
    job = TrainingJob(
        name="gpt3-175b",
        model=model("gpt3-175b").config,
        sequence_length=2048,
        global_batch=64,
        tensor_degrees=(8,),
        schedules=("1f1b",),
    )
    made_of = read_technology(None, {"process": chip.process})
    whole = DieModel(overhead_share=chip.die_mm2 / area_mm2(chip.cores) - 1.0)  # as published
    asked = CodesignQuestion(
        space=space_of(chip.cores),
        jobs=(job,),
        num_devices=8,
        surroundings=(with_losses(around, losses_of("typical", chip.like)),),
        energy=EnergyTable(**made_of.energy),
        die=whole,
    )

    def watts(table: EnergyTable) -> float:
        question = replace(asked, energy=table)
        pricer = JobPricer(question.jobs[0], question.variants[0], question)
        return float(pricer.hungriest_watts(np.zeros(1, dtype=np.int64))[0])

    every = watts(asked.energy)
    parts = {}
    for name in (each.name for each in fields(EnergyTable)):
        without = 1.0 if name == "supply_efficiency" else 0.0
        parts[name] = 1.0 - watts(replace(asked.energy, **{name: without})) / every
    return every, parts


def powers() -> None:
    """A row for each chip of `POWERS`."""
    print("| chip | process | published W | as a design W | off | largest parts |")
    print("| --- | --- | --: | --: | --: | --- |")
    for name, chip in POWERS.items():
        watts, parts = drawn_by(chip)
        off = "" if chip.watts is None else f"{watts / chip.watts - 1:+.0%}"
        most = sorted(parts.items(), key=lambda part: -part[1])[:5]
        told = ", ".join(f"{part} {share:.0%}" for part, share in most)
        print(f"| {name} | {chip.process} | {chip.watts or '-'} | {watts:.0f} | {off} | {told} |")


def main(folders: list[Path]) -> None:
    if not folders:
        powers()
        return
    tables = []
    for path in (path for folder in folders for path in measured_files(folder)):
        runs = read_measured(path)
        beside = read_beside(path, runs)
        here = replace(known(), models=beside.models, beside=beside.clusters)
        tables.append((path.stem, runs, replace(here, calibrations=(), unpublished=True)))
    pool = Pool(pooled_runs(tables), power_shifts(known()))
    unseen = without_runs_of(CHIPS, pool, around(pool, known().efficiencies))
    rows: dict[str, list[tuple[str, float, tuple[float, ...]]]] = defaultdict(list)
    left_out: dict[str, int] = defaultdict(int)
    for table, runs, found in tables:
        for chip in CHIPS:
            own = [run for run in runs if run.accelerator == chip and run.step_time_s]
            for run in own[:: max(1, len(own) // MOST_ROWS)]:
                try:
                    steps_s = priced(run, found, unseen[chip])
                except TrainwrightError:
                    steps_s = None
                if steps_s is None or run.step_time_s is None:
                    left_out[chip] += 1
                    continue
                rows[chip].append((f"{table} {run.row_id}", run.step_time_s, steps_s))
    print("| chip | rows | left out | " + " | ".join(WAYS) + " |")
    print("| --- | --: | --: |" + " --- |" * len(WAYS))
    for chip, measured in rows.items():
        cells = []
        for way in range(len(WAYS)):
            ratios = np.array([steps_s[way] / real_s for _, real_s, steps_s in measured])
            cells.append(
                f"{np.abs(ratios - 1).mean():.1%} mean, {np.median(np.abs(ratios - 1)):.1%} "
                f"median, bias {np.median(ratios) - 1:+.1%}"
            )
        print(f"| {chip} | {len(measured)} | {left_out[chip]} | " + " | ".join(cells) + " |")
    every = [row for measured in rows.values() for row in measured]
    for name, real_s, steps_s in sorted(every, key=lambda r: -abs(np.log(r[2][2] / r[1])))[:SHOWN]:
        print(f"furthest: {name}, {real_s:.3g} s measured, {steps_s[2]:.3g} s predicted")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
