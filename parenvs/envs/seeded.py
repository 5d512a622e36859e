"""``SeededBatch``: native batches whose environments draw from generators of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils.seeding import np_random

from parenvs.core.plan import ILLEGAL
from parenvs.envs.batched import BatchedEnv
from parenvs.envs.vector import seeds_of


class SeededBatch(BatchedEnv):
    """A batch in which environment i has a generator of its own, seeded with ``seed + i``.

    So what is drawn equals what single environments draw in ``SyncVectorEnv``. A subclass calls
    ``_set_up_seeds`` in ``_set_up``, and implements ``_lend`` besides what ``BatchedEnv`` asks for.
    """

    _over: np.ndarray
    """(n,) bool, environments whose episode is over."""

    def _set_up_seeds(self) -> None:
        """Begin without generators, and with episodes that go on."""
        self._rows = np.arange(self.num_envs)
        self._over = np.zeros(self.num_envs, dtype=np.bool_)
        self._seeds: list[int | None] = [None] * self.num_envs
        self._generators: list[np.random.Generator | None] = [None] * self.num_envs

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generator of each environment, as in ``SyncVectorEnv``."""
        return tuple(map(self._generator, range(self.num_envs)))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each environment's generator."""
        for row in range(self.num_envs):
            self._generator(row)
        return tuple(int(seed) for seed in self._seeds if seed is not None)

    def _generator(self, row: int) -> np.random.Generator:
        """Return the generator of an environment; without a seed it gets a random one."""
        generator = self._generators[row]
        if generator is None:
            generator, self._seeds[row] = np_random(self._seeds[row])
            self._generators[row] = generator
        return generator

    def _reset(
        self, who: Any, seed: int | Sequence[int | None] | None, options: dict[str, Any]
    ) -> None:
        other = self.env._elsewhere(options) if options else None
        self._reseed(who, seed)
        if other is None:
            self._restart(who)
        else:
            self._lend(who, other)

    def _reseed(self, who: Any, seed: int | Sequence[int | None] | None) -> None:
        """Give environments ``who`` the seeds of a reset, as far as there are some."""
        seeds = seeds_of(seed, self.num_envs)
        for row in self._rows[who].tolist() if seeds else ():
            if seeds[row] is not None:
                self._seeds[row], self._generators[row] = seeds[row], None
                self._reseeded(row)

    def _reseeded(self, row: int) -> None:
        """Follow a new seed of an environment; by default there is nothing else to do."""

    def _lend(self, who: Any, other: Any) -> None:
        """Start an episode of each of ``who`` of the problem that ``_elsewhere`` returned."""
        raise NotImplementedError

    def _going_on(
        self, legal: np.ndarray, rewards: np.ndarray, terminated: np.ndarray
    ) -> np.ndarray:
        """End the episodes whose action is illegal, and return those that play theirs, (k,).

        Args:
            legal: (n,) bool, whether the action is legal.
            rewards: (n,), written where an episode ends.
            terminated: (n,) bool, the same.
        """
        if legal.all() and not self._over.any():
            return self._rows
        wrong = ~legal & ~self._over
        rewards[wrong], terminated[wrong] = ILLEGAL, True
        rows = np.flatnonzero(legal & ~self._over)
        self._over |= wrong
        return rows

    def _ended(self) -> np.ndarray:
        return np.flatnonzero(self._over)
