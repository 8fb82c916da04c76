"""A job's own file, changed to another run: `improve --patch`.

The change is spelled in the file's own settings (`jobs.dialects`) and written into a copy of its
text where each of them stands (`jobs.edit`). The copy is read back by the reader of the format, and
only one that states exactly the wanted run is given out.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs import Beside
from trainwright.frameworks.jobs.detect import format_of
from trainwright.frameworks.jobs.dialects import DIALECTS, Words, changed_words, decisions_of
from trainwright.frameworks.jobs.edit import edited_script, edited_table
from trainwright.frameworks.jobs.hugging_face import is_trainer_script
from trainwright.frameworks.jobs.settings import parse_settings
from trainwright.frameworks.jobs.torchtitan import logged_tables
from trainwright.model.operator import usual_modules
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.model import TransformerConfig
    from trainwright.plans.configuration import Configuration

_NO_COPY: Final = "is read only: no copy of such a file is written"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobText:
    """The text of a job's file, in the dialect in which it states its run.

    `dialect` is None where a run is not spelled in it. `under` is the table with the settings, of a
    file that has others; `is_script` that they are flags of a command. `run_of` reads a text as
    the file.
    """

    path: Path
    text: str
    beside: Beside
    dialect: str | None
    under: str
    is_script: bool
    can_edit: bool
    run_of: Callable[[str], Configuration]


def job_text(
    framework: str | None,
    path: str | Path,
    text: str,
    beside: Beside,
    run_of: Callable[[str], Configuration],
) -> JobText:
    """The file of a job, of a format or of that which its content says."""
    where = Path(path)
    name = framework or format_of(text, where.name)
    dialect, under, is_script, can_edit = _told(name, text, where.name, beside)
    return JobText(
        path=where,
        text=text,
        beside=beside,
        dialect=dialect if dialect in DIALECTS else None,
        under=under,
        is_script=is_script,
        can_edit=can_edit,
        run_of=run_of,
    )


def _told(
    name: str | None, text: str, file: str, beside: Beside
) -> tuple[str | None, str, bool, bool]:
    """Dialect, the table with its settings, whether it is a script, and whether it is edited."""
    if name in ("megatron", "log"):
        from trainwright.frameworks.jobs.megatron import is_dump

        if name == "log" or is_dump(text):
            return "megatron", "", False, False
        if text.lstrip().startswith("{") or "\nMODEL_ARGS:" in f"\n{text}":
            return "megatron", "MODEL_ARGS", False, True
        flags = _flags(text, beside) or {}
        return ("megatron-deepspeed" if "deepspeed" in flags else "megatron"), "", True, True
    if name == "primus":
        whole = parse_settings(text, variables=beside.variables)
        modules = whole.get("modules")
        table, under = whole, ""
        if isinstance(modules, dict) and modules:
            first = "pre_trainer" if "pre_trainer" in modules else next(iter(modules))
            table, under = modules[first], f"modules.{first}."
        inner = str(table.get("framework", "megatron")) if isinstance(table, dict) else ""
        words = "megatron" if inner == "megatron_bridge" else inner
        return words, f"{under}overrides", False, True
    if name == "trl" and is_trainer_script(text):
        return "trl-script", "", True, True
    if name in ("verl", "megatron-bridge"):
        return name, "", False, file.endswith((".yaml", ".yml"))
    if name == "torchtitan":
        return name, "", False, "def " not in text and logged_tables(text) is None
    return name, "", False, True


def _flags(text: str, beside: Beside) -> Mapping[str, Any] | None:
    """What the trainer of a script is given; None where that cannot be read."""
    from trainwright.frameworks.jobs.script import flags_of, read_launch

    try:
        found = flags_of(read_launch(text, beside).words)
    except InvalidInput:
        return None
    return {
        name: each if each is True or isinstance(each, str) else _text(each)
        for name, each in found.items()
    }


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def patched(job: JobText, after: Configuration, model: TransformerConfig) -> str:
    """The text with the settings that state `after`.

    Raises `InvalidInput` where no edit in place makes the file state exactly that run.
    """
    before = job.run_of(job.text)
    words = None if job.dialect is None else changed_words(job.dialect, before, after, model)
    if words is None or job.dialect is None:
        raise InvalidInput.of("patch", "the file has no settings for this change")
    if not job.can_edit:
        raise InvalidInput.of("patch", _NO_COPY)
    batch = DIALECTS[job.dialect].batch
    # A batch that is not stated follows from what is changed, so it may have to be stated.
    tries = [words] if batch is None else [words, {**words, batch: after.global_batch}]
    problem = "the copy did not read back as the run that is wanted"
    for each in tries:
        try:
            text = _edited(job, each)
            if _alike(job.run_of(text), after, model):
                return text
        except InvalidInput as error:
            problem = str(error)
    raise InvalidInput.of("patch", problem)


def _edited(job: JobText, words: Words) -> str:
    if job.is_script:
        return edited_script(job.text, words, lambda text: _flags(text, job.beside))
    if job.dialect == "megatron":  # whose switches a table turns off
        words = {k: False if v is None and k in _SWITCHES else v for k, v in words.items()}
    return edited_table(job.text, job.path.name, words, job.under)


_SWITCHES: Final = ("sequence_parallel", "use_distributed_optimizer")


def _alike(found: Configuration, wanted: Configuration, model: TransformerConfig) -> bool:
    """Whether two runs are one, however their stages are said."""
    same = replace(
        found,
        parallelism=replace(
            found.parallelism,
            axis_order=wanted.parallelism.axis_order,
            sequence_parallel=wanted.parallelism.sequence_parallel,
            virtual_stages=wanted.parallelism.virtual_stages,
        ),
        schedule=wanted.schedule,
        blocks_per_stage=wanted.blocks_per_stage,
        recompute_modules=wanted.recompute_modules,
    )
    if _repeated(found) != _repeated(wanted):
        return False
    return same == wanted and decisions_of(found, model) == decisions_of(wanted, model)


def _repeated(run: Configuration) -> tuple[str, ...]:
    """What selective recomputation repeats."""
    if run.recompute is not Recompute.SELECTIVE:
        return ()
    return run.recompute_modules or usual_modules(fused_attention=run.fused_attention)


def difference(job: JobText, text: str, name: str) -> str:
    """What changed, as a unified diff."""
    before, after = (each.splitlines(keepends=True) for each in (job.text, text))
    lines = difflib.unified_diff(before, after, str(job.path), name)
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)
