"""Vector environment of ``MicroBatchOrder-v0``: ``gym.make_vec("MicroBatchOrder-v0", ...)``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parenvs.core.plan import ILLEGAL
from parenvs.envs.base import regret_of, rendered
from parenvs.envs.batched import EVERY, NOBODY, keep_blocks
from parenvs.envs.seeded import SeededBatch
from parenvs.tasks.order.game.single import MicroBatchOrderEnv, Play, plan_of, viewable
from parenvs.tasks.order.game.tables import MICRO_BATCHES, SECONDS, STAGES, OrderTables
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.order.problem import Order


class Problems(NamedTuple):
    """The problems of the environments of a batch.

    Attributes:
        of: (n) the problem of each.
    """

    of: list[OrderTables]


class MicroBatchOrderVectorEnv(SeededBatch):
    """n episodes at once, each as in the single environment, to the last bit; see ``BatchedEnv``.

    Observations are ``forward_seconds`` and ``backward_seconds`` (n, 64, 16), ``position`` (n, 64),
    ``frontier`` (n, 16) and ``numbers`` (n, 5) float32, masks (n, 64). Environment i has its own
    generator, seeded with ``seed + i``, so drawn problems equal those of ``SyncVectorEnv``. Drawing
    one takes as long as thousands of steps: give ``pool``. With ``order="sequential"`` environment
    i plays the problems i, i + n, and so on, of the set.

    ``copy=False`` hands out both seconds as read-only views that hold until the next call. All
    other arrays are fresh.
    """

    single = MicroBatchOrderEnv
    own = ("instance", "problem")
    env: MicroBatchOrderEnv

    @property
    def problems(self) -> Problems:
        """The problem of each environment."""
        return Problems(self._play_of.tables)

    def _set_up(self) -> None:
        n = self.num_envs
        keep_blocks(24 * n * MICRO_BATCHES * STAGES)
        self._play_of = Play(n)
        self._set_up_seeds()
        self._complete = np.zeros(n, dtype=np.bool_)  # episodes that ended with a whole order
        self._lengths = np.zeros(n)
        self._next = np.arange(n)  # of the set, if ``order`` is sequential
        first = self.env._play.tables[0]
        self._play_of.tables = [first] * n
        for row in range(n):
            self._play_of.put(row, first)
        self._begin(EVERY)

    def problem(self, index: int) -> Order:
        """Return the problem of environment ``index``."""
        return self._play_of.tables[index].problem

    def _plan_of(self, index: int) -> OrderPlan:
        return plan_of(self._play_of, index)

    def _reseeded(self, row: int) -> None:
        self._next[row] = row

    def _lend(self, who: Any, other: Any) -> None:
        for row in self._rows[who].tolist():
            self._give(row, other)
        self._begin(who)

    def _restart(self, who: Any) -> None:
        fixed = self.env.fixed
        for row in self._rows[who].tolist():
            tables = fixed or self.env.source.draw(self._generator(row), int(self._next[row]))
            self._give(row, tables)
        self._next[who] += self.num_envs
        self._begin(who)

    def _give(self, row: int, tables: Any) -> None:
        """Give an environment a problem, unless it has it already."""
        if self._play_of.tables[row] is not tables:
            self._play_of.tables[row] = tables
            self._play_of.put(row, tables)

    def _begin(self, who: Any) -> None:
        """Start the episodes of ``who`` with nothing placed."""
        self._play_of.start(who)
        self._over[who] = self._complete[who] = False

    def _play(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        play, over = self._play_of, self._ended()
        rewards, terminated = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.bool_)
        # As unsigned integers, negative numbers are large; numbers that are no action become 64.
        columns = np.minimum(actions.view(np.uint64), np.uint64(MICRO_BATCHES)).view(np.int64)
        legal = play.legal[self._rows, columns]
        rows = self._going_on(legal, rewards, terminated)
        complete = play.place(rows, columns[rows]) if rows.size else NOBODY
        if complete.size:
            self._lengths[complete] = lengths = play.lengths(complete)
            rewards[complete], terminated[complete] = play.bound[complete] / lengths, True
            self._over[complete] = self._complete[complete] = True
        if over.size:
            self._restart(over)
        return rewards, terminated

    def _masks(self) -> np.ndarray:
        masks = self._play_of.legal[:, :MICRO_BATCHES].copy()
        if self._over.any():
            masks[self._over] = True
        return masks.view(np.int8)

    def _outcomes(self, who: np.ndarray) -> dict[str, np.ndarray]:
        lengths = np.where(self._complete[who], self._lengths[who], np.nan)
        outcomes, play = {"length_seconds": lengths}, self._play_of
        optimum = np.array([play.tables[row].optimum for row in who.tolist()])
        if (optimum == optimum).any():  # not NaN
            values = np.where(self._complete[who], play.bound[who] / lengths, ILLEGAL)
            outcomes.update(optimum=optimum, regret=regret_of(values, optimum))
        return outcomes

    def _instances(self, who: np.ndarray) -> list[str]:
        return [self.problem(index).instance for index in who.tolist()]

    def _attribute(self, name: str, index: int) -> Any:
        problem = self.problem(index)
        return problem.instance if name == "instance" else problem

    def _observation(self) -> dict[str, Any]:
        forward, backward = self._play_of.observed
        if self.copy:
            forward, backward = forward.copy(), backward.copy()
        else:
            forward, backward = forward.view(), backward.view()
            forward.flags.writeable = backward.flags.writeable = False
        return {
            **dict(zip(SECONDS, (forward, backward), strict=True)),
            **self._play_of.observation(slice(None)),
        }

    def _last(self, who: np.ndarray) -> list[dict[str, Any]]:
        play = self._play_of
        batched = dict(zip(SECONDS, play.observed[:, who], strict=True))
        batched.update(play.observation(who))
        return [{key: value[k] for key, value in batched.items()} for k in range(len(who))]

    def _picture(self, mode: str, index: int) -> Any:
        return rendered(mode, viewable(self._play_of, index))
