"""A pool of problems of ``PipelinePlan-v0`` on a device, and the processes that draw new ones.

Making a problem takes milliseconds of NumPy (its search space and its ``outlook``), far more than
an episode on a device. So each problem is played often, while other processes make the next ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import fields
from multiprocessing import get_context

import numpy as np
import torch

from parenvs.agents.learning.pretrained.policy import Episodes
from parenvs.datasets.pipeline import generators
from parenvs.tasks.pipeline.batch import PointBatch
from parenvs.tasks.pipeline.points import STAGES


def on(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy of an array on a device."""
    return torch.tensor(values, device=device)


class ProblemPool:
    """b problems on a device, with the constant parts of their observations.

    Args:
        episodes: the problems.
        device: the device that holds them.
        first: which problem is the oldest.

    Attributes:
        device: the device that holds the problems.
        tensors: legality and lengths of the problems' plans, as tensors.
        constant: the entries of the observation that never change, by name, (b, ...) float32.
        newest: the first of the problems that were put last, and their number.
        outlooks: (8 b, 129, 65) int8; row ``8 i + k`` is problem i's ``outlook`` of k stages.
    """

    def __init__(self, episodes: Episodes, device: torch.device, first: int = 0) -> None:
        self.device = device
        self.tensors = episodes.batch.map(lambda values: on(values, device))
        self.constant = {key: on(value, device) for key, value in episodes.constant.items()}
        self.outlooks = on(episodes.outlooks, device).flatten(0, 1)
        self._next, self.newest = first, (0, len(self))

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.tensors)

    def put(self, episodes: Episodes) -> None:
        """Replace the oldest problems of the pool by new ones.

        Episodes that play a replaced problem have to start anew.

        Args:
            episodes: the new problems; their number divides the pool's.

        Raises:
            ValueError: their number does not divide the pool's.
        """
        count, first = len(episodes.batch), self._next
        if len(self) % count:
            raise ValueError(f"{count} problems do not divide {len(self)}")
        replaced = slice(first, first + count)
        self.tensors.put(replaced, episodes.batch.map(lambda values: on(values, self.device)))
        for key, value in episodes.constant.items():
            self.constant[key][replaced] = on(value, self.device)
        rows = slice(STAGES * first, STAGES * (first + count))
        self.outlooks[rows] = on(episodes.outlooks, self.device).flatten(0, 1)
        self._next, self.newest = (first + count) % len(self), (first, count)


def draw_part(seed: int, number: int, count: int, family: str | None = None) -> Episodes:
    """Draw a part of the endless sequence of problems that belongs to a seed.

    Equal arguments give equal problems.

    Args:
        seed: seed of the sequence.
        number: number of the part.
        count: number of problems in the part.
        family: draw problems of this family only.
    """
    rng = np.random.default_rng([seed, number])
    return Episodes.of([generators.draw(rng, family).space for _ in range(count)])


def concatenated(parts: Sequence[Episodes]) -> Episodes:
    """The problems of several parts as one, in their order."""
    batch = {
        f.name: np.concatenate([getattr(x.batch, f.name) for x in parts])
        for f in fields(PointBatch)
    }
    constant = {k: np.concatenate([x.constant[k] for x in parts]) for k in parts[0].constant}
    return Episodes(PointBatch(**batch), constant, np.concatenate([x.outlooks for x in parts]))


def draw_parts(
    seed: int, count: int, family: str | None = None, workers: int = 0, first: int = 0
) -> Iterator[Episodes]:
    """Draw one part after the other, without end; other processes draw them a little ahead.

    Args:
        seed: as in ``draw_part``.
        count: as in ``draw_part``.
        family: as in ``draw_part``.
        workers: number of processes; with 0 each part is drawn in this process when it is asked
            for. The parts are the same.
        first: number of the first part.
    """
    number = first
    if not workers:
        while True:
            yield draw_part(seed, number, count, family)
            number += 1
    pending: deque[Future[Episodes]] = deque()
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    try:
        while True:
            while len(pending) < 2 * workers:
                pending.append(pool.submit(draw_part, seed, number, count, family))
                number += 1
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
