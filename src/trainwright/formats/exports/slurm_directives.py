"""What a batch script asks of Slurm (`#SBATCH --nodes=16`), as the variables that Slurm sets.

Only sizes are read: nodes, devices and tasks of a node. A range of nodes says no number.
"""

from __future__ import annotations

import re
from typing import Final

_DIRECTIVE: Final = re.compile(r"^#SBATCH\s+(--?[\w-]+)(?:\s*=\s*|\s+)(\S+)", re.MULTILINE)
_LAST_COUNT: Final = re.compile(r"(?:^|:)(\d+)$")
_SIZES: Final = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--gpus-per-node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
    "--gres": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
}


def batch_variables(text: str) -> dict[str, str]:
    """The variables that follow from the script's directives; empty where it has none."""
    found: dict[str, str] = {}
    for option, value in _DIRECTIVE.findall(text):
        count = _LAST_COUNT.search(value)  # 8, gpu:8 or gpu:h100:8
        if count is not None:
            found.update(dict.fromkeys(_SIZES.get(option, ()), count[1]))
    nodes, tasks = found.get("SLURM_NNODES"), found.get("SLURM_NTASKS_PER_NODE")
    if nodes is not None and tasks is not None:
        found["SLURM_NTASKS"] = str(int(nodes) * int(tasks))
    return found
