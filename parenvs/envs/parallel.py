"""``ParallelVectorEnv``: PettingZoo's parallel environments as a vector environment of Gymnasium.

>>> from functools import partial
>>> gym.register("Mine-v0", vector_entry_point=partial(ParallelVectorEnv, parallel_env))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from parenvs.errors import ParenvsError, shown

Rows = dict[str, np.ndarray]


class ParallelVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """Environments of several agents each, a row for every agent.

    All rows have one space: observations are flat and padded behind, followed by which agent it is
    (``context``); ``action_mask`` has the legal actions, padded; where all agents have rows of
    actions (``actions``, see ``parenvs.core.rows``) so have the rows here. ``joint`` is what all
    agents of the environment see, for a central critic. An agent that has left waits, paid 0, with
    action 0, for the end of the episode; it ends for all rows at once.

    Args:
        make: makes an environment; ``parallel_env`` of a module of PettingZoo.
        num_envs: how many.
        autoreset_mode: ``SAME_STEP``.
        **arguments: of ``make``.

    Raises:
        ParenvsError: an agent's actions are not discrete, or the mode is another one.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        num_envs: int = 1,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        **arguments: Any,
    ) -> None:
        if autoreset_mode != AutoresetMode.SAME_STEP:
            raise ParenvsError(f"agents start again in the same step, not by {autoreset_mode}")
        self.envs = [make(**arguments) for _ in range(num_envs)]
        one = self.envs[0]
        self.names: list[str] = list(one.possible_agents)
        seen = {name: one.observation_space(name) for name in self.names}
        acting = [one.action_space(name) for name in self.names]
        for name, space in zip(self.names, acting, strict=True):
            if not isinstance(space, spaces.Discrete):
                raise ParenvsError(f"actions of {name} must be Discrete, not {shown(space)}")
        self._sizes = [int(space.n) for space in acting]
        self._firsts = [int(space.start) for space in acting]
        self._parts = {name: _parts(space) for name, space in seen.items()}
        self.rowed = all(_is_rowed(space) for space in seen.values())
        flat = max(
            sum(spaces.flatdim(part) for part in parts.values()) for parts in self._parts.values()
        )
        actions, agents = max(self._sizes), len(self.names)
        shapes: dict[str, tuple[int, ...]] = {
            "context": (flat + agents,),
            "action_mask": (actions,),
            "joint": (flat * agents,),
        }
        self._features = seen[self.names[0]]["actions"].shape[1] if self.rowed else 0
        if self.rowed:
            shapes["actions"] = (actions, self._features)
            shapes["joint"] = ((flat + 2 * self._features) * agents,)
        self._shapes = shapes
        self.single_observation_space = spaces.Dict(
            {name: spaces.Box(-np.inf, np.inf, shape, np.float32) for name, shape in shapes.items()}
        )
        self.single_action_space = spaces.Discrete(actions)
        self.num_envs = num_envs * agents
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**one.metadata, "autoreset_mode": autoreset_mode}

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Rows, dict[str, Any]]:
        """Start all episodes anew.

        Args:
            seed: of the first environment, whose successors have the next numbers; or one of each
                row, of which those of first agents count; or None.
            options: of each environment.
        """
        agents = len(self.names)
        seeds: list[int | None] = [None] * len(self.envs)
        if isinstance(seed, int):
            seeds = [seed + number for number in range(len(self.envs))]
        elif seed is not None:
            seeds = [int(each) for each in seed[::agents]]
        rows = [
            self._rows(*env.reset(seed=own, options=options))
            for env, own in zip(self.envs, seeds, strict=True)
        ]
        return _stacked(rows), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[Rows, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take a step in each environment by the actions of its agents, (n,)."""
        agents, count = len(self.names), self.num_envs
        paid, terminated, truncated = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
        final = np.full(count, None, dtype=object)
        rows = []
        for number, env in enumerate(self.envs):
            begin = number * agents
            chosen = {
                name: int(actions[begin + index]) + self._firsts[index]
                for index, name in enumerate(self.names)
                if name in env.agents
            }
            seen, rewards, ended, cut, infos = env.step(chosen)
            paid[begin : begin + agents] = [rewards.get(name, 0.0) for name in self.names]
            there = env.agents or seen
            own = self._rows({name: seen[name] for name in seen if name in there}, infos)
            if not env.agents:
                for index, name in enumerate(self.names):
                    is_cut = bool(cut.get(name)) and not ended.get(name)
                    truncated[begin + index], terminated[begin + index] = is_cut, not is_cut
                    final[begin + index] = {key: value[index] for key, value in own.items()}
                own = self._rows(*env.reset())
            rows.append(own)
        over = terminated | truncated
        infos = {"final_obs": final, "_final_obs": over} if over.any() else {}
        return _stacked(rows), paid, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()

    def _rows(self, seen: Mapping[str, Any], infos: Mapping[str, Any]) -> Rows:
        agents = len(self.names)
        result: Rows = {
            name: np.zeros((agents, *shape), np.float32) for name, shape in self._shapes.items()
        }
        for index, name in enumerate(self.names):
            context, mask = result["context"][index], result["action_mask"][index]
            context[index - agents] = 1.0
            if name not in seen:
                mask[0] = 1.0
                continue
            observed = seen[name] if isinstance(seen[name], Mapping) else {"": seen[name]}
            begin = 0
            for key, part in self._parts[name].items():
                flat = spaces.flatten(part, observed[key])
                context[begin : begin + len(flat)] = flat
                begin += len(flat)
            legal = observed.get("action_mask", infos.get(name, {}).get("action_mask", 1))
            mask[: self._sizes[index]] = legal
            if self.rowed:
                result["actions"][index, : self._sizes[index]] = observed["actions"]
        joint = [result["context"][:, :-agents]]
        if self.rowed:
            legal = result["action_mask"][..., None] > 0
            rows = result["actions"]
            top = np.where(legal, rows, -np.inf).max(axis=1)
            joint += [
                (rows * legal).sum(axis=1) / legal.sum(axis=1),
                np.where(top > -np.inf, top, 0),
            ]
        result["joint"][:] = np.concatenate(joint, axis=1).ravel()
        return result


def _parts(space: Any) -> dict[str, Any]:
    if not isinstance(space, spaces.Dict):
        return {"": space}
    left = ("action_mask", "actions") if _is_rowed(space) else ("action_mask",)
    return {name: part for name, part in space.items() if name not in left}


def _is_rowed(space: Any) -> bool:
    return isinstance(space, spaces.Dict) and {"actions", "context", "action_mask"} <= set(space)


def _stacked(rows: Sequence[Rows]) -> Rows:
    return {name: np.concatenate([each[name] for each in rows]) for name in rows[0]}
