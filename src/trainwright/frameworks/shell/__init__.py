"""Launch scripts in bash: what they would start, without starting it."""

from trainwright.frameworks.shell.launchers import Command, Launcher, TrainerCall, find_trainers
from trainwright.frameworks.shell.script import Batch, Directive, ScriptRun, read_batch, read_script
from trainwright.frameworks.shell.session import Assumption, End, NotSourced
from trainwright.frameworks.shell.values import Unknown, Value

__all__ = [
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
