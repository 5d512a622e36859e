"""Labels of the exact searches, and the Pareto fronts that are kept of them.

A suffix is the last k stages of a plan. Its *state* is where it starts; its *label* is the pair of
seconds (core, tail), all that the stages in front of it depend on (``label_search`` says why). A
label *dominates* another one of the same state if neither its core nor its tail is greater. The
*front* of a state is its labels that no other one dominates; of equal ones, one stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

_POOL = 400_000  # labels that are collected before they are thinned out


@dataclass
class Labels:
    """One layer of labels: those of suffixes of k stages.

    Attributes:
        pivot: (l,) int64, first pivot.
        device: (l,) int64, first device.
        core: (l,) float64 seconds, the transfer in front included.
        tail: (l,) float64 seconds, likewise.
        parent: (l,) int64, the label of the layer before that was extended.
        bound: seconds; no plan through any of the labels is shorter.
        slices: (e, same) -> range of the labels whose first device is e; ``same`` says whether the
            stage in front starts in the server of e.
    """

    pivot: np.ndarray
    device: np.ndarray
    core: np.ndarray
    tail: np.ndarray
    parent: np.ndarray
    bound: float
    slices: dict[tuple[int, bool], slice] = field(default_factory=dict)


class LayerPart(NamedTuple):
    """Labels of a layer that share their first device and the server of the stage in front.

    Attributes:
        device: their first device.
        same: whether the stage in front starts in the server of ``device``.
        pivot: (l,) int64, first pivot.
        core: (l,) float64 seconds, the transfer in front included.
        tail: (l,) float64 seconds, likewise.
        parent: (l,) int64, the label of the layer before that was extended.
    """

    device: int
    same: bool
    pivot: np.ndarray
    core: np.ndarray
    tail: np.ndarray
    parent: np.ndarray


class FrontLabels(NamedTuple):
    """Labels of numbered states.

    Attributes:
        state: (l,) int64, number of the state.
        core: (l,) float64 seconds.
        tail: (l,) float64 seconds.
        parent: (l,) int64, the label of the layer before that was extended.
    """

    state: np.ndarray
    core: np.ndarray
    tail: np.ndarray
    parent: np.ndarray


class Front:
    """Collects labels of several states and reduces them to the fronts now and then.

    Attributes:
        labels: the labels that the last ``thin`` left, sorted by state.
    """

    def __init__(self, states: int) -> None:
        """Start without labels; the states are numbered from 0 to ``states`` - 1."""
        nothing = np.zeros(0, dtype=np.int64)
        self.labels = FrontLabels(nothing, np.zeros(0), np.zeros(0), nothing)
        self._added: list[FrontLabels] = []  # since the last ``thin``
        self._added_count = 0
        # Of each state, the label of least core + tail: it dominates most others.
        self._strong_core = np.full(states, np.inf)
        self._strong_tail = np.full(states, np.inf)

    def dominates(self, state: np.ndarray, core: np.ndarray, tail: np.ndarray) -> np.ndarray:
        """(l,) bool, which of the given labels the strong label of their state dominates."""
        return np.asarray((self._strong_core[state] <= core) & (self._strong_tail[state] <= tail))

    def add(
        self, state: np.ndarray, core: np.ndarray, tail: np.ndarray, parent: np.ndarray
    ) -> None:
        """Add labels, (l,) each; see ``FrontLabels``."""
        self._added.append(FrontLabels(state, core, tail, parent))
        self._added_count += len(state)
        if self._added_count > _POOL:
            self.thin()

    def thin(self) -> None:
        """Reduce the labels to the front of each state."""
        if not self._added_count:
            return
        columns = zip(self.labels, *self._added, strict=True)
        state, core, tail, parent = (np.concatenate(column) for column in columns)
        self._added, self._added_count = [], 0
        front = pareto(state, core, tail)
        self.labels = FrontLabels(state[front], core[front], tail[front], parent[front])
        state, core, tail, _ = self.labels
        # Of the labels of a state, that of least core + tail is assigned last and stays.
        order = np.lexsort((-(core + tail), state))
        self._strong_core[state[order]] = core[order]
        self._strong_tail[state[order]] = tail[order]


def pareto(state: np.ndarray, core: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """Indices of the labels on the front of their state, sorted by state and core."""
    order = np.lexsort((tail, core, state))
    sorted_state, sorted_tail = state[order], tail[order]
    # A label is on the front if its tail is below all tails before it in its state. The running
    # minimum restarts at each state because ranks of later states are shifted below all earlier
    # ones.
    ascending = np.argsort(sorted_tail, kind="stable")
    dense_rank = np.append(0, np.cumsum(np.diff(sorted_tail[ascending]) > 0))  # equal where tied
    rank = np.empty(len(order), dtype=np.int64)
    rank[ascending] = dense_rank[: len(order)]
    rank -= sorted_state * np.int64(len(order) + 1)
    on_front = np.ones(len(order), dtype=bool)
    on_front[1:] = rank[1:] < np.minimum.accumulate(rank)[:-1]
    return order[on_front]


def not_beaten(state: np.ndarray, core: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """Indices of the labels that the label of least core + tail of their state does not dominate.

    This drops most labels off the front without sorting: ``state`` must ascend.
    """
    if not len(state):
        return state
    starts_state = np.append(True, state[1:] != state[:-1])
    group, total = np.cumsum(starts_state) - 1, core + tail
    least_total = np.minimum.reduceat(total, np.flatnonzero(starts_state))
    strong = np.flatnonzero(total == least_total[group])
    # Of ties, the first label of the state counts.
    strong = strong[np.append(True, group[strong[1:]] != group[strong[:-1]])]
    stays = (core < core[strong][group]) | (tail < tail[strong][group])
    stays[strong] = True
    return np.flatnonzero(stays)


def join(parts: list[LayerPart], bound: float) -> Labels:
    """One layer of all labels of the parts; see ``Labels.bound`` for ``bound``."""
    slices, device, start = {}, [], 0
    for part in parts:
        count = len(part.pivot)
        slices[part.device, part.same] = slice(start, start + count)
        start += count
        device.append(np.full(count, part.device))
    nothing = np.zeros(0, dtype=np.int64)
    return Labels(
        np.concatenate([part.pivot for part in parts] or [nothing]),
        np.concatenate(device or [nothing]),
        np.concatenate([part.core for part in parts] or [np.zeros(0)]),
        np.concatenate([part.tail for part in parts] or [np.zeros(0)]),
        np.concatenate([part.parent for part in parts] or [nothing]),
        bound,
        slices,
    )
