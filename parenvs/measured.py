"""What was measured of a server: products and attention by shape, memory, collectives.

It is the field ``measured`` of a cluster's file, which ``parenvs calibrate`` writes. Hybrid plans
are priced by it where it has what they run, and by a software stack elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from parenvs.compiled import Array, Figure
from parenvs.fields import Count, Text, number, one_of, words

FORWARD, INPUT, WEIGHT = ROLES = ("forward", "input", "weight")
"""What a product makes: outputs, or gradients of inputs or of weights."""
PASSES = ("forward", "backward")
"""Passes of attention."""
OTHER, PERMUTE, LOSS, FUSED_LOSS = TRAFFIC = ("other", "permute", "loss", "fused-loss")
"""Kernels that memory bounds: those that bring tokens to their experts and back, the loss as
several kernels or as one, and all others."""
GATHER, EXCHANGE = COLLECTIVES = ("all-gather", "all-to-all")
"""Collectives; a reduce-scatter takes as long as an all-gather."""
NEAREST = 4
"""Measured shapes of which the share of one between them is a mean."""
FURTHEST = 4.0
"""Factor in one of its numbers from which on a shape is not like the nearest measured one."""

_Precision = Annotated[str, words("a precision")]
_Share = Annotated[float, words("a share over 0", ge=1e-6, le=100)]
_Seconds = Annotated[float, number(0, 60, "seconds from 0")]
_Product = tuple[_Precision, Annotated[str, one_of(*ROLES)], Count, Count, Count, Count, _Share]
_Attention = tuple[
    _Precision, Annotated[str, one_of(*PASSES)], Count, Count, Count, Count, Count, Count, _Share
]


@dataclass(frozen=True)
class Measured:
    """Figures of one server; shares are of the figures of its cluster's file.

    Attributes:
        source: who measured it, with what.
        products: precision, one of ``ROLES``, g, m, k, n, and the share of the peak that g products
            of (m, k) by (k, n) in one kernel reach. Where weights are (k, n), their gradients are
            products of (k, m) by (m, n).
        attention: precision, pass, samples, sequence, heads, heads of keys, widths of keys and of
            values, and the share of the peak that causal attention reaches whose scores all count;
            a backward pass counts as 2.5 forward ones.
        traffic: one of ``TRAFFIC`` -> share of the memory's bandwidth, and seconds of each kernel
            besides.
        collectives: one of ``COLLECTIVES`` -> share of the bandwidth inside a server, seconds of
            each step, and seconds once.
        layer_seconds: see ``parenvs.tasks.hybrid.stack.Stack``; 0: the stack's.
    """

    source: Text
    products: tuple[_Product, ...] = field(default=(), hash=False)
    attention: tuple[_Attention, ...] = field(default=(), hash=False)
    traffic: dict[Annotated[str, one_of(*TRAFFIC)], tuple[_Share, _Seconds]] = field(
        default_factory=dict, hash=False
    )
    collectives: dict[Annotated[str, one_of(*COLLECTIVES)], tuple[_Share, _Seconds, _Seconds]] = (
        field(default_factory=dict, hash=False)
    )
    layer_seconds: _Seconds = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the fields that say anything."""
        return {field.name: x for field in fields(self) if (x := getattr(self, field.name))}

    @cached_property
    def _tables(self) -> dict[tuple[Any, ...], tuple[Array, Array]]:
        """Logarithms of the shapes of each kind of kernel, a row each, and their shares."""
        found: dict[tuple[Any, ...], dict[tuple[int, ...], list[float]]] = {}
        for precision, role, groups, m, k, n, share in self.products:
            for key in ((precision, role, groups > 1), (precision, "", groups > 1)):
                found.setdefault(key, {}).setdefault((groups, m, k, n), []).append(share)
        for precision, which, samples, sequence, heads, keys, *widths, share in self.attention:
            kernels = found.setdefault((precision, which), {})
            shape = (sequence, samples * heads, samples * keys, *widths)
            kernels.setdefault(shape, []).append(share)
        return {
            key: (np.log(np.array([*kernels])), np.array([np.mean(x) for x in kernels.values()]))
            for key, kernels in found.items()
        }

    def product_share(
        self, precision: str, role: str, groups: Figure, m: Figure, k: Figure, n: Figure
    ) -> Figure:
        """Return the share of the peak that products reach, elementwise; NaN where none is known.

        ``role`` is empty where it is not known.
        """
        grouped = bool(np.any(np.greater(groups, 1)))
        return self._share((precision, role, grouped), groups, m, k, n)

    def attention_share(
        self, precision: str, which: str, samples: Figure, sequence: Figure, *heads: Figure
    ) -> Figure:
        """Return the share that attention reaches in a pass, as ``product_share`` does.

        ``heads`` are those of queries and of keys, and both widths.
        """
        queries, keys, *widths = heads
        # Heads of all samples run beside each other.
        counts = np.multiply(samples, queries), np.multiply(samples, keys)
        return self._share((precision, which), sequence, *counts, *widths)

    def _share(self, key: tuple[Any, ...], *shape: Figure) -> Figure:
        arrays = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in shape))
        if key not in self._tables:
            return np.full(arrays[0].shape, np.nan)
        points, shares = self._tables[key]
        rows = np.log(np.stack([x.ravel() for x in arrays], axis=1))
        rows, place = np.unique(rows, axis=0, return_inverse=True)
        apart = np.abs(rows[:, None] - points)
        distance = np.sqrt((apart**2).sum(axis=2))
        near = np.argsort(distance, axis=1, kind="stable")[:, :NEAREST]
        # A shape that was measured has its own share: its weight is 1e24 and more.
        weights = 1 / np.maximum(np.take_along_axis(distance, near, axis=1), 1e-12) ** 2
        result = (weights * shares[near]).sum(axis=1) / weights.sum(axis=1)
        furthest = apart[np.arange(len(rows)), near[:, 0]].max(axis=1)
        result[furthest > np.log(FURTHEST)] = np.nan
        return result[place.ravel()].reshape(arrays[0].shape)

    def rate(self, precision: str) -> float | None:
        """Return the share of the peak of all measured products together; None if there are none.

        Every kernel runs once, so large products count most.
        """
        known = [(g * m * k * n, share) for p, _, g, m, k, n, share in self.products
                 if p == precision]  # fmt: skip
        whole = sum(size for size, _ in known)
        return whole / sum(size / share for size, share in known) if known else None
