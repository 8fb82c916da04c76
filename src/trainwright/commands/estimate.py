"""`trainwright estimate`: the price of a plan someone already has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainwright.commands import command_line as options
from trainwright.commands.command_line import any_number, read_config, shares
from trainwright.commands.output import check_output, emit, finish, parse_count, parse_share
from trainwright.documents.printing import Report
from trainwright.documents.profile_plan import EstimateResult
from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Unpack

    from trainwright.cluster import Cluster
    from trainwright.documents.model_estimate import ModelEstimateResult
    from trainwright.frameworks.read_job import StatedJob
    from trainwright.options.inputs import ProfileInput
    from trainwright.options.run import RunOptions
    from trainwright.plans.plan import Plan, Stage
    from trainwright.profile import Profile, ProfileFile, Setting


def estimate(
    model: str | Path | Profile | ProfileFile | None = None,
    *,
    source: tuple[str | None, str | Path] | None = None,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    vocabulary_size: int | None = None,
    function: str | None = None,
    plan: str | Path | Plan | None = None,
    cluster: str | Path | Cluster | None = None,
    nodes: int | None = None,
    devices: int | None = None,
    memory: str | float | None = None,
    bandwidth: str | float | None = None,
    microbatches: int | None = None,
    point: int | None = None,
    time_unit: str | None = None,
    calibration: str | Path | None = None,
    **run: Unpack[RunOptions],
) -> Report[EstimateResult] | Report[ModelEstimateResult]:
    """Price a run of a model on `cluster`, or a `plan` (a document's path, or a noun) of a profile.

    `source` names a framework (`frameworks.jobs.FORMATS`; None: its content says) and a file of an
    existing job: what it states stands in for options that are not given, and its model for
    `model`. `arguments` and `variables` are those of its script, `vocabulary_size` is what its
    tokenizer decides, `function` the one of a Python registry. `model` may be such a file itself.
    A model takes the options of `RunOptions`; a profile `plan`, `devices`, `memory`, `bandwidth`,
    `microbatches`. `calibration` is a file that `calibrate` wrote or a built-in software line. What
    is not given is taken from the plan document's own request, then from the profile; see
    `trainwright.plan` for units. Raises `InvalidInput` naming every rule that is broken; what only
    overflows memory is priced in full, with `fits` false.
    """
    from trainwright.options.inputs import ModelInput, resolve_model, setting_overrides
    from trainwright.options.refuse import kind_of, refuse_foreign, refuse_unknown
    from trainwright.options.run import RunOptions

    refuse_unknown(estimate, run, RunOptions)
    overrides = setting_overrides(
        devices=devices, memory=memory, bandwidth=bandwidth, microbatches=microbatches
    )
    job: StatedJob | None = None
    if source is None and isinstance(model, (str, Path)):
        from trainwright.frameworks.read_job import is_job

        if is_job(model):
            source, model = (None, model), None
    if source is not None:
        from trainwright.frameworks.read_job import open_stated, stated_model, stated_options

        job = open_stated(
            *source,
            names_model=model is None,
            arguments=arguments,
            variables=variables,
            vocabulary=vocabulary_size,
            function=function,
            nodes=nodes,
        )
        if not (model is None or isinstance(model, (str, Path))):
            raise InvalidInput.of("model", "must be a name or a file beside a framework's file")
        run = stated_options(job, run)
        given: ModelInput | ProfileInput = stated_model(job, model)
    elif model is None:
        raise InvalidInput.of("model", "must be given, or a framework's file, as --from")
    else:
        given = resolve_model(model, point=point, given=overrides, time_unit=time_unit)
    refuse_foreign(
        kind_of(given),
        {
            "plan": plan,
            "bandwidth": bandwidth,
            "microbatches": microbatches,
            "point": point,
            "time_unit": time_unit,
        },
        {"cluster": cluster, "nodes": nodes, "calibration": calibration, **run},
    )
    if not isinstance(given, ModelInput):
        return _estimate_profile(given, plan, overrides)
    from trainwright.documents.model_estimate import estimate_model
    from trainwright.options.clusters import opened, resolve_cluster
    from trainwright.options.run import devices_asked_for, tuned

    given = tuned(given, run)
    whole = opened(cluster)
    where, num_devices = resolve_cluster(
        whole,
        nodes=nodes,
        devices=devices if devices is not None or nodes is not None else devices_asked_for(run),
        memory_bytes=overrides.get("memory_bytes"),
    )
    if calibration is not None:
        from trainwright.options.clusters import calibrated

        where = calibrated(where, calibration)
    if job is not None:
        from trainwright.frameworks.read_job import with_stated_batch

        run = with_stated_batch(job, run, num_devices=num_devices)
    warnings = [*(job.warnings if job else ()), *whole.warnings]
    document = estimate_model(
        given, cluster=where, num_devices=num_devices, options=run, warnings=warnings
    )
    return Report(document)


def _estimate_profile(
    given: ProfileInput,
    plan: str | Path | Plan | None,
    overrides: Mapping[str, float],
) -> Report[EstimateResult]:
    from trainwright.documents.profile_plan import (
        ProfileQuestion,
        overflow_records,
        profile_request,
        stage_records,
        unit_warnings,
    )
    from trainwright.execution import Budget
    from trainwright.options.inputs import resolve_setting
    from trainwright.partitioning.evaluate import evaluate, time_per_sample_s
    from trainwright.partitioning.problem import Restrictions
    from trainwright.plans.plan import Plan

    if plan is None:
        raise InvalidInput.of("plan", "must be given for a profile, as --plan FILE")
    if isinstance(plan, Plan):
        stages, stated = plan.stages, given.setting
    else:
        stages, stated = _read_plan(plan, given.setting)
    setting = resolve_setting(stated, overrides)
    priced = Plan(stages=stages, num_microbatches=setting.num_microbatches)
    costs = evaluate(priced, given.profile, setting)
    overflows, time_s = overflow_records(costs, setting), time_per_sample_s(costs)
    question = ProfileQuestion(given=given, setting=setting, restrictions=Restrictions())
    document = EstimateResult(
        fits=not overflows,
        time_per_sample_s=time_s,
        devices_used=priced.devices_used,
        num_stages=len(stages),
        stages=stage_records(priced, costs, given.profile),
        overflows=overflows,
        warnings=(
            *given.warnings,
            *unit_warnings(given, time_s, setting),
        ),
        request=profile_request(question, Budget()),
    )
    return Report(document)


def _read_plan(
    path: str | Path, stated: Setting | None
) -> tuple[tuple[Stage, ...], Setting | None]:
    """Stages of a document or of a plan by hand, and the setting it was made for if it says so."""
    from trainwright.documents.profile_plan import read_setting, read_stages
    from trainwright.documents.registry import PRICED, records
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import document_type
    from trainwright.formats.json_text import parse_json

    value = parse_json(read_bytes(path, name="plan"), source=str(path))
    if not {"kind", "format_version"}.isdisjoint(value):
        document_type(value, records(PRICED), source=str(path))
    return read_stages(value, source=str(path)), read_setting(value, source=str(path)) or stated


# `trainwright estimate`
# ----------------------


def _count(name: str, text: str, *aliases: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(f"--{name}", *aliases, help=text, metavar="N")
    return found


def command(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A config.json or its folder, the name of a catalog model, or a profile (JSON).",
            show_default=False,
        ),
    ] = None,
    source: options.Source = None,
    argument: options.Argument = None,
    variable: options.Variable = None,
    vocab_size: options.VocabularySize = None,
    function: options.Function = None,
    plan: Annotated[
        Path | None, typer.Option(help="For a profile: the plan document to price.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="A catalog cluster or a TOML file.")] = None,
    nodes: Annotated[str | None, _count("nodes", "Nodes of the cluster.")] = None,
    tp: Annotated[str | None, _count("tp", "Tensor parallel degree; 1 if absent.")] = None,
    pp: Annotated[str | None, _count("pp", "Pipeline ranks; 1 if absent.")] = None,
    dp: Annotated[str | None, _count("dp", "Replicas; as many as fit if absent.")] = None,
    cp: Annotated[str | None, _count("cp", "Context parallel degree; 1 if absent.")] = None,
    ep: Annotated[str | None, _count("ep", "Expert parallel degree; 1 if absent.")] = None,
    etp: Annotated[str | None, _count("etp", "Devices per expert; as --tp if absent.")] = None,
    zero: Annotated[str | None, _count("zero", "ZeRO stage, 0 to 3; 1 if absent.")] = None,
    mapping: Annotated[
        str | None,
        typer.Option(
            help="How devices are numbered, nearest axis first: tp-cp-ep-dp-pp if absent, or "
            "tp-cp-ep-pp-dp.",
            metavar="ORDER",
        ),
    ] = None,
    state_copies: Annotated[
        str | None,
        _count("state-copies", "Groups of replicas that each hold all sharded state; 1 if absent."),
    ] = None,
    micro_batch: Annotated[
        str | None, _count("micro-batch", "Sequences per microbatch; 1 if absent.")
    ] = None,
    global_batch: Annotated[str | None, _count("global-batch", "Sequences per step.")] = None,
    sequence: Annotated[str | None, _count("sequence", "Tokens per sequence.")] = None,
    recompute: Annotated[
        str | None,
        typer.Option(
            help="none, selective, full, or full:N for N blocks of each stage; none if absent.",
            metavar="MODE",
        ),
    ] = None,
    recompute_module: Annotated[
        list[str] | None,
        typer.Option(help="What selective recomputes (repeatable).", metavar="NAME"),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="A schedule family; 1f1b if absent, interleaved with virtual stages.",
            metavar="NAME",
        ),
    ] = None,
    virtual_stages: Annotated[
        str | None, _count("virtual-stages", "Model chunks per pipeline rank; 1 if absent.")
    ] = None,
    blocks: Annotated[
        str | None,
        typer.Option(
            help="Blocks of each virtual stage, as 11,12,12,11; even if absent.", metavar="LIST"
        ),
    ] = None,
    sequence_parallel: Annotated[
        bool | None,
        typer.Option(
            "--sequence-parallel/--no-sequence-parallel",
            help="Shard norms and dropout along the sequence; on with --tp if absent.",
        ),
    ] = None,
    flash_attention: Annotated[
        bool | None,
        typer.Option(
            "--flash-attention/--no-flash-attention", help="Fused attention; on if absent."
        ),
    ] = None,
    fused_cross_entropy: Annotated[
        bool | None,
        typer.Option(
            "--fused-cross-entropy/--no-fused-cross-entropy",
            help="Keep 16-bit logits only; off if absent.",
        ),
    ] = None,
    vocabulary_multiple: Annotated[
        str | None,
        _count("vocabulary-multiple", "Pad the vocabulary to this x --tp; 128 if absent."),
    ] = None,
    precision: options.Precision = None,
    optimizer: options.Optimizer = None,
    gradient_dtype: options.GradientDtype = None,
    main_weight_dtype: options.MainWeightDtype = None,
    moment_dtype: options.MomentDtype = None,
    dropout: options.Dropout = None,
    context_exchange: options.ContextExchange = None,
    expert_imbalance: options.ExpertImbalance = None,
    capacity_factor: options.CapacityFactor = None,
    dispatch_dtype: options.DispatchDtype = None,
    token_dispatcher: options.TokenDispatcher = None,
    overlap: options.Overlap = None,
    reserve: options.Reserve = None,
    workspace: options.Workspace = None,
    fragmentation: options.Fragmentation = None,
    lora_rank: Annotated[
        str | None, _count("lora-rank", "Train adapters of this rank, nothing else.")
    ] = None,
    lora_targets: Annotated[
        str | None,
        typer.Option(
            help="Products with adapters, as query,value (the default); see docs/formats.md.",
            metavar="NAMES",
        ),
    ] = None,
    lora_dropout: Annotated[
        str | None, typer.Option(help="On an adapter's input; 0 if absent.", metavar="SHARE")
    ] = None,
    freeze_blocks: Annotated[
        str | None, _count("freeze-blocks", "Do not train the first N blocks.")
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option(
            help="Do not train layers of this kind, as embedding (repeatable).", metavar="KIND"
        ),
    ] = None,
    calibration: options.Calibration = None,
    devices: options.Devices = None,
    memory: options.Memory = None,
    bandwidth: options.Bandwidth = None,
    microbatches: options.Microbatches = None,
    point: options.Point = None,
    time_unit: options.TimeUnit = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file of these options.", is_eager=True, callback=read_config),
    ] = None,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Predict time and memory of a run: does it fit, and how long does a step take?"""
    check_output(output, model, plan, source[1] if source else None)
    report = estimate(
        model,
        source=source,
        arguments=argument or (),
        variables=options.variables(variable),
        vocabulary_size=parse_count(vocab_size, "vocab-size"),
        function=function,
        plan=plan,
        cluster=cluster,
        nodes=parse_count(nodes, "nodes"),
        devices=parse_count(devices, "devices"),
        memory=memory,
        bandwidth=bandwidth,
        microbatches=parse_count(microbatches, "microbatches"),
        point=parse_count(point, "point", least=0),
        time_unit=time_unit,
        calibration=calibration,
        tp=parse_count(tp, "tp"),
        pp=parse_count(pp, "pp"),
        dp=parse_count(dp, "dp"),
        cp=parse_count(cp, "cp"),
        ep=parse_count(ep, "ep"),
        etp=parse_count(etp, "etp"),
        zero=parse_count(zero, "zero", least=0),
        mapping=mapping,
        state_copies=parse_count(state_copies, "state-copies"),
        micro_batch=parse_count(micro_batch, "micro-batch"),
        global_batch=parse_count(global_batch, "global-batch"),
        sequence=parse_count(sequence, "sequence"),
        recompute=recompute,
        recompute_modules=recompute_module,
        schedule=schedule,
        virtual_stages=parse_count(virtual_stages, "virtual-stages"),
        blocks=_counts(blocks),
        sequence_parallel=sequence_parallel,
        flash_attention=flash_attention,
        fused_cross_entropy=fused_cross_entropy,
        vocabulary_multiple=parse_count(vocabulary_multiple, "vocabulary-multiple"),
        precision=precision,
        optimizer=optimizer,
        gradient_dtype=gradient_dtype,
        main_weight_dtype=main_weight_dtype,
        moment_dtypes=moment_dtype,
        dropout=any_number(dropout, "dropout"),
        context_exchange=context_exchange,
        expert_imbalance=any_number(expert_imbalance, "expert-imbalance"),
        capacity_factor=any_number(capacity_factor, "capacity-factor"),
        dispatch_dtype=dispatch_dtype,
        token_dispatcher=token_dispatcher,
        overlap=shares(overlap),
        reserve=reserve,
        workspace=workspace,
        fragmentation=parse_share(fragmentation, "fragmentation"),
        lora_rank=parse_count(lora_rank, "lora-rank"),
        lora_targets=_names(lora_targets),
        lora_dropout=any_number(lora_dropout, "lora-dropout"),
        freeze_blocks=parse_count(freeze_blocks, "freeze-blocks", least=0),
        freeze=freeze,
    )
    emit(report, as_json=as_json, output=output)
    finish(0 if report.document.fits else 3, interrupted=False)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _counts(text: str | None) -> list[int] | None:
    if text is None:
        return None
    counts = [parse_count(part, "blocks", least=0) for part in text.split(",")]
    return [count for count in counts if count is not None]
