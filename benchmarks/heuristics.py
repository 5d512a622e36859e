"""Heuristics of one line in environments of rows: chance, constants, extremes of each feature."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from parenvs.core.rows import AHEAD, RowGame
from parenvs.core.sets import set_of

BATCH = 64
"""Episodes that are played at once."""
Choose = Callable[[dict[str, np.ndarray], np.random.Generator], np.ndarray]
"""Batched observations, and a generator -> (n,) actions."""


class Played(NamedTuple):
    """How a rule does on the problems of a set.

    Attributes:
        costs: (k,) of the plans, NaN where an episode ended without one.
        best: (k,) the best costs known; the bounds where none is known.
        start: (k,) costs of the start plans.
        turns: (k,) of the episodes.
        seconds: processor seconds of all.
    """

    costs: np.ndarray
    best: np.ndarray
    start: np.ndarray
    turns: np.ndarray
    seconds: float

    @property
    def shares(self) -> np.ndarray:
        """(k,) the best cost known over that of the plan; 0 without a plan."""
        return np.nan_to_num(self.best / self.costs, nan=0.0)


def rules(game: type[RowGame], rows: str = AHEAD) -> dict[str, Choose]:
    """Return every rule of one line: chance, constants, least and largest of each column.

    Args:
        game: the class of the game.
        rows: one of ``parenvs.core.rows.LOOKS``: which columns there are.
    """
    shown = [name for name in game.columns if rows == AHEAD or name not in game.ahead]
    found: dict[str, Choose] = {"random": _random, "first": _first, "last": _last}
    for index, name in enumerate(shown):
        found[f"largest {name}"] = partial(_largest, index, 1.0)
        found[f"least {name}"] = partial(_largest, index, -1.0)
    return found


def play_rule(
    env_id: str, name: str, choose: Choose, family: str | None = None, rows: str = AHEAD,
    first: int | None = None, seed: int = 0,
) -> Played:  # fmt: skip
    """Play the problems of a set by a rule, each once.

    Args:
        env_id: id of an environment of rows.
        name: of the set.
        choose: the rule.
        family: problems of this family only.
        rows: one of ``parenvs.core.rows.LOOKS``.
        first: number of problems, the first of the set (default: all).
        seed: of what the rule draws.
    """
    played = set_of(name)
    count = len(played.of(family)[:first])
    env: Any = gym.make_vec(
        env_id,
        num_envs=min(BATCH, count),
        vectorization_mode="vector_entry_point",
        autoreset_mode="SameStep",
        rows=rows,
        **played.env_kwargs(family),
    )
    rng, begin = np.random.default_rng(seed), time.process_time()
    observation, _ = env.reset(seed=0)
    number = np.arange(env.num_envs)
    turns, steps = np.zeros(count, dtype=np.int64), np.zeros(env.num_envs, dtype=np.int64)
    figures = np.full((4, count), np.nan)
    while (number < count).any():
        observation, _, ended, _, infos = env.step(choose(observation, rng))
        steps += 1
        for row in np.flatnonzero(ended & (number < count)).tolist():
            last = infos["final_info"]
            for index, key in enumerate(("cost", "best_known", "bound", "start")):
                if key in last and last[f"_{key}"][row]:
                    figures[index, number[row]] = last[key][row]
            turns[number[row]] = steps[row]
        number[ended] += env.num_envs
        steps[ended] = 0
    costs, best, bound, start = figures
    seconds = time.process_time() - begin
    env.close()
    return Played(costs, np.where(np.isnan(best), bound, best), start, turns, seconds)


def _random(observation: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    mask = observation["action_mask"]
    return np.asarray((rng.random(mask.shape) * mask).argmax(axis=1))


def _first(observation: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    return np.asarray(observation["action_mask"].argmax(axis=1))


def _last(observation: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    mask = observation["action_mask"]
    return np.asarray(mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1))


def _largest(
    column: int, sign: float, observation: dict[str, np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    values = sign * observation["actions"][..., column]
    return np.asarray(np.where(observation["action_mask"], values, -np.inf).argmax(axis=1))
