"""`trainwright capture`: run a script with launchers that only record what they were asked to do.

For scripts whose text alone does not say what they start. The command is the user's own choice and
runs as it is, with all its other effects; only the launchers found on PATH are replaced: each
writes its name, its arguments and the variables that matter, and succeeds without starting
anything. What is printed is a script of one command, which `estimate` and `improve` read.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from trainwright.errors import InvalidInput
from trainwright.formats.atomic_file import write_text

LAUNCHERS: Final = (
    "torchrun", "deepspeed", "accelerate", "srun", "mpirun", "mpiexec", "python", "python3",
    "llamafactory-cli", "axolotl", "tune", "composer", "uv", "sbatch", "ray",
)  # fmt: skip
# What programs beside a launcher are started for, and is let through: a version, a line of code.
_PASSED: Final = ("-c", "-V", "--version", "-m", "-")
_TRAINERS: Final = ("torch.distributed", "torchrun", "deepspeed", "accelerate", "megatron", "verl")
_RECORDER: Final = """\
#!{shell}
real={real}
case "${{1:-}}" in
  {passed}) if [ -n "$real" ] && {probe}; then exec "$real" "$@"; fi ;;
esac
{{ printf '%s\\0' {name} "$@"; printf '\\n'; }} >> {log}
exit 0
"""


def capture(command: Sequence[str], *, limit_s: float = 600.0) -> tuple[str, ...]:
    """The command lines of launchers that a command would have started, in their order.

    Runs the command, which may do anything but start what its launchers start. Raises
    `InvalidInput` where there is no such command, it takes longer than `limit_s`, or nothing was
    launched.

        capture(["bash", "train.sh"])
    """
    if not command:
        raise InvalidInput.of("command", "must be given behind --, such as -- bash train.sh")
    with tempfile.TemporaryDirectory(prefix="trainwright-") as folder:
        log = Path(folder) / "launched"
        beside = Path(folder) / "bin"
        _write_recorders(beside, log, os.environ)
        path = f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        try:
            done = subprocess.run(
                list(command), env={**os.environ, "PATH": path}, timeout=limit_s, check=False,
                stdout=2, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except FileNotFoundError:
            raise InvalidInput.of("command", f'cannot be run: "{command[0]}"') from None
        except subprocess.TimeoutExpired:
            raise InvalidInput.of("command", f"took more than {limit_s:g} s") from None
        found = tuple(_recorded(log))
    if not found:
        names = ", ".join(LAUNCHERS[:6])
        status = f"ended with status {done.returncode} and "
        raise InvalidInput.of("command", f"{status}started no launcher ({names}, …)")
    return found


def _write_recorders(folder: Path, log: Path, environment: Mapping[str, str]) -> None:
    folder.mkdir()
    shell = shutil.which("sh") or "/bin/sh"
    for name in LAUNCHERS:
        real = shutil.which(name, path=environment.get("PATH"))
        is_python = name.startswith("python")
        names = "|".join(f"*{each}*" for each in _TRAINERS)
        probe = f'case "${{2:-}}" in {names}) false ;; *) true ;; esac' if is_python else "false"
        text = _RECORDER.format(
            shell=shell,
            real=shlex.quote(real or ""),
            passed="|".join(_PASSED),
            probe=probe,
            name=shlex.quote(name),
            log=shlex.quote(str(log)),
        )
        file = folder / name
        file.write_text(text)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)


def _recorded(log: Path) -> Iterator[str]:
    if not log.exists():
        return
    for line in log.read_text(errors="replace").split("\0\n"):
        words = line.split("\0")
        if words and words[0].strip():
            yield shlex.join([words[0].strip(), *words[1:]])


# `trainwright capture`
# ---------------------


def command(words: tuple[str, ...], *, output: Path | None = None) -> None:
    """Print the recorded command lines as a script."""
    found = capture(words)
    text = "#!/bin/bash\n" + "".join(f"{line}\n" for line in found)
    if output is not None:
        write_text(output, text)
    print(text, end="")
