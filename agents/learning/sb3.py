"""The network over rows in MaskablePPO of sb3-contrib: as its policy, and under our trainer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import sb3_contrib
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
from torch import Tensor

from parenvs.agents.learning.algorithm import Algorithm, Batch, Settings
from parenvs.agents.learning.net import OWN, SHARPNESS, Lens, RowsNet, Seen, log_policy
from parenvs.agents.learning.ppo import PPOSettings, turns_a_step
from parenvs.errors import ParenvsError


class RowsPolicy(MaskableActorCriticPolicy):
    """A policy of ``MaskablePPO`` in environments of rows: untrained it plays their rule.

    >>> import gymnasium as gym, parenvs
    >>> from sb3_contrib import MaskablePPO
    >>> model = MaskablePPO(RowsPolicy, gym.make("HybridPlan-v2"), gamma=1.0)

    Args:
        observation_space: with ``actions``, ``context`` and ``action_mask``.
        action_space: ``Discrete``.
        lr_schedule: learning rate of the share of the training that is left.
        width: of hidden layers.
        sharpness: weight of the rule's score at the start.
        net: the network, in place of a new one.
        **more: arguments of sb3-contrib's policies.

    Raises:
        ParenvsError: the environment has no rows.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        width: int = 64,
        sharpness: float = SHARPNESS,
        net: RowsNet | None = None,
        **more: Any,
    ) -> None:
        is_rows = isinstance(observation_space, spaces.Dict) and set(OWN) <= set(observation_space)
        if not is_rows:
            raise ParenvsError(
                f"RowsPolicy needs observations with {', '.join(OWN)}; take MultiInputPolicy"
            )
        self.options: dict[str, Any] = {"width": width, "sharpness": sharpness}
        self._given = (net,)  # not a module of this one until it is built
        super().__init__(observation_space, action_space, lr_schedule, **more)

    def _build(self, lr_schedule: Schedule) -> None:
        lens = Lens(self.observation_space, self.action_space)
        self.net = self._given[0] or RowsNet(lens, **self.options)
        options = {"lr": lr_schedule(1), **self.optimizer_kwargs}
        self.optimizer = self.optimizer_class(self.net.parameters(), **options)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.options}

    def forward(
        self, obs: PyTorchObs, deterministic: bool = False, action_masks: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, values and the logarithms of the actions' chances."""
        chances, values = self._seen(obs, action_masks)
        actions = chances.get_actions(deterministic=deterministic)
        return actions, values, chances.log_prob(actions)

    def evaluate_actions(
        self, obs: PyTorchObs, actions: Tensor, action_masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return values, the logarithms of actions' chances, and the entropy."""
        chances, values = self._seen(obs, action_masks)
        return values, chances.log_prob(actions), chances.entropy()

    def get_distribution(
        self, obs: PyTorchObs, action_masks: np.ndarray | None = None
    ) -> MaskableDistribution:
        """Return the chances of actions."""
        return self._seen(obs, action_masks)[0]

    def predict_values(self, obs: PyTorchObs) -> Tensor:
        """Return values, (n, 1)."""
        return self._seen(obs, None)[1]

    def _seen(self, obs: Any, masks: Any) -> tuple[MaskableDistribution, Tensor]:
        rows, context, legal = (obs[name] for name in OWN)
        logs, values = log_policy(self.net, Seen(rows.float(), context.float(), legal > 0))
        chances = self.action_dist.proba_distribution(action_logits=logs)
        if masks is not None:
            chances.apply_masking(masks)
        return chances, values[:, None]


class MaskablePPO(Algorithm):
    """MaskablePPO of sb3-contrib: its buffer, advantages and updates, of turns that we play."""

    name: ClassVar[str] = "maskable-ppo"
    settings_class: ClassVar[type[Settings]] = PPOSettings
    divides = False
    settings: PPOSettings

    def __init__(
        self, lens: Lens, settings: Settings, device: str | torch.device = "cpu", seed: int = 0
    ) -> None:
        super().__init__(lens, settings, device, seed)
        given = self.settings
        self.model = sb3_contrib.MaskablePPO(
            RowsPolicy, None, learning_rate=lambda left: self.rate(1.0 - left), n_steps=given.turns,  # type: ignore[arg-type]
            batch_size=turns_a_step(given, lens), n_epochs=given.passes, clip_range=given.clip,
            gamma=given.discount or lens.discount, gae_lambda=given.trace, ent_coef=given.entropy,
            vf_coef=given.critic, max_grad_norm=given.gradient, device=self.device,
            policy_kwargs={"net": self.net}, _init_setup_model=False,
        )  # fmt: skip
        shapes = ((lens.actions, lens.features), (lens.contexts,))
        boxes = [spaces.Box(-np.inf, np.inf, shape, np.float32) for shape in shapes]
        mask = spaces.Box(0, 1, (lens.actions,), np.int8)
        self.model.observation_space = spaces.Dict(dict(zip(OWN, (*boxes, mask), strict=True)))
        self.model.action_space = spaces.Discrete(lens.actions)
        self.model.n_envs = given.envs
        self.model.set_logger(Logger(None, []))
        self.starts = np.ones(given.envs, np.float32)  # whether a turn is an episode's first
        self.model._setup_model()
        self.optimizer = self.model.policy.optimizer

    def learn(self, batch: Batch, progress: float) -> dict[str, float]:
        model, buffer = self.model, self.model.rollout_buffer
        buffer.buffer_size = len(batch.actions)  # of a short training
        buffer.reset()
        ended = batch.ended.numpy().astype(np.float32)
        for turn in range(len(batch.actions)):
            seen = {k: x[turn].numpy() for k, x in zip(OWN, batch.seen, strict=True)}
            buffer.add(
                seen, batch.actions[turn].numpy()[:, None], batch.rewards[turn].numpy(),
                self.starts, batch.kept["values"][turn], batch.kept["logs"][turn],
                action_masks=seen[OWN[2]],
            )  # fmt: skip
            self.starts = ended[turn]
        buffer.compute_returns_and_advantage(self.values(batch.after), ended[-1])
        model._current_progress_remaining = 1.0 - progress
        # Its buffer shuffles by NumPy's global generator: seeded here, so that runs resume equally.
        before = np.random.get_state()
        np.random.seed(int(torch.randint(2**31, (), generator=self.random)))
        try:
            model.train()
        finally:
            np.random.set_state(before)
        figures = model.logger.name_to_value
        return {
            "entropy": -float(figures["train/entropy_loss"]),
            "critic": float(figures["train/value_loss"]),
            "divergence": float(figures["train/approx_kl"]),
        }

    def forget(self) -> None:
        self.starts = np.ones_like(self.starts)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "starts": torch.from_numpy(self.starts)}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.starts = state["starts"].numpy()


def make_env(env_id: str, env_kwargs: dict[str, Any], seed: int, envs: int) -> VecEnv:
    """Make the native batch of an environment of this suite, with pictures as its render mode.

    Rewards are divided by the largest return, but not in the statistics of a ``Monitor``.
    Environment i has seed ``seed + i``.
    """
    batch: Any = gym.make_vec(
        env_id, envs, "vector_entry_point", autoreset_mode=AutoresetMode.SAME_STEP,
        **{"render_mode": "rgb_array", **env_kwargs},
    )  # fmt: skip
    env = NativeVecEnv(batch, batch.largest_return)
    env.action_space.seed(seed)
    env.seed(seed)
    return env


class NativeVecEnv(VecEnv):
    """A native batch of n environments as a ``VecEnv``.

    Agents see what ``make_vec_env`` shows them of n single environments, to the last bit: an
    episode that ends starts anew in the same step, and its info holds the last observation
    (``terminal_observation``) and the statistics of a ``Monitor`` (``episode``: return, steps,
    seconds). Only the infos of episodes that go on differ. They are empty, because agents read
    masks from ``env_method("action_masks")`` and filling them would take a loop over environments.

    Attributes cannot be set. The methods are ``action_masks``, ``plan`` and ``render``.

    Args:
        batch: a ``GameVectorEnv`` with the autoreset mode ``SAME_STEP``.
        scale: the number that the agent's rewards are divided by; statistics are of the undivided
            rewards.

    Raises:
        ValueError: the batch has another autoreset mode.
    """

    def __init__(self, batch: Any, scale: float = 1.0) -> None:
        if batch.metadata["autoreset_mode"] != AutoresetMode.SAME_STEP:
            raise ValueError("agents need a batch of the autoreset mode 'SameStep'")
        self.batch, self.scale = batch, scale
        self._returns = np.zeros(batch.num_envs)
        self._steps = np.zeros(batch.num_envs, np.int64)
        self._begin = time.time()
        super().__init__(batch.num_envs, batch.single_observation_space, batch.single_action_space)
        self.metadata = {k: v for k, v in batch.metadata.items() if k != "autoreset_mode"}

    def reset(self) -> VecEnvObs:
        """Start all episodes with the seeds and options set; ``ValueError`` if options differ."""
        seeds = None if None in self._seeds else self._seeds
        options = self._options[0]
        if any(other != options for other in self._options):
            raise ValueError("environments of a batch are reset with the same options")
        observation, infos = self.batch.reset(seed=seeds, options=options or None)
        self._reset_seeds()
        self._reset_options()
        self._returns[:] = 0.0
        self._steps[:] = 0
        self.reset_infos = [info_of(infos, row) for row in range(self.num_envs)]
        return observation

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions, (n,) int64, for ``step_wait``."""
        self._actions: Any = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Return observations, scaled rewards (n,) float32, ends (n,) bool, and infos."""
        observation, rewards, terminated, truncated, batch_info = self.batch.step(self._actions)
        self._returns += rewards
        self._steps += 1
        dones = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        ended = dones.nonzero()[0]
        if ended.size:
            seconds = round(time.time() - self._begin, 6)
            for row in ended.tolist():
                total, steps = round(float(self._returns[row]), 6), int(self._steps[row])
                infos[row] = {
                    **info_of(batch_info["final_info"], row),
                    "TimeLimit.truncated": bool(truncated[row] and not terminated[row]),
                    "terminal_observation": batch_info["final_obs"][row],
                    "episode": {"r": total, "l": steps, "t": seconds},
                }
                # The next episode has begun in the same step, so its start's info is here, too.
                self.reset_infos[row] = info_of(batch_info, row)
            self._returns[ended] = 0.0
            self._steps[ended] = 0
        return observation, (rewards / self.scale).astype(np.float32), dones, infos

    def close(self) -> None:
        self.batch.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """A picture of each environment; ``render`` tiles them."""
        return self.env_method("render")

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The value of an attribute in each of the environments ``indices`` (default: all)."""
        rows = list(self._get_indices(indices))
        if attr_name in ("action_masks", "plan", "render"):
            return [partial(self._call, attr_name, row) for row in rows]
        values = self.batch.get_attr(attr_name)
        return [values[row] for row in rows]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Raise ``NotImplementedError``: environments of a batch share their attributes."""
        raise NotImplementedError("environments of a batch share their attributes")

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """Call a method of each of the environments ``indices``, see ``GameVectorEnv.call``."""
        values = self.batch.call(method_name, *method_args, **method_kwargs)
        return [values[row] for row in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: VecEnvIndices = None) -> list[bool]:
        """True for ``Monitor``, whose statistics are made here; False for any other wrapper."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]

    def _call(self, name: str, row: int) -> Any:
        return self.env_method(name, indices=row)[0]


def info_of(infos: dict[str, Any], row: int) -> dict[str, Any]:
    """The info of one environment of a batch, whose keys have a mask under ``_key``."""
    return {
        key: values[row].item() if isinstance(values[row], np.generic) else values[row]
        for key, values in infos.items()
        if not key.startswith(("_", "final_")) and infos[f"_{key}"][row]
    }
