"""A trained network that chooses plans, with NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.agents.learning.elastic.network import features, rate, shapes
from parenvs.errors import ParenvsError


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
                f"{where}: weights must be named {', '.join(expected)}; not {', '.join(weights)}"
            )
        self.weights: dict[str, np.ndarray] = {}
        for name, shape in expected.items():
            array = np.asarray(weights[name])
            if array.shape != shape or array.dtype.kind != "f" or not np.isfinite(array).all():
                raise ParenvsError(
                    f"{where}: {name!r} must be finite numbers of the shape {shape}, not "
                    f"{array.dtype} {array.shape}"
                )
            self.weights[name] = array.astype(np.float32)

    @classmethod
    def load(cls, path: str | Path) -> Learnt:
        """Read the weights of an ``.npz`` file; nothing in it is unpickled.

        Raises:
            ParenvsError: the file cannot be read, or its weights are wrong.
        """
        try:
            with np.load(path, allow_pickle=False) as content:
                return cls(dict(content), str(path))
        except (OSError, ValueError, EOFError) as error:
            raise ParenvsError(f"{path}: no file of weights ({error})") from None

    def plans(self, observation: Mapping[str, np.ndarray], masks: np.ndarray) -> np.ndarray:
        """Return the plans chosen, (n,) int64.

        Args:
            observation: of n environments: ``plans``, ``change`` and ``numbers``.
            masks: (n, 64) legal actions.
        """
        seen = features(*(observation[key] for key in ("plans", "change", "numbers")))
        return np.where(masks, rate(self.weights, seen), -np.inf).argmax(axis=1)
