"""Environments on tensors; ``Fused``: they and the policy in one loop on a device."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor

from parenvs.agents.learning.algorithm import Algorithm, Batch, Chance, Place, keys_of, uniform
from parenvs.agents.learning.net import Lens, Seen
from parenvs.agents.learning.play import Share, seeds_of, vector_maker
from parenvs.compiled import Array
from parenvs.errors import ParenvsError

State = dict[str, Tensor]


class DeviceVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """n environments whose step is a function of tensors, on any device.

    A subclass defines how episodes begin and go on. What they draw depends on the seed of the
    environment and its steps since ``reset`` alone. Episodes are cut off after ``limit`` steps, and
    draw ``numbers`` numbers at their start.
    """

    numbers: ClassVar[int]
    limit: ClassVar[int]
    single_observation_space: spaces.Box
    single_action_space: spaces.Discrete

    def __init__(
        self,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        device: str = "cpu",
    ) -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    @abstractmethod
    def begin(self, numbers: Tensor) -> Tensor:
        """Return first states, (n, s), by numbers from 0 to 1, (n, ``numbers``)."""

    @abstractmethod
    def move(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return next states, rewards (n,) and whether episodes have ended, (n,) bool."""

    def observe(self, states: Tensor) -> Tensor:
        """Return what is seen of states, (n, ...): the states."""
        return states

    def start(self, seeds: Tensor) -> State:
        """Return the state in which all episodes begin, by a seed of each environment, (n,)."""
        clock = torch.zeros_like(seeds)
        states = self.begin(uniform(keys_of(seeds, clock), self.numbers))
        return {"states": states, "seeds": seeds, "clock": clock, "age": clock}

    def turn(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor, Tensor, Tensor]:
        """Take a step.

        Returns:
            the next state; the last observation, (n, ...); rewards, (n,); and whether episodes
            ended or were cut off, (n,) bool each. Those that are over begin again.
        """
        states, rewards, ended = self.move(state["states"], actions)
        clock, age = state["clock"] + 1, state["age"] + 1
        cut = ~ended & (age >= self.limit)
        over = ended | cut
        # All begin anew, and ``where`` takes those that are over: shapes must not depend on values.
        fresh = self.begin(uniform(keys_of(state["seeds"], clock), self.numbers))
        following = {
            "states": torch.where(over[:, None], fresh, states), "seeds": state["seeds"],
            "clock": clock, "age": torch.where(over, 0, age),
        }  # fmt: skip
        return following, self.observe(states), rewards, ended, cut

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """See ``gymnasium.vector.VectorEnv.reset``; a seed for each environment, or the first's."""
        first = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        seeds = list(range(first, first + self.num_envs)) if isinstance(first, int) else first
        self._state = self.start(torch.tensor(seeds, device=self.device))
        return self.observe(self._state["states"]).cpu().numpy(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        chosen = torch.as_tensor(actions, device=self.device)
        self._state, last, *outcome = self.turn(self._state, chosen)
        rewards, ended, cut = (part.cpu().numpy() for part in outcome)
        final = np.full(self.num_envs, None, object)
        for row in np.flatnonzero(ended | cut):
            final[row] = last[row].cpu().numpy()
        infos = {"final_obs": final, "_final_obs": ended | cut}
        return self.observe(self._state["states"]).cpu().numpy(), rewards, ended, cut, infos


class DeviceCartPole(DeviceVectorEnv):
    """``CartPole-v1`` of Gymnasium, in single precision."""

    numbers, limit = 4, 500
    single_observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    single_action_space = spaces.Discrete(2)

    def begin(self, numbers: Tensor) -> Tensor:
        return 0.1 * numbers - 0.05

    def move(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See ``DeviceVectorEnv.move``; Gymnasium's formulas."""
        position, speed, angle, turning = states.unbind(dim=1)
        # Barto, Sutton and Anderson's cart (1983): 10 N left or right, 1.1 kg in all, half a pole
        # of 0.5 m, Euler steps of 0.02 s.
        force = 20.0 * actions - 10.0
        cosine, sine = angle.cos(), angle.sin()
        pushed = (force + 0.05 * turning.square() * sine) / 1.1
        twist = (9.8 * sine - cosine * pushed) / (0.5 * (4.0 / 3.0 - 0.1 * cosine.square() / 1.1))
        pull = pushed - 0.05 * twist * cosine / 1.1
        steps = (position + 0.02 * speed, speed + 0.02 * pull)
        turns = (angle + 0.02 * turning, turning + 0.02 * twist)
        following = torch.stack([*steps, *turns], dim=1)
        ended = (steps[0].abs() > 2.4) | (turns[0].abs() > 12 * 2 * torch.pi / 360)
        return following, torch.ones_like(position), ended


DEVICE: dict[str, type[DeviceVectorEnv]] = {"CartPole-v1": DeviceCartPole}
"""Environments of Gymnasium -> their versions on tensors."""


def device_env(env_id: str, env_kwargs: dict[str, Any], count: int, device: str) -> Any:
    """Make environments on a device.

    Raises:
        ParenvsError: there is no version of the environment on tensors.
    """
    maker: Any = DEVICE.get(env_id)
    if maker is None and env_id in gym.registry:
        maker = vector_maker(env_id)
    if maker is None or "device" not in inspect.signature(maker).parameters:
        raise ParenvsError(
            f"{env_id}: fused is for environments on tensors: {', '.join(DEVICE)}, and classes "
            "derived from DeviceVectorEnv that are registered as vector_entry_point"
        )
    return maker(num_envs=count, device=device, **env_kwargs)


class Fused:
    """Steps of environments on tensors, like ``Play``; nothing leaves the device but at their end.

    On a GPU a step is compiled as a whole: observation, policy, sampling and environment.
    ``compiled`` compiles a step; None: torch on GPUs, nothing on a CPU.
    """

    def __init__(
        self,
        env: DeviceVectorEnv,
        share: Share,
        copies: int = 1,
        seed: int = 0,
        compiled: Callable[[Any], Any] | None = None,
    ) -> None:
        self.env, self.share, self.copies, self.seed = env, share, copies, seed
        self.lens, self.draws, self.count, self.seats = Lens.of(env), True, share.size, 1
        self.turns = self.episodes = 0
        self.returns: list[float] = []
        # Problems change, so that episodes do not compare.
        self.best = None
        if compiled is None and env.device.type != "cpu":
            compiled = torch.compile
        self._turn = self._played if compiled is None else compiled(self._played)
        self._state: State = {}

    def restart(self, part: int) -> None:
        seeds = seeds_of(self.seed, part, self.share.total, self.copies)
        seeds = seeds[self.share.first : self.share.first + self.count]
        began = self.env.start(torch.from_numpy(seeds).to(self.env.device))
        zeros = torch.zeros(self.count, device=self.env.device)
        self._state = {**began, "totals": zeros, "episodes": zeros.long()}

    @torch.no_grad()
    def collect(self, agent: Algorithm, turns: int, tick: Callable[[Any], object]) -> Batch:
        place = Place(self.share.first, self.share.total, self.turns // self.share.total)
        steps = []
        for turn in range(turns):
            turn_number = torch.tensor(place.turn + turn, device=self.env.device)
            self._state, step = self._turn(agent, self._state, turn_number)
            steps.append(step)
            self.turns += self.share.total
        # Returns come to the CPU once for all turns, as the loop must not wait for the device.
        returns = torch.stack([step.pop("returns") for step in steps])
        batch = Batch.stacked(steps, self._seen(self.env.observe(self._state["states"])), place)
        self.returns = returns[batch.ended].tolist()
        self.episodes += len(self.returns)
        tick(self)
        return batch

    def state(self) -> dict[str, Any]:
        """Return all that the next turns depend on."""
        return {"turns": self.turns, "ended": self.episodes, "tensors": self._state}

    def load(self, state: dict[str, Any], part: int | None) -> None:
        self.turns, self.episodes = state["turns"], state["ended"]
        self._state = {k: value.to(self.env.device) for k, value in state["tensors"].items()}

    def spent(self) -> float:
        return 0.0

    def close(self) -> None:
        self.env.close()

    def _seen(self, observed: Tensor) -> Seen:
        context = observed.flatten(1).float()
        rows = context.new_zeros(self.count, self.lens.actions, 0)
        mask = torch.ones(self.count, self.lens.actions, dtype=torch.bool, device=context.device)
        return Seen(rows, context, mask)

    def _played(self, agent: Algorithm, state: State, turn: Tensor) -> tuple[State, State]:
        seen = self._seen(self.env.observe(state["states"]))
        place = Place(self.share.first, self.share.total, turn)
        actions, kept = agent.act(seen, Chance(self.seed, place, self.count, self.env.device))
        following, last, paid, ended, cut = self.env.turn(state, actions + self.lens.first)
        over, totals = ended | cut, state["totals"] + paid
        # What is left to earn in an episode that was cut off is paid with its last step.
        behind = getattr(agent, "discount", 1.0) * agent.values(self._seen(last))
        record = {
            **seen._asdict(), **kept, "actions": actions,
            "rewards": paid + torch.where(cut, behind, 0.0), "ended": over,
            "episodes": state["episodes"], "returns": totals,
        }  # fmt: skip
        following["totals"] = torch.where(over, 0.0, totals)
        following["episodes"] = state["episodes"] + over
        return following, record
