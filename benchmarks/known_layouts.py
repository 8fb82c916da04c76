"""Layouts that are known to be good: estimated as published, and against the planner's own choice.

Each row is one published run: model, cluster, layout, throughput and where that is printed. It is
estimated as it ran, then the planner is asked the same question, with the same constants, number
formats, dispatch and overlap. Prints the tables of the docs.

    python benchmarks/known_layouts.py [NAME…]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import trainwright
from trainwright.formats import catalog
from trainwright.formats.calibration_toml import built_in_calibrations
from trainwright.model import model_flops_per_sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.cluster import Cluster

# Accelerators that have no constants of their own, and whose they take: the same compute units.
CONSTANTS_OF = {"H800-80GB-SXM": "H100-80GB-SXM"}


ROOFLINE = "none"  # constants of no measured run


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One published run. `layout` is what its authors chose and a plan may choose otherwise;
    `trained` is how it ran whichever way it is laid out. `calibration` names a line of constants.
    """

    name: str
    model: str
    cluster: str
    devices: int
    global_batch: int
    sequence: int
    layout: dict[str, Any]
    source: str
    step_time_s: float
    trained: dict[str, Any] = field(default_factory=dict)
    calibration: str | None = None

    @property
    def question(self) -> dict[str, Any]:
        """What `estimate` and `plan` are both asked."""
        return {
            "cluster": cluster_of(self),
            "devices": self.devices,
            "global_batch": self.global_batch,
            "sequence": self.sequence,
            **({"calibration": ROOFLINE} if self.calibration == ROOFLINE else {}),
            **self.trained,
        }


def cluster_of(run: Run) -> Cluster:
    """The run's cluster with its constants."""
    cluster = catalog.cluster(run.cluster)
    if run.calibration in (None, ROOFLINE):
        return cluster
    name = cluster.accelerator.name
    name = CONSTANTS_OF.get(name, name)
    (found,) = (
        each
        for each in built_in_calibrations()
        if (each.accelerator, each.line) == (name, run.calibration)
    )
    return found.applied(cluster)


def megatron_step_s(model: str, batch: int, sequence: int, devices: int, tflops: float) -> float:
    """Seconds of a step from the TFLOP/s a device that arXiv:2104.04473 prints, by its formula.

    F = 96 B s l h² (1 + s / 6h + V / 16lh), recomputation included.
    """
    config = catalog.model(model).config
    h, layers, v, s = config.hidden_size, config.num_layers, 51200, sequence
    flops = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    return flops / (devices * tflops * 1e12)


def llama_step_s(batch: int, sequence: int, devices: int, tflops: float) -> float:
    """Seconds of a step from the TFLOP/s a device of arXiv:2407.21783: 6 FLOPs per parameter and
    token, and attention in full."""
    flops = model_flops_per_sequence(catalog.model("llama3-405b").config, sequence) * batch
    return flops / (devices * tflops * 1e12)


def _megatron(
    name: str, model: str, *, pp: int, devices: int, batch: int, tflops: float, table: str
) -> Run:
    per_rank = catalog.model(model).config.num_layers // pp
    chunks = next((v for v in (2, 3, 4) if per_rank % v == 0), 1)
    return Run(
        name=name,
        model=model,
        cluster="dgx-a100",
        devices=devices,
        global_batch=batch,
        sequence=2048,
        layout={
            "tp": 8,
            "pp": pp,
            "dp": devices // (8 * pp),
            "zero": 0,
            "virtual_stages": chunks,
            "recompute": "full",
            "sequence_parallel": False,
            "flash_attention": False,
        },
        trained={"precision": "fp16"},
        source=f"arXiv:2104.04473, {table}",
        step_time_s=megatron_step_s(model, batch, 2048, devices, tflops),
        calibration="megatron-2021",
    )


def _llama(*, devices: int, tflops: float) -> Run:
    return Run(
        name=f"Llama-3-405B, {devices:,} H100",
        model="llama3-405b",
        cluster="dgx-h100",
        devices=devices,
        global_batch=2048,
        sequence=8192,
        layout={"tp": 8, "pp": 16, "dp": devices // (8 * 16), "zero": 1, "virtual_stages": 7},
        source=f"arXiv:2407.21783, table 4: {tflops} TFLOP/s a device",
        step_time_s=llama_step_s(2048, 8192, devices, tflops),
        calibration="megatron-core",
    )


DEEPSEEK = Run(
    name="DeepSeek-V3, 2,048 H800",
    model="deepseek-v3",
    cluster="hgx-h800",
    devices=2048,
    global_batch=15360,
    sequence=4096,
    layout={
        "tp": 1,
        "pp": 16,
        "dp": 128,
        "ep": 64,
        "etp": 1,
        "zero": 1,
        "virtual_stages": 2,
        "schedule": "dualpipe-v",
        "recompute": "selective",  # section 3.2.3, and of SwiGLU 3.3.3
        "recompute_module": ("norm", "latent_up_projection", "mlp_activation"),
    },
    trained={
        "precision": "fp8",
        "moment_dtype": ("bf16", "bf16"),  # section 3.3.3
        "dispatch_dtype": "fp8",  # what comes back is in 16 bit
        "token_dispatcher": "hierarchical",  # section 3.2.2; four nodes a token, by the model
        "overlap": {"experts": 1.0},  # what DualPipe is made for
    },
    source="arXiv:2412.19437, section 1: 180 K device hours per trillion tokens; "
    "DualPipe, here as DualPipeV",
    step_time_s=15360 * 4096 / 1e12 * 180e3 * 3600 / 2048,
    calibration="megatron-core",
)
RUNS = (
    _megatron(
        "GPT-3 175B, 384 A100",
        "gpt3-175b",
        pp=12,
        devices=384,
        batch=1536,
        tflops=153,
        table="table 2: 153 TFLOP/s a device",
    ),
    _megatron(
        "GPT-3 175B, 768 A100",
        "gpt3-175b",
        pp=12,
        devices=768,
        batch=1536,
        tflops=149,
        table="table 2: 149 TFLOP/s a device",
    ),
    _megatron(
        "GPT 530B, 2,520 A100",
        "megatron-gpt-530b",
        pp=35,
        devices=2520,
        batch=2520,
        tflops=163,
        table="table 1: 163 TFLOP/s a device",
    ),
    _megatron(
        "GPT 1T, 3,072 A100",
        "megatron-gpt-1t",
        pp=64,
        devices=3072,
        batch=3072,
        tflops=163,
        table="table 1: 163 TFLOP/s a device",
    ),
    _llama(devices=8192, tflops=430),
    _llama(devices=16384, tflops=400),
    DEEPSEEK,
)


def variants(run: Run) -> dict[str, Run]:
    """The run of DeepSeek-V3 with one assumption changed, by what changed."""
    flat = {"token_dispatcher": "all_to_all"}
    wide = {"dispatch_dtype": None}
    return {
        "as published": run,
        "a copy for each expert": _trained(run, **flat),
        "dispatch in 16 bit": _trained(run, **wide),
        "both": _trained(run, **flat, **wide),
        "dispatch under no computation": _trained(run, overlap={}),
        "ZB-V in place of DualPipeV": replace(run, layout=run.layout | {"schedule": "zb-v"}),
        "nothing recomputed": replace(
            run, layout=run.layout | {"recompute": "none", "recompute_module": None}
        ),
        "constants `nemo`": replace(run, calibration="nemo"),
        "constants `llm-foundry`": replace(run, calibration="llm-foundry"),
        "no constants fitted": replace(run, calibration=ROOFLINE),
    }


def _trained(run: Run, **changes: Any) -> Run:
    return replace(run, trained=run.trained | changes)


def estimated(run: Run) -> Any:
    """The document of the published layout."""
    return trainwright.estimate(run.model, micro_batch=1, **run.question, **run.layout).document


def planned(run: Run, **space: Any) -> Any:
    """The document of our plan for the same question."""
    return trainwright.plan(run.model, framework="any", **run.question, **space).document


def row(run: Run) -> str:
    """A line of the table: published, estimated as published, and as planned."""
    where, plan = estimated(run), planned(run)
    degrees = plan.parallelism
    ours = _degrees(
        {
            "tp": degrees.tensor,
            "pp": degrees.pipeline,
            "dp": degrees.data,
            "cp": degrees.context,
            "ep": degrees.expert,
            "v": degrees.virtual_stages,
        }
    )
    ours += f", ZeRO-{degrees.zero_stage}" if degrees.zero_stage > 1 else ""
    ours += f", microbatch {plan.micro_batch}" if plan.micro_batch > 1 else ""
    ours += f", {plan.schedule}" if degrees.pipeline > 1 else ""
    return (
        f"| {run.name} | {_degrees(run.layout)} | {run.step_time_s:.2f} | "
        f"{_estimate(run, where.step_time_s, where.peak_memory_bytes)} | {ours} | "
        f"{plan.step_time_s:.2f} | {_percent(plan.step_time_s / where.step_time_s)} |"
    )


def variant_rows(run: Run) -> Iterator[str]:
    """Lines of the second table: the estimate with one assumption changed.

    The last has our stages and recomputation at the published degrees, in the same V.
    """
    for change, changed in variants(run).items():
        found = estimated(changed)
        yield f"| {change} | {_estimate(run, found.step_time_s, found.peak_memory_bytes)} |"
    found = planned(run, **published_degrees(run), zero=1, schedule=["zb-v"])
    peak_bytes = max(found.peak_memory_bytes_per_rank)
    change = "ZB-V with our stages and recomputation"
    yield f"| {change} | {_estimate(run, found.step_time_s, peak_bytes)} |"


def published_degrees(run: Run) -> dict[str, Any]:
    """The part of the space of plans that has the degrees of the published layout."""
    named = {name: run.layout[name] for name in ("tp", "pp", "ep", "etp") if name in run.layout}
    return {**named, "cp": 1, "micro_batch": 1}


def _degrees(named: dict[str, Any]) -> str:
    """The degrees of a layout; those of one are left out, but for `tp` and `pp`."""
    wanted = ("tp", "pp", "dp", "cp", "ep", "v")
    kept = [n for n in wanted if named.get(n, 1) > 1 or (n in ("tp", "pp") and n in named)]
    return ", ".join(f"{name} {named[name]}" for name in kept)


def _estimate(run: Run, step_time_s: float, peak_bytes: float) -> str:
    off = _percent(step_time_s / run.step_time_s)
    return f"{step_time_s:.2f} | {off} | {peak_bytes / 2**30:.0f} GiB"


def _percent(ratio: float) -> str:
    return f"{ratio - 1:+.1%}".replace("-", "\N{MINUS SIGN}").replace("%", " %")


HEAD = """\
| run | published layout | published | estimated | off | peak | our plan | predicted | gain |
|---|---|--:|--:|--:|--:|---|--:|--:|"""
VARIANTS_HEAD = """\
| DeepSeek-V3, 2,048 H800 | estimated | off | peak |
|---|--:|--:|--:|"""


def main(names: list[str]) -> None:
    """Print the rows whose names begin like one of `names`; all without any."""
    asked = [run for run in RUNS if not names or run.name.startswith(tuple(names))]
    print(HEAD)
    for run in asked:
        print(row(run), flush=True)
    if DEEPSEEK in asked:
        print(f"\n{VARIANTS_HEAD}")
        for line in variant_rows(DEEPSEEK):
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
