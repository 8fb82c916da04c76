"""What an export leaves: files, how to start them, and what they do not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Who wrote a file, and from which plan; `changes` say how what is written differs from it."""

    trainwright_version: str
    plan_sha256: str
    changes: tuple[str, ...] = ()

    @property
    def short_hash(self) -> str:
        """Enough of the hash to find the plan."""
        return self.plan_sha256[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportBundle:
    """Texts by file name, for one target.

    `command` starts the program on every node, after the launcher and the lines of `setup`;
    `starter` is that launcher, torchrun or accelerate; `environment` are variables that must be
    set, or unset where empty. `not_represented` lists what
    of the plan the files cannot say and the framework decides by itself, `asked_of_user` what they
    need from the user.
    """

    target: str
    version: str
    files: Mapping[str, str]
    command: tuple[str, ...]
    setup: tuple[str, ...] = ()
    starter: str = "torchrun"
    environment: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    not_represented: tuple[str, ...] = ()
    asked_of_user: tuple[str, ...] = ()
