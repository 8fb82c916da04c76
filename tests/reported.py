"""Documents to show on a page, each made once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import trainwright
from small_placements import chain_file
from trainwright.documents.difference import WhatIfResult
from trainwright.documents.improvement import ImprovementResult
from trainwright.documents.model_estimate import ModelEstimateResult
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.model_summary import ModelSummary
from trainwright.documents.placement import PlacementResult
from trainwright.documents.printing import Report
from trainwright.documents.profile_plan import PlanResult
from trainwright.documents.schedule import ScheduleResult
from trainwright.documents.sweep import ModelSweepResult
from trainwright.documents.validation import ValidationResult
from trainwright.documents.verification import VerificationResult
from trainwright.formats.codesign_document import CodesignResult, RoomResult

EXAMPLES = Path(__file__).parents[1] / "examples"
PROFILE = EXAMPLES / "profile.json"
SPEC = EXAMPLES / "schedule_spec.json"
HOSTILE = '</script><img src=x onerror=alert(1)>"&'


Document = TypeVar("Document")


def planned(kind: type[Document], model: str | Path, **options: Any) -> Document:
    """What `plan` makes of a model or a file, which must be a document of this kind."""
    document = trainwright.plan(model, **options).document
    assert isinstance(document, kind)
    return document


@cache
def model_plan() -> ModelPlanResult:
    """A model on two nodes: a pipeline, and layers that recompute."""
    return planned(
        ModelPlanResult,
        "llama3-8b",
        cluster="dgx-h100",
        nodes=2,
        memory="40GiB",
        global_batch=64,
        sequence=8192,
        tp=1,
        pp=2,
        cp=1,
        micro_batch=1,
        mapping="tp-cp-ep-dp-pp",
        zero=2,
        schedule="1f1b,zb-v",
        framework="any",
    )


@cache
def of_unequal_degrees() -> ModelPlanResult:
    """A model's plan whose first stage is split over two devices, the others not."""
    made = planned(
        ModelPlanResult,
        "llama2-7b",
        cluster="dgx-a100",
        devices=5,
        memory="40GiB",
        micro_batch=1,
        global_batch=12,
        sequence=1024,
        schedule="1f1b",
        per_stage_degrees=True,
        calibration="none",
    )
    assert made.parallelism is None
    return made


@cache
def model_estimate() -> ModelEstimateResult:
    """Two chunks per rank, tensor and data parallelism across both network levels."""
    made: Report[ModelEstimateResult] = trainwright.estimate(
        "llama3-8b",
        cluster="dgx-h100",
        tp=2,
        pp=4,
        dp=4,
        virtual_stages=2,
        micro_batch=1,
        global_batch=64,
        sequence=4096,
    )
    return made.document


@cache
def profile_plan() -> PlanResult:
    """A plan of the example's profile, with its baselines."""
    return planned(PlanResult, PROFILE, devices=16, compare=True)


@cache
def schedule() -> ScheduleResult:
    """A schedule with costs in seconds and bytes."""
    return trainwright.schedule(family="adaptive-v", ranks=4, spec=SPEC).document


@cache
def model_sweep() -> ModelSweepResult:
    """A small model on one node and on two."""
    return trainwright.sweep(
        "gpt2",
        cluster="dgx-h100",
        devices="8,16",
        schedule="1f1b",
        objective="tokens-per-device",
        global_batch=64,
        sequence=1024,
        cp=1,
        zero=1,
        tokens=1e12,
        price=2.0,
    ).document


@cache
def placement() -> PlacementResult:
    """Six layers with a strategy of their own."""
    with TemporaryDirectory() as folder:
        chain_file(Path(folder))
        return planned(PlacementResult, Path(folder) / "chain.json")


@cache
def small_plan(memory: str | None = None) -> ModelPlanResult:
    """A small model on one node, one way of it."""
    return planned(
        ModelPlanResult,
        "gpt2",
        cluster="dgx-h100",
        devices=8,
        memory=memory,
        global_batch=32,
        sequence=1024,
        tp=1,
        recompute="none",
        schedule="1f1b",
    )


@cache
def what_if() -> WhatIfResult:
    """The small model on devices with less memory."""
    return trainwright.what_if(small_plan(), memory="4GiB").document


@cache
def mixed_plan(layout: str = "across") -> ModelPlanResult:
    """Stages on two kinds of devices, or replicas on each."""
    pipeline, data = {"across": (2, 8), "beside": (1, 16)}[layout]
    document = planned(
        ModelPlanResult,
        "llama2-7b",
        cluster=EXAMPLES / "old-and-new.toml",
        global_batch=64,
        sequence=4096,
        pp=pipeline,
        dp=data,
        tp=1,
        cp=1,
        micro_batch=1,
        zero=1,
        recompute="none",
        schedule="1f1b",
        top=2,
        calibration="none",
    )
    assert document.layout == layout
    return document


@cache
def improvement() -> ImprovementResult:
    """A run of the small model that recomputes without need."""
    run = trainwright.estimate(
        "gpt2",
        cluster="dgx-h100",
        tp=2,
        dp=2,
        global_batch=8,
        sequence=1024,
        recompute="full",
    )
    return trainwright.improve(run).document


@cache
def validation() -> ValidationResult:
    """Two measured runs."""
    return trainwright.validate(EXAMPLES / "measured").document


@cache
def verification() -> VerificationResult:
    """What holds of the model's plan, with all that was broken on purpose."""
    return trainwright.verify(model_plan(), level=0, self_test=True).document


@cache
def codesign() -> CodesignResult:
    """A chip for a small model, with its front."""
    ranges = {"width": (32, 64, 128), "depth": (32, 64, 128), "glb_mib": (8, 32)}
    made = trainwright.codesign(["bert-base"], devices=8, ranges=ranges, schedule=("1f1b",))
    return made.document


@cache
def machine_room() -> RoomResult:
    """Few systems around few designs for a small model."""
    from trainwright.commands.codesign import machine_room as search

    room = (
        "stacks = [1, 2]\nstack_gib = [8, 16]\nnode_devices = [1, 4]\nnode_gbytes_per_s = [100]\n"
        'topology = ["switch"]\ncards = [0.25, 1]\noversubscription = [1]\n'
    )
    ranges = "num_tc = [8, 16]\nnum_vc = [8]\nwidth = [64]\ndepth = [64]\nglb_mib = [4, 8]\n"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "room.toml"
        path.write_text(room, encoding="utf-8")
        made_of = Path(folder) / "technology.toml"
        made_of.write_text(f"least_area_share = 0\n[ranges]\n{ranges}", encoding="utf-8")
        made: Report[RoomResult] = search(
            ["gpt2"],
            devices=8,
            aim="cost",
            room=path,
            global_batch=32,
            sequence=256,
            technology=made_of,
        )
    return made.document


@cache
def model() -> ModelSummary:
    """What a mixture of experts is."""
    return trainwright.describe_model("deepseek-v3").document


@cache
def fit() -> Any:
    """What of a model trains on one device."""
    return trainwright.fit("llama3-70b", gpu="h100").document


def renamed(document: ModelPlanResult, name: str) -> ModelPlanResult:
    """The same plan of a model by another name."""
    request = document.request
    return replace(document, request=replace(request, model=replace(request.model, name=name)))
