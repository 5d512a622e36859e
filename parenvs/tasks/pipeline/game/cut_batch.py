"""Many ``PipelineCut-v0`` at once: ``gym.make_vec("PipelineCut-v0", num_envs=1024)``."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from parenvs.core.plan import ILLEGAL
from parenvs.envs.base import pipeline_so_far, rendered
from parenvs.envs.batched import EVERY, NOBODY, BatchedEnv, keep_blocks
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.game.cut import PipelineCutEnv
from parenvs.tasks.pipeline.game.cut_kernel import MOST_BYTES_VECTOR, kernel_of
from parenvs.tasks.pipeline.plan import PipelinePlan


class PipelineCutVectorEnv(BatchedEnv):
    """n episodes at once, each as in the single environment, to the last bit; see ``BatchedEnv``.

    Observations are ``features`` (n, c, 3) float32, ``cuts`` (n, S-1) float32 and ``step`` (n,)
    int64, masks (n, c). It is fastest while all have made the same number of cuts, as they do
    without illegal actions and partial resets.

    ``copy=False`` hands out ``features`` that the next call overwrites. All else is fresh.
    """

    single = PipelineCutEnv
    env: PipelineCutEnv

    def _set_up(self) -> None:
        n, self.space, self.problem = self.num_envs, self.env.space, self.env.problem
        known = self.env.kernel
        self.kernel = kernel = (
            known if known.tabulated else kernel_of(self.space, MOST_BYTES_VECTOR)
        )
        self._buffer = None if self.copy else np.zeros((n, kernel.end, 3), dtype=np.float32)
        keep_blocks(48 * n * kernel.end)
        self._numbers = np.arange(kernel.end)
        # Row k of chains is cut k of every environment, between the ends of the model.
        self._chains = np.full((kernel.cuts + 2, n), kernel.end)
        self._chains[0] = kernel.start
        self._cuts = np.empty((n, kernel.cuts), dtype=np.float32)
        self._made = np.empty(n, dtype=np.int64)
        self._figures = np.full((2, n), np.nan)  # length and excess bytes of complete plans
        self._over = np.empty(n, dtype=np.bool_)
        # Legal are the candidates [begin, end) of each; none once its episode is over.
        self._begin, self._end = np.empty((2, n), dtype=np.int64)
        # Of the stages settled, see CutKernel.settle.
        self._peaks, self._paces = np.zeros((n, 2), dtype=np.float32), np.zeros((n, 2))
        # Cuts that all have made; S-1 if all are over; None if they differ.
        self._common: int | None = None
        self._restart(EVERY)

    def _plan_of(self, index: int) -> PipelinePlan:
        chosen = self._chains[1 : 1 + self._made[index], index]
        return self.problem.plan(*self.space.plan(chosen))

    def _picture(self, mode: str, index: int) -> Any:
        return rendered(mode, pipeline_so_far(self.plan(index), self.problem))

    def _play(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        step, rewards = self._common, np.zeros(self.num_envs)
        if step == self.kernel.cuts:  # all are over
            self._restart(EVERY)
        else:
            legal = (actions >= self._begin) & (actions < self._end)
            if step is not None and legal.all():
                self._cut(step, EVERY, actions, rewards)
                self._common = step + 1
            else:
                self._step_apart(actions, legal, rewards)
        return rewards, self._over.copy()

    def _ended(self) -> np.ndarray:
        if self._common in (None, self.kernel.cuts):
            return self._over.nonzero()[0]
        return NOBODY

    def _outcomes(self, who: np.ndarray) -> dict[str, np.ndarray]:
        length, excess_bytes = self._figures[:, who]
        return {"length_seconds": length, "excess_bytes": excess_bytes}

    def _masks(self) -> np.ndarray:
        return self._legal().view(np.int8)

    def _legal(self) -> np.ndarray:
        """(n, c) bool, a fresh array."""
        step, kernel = self._common, self.kernel
        if step == kernel.cuts:
            return np.ones((self.num_envs, kernel.end), dtype=np.bool_)
        if step == 0 or (step is not None and not kernel.overlaps[step]):
            legal = np.zeros((self.num_envs, kernel.end), dtype=np.bool_)
            legal[:, self._begin[0] : kernel.high[step]] = True
            return legal
        if step is not None and kernel.tabulated:
            return kernel.step_masks[step].take(self._chains[step] - kernel.low[step - 1], axis=0)
        legal = self._numbers >= self._begin[:, None]
        legal &= self._numbers < self._end[:, None]
        legal |= self._over[:, None]
        return legal

    def _restart(self, who: Any) -> None:
        """Start the episodes of ``who``, all or an array of numbers, anew."""
        kernel = self.kernel
        self._cuts[who] = -1.0
        self._made[who] = 0
        self._over[who] = False
        self._figures[:, who] = np.nan
        self._begin[who] = max(kernel.after[kernel.start], kernel.low[0])
        self._end[who] = kernel.high[0]
        if who is EVERY:
            self._common = 0
        else:
            self._compare()

    def _finish(self, who: Any) -> None:
        self._over[who] = True
        self._begin[who] = self._end[who] = 0

    def _compare(self) -> None:
        """See whether all have made the same number of cuts."""
        made = int(self._made[0])
        alike = not self._over.any() and bool((self._made == made).all())
        self._common = self.kernel.cuts if self._over.all() else made if alike else None

    def _step_apart(self, actions: np.ndarray, legal: np.ndarray, rewards: np.ndarray) -> None:
        """A step of environments that differ in their cuts, or of which some act illegally."""
        over = self._over.copy()
        illegal = np.flatnonzero(~(legal | over))
        rewards[illegal] = ILLEGAL
        self._finish(illegal)
        # From the last step on, so that nobody moves twice.
        for step in range(self.kernel.cuts - 1, -1, -1):
            who = np.flatnonzero(legal & (self._made == step))
            if who.size:
                self._cut(step, who, actions[who], rewards)
        if self.autoreset_mode == AutoresetMode.NEXT_STEP:
            self._restart(np.flatnonzero(over))
        else:
            self._compare()

    def _cut(self, step: int, who: Any, actions: np.ndarray, rewards: np.ndarray) -> None:
        """Legal actions of environments ``who`` that have made ``step`` cuts."""
        kernel, chains = self.kernel, self._chains
        chains[step + 1, who] = actions
        self._cuts[who, step] = kernel.shares.take(actions)
        self._made[who] = step + 1
        if step + 1 == kernel.cuts:
            length, excess_bytes = kernel.length_and_excess(chains[:, who])
            self._figures[:, who] = length, excess_bytes
            values = formulas.value(length, kernel.bubble_free)
            rewards[who] = np.where(excess_bytes <= 0, values, ILLEGAL)
            self._finish(who)
            return
        self._begin[who] = np.maximum(kernel.follower.take(actions), kernel.low[step + 1])
        self._end[who] = kernel.high[step + 1]
        self._peaks[who], self._paces[who] = kernel.settle(
            step, chains[:, who], self._peaks[who], self._paces[who]
        )

    def _observation(self) -> dict[str, Any]:
        cuts, made = self._cuts.copy(), self._made.copy()
        return {"features": self._features(), "cuts": cuts, "step": made}

    def _features(self) -> np.ndarray:
        kernel, step, out = self.kernel, self._common, self._buffer
        shape = (self.num_envs, kernel.end, 3)
        if step == 0:
            out = np.empty(shape, dtype=np.float32) if out is None else out
            out[:] = kernel.first
            return out
        if step == 1 and kernel.openings is not None:
            index = self._chains[1] - kernel.low[0]
            # Clipping changes no index, but spares a buffer.
            return kernel.openings.take(index, axis=0, out=out, mode="clip")
        if out is None:
            out = np.zeros(shape, dtype=np.float32)
        else:
            out.fill(0.0)
        if step is None:
            for made in range(kernel.cuts):
                who = np.flatnonzero(~self._over & (self._made == made))
                if who.size:
                    part = np.zeros((len(who), *shape[1:]), dtype=np.float32)
                    out[who] = self._write(made, who, part) if made else kernel.first
        elif step < kernel.cuts:
            self._write(step, EVERY, out)
        return out

    def _write(self, step: int, who: Any, out: np.ndarray) -> np.ndarray:
        """Features of environments that have made ``step`` >= 1 cuts, into zeros."""
        chains, peaks, paces = self._chains[:, who], self._peaks[who], self._paces[who]
        self.kernel.features(step, chains, peaks, paces, out)
        return out

    def _last(self, who: np.ndarray) -> list[dict[str, Any]]:
        features = np.zeros((len(who), self.kernel.end, 3), dtype=np.float32)
        rows = zip(features, self._cuts[who], self._made[who], strict=True)
        return [{"features": f, "cuts": cuts, "step": made} for f, cuts, made in rows]
