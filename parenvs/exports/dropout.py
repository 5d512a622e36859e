"""Dropout whose masks belong to samples, not to ranks or steps (extra ``torch``)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from parenvs.errors import ParenvsError

if TYPE_CHECKING:
    import torch

_FACTORS = (0x2545F4914F6CDD1D, 0x369DEA0F31A53F85)  # odd, below 2^63
_BITS = 24
_left_out: ContextVar[bool] = ContextVar("left_out", default=False)


@contextmanager
def left_out() -> Iterator[None]:
    """Let ``dropout`` do nothing, for graphs of plans: they have no whole numbers of 64 bits."""
    token = _left_out.set(True)
    try:
        yield
    finally:
        _left_out.reset(token)


def dropout(x: torch.Tensor, rate: float, keys: torch.Tensor, layer: int = 0) -> torch.Tensor:
    """Zero elements with a probability and scale the others, as ``torch.nn.functional.dropout``.

    Whether an element is kept is a function of its sample's key, the layer and its place in the
    sample: the same under every plan, on every device, and again when a step is repeated.

    Args:
        x: (batch, ...) activations.
        rate: probability of zero, from 0 to less than 1.
        keys: (batch,) int64, from ``Stream.keys``; an input of the module.
        layer: another number at each place in the module, from 0.

    Raises:
        ParenvsError: the rate is out of range.
    """
    import torch

    if not 0 <= rate < 1:
        raise ParenvsError(f"dropout: rate must be from 0 to less than 1, not {rate}")
    if _left_out.get():
        return x
    size = math.prod(x.shape[1:])
    counter = torch.arange(layer << 40, (layer << 40) + size, device=x.device)
    z = keys.reshape(-1, *[1] * (x.ndim - 1)) ^ (counter * _FACTORS[0]).view(x.shape[1:])
    for shift, factor in ((31, _FACTORS[1]), (29, _FACTORS[0])):
        z = (z ^ _shifted(z, shift)) * factor
    kept = _shifted(z, 64 - _BITS) >= round(rate * 2**_BITS)
    return x * kept / (1 - rate)


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    """A logical shift to the right; of a DTensor, the operator ``>>`` gives wrong numbers."""
    import torch

    return torch.bitwise_right_shift(z, bits) & ((1 << (64 - bits)) - 1)
