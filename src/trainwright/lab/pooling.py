"""Fit the pooled efficiencies to measured runs, and refit them without one source in turn.

With f_i the logarithm of the predicted step of run i, y_i of the measured one, and u the effects of
`cluster.calibration` under normal priors of width s, the fit minimises

    Σ w_i ρ((f_i(u) - y_i) / σ) + Σ (u_j - p_j)² / (2 s_j²)

by Gauss-Newton in the dual (a matrix of runs, not of effects). ρ is Tukey's biweight, because some
measured runs follow no function of their plan and must not count at all: a pipeline that stalls a
second in each microbatch would else teach every device a slow host. σ is the median absolute
residual of the run's source. The weight w_i lets no source count as more than `_MOST_OF_A_SOURCE`
runs. Sensitivities of f are taken once per round, one price per constant and run. Everything is
deterministic.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.cluster import CONSTANTS, Calibration, Circumstance, Cluster, Constant, calibration
from trainwright.errors import InvalidInput, TrainwrightError
from trainwright.formats.measured_csv import MeasuredRun
from trainwright.lab.fitting import answer
from trainwright.lab.predict import Question, price, says_overlap
from trainwright.lab.run_shapes import Known, cluster_of, config_of, line_of
from trainwright.lab.validate import median_of, repeat_key
from trainwright.step.account import circumstances

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints

# What is known before any run: centres, and what published figures say of families and devices
# ---------------------------------------------------------------------------------------------

CENTRES: Final[Mapping[str, float]] = {
    "gemm_max": 0.65,
    "gemm_half_flops": 2e10,
    "gemm_half_depth": 4096.0,
    "memory_max": 0.60,
    "attention_forward": 0.45,
    "attention_backward": 0.33,
    "attention_half_flops": 2e9,
    "attention_half_intensity": 150.0,
    "fp8_ratio": 0.75,
    "launch_overhead_s": 5e-6,
    "host_pass_s": 0.6e-3,
    "scale_up_efficiency": 0.60,
    "scale_up_latency_s": 8e-6,
    "scale_out_efficiency": 0.50,
    "scale_out_latency_s": 2e-5,
    "step_overhead_s": 5e-3,
}
FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "volta": ("V100-SXM2-16GB", "V100-SXM2-32GB"),
    "turing": ("T4", "RTX-2080-Ti", "TITAN-RTX", "Quadro-RTX-8000"),
    "ampere": (
        "A100-40GB-SXM",
        "A100-80GB-SXM",
        "RTX-A6000",
        "RTX-3090",
        "RTX-3080",
        "RTX-3060",
        "A10",
        "A10G",
        "A40",
        "A800-80GB-SXM",
        "A100-40GB-PCIe",
        "A100-80GB-PCIe",
        "A30",
        "RTX-A5000",
        "RTX-A4000",
        "RTX-3090-Ti",
        "RTX-3080-Ti",
        "RTX-3070",
    ),
    "hopper": (
        "H100-80GB-SXM",
        "H100-96GB-HBM2e-500W",
        "H800-80GB-SXM",
        "H200-SXM",
        "H200-NVL",
        "GH200-96GB",
        "H100-80GB-PCIe",
        "H100-94GB-NVL",
        "H20-96GB",
    ),
    "ada": (
        "L40S",
        "RTX-4090",
        "RTX-4080",
        "RTX-4070",
        "RTX-4060-Ti-16GB",
        "RTX-6000-Ada",
        "L4",
        "L40",
        "RTX-4070-Ti",
        "RTX-4070-Ti-SUPER",
        "L20",
        "RTX-4060",
    ),
    "blackwell": (
        "B200",
        "GB200",
        "B300",
        "GB300",
        "RTX-5090",
        "RTX-5080",
        "RTX-5070-Ti",
        "RTX-PRO-6000",
        "RTX-5060-Ti-16GB",
    ),
    "cdna2": ("MI250X-GCD", "MI210"),
    "cdna3": ("MI300X", "MI325X"),
    "cdna4": ("MI355X",),
    "tpu": ("TPU-v4", "TPU-v5e", "TPU-v5p", "TPU-v6e"),
    "trainium": ("Trainium2",),
    "gaudi": ("Gaudi3",),
}
# The pace of a family against Hopper under like software, as a share of its peak. The best products
# that a search over shapes finds reach 268 of 312 TFLOP/s on A100, 792 of 989 on H100 and 758 of
# 1,307 on MI300X (github.com/mag-/gpu_benchmark, after Bekman's MAMF), which is 0.07 and -0.32; in
# steps MI300X falls further behind (620: SemiAnalysis, December 2024). PaLM ran at 57.8% of TPU
# v4's peak with what it recomputed (Chowdhery et al., 2022, section 4). That Blackwell reaches less
# of its peak than Hopper, and CDNA4 as much as CDNA3, is an assumption.
HOST: Final = "host_pass_s"
PACE_OF_FAMILY: Final = {
    "ampere": 0.10,
    "blackwell": -0.10,
    "cdna3": -0.35,
    "cdna4": -0.35,
    "tpu": 0.25,
}
# The best products of single devices, as shares of their peaks (the README of the same search; 47.0
# of 47.4 TFLOP/s on a GeForce RTX 5060 Ti: QuantumDrizzy/BLACKWALL). A card of a desktop has power
# to spare, and clocks above those that its peak is quoted at; one of the same chip for servers has
# less. Desktop cards that nobody measured reach what those of their architecture do.
PRODUCTS: Final[Mapping[str, float]] = {
    "H100-80GB-SXM": 821.2 / 989.4,
    "A100-80GB-SXM": 267.9 / 312,
    "V100-SXM2-32GB": 94.0 / 125,
    "V100-SXM2-16GB": 96.1 / 125,
    "A10G": 69.7 / 70,
    "RTX-A6000": 131.2 / 154.8,
    "L4": 91.4 / 121,
    "L40": 170.3 / 181.05,
    "L40S": 252.0 / 362.05,
    "RTX-6000-Ada": 278.5 / 364.2,
    **dict.fromkeys(("RTX-3090", "RTX-3080", "RTX-3060", "RTX-3090-Ti", "RTX-3080-Ti"), 78.0 / 71),
    "RTX-3070": 78.0 / 71,
    **dict.fromkeys(("RTX-4090", "RTX-4080", "RTX-4070", "RTX-4060-Ti-16GB"), 178.8 / 165.2),
    **dict.fromkeys(("RTX-4070-Ti", "RTX-4070-Ti-SUPER", "RTX-4060"), 178.8 / 165.2),
    **dict.fromkeys(("RTX-5090", "RTX-5080", "RTX-5070-Ti", "RTX-5060-Ti-16GB"), 47.0 / 47.4),
}
# Whose runs speak for a family; of others the products are held against Hopper's.
_MEASURED_OF_FAMILY: Final = {"hopper": "H100-80GB-SXM", "ampere": "A100-80GB-SXM"}
# What attention reaches of its family's pace beyond the centre, whose runs had kernels of 2022 to
# 2024: cuDNN's forward kernel reaches 57% of Blackwell's peak with heads of 128 (Dao-AILab's
# flash-attention, pull request 2605; 71%: FlashAttention-4, arXiv:2603.05451), where the centre at
# the pace of the family says 41%.
ATTENTION_OF_FAMILY: Final = {"blackwell": 0.35}
# The host's time of a block and pass against that of plain eager PyTorch: some 30 kernels at 13 to
# 37 us each (a linear layer of torch 2.7 on the hosts of H100 and GB200, TransformerEngine's issue
# 2053). Modules of Megatron and Transformer Engine take 2 to 3 times as long for each, with more
# kernels, hooks and checks between them: 2.1 to 2.6 ms a pass under BLOOM, 2.2 ms in nanotron's
# smallest blocks. Hooks of FSDP gather and free each block. Compiled blocks start about half as
# many kernels. XLA starts whole programs; NVIDIA's recipes for NeMo and Megatron-Bridge replay CUDA
# graphs where hosts would bind (the "CUDA graph" of its performance recipes).
HOST_OF_CLASS: Final = {
    "megatron": 1.2,
    "nanotron": 1.3,
    "deepspeed": 1.2,
    "nemo": 0.4,
    "eager-fsdp": 0.4,
    "compiled-fsdp": -0.3,
    "xla": -1.5,
}
# Clocks under load follow the power a device may draw: a part of the same peak with less of it is
# slower by the share to this exponent (H100 SXM of 500 W against 700 W: about 20%).
_POWER_EXPONENT: Final = 0.6
_MOST_OF_POWER: Final = -0.25
_LIKE_PEAK: Final = 0.25  # share of a peak by which others may differ from it

# Widths of the priors: standard deviations of the logarithm, by level. Tuned on the mean error of
# sources left out in turn, which is flat around them (a factor of two changes it by 3% of itself).
_PACE_WIDTH: Final = {
    "centre": 0.20,
    "family": 0.10,
    "device": 0.06,
    "school": 0.10,
    "kin": 0.20,
    "class": 0.06,
    "program": 0.06,
    "pair": 0.10,
    "publication": 0.12,
}
_OWN_WIDTH: Final = {
    "centre": 1.0,
    "family": 0.25,
    "device": 0.15,
    "school": 0.20,
    "kin": 0.15,
    "class": 0.20,
    "program": 0.15,
    "pair": 0.25,
    "publication": 0.30,
}
# Hosts differ by the class of the software; how fast they start plain PyTorch is known, and so is
# the gap between two kernels of a device that has work.
_KNOWN_WIDTH: Final = {HOST: {"centre": 0.2, "class": 0.3}, "launch_overhead_s": {"centre": 0.2}}
_SHARE_WIDTH: Final = 0.3  # of shares of a peak at the centre
_OVERHEAD_WIDTH: Final = 0.6  # of times and sizes there

_MOST_OF_A_SOURCE: Final = 25
_GAP: Final = "gap"
_LARGEST_SAMPLE: Final = 50  # configurations of a source that are priced for the fit
_REJECTED: Final = 4.685  # of σ: efficient to 95% for normal residuals (Huber, 1981, section 4.8)
_LEAST_WEIGHT: Final = 1e-9  # of a rejected run, so that weights can be divided by
# Least and largest σ of a source. What its runs have in common misses more than they scatter, so
# that effects which others share take them for no more precise than that; its own effects do not.
_SCALES: Final = (0.13, 0.20)
_OWN_SCALES: Final = (0.03, 0.20)
_STEP: Final = 0.08  # finite difference of a logarithm
_LARGEST_MOVE: Final = 0.6
_ROUNDS: Final = 2
_STEPS: Final = 4
_STEPS_LINEAR: Final = 10
_CONVERGED: Final = 1e-3
_FROM_MEDIAN: Final = 1.4826  # median absolute deviation to standard deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledRun:
    """A measured configuration, with the question that prices it. `source` is its table."""

    source: str
    run: MeasuredRun
    question: Question
    measured_s: float

    @property
    def software(self) -> calibration.Software:
        """Whose software ran."""
        return self.question.line.software

    @property
    def device(self) -> str:
        """What it ran on."""
        return self.run.accelerator


def pooled_runs(
    tables: Iterable[tuple[str, Sequence[MeasuredRun], Known]],
) -> tuple[PooledRun, ...]:
    """The timed configurations of tables, settings that they leave open decided.

    A table of many gives an even sample. Runs priced from measured layers are none, and neither are
    those whose `quality` is a gap: they used a feature that is not priced as they ran it.
    """
    found = []
    for source, runs, known in tables:
        groups: dict[object, list[MeasuredRun]] = defaultdict(list)
        for run in runs:
            apart = run.setting("stage_replicas") or run.setting("quality") == _GAP
            if run.step_time_s is not None and not apart:
                groups[repeat_key(run)].append(run)
        every = max(1, -(-len(groups) // _LARGEST_SAMPLE))
        for group in list(groups.values())[::every]:
            measured_s = median_of([run.step_time_s for run in group])
            question = _question(group[0], known)
            if question is not None and measured_s is not None:
                found.append(
                    PooledRun(source=source, run=group[0], question=question, measured_s=measured_s)
                )
    return tuple(found)


def _question(run: MeasuredRun, known: Known) -> Question | None:
    try:
        line = line_of(run)
        described = cluster_of(run, line, replace(known, efficiencies=None))
        usual = _with(described, dict(CENTRES))
        decided = answer(run, line, config_of(run, line, known), usual).question
        return replace(decided, cluster=_as_efficient(usual, described))
    except TrainwrightError:
        return None


def _as_efficient(cluster: Cluster, described: Cluster) -> Cluster:
    """The cluster with the shares of links that are described, below which a trial stays."""
    pools = []
    for pool, own in zip(cluster.pools, described.pools, strict=True):
        pairs = zip(pool.levels, own.levels, strict=True)
        levels = [replace(level, efficiency=as_said.efficiency) for level, as_said in pairs]
        pools.append(replace(pool, levels=tuple(levels)))
    return replace(cluster, pools=tuple(pools))


def _with(cluster: Cluster, values: Mapping[str, float]) -> Cluster:
    constants = (
        Constant(name=name, value=value, low=0.0, high=math.inf) for name, value in values.items()
    )
    return Calibration(
        accelerator=cluster.accelerator.name,
        line="trial",
        constants=tuple(constants),
        low_ratio=1.0,
        high_ratio=1.0,
        source="trial",
        pooled=True,
    ).applied(cluster)


# The fit
# -------


class Pool:
    """Runs with their effects: what a fit asks again and again.

    `shifts` of the effects have the shape [effects, constants + 1], the last one the pace.
    """

    def __init__(self, runs: Sequence[PooledRun], devices: Mapping[str, float]) -> None:
        """`devices` says how much power each draws for its peak, against the most of its family."""
        self.runs, self.devices = runs, devices
        self.names = tuple(CENTRES)
        self.families = {d: f for f, members in FAMILIES.items() for d in members}
        of_run = [
            calibration.keys_of(
                r.device, r.software, self.families.get(r.device), r.run.publication
            )
            for r in runs
        ]
        self.keys: tuple[calibration.Key, ...] = tuple(
            sorted({key for keys in of_run for key in keys})
        )
        place = {key: number for number, key in enumerate(self.keys)}
        self.member = np.zeros((len(runs), len(self.keys)))
        for number, keys in enumerate(of_run):
            self.member[number, [place[key] for key in keys]] = 1.0
        self.is_own = np.array([key[0] == "publication" for key in self.keys])
        self.measured = np.log([run.measured_s for run in runs])
        self.paced = [self.names.index(name) for name in calibration.PACED]
        self.ceilings = np.log([min(CONSTANTS[name], 1e300) for name in self.names])
        sources = [run.source for run in runs]
        self.weight = np.array([min(1.0, _MOST_OF_A_SOURCE / sources.count(s)) for s in sources])
        self.groups = {
            source: np.array([i for i, s in enumerate(sources) if s == source])
            for source in dict.fromkeys(sources)
        }
        self.prior, self.width = self._priors(devices)
        self.decisive = [_decisive(run) for run in runs]

    def _priors(self, devices: Mapping[str, float]) -> tuple[Floats, Floats]:
        shape = (len(self.keys), len(self.names) + 1)
        prior, width = np.zeros(shape), np.zeros(shape)
        is_share = np.array([CONSTANTS[name] == 1.0 for name in self.names])
        attention = [self.names.index(f"attention_{pass_}") for pass_ in ("forward", "backward")]
        for number, key in enumerate(self.keys):
            own = np.where(is_share, _SHARE_WIDTH, _OVERHEAD_WIDTH)
            width[number, :-1] = own * _OWN_WIDTH[key[0]]
            width[number, -1] = _PACE_WIDTH[key[0]]
            host = self.names.index(HOST)
            for name, known in _KNOWN_WIDTH.items():
                at = self.names.index(name)
                width[number, at] = known.get(key[0], width[number, at])
            if key[0] == "centre":
                prior[number, :-1] = np.log(list(CENTRES.values()))
            elif key[0] == "family":
                prior[number, -1] = PACE_OF_FAMILY.get(key[1], 0.0)
                prior[number, attention] = ATTENTION_OF_FAMILY.get(key[1], 0.0)
            elif key[0] == "device":
                prior[number, -1] = devices.get(key[1], 0.0)
            elif key[0] == "class":
                prior[number, host] = HOST_OF_CLASS.get(key[1], 0.0)
        return prior, width

    def constants(self, shifts: Floats) -> Floats:
        """Logarithms of the constants of each run, [runs, constants]."""
        total = self.member @ shifts
        logs: Floats = total[:, :-1].copy()
        logs[:, self.paced] += total[:, -1:]
        return np.minimum(logs, self.ceilings)

    def times(self, logs: Floats) -> Floats:
        """Logarithms of the predicted steps."""
        return np.array([self._time(i, logs[i]) for i in range(len(self.runs))])

    def _time(self, number: int, logs: Floats) -> float:
        question = self.runs[number].question
        values = dict(zip(self.names, np.exp(logs).tolist(), strict=True))
        priced = price(replace(question, cluster=_with(question.cluster, values)))
        return math.log(priced.step_time_s)

    def slopes(self, logs: Floats, times: Floats) -> Floats:
        """How each step changes with its constants and with the pace, [runs, constants + 1]."""
        found = np.zeros((len(self.runs), len(self.names) + 1))
        for number, run in enumerate(self.runs):
            for each, name in enumerate(self.names):
                if not _matters(name, run.question):
                    continue
                moved = logs[number].copy()
                moved[each] -= _STEP
                found[number, each] = (times[number] - self._time(number, moved)) / _STEP
        found[:, -1] = found[:, self.paced].sum(axis=1)
        return found

    def next_shifts(
        self, shifts: Floats, residual: Floats, slopes: Floats, own: Ints, *, alone: bool = False
    ) -> Floats:
        """One Gauss-Newton step with the runs `own`; `alone` moves effects of publications only."""
        weight = self._weights(residual, own, _OWN_SCALES if alone else _SCALES)[own]
        member = self.member * self.is_own if alone else self.member
        design = (member[:, :, np.newaxis] * slopes[:, np.newaxis, :])[own]
        design = design.reshape(len(own), -1)
        used = np.flatnonzero(np.abs(design).sum(axis=0))
        design, variance = design[:, used], self.width.reshape(-1)[used] ** 2
        wanted = design @ (shifts - self.prior).reshape(-1)[used] - residual[own]
        pulled = design * variance
        dual = np.linalg.solve(pulled @ design.T + np.diag(1 / weight), wanted)
        found = shifts.copy() if alone else self.prior.copy()
        found.reshape(-1)[used] = self.prior.reshape(-1)[used] + pulled.T @ dual
        reach = float(np.abs(self.member @ (found - shifts)).max())
        return shifts + (found - shifts) * min(1.0, _LARGEST_MOVE / max(reach, 1e-9))

    def _weights(self, residual: Floats, own: Ints, scales: tuple[float, float]) -> Floats:
        scale = np.ones(len(residual))
        kept = set(own.tolist())
        for members in self.groups.values():
            mine = [i for i in members.tolist() if i in kept]
            if mine:
                middle = _FROM_MEDIAN * float(np.median(np.abs(residual[mine])))
                scale[mine] = min(max(middle, scales[0]), scales[1])
        kept_share = np.maximum(0.0, 1 - (residual / scale / _REJECTED) ** 2)
        found: Floats = self.weight / scale**2 * np.maximum(kept_share**2, _LEAST_WEIGHT)
        return found


# Circumstances with a range of their own; the first that holds of a run decides.
_RANGED: Final = (Circumstance.HOST_BOUND, Circumstance.EXPERTS)


def _decisive(run: PooledRun) -> Circumstance | None:
    question = run.question
    held = circumstances(question.model, question.cluster, question.configuration)
    return next((when for when in _RANGED if when in held), None)


def _matters(name: str, question: Question) -> bool:
    """Whether a constant may change the price of a question; saves prices where it cannot."""
    if name == "fp8_ratio":
        return "fp8" in (name := question.configuration.recipe.precision or "") or "fp4" in name
    if name.startswith("scale_out"):
        levels = question.cluster.levels
        return question.configuration.parallelism.num_devices > levels[0].size
    if name.startswith("attention"):
        return question.configuration.fused_attention
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledFit:
    """Effects with the point around which they may be refitted: constants, times and slopes."""

    shifts: Floats
    logs: Floats
    times: Floats
    slopes: Floats


def fit(pool: Pool) -> PooledFit:
    """The effects that explain all runs best."""
    shifts = pool.prior.copy()
    logs = pool.constants(shifts)
    times = pool.times(logs)
    everyone = np.arange(len(pool.runs))
    for _ in range(_ROUNDS):
        slopes = pool.slopes(logs, times)
        for _ in range(_STEPS):
            after = pool.next_shifts(shifts, times - pool.measured, slopes, everyone)
            moved = float(np.abs(pool.member @ (after - shifts)).max())
            shifts, logs = after, pool.constants(after)
            times = pool.times(logs)
            if moved < _CONVERGED:
                break
    for _ in range(_STEPS):
        shifts = pool.next_shifts(shifts, times - pool.measured, slopes, everyone, alone=True)
        logs = pool.constants(shifts)
        times = pool.times(logs)
    return PooledFit(shifts=shifts, logs=logs, times=times, slopes=pool.slopes(logs, times))


def linear_times(pool: Pool, found: PooledFit, shifts: Floats) -> Floats:
    """Logarithms of the steps under other effects, linear around the whole fit."""
    moved = (pool.constants(shifts) - found.logs) * found.slopes[:, :-1]
    times: Floats = found.times + moved.sum(axis=1)
    return times


def refit_without(pool: Pool, found: PooledFit, held: Sequence[int]) -> Floats:
    """The effects without some runs, by number, times taken linear around the whole fit."""
    own = np.setdiff1d(np.arange(len(pool.runs)), held)
    shifts = pool.prior.copy()
    for _ in range(_STEPS_LINEAR):
        times = linear_times(pool, found, shifts)
        after = pool.next_shifts(shifts, times - pool.measured, found.slopes, own)
        moved = float(np.abs(pool.member @ (after - shifts)).max())
        shifts = after
        if moved < _CONVERGED:
            break
    return shifts


# What a fit is for others: effects with their runs, and ranges by distance from evidence
# ---------------------------------------------------------------------------------------

_COVERED: Final = 0.9
_SHARES: Final = (0.90, 0.92, 0.94, 0.96, 0.98, 1.0)
_OF_NEXT: Final = 0.88  # of a source that a range is not drawn from, in the mean, at least
_LEAST_WIDTH: Final = 0.05
_FEW_RUNS: Final = 10
_FEW_SOURCES: Final = 3  # fewer say nothing of the next one
_WIDER: Final = 1.25  # from one distance to the next where nothing says how much
_FAR_OFF: Final = _REJECTED * _SCALES[1]  # what the fit rejects wherever it scatters most
_ASSUMED: Final = calibration.Range(low_ratio=0.7, high_ratio=1.6)


def effects_of(
    pool: Pool, shifts: Floats, *, without: str | None = None
) -> dict[calibration.Key, calibration.Effect]:
    """The effects by key, with the number of their runs; a source may be left out."""
    found = {}
    for number, key in enumerate(pool.keys):
        own = [
            run
            for run, member in zip(pool.runs, pool.member[:, number], strict=True)
            if member and run.source != without
        ]
        if not own:
            continue
        named = zip((*pool.names, calibration.PACE), shifts[number].tolist(), strict=True)
        found[key] = calibration.Effect(
            shifts=MappingProxyType(
                {n: v for n, v in named if n == calibration.PACE or abs(v) >= 5e-5}
            ),
            runs=len(own),
            sources=tuple(sorted({run.source for run in own})),
        )
    return found


Residuals = dict[
    str, list[tuple[calibration.Distance, float]]
]  # by source: log(measured / predicted)


def pooled(
    pool: Pool,
    shifts: Floats,
    residuals: Residuals,
    *,
    without: str | None = None,
) -> calibration.PooledEfficiencies:
    """What predicts, with ranges from the residuals of all sources but the one left out."""
    spread = dict.fromkeys(pool.names, _SHARE_WIDTH / 2)
    spread |= {name: _OVERHEAD_WIDTH / 2 for name in pool.names if CONSTANTS[name] != 1.0}
    kept = {source: found for source, found in residuals.items() if source != without}
    known: dict[calibration.Key, tuple[str, float]] = {
        ("family", family): (calibration.PACE, pace) for family, pace in PACE_OF_FAMILY.items()
    }
    known |= {
        ("device", device): (calibration.PACE, pace)
        for device, pace in pool.devices.items()
        if pace
    }
    known |= {("class", kind): (HOST, shift) for kind, shift in HOST_OF_CLASS.items()}
    priors: dict[calibration.Key, calibration.Effect] = {
        key: calibration.Effect(shifts=MappingProxyType(dict([shift])))
        for key, shift in known.items()
    }
    return calibration.PooledEfficiencies(
        effects=MappingProxyType(priors | effects_of(pool, shifts, without=without)),
        families=MappingProxyType(pool.families),
        spreads=MappingProxyType(spread),
        ranges=MappingProxyType(_ranges(pool, kept)),
        circumstances=MappingProxyType(_circumstances(pool, kept)),
        told_apart=MappingProxyType(told_apart(pool.runs)),
    )


def told_apart(runs: Sequence[PooledRun]) -> dict[calibration.SoftwareClass, tuple[str, ...]]:
    """By class of software the kinds of exchange whose hiding its runs tell from the rest.

    Most runs with such exchanges say whether they hide, and some do: without a run that does nobody
    saw the difference, and what runs leave open their constants hold. A class without such runs, or
    whose runs all say that nothing hides, borrows its constants, and with them what is told of all.
    No measured time is used, so that a source that is left out of the fit may speak here.
    """
    found: dict[calibration.SoftwareClass, list[str]] = {
        kind: [] for kind in calibration.SoftwareClass
    }
    for name in calibration.TELLABLE:
        hidden: dict[calibration.SoftwareClass, list[bool | None]] = {
            kind: [] for kind in calibration.SoftwareClass
        }
        for run in runs:
            degrees = run.question.configuration.parallelism
            if (degrees.tensor if name == "tensor" else degrees.expert) > 1:
                share = getattr(run.question.configuration.overlap, name)
                said = share > 0 if says_overlap(run.run, run.question.line, name) else None
                hidden[calibration.SoftwareClass.TYPICAL].append(said)
                if run.software.kind is not calibration.SoftwareClass.TYPICAL:
                    hidden[run.software.kind].append(said)
        of_all = _is_told(hidden[calibration.SoftwareClass.TYPICAL])
        for kind, own in hidden.items():
            borrows = own.count(None) * 2 <= len(own) and True not in own
            if of_all if borrows else _is_told(own):
                found[kind].append(name)
    return {kind: tuple(names) for kind, names in found.items()}


def _is_told(hidden: Sequence[bool | None]) -> bool:
    return hidden.count(None) * 2 <= len(hidden) and True in hidden


def _ranges(pool: Pool, residuals: Residuals) -> dict[calibration.Distance, calibration.Range]:
    """Nine of ten at each distance, every source counting alike, never narrower farther away.

    Of runs under no circumstance that has a range of its own.
    """
    found: dict[calibration.Distance, calibration.Range] = {}
    low, high = -_LEAST_WIDTH, _LEAST_WIDTH
    for distance in calibration.Distance:
        held = [
            here
            for own in _predictable(pool, residuals).values()
            if (here := [r for i, at, r in own if at == distance and not pool.decisive[i]])
        ]
        if len(held) >= _FEW_SOURCES:
            ends = _range_of_next(held)
            low, high = min(low, ends[0]), max(high, ends[1])
        elif distance:
            low, high = low * _WIDER, high * _WIDER
        found[distance] = calibration.Range(low_ratio=math.exp(low), high_ratio=math.exp(high))
    return found


def _circumstances(pool: Pool, residuals: Residuals) -> dict[Circumstance, calibration.Range]:
    """The middle nine tenths of runs of which a circumstance is the first that holds.

    Whether the fit saw their source or not: few sources have such runs, and hardly differ in it.
    """
    found = {}
    for when in _RANGED:
        held = [
            here
            for own in _predictable(pool, residuals).values()
            if (here := [ratio for i, _, ratio in own if pool.decisive[i] is when])
        ]
        wider = _WIDER if len(held) < _FEW_SOURCES else 1.0
        if sum(map(len, held)) >= _FEW_RUNS:
            low, high = (wider * end for end in _middle(held, _COVERED))
            found[when] = calibration.Range(
                low_ratio=math.exp(min(low, -_LEAST_WIDTH)),
                high_ratio=math.exp(max(high, _LEAST_WIDTH)),
            )
    return found


def _quantile(ordered: Sequence[tuple[float, float]], share: float) -> float:
    """The first of sorted values up to which lies a share of the weight."""
    wanted, held = share * sum(weight for _, weight in ordered), 0.0
    for value, weight in ordered:
        held += weight
        if held >= wanted:
            return value
    return ordered[-1][0]


def _predictable(
    pool: Pool, residuals: Residuals
) -> dict[str, list[tuple[int, calibration.Distance, float]]]:
    """The residuals of runs that a fit would not reject, with the number of the run.

    No range is wide enough for a pipeline that stalls, and with it all others would be too wide.
    """
    return {
        source: [
            (i, at, ratio)
            for i, (at, ratio) in zip(pool.groups[source].tolist() * 2, own, strict=False)
            if abs(ratio) < _FAR_OFF
        ]
        for source, own in residuals.items()
    }


def _range_of_next(sources: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The middle nine tenths, every source counting alike.

    Sources differ, so it is drawn wider until it holds nearly as much of those that it is not drawn
    from.
    """
    found = (-_LEAST_WIDTH, _LEAST_WIDTH)
    for share in _SHARES:
        found, held = _middle(sources, share), 0.0
        for number, own in enumerate(sources):
            low, high = _middle([*sources[:number], *sources[number + 1 :]], share)
            held += sum(low <= ratio <= high for ratio in own) / len(own)
        if held >= _OF_NEXT * len(sources):
            break
    return found


def _middle(sources: Sequence[Sequence[float]], share: float) -> tuple[float, float]:
    """The middle share of values, those of each source of one weight."""
    ordered = sorted((ratio, 1 / len(own)) for own in sources for ratio in own)
    return _quantile(ordered, (1 - share) / 2), _quantile(ordered, (1 + share) / 2)


def left_out(pool: Pool, found: PooledFit) -> tuple[dict[str, Floats], Residuals]:
    """Of each source the effects fitted without it, and its residuals under these."""
    shifts, residuals = {}, {}
    for source, members in pool.groups.items():
        shifts[source] = refit_without(pool, found, members.tolist())
        bare = calibration.PooledEfficiencies(
            effects=MappingProxyType(effects_of(pool, shifts[source], without=source)),
            families=MappingProxyType(pool.families),
            spreads=MappingProxyType({}),
            ranges=MappingProxyType(dict.fromkeys(calibration.Distance, _ASSUMED)),
        )
        logs = pool.constants(shifts[source])
        residuals[source] = [
            (
                bare.evidence(pool.runs[i].device, pool.runs[i].software).distance,
                float(pool.measured[i]) - pool._time(i, logs[i]),
            )
            for i in members.tolist()
        ]
    return shifts, residuals


def with_own(pool: Pool, found: PooledFit, residuals: Residuals) -> Residuals:
    """The residuals of left-out sources, and of each source under constants that saw it."""
    seen = [
        (run.source, float(measured - time))
        for run, measured, time in zip(pool.runs, pool.measured, found.times, strict=True)
    ]
    both: Residuals = {source: list(values) for source, values in residuals.items()}
    for source, ratio in seen:
        both[source].append((calibration.Distance.SAME_PUBLICATION, ratio))
    return both


def power_shifts(known: Known) -> dict[str, float]:
    """By device, what less power for about the same peak costs of its pace.

    Others of its family say nothing of it: a desktop card draws more for each FLOP than a module.
    Where products of a device were measured, these say it.
    """
    found = {}
    for family, members in FAMILIES.items():
        drawn = {
            name: (device.power_watts, device.peak(device.default_precision))
            for name in members
            if (device := known.accelerators.get(name)) is not None
            and device.power_watts is not None
        }
        for name, (watts, peak) in drawn.items():
            alike = sorted(w / p for w, p in drawn.values() if abs(p - peak) <= _LIKE_PEAK * peak)
            shift = _POWER_EXPONENT * math.log(watts / peak / alike[len(alike) // 2])
            found[name] = min(0.0, max(_MOST_OF_POWER, shift))
        found |= {name: _of_products(name, family) for name in members if name in PRODUCTS}
    return found


def _of_products(name: str, family: str) -> float:
    """The pace of a device against its family, by its best products."""
    measured = _MEASURED_OF_FAMILY.get(family)
    if measured is not None:
        return math.log(PRODUCTS[name] / PRODUCTS[measured])
    against = math.log(PRODUCTS[name] / PRODUCTS[_MEASURED_OF_FAMILY["hopper"]])
    return against - PACE_OF_FAMILY.get(family, 0.0)


def without_each(
    tables: Sequence[tuple[str, Sequence[MeasuredRun], Known]],
) -> dict[str, calibration.PooledEfficiencies]:
    """Of each table that has timed runs the efficiencies that all others give.

    Times are taken linear around the efficiencies that ship, if there are, so that sensitivities
    are priced once; those of the left-out runs themselves are exact. Raises `InvalidInput` where
    nothing is left without one table.
    """
    if not tables:
        return {}
    pool = Pool(pooled_runs(tables), power_shifts(tables[0][2]))
    if len(pool.groups) < 2:
        problem = f"needs two files with timed runs or more, got {len(pool.groups)}"
        raise InvalidInput.of("leave-out", problem)
    found = around(pool, tables[0][2].efficiencies)
    shifts, residuals = left_out(pool, found)
    both = with_own(pool, found, residuals)
    return {source: pooled(pool, shifts[source], both, without=source) for source in pool.groups}


def around(pool: Pool, efficiencies: calibration.PooledEfficiencies | None) -> PooledFit:
    """The point of known efficiencies, with slopes; a fit where there are none."""
    if efficiencies is None:
        return fit(pool)
    shifts = pool.prior.copy()
    for number, key in enumerate(pool.keys):
        effect = efficiencies.effects.get(key)
        if effect is not None:
            shifts[number] = [
                effect.shifts.get(name, 0.0) for name in (*pool.names, calibration.PACE)
            ]
    logs = pool.constants(shifts)
    times = pool.times(logs)
    return PooledFit(shifts=shifts, logs=logs, times=times, slopes=pool.slopes(logs, times))
