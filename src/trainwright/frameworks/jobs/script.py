"""What a launch script starts, as settings: its trainer's arguments, its devices, files it writes.

The script is followed as bash would (`frameworks.shell`), and nothing is run. A file of arguments
alone is read as well, and a file that only sets an array of them. And what of these arguments, in
the words of all trainers, says that training is not on given answers.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from trainwright.errors import Fault, InvalidInput
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.hf_config import read_config
from trainwright.frameworks.jobs.settings import UNDESCRIBED, Beside, Settings, parse_yaml
from trainwright.frameworks.shell import SUBMITTER, ScriptRun, TrainerCall, Value, read_script
from trainwright.plans.capability_table import LOSS_CHUNKS

if TYPE_CHECKING:
    from trainwright.model import TransformerConfig

_MOST: Final = 2**20  # bytes of a file of settings
_LISTS: Final = re.compile(r"\w*(?:ARGS|OPTS|OPTIONS|FLAGS|PARAMS|CONFIGS?)", re.IGNORECASE)
# What scripts call the number of their devices, where a launcher takes it from a file of hosts.
_OWN_COUNTS: Final = ("NUM_GPUS", "NGPUS", "N_GPUS", "NUM_GPU", "GPU_NUM", "TOTAL_GPUS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Devices as a launcher or Slurm states them; None for what they leave open.

    `visible` are those of a node that the environment lists, where a file says how many are used.
    """

    total: int | None = None
    per_node: int | None = None
    visible: int | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def on_nodes(cls, nodes: int | None, each: int) -> Devices:
        """So many of each node; of one node where their number is not stated."""
        return cls(total=(1 if nodes is None else nodes) * each, per_node=each)


# Of a file that starts one process where what it asks for needs several.
STARTED_ELSEWHERE: Final = Devices(
    notes=(
        "no launcher is in the file, which needs several devices: they are those of --nodes, or of "
        "one node",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The trainer of a script: its program (without folders), its arguments, where it runs.

    `files` are the texts that the script writes, by their names without folders, `accelerate` the
    options that accelerate is started with, where it is. `starts_alone`: no launcher starts a
    process for each device, so that the program may do that itself.
    """

    program: str
    words: tuple[Value, ...]
    devices: Devices = Devices()
    files: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    accelerate: Mapping[str, str | bool] = field(default_factory=dict)
    starts_alone: bool = False

    def file(self, name: str) -> str | None:
        """The text of a file that the script writes, None where a part of it is not known."""
        found = self.files.get(posixpath.basename(name))
        return None if found is None else found.shown()


def read_launch(text: str, beside: Beside) -> Launch:
    """The trainer that a script starts; raises `InvalidInput` that says why there is none."""
    plain = text.lstrip()
    if _starts_with_flag(plain):
        try:
            shlex.split(plain, comments=True)
        except ValueError as error:
            raise InvalidInput.of("arguments", f"cannot be read: {error}") from None
        alone = read_script(f'A=({text}\n)\npython - "${{A[@]}}"\n', variables=beside.variables)
        array = alone.variables.get("A", ())
        return Launch(program="", words=array if isinstance(array, tuple) else ())
    run = read_script(
        text,
        name=f"./{beside.name}",
        folder=beside.folder,
        arguments=beside.arguments,
        variables=beside.variables,
    )
    # else what it sources may start the trainer, or what it asks for is missing
    is_whole = not run.not_sourced and run.end is None
    if not run.trainers and is_whole and (words_of_arrays := tuple(_arrays(run))):
        return Launch(program="", words=words_of_arrays)
    call = run.trainer()
    kept = tuple(_known_words(call.arguments, run))
    return Launch(
        program=posixpath.basename(call.program.shown()),
        words=kept,
        devices=_devices(call, run),
        files={posixpath.basename(path): value for path, value in run.files.items()},
        notes=tuple(_notes(call, run)),
        starts_alone=not (call.is_distributed or run.batch.directives),
        accelerate={
            name: True if value is None else value.shown()
            for each in call.launchers
            if each.name == "accelerate"
            for name, value in each.options
        },
    )


def _starts_with_flag(text: str) -> bool:
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return first.startswith("--")


def _arrays(run: ScriptRun) -> Iterator[Value]:
    """The words of arrays and texts that hold arguments, where nothing is started."""
    for value in run.variables.values():
        if isinstance(value, tuple):
            if value and value[0].shown().startswith("--"):
                yield from value
        elif (text := value.text) is not None and text.lstrip().startswith("--"):
            yield from (Value((word,)) for word in text.split())


def _known_words(words: Sequence[Value], run: ScriptRun) -> Iterator[Value]:
    """The words but for arguments of the script that are not given.

    Raises `InvalidInput` where a file that is not read may set a whole list of words.
    """
    faults = []
    for word in words:
        if word.is_open:
            unknown = word.unknowns[0]
            if unknown.kind == "argument" and unknown.name in ("@", "*", "$@", "$*"):
                continue
            if unknown.kind == "sourced" and _LISTS.fullmatch(unknown.name):
                why = "; ".join(map(str, run.not_sourced))
                fix = f"give --variable {unknown.name}=VALUE, or put the file beside the script"
                faults.append(Fault(unknown.name, f"is not set here ({why}): {fix}"))
        yield word
    if faults:
        raise InvalidInput(faults)


def _notes(call: TrainerCall, run: ScriptRun) -> Iterator[str]:
    if call.condition is not None:
        yield f"the trainer of line {call.line} starts only if {call.condition}"
    if beside := _trained_beside(call, run):
        lines = " and ".join(str(each.line) for each in beside)
        yield f"line {call.line} alone is priced: line {lines} trains by itself"
    for each in call.launchers:
        if each.name == SUBMITTER and each.options:
            shown = ", ".join(f"--{name}" for name, _ in each.options)
            yield f"what starts the job elsewhere is not read ({shown}): give --nodes"
    for word in call.arguments:
        unknown = word.unknowns[0] if word.is_open else None
        if unknown is not None and unknown.is_unset and _LISTS.fullmatch(unknown.name):
            yield f"{unknown.name} is not set here, and what it holds is not used"
    yield from (str(each) for each in run.not_sourced)
    yield from (str(each) for each in run.assumptions if each.taken == "first")


def _trained_beside(call: TrainerCall, run: ScriptRun) -> list[TrainerCall]:
    """What the script trains beside a call, by the same program and told otherwise."""

    def told(each: TrainerCall) -> frozenset[str]:
        return frozenset(word.shown() for word in each.arguments)

    same = (each for each in run.trainers if each.program.shown() == call.program.shown())
    found = {told(each): each for each in same if each.condition is None}
    return [each for words, each in found.items() if words != told(call)]


# Devices, from the innermost launcher that says something, else from Slurm
# -------------------------------------------------------------------------


def _devices(call: TrainerCall, run: ScriptRun) -> Devices:
    batch, names = run.batch, {each.name for each in call.launchers}
    nodes, each = _whole(call.nodes), _whole(call.processes_per_node)
    unclear = tuple(_unclear(call))
    if (total := _whole(call.processes)) is not None and "torchrun" not in names:
        return Devices(total=total, per_node=each or batch.devices_per_node, notes=unclear)
    if unclear:
        return Devices(per_node=each, notes=unclear)
    if "torchrun" in names:
        each = 1 if each is None and call.processes_per_node is None else each
        nodes = 1 if nodes is None and call.nodes is None else nodes
        return Devices(total=_product(nodes, each), per_node=each)
    visible = _visible(call)
    if "deepspeed" in names:
        stated, of_nodes = _product(nodes or 1, each) or _own_count(run), _included(call)
        if stated is None and (listed := of_nodes or (visible and (visible,))):
            return Devices(total=sum(listed), per_node=max(listed))
        starter = next(one for one in call.launchers if one.name == "deepspeed")
        hosts = starter.option("hostfile", "H") if stated is None else None
        unread = () if hosts is None else (f"the hosts of {hosts} are not read; {_LEFT}",)
        return Devices(total=stated, per_node=each, notes=unread)
    if names & {"srun", "mpirun", "flux", "jsrun", "aprun"}:
        found = _of_slurm(run, nodes=nodes, tasks_per_node=each)
        if found.total is None and call.processes is not None:
            found = replace(found, notes=(f"processes: {call.processes} is not known; {_LEFT}",))
        return found
    if call.is_distributed:
        return Devices(total=_product(nodes or 1, each), per_node=each, visible=visible)
    if batch.directives:
        return _of_slurm(run, nodes=None, tasks_per_node=None)
    program = posixpath.basename(call.program.shown())
    if program in _START_THEMSELVES | _START_ON_ALL:
        nodes, each = (_whole(call.environment.get(each)) for each in ("NNODES", "NPROC_PER_NODE"))
        each = each or (visible if program in _START_ON_ALL else 1)
        return Devices(total=_product(nodes or 1, each), per_node=each)
    return Devices() if SUBMITTER in names else Devices(total=1, per_node=1)


# Programs that start torchrun themselves, with numbers of the environment; others start a process
# on every device that they see (llamafactory/launcher.py, axolotl/cli/train.py, trl/cli).
_START_THEMSELVES: Final = frozenset({"megatron", "swift"})
_START_ON_ALL: Final = frozenset({"axolotl", "llamafactory-cli", "trl"})
_LISTED: Final = re.compile(r"[0-9]+(?:,[0-9]+)*")


def _visible(call: TrainerCall) -> int | None:
    """How many devices of a node a program sees, where the script lists them."""
    listed = call.environment.get("CUDA_VISIBLE_DEVICES")
    text = "" if listed is None else (listed.text or "")
    return len(text.split(",")) if _LISTED.fullmatch(text) else None


def _included(call: TrainerCall) -> tuple[int, ...]:
    """Of each node that DeepSpeed is told to take, as `NODE:0,1@NODE:2`; empty if one is whole."""
    said = next((e.option("include") for e in call.launchers if e.name == "deepspeed"), None)
    nodes = [] if said is None or said.text is None else said.text.split("@")
    slots = [node.partition(":")[2] for node in nodes]
    if not all(_LISTED.fullmatch(each) for each in slots):
        return ()
    return tuple(len(each.split(",")) for each in slots)


def _of_slurm(run: ScriptRun, *, nodes: int | None, tasks_per_node: int | None) -> Devices:
    """A task to each device, or one to a node that starts the others.

    None where the tasks of a node are neither one nor as many as its devices.
    """
    batch = run.batch
    nodes, devices = nodes or batch.nodes, batch.devices_per_node
    each = tasks_per_node or batch.tasks_per_node
    tasks = batch.tasks if tasks_per_node is None else _product(nodes, each)
    if devices is None or each == devices or (tasks and tasks == _product(nodes, devices)):
        return Devices(total=tasks, per_node=each or devices)
    if nodes is None or tasks not in (None, nodes):
        return Devices()
    return Devices.on_nodes(nodes, devices)


def _own_count(run: ScriptRun) -> int | None:
    for name in _OWN_COUNTS:
        value = run.variables.get(name)
        if isinstance(value, Value) and (found := _whole(value)) is not None:
            return found
    return None


def _unclear(call: TrainerCall) -> Iterator[str]:
    for what, value in (("nodes", call.nodes), ("processes of a node", call.processes_per_node)):
        if value is not None and _whole(value) is None:
            yield f"{what}: {value} is not known; {_LEFT}"


_LEFT: Final = "the devices are those of --nodes, or of one node"


def _whole(value: Value | None) -> int | None:
    text = "" if value is None else (value.text or "")
    return int(text) if re.fullmatch(r"[0-9]{1,7}", text) and int(text) else None


def _product(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first * second


def is_script(text: str, name: str) -> bool:
    """Whether a text is a script by its name, its first line or its directives."""
    return is_script_name(name) or text.startswith("#!") or text.lstrip().startswith("#SBATCH")


def text_beside(name: str, launch: Launch, beside: Beside) -> str | None:
    """What the script writes to the file, else what stands in it, at its path or beside."""
    if (written := launch.file(name)) is not None:
        return written
    folder = beside.folder
    parts = name.split("/")
    ends = ("/".join(parts[first:]) for first in range(len(parts)))  # wherever the folder lies
    for place in () if folder is None else (folder / end for end in ends if end):
        inside = folder is not None and _is_below(place, folder)
        try:
            if inside and place.is_file():
                return read_bytes(place, name="config", most=_MOST).decode()
        except (InvalidInput, OSError, ValueError):
            continue
    return None


# A package where requirements name it, and what they ask of its release: of pip, conda and poetry
# (`= "1.6"` is `^1.6`), and of a tag on GitHub.
_ASKED: Final = (
    r"(?<![\w./-]){0}(?:\[[^\]]*\])?((?:\s*,?\s*(?:[~<>=!]=|[<>=^~])\s*[\"']?[~^]?v?\d[\w.*]*)+)"
    r"|/{0}(?:\.git)?(@v?\d[\w.]*)"
)
_BOUND: Final = re.compile(r"([~<>=!]=|[<>=^~@])\s*([\"']?)([~^]?)v?(\d+(?:\.\d+)*)(\.\*)?")


def held_below(text: str, package: str, release: tuple[int, int]) -> str | None:
    """The first requirement of a text that keeps a package below a release; None without one."""
    for said, kind, version, any_last in _bounds_on(package, text):
        if not _reaches(kind, version, release, any_last=any_last):
            return said
    return None


def held_from(text: str, package: str, release: tuple[int, int]) -> str | None:
    """The first requirement that no release of a package before this one meets; None without."""
    for said, kind, version, _ in _bounds_on(package, text):
        if kind not in ("<", "<=", "!=", ">") and version[:2] >= release:
            return said
    return None


def _bounds_on(package: str, text: str) -> Iterator[tuple[str, str, tuple[int, ...], bool]]:
    """Each bound that a text sets: the requirement, how it holds, its release, and if any last."""
    for found in re.finditer(_ASKED.format(re.escape(package)), text):
        asked = found[1] or found[2]
        said = package + "".join(asked.replace('"', "").split())
        for sign, quote, inner, number, any_last in _BOUND.findall(asked):
            kind = inner or ("^" if sign == "=" and quote else sign)
            yield said, kind, tuple(map(int, number.split("."))), bool(any_last)


def _reaches(
    kind: str, version: tuple[int, ...], release: tuple[int, int], *, any_last: bool
) -> bool:
    """Whether what is asked of a release lets this one or a later one in."""
    if kind in (">", ">=", "!="):
        return True
    if kind in ("==", "<", "<=", "@") and not any_last:
        end, is_in = version, kind != "<"
    else:  # a release and what follows it, up to the next one of the part that stays
        first = next((place for place, part in enumerate(version) if part), len(version) - 1)
        last = {"^": first, "~=": len(version) - 2, "~": 1}.get(kind, len(version) - 1)
        kept = max(min(last, len(version) - 1), 0)
        end, is_in = (*version[:kept], version[kept] + 1), False
    reached, least = ((*each, 0, 0, 0)[:3] for each in (end, release))
    return reached >= least if is_in else reached > least


def config_beside(
    path: str | None, beside: Beside, notes: list[str], launch: Launch | None = None
) -> TransformerConfig | None:
    """The model of a `config.json` that a file names, where it lies beside; else a note."""
    if path is None:
        return None
    found = text_beside(path, launch or Launch(program="", words=()), beside)
    if found is None:
        notes.insert(0, f"{UNDESCRIBED}: {path} is not beside this file")
        return None
    try:
        document = json.loads(found)
    except (ValueError, RecursionError):
        raise InvalidInput.of(path, "is not JSON") from None
    return read_config(document, name=path, source=path).config


def _is_below(place: Path, folder: Path) -> bool:
    try:
        return place.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):
        return False


# Words as settings
# -----------------


def flags_of(words: Sequence[Value]) -> dict[str, Any]:
    """Values by flag, with _ for -: True for a switch, a word or `Value`, a tuple of several.

    A flag that is given twice keeps its last value, as argparse does.
    """
    found: dict[str, Any] = {}
    name, values = "", list[Any]()
    for word in words:
        text = word.text if word.text is not None else word.shown()
        if text.startswith("--") and len(text) > 2:
            if name:
                found[name] = _one_or_more(values)
            flag, equals, value = text[2:].partition("=")
            name, values = flag.replace("-", "_"), [value] if equals else []
        elif name:
            values.append(word if word.text is None else word.text)
    if name:
        found[name] = _one_or_more(values)
    return found


def _one_or_more(values: list[Any]) -> Any:
    while values and isinstance(values[-1], Value) and values[-1].is_unset and len(values) > 1:
        values.pop()
    if not values:
        return True
    return values[0] if len(values) == 1 else tuple(values)


# Its program; or two of its settings as words. One of them alone may be a variable of any script.
_OF_MAXTEXT: Final = re.compile(
    r"^[^#\n]*\bpython3?\s[^\n]*\bmaxtext\b", re.MULTILINE | re.IGNORECASE
)
_TOLD_TO_MAXTEXT: Final = re.compile(
    r"^[^#\n]*?(?<![\w.])(per_device_batch_size|max_target_length|remat_policy|base_emb_dim|"
    r"(?:ici|dcn)_\w+_parallelism|base_output_directory)=",
    re.MULTILINE,
)


def is_maxtext_script(text: str) -> bool:
    """Whether a script gives settings of MaxText as words."""
    if _OF_MAXTEXT.search(text) is not None:
        return True
    return len({*_TOLD_TO_MAXTEXT.findall(text)}) > 1


_CALLED: Final = re.compile(
    r"""^[^#\n]*?(?:\b(?:ba|z|k|da)?sh|\bsource|(?<!\S)\.)\s+["']?([\w./-]+\.(?:sh|slurm|sbatch))""",
    re.MULTILINE,
)
_CALLED_MOST: Final = 8  # scripts that are looked at, as far as
_CALLED_FIRST: Final = 2**18  # bytes


def is_script_name(name: str) -> bool:
    """Whether a file's name says that it is a script."""
    return name.lower().endswith((".sh", ".bash", ".slurm", ".sbatch"))


def is_beside_others(beside: Beside) -> bool:
    """Whether a file is a script that may start others of its folder."""
    return beside.folder is not None and is_script_name(beside.name)


def texts_of(text: str, folder: Path | None) -> tuple[str, ...]:
    """A script, and the scripts below its folder that it starts or sources by name."""
    found = [text]
    for name in list(dict.fromkeys(_CALLED.findall(text)))[:_CALLED_MOST] if folder else ():
        try:
            data = read_bytes((folder or Path()) / name, name="script", most=_CALLED_FIRST)
            found.append(data.decode())
        except (InvalidInput, UnicodeDecodeError):
            continue
    return tuple(found)


CHOSEN: Final = ""  # the key of a table for which of several was chosen (`engine=fsdp`)


def overrides_of(words: Sequence[Value]) -> dict[str, Any]:
    """The nested mapping of words such as `trainer.nnodes=2` (Hydra), null as what is not set.

    Flags are left out.
    """
    found: dict[str, Any] = {}
    for word in words:
        text = word.text if word.text is not None else word.shown()
        name, equals, value = text.lstrip("+").partition("=")
        if not equals or text.startswith("-"):
            continue
        inside = found
        *above, last = name.split(".")
        for part in above:
            if not isinstance(table := inside.setdefault(part, {}), dict):
                table = inside[part] = {CHOSEN: table}
            inside = table
        is_open = word.text is None and value.startswith("$")
        kept = Value(word.parts[1:]) if is_open else None if value == "null" else value
        if isinstance(table := inside.get(last), dict):
            table[CHOSEN] = kept
        else:
            inside[last] = kept
    return found


def as_yaml(value: Any) -> Any:
    """A word as YAML reads it: a number, true or false, a text; a flag alone is true."""
    if not isinstance(value, str):
        return [str(each) for each in value] if isinstance(value, tuple) else value
    try:
        return yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        return value


# Programs in Python
# ------------------


def python_value(node: ast.expr, named: Mapping[str, ast.expr]) -> Any:
    """What an expression stands for; a number format as its name. Raises `ValueError`."""
    if isinstance(node, ast.Name):
        node = named.get(node.id, node)
    if isinstance(node, ast.Attribute):  # torch.bfloat16
        return ast.unparse(node)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "dict":
        return {each.arg: python_value(each.value, named) for each in node.keywords}
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = (ast.literal_eval(key) for key in node.keys if key is not None)
        return dict(zip(keys, (python_value(each, named) for each in node.values), strict=True))
    return ast.literal_eval(node)


# Manifests of Kubernetes
# -----------------------
# What a container is told to run is a script; its environment, and how many pods there are of how
# many devices, stand beside it (kubeflow.org/v1, trainer.kubeflow.org, jobset.x-k8s.io, ray.io).

_KINDS: Final = frozenset(
    {"PyTorchJob", "TrainJob", "JobSet", "RayJob", "Job", "Pod", "MPIJob", "LeaderWorkerSet"}
)
_MOST_DOCUMENTS: Final = 64
_DEVICES: Final = re.compile(
    r"(?:nvidia|amd|habana|gpu\.intel)\.\w+/\w+|google\.com/tpu|.*/neuroncore"
)


def manifest_script(text: str) -> str | None:
    """The script that a manifest starts a trainer with, None of any other text."""
    found = _of_manifest(text)
    return None if found is None else found[0]


def manifest_devices(text: str) -> Devices:
    """The devices of all pods of a manifest, and of one; None where it says none."""
    _, pods, each = _of_manifest(text) or ("", 1, None)
    return Devices(total=_product(pods, each), per_node=each)


def _of_manifest(text: str) -> tuple[str, int, int | None] | None:
    """The script of a manifest, its pods, and how many devices one of them asks for."""
    if "apiVersion" not in text or "kind" not in text:
        return None
    try:
        documents = list(yaml.safe_load_all(text))[:_MOST_DOCUMENTS]
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    for document in documents:
        if isinstance(document, dict) and document.get("kind") in _KINDS:
            found = _script_of(document)
            if found is not None:
                return found
    return None


def _script_of(document: Mapping[str, Any]) -> tuple[str, int, int | None] | None:
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return None
    if document["kind"] == "RayJob" and isinstance(spec.get("entrypoint"), str):
        return f"#!/bin/bash\n{spec['entrypoint']}\n", 1, None
    containers = [each for each in _containers(spec, 0) if _command(each) is not None]
    if not containers:
        return None
    own = max(containers, key=lambda each: len(_command(each) or ""))
    pods = _pods(document["kind"], spec)
    limits = own.get("resources") or {}
    stated = {**(limits.get("requests") or {}), **(limits.get("limits") or {})}
    each = spec.get("nprocPerNode") or next(
        (count for name, count in stated.items() if _DEVICES.fullmatch(str(name))), None
    )
    variables = {"PET_NNODES": pods, "NNODES": pods, "WORLD_SIZE": pods}
    if each is not None:
        variables |= {"PET_NPROC_PER_NODE": each, "NPROC_PER_NODE": each}
    for one in own.get("env") or ():
        if isinstance(one, dict) and isinstance(one.get("value"), (str, int)):
            variables[str(one.get("name"))] = one["value"]
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in variables.items()
             if re.fullmatch(r"[A-Za-z_]\w*", name)]  # fmt: skip
    text = "\n".join(("#!/bin/bash", *lines, _command(own) or "", ""))
    known = re.fullmatch(r"[1-9][0-9]{0,4}", str(each))
    return text, pods, None if known is None else int(known[0])


def _containers(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    """Containers of a specification, wherever its kind keeps them."""
    if depth > 20:
        return
    if isinstance(value, list):
        for each in value:
            yield from _containers(each, depth + 1)
    elif isinstance(value, dict):
        yield from (each for each in value.get("containers") or () if isinstance(each, dict))
        if "command" in value and "containers" not in value and "image" not in value:
            yield value  # of a TrainJob
        for key, each in value.items():
            if key not in ("containers", "initContainers"):
                yield from _containers(each, depth + 1)


def _command(container: Mapping[str, Any]) -> str | None:
    """What a container runs, as a shell has it; the text of `bash -c` alone."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if not words or not all(isinstance(each, (str, int, float)) for each in words):
        return None
    words = [str(each) for each in words]
    shell = words[0].rpartition("/")[2] in ("bash", "sh")
    flags = [index for index, word in enumerate(words[:-1]) if re.fullmatch(r"-[a-z]*c", word)]
    return words[flags[0] + 1] if shell and flags else shlex.join(words)


def _pods(kind: str, spec: Mapping[str, Any]) -> int:
    """How many pods train: replicas of every role, or the parallelism of a job."""
    roles = spec.get("pytorchReplicaSpecs") or spec.get("mpiReplicaSpecs")
    if isinstance(roles, dict):
        replicas = (each.get("replicas", 1) for each in roles.values() if isinstance(each, dict))
        return sum(each for each in replicas if type(each) is int) or 1
    if kind == "TrainJob":
        trainer = spec.get("trainer")
        nodes = trainer.get("numNodes") if isinstance(trainer, dict) else None
        return nodes if type(nodes) is int and nodes > 0 else 1
    jobs = spec.get("replicatedJobs")
    specs: list[dict[str, Any]] = [dict(spec)]
    if isinstance(jobs, list):
        specs = [((each.get("template") or {}).get("spec") or {}) | {"of": each.get("replicas", 1)}
                 for each in jobs if isinstance(each, dict)]  # fmt: skip
    pods = [(each.get("parallelism", 1), each.get("of", 1)) for each in specs]
    return max((a * b for a, b in pods if type(a) is int and type(b) is int), default=1) or 1


def config_overrides(found: Settings) -> dict[str, Any]:
    """Keys of a `config.json` as `transformers` takes them from a command line: `n_head=8,…`."""
    given = found.text("config_overrides") or ""
    pairs = [each.partition("=")[::2] for each in given.split(",") if each.strip()]
    if any(not name or not value for name, value in pairs):
        found.fault("config_overrides", f'must be KEY=VALUE,…, got "{given}"')
        return {}
    return parse_yaml("\n".join(f"{name.strip()}: {value}" for name, value in pairs) or "{}")


# Trainers of preferences, of rewards, by reinforcement
# -----------------------------------------------------

_SUPERVISED: Final = ("pt", "sft")
# What only trainers of preferences, of rewards, or by reinforcement have.
_PREFERENCES: Final = (
    "rl", "rlhf_type", "reward_model", "process_reward_model", "beta", "max_prompt_length",
    "max_completion_length", "num_generations", "reward_funcs", "ref_model", "teacher_model",
    "pref_loss", "pref_beta", "relora", "qat", "trl", "num_padding_at_beginning",
)  # fmt: skip


# Trainers by the words of axolotl's `rl`, LLaMA-Factory's `stage`, programs and classes of TRL. A
# pair is a chosen and a rejected answer, concatenated into one microbatch; the reference is the
# model before the training, of which adapters need no copy (trl/trainer/dpo_trainer.py).
PAIRED: Final = frozenset({"dpo", "ipo", "orpo", "cpo", "simpo", "reward", "rm"})
REFERS: Final = frozenset({"dpo", "ipo", "kto"})
GENERATES: Final = frozenset({"grpo", "ppo", "rloo", "gkd", "nash_md", "xpo", "online_dpo"})
_TRAINERS: Final = re.compile(
    r"(?:^|[_/-])(online_dpo|dpo|ipo|orpo|cpo|simpo|kto|reward|grpo|ppo|rloo|gkd)(?=[_.-]|$)"
)
_CLASSES: Final = re.compile(
    r"(OnlineDPO|DPO|ORPO|CPO|KTO|Reward|GRPO|PPO|RLOO|GKD)(?:Trainer|Config)$"
)


def trainer_named(name: str) -> str | None:
    """What a program or class trains by, where that is no supervised training."""
    if (known := _CLASSES.search(name)) is not None:
        return "online_dpo" if known[1] == "OnlineDPO" else known[1].lower()
    found = _TRAINERS.search(name.lower())
    return None if found is None else found[1]


def kind_of(found: Settings) -> str | None:
    """How preferences, rewards or reinforcement train, None where nothing names it."""
    said = (found.text(each) for each in ("rl", "rlhf_type", "stage"))
    kind = next((each.lower() for each in said if each and each not in _SUPERVISED), None)
    loss = found.text("pref_loss")
    return loss if kind == "dpo" and loss in ("orpo", "simpo") else kind


def beyond_supervised(found: Settings, kind: str | None, *, adapts: bool) -> Iterator[str]:
    """A note where a step is more than one pass over sequences with their answers."""
    stage = found.value("stage")
    said = [] if stage is None or stage in _SUPERVISED else [f"stage {stage}"]
    said += [name for name in _PREFERENCES if found.value(name) not in (None, False)]
    if kind in PAIRED | REFERS | GENERATES:
        yield from unpriced(str(kind), found, adapts=adapts)
        said = [name for name in said if name in ("relora", "qat")]
    if said:
        yield (
            f"{', '.join(said)}: priced as supervised training: other passes, pairs of answers and "
            "further models are not modelled"
        )


def unpriced(kind: str, found: Settings, *, adapts: bool) -> Iterator[str]:
    """What of such a step is priced, and what is not."""
    precomputed = found.switch("precompute_ref_log_probs")
    if kind in GENERATES:
        yield (
            f"{kind}: the policy's update alone is priced; not priced: generation, rewards, and "
            "the weights and passes of a reference, a critic or a teacher"
        )
        return
    if kind in PAIRED:
        yield f"{kind}: a pair of answers is priced as two sequences of one microbatch"
    if kind in ("reward", "rm"):
        yield f"{kind}: priced with the head of a language model, larger than that of a reward"
    if kind == "kto":
        yield "kto: not priced: the pass over answers to other questions"
    if kind in REFERS and not precomputed and not adapts:
        yield f"{kind}: the reference is priced as a frozen copy that is sharded as the model is"


def longest(found: Settings, names: Sequence[str]) -> int | None:
    """The longest sequence; of programs that limit question and answer apart, both together."""
    whole = found.count(found.first(*names))
    named = (found.first(f"{part}_max_len", f"max_{part}_length") for part in ("source", "target"))
    parts = [found.count(name) or 0 for name in named]
    answer, question = found.count("max_completion_length"), found.count("max_prompt_length")
    if not whole and answer and (kind_of(found) in GENERATES or _SAMPLES & {*found}):
        return answer + (question or 512)  # GRPOConfig's usual question
    return whole or sum(parts) or None


_SAMPLES: Final = frozenset({"num_generations", "reward_funcs"})
# Where adapters lie, by the names of the hub; the last two are of single programs.
WHERE: Final = ("target_modules", "lora_target_modules", "lora_modules", "trainable")


def left_to_program(flags: Mapping[str, Any], program: str) -> Iterator[str]:
    """What a program that is not TRL's may have of adapters by a default of its own."""
    found = Settings(flags, from_words=True)
    if not any(found.is_on(name) for name in ("use_peft", "use_lora", "lora", "q_lora")):
        return
    if {"lora_rank", "lora_r", "lora_dim"}.isdisjoint(flags):
        said = "the rank of adapters is not said: priced as 16"
        yield f"{said}; if {program} has another, give --lora-rank"
    if set(WHERE).isdisjoint(flags):
        said = "where adapters lie is not said: priced beside query and value"
        yield f"{said}; if {program} has others, give --lora-targets"


# TRL's supervised trainer has the logits of 256 tokens at a time since 1.7, but where Liger's
# kernels or an adapter take the head's product; words that only older ones take, and until when
# (trl/trainer/sft_config.py, sft_trainer.py).
_UNTIL: Final = {"dataset_text_field=": "0.13", "tokenizer=": "0.16", "max_seq_length": "0.20"}
_REQUIRED: Final = ("requirements.txt", "pyproject.toml", "setup.py", "environment.yml")


def usual_loss(
    given: Mapping[str, Any], text: str, beside: Beside
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """TRL's `loss_type` where a file leaves it out, and a note that says which and why.

    Nothing where it is said, and where training is not supervised or not TRL's own.
    """
    found, folder = Settings(given, from_words=True), beside.folder
    names = (beside.name, "" if folder is None else folder.name)
    kind = kind_of(found) or next(filter(None, map(trainer_named, names)), None)
    if kind in _STREAMED and "unsloth" not in text:
        return _log_probs(kind, text, beside, by_liger=found.is_on("use_liger_kernel"))
    is_other = kind or "unsloth" in text
    is_said = found.is_on("use_liger_kernel") or found.value("loss_type") not in (None, "")
    if is_said or is_other or not given.keys().isdisjoint(_PREFERENCES):
        return {}, ()
    words = {*given, *_words_of_trainer(text)}
    reasons = [f"{word} is of TRL before {_UNTIL[word]}" for word in _UNTIL if word in words]
    if "lm_head" in str(found.value("lora_target_modules")):
        reasons.append("TRL takes no chunks where adapters lie beside lm_head")
    for each in _requiring(text, beside):
        asked = held_below(each, "trl", (1, 7))
        reasons += () if asked is None else (f"{asked} keeps TRL below 1.7",)
    kind = "nll" if reasons else "chunked_nll"
    because = reasons[0] if reasons else "TRL has it since 1.7; before, give --loss-chunk 0"
    return {"loss_type": kind}, (f"loss_type is not said: priced as {kind}, as {because}",)


def _requiring(text: str, beside: Beside) -> Iterator[str]:
    """What may say which releases are meant: the file and the requirements beside it."""
    started = Launch(program="", words=())
    yield text
    yield from (text_beside(name, started, beside) or "" for name in _REQUIRED)


# Trainers of TRL whose log-probabilities come from the hidden states part by part: since 1.15 all
# of them do, of 1.14 the first three where `use_liger_kernel` is on (its release notes).
_STREAMED: Final = ("dpo", "kto", "grpo", "rloo")
LOG_PROBS: Final = "streamed_log_probs"  # a word of our own for it
FUSED_LOG_PROBS: Final = "fused_log_probs"  # of all logits, by a kernel that is there since 1.14


def _log_probs(
    kind: str, text: str, beside: Beside, *, by_liger: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Whether such a trainer makes all logits at once, and a note that says so.

    It does unless a release is asked for that does not: with fewer the run may not fit.
    """
    release = (1, 14) if by_liger and kind != "rloo" else (1, 15)
    said = (held_from(each, "trl", release) for each in _requiring(text, beside))
    if (asked := next(filter(None, said), None)) is not None:
        return {LOG_PROBS: True}, (f"{kind}: logits are priced part by part, as {asked} has them",)
    said = (held_from(each, "trl", (1, 14)) for each in _requiring(text, beside))
    if (asked := next(filter(None, said), None)) is not None:
        return {FUSED_LOG_PROBS: True}, (
            f"{kind}: all logits of a microbatch are priced at once, as {asked} has them; since "
            f"TRL 1.15, give --loss-chunk {LOSS_CHUNKS['trl']}",
        )
    number = ".".join(map(str, release))
    since = f"TRL before {number}; since then, give --loss-chunk {LOSS_CHUNKS['trl']}"
    return {}, (f"{kind}: all logits of a microbatch are priced at once, as in {since}",)


def _words_of_trainer(text: str) -> Iterator[str]:
    """The arguments that a Python program gives TRL's supervised trainer, each with its `=`."""
    try:
        nodes = ast.walk(ast.parse(text)) if "SFTTrainer(" in text else ()
    except SyntaxError:
        return
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("SFTTrainer"):
            yield from (f"{each.arg}=" for each in node.keywords)
