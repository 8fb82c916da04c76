"""What leaves a statement before its end: `exit`, `return`, `break` and `continue`."""

from __future__ import annotations


class Leave(Exception):
    """Something left; `status` is None where it is not known, `why` is then its hole."""

    def __init__(self, status: int | None = 0, why: str = "") -> None:
        super().__init__()
        self.status = status
        self.why = why


class Exit(Leave):
    """`exit`, or a command that fails under `set -e`."""

    def __init__(self, status: int | None = 0, line: int = 0) -> None:
        super().__init__(status)
        self.line = line


class Return(Leave):
    """`return` from a function or a sourced file."""


class Break(Leave):
    """`break` out of a number of loops."""

    def __init__(self, levels: int = 1) -> None:
        super().__init__()
        self.levels = levels


class Continue(Leave):
    """`continue` with the next turn of the loop that many levels out."""

    def __init__(self, levels: int = 1) -> None:
        super().__init__()
        self.levels = levels
