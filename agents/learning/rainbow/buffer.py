"""Rainbow's replay buffer: action masks, n-step returns, and priorities kept in a sum tree.

The functions at the end read the masks from environments and check them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from parenvs.errors import ParenvsError

SMALLEST = 1e-6
"""Is added to every absolute error, so that each transition can be drawn again."""


class RainbowSamples(NamedTuple):
    """A batch of b transitions over k <= n steps each; k < n where the episode ends before.

    Attributes:
        observations: the states s_t, with a leading axis of b.
        actions: (b, 1) int64, the actions a_t.
        rewards: (b, 1) float32, r_t + gamma r_{t+1} + ... + gamma^{k-1} r_{t+k-1}.
        next_observations: the states s_{t+k}, with a leading axis of b.
        discounts: (b, 1) float32, gamma^k, or 0 where s_{t+k} is terminal.
        masks: (b, c) bool, the legal actions of s_t.
        next_masks: (b, c) bool, the legal actions of s_{t+k}.
        weights: (b, 1) float32, importance weights in (0, 1]; all 1 without priorities.
        indices: (b,) int64, which steps were drawn, as ``update_priorities`` takes them.
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

    Steps are drawn from all environments together: uniformly, or in proportion to their priorities
    p = (abs(error) + 1e-6)^alpha (arXiv 1511.05952, section 3.3). A new step gets the greatest
    priority so far.

    Args:
        buffer_size: number of steps that the buffer holds, of all environments together.
        observation_space: as in SB3.
        action_space: a ``Discrete`` space of c actions.
        n_steps: n, the greatest number of steps that are joined.
        gamma: discount per step.
        prioritized: whether steps are drawn by priority.
        alpha: exponent of the priorities; 0 draws uniformly.
        **options: further arguments of SB3's buffer (``device``, ``n_envs``).

    Attributes:
        masks: (rows, n_envs, c) bool, the legal actions before each step.
        next_masks: (rows, n_envs, c) bool, the legal actions after each step.

    Raises:
        ValueError: ``options`` ask for a buffer without next observations or truncations.
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
        """Store a step of each environment as SB3 does, with all actions legal."""
        row = self.pos
        super().add(*args, **kwargs)
        self.masks[row] = self.next_masks[row] = True
        if self.tree is not None:
            slots = np.arange(row * self.n_envs, (row + 1) * self.n_envs)
            self.tree[slots] = self.greatest**self.alpha

    def set_masks(self, masks: np.ndarray, next_masks: np.ndarray) -> None:
        """Set the masks of the steps added last: (n_envs, c) bool before and after the step."""
        self.masks[self._last], self.next_masks[self._last] = masks, next_masks

    def end_episodes(self) -> None:
        """Truncate the running episodes, because the next steps added belong to new ones."""
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
            batch_size: b, the number of transitions.
            env: normalises observations and rewards, if given.
            rng: the generator that draws (default: a new one).
            beta: exponent of the importance weights.
        """
        rng = np.random.default_rng() if rng is None else rng
        if self.tree is None:
            indices = rng.integers(self.size() * self.n_envs, size=batch_size)
            return self.at(indices, env)
        strata = (np.arange(batch_size) + rng.random(batch_size)) / batch_size
        indices = self.tree.find(strata * self.tree.total)
        # The weights are (count * probability)^-beta over their maximum, where the count and the
        # sum of the priorities cancel out.
        weights = self.tree[indices] ** -beta
        return self.at(indices, env, weights / weights.max())

    def at(
        self,
        indices: np.ndarray,
        env: VecNormalize | None = None,
        weights: np.ndarray | None = None,
    ) -> RainbowSamples:
        """The batch of the transitions that begin at given steps.

        Args:
            indices: (b,) int64, row times ``n_envs`` plus environment.
            env: normalises observations and rewards, if given.
            weights: (b,) importance weights (default: all 1).
        """
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
        """Set the priorities of steps by their errors.

        Args:
            indices: (b,) int64, the steps, as ``RainbowSamples`` has them.
            errors: (b,) errors of any sign.
        """
        if self.tree is not None:
            magnitudes = np.abs(errors).astype(np.float64) + SMALLEST
            self.greatest = max(self.greatest, float(magnitudes.max()))
            self.tree[indices] = magnitudes**self.alpha

    def state(self) -> dict[str, np.ndarray]:
        """Everything that the buffer holds, as arrays by name; rows still empty are left out."""
        slots = np.arange(self.size() * self.n_envs)
        priorities = np.zeros(0) if self.tree is None else self.tree[slots]
        return {
            "head": np.array([self.pos, self.full]),
            "priorities": np.append(priorities, self.greatest),
            **{name: array[: self.size()] for name, array in self._arrays().items()},
        }

    @property
    def most_bytes(self) -> int:
        """Bytes that a file of ``state`` has at most, headers included."""
        arrays = [array.nbytes for array in self._arrays().values()]
        return sum(arrays) + 8 * (self.buffer_size * self.n_envs + 1) + 1024 * (len(arrays) + 2)

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what ``state`` of an equal buffer gave.

        Raises:
            KeyError: an array is missing.
            ValueError: an array is of another buffer.
        """
        position, full = (int(number) for number in state["head"])
        rows = self.buffer_size if full else position
        arrays = self._arrays()
        values = {name: state[name] for name in arrays}
        priorities = state["priorities"]
        slots = np.arange(0 if self.tree is None else rows * self.n_envs)
        for name, array in arrays.items():
            if values[name].shape != (rows, *array.shape[1:]) or values[name].dtype != array.dtype:
                raise ValueError(f"replay: {name} is {values[name].dtype}{values[name].shape}")
        if not 0 <= position < self.buffer_size or full not in (0, 1):
            raise ValueError("replay: no such position")
        if values["actions"].size and not (
            0 <= values["actions"].min() <= values["actions"].max() < self.masks.shape[2]
        ):
            raise ValueError("replay: no such action")
        if priorities.shape != (len(slots) + 1,) or not (
            np.isfinite(priorities).all() and (priorities >= 0).all()
        ):
            raise ValueError("replay: impossible priorities")
        for name, array in arrays.items():
            array[:rows] = values[name]
        self.pos, self.full = position, bool(full)
        self.greatest = float(priorities[-1])
        if self.tree is not None and len(slots):
            self.tree[slots] = priorities[:-1]

    def _arrays(self) -> dict[str, np.ndarray]:
        """The arrays of all rows, by name."""
        arrays: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("actions", "rewards", "dones", "timeouts", "masks", "next_masks")
        }
        for name in ("observations", "next_observations"):
            stored: Any = getattr(self, name)
            if isinstance(stored, dict):
                arrays |= {f"{name}/{key}": array for key, array in stored.items()}
            else:
                arrays[name] = stored
        return arrays

    @property
    def _last(self) -> int:
        """Row of the steps added last."""
        return (self.pos - 1) % self.buffer_size

    def _join(
        self, row: np.ndarray, column: np.ndarray, env: VecNormalize | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Join up to n steps that begin at (``row``, ``column``), each (b,).

        Returns:
            (b,) the row of the last of the k joined steps, the discounted sum of their rewards,
            and the discount of s_{t+k}.
        """
        final, powers, columns = row, np.float32(1), column[:, None]
        rows, length = row[:, None], np.zeros_like(row)
        if self.n_steps > 1:
            steps = np.arange(self.n_steps)
            rows = (rows + steps) % self.buffer_size
            ends = (self.dones[rows, columns] > 0) | (self.timeouts[rows, columns] > 0)
            ends |= rows == self._last  # the row behind is older, or still empty
            ends[:, -1] = True
            length = ends.argmax(axis=1)
            powers = (steps <= length[:, None]) * self.gamma ** steps.astype(np.float32)
            final = (row + length) % self.buffer_size
        rewards = self._normalize_reward(self.rewards[rows, columns], env)
        terminal = self.dones[final, column] * (1 - self.timeouts[final, column])
        discounts = self.gamma ** (length + 1) * (1 - terminal)
        return final, (rewards * powers).sum(axis=1), discounts

    def _take(
        self, stored: Any, row: np.ndarray, column: np.ndarray, env: VecNormalize | None
    ) -> Any:
        """Stored observations as tensors: a dictionary for ``Dict`` spaces, else one tensor."""
        if isinstance(stored, dict):
            drawn = {key: array[row, column] for key, array in stored.items()}
            normalized = self._normalize_obs(drawn, env)
            return {key: self._tensor(array) for key, array in dict(normalized).items()}
        return self._tensor(self._normalize_obs(stored[row, column], env))

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)  # no copy: indexing has made one


class RainbowDictBuffer(RainbowBuffer, DictReplayBuffer):  # type: ignore[misc]
    """``RainbowBuffer`` for ``Dict`` observations."""


class SumTree:
    """Non-negative values with their sums in a binary tree: draws in logarithmic time.

    Node i has the children 2 i and 2 i + 1, the root is node 1, and the values are the leaves. A
    sum is always computed anew from its two children, so that rounding errors do not add up.

    Args:
        capacity: number of values; all are 0 at first.

    Raises:
        ValueError: ``capacity`` is less than 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.capacity = capacity
        self._depth = (capacity - 1).bit_length()
        self._nodes = np.zeros(2 << self._depth)

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._nodes[1])

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """The values at ``indices``, (b,)."""
        return self._nodes[np.asarray(indices) + (1 << self._depth)]

    def __setitem__(self, indices: np.ndarray, values: np.ndarray | float) -> None:
        """Replace the values at ``indices``, (b,); of an index given twice the last counts."""
        tree, nodes = self._nodes, np.asarray(indices) + (1 << self._depth)
        tree[nodes] = values
        for _ in range(self._depth):
            right = nodes | 1
            nodes = nodes >> 1
            tree[nodes] = tree[right] + tree[right - 1]

    def find(self, masses: np.ndarray) -> np.ndarray:
        """The index at which the running sum of the values first exceeds each mass.

        Args:
            masses: (b,) numbers in ``[0, total]``.

        Returns:
            (b,) int64. A value of 0 is never found; ``total`` finds the last value that is not 0.

        Raises:
            ValueError: all values are 0.
        """
        if self.total <= 0:
            raise ValueError("nothing to find: all values are 0")
        tree, remaining = self._nodes, np.array(masses, dtype=float)
        nodes = np.ones(remaining.shape, dtype=np.int64)
        for _ in range(self._depth):
            nodes <<= 1
            left = tree[nodes]
            right = remaining >= left
            remaining -= left * right
            nodes += right
        for i in np.flatnonzero(
            tree[nodes] == 0
        ):  # a mass of ``total``, or rounding, leads beyond the last value
            while tree[nodes[i]] == 0:
                nodes[i] -= 1
        return nodes - (1 << self._depth)


def env_name(env: Any) -> str:
    """The id of an environment (of the first in a ``VecEnv``), or its class if it has no id."""
    try:
        spec = env.get_attr("spec", 0)[0] if isinstance(env, VecEnv) else env.spec
        return str(spec.id)
    except AttributeError:
        return type(env.envs[0] if hasattr(env, "envs") else env).__name__


def check_masks(masks: Sequence[Any], actions: int, source: Any) -> np.ndarray:
    """Check action masks, and return them as one (n_envs, c) bool array.

    Args:
        masks: the mask of each environment.
        actions: c, the number of actions.
        source: names the masks' origin in the error: words, or the environment itself.

    Raises:
        ParenvsError: a mask has another length, or allows no action.
    """
    fault = ""
    if any(np.shape(mask) != (actions,) for mask in masks):
        shapes = sorted({np.shape(mask) for mask in masks})
        fault = f"an action mask has shape {shapes[0]}; it should be ({actions},)"
    else:
        checked = np.array(masks, dtype=bool)
        if not checked.any(axis=1).all():
            fault = "an action mask allows no action; it should allow one at least"
    if fault:
        name = source if isinstance(source, str) else env_name(source)
        raise ParenvsError(f"{name}: {fault}")
    return checked


def read_masks(env: VecEnv, masking: bool) -> np.ndarray:
    """The present masks of all environments, (n_envs, c) bool; all true unless ``masking``."""
    assert isinstance(env.action_space, spaces.Discrete)
    actions = int(env.action_space.n)
    if not masking:
        return np.ones((env.num_envs, actions), dtype=bool)
    return check_masks(env.env_method("action_masks"), actions, env)


def final_masks(
    env: VecEnv, masks: np.ndarray, dones: np.ndarray, infos: Sequence[dict[str, Any]]
) -> np.ndarray:
    """The masks of the states that a step led to.

    Where an episode has ended, ``masks`` belongs to the first state of the next one already. The
    mask of a truncated state is in ``info["action_mask"]``; that of a terminal one is all true.

    Args:
        env: the environments, for their name in an error.
        masks: (n_envs, c) bool, the present masks.
        dones: (n_envs,) bool, which episodes ended with the step.
        infos: the info of each environment.

    Raises:
        ParenvsError: the mask of a truncated state is missing or no mask.
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
