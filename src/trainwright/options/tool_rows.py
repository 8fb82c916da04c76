"""Rows of the table of options: schedules, chips, documents; limits and output of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trainwright.options import option

ROWS: list[option.Option] = []
ROWS += option.section(
    "How a schedule is come by",
    "schedule",
    option.row(
        "family",
        option.NAME,
        "A named schedule, such as 1f1b: `trainwright catalog families` lists them.",
        at="family",
    ),
    option.row("search", option.ON, "Search for the best schedule within the limit.", at="search"),
    option.row("exact", option.ON, "Search, then let a solver improve and prove it.", at="exact"),
    option.row(
        "pareto", option.ON, "Memory against time; with --search, of more than names.", at="pareto"
    ),
    option.row(
        "simulate",
        option.FILE,
        "Price these orders: JSON, PyTorch's CSV, or a schedule document.",
        at="simulate",
    ),
    option.row(
        "placement",
        option.TEXT,
        "v, loop, wave or any; for a search or front.",
        at="request.placement",
    ),
    option.row(
        "memory-limit",
        option.TEXT,
        "Chunk activations per rank, or a size such as 40GiB.",
        metavar="K",
        also="max_activations",
    ),
    option.row(
        "max-activations",
        option.COUNT_OR_NONE,
        "Chunk activations per rank.",
        metavar="K",
        at="request.max_activations",
    ),
    option.row(
        "objective",
        option.TEXT,
        "makespan, or span: the busiest rank's window.",
        default="makespan",
        at="objective",
    ),
    option.row("seed", option.COUNT_OR_NONE, "Of the search.", at="request.seed"),
    option.row(
        "evaluations",
        option.COUNT,
        "Schedules to try; by size if absent.",
        at="request.evaluations",
    ),
)
ROWS += option.section(
    "The pipeline",
    "schedule",
    option.row("spec", option.FILE, "A JSON file of times and memory per stage.", at="spec"),
    option.row("ranks", option.COUNT, "Pipeline ranks.", metavar="P", at="request.num_ranks"),
    option.row(
        "microbatches",
        option.COUNT,
        "Microbatches per step.",
        metavar="M",
        at="request.num_microbatches",
    ),
    option.row(
        "forward",
        option.TEXT,
        "Time of a forward of one stage: 1 (slots) or 3.5ms.",
        metavar="TIME",
    ),
    option.row("input-grad", option.TEXT, "Of its input gradient; 1 if absent.", metavar="TIME"),
    option.row("weight-grad", option.TEXT, "Of its weight gradient; 1 if absent.", metavar="TIME"),
    option.row("comm", option.TEXT, "Of a transfer between ranks; 0 if absent.", metavar="TIME"),
    option.row(
        "virtual-stages",
        option.COUNT,
        "Stages (chunks) per rank, where there is a choice.",
        metavar="V",
        at="request.virtual_stages",
        also="max_virtual_stages",
    ),
    option.row(
        "group",
        option.COUNT,
        "Microbatches that pass a chunk together.",
        metavar="G",
        at="request.group",
    ),
)
ROWS += option.section(
    "Orders and pictures",
    "schedule",
    option.row("orders", option.PATH, "Write the orders: .json or .csv (PyTorch).", metavar="FILE"),
    option.row(
        "orders-form", option.TEXT, "json, compute_only or compute_comms; by suffix if absent."
    ),
    option.row(
        "gantt", option.PATH, "Draw: .svg, .html, or .json[.gz] (Chrome trace).", metavar="FILE"
    ),
    option.row("verify", option.ON, "Run it on PyTorch (CPU) and compare every gradient."),
    shell=True,
)
ROWS += option.section(
    "What is trained",
    "codesign",
    option.row(
        "chip",
        option.NAME,
        "Plan only: an accelerator or cluster, or a document's design.",
        shell=True,
    ),
    option.row("global-batch", option.COUNT, "Sequences per step; 4096 if absent."),
    option.row("sequence", option.COUNT, "Tokens per sequence; the model's if absent."),
    option.row("micro-batch", option.COUNTS, "Sizes of a microbatch to choose from.", default="1"),
    option.row("tp", option.COUNTS, "Tensor degrees to choose from."),
    option.row(
        "recompute",
        option.LIST,
        "What to recompute: none, full, or none,full.",
        default="none,full",
    ),
    option.row("schedule", option.LIST, "1f1b and others: zb-h1, v-half, v-min; all if absent."),
    option.row("precision", option.LIST, "Number formats: bf16, fp8, fp32; bf16 if absent."),
    option.row(
        "objective",
        option.TEXT,
        "Of several models: geometric, mean, worst, regret, arithmetic.",
        default="geometric",
    ),
    option.row("weights", option.AMOUNTS, "Shares of the models."),
    option.row(
        "software",
        option.NAME,
        "Whose losses chips have, as megatron-core or typical; none: perfect kernels and links.",
        default="typical",
    ),
    option.row(
        "like", option.NAME, "Designs lose what a family does, as tpu or hopper, or an accelerator."
    ),
)
ROWS += option.section(
    "What the chips may be",
    "codesign",
    option.row("memory", option.QUANTITIES, "Memory of a chip, such as 32GiB,80GiB."),
    option.row("memory-bandwidth", option.QUANTITIES, "Of that memory, such as 1.2TB/s,2TB/s."),
    option.row("link-bandwidth", option.QUANTITIES, "Of a chip to others, such as 300GB/s."),
    option.row(
        "stacks",
        option.COUNTS,
        "Memory stacks, in place of memory and its bandwidth.",
    ),
    option.row("stack-memory", option.TEXT, "Of one stack; 16GiB if absent.", metavar="SIZE"),
    option.row(
        "stack-bandwidth", option.TEXT, "Of one stack; 460.8GB/s if absent.", metavar="RATE"
    ),
    option.row(
        "stack-area",
        option.AMOUNT,
        "Chip area that a stack's interface takes, in mm².",
        metavar="MM2",
    ),
    option.row("node-devices", option.COUNTS, "Chips of a node, such as 8,32; 1 if absent."),
    option.row(
        "node-bandwidth",
        option.QUANTITIES,
        "Of a chip to others of its node, such as 300GB/s,900GB/s.",
    ),
    option.row(
        "tensor-overlap",
        option.AMOUNT,
        "Share of compute that tensor exchanges hide under; 0.",
        metavar="SHARE",
    ),
    option.row(
        "gradient-overlap",
        option.AMOUNT,
        "The same for those of replicas; 0.",
        metavar="SHARE",
    ),
    option.row(
        "buffer-port",
        option.AMOUNTS,
        "Most bytes a cycle of the global buffer, such as 8192,16384.",
    ),
    option.row("clock", option.AMOUNTS, "Clocks in Hz, such as 1.05e9,1.4e9."),
    option.row(
        "max-area",
        option.AMOUNT,
        "Largest cores and buffers, in mm2; 278.8 if absent.",
        metavar="MM2",
    ),
    option.row(
        "max-power",
        option.AMOUNT,
        "Watts in the hungriest operator.",
        metavar="W",
    ),
    option.row(
        "tdp",
        option.AMOUNT,
        "Limit of its mean power over a step.",
        metavar="WATTS",
    ),
)
ROWS += option.section(
    "The machine room",
    "codesign",
    option.row(
        "aim",
        option.TEXT,
        "Choose whole systems by time, cost or energy of a token.",
        metavar="AIM",
    ),
    option.row("room", option.PATH, "TOML of axes and prices of these systems.", metavar="FILE"),
    option.row("budget-money", option.AMOUNT, "Most dollars of a system.", metavar="DOLLARS"),
    option.row("budget-power", option.AMOUNT, "Most watts of it, rated.", metavar="WATTS"),
    option.row("budget-area", option.AMOUNT, "Most mm2 of all its dies.", metavar="MM2"),
    option.row(
        "gap", option.AMOUNT, "How far from the best it may be; 0.01 if absent.", metavar="SHARE"
    ),
    shell=True,
)
ROWS += option.section(
    "What is worked out",
    "codesign",
    option.row(
        "defect-density", option.AMOUNT, "Defects per mm2: also price a good die.", metavar="D"
    ),
    option.row(
        "technology", option.PATH, "TOML of process, ranges, energies and die.", metavar="FILE"
    ),
    option.row(
        "set",
        option.FIGURES,
        "A figure of it, as memories.hbm3.stack_price=250 (repeatable).",
        keyword="figures",
    ),
    option.row(
        "epsilon",
        option.AMOUNT,
        "Points of the front this close count as one, 0.02 if absent; of systems how near it shall "
        "be to any, 0.15.",
        metavar="SHARE",
    ),
    option.row("no-pareto", option.ON, "Do not work out a front."),
    option.row(
        "search",
        option.TEXT,
        "exact, or the published one without a proof: descending-area.",
        default="exact",
    ),
    option.row("jobs", option.NAME, "Processes to search with, or dask://HOST:PORT.", metavar="N"),
    option.row(
        "journal", option.PATH, "Write finished batches down; go on from there.", metavar="FILE"
    ),
    option.row("csv", option.PATH, "Write every design to this file.", metavar="FILE"),
    option.row(
        "recheck", option.PATH, "Prove the search of this document again.", metavar="DOCUMENT"
    ),
    option.row(
        "sample", option.COUNT, "Price so many pruned designs in full; 1000 with --recheck."
    ),
    option.row("seed", option.COUNT_OR_NONE, "Of that sample.", default="0"),
    option.row(
        "figure", option.PATH, "Draw front, area and operators (extra [plot]).", metavar="FILE"
    ),
    option.row("stage", option.TEXT, "One stage alone: graph, estimate or solve.", metavar="STAGE"),
    option.row("artifacts", option.PATH, "Where stages leave their files.", metavar="DIR"),
    shell=True,
)
ROWS += option.section(
    "",
    "explain",
    option.row("quick", option.ON, "Only the table: look for no other plan of a model."),
    option.row("constants", option.ON, "Every constant of the cluster, with its source."),
    shell=True,
)
ROWS += option.section(
    "",
    "export",
    option.row(
        "to",
        option.TEXT,
        "A framework, as in `trainwright catalog targets`, chrome-trace or dry-run.",
        metavar="TARGET[@VERSION]",
        required=True,
    ),
    option.row("model", option.TEXT, "What the layers of a profile are."),
    option.row("launcher", option.NAME, "torchrun or slurm.", default="torchrun"),
    option.row(
        "allow-nearest",
        option.ON,
        "Replace what the target cannot express by the nearest it can, priced again.",
    ),
    option.row("check", option.ON, "Hand the files to the framework's own parser, if installed."),
    option.row("force", option.ON, "Write into a folder that is not empty."),
)
ROWS += option.section(
    "",
    "verify",
    option.row(
        "level",
        option.COUNT_OR_NONE,
        "0: the document and its orders; 1: replayed here; 2: run on PyTorch.",
        default="2",
    ),
    option.row("self-test", option.ON, "Also run copies broken on purpose, which must fail."),
    option.row(
        "exported",
        option.FILE,
        "Check the files that `export --to pytorch` wrote here.",
        metavar="DIR",
    ),
    option.row(
        "dry-run", option.ON, "Run every rank on PyTorch tensors without data: what does it hold?"
    ),
)
ROWS += option.section(
    "",
    "report",
    option.row("title", option.TEXT, "A heading of your own."),
    option.row("date", option.TEXT, "Printed under the heading as given; none if absent."),
)
ROWS += option.section(
    "",
    "serve",
    option.row(
        "host",
        option.TEXT,
        "Address to listen on; anything but loopback is open to others.",
        default="127.0.0.1",
    ),
    option.row("port", option.COUNT_OR_NONE, "Port; 0 takes a free one.", default="8000"),
    option.row(
        "time-limit",
        option.LIMIT,
        "Longest search for one plan, such as 20s.",
        default="2min",
        shell=True,
    ),
)
ROWS += option.section(
    "",
    "validate",
    option.row(
        "profiles",
        option.FILE,
        "A folder of layer profiles; by default the one beside the runs.",
        metavar="PATH",
        at="validation.profiles",
    ),
    option.row(
        "predictions",
        option.FILE,
        "Score these instead: a CSV of row_id and step_time_s, its range, or memory.",
        metavar="PATH",
        at="validation.predictions",
    ),
    option.row(
        "files", option.LIST, "Only these files, by stem, separated by commas.", metavar="TEXT"
    ),
    option.row("rows", option.ON, "Print every run too.", shell=True),
    option.row("plot", option.PATH, "Draw predicted against measured into this file.", shell=True),
    option.row(
        "fail-on",
        option.TEXT,
        "Exit with 4 where a file's mean error is larger, as vtrain_multi.time=0.08,…",
        metavar="TARGETS",
        shell=True,
    ),
    option.row(
        "leave-out",
        option.TEXT,
        "Predict each file with efficiencies fitted without it: source.",
        metavar="source",
    ),
)
ROWS += option.section(
    "",
    "calibrate",
    option.row(
        "log",
        option.EACH,
        "A training log for each document (repeatable); - reads pasted lines.",
        metavar="FILE",
        shell=True,
    ),
    option.row("line", option.TEXT, "The software of the logs, or the one line to fit."),
    option.row(
        "constants",
        option.LIST,
        "What to fit, separated by commas; gemm_max,memory_max if absent, and of logs that hosts "
        "bind host_pass_s,step_overhead_s.",
        metavar="TEXT",
    ),
)
ROWS += option.section(
    "",
    "profile",
    option.row("device", option.NAME, "cuda or cpu; cuda if absent and there.", metavar="KIND"),
    option.row(
        "sequence", option.COUNT, "Tokens of a sequence; 2048 if absent.", also="sequence_length"
    ),
    option.row(
        "micro-batch",
        option.COUNT,
        "Sequences of a microbatch; 1 if absent.",
        also="microbatch_size",
    ),
    option.row(
        "tp",
        option.COUNTS,
        "Tensor degrees whose slices are timed, as 1,2,4.",
        metavar="TEXT",
        default="1",
        also="tensor_parallel",
    ),
    option.row("precision", option.TEXT, "bf16 (on cuda, if absent), fp16 or fp32."),
    option.row("cluster", option.TEXT, "The network that prices collectives between slices."),
    option.row(
        "budget", option.LIMIT, "Time to spend measuring, as 30s.", default="60s", shell=True
    ),
    option.row(
        "csv",
        option.EACH,
        "Do not measure: read tables of layer times and sizes (repeatable).",
        metavar="FILE",
        shell=True,
    ),
    option.row("accelerator", option.NAME, "The device in --csv.", shell=True),
)
ROWS += option.section(
    "",
    "model",
    option.row(
        "sequence",
        option.COUNT,
        "Tokens of a sequence, for FLOPs and cache.",
        default="4096",
    ),
    option.row(
        "images",
        option.COUNT_OR_NONE,
        "Images in a sequence, of a model that takes them.",
        default="0",
    ),
    option.row(
        "image-size", option.COUNT, "Pixels a side of an image, where the model takes any size."
    ),
    option.row(
        "mtp-layers",
        option.COUNT_OR_NONE,
        "Layers that predict further tokens, of the model's; all if absent.",
    ),
)
ROWS += option.section(
    "",
    "fit",
    option.row(
        "gpu",
        option.NAME,
        "The devices, such as 2xRTX4090: how many, and the name of an accelerator.",
        at="fit.gpu",
        required=True,
    ),
    option.row(
        "sequence", option.COUNT, "Tokens of a sequence; 4096 if absent.", at="fit.sequence_length"
    ),
    option.row(
        "images", option.COUNT_OR_NONE, "Images in each sequence; 0 if absent.", at="fit.images"
    ),
    option.row(
        "image-size",
        option.COUNT,
        "Pixels a side of an image, where the model takes any size.",
        at="fit.image_size",
    ),
    option.row(
        "mtp-layers",
        option.COUNT_OR_NONE,
        "Layers that predict further tokens, of the model's; all if absent.",
        at="fit.mtp_layers",
    ),
    option.row(
        "software",
        option.SOFTWARE,
        "Whose speed and memory to expect, as trl, deepspeed or torchtitan; trl if absent.",
        at="fit.software",
    ),
    option.row(
        "lora-rank",
        option.COUNT,
        "Of adapters; 16 if absent.",
        at="fit.lora_rank",
        also="tuning.low_rank.rank",
    ),
    option.row(
        "fit-probability",
        option.SHARE,
        "With which a run must fit; 0.9 if absent (of plan and estimate 0.5).",
        at="fit.probability",
    ),
)
ROWS += option.section(
    "",
    "catalog",
    option.row(
        "schema",
        option.NAME,
        "Print the JSON Schema of this input or document.",
        shell=True,
    ),
)
ROWS += option.section(
    "Limits, files and output",
    "plan",
    option.row(
        "time-limit",
        option.LIMIT,
        "Stop after this long, such as 30s.",
        commands="plan schedule codesign whatif",
    ),
    option.row(
        "time-limit", option.LIMIT, "Stop after this long with the best found.", commands="improve"
    ),
    option.row(
        "time-limit",
        option.LIMIT,
        "For all searches for other plans; if absent, a share of the plan's.",
        commands="explain",
    ),
    option.row("config", option.PATH, "A TOML file of these options.", commands="plan estimate"),
    option.row(
        "reasons",
        option.SWITCH,
        "With --output: what each choice buys, some seconds.",
        commands="plan",
    ),
    option.row(
        "output",
        option.PATH,
        "Write the document to this file.",
        commands="plan estimate schedule codesign verify improve whatif validate profile model fit",
        short="o",
    ),
    option.row(
        "output",
        option.PATH,
        "Write the files to this new or empty folder.",
        commands="export",
        short="o",
    ),
    option.row(
        "output",
        option.PATH,
        "Write the page to this file; beside the first document if absent.",
        commands="report",
        short="o",
    ),
    option.row("open", option.ON, "Show the page in a browser.", commands="report"),
    option.row(
        "output", option.PATH, "Write the constants, as TOML.", commands="calibrate", short="o"
    ),
    option.row(
        "output", option.PATH, "Write the script to this file.", commands="capture", short="o"
    ),
    option.row(
        "verbose",
        option.ON,
        "Show what is folded behind a line.",
        commands="plan estimate explain improve",
    ),
    option.row(
        "json",
        option.ON,
        "Print the document as JSON, nothing else.",
        commands="plan estimate schedule codesign explain export verify improve diff whatif "
        "report validate calibrate profile model fit support catalog",
        keyword="as_json",
    ),
    shell=True,
)

# What stands after a command without a flag
ARGUMENTS: Final[Mapping[str, tuple[option.Argument, ...]]] = {
    "plan": (
        option.Argument(
            name="model",
            help="A profile (JSON), a config.json or its folder, or the name of a catalog model.",
        ),
    ),
    "estimate": (
        option.Argument(
            name="model",
            help="A config.json or its folder, the name of a catalog model, or a profile (JSON).",
            required=False,
        ),
    ),
    "codesign": (
        option.Argument(
            name="models",
            metavar="MODEL...",
            help="Catalog models, config.json files or their folders; several share one chip.",
            required=False,
            many=True,
        ),
    ),
    "explain": (option.Argument(name="document", help="A plan, estimate or schedule document."),),
    "export": (
        option.Argument(
            name="document",
            help="A plan or estimate of a model, or what improve, whatif or a sweep wrote.",
        ),
    ),
    "verify": (
        option.Argument(name="document", help="A plan, an estimate or a schedule, as a document."),
    ),
    "improve": (
        option.Argument(name="document", help="An estimate or a plan of a model.", required=False),
    ),
    "diff": (
        option.Argument(name="first", help="A plan, estimate or schedule document."),
        option.Argument(name="second", help="Another one."),
    ),
    "whatif": (option.Argument(name="document", help="A plan document of a model."),),
    "report": (
        option.Argument(
            name="documents",
            metavar="DOC...",
            help="Documents of plan, estimate, schedule, codesign, ...",
            many=True,
        ),
    ),
    "validate": (
        option.Argument(
            name="folders",
            metavar="FOLDER...",
            help="Folders of CSV files with measured runs, or single files.",
            many=True,
        ),
    ),
    "calibrate": (
        option.Argument(
            name="sources",
            metavar="SOURCES...",
            help="CSV files or folders of measured runs, or documents of estimate or plan.",
            many=True,
        ),
    ),
    "profile": (
        option.Argument(
            name="model", help="A config.json, its folder, a catalog name; a name in --csv."
        ),
    ),
    "model": (
        option.Argument(
            name="model",
            metavar="CONFIG",
            help="A config.json or its folder, a catalog name, or a hub id in the local cache.",
        ),
    ),
    "fit": (
        option.Argument(
            name="model",
            metavar="CONFIG",
            help="A config.json or its folder, a catalog name, or a hub id in the local cache.",
        ),
    ),
    "support": (
        option.Argument(name="model", help="A catalog name, a config.json or its folder."),
        option.Argument(
            name="device", help="An accelerator, a cluster of the catalog, or its file."
        ),
    ),
    "capture": (
        option.Argument(
            name="words",
            metavar="COMMAND...",
            help="What to run, behind --, such as -- bash train.sh.",
            many=True,
        ),
    ),
    "catalog": (
        option.Argument(
            name="topic",
            help="models, accelerators, clusters, calibrations, families, targets, schemas; all.",
            required=False,
        ),
    ),
}

# The ten or so that matter first, where a command has many.
FIRST: Final[Mapping[str, tuple[str, ...]]] = {
    "plan": (
        *("cluster", "nodes", "devices", "global-batch", "sequence", "framework"),
        *("time-limit", "config", "output", "json"),
    ),
    "estimate": (
        *("from", "cluster", "nodes", "global-batch", "sequence", "micro-batch"),
        *("tp", "pp", "dp", "zero", "recompute", "output", "json"),
    ),
    "codesign": (
        *("devices", "chip", "memory", "memory-bandwidth", "link-bandwidth", "max-area"),
        *("tdp", "time-limit", "output", "json"),
    ),
}
# Verbs that a command stands for, where they are not the one of its name.
VERBS: Final[Mapping[str, tuple[str, ...]]] = {"plan": ("plan", "sweep")}
