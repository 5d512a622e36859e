"""What is shown of the plan so far, kept up to date as an episode goes on."""

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
from parenvs.tasks.hybrid.turns.episode import Episode
from parenvs.tasks.hybrid.turns.observe import LOG2, MOST_DOUBLINGS, SHAPES, Shown

_TURN = np.eye(len(TURNS) + 1, len(TURNS), dtype=np.float32)  # the last row is no turn


class Board:
    """The parts of an observation that change during an episode, all float32.

    Attributes:
        shown: what is shown of the problem.
        stages: (64, 10).
        progress: (8,).
        cluster: (64, 4), with what is used.
    """

    __slots__ = ("cluster", "episode", "progress", "shown", "stages")

    def __init__(self, shown: Shown, episode: Episode) -> None:
        """Show an episode in which nothing is chosen.

        Args:
            shown: what is shown of its problem.
            episode: the episode; ``update`` is called after each of its choices.
        """
        self.shown, self.episode = shown, episode
        self.stages = np.zeros(SHAPES["stages"], dtype=np.float32)
        self.progress = np.zeros(SHAPES["progress"], dtype=np.float32)
        self.progress[5:7] = 1.0
        self.cluster = shown.cluster.copy()

    def update(self, turn: int) -> None:
        """Show the choice that was made in a turn."""
        episode, limits = self.episode, self.episode.limits
        stage = max(len(episode.ends) - 1, 0)
        if turn == GLOBAL:
            self.progress[:3] = (
                LOG2[episode.micro_batch] / 4.0, LOG2[episode.chunks] / 3.0, episode.shared,
            )  # fmt: skip
            return
        if turn == DATA:
            row = self.stages[stage]
            row[6] = episode.zero[-1] / ZEROS[-1]
            row[7] = episode.mode[-1] / (len(MODES) - 1)
            self.progress[4] = len(episode.zero) / SERVERS
            return
        if turn == SERVER:
            self.cluster[episode.servers[-1], 3] = 1.0
        elif turn == TP:
            devices, tp = episode.devices[-1], episode.tp[-1]
            self.stages[stage, 4] = LOG2[tp] / 3.0
            self.stages[stage, 5] = LOG2[devices // tp] / 9.0
            self.progress[3] = LOG2[min(episode.micro_batches, len(LOG2) - 1)] / MOST_DOUBLINGS
            self.progress[7] = LOG2[min(episode.samples, len(LOG2) - 1)] / MOST_DOUBLINGS
            return
        elif turn == STAGE_LAYERS:
            per = episode.per_chunk
            end = episode.ends[-1]
            begin = episode.ends[-2] if stage else 0
            self.stages[stage, 0] = end / per
            self.stages[stage, 1] = (end - begin) / per
            self.progress[5] = (per - end) / per
        if len(episode.devices) > stage and episode.turn == TP:
            devices = episode.devices[-1]
            self.stages[stage, 2] = LOG2[devices] / 9.0
            self.stages[stage, 3] = devices / limits.devices
            self.progress[6] = (limits.devices - episode.first - devices) / limits.devices
            self._use(stage, devices)

    def _use(self, stage: int, devices: int) -> None:
        """Show the servers of a stage, the slowest one's speed, and the load of its devices."""
        episode, inside, speeds = self.episode, self.episode.limits.inside, self.shown.speeds
        first, end = episode.first, episode.first + devices
        begin, behind = first // inside, -(-end // inside)
        servers = episode.servers[begin:behind] or list(range(begin, behind))
        self.cluster[servers, 3] = 1.0
        self.cluster[servers[-1], 3] = (end - (behind - 1) * inside) / inside
        slowest = min(speeds[servers].tolist())
        per, work = episode.per_chunk, self.shown.work
        start, stop = (episode.ends[-2] if stage else 0), episode.ends[-1]
        share = 0.0
        for chunk in range(episode.chunks):
            share += float(work[chunk * per + stop] - work[chunk * per + start])
        load = share * episode.limits.devices / (devices * slowest)
        self.stages[stage, 8] = slowest
        self.stages[stage, 9] = load / (1.0 + load)

    def observation(self) -> dict[str, np.ndarray]:
        """Return the whole observation, in arrays of its own."""
        shown, episode = self.shown, self.episode
        return {
            "chain": shown.chain.copy(),
            "cluster": self.cluster.copy(),
            "numbers": shown.numbers.copy(),
            "stages": self.stages.copy(),
            "progress": self.progress.copy(),
            "turn": _TURN[-1 if episode.is_over else episode.turn].copy(),
        }
