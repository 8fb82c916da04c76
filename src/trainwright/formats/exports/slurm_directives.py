"""What a batch script asks of Slurm (`#SBATCH --nodes=16`), as the variables that Slurm sets.

Only sizes are read: nodes, tasks, and devices and tasks of a node. A range of nodes says no number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_DIRECTIVE: Final = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_OPTION: Final = re.compile(r"(--[\w-]+)(?:=(.*))?|(-[a-zA-Z])=?(.*)")
_SHORT: Final = {"-N": "--nodes", "-n": "--ntasks"}
_WHOLE: Final = re.compile(r"[0-9]{1,9}")
_DEVICES: Final = re.compile(r"(?:[^:(,]+:)?([0-9]{1,9})")  # 8 or h100:8
_RESOURCE: Final = re.compile(r"gpu(?::[^:(]+)?:([0-9]{1,9})(?:\(.*)?")  # also gpu:8(S:0-1)


def batch_variables(text: str) -> dict[str, str]:
    """The variables that follow from the script's directives; empty where it has none."""
    asked = {
        option: value
        for line in _DIRECTIVE.findall(text)
        for option, value in _options(line.partition(" #")[0].split())
    }
    nodes, each = (_whole(asked.get(name)) for name in ("--nodes", "--ntasks-per-node"))
    tasks = _whole(asked.get("--ntasks"))
    if tasks is None and nodes is not None and each is not None:
        tasks = nodes * each
    devices = _devices(asked)
    sizes = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_GPUS_ON_NODE": devices,
        "SLURM_GPUS_PER_NODE": devices,
        "SLURM_NTASKS_PER_NODE": each,
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
    }
    return {name: str(size) for name, size in sizes.items() if size is not None}


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Long names of the options of a line, each with its value, empty for a switch."""
    name = ""
    for word in words:
        found = _OPTION.fullmatch(word)
        if found is not None:
            name = found[1] or _SHORT.get(found[3], found[3])
            value = found[2] or found[4] or ""
            yield name, value
            name = "" if value else name
        elif name:
            yield name, word
            name = ""


def _whole(value: str | None) -> int | None:
    return int(value) if value is not None and _WHOLE.fullmatch(value) else None


def _devices(asked: dict[str, str]) -> int | None:
    """Devices of a node: what is asked of each, else those among its generic resources."""
    found = _DEVICES.fullmatch(asked.get("--gpus-per-node", ""))
    if found is not None:
        return int(found[1])
    resources = map(_RESOURCE.fullmatch, asked.get("--gres", "").split(","))
    counts = [int(each[1]) for each in resources if each is not None]
    return sum(counts) if counts else None
