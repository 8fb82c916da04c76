"""When Megatron can run a configuration: every rule, checked together, with its numbers.

Megatron's own checks stop at the first fault, lie in several places, and some wrong values pass
all of them: `where` says which of them knows a rule. Rules are numbered as in the documentation
(`docs/jobs.md`). Source: megatron-core 0.16.1 and Megatron-LM's arguments beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from trainwright.errors import Fault
from trainwright.model import NO_OFFLOAD, CudaGraph
from trainwright.model.run_shape import padded_vocabulary
from trainwright.plans.capability import RecomputeForm
from trainwright.plans.plan import PIPELINE_INSIDE
from trainwright.plans.schedule import Placing

if TYPE_CHECKING:
    from trainwright.plans.job import Job


# The legal values nearest to one that is not
# -------------------------------------------


def nearest_multiples(value: int, unit: int) -> str:
    """The multiples of `unit` on both sides of `value`, the lower one where it is positive."""
    lower = value // unit * unit
    return f"{lower}, {lower + unit}" if lower else str(unit)


def divisors_of(value: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    return tuple(d for d in range(1, value + 1) if value % d == 0)


# A Megatron configuration as plain values, legal or not: what `megatron_rules` judges
# ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronSetup:
    """Names are those of Megatron's arguments, shortened; nothing is checked here.

    `layout` lists the letters of every stage; `first_layers` and `last_layers` are the counts of
    the outer stages. Two stages of a rank that lie `in_v` run in no groups, as Primus runs them.
    `pipeline_inside` is `use_tp_pp_dp_mapping`, `max_connections` the variable
    CUDA_DEVICE_MAX_CONNECTIONS.
    """

    layers: int
    hidden: int
    heads: int
    kv_groups: int
    sequence: int
    world: int
    micro_batch: int = 1
    global_batch: int = 1
    head_size: int | None = None
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    sequence_parallel: bool = False
    pipeline_inside: bool = False
    virtual_stages: int | None = None
    layout: tuple[str, ...] | None = None
    first_layers: int | None = None
    last_layers: int | None = None
    account_embedding: bool = False
    account_loss: bool = False
    group: int | None = None
    in_v: bool = False
    p2p_overlap: bool = True
    experts: int | None = None
    grouped_gemm: bool = False
    latent_attention: bool = False
    shared_overlap: bool = False
    mtp_layers: int = 0
    recompute: str | None = None
    recompute_method: str | None = None
    recompute_layers: int | None = None
    recompute_modules: tuple[str, ...] = ()
    activation_offload: bool = False
    offload_modules: tuple[str, ...] = ()
    offload_share: float = 1.0
    cuda_graphs: bool = False
    recurrent: bool = False
    pipeline_dtype: bool = True
    torch_fsdp2: bool = False
    megatron_fsdp: bool = False
    distributed_optimizer: bool = False
    tied_embeddings: bool = False
    fp16: bool = False
    ckpt_format: str = "torch_dist"
    max_connections: str | None = None
    is_blackwell: bool = False
    vocabulary: int | None = None
    padded_vocabulary: int | None = None
    vocabulary_multiple: int = 128
    optimizer: str = "adam"
    main_weights: str = "fp32"
    moments: tuple[str, ...] = ("fp32",)

    @property
    def data(self) -> int:
        """Replicas, rounded down."""
        return max(1, self.world // (self.tp * self.pp * self.cp))

    @property
    def chunks(self) -> int:
        """Stages of a rank."""
        if self.layout is not None:
            return max(1, len(self.layout) // self.pp)
        return self.virtual_stages or 1

    @property
    def microbatches(self) -> int:
        """Microbatches of a step on each replica, rounded down."""
        return self.global_batch // (self.micro_batch * self.data)

    @property
    def most_layers_of_a_stage(self) -> int:
        """Decoder layers of the largest stage."""
        if self.layout is not None:
            return max(stage.count("t") for stage in self.layout)
        ends = (self.first_layers or 0, self.last_layers or 0)
        return max(*ends, -(-self.layers // (self.pp * self.chunks)))


def setup_of(job: Job, *, letters: tuple[str, ...] | None) -> MegatronSetup:
    """What a job sets; `letters` are its layout where it needs one."""
    degrees, model, form = job.degrees, job.model, job.recompute_form
    full, zero = form in (RecomputeForm.ALL, RecomputeForm.FIRST), job.demands.zero_stage
    chunks = len(job.stages) // degrees.pipeline
    method = "uniform" if form is RecomputeForm.ALL else "block"
    count = 1 if form is RecomputeForm.ALL else job.first_recomputed
    selective = form is RecomputeForm.MODULES
    connections = "1" if zero < 2 and degrees.tensor * degrees.context > 1 else None
    return MegatronSetup(
        layers=model.num_layers,
        hidden=model.hidden_size,
        heads=model.num_heads,
        kv_groups=model.num_kv_heads,
        head_size=model.head_size,
        sequence=job.sequence_length,
        world=degrees.num_devices,
        micro_batch=job.microbatch_size,
        global_batch=job.global_batch,
        tp=degrees.tensor,
        pp=degrees.pipeline,
        cp=degrees.context,
        ep=degrees.expert,
        etp=None if model.experts is None else degrees.expert_shards,
        sequence_parallel=degrees.sequence_parallel and degrees.tensor > 1,
        pipeline_inside=job.demands.axis_order == PIPELINE_INSIDE,
        virtual_stages=chunks if chunks > 1 and letters is None else None,
        layout=letters,
        group=degrees.pipeline if chunks > 1 else None,
        in_v=job.shape.placing is Placing.V,
        experts=None if model.experts is None else model.experts.num_experts,
        grouped_gemm=model.experts is not None,
        latent_attention=model.latent is not None,
        mtp_layers=model.num_mtp_layers,
        activation_offload=job.demands.offload_activations,
        offload_modules=job.demands.offload_modules,
        offload_share=(job.recipe.offload or NO_OFFLOAD).activations,
        cuda_graphs=job.recipe.cuda_graph is not CudaGraph.NONE,
        recurrent=model.is_recurrent,
        recompute="selective" if selective else ("full" if full else None),
        recompute_method=method if full else None,
        recompute_layers=count if full else None,
        megatron_fsdp=zero >= 2,
        distributed_optimizer=zero >= 1,
        tied_embeddings=model.tied_embeddings,
        fp16=job.precision == "fp16",
        ckpt_format="fsdp_dtensor" if zero >= 2 else "torch_dist",
        max_connections=connections,
        vocabulary=model.vocabulary_size,
        padded_vocabulary=padded_vocabulary(
            model.vocabulary_size, job.vocabulary_multiple, degrees.tensor
        ),
        vocabulary_multiple=job.vocabulary_multiple,
        optimizer=str(job.recipe.optimizer),
        main_weights=main_weights_of(job),
        moments=job.recipe.moment_dtypes,
    )


def main_weights_of(job: Job) -> str:
    """The format in which the optimizer keeps weights; those of a run in fp32 are its own."""
    stated = job.recipe.main_weight_dtype or "fp32"
    return "fp32" if stated == "none" and job.precision == "fp32" else stated


# Rules 11 to 15 of Megatron: how layers lie on stages, with a layout and without one
# -----------------------------------------------------------------------------------


def uneven_faults(s: MegatronSetup) -> Iterator[str]:
    """Rule 11: even stages, or outer stages with counts of their own and an even middle."""
    if s.layout is not None:
        return
    if s.first_layers is not None or s.last_layers is not None:
        yield from _middle_faults(s)
        return
    counted = s.layers + s.account_embedding + s.account_loss
    if counted % s.pp:
        nearest = nearest_multiples(counted, s.pp)
        yield f"{counted} layers over pp={s.pp}: use a layout, or {nearest} layers"
    elif counted // s.pp % s.chunks:
        each = counted // s.pp
        yield f"{each} layers of a rank over {s.chunks} virtual stages: use a layout"


def _middle_faults(s: MegatronSetup) -> Iterator[str]:
    ends = [count for count in (s.first_layers, s.last_layers) if count is not None]
    middle, left = s.pp - len(ends), s.layers - sum(ends)
    if min(ends) <= 0:
        yield "the counts of first and last stage must be > 0"
    elif bool(middle) != bool(left) or left < 0:
        yield f"{left} middle layers remain for {middle} middle stages"
    elif middle and left % middle:
        yield f"{left} middle layers over {middle} middle stages: use a layout"


def stage_count_faults(s: MegatronSetup) -> Iterator[str]:
    """Rule 12."""
    if s.layout is not None and len(s.layout) % s.pp:
        nearest = nearest_multiples(len(s.layout), s.pp)
        yield f"layout has {len(s.layout)} stages, pp={s.pp}; nearest: {nearest}"


def layout_faults(s: MegatronSetup) -> Iterator[str]:
    """Rule 13."""
    if s.layout is None:
        return
    letters = "".join(s.layout)
    if not letters.startswith("E") or letters.count("E") != 1:
        yield "layout must start with E, and hold it once"
    if not letters.endswith("L") or letters.count("L") != 1:
        yield "layout must end with L, and hold it once"
    if letters.count("t") != s.layers:
        yield f"layout holds {letters.count('t')} decoder layers, model has {s.layers}"


def mtp_faults(s: MegatronSetup) -> Iterator[str]:
    """Rule 14."""
    if s.layout is None:
        return
    letters = "".join(s.layout)
    if letters.count("m") != s.mtp_layers:
        yield f"layout holds {letters.count('m')} MTP layers, model has {s.mtp_layers}"
    holders = [number for number, stage in enumerate(s.layout) if "m" in stage]
    if not holders:
        return
    if len(holders) > 1:
        yield f"MTP layers must lie together, got stages {', '.join(map(str, holders))}"
    if "t" in letters[letters.index("m") :]:
        yield "MTP layers must follow every decoder layer"
    first_of_last_chunk = len(s.layout) - s.pp
    if holders[0] < first_of_last_chunk:
        yield "MTP must sit in the last chunk of its rank"


def flag_conflicts(s: MegatronSetup) -> Iterator[str]:
    """Rule 15."""
    if s.layout is None:
        return
    others = {
        "counts of the first or last stage": (s.first_layers, s.last_layers) != (None, None),
        "accounting for embedding or loss": s.account_embedding or s.account_loss,
        "--num-virtual-stages-per-pipeline-rank": s.virtual_stages is not None,
    }
    for what, is_there in others.items():
        if is_there:
            yield f"layout and {what} are exclusive"


# When Megatron can run a configuration: every rule, checked together, with its numbers
# -------------------------------------------------------------------------------------


class Where(StrEnum):
    """What in Megatron notices a broken rule."""

    CONFIG = "TransformerConfig"
    ARGUMENTS = "validate_args"
    RUN = "at run time"
    NOBODY = "nobody"


MODULES: Final = (
    *("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronRule:
    """One rule: the setting it is about, who in Megatron checks it, and the check itself."""

    number: int
    setting: str
    title: str
    where: tuple[Where, ...]
    check: Callable[[MegatronSetup], Iterator[str]]


def broken_megatron_rules(setup: MegatronSetup) -> tuple[Fault, ...]:
    """Every rule that the setup breaks, in order; each fault names the setting and the numbers."""
    return tuple(
        Fault(rule.setting, f"{problem} (rule {rule.number})")
        for rule in MEGATRON_RULES
        for problem in rule.check(setup)
    )


def _world(s: MegatronSetup) -> Iterator[str]:
    group = s.tp * s.pp * s.cp
    if s.world % group:
        nearest = nearest_multiples(s.world, group)
        yield f"world {s.world} is not a multiple of tp*pp*cp = {group}; nearest: {nearest}"


def _expert_grid(s: MegatronSetup) -> Iterator[str]:
    grid = (s.etp or s.tp) * s.ep * s.pp
    if s.experts is not None and s.world % grid:
        yield f"expert grid etp*ep*pp = {grid} does not divide world {s.world}"


def _heads(s: MegatronSetup) -> Iterator[str]:
    if s.heads % s.tp:
        legal = " ".join(map(str, divisors_of(s.heads)))
        yield f"{s.heads} heads cannot be split over tp={s.tp}; legal tp: {legal}"


def _groups(s: MegatronSetup) -> Iterator[str]:
    if s.kv_groups % s.tp and s.tp % s.kv_groups:
        yield f"{s.kv_groups} KV groups and tp={s.tp}: neither divides the other"


def _context(s: MegatronSetup) -> Iterator[str]:
    if s.cp > 1 and s.sequence % (2 * s.cp):
        nearest = nearest_multiples(s.sequence, 2 * s.cp)
        yield f"seq {s.sequence} is not a multiple of 2*cp = {2 * s.cp}; nearest: {nearest}"


def _cut_sequence(s: MegatronSetup) -> Iterator[str]:
    parts = s.tp * s.cp
    if s.sequence_parallel and s.sequence % parts:
        both = math.lcm(parts, 2 * s.cp if s.cp > 1 else 1)
        nearest = nearest_multiples(s.sequence, both)
        wrong = f"seq {s.sequence} is not a multiple of tp*cp = {parts}"
        yield f"{wrong}; activations would be cut; nearest: {nearest}"


def _sequence_parallel(s: MegatronSetup) -> Iterator[str]:
    if s.sequence_parallel and s.tp == 1:
        yield "sequence parallel has no meaning at tp=1"


def _expert_training(s: MegatronSetup) -> Iterator[str]:
    if s.ep > 1 and s.tp > 1 and not s.sequence_parallel:
        yield f"ep={s.ep} with tp={s.tp} trains only with sequence parallel on"


def _experts(s: MegatronSetup) -> Iterator[str]:
    if s.ep == 1:
        return
    if s.experts is None:
        yield f"ep={s.ep} needs a model with experts"
    elif s.experts % s.ep:
        legal = " ".join(map(str, divisors_of(s.experts)))
        yield f"{s.experts} experts cannot be split over ep={s.ep}; legal ep: {legal}"


def _batch(s: MegatronSetup) -> Iterator[str]:
    unit = s.micro_batch * s.data
    if s.global_batch % unit or s.global_batch < unit:
        nearest = nearest_multiples(s.global_batch, unit)
        yield (
            f"global batch {s.global_batch} is not a multiple of mbs*dp = {unit}; "
            f"nearest: {nearest}"
        )


def _interleaving(s: MegatronSetup) -> Iterator[str]:
    if s.chunks > 1 and s.pp == 1:
        yield "interleaving needs pp > 1"
    elif s.chunks > 1 and s.pp <= 2 and not s.p2p_overlap:
        yield f"interleaving at pp={s.pp} needs overlapped p2p communication, or pp > 2"


def _groups_of_microbatches(s: MegatronSetup) -> Iterator[str]:
    if s.chunks == 1 or s.pp == 1 or s.in_v:
        return
    m, group = s.microbatches, s.group or s.pp
    if not s.pp <= group <= m:
        yield f"group {group} is not from pp={s.pp} to m={m}"
    elif m % group and m % group < s.pp:
        lower, upper = m - m % group, m - m % group + group
        wrong = f"m={m} leaves a last group of {m % group} < pp={s.pp}"
        yield f"{wrong}; use m={lower} or {upper}"


def _full_recompute(s: MegatronSetup) -> Iterator[str]:
    if s.recompute not in (None, "full", "selective"):
        yield f"recompute is full or selective, got {s.recompute}"
    if s.recompute != "full":
        return
    if s.recompute_method not in ("block", "uniform"):
        yield f"full recompute needs method block or uniform, got {s.recompute_method}"
    most = s.most_layers_of_a_stage
    if s.recompute_layers is None or s.recompute_layers < 1:
        yield f"full recompute needs a count from 1 to {most}, got {s.recompute_layers}"
    elif s.recompute_layers > most:
        yield f"recompute count {s.recompute_layers} > {most} layers in the largest stage"


def _selective_recompute(s: MegatronSetup) -> Iterator[str]:
    if s.recompute != "selective":
        return
    if s.recompute_method is not None or s.recompute_layers is not None:
        yield "selective recompute takes neither a method nor a count"
    unknown = [name for name in s.recompute_modules if name not in MODULES]
    if unknown:
        yield f"recompute modules are {' '.join(MODULES)}, got {' '.join(unknown)}"


def _module_needs(s: MegatronSetup) -> Iterator[str]:
    if s.recompute != "selective":
        return
    if "moe_act" in s.recompute_modules and not s.grouped_gemm:
        yield "moe_act needs grouped GEMM"
    if "mla_up_proj" in s.recompute_modules and not s.latent_attention:
        yield "mla_up_proj needs multi-latent attention"
    if "shared_experts" in s.recompute_modules and s.shared_overlap:
        yield "shared_experts excludes the overlap of shared experts"


def _offload(s: MegatronSetup) -> Iterator[str]:
    yield from _offloaded_modules(s)
    if not s.activation_offload:
        return
    if s.pp > 1:
        yield f"offloading activations excludes a pipeline, got pp={s.pp}"
    if s.recompute is not None:
        yield f"offloading activations excludes recompute, got {s.recompute}"
    if s.cuda_graphs:
        yield "offloading activations excludes CUDA graphs"
    if s.offload_modules:
        yield "offloading modules excludes the offloading of whole layers"


def _offloaded_modules(s: MegatronSetup) -> Iterator[str]:
    if not s.offload_modules:
        return
    if s.offload_share != 1:
        yield (
            f"core 0.16 moves all that modules keep, got a share of {s.offload_share:g}: name fewer"
            " modules, or take 0.19 and add --activation-offload-fraction, of groups and not bytes"
        )
    if s.recompute == "full":
        yield "offloading modules is known beside selective recompute alone, got full"
    if s.cuda_graphs:
        yield "offloading modules excludes CUDA graphs before core 0.19"
    if s.recurrent:
        yield "offloading modules is GPT's alone in core 0.16, got a model with recurrent layers"


def _dtype(s: MegatronSetup) -> Iterator[str]:
    if s.pp > 1 and not s.pipeline_dtype:
        yield f"pp={s.pp} needs pipeline_dtype in the configuration object"


def _torch_fsdp(s: MegatronSetup) -> Iterator[str]:
    if not s.torch_fsdp2:
        return
    excluded = {
        f"pp={s.pp}": s.pp > 1,
        f"ep={s.ep}": s.ep > 1,
        "the distributed optimizer": s.distributed_optimizer,
        "tied embeddings": s.tied_embeddings,
        "fp16": s.fp16,
    }
    for what, is_there in excluded.items():
        if is_there:
            yield f"Torch-FSDP2 excludes {what}"


def _connections(s: MegatronSetup) -> Iterator[str]:
    name, value = "CUDA_DEVICE_MAX_CONNECTIONS", s.max_connections
    if s.megatron_fsdp and s.ckpt_format != "fsdp_dtensor":
        yield f"Megatron-FSDP needs checkpoint format fsdp_dtensor, got {s.ckpt_format}"
    if s.megatron_fsdp and value == "1":
        yield f"Megatron-FSDP needs {name} unset or > 1, got 1"
    if not s.megatron_fsdp and s.tp * s.cp > 1 and not s.is_blackwell and value != "1":
        yield f"tp*cp = {s.tp * s.cp} wants {name}=1 before Blackwell, got {value or 'unset'}"


def _vocabulary(s: MegatronSetup) -> Iterator[str]:
    if s.vocabulary is None or s.padded_vocabulary is None:
        return
    wanted = padded_vocabulary(s.vocabulary, s.vocabulary_multiple, s.tp)
    if s.padded_vocabulary != wanted:
        yield (
            f"vocabulary {s.vocabulary} is padded to a multiple of {s.vocabulary_multiple}*tp = "
            f"{s.vocabulary_multiple * s.tp}, {wanted}; planned with {s.padded_vocabulary}"
        )


def _hidden(s: MegatronSetup) -> Iterator[str]:
    if s.head_size is None and s.hidden % s.heads:
        nearest = nearest_multiples(s.hidden, s.heads)
        yield f"hidden {s.hidden} is not a multiple of {s.heads} heads; nearest: {nearest}"


def _empty(s: MegatronSetup) -> Iterator[str]:
    for number, stage in enumerate(s.layout or ()):
        if not stage:
            yield f"stage {number} is empty; merge it"


def _optimizer(s: MegatronSetup) -> Iterator[str]:
    if s.optimizer == "muon" and (s.distributed_optimizer or s.megatron_fsdp):
        yield "muon excludes the distributed optimizer and FSDP; choose ZeRO 0"


def _low_precision_state(s: MegatronSetup) -> Iterator[str]:
    if {s.main_weights, *s.moments} == {"fp32"}:
        return
    if not s.distributed_optimizer:
        yield "optimizer state below 32 bits needs the distributed optimizer; choose ZeRO 1"
    if s.optimizer != "adam":
        yield f"optimizer state below 32 bits is Adam's alone, got {s.optimizer}"
    if s.main_weights not in ("fp32", "fp16"):
        yield f"the optimizer's weights are fp32 or fp16, got {s.main_weights}"
    for dtype in sorted({*s.moments} - {"fp32", "fp16", "bf16", "fp8"}):
        yield f"the optimizer's moments are fp32, fp16, bf16 or fp8, got {dtype}"


def _mapping(s: MegatronSetup) -> Iterator[str]:
    inside, spanned = s.tp * s.cp, s.ep * (s.etp or s.tp)
    if s.pipeline_inside and s.pp > 1 and spanned != inside:
        yield (
            f"with the pipeline inside data parallelism, etp*ep = {spanned} must be "
            f"tp*cp = {inside}"
        )


def _rule(
    number: int,
    setting: str,
    title: str,
    check: Callable[[MegatronSetup], Iterator[str]],
    *where: Where,
) -> MegatronRule:
    return MegatronRule(number=number, setting=setting, title=title, where=where, check=check)


_TC, _VA, _RT, _NONE = Where.CONFIG, Where.ARGUMENTS, Where.RUN, Where.NOBODY
MEGATRON_RULES: Final = (
    _rule(1, "world", "devices are a multiple of tp*pp*cp", _world, _VA),
    _rule(2, "ep", "the expert grid etp*ep*pp divides the devices", _expert_grid, _RT),
    _rule(3, "tp", "tp divides the heads", _heads, _TC),
    _rule(4, "tp", "tp divides the KV groups, or they divide it", _groups, _TC),
    _rule(5, "cp", "the sequence is a multiple of 2*cp", _context, _VA),
    _rule(6, "sequence_parallel", "the sequence is a multiple of tp*cp", _cut_sequence, _NONE),
    _rule(7, "sequence_parallel", "sequence parallel needs tp > 1", _sequence_parallel, _TC),
    _rule(8, "ep", "experts and tp train with sequence parallel", _expert_training, _RT),
    _rule(9, "ep", "ep divides the experts", _experts, _VA, _RT),
    _rule(10, "global_batch", "the batch is a multiple of mbs*dp", _batch, _VA),
    _rule(11, "layers", "without a layout, layers divide over the stages", uneven_faults, _VA),
    _rule(12, "layout", "a layout has a multiple of pp stages", stage_count_faults, _TC, _VA),
    _rule(13, "layout", "a layout starts with E, ends with L, holds all t", layout_faults, _TC),
    _rule(14, "layout", "MTP layers lie together in the last chunk of a rank", mtp_faults, _TC),
    _rule(15, "layout", "a layout excludes other ways to split", flag_conflicts, _TC, _VA),
    _rule(16, "layout", "no stage is empty", _empty, _NONE),
    _rule(17, "virtual_stages", "interleaving needs pp > 1", _interleaving, _VA),
    _rule(18, "group", "groups of microbatches fill the pipeline", _groups_of_microbatches, _RT),
    _rule(19, "recompute", "full recompute has method and count", _full_recompute, _TC),
    _rule(20, "recompute", "selective recompute has known modules", _selective_recompute, _TC, _VA),
    _rule(21, "recompute_modules", "modules have what they need", _module_needs, _TC),
    _rule(22, "offload", "offloaded activations stand alone", _offload, _TC),
    _rule(23, "pipeline_dtype", "a pipeline has a dtype", _dtype, _TC),
    _rule(24, "torch_fsdp2", "Torch-FSDP2 stands alone", _torch_fsdp, _VA),
    _rule(25, "environment", "FSDP has its format and variable", _connections, _VA),
    _rule(26, "vocabulary", "the planned vocabulary is the padded one", _vocabulary, _NONE),
    _rule(27, "hidden", "heads divide the hidden size", _hidden, _VA),
    _rule(28, "optimizer", "Muon shards nothing", _optimizer, _VA),
    _rule(29, "axis_order", "tp-pp-dp has experts on all of tp*cp", _mapping, _RT),
    _rule(30, "moment_dtypes", "Adam shards what it keeps in 16 bits", _low_precision_state, _RT),
)
