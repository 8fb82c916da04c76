"""Orders as arrays of actions, one per row: the small algebra that families are written in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.schedule import ActionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from trainwright.plan.schedule import Actions


def actions(kind: ActionKind, stage: ArrayLike, microbatch: ArrayLike) -> Actions:
    """Rows of one kind; stage and microbatch broadcast against each other."""
    rows = np.empty((max(np.size(stage), np.size(microbatch)), 3), np.int32)
    rows[:, 0], rows[:, 1], rows[:, 2] = kind, stage, microbatch
    return rows


def counted(word: ArrayLike, streams: Sequence[tuple[ActionKind, int]]) -> Actions:
    """A word over streams as rows: letter i is an action of `streams[i]`, a kind and a stage.

    A letter's microbatch is how many of its kind came before it.
    """
    letters = np.asarray(word, np.int64)
    rows = np.empty((len(letters), 3), np.int32)
    rows[:, :2] = np.array(streams, np.int32)[letters]
    for letter in range(len(streams)):
        places = np.flatnonzero(letters == letter)
        rows[places, 2] = np.arange(len(places))
    return rows


def in_turn(*orders: Actions) -> Actions:
    """First rows of all, then second rows of all, …; the orders have equal length."""
    return np.stack(orders, axis=1).reshape(-1, 3)


def one_after_another(*orders: Actions) -> Actions:
    """All of the first, then all of the second, …"""
    return np.concatenate(orders)


def split_backward(order: Actions) -> Actions:
    """Replace each fused backward by its two halves, one right after the other."""
    repeats = np.where(order[:, 0] == ActionKind.B, 2, 1)
    rows = np.repeat(order, repeats, axis=0)
    fused = np.flatnonzero(rows[:, 0] == ActionKind.B)
    rows[fused[0::2], 0] = ActionKind.I
    rows[fused[1::2], 0] = ActionKind.W
    return rows


def by_time(order: Actions, time: NDArray[np.generic]) -> Actions:
    """Rows sorted by a time each; rows of equal time stay as they are."""
    return order[np.argsort(time, kind="stable")]
