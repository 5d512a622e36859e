"""The network of all agents: rows through one MLP, pooled, and a rule's score beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim
from torch import Tensor, nn

from parenvs.agents.learning.network import halved
from parenvs.compiled import Array
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
        scores, features = legal[:, :1].numpy(), legal[:, 1:].half().numpy()
        bits = np.packbits(self.mask.numpy())
        return Packed(self.rows.shape, bits, scores, features, context.numpy())


class Packed(NamedTuple):
    """What is seen, for the wire: arrays of NumPy, as in ``Seen`` but for their precision."""

    shape: Sequence[int]
    bits: Array
    scores: Array
    features: Array
    context: Array

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
    """Converts batched observations to ``Seen``.

    Environments of rows are seen as they are. Of others the rows are empty, and all that is
    observed is context; the mask is that of the observation or of the infos, else all actions are
    legal.

    Attributes:
        actions: A.
        features: F, 0 where actions have no rows.
        contexts: C.
        joint: J, numbers that a central critic alone may see; 0 where agents are alone.
        scored: whether column 0 is the score of a heuristic.

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
        parts: dict[str, Any] = {"": observed}
        if isinstance(observed, spaces.Dict):
            parts = {**observed.spaces}
        self.scored = set(OWN) <= set(parts)
        self.discount = (1.0 if self.scored else 0.99) if discount is None else discount
        self.joint = flatdim(parts[JOINT]) if JOINT in parts else 0
        hidden = ("action_mask", JOINT)
        self._parts = {name: part for name, part in parts.items() if name not in hidden}
        self.features, self.contexts = 0, sum(map(flatdim, self._parts.values()))
        if self.scored:
            self.features = int(parts["actions"].shape[1])
            self.contexts = int(parts["context"].shape[0])

    @classmethod
    def of(cls, env: gym.vector.VectorEnv[Any, Any, Any]) -> Lens:
        """Return the lens of a vector environment; in games, which end, nothing is discounted."""
        discount = 1.0 if hasattr(env, "game_class") else None
        return cls(env.single_observation_space, env.single_action_space, discount)

    def __call__(self, observation: Any, infos: Mapping[str, Any]) -> Seen:
        """Return what is seen of a batch of n observations."""
        if self.scored:
            rows, context, mask = (observation[name] for name in OWN)
            rows, contexts = halved(rows), [context]
        else:
            values = observation if isinstance(self.observed, spaces.Dict) else {"": observation}
            contexts = [_flat(part, values[name]) for name, part in self._parts.items()]
            rows = np.zeros((len(contexts[0]), self.actions, 0), np.float32)
            mask = values.get("action_mask", infos.get("action_mask"))
            mask = np.ones(rows.shape[:2]) if mask is None else mask
        if self.joint:
            contexts.append(observation[JOINT])
        return Seen(
            torch.from_numpy(rows),
            torch.from_numpy(np.concatenate(contexts, axis=-1, dtype=np.float32)),
            torch.from_numpy(np.array(mask, np.bool_)),
        )


def _flat(space: spaces.Space[Any], values: Any) -> Array:
    """A batch of values of a space as (n, k) float32: whole numbers one-hot."""
    batch = np.asarray(values)
    if isinstance(space, spaces.Box):
        return batch.reshape(len(batch), -1).astype(np.float32)
    flat = [spaces.utils.flatten(space, value) for value in batch]
    return np.asarray(flat, np.float32)


def layers_to(last: nn.Linear, inputs: int, width: int) -> nn.Sequential:
    """Return an MLP of two hidden layers in front of its last one."""
    layers = (nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
    return nn.Sequential(*layers, last)


WIDTH = 64
SHARPNESS = 3.0
"""Weight of the rule's score at the start."""


class RowsNet(nn.Module):
    """Gives each action a logit, or several numbers, and each step a value.

    A row and the context go through an MLP; the mean and the maximum over legal rows are what the
    rows know of each other. The last layer starts at 0 and the heuristic's score, column 0, is
    added times ``sharpness``, so the untrained network plays the heuristic. Any number of actions
    will do.

    Where actions have no rows, the context goes through an MLP whose last layer has weights for
    each action, and through one of its own for the value.
    """

    def __init__(
        self,
        lens: Lens,
        outputs: int = 1,
        values: int = 1,
        width: int = WIDTH,
        sharpness: float = SHARPNESS,
    ) -> None:
        super().__init__()
        self.scored, self.outputs, self.contexts = lens.scored, outputs, lens.contexts
        self.weight = nn.Parameter(torch.tensor(sharpness))
        self.last_value = nn.Linear(width, values)
        if lens.scored:
            self.context = nn.Linear(lens.contexts, width)
            self.action = nn.Linear(lens.features, width, bias=False)
            self.row = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU())
            self.pool = nn.Sequential(nn.Linear(2 * width + lens.contexts, width), nn.ReLU())
            self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU())
            self.last = nn.Linear(width, outputs)
            self.value = nn.Sequential(nn.Linear(width, width), nn.Tanh(), self.last_value)
        else:
            self.last = nn.Linear(width, outputs * lens.actions)
            self.head = layers_to(self.last, lens.contexts, width)
            self.value = layers_to(self.last_value, lens.contexts, width)
            for layer in (*self.head, *self.value):
                if isinstance(layer, nn.Linear):
                    nn.init.orthogonal_(layer.weight, 2**0.5)
                    nn.init.zeros_(layer.bias)
        for layer in (self.last, self.last_value):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """Return (..., A, outputs), and (..., values) of turns."""
        rows, context, mask = seen
        context = context[..., : self.contexts]
        shape = rows.shape[:-2]
        if not self.scored:
            outputs = self.head(context).unflatten(-1, (-1, self.outputs))
            return outputs, self.value(context)
        rows, mask = rows.flatten(0, -3), mask.flatten(0, -2)
        context = context.flatten(0, -2)
        table = LegalRows(mask) if self._is_packed(mask) else AllRows(mask)
        rows = table.of(rows)
        hidden = self.row(self.action(rows) + table.spread(self.context(context)))
        pooled = self.pool(torch.cat([*table.pooled(hidden), context], dim=1))
        # The head's layer of (row, pool) is a sum of two, of which one is the turn's.
        layer = cast(nn.Linear, self.head[0])
        local, shared = layer.weight.split(hidden.shape[-1], dim=1)
        turn = nn.functional.linear(pooled, shared, layer.bias)
        rated = self.head[1](nn.functional.linear(hidden, local) + table.spread(turn))
        outputs = table.all(self.last(rated) + self.weight * rows[..., :1])
        return outputs.unflatten(0, shape), self.value(pooled).unflatten(0, shape)

    def _is_packed(self, mask: Tensor) -> bool:
        """Whether legal rows alone are computed: on a CPU; others do not wait for their number."""
        return mask.device.type == "cpu" and mask.numel() > 0


class AllRows:
    """Rows as they are seen, (n, A, ...), illegal ones included."""

    def __init__(self, mask: Tensor) -> None:
        self.legal = mask[..., None]

    def of(self, rows: Tensor) -> Tensor:
        """Return what is computed of rows, (n, A, F)."""
        return rows

    def spread(self, turns: Tensor) -> Tensor:
        """Return what turns, (n, k), give each of their rows."""
        return turns[:, None]

    def pooled(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and maximum over the legal rows of turns, (n, k) each; 0 of none."""
        mean = torch.where(self.legal, hidden, 0.0).sum(dim=1)
        top = torch.where(self.legal, hidden, -torch.inf).amax(dim=1)
        return mean / self.legal.sum(dim=1).clamp(min=1), top.nan_to_num(neginf=0.0)

    def all(self, outputs: Tensor) -> Tensor:
        """Return outputs of all rows, (n, A, k)."""
        return outputs


class LegalRows(AllRows):
    """The legal rows of all turns one behind another, (r, ...): twice as fast where many are not.

    Outputs of illegal rows are 0.
    """

    def __init__(self, mask: Tensor) -> None:
        super().__init__(mask)
        self.mask, self.count = mask, mask.sum(dim=1)
        self.owner = torch.repeat_interleave(self.count)

    def of(self, rows: Tensor) -> Tensor:
        return rows[self.mask]

    def spread(self, turns: Tensor) -> Tensor:
        return turns.index_select(0, self.owner)

    def pooled(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        total = hidden.new_zeros(len(self.count), hidden.shape[1]).index_add(0, self.owner, hidden)
        top = torch.segment_reduce(hidden, "max", lengths=self.count)
        return total / self.count.clamp(min=1)[:, None], top.nan_to_num(neginf=0.0)

    def all(self, outputs: Tensor) -> Tensor:
        zeros = outputs.new_zeros(*self.mask.shape, outputs.shape[1])
        return zeros.masked_scatter(self.legal, outputs)


def log_policy(net: RowsNet, seen: Seen) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the actions' chances, (..., A), and the values of turns, (...).

    Illegal actions have a large negative number, so that sums with chances stay finite.
    """
    outputs, values = net(seen)
    logits = torch.where(seen.mask, outputs[..., 0], -1e9)
    return logits.log_softmax(dim=-1), values[..., 0]


def entropy(logs: Tensor) -> Tensor:
    """Return the entropy of turns in nats, (...), of the logarithms of chances."""
    return -(logs.exp() * logs).sum(dim=-1)
