"""``hybrid_v0``: three agents make one hybrid plan in turns, by PettingZoo's interfaces.

>>> from parenvs.envs import hybrid_v0
>>> env = hybrid_v0.env("hybrid/7")          # agents take turns (AEC)
>>> env = hybrid_v0.parallel_env("hybrid/7")  # all act at once; the one whose turn it is counts
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

try:
    from pettingzoo import AECEnv, ParallelEnv
    from pettingzoo.utils import wrappers
except ImportError as error:  # pragma: no cover
    raise ImportError("hybrid_v0 needs PettingZoo: pip install 'parenvs[envs]'") from error

from parenvs.errors import shown
from parenvs.tasks.hybrid.game.single import OPTIONS, HybridPlanEnv
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.turns.actions import (
    AGENT_OF,
    AGENT_SIZES,
    AGENTS,
    OFFSETS,
    OWN_OFFSETS,
    SIZES,
)
from parenvs.tasks.hybrid.turns.observe import SHAPES

_METADATA = {"name": "hybrid_v0", "render_modes": ["ansi", "rgb_array"], "render_fps": 1}


def env(*arguments: Any, **options: Any) -> AECEnv:
    """Return the environment whose agents take turns, with PettingZoo's checks of its use."""
    return wrappers.OrderEnforcingWrapper(raw_env(*arguments, **options))


def parallel_env(*arguments: Any, **options: Any) -> ParallelEnv:
    """Return the environment whose agents all act at once; those not on turn wait."""
    return HybridParallelEnv(*arguments, **options)


class _Agents:
    """What both forms have in common: spaces, masks and observations of the agents.

    An agent's observation is that of ``HybridPlan-v0`` with ``action_mask``, (a,) int8, where a is
    56 for ``data``, 201 for ``pipeline`` and 4 for ``operator``. Its actions are the choices of its
    turns one after the other: global and data; layers, devices and server; tp. While another agent
    has its turn only action 0 is legal, and ignored.
    """

    possible_agents: list[str]
    plays: HybridPlanEnv

    def _set_up(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.possible_agents = list(AGENTS)
        self.plays = HybridPlanEnv(*arguments, **options)
        self.render_mode = self.plays.render_mode
        parts = {key: spaces.Box(0.0, 1.0, shape, np.float32) for key, shape in SHAPES.items()}
        self._spaces = {
            agent: spaces.Dict({**parts, "action_mask": spaces.Box(0, 1, (size,), np.int8)})
            for agent, size in zip(AGENTS, AGENT_SIZES, strict=True)
        }
        self._actions = {
            agent: spaces.Discrete(size) for agent, size in zip(AGENTS, AGENT_SIZES, strict=True)
        }
        self._rng: np.random.Generator | None = None

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Return the observation space of an agent, always the same object."""
        return self._spaces[agent]

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return the action space of an agent, always the same object."""
        return self._actions[agent]

    def plan(self) -> HybridPlan:
        """Return the plan built so far; see ``HybridPlanEnv.plan``."""
        return self.plays.plan()

    def render(self) -> Any:
        """Render the plan built so far."""
        return self.plays.render()

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def state(self) -> np.ndarray:
        """Return all parts of the observation as one array, (1696,) float32."""
        parts = self.plays.game.board.observation()
        return np.concatenate([parts[key].ravel() for key in SHAPES])

    @property
    def turn(self) -> str:
        """The agent whose turn it is."""
        return AGENTS[AGENT_OF[self.plays.game.episode.turn]]

    def mask(self, agent: str) -> np.ndarray:
        """Return an agent's legal actions, int8."""
        game = self.plays.game
        mask = np.zeros(AGENT_SIZES[AGENTS.index(agent)], dtype=np.int8)
        if game.is_over:
            mask[:] = 1
        elif agent == self.turn:
            turn = game.episode.turn
            mask[OWN_OFFSETS[turn] : OWN_OFFSETS[turn] + SIZES[turn]] = game.legal
        else:
            mask[0] = 1
        return mask

    def _play(self, action: Any) -> tuple[float, bool, dict[str, Any]]:
        """Take the turn by an action of the agent that has it; return reward, end and info."""
        turn = self.plays.game.episode.turn
        choice = int(action) - OWN_OFFSETS[turn]
        if not 0 <= choice < SIZES[turn]:
            choice = -1 - OFFSETS[turn]  # no action of any turn
        _, reward, over, _, info = self.plays.step(OFFSETS[turn] + choice)
        del info["action_mask"]
        return reward, over, info

    def _restart(self, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """Reset the episode and return its info; options that are not known warn only.

        PettingZoo's ``api_test`` resets every environment with an option of its own.
        """
        known = {key: value for key, value in (options or {}).items() if key in OPTIONS}
        for key in set(options or {}) - set(known):
            gym.logger.warn(f"reset: unknown option {shown(key)}; known: {', '.join(OPTIONS)}")
        info = self.plays.reset(seed=seed, options=known or None)[1]
        return {"instance": info["instance"]}

    def _observed(self, agent: str) -> dict[str, np.ndarray]:
        return {**self.plays.game.board.observation(), "action_mask": self.mask(agent)}


class raw_env(_Agents, AECEnv):
    """Agents ``data``, ``pipeline`` and ``operator`` take turns; arguments as ``HybridPlan-v0``.

    All agents get the same reward, when the plan is complete. An illegal action ends the episode
    with -1 for all.
    """

    metadata = {**_METADATA, "is_parallelizable": False}  # noqa: RUF012

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Make the environment; see ``HybridPlanEnv`` for the arguments."""
        super().__init__()
        self._set_up(arguments, options)
        self.agents: list[str] = []

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start anew, as ``HybridPlanEnv.reset`` does."""
        self._info = self._restart(seed, options)
        self.agents = list(AGENTS)
        self.rewards = dict.fromkeys(AGENTS, 0.0)
        self._cumulative_rewards = dict.fromkeys(AGENTS, 0.0)
        self.terminations = dict.fromkeys(AGENTS, False)
        self.truncations = dict.fromkeys(AGENTS, False)
        self.infos = self._infos()
        self.agent_selection = self.turn

    def step(self, action: Any) -> None:
        """Take the turn of ``agent_selection``."""
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        reward, over, self._info = self._play(action)
        self.rewards = dict.fromkeys(AGENTS, reward)
        self._accumulate_rewards()
        if over:
            self.terminations = dict.fromkeys(AGENTS, True)
            self.agent_selection = self.agents[0]
        else:
            self.agent_selection = self.turn
        self.infos = self._infos()

    def observe(self, agent: str) -> dict[str, np.ndarray]:
        """Return what an agent sees."""
        return self._observed(agent)

    def _infos(self) -> dict[str, dict[str, Any]]:
        return {agent: {**self._info, "action_mask": self.mask(agent)} for agent in AGENTS}


class HybridParallelEnv(_Agents, ParallelEnv):
    """The same episode where all agents act in every step, and only the turn's action counts.

    The same actions of the agents on turn give the same plan as with ``raw_env``.
    """

    metadata = _METADATA

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Make the environment; see ``HybridPlanEnv`` for the arguments."""
        super().__init__()
        self._set_up(arguments, options)
        self.agents: list[str] = []

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, dict[str, Any]]]:
        """Start anew, as ``HybridPlanEnv.reset`` does."""
        info = self._restart(seed, options)
        self.agents = list(AGENTS)
        return self._all(info)

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[
        dict[str, dict[str, np.ndarray]],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Play one turn; the actions of agents that are not on turn are ignored."""
        reward, over, info = self._play(actions[self.turn])
        observations, infos = self._all(info)
        if over:
            self.agents = []
        return (
            observations,
            dict.fromkeys(AGENTS, reward),
            dict.fromkeys(AGENTS, over),
            dict.fromkeys(AGENTS, False),
            infos,
        )

    def _all(
        self, info: dict[str, Any]
    ) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, dict[str, Any]]]:
        """Return observations and infos of all agents."""
        masks = {agent: self.mask(agent) for agent in AGENTS}
        shown = self.plays.game.board.observation
        observations = {agent: {**shown(), "action_mask": masks[agent]} for agent in AGENTS}
        return observations, {
            agent: {**info, "action_mask": masks[agent].copy()} for agent in AGENTS
        }
