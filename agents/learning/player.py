"""``Player``: a trained agent as ``parenvs.evaluate`` and ``evaluate_set`` take policies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from parenvs.agents.learning.algorithm import Algorithm, chosen
from parenvs.agents.learning.play import vector_env
from parenvs.errors import ParenvsError, shown


class Player:
    """Plays by the best actions of an agent, or draws them.

    Args:
        agent: the agent.
        env_id: id of the environment that it plays sets in; None: the sets' own.

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
    def rate(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the logarithms of the chances with which actions are drawn, (n, A), of rows."""
        return self.agent.logs(self.agent.lens(observation, {})).cpu().numpy()

    @torch.no_grad()
    def predict(
        self, observation: Any, action_masks: np.ndarray, deterministic: bool = True
    ) -> tuple[np.ndarray, None]:
        """Return actions of a batch of n observations, or of one, and None.

        Args:
            observation: of one environment, or (n, ...) of n.
            action_masks: (A,) or (n, A) bool.
            deterministic: whether the actions are the best ones.
        """
        is_one = action_masks.ndim == 1
        if is_one:
            action_masks = action_masks[None]
            is_dict = isinstance(observation, dict)
            observation = (
                {name: np.asarray(value)[None] for name, value in observation.items()}
                if is_dict
                else np.asarray(observation)[None]
            )
        seen = self.agent.lens(observation, {"action_mask": action_masks})
        random = None if deterministic else self._random
        taken = chosen(self.agent.logs(seen).cpu(), seen.mask.cpu(), random)
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
            action, _ = self.predict(observation, np.asarray(info["action_mask"], dtype=np.bool_))
            observation, _, over, _, info = env.step(int(action))
        return env.get_wrapper_attr("plan")()

    def returns(
        self, env_id: str, env_kwargs: dict[str, Any], episodes: int, seed: int = 0
    ) -> np.ndarray:
        """Return what episodes in any environment return by the best actions, (episodes,).

        Args:
            env_id: id of the environment.
            env_kwargs: its arguments.
            episodes: how many, the first of each of as many environments.
            seed: of the first environment; the next ones have the next seeds.
        """
        env = vector_env(env_id, env_kwargs, episodes)
        observation, infos = env.reset(seed=seed)
        totals, goes_on = np.zeros(episodes), np.ones(episodes, dtype=np.bool_)
        while goes_on.any():
            seen = self.agent.lens(observation, infos)
            actions = self.agent.best(seen).numpy() + self.agent.lens.first
            observation, rewards, terminated, truncated, infos = env.step(actions)
            totals[goes_on] += rewards[goes_on]
            goes_on &= ~(terminated | truncated)
        env.close()
        return totals
