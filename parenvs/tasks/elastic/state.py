"""The state of a model in training: how many bytes of it each part of each layer holds.

Bytes are those of parameters with what the optimiser keeps: 14 for half precision and Adam (2 for
the parameter, 4 each for the master copy and the two moments).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from parenvs.tasks.hybrid.layers import Layer, Split
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.uniform import even_bounds

BYTES = 14.0
"""Bytes of a parameter with its optimiser state, in half precision with Adam."""


@dataclass(frozen=True)
class State:
    """The state of a chain of n layers, embedding and head among them.

    Attributes:
        name: of the model.
        split: (n,) bytes that tensor parallelism divides.
        whole: (n,) bytes that every tensor-parallel rank holds: norms, positions, some biases.
        inner: layers without embedding and head, which are what is dealt out to stages.
    """

    name: str
    split: np.ndarray
    whole: np.ndarray
    inner: int

    @property
    def bytes(self) -> float:
        """Bytes of one copy of the state."""
        return float(self.split.sum() + self.whole.sum())

    def bounds(self, stages: int) -> np.ndarray:
        """(P+1,) first layer of each stage; the first also has the embedding, the last the head.

        Layers are dealt out by ``even_bounds``: where their number does not divide, the first and
        the last stage have fewer, in place of embedding and head.
        """
        result = even_bounds(self.inner, stages) + 1
        result[0], result[-1] = 0, len(self.split)
        return result

    @classmethod
    def of(cls, model: HybridModel, per_parameter: float = BYTES) -> State:
        """Return the state of a model.

        What divides is what a rank of two has less than a rank of one (``Layer.parameters``).
        """
        ends = (model.embedding, model.head)
        kinds = [_divided(kind) for kind in model.kinds]
        chain = [kinds[kind] for kind in model.kind_of]
        first, last = (_divided(layer) if layer is not None else (0.0, 0.0) for layer in ends)
        split, whole = np.array([first, *chain, last]).T * per_parameter
        return cls(model.name, split, whole, len(model))


def _divided(layer: Layer) -> tuple[float, float]:
    """Return the parameters of a layer that tensor parallelism divides, and the others."""
    one, two = (sum(map(float, layer.parameters(Split(tp, 1.0)))) for tp in (1, 2))
    return 2.0 * (one - two), 2.0 * two - one


@lru_cache(maxsize=64)
def shards(tensor: int, grid: int) -> np.ndarray:
    """(T, grid) bool, which of ``grid`` equal parts each of T shards has; T divides the grid."""
    return np.repeat(np.eye(tensor, dtype=bool), grid // tensor, axis=1)
