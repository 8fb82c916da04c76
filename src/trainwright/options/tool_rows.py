"""Rows of the table of options: schedules, chips, documents; limits and output of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trainwright.options.option import (
    AMOUNT,
    AMOUNTS,
    COUNT,
    COUNT_OR_NONE,
    COUNTS,
    EACH,
    FIGURES,
    FILE,
    LIMIT,
    LIST,
    NAME,
    ON,
    PATH,
    QUANTITIES,
    SHARE,
    SOFTWARE,
    SWITCH,
    TEXT,
    Argument,
    Option,
    row,
    section,
)

ROWS: list[Option] = []
ROWS += section(
    "How a schedule is come by",
    "schedule",
    row(
        "family",
        NAME,
        "A named schedule, such as 1f1b: `trainwright catalog families` lists them.",
        at="family",
    ),
    row("search", ON, "Search for the best schedule within the limit.", at="search"),
    row("exact", ON, "Search, then let a solver improve and prove it.", at="exact"),
    row("pareto", ON, "Memory against time; with --search, of more than names.", at="pareto"),
    row(
        "simulate",
        FILE,
        "Price these orders: JSON, PyTorch's CSV, or a schedule document.",
        at="simulate",
    ),
    row("placement", TEXT, "v, loop, wave or any; for a search or front.", at="request.placement"),
    row(
        "memory-limit",
        TEXT,
        "Chunk activations per rank, or a size such as 40GiB.",
        metavar="K",
        also="max_activations",
    ),
    row(
        "max-activations",
        COUNT_OR_NONE,
        "Chunk activations per rank.",
        metavar="K",
        at="request.max_activations",
    ),
    row(
        "objective",
        TEXT,
        "makespan, or span: the busiest rank's window.",
        default="makespan",
        at="objective",
    ),
    row("seed", COUNT_OR_NONE, "Of the search.", at="request.seed"),
    row("evaluations", COUNT, "Schedules to try; by size if absent.", at="request.evaluations"),
)
ROWS += section(
    "The pipeline",
    "schedule",
    row("spec", FILE, "A JSON file of times and memory per stage.", at="spec"),
    row("ranks", COUNT, "Pipeline ranks.", metavar="P", at="request.num_ranks"),
    row(
        "microbatches", COUNT, "Microbatches per step.", metavar="M", at="request.num_microbatches"
    ),
    row("forward", TEXT, "Time of a forward of one stage: 1 (slots) or 3.5ms.", metavar="TIME"),
    row("input-grad", TEXT, "Of its input gradient; 1 if absent.", metavar="TIME"),
    row("weight-grad", TEXT, "Of its weight gradient; 1 if absent.", metavar="TIME"),
    row("comm", TEXT, "Of a transfer between ranks; 0 if absent.", metavar="TIME"),
    row(
        "virtual-stages",
        COUNT,
        "Stages (chunks) per rank, where there is a choice.",
        metavar="V",
        at="request.virtual_stages",
        also="max_virtual_stages",
    ),
    row(
        "group", COUNT, "Microbatches that pass a chunk together.", metavar="G", at="request.group"
    ),
)
ROWS += section(
    "Orders and pictures",
    "schedule",
    row("orders", PATH, "Write the orders: .json or .csv (PyTorch).", metavar="FILE"),
    row("orders-form", TEXT, "json, compute_only or compute_comms; by suffix if absent."),
    row("gantt", PATH, "Draw: .svg, .html, or .json[.gz] (Chrome trace).", metavar="FILE"),
    row("verify", ON, "Run it on PyTorch (CPU) and compare every gradient."),
    shell=True,
)
ROWS += section(
    "What is trained",
    "codesign",
    row("chip", NAME, "Plan only: an accelerator or cluster, or a document's design.", shell=True),
    row("global-batch", COUNT, "Sequences per step; 4096 if absent."),
    row("sequence", COUNT, "Tokens per sequence; the model's if absent."),
    row("micro-batch", COUNTS, "Sizes of a microbatch to choose from.", default="1"),
    row("tp", COUNTS, "Tensor degrees to choose from."),
    row("recompute", LIST, "What to recompute: none, full, or none,full.", default="none,full"),
    row("schedule", LIST, "1f1b and others: zb-h1, v-half, v-min; all if absent."),
    row("precision", LIST, "Number formats: bf16, fp8, fp32; bf16 if absent."),
    row(
        "objective",
        TEXT,
        "Of several models: geometric, mean, worst, regret, arithmetic.",
        default="geometric",
    ),
    row("weights", AMOUNTS, "Shares of the models."),
    row(
        "software",
        NAME,
        "Whose losses chips have, as megatron-core or typical; none: perfect kernels and links.",
        default="typical",
    ),
    row("like", NAME, "Designs lose what a family does, as tpu or hopper, or an accelerator."),
)
ROWS += section(
    "What the chips may be",
    "codesign",
    row("memory", QUANTITIES, "Memory of a chip, such as 32GiB,80GiB."),
    row("memory-bandwidth", QUANTITIES, "Of that memory, such as 1.2TB/s,2TB/s."),
    row("link-bandwidth", QUANTITIES, "Of a chip to others, such as 300GB/s."),
    row(
        "stacks",
        COUNTS,
        "Memory stacks, in place of memory and its bandwidth.",
    ),
    row("stack-memory", TEXT, "Of one stack; 16GiB if absent.", metavar="SIZE"),
    row("stack-bandwidth", TEXT, "Of one stack; 460.8GB/s if absent.", metavar="RATE"),
    row(
        "stack-area",
        AMOUNT,
        "Chip area that a stack's interface takes, in mm².",
        metavar="MM2",
    ),
    row("node-devices", COUNTS, "Chips of a node, such as 8,32; 1 if absent."),
    row("node-bandwidth", QUANTITIES, "Of a chip to others of its node, such as 300GB/s,900GB/s."),
    row(
        "tensor-overlap",
        AMOUNT,
        "Share of compute that tensor exchanges hide under; 0.",
        metavar="SHARE",
    ),
    row(
        "gradient-overlap",
        AMOUNT,
        "The same for those of replicas; 0.",
        metavar="SHARE",
    ),
    row(
        "buffer-port",
        AMOUNTS,
        "Most bytes a cycle of the global buffer, such as 8192,16384.",
    ),
    row("clock", AMOUNTS, "Clocks in Hz, such as 1.05e9,1.4e9."),
    row(
        "max-area",
        AMOUNT,
        "Largest cores and buffers, in mm2; 278.8 if absent.",
        metavar="MM2",
    ),
    row(
        "max-power",
        AMOUNT,
        "Watts in the hungriest operator.",
        metavar="W",
    ),
    row(
        "tdp",
        AMOUNT,
        "Limit of its mean power over a step.",
        metavar="WATTS",
    ),
)
ROWS += section(
    "The machine room",
    "codesign",
    row("aim", TEXT, "Choose whole systems by time, cost or energy of a token.", metavar="AIM"),
    row("room", PATH, "TOML of axes and prices of these systems.", metavar="FILE"),
    row("budget-money", AMOUNT, "Most dollars of a system.", metavar="DOLLARS"),
    row("budget-power", AMOUNT, "Most watts of it, rated.", metavar="WATTS"),
    row("budget-area", AMOUNT, "Most mm2 of all its dies.", metavar="MM2"),
    row("gap", AMOUNT, "How far from the best it may be; 0.01 if absent.", metavar="SHARE"),
    shell=True,
)
ROWS += section(
    "What is worked out",
    "codesign",
    row("defect-density", AMOUNT, "Defects per mm2: also price a good die.", metavar="D"),
    row("technology", PATH, "TOML of process, ranges, energies and die.", metavar="FILE"),
    row(
        "set",
        FIGURES,
        "A figure of it, as memories.hbm3.stack_price=250 (repeatable).",
        keyword="figures",
    ),
    row(
        "epsilon",
        AMOUNT,
        "Points of the front this close count as one, 0.02 if absent; of systems how near it shall "
        "be to any, 0.15.",
        metavar="SHARE",
    ),
    row("no-pareto", ON, "Do not work out a front."),
    row(
        "search",
        TEXT,
        "exact, or the published one without a proof: descending-area.",
        default="exact",
    ),
    row("jobs", NAME, "Processes to search with, or dask://HOST:PORT.", metavar="N"),
    row("journal", PATH, "Write finished batches down; go on from there.", metavar="FILE"),
    row("csv", PATH, "Write every design to this file.", metavar="FILE"),
    row("recheck", PATH, "Prove the search of this document again.", metavar="DOCUMENT"),
    row("sample", COUNT, "Price so many pruned designs in full; 1000 with --recheck."),
    row("seed", COUNT_OR_NONE, "Of that sample.", default="0"),
    row("figure", PATH, "Draw front, area and operators (extra [plot]).", metavar="FILE"),
    row("stage", TEXT, "One stage alone: graph, estimate or solve.", metavar="STAGE"),
    row("artifacts", PATH, "Where stages leave their files.", metavar="DIR"),
    shell=True,
)
ROWS += section(
    "",
    "explain",
    row("quick", ON, "Only the table: look for no other plan of a model."),
    row("constants", ON, "Every constant of the cluster, with its source."),
    shell=True,
)
ROWS += section(
    "",
    "export",
    row(
        "to",
        TEXT,
        "A framework, as in `trainwright catalog targets`, chrome-trace or dry-run.",
        metavar="TARGET[@VERSION]",
        required=True,
    ),
    row("launcher", NAME, "torchrun or slurm.", default="torchrun"),
    row(
        "allow-nearest",
        ON,
        "Replace what the target cannot express by the nearest it can, priced again.",
    ),
    row("check", ON, "Hand the files to the framework's own parser, if installed."),
    row("force", ON, "Write into a folder that is not empty."),
)
ROWS += section(
    "",
    "verify",
    row(
        "level",
        COUNT_OR_NONE,
        "0: the document and its orders; 1: replayed here; 2: run on PyTorch.",
        default="2",
    ),
    row("self-test", ON, "Also run copies broken on purpose, which must fail."),
    row("exported", FILE, "Check the files that `export --to pytorch` wrote here.", metavar="DIR"),
    row("dry-run", ON, "Run every rank on PyTorch tensors without data: what does it hold?"),
)
ROWS += section(
    "",
    "report",
    row("title", TEXT, "A heading of your own."),
    row("date", TEXT, "Printed under the heading as given; none if absent."),
)
ROWS += section(
    "",
    "serve",
    row(
        "host",
        TEXT,
        "Address to listen on; anything but loopback is open to others.",
        default="127.0.0.1",
    ),
    row("port", COUNT_OR_NONE, "Port; 0 takes a free one.", default="8000"),
    row(
        "time-limit", LIMIT, "Longest search for one plan, such as 20s.", default="2min", shell=True
    ),
)
ROWS += section(
    "",
    "validate",
    row(
        "profiles",
        FILE,
        "A folder of layer profiles; by default the one beside the runs.",
        metavar="PATH",
        at="validation.profiles",
    ),
    row(
        "predictions",
        FILE,
        "Score these instead: a CSV of row_id and step_time_s, its range, or memory.",
        metavar="PATH",
        at="validation.predictions",
    ),
    row("files", LIST, "Only these files, by stem, separated by commas.", metavar="TEXT"),
    row("rows", ON, "Print every run too.", shell=True),
    row("plot", PATH, "Draw predicted against measured into this file.", shell=True),
    row(
        "fail-on",
        TEXT,
        "Exit with 4 where a file's mean error is larger, as vtrain_multi.time=0.08,…",
        metavar="TARGETS",
        shell=True,
    ),
    row(
        "leave-out",
        TEXT,
        "Predict each file with efficiencies fitted without it: source.",
        metavar="source",
    ),
)
ROWS += section(
    "",
    "calibrate",
    row(
        "log",
        EACH,
        "A training log for each document (repeatable); - reads pasted lines.",
        metavar="FILE",
        shell=True,
    ),
    row("line", TEXT, "The software of the logs, or the one line to fit."),
    row(
        "constants",
        LIST,
        "What to fit, separated by commas; gemm_max,memory_max if absent, and of logs that hosts "
        "bind host_pass_s,step_overhead_s.",
        metavar="TEXT",
    ),
)
ROWS += section(
    "",
    "profile",
    row("device", NAME, "cuda or cpu; cuda if absent and there.", metavar="KIND"),
    row("sequence", COUNT, "Tokens of a sequence; 2048 if absent.", also="sequence_length"),
    row("micro-batch", COUNT, "Sequences of a microbatch; 1 if absent.", also="microbatch_size"),
    row(
        "tp",
        COUNTS,
        "Tensor degrees whose slices are timed, as 1,2,4.",
        metavar="TEXT",
        default="1",
        also="tensor_parallel",
    ),
    row("precision", TEXT, "bf16 (on cuda, if absent), fp16 or fp32."),
    row("cluster", TEXT, "The network that prices collectives between slices."),
    row("budget", LIMIT, "Time to spend measuring, as 30s.", default="60s", shell=True),
    row(
        "csv",
        EACH,
        "Do not measure: read tables of layer times and sizes (repeatable).",
        metavar="FILE",
        shell=True,
    ),
    row("accelerator", NAME, "The device in --csv.", shell=True),
)
ROWS += section(
    "",
    "model",
    row(
        "sequence",
        COUNT,
        "Tokens of a sequence, for FLOPs and cache.",
        default="4096",
    ),
    row("images", COUNT_OR_NONE, "Images in a sequence, of a model that takes them.", default="0"),
    row("image-size", COUNT, "Pixels a side of an image, where the model takes any size."),
    row(
        "mtp-layers",
        COUNT_OR_NONE,
        "Layers that predict further tokens, of the model's; all if absent.",
    ),
)
ROWS += section(
    "",
    "fit",
    row(
        "gpu",
        NAME,
        "The devices, such as 2xRTX4090: how many, and the name of an accelerator.",
        at="fit.gpu",
        required=True,
    ),
    row("sequence", COUNT, "Tokens of a sequence; 4096 if absent.", at="fit.sequence_length"),
    row("images", COUNT_OR_NONE, "Images in each sequence; 0 if absent.", at="fit.images"),
    row(
        "image-size",
        COUNT,
        "Pixels a side of an image, where the model takes any size.",
        at="fit.image_size",
    ),
    row(
        "mtp-layers",
        COUNT_OR_NONE,
        "Layers that predict further tokens, of the model's; all if absent.",
        at="fit.mtp_layers",
    ),
    row(
        "software",
        SOFTWARE,
        "Whose speed and memory to expect, as trl, deepspeed or torchtitan; trl if absent.",
        at="fit.software",
    ),
    row(
        "lora-rank",
        COUNT,
        "Of adapters; 16 if absent.",
        at="fit.lora_rank",
        also="tuning.low_rank.rank",
    ),
    row(
        "fit-probability", SHARE, "With which a run must fit; 0.9 if absent.", at="fit.probability"
    ),
)
ROWS += section(
    "",
    "catalog",
    row(
        "schema",
        NAME,
        "Print the JSON Schema of this input or document.",
        shell=True,
    ),
)
ROWS += section(
    "Limits, files and output",
    "plan",
    row(
        "time-limit",
        LIMIT,
        "Stop after this long, such as 30s.",
        commands="plan schedule codesign whatif",
    ),
    row("time-limit", LIMIT, "Stop after this long with the best found.", commands="improve"),
    row(
        "time-limit",
        LIMIT,
        "For all searches for other plans; if absent, a share of the plan's.",
        commands="explain",
    ),
    row("config", PATH, "A TOML file of these options.", commands="plan estimate"),
    row(
        "reasons",
        SWITCH,
        "With --output: what each choice buys, some seconds.",
        commands="plan",
    ),
    row(
        "output",
        PATH,
        "Write the document to this file.",
        commands="plan estimate schedule codesign verify improve whatif validate profile model fit",
        short="o",
    ),
    row(
        "output", PATH, "Write the files to this new or empty folder.", commands="export", short="o"
    ),
    row(
        "output",
        PATH,
        "Write the page to this file; beside the first document if absent.",
        commands="report",
        short="o",
    ),
    row("open", ON, "Show the page in a browser.", commands="report"),
    row("output", PATH, "Write the constants, as TOML.", commands="calibrate", short="o"),
    row("output", PATH, "Write the script to this file.", commands="capture", short="o"),
    row(
        "verbose",
        ON,
        "Show what is folded behind a line.",
        commands="plan estimate explain improve",
    ),
    row(
        "json",
        ON,
        "Print the document as JSON, nothing else.",
        commands="plan estimate schedule codesign explain export verify improve diff whatif "
        "report validate calibrate profile model fit support catalog",
        keyword="as_json",
    ),
    shell=True,
)

# What stands after a command without a flag
ARGUMENTS: Final[Mapping[str, tuple[Argument, ...]]] = {
    "plan": (
        Argument(
            name="model",
            help="A profile (JSON), a config.json or its folder, or the name of a catalog model.",
        ),
    ),
    "estimate": (
        Argument(
            name="model",
            help="A config.json or its folder, the name of a catalog model, or a profile (JSON).",
            required=False,
        ),
    ),
    "codesign": (
        Argument(
            name="models",
            metavar="MODEL...",
            help="Catalog models, config.json files or their folders; several share one chip.",
            required=False,
            many=True,
        ),
    ),
    "explain": (Argument(name="document", help="A plan, estimate or schedule document."),),
    "export": (
        Argument(
            name="document",
            help="A plan or estimate of a model, or what improve, whatif or a sweep wrote.",
        ),
    ),
    "verify": (
        Argument(name="document", help="A plan, an estimate or a schedule, as a document."),
    ),
    "improve": (
        Argument(name="document", help="An estimate or a plan of a model.", required=False),
    ),
    "diff": (
        Argument(name="first", help="A plan, estimate or schedule document."),
        Argument(name="second", help="Another one."),
    ),
    "whatif": (Argument(name="document", help="A plan document of a model."),),
    "report": (
        Argument(
            name="documents",
            metavar="DOC...",
            help="Documents of plan, estimate, schedule, codesign, ...",
            many=True,
        ),
    ),
    "validate": (
        Argument(
            name="folders",
            metavar="FOLDER...",
            help="Folders of CSV files with measured runs, or single files.",
            many=True,
        ),
    ),
    "calibrate": (
        Argument(
            name="sources",
            metavar="SOURCES...",
            help="CSV files or folders of measured runs, or documents of estimate or plan.",
            many=True,
        ),
    ),
    "profile": (
        Argument(name="model", help="A config.json, its folder, a catalog name; a name in --csv."),
    ),
    "model": (
        Argument(
            name="model",
            metavar="CONFIG",
            help="A config.json or its folder, a catalog name, or a hub id in the local cache.",
        ),
    ),
    "fit": (
        Argument(
            name="model",
            metavar="CONFIG",
            help="A config.json or its folder, a catalog name, or a hub id in the local cache.",
        ),
    ),
    "support": (
        Argument(name="model", help="A catalog name, a config.json or its folder."),
        Argument(name="device", help="An accelerator, a cluster of the catalog, or its file."),
    ),
    "capture": (
        Argument(
            name="words",
            metavar="COMMAND...",
            help="What to run, behind --, such as -- bash train.sh.",
            many=True,
        ),
    ),
    "catalog": (
        Argument(
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
