"""A model as hybrid plans see it: a chain of layers, with what stands in front and behind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from parenvs.graph.graph import Graph
from parenvs.tasks.hybrid.graph_chain import GraphChain, chain_of
from parenvs.tasks.hybrid.layers import Embedding, Head, Layer, TransformerBlock
from parenvs.tasks.hybrid.shape import TransformerShape


@dataclass(frozen=True)
class HybridModel:
    """A chain of n layers, many of them alike.

    Attributes:
        name: name or path of the instance.
        fingerprint: ``sha256:...`` of the shape or of the graph that it was made of.
        kinds: the K different layers.
        kind_of: (n,) kind of each layer.
        crossing: (n-1,) elements per sample that pass from each layer to the next.
        embedding: what the first stage holds beside its layers, or None.
        head: what the last stage holds beside its layers, or None.
        tied_parameters: parameters that embedding and head share.
        shape: the shape, if it was made of one.
        chain: the layers of the graph, if it was made of one.
        notes: what was guessed, in sentences.
    """

    name: str
    fingerprint: str
    kinds: tuple[Layer, ...]
    kind_of: tuple[int, ...]
    crossing: tuple[float, ...]
    embedding: Layer | None = None
    head: Layer | None = None
    tied_parameters: float = 0.0
    shape: TransformerShape | None = None
    chain: GraphChain | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self.kind_of)

    @cached_property
    def kinds_before(self) -> np.ndarray:
        """(n+1, K) how many layers of each kind stand before each boundary."""
        counts = np.zeros((len(self) + 1, len(self.kinds)))
        counts[np.arange(1, len(self) + 1), list(self.kind_of)] = 1
        return counts.cumsum(axis=0)

    @cached_property
    def crossing_after(self) -> np.ndarray:
        """(n+1,) elements per sample that cross each boundary, 0 at both ends."""
        return np.array([0.0, *self.crossing, 0.0])

    def flops(self, samples: float, recompute: bool = False) -> float:
        """Model FLOPs of a step, see ``TransformerShape.flops`` and ``GraphChain.flops``."""
        if self.chain is not None:
            return self.chain.flops(samples, recompute)
        assert self.shape is not None
        return self.shape.flops(samples, recompute)

    def reasons_against_tp(self, tp: int) -> str | None:
        """Return why the matrices cannot be divided among ``tp`` ranks, or None."""
        if self.chain is not None:
            return self.chain.splitting.reason_against(tp)
        shape = self.shape
        if shape is None:
            return None
        names = ("heads", "feed_forward", "dense_feed_forward", "vocabulary")
        for name in names:
            width = getattr(shape, name)
            if width % tp:
                return f"tp {tp} does not divide {name} {width}"
        return None

    def reasons_against_sequence_parallel(self) -> str | None:
        """Return why tp ranks cannot share what lies between the matrices, or None."""
        if self.chain is not None and not self.chain.splitting.has_attention:
            return (
                f"{self.name} has no attention or feed-forward block around which to share tokens"
            )
        return None

    @property
    def attends(self) -> bool:
        """Whether it has attention: a shape, or a graph with cores of it."""
        return self.chain is None or bool(self.chain.work.cores.kernels)

    @property
    def is_half(self) -> bool:
        """Whether it runs in half precision by default: a shape, or a graph whose products do."""
        return self.chain is None or self.chain.is_half

    @classmethod
    def of_shape(cls, shape: TransformerShape) -> HybridModel:
        """Make the chain of a transformer's blocks."""
        width = float(shape.sequence * shape.hidden)
        return cls(
            name=shape.name,
            fingerprint=shape.fingerprint,
            kinds=tuple(TransformerBlock(kind) for kind in shape.kinds),
            kind_of=shape.kind_of,
            crossing=(width,) * (shape.layers - 1),
            embedding=Embedding(shape),
            head=Head(shape),
            tied_parameters=float(shape.vocabulary * shape.hidden) if shape.tied else 0.0,
            shape=shape,
        )

    @classmethod
    def of_graph(cls, graph: Graph, name: str = "", **options: Any) -> HybridModel:
        """Make the chain of the layers of a training step's graph.

        Args:
            graph: the training step, or the forward pass, whose backward pass then takes twice as
                long. Loops over layers are written out.
            name: name or path that plans carry (default: the graph's).
            **options: ``costs``: ``"kernels"``, what a compiler fuses taken together;
                ``"instructions"`` or ``"flops"``, as partitions or pipelines count; ``uneven``,
                ``classes`` and ``chosen``: what tensor parallelism splits; ``cuts``: pivots at
                which layers are cut, too; see ``chain_of``.

        Raises:
            ParenvsError: unknown costs, or the graph has no forward pass.
        """
        chain = chain_of(graph, **options)
        return cls(
            name=name or graph.name,
            fingerprint=graph.fingerprint,
            kinds=chain.kinds,
            kind_of=chain.kind_of,
            crossing=chain.crossing,
            embedding=chain.embedding,
            head=chain.head,
            tied_parameters=chain.tied_parameters,
            chain=chain,
            notes=chain.notes,
        )
