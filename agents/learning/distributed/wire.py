"""What crosses the wire: tensors as arrays, what is seen packed, everything else as it is."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np
import torch

from parenvs.agents.learning.net import Packed, Seen


class _Tensor(NamedTuple):
    values: np.ndarray


def packed(value: Any) -> Any:
    """Return a value with arrays in place of tensors, in any depth of tuples, lists and dicts."""
    if isinstance(value, Seen):
        return value.packed()
    if isinstance(value, torch.Tensor):
        return _Tensor(value.detach().cpu().numpy())
    return _mapped(packed, value)


def unpacked(value: Any) -> Any:
    """Return what was packed."""
    if isinstance(value, Packed):
        return value.seen()
    if isinstance(value, _Tensor):
        # A copy, as what an object store holds is not to be written.
        return torch.from_numpy(value.values.copy())
    return _mapped(unpacked, value)


def sent(value: Any) -> bytes:
    """Return a value as bytes."""
    return pickle.dumps(packed(value), pickle.HIGHEST_PROTOCOL)


def received(data: bytes) -> Any:
    """Return the value of bytes that a process of this training sent."""
    return unpacked(pickle.loads(data))  # links are between own processes


def _mapped(function: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: function(each) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(function(each) for each in value))
    if isinstance(value, (tuple, list)):
        return type(value)(function(each) for each in value)
    return value
