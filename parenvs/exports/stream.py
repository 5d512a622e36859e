"""The order of training samples as a state that every plan continues (NumPy; no framework).

The order is a function of seed, epoch and position alone, so a job that changes its degrees goes on
at the next sample. Keys of a counter-based generator follow the same positions: what is drawn for a
sample depends neither on the rank that draws it nor on what was drawn before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.compiled import Array
from parenvs.errors import ParenvsError, shown

if TYPE_CHECKING:
    import torch

_LARGEST = 2**63 - 1
_FIELDS = ("length", "position", "seed", "shuffle")
# Constants of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Stream:
    """Samples of a data set in one global order, epoch behind epoch.

    A batch is the next ``batch`` samples; where an epoch ends inside of one, the next epoch fills
    it, so that every batch is whole and every sample comes once in an epoch. A batch is cut into
    micro-batches, and those into the slices of replicas, as ``Parallel`` cuts it. Iterating gives
    the batches from here on and moves nothing: only ``advance`` does, at the end of a step. So
    what workers of a ``DataLoader`` have read ahead is not taken for trained.

    Args:
        batch: samples of a step; it may differ before and after a change.
        seed: of the order and of the keys, from 0 to 2^63 - 1.
        shuffle: whether each epoch has an order of its own, or the data set's.

    Attributes:
        position: samples that were trained, of all epochs.

    Raises:
        ParenvsError: a number is out of its range.
    """

    def __init__(self, length: int, batch: int, seed: int = 0, shuffle: bool = True) -> None:
        _check("length", length, 1)
        _check("batch", batch, 1)
        _check("seed", seed, 0)
        if not isinstance(shuffle, bool):
            raise ParenvsError(f"stream: shuffle must be true or false, not {shown(shuffle)}")
        self.length, self.batch, self.seed, self.shuffle = length, batch, seed, shuffle
        self.position = 0
        self._order: tuple[int, Array] | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the next sample, from 0."""
        return self.position // self.length

    def ids(
        self, replica: int = 0, replicas: int = 1, micro_batch: int = 0, micro_batches: int = 1
    ) -> Array:
        """Return the indices of the samples of the next step, or of a slice of it, int64.

        Raises:
            ParenvsError: the batch does not divide into slices, or there is no such slice.
        """
        return self._samples(self._positions(replica, replicas, micro_batch, micro_batches))

    def keys(
        self, replica: int = 0, replicas: int = 1, micro_batch: int = 0, micro_batches: int = 1
    ) -> Array:
        """Return a key of 64 random bits for each sample of ``ids``, int64.

        For ``parenvs.exports.stream.dropout``, or, as ``keys.view("uint32").reshape(-1, 2)``, for
        ``jax.random.wrap_key_data``.
        """
        positions = self._positions(replica, replicas, micro_batch, micro_batches)
        with np.errstate(over="ignore"):
            seeded = _splitmix(np.array([self.seed], "uint64") + np.uint64(_GOLDEN))
            return _splitmix(seeded + positions.astype("uint64") * np.uint64(_GOLDEN)).view("int64")

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of batch after batch from here on, as a ``batch_sampler`` does."""
        position = self.position
        while True:
            yield self._samples(np.arange(position, position + self.batch)).tolist()
            position += self.batch

    def advance(self) -> None:
        """Count the samples of a step as trained."""
        self.position += self.batch

    def state_dict(self) -> dict[str, Any]:
        """Return what determines all that comes, as JSON types."""
        return {name: getattr(self, name) for name in _FIELDS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another stream was, in its order; the size of a batch stays this one's.

        Raises:
            ParenvsError: a field is missing, unknown or out of range, or the data set has another
                length.
        """
        if sorted(state) != sorted(_FIELDS):
            raise ParenvsError(
                f"stream: its state has the fields {', '.join(sorted(_FIELDS))}, not "
                f"{', '.join(map(shown, sorted(state)))}"
            )
        if state["length"] != self.length:
            raise ParenvsError(
                f"stream: length: the state is of {shown(state['length'])} samples, and the data "
                f"set has {self.length:,}; give the data set that was trained on"
            )
        _check("position", state["position"], 0)
        other = Stream(self.length, self.batch, state["seed"], state["shuffle"])
        self.seed, self.shuffle, self._order = other.seed, other.shuffle, None
        self.position = state["position"]

    def _positions(
        self, replica: int, replicas: int, micro_batch: int, micro_batches: int
    ) -> Array:
        _check("replicas", replicas, 1)
        _check("micro_batches", micro_batches, 1)
        if self.batch % (replicas * micro_batches):
            raise ParenvsError(
                f"stream: a batch of {self.batch} does not divide into {micro_batches} "
                f"micro-batches for {replicas} replicas"
            )
        _check("replica", replica, 0, replicas - 1)
        _check("micro_batch", micro_batch, 0, micro_batches - 1)
        # A micro-batch is a run of the batch, and a replica's slice a run of the micro-batch.
        rows = self.batch // (replicas * micro_batches)
        start = self.position + (micro_batch * replicas + replica) * rows
        return np.arange(start, start + rows)

    def _samples(self, positions: Array) -> Array:
        epochs, offsets = np.divmod(positions, self.length)
        result = offsets.copy()
        for epoch in np.unique(epochs).tolist() if self.shuffle else ():
            selected = epochs == epoch
            result[selected] = self._order_of(epoch)[offsets[selected]]
        return result

    def _order_of(self, epoch: int) -> Array:
        """The permutation of an epoch; the last one asked for is kept.

        Raw numbers of Philox sorted: those of a bit generator are the same in every NumPy, which
        the methods of ``Generator`` do not promise.
        """
        if self._order is None or self._order[0] != epoch:
            key = np.array([self.seed, epoch], "uint64")
            raw = np.random.Philox(key=key).random_raw(self.length)
            self._order = epoch, np.argsort(raw, kind="stable")
        return self._order[1]


def _splitmix(z: Array) -> Array:
    """The finaliser of SplitMix64, a bijection of 64 bits, of each number."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return z ^ (z >> np.uint64(31))


def _check(name: str, value: Any, minimum: int, maximum: int = _LARGEST) -> None:
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or not minimum <= value <= maximum:
        end = f" to {maximum}" if maximum < _LARGEST else ""
        raise ParenvsError(
            f"stream: {name} must be a whole number from {minimum}{end}, not {shown(value)}"
        )


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
    # Layers are 2^40 apart, more than a sample has elements: no two share a counter.
    counter = torch.arange(layer << 40, (layer << 40) + size, device=x.device)
    z = keys.reshape(-1, *[1] * (x.ndim - 1)) ^ (counter * _FACTORS[0]).view(x.shape[1:])
    for shift, factor in ((31, _FACTORS[1]), (29, _FACTORS[0])):
        z = (z ^ _logical_shift(z, shift)) * factor
    # The upper 24 bits are compared, as many as a float32 between 0 and 1 has.
    kept = _logical_shift(z, 64 - _BITS) >= round(rate * 2**_BITS)
    return x * kept / (1 - rate)


def _logical_shift(z: torch.Tensor, bits: int) -> torch.Tensor:
    import torch

    return torch.bitwise_right_shift(z, bits) & ((1 << (64 - bits)) - 1)
