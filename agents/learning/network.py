"""``Network``: the network over rows as arrays, which plays without PyTorch; those that ship."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.agents.weights import check_named, read_weights, single
from parenvs.errors import ParenvsError
from parenvs.files import replacing

LAYERS = ("context", "action", "row.1", "pool.0", "head.0", "last")
"""Layers of a policy; ``action`` has no biases."""
NAMES = ("weight", *(f"{x}.{y}" for x in LAYERS for y in ("weight", "bias")))
"""Names of arrays: the weight of the rule's score, then weights and biases of layers."""
WEIGHTS = tuple(name for name in NAMES if name != "action.bias")
BLOCK = 32
"""Rows that are multiplied together."""
LOWEST = np.float32(-1e9)
"""Rating of illegal actions."""


class Network:
    """Rates actions as ``parenvs.agents.learning.net.RowsNet`` does, in NumPy.

    Args:
        weights: name -> float array, of the names ``WEIGHTS``; those of a ``RowsNet`` with one
            output for each action, without attention.
        where: of the weights, for errors.

    Attributes:
        weights: the arrays, float32.
        features: F, columns of rows.
        contexts: C.

    Raises:
        ParenvsError: weights are missing, unknown, of another shape, or not finite.
    """

    def __init__(self, weights: Mapping[str, Any], where: str = "weights") -> None:
        check_named(weights, WEIGHTS, where)
        arrays = {name: np.asarray(weights[name]) for name in WEIGHTS}
        width = arrays["context.bias"].size
        self.features, self.contexts = (arrays[f"{x}.weight"].shape[-1:] for x in LAYERS[1::-1])
        layers = {
            "weight": (), "context": (width, *self.contexts), "action": (width, *self.features),
            "row.1": (width, width), "pool.0": (width, 2 * width + sum(self.contexts)),
            "head.0": (width, 2 * width), "last": (1, width),
        }  # fmt: skip
        shapes = {}
        for name in WEIGHTS:
            layer, _, kind = name.rpartition(".")
            shape = layers[layer or name]
            shapes[name] = shape[:1] if kind == "bias" else shape
        self.weights = single(arrays, shapes, where)

    @classmethod
    def load(cls, path: Path) -> Network:
        """Read the weights of an ``.npz`` file; nothing in it is unpickled.

        Raises:
            ParenvsError: the file cannot be read, or its weights are wrong.
        """
        return cls(read_weights(path), str(path))

    def save(self, path: Path) -> None:
        """Write the weights into an ``.npz`` file."""
        with replacing(path) as stream:
            np.savez_compressed(stream, **self.weights)

    def rate(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the logits of actions, (n, A) float32; those of illegal ones are ``LOWEST``.

        Args:
            observation: of n turns, see ``parenvs.core.rows.RowGame``.

        Raises:
            ParenvsError: the network is of rows with other columns.
        """
        rows, context = observation["actions"], observation["context"]
        if (rows.shape[2:], context.shape[1:]) != (self.features, self.contexts):
            raise ParenvsError(
                f"the network sees {sum(self.features)} columns of rows and {sum(self.contexts)} "
                f"of context, and the environment shows {rows.shape[2]} and {context.shape[1]}"
            )
        legal = observation["action_mask"].astype(np.bool_)
        owner, _ = np.nonzero(legal)  # illegal rows are left out of all that follows
        rows, count = halved(rows[legal]), legal.sum(axis=1)
        first = np.concatenate([[0], count.cumsum()[:-1]])
        hidden = _product(rows, self.weights["action.weight"].T)
        hidden += self._layer("context", context)[owner]
        hidden = _positive(self._layer("row.1", _positive(hidden)))
        mean = np.add.reduceat(hidden, first) / count[:, None].astype(np.float32)
        pooled = np.concatenate([mean, np.maximum.reduceat(hidden, first), context], axis=1)
        pooled = _positive(self._layer("pool.0", pooled))
        # The head's layer of (row, pool) is a sum of two, of which one is the turn's.
        width = hidden.shape[1]
        weights, biases = self.weights["head.0.weight"].T, self.weights["head.0.bias"]
        turn = _product(pooled, weights[width:]) + biases
        head = _positive(_product(hidden, weights[:width]) + turn[owner])
        rated = self._layer("last", head)[:, 0] + self.weights["weight"] * rows[:, 0]
        result = np.full(legal.shape, LOWEST)
        result[legal] = rated
        return result

    def _layer(self, name: str, inputs: np.ndarray) -> np.ndarray:
        """Return a layer's outputs."""
        weights, biases = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return np.asarray(_product(inputs, weights.T) + biases)


def halved(rows: np.ndarray) -> np.ndarray:
    """Return rows, (..., F) float32, whose features have half precision, but for column 0."""
    largest = float(np.finfo(np.float16).max)
    features = rows[..., 1:].clip(-largest, largest).astype(np.float16)
    return np.concatenate([rows[..., :1], features], axis=-1, dtype=np.float32)


def _product(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return ``rows @ weights`` in blocks for which BLAS takes one thread: more are slower."""
    padded = np.zeros((len(rows) + -len(rows) % BLOCK, rows.shape[1]), dtype=rows.dtype)
    padded[: len(rows)] = rows
    product = padded.reshape(-1, BLOCK, rows.shape[1]) @ weights
    return product.reshape(-1, weights.shape[1])[: len(rows)]


def _positive(values: np.ndarray) -> np.ndarray:
    return np.maximum(values, 0.0)


def file_of(env_id: str) -> Path:
    """Return the file of the network that ships for an environment."""
    folder = resources.files("parenvs.agents.learning").joinpath("data")
    return Path(str(folder.joinpath(f"{env_id}.npz")))


@cache
def shipped(env_id: str) -> Network:
    """Return the network that ships for an environment, read once a process.

    Raises:
        ParenvsError: none does.
    """
    return Network.load(file_of(env_id))
