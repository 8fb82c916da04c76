"""The trainer inside a command: what stands before it is peeled off, layer by layer.

`srun --nodes 4 singularity exec --nv image.sif torchrun --nproc_per_node 8 train.py --lr 1` is four
layers: three programs that start another, with options of their own, and the trainer with its
arguments. Where an option of a launcher ends and the program begins follows from which options
take no value; the tables below have those, from the programs' manuals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainwright.frameworks.shell.values import Unknown, Value, has_holes


@dataclass(frozen=True, slots=True)
class Command:
    """A command that the script would start.

    `words` are the program and its arguments. `environment` has what the command itself and the
    script's `export`s set. `within` are the commands around it, outermost first, where it is
    started through `bash -c` or the like. `condition` is the unknown condition it depends on.
    """

    words: tuple[Value, ...]
    environment: Mapping[str, Value]
    line: int
    within: tuple[tuple[Value, ...], ...] = ()
    condition: Unknown | None = None


@dataclass(frozen=True, slots=True)
class Launcher:
    """A program that starts another: its name (`torchrun`, `srun`, …) and its options.

    Options are in order, each by its name without dashes and with `_` for `-`; a switch has no
    value.
    """

    name: str
    options: tuple[tuple[str, Value | None], ...]

    def option(self, *names: str) -> Value | None:
        """The value of the last option that has one of the names."""
        found = [value for name, value in self.options if name in names and value is not None]
        return found[-1] if found else None

    def has(self, *names: str) -> bool:
        """Whether an option of one of the names is given."""
        return any(name in names for name, _ in self.options)


@dataclass(frozen=True, slots=True)
class TrainerCall:
    """A trainer with its arguments, and what starts it.

    `program` is the script or the module. `launchers` are outermost first.
    """

    program: Value
    arguments: tuple[Value, ...]
    launchers: tuple[Launcher, ...]
    environment: Mapping[str, Value]
    line: int
    condition: Unknown | None = None

    @property
    def is_distributed(self) -> bool:
        """Whether one of the launchers starts a process for each device."""
        return any(each.name in _DISTRIBUTED for each in self.launchers)

    @property
    def nodes(self) -> Value | None:
        """What a launcher says about the number of nodes, the innermost first."""
        return self._first(_NODES)

    @property
    def processes_per_node(self) -> Value | None:
        """What a launcher says about processes of a node."""
        return self._first(_PER_NODE)

    @property
    def processes(self) -> Value | None:
        """What a launcher says about all processes together."""
        return self._first(_PROCESSES)

    def _first(self, names: Mapping[str, tuple[str, ...]]) -> Value | None:
        for each in reversed(self.launchers):
            if each.name in names and (found := each.option(*names[each.name])) is not None:
                return found
        return None


_TORCHRUN: Final = "torchrun"
SUBMITTER: Final = "submitter"  # a program of Python that starts a launcher somewhere
_NODES: Final = {
    _TORCHRUN: ("nnodes",),
    "deepspeed": ("num_nodes",),
    "accelerate": ("num_machines",),
    "srun": ("nodes", "N"),
    "composer": ("nnodes",),
    "tune": ("nnodes",),
    "colossalai": ("num_nodes",),
}
_PER_NODE: Final = {
    _TORCHRUN: ("nproc_per_node",),
    "deepspeed": ("num_gpus",),
    "tune": ("nproc_per_node",),
    "srun": ("ntasks_per_node", "gpus_per_node"),
    "mpirun": ("npernode", "N", "ppn"),
    "composer": ("n", "nproc"),
    "colossalai": ("nproc_per_node",),
    "msrun": ("local_worker_num",),
}
_PROCESSES: Final = {
    "accelerate": ("num_processes",),
    "mpirun": ("np", "n", "c"),
    "srun": ("ntasks", "n"),
    "horovodrun": ("np",),
    "composer": ("world_size",),
    "msrun": ("worker_num",),
}
_DISTRIBUTED: Final = frozenset(
    {
        _TORCHRUN, "deepspeed", "accelerate", "srun", "mpirun", "horovodrun", "composer", "tune",
        "flux", "jsrun", "aprun", "colossalai", "msrun",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Program:
    """How a launcher's command line is read. Options take a value unless they are `switches`.

    `valued` turns that around: only these do. `pairs` take two. `positional` words stand between
    the options and what is started, `verbs` is the word that makes the program a launcher.
    """

    name: str
    switches: frozenset[str] = frozenset()
    valued: frozenset[str] | None = None
    pairs: frozenset[str] = frozenset()
    positional: int = 0
    verbs: tuple[str, ...] = ()
    starts_python: bool = False


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SRUN: Final = _Program(
    "srun",
    _set(
        "exclusive label l unbuffered u kill_on_bad_exit verbose v vv quiet Q no_kill k "
        "overlap pty overcommit O oversubscribe s no_allocate Z disable_status X "
        "preserve_env E contiguous no_container_mount_home container_mount_home "
        "container_remap_root container_writable container_readonly "
        "no_container_remap_root no_container_entrypoint container_entrypoint reboot "
        "use_min_nodes spread_job exact whole immediate I multi_prog wait_all_nodes "
        "het_group_all propagate no_bell external send_libs"
    ),
)
_TORCH: Final = _Program(
    _TORCHRUN,
    _set("standalone m module no_python use_env run_path enable_each_rank_log"),
    starts_python=True,
)
_ACCELERATE: Final = _Program(
    "accelerate",
    _set(
        "use_deepspeed use_fsdp multi_gpu cpu tpu mps ipex use_xpu use_megatron_lm "
        "same_network debug quiet q m module no_python use_parallelism_config "
        "enable_cpu_affinity no_tpu_cluster tpu_cluster tpu_use_cluster tpu_use_sudo "
        "zero3_init_flag_on"
    ),
    verbs=("launch",),
    starts_python=True,
)
_DEEPSPEED: Final = _Program(
    "deepspeed",
    _set(
        "force_multi no_python module m no_local_rank save_pid bind_cores_to_rank no_ssh "
        "no_ssh_check elastic_training detect_nvlink_pairs"
    ),
    starts_python=True,
)
_MPIRUN: Final = _Program(
    "mpirun",
    valued=_set(
        "np n c N H host hostfile machinefile f x map_by bind_to rank_by ppn npernode "
        "npersocket wdir wd output_filename output prefix hosts genvlist envlist am app "
        "rf rankfile cpu_set display timeout launcher bootstrap iface perhost cpu_bind d "
        "depth gpu_bind mem_bind"
    ),
    pairs=_set("mca gmca genv env pmca prtemca"),
)
_CONTAINER: Final = _set(
    "B bind H home pwd W workdir env env_file overlay o scratch S security network "
    "dns hostname mount no_mount app apply_cgroups cwd add_caps drop_caps fusemount "
    "cpus memory"
)
_DOCKER: Final = _set(
    "gpus v volume e env env_file name w workdir network net shm_size ulimit ipc "
    "device mount u user entrypoint h hostname p publish cpus m memory cap_add "
    "security_opt runtime pid l label add_host log_driver log_opt platform pull "
    "restart tmpfs group_add cpuset_cpus"
)
_PROGRAMS: Final[dict[str, _Program]] = {
    "srun": _SRUN,
    "torchrun": _TORCH,
    "torch.distributed.run": _TORCH,
    "torch.distributed.launch": _TORCH,
    "torch.distributed.torchrun": _TORCH,
    "accelerate": _ACCELERATE,
    "accelerate-launch": _Program("accelerate", _ACCELERATE.switches, starts_python=True),
    "accelerate.commands.launch": _Program("accelerate", _ACCELERATE.switches, starts_python=True),
    "accelerate.commands.accelerate_cli": _ACCELERATE,
    "deepspeed": _DEEPSPEED,
    "deepspeed.launcher.runner": _DEEPSPEED,
    "ds": _DEEPSPEED,
    "composer": _Program(
        "composer", _set("m module_mode command_mode c v verbose"), starts_python=True
    ),
    "tune": _Program("tune", _set("standalone m no_python"), verbs=("run",)),
    "colossalai": _Program("colossalai", _set("m"), verbs=("run",), starts_python=True),
    "msrun": _Program("msrun", _set("m"), starts_python=True),
    "mpirun": _MPIRUN,
    "mpiexec": _MPIRUN,
    "mpiexec.hydra": _MPIRUN,
    "orterun": _MPIRUN,
    "prun": _MPIRUN,
    "horovodrun": _Program("horovodrun", _set("verbose gloo mpi disable_cache")),
    "flux": _Program("flux", _set("exclusive x unbuffered u label_io l"), verbs=("run", "submit")),
    "jsrun": _Program("jsrun", _set("X exit_on_error")),
    "aprun": _Program("aprun", _set("q cc")),
    "singularity": _Program("container", valued=_CONTAINER, positional=1, verbs=("exec", "run")),
    "apptainer": _Program("container", valued=_CONTAINER, positional=1, verbs=("exec", "run")),
    "docker": _Program("container", valued=_DOCKER, positional=1, verbs=("run", "exec")),
    "podman": _Program("container", valued=_DOCKER, positional=1, verbs=("run", "exec")),
    "nvidia-docker": _Program("container", valued=_DOCKER, positional=1, verbs=("run", "exec")),
    "enroot": _Program(
        "container", valued=_set("m mount e env c conf"), positional=1, verbs=("start",)
    ),
    "shifter": _Program("container", valued=_set("image i volume V module m env e workdir w")),
    "ch-run": _Program("container", valued=_set("b bind c cd set_env"), positional=1),
    "numactl": _Program("numactl", _set("localalloc l show s hardware H all a balancing b")),
    "env": _Program("env", valued=_set("u unset C chdir")),
    "nohup": _Program("nohup"),
    "time": _Program("time", valued=_set("f format o output")),
    "exec": _Program("exec", valued=_set("a")),
    "command": _Program("command", valued=_set("")),
    "builtin": _Program("builtin", valued=_set("")),
    "sudo": _Program("sudo", valued=_set("u user g group C D h p")),
    "setsid": _Program("setsid", valued=_set("")),
    "stdbuf": _Program("stdbuf", valued=_set("i o e")),
    "nice": _Program("nice", valued=_set("n adjustment")),
    "ionice": _Program("ionice", valued=_set("c n class classdata")),
    "chrt": _Program("chrt", valued=_set("T P D"), positional=1),
    "taskset": _Program("taskset", valued=_set(""), positional=1),
    "timeout": _Program("timeout", valued=_set("k kill_after s signal"), positional=1),
    "unbuffer": _Program("unbuffer", valued=_set("")),
    "nsys": _Program("profiler", _set("nvtx_domain_all no_stop"), verbs=("profile", "launch")),
    "ncu": _Program("profiler", _set("f force_overwrite nvtx h list_sets csv")),
    "rocprof": _Program("profiler", valued=_set("i o d m t")),
    "rocprofv3": _Program("profiler", valued=_set("i o d output_file output_directory")),
    "strace": _Program("profiler", valued=_set("o e p s P")),
    "conda": _Program("environment", valued=_set("n name p prefix cwd"), verbs=("run",)),
    "mamba": _Program("environment", valued=_set("n name p prefix cwd"), verbs=("run",)),
    "micromamba": _Program("environment", valued=_set("n name p prefix cwd"), verbs=("run",)),
    "uv": _Program(
        "environment",
        valued=_set(
            "with extra group python p project directory package env_file with_requirements"
        ),
        verbs=("run",),
    ),
    "poetry": _Program("environment", valued=_set("C P"), verbs=("run",)),
    "pipenv": _Program("environment", valued=_set(""), verbs=("run",)),
    "pdm": _Program("environment", valued=_set("p"), verbs=("run",)),
    "pixi": _Program("environment", valued=_set("e environment manifest_path"), verbs=("run",)),
    "ray": _Program("ray", _set("no_wait verbose v"), verbs=("job submit",)),
    "xargs": _Program("xargs", valued=_set("n P I L d E s a")),
    "pdsh": _Program("pdsh", valued=_set("w x f l t u R g"), positional=0),
}
_SHELLS: Final = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
_PYTHON: Final = re.compile(r"python[\d.]*")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=", re.DOTALL)
_OPTION: Final = re.compile(r"(--?)([A-Za-z][\w.-]*)(=?)", re.DOTALL)


def peel(words: Sequence[str]) -> tuple[list[tuple[str, int, int]], int]:
    """The layers before the innermost program, and its index.

    Each layer is a launcher's name with the indices where its options begin and end. The words
    are text; those that are not known are any text that is no option.
    """
    layers: list[tuple[str, int, int]] = []
    at = 0
    while at < len(words):
        name = _base(words[at])
        if _PYTHON.fullmatch(name):
            module = _module_of(words, at + 1)
            if module is None or words[module] not in _PROGRAMS:
                inside = _wrapped(words, at + 1)
                if inside is None:
                    return layers, at
                layers.append((SUBMITTER, at + 1, inside - 1))
                at = inside
                continue
            at, name = module, words[module]
        program = _PROGRAMS.get(name)
        start = at + 1
        if program is None or start > len(words):
            return layers, at
        if program.verbs:
            verb = next(
                (
                    v
                    for v in program.verbs
                    if tuple(words[start:][: len(v.split())]) == tuple(v.split())
                ),
                None,
            )
            if verb is None:
                return layers, at
            start += len(verb.split())
        end = _end_of_options(words, start, program)
        layers.append((program.name, start, end))
        at = end + program.positional
        if program.name == "env" or program.name == "sudo":
            while at < len(words) and _ASSIGNMENT.match(words[at]):
                at += 1
        if at < len(words) and words[at] == "--":
            at += 1
        if program.starts_python or program.name == "tune":
            return layers, at
    return layers, min(at, len(words))


def _base(word: str) -> str:
    """The name of a program, without its folder and what stands for it: `${BIN}python`."""
    name = word.rpartition("/")[2]
    while len(name) > 1 and (name[0] == _OPEN or has_holes(name[0])):
        name = name[1:]
    return name


def _is_module_option(word: str) -> bool:
    """Whether Python takes the next word for a module: `-m`, also behind other letters."""
    return word == "-m" or re.fullmatch(r"-[uOBEsSvIq]+m", word) is not None


def _module_of(words: Sequence[str], at: int) -> int | None:
    """The index of the module that `python … -m module` starts."""
    while at < len(words) and words[at].startswith("-"):
        if _is_module_option(words[at]):
            return at + 1 if at + 1 < len(words) else None
        at += 2 if words[at] in ("-W", "-X") else 1
    return None


def _wrapped(words: Sequence[str], at: int) -> int | None:
    """The index of a launcher that a program of Python is given behind its own options.

    `python submit.py --gpus 8 -- accelerate launch train.py` starts the rest on a cluster, as
    several commands where `&&` stands between them; the last one that launches something counts.
    """
    parts = [k + 1 for k in range(at, len(words) - 2) if words[k] in ("--", "&&")]
    return next((k for k in reversed(parts) if _launches(words, k)), None)


def _launches(words: Sequence[str], at: int) -> bool:
    name = _base(words[at])
    if _PYTHON.fullmatch(name) or name in _OWN_PROGRAMS:
        return True
    program = _PROGRAMS.get(name)
    starts = () if program is None else program.verbs
    return program is not None and (
        not starts or any([*words[at + 1 :]][: len(v.split())] == v.split() for v in starts)
    )


def _end_of_options(words: Sequence[str], at: int, program: _Program) -> int:
    while at < len(words):
        word = words[at]
        found = _OPTION.match(word)
        if found is None and _may_be_option(words, at, program):
            at += 1
            continue
        if word == "--" or found is None:
            return at
        name = found[2].replace("-", "_")
        if name in program.pairs:
            at += 3
            continue
        if found[3] or not _takes_value(program, name, found[1]):
            at += 1
            if program.starts_python and name in ("m", "module"):
                return at
            continue
        at += 2
    return min(at, len(words))


def _may_be_option(words: Sequence[str], at: int, program: _Program) -> bool:
    """Whether a word that is not known is an option: one follows, and then what is started."""
    word = words[at]
    is_open = word == _OPEN or (len(word) == 1 and has_holes(word))
    if not is_open or program.starts_python or not "".join(words[at + 1 : at + 2]).startswith("-"):
        return False
    return any(_launches(words, k) for k in range(at + 1, len(words)))


def _takes_value(program: _Program, name: str, dashes: str) -> bool:
    if program.valued is not None:
        if name in program.valued:
            return True
        # -v/a:/b, -n4, -ePATH: the value is in the word; -it: two switches
        return (
            dashes == "-"
            and len(name) > 1
            and name[-1] in program.valued
            and name[0] not in program.valued
        )
    if name in program.switches:
        return False
    is_short = (
        dashes == "-"
        and len(name) > 1
        and program.name not in ("deepspeed", "torchrun", "accelerate")
    )
    return not is_short


@dataclass(frozen=True, slots=True)
class InnerShell:
    """A shell inside a command: where it begins, what it runs, with which arguments.

    `script` is the index of the word with the text, or with `is_file` that of the file's name;
    None stands for all words from `arguments` on, joined, as `ssh` runs them. The text begins
    behind the first `skipped` characters of its word. A shell of the same machine has the exported
    variables (`has_environment`).
    """

    at: int
    script: int | None
    arguments: int
    is_file: bool = False
    has_environment: bool = True
    skipped: int = 0


def inner_shell(words: Sequence[str]) -> InnerShell | None:
    """The shell that a command starts, None where it starts none."""
    layers, at = peel(words)
    if at >= len(words):
        return None
    if layers and layers[-1][0] in ("pdsh",):
        return InnerShell(at, None, at, has_environment=False)
    name = _base(words[at])
    if name == "ssh":
        host = _after_options(words, at + 1)
        if host + 1 < len(words):
            return InnerShell(at, None, host + 1, has_environment=False)
        return None
    if name == "sbatch":
        return _batched(words, at)
    if name in _SUBMITTERS:
        return _told(words, at, *_SUBMITTERS[name], here=False)
    if name in _SHELLS:
        return _shell(words, at)
    if name.endswith((".sh", ".bash", ".slurm", ".sbatch", ".job")):
        return InnerShell(at, at, at + 1, is_file=True)
    return None


def _shell(words: Sequence[str], at: int) -> InnerShell | None:
    k = at + 1
    while k < len(words):
        word = words[k]
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word):
            k += 1
            while k < len(words) and re.fullmatch(r"[-+][a-z]+", words[k]):  # bash -c -l "…"
                k += 1
            return InnerShell(at, k, k + 1) if k < len(words) else None
        if word in ("-o", "+o", "-O", "--rcfile", "--init-file"):
            k += 2
        elif word[:1] in "-+" and len(word) > 1:
            k += 1
        else:
            return InnerShell(at, k, k + 1, is_file=True)
    return None


# Programs that run the text of an option elsewhere.
_SUBMITTERS: Final = {
    "xpk": ("--command",), "gcloud": ("--command",), "bcprun": ("-c", "--cmd"),
}  # fmt: skip


# What they say of the devices that the text runs on.
_ELSEWHERE: Final = re.compile(
    r"--(device-type|tpu-type|tpu-topology|num-nodes|num-slices|worker-count|accelerator)(?:=.*)?"
)


def _sizes_elsewhere(words: Sequence[Value]) -> Iterator[tuple[str, Value | None]]:
    for word in words:
        if (found := _ELSEWHERE.fullmatch(_plain(word))) is not None:
            yield found[1], word


def _told(words: Sequence[str], at: int, *options: str, here: bool) -> InnerShell | None:
    """The shell that runs the text of one of some options: `--wrap TEXT`, or `--wrap=TEXT`.

    It has the exported variables where it runs `here`.
    """
    for k in range(at + 1, len(words)):
        for option in options:
            begins = at if here else k
            if words[k] == option and k + 1 < len(words):
                return InnerShell(begins, k + 1, len(words), has_environment=here)
            if words[k].startswith(f"{option}="):
                skipped = len(option) + 1
                return InnerShell(begins, k, len(words), has_environment=here, skipped=skipped)
    return None


def _batched(words: Sequence[str], at: int) -> InnerShell | None:
    if (wrapped := _told(words, at, "--wrap", here=True)) is not None:
        return wrapped
    script = next(
        (k for k in range(at + 1, len(words)) if re.search(r"\.(sh|slurm|sbatch|bash)$", words[k])),
        None,
    )
    return None if script is None else InnerShell(at, script, script + 1, is_file=True)


_VALUED: Final = "bcDEeFIiJLlmOopQRSWw"  # options of ssh with a value


def _after_options(words: Sequence[str], at: int) -> int:
    while at < len(words) and words[at].startswith("-") and len(words[at]) > 1:
        at += 2 if words[at][-1] in _VALUED and len(words[at]) == 2 else 1
    return at


def trainer_call(command: Command) -> TrainerCall | None:
    """The trainer that a command starts; None where it starts none (`mkdir`, `echo`, …).

    A trainer is a Python script or module with what follows it, any program behind a launcher of
    processes, or a trainer's own program (`axolotl train`, `llamafactory-cli train`, …).
    """
    launchers: list[Launcher] = []
    for words in command.within:
        layers, at = peel([_plain(word) for word in words])
        if at < len(words) and _base(_plain(words[at])) in _SUBMITTERS:
            launchers.append(Launcher(SUBMITTER, tuple(_sizes_elsewhere(words))))
        launchers += [_launcher(layer, words) for layer in layers]
    words = command.words
    texts = [_plain(word) for word in words]
    layers, at = peel(texts)
    launchers += [_launcher(layer, words) for layer in layers]
    if at >= len(words):
        return None
    last = launchers[-1] if launchers else None
    behind = last is not None and last.name in _STARTS_PYTHON and bool(layers)
    place = None
    if behind and last is not None and not last.has("no_python"):
        is_python = _PYTHON.fullmatch(_base(texts[at]))
        place = _python(texts, at) if is_python else at
    elif _PYTHON.fullmatch(_base(texts[at])):
        place = _python(texts, at)
    elif (
        texts[at].endswith(".py")
        or (last is not None and bool(layers) and last.name == "environment" and last.has("m"))
        or (behind and last is not None)
        or _base(texts[at]) in _OWN_PROGRAMS
        or (
            any(each.name in _DISTRIBUTED for each in launchers)
            and _base(texts[at]) not in _SERVICES
            and _has_options(texts[at + 1 :])
        )
    ):
        place = at
    if place is None:
        return None
    return TrainerCall(
        program=words[place],
        arguments=tuple(words[place + 1 :]),
        launchers=tuple(launchers),
        environment=command.environment,
        line=command.line,
        condition=command.condition,
    )


_STARTS_PYTHON: Final = frozenset(
    {_TORCHRUN, "deepspeed", "accelerate", "composer", "tune", "colossalai", "msrun"}
)
# What a launcher starts beside a trainer, or before it.
_SERVICES: Final = frozenset(
    {"ray", "vllm", "nvidia-smi", "rocm-smi", "pip", "rm", "curl", "rsync"}
)
_OWN_PROGRAMS: Final = frozenset(
    {
        "automodel",
        "axolotl",
        "llamafactory-cli",
        "trl",
        "nemo",
        "swift",
        "xtuner",
        "litgpt",
        "primus-cli",
        "megatron",
    }
)


def _has_options(words: Sequence[str]) -> bool:
    return sum(word.startswith("--") for word in words) > 2


def _python(words: Sequence[str], at: int) -> int | None:
    """The index of the script or module that Python starts; None for `-c` and for nothing."""
    k = at + 1
    while k < len(words) and words[k].startswith("-") and len(words[k]) > 1:
        if _is_module_option(words[k]):
            return k + 1 if k + 1 < len(words) else None
        if words[k] in ("-c", "-V", "--version") or re.fullmatch(r"-[uOBEsSvIq]+c", words[k]):
            return None
        k += 2 if words[k] in ("-W", "-X") else 1
    return k if k < len(words) else None


def find_trainers(commands: Sequence[Command]) -> tuple[TrainerCall, ...]:
    """The trainers that a script starts, the likeliest first.

    Before others come those behind a launcher of processes, then those that depend on no
    condition that is not known, then those with more arguments; else in order.
    """
    found = [call for command in commands if (call := trainer_call(command)) is not None]
    return tuple(
        sorted(
            found,
            key=lambda call: (
                not call.is_distributed,
                call.condition is not None,
                -len(call.arguments),
            ),
        )
    )


_OPEN: Final = "\N{REPLACEMENT CHARACTER}"


def _plain(word: Value) -> str:
    """The text of a word, with one character for each part that is not known."""
    return "".join(part if isinstance(part, str) else _OPEN for part in word.parts)


def _launcher(layer: tuple[str, int, int], words: Sequence[Value]) -> Launcher:
    name, at, end = layer
    options: list[tuple[str, Value | None]] = []
    program = next((each for each in _PROGRAMS.values() if each.name == name), _Program(name))
    while at < end:
        word = words[at]
        text = _plain(word)
        found = _OPTION.match(text)
        at += 1
        if found is None:
            continue
        option = found[2].replace("-", "_")
        if found[3]:
            options.append((option, _after(word, found.end())))
            continue
        short = re.fullmatch(r"-([A-Za-z])(\d+)", text)
        if short:
            options.append((short[1], Value((short[2],))))
            continue
        is_plain = at < end and not _plain(words[at]).startswith("-")
        if is_plain and option not in program.switches:
            options.append((option, words[at]))
            at += 1
        else:
            options.append((option, None))
    return Launcher(name, tuple(options))


def _after(word: Value, count: int) -> Value:
    """A word without its first characters, which are known text."""
    first = word.parts[0]
    assert isinstance(first, str), "an option begins with text"
    return Value(tuple(part for part in (first[count:], *word.parts[1:]) if part != ""))
