"""A model as hybrid plans see it: a chain of layers, with what stands in front and behind."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from parenvs import instances
from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean
from parenvs.files import StrPath, is_function, read_json
from parenvs.graph.graph import Graph
from parenvs.instances import (
    Key,
    check_no_reading,
    exists,
    load_graph,
    names,
    reading_key,
    stamp,
    text_of,
)
from parenvs.tasks.hybrid.graph_chain import chain_of
from parenvs.tasks.hybrid.graph_work import Work
from parenvs.tasks.hybrid.layers import Embedding, Head, Layer, TransformerBlock
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.task import HybridTask


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
        tied_share: share of them that is trained.
        shape: the shape, if it was made of one.
        work: what the layers of the graph do, if it was made of one.
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
    tied_share: float = 1.0
    shape: TransformerShape | None = None
    work: Work | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self.kind_of)

    @cached_property
    def kinds_before(self) -> np.ndarray:
        """(n+1, K) how many layers of each kind stand before each boundary."""
        # One-hot rows, summed up: prefix sums answer any range of layers.
        counts = np.zeros((len(self) + 1, len(self.kinds)))
        counts[np.arange(1, len(self) + 1), list(self.kind_of)] = 1
        return counts.cumsum(axis=0)

    @cached_property
    def crossing_after(self) -> np.ndarray:
        """(n+1,) elements per sample that cross each boundary, 0 at both ends."""
        return np.array([0.0, *self.crossing, 0.0])

    def flops(self, samples: float, recompute: bool = False) -> float:
        """Model FLOPs of a step, see ``TransformerShape.flops`` and ``Work.flops``."""
        source = self.work or self.shape
        assert source is not None
        return source.flops(samples, recompute)

    def reasons_against_tp(self, tp: int) -> str | None:
        """Return why the matrices cannot be divided among ``tp`` ranks, or None."""
        if self.work is not None:
            return self.work.splitting.reason_against(tp)
        for name in ("heads", "feed_forward", "dense_feed_forward", "vocabulary"):
            width = getattr(self.shape, name, 0)
            if width % tp:
                return f"tp {tp} does not divide {name} {width}"
        return None

    def reasons_against_sequence_parallel(self) -> str | None:
        """Return why tp ranks cannot share what lies between the matrices, or None."""
        if self.work is not None and not self.work.splitting.has_attention:
            return (
                f"{self.name} has no attention or feed-forward block around which to share tokens"
            )
        return None

    @property
    def attends(self) -> bool:
        """Whether it has attention: a shape, or a graph with cores of it."""
        return self.work is None or bool(self.work.cores.kernels)

    @property
    def frozen(self) -> list[str]:
        """Weights that are not trained, without buffers."""
        return [] if self.work is None else self.work.program.graph.frozen

    @property
    def is_half(self) -> bool:
        """Whether it runs in half precision by default: a shape, a module, or if products do."""
        work = self.work
        return work is None or work.program.graph.buffers is not None or work.program.is_half

    @classmethod
    def of_shape(cls, shape: TransformerShape) -> HybridModel:
        """Make the chain of a transformer's blocks."""
        return cls(
            name=shape.name,
            fingerprint=shape.fingerprint,
            kinds=tuple(TransformerBlock(kind) for kind in shape.kinds),
            kind_of=shape.kind_of,
            crossing=(float(shape.sequence * shape.hidden),) * (shape.layers - 1),
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
            **options: see ``chain_of``.

        Raises:
            ParenvsError: the graph has no forward pass.
        """
        return cls(name or graph.name, graph.fingerprint, **chain_of(graph, **options))


@lru_cache(maxsize=1)
def shapes() -> dict[str, TransformerShape]:
    """Read the shipped shapes, by name."""
    return {name: TransformerShape.from_json(row) for name, row in instances.shapes().items()}


def load_shape(instance: StrPath) -> TransformerShape | None:
    """Load a transformer's shape by shipped name or from a ``.json`` file; None if it has none.

    A generated problem, or one of a set, has the shape of its model. A file that is missing, or
    holds no shape, raises an UnknownInstanceError.
    """
    text = os.fspath(instance)
    if text in shapes():
        return shapes()[text]
    task = HybridTask()
    if task.names(text):
        return task.find(text).model.shape
    if not text.endswith(".json"):
        return None
    return TransformerShape.from_json(read_json(text, UnknownInstanceError), text)


def load_model(
    instance: StrPath | Graph | TransformerShape | HybridModel, **reading: Any
) -> HybridModel:
    """Load the chain of layers that hybrid plans cut: of a shape if there is one, else of a graph.

    The same name or path gives the same object.

    Args:
        instance: name or path of a shape or of a graph, or either as an object; a ``HybridModel``
            is returned as it is.
        **reading: see ``load_graph``; a shape has no parameters to read.

    Raises:
        TypeError: ``instance`` is nothing of these.
        UnknownInstanceError: ``instance`` is neither a shipped name nor a file.
        ParenvsError: options of reading are given for a shape.
    """
    if isinstance(instance, Graph):
        return HybridModel.of_graph(load_graph(instance, **reading))
    if isinstance(instance, (TransformerShape, HybridModel)):
        check_no_reading(reading, f"{instance.name}: a shape")
        return instance if isinstance(instance, HybridModel) else HybridModel.of_shape(instance)
    text = text_of(instance, "a Graph", "a TransformerShape", "a HybridModel")
    shape = load_shape(text)
    if shape is not None:
        check_no_reading(reading, f"{text}: a shape")
        return HybridModel.of_shape(shape)
    if not (text in names() or exists(text) or is_function(text)):
        raise UnknownInstanceError(
            f"unknown instance {text!r}{did_you_mean(text, (*shapes(), *names()))}; shapes: "
            f"{', '.join(shapes())}; graphs: {', '.join(names())}; or give a .json file of a shape "
            "or the path of a graph"
        )
    if text.endswith(".csv"):
        raise ParenvsError(
            f"{text}: a profile says nothing of the layers' operations; hybrid plans need a shape "
            "or a graph"
        )
    arguments = reading.pop("arguments", None)
    return _cached(text, (arguments, reading_key(reading), stamp(text)))


@lru_cache(maxsize=4)
def _cached(instance: str, how: tuple[str | None, Key, Any]) -> HybridModel:
    arguments, reading, _ = how
    graph = load_graph(instance, arguments=arguments, **dict(reading))
    return HybridModel.of_graph(graph, instance)
