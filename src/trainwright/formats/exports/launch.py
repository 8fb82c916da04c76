"""What surrounds the files of every target: header, scripts that start them, a page to read."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.plan.bundle import ExportBundle, Stamp
    from trainwright.plan.job import Job


class Launcher(StrEnum):
    """How the program is started on every node."""

    TORCHRUN = "torchrun"
    SLURM = "slurm"


def header(
    stamp: Stamp, target: str, version: str, not_represented: Iterable[str]
) -> tuple[str, ...]:
    """Lines for the top of a file, without comment signs."""
    lines = [
        f"written by trainwright {stamp.trainwright_version} from plan {stamp.short_hash}",
        f"for {target}, tested with {version}",
    ]
    lines += [f"not represented here: {part}" for part in not_represented]
    return tuple(lines)


def commented(lines: Iterable[str], *, sign: str = "#") -> str:
    """The lines as comments."""
    return "".join(f"{sign} {line}\n" for line in lines)


def launch_script(bundle: ExportBundle, job: Job, launcher: Launcher, stamp: Stamp) -> str:
    """A bash script for one node (torchrun) or a whole allocation (slurm)."""
    lines = commented(header(stamp, bundle.target, bundle.version, ()))
    exports = "".join(
        f"export {name}={shlex.quote(value)}\n" if value else f"unset {name}\n"
        for name, value in bundle.environment.items()
    )
    nodes, per_node = _nodes(job)
    run = f"""\
torchrun --nnodes "$NUM_NODES" --nproc-per-node {per_node} \\
  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\
  {" ".join(bundle.command)} "$@"
"""
    if launcher is Launcher.TORCHRUN:
        settings = f"""\
set -euo pipefail
cd "$(dirname "$0")"
NUM_NODES=${{NUM_NODES:-{nodes}}}
NODE_RANK=${{NODE_RANK:-0}}
MASTER_ADDR=${{MASTER_ADDR:-localhost}}
MASTER_PORT=${{MASTER_PORT:-29500}}
"""
        return f"#!/usr/bin/env bash\n{lines}{settings}{exports}{run}"
    wanted = f"""\
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={per_node}
"""
    settings = """\
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
export NUM_NODES=$SLURM_JOB_NUM_NODES
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=29500
"""
    quoted = run.rstrip().replace('"$NODE_RANK"', '"$SLURM_NODEID"')
    return (
        f"#!/usr/bin/env bash\n{wanted}{lines}{settings}{exports}"
        f"srun bash -c '{_inside(quoted)}' bash \"$@\"\n"
    )


def _inside(text: str) -> str:
    """Text for a script in single quotes."""
    return text.replace("'", "'\\''")


def _nodes(job: Job) -> tuple[int, int]:
    """Nodes and devices of each."""
    devices = job.degrees.num_devices
    per_node = min(devices, job.devices_per_node)
    return -(-devices // per_node), per_node


def readme(bundle: ExportBundle, job: Job, stamp: Stamp, script: str) -> str:
    """What the files are, how to start them, and what they do not say."""
    return "".join(f"{line}\n" for line in _readme_lines(bundle, job, stamp, script))


def _readme_lines(bundle: ExportBundle, job: Job, stamp: Stamp, script: str) -> Iterator[str]:
    degrees = job.degrees
    yield f"# {job.model_name} for {bundle.target}"
    yield ""
    yield (
        f"Written by trainwright {stamp.trainwright_version} from plan {stamp.short_hash}; "
        f"tested with {bundle.target} {bundle.version}."
    )
    yield ""
    yield (
        f"{degrees.num_devices} devices: tensor {degrees.tensor}, pipeline {degrees.pipeline}, "
        f"data {degrees.data}, context {degrees.context}, expert {degrees.expert}; ZeRO "
        f"{degrees.zero_stage}; {job.schedule}, {degrees.virtual_stages} stages per rank; "
        f"{job.num_microbatches} microbatches of {job.microbatch_size}."
    )
    yield from _section("Start", [f"`bash {script}` on every node; see its variables"])
    yield from _section("You must add", bundle.asked_of_user)
    yield from _section("What these files do not say", bundle.not_represented)
    yield from _section("Take care", bundle.warnings)


def _section(title: str, items: Iterable[str]) -> Iterator[str]:
    lines = [f"- {item}" for item in items]
    if lines:
        yield from ("", f"## {title}", "", *lines)
