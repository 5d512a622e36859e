"""A sum tree: drawing in proportion to priorities that keep changing, in logarithmic time.

JOINED: A replay buffer with masks, n-step returns and priorities; where the masks come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from parenvs.errors import ParenvsError


class SumTree:
    """Non-negative values, the sums of which are kept in a binary tree.

    Node i has the children 2 i and 2 i + 1, the root is node 1, and the values are the leaves. A
    sum is always made anew from its two children, so that rounding errors do not add up.

    Args:
        capacity: number of values, all 0 at first.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.capacity = capacity
        self._depth = (capacity - 1).bit_length()
        self._nodes = np.zeros(2 << self._depth)

    @property
    def total(self) -> float:
        """Sum of all values."""
        return float(self._nodes[1])

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """The values of ``indices``."""
        return self._nodes[np.asarray(indices) + (1 << self._depth)]

    def __setitem__(self, indices: np.ndarray, values: np.ndarray | float) -> None:
        """Replace values; of an index that is given twice, the last value counts."""
        tree, nodes = self._nodes, np.asarray(indices) + (1 << self._depth)
        tree[nodes] = values
        for _ in range(self._depth):
            right = nodes | 1
            nodes = nodes >> 1
            tree[nodes] = tree[right] + tree[right - 1]

    def find(self, masses: np.ndarray) -> np.ndarray:
        """The index where the running sum of the values first exceeds each mass.

        Args:
            masses: (b,) in ``[0, total]``.

        Returns:
            (b,) int64; never the index of a value 0. For ``total``, the last one that is not.

        Raises:
            ValueError: all values are 0.
        """
        if self.total <= 0:
            raise ValueError("nothing to find: all values are 0")
        tree, rest = self._nodes, np.array(masses, dtype=float)
        nodes = np.ones(rest.shape, dtype=np.int64)
        for _ in range(self._depth):
            nodes <<= 1
            left = tree[nodes]
            right = rest >= left
            rest -= left * right
            nodes += right
        for i in np.flatnonzero(tree[nodes] == 0):  # at or, by rounding, beyond the end
            while tree[nodes[i]] == 0:
                nodes[i] -= 1
        return nodes - (1 << self._depth)


SMALLEST = 1e-6
"""Added to every error, so that each transition can be drawn again."""


class RainbowSamples(NamedTuple):
    """A batch of b transitions over k <= n steps each; k < n where the episode ends.

    Attributes:
        observations: s_t.
        actions: (b, 1) a_t.
        rewards: (b, 1) r_t + gamma r_{t+1} + ... + gamma^{k-1} r_{t+k-1}.
        next_observations: s_{t+k}.
        discounts: (b, 1) gamma^k; 0 where s_{t+k} is terminal.
        masks: (b, c) bool, legal actions of s_t.
        next_masks: (b, c) bool, legal actions of s_{t+k}.
        weights: (b, 1) importance weights, at most 1; 1 without priorities.
        indices: (b,) for ``update_priorities``.
    """

    observations: torch.Tensor | TensorDict
    actions: torch.Tensor
    rewards: torch.Tensor
    next_observations: torch.Tensor | TensorDict
    discounts: torch.Tensor
    masks: torch.Tensor
    next_masks: torch.Tensor
    weights: torch.Tensor
    indices: np.ndarray


class RainbowBuffer(ReplayBuffer):
    """Stores single steps in SB3's arrays, and joins up to n of them when they are drawn.

    Steps of all environments are drawn alike: uniformly, or in proportion to their priorities
    p = (abs(error) + 1e-6)^alpha (arXiv 1511.05952, section 3.3). New steps have the greatest
    priority so far.

    Args:
        buffer_size: steps that are kept, of all environments together.
        observation_space: as in SB3.
        action_space: ``Discrete``.
        n_steps: n, most steps that are joined.
        gamma: discount of a step.
        prioritized: draw by priority.
        alpha: exponent of the priorities; 0 draws uniformly.
        **options: further arguments of SB3's buffer (``device``, ``n_envs``).
    """

    masks: np.ndarray
    next_masks: np.ndarray

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
        prioritized: bool = True,
        alpha: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(buffer_size, observation_space, action_space, **options)
        if self.optimize_memory_usage or not self.handle_timeout_termination:
            raise ValueError("RainbowBuffer stores next observations and truncations")
        assert isinstance(action_space, spaces.Discrete)
        self.n_steps, self.gamma, self.alpha = n_steps, gamma, alpha
        shape = (self.buffer_size, self.n_envs, int(action_space.n))
        self.masks = np.ones(shape, dtype=bool)
        self.next_masks = np.ones(shape, dtype=bool)
        self.tree = SumTree(self.buffer_size * self.n_envs) if prioritized else None
        self.greatest = 1.0

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Store a step of each environment, as SB3 does; all actions are legal."""
        row = self.pos
        super().add(*args, **kwargs)
        self.masks[row] = self.next_masks[row] = True
        if self.tree is not None:
            slots = np.arange(row * self.n_envs, (row + 1) * self.n_envs)
            self.tree[slots] = self.greatest**self.alpha

    def set_masks(self, masks: np.ndarray, next_masks: np.ndarray) -> None:
        """Put in the masks of the steps added last, (n_envs, c) before and after."""
        self.masks[self._last], self.next_masks[self._last] = masks, next_masks

    def end_episodes(self) -> None:
        """Truncate the episodes that the steps added last belong to: others are begun next."""
        if self.size():
            last = self._last
            self.timeouts[last] = np.maximum(self.timeouts[last], 1 - self.dones[last])

    def sample(  # type: ignore[override]
        self,
        batch_size: int,
        env: VecNormalize | None = None,
        rng: np.random.Generator | None = None,
        beta: float = 1.0,
    ) -> RainbowSamples:
        """Draw a batch.

        Args:
            batch_size: b.
            env: normalises observations and rewards.
            rng: source of randomness (default: a fresh one).
            beta: exponent of the importance weights.
        """
        rng = np.random.default_rng() if rng is None else rng
        if self.tree is None:
            indices = rng.integers(self.size() * self.n_envs, size=batch_size)
            return self.at(indices, env)
        strata = (np.arange(batch_size) + rng.random(batch_size)) / batch_size
        indices = self.tree.find(strata * self.tree.total)
        # Of (count * probability)^-beta over its maximum, all but the priorities cancels out.
        weights = self.tree[indices] ** -beta
        return self.at(indices, env, weights / weights.max())

    def at(
        self,
        indices: np.ndarray,
        env: VecNormalize | None = None,
        weights: np.ndarray | None = None,
    ) -> RainbowSamples:
        """The batch that begins at ``indices``: row times ``n_envs`` plus environment."""
        row, column = np.divmod(indices, self.n_envs)
        final, returns, discounts = self._join(row, column, env)
        weights = np.ones(len(indices)) if weights is None else weights
        return RainbowSamples(
            observations=self._take(self.observations, row, column, env),
            actions=self._tensor(self.actions[row, column]),
            rewards=self._tensor(returns.astype(np.float32)[:, None]),
            next_observations=self._take(self.next_observations, final, column, env),
            discounts=self._tensor(discounts.astype(np.float32)[:, None]),
            masks=self._tensor(self.masks[row, column]),
            next_masks=self._tensor(self.next_masks[final, column]),
            weights=self._tensor(weights.astype(np.float32)[:, None]),
            indices=indices,
        )

    def update_priorities(self, indices: np.ndarray, errors: np.ndarray) -> None:
        """Set the priorities of steps that were drawn, by their errors of any sign, (b,)."""
        if self.tree is not None:
            sizes = np.abs(errors).astype(np.float64) + SMALLEST
            self.greatest = max(self.greatest, float(sizes.max()))
            self.tree[indices] = sizes**self.alpha

    @property
    def _last(self) -> int:
        """Row of the steps added last."""
        return (self.pos - 1) % self.buffer_size

    def _join(
        self, row: np.ndarray, column: np.ndarray, env: VecNormalize | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row of the last of the k joined steps, discounted rewards, and discount of s_{t+k}."""
        final, shares, columns = row, np.float32(1), column[:, None]
        rows, length = row[:, None], np.zeros_like(row)
        if self.n_steps > 1:
            steps = np.arange(self.n_steps)
            rows = (rows + steps) % self.buffer_size
            ends = (self.dones[rows, columns] > 0) | (self.timeouts[rows, columns] > 0)
            ends |= rows == self._last  # what follows is older, or not there
            ends[:, -1] = True
            length = ends.argmax(axis=1)
            shares = (steps <= length[:, None]) * self.gamma ** steps.astype(np.float32)
            final = (row + length) % self.buffer_size
        rewards = self._normalize_reward(self.rewards[rows, columns], env)
        terminal = self.dones[final, column] * (1 - self.timeouts[final, column])
        discounts = self.gamma ** (length + 1) * (1 - terminal)
        return final, (rewards * shares).sum(axis=1), discounts

    def _take(
        self, stored: Any, row: np.ndarray, column: np.ndarray, env: VecNormalize | None
    ) -> Any:
        """Observations as tensors, a dictionary if they are stored so."""
        if isinstance(stored, dict):
            found = {key: array[row, column] for key, array in stored.items()}
            normal = self._normalize_obs(found, env)
            return {key: self._tensor(array) for key, array in dict(normal).items()}
        return self._tensor(self._normalize_obs(stored[row, column], env))

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)  # indexing has copied it already


class RainbowDictBuffer(RainbowBuffer, DictReplayBuffer):  # type: ignore[misc]
    """The same for ``Dict`` observations."""


def env_name(env: Any) -> str:
    """The id of an environment, or of the first of several; its class if it has no id."""
    try:
        spec = env.get_attr("spec", 0)[0] if isinstance(env, VecEnv) else env.spec
        return str(spec.id)
    except AttributeError:
        return type(env.envs[0] if hasattr(env, "envs") else env).__name__


def check_masks(masks: Sequence[Any], actions: int, source: Any) -> np.ndarray:
    """The masks as (n_envs, actions) bool.

    Args:
        masks: one mask of each environment.
        actions: c, their right length.
        source: words for the error, or an environment that is asked its name.

    Raises:
        ParenvsError: a mask of another length, or without any legal action.
    """
    problem = ""
    if any(np.shape(mask) != (actions,) for mask in masks):
        shapes = sorted({np.shape(mask) for mask in masks})
        problem = f"an action mask has shape {shapes[0]}; it should be ({actions},)"
    else:
        checked = np.array(masks, dtype=bool)
        if not checked.any(axis=1).all():
            problem = "an action mask allows no action; it should allow one at least"
    if problem:
        name = source if isinstance(source, str) else env_name(source)
        raise ParenvsError(f"{name}: {problem}")
    return checked


def read_masks(env: VecEnv, masking: bool) -> np.ndarray:
    """(n_envs, c) bool masks of all environments now; all true unless ``masking``."""
    assert isinstance(env.action_space, spaces.Discrete)
    actions = int(env.action_space.n)
    if not masking:
        return np.ones((env.num_envs, actions), dtype=bool)
    return check_masks(env.env_method("action_masks"), actions, env)


def final_masks(
    env: VecEnv, masks: np.ndarray, dones: np.ndarray, infos: Sequence[dict[str, Any]]
) -> np.ndarray:
    """The masks of the states that a step led to, where ``masks`` may be of the next episode's.

    A truncated state has its mask in ``info["action_mask"]``; that of a terminal one is all true.

    Raises:
        ParenvsError: it is not there, or no mask.
    """
    result = masks.copy()
    for i in np.flatnonzero(dones).tolist():
        result[i] = True
        if infos[i].get("TimeLimit.truncated", False):
            if "action_mask" not in infos[i]:
                raise ParenvsError(
                    f"{env_name(env)}: truncated without info['action_mask'], the mask of the "
                    "state that the episode ends in"
                )
            result[i] = check_masks([infos[i]["action_mask"]], masks.shape[1], env)[0]
    return result
