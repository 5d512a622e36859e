"""``Play``: environments side by side, and the batches that an algorithm learns from."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode
from torch import Tensor

from parenvs.agents.learning.algorithm import Algorithm, Batch, Chance, Place, chosen
from parenvs.agents.learning.config import TrainConfig, plain_id
from parenvs.agents.learning.engine import LostError
from parenvs.agents.learning.net import Lens, Seen
from parenvs.compiled import Array
from parenvs.core.registry import TASKS
from parenvs.core.task import Task
from parenvs.envs import agents_of
from parenvs.envs.env import GameVectorEnv, ParallelVectorEnv
from parenvs.errors import ParenvsError, one_line, shown
from parenvs.graph.python_source import user_error

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


@contextlib.contextmanager
def watched(config: TrainConfig) -> Iterator[None]:
    """Run an environment's code; what it raises is a ``LostError``, as another try may succeed."""
    try:
        yield
    except ParenvsError:
        raise
    except Exception as error:
        raise LostError(str(user_error(error, config.env_id))) from None


def vector_maker(env_id: str) -> Any:
    """Return what makes a batch of an environment; None if it is not registered with one."""
    entry: Any = gym.spec(env_id).vector_entry_point
    return load_env_creator(entry) if isinstance(entry, str) else entry


def vector_env(env_id: str, env_kwargs: dict[str, Any], count: int) -> Any:
    """Make n environments whose ended episodes start again in the same step.

    They are a batch of their own where their ``vector_entry_point`` takes ``autoreset_mode``, as
    those of games do, and seeds of each; others are Gymnasium's ``SyncVectorEnv`` of single ones.

    Raises:
        ParenvsError: there is no such environment, or it refuses its arguments.
    """
    try:
        if agents := agents_of(env_id):
            return ParallelVectorEnv(agents.parallel_env, count, SAME_STEP, **env_kwargs)
        maker = vector_maker(env_id)
        mode: dict[str, Any] = {"autoreset_mode": SAME_STEP}
        if maker is not None and "autoreset_mode" in inspect.signature(maker).parameters:
            return gym.make_vec(env_id, count, "vector_entry_point", **mode, **env_kwargs)
        return gym.make_vec(env_id, count, "sync", vector_kwargs=mode, **env_kwargs)
    except (gym.error.Error, TypeError) as error:
        raise ParenvsError(f"{env_id}: {one_line(error)}") from None


def _teacher(env_id: str, env: Any) -> Callable[[], Array] | None:
    game, name = getattr(env.unwrapped, "game", None), plain_id(env_id)
    teachers = [x for x in TASKS.values() if name in x.envs and x.supports(Task.teacher)]
    return teachers[0].teacher(game) if teachers and game is not None else None


class Episode(NamedTuple):
    """An episode of a fixed problem; ``replayed`` plays its actions again."""

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


class Summary(NamedTuple):
    """Counts and returns of the episodes of some steps; ``best`` if episodes are comparable."""

    returns: list[float]
    turns: int
    episodes: int
    best: Episode | None
    figures: dict[str, float]

    @classmethod
    def of(cls, play: Any) -> Summary:
        """Return the summary of a player's last steps."""
        return cls(play.returns, play.turns, play.episodes, play.best, {})

    @classmethod
    def joined(cls, parts: Sequence[Summary]) -> Summary:
        """Join the summaries of several players; turns and figures are the first one's."""
        episodes = [part.best for part in parts if part.best is not None]
        return parts[0]._replace(
            returns=[value for part in parts for value in part.returns],
            episodes=sum(part.episodes for part in parts),
            best=max(episodes, key=lambda x: (x.value, -x.turns), default=None),
        )


class Share(NamedTuple):
    """A contiguous share of a training's ``total`` environments, from number ``first``."""

    first: int
    size: int
    total: int

    def dealt(self, parts: int, unit: int) -> list[Share]:
        """Return equal shares of players, in whole units; ``ParenvsError`` if that cannot be."""
        # Copies of a problem stay in one process: their groups must not be torn apart.
        if self.size % unit:
            raise ParenvsError(f"envs must be a multiple of copies, {unit}, not {self.size}")
        if self.size // unit < parts:
            raise ParenvsError(
                f"{parts} processes for {self.size // unit} environments"
                + (f" of {unit} copies" if unit > 1 else "")
                + "; give more --num-envs, or fewer --actors or --learners"
            )
        ends = [self.size // unit * part // parts * unit for part in range(parts + 1)]
        return [Share(self.first + a, b - a, self.total) for a, b in pairwise(ends)]


class Transition(NamedTuple):
    """What n environments did in a turn.

    Attributes:
        seen: (n), behind it; of the next episode where one has ended.
        over: (n,) bool, whether the episode has ended.
        cut: (k,) int64, the environments whose episode was cut off.
        last: (k), what was seen last there, or None.
        worth: (n, A), what a teacher says that actions are worth now, or None.
    """

    seen: Seen
    rewards: Array
    over: Array
    cut: Array
    last: Seen | None
    worth: Tensor | None


class Envs:
    """Environments of a share, as agents see them.

    Values of actions come from ``Task.teacher`` of the environment's task, or else from
    ``action_values`` in the infos of a step.

    Attributes:
        seats: rows of an environment, of an agent each; 1 but for environments of several agents.
        draws: whether problems change, so that episodes do not compare.
    """

    def __init__(self, config: TrainConfig, share: Share, taught: bool = False) -> None:
        self.config, self.share, self.taught = config, share, taught
        with watched(config):
            self.env = vector_env(config.env_id, config.env_kwargs, share.size)
        if isinstance(self.env, GameVectorEnv):
            self.env.count_as(share.first, share.total)
        self.seats = int(self.env.num_envs) // share.size
        self.lens = Lens.of(self.env)
        self.draws = bool(getattr(self.env, "draws", True))
        self._teacher = _teacher(config.env_id, self.env)

    def reset(self, seeds: list[int]) -> tuple[Seen, Tensor | None]:
        """Begin all episodes anew; return what is seen and ``Transition.worth``."""
        with watched(self.config):
            observation, infos = self.env.reset(seed=seeds)
        return self.lens(observation, infos), self._worth(infos)

    def step(self, actions: Array) -> Transition:
        """Take a turn by actions, (n,) int64, of the action space."""
        with watched(self.config):
            observation, rewards, terminated, truncated, infos = self.env.step(actions)
        cut, last = np.flatnonzero(truncated & ~terminated), None
        if cut.size:
            last = self.lens(stacked([infos["final_obs"][row] for row in cut.tolist()]), {})
        over = np.asarray(terminated | truncated)
        seen, worth = self.lens(observation, infos), self._worth(infos)
        return Transition(seen, np.asarray(rewards, np.float64), over, cut, last, worth)

    def spent(self) -> float:
        """Return the processor seconds of other processes."""
        return 0.0

    def close(self) -> None:
        """Close the environments, whatever becomes of them."""
        with contextlib.suppress(ParenvsError), watched(self.config):
            self.env.close()

    def _worth(self, infos: Any) -> Tensor | None:
        """Return ``Transition.worth``, NaN of which a teacher says nothing."""
        if not self.taught:
            return None
        known = infos.get("action_values") if self._teacher is None else self._teacher()
        if known is None:
            raise ParenvsError(
                f"{self.config.env_id}: nobody teaches; infos need 'action_values', what each "
                "action is worth, NaN where that is not known"
            )
        return torch.from_numpy(np.array(known, np.float32))


def stacked(observations: Sequence[Any]) -> Any:
    """Return a batch of observations, arrays or dicts of them."""
    if isinstance(observations[0], dict):
        return {name: np.stack([x[name] for x in observations]) for name in observations[0]}
    return np.stack([np.asarray(x) for x in observations])


def seeds_of(seed: int, part: int, total: int, copies: int) -> Array:
    """Return the seed of each environment in a part of a training, (total,) int64."""
    # Copies of a problem share a seed, so that an algorithm can compare their returns.
    groups = np.random.SeedSequence([seed, part]).generate_state(total // copies)
    return np.repeat(groups & 0x7FFFFFFF, copies).astype(np.int64)


class Play:
    """n environments that play on, step by step.

    ``copies`` adjacent environments, a divisor of n, have the same seed.

    Attributes:
        turns: turns so far, of all environments of the training.
        returns: of the episodes that have ended in the last call of ``collect``.
        best: the best episode so far, where they compare.
        history: (t, n) actions since ``restart``, by which a run goes on from a checkpoint.
    """

    def __init__(self, envs: Any, copies: int = 1, seed: int = 0) -> None:
        self.envs, self.copies, self.seed = envs, copies * envs.seats, seed
        self.lens, self.draws, self.seats = envs.lens, envs.draws, envs.seats
        first, count, total = (x * envs.seats for x in envs.share)
        self.first, self.count, self.total = first, count, total
        self.turns = self.episodes = 0
        self.returns: list[float] = []
        self.best: Episode | None = None
        self.history: list[Array] = []
        self._begin = np.zeros(count, np.int64)
        self._totals = np.zeros(count)
        self._episodes = np.zeros(count, np.int64)
        self._seen: Seen | None = None
        self._worth: Tensor | None = None

    def restart(self, part: int) -> None:
        """Begin all episodes anew, of problems that a number decides."""
        seeds = seeds_of(self.seed, part, self.total, self.copies)
        seeds = seeds[self.first : self.first + self.count]
        self._seen, self._worth = self.envs.reset(seeds.tolist())
        self._totals[:] = 0.0
        self._episodes[:] = self._begin[:] = 0
        self.history = []

    def collect(
        self, algorithm: Algorithm, turns: int, tick: Callable[[Play], object] = lambda play: None
    ) -> Batch:
        """Play some turns of each environment; ``tick`` is called after each."""
        assert self._seen is not None
        steps = []
        self.returns = []
        place = Place(self.first, self.total, self.turns // self.total)
        for turn in range(turns):
            current = place._replace(turn=place.turn + turn)
            chosen, kept = algorithm.act(self._seen, Chance(self.seed, current, self.count))
            if algorithm.taught:
                assert self._worth is not None
                kept = {**kept, "worth": self._worth}
            taken = chosen.numpy() + self.lens.first
            step = self.envs.step(taken)
            self.history.append(taken)
            # Steps are counted over all learners, who are in lockstep.
            self.turns += self.total
            self._totals += step.rewards
            # What is not finite is refused before it is learned.
            with np.errstate(over="ignore"):
                rewards = torch.from_numpy(step.rewards.astype(np.float32))
            # What is left to earn, where episodes were cut off.
            if step.last is not None:
                discount = getattr(algorithm, "discount", 1.0)
                rewards[step.cut] += discount * algorithm.values(step.last)
            steps.append({
                **self._seen._asdict(), **kept, "actions": chosen, "rewards": rewards,
                "ended": torch.from_numpy(step.over),
                "episodes": torch.from_numpy(self._episodes.copy()),
            })  # fmt: skip
            self._finish(np.flatnonzero(step.over))
            self._seen, self._worth = step.seen, step.worth
            tick(self)
        return Batch.stacked(steps, self._seen, place)

    def state(self) -> dict[str, Any]:
        """Return all that the next turns depend on."""
        history = np.array(self.history, np.int64).reshape(-1, self.count)
        best = None if self.best is None else tuple(self.best)
        counts = {"turns": self.turns, "episodes": self.episodes}
        return {**counts, "best": best, "history": torch.from_numpy(history)}

    def load(self, state: dict[str, Any], part: int | None) -> None:
        """Go on from a state: replay the actions since ``restart`` number ``part``, if any."""
        self.turns, self.episodes = state["turns"], state["episodes"]
        self.best = None if state["best"] is None else Episode(*state["best"])
        if part is None:
            return
        self.restart(part)
        # Environments have no state that could be stored: their actions are taken again.
        for actions in state["history"].numpy():
            step = self.envs.step(actions)
            self.history.append(actions)
            self._totals = np.where(step.over, 0.0, self._totals + step.rewards)
            self._episodes += step.over
            self._begin[step.over] = len(self.history)
            self._seen, self._worth = step.seen, step.worth

    def spent(self) -> float:
        return float(self.envs.spent())

    def close(self) -> None:
        self.envs.close()

    def _finish(self, rows: Array) -> None:
        if not rows.size:
            return
        returns = self._totals[rows]
        self.returns += returns.tolist()
        self.episodes += rows.size
        first = int(returns.argmax())
        value, row = float(returns[first]), rows[first]
        if not self.draws and (self.best is None or value > self.best.value):
            taken = [int(actions[row]) for actions in self.history[self._begin[row] :]]
            self.best = Episode(value, taken, self.turns)
        self._totals[rows] = 0.0
        self._episodes[rows] += 1
        self._begin[rows] = len(self.history)


class Player:
    """Plays by the best actions of an agent, or samples them; ``env_id`` None: the sets' own.

    Attributes:
        action_space: of the environments that it can play; None if it plays any number of rows.
    """

    def __init__(self, agent: Algorithm, env_id: str | None = None) -> None:
        self.agent, self.env_id = agent, env_id
        self.action_space = None if agent.lens.scored else agent.lens.acting
        self._random = torch.Generator().manual_seed(0)

    def set_random_seed(self, seed: int) -> None:
        """Begin to draw anew."""
        self._random.manual_seed(seed)

    @torch.no_grad()
    def rate(self, observation: Mapping[str, Array]) -> Array:
        """Return the logarithms of the chances with which actions are drawn, (n, A), of rows."""
        return self.agent.logs(self.agent.lens(observation, {})).cpu().numpy()

    @torch.no_grad()
    def predict(
        self, observation: Any, action_masks: Array, deterministic: bool = True
    ) -> tuple[Array, None]:
        """Return actions of a batch of n observations, or of one, and None.

        ``action_masks`` are (A,) or (n, A) bool.
        """
        is_one = action_masks.ndim == 1
        if is_one:
            action_masks, observation = action_masks[None], stacked([observation])
        seen = self.agent.lens(observation, {"action_mask": action_masks})
        logs = self.agent.logs(seen).cpu()
        noise = None if deterministic else torch.rand(logs.shape, generator=self._random)
        taken = chosen(logs, seen.mask.cpu(), noise)
        actions = taken.numpy() + self.agent.lens.first
        return (actions[0] if is_one else actions), None

    def plan(self, problem: Any, env_kwargs: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """Return the plan that the best actions build of a problem, in the agent's environment.

        Args:
            problem: the problem, an object as the environment's argument ``problem`` takes it.
            env_kwargs: its other arguments.

        Raises:
            ParenvsError: the problem has another number of actions than the agent, or no plan.
        """
        assert self.env_id is not None
        env = gym.make(self.env_id, problem=problem, **env_kwargs)
        space: Any = env.action_space
        if self.action_space is not None and space.n != self.action_space.n:
            raise ParenvsError(
                f"the agent was trained with {self.action_space.n} actions, and the problem "
                f"{shown(env.get_wrapper_attr('instance'))} has {space.n}"
            )
        observation, info = env.reset(seed=0)
        over = False
        while not over:
            action, _ = self.predict(observation, np.asarray(info["action_mask"], np.bool_))
            observation, _, over, _, info = env.step(int(action))
        return env.get_wrapper_attr("plan")()

    def returns(
        self, env_id: str, env_kwargs: dict[str, Any], episodes: int, seed: int = 0
    ) -> Array:
        """Return the returns of the best actions, (episodes,); episode i has seed ``seed + i``."""
        env = vector_env(env_id, env_kwargs, episodes)
        observation, infos = env.reset(seed=seed)
        totals, goes_on = np.zeros(env.num_envs), np.ones(env.num_envs, np.bool_)
        while goes_on.any():
            seen = self.agent.lens(observation, infos)
            actions = self.agent.best(seen).numpy() + self.agent.lens.first
            observation, rewards, terminated, truncated, infos = env.step(actions)
            totals[goes_on] += rewards[goes_on]
            # An environment that has ended goes on with its next episode, which does not count.
            goes_on &= ~(terminated | truncated)
        env.close()
        return totals.reshape(episodes, -1).mean(axis=1)  # of all agents
