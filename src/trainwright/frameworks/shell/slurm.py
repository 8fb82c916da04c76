"""What a batch script asks of Slurm: its `#SBATCH` lines, as data and as variables of the job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_DIRECTIVE: Final = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_OPTION: Final = re.compile(r"(--[\w-]+)(?:=(.*))?|-([a-zA-Z])=?(.*)", re.DOTALL)
_LONG: Final = {
    "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "J": "job-name", "p": "partition",
    "A": "account", "q": "qos", "t": "time", "C": "constraint", "G": "gpus", "o": "output",
    "e": "error", "w": "nodelist", "x": "exclude", "a": "array", "D": "chdir", "L": "licenses",
    "d": "dependency",
}  # fmt: skip
_SWITCHES: Final = frozenset(
    {
        "exclusive", "requeue", "no-requeue", "overcommit", "wait", "hold", "contiguous",
        "parsable", "use-min-nodes", "spread-job", "no-kill",
    }
)  # fmt: skip
_WHOLE: Final = re.compile(r"[0-9]{1,9}")
_DEVICES: Final = re.compile(r"(?:[^:(,=]+[:=])?([0-9]{1,9})")  # 8 or h100:8
_RESOURCE: Final = re.compile(
    r"(?:gres/)?gpu(?:[:=][^:=(]+)?[:=]([0-9]{1,9})(?:\(.*)?"
)  # gpu:8(S:0-1)
_PLACEHOLDER: Final = re.compile(r"<[^<>]*>")


@dataclass(frozen=True, slots=True)
class Directive:
    """One option of an `#SBATCH` line: its long name without dashes, its value, its line."""

    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The options that a script gives to Slurm, in order; the last of a name counts."""

    directives: tuple[Directive, ...]

    def option(self, name: str) -> str | None:
        """The value of an option by its long name, None where it is absent."""
        found = [each.value for each in self.directives if each.name == name]
        return found[-1] if found else None

    @property
    def nodes(self) -> int | None:
        """How many nodes are asked for; a range says no number."""
        return self._whole("nodes")

    @property
    def tasks(self) -> int | None:
        """How many processes Slurm starts, where that is stated."""
        stated, nodes, each = self._whole("ntasks"), self.nodes, self.tasks_per_node
        if stated is not None:
            return stated
        return nodes * each if nodes is not None and each is not None else None

    @property
    def tasks_per_node(self) -> int | None:
        """How many processes Slurm starts on a node, where that is stated."""
        return self._whole("ntasks-per-node")

    @property
    def devices_per_node(self) -> int | None:
        """Accelerators of a node, by whichever option says it."""
        if (found := _DEVICES.fullmatch(self.option("gpus-per-node") or "")) is not None:
            return int(found[1])
        for name in ("gres", "tres-per-node"):
            counts = [_RESOURCE.fullmatch(each) for each in (self.option(name) or "").split(",")]
            if any(counts):
                return sum(int(each[1]) for each in counts if each)
        total, nodes = _DEVICES.fullmatch(self.option("gpus") or ""), self.nodes
        if total is not None and nodes and int(total[1]) % nodes == 0:
            return int(total[1]) // nodes
        each, tasks = _DEVICES.fullmatch(self.option("gpus-per-task") or ""), self.tasks_per_node
        return int(each[1]) * tasks if each is not None and tasks is not None else None

    def variables(self) -> dict[str, str]:
        """The variables that Slurm sets from these options when it starts the script."""
        sizes: Mapping[str, int | str | None] = {
            "SLURM_NNODES": self.nodes,
            "SLURM_JOB_NUM_NODES": self.nodes,
            "SLURM_GPUS_ON_NODE": self.devices_per_node,
            "SLURM_GPUS_PER_NODE": self.devices_per_node,
            "SLURM_NTASKS_PER_NODE": self.tasks_per_node,
            "SLURM_NTASKS": self.tasks,
            "SLURM_NPROCS": self.tasks,
            # sbatch is taken to be called where the script lies
            "SLURM_SUBMIT_DIR": "." if self.directives else None,
            "SLURM_CPUS_PER_TASK": self._whole("cpus-per-task"),
            "SLURM_JOB_NAME": self.option("job-name"),
            "SLURM_JOB_PARTITION": self.option("partition"),
        }
        return {name: str(size) for name, size in sizes.items() if size is not None}

    def _whole(self, name: str) -> int | None:
        value = self.option(name)
        return int(value) if value is not None and _WHOLE.fullmatch(value) else None


def read_batch(text: str) -> Batch:
    """The `#SBATCH` lines of a script; empty where it has none."""
    found = []
    for match in _DIRECTIVE.finditer(text):
        line = 1 + text.count("\n", 0, match.start())
        found += [Directive(name, value, line) for name, value in _options(match[1])]
    return Batch(tuple(found))


def _options(text: str) -> Iterator[tuple[str, str]]:
    plain = re.split(r"\s#", _PLACEHOLDER.sub(" ", text))[0]
    try:
        words = shlex.split(plain)
    except ValueError:
        words = plain.split()
    name = ""
    for word in words:
        found = _OPTION.fullmatch(word)
        if found is not None:
            if name:
                yield name, ""
            name = found[1][2:] if found[1] else _LONG.get(found[3], found[3])
            value = found[2] if found[1] else found[4] or None
            if value is not None or name in _SWITCHES:
                yield name, value or ""
                name = ""
        elif name:
            yield name, word
            name = ""
    if name:
        yield name, ""
