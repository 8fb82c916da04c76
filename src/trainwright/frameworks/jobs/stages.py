"""A `stages.json`, which an export to PyTorch starts its own program on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs.settings import NOTHING, Beside, Settings, parse_settings
from trainwright.frameworks.pytorch import KIND
from trainwright.frameworks.stated_run import StatedRun

_MODES: Final = ("none", "selective", "full")


def read_stages(text: str, beside: Beside = NOTHING) -> StatedRun:
    """The run that a `stages.json` states; raises `InvalidInput` with every fault."""
    found = Settings(parse_settings(text, variables=beside.variables))
    if found.text("kind") != KIND:
        raise InvalidInput.of("kind", f'must be "{KIND}"')
    mesh = found.table("mesh")
    axes = {name: mesh.count(name) or 1 for name in ("tensor", "pipeline", "data", "context")}
    stages = tuple(_stages(found))
    size, steps = found.count("microbatch_size"), found.count("num_microbatches")
    if not stages or len(stages) % axes["pipeline"]:
        found.fault("stages", f"must be a multiple of {axes['pipeline']}, got {len(stages)}")
    found.check()
    again = [block for each in stages for block, mode in each if mode == "full"]
    modes = [[mode for _, mode in each] for each in stages]
    return StatedRun(
        tp=axes["tensor"],
        pp=axes["pipeline"],
        dp=axes["data"],
        cp=axes["context"],
        ep=found.count("expert"),
        etp=found.count("expert_tensor"),
        zero=found.count("zero_stage", least=0, most=3),
        state_copies=found.count("state_copies"),
        sequence_parallel=found.switch("sequence_parallel"),
        schedule=found.text("schedule"),
        virtual_stages=len(stages) // axes["pipeline"],
        blocks=tuple(map(len, stages)),
        recompute=_mode(modes),
        recompute_modules=found.texts("recompute_modules") or None,
        recomputed_blocks=tuple(again),
        micro_batch=size,
        global_batch=None if size is None or steps is None else size * steps * axes["data"],
        sequence=found.count("sequence_length"),
        precision=found.text("precision"),
        optimizer=found.text("optimizer"),
    )


def _stages(found: Settings) -> Iterator[list[tuple[int, str]]]:
    """The blocks of each stage, with what of them is recomputed."""
    listed = found.value("stages")
    for stage in listed if isinstance(listed, list) else ():
        layers = stage.get("layers") if isinstance(stage, dict) else None
        blocks = []
        for layer in layers if isinstance(layers, list) else ():
            if not isinstance(layer, dict) or layer.get("kind") != "block":
                continue
            block, mode = layer.get("block"), layer.get("recompute")
            if type(block) is not int or mode not in _MODES:
                found.fault("stages", "must hold blocks with their number and what is recomputed")
                return
            blocks.append((block, str(mode)))
        yield blocks


def _mode(modes: list[list[str]]) -> str | None:
    """All blocks alike, or the first ones of every stage; others are told one by one."""
    every = {mode for each in modes for mode in each} or {"none"}
    if len(every) == 1:
        return every.pop()
    first = max(each.count("full") for each in modes)
    is_first = all(
        each == ["full"] * min(first, len(each)) + ["none"] * (len(each) - first) for each in modes
    )
    return f"full:{first}" if is_first else None
