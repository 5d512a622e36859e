"""Games whose agents take turns, by PettingZoo's interfaces; needs the extra ``envs``.

A game that names its agents (``Game.agents``) can be played by them in two forms: they take turns
(``env``), or all act in every step and the action of the one on turn counts (``parallel_env``).
``parenvs.envs`` offers the agents of tasks (``Agents``) under names like ``TASK_v0``.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

try:
    from pettingzoo import AECEnv, ParallelEnv
except ImportError as error:  # pragma: no cover
    raise ImportError("agents need PettingZoo: pip install 'parenvs[envs]'") from error

from parenvs.compiled import Array
from parenvs.core.game import EVERY, RowGame
from parenvs.envs.env import GameEnv, owned
from parenvs.errors import shown

Observations = dict[str, dict[str, Array]]
Infos = dict[str, dict[str, Any]]


class _Agents:
    """What both forms have in common: spaces, masks and observations of the agents.

    An agent's observation is that of the environment of one agent with ``action_mask``, (a,) int8,
    where a is the number of its actions; of rows of actions (``parenvs.core.game``) it has its own.
    While another agent has its turn only action 0 is legal, and ignored.
    """

    possible_agents: list[str]

    def __init__(self, name: str, plays: GameEnv) -> None:
        self.plays, self.render_mode = plays, plays.render_mode
        self.metadata = {**plays.metadata, "name": name}
        sizes = plays.game.agents
        self.possible_agents, self.agents = list(sizes), []  # type: ignore[var-annotated]
        # Actions of the environment of one agent are those of the agents, one behind another.
        ends = zip(sizes, accumulate(sizes.values()), strict=True)
        self._actions_of = {agent: slice(end - sizes[agent], end) for agent, end in ends}
        self._rowed = isinstance(plays.game, RowGame)
        parts: dict[str, Any] = dict(plays.game.observation_space.spaces)
        self._spaces, self._actions = {}, {}
        for agent, size in sizes.items():
            parts["action_mask"] = spaces.Box(0, 1, (size,), np.int8)
            if self._rowed:
                rows: Any = plays.game.observation_space["actions"]
                shape = size, rows.shape[1]
                parts["actions"] = spaces.Box(rows.low.min(), rows.high.max(), shape, np.float32)
            self._spaces[agent] = spaces.Dict(parts)
            self._actions[agent] = spaces.Discrete(size)

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Return the observation space of an agent, always the same object."""
        return self._spaces[agent]

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return the action space of an agent, always the same object."""
        return self._actions[agent]

    def plan(self) -> Any:
        """Return the plan built so far."""
        return self.plays.plan()

    def render(self) -> Any:
        """Render the plan built so far."""
        return self.plays.render()

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def state(self) -> Array:
        """Return all parts of the observation as one array, (k,) float32."""
        return np.concatenate([part.ravel() for part in self._seen().values()])

    @property
    def turn(self) -> str:
        """The agent whose turn it is: the one with legal actions."""
        legal = self.plays.game.legal[0]
        able = (agent for agent, actions in self._actions_of.items() if legal[actions].any())
        return next(able, self.possible_agents[0])

    def mask(self, agent: str) -> Array:
        """Return an agent's legal actions, int8."""
        mask = self.plays.action_masks()[self._actions_of[agent]].astype(np.int8)
        if not self.plays.game.over[0] and agent != self.turn:
            mask[:] = np.arange(len(mask)) == 0
        return mask

    def _play(self, action: Any) -> tuple[float, bool, dict[str, Any]]:
        actions, number = self._actions_of[self.turn], int(action)
        is_known = 0 <= number < actions.stop - actions.start
        _, reward, over, _, info = self.plays.step(actions.start + number if is_known else -1)
        del info["action_mask"]
        return reward, over, info

    def _restart(self, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """Unknown options only warn: PettingZoo's ``api_test`` resets with an option of its own."""
        known, given = self.plays.game.options, dict(options or {})
        for key in given.keys() - known:
            gym.logger.warn(f"reset: unknown option {shown(key)}; known: {', '.join(known)}")
            del given[key]
        info = self.plays.reset(seed=seed, options=given or None)[1]
        self.agents = list(self.possible_agents)
        return {"instance": info["instance"]}

    def _seen(self) -> dict[str, Array]:
        return {key: owned(part)[0] for key, part in self.plays.game.observation(EVERY).items()}

    def observe(self, agent: str) -> dict[str, Array]:
        """Return what an agent sees."""
        seen = {**self._seen(), "action_mask": self.mask(agent)}
        if self._rowed:
            seen["actions"] = seen["actions"][self._actions_of[agent]]
        return seen

    def _infos(self, info: dict[str, Any]) -> Infos:
        return {agent: {**info, "action_mask": self.mask(agent)} for agent in self.possible_agents}


class TurnsEnv(_Agents, AECEnv):
    """Agents take turns and all get the same reward; an illegal action ends the episode."""

    def __init__(self, name: str, plays: GameEnv) -> None:
        super().__init__(name, plays)
        self.metadata["is_parallelizable"] = False

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start anew, as ``GameEnv.reset`` does."""
        info = self._restart(seed, options)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = self._infos(info)
        self.agent_selection = self.turn

    def step(self, action: Any) -> None:
        """Take the turn of ``agent_selection``."""
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        reward, over, info = self._play(action)
        self.rewards = dict.fromkeys(self.agents, reward)
        self._accumulate_rewards()
        self.terminations = dict.fromkeys(self.agents, over)
        self.agent_selection = self.agents[0] if over else self.turn
        self.infos = self._infos(info)


class AllAtOnceEnv(_Agents, ParallelEnv):
    """The same episode where all agents act in every step, and only the turn's action counts.

    The same actions of the agents on turn give the same plan as with ``TurnsEnv``; arguments as of
    that class.
    """

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, Infos]:
        """Start anew, as ``GameEnv.reset`` does."""
        info = self._restart(seed, options)
        return {agent: self.observe(agent) for agent in self.agents}, self._infos(info)

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[Observations, dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Play one turn; the actions of agents that are not on turn are ignored."""
        reward, over, info = self._play(actions[self.turn])
        agents, self.agents = self.agents, [] if over else self.agents
        return (
            {agent: self.observe(agent) for agent in agents},
            dict.fromkeys(agents, reward),
            dict.fromkeys(agents, over),
            dict.fromkeys(agents, False),
            self._infos(info),
        )
