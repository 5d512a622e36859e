"""The labels of the exact search, and their Pareto fronts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

_POOL = 400_000  # labels collected before they are thinned out


@dataclass
class Labels:
    """One layer of labels: suffixes of k stages.

    Attributes:
        pivot: (l,) int64, first pivot.
        device: (l,) int64, first device.
        core: (l,) float64 seconds, the transfer in front included.
        tail: (l,) float64 seconds, likewise.
        parent: (l,) int64, label of the layer before that was extended.
        bound: least length of a plan through any of the labels, seconds.
        slices: where the labels of (device, the stage before starts in its server) lie.
    """

    pivot: np.ndarray
    device: np.ndarray
    core: np.ndarray
    tail: np.ndarray
    parent: np.ndarray
    bound: float
    slices: dict[tuple[int, bool], slice] = field(default_factory=dict)


class Front:
    """Labels of several states, thinned out to their Pareto fronts now and then.

    Attributes:
        arrays: state, core, tail, parent of the labels left by the last thinning, sorted by state.
    """

    def __init__(self, states: int) -> None:
        """No labels yet; states are numbered from 0."""
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._loose = 0
        # One strong label a state, that most others are worse than.
        self._core, self._tail = np.full(states, np.inf), np.full(states, np.inf)
        nothing = np.zeros(0, dtype=np.int64)
        self.arrays: tuple[np.ndarray, ...] = (nothing, np.zeros(0), np.zeros(0), nothing)

    @property
    def size(self) -> int:
        """Number of labels left by the last thinning."""
        return len(self.arrays[0])

    def dominates(self, state: np.ndarray, core: np.ndarray, tail: np.ndarray) -> np.ndarray:
        """Labels that the strong label of their state is no worse than."""
        return np.asarray((self._core[state] <= core) & (self._tail[state] <= tail))

    def add(self, *label: np.ndarray) -> None:
        """Add labels: state, core, tail, parent."""
        self._parts.append(label)
        self._loose += len(label[0])
        if self._loose > _POOL:
            self.thin()

    def thin(self) -> None:
        """Keep the labels that no other label of their state is as good as."""
        if not self._loose:
            return
        columns = zip(self.arrays, *self._parts, strict=True)
        state, core, tail, parent = (np.concatenate(x) for x in columns)
        self._parts, self._loose = [], 0
        kept = pareto(state, core, tail)
        self.arrays = state, core, tail, parent = tuple(
            x[kept] for x in (state, core, tail, parent)
        )
        best = np.lexsort((-(core + tail), state))
        self._core[state[best]], self._tail[state[best]] = core[best], tail[best]


def pareto(state: np.ndarray, core: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """The labels that no other label of their state is as good as, sorted by state and core."""
    order = np.lexsort((tail, core, state))
    state, tail = state[order], tail[order]
    # A label stays if its tail is below all tails before it in its state. The running minimum
    # restarts at each state because ranks of later states are shifted below all earlier ones.
    ascending = np.argsort(tail, kind="stable")
    place = np.append(0, np.cumsum(np.diff(tail[ascending]) > 0))  # equal tails, equal ranks
    rank = np.empty(len(tail), dtype=np.int64)
    rank[ascending] = place[: len(tail)]
    rank -= state * np.int64(len(tail) + 1)
    stays = np.ones(len(tail), dtype=bool)
    stays[1:] = rank[1:] < np.minimum.accumulate(rank)[:-1]
    return order[stays]


def not_beaten(state: np.ndarray, core: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """The labels that the one of least core plus tail of their state does not beat.

    It takes no sorting: ``state`` ascends.
    """
    if not len(state):
        return state
    new = np.append(True, state[1:] != state[:-1])
    group, value = np.cumsum(new) - 1, core + tail
    best = np.flatnonzero(value == np.minimum.reduceat(value, np.flatnonzero(new))[group])
    best = best[np.append(True, group[best[1:]] != group[best[:-1]])]
    stays = (core < core[best][group]) | (tail < tail[best][group])
    stays[best] = True
    return np.flatnonzero(stays)


def join(parts: list[tuple[int, bool, Front]], bound: float) -> Labels:
    """One layer of labels from the fronts of (device, stage before in its server)."""
    slices, device, start = {}, [], 0
    for e, same, front in parts:
        slices[e, same] = slice(start, start + front.size)
        start += front.size
        device.append(np.full(front.size, e))
    empty: list[tuple[np.ndarray, ...]] = [(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))]
    arrays = [front.arrays[:3] for _, _, front in parts] or empty
    pivot, core, tail = (np.concatenate(x) for x in zip(*arrays, strict=True))
    parent = np.concatenate([front.arrays[3] for _, _, front in parts] or [pivot])
    where = np.concatenate(device or [pivot])
    return Labels(pivot, where, core, tail, parent, bound, slices)
