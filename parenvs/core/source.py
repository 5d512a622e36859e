"""Where the problems of episodes come from: one problem, the members of a set, or a draw."""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.utils.seeding import np_random

from parenvs.errors import ParenvsError, shown

ORDERS = ("random", "sequential")
"""Orders in which the problems of a set are played: drawn, or one after the other."""


class Stream:
    """What one environment draws its problems from.

    Args:
        row: number of the environment in its batch.
        count: n, environments of the batch.

    Attributes:
        number: number of the next problem; environment i of n takes i, i + n, and so on.
    """

    def __init__(self, row: int = 0, count: int = 1) -> None:
        self.row, self.count, self.number = row, count, row
        self._seed: int | None = None
        self._rng: np.random.Generator | None = None
        self._first: Any = None  # state of the generator when it was made

    def reseed(self, seed: int) -> None:
        """Begin anew with a seed."""
        if self._rng is not None and seed == self._seed:  # faster than making one
            self._rng.bit_generator.state = self._first
        else:
            self._seed, self._rng = seed, None
        self.number = self.row

    @property
    def rng(self) -> np.random.Generator:
        """The generator; without a seed it has a random one.

        It is made on the first use, as making it takes longer than a step.
        """
        if self._rng is None:
            self._rng, self._seed = np_random(self._seed)
            self._first = self._rng.bit_generator.state
        return self._rng

    @property
    def seed(self) -> int:
        """The seed of the generator."""
        self.rng  # noqa: B018  # without a seed it is drawn
        assert self._seed is not None
        return self._seed


def word_of(rng: np.random.Generator) -> str:
    """Return the state of a generator as a word, by which what it draws next can be drawn again.

    Args:
        rng: a generator of PCG64, such as those of environments.
    """
    state: Any = rng.bit_generator.state
    words = [
        state["state"]["state"].to_bytes(16, "little"),
        state["state"]["inc"].to_bytes(16, "little"),
    ]
    if state["has_uint32"]:  # half of the last 64 bits is left
        words.append(state["uinteger"].to_bytes(4, "little"))
    return base64.urlsafe_b64encode(b"".join(words)).decode().rstrip("=")


def generator_of(word: str) -> np.random.Generator | None:
    """Return a generator in the state of a word of ``word_of``; None if it is no such word."""
    try:
        data = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return None
    if len(data) not in (32, 36):
        return None
    state, inc, rest = (int.from_bytes(x, "little") for x in (data[:16], data[16:32], data[32:]))
    bits = np.random.PCG64(0)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": state, "inc": inc},
        "has_uint32": int(len(data) > 32),
        "uinteger": rest,
    }
    rng = np.random.Generator(bits)
    return rng if word_of(rng) == word else None


class Source(ABC):
    """A source of problems, which environments that are pickled take with them.

    Attributes:
        only: the problem of all episodes, or None if they differ.
    """

    only: Any = None

    @abstractmethod
    def draw(self, stream: Stream) -> Any:
        """Return a problem, by the generator or the number of a stream."""

    def next(self, stream: Stream) -> Any:
        """Return the problem of an environment's next episode."""
        problem = self.draw(stream)
        stream.number += stream.count
        return problem

    def once(self, stream: Stream) -> Any:
        """Return a problem for one episode, after which the stream goes on as it was."""
        return self.draw(stream)

    def preview(self) -> Any:
        """Return a problem to show before the first episode; no environment's stream moves."""
        stream = Stream()
        stream._rng, stream._seed = np.random.default_rng(0), 0
        return self.draw(stream)


class Fixed(Source):
    """The source of one problem, which draws no numbers."""

    def __init__(self, problem: Any) -> None:
        self.only = problem

    def draw(self, stream: Stream) -> Any:
        """Return the problem."""
        return self.only


class Members(Source):
    """The source of the members of a set, in their order or drawn.

    Args:
        members: what ``load`` takes, such as names.
        load: returns the problem of a member; a function of a module, so that it can be pickled.
        order: one of ``ORDERS``.

    Raises:
        ParenvsError: the order is none of them.
    """

    def __init__(
        self, members: Sequence[Any], load: Callable[[Any], Any], order: str = ORDERS[0]
    ) -> None:
        self.members, self.load, self.sequential = members, load, is_sequential(order)

    def draw(self, stream: Stream) -> Any:
        """Return a member's problem: by number if the order is sequential, else drawn."""
        count = len(self.members)
        index = stream.number % count if self.sequential else int(stream.rng.integers(count))
        return self.load(self.members[index])


class Drawn(Source):
    """The source of problems that a function draws.

    Args:
        function: takes a stream and returns a problem; it can be pickled.
    """

    def __init__(self, function: Callable[[Stream], Any]) -> None:
        self.function = function

    def draw(self, stream: Stream) -> Any:
        """Return what the function draws."""
        return self.function(stream)


class Mixed(Source):
    """The source of problems of several sources, each drawn from as often as any other.

    Args:
        sources: the sources.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = list(sources)

    def draw(self, stream: Stream) -> Any:
        """Return a problem of one of the sources."""
        return self.sources[int(stream.rng.integers(len(self.sources)))].draw(stream)


def is_sequential(order: str) -> bool:
    """Return whether the problems of a set are played one after the other.

    Raises:
        ParenvsError: ``order`` is none of ``ORDERS``.
    """
    if order not in ORDERS:
        raise ParenvsError(f"order must be one of {', '.join(ORDERS)}, not {shown(order)}")
    return order == ORDERS[1]
