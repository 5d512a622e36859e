"""Times environments, single and batched: steps per second of processor time.

Legal actions of whole episodes are drawn beforehand, so that nothing but the environments is timed.
All environments take turns, so that they share the noise. The yardstick is gymnasium's
``CartPole-v1``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np

Case = tuple[str, dict[str, Any]]
"""Id of an environment, and its arguments."""
Play = tuple[Callable[[], object], int]
"""A function that is timed, and the number of environment steps that a call makes."""
BASELINE = "CartPole-v1"
VIEWS = ", copy=False"
"""The name of a case ends with this if only batches have its arguments."""
DRAWN = ", drawn"
"""The name of a case holds this if each of its environments draws its own problems."""
AHEAD, BARE = ", ahead", ", bare"
"""The name of a case of rows holds one of these: whether they look ahead."""
EPISODES, STEPS = 8, 100
"""A pass of a batch plays ``EPISODES`` episodes, but at most ``STEPS`` steps."""
LONGEST = 5.0
"""Processor seconds after which no more steps are added to a pass."""
SINGLE_STEPS = 1000
"""A pass of a single environment takes at least this many steps."""


def draw_actions(rng: np.random.Generator, info: dict[str, Any], count: int) -> np.ndarray:
    """Draw (count,) legal actions uniformly; an ``info`` without a mask means two legal actions."""
    masks = np.reshape(info.get("action_mask", np.ones((count, 2))), (count, -1))
    return (rng.random(masks.shape) * masks).argmax(axis=1)


def batch_play(envs: gym.vector.VectorEnv[Any, Any, Any], steps: int | None = None) -> Play:
    """A pass of a batch: a reset, then steps, autoresets included.

    Args:
        envs: the batch.
        steps: most steps (default: by ``EPISODES`` and ``STEPS``).
    """
    actions: list[np.ndarray] = []
    rng = np.random.default_rng(0)
    _, info = envs.reset(seed=0)
    begin = time.process_time()
    length = int(getattr(envs.unwrapped, "episode_steps", STEPS)) + 1
    for _ in range(steps or min(EPISODES * length, STEPS)):
        actions.append(draw_actions(rng, info, envs.num_envs))
        info = envs.step(actions[-1])[-1]
        if time.process_time() - begin > LONGEST:
            break

    def play() -> None:
        envs.reset(seed=0)
        for batch_actions in actions:
            envs.step(batch_actions)

    return play, len(actions) * envs.num_envs


def single_play(env: gym.Env[Any, Any], min_steps: int = SINGLE_STEPS) -> Play:
    """A pass of a single environment: whole episodes, whose resets do not count as steps.

    Args:
        env: the environment.
        min_steps: the pass ends with the first episode that ends after this many steps.
    """
    actions: list[int] = []
    rng = np.random.default_rng(0)
    _, info = env.reset(seed=0)
    over = False
    while len(actions) < min_steps or not over:
        actions.append(int(draw_actions(rng, info, 1)[0]))
        _, _, terminated, truncated, info = env.step(actions[-1])
        over = terminated or truncated
        if over:
            _, info = env.reset()

    def play() -> None:
        env.reset(seed=0)
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return play, len(actions)


def rate(play: Callable[[], object], steps: int, seconds: float) -> float:
    """Steps per second of processor time, over passes that take at least ``seconds`` together.

    Args:
        play: makes a pass.
        steps: number of steps of a pass.
        seconds: processor seconds.
    """
    passes, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds or not passes:
        play()
        passes += 1
    return steps * passes / max(spent, 1e-9)


def copies(size: int, seconds: float) -> float:
    """How often per second ``np.copyto`` copies ``size`` bytes, measured for ``seconds``."""
    source, target = np.ones((2, size), dtype=np.uint8)

    def play() -> None:
        for _ in range(20):
            np.copyto(target, source)

    return rate(play, 20, seconds)


def observed_bytes(observation: Any) -> int:
    """Bytes of an observation, of all entries together if it is a dictionary."""
    parts = observation.values() if isinstance(observation, dict) else [observation]
    return sum(np.asarray(part).nbytes for part in parts)


def make(case: Case, count: int) -> Any:
    """``gym.make(...)`` if ``count`` is 0, else a native batch of ``count`` by ``gym.make_vec``."""
    name, kwargs = case
    if not count:
        return gym.make(name, **kwargs)
    return gym.make_vec(name, count, "vector_entry_point", **kwargs)


def speeds(
    cases: Mapping[str, Case],
    counts: Sequence[int],
    seconds: float,
    repeats: int,
    say: Callable[[str], object] = lambda text: None,
    limits: Mapping[str, int] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Time environments, single and batched, all in turns.

    Args:
        cases: the environments by name, the yardstick first. One whose name ends with ``VIEWS`` is
            timed in batches only, and compared with the single environment of the name without.
        counts: the numbers of environments at once; 0 stands for single ones and has to be there.
        seconds: processor seconds of each run.
        repeats: number of runs of each environment.
        say: is called with a line on every round.
        limits: a word of names of cases -> their greatest count.

    Returns:
        for each case and count ``what`` (its name), ``id``, ``kwargs``, ``actions``, ``envs``,
        ``observation_bytes`` (of one environment) and, for each run, ``steps_per_second``,
        ``over_single``, ``over_cartpole``, ``of_copying`` (the time of copying the observation over
        that of a step) and ``reset_seconds`` (of all environments together).
    """
    timed = [
        _TimedEnv(what, case, count)
        for count in counts
        for what, case in cases.items()
        if (count or not what.endswith(VIEWS))
        and all(count <= most for word, most in limits.items() if word in what)
    ]
    for repeat in range(repeats):
        for env in timed:
            if env.what == BASELINE:
                say(f"round {repeat + 1} of {repeats}, {env.count or 'single'}")
            env.run(seconds)
    speed = {(env.what, env.count): env.speeds for env in timed}
    return [
        {
            "what": env.what,
            "id": env.case[0],
            "kwargs": env.case[1],
            "actions": env.actions,
            "envs": env.count,
            "observation_bytes": env.size / max(env.count, 1),
            "steps_per_second": env.speeds,
            "over_single": _over(env.speeds, speed[env.what.removesuffix(VIEWS), 0]),
            "over_cartpole": _over(env.speeds, speed[BASELINE, env.count]),
            "of_copying": _over(env.speeds, env.copies),
            "reset_seconds": env.resets,
        }
        for env in timed
    ]


class _TimedEnv:
    """An environment, or a batch, with the figures of its runs so far.

    Args:
        what: its name.
        case: its id and arguments.
        count: number of environments; 0 for a single one.
    """

    def __init__(self, what: str, case: Case, count: int) -> None:
        self.what, self.case, self.count = what, case, count
        self.env = make(case, count)
        self.size = observed_bytes(self.env.reset(seed=0)[0])
        self.actions = int((self.env.single_action_space if count else self.env.action_space).n)
        self.play = batch_play(self.env) if count else single_play(self.env)
        self.speeds: list[float] = []
        self.copies: list[float] = []
        self.resets: list[float] = []

    def run(self, seconds: float) -> None:
        """Time one more run."""
        self.speeds.append(rate(*self.play, seconds))
        self.copies.append(copies(self.size, seconds / 10) * max(self.count, 1))
        self.resets.append(1 / rate(self.env.reset, 1, seconds / 10))


def _over(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """The ratios of runs of the same rounds."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]
