"""How many bytes autograd keeps for backwards, counted where it saves them.

PyTorch hands every tensor it saves to a hook, and drops what the hook returned when the backward
has used it. Floating-point tensors that are no parameters count once per microbatch and stage,
whoever saves them again.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import torch


class _Kept:
    """What autograd holds in place of a tensor."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class KeptTensors:
    """Counts bytes by owner, which whoever runs an action sets before it: stage and microbatch."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        self.owner: Hashable = None
        self._parameters = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self._holders: Counter[tuple[Hashable, int]] = Counter()
        self._bytes: Counter[Hashable] = Counter()

    def counting(self) -> Any:
        """A context in which forwards are counted."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def bytes_of(self, owners: Iterable[Hashable]) -> int:
        """Bytes now kept for these owners."""
        return sum(self._bytes[owner] for owner in owners)

    def total_bytes(self) -> int:
        """Bytes now kept for all."""
        return sum(self._bytes.values())

    def _pack(self, tensor: Any) -> _Kept:
        # Detached, or what it was made from would stay as long as it is kept.
        kept, storage = _Kept(tensor.detach()), tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in self._parameters:
            key, size = (self.owner, storage.data_ptr()), storage.nbytes()
            self._holders[key] += 1
            if self._holders[key] == 1:
                self._bytes[self.owner] += size
            weakref.finalize(kept, self._drop, key, size)
        return kept

    def _unpack(self, kept: _Kept) -> Any:
        return kept.tensor

    def _drop(self, key: tuple[Hashable, int], size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self._bytes[key[0]] -= size
