"""The accounts of frameworks' memory that ship with the package: `cluster/memory/*.toml`.

```toml
name = "deepspeed"
software = ["deepspeed"]          # parts of the names of programs
update_bytes = 6                  # the fields of `cluster.framework_memory.FrameworkMemory`
context_mib = 1573                # sizes of a process in MiB
communicator_mib = 688
reserved = { low = 1.0, typical = 1.05, high = 1.1 }
[sources]                         # where each fact comes from
update_bytes = "deepspeed/runtime/zero/stage_1_and_2.py"
```
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from trainwright.cluster.framework_memory import (
    Figure,
    FrameworkMemory,
    Share,
    memory_of_software,
)
from trainwright.units import MIB

if TYPE_CHECKING:
    from trainwright.plans.configuration import MemoryOverheads


@cache
def framework_memories() -> tuple[FrameworkMemory, ...]:
    """All accounts, by name."""
    folder = resources.files("trainwright.cluster") / "memory"
    files = sorted((each for each in folder.iterdir()), key=lambda each: each.name)
    return tuple(
        _read(file.read_text(encoding="utf-8")) for file in files if file.name.endswith(".toml")
    )


def framework_memory(name: str | None) -> FrameworkMemory:
    """The account of a program by its usual name; the typical one where nobody knows it."""
    return memory_of_software(framework_memories(), name)


def deciding_memory(name: str | None, kept: MemoryOverheads) -> FrameworkMemory | None:
    """The account by which a run of a program fits; None where the margins alone decide."""
    return framework_memory(name) if kept.fit_probability else None


def _read(text: str) -> FrameworkMemory:
    table = tomllib.loads(text)
    context, communicator = table.pop("context_mib"), table.pop("communicator_mib")
    return FrameworkMemory(
        software=tuple(table.pop("software", ())),
        reports=Figure(table.pop("reports", Figure.ALLOCATED)),
        context_bytes=context * MIB,
        communicator_bytes=communicator * MIB,
        allocated=Share(**table.pop("allocated")),
        reserved=Share(**table.pop("reserved")),
        **table,
    )
