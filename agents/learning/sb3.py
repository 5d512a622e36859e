"""The network over rows in MaskablePPO of sb3-contrib: as its policy, and under our trainer."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import sb3_contrib
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor

from parenvs.agents.learning.algorithm import Algorithm, Batch, Settings
from parenvs.agents.learning.net import SHARPNESS, RowsNet, log_policy
from parenvs.agents.learning.ppo import PPOSettings, turns_a_step
from parenvs.agents.learning.seen import OWN, Lens, Seen
from parenvs.errors import ParenvsError


class RowsPolicy(MaskableActorCriticPolicy):
    """A policy of ``MaskablePPO`` in environments of rows: untrained it plays their rule.

    >>> import gymnasium as gym, parenvs
    >>> from sb3_contrib import MaskablePPO
    >>> model = MaskablePPO(RowsPolicy, gym.make("HybridPlan-v1"), gamma=1.0)

    Args:
        observation_space: with ``actions``, ``context`` and ``action_mask``.
        action_space: ``Discrete``.
        lr_schedule: learning rate of the share of the training that is left.
        width: of hidden layers.
        attention: whether rows attend to each other once.
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
        attention: bool = False,
        sharpness: float = SHARPNESS,
        net: RowsNet | None = None,
        **more: Any,
    ) -> None:
        is_rows = isinstance(observation_space, spaces.Dict) and set(OWN) <= set(observation_space)
        if not is_rows:
            raise ParenvsError(
                f"RowsPolicy needs observations with {', '.join(OWN)}; take MultiInputPolicy"
            )
        self.options = {"width": width, "attention": attention, "sharpness": sharpness}
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
            RowsPolicy, None, learning_rate=self._rate, n_steps=given.turns,  # type: ignore[arg-type]
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
        self.starts = np.ones(given.envs, dtype=np.float32)  # whether a turn is an episode's first
        self.model._setup_model()
        self.optimiser = self.model.policy.optimizer

    def learn(self, batch: Batch, progress: float) -> dict[str, float]:
        """See ``Algorithm.learn``."""
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
        before = np.random.get_state()
        np.random.seed(int(torch.randint(2**31, (), generator=self.random)))
        try:
            model.train()
        finally:
            np.random.set_state(before)
        told = model.logger.name_to_value
        names = {"entropy_loss": "entropy", "value_loss": "critic", "approx_kl": "divergence"}
        return {
            name: -told[f"train/{key}"] if key == "entropy_loss" else float(told[f"train/{key}"])
            for key, name in names.items()
            if f"train/{key}" in told
        }

    @torch.no_grad()
    def values(self, seen: Seen) -> Tensor:
        """See ``Algorithm.values``."""
        return log_policy(self.net, seen.to(self.device))[1].cpu()

    def forget(self) -> None:
        """See ``Algorithm.forget``."""
        self.starts = np.ones_like(self.starts)

    def state(self) -> dict[str, Any]:
        """See ``Algorithm.state``."""
        return {**super().state(), "starts": torch.from_numpy(self.starts)}

    def load(self, state: dict[str, Any]) -> None:
        """See ``Algorithm.load``."""
        super().load(state)
        self.starts = state["starts"].numpy()

    def _rate(self, left: float) -> float:
        settings = self.settings
        return settings.rate * (1.0 - (1.0 - settings.last_rate) * (1.0 - left))
