"""Vector environment of ``HybridPlan-v0``: ``gym.make_vec("HybridPlan-v0", num_envs=64)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils.seeding import np_random

from parenvs.core.plan import ILLEGAL
from parenvs.envs.base import regret_of, rendered
from parenvs.envs.batched import EVERY, NOBODY, BatchedEnv, keep_blocks, without
from parenvs.tasks.hybrid.game.episodes import HybridEpisodes
from parenvs.tasks.hybrid.game.single import HybridPlanEnv
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.turns.actions import ACTIONS, OFFSETS, SIZES, TURNS
from parenvs.tasks.hybrid.turns.game import MASKS
from parenvs.tasks.pipeline.game.plan_problems import seeds_of


class HybridPlanVectorEnv(BatchedEnv):
    """n episodes at once, each as in the single environment, to the last bit; see ``BatchedEnv``.

    Observations are those of the single environment, batched. Drawn problems equal those of
    ``SyncVectorEnv``: environment i has a generator of its own, seeded with ``seed + i``. A problem
    that is drawn for the first time is looked up first, which takes as long as thousands of steps;
    of a generator's ``pool`` all are known after a while.

    ``copy=False`` hands out the arrays that the next call writes to.

    With ``mask="completable"`` masks are made episode by episode, so the batch is not faster than
    single environments.

    Attributes:
        episodes: the choices of all episodes, and what is shown of them.
    """

    single = HybridPlanEnv
    own = ("instance", "problem")
    env: HybridPlanEnv

    def _set_up(self) -> None:
        n = self.num_envs
        keep_blocks(4 * n * 128 * 6)
        self._rngs = [np_random(None) for _ in range(n)]
        self.episodes = HybridEpisodes(n, self.env.rules)
        self._played = [0] * n  # problems of each environment since its seed
        self._slots: dict[int, int] = {}  # number of a drawn problem -> its slot
        self._exact = self.env.mask == MASKS[1]
        # The last column stands for all numbers that are not actions.
        self._legal = np.zeros((n, ACTIONS + 1), dtype=np.bool_)
        self._row = np.arange(n) * (ACTIONS + 1)
        self._over = NOBODY
        self._begin(EVERY)
        self._look()

    def _plan_of(self, index: int) -> HybridPlan:
        plan = self.episodes.game(index).finished().plan()
        assert plan is not None
        return plan

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generator of each environment, as in ``SyncVectorEnv``."""
        return tuple(rng for rng, _ in self._rngs)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each environment's generator."""
        return tuple(seed for _, seed in self._rngs)

    def _picture(self, mode: str, index: int) -> Any:
        game = self.episodes.game(index)
        if not game.episode.ends:
            return rendered(mode, game.setting.problem)
        return rendered(mode, game.setting.problem.report(self.plan(index)))

    def _reset(
        self, who: Any, seed: int | Sequence[int | None] | None, options: dict[str, Any]
    ) -> None:
        setting = self.env._elsewhere(options) if options else None
        for index, own in enumerate(seeds_of(seed, self.num_envs)):
            if own is not None:
                self._rngs[index] = np_random(own)
                self._played[index] = 0
        self._begin(who, setting)

    def _restart(self, who: Any) -> None:
        self._begin(who)

    def _begin(self, who: Any, setting: Any = None) -> None:
        """Start the episodes of ``who``, on a problem that is drawn or given."""
        rows, problems, slots = (
            np.arange(self.num_envs)[who],
            self.env.problems,
            self.episodes.slots,
        )
        given = problems.fixed if setting is None else setting
        if given is not None:
            for index in rows.tolist() if setting is None else ():
                self._played[index] += 1
            found = np.full(len(rows), slots.find(given))
        else:
            rngs, played, known, numbers = self._rngs, self._played, self._slots, []
            for index in rows.tolist():
                turn = played[index] * self.num_envs + index
                number = problems.number(rngs[index][0], turn)
                played[index] += 1
                numbers.append(number)
                if number not in known:
                    known[number] = slots.find(problems.numbered(number))
            found = np.array([known[number] for number in numbers])
        self.episodes.begin(rows, found)
        self._over = NOBODY if who is EVERY else without(self._over, who, self.num_envs)

    def _play(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rewards, terminated = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.bool_)
        columns = np.minimum(actions.view(np.uint64), np.uint64(ACTIONS)).view(np.int64)
        legal = self._legal.take(self._row + columns)
        over = self._over
        legal[over] = True
        wrong = np.flatnonzero(~legal)
        legal[over] = False
        rewards[wrong] = ILLEGAL
        ended = [wrong]
        turns = np.where(legal, self.episodes.turn, -1)
        for turn in range(len(TURNS)):
            who = np.flatnonzero(turns == turn)
            if who.size:
                done = self.episodes.act(turn, who, columns[who] - OFFSETS[turn])
                if done.size:
                    rewards[done] = self.episodes.finish(done)
                    ended.append(done)
        now = np.concatenate(ended)
        self._over = np.concatenate([over, now])
        terminated[now] = True
        if over.size:
            self._restart(over)
        return rewards, terminated

    def _ended(self) -> np.ndarray:
        return self._over

    def _outcomes(self, who: np.ndarray) -> dict[str, np.ndarray]:
        length, excess = self.episodes.ended(who)
        outcomes = {"length_seconds": length, "excess_bytes": excess}
        optimum, bound = (self.episodes.of_problems(name, who) for name in ("optimum", "bound"))
        if not np.isnan(optimum).all():
            values = np.where(excess <= 0, bound / length, ILLEGAL)
            outcomes.update(optimum=optimum, regret=regret_of(values, optimum))
        return outcomes

    def _instances(self, who: np.ndarray) -> list[str]:
        names: list[str] = self.episodes.of_problems("name", who).tolist()
        return names

    def _attribute(self, name: str, index: int) -> Any:
        problem = self.episodes.setting(index).problem
        return problem.instance if name == "instance" else problem

    def _masks(self) -> np.ndarray:
        return self._legal[:, :ACTIONS].copy().view(np.int8)

    def _infos(self) -> dict[str, Any]:
        self._look()
        return super()._infos()

    def _look(self) -> None:
        """Compute the legal actions of all environments."""
        legal, episodes = self._legal, self.episodes
        legal[:, :ACTIONS] = False
        turns = episodes.turn.copy()
        turns[self._over] = -1
        for turn in range(len(TURNS)):
            who = np.flatnonzero(turns == turn)
            if not who.size:
                continue
            found = episodes.legal(turn, who)
            if self._exact:
                for number, index in enumerate(who.tolist()):
                    game = episodes.game(index)
                    found[number] &= game.setting.completable.choices(game.episode)
            legal[who, OFFSETS[turn] : OFFSETS[turn] + SIZES[turn]] = found
        legal[self._over, :ACTIONS] = True

    def _observation(self) -> dict[str, Any]:
        shown = self.episodes.observation(self._over)
        return {key: part.copy() for key, part in shown.items()} if self.copy else shown

    def _last(self, who: np.ndarray) -> list[dict[str, Any]]:
        shown = self.episodes.observation(self._over)
        return [{key: part[index].copy() for key, part in shown.items()} for index in who.tolist()]
