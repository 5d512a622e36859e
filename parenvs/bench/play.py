"""How fast environments are: steps a second of processor time, of single ones and of batches.

Legal actions of whole episodes are drawn before, so that nothing but the environments is timed;
all environments take turns, so that noise is shared. The yardstick is gymnasium's ``CartPole-v1``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

Case = tuple[str, dict[str, Any]]
"""Id of an environment and its arguments."""
Play = tuple[Callable[[], object], int]
"""What is timed, and the steps that it makes."""
BASELINE = "CartPole-v1"
VIEWS = ", copy=False"
"""How the name of a case ends that is one of batches only."""
DRAWN = ", drawn"
"""Stands in the name of a case whose every environment has problems of its own."""
EPISODES, STEPS = 8, 100
"""Episodes of a pass of a batch, as far as they take no more than so many steps."""
SINGLE_STEPS = 1000
"""Steps of a pass of a single environment, at least."""


def drawn(rng: np.random.Generator, info: dict[str, Any], count: int) -> np.ndarray:
    """(count,) uniform legal actions; without a mask one of two."""
    masks = np.reshape(info.get("action_mask", np.ones((count, 2))), (count, -1))
    return (rng.random(masks.shape) * masks).argmax(axis=1)


def batch_play(envs: gym.vector.VectorEnv[Any, Any, Any], steps: int | None = None) -> Play:
    """Steps of a batch from a reset on, resets included."""
    actions: list[np.ndarray] = []
    rng = np.random.default_rng(0)
    _, info = envs.reset(seed=0)
    length = int(getattr(envs.unwrapped, "episode_steps", STEPS)) + 1
    for _ in range(steps or min(EPISODES * length, STEPS)):
        actions.append(drawn(rng, info, envs.num_envs))
        info = envs.step(actions[-1])[-1]

    def play() -> None:
        envs.reset(seed=0)
        for one in actions:
            envs.step(one)

    return play, len(actions) * envs.num_envs


def single_play(env: gym.Env[Any, Any], least: int = SINGLE_STEPS) -> Play:
    """Whole episodes of a single environment, whose resets are calls of their own and no steps."""
    actions: list[int] = []
    rng = np.random.default_rng(0)
    _, info = env.reset(seed=0)
    over = False
    while len(actions) < least or not over:
        actions.append(int(drawn(rng, info, 1)[0]))
        _, _, terminated, truncated, info = env.step(actions[-1])
        over = terminated or truncated
        if over:
            _, info = env.reset()

    def play() -> None:
        env.reset(seed=0)
        for one in actions:
            _, _, terminated, truncated, _ = env.step(one)
            if terminated or truncated:
                env.reset()

    return play, len(actions)


def rate(play: Callable[[], object], steps: int, seconds: float) -> float:
    """Steps a second of processor time, of as many passes as take so many seconds."""
    passes, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds or not passes:
        play()
        passes += 1
    return steps * passes / max(spent, 1e-9)


def copies(size: int, seconds: float) -> float:
    """How many times a second ``np.copyto`` copies so many bytes."""
    source, target = np.ones((2, size), dtype=np.uint8)

    def play() -> None:
        for _ in range(20):
            np.copyto(target, source)

    return rate(play, 20, seconds)


def observed_bytes(observation: Any) -> int:
    """Bytes of an observation."""
    parts = observation.values() if isinstance(observation, dict) else [observation]
    return sum(np.asarray(part).nbytes for part in parts)


def made(case: Case, count: int) -> Any:
    """An environment by ``gym.make``, or a native batch of so many; 0 for a single one."""
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
    drawn: int | None = None,
) -> list[dict[str, Any]]:
    """Speeds of environments, single and batched, all in turns.

    Args:
        cases: environments by what is said of them, the yardstick first. One whose name ends in
            ``VIEWS`` is batched only, and its ratio is over the single one without.
        counts: how many at once; 0 for single ones, which have to be there.
        seconds: processor seconds of each run.
        repeats: runs of each.
        say: is told of every round.
        drawn: the most at once of a case with ``DRAWN`` in its name.

    Returns:
        for each case and count ``what``, ``id``, ``kwargs``, ``actions``, ``envs``,
        ``observation_bytes`` (of one environment) and, for each run, ``steps_per_second``,
        ``over_single``, ``over_cartpole``, ``of_copying`` (the time of copying the observation over
        that of a step) and ``reset_seconds`` (of all at once).
    """
    turns = [
        _Turn(what, case, count)
        for count in counts
        for what, case in cases.items()
        if (count or not what.endswith(VIEWS))
        and (drawn is None or count <= drawn or DRAWN not in what)
    ]
    for repeat in range(repeats):
        for turn in turns:
            if turn.what == BASELINE:
                say(f"round {repeat + 1} of {repeats}, {turn.count or 'single'}")
            turn.run(seconds)
    speed = {(turn.what, turn.count): turn.speeds for turn in turns}
    return [
        {
            "what": turn.what,
            "id": turn.case[0],
            "kwargs": turn.case[1],
            "actions": turn.actions,
            "envs": turn.count,
            "observation_bytes": turn.size / max(turn.count, 1),
            "steps_per_second": turn.speeds,
            "over_single": _over(turn.speeds, speed[turn.what.removesuffix(VIEWS), 0]),
            "over_cartpole": _over(turn.speeds, speed[BASELINE, turn.count]),
            "of_copying": _over(turn.speeds, turn.copies),
            "reset_seconds": turn.resets,
        }
        for turn in turns
    ]


class _Turn:
    """Environments that are timed again and again."""

    def __init__(self, what: str, case: Case, count: int) -> None:
        self.what, self.case, self.count = what, case, count
        self.env = made(case, count)
        self.size = observed_bytes(self.env.reset(seed=0)[0])
        self.actions = int((self.env.single_action_space if count else self.env.action_space).n)
        self.play = batch_play(self.env) if count else single_play(self.env)
        self.speeds: list[float] = []
        self.copies: list[float] = []
        self.resets: list[float] = []

    def run(self, seconds: float) -> None:
        """One run more."""
        self.speeds.append(rate(*self.play, seconds))
        self.copies.append(copies(self.size, seconds / 10) * max(self.count, 1))
        self.resets.append(1 / rate(self.env.reset, 1, seconds / 10))


def _over(some: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(some, others, strict=True)]
