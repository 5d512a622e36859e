"""A trained network that chooses plans, with NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.agents.learning.elastic.network import features, rate, shapes
from parenvs.errors import ParenvsError, one_line, shown
from parenvs.graph.checks.npz import UNREADABLE, read_arrays


class Learnt:
    """Chooses the plans that a network rates highest, of those that are legal.

    Args:
        weights: by name, of the shapes of ``parenvs.agents.learning.elastic.network.shapes``.
        where: of the weights, for errors.

    Raises:
        ParenvsError: weights are missing, unknown, of another shape, or not finite.
    """

    def __init__(self, weights: Mapping[str, Any], where: str = "weights") -> None:
        expected = shapes()
        if sorted(weights) != sorted(expected):
            raise ParenvsError(
                f"{where}: weights must be named {', '.join(expected)}; not {shown([*weights])}"
            )
        self.weights: dict[str, np.ndarray] = {}
        for name, shape in expected.items():
            array = np.asarray(weights[name])
            with np.errstate(over="ignore"):
                single = array.astype(np.float32) if array.dtype.kind == "f" else array
            if array.shape != shape or array.dtype.kind != "f" or not np.isfinite(single).all():
                raise ParenvsError(
                    f"{where}: {name!r} must be finite numbers of the shape {shape}, not "
                    f"{array.dtype} {array.shape}"
                )
            self.weights[name] = single

    @classmethod
    def load(cls, path: str | Path) -> Learnt:
        """Read the weights of an ``.npz`` file; nothing in it is unpickled.

        Raises:
            ParenvsError: the file cannot be read, or its weights are wrong.
        """
        try:
            weights = read_arrays(path)
        except UNREADABLE as error:
            raise ParenvsError(f"{path}: no file of weights ({one_line(error)})") from None
        return cls(weights, str(path))

    def plans(self, observation: Mapping[str, np.ndarray], masks: np.ndarray) -> np.ndarray:
        """Return the plans chosen, (n,) int64.

        Args:
            observation: of n environments: ``plans``, ``change`` and ``numbers``.
            masks: (n, 64) legal actions.
        """
        seen = features(*(observation[key] for key in ("plans", "change", "numbers")))
        return np.where(masks, rate(self.weights, seen), -np.inf).argmax(axis=1)
