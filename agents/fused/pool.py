"""Problems of ``PipelinePlan-v0`` that wait on a device for episodes, and where new ones come from.

Making a problem takes milliseconds of NumPy (``PointSpace`` and ``plan_outlook``), far more than an
episode on a device does; so each is played often, and other processes make the next ones meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import fields
from multiprocessing import get_context

import numpy as np
import torch

from parenvs.agents.pretrained.policy import Episodes
from parenvs.datasets import generators
from parenvs.pipeline.batch import PointBatch
from parenvs.pipeline.points import STAGES


def on(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy of an array on a device."""
    return torch.tensor(values, device=device)


class PlanPool:
    """Problems on a device, with what is seen of them.

    Args:
        episodes: the problems.
        device: where to keep them.

    Attributes:
        device: where they are.
        tensors: their dynamics, as tensors.
        constant: what their observations hold throughout, by name, (b, ...) float32.
        outlooks: (8 b, 129, 65) int8: row ``8 i + k`` is problem i's ``plan_outlook`` of k stages.
    """

    def __init__(self, episodes: Episodes, device: torch.device) -> None:
        self.device = device
        self.tensors = episodes.batch.map(lambda values: on(values, device))
        self.constant = {key: on(value, device) for key, value in episodes.constant.items()}
        self.outlooks = on(episodes.outlooks, device).flatten(0, 1)
        self._next = 0

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.tensors)

    def put(self, episodes: Episodes) -> None:
        """Replace the oldest problems; as many must divide all.

        Episodes of those that are replaced have to start anew.

        Raises:
            ValueError: they do not divide them.
        """
        count, first = len(episodes.batch), self._next
        if len(self) % count:
            raise ValueError(f"{count} problems do not divide {len(self)}")
        replaced = slice(first, first + count)
        self.tensors.put(replaced, episodes.batch.map(lambda values: on(values, self.device)))
        for key, value in episodes.constant.items():
            self.constant[key][replaced] = on(value, self.device)
        some = slice(STAGES * first, STAGES * (first + count))
        self.outlooks[some] = on(episodes.outlooks, self.device).flatten(0, 1)
        self._next = (first + count) % len(self)


def drawn(seed: int, number: int, count: int, family: str | None = None) -> Episodes:
    """Part ``number`` of the problems of a seed, the same whenever it is asked for.

    Args:
        seed: of the problems.
        number: the part.
        count: problems in it.
        family: problems of this family only.
    """
    rng = np.random.default_rng([seed, number])
    return Episodes.of([generators.draw(rng, family).space for _ in range(count)])


def joined(some: Sequence[Episodes]) -> Episodes:
    """The problems of several parts, in their order."""
    batch = {
        f.name: np.concatenate([getattr(x.batch, f.name) for x in some]) for f in fields(PointBatch)
    }
    constant = {k: np.concatenate([x.constant[k] for x in some]) for k in some[0].constant}
    return Episodes(PointBatch(**batch), constant, np.concatenate([x.outlooks for x in some]))


def parts(
    seed: int, count: int, family: str | None = None, workers: int = 0, first: int = 0
) -> Iterator[Episodes]:
    """One part after the other, without end; made in other processes a little ahead.

    Args:
        seed: as in ``drawn``.
        count: as in ``drawn``.
        family: as in ``drawn``.
        workers: processes; 0: made here, when they are asked for. The parts are the same.
        first: number of the first part.
    """
    number = first
    if not workers:
        while True:
            yield drawn(seed, number, count, family)
            number += 1
    pending: deque[Future[Episodes]] = deque()
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    try:
        while True:
            while len(pending) < 2 * workers:
                pending.append(pool.submit(drawn, seed, number, count, family))
                number += 1
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
