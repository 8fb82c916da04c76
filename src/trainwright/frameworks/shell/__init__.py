"""Launch scripts in bash: what they would start, without starting it.

A script's text goes in, the commands that it would start come out:

    run = read_script(text, name="train.sh", folder=path.parent, variables={"NNODES": "4"})
    call = run.trainer()
    call.arguments

Nothing is executed and nothing outside the script's folder is opened. A typical file takes 5 to
20 ms once the grammar is loaded (20 ms).
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from trainwright.errors import Fault, InvalidInput
from trainwright.frameworks.shell.evaluate import Shell
from trainwright.frameworks.shell.launchers import (
    SUBMITTER,
    Command,
    Launcher,
    TrainerCall,
    find_trainers,
)
from trainwright.frameworks.shell.session import (
    LARGEST_FILE_BYTES,
    Assumption,
    End,
    Exit,
    Leave,
    NotSourced,
)
from trainwright.frameworks.shell.values import (
    Array,
    Budget,
    Holes,
    State,
    Unknown,
    Value,
    Variable,
    clean,
    too_much,
)

__all__ = [
    "SUBMITTER",
    "Assumption",
    "Batch",
    "Command",
    "Directive",
    "End",
    "Launcher",
    "NotSourced",
    "ScriptRun",
    "TrainerCall",
    "Unknown",
    "Value",
    "find_trainers",
    "read_batch",
    "read_script",
]

# What a batch script asks of Slurm: its `#SBATCH` lines, as data and as variables of the job
# -------------------------------------------------------------------------------------------


_DIRECTIVE: Final = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
# What PBS is asked for: `#PBS -l select=NODES:mpiprocs=TASKS:ngpus=DEVICES`.
_OF_PBS: Final = re.compile(
    r"^#PBS[ \t]+-l[ \t]*select=([0-9]{1,9})((?::\w+=[^:\s,+]+)*)[ \t]*$", re.MULTILINE
)
_NAMED_BY_PBS: Final = {"mpiprocs": "ntasks-per-node", "ngpus": "gpus-per-node"}
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
_PLACEHOLDER_SLURM: Final = re.compile(r"<[^<>]*>")


@dataclass(frozen=True, slots=True)
class Directive:
    """One option of an `#SBATCH` line: its long name without dashes, its value, its line."""

    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The options that a script gives to Slurm, in order; the last of a name counts.

    What it asks of PBS (`is_pbs`) stands under the same names.
    """

    directives: tuple[Directive, ...]
    is_pbs: bool = False

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
        if self.is_pbs:
            return {"PBS_O_WORKDIR": "."}
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
    """The `#SBATCH` lines of a script, else those of PBS; empty where it has none."""
    found = list[Directive]()
    for match in _DIRECTIVE.finditer(text):
        line = 1 + text.count("\n", 0, match.start())
        found += [Directive(name, value, line) for name, value in _options(match[1])]
    asked = None if found else _OF_PBS.search(text)
    if asked is None:
        return Batch(tuple(found))
    line = 1 + text.count("\n", 0, asked.start())
    each = dict(part.split("=") for part in asked[2].split(":")[1:])
    named = {"nodes": asked[1]} | {
        _NAMED_BY_PBS[k]: v for k, v in each.items() if k in _NAMED_BY_PBS
    }
    return Batch(tuple(Directive(name, value, line) for name, value in named.items()), is_pbs=True)


def _options(text: str) -> Iterator[tuple[str, str]]:
    plain = re.split(r"\s#", _PLACEHOLDER_SLURM.sub(" ", text))[0]
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


# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScriptRun:
    """What a script would do.

    `commands` are the programs it would start, in order. `files` are those it writes, by path
    from its folder, with the names of unknown parts in it. `variables` are those it has set at its
    end; an array is a tuple. `batch` is what it asks of Slurm. `assumptions` and `not_sourced` say
    what was taken as it usually is and what was not read. `errors` are the lines that are not bash
    as far as the grammar knows. `end` is where it ends before its last line.
    """

    commands: tuple[Command, ...]
    files: Mapping[str, Value]
    variables: Mapping[str, Value | tuple[Value, ...]]
    batch: Batch
    assumptions: tuple[Assumption, ...]
    not_sourced: tuple[NotSourced, ...]
    errors: tuple[int, ...]
    end: End | None

    @cached_property
    def trainers(self) -> tuple[TrainerCall, ...]:
        """The trainers among the commands, the likeliest first (see `find_trainers`)."""
        return find_trainers(self.commands)

    def trainer(self) -> TrainerCall:
        """The likeliest trainer; raises `InvalidInput` that says why there is none."""
        if self.trainers:
            return self.trainers[0]
        faults = []
        if self.end is not None and (self.end.said or not self.not_sourced):
            said = f' after "{self.end.said}"' if self.end.said else ""
            status = "" if self.end.status is None else f" with status {self.end.status}"
            problem = f"the script ends here{status}{said}: give what it asks for"
            faults.append(Fault(f"line {self.end.line}", problem))
        faults += [
            Fault(f"line {line}", "is not bash as far as it is known") for line in self.errors
        ]
        faults += [Fault(f"line {each.line}", str(each)) for each in self.not_sourced]
        if not faults:
            found = (
                f"{len(self.commands)} commands, none of which"
                if self.commands
                else "no command that"
            )
            faults = [Fault("script", f"has {found} starts a trainer")]
        raise InvalidInput(faults)

    def file(self, path: Value) -> Value | None:
        """The text of a file that the script writes, by the word that a command names it by."""
        return self.files.get(posixpath.normpath(path.shown()))


# What nobody means as a redirection: NAME=<path to data>, --load <PATH>, "<PATH TO FILE>"
_PLACEHOLDER: Final = re.compile(
    r"""(?<=[=/:,"'\s])<(?P<name>[A-Za-z][A-Za-z0-9_./: -]{0,80}(?<![ .]))>(?=["'/\s,:._-]|\\?$)""",
    re.MULTILINE,
)


def read_script(
    text: str,
    *,
    name: str = "script.sh",
    folder: Path | None = None,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> ScriptRun:
    """Follow a bash script and say what it would start; nothing is executed.

    `name` is what the script sees as `$0`; `folder` is where it lies: files beside it may be
    sourced, none elsewhere. `arguments` are its positional arguments, `variables` its environment
    beyond what Slurm sets. A relative path is from the script's folder, which is `.`.

    Raises `InvalidInput`, naming the line, where the script goes beyond a bound of `Budget`.
    """
    if len(text) > LARGEST_FILE_BYTES:
        raise InvalidInput.of(
            "script", f"must have at most {LARGEST_FILE_BYTES} characters, has {len(text)}"
        )
    if "\0" in text:
        raise InvalidInput.of("script", "must be text, has a character of code 0")
    text = clean(text).replace("\r\n", "\n")
    holes = Holes()
    batch = read_batch(text)
    given = {**batch.variables(), **(variables or {})}
    state = State(
        variables={
            key: Variable(clean(value), exported=True, by_script=False)
            for key, value in given.items()
        },
        arguments=tuple(map(clean, arguments)),
        name=clean(name),
    )
    shell = Shell(
        state=state, budget=Budget(), holes=holes, folder=folder, is_batch=bool(batch.directives)
    )
    try:
        shell.run(_with_placeholders(text, holes))
    except Exit as leave:
        last = text.count("\n") + 1
        if leave.line < last - 1 or leave.status:
            said = " ".join("".join(shell.said).split())
            shell.end = End(leave.line, leave.status, holes.shown(said[-_LONGEST_SAID:]))
    except Leave:
        pass
    except RecursionError:
        raise too_much(shell.line, "statements nested too deeply") from None
    return _finished(shell, batch)


_LONGEST_SAID: Final = 200


def _with_placeholders(text: str, holes: Holes) -> str:
    """The text with a hole for each `<fill this in>`."""
    if "<" not in text:
        return text

    def hole(found: re.Match[str]) -> str:
        name = found["name"]
        before, after = text[found.start() - 1], text[found.end() : found.end() + 1]
        quoted = before in "\"'" or after in ('"', "'")
        if quoted and " " not in name and not re.search("[A-Z]{2}", name):
            return found[0]  # "<s>" and "<pad>" are tokens
        line = 1 + text.count("\n", 0, found.start())
        return holes.character(Unknown(kind="placeholder", name=f"<{name}>", line=line))

    return _PLACEHOLDER.sub(hole, text)


def _finished(shell: Shell, batch: Batch) -> ScriptRun:
    value = shell.holes.value
    variables: dict[str, Value | tuple[Value, ...]] = {}
    for name, each in shell.state.variables.items():
        if isinstance(each.value, Array):
            variables[name] = tuple(map(value, each.value.items.values()))
        else:
            variables[name] = value(each.value)
    return ScriptRun(
        commands=tuple(shell.commands),
        files={
            shell.holes.shown(path): value(text)
            for path, text in shell.state.files.items()
            if not path.endswith("/")
        },
        variables=variables,
        batch=batch,
        assumptions=tuple(dict.fromkeys(shell.assumptions)),
        not_sourced=tuple(dict.fromkeys(shell.not_sourced)),
        errors=tuple(sorted(shell.errors)),
        end=shell.end,
    )
