"""The kinds of documents: for each its record, how it is made again, its table and its page.

A kind is one file of this folder: the record, how it is made from a request and the decisions of a
search, and what a person sees of it. Everything that is done with documents of any kind (reading,
checking, printing, drawing) finds its parts here, by the word under `kind`. Parts are named, not
imported: only the kind at hand is loaded, and no kind knows this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

from trainwright.errors import InvalidInput, UnsupportedFeature, meant
from trainwright.formats.records import json_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Where the parts of a kind stand, each as "module:name" below the package.

    `view` takes a document and returns what the terminal prints of it, lines and tables, or a
    renderable of rich. `remake` takes a document and
    returns it as its own request and decisions give it, with what only a search knows taken over;
    absent where nothing follows from the rest. `page` takes a `pages.subject.Subject`.
    `is_estimated` says that its own figures belong to the version that estimated them; `lasting`
    remakes what every version gives, where only some of the figures do.
    """

    record: str
    view: str
    remake: str | None = None
    page: str | None = None
    is_estimated: bool = False
    lasting: str | None = None


def _kind(
    module: str,
    record: str,
    view: str,
    *,
    remake: str | None = None,
    page: str | None = None,
    is_estimated: bool = False,
    lasting: str | None = None,
) -> Kind:
    """A kind whose parts stand in one module, but for its page, and a view of several kinds."""
    return Kind(
        record=f"{module}:{record}",
        view=view if ":" in view else f"{module}:{view}",
        remake=remake if remake is None or ":" in remake else f"{module}:{remake}",
        page=None if page is None else f"pages.{page}",
        is_estimated=is_estimated,
        lasting=None if lasting is None else f"{module}:{lasting}",
    )


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "plan": _kind(
            "documents.profile_plan",
            "PlanResult",
            "plan_view",
            remake="remake_plan",
            page="profile_plan:profile_plan_content",
        ),
        "model-plan": _kind(
            "documents.model_plan",
            "ModelPlanResult",
            "documents.plan_view:plan_view",
            remake="documents.model_search:remake_model_plan",
            page="model_plan:model_plan_content",
            is_estimated=True,
        ),
        "estimate": _kind(
            "documents.profile_plan",
            "EstimateResult",
            "estimate_view",
            remake="remake_estimate",
            page="profile_plan:profile_plan_content",
        ),
        "placement": _kind(
            "documents.placement",
            "PlacementResult",
            "placement_view",
            remake="remake_placement",
            page="profile_plan:profile_plan_content",
        ),
        "schedule": _kind(
            "documents.schedule",
            "ScheduleResult",
            "schedule_view",
            remake="documents.schedule_methods:remake_schedule",
            lasting="priced_again",
            page="schedule_report:schedule_content",
        ),
        "model-estimate": _kind(
            "documents.model_estimate",
            "ModelEstimateResult",
            "model_estimate_view",
            remake="remake_model_estimate",
            page="model_estimate:model_estimate_content",
            is_estimated=True,
        ),
        "fit": _kind(
            "documents.fit",
            "FitResult",
            "fit_view",
            remake="remake_fit",
            page="model_estimate:fit_content",
            is_estimated=True,
        ),
        "model-sweep": _kind(
            "documents.sweep",
            "ModelSweepResult",
            "model_sweep_view",
            remake="remake_sweep",
            page="model_estimate:model_sweep_content",
        ),
        "model-explanation": _kind(
            "documents.explanation",
            "ModelExplanation",
            "model_explanation_view",
            remake="remake_explanation",
            page="model_plan:model_explanation_content",
        ),
        "whatif": _kind(
            "documents.difference", "WhatIfResult", "what_if_view", remake="remake_what_if"
        ),
        "improvement": _kind(
            "documents.improvement",
            "ImprovementResult",
            "improvement_view",
            remake="documents.explanation:remake_any_improvement",
            page="model_estimate:improvement_content",
            is_estimated=True,
        ),
        "codesign": Kind(
            record="formats.codesign_document:CodesignResult",
            view="chips.tables:codesign_view",
            page="pages.codesign:codesign_content",
        ),
        "validation": _kind(
            "documents.validation",
            "ValidationResult",
            "validation_view",
            page="validation:validation_content",
        ),
        "verification": _kind("documents.verification", "VerificationResult", "verification_view"),
        "diff": _kind("documents.difference", "Difference", "difference_view"),
        "export": _kind("documents.jobs", "ExportResult", "export_view"),
        "calibration": _kind("documents.calibration", "CalibrationResult", "calibration_view"),
        "constants": _kind("documents.calibration", "ConstantsResult", "constants_view"),
        "machine-room": Kind(
            record="formats.codesign_document:RoomResult",
            view="chips.room_answer:room_view",
            page="pages.codesign:room_content",
        ),
        "codesign-stage": Kind(
            record="formats.codesign_document:StageResult", view="chips.tables:stage_view"
        ),
        "model": _kind(
            "documents.model_summary",
            "ModelSummary",
            "model_summary_report",
            page="model_estimate:model_content",
        ),
        "refusal": _kind("documents.printing", "RefusalResult", "refusal_view"),
        "support": _kind("commands.support", "SupportResult", "support_view"),
        "catalog": _kind("commands.catalog", "CatalogResult", "catalog_view"),
        "report": _kind("commands.report", "ReportResult", "report_view"),
    }
)

# Which kinds a command reads, in the order in which a refusal lists them.
PRICED: Final = ("plan", "model-plan", "estimate")
READABLE: Final = ("plan", "model-plan", "estimate", "placement", "schedule")
# Of documents about several plans one is meant (`open.plan_meant`).
OF_PLANS: Final = ("model-sweep", "whatif", "model-explanation")
COMPARABLE: Final = (*READABLE, "model-estimate", *OF_PLANS)
EXPLAINED: Final = (*COMPARABLE, "improvement")
VERIFIED: Final = (*EXPLAINED, "fit")
# A what-if is shown as its two plans, a verification beside the document that it is of.
REPORTED: Final = (
    *READABLE,
    *("model-estimate", "fit", "model-sweep", "model-explanation", "whatif"),
    *("improvement", "codesign", "machine-room", "model", "validation", "verification"),
)


def where_it_goes(kind: str) -> str:
    """Which commands take a document of a kind, for a refusal of another one."""
    commands = {
        "explain": EXPLAINED,
        "report": REPORTED,
        "diff": COMPARABLE,
        "verify": VERIFIED,
        "codesign --recheck": ("codesign", "machine-room"),
    }
    takers = [name for name, kinds in commands.items() if kind in kinds]
    if not takers:
        return f'no command reads "{kind}": give the document that it was made of'
    return f'"{kind}" goes to: trainwright {", ".join(takers)}'


def part(name: str) -> Any:
    """What "module:name" stands for; loads the module."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"trainwright.{module}"), attribute)


def records(kinds: Iterable[str]) -> dict[str, type[Any]]:
    """The record of each of these kinds, in their order."""
    return {kind: part(KINDS[kind].record) for kind in kinds}


def kind_of(document: object) -> Kind:
    """The kind of a document; raises `TypeError` for anything else."""
    word = getattr(document, "kind", None)
    if not isinstance(word, str) or word not in KINDS:
        raise TypeError(f"no kind of document is known for {type(document).__name__}")
    return KINDS[word]


# JSON Schemas of what the program reads and writes, made from the types of readers and records
# ---------------------------------------------------------------------------------------------


# Input files by name, each with the function that makes its schema; documents are inputs, too.
_INPUTS: Final = {
    "config": "formats.hf_config:config_schema",
    "adapter-config": "formats.hf_config:adapter_schema",
    "profile": "formats.profile_json:profile_schema",
    "stages": "documents.profile_plan:stages_schema",
    "schedule-spec": "formats.schedule_json:schedule_spec_schema",
    "orders": "formats.schedule_json:orders_schema",
    "cluster": "formats.cluster_schema:cluster_schema",
    "calibration-file": "formats.calibration_toml:calibration_schema",
    "piper-profile": "formats.piper_json:piper_schema",
    "metis-profile": "formats.metis_json:metis_schema",
    "galvatron-times": "formats.galvatron_json:times_schema",
    "galvatron-memory": "formats.galvatron_json:memory_schema",
    "placement-problem": "formats.phaze_json:placement_schema",
    "technology": "chips.room:technology_schema",
    "room": "chips.room:room_schema",
    "plan-config": "commands.main:plan_config_schema",
    "estimate-config": "commands.main:estimate_config_schema",
    "measured-runs": "formats.measured_csv:runs_schema",
    "predictions": "formats.measured_csv:predictions_schema",
    "layer-times": "formats.measured_csv:layer_times_schema",
    "layer-sizes": "formats.measured_csv:layer_sizes_schema",
    "pytorch-csv": "formats.schedule_json:csv_schema",
    "training-log": "frameworks.training_logs:log_schema",
    "nccl-tests": "formats.cluster_toml:nccl_tests_schema",
    "journal": "formats.document_json:journal_schema",
}
# Records of documents; that of a stage of `codesign` is read by the next stage alone.
_RECORDS: Final = {
    **{kind: parts.record for kind, parts in KINDS.items()},
    "codesign-graph": "formats.codesign_document:GraphResult",
}
# Results that are arrays or tables.
_TABLES: Final = {
    "codesign-estimates": "commands.codesign:estimates_schema",
    "designs": "chips.population:designs_schema",
}
SCHEMAS: Final = (*_INPUTS, *_RECORDS, *_TABLES)
# What is read or written and no JSON Schema describes: what of it counts, and where that is told.
WITHOUT_SCHEMA: Final = MappingProxyType(
    {
        "failed-log": (
            "the log of a job that ran out of memory is free text, of which messages of PyTorch, "
            "XLA, NCCL and cuBLAS are read",
            "trainwright estimate JOB --from log FILE says which rank, phase and bytes",
        ),
        "memory-snapshot": (
            "a memory snapshot of PyTorch is a pickle, of which segments and device_traces are "
            "read and nothing is run",
            "trainwright estimate JOB --from log FILE compares it class by class",
        ),
        "job": (
            "each framework has a format of its own",
            "give the format's name, as trainwright catalog --schema axolotl; --schema script and "
            "--schema training-log are about what they leave",
        ),
        "script": (
            "a job's script is a program, which is followed as bash would: the arguments of the "
            "trainer that it starts are read",
            "docs/jobs.md#read-an-existing-job lists trainers; estimate FILE names unknown flags",
        ),
        "python": (
            "a program or recipe in Python is followed as far as its values are written in it",
            "docs/jobs.md#read-an-existing-job lists which are read; --function names a recipe",
        ),
        "chrome-trace": (
            "a trace has Google's Trace Event Format, JSON object form, and is only written",
            "docs/jobs.md#export lists what export writes",
        ),
        "mcp": (
            "agents are told by the protocol what a tool takes: the words of its command",
            "ask the server that trainwright mcp starts for its list of tools",
        ),
        "serve": (
            "the page's server describes itself",
            "get /openapi.json of the address that trainwright serve prints",
        ),
        "dry-run": (
            "a dry run is a Python program, and is only written",
            "docs/jobs.md#export lists what export writes",
        ),
    }
)
_JOBS: Final = "frameworks.jobs:FORMATS"
_JOB_SCHEMA: Final = "frameworks.jobs:job_schema"
_EXPORTS: Final = "plans.capability:TARGETS"


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of an input file or of a kind of document.

    Raises `UnsupportedFeature` with the reason for what none describes, `InvalidInput` for any
    other name.
    """
    if (function := (_INPUTS | _TABLES).get(name)) is not None:
        made: dict[str, Any] = part(function)()
        return made
    if name in WITHOUT_SCHEMA:
        reason, instead = WITHOUT_SCHEMA[name]
        raise UnsupportedFeature(f"{name} has no JSON Schema: {reason}", alternative=instead)
    if name not in _RECORDS:
        if (of_job := _schema_of_job(name)) is not None:
            return of_job
        listed = f'must be a name of: trainwright catalog schemas, got "{name}"'
        raise InvalidInput.of("schema", f"{listed}{meant(name, schema_names())}")
    record = part(_RECORDS[name])
    made = json_schema(record, title=f"trainwright {name}")
    (version,) = (each.default for each in fields(record) if each.name == "format_version")
    made["properties"]["kind"] = {"const": name}
    made["properties"]["format_version"] |= {"minimum": 1, "maximum": version}
    made["required"] = ["kind", "format_version", *made.get("required", ())]
    return made


def schema_names() -> tuple[str, ...]:
    """What `schema_of` answers, with a schema or the reason why there is none."""
    return (*SCHEMAS, *WITHOUT_SCHEMA, *part(_JOBS))


def _schema_of_job(name: str) -> dict[str, Any] | None:
    """The schema of a file of a framework; raises `UnsupportedFeature` where it is no mapping."""
    if name in part(_JOBS):
        made: dict[str, Any] | None = part(_JOB_SCHEMA)(name)
        if made is not None:
            return made
        reason = "its jobs are scripts, programs or logs, or keys brought into another form first"
        instead = "names each that is not known; docs/jobs.md#read-an-existing-job says what is"
        raise UnsupportedFeature(
            f"{name} has no JSON Schema: {reason}",
            alternative=f"trainwright estimate --from {name} FILE {instead}",
        )
    if name.partition("@")[0] in {each.partition("@")[0] for each in part(_EXPORTS)}:
        reason = f"files for {name} have the keys of the framework itself"
        instead = "docs/jobs.md#export says which they are and how they are checked"
        raise UnsupportedFeature(f"{name} has no JSON Schema: {reason}", alternative=instead)
    return None
