"""Counts a step's collectives and bytes of memory in a process of PyTorch (extra ``torch``)."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_KINDS = {
    "all_reduce": ("all-reduce", 0),
    "allreduce_": ("all-reduce", 0),
    "all_gather_into_tensor": ("all-gather", None),
    "_allgather_base_": ("all-gather", 0),
    "reduce_scatter_tensor": ("reduce-scatter", 0),
    "_reduce_scatter_base_": ("reduce-scatter", 1),
    "all_to_all_single": ("all-to-all", 0),
    "alltoall_base_": ("all-to-all", 1),
    "send": ("send", 0),
}
"""Operation of PyTorch -> kind, and which of its arguments is the whole array; None: the result."""


class Meter(TorchDispatchMode):
    """Counts what is sent, and the greatest number of bytes that tensors hold, while entered.

    Arrays of one element are not counted: the mean of a loss.

    Attributes:
        traffic: kind -> number of collectives that this process took part in, and bytes of their
            whole arrays; of sends, those that it sent.
        peak_bytes: of tensors that were made and not yet freed, at most.
    """

    def __init__(self) -> None:
        super().__init__()
        self.traffic: dict[str, tuple[int, int]] = {}
        self.peak_bytes = 0
        self._held = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, on local tensors
        for tensor in tree_leaves((args, kwargs)):
            self._hold(tensor, made=False)  # what was there before
        made = func(*args, **(kwargs or {}))
        if "c10d" in func.namespace:
            self._count(str(func.overloadpacket).split(".")[-1], args, made)
        for tensor in tree_leaves(made):
            self._hold(tensor)
        return made

    def _count(self, name: str, args: Any, made: Any) -> None:
        """Count a collective."""
        if name not in _KINDS:
            return
        kind, place = _KINDS[name]
        arrays = [
            x for x in tree_leaves(made if place is None else args[place])
            if isinstance(x, torch.Tensor)
        ]  # fmt: skip
        size = nbytes(x for x in arrays if x.numel() > 1)
        if size:
            number, before = self.traffic.get(kind, (0, 0))
            self.traffic[kind] = (number + 1, before + size)

    def _hold(self, tensor: Any, made: bool = True) -> None:
        """Count the memory of a tensor until it is freed, if it was made here."""
        if not isinstance(tensor, torch.Tensor):
            return
        try:
            storage = tensor.untyped_storage()
            size, place = storage.nbytes() if made else 0, storage._cdata
        except (RuntimeError, NotImplementedError):
            return  # it has none
        if place in self._known:
            return
        self._known.add(place)
        self._held += size
        self.peak_bytes = max(self.peak_bytes, self._held)
        weakref.finalize(storage, self._free, place, size)

    def _free(self, place: int, size: int) -> None:
        """A tensor's memory is free."""
        self._known.discard(place)
        self._held -= size


def nbytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors, of this process's parts of distributed ones."""
    local = (x.to_local() if isinstance(x, DTensor) else x for x in tensors)
    return sum(x.numel() * x.element_size() for x in local)
