"""What a long sweep writes down as it goes, so that it can be taken up again."""

from __future__ import annotations

from typing import Any, Protocol


class Journal(Protocol):
    """Finished batches by key; a batch is in it entirely or not at all."""

    def find(self, key: str) -> Any | None:
        """What a finished batch gave, as JSON values; None where it is not finished."""
        ...

    def append(self, key: str, value: Any) -> None:
        """Write a finished batch down."""
        ...
