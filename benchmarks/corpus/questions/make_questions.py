"""Write the questions about models: plans, mixed clusters, sweeps, estimates, and what follows.

`python benchmarks/corpus/questions/make_questions.py` writes the same lines each time. Every
question spells out the options whose defaults could change its answer, from the tables below;
`None` leaves an option out, where no word says its default.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
NAMES: Final[set[str]] = set()
Options = dict[str, Any]

MAPPINGS: Final = "tp-cp-ep-dp-pp,tp-cp-ep-pp-dp"
FAMILIES: Final = (
    "gpipe", "1f1b", "eager-1f1b", "interleaved", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v",
    "zb-v-handmade", "v-half", "v-min", "adaptive-v", "1f1b-v", "gis", "gis-h", "dualpipe-v",
    "wave", "breadth-first", "depth-first",
)  # fmt: skip
# Those that `plan` searches under; the others have only orders.
SEARCHED_UNDER: Final = (
    "gpipe", "1f1b", "eager-1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min",
    "adaptive-v", "breadth-first", "depth-first",
)  # fmt: skip
OF_FRAMEWORK: Final = {
    "megatron": "1f1b,interleaved",
    "megatron-bridge": "1f1b,interleaved",
    "primus": "1f1b,interleaved,zb-v,v-half,v-min",
    "torchtitan@0.2": "gpipe,1f1b",
    "torchtitan@0.3": "gpipe,1f1b",
    "pytorch": "1f1b,interleaved,zb-h1",
    "deepspeed": "1f1b",
    "accelerate": "1f1b",
    "nanotron": "1f1b,gpipe",
}

# How a model trains, of `plan` and `estimate`.
RECIPE: Final[Options] = {
    "precision": "bf16",
    "optimizer": "adam",
    "gradient-dtype": "fp32",
    "main-weight-dtype": "fp32",
    "moment-dtype": "fp32",
    "dropout": 0,
    "context-exchange": "ring",
    "expert-imbalance": 1,
    "capacity-factor": None,
    "dispatch-dtype": "bf16",
    "token-dispatcher": "all_to_all",
    "overlap": [
        "gradients=0.9", "parameters=0.9", "tensor=0", "experts=0", "pipeline=1",
    ],
}  # fmt: skip
MEMORY: Final[Options] = {
    "reserve": "0",
    "workspace": "64MiB",
    "fragmentation": 0.05,
    "fit-probability": 0,
}
# What a plan may use. Ranges are narrower than the defaults, to keep the search short.
SPACE: Final[Options] = {
    "micro-batch": "1..2",
    "tp": "1..8",
    "pp": "1..8",
    "dp": "1..1024",
    "cp": 1,
    "ep": 1,
    "etp": None,  # of models with experts only
    "virtual-stages": "1..2",
    "zero": "0,1,2,3",
    "mapping": MAPPINGS,
    "state-copies": 1,
    "recompute": "none,selective,full",
    "schedule": "1f1b,interleaved",
    "framework": "any",
}
SHOWN: Final[Options] = {"top": 3, "objective": "step-time", "jobs": 1, "planner": None}
WHERE: Final[Options] = {
    "cluster": "dgx-h100",
    "nodes": 1,
    "global-batch": 32,
    "sequence": 2048,
    "calibration": "none",  # the roofline: what is expected of devices changes with the runs known
}
# Of one run, as `estimate` prices it.
RUN: Final[Options] = {
    "tp": 1, "pp": 1, "dp": None, "cp": 1, "ep": 1, "etp": None, "zero": 1,
    "mapping": "tp-cp-ep-dp-pp", "state-copies": 1, "micro-batch": 1, "recompute": "none",
    "schedule": "1f1b", "virtual-stages": 1, "vocabulary-multiple": 128,
}  # fmt: skip
KERNELS: Final = ["--flash-attention", "--no-fused-cross-entropy"]

MIXTURE: Final[Options] = {"ep": "1..8", "etp": "1..2"}
PIPED: Final[Options] = {"pp": "2..8"}


def words(options: Options) -> list[str]:
    """As arguments; a list repeats its option, and `True` has no value."""
    found: list[str] = []
    for name, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            if each is True:
                found.append(f"--{name}")
            elif each is not None and each is not False:
                found += [f"--{name}", str(each)]
    return found


class Group:
    """Questions of one file."""

    def __init__(self, name: str) -> None:
        self.name, self.lines = name, []

    def ask(
        self,
        name: str,
        argv: list[str],
        *,
        files: dict[str, str] | None = None,
        after: list[list[str]] | None = None,
        shared: bool = False,
    ) -> None:
        record: dict[str, Any] = {"id": f"{self.name}/{name}", "argv": argv}
        if record["id"] in NAMES:
            raise ValueError(f"twice: {record['id']}")
        NAMES.add(record["id"])
        record |= {"files": files} if files else {}
        record |= {"shared": True} if shared else {}
        record |= {"after": after} if after else {}
        self.lines.append(json.dumps(record) + "\n")

    def write(self) -> None:
        (HERE / f"{self.name}.jsonl").write_text("".join(self.lines))
        print(f"{self.name}: {len(self.lines)}")


def plan(model: str, *, output: str | None = None, **changes: Any) -> list[str]:
    """`plan` on a cluster of one pool; `global_batch=8` stands for `--global-batch 8`."""
    given = {name.replace("_", "-"): value for name, value in changes.items()}
    options = {**WHERE, **SPACE, **RECIPE, **MEMORY, **SHOWN, **given}
    saved = ["-o", output] if output else []
    return ["plan", model, *words(options), *saved, "--json"]


def mixed(model: str, cluster: str, **changes: Any) -> list[str]:
    """`plan` on several pools, where all train in the usual way: no option of the recipe."""
    given = {name.replace("_", "-"): value for name, value in changes.items()}
    options = {**WHERE, **SPACE, **MEMORY, **SHOWN, "nodes": None, "cluster": cluster, **given}
    return ["plan", model, *words(options), "--json"]


def estimate(model: str, *, output: str | None = None, **changes: Any) -> list[str]:
    given = {name.replace("_", "-"): value for name, value in changes.items()}
    options = {**WHERE, **RUN, **RECIPE, **MEMORY, **given}
    saved = ["-o", output] if output else []
    return ["estimate", model, *words(options), *KERNELS, *saved, "--json"]


# Models by what runs them in a short search, and how.
SMALL: Final = ("gpt2", "gpt2-xl", "bert-base", "bert-large", "opt-350m", "opt-1.3b")
ON: Final[dict[str, Options]] = {
    "bloom-176b": {"nodes": 16, "pp": "4..8", "tp": "4..8"},
    "deepseek-v2": {"nodes": 16, "pp": "2..4", "tp": "1..2", "ep": "4..8"},
    "deepseek-v2-lite": {"nodes": 1, "pp": "1..2", "tp": "1..2", "ep": "4..8"},
    "deepseek-v3": {"nodes": 32, "pp": "8..16", "tp": 1, "ep": "8..16", "global-batch": 256},
    "gpt-oss-120b": {"nodes": 4, "pp": "1..4", "tp": "1..4", "ep": "4..8"},
    "gpt-oss-20b": {"nodes": 1, "pp": "1..2", "tp": "1..4", "ep": "2..8"},
    "gpt3-175b": {"nodes": 16, "pp": "4..8", "tp": "4..8"},
    "grok-1": {"nodes": 16, "pp": "4..8", "tp": "2..8", "ep": "4..8"},
    "kimi-k2": {"nodes": 64, "pp": "8..16", "tp": 1, "ep": "8..16", "global-batch": 512},
    "llama2-70b": {"nodes": 4, "tp": "2..8", "pp": "1..8"},
    "llama3-405b": {"nodes": 32, "tp": 8, "pp": "4..16", "global-batch": 256},
    "llama3-70b": {"nodes": 4, "tp": "2..8", "pp": "1..8"},
    "megatron-gpt-1t": {"nodes": 64, "tp": 8, "pp": "16..64", "global-batch": 512},
    "megatron-gpt-310b": {"nodes": 32, "tp": 8, "pp": "4..16", "global-batch": 256},
    "megatron-gpt-39b": {"nodes": 2},
    "megatron-gpt-530b": {"nodes": 35, "tp": 8, "pp": "7..35", "global-batch": 280},
    "mixtral-8x22b": {"nodes": 8, "tp": "1..4", "pp": "2..4", "ep": "4..8"},
    "mixtral-8x7b": {"nodes": 4, "tp": "1..4", "pp": "1..4", "ep": "2..8"},
    "mpt-30b": {"nodes": 2},
    "nemotron-4-340b": {"nodes": 32, "tp": 8, "pp": "4..12", "global-batch": 256},
    "opt-175b": {"nodes": 16, "pp": "4..8", "tp": "4..8"},
    "opt-30b": {"nodes": 2},
    "qwen1.5-moe-a2.7b": {"nodes": 1, "pp": "1..2", "tp": "1..2", "ep": "1..4"},
    "qwen3-235b-a22b": {"nodes": 16, "pp": "2..8", "tp": "1..4", "ep": "4..8"},
    "qwen3-30b-a3b": {"nodes": 2, "pp": "1..2", "tp": "1..4", "ep": "4..8"},
    "qwen3-32b": {"nodes": 2},
    "gpt-neo-2.7b": {}, "llama2-13b": {}, "llama2-7b": {}, "llama3-8b": {},
    "megatron-gpt-1.7b": {}, "megatron-gpt-22b": {}, "megatron-gpt-3.6b": {},
    "megatron-gpt2-2.5b": {"sequence": 1024}, "megatron-gpt2-8.3b": {"sequence": 1024},
    "mistral-7b": {}, "mpt-7b": {},
    "nemotron-4-15b": {}, "opt-6.7b": {}, "qwen2.5-7b": {},
    "gpt2": {"sequence": 1024}, "gpt2-xl": {"sequence": 1024}, "bert-base": {"sequence": 512},
    "bert-large": {"sequence": 512}, "opt-350m": {}, "opt-1.3b": {},
}  # fmt: skip
CLUSTERS: Final = (
    "dgx-a100", "dgx-a100-40gb", "dgx-b200", "dgx-b300", "dgx-h100", "dgx-h200", "dgx1-v100",
    "dgx2-v100", "gb200-nvl72", "gb300-nvl72", "gh200", "h100-96gb-500w", "hgx-h800", "mi250x",
    "mi300x", "mi325x", "tpu-v4", "tpu-v5p",
)  # fmt: skip


def on(model: str, **changes: Any) -> list[str]:
    """A plan of a model where it fits, with changes."""
    usual = {name.replace("-", "_"): value for name, value in ON.get(model, {}).items()}
    if "ep" in usual:
        usual["etp"] = "1..2"
    return plan(model, **{**usual, **changes})


RAILS: Final = """device_kind = "H100-80GB-SXM"
[[level]]
name = "nvlink"
size = 8
bandwidth_bytes_per_s = 450e9
latency_s = 3e-6
efficiency = 0.75
kind = "switch"
[[level]]
name = "rail"
size = 2
bandwidth_bytes_per_s = 50e9
latency_s = 8e-6
[[level]]
name = "spine"
size = 2
bandwidth_bytes_per_s = 50e9
latency_s = 10e-6
oversubscription = 2.0
"""
OWN: Final = """device_kind = "mine"
[accelerator.mine]
peak_flops_per_s = { bf16 = 400e12, fp8 = 800e12, fp32 = 50e12 }
memory_gib = 64
memory_bandwidth_bytes_per_s = 2e12
launch_overhead_s = 4e-6
usable_fraction = 0.97
power_watts = 600
price_per_hour = 2.5
[accelerator.mine.efficiency]
gemm = { kind = "saturating", max = 0.80, half_flops = 2.0e9 }
memory = { max = 0.85, half_bytes = 2.0e6 }
attention_forward = 0.60
attention_backward = 0.50
[[level]]
name = "node"
size = 4
bandwidth_bytes_per_s = 200e9
latency_s = 2e-6
kind = "ring"
[[level]]
name = "net"
size = 4
bandwidth_bytes_per_s = 25e9
latency_s = 9e-6
"""
TORUS: Final = """device_kind = "TPU-v4"
[[level]]
name = "cube"
size = 16
bandwidth_bytes_per_s = 300e9
latency_s = 1e-6
kind = "torus"
[[level]]
name = "pod"
size = 2
bandwidth_bytes_per_s = 50e9
latency_s = 2e-6
kind = "mesh"
"""
FLAT: Final = """device_kind = "A100-40GB-SXM"
[[level]]
name = "ethernet"
size = 6
bandwidth_bytes_per_s = 3e9
latency_s = 30e-6
"""
FILES: Final = {"rails": RAILS, "own": OWN, "torus": TORUS, "flat": FLAT}


def model_plans() -> Group:
    group = Group("model")
    for framework, schedules in OF_FRAMEWORK.items():
        name = framework.replace("@", "-")
        for model, changes in (
            ("llama3-8b", {}),
            ("llama2-13b", {"cluster": "dgx-a100-40gb", "nodes": 2}),
            ("bert-large", {"global_batch": 64}),
            ("mixtral-8x7b", {"nodes": 4}),
        ):
            options = {"framework": framework, "schedule": schedules, **changes}
            group.ask(f"framework/{name}-{model}", on(model, **options))
    for framework in ("megatron", "primus", "torchtitan@0.3"):
        group.ask(
            f"framework/{framework.replace('@', '-')}-all-families-piped",
            on("llama2-7b", framework=framework, schedule=None, **PIPED),
        )
    families(group)
    memory_ladders(group)
    clusters(group)
    objectives(group)
    for model in ON:
        group.ask(f"catalog/{model}", on(model, top=2))
    recipes(group)
    spaces(group)
    files_of_models(group)
    infeasible(group)
    refusals(group)
    group.ask(
        "big/llama3-405b-16384",
        on("llama3-405b", nodes=2048, global_batch=2048, sequence=8192, framework="megatron",
           micro_batch=1, pp="8..16", schedule="1f1b,interleaved", virtual_stages="1..8"),
    )  # fmt: skip
    group.ask(
        "big/gpt3-175b-1024",
        on("gpt3-175b", cluster="dgx-a100", nodes=128, global_batch=1536, micro_batch=1,
           framework="megatron", virtual_stages="1..6", pp="4..16"),
    )  # fmt: skip
    group.ask(
        "big/deepseek-v3-2048",
        on("deepseek-v3", cluster="hgx-h800", nodes=256, global_batch=4096, sequence=4096,
           micro_batch=1, ep="32..64", pp=16, schedule="1f1b,zb-v", zero=1),
    )  # fmt: skip
    return group


def families(group: Group) -> None:
    for family in FAMILIES:
        if family not in SEARCHED_UNDER:
            group.ask(f"refused/family-{family}", on("gpt2-xl", pp=4, schedule=family))
            continue
        options = {"schedule": family, "virtual_stages": "1..4"}
        group.ask(f"family/{family}-gpt2-xl", on("gpt2-xl", pp=4, **options))
        group.ask(
            f"family/{family}-llama2-7b-tight",
            on("llama2-7b", cluster="dgx-a100-40gb", pp="2..8", tp="1..2", **options),
        )
        group.ask(
            f"family/{family}-uneven",
            on(
                "megatron-gpt-3.6b",
                cluster="dgx1-v100",
                precision="fp16",
                pp="4..8",
                tp=1,
                global_batch=48,
                recompute="none,full",
                dispatch_dtype="fp16",
                **options,
            ),
        )
        group.ask(
            f"family/{family}-two-nodes",
            on("opt-6.7b", nodes=2, pp="2..4", tp="2..4", memory="24GiB", micro_batch=1, **options),
        )
    lists = (
        ("zero-bubble", "zb-h1,zb-h2"),
        ("v", "zb-v,v-half,v-min,adaptive-v"),
        ("loops", "interleaved,breadth-first,depth-first"),
        ("halves", "v-half,1f1b"),
        ("reversed", "v-min,1f1b,gpipe"),
        ("classic", "gpipe,1f1b,eager-1f1b,interleaved"),
        ("all", ",".join(SEARCHED_UNDER)),
    )
    for name, listed in lists:
        options = {"schedule": listed, "virtual_stages": "1..4"}
        group.ask(f"families/{name}-gpt2-xl", on("gpt2-xl", pp="2..4", **options))
        group.ask(
            f"families/{name}-mistral-7b",
            on("mistral-7b", cluster="dgx-a100-40gb", pp="4..8", tp=1, zero="0,1", **options),
        )
    for name, listed in (("alone", "searched"), ("beside", "1f1b,searched")):
        group.ask(
            f"families/searched-{name}",
            on("gpt2", pp=4, tp=1, dp=2, global_batch=16, schedule=listed, virtual_stages=1,
               micro_batch=1, zero=1, recompute="none"),
        )  # fmt: skip


def memory_ladders(group: Group) -> None:
    for memory in (20, 24, 28, 32, 40, 48, 64, 80):
        group.ask(f"memory/llama3-8b-{memory}", on("llama3-8b", memory=f"{memory}GiB"))
        group.ask(
            f"memory/llama2-13b-piped-{memory}",
            on("llama2-13b", memory=f"{memory}GiB", pp="2..8", schedule="1f1b,zb-h1,v-half"),
        )
        group.ask(
            f"memory/qwen3-30b-a3b-{memory}", on("qwen3-30b-a3b", memory=f"{memory}GiB", top=0)
        )
    for memory in (6, 8, 10, 12, 16):
        group.ask(f"memory/gpt2-xl-{memory}", on("gpt2-xl", memory=f"{memory}GiB", pp="1..4"))
    for reserve, workspace, waste in (("2GiB", "1GiB", 0.1), ("10GiB", "0", 0), ("0", "4GiB", 0.2)):
        group.ask(
            f"memory/kept-{reserve}-{workspace}",
            on("llama3-8b", memory="40GiB", reserve=reserve, workspace=workspace,
               fragmentation=waste),
        )  # fmt: skip


def clusters(group: Group) -> None:
    for cluster in CLUSTERS:
        half = "fp16" if "v100" in cluster else "bf16"
        options = {"cluster": cluster, "precision": half, "dispatch_dtype": half}
        group.ask(f"cluster/{cluster}-gpt2-xl", on("gpt2-xl", **options))
        group.ask(
            f"cluster/{cluster}-llama3-8b",
            on("llama3-8b", **options, nodes=2, global_batch=128, pp="1..4", framework="megatron"),
        )
    for name, text in FILES.items():
        for model in ("gpt2-xl", "llama3-8b", "qwen1.5-moe-a2.7b"):
            group.ask(
                f"cluster/file-{name}-{model}",
                on(model, cluster="c.toml", nodes=None, pp="1..4", global_batch=96),
                files={"c.toml": text},
            )
    for devices in (1, 2, 3, 6, 8, 12, 24):
        group.ask(
            f"cluster/devices-{devices}",
            on("gpt2-xl", nodes=None, devices=devices, global_batch=24, pp="1..4"),
        )


def objectives(group: Group) -> None:
    costs = {"price": 2.5, "power": 700}
    for model in ("llama3-8b", "mixtral-8x7b"):
        for objective in ("step-time", "tokens-per-device", "cost", "energy"):
            group.ask(
                f"objective/{objective}-{model}",
                on(model, nodes=None, devices="16,32", objective=objective, tokens="1T", **costs),
            )
    for name, options in {
        "devices-deadline": {"objective": "devices", "deadline": "300d", "tokens": "1T"},
        "deadline-missed": {"objective": "devices", "deadline": "1d", "tokens": "15T"},
        "tokens": {"tokens": "300B"},
        "price": {"tokens": "300B", "price": 3},
        "failures": {"tokens": "1T", "mtbf": "50000h", "checkpoint_bandwidth": "1GB/s",
                     "restart": "10min"},
        "failures-cost": {"tokens": "1T", "mtbf": "1000h", "checkpoint_bandwidth": "200MB/s",
                          "restart": "30min", "price": 2, "objective": "cost"},
        "top-0": {"top": 0},
        "top-20": {"top": 20},
    }.items():  # fmt: skip
        where: Options = {} if name.startswith("top") else {"nodes": None, "devices": "8,16"}
        group.ask(f"objective/{name}", on("llama3-8b", pp="1..4", **where, **options))
    group.ask("refused/objective-alone", on("llama3-8b", objective="cost", price=2, tokens="1T"))


def recipes(group: Group) -> None:
    dense: dict[str, Options] = {
        "fp8": {"precision": "fp8"},
        "fp16": {"precision": "fp16"},
        "fp32": {"precision": "fp32", "main_weight_dtype": "none"},
        "tf32": {"precision": "tf32", "main_weight_dtype": "none"},
        "adamw": {"optimizer": "adamw"},
        "momentum": {"optimizer": "momentum"},
        "muon": {"optimizer": "muon"},
        "sgd": {"optimizer": "sgd", "moment_dtype": None},
        "gradient-bf16": {"gradient_dtype": "bf16"},
        "no-main-weights": {"main_weight_dtype": "none"},
        "moments-bf16": {"moment_dtype": "bf16"},
        "dropout": {"dropout": 0.1},
        "overlap-none": {"overlap": ["gradients=0", "parameters=0", "tensor=0", "pipeline=0"]},
        "overlap-all": {"overlap": ["gradients=1", "parameters=1", "tensor=0.8", "pipeline=1"]},
        "lean": {"gradient_dtype": "bf16", "moment_dtype": "bf16", "main_weight_dtype": "none"},
    }
    for name, options in dense.items():
        group.ask(f"recipe/{name}", on("llama3-8b", **options))
        group.ask(f"recipe/{name}-piped", on("opt-6.7b", pp="2..4", memory="40GiB", **options))
    for exchange in ("ring", "all_gather", "all_to_all"):
        group.ask(
            f"recipe/context-{exchange}",
            on("llama3-8b", context_exchange=exchange, cp="2..8", sequence=32768, global_batch=8),
        )
    mixture: dict[str, Options] = {
        "imbalance": {"expert_imbalance": 1.5},
        "capacity": {"capacity_factor": 1.25},
        "dispatch-fp8": {"dispatch_dtype": "fp8"},
        "dispatch-fp32": {"dispatch_dtype": "fp32"},
        "hierarchical": {"token_dispatcher": "hierarchical", "ep": "4..16"},
        "hidden": {"overlap": ["experts=0.8", "gradients=0.9"]},
    }
    for name, options in mixture.items():
        for model in ("mixtral-8x7b", "deepseek-v2-lite"):
            group.ask(f"recipe/{name}-{model}", on(model, nodes=2, **options))


def spaces(group: Group) -> None:
    for tensor in (1, 2, 4, 8):
        group.ask(f"space/tp-{tensor}", on("llama3-8b", tp=tensor))
        group.ask(f"space/tp-{tensor}-pp-2", on("llama3-8b", tp=tensor, pp=2, nodes=2))
    for ranks in (1, 2, 3, 4, 8, 16):
        group.ask(f"space/pp-{ranks}", on("llama2-7b", pp=ranks, nodes=2))
    for zero in ("0", "1", "2", "3", "1,3"):
        group.ask(f"space/zero-{zero}", on("llama3-8b", zero=zero, nodes=2))
    for mapping in MAPPINGS.split(","):
        group.ask(f"space/mapping-{mapping}", on("llama3-8b", mapping=mapping, nodes=4, pp="2..4"))
    for copies in ("1..4", "2", "4"):
        group.ask(f"space/copies-{copies}", on("llama3-8b", nodes=4, state_copies=copies))
    for modes in ("none", "selective", "full", "none,full"):
        group.ask(f"space/recompute-{modes}", on("llama3-8b", memory="32GiB", recompute=modes))
    for size in ("1", "4", "1..8"):
        group.ask(f"space/micro-batch-{size}", on("llama3-8b", micro_batch=size))
    for chunks in ("1", "2", "4", "1..4"):
        group.ask(
            f"space/virtual-stages-{chunks}",
            on("llama3-8b", virtual_stages=chunks, pp=4, schedule="1f1b,interleaved"),
        )
    for expert, inner in (("1", "1"), ("8", "1"), ("2", "2"), ("1..8", "1..4")):
        group.ask(
            f"space/ep-{expert}-etp-{inner}", on("mixtral-8x7b", ep=expert, etp=inner, tp="1..4")
        )
    for data in ("1", "2", "4..8"):
        group.ask(f"space/dp-{data}", on("llama2-7b", dp=data))
    for name, options in {
        "no-data-parallel": {"no-data-parallel": True, "dp": None},
        "no-tensor-parallel": {"no-tensor-parallel": True, "tp": None},
        "no-recompute": {"no-recompute": True, "recompute": None},
        "exclude-full": {"exclude-option": "full"},
        "exclude-two": {"exclude-option": ["full", "selective"]},
        "equal-batch-prime": {"global_batch": 31, "dp": "1..8"},
        "batch-1": {"global_batch": 1, "micro_batch": 1},
        "batch-7": {"global_batch": 7, "micro_batch": "1..7"},
        "batch-1000": {"global_batch": 1000},
        "sequence-1": {"sequence": 1},
        "sequence-8192": {"sequence": 8192, "global_batch": 16},
        "sequence-odd": {"sequence": 2047},
        "context-long": {"sequence": 131072, "cp": "1..8", "global_batch": 4, "nodes": 2},
    }.items():
        group.ask(f"space/{name}", on("llama3-8b", **options))


def files_of_models(group: Group) -> None:
    tiny: Options = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024,
        "intermediate_size": 2816, "num_attention_heads": 16, "num_hidden_layers": 12,
        "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 4096,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    }  # fmt: skip
    mixture = {
        **tiny, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    qwen = {**tiny, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    gpt2 = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_head": 12,
        "n_layer": 10, "n_positions": 1024, "vocab_size": 50257,
    }  # fmt: skip
    configs: dict[str, Options] = {
        "llama-tiny": tiny,
        "llama-tied": {**tiny, "tie_word_embeddings": True},
        "llama-deep": {**tiny, "num_hidden_layers": 37},
        "llama-wide": {**tiny, "hidden_size": 4096, "num_attention_heads": 32},
        "mixtral-tiny": mixture,
        "qwen-tiny": qwen,
        "gpt2-odd": gpt2,
    }
    for name, config in configs.items():
        files = {"config.json": json.dumps(config)}
        options: Options = {"pp": "1..4", "sequence": 1024}
        if config is mixture:
            options |= MIXTURE
        group.ask(f"file/{name}", plan("config.json", **options), files=files)
        group.ask(
            f"file/{name}-piped",
            plan("config.json", **{**options, "pp": "2..4", "cluster": "dgx1-v100",
                                   "precision": "fp16", "dispatch_dtype": "fp16",
                                   "schedule": "1f1b,interleaved,zb-h1,v-half"}),
            files=files,
        )  # fmt: skip
    # Shapes drawn once: what no published model has.
    draw = random.Random(20)
    for number in range(16):
        heads = draw.choice((8, 12, 16, 24))
        config = {
            **tiny,
            "hidden_size": heads * 64,
            "num_attention_heads": heads,
            "num_key_value_heads": draw.choice((heads, heads // 4)),
            "intermediate_size": 256 * draw.randint(4, 40),
            "num_hidden_layers": draw.randint(5, 40),
            "vocab_size": draw.randint(8_000, 250_000),
        }
        argv = plan(
            "config.json",
            cluster=draw.choice(("dgx-a100", "dgx-h100", "mi250x", "gh200")),
            nodes=draw.choice((1, 2)),
            global_batch=draw.choice((24, 32, 60)),
            sequence=draw.choice((1024, 2048, 4096)),
            memory=f"{draw.choice((8, 12, 16, 24))}GiB",
            schedule=draw.choice(("1f1b", "1f1b,zb-h1", "interleaved,v-half", "zb-v,1f1b")),
            pp=draw.choice(("1..4", "2..4", "2..8")),
            zero=draw.choice(("0", "0,1", "0,1,2,3")),
        )
        group.ask(f"file/drawn-{number}", argv, files={"config.json": json.dumps(config)})


def infeasible(group: Group) -> None:
    for name, model, options in (
        ("70b-one-node-16g", "llama3-70b", {"nodes": 1, "memory": "16GiB"}),
        ("8b-8g", "llama3-8b", {"memory": "8GiB"}),
        ("8b-8g-piped", "llama3-8b", {"memory": "8GiB", "pp": "2..8"}),
        ("8b-zero-0", "llama3-8b", {"zero": "0", "tp": 1, "pp": 1}),
        ("13b-v100", "llama2-13b", {"cluster": "dgx1-v100", "precision": "fp16",
                                    "dispatch_dtype": "fp16"}),
        ("405b-one-node", "llama3-405b", {"nodes": 1}),
        ("v3-4-nodes", "deepseek-v3", {"nodes": 4, "pp": "1..4", "ep": "8"}),
        ("mixtral-no-recompute", "mixtral-8x7b", {"nodes": 1, "no-recompute": True,
                                                  "recompute": None, "memory": "40GiB"}),
        ("long", "llama3-8b", {"sequence": 131072, "global_batch": 1, "micro_batch": 1, "tp": 1}),
        ("optimizer", "opt-30b", {"nodes": 1, "memory": "32GiB", "zero": "0"}),
        ("megatron", "llama3-70b", {"nodes": 1, "framework": "megatron"}),
        ("titan", "llama3-70b", {"nodes": 1, "framework": "torchtitan@0.3", "memory": "40GiB",
                                 "schedule": "1f1b"}),
        ("reserve", "llama3-8b", {"reserve": "70GiB"}),
        ("one-device", "llama2-13b", {"nodes": None, "devices": 1}),
        ("family", "llama2-13b", {"memory": "20GiB", "schedule": "gpipe", "pp": 4, "tp": 1}),
    ):  # fmt: skip
        group.ask(f"infeasible/{name}", on(model, **options))


def refusals(group: Group) -> None:
    for name, model, options in (
        ("no-model", "llama9-8b", {}),
        ("cluster", "llama3-8b", {"cluster": "dgx-h1000"}),
        ("schedule", "llama3-8b", {"schedule": "1f2b"}),
        ("framework", "llama3-8b", {"framework": "megatorn"}),
        ("objective", "llama3-8b", {"objective": "speed"}),
        ("precision", "llama3-8b", {"precision": "fp7"}),
        ("precision-v100", "llama3-8b", {"cluster": "dgx1-v100"}),
        ("optimizer", "llama3-8b", {"optimizer": "lion"}),
        ("zero", "llama3-8b", {"zero": "4"}),
        ("mapping", "llama3-8b", {"mapping": "pp-tp"}),
        ("recompute", "llama3-8b", {"recompute": "some"}),
        ("tp-3", "llama3-8b", {"tp": 3}),
        ("tp-16", "llama3-8b", {"tp": 16}),
        ("pp-1000", "llama3-8b", {"pp": 1000}),
        ("micro-batch", "llama3-8b", {"micro_batch": 5}),
        ("cp", "llama3-8b", {"cp": 7}),
        ("ep-dense", "llama3-8b", {"ep": 2}),
        ("ep-odd", "mixtral-8x7b", {"ep": 3}),
        ("dp", "llama3-8b", {"dp": 5}),
        ("range", "llama3-8b", {"tp": "8..2"}),
        ("memory", "llama3-8b", {"memory": "80 bananas"}),
        ("reserve", "llama3-8b", {"reserve": "100GiB"}),
        ("overlap", "llama3-8b", {"overlap": "everything=1"}),
        ("overlap-2", "llama3-8b", {"overlap": "gradients=2"}),
        ("batch-0", "llama3-8b", {"global_batch": 0}),
        ("no-batch", "llama3-8b", {"global_batch": None}),
        ("no-sequence", "llama3-8b", {"sequence": None}),
        ("no-cluster", "llama3-8b", {"cluster": None}),
        ("top", "llama3-8b", {"top": 5000}),
        ("two-faults", "llama3-8b", {"zero": "9", "recompute": "some", "schedule": "nope"}),
        ("calibration", "llama3-8b", {"calibration": "nobody"}),
        ("deadline", "llama3-8b", {"objective": "devices", "deadline": "soon"}),
        ("devices-no-deadline", "llama3-8b", {"objective": "devices"}),
        ("bandwidth", "llama3-8b", {"bandwidth": "25GiB/s"}),
        ("planner", "llama3-8b", {"planner": "equal"}),
        ("compare", "llama3-8b", {"compare": True}),
        ("framework-family", "llama3-8b", {"framework": "megatron", "schedule": "v-half"}),
        ("framework-searched", "llama3-8b", {"framework": "megatron", "schedule": "searched"}),
        ("sequence-long", "bert-large", {"sequence": 100000}),
        ("exclude-all", "llama3-8b", {"exclude-option": ["none", "full", "selective"]}),
        ("fp8-a100", "llama3-8b", {"cluster": "dgx-a100", "precision": "fp8"}),
        ("moments", "llama3-8b", {"moment_dtype": ["fp32", "fp32", "fp32"]}),
        ("jobs", "llama3-8b", {"jobs": "some"}),
    ):
        group.ask(f"refused/{name}", on(model, **options))
    broken = {"empty": "", "list": "[]", "unknown": '{"model_type": "mystery"}', "cut": '{"model'}
    for name, text in broken.items():
        group.ask(f"refused/file-{name}", plan("config.json"), files={"config.json": text})
    for name, text in {
        "empty": "",
        "no-level": 'device_kind = "H100-80GB-SXM"\n',
        "unknown-key": RAILS + 'colour = "green"\n',
        "unknown-device": RAILS.replace("H100-80GB-SXM", "H900"),
        "negative": RAILS.replace("450e9", "-1"),
    }.items():
        group.ask(
            f"refused/cluster-{name}",
            on("gpt2-xl", cluster="c.toml", nodes=None),
            files={"c.toml": text},
        )


def calibrated() -> Group:
    group = Group("calibrated")
    for line, cluster in (
        ("llm-foundry", "dgx-a100-40gb"),
        ("llm-foundry", "dgx-a100"),
        ("megatron-2021", "dgx-a100"),
        ("megatron-2022", "dgx-a100"),
        ("megatron-core-ci", "dgx-a100"),
        ("megatron-deepspeed-2021", "dgx-a100"),
        ("megatron-deepspeed-2022", "dgx-a100"),
        ("megatron-core-2025-b200", "dgx-b200"),
        ("megatron-core", "dgx-h100"),
        ("megatron-core-ci", "dgx-h100"),
        ("nemo", "dgx-h100"),
        ("torchtitan", "h100-96gb-500w"),
        ("nemo", "dgx-b200"),
    ):
        options = {"cluster": cluster, "calibration": line}
        group.ask(f"plan/{line}-{cluster}", on("llama2-7b", **options, pp="1..4"))
        group.ask(
            f"estimate/{line}-{cluster}",
            estimate("llama2-7b", **options, tp=2, pp=2, dp=2, recompute="full"),
        )
    measured = """source,model,cluster,devices
"""
    group.ask(
        "calibrate/refused", ["calibrate", "runs.csv", "--json"], files={"runs.csv": measured}
    )
    for name in ("korthikanti", "megatron_scaling"):
        path = f"{{shared}}/data/measured/{name}.csv"
        group.ask(
            f"calibrate/{name}",
            ["calibrate", path, "--constants", "gemm_max,memory_max", "--json", "-o", "c.toml"],
            after=[estimate("llama2-7b", cluster="dgx-a100", calibration="c.toml", tp=2)],
            shared=True,
        )
        group.ask(f"validate/{name}", ["validate", path, "--rows", "--json"], shared=True)
    for topic in ("models", "accelerators", "clusters", "calibrations", "families", "targets"):
        group.ask(f"catalog/{topic}", ["catalog", topic, "--json"])
    return group


def two_pools(first: str, second: str, sizes: tuple[int, int], joint: str) -> str:
    """A cluster file of two pools of one node each."""
    speed = {"V100-SXM2-16GB": "150e9", "A100-80GB-SXM": "300e9", "A100-40GB-SXM": "300e9"}
    pools = "".join(
        f'[[pool]]\ndevice_kind = "{kind}"\nnum_devices = {size}\n'
        f'[[pool.level]]\nname = "nvlink"\nsize = {size}\n'
        f"bandwidth_bytes_per_s = {speed.get(kind, '450e9')}\nlatency_s = 3e-6\n"
        for kind, size in zip((first, second), sizes, strict=True)
    )
    return (
        f'name = "two"\n{pools}[joint]\nname = "ethernet"\nbandwidth_bytes_per_s = {joint}\n'
        "latency_s = 20e-6\n"
    )


def mixed_plans() -> Group:
    group = Group("mixed")
    pairs = {
        "a100-h100": two_pools("A100-80GB-SXM", "H100-80GB-SXM", (8, 8), "12.5e9"),
        "a100-h100-fast": two_pools("A100-80GB-SXM", "H100-80GB-SXM", (4, 4), "100e9"),
        "a40-h100": two_pools("A100-40GB-SXM", "H100-80GB-SXM", (8, 4), "25e9"),
        "h100-a40-uneven": two_pools("H100-80GB-SXM", "A100-40GB-SXM", (2, 6), "25e9"),
        "a100-a40": two_pools("A100-80GB-SXM", "A100-40GB-SXM", (4, 4), "6e9"),
    }
    space: Options = {"micro_batch": "1..2", "pp": "1..4", "schedule": "1f1b"}
    for name, text in pairs.items():
        files = {"c.toml": text}
        for model, changes in (
            ("gpt2-xl", {"sequence": 1024}),
            ("llama3-8b", {"tp": "1..4"}),
            ("llama2-13b", {"tp": "2..4", "zero": "1,2,3"}),
        ):
            group.ask(
                f"{name}/{model}", mixed(model, "c.toml", **{**space, **changes}), files=files
            )
        group.ask(
            f"{name}/opt-1.3b-piped",
            mixed("opt-1.3b", "c.toml", **{**space, "pp": "2..4", "tp": "1..2"}),
            files=files,
        )
        group.ask(
            f"{name}/opt-6.7b-tight",
            mixed("opt-6.7b", "c.toml", **{**space, "reserve": "20GiB", "tp": "1..4"}),
            files=files,
        )
    files = {"c.toml": pairs["a100-h100-fast"]}
    for name, options in {
        "framework": {"framework": "megatron"},
        "gpipe": {"schedule": "gpipe,1f1b"},
        "interleaved": {"schedule": "interleaved"},
        "mapping": {"mapping": "tp-cp-ep-pp-dp"},
        "copies": {"state_copies": 2},
        "zero-0": {"zero": "0"},
        "zero-3": {"zero": "3"},
        "tp-1": {"tp": 1},
        "pp-2": {"pp": 2},
        "pp-1": {"pp": 1},
        "no-recompute": {"recompute": "none"},
        "batch-12": {"global_batch": 12},
        "batch-60": {"global_batch": 60},
        "top-0": {"top": 0},
        "top-10": {"top": 10},
        "precision": {"precision": "bf16"},
        "calibration": {"calibration": "megatron-2022"},
        "per-stage": {"per-stage-degrees": True},
        "searched": {"schedule": "searched"},
        "infeasible": {"reserve": "74GiB"},
        "memory": {"memory": "4GiB"},
        "nodes": {"nodes": 2},
        "devices": {"devices": 6},
    }.items():
        group.ask(
            f"options/{name}", mixed("opt-1.3b", "c.toml", **{**space, **options}), files=files
        )
    return group


def per_stage() -> Group:
    group = Group("stages")
    for name, model, options in (
        ("gpt2-xl", "gpt2-xl", {"pp": "1..4"}),
        ("gpt2-xl-piped", "gpt2-xl", {"pp": "2..4"}),
        ("opt-1.3b", "opt-1.3b", {"pp": "2..4", "tp": "1..4"}),
        ("bert-large", "bert-large", {"pp": "2..4"}),
        ("llama3-8b", "llama3-8b", {"pp": "2..4", "tp": "1..4"}),
        ("llama3-8b-tight", "llama3-8b", {"pp": "2..4", "tp": "1..4", "memory": "40GiB"}),
        ("gpt2-4", "gpt2", {"devices": 4, "nodes": None, "pp": "2..4"}),
        ("gpt2-6", "gpt2", {"devices": 6, "nodes": None, "pp": "2..4", "global_batch": 24}),
        ("opt-6.7b", "opt-6.7b", {"pp": "1..4", "recompute": "none,full"}),
        ("opt-6.7b-24", "opt-6.7b", {"pp": "2..4", "memory": "24GiB"}),
        ("mistral-two-nodes", "mistral-7b", {"pp": "2..4", "nodes": 2, "tp": "1..4"}),
        ("gh200", "llama2-7b", {"pp": "2..4", "cluster": "gh200", "tp": "1..2"}),
        ("a100-zero-3", "llama2-7b", {"pp": "2..3", "cluster": "dgx-a100", "zero": "0,3"}),
        ("families", "gpt2-xl", {"pp": "2..4", "schedule": "1f1b,zb-h1"}),
        ("batch-48", "opt-1.3b", {"pp": "2..3", "global_batch": 48}),
        ("mixture", "qwen1.5-moe-a2.7b", {"pp": "1..2"}),
        ("infeasible", "llama3-8b", {"memory": "8GiB"}),
        ("framework", "gpt2", {"framework": "megatron"}),
        ("searched", "gpt2", {"schedule": "searched"}),
    ):
        wanted = {"schedule": "1f1b", "virtual_stages": 1, "zero": "0,1", "micro_batch": 1}
        group.ask(name, on(model, **{**wanted, **options}, **{"per-stage-degrees": True}))
    return group


def sweeps() -> Group:
    group = Group("sweep")
    for name, model, options in (
        ("gpt2-xl", "gpt2-xl", {"devices": "2..8"}),
        ("gpt2-list", "gpt2", {"devices": "1,2,3,4"}),
        ("llama3-8b", "llama3-8b", {"devices": "8..32"}),
        ("llama3-8b-megatron", "llama3-8b", {"devices": "8,16,24", "framework": "megatron"}),
        ("bert", "bert-large", {"devices": "1..16"}),
        ("cost", "llama3-8b", {"devices": "8..16", "objective": "cost", "tokens": "1T",
                               "price": 2}),
        ("energy", "opt-1.3b", {"devices": "2..8", "objective": "energy", "tokens": "100B",
                                "power": 700}),
        ("devices", "llama3-8b", {"devices": "8..32", "objective": "devices", "tokens": "100B",
                                  "deadline": "30d"}),
        ("devices-missed", "opt-1.3b", {"devices": "2..8", "objective": "devices",
                                        "tokens": "100T", "deadline": "1d"}),
        ("per-device", "opt-1.3b", {"devices": "2..8", "objective": "tokens-per-device"}),
        ("pareto", "gpt2-xl", {"devices": "2..8", "tokens": "100B", "price": 2,
                               "pareto": "step-time,cost"}),
        ("pareto-energy", "llama3-8b", {"devices": "8..16", "tokens": "100B", "power": 700,
                                        "price": 2, "pareto": "step-time,energy"}),
        ("failures", "llama3-8b", {"devices": "8..16", "tokens": "1T", "mtbf": "20000h",
                                   "checkpoint_bandwidth": "1GB/s", "restart": "10min"}),
        ("partly-infeasible", "llama2-13b", {"devices": "1..8"}),
        ("infeasible", "llama3-70b", {"devices": "1..4"}),
        ("one", "gpt2", {"devices": "4..4"}),
        ("backwards", "gpt2", {"devices": "8..4"}),
        ("moe", "qwen1.5-moe-a2.7b", {"devices": "4..16"}),
        ("v100", "gpt2-xl", {"devices": "8..16", "cluster": "dgx1-v100", "precision": "fp16",
                             "dispatch_dtype": "fp16"}),
        ("tpu", "opt-1.3b", {"devices": "8,64", "cluster": "tpu-v4"}),
    ):  # fmt: skip
        wanted = {"nodes": None, "pp": "1..4", "micro_batch": "1..2", "top": 2, "schedule": "1f1b"}
        group.ask(name, on(model, **{**wanted, **options}))
    return group


MEGATRON: Final = """--num-layers {layers} --hidden-size {hidden} --ffn-hidden-size {ffn}
--num-attention-heads {heads} --group-query-attention --num-query-groups {groups} --swiglu
--disable-bias-linear --normalization RMSNorm --position-embedding-type rope
--untie-embeddings-and-output-weights --vocab-size 32000 --seq-length 2048
--max-position-embeddings 4096 --attention-dropout 0 --hidden-dropout 0
--micro-batch-size 1 --global-batch-size 32 --bf16 {more}
"""
SHAPES: Final = {
    "3b": {"layers": 24, "hidden": 2560, "ffn": 6912, "heads": 20, "groups": 4},
    "7b": {"layers": 32, "hidden": 4096, "ffn": 11008, "heads": 32, "groups": 32},
}
MEGATRON_JOBS: Final = {
    "data": "--use-distributed-optimizer",
    "data-zero-0": "",
    "tensor": "--tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer",
    "tensor-plain": "--tensor-model-parallel-size 2",
    "pipeline": "--pipeline-model-parallel-size 4",
    "virtual": "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4",
    "full": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    "block": "--recompute-granularity full --recompute-method block --recompute-num-layers 3"
    " --pipeline-model-parallel-size 2",
    "selective": "--recompute-activations --tensor-model-parallel-size 2",
    "context": "--context-parallel-size 2",
    "both": "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel"
    " --overlap-grad-reduce --overlap-param-gather --use-distributed-optimizer",
    "unknown": "--fancy-flag 1",
    "fp8": "--fp8-format hybrid --transformer-impl transformer_engine",
    "bad-tp": "--tensor-model-parallel-size 3",
    "bad-word": "--tensor-model-parallel-size two",
}
TITAN: Final = """[model]
name = "{model}"
flavor = "{flavor}"

[training]
local_batch_size = {local}
seq_len = 4096
steps = 100

[parallelism]
data_parallel_replicate_degree = {replicate}
data_parallel_shard_degree = -1
fsdp_reshard_after_forward = "default"
tensor_parallel_degree = {tensor}
pipeline_parallel_degree = {ranks}
pipeline_parallel_schedule = "{schedule}"
context_parallel_degree = {context}

[activation_checkpoint]
mode = "{mode}"
"""
TITAN_JOBS: Final = {
    "plain": {},
    "tensor": {"tensor": 2},
    "pipeline": {"ranks": 2, "local": 8},
    "gpipe": {"ranks": 2, "local": 8, "schedule": "GPipe"},
    "interleaved": {"ranks": 2, "local": 8, "schedule": "Interleaved1F1B"},
    "zero-bubble": {"ranks": 2, "local": 8, "schedule": "ZBVZeroBubble"},
    "context": {"context": 2},
    "hybrid": {"replicate": 2},
    "full": {"mode": "full", "local": 4},
    "none": {"mode": "none"},
    "bad-mode": {"mode": "sometimes"},
}
DEEPSPEED_JOBS: Final[dict[str, Options]] = {
    "zero-0": {"zero_optimization": {"stage": 0}},
    "zero-1": {"zero_optimization": {"stage": 1}},
    "zero-2": {"zero_optimization": {"stage": 2, "overlap_comm": True}},
    "zero-3": {"zero_optimization": {"stage": 3}},
    "fp16": {"zero_optimization": {"stage": 2}, "fp16": {"enabled": True}, "bf16": None},
    "auto": {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"},
    "accumulation": {"zero_optimization": {"stage": 1}, "gradient_accumulation_steps": 2},
    "offload": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
    "bad-stage": {"zero_optimization": {"stage": 7}},
}


def jobs() -> list[tuple[str, list[str], dict[str, str]]]:
    """Job files of the frameworks that `--from` reads: name, arguments and the file."""
    found = []
    for shape, sizes in SHAPES.items():
        for name, more in MEGATRON_JOBS.items():
            text = MEGATRON.format(**sizes, more=more)
            words_ = ["--from", "megatron", "job.args"]
            found.append((f"megatron-{shape}-{name}", words_, {"job.args": text}))
    base = {
        "model": "llama3", "flavor": "8B", "local": 2, "replicate": 1, "tensor": 1, "ranks": 1,
        "schedule": "1F1B", "context": 1, "mode": "selective",
    }  # fmt: skip
    for name, change in TITAN_JOBS.items():
        text = TITAN.format(**{**base, **change})
        found.append(
            (f"torchtitan-{name}", ["--from", "torchtitan", "job.toml"], {"job.toml": text})
        )
    for name, change in DEEPSPEED_JOBS.items():
        settings = {"train_batch_size": 32, "bf16": {"enabled": True}, **change}
        settings = {key: value for key, value in settings.items() if value is not None}
        text = json.dumps(settings)
        found.append((f"deepspeed-{name}", ["--from", "deepspeed", "job.json"], {"job.json": text}))
    return found


def job_options(name: str) -> Options:
    options: Options = {"cluster": "dgx-h100", "nodes": 1, "calibration": "none"}
    if name.startswith("deepspeed"):
        options["sequence"] = 2048
    return options


def estimates() -> Group:
    group = Group("estimate")
    for name, source, files in jobs():
        model = ["llama2-7b"] if name.startswith("deepspeed") else []
        kept = words({**job_options(name), **MEMORY})
        group.ask(f"from/{name}", ["estimate", *model, *source, *kept, "--json"], files=files)
    draw = random.Random(7)
    models = ("gpt2-xl", "llama3-8b", "llama2-13b", "mistral-7b", "opt-6.7b", "bert-large")
    one_chunk = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p")
    chunks = {family: 1 if family in one_chunk else 2 for family in FAMILIES}
    for number in range(100):
        model = draw.choice(models)
        ranks = draw.choice((1, 1, 2, 4))
        schedule = draw.choice(FAMILIES) if ranks > 1 else "1f1b"
        tensor = 1 if model == "gpt2-xl" else draw.choice((1, 2, 4))
        context = draw.choice((1, 1, 1, 2))
        data = max(1, 16 // (ranks * tensor * context))
        zero = draw.randint(0, 3)
        wild = number % 10 == 0  # and mostly refused
        argv = estimate(
            model,
            cluster=draw.choice(("dgx-h100", "dgx-a100", "dgx-a100-40gb", "mi300x", "gh200")),
            nodes=1 if wild else 4,
            tp=tensor,
            pp=ranks,
            dp=data,
            cp=context,
            zero=zero,
            mapping=draw.choice(MAPPINGS.split(",")),
            state_copies=draw.choice((1, 1, 2)) if wild or (zero and data > 2) else 1,
            micro_batch=draw.choice((1, 1, 2)),
            global_batch=2 * data * ranks * draw.choice((1, 2, 4)),
            sequence={"bert-large": 512, "gpt2-xl": 1024}.get(model, draw.choice((1024, 2048))),
            recompute=draw.choice(("none", "selective", "full", "full:2")),
            schedule=schedule,
            virtual_stages=draw.choice((1, 2)) if wild else chunks.get(schedule, 1),
            optimizer=draw.choice(("adam", "adam", "muon", "momentum")),
        )
        group.ask(f"drawn/{number}-{model}", argv)
    for model in ("mixtral-8x7b", "deepseek-v2-lite", "qwen3-30b-a3b", "gpt-oss-20b"):
        for number in range(6):
            tensor, expert = draw.choice((1, 2)), draw.choice((1, 2, 4, 8))
            group.ask(
                f"mixture/{number}-{model}",
                estimate(
                    model, nodes=4, tp=tensor, ep=expert, etp=draw.choice((1, tensor)), pp=2,
                    dp=32 // tensor // 2, zero=draw.choice((0, 1)), global_batch=64,
                    capacity_factor=draw.choice((None, 1.25)),
                    token_dispatcher=draw.choice(("all_to_all", "hierarchical")),
                    dispatch_dtype=draw.choice(("bf16", "fp8")),
                    recompute=draw.choice(("none", "full")),
                ),
            )  # fmt: skip
    for name, options in {
        "lora": {"lora-rank": 16, "lora-targets": "query,value", "lora-dropout": 0.05},
        "lora-all": {"lora-rank": 64, "lora-targets": "query,key,value,attention_output"},
        "frozen-blocks": {"freeze-blocks": 8},
        "frozen-embedding": {"freeze": "embedding"},
        "blocks": {"pp": 4, "blocks": "7,9,9,7"},
        "blocks-wrong": {"pp": 4, "blocks": "7,9,9,6"},
        "selective-modules": {"recompute": "selective", "recompute-module": ["norm"]},
        "vocabulary": {"vocabulary-multiple": 1, "tp": 2},
        "too-big": {"global_batch": 64, "micro_batch": 16},
        "no-fit": {"memory": "10GiB"},
        "beyond": {"tp": 16, "dp": 4},
        "batch": {"global_batch": 33},
        "unknown-module": {"recompute": "selective", "recompute-module": ["nothing"]},
    }.items():
        group.ask(f"option/{name}", estimate("llama3-8b", **options))
    for cluster in CLUSTERS:
        half = "fp16" if "v100" in cluster else "bf16"
        group.ask(
            f"cluster/{cluster}",
            estimate("opt-1.3b", cluster=cluster, sequence=1024, precision=half, tp=2,
                     dispatch_dtype=half),
        )  # fmt: skip
    return group


def followed() -> Group:
    group = Group("follow")
    forever = ["--time-limit", "10h"]
    whatifs = {
        "memory": ["--memory", "60GiB"],
        "inter": ["--bandwidth", "infiniband=100GB/s"],
        "nvlink": ["--bandwidth", "nvlink=200GB/s"],
        "flops": ["--flops-scale", "2"],
        "devices": ["--devices", "16"],
        "batch": ["--global-batch", "64"],
        "sequence": ["--sequence", "1024"],
        "bad-level": ["--bandwidth", "nowhere=1GB/s"],
        "nothing": [],
    }
    short: Options = {"pp": "1..4", "micro_batch": "1..2", "top": 2, "schedule": "1f1b"}
    for name, change in whatifs.items():
        group.ask(
            f"whatif/{name}",
            on("opt-1.3b", **short, output="p.json"),
            after=[
                ["whatif", "p.json", *change, *forever, "-o", "w.json", "--json"],
                ["diff", "p.json", "w.json", "--json"],
                ["explain", "w.json", "--quick"],
            ],
        )
    for name, model, options in (
        ("gpt2-xl", "gpt2-xl", short),
        ("gpt2-xl-piped", "gpt2-xl", {**short, "pp": 4}),
        ("opt-1.3b-tight", "opt-1.3b", {**short, "memory": "16GiB"}),
        ("bert", "bert-large", short),
        ("infeasible", "llama3-8b", {**short, "memory": "8GiB"}),
    ):
        group.ask(
            f"explain/{name}",
            on(model, **options, output="p.json"),
            after=[
                ["explain", "p.json", *forever, "--json"],
                ["explain", "p.json", "--quick"],
                ["explain", "p.json", "--quick", "--constants", "--json"],
            ],
        )
    targets = (
        ("megatron", "llama3-8b", {"framework": "megatron", "schedule": "1f1b,interleaved"}),
        ("megatron-bridge", "llama3-8b", {"framework": "megatron-bridge"}),
        ("primus", "llama3-8b", {"framework": "primus", "schedule": "1f1b,v-half", "pp": 4}),
        ("torchtitan@0.2", "llama3-8b", {"framework": "torchtitan@0.2"}),
        ("torchtitan@0.3", "llama3-8b", {"framework": "torchtitan@0.3", "pp": 2}),
        ("pytorch", "llama3-8b", {"framework": "pytorch", "schedule": "1f1b,zb-h1", "pp": 2}),
        ("deepspeed", "gpt2-xl", {"framework": "deepspeed"}),
        ("accelerate", "llama3-8b", {"framework": "accelerate"}),
        ("nanotron", "llama3-8b", {"framework": "nanotron"}),
        ("chrome-trace", "gpt2-xl", {"pp": 4}),
    )
    for target, model, options in targets:
        for launcher in ("torchrun", "slurm"):
            group.ask(
                f"export/{target.replace('@', '-')}-{launcher}",
                on(model, **{**short, **options}, output="p.json"),
                after=[
                    ["export", "p.json", "--to", target, "-o", "out", "--launcher", launcher,
                     "--json"],
                    ["export", "p.json", "--to", target, "--allow-nearest", "--json"],
                ],
            )  # fmt: skip
    for target, options in (
        ("megatron", {"schedule": "v-half", "pp": 4}),
        ("torchtitan@0.2", {"schedule": "zb-h1", "pp": 4}),
        ("deepspeed", {"schedule": "interleaved", "pp": 4, "virtual_stages": 2}),
        ("nanotron", {"zero": "3"}),
    ):
        group.ask(
            f"export/{target.replace('@', '-')}-nearest",
            on("gpt2-xl", **{**short, **options}, output="p.json"),
            after=[
                ["export", "p.json", "--to", target, "--json"],
                ["export", "p.json", "--to", target, "--allow-nearest", "-o", "out", "--json"],
            ],
        )
    improved(group, forever)
    group.ask(
        "diff/two-plans",
        on("gpt2-xl", **short, output="a.json"),
        after=[
            on("gpt2-xl", **{**short, "pp": "2..4"}, output="b.json"),
            ["diff", "a.json", "b.json", "--json"],
            ["diff", "a.json", "b.json"],
            ["diff", "a.json", "nothing.json", "--json"],
        ],
    )
    group.ask(
        "diff/two-models",
        on("gpt2", **short, output="a.json"),
        after=[
            on("bert-base", **short, output="b.json"),
            ["diff", "a.json", "b.json", "--json"],
        ],
    )
    group.ask(
        "diff/estimate-plan",
        on("gpt2-xl", **short, output="a.json"),
        after=[
            estimate("gpt2-xl", sequence=1024, zero=2, output="b.json"),
            ["diff", "a.json", "b.json", "--json"],
            ["explain", "b.json", *forever, "--json"],
            ["export", "b.json", "--to", "megatron", "-o", "out", "--json"],
        ],
    )
    group.ask(
        "sweep/export",
        on("gpt2-xl", **{**short, "nodes": None, "devices": "2..8"}, output="s.json"),
        after=[["export", "s.json", "--to", "megatron", "-o", "out", "--json"]],
    )
    return group


def improved(group: Group, forever: list[str]) -> None:
    for name, model, options in (
        ("opt-tensor", "opt-1.3b", {"sequence": 1024, "tp": 2}),
        ("gpt2-xl-piped", "gpt2-xl", {"sequence": 1024, "pp": 4, "recompute": "full"}),
        ("bert", "bert-large", {"sequence": 512, "tp": 4}),
        ("opt-zero-0", "opt-1.3b", {"zero": 0, "recompute": "full"}),
        ("no-fit", "opt-6.7b", {"zero": 0, "cluster": "dgx-a100-40gb"}),
    ):
        group.ask(
            f"improve/{name}",
            estimate(model, **options, output="e.json"),
            after=[
                ["improve", "e.json", *forever, "-o", "i.json", "--json"],
                ["improve", "e.json", "--framework", "megatron", *forever, "--json"],
                ["export", "i.json", "--to", "megatron", "-o", "out", "--json"],
            ],
        )
    chosen = ("megatron-3b-tensor", "megatron-3b-full", "torchtitan-tensor", "deepspeed-zero-3")
    for name, source, files in jobs():
        if name in chosen:
            model = ["--model", "gpt2-xl"] if name.startswith("deepspeed") else []
            options = job_options(name) | ({"sequence": 1024} if model else {})
            argv = ["improve", *source, *model, *words(options), *forever, "--json"]
            group.ask(f"improve/from-{name}", argv, files=files)


def main() -> None:
    for group in (
        model_plans(),
        calibrated(),
        mixed_plans(),
        per_stage(),
        sweeps(),
        estimates(),
        followed(),
    ):
        group.write()


if __name__ == "__main__":
    main()
