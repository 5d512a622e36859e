"""What is observed of many episodes: arrays that are kept up to date as choices are made."""

from __future__ import annotations

import numpy as np

from parenvs.tasks.hybrid.turns.actions import (
    DATA,
    GLOBAL,
    MODES,
    SERVER,
    SERVERS,
    STAGE_LAYERS,
    TP,
    TURNS,
    ZEROS,
)
from parenvs.tasks.hybrid.turns.episodes import Episodes
from parenvs.tasks.hybrid.turns.observe import LOG2, MAX_DOUBLINGS, SHAPES

_OF_PROBLEM = ("chain", "cluster", "numbers")
_TURN = np.eye(len(TURNS) + 1, len(TURNS), dtype=np.float32)  # the last row is no turn
_PROGRESS = np.array([0, 0, 0, 0, 0, 1, 1, 0], dtype=np.float32)


class Board:
    """The observations of n episodes, whose observer it is.

    Attributes:
        episodes: the episodes; nothing is chosen in them when the board is made.
        parts: part of an observation but ``turn`` -> (n, ...) float32, see ``SHAPES``.
    """

    def __init__(self, episodes: Episodes) -> None:
        """Show the problems of the episodes, if they have some already."""
        self.episodes = episodes
        self.parts = {
            key: np.zeros((episodes.count, *shape), dtype=np.float32)
            for key, shape in SHAPES.items()
            if key != "turn"
        }
        episodes.observer = self
        (rows,) = (episodes.slot >= 0).nonzero()
        if rows.size:
            self.put(rows)
            self.start(rows)

    def put(self, rows: np.ndarray) -> None:
        """Show the problems that episodes ``rows``, (k,), have got."""
        slots = self.episodes.slot[rows]
        for key in _OF_PROBLEM:
            self.parts[key][rows] = self.episodes.slots.arrays[key].take(slots, axis=0)

    def start(self, rows: np.ndarray) -> None:
        """Show episodes ``rows``, (k,), in which nothing is chosen."""
        self.parts["cluster"][rows, :, 3] = 0.0
        self.parts["stages"][rows] = 0.0
        self.parts["progress"][rows] = _PROGRESS

    def update(self, turn: int, rows: np.ndarray) -> None:
        """Show the choices that episodes ``rows``, (k,), have made in a turn."""
        episodes = self.episodes
        stages, progress = self.parts["stages"], self.parts["progress"]
        stage = episodes.made[rows]
        if turn == GLOBAL:
            progress[rows, 0] = LOG2[episodes.micro_batch[rows]] / 4.0
            progress[rows, 1] = LOG2[episodes.chunks[rows]] / 3.0
            progress[rows, 2] = episodes.shared[rows]
            return
        if turn == DATA:
            stages[rows, stage - 1, 6] = episodes.zero[stage - 1, rows] / ZEROS[-1]
            stages[rows, stage - 1, 7] = episodes.mode[stage - 1, rows] / (len(MODES) - 1)
            progress[rows, 4] = stage / SERVERS
            return
        if turn == TP:
            tp, devices = episodes.tp[stage, rows], episodes.devices[stage, rows]
            stages[rows, stage, 4] = LOG2[tp] / 3.0
            stages[rows, stage, 5] = LOG2[devices // tp] / 9.0
            for column, numbers in ((3, episodes.micro_batches), (7, episodes.samples)):
                seen = np.minimum(numbers[rows], len(LOG2) - 1)
                progress[rows, column] = LOG2[seen] / MAX_DOUBLINGS
            return
        if turn == SERVER:
            self.parts["cluster"][rows, episodes.order[rows, episodes.named[rows] - 1], 3] = 1.0
        elif turn == STAGE_LAYERS:
            per, end = episodes.per[rows], episodes.ends[stage, rows]
            stages[rows, stage, 0] = end / per
            stages[rows, stage, 1] = (end - episodes.begin[rows]) / per
            progress[rows, 5] = (per - end) / per
        (ready,) = (episodes.turn[rows] == TP).nonzero()
        if ready.size:
            self._use(rows[ready])

    def _use(self, rows: np.ndarray) -> None:
        """Show devices and servers of stages, the slowest one's speed, and their devices' load."""
        episodes, parts = self.episodes, self.parts
        stages, cluster, stage = parts["stages"], parts["cluster"], episodes.made[rows]
        devices, total = episodes.devices[stage, rows], episodes.all_devices[rows]
        first, inside = episodes.first[rows], episodes.inside[rows]
        stages[rows, stage, 2], stages[rows, stage, 3] = LOG2[devices] / 9.0, devices / total
        end = first + devices
        parts["progress"][rows, 6] = (total - end) / total
        begin, last = first // inside, (end - 1) // inside
        # One entry for each server of each stage.
        counts = last - begin + 1
        ends, plan = counts.cumsum(), np.repeat(np.arange(len(rows)), counts)
        server = np.arange(ends[-1]) + (last + 1 - ends)[plan]
        if episodes.free:
            server = episodes.order[rows[plan], server]
        cluster[rows[plan], server, 3] = 1.0
        cluster[rows, server[ends - 1], 3] = (end - last * inside) / inside
        slowest, slot = np.ones(len(rows)), episodes.slot[rows]
        work, speeds = episodes.slots.arrays["work"], episodes.slots.arrays["speeds"]
        if episodes.slots.differ:
            slowest = np.minimum.reduceat(speeds[slot[plan], server], ends - counts)
        per, chunks = episodes.per[rows], episodes.chunks[rows]
        start, stop = episodes.begin[rows], episodes.ends[stage, rows]
        share = work[slot, stop] - work[slot, start]
        for piece in range(1, int(chunks.max())):
            at = np.minimum(piece, chunks - 1) * per
            part = work[slot, at + stop] - work[slot, at + start]
            share += np.where(piece < chunks, part, 0.0)
        load = share * total / (devices * slowest)
        stages[rows, stage, 8], stages[rows, stage, 9] = slowest, load / (1.0 + load)

    def observation(self, rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        """Return what is observed of episodes; a complete plan has no turn."""
        episodes = self.episodes
        turns = np.where(episodes.complete[rows], -1, episodes.turn[rows])
        parts = {key: part[rows] for key, part in self.parts.items()}
        return {**parts, "turn": _TURN[turns]}
