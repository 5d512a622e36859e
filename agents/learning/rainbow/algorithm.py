"""Rainbow (arXiv 1710.02298) with action masks, on the off-policy machinery of SB3."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.dqn import DQN
from torch.nn import functional

from parenvs.agents.learning.rainbow.buffer import (
    RainbowBuffer,
    RainbowDictBuffer,
    RainbowSamples,
    check_masks,
    env_name,
    final_masks,
    read_masks,
)
from parenvs.agents.learning.rainbow.policy import (
    MlpPolicy,
    MultiInputPolicy,
    RainbowNetwork,
    RainbowPolicy,
    beyond,
    masked,
    project,
)
from parenvs.errors import ParenvsError

DEFAULTS: dict[str, Any] = {
    "learning_rate": 5e-4, "gamma": 0.99, "buffer_size": 50_000, "batch_size": 64,
    "learning_starts": 500, "train_freq": 1, "gradient_steps": 1, "target_update_interval": 500,
    "exploration_fraction": 0.3, "exploration_initial_eps": 1.0, "exploration_final_eps": 0.02,
}  # fmt: skip
"""Defaults of ``Rainbow`` for those arguments of ``DQN`` where they differ."""
WATCHED = 200
"""Updates over which targets beyond the support of C51 are averaged."""
TOLERATED = 0.02
"""Share of the targets beyond the support that needs no warning."""
Self = TypeVar("Self", bound="Rainbow")


class Rainbow(DQN):
    """DQN with six improvements, each of which can be switched off, and with action masks.

    Masks come from the environment's ``action_masks()``, as in sb3-contrib; without this method
    all actions are legal. Where an episode is truncated, the mask of its last state comes from
    ``info["action_mask"]``, because the environment has begun the next episode by then. Illegal
    actions are neither explored nor chosen, and they enter no target.

    With all switches off it is SB3's ``DQN``. Everything random in training comes from one
    generator, which ``save`` saves: after ``save`` and ``save_replay_buffer`` training goes on as
    if it had not been interrupted.

    Args:
        policy: ``"MlpPolicy"``, ``"MultiInputPolicy"`` (``Dict`` observations) or a subclass of
            ``RainbowPolicy``.
        env: the environment, or several as a ``VecEnv``.
        double_q: the online network chooses the next action and the target network rates it.
        dueling: the network has separate streams for the value and the advantages.
        prioritized: transitions are drawn by their error, see ``RainbowBuffer``.
        alpha: exponent of the priorities.
        beta: exponent of the importance weights at first; it grows to 1 over the training.
        n_steps: number of rewards that a target sums before it looks at the next state.
        distributional: the network learns the distribution of returns (C51) by cross entropy,
            which then is the error of a transition too.
        n_atoms: number of returns in the support of the distribution.
        v_min: smallest return in the support; None for what ``returns_within`` makes of the rewards
            that are seen before the training starts.
        v_max: greatest return in the support, likewise.
        noisy: noisy layers explore instead of epsilon, which then is 0. Environments side by side
            share the noise.
        policy_kwargs: further arguments of the policy, e.g. ``net_arch``.
        **options: arguments of ``DQN``; ``DEFAULTS`` has its defaults where they differ.
            ``train_freq`` counts steps of each environment, ``buffer_size``, ``learning_starts``
            and ``target_update_interval`` those of all together. In the first ``learning_starts``
            steps legal actions are drawn uniformly. Each environment decides on its own, with
            probability epsilon, whether it explores.

    Raises:
        ParenvsError: the actions are not ``Discrete``, or an argument is impossible; in ``learn``,
            a mask has the wrong length, allows no action, or is missing after a truncation.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    policy: RainbowPolicy
    q_net: RainbowNetwork
    q_net_target: RainbowNetwork
    replay_buffer: RainbowBuffer
    _rng: np.random.Generator

    def __init__(
        self,
        policy: str | type[RainbowPolicy],
        env: GymEnv | str | None,
        double_q: bool = True,
        dueling: bool = True,
        prioritized: bool = True,
        alpha: float = 0.5,
        beta: float = 0.4,
        n_steps: int = 3,
        distributional: bool = False,
        n_atoms: int = 51,
        v_min: float | None = None,
        v_max: float | None = None,
        noisy: bool = False,
        policy_kwargs: dict[str, Any] | None = None,
        _init_setup_model: bool = True,
        **options: Any,
    ) -> None:
        possible = {
            f"n_steps={n_steps}": n_steps >= 1,
            f"alpha={alpha}": alpha >= 0,
            f"beta={beta}": 0 <= beta <= 1,
            f"n_atoms={n_atoms}": n_atoms >= 2,
            f"v_min={v_min}, v_max={v_max}": v_min is None or v_max is None or v_min < v_max,
        }
        if not all(possible.values()):
            impossible = [name for name, value in possible.items() if not value]
            raise ParenvsError(f"Rainbow: impossible {'; '.join(impossible)}")
        if env is not None:
            env = maybe_make_env(env, options.get("verbose", 0))
            actions = env.action_space
            if not isinstance(actions, spaces.Discrete) or actions.start != 0:
                raise ParenvsError(
                    f"{env_name(env)}: Rainbow needs Discrete actions from 0 on, not {actions}"
                )
        switches = {
            "dueling": dueling,
            "atoms": n_atoms if distributional else 1,
            "v_min": -1.0 if v_min is None else v_min,  # until rewards are seen
            "v_max": 1.0 if v_max is None else v_max,
            "noisy": noisy,
        }
        greedy = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0} if noisy else {}
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]
            policy_kwargs={**(policy_kwargs or {}), **switches},
            _init_setup_model=False,
            **{**DEFAULTS, **options, **greedy},
        )
        self.double_q, self.distributional, self.noisy = double_q, distributional, noisy
        self.prioritized, self.alpha, self.beta = prioritized, alpha, beta
        self.n_steps = n_steps
        self._given = (v_min, v_max) if distributional else (0.0, 0.0)
        self._clipped: list[float] | None = [] if distributional else None
        self.exploration_rate = self.exploration_initial_eps
        self._masking = False
        self._masks: np.ndarray | None = None
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        dictionary = isinstance(self.observation_space, spaces.Dict)
        self.replay_buffer_class = RainbowDictBuffer if dictionary else RainbowBuffer
        self.replay_buffer_kwargs = {
            "n_steps": self.n_steps,
            "gamma": self.gamma,
            "prioritized": self.prioritized,
            "alpha": self.alpha,
        }
        saved = self.__dict__.get("_rng")
        n_steps, self.n_steps = self.n_steps, 1  # SB3 warns of n-step buffers other than its own
        super()._setup_model()  # calls ``set_random_seed``, which makes a new generator
        self.n_steps = n_steps
        self._rng = saved or self.__dict__.get("_rng") or np.random.default_rng()
        self.beta_schedule = LinearSchedule(self.beta, 1.0, 1.0)

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed everything random; without ``seed`` nothing changes."""
        super().set_random_seed(seed)
        if seed is not None:
            self._rng = np.random.default_rng(seed)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """The best legal actions; unless ``deterministic``, some are replaced by exploration.

        Args:
            observation: the observation of one environment, or of b environments stacked.
            state: is returned as it is.
            episode_start: unused.
            deterministic: whether nothing is explored.
            action_masks: (b, c) or (c,) bool; without them all actions are legal.

        Returns:
            (b,) actions, or () for one environment, and ``state``.

        Raises:
            ParenvsError: a mask has the wrong length, or allows no action.
        """
        masks = action_masks
        if masks is not None:
            masks = check_masks(np.atleast_2d(masks), self.q_net.actions, "predict")
        if self.noisy and not deterministic:
            self.q_net.draw(self._rng)
        actions, state = self.policy.predict(
            observation, state, episode_start, deterministic, masks
        )
        if not deterministic and self.exploration_rate > 0:
            exploring = self._rng.random(actions.shape) < self.exploration_rate
            if exploring.any():
                if masks is None:
                    masks = np.ones((actions.size, self.q_net.actions), dtype=bool)
                actions = np.where(exploring, self._draw(masks).reshape(actions.shape), actions)
        return actions, state

    def targets(self, batch: RainbowSamples) -> torch.Tensor:
        """The targets that Q(s_t, a_t) is trained towards.

        Returns:
            (b, 1) returns, or (b, atoms) probabilities of the returns if ``distributional``.
        """
        with torch.no_grad():
            outputs = self.q_net_target.outputs(batch.next_observations)
            if self.double_q:
                q = self.q_net(batch.next_observations)
            else:
                q = self.q_net_target.means(outputs)
            chosen = _of_actions(outputs, masked(q, batch.next_masks).argmax(dim=1, keepdim=True))
            if not self.distributional:
                return batch.rewards + batch.discounts * chosen
            given = (chosen.softmax(dim=1), batch.rewards, batch.discounts, self.q_net.support)
            if self._clipped is not None:
                self._watch(beyond(*given))
            return project(*given)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Update the online network ``gradient_steps`` times by batches of ``batch_size``."""
        if None in self._given:
            self._take_support()
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        beta = self.beta_schedule(self._current_progress_remaining)
        parameters = self.policy.optimizer.param_groups[0]["params"]
        losses = []
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, self._vec_normalize_env, self._rng, beta)
            if self.noisy:
                self.q_net.draw(self._rng)
                self.q_net_target.draw(self._rng)
            targets = self.targets(batch)
            outputs = self.q_net.outputs(batch.observations)
            chosen = _of_actions(outputs, batch.actions.long())
            if self.distributional:
                errors = -(targets * chosen.log_softmax(dim=1)).sum(dim=1, keepdim=True)
                sample_losses = errors
            else:
                errors = chosen - targets
                sample_losses = functional.smooth_l1_loss(chosen, targets, reduction="none")
            loss = (batch.weights * sample_losses).mean()
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
            self.policy.optimizer.step()
            losses.append(loss.item())
            self.replay_buffer.update_priorities(
                batch.indices, errors.detach().squeeze(1).cpu().numpy()
            )
        self._n_updates += gradient_steps
        q = masked(self.q_net.means(outputs.detach()), batch.masks).amax(dim=1)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
        self.logger.record("train/mean_q", q.mean().item())
        self.logger.record("train/beta", beta)
        self.logger.record("train/exploration_rate", self.exploration_rate)

    def _take_support(self) -> None:
        """Make the support of the rewards in the buffer, for good."""
        size = self.replay_buffer.size()
        rewards = self.replay_buffer.rewards[:size]
        if self._vec_normalize_env is not None:
            rewards = self._vec_normalize_env.normalize_reward(rewards)
        low, high = returns_within(rewards, self.gamma, self._horizon(size))
        least, most = self._given
        least, most = low if least is None else least, high if most is None else most
        if least >= most:
            raise ParenvsError(
                f"Rainbow: the rewards seen make returns of {low:g} to {high:g}, which do not fit "
                "the bound of the support that is given; give v_min and v_max"
            )
        self._given = (least, most)
        self.policy_kwargs.update(v_min=least, v_max=most)
        self.policy.spread(least, most)

    def _horizon(self, size: int) -> float:
        """The most steps of an episode: what the environment allows, or else without end."""
        assert self.env is not None
        specs = [spec for spec in self.env.get_attr("spec") if spec is not None]
        limits = [spec.max_episode_steps for spec in specs]
        if limits and None not in limits:
            return float(max(limits))
        if self.gamma < 1:
            return np.inf
        return float(longest(self.replay_buffer.dones[:size]))

    def _watch(self, share: float) -> None:
        """Warn once if many targets lie beyond the support."""
        assert self._clipped is not None
        self._clipped.append(share)
        if len(self._clipped) < WATCHED:
            return
        mean, (low, high) = float(np.mean(self._clipped)), self.q_net.support[[0, -1]].tolist()
        self._clipped = []
        self.logger.record("train/clipped", mean)
        if mean > TOLERATED:
            self._clipped = None  # says it once
            warnings.warn(
                f"Rainbow: {mean:.0%} of the targets lie outside of the support of C51, "
                f"{low:g} to {high:g}, and are cut off there; give v_min and v_max that hold all "
                "discounted returns, or leave them out",
                stacklevel=2,
            )

    def learn(
        self: Self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "Rainbow",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train for ``total_timesteps`` environment steps; the arguments are SB3's."""
        return super().learn(
            total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar
        )

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        before = self._last_obs
        result = super()._setup_learn(*args, **kwargs)
        assert self.env is not None
        if self._last_obs is not before:  # the environments have been reset
            self.replay_buffer.end_episodes()
        self._masking = is_masking_supported(self.env)
        self._masks = read_masks(self.env, self._masking)
        self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
        self.exploration_rate = self.exploration_initial_eps
        if self.num_timesteps:
            self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)
        return result

    def _sample_action(
        self, learning_starts: int, action_noise: Any = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        assert self._last_obs is not None and self._masks is not None
        if self.num_timesteps < learning_starts:
            actions = self._draw(self._masks)
        else:
            actions, _ = self.predict(self._last_obs, action_masks=self._masks)
        return actions, actions

    def _store_transition(
        self, replay_buffer: Any, buffer_action: Any, new_obs: Any, reward: Any, dones: Any,
        infos: list[dict[str, Any]],
    ) -> None:  # fmt: skip
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)
        if self._masking:
            assert self.env is not None and self._masks is not None
            masks = read_masks(self.env, True)
            replay_buffer.set_masks(self._masks, final_masks(self.env, masks, dones, infos))
            self._masks = masks

    def _draw(self, masks: np.ndarray) -> np.ndarray:
        """Draw (b,) actions uniformly from the legal actions of each row of (b, c) ``masks``."""
        return np.where(masks, self._rng.random(masks.shape), -1.0).argmax(axis=1)


def _of_actions(outputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """The (b, atoms) entries that the (b, c, atoms) ``outputs`` have for (b, 1) ``actions``."""
    return outputs.gather(1, actions[:, :, None].expand(-1, -1, outputs.shape[2])).squeeze(1)


def returns_within(rewards: np.ndarray, gamma: float, horizon: float) -> tuple[float, float]:
    """Return bounds of all discounted returns that rewards like these can sum to.

    An episode of ``horizon`` steps could have the smallest reward, or the greatest, in each; one
    that ends at once has 0 behind it.

    Args:
        rewards: any shape, the rewards seen.
        gamma: discount of a step, 0 to 1.
        horizon: most steps of an episode, ``inf`` if there is no limit.
    """
    steps = horizon if gamma == 1 else (1 - gamma**horizon) / (1 - gamma)
    low, high = min(0.0, float(rewards.min())) * steps, max(0.0, float(rewards.max())) * steps
    return (low, high) if low < high else (-1.0, 1.0)


def longest(ends: np.ndarray) -> int:
    """Return the steps of the longest episode.

    Args:
        ends: (steps, environments), whether an episode ended there.
    """
    steps, most = np.zeros(ends.shape[1], dtype=np.int64), 0
    for row in ends.astype(bool):
        steps += 1
        most = max(most, int(steps.max()))
        steps[row] = 0
    return most
