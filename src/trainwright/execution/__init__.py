"""How long work may take, how it says where it is, and how it is stopped."""

from trainwright.execution.budget import Budget, Progress

__all__ = ["Budget", "Progress"]
