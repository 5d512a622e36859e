"""What agents see of any environment with discrete actions: a row of features for each action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim
from torch import Tensor

from parenvs.agents.learning.network import halved
from parenvs.errors import ParenvsError, shown

OWN = ("actions", "context", "action_mask")
"""Parts of an observation of rows."""
JOINT = "joint"
"""Part of an observation that a central critic alone may see."""


class Seen(NamedTuple):
    """What is seen of a batch of turns, of any leading shape.

    Attributes:
        rows: (..., A, F) float32; of illegal actions 0. Features have half precision, but for the
            score of column 0, so that they cross the wire in half of the bytes.
        context: (..., C + J) float32; what a central critic alone may see comes last.
        mask: (..., A) bool, the legal actions.
    """

    rows: Tensor
    context: Tensor
    mask: Tensor

    def at(self, index: Any) -> Seen:
        """Return a part of the batch."""
        return Seen(*(values[index] for values in self))

    def to(self, device: Any) -> Seen:
        """Return the same on a device."""
        return Seen(*(values.to(device, non_blocking=True) for values in self))

    def packed(self) -> Packed:
        """Return the same for the wire: legal rows alone, features and masks as they are exact."""
        legal = self.rows[self.mask]
        half = self.context.half()
        context = half if torch.equal(half.float(), self.context) else self.context
        bits = np.packbits(self.mask.numpy())
        return Packed(
            self.rows.shape, bits, legal[:, :1].numpy(), legal[:, 1:].half().numpy(),
            context.numpy(),
        )  # fmt: skip


class Packed(NamedTuple):
    """What is seen, for the wire: arrays of NumPy, as in ``Seen`` but for their precision."""

    shape: Sequence[int]
    bits: np.ndarray
    scores: np.ndarray
    features: np.ndarray
    context: np.ndarray

    def seen(self) -> Seen:
        """Return what was packed, to the last bit."""
        *leading, actions, features = self.shape
        count = int(np.prod(leading)) * actions
        flags = np.unpackbits(self.bits, count=count).astype(np.bool_)
        mask = torch.from_numpy(flags).reshape(*leading, actions)
        rows = torch.zeros(*leading, actions, features)
        if features:
            legal = np.concatenate([self.scores, self.features.astype(np.float32)], axis=1)
            rows[mask] = torch.from_numpy(legal)
        return Seen(rows, torch.from_numpy(self.context.astype(np.float32)), mask)


def beside(parts: Sequence[Seen], dim: int = 0) -> Seen:
    """Return what is seen in environments next to each other, along a dimension."""
    return Seen(*(torch.cat(values, dim=dim) for values in zip(*parts, strict=True)))


class Lens:
    """Turns batched observations into ``Seen``.

    Environments of rows are seen as they are. Of others the rows are empty, and all that is
    observed is context; the mask is that of the observation or of the infos, else all actions are
    legal.

    Args:
        observed: observation space of one environment.
        acting: its action space, ``Discrete``.
        discount: of rewards, if an agent has no other.

    Attributes:
        acting: the action space.
        actions: A.
        features: F, 0 where actions have no rows.
        contexts: C.
        joint: J, numbers that a central critic alone may see; 0 where agents are alone.
        scored: whether column 0 is the score of a rule.

    Raises:
        ParenvsError: the actions are not discrete.
    """

    def __init__(
        self, observed: spaces.Space[Any], acting: spaces.Space[Any], discount: float | None = None
    ) -> None:
        if not isinstance(acting, spaces.Discrete):
            raise ParenvsError(f"actions must be Discrete, not {shown(acting)}")
        self.observed, self.acting, self.first = observed, acting, int(acting.start)
        self.actions = int(acting.n)
        self.scored = isinstance(observed, spaces.Dict) and set(OWN) <= set(observed.spaces)
        self.discount = (1.0 if self.scored else 0.99) if discount is None else discount
        is_joint = isinstance(observed, spaces.Dict) and JOINT in observed.spaces
        self.joint = flatdim(observed[JOINT]) if is_joint else 0  # type: ignore[index]
        if self.scored:
            assert isinstance(observed, spaces.Dict)
            self.features = int(observed["actions"].shape[1])  # type: ignore[index]
            self.contexts = int(observed["context"].shape[0])  # type: ignore[index]
        else:
            self.features = 0
            self.contexts = sum(flatdim(part) for part in self._parts().values())

    @classmethod
    def of(cls, env: gym.vector.VectorEnv[Any, Any, Any]) -> Lens:
        """Return the lens of a vector environment; in games, which end, nothing is discounted."""
        discount = 1.0 if hasattr(env, "game_class") else None
        return cls(env.single_observation_space, env.single_action_space, discount)

    def __call__(self, observation: Any, infos: Mapping[str, Any]) -> Seen:
        """Return what is seen of a batch of n observations."""
        if self.scored:
            rows, context, mask = (observation[name] for name in OWN)
            seen = torch.from_numpy(halved(rows))
            contexts = [context, observation[JOINT]] if self.joint else [context]
            return Seen(
                seen,
                torch.from_numpy(np.concatenate(contexts, axis=-1, dtype=np.float32)),
                torch.from_numpy(np.array(mask, dtype=np.bool_)),
            )
        parts = self._parts()
        values = observation if isinstance(self.observed, spaces.Dict) else {"": observation}
        flat = [_flat(parts[name], values[name]) for name in parts]
        if self.joint:
            flat.append(np.asarray(values[JOINT], dtype=np.float32))
        count = len(flat[0])
        mask = values.get("action_mask") if isinstance(values, Mapping) else None
        if mask is None:
            mask = infos.get("action_mask")
        legal = np.ones((count, self.actions), dtype=np.bool_)
        if mask is not None:
            legal = np.array(mask, dtype=np.bool_)
        return Seen(
            torch.zeros(count, self.actions, 0),
            torch.from_numpy(np.concatenate(flat, axis=1)),
            torch.from_numpy(legal),
        )

    def _parts(self) -> dict[str, spaces.Space[Any]]:
        """Return the spaces of what is context."""
        if not isinstance(self.observed, spaces.Dict):
            return {"": self.observed}
        hidden = ("action_mask", JOINT)
        return {name: part for name, part in self.observed.items() if name not in hidden}


def _flat(space: spaces.Space[Any], values: Any) -> np.ndarray:
    """Return a batch of values of a space as (n, k) float32: whole numbers one-hot."""
    batch = np.asarray(values)
    if isinstance(space, spaces.Box):
        return batch.reshape(len(batch), -1).astype(np.float32)
    flat = [spaces.utils.flatten(space, value) for value in batch]
    return np.asarray(flat, dtype=np.float32)
