"""The predicted step and memory of one question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from trainwright.cluster import Cluster
from trainwright.cluster.calibration import SoftwareClass
from trainwright.cluster.framework_memory import figure_in
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.calibration_toml import framework_memory
from trainwright.formats.measured_csv import MeasuredRun
from trainwright.lab.run_shapes import (
    SoftwareLine,
    stage_blocks,
    updates_on_host,
    uses_fused_attention,
)
from trainwright.model import (
    ContextExchange,
    LayerKind,
    Offload,
    Recipe,
    TokenDispatcher,
    TransformerConfig,
    layer_graph,
)
from trainwright.model.recipe import model_module_faults
from trainwright.model.run_shape import padded_vocabulary
from trainwright.plans import Parallelism, Plan, StageMemory, StepPrediction
from trainwright.plans.capability_table import MODULES
from trainwright.plans.configuration import (
    USUAL_OVERHEADS,
    Configuration,
    MemoryOverheads,
    Overlap,
    run_shape,
)
from trainwright.plans.plan import DEFAULT_SCHEDULE
from trainwright.profile import Recompute
from trainwright.scheduling.families import FAMILIES
from trainwright.step import figures, predict_step
from trainwright.step.account import time_range
from trainwright.step.memory import Tape
from trainwright.step.predict import plan_of, profile_of_run
from trainwright.step.zero import with_offload
from trainwright.units import MIB

# What is asked of the cost model about one run: model, cluster, and every setting decided
# ----------------------------------------------------------------------------------------

# Formats of the tables → those of the estimator; FP8 recipes differ in their scaling factors.
_PRECISIONS: Final = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp16_amp": "fp16",
    "fp32": "fp32",
    "bf16_amp": "bf16",
    "fp8": "fp8",
    "fp8_amp": "fp8",
    "fp8_cs": "fp8",
    "fp8_mx": "fp8",
    "mxfp8": "fp8",
    "fp8_rowwise": "fp8",
    "fp8_tensorwise": "fp8",
    "nvfp4": "nvfp4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One run with nothing left open."""

    run: MeasuredRun
    line: SoftwareLine
    model: TransformerConfig
    cluster: Cluster
    configuration: Configuration


def configuration_of(
    run: MeasuredRun,
    line: SoftwareLine,
    model: TransformerConfig,
    *,
    microbatch_size: int,
    recompute: str,
    virtual_stages: int,
    fast_domain: int,
) -> Configuration:
    """The settings of a run as its launcher would state them; raises `UnsupportedFeature`."""
    assert run.global_batch is not None
    copies = int(run.number("state_copies") or 1)
    sharded = bool(run.zero_stage) and 1 < copies < run.data and run.data % copies == 0
    sequence_parallel = run.options.get("sequence_parallel", run.sequence_parallel)
    return Configuration(
        parallelism=Parallelism(
            tensor=run.tensor,
            pipeline=run.pipeline,
            data=run.data,
            context=run.context,
            expert=run.expert,
            expert_tensor=run.expert_tensor,
            virtual_stages=virtual_stages,
            sequence_parallel=bool(sequence_parallel) and run.tensor > 1,
            zero_stage=run.zero_stage or 0,
            state_copies=copies if sharded else 1,
        ),
        microbatch_size=microbatch_size,
        global_batch=run.global_batch,
        sequence_length=run.sequence_length,
        schedule=_schedule(
            run,
            virtual_stages=virtual_stages,
            microbatches=run.global_batch // (microbatch_size * run.data),
        ),
        recompute=Recompute(recompute),
        recompute_modules=_recompute_modules(run),
        recompute_blocks=_recompute_blocks(run, model, virtual_stages),
        fused_attention=uses_fused_attention(run) if run.states_arguments else line.fused_attention,
        blocks_per_stage=_stage_blocks(run, model, virtual_stages),
        fused_cross_entropy=line.fused_cross_entropy or run.flag("cross_entropy_loss_fusion"),
        vocabulary_multiple=int(
            run.number("make_vocab_size_divisible_by") or line.vocabulary_multiple
        ),
        recipe=_recipe(run, line, model, microbatch_size * run.sequence_length // run.context),
        overlap=_overlap(run, line, virtual_stages, fast_domain),
        overheads=MemoryOverheads(workspace_bytes=line.fixed_bytes),
    )


def _recompute_blocks(
    run: MeasuredRun, model: TransformerConfig, virtual_stages: int
) -> int | None:
    """Blocks of each virtual stage that recompute, where a row states fewer than all."""
    _, blocks = run.recompute_mode
    return None if blocks is None else min(blocks // virtual_stages, model.num_layers)


_SPLITS_TENSOR: Final = ("async_tp", "tp_comm_overlap")


def _overlap(
    run: MeasuredRun, line: SoftwareLine, virtual_stages: int, fast_domain: int
) -> Overlap:
    """What the line's software hides, and tensor exchanges where the run splits them to do so.

    Tokens of experts that span nodes travel under the other pass of an interleaved pipeline, where
    the software pairs passes to that end.
    """
    share = 0.9 if line.overlaps_gradients else 0.0
    splits = any(map(run.flag, _SPLITS_TENSOR))
    spans = run.expert * (run.expert_tensor or run.tensor)
    pairs = line.pairs_passes and virtual_stages > 1 and spans > fast_domain
    pairs = bool(run.options.get("overlap_experts", pairs))
    return Overlap(
        gradients=share,
        parameters=share,
        tensor=0.9 if splits else 0.0,
        experts=0.9 if pairs else 0.0,
    )


def says_overlap(run: MeasuredRun, line: SoftwareLine, name: str) -> bool:
    """Whether it is known of a run if tensor exchanges, or those of experts, hide."""
    if run.states_arguments:
        return True
    if name == "experts":
        return line.pairs_passes or run.options.get("overlap_experts") is not None
    return any(run.setting(each) is not None for each in _SPLITS_TENSOR)


def _stage_blocks(
    run: MeasuredRun, model: TransformerConfig, virtual_stages: int
) -> tuple[int, ...] | None:
    listed = run.options.get("blocks")
    if isinstance(listed, str):
        listed = [int(count) for count in listed.split(",") if count.strip().isdecimal()]
    if listed is not None and not isinstance(listed, list):
        problem = f"must be a list of whole numbers, one for each stage, got {listed}"
        raise InvalidInput.of(f"{run.row_id}, options.blocks", problem)
    stated = tuple(listed) if listed else stage_blocks(run, model.num_layers)
    fits = stated is not None and len(stated) == run.pipeline * virtual_stages
    return stated if fits else None


def _schedule(run: MeasuredRun, *, virtual_stages: int, microbatches: int) -> str:
    """The family that a row names; 1F1B interleaves where ranks hold several chunks.

    Interleaving takes microbatches in groups of the pipeline's size, or depth-first.
    """
    named = run.schedule or DEFAULT_SCHEDULE
    if named in FAMILIES and named not in (DEFAULT_SCHEDULE, "interleaved"):
        return named
    if virtual_stages == 1:
        return DEFAULT_SCHEDULE
    return "depth-first" if microbatches % run.pipeline else "interleaved"


def _recompute_modules(run: MeasuredRun) -> tuple[str, ...] | None:
    """What selective recomputation repeats, where a row lists it, in our words or Megatron's."""
    listed = run.options.get("recompute_modules")
    if listed is not None:
        return tuple(str(listed).replace(" ", "").split(","))
    ours = {theirs: own for own, theirs in (MODULES["megatron"] or {}).items()}
    named = _listed(run, "recompute_modules")
    return tuple(dict.fromkeys(ours[name] for name in named if name in ours)) or None


def _listed(run: MeasuredRun, name: str) -> tuple[str, ...]:
    """The words of an argument that takes several, as `[core_attn attn_proj]`."""
    return tuple((run.setting(name) or "").strip("[]").replace(",", " ").split())


def _modules_on_host(run: MeasuredRun, model: TransformerConfig) -> tuple[str, ...]:
    """Modules that leave on the host what they keep; Megatron passes over those it has not."""
    if not run.flag("fine_grained_activation_offloading"):
        return ()
    named = _listed(run, "offload_modules")
    return tuple(name for name in named if not any(model_module_faults(model, (name,))))


# What DeepSpeed's states on the host take with them: gradients are reduced into buffers there
# (deepspeed/runtime/zero/stage3.py, `self.device`).
_STATES_ON_HOST: Final = Offload(optimizer=1.0, gradients=1.0)
_KEPT_ON_HOST: Final = Offload(activations=1.0)


def _loss_chunk(line: SoftwareLine, model: TransformerConfig, tokens: int) -> int | None:
    """Tokens a chunk where the fused loss of models of Hugging Face is Liger's.

    As many as make the logits of a chunk as large as its hidden states of all tokens, rounded up
    to a power of two (liger_kernel/ops/fused_linear_cross_entropy.py).
    """
    if line.software.kind is not SoftwareClass.DEEPSPEED or not line.fused_cross_entropy:
        return None
    parts = -(-model.vocabulary_size // model.hidden_size)
    return min(tokens, 1 << (-(-tokens // parts) - 1).bit_length())


def _expert_loads(run: MeasuredRun) -> tuple[float, ...]:
    """Tokens of each expert, or of the heaviest over the mean, where a row lists them."""
    listed = run.options.get("expert_loads", ())
    if not isinstance(listed, list | tuple):
        problem = f"must be a list of numbers, got {listed}"
        raise InvalidInput.of(f"{run.row_id}, options.expert_loads", problem)
    return tuple(listed)


def _recipe(run: MeasuredRun, line: SoftwareLine, model: TransformerConfig, tokens: int) -> Recipe:
    try:
        precision = _PRECISIONS[run.precision]
    except KeyError:
        raise UnsupportedFeature(f"precision {run.precision} is not modelled") from None
    modules = _modules_on_host(run, model)
    exchange = ContextExchange.ALL_TO_ALL if run.setting("cp_comm_type") == "a2a" else None
    return Recipe(
        precision=precision,
        gradient_dtype=line.gradient_dtype or ("fp16" if precision == "fp16" else None),
        context_exchange=exchange or ContextExchange.RING,
        capacity_factor=run.options.get("capacity_factor", 1.0 if line.pads_experts else None),
        token_dispatcher=TokenDispatcher.HIERARCHICAL
        if line.dispatches_once
        else TokenDispatcher.ALL_TO_ALL,
        dispatch_dtype=run.options.get("dispatch_dtype"),
        reduce_dtype=run.options.get("reduce_dtype"),
        expert_loads=_expert_loads(run),
        loss_chunk=run.options.get("loss_chunk") or _loss_chunk(line, model, tokens),
        offload=_STATES_ON_HOST if updates_on_host(run) else _KEPT_ON_HOST if modules else None,
        offload_modules=modules,
    )


# Peak memory of megatron-core on Transformer Engine with fused gradient accumulation and loss
# --------------------------------------------------------------------------------------------
#     peak = static + activations in flight + dummy weight gradients + loss phase + fixed bytes
#
# With gradient accumulation fused into the weight gradient's product, the engine hands autograd one
# 16-bit dummy per distinct weight shape and caches it for ever: 6 GiB for a 405 B model's shapes.
# The last rank peaks either at the loss (5 bytes per logit, fitted) or at the head's weight
# gradient (logits' gradient and the head's own); the second wins where h > 2 n, n being the tokens
# of a microbatch on a device. Inferred from public measured peaks; see the accuracy page.

_ELEMENT = 2
_LOSS_COPIES = 2.5  # times two bytes: the five per logit that are fitted


def engine_peak_bytes(question: Question, step: StepPrediction) -> float:
    """The fullest rank of a step."""
    dummies = _dummy_gradient_bytes(question)
    peaks = []
    for rank, stage in enumerate(step.stages):
        memory = stage.memory
        peak = memory.static_bytes + memory.activation_bytes + memory.beside_bytes + dummies
        if rank == len(step.stages) - 1:
            peak += _loss_phase_bytes(question)
        peaks.append(peak)
    return max(peaks)


def _dummy_gradient_bytes(question: Question) -> float:
    asked = question.configuration
    precision = asked.recipe.precision or question.cluster.accelerator.default_precision
    graph = layer_graph(question.model, run_shape(asked, precision=precision))
    shapes = {
        (op.matrix.inputs, op.matrix.outputs)
        for layer in graph.classes
        if layer.kind is LayerKind.BLOCK
        for op in layer.operators
        if op.matrix is not None and op.name != "router"
    }
    return _ELEMENT * sum(inputs * outputs for inputs, outputs in shapes)


def _loss_phase_bytes(question: Question) -> float:
    asked, model = question.configuration, question.model
    degrees = asked.parallelism
    width = _padded_words(question) / degrees.tensor
    at_loss = _LOSS_COPIES * asked.tokens
    at_head = asked.tokens + model.hidden_size
    return _ELEMENT * width * max(at_loss, at_head)


def _padded_words(question: Question) -> int:
    asked, words = question.configuration, question.model.vocabulary_size
    return padded_vocabulary(words, asked.vocabulary_multiple, asked.parallelism.tensor)


# Memory of a megatron-core process as its allocator reports it: more than weights and activations
# ------------------------------------------------------------------------------------------------
#     static = parameters · bytes + matrix libraries' workspaces + tensors between stages
#              + one shared buffer + what blocks of states hold beyond them
#     peak   = static + activations in flight + loss + final norm
#
# Sizes were read in public training code or inferred from public golden values (the accuracy page
# says which): two cuBLAS workspaces of 32 MiB where kernels must be deterministic or on Hopper,
# else 8.125 MiB; one of Transformer Engine, four more with grouped products; input and gradient of
# every model chunk behind a stage boundary; the largest of local attention's scores, the gathered
# input of sequence parallelism and the gathered tokens of experts. With fp16 a float32 copy of the
# gradients outlives the optimizer step, so that it counts as static and not at the peak. Blocks
# follow from the states and the allocator's rules (`step.memory`), with nothing fitted.

_LARGE_WORKSPACE: Final = 32 * MIB
_SMALL_WORKSPACE: Final = 8.125 * MIB
_LARGE_DEVICES: Final = ("H100", "H200")
_BLACKWELL: Final = ("B200", "GB200", "B300", "GB300")
_ENGINE_WORKSPACE: Final = {"A100": 4 * MIB}
_GROUPED_WORKSPACES: Final = 4
_MAIN_STATE_BYTES: Final = 12
_MAIN_BYTES: Final = 4  # of each of a parameter's main copy and its two moments
_LOSS_BYTES: Final = {False: 6, True: 10}
_MIXTURE_COPIES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Bytes the allocator has given out: for ever, and at most."""

    static_bytes: float
    peak_bytes: float


def megatron_memory(
    run: MeasuredRun, question: Question, plan: Plan, stage: StageMemory
) -> ProcessMemory:
    """Memory of the last pipeline rank, which is the one that reports."""
    optimizer = stage.optimizer_bytes * (run.number("num_distributed_optimizer_instances") or 1)
    parameters = stage.weight_bytes + stage.gradient_bytes + optimizer
    copy = 4 / _MAIN_STATE_BYTES * optimizer if run.precision == "fp16" else 0.0
    fixed = _workspaces(run) + _between_stages(question) + _shared_buffer(run, question)
    fixed += _beyond_states(run, question, plan)
    # The fullest moment is at the loss, or in the backward pass of a block that runs again.
    peak = parameters + fixed + stage.activation_bytes + max(_loss(question), stage.transient_bytes)
    peak += 2 * _hidden(question) + _copies(run, question, stage.microbatches_in_flight)
    return ProcessMemory(static_bytes=parameters + copy + fixed, peak_bytes=peak)


def _beyond_states(run: MeasuredRun, question: Question, plan: Plan) -> float:
    """What the blocks of the last rank's states hold beyond them.

    In the order of `DistributedDataParallel` and the optimizers of megatron-core: weights one by
    one; gradients as one buffer, and, with a distributed optimizer, the weights as another in their
    place; main copies one by one, or the last shard of each; moments at the first step.
    """
    asked = question.configuration
    device = question.cluster.accelerator
    shape = run_shape(asked, precision=asked.recipe.precision or device.default_precision)
    graph, degrees, tape = layer_graph(question.model, shape), asked.parallelism, Tape()
    precision = graph.run.precision
    chunks = plan.stages[degrees.pipeline - 1 :: degrees.pipeline]
    layers = [graph.classes[graph.layers[number]] for own in chunks for number in own.layers]
    each = [parameter for layer in layers for parameter in layer.parameters]
    held = {parameter.shared or (number,): parameter for number, parameter in enumerate(each)}
    for name, parameter in held.items():
        tape.hold("weights", name, precision.weight_bytes * parameter.count_per_device)
    shards = []
    for expert, replicas in ((False, degrees.data * degrees.context), (True, degrees.expert_data)):
        counts = [p.count_per_device for p in held.values() if p.expert is expert and p.trainable]
        if degrees.zero_stage:
            tape.hold("buffers", ("weights", expert), precision.weight_bytes * sum(counts))
            instances = int(run.number("num_distributed_optimizer_instances") or 1)
            own = _last_shard(counts, replicas // instances)
        else:
            own = counts
        tape.hold("buffers", ("gradients", expert), precision.gradient_bytes * sum(counts))
        shards += own
    if degrees.zero_stage:
        tape.clear("weights")
    for state in ("main", "first moment", "second moment"):
        for number, count in enumerate(shards):
            tape.hold(state, number, _MAIN_BYTES * count)
    return tape.given_out - tape.now


def _last_shard(counts: Sequence[float], replicas: int) -> list[float]:
    """What the last of so many equal parts of a buffer holds of each tensor in it.

    Buffers are filled backwards, so that the last part lies in the first tensors.
    """
    left, own = sum(counts) / replicas, []
    for count in counts:
        if left > 0:
            own.append(min(count, left))
            left -= count
    return own


def _has_large_workspace(run: MeasuredRun) -> bool:
    """Hopper, or deterministic kernels. On Blackwell it depends on a library version that no table
    records: tests that resume a checkpoint show the small one nine times in ten, others mostly the
    large.
    """
    if run.flag("deterministic_mode") or run.accelerator.startswith(_LARGE_DEVICES):
        return True
    return run.accelerator.startswith(_BLACKWELL) and run.setting("test_type") != "ckpt-resume"


def _workspaces(run: MeasuredRun) -> float:
    large = _has_large_workspace(run)
    total = 2 * (_LARGE_WORKSPACE if large else _SMALL_WORKSPACE)
    if run.setting("transformer_impl") == "local" and run.number("num_experts") is None:
        return total
    device = run.accelerator.partition("-")[0]
    engine = _ENGINE_WORKSPACE.get(device, _LARGE_WORKSPACE)
    return total + engine * (1 + _GROUPED_WORKSPACES * run.flag("moe_grouped_gemm"))


def _between_stages(question: Question) -> float:
    """Input and gradient of each chunk stay allocated where stages exchange them."""
    degrees = question.configuration.parallelism
    if degrees.pipeline == 1:
        return 0.0
    return 2 * degrees.virtual_stages * _hidden(question)


def _hidden(question: Question) -> float:
    """One hidden state of a microbatch on one device."""
    asked = question.configuration
    degrees = asked.parallelism
    cut = degrees.context * (degrees.tensor if degrees.sequence_parallel else 1)
    return 2 * asked.microbatch_size * asked.sequence_length * question.model.hidden_size / cut


def _shared_buffer(run: MeasuredRun, question: Question) -> float:
    asked, model = question.configuration, question.model
    degrees = asked.parallelism
    scores = gathered = 0.0
    if run.setting("transformer_impl") == "local":
        heads = model.num_heads / degrees.tensor
        scores = 2 * asked.microbatch_size * heads * (asked.sequence_length / degrees.context) ** 2
    if degrees.sequence_parallel:
        gathered = _hidden(question) * degrees.tensor
    if model.experts and run.setting("moe_token_dispatcher_type") in (None, "allgather"):
        group = degrees.expert * (degrees.expert_tensor or degrees.tensor)
        gathered = max(gathered, _hidden(question) * group)
    return max(scores, gathered)


def _loss(question: Question) -> float:
    asked, t = question.configuration, question.configuration.parallelism.tensor
    words = _padded_words(question)
    heads = 1 + question.model.num_mtp_layers
    return heads * _LOSS_BYTES[asked.fused_cross_entropy] * asked.tokens * words / t


def _copies(run: MeasuredRun, question: Question, in_flight: int) -> float:
    """Tensors that the list of a block does not name, for the blocks in flight on the last rank.

    A flash kernel's output is kept twice, in its own and in the projection's layout (cuDNN's, which
    Hopper picks unless told otherwise, once). Routed tokens leave copies around the experts.
    """
    asked, model = question.configuration, question.model
    degrees = asked.parallelism
    chunks = asked.blocks_per_stage or (model.num_layers / asked.num_stages,)
    own = chunks[-1 :: -degrees.pipeline]
    blocks = in_flight * sum(own) / len(own)
    copied = 0.0
    hopper = run.accelerator.startswith(_LARGE_DEVICES)
    if asked.fused_attention and (run.setting("attention_backend") == "flash" or not hopper):
        copied += 2 * asked.tokens * model.num_heads * model.head_size / degrees.tensor
    if model.experts is not None:
        routing = sum(model.experts.at(i) for i in range(model.num_layers)) / model.num_layers
        copied += routing * _MIXTURE_COPIES * _hidden(question)
    return blocks * copied


# The predicted step and memory of one question
# ---------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """Seconds of a step with the ends of the 90% interval; bytes of a device where modelled.

    Another tool may state bytes alone.
    """

    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    peak_memory_bytes: float | None = None
    high_memory_bytes: float | None = None  # the upper end of its range, which decides fit
    static_memory_bytes: float | None = None
    fits: bool | None = None  # what `estimate` says of the run

    def within(self, low_ratio: float, high_ratio: float) -> RunPrediction:
        """The same with the interval from `low_ratio` to `high_ratio` times the step."""
        time_s = self.priced_s
        return replace(
            self, step_time_low_s=time_s * low_ratio, step_time_high_s=time_s * high_ratio
        )

    @property
    def priced_s(self) -> float:
        """The step of a run that was priced here: those always have one."""
        assert self.step_time_s is not None
        return self.step_time_s


def predict(question: Question) -> RunPrediction:
    """Price one question; raises like `Estimator.profile` and `predict_step`."""
    plan, step = _priced(question)
    time_s = step.step_time_s
    spread = time_range(question.model, question.cluster, question.configuration)
    peak, static_bytes = _memory(question, plan, step)
    return RunPrediction(
        step_time_s=time_s,
        step_time_low_s=time_s * spread.low_ratio,
        step_time_high_s=time_s * spread.high_ratio,
        peak_memory_bytes=peak.typical_bytes,
        high_memory_bytes=peak.high_bytes,
        static_memory_bytes=static_bytes,
        fits=_fits(question, step),
    )


def _fits(question: Question, step: StepPrediction) -> bool:
    """The verdict of `estimate` at its usual probability, without terms that only tables have."""
    asked, device = _with_loss(question), question.cluster.accelerator
    asked = replace(asked, overheads=USUAL_OVERHEADS)
    account = framework_memory(question.line.software.name)
    return figures.missing_bytes(question.model, asked, step, device, account) <= 0


def _memory(question: Question, plan: Plan, step: StepPrediction) -> tuple[figures.Ranged, float]:
    """Peak of the rank that the table reports, as the figure that it names; static bytes."""
    run, account = question.run, framework_memory(question.line.software.name)
    degrees = question.configuration.parallelism
    static_bytes = max(stage.memory.static_bytes for stage in step.stages)
    stated = figure_in(run.setting("memory_kind"))
    ranks: tuple[figures.MemoryFigures, ...]
    if run.states_arguments:
        found = megatron_memory(run, question, plan, step.stages[-1].memory)
        ranks, static_bytes = (
            (figures.figures_of(found.peak_bytes, account, degrees),),
            found.static_bytes,
        )
    elif question.line.caches_dummy_gradients:
        ranks = (figures.figures_of(engine_peak_bytes(question, step), account, degrees),)
    else:
        device = question.cluster.accelerator
        ranks = figures.memory_figures(
            question.model, _with_loss(question), step, account, device=device
        )
    shown = [rank.of(stated or account.reports) for rank in ranks]
    return max(shown, key=lambda ranged: ranged.typical_bytes), static_bytes


def _with_loss(question: Question) -> Configuration:
    """The configuration with the loss as the software of the row computes it."""
    asked = question.configuration
    fused = asked.fused_cross_entropy or _fuses_loss(question)
    return replace(asked, fused_cross_entropy=fused)


# torchtitan's tables of H100 are of December 2024; those of later devices are of releases that
# compile the loss with the blocks (`components/loss.py`, April 2025).
_OF_2024: Final = ("A100", "H100")
# MPT's default loss is flash-attn's kernel (`loss_fn`, `llmfoundry/models/mpt/modeling_mpt.py`).
_FUSING: Final = frozenset({"llm-foundry"})


def _fuses_loss(question: Question) -> bool:
    software = question.line.software
    if software.name in _FUSING:
        return True
    return software.kind is SoftwareClass.COMPILED_FSDP and not question.run.accelerator.startswith(
        _OF_2024
    )


def price(question: Question) -> StepPrediction:
    """The step of a question, stage by stage."""
    return _priced(question)[1]


def _priced(question: Question) -> tuple[Plan, StepPrediction]:
    model, asked = question.model, question.configuration
    cluster = with_offload(question.cluster, asked.recipe)
    profile = profile_of_run(model, cluster, asked)
    plan = plan_of(asked, profile)
    step = predict_step(plan, profile, cluster, **asked.step_settings)
    return plan, step
