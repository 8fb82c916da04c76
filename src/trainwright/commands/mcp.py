"""`trainwright mcp`: plan, estimate, improve and explain for agents, over stdio.

A server on the official SDK of the Model Context Protocol. Each tool takes the arguments of its
command as one would type them and answers with the document that the command prints with --json;
a refusal is an answer, too, and says what to mend. No tool writes a file.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from trainwright.errors import InvalidInput, MissingExtra, TrainwrightError, one_of
from trainwright.provenance import __version__

_LIMIT_S: Final = 300.0
# What writes files, or reads none of the documents that a tool may name.
_REFUSED: Final = ("--output", "-o", "--patch", "--force", "--config")
TOOLS: Final = {
    "plan": "The best plan of a model on a cluster. Arguments as of the command line, such as "
    '["llama3-8b", "--cluster", "dgx-h100", "--nodes", "2", "--global-batch", "64", '
    '"--sequence", "4096", "--time-limit", "30s"].',
    "estimate": "Time and memory of one run, stated by options or by a job file of a framework: "
    '["train.sh", "--cluster", "dgx-h100"].',
    "improve": "The smallest change of a run or of a job file that gets most of what is possible: "
    '["train.sh", "--cluster", "dgx-h100", "--time-limit", "60s"].',
    "explain": "What a document says, as a table; of a plan also why: the path of a document.",
    "support": "What can be asked of a model on a device, and how well it is known: "
    '["llama3-8b", "dgx-h100"].',
}


def answer(tool: str, arguments: Sequence[str], *, limit_s: float = _LIMIT_S) -> str:
    """What a command prints with --json for the arguments; a refusal is a document, too.

    Runs in a process of its own, ended after `limit_s` seconds. Raises `InvalidInput` for an
    unknown tool or for an option that writes a file.
    """
    if tool not in TOOLS:
        raise InvalidInput.of("tool", one_of(TOOLS, tool))
    for word in arguments:
        flag = word.partition("=")[0]
        if flag in _REFUSED or (flag.startswith("-o") and not flag.startswith("--")):
            raise InvalidInput.of("arguments", f"must write no file, got {flag}")
    line = [sys.executable, "-m", "trainwright", tool, *arguments]
    line += [] if "--json" in arguments else ["--json"]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=limit_s, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        problem = f"took more than {limit_s:g} s: give --time-limit"
        raise InvalidInput.of("arguments", problem) from None
    return done.stdout or done.stderr


def server() -> Any:
    """The server with its tools; raises `MissingExtra` without the SDK."""
    try:
        from mcp.server.mcpserver import MCPServer as Server
    except ImportError:
        try:
            from mcp.server.fastmcp import FastMCP as Server  # before version 2
        except ImportError:
            raise MissingExtra("serving agents needs the package mcp", extra="mcp") from None
    made = Server("trainwright", instructions=f"trainwright {__version__}: see each tool.")
    for name, text in TOOLS.items():
        made.add_tool(_tool(name), name=name, description=text)
    return made


def _tool(name: str) -> Callable[[list[str]], str]:
    def call(arguments: list[str]) -> str:
        try:
            return answer(name, arguments)
        except TrainwrightError as error:  # to be read and mended, not an error of the server
            return f"error: {error}"

    return call


# `trainwright mcp`
# -----------------


def command() -> None:
    """Serve until the other side closes."""
    server().run(transport="stdio")
