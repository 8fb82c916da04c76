"""What surrounds the files of every target: header, scripts that start them, a page to read."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from trainwright.cluster.calibration import TYPICAL, software_named
from trainwright.plans.plan import DATA_INSIDE, mapping_name
from trainwright.units import format_count

if TYPE_CHECKING:
    from trainwright.plans.job import ExportBundle, Job, Stamp

NODE_SCRIPT: Final = "launch.sh"
SLURM_SCRIPT: Final = "launch.slurm"
PIPELINE_CODE: Final = "pipeline.py"  # beside the JSON of DeepSpeed
PREDICTED_FOR: Final = "its time is predicted at the speed of software such as "
SETTINGS: Final = "its settings stand in "
_SETTINGS: Final = re.compile(rf"^# {SETTINGS}([\w.-]+)$", re.MULTILINE)
_PREDICTED_FOR: Final = re.compile(rf"^\W*{PREDICTED_FOR}([\w.@-]+)$", re.MULTILINE)


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
        f"for {target}, version {version}",
    ]
    if software_named(stamp.software).kind is not software_named(target).kind:
        lines.append(f"{PREDICTED_FOR}{stamp.software or TYPICAL.name}")
    lines += [f"not the plan asked for, but the nearest: {each}" for each in stamp.changes]
    lines += [f"not represented here: {part}" for part in (*stamp.unsaid, *not_represented)]
    return tuple(lines)


def predicted_for(text: str) -> str | None:
    """The software at whose speed one of our files was predicted, where that is not its target."""
    said = _PREDICTED_FOR.search(text, 0, _TOP)
    return None if said is None else said[1]


def settings_beside(text: str) -> str | None:
    """The file with the settings of one of our scripts whose command does not name it."""
    said = _SETTINGS.search(text, 0, _TOP)
    return None if said is None else said[1]


def commented(lines: Iterable[str], *, sign: str = "#") -> str:
    """The lines as comments."""
    return "".join(f"{sign} {line}\n" for line in lines)


def launch_scripts(
    bundle: ExportBundle, job: Job, launcher: Launcher, stamp: Stamp
) -> dict[str, str]:
    """Bash scripts by name: one for a node, and for slurm one that runs it on an allocation."""
    lines = header(stamp, bundle.target, bundle.version, ())
    lines += tuple(f"node {each}" for each in nodes_by_kind(job))
    if bundle.settings is not None:
        lines += (f"{SETTINGS}{bundle.settings}",)
    top = commented(lines)
    found = {NODE_SCRIPT: _node_script(bundle, job, top)}
    if launcher is Launcher.SLURM:
        found[SLURM_SCRIPT] = _slurm_script(job, top)
    return found


def _node_script(bundle: ExportBundle, job: Job, top: str) -> str:
    nodes, per_node = nodes_of(job)
    settings = "".join(
        f"export {name}={shlex.quote(value)}\n" if value else f"unset {name}\n"
        for name, value in bundle.environment.items()
    )
    setup = "".join(f"{line}\n" for line in bundle.setup)
    return f"""\
#!/usr/bin/env bash
{top}set -euo pipefail
cd "$(dirname "$0")"
{settings}{setup}\
{_START[bundle.starter].format(nodes=nodes, per_node=per_node, last=per_node - 1)} \\
  {" ".join(bundle.command)} "$@"
"""


_TOP: Final = 1_000  # characters that a header is looked for in
_START: Final = {
    "torchrun": """\
torchrun --nnodes "${{NUM_NODES:-{nodes}}}" --nproc-per-node {per_node} \\
  --node-rank "${{NODE_RANK:-${{SLURM_NODEID:-0}}}}" \\
  --master-addr "${{MASTER_ADDR:-localhost}}" --master-port "${{MASTER_PORT:-29500}}\"""",
    "accelerate": """\
accelerate launch --config_file accelerate.yaml \\
  --num_machines "${{NUM_NODES:-{nodes}}}" --machine_rank "${{NODE_RANK:-${{SLURM_NODEID:-0}}}}" \\
  --main_process_ip "${{MASTER_ADDR:-localhost}}" \\
  --main_process_port "${{MASTER_PORT:-29500}}\"""",
    # One process of a node drives its devices.
    "jax": """\
export CUDA_VISIBLE_DEVICES="$(seq -s , 0 {last})"
export NNODES="${{NUM_NODES:-{nodes}}}" NODE_RANK="${{NODE_RANK:-${{SLURM_NODEID:-0}}}}"
export JAX_COORDINATOR_IP="${{MASTER_ADDR:-localhost}}"
export JAX_COORDINATOR_PORT="${{MASTER_PORT:-29500}}"
python3""",
}


def _slurm_script(job: Job, top: str) -> str:
    nodes, per_node = nodes_of(job)
    return f"""\
#!/usr/bin/env bash
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={per_node}
{top}set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
NUM_NODES=$SLURM_JOB_NUM_NODES
export MASTER_ADDR NUM_NODES
srun bash {NODE_SCRIPT} "$@"
"""


def nodes_by_kind(job: Job) -> Iterator[str]:
    """Which nodes have which kind of device, where the cluster has several."""
    first = 0
    for kind, own in groupby(job.node_kinds):
        after = first + len(list(own))
        yield f"{first}{f' to {after - 1}' if after - first > 1 else ''}: {kind}"
        first = after


def nodes_of(job: Job) -> tuple[int, int]:
    """Nodes and devices of each: as many processes as the plan has devices, alike on all nodes."""
    devices = job.degrees.num_devices
    if job.node_kinds:
        return len(job.node_kinds), devices // len(job.node_kinds)
    most = min(devices, job.devices_per_node)
    per_node = next(each for each in range(most, 0, -1) if devices % each == 0)
    return devices // per_node, per_node


_IN_MARKDOWN = re.compile(r"[\\`*\[\]<>]")  # what a name must not say to whoever renders it


def readme(bundle: ExportBundle, job: Job, launcher: Launcher, stamp: Stamp) -> str:
    """What the files are, how to start them, and what they do not say."""
    return "".join(f"{line}\n" for line in _readme_lines(bundle, job, launcher, stamp))


def _readme_lines(
    bundle: ExportBundle, job: Job, launcher: Launcher, stamp: Stamp
) -> Iterator[str]:
    degrees = job.degrees
    name = _IN_MARKDOWN.sub(r"\\\g<0>", job.model_name)
    yield f"# {name} for {bundle.target}"
    yield ""
    yield (
        f"Written by trainwright {stamp.trainwright_version} from plan {stamp.short_hash}; "
        f"version of {bundle.target}: {bundle.version}."
    )
    yield ""
    copies = f" in {degrees.state_copies} copies" if degrees.state_copies > 1 else ""
    mapping = job.demands.axis_order or DATA_INSIDE
    order = "" if mapping == DATA_INSIDE else f"ranks in the order {mapping_name(mapping)}; "
    yield (
        f"{degrees.num_devices} devices: tensor {degrees.tensor}, pipeline {degrees.pipeline}, "
        f"data {degrees.data}, context {degrees.context}, expert {degrees.expert}; ZeRO "
        f"{degrees.zero_stage}{copies}; {order}{job.schedule}, "
        f"{format_count(degrees.virtual_stages, 'stage')} per rank; "
        f"{format_count(job.num_microbatches, 'microbatch')} of {job.microbatch_size}."
    )
    yield from _section("Nodes, by NODE_RANK", nodes_by_kind(job))
    here = f"`bash {NODE_SCRIPT}` on every node, with NODE_RANK and MASTER_ADDR set"
    start = here if launcher is Launcher.TORCHRUN else f"`sbatch {SLURM_SCRIPT}` in this folder"
    yield from _section("Start", [start])
    yield from _section("Not the plan asked for, but the nearest", stamp.changes)
    yield from _section("You must add", bundle.asked_of_user)
    yield from _section("What these files do not say", bundle.not_represented)
    yield from _section("Take care", bundle.warnings)


def _section(title: str, items: Iterable[str]) -> Iterator[str]:
    lines = [f"- {item}" for item in items]
    if lines:
        yield from ("", f"## {title}", "", *lines)


# YAML that is written here: mappings of plain values, as readable as by hand
# ---------------------------------------------------------------------------
# Whatever this writes, any YAML parser reads alike: texts that could mean something else are in
# quotes.

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def to_yaml(values: Mapping[str, Any]) -> str:
    """The text of a mapping; keys keep their order."""
    return "".join(f"{line}\n" for line in _lines(values, ""))


def _lines(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:" if value else f"{indent}{key}: {{}}"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
