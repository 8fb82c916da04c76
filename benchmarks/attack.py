"""Look for a plan that is better than what the planner calls best, or below its bound.

Random small models, clusters of two to sixteen devices and requests, every third of them one layout
of a loop whose replicas have a slow network; for each a plan, then random configurations and hill
climbing over everything that `estimate` can say: degrees, microbatch, ZeRO and its copies, mapping,
recomputation, family, chunks, blocks of every stage. A configuration that the request admits, that
fits and is faster than the printed bound, is a find; so is any that fits where nothing should.
Nothing of the planner is used but its answer, and only the public functions.

    python benchmarks/attack.py --seed 1 --questions 100 --seconds 10

`--rooms N` attacks as many machine rooms beside: random models, ranges, axes and budgets; systems
drawn at random and a few values from the best are priced in full, by the checker of certificates,
and one below the bound, or that no point of the front covers, is a find.

    python benchmarks/attack.py --seed 1 --questions 0 --rooms 20 --systems 500

`--pools N` asks as many questions of clusters of two or three unlike pools: pipelines from pool to
pool, beside each other, or in one pool alone, as the planner says that it considers.

    python benchmarks/attack.py --seed 1 --questions 0 --pools 20

`--frameworks N` asks as many questions of what a framework runs, one that is named or the one that
the answer names: a configuration counts if that framework's files can be written for it.

    python benchmarks/attack.py --seed 1 --questions 0 --frameworks 20

The exit code is 1 where there is a find; each is printed with what repeats it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import trainwright
from trainwright.chips.room_answer import recheck
from trainwright.commands.codesign import machine_room
from trainwright.errors import CheckFailed
from trainwright.execution import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Configuration = dict[str, Any]

About = Literal["all", "pools", "frameworks"]

ONE_STAGE = ("1f1b", "eager-1f1b", "gpipe", "zb-h1", "zb-h2", "vocab-1", "vocab-2")
LOOPS = ("interleaved", "depth-first", "breadth-first")
IN_V = ("zb-v", "v-half", "v-min", "v-fit", "adaptive-v")
LOOPS_SHARE = 1 / 3  # of the questions are of one layout each
LOOP_DEVICES = 4  # at the least: two ranks with two replicas
FAMILIES = (*ONE_STAGE, *LOOPS, *IN_V)
ASKED = ("stp",)  # nothing is said of these unless they are named
EVEN = ((2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (8, 1), (8, 2))
ODD = ((3, 1), (1, 3), (6, 1), (3, 2), (2, 3), (4, 3), (6, 2), (12, 1))  # groups straddle nodes
SHAPES = EVEN + ODD  # devices of a node, nodes
BELOW = 1 - 1e-9  # a bound that rounds
NEIGHBOURS = 24  # of a configuration that are looked at
STARTS = 20  # at most, for each try
UNNAMED = ""
NAMED = ("megatron", "megatron", "primus", "torchtitan", "pytorch", "deepspeed", "accelerate")
FRAMEWORKS = (*NAMED, UNNAMED, UNNAMED, UNNAMED)
USED_UNNAMED = ("megatron", "automodel", "trl", "torchtitan@0.3", "pytorch")  # by its documents
KEPT_GIB = 1.5  # beside the model
USUAL = ("1f1b", "1f1b", "interleaved")  # what most frameworks run


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model, and what is asked of its plan; `only` is what a configuration must obey."""

    model: str
    num_blocks: int
    num_experts: int
    devices: int
    batch: int
    request: dict[str, Any]
    only: dict[str, tuple[Any, ...]]
    pools: tuple[int, ...] = ()  # devices of each, where there are several
    framework: str = "any"


@dataclass(slots=True)
class Report:
    """What an attack found, and how much it tried."""

    questions: int = 0
    configurations: int = 0
    finds: list[str] = field(default_factory=list)
    was_stopped: bool = False

    def add(self, other: Report) -> None:
        """Count what another found, too."""
        self.questions += other.questions
        self.configurations += other.configurations
        self.finds += other.finds
        self.was_stopped |= other.was_stopped


def attack(
    seed: int,
    *,
    questions: int,
    first: int = 0,
    tries: int | None = None,
    seconds: float = 5,
    most_devices: int = 16,
    about: About = "all",
    tell: Callable[[str], None] = lambda find: None,
) -> Report:
    """Ask so many questions from the `first` on, and try so many configurations or for so long.

    They are about all plans of a cluster, about unlike pools, or about what a framework runs. Each
    find is told as it is made. An interruption ends it, with what was counted until then.
    """
    report = Report()
    climb = ClimbPools if about == "pools" else Climb
    report.was_stopped = True
    with suppress(KeyboardInterrupt), tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + questions):
            rng = random.Random(f"{seed}-{number}")  # however long others were tried
            if about == "pools":
                draw = drawn_pools
            elif about == "frameworks":
                draw = drawn_by_name
            else:
                is_loop = most_devices >= LOOP_DEVICES and rng.random() < LOOPS_SHARE
                draw = drawn_loop if is_loop else drawn
            question = draw(rng, Path(folder), number, most_devices)
            try:
                plan = planned(question)
            except (trainwright.InvalidInput, trainwright.UnsupportedFeature):
                continue  # the request leaves nothing to choose
            report.questions += 1
            if question.framework == UNNAMED:
                question = replace(question, framework=launcher(plan, rng))
            where = f"seed {seed}, question {number} of {about}: {question.framework}, "
            where += f"{question.request} {question.only}"
            found = climb(question, rng, tries=tries, seconds=seconds).run()
            report.configurations += found.tried
            for fault in refuted(plan, found):
                report.finds.append(f"{where}: {fault}")
                tell(report.finds[-1])
        report.was_stopped = False
    return report


def refuted(plan: Any, found: Climb) -> Iterator[str]:
    """What the best configuration, or the answer itself, says against the answer."""
    if plan.step_time_s is None:
        if str(plan.status) == "infeasible" and math.isfinite(found.best_s):
            yield f"{found.best} fits, but the answer is infeasible"
        return
    bound_s = plan.lower_bound_s
    if not 0 <= bound_s <= plan.step_time_s:
        yield f"a bound of {bound_s} beside a step of {plan.step_time_s}"
    if abs(plan.gap - (1 - bound_s / plan.step_time_s)) > 1e-9:
        yield f"a gap of {plan.gap} does not follow from bound and step"
    if (str(plan.status) == "optimal") != (plan.gap <= 1e-9):
        yield f"{plan.status} at a gap of {plan.gap}"
    if found.best_s < bound_s * BELOW:
        yield f"{found.best} takes {found.best_s}, below the bound {bound_s} ({plan.status})"
    one_stage_s = plan.lower_bound_one_stage_s
    if one_stage_s is not None and found.best_of_chain_s < one_stage_s * BELOW:
        yield f"{found.best_of_chain_s} on one stage per rank, below the bound {one_stage_s}"


def planned(question: Question) -> Any:
    """The free space, whatever frameworks can run, or that of one that is named."""
    only = {name: ",".join(map(str, values)) for name, values in question.only.items()}
    if "micro_batch" in only:
        values = question.only["micro_batch"]
        only["micro_batch"] = f"{values[0]}..{values[-1]}"
    asked = {**question.request, **only}
    if question.framework != UNNAMED:
        asked["framework"] = question.framework
    return trainwright.plan(question.model, **asked).document


def launcher(plan: Any, rng: random.Random) -> str:
    """Whose plan it is; where nothing fits, one of those that were asked."""
    if plan.step_time_s is None:
        return rng.choice(USED_UNNAMED)
    found: str | None = plan.request.space.framework
    return found or "any"


def drawn(rng: random.Random, folder: Path, number: int, most_devices: int) -> Question:
    """A small model on a small cluster."""
    hidden, num_blocks = rng.choice((256, 512, 768, 1024, 1536, 2048)), rng.randint(2, 20)
    experts = rng.choice((0, 0, 0, 4, 8))
    config = {
        "model_type": "mixtral" if experts else "llama",
        "hidden_size": hidden,
        "intermediate_size": rng.choice((2, 4)) * hidden,
        "num_hidden_layers": num_blocks,
        "num_attention_heads": max(2, hidden // 64),
        "num_key_value_heads": max(2, hidden // 64),
        "vocab_size": rng.choice((8000, 32000, 128000, 256000)),
        "max_position_embeddings": 8192,
        "tie_word_embeddings": rng.random() < 0.2,
    }
    if experts:
        config |= {"num_local_experts": experts, "num_experts_per_tok": 2}
    if experts and rng.random() < 0.6:
        dense = range(rng.randint(0, num_blocks - 1)) if rng.random() < 0.7 else ()
        config |= {
            "model_type": "qwen3_moe",
            "num_experts": experts,
            "moe_intermediate_size": config["intermediate_size"],
            "head_dim": 64,
            "decoder_sparse_step": 1 if dense else 2,
            "mlp_only_layers": list(dense),
        }
    model = folder / f"model{number}.json"
    model.write_text(json.dumps(config))
    inner, outer = rng.choice([shape for shape in SHAPES if math.prod(shape) <= most_devices])
    cluster = folder / f"cluster{number}.toml"
    cluster.write_text(_cluster(rng, inner, outer))
    batch = rng.choice((2, 4, 6, 8, 12, 16, 24, 30, 48, 60))
    request: dict[str, Any] = {
        "cluster": str(cluster),
        "devices": inner * outer,
        "global_batch": batch,
        "sequence": rng.choice((512, 768, 1024, 1536, 2048, 3072, 4096)),
    }
    if rng.random() < 0.5:
        request["memory"] = rng.choice(("1GiB", "2GiB", "4GiB", "8GiB", "16GiB"))
    only: dict[str, tuple[Any, ...]] = {}
    if rng.random() < 0.2:
        only["schedule"] = tuple(rng.sample((*FAMILIES, *ASKED), rng.randint(1, 3)))
    if rng.random() < 0.15:
        only["zero"] = tuple(sorted(rng.sample(range(4), rng.randint(1, 2))))
    if rng.random() < 0.15:
        least = rng.choice(divisors(batch))
        only["micro_batch"] = tuple(range(least, least + rng.randint(1, 6)))
    if not experts and rng.random() < 0.25:
        request["images"] = rng.randint(0, 2)
        model.write_text(json.dumps(_with_encoder(rng, config)))
    return Question(
        model=str(model),
        num_blocks=num_blocks,
        num_experts=experts,
        devices=inner * outer,
        batch=batch,
        request=request,
        only=only,
    )


def drawn_loop(rng: random.Random, folder: Path, number: int, most_devices: int) -> Question:
    """One layout of a loop, so that what the bound says of all its splits is seen.

    Where any layout may run, one far from the best may have any bound below the best step.
    """
    drawn_as = drawn(rng, folder, number, most_devices)
    ranks, replicas = rng.choice(
        [(p, d) for p in (2, 3, 4) for d in (2, 3, 4, 8) if p * d <= most_devices]
    )
    chunks, devices = rng.randint(2, 4), ranks * replicas
    config = json.loads(Path(drawn_as.model).read_text())
    text = config.get("text_config", config)
    text["num_hidden_layers"] = num_blocks = ranks * chunks + rng.randint(0, 6)
    if "mlp_only_layers" in text:
        text["mlp_only_layers"] = list(range(rng.randint(0, 3)))
    Path(drawn_as.model).write_text(json.dumps(config))
    inner = rng.choice([each for each in divisors(devices) if each in {1, 2, 4, ranks}])
    Path(drawn_as.request["cluster"]).write_text(_cluster(rng, inner, devices // inner))
    batch = replicas * ranks * rng.choice((1, 1, 2, 3))
    request = drawn_as.request | {"devices": devices, "global_batch": batch}
    request["sequence"] = rng.choice((512, 1024) if "images" in request else (256, 512, 1024))
    return Question(
        model=drawn_as.model,
        num_blocks=num_blocks,
        num_experts=drawn_as.num_experts,
        devices=devices,
        batch=batch,
        request=request,
        only={
            "schedule": (rng.choice(LOOPS),),
            "virtual_stages": (chunks,),
            "zero": (rng.randint(0, 3),),
            "micro_batch": (1,),
            "pp": (ranks,),
            "dp": (replicas,),
            "tp": (1,),
            "cp": (1,),
            "state_copies": (1,),  # by default a plan has one, or as many as fill nodes
        },
    )


def drawn_by_name(rng: random.Random, folder: Path, number: int, most_devices: int) -> Question:
    """A small model for a framework, where little memory asks for recomputation."""
    drawn_as = drawn(rng, folder, number, most_devices)
    while "images" in drawn_as.request:  # most runs of such are refused
        drawn_as = drawn(rng, folder, number, most_devices)
    framework = rng.choice(FRAMEWORKS)
    request = drawn_as.request | ({"software": framework} if framework != UNNAMED else {})
    request["memory"] = f"{_between(rng, drawn_as, request):.2f}GiB"
    only = {name: own for name, own in drawn_as.only.items() if name == "zero"}
    if rng.random() < 1 / 2:
        only["tp"] = (1,)
    if rng.random() < 1 / 3:
        only["pp"] = (rng.choice([p for p in (1, 2, 4) if drawn_as.devices % p == 0]),)
    only["state_copies"] = (1,)
    if rng.random() < 2 / 3:
        only["cp"] = (1,)
        if drawn_as.num_experts:
            only["ep"] = (1,)
    return replace(drawn_as, request=request, only=only, framework=framework)


def _between(rng: random.Random, question: Question, request: dict[str, Any]) -> float:
    """GiB between what one layout needs that recomputes all blocks and one that recomputes none."""
    free = request | {"memory": "640GiB"}
    tensor = rng.choice([t for t in divisors(question.devices) if t <= 2])
    degrees = {"tp": tensor, "pp": 1, "dp": question.devices // tensor, "zero": rng.randint(0, 3)}
    needed = []
    for mode in ("full", "none"):
        try:
            found = trainwright.estimate(question.model, recompute=mode, **free, **degrees)
        except trainwright.InvalidInput:  # replicas that share no sequence
            return rng.choice((1, 2, 4, 8))
        needed.append(found.document.peak_memory_bytes / 2**30)
    return rng.uniform(*needed) * rng.choice((1.05, 1.2, 1.6)) + KEPT_GIB


def _with_encoder(rng: random.Random, text: dict[str, Any]) -> dict[str, Any]:
    """The model behind an encoder of images, which is sometimes as large as the text."""
    width = rng.choice((256, 512, 1024))
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": rng.randint(1, 12),
        "num_attention_heads": width // 64,
        "image_size": 224,
        "patch_size": 16,
    }
    return {"model_type": "llava", "text_config": text, "vision_config": vision}


def _cluster(rng: random.Random, inner: int, outer: int) -> str:
    levels = [("a", inner, rng.choice((4.5e11, 5e10)), 3e-6, 0.75)]
    if outer > 1:
        levels.append(("b", outer, rng.choice((1e9, 1.25e10, 5e10)), 1e-5, 0.8))
    lines = ['name = "c"', 'device_kind = "H100-80GB-SXM"']
    for name, size, rate, latency, efficiency in levels:
        lines += ["[[level]]", f'name = "{name}"', f"size = {size}", 'kind = "switch"']
        lines += [f"bandwidth_bytes_per_s = {rate}", f"latency_s = {latency}"]
        lines.append(f"efficiency = {efficiency}")
    return "\n".join(lines)


def divisors(number: int) -> list[int]:
    """In ascending order."""
    return [each for each in range(1, number + 1) if number % each == 0]


@dataclass(slots=True)
class Climb:
    """Random starts, each followed uphill."""

    question: Question
    rng: random.Random
    tries: int | None
    seconds: float
    tried: int = 0
    best_s: float = math.inf
    best: Configuration | None = None
    best_of_chain_s: float = math.inf
    _end_s: float = 0.0

    def run(self) -> Climb:
        """Until the tries, or the seconds where no tries are given, are at their end."""
        self._end_s = time.process_time() + self.seconds
        for begun in count():
            # Of some requests no start obeys, as where ranks and replicas leave parts of a batch.
            if self._is_over() or (self.tries is not None and begun >= STARTS * self.tries):
                break
            start = self._start()
            if start is not None:
                self._climb(start)
        return self

    def _is_over(self) -> bool:
        if self.tries is not None:
            return self.tried >= self.tries
        return time.process_time() >= self._end_s

    def _climb(self, here: Configuration) -> None:
        here_s, improved = self._step_s(here), True
        while improved and math.isfinite(here_s) and not self._is_over():
            improved = False
            for other in self._neighbours(here):
                other_s = self._step_s(other)
                if other_s < here_s:
                    here, here_s, improved = other, other_s, True
                    break

    def _step_s(self, how: Configuration) -> float:
        """Infinite where it is refused, does not fit, or the request rules it out."""
        self.tried += 1
        for name, values in self.question.only.items():
            if name == "schedule" and how["pp"] == 1:
                if not set(values) & set(ONE_STAGE):
                    return math.inf
            elif how.get(name, 1 if name == "state_copies" else "1f1b") not in values:
                return math.inf
        try:
            got = trainwright.estimate(self.question.model, **self.question.request, **how).document
        except (trainwright.InvalidInput, trainwright.UnsupportedFeature):
            return math.inf
        if not got.fits or not self._is_run(got):
            return math.inf
        step_s: float = got.step_time_s
        if step_s < self.best_s:
            self.best_s, self.best = step_s, how
        if "virtual_stages" not in how:
            self.best_of_chain_s = min(self.best_of_chain_s, step_s)
        return step_s

    def _is_run(self, got: Any) -> bool:
        """Whether the framework that was named, if any, runs it."""
        if self.question.framework == "any":
            return True
        try:
            trainwright.export(got, self.question.framework)
        except (trainwright.Inexpressible, trainwright.InvalidInput):
            return False
        return True

    def _start(self) -> Configuration | None:
        rng, asked = self.rng, self.question
        left = asked.devices
        degrees = {}
        for name in ("tp", "pp", "cp"):
            own = asked.only.get(name) or divisors(left) + [1] * (name == "cp") * 3
            degrees[name] = rng.choice(own)
            if left % degrees[name]:
                return None
            left //= degrees[name]
        if asked.batch % left:
            return None
        how: Configuration = {
            **degrees,
            "dp": left,
            "micro_batch": rng.choice(
                asked.only.get("micro_batch") or divisors(asked.batch // left)
            ),
            "zero": rng.choice(asked.only.get("zero") or range(4)),
            "recompute": rng.choice(("none", "none", "selective", "full")),
        }
        if asked.framework != "any" and rng.random() < 2 / 3:
            how["recompute"] = f"full:{rng.randint(1, asked.num_blocks)}"
        if asked.num_experts:
            how["ep"] = rng.choice(asked.only.get("ep") or divisors(asked.num_experts))
        if left > 1 and rng.random() < 0.1 and "state_copies" not in asked.only:
            how["state_copies"] = rng.choice(divisors(left)[:-1])
        if rng.random() < 0.2:
            how["mapping"] = "tp-cp-ep-pp-dp"
        return self._with_stages(how)

    def _with_stages(self, how: Configuration) -> Configuration | None:
        """A family with chunks and blocks for the depth of the configuration."""
        rng, count, depth = self.rng, self.question.num_blocks, how["pp"]
        for name in ("schedule", "virtual_stages", "blocks"):
            how.pop(name, None)
        if depth == 1:
            if set(self.question.only.get("schedule", FAMILIES)) & set(ONE_STAGE) == {"gpipe"}:
                how["schedule"] = "gpipe"  # holds all microbatches on one rank, too
            return how
        offered = FAMILIES if self.question.framework == "any" else USUAL
        how["schedule"] = family = rng.choice(self.question.only.get("schedule", offered))
        chunks = 1
        if family not in ONE_STAGE:
            most = 2 if family in (*IN_V, *ASKED) else max(2, min(10, count // depth))
            chunks = rng.choice(self.question.only.get("virtual_stages") or range(2, most + 1))
            how["virtual_stages"] = chunks
        stages = depth * chunks
        if count < stages:
            return None
        if rng.random() < 0.7:
            cuts = sorted(rng.sample(range(1, count), stages - 1))
            how["blocks"] = [b - a for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
        return how

    def _neighbours(self, how: Configuration) -> Iterator[Configuration]:
        rng = self.rng
        for _ in range(NEIGHBOURS):
            other, draw = dict(how), rng.random()
            if "blocks" in how and draw < 0.7:
                moved = _moved(rng, how["blocks"])
                if moved is None:
                    continue
                other["blocks"] = moved
            elif draw < 0.8:
                other["zero"] = rng.randint(0, 3)
            elif draw < 0.9:
                other["micro_batch"] = rng.choice(divisors(self.question.batch // how.get("dp", 1)))
            elif draw < 0.97:
                most = -(-self.question.num_blocks // how["pp"])
                again = ("none", "selective", "full", f"full:{rng.randint(1, most)}")
                other["recompute"] = rng.choice(again)
            else:
                changed = self._with_stages(other)
                if changed is None:
                    continue
            yield other


def _moved(rng: random.Random, blocks: list[int]) -> list[int] | None:
    """A block from one stage to another; only the first and the last may have none."""
    giver, taker = (rng.randrange(len(blocks)) for _ in range(2))
    least = 0 if giver in (0, len(blocks) - 1) else 1
    if giver == taker or blocks[giver] <= least:
        return None
    moved = list(blocks)
    moved[giver] -= 1
    moved[taker] += 1
    return moved


# Clusters of unlike pools
# ------------------------

KINDS = ("A100-80GB-SXM", "H100-80GB-SXM", "V100-SXM2-32GB")
POOL_SIZES = ((1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (4, 2), (1, 4), (3, 2), (1, 1, 2), (2, 2, 1))
BESIDE_SHARE = 0.4  # of configurations have pipelines beside each other
NAMED_SHARE = 0.15  # of the questions name one family


def drawn_pools(rng: random.Random, folder: Path, number: int, most_devices: int) -> Question:
    """A small model on a few pools, no two next to each other of one kind of device."""
    drawn_as = drawn(rng, folder, number, most_devices)
    sizes = rng.choice([each for each in POOL_SIZES if sum(each) <= most_devices])
    kinds = rng.sample(KINDS, len(sizes))
    lines = ['name = "c"']
    for kind, size in zip(kinds, sizes, strict=True):
        rate = rng.choice((4.5e11, 5e10))
        lines += ["[[pool]]", f'device_kind = "{kind}"', "[[pool.level]]", 'name = "a"']
        lines += [f"size = {size}", f"bandwidth_bytes_per_s = {rate}", "latency_s = 3e-6"]
    lines += ["[joint]", 'name = "b"', f"bandwidth_bytes_per_s = {rng.choice((1e9, 5e10))}"]
    Path(drawn_as.request["cluster"]).write_text("\n".join([*lines, "latency_s = 1e-5"]))
    request = {name: drawn_as.request[name] for name in ("cluster", "global_batch", "sequence")}
    request["memory"] = rng.choice(("2GiB", "4GiB", "8GiB", "30GiB"))
    only: dict[str, tuple[Any, ...]] = {"cp": (1,)}
    if drawn_as.num_experts:
        only["ep"] = (1,)
    if rng.random() < NAMED_SHARE:
        only["schedule"] = (rng.choice(FAMILIES),)
    return replace(drawn_as, request=request, only=only, devices=sum(sizes), pools=sizes)


class ClimbPools(Climb):
    """The same, where a configuration says in which pool each rank lies."""

    def _start(self) -> Configuration | None:
        rng, sizes = self.rng, self.question.pools
        how: Configuration = {
            "tp": rng.choice((1, 1, 1, 2)),
            "cp": 1,
            "recompute": rng.choice(("none", "none", "selective", "full")),
        }
        if self.question.num_experts:
            how["ep"] = 1
        micro = how["micro_batch"] = rng.choice(divisors(self.question.batch))
        count = self.question.batch // micro
        if rng.random() < BESIDE_SHARE:
            how["zero"] = rng.randint(0, 3)
            chains = self._beside(how, count)
            if chains is None:
                return None
            how["pool"] = chains
        else:
            data = rng.choice(divisors(count))
            rooms = [size // (how["tp"] * data) for size in sizes]
            able = [pool for pool, room in enumerate(rooms) if room]
            if not able:
                return None
            path = rng.sample(able, rng.randint(1, len(able)))
            ranks = [pool for pool in path for _ in range(rng.randint(1, rooms[pool]))]
            how |= {"pp": len(ranks), "dp": data, "zero": rng.randint(0, 3)}
            how["pool"] = ",".join(map(str, ranks))
        return self._with_stages(how)

    def _beside(self, how: Configuration, count: int) -> tuple[str, ...] | None:
        """Replicas of each pool and their microbatches, which are `count` in all."""
        rng, sizes = self.rng, self.question.pools
        depth = how["pp"] = rng.choice((1, 1, 2, 3, 4))
        chains, left = [], count
        rooms = {pool: size // (how["tp"] * depth) for pool, size in enumerate(sizes)}
        able = [pool for pool, room in rooms.items() if room]
        if len(able) < 2:
            return None
        replicas_in = {
            pool: rng.choice([each for each in (1, 2, 4, 8) if each <= rooms[pool]])
            for pool in able
        }
        alike, rest = divmod(count, sum(replicas_in.values()))
        if how["zero"] > 1 and (rest or not alike):
            return None
        for pool, replicas in replicas_in.items():
            if how["zero"] > 1:  # all at one pace
                each = alike
            elif pool == able[-1]:
                each, rest = divmod(left, replicas)
                if rest or not each:
                    return None
            else:
                each = rng.randint(1, max(1, left // replicas))
            left -= replicas * each
            if left < 0:
                return None
            chains.append(f"{replicas}x{each}:{','.join([str(pool)] * depth)}")
        return tuple(chains)

    def _neighbours(self, how: Configuration) -> Iterator[Configuration]:
        for other in super()._neighbours(how):
            is_beside = isinstance(other["pool"], tuple)
            if not is_beside or other["micro_batch"] == how["micro_batch"]:
                yield other


# Machine rooms
# -------------

_AXES = {
    "stacks": [1, 2, 3, 4, 6],
    "stack_gib": [1, 4, 8, 16, 24],
    "node_devices": [1, 2, 4, 8, 16],
    "node_gbytes_per_s": [25, 50, 100, 300, 900],
    "cards": [0.125, 0.25, 0.5, 1, 2],
    "oversubscription": [4, 2, 1],
}


def attack_rooms(
    seed: int, *, rooms: int, systems: int, tell: Callable[[str], object]
) -> tuple[int, int]:
    """How many systems were tried in so many rooms, and how many rooms have a find."""
    tried = finds = 0
    for number in range(rooms):
        rng = random.Random(f"{seed}-{number}")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "room.toml"
            devices = sorted(rng.sample([2, 4, 8, 16, 32], rng.randint(1, 3)))
            axes = {
                name: sorted(rng.sample(values, rng.randint(1, 3)))
                for name, values in _AXES.items()
            } | {"devices": devices}
            path.write_text("".join(f"{name} = {values}\n" for name, values in axes.items()))
            models = rng.sample(["gpt2", "bert-base", "bert-large", "gpt2-xl"], rng.randint(1, 2))
            options: dict[str, Any] = {
                "devices": devices[-1],
                "aim": rng.choice(["time", "cost", "energy"]),
                "global_batch": rng.choice([32, 64, 96]),
                "sequence": 256,
                "max_area": rng.choice([10.0, 20.0, 40.0]),
            }
            limit = rng.choice(["max_dollars", "max_watts", "max_silicon_mm2", None])
            if limit is not None:
                each = {"max_dollars": 12e3, "max_watts": 4e2, "max_silicon_mm2": 3e2}[limit]
                options[limit] = each * devices[-1] * rng.uniform(0.3, 1.0)
            found = machine_room(models, room=path, front=rng.choice([0.05, 0.2]), **options)
        if found.document.best is None:
            continue
        try:
            checked = recheck(found.document, sample=systems, seed=seed, budget=Budget())
        except CheckFailed as find:
            finds += 1
            tell(f"room {seed}-{number}, {models}, {options}, {axes}: {find}")
        else:
            assert checked.proof is not None
            tried += checked.proof.drawn + checked.proof.near + checked.proof.repriced
    return tried, finds


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10, help="CPU seconds for each question")
    parser.add_argument("--pools", type=int, default=0, help="questions of unlike pools")
    parser.add_argument("--frameworks", type=int, default=0, help="questions of a framework")
    parser.add_argument("--rooms", type=int, default=0, help="machine rooms")
    parser.add_argument("--systems", type=int, default=300, help="tries of a kind in each of them")
    given = parser.parse_args()
    counts = {"all": given.questions, "pools": given.pools, "frameworks": given.frameworks}
    reports: dict[About, Report] = {about: Report() for about in get_args(About)}
    for number in range(max(counts.values())):  # in turn, as it may be stopped at any time
        asked = [about for about in reports if number < counts[about]]
        for about in asked:
            one = attack(
                given.seed,
                questions=1,
                first=number,
                seconds=given.seconds,
                about=about,
                tell=lambda find: print(find, flush=True),
            )
            reports[about].add(one)
            if one.was_stopped:
                break
        if any(report.was_stopped for report in reports.values()):
            break
    for about, report in reports.items():
        if counts[about]:
            what = "questions" if about == "all" else f"questions of {about}"
            print(
                f"{report.questions} {what}, {report.configurations} configurations, "
                f"{len(report.finds)} finds"
            )
    finds = sum(len(report.finds) for report in reports.values())
    tried, found = attack_rooms(
        given.seed,
        rooms=given.rooms,
        systems=given.systems,
        tell=lambda find: print(find, flush=True),
    )
    if given.rooms:
        print(f"{given.rooms} rooms, {tried} systems, {found} finds")
    return bool(finds or found)


if __name__ == "__main__":
    sys.exit(main())
