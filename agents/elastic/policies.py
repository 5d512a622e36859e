"""Policies of SB3 and sb3-contrib that rate candidate plans by one network, and their batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from parenvs.agents.elastic.remaining import remaining
from parenvs.agents.learning.elastic.network import (
    JOB,
    OWN,
    PRIOR,
    WIDTH,
    Seen,
    features,
    first_weights,
    rate,
)
from parenvs.agents.learning.vec_env import NativeVecEnv
from parenvs.tasks.elastic.course import Course

REMEMBERED = 32
"""Units of the recurrent layers."""
MASK = "action_mask"
PHASES = 8
"""Times at which episodes of a batch begin."""


class Packed(BaseFeaturesExtractor):
    """An observation in one row: ``numbers``, ``plans``, ``change``, and the mask if it is there.

    Args:
        space: of the observations.
    """

    def __init__(self, space: spaces.Dict) -> None:
        self.keys = ["numbers", "plans", "change", *([MASK] if MASK in space.spaces else [])]
        self.shapes = {key: space[key].shape or () for key in self.keys}
        super().__init__(space, sum(int(np.prod(shape)) for shape in self.shapes.values()))

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the rows, (b, features_dim)."""
        return torch.cat([observation[key].flatten(1) for key in self.keys], dim=1)

    def unpack(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the observations of rows."""
        parts = rows.split([int(np.prod(shape)) for shape in self.shapes.values()], dim=1)
        named = zip(self.shapes.items(), parts, strict=True)
        return {key: part.unflatten(1, shape) for (key, shape), part in named}


class Rating(nn.Module):
    """The network that rates candidates, as a module.

    Args:
        prior: see ``first_weights``.
        memory: units of a recurrent layer.
    """

    def __init__(self, prior: tuple[float, float] = PRIOR, memory: int = 0) -> None:
        super().__init__()
        rng = np.random.default_rng(int(torch.randint(2**31, ())))
        drawn = first_weights(rng, prior, memory)
        self.weights = nn.ParameterDict({k: torch.from_numpy(x) for k, x in drawn.items()})

    def forward(self, seen: Seen, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Rate the candidates."""
        return rate(self.weights, seen, memory)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the weights as float32 arrays."""
        return {key: value.detach().numpy().copy() for key, value in self.weights.items()}


class Worth(nn.Module):
    """What a state is worth is read from the job and the plan in force, (b, 2 WIDTH).

    Args:
        memory: units of a recurrent layer.
    """

    def __init__(self, memory: int = 0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(JOB + 2 * OWN + memory, 2 * WIDTH), nn.ReLU(),
            nn.Linear(2 * WIDTH, 2 * WIDTH), nn.ReLU(),
        )  # fmt: skip

    def forward(self, seen: Seen, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Return the last hidden layer."""
        state = seen.state if memory is None else torch.cat([seen.state, memory], dim=1)
        return self.layers(state)


def seen_of(observation: dict[str, torch.Tensor]) -> Seen:
    """Return the features of observations."""
    return features(*(observation[key] for key in ("plans", "change", "numbers")))


class Heads(nn.Module):
    """The ratings of candidates are logits; the critic reads the job and the plan in force.

    Args:
        packed: how observations lie in rows.
        memory: units of the recurrent layers, whose outputs stand in front of the rows.
    """

    def __init__(self, packed: Packed, memory: int = 0) -> None:
        super().__init__()
        self.unpack, self.memory = packed.unpack, memory
        self.latent_dim_pi, self.latent_dim_vf = 64, 2 * WIDTH
        self.actor = Rating(memory=memory)
        self.critic = Worth(memory)

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits (b, 64), and what the value is read from."""
        observation, seen, memory = self._seen(rows)
        return self._logits(observation, seen, memory), self.critic(seen, memory)

    def forward_actor(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the logits; where the mask is observed, those of illegal plans are the lowest."""
        return self._logits(*self._seen(rows))

    def forward_critic(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what the value is read from."""
        return self.critic(*self._seen(rows)[1:])

    def _logits(
        self, observation: dict[str, torch.Tensor], seen: Seen, memory: torch.Tensor | None
    ) -> torch.Tensor:
        scores = self.actor(seen, memory)
        if MASK not in observation:
            return scores
        return torch.where(observation[MASK] > 0, scores, torch.finfo(scores.dtype).min)

    def _seen(
        self, rows: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], Seen, torch.Tensor | None]:
        memory, observation = rows[:, : self.memory], self.unpack(rows[:, self.memory :])
        return observation, seen_of(observation), memory if self.memory else None


class ElasticPolicy(MaskableActorCriticPolicy):
    """The policy of MaskablePPO; arguments as of its base."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the networks."""
        super().__init__(*args, **{**kwargs, "features_extractor_class": Packed})

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = Heads(self.features_extractor)  # type: ignore[assignment, arg-type]

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        super()._build(lr_schedule)
        _finish(self, lr_schedule)


class ElasticLstmPolicy(RecurrentActorCriticPolicy):
    """The policy of RecurrentPPO, with masks, which sb3-contrib's own has not.

    The mask is part of the observation (``action_mask``), and the logits of illegal plans are the
    lowest number there is, so that their probability is 0 wherever the distribution is made: when
    acting, in the loss and in ``predict``. The recurrent layers read ``numbers`` alone, as all else
    is known from tables; the network that rates candidates reads what they remember.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the networks; arguments as of the base."""
        options = {"features_extractor_class": Packed, "lstm_hidden_size": REMEMBERED}
        super().__init__(*args, **{**kwargs, **options})
        inputs = self.features_extractor.shapes["numbers"][0]  # type: ignore[index]
        self.lstm_actor = nn.LSTM(inputs, REMEMBERED)
        self.lstm_critic = nn.LSTM(inputs, REMEMBERED)
        schedule = args[2] if len(args) > 2 else kwargs["lr_schedule"]
        _finish(self, schedule)

    def _build_mlp_extractor(self) -> None:
        packed: Any = self.features_extractor
        self.mlp_extractor = Heads(packed, REMEMBERED)  # type: ignore[assignment]

    @staticmethod
    def _process_sequence(
        features: torch.Tensor,
        lstm_states: tuple[torch.Tensor, torch.Tensor],
        episode_starts: torch.Tensor,
        lstm: nn.LSTM,
    ) -> tuple[torch.Tensor, Any]:
        """Return what is remembered in front of the rows, and the new states."""
        found, states = RecurrentActorCriticPolicy._process_sequence(
            features[:, : lstm.input_size], lstm_states, episode_starts, lstm
        )
        return torch.cat([found, features], dim=1), states


def _finish(policy: Any, lr_schedule: Callable[[float], float]) -> None:
    """Let the ratings be the logits, and make the optimiser of the parameters that are left."""
    policy.action_net = nn.Identity()
    policy.optimizer = policy.optimizer_class(
        policy.parameters(), lr=lr_schedule(1), **policy.optimizer_kwargs
    )


class PaidVecEnv(NativeVecEnv):
    """Pays regrets: by how much a choice lowers what hindsight can still earn on the course.

    It is the reward, and the change of what ``remaining`` says of the states before and after: a
    potential. Payments of an episode differ from its return by what hindsight earns in all, which
    no choice changes; but what a choice costs is paid at once, and luck is taken out. The agent
    sees the environment's observations alone. Units are intervals of the ideal; 0 is the most.

    Episodes of the batch do not begin together, so that every rollout has all times of an episode.

    Args:
        batch: of ``ElasticPlan-v0``.
        shows_mask: whether the mask is part of observations.
    """

    def __init__(self, batch: Any, shows_mask: bool = False) -> None:
        super().__init__(batch)
        self.shows_mask = shows_mask
        if shows_mask:
            self.observation_space = with_mask(batch.single_observation_space)

    def reset(self) -> Any:
        """See ``NativeVecEnv.reset``; then environments play on, and begin again one by one."""
        observation = super().reset()
        play, rows = self.batch.game.home, np.arange(self.num_envs)
        for turn in range(min(PHASES, play.size, self.num_envs) - 1):
            for _ in range(play.size // PHASES):
                plans = self.batch.action_masks() * play.tables.plans[play.row, :, 5]
                self.batch.step(plans.argmax(axis=1))
            late = rows % PHASES == turn
            observation, _ = self.batch.reset(options={"reset_mask": late})
        self._returns[:] = 0.0
        self._steps[:] = 0
        self.after = remaining(play.tables, play.row, self._course(rows), play.length)
        return self._shown(observation)

    def step_wait(self) -> Any:
        """See ``NativeVecEnv.step_wait``."""
        play, rows = self.batch.game.home, np.arange(self.num_envs)
        before = self.after[rows, play.interval, play.plan, play.since]
        ideal, length = play.tables.ideal[play.problem], play.length.copy()
        observation, rewards, dones, infos = super().step_wait()
        after = self.after[rows, play.interval, play.plan, play.since]
        paid = (rewards + (np.where(dones, 0.0, after) - before) / ideal) * length
        ended = dones.nonzero()[0]
        if ended.size:
            self.after[ended] = remaining(
                play.tables, play.row[ended], self._course(ended), play.length[ended]
            )
        for row in ended.tolist() if self.shows_mask else ():
            last = infos[row]["terminal_observation"]
            infos[row]["terminal_observation"] = {**last, MASK: np.ones(64, dtype=np.float32)}
        return self._shown(observation), paid.astype(np.float32), dones, infos

    def _course(self, rows: np.ndarray) -> Course:
        play = self.batch.game.home
        return Course(*(part[play._own[rows]] for part in play.course))

    def _shown(self, observation: Any) -> Any:
        if not self.shows_mask:
            return observation
        return {**observation, MASK: self.batch.action_masks().astype(np.float32)}


def with_mask(space: Any) -> spaces.Dict:
    """Return a space of observations with the mask, float32."""
    plans = space["plans"].shape[0]
    return spaces.Dict({**space.spaces, MASK: spaces.Box(0.0, 1.0, (plans,), np.float32)})
