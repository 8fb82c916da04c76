"""`trainwright estimate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.config_file import read_config
from trainwright.cli.lists import any_number, shares
from trainwright.cli.output import check_output, emit, finish, parse_count, parse_share


def _count(name: str, text: str, *aliases: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(f"--{name}", *aliases, help=text, metavar="N")
    return found


def estimate(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A config.json or its folder, the name of a catalog model, or a profile (JSON).",
            show_default=False,
        ),
    ] = None,
    source: options.Source = None,
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
            help="Products with adapters, as query,value (the default); see docs/models.md.",
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
    from trainwright.api.estimate import estimate as price

    check_output(output, model, plan, source[1] if source else None)
    report = price(
        model,
        source=source,
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
