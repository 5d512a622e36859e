"""``Play``: environments side by side, and the batches that an algorithm learns from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode
from torch import Tensor

from parenvs.agents.learning.algorithm import Algorithm, Batch
from parenvs.agents.learning.seen import Lens, Seen
from parenvs.core.registry import TASKS
from parenvs.envs.vector import GameVectorEnv
from parenvs.errors import ParenvsError, one_line

SAME_STEP = AutoresetMode.SAME_STEP


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread inside the block: networks this small are slower on more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def vector_env(env_id: str, env_kwargs: dict[str, Any], count: int) -> Any:
    """Make n environments whose ended episodes start again in the same step.

    Those of games are a native batch; others are Gymnasium's ``SyncVectorEnv`` of single ones.

    Raises:
        ParenvsError: there is no such environment, or it refuses its arguments.
    """
    try:
        spec = gym.spec(env_id)
        entry: Any = spec.vector_entry_point
        maker = load_env_creator(entry) if isinstance(entry, str) else entry
        if isinstance(maker, type) and issubclass(maker, GameVectorEnv):
            return gym.make_vec(
                env_id, count, "vector_entry_point", autoreset_mode=SAME_STEP, **env_kwargs
            )
        return gym.make_vec(
            env_id, count, "sync", vector_kwargs={"autoreset_mode": SAME_STEP}, **env_kwargs
        )
    except (gym.error.Error, TypeError) as error:
        raise ParenvsError(f"{env_id}: {one_line(error)}") from None


def _teacher(env_id: str, env: Any) -> Callable[[], np.ndarray] | None:
    """Return who teaches in the games of an environment: the hook ``teach`` of their task."""
    name = env_id.removeprefix("parenvs/")
    task = next((x for x in TASKS.values() if name in x.envs and "teach" in x.hooks), None)
    game = getattr(env.unwrapped, "game", None)
    return None if task is None or game is None else task.hook("teach")(game)


class Episode(NamedTuple):
    """An episode of a problem that does not change.

    Attributes:
        value: what it returned.
        actions: its actions, by which ``replayed`` plays it again.
        turns: turns of all environments when it ended.
    """

    value: float
    actions: list[int]
    turns: int


def replayed(
    env_id: str, env_kwargs: dict[str, Any], actions: Sequence[int], seed: int = 0
) -> gym.Env[Any, Any]:
    """Make an environment, reset it by a seed, and take actions in it."""
    env = gym.make(env_id, **env_kwargs)
    env.reset(seed=seed)
    for action in actions:
        env.step(action)
    return env


class Play:
    """n environments that play on, turn by turn.

    What each action is worth is told by the hook ``teach`` of the environment's task, or else by
    ``action_values`` in the infos of a turn.

    Args:
        env_id: id of the environment.
        env_kwargs: its arguments.
        count: n.
        copies: environments next to each other that have the same seed, a divisor of n.
        seed: of what they draw.

    Attributes:
        lens: how they are seen.
        turns: turns so far, of all environments.
        returns: of the episodes that have ended since they were taken.
        episodes: episodes that have ended.
        draws: whether problems change, so that episodes do not compare.
        best: the best episode so far, where they compare.
        history: (t, n) actions since ``restart``, by which a run goes on from a checkpoint.
    """

    def __init__(
        self, env_id: str, env_kwargs: dict[str, Any], count: int, copies: int = 1, seed: int = 0
    ) -> None:
        if count % copies:
            raise ParenvsError(f"envs must be a multiple of copies, {copies}, not {count}")
        self.env = vector_env(env_id, env_kwargs, count)
        self.lens = Lens.of(self.env)
        self.env_id, self.count, self.copies, self.seed = env_id, count, copies, seed
        self.turns = self.episodes = 0
        self.returns: list[float] = []
        self.draws = bool(getattr(self.env, "draws", True))
        self.best: Episode | None = None
        self.history: list[np.ndarray] = []
        self._begin = np.zeros(count, dtype=np.int64)
        self._totals = np.zeros(count)
        self._episodes = np.zeros(count, dtype=np.int64)
        self._seen: Seen | None = None
        self._infos: Any = {}
        self._teacher = _teacher(env_id, self.env)

    def restart(self, part: int) -> None:
        """Begin all episodes anew, of problems that a number decides."""
        words = [self.seed, part]
        groups = np.random.SeedSequence(words).generate_state(self.count // self.copies)
        seeds = np.repeat(groups & 0x7FFFFFFF, self.copies).tolist()
        observation, self._infos = self.env.reset(seed=seeds)
        self._seen = self.lens(observation, self._infos)
        self._totals[:] = 0.0
        self._episodes[:] = self._begin[:] = 0
        self.history = []

    def go_on(self, history: np.ndarray) -> None:
        """Take the actions since ``restart`` again, (t, n), after which all is as it was."""
        for actions in history:
            observation, paid, terminated, truncated, self._infos = self.env.step(actions)
            self.history.append(actions)
            over = terminated | truncated
            self._totals = np.where(over, 0.0, self._totals + paid)
            self._episodes += over
            self._begin[over] = len(self.history)
        if len(history):
            self._seen = self.lens(observation, self._infos)

    def collect(
        self, algorithm: Algorithm, turns: int, tick: Callable[[], object] = lambda: None
    ) -> Batch:
        """Play some turns by an algorithm.

        Args:
            algorithm: the algorithm.
            turns: of each environment.
            tick: is called after each of them.

        Raises:
            ParenvsError: a reward is not finite.
        """
        assert self._seen is not None
        seen: list[Seen] = []
        kept: list[dict[str, Tensor]] = []
        actions = torch.zeros(turns, self.count, dtype=torch.int64)
        rewards = torch.zeros(turns, self.count)
        ended = torch.zeros(turns, self.count, dtype=torch.bool)
        episodes = torch.zeros(turns, self.count, dtype=torch.int64)
        told_by = self._infos
        for turn in range(turns):
            seen.append(self._seen)
            chosen, told = algorithm.act(self._seen)
            if algorithm.taught:
                told = {**told, "worth": self._worth(told_by)}
            kept.append(told)
            actions[turn], episodes[turn] = chosen, torch.from_numpy(self._episodes)
            taken = chosen.numpy() + self.lens.first
            observation, paid, terminated, truncated, infos = self.env.step(taken)
            self.history.append(taken)
            self.turns += self.count
            if not np.isfinite(paid).all():
                raise ParenvsError("a reward is not finite")
            self._totals += paid
            rewards[turn] = torch.from_numpy(np.asarray(paid, dtype=np.float32))
            over = terminated | truncated
            if truncated.any():
                cut = np.flatnonzero(truncated & ~terminated)
                rewards[turn, cut] += self._behind(algorithm, infos, cut)
            ended[turn] = torch.from_numpy(over)
            self._finish(np.flatnonzero(over))
            self._seen, told_by = self.lens(observation, infos), infos
            tick()
        self._infos = told_by
        stacked = Seen(*(torch.stack(values) for values in zip(*seen, strict=True)))
        joined = {name: torch.stack([each[name] for each in kept]) for name in kept[0]}
        return Batch(stacked, actions, joined, rewards, ended, episodes, self._seen)

    def _finish(self, rows: np.ndarray) -> None:
        """Count the episodes that have ended in environments."""
        if not rows.size:
            return
        returns = self._totals[rows]
        self.returns += returns.tolist()
        self.episodes += rows.size
        first = int(returns.argmax())
        value, row = float(returns[first]), rows[first]
        if not self.draws and (self.best is None or value > self.best.value):
            own = [int(actions[row]) for actions in self.history[self._begin[row] :]]
            self.best = Episode(value, own, self.turns)
        self._totals[rows] = 0.0
        self._episodes[rows] += 1
        self._begin[rows] = len(self.history)

    def _worth(self, infos: Any) -> Tensor:
        """Return what a teacher says that actions are worth, (n, A), NaN of which it says nothing.

        Raises:
            ParenvsError: there is no teacher.
        """
        known = infos.get("action_values") if self._teacher is None else self._teacher()
        if known is None:
            raise ParenvsError(
                f"{self.env_id}: nobody teaches; infos need 'action_values', what each action is "
                "worth, NaN where that is not known"
            )
        return torch.from_numpy(np.array(known, dtype=np.float32))

    def _behind(self, algorithm: Algorithm, infos: Any, rows: np.ndarray) -> Tensor:
        """Return what is left to earn where episodes were cut off, discounted."""
        if not rows.size:
            return torch.zeros(0)
        last = [infos["final_obs"][row] for row in rows.tolist()]
        batched = (
            {name: np.stack([each[name] for each in last]) for name in last[0]}
            if isinstance(last[0], dict)
            else np.stack(last)
        )
        discount = getattr(algorithm, "discount", 1.0)
        return discount * algorithm.values(self.lens(batched, {}))
