"""A graph as the parts of a ``HybridModel``: its layers, and what passes between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.graph.graph import Graph, Role
from parenvs.tasks.hybrid.graph.layer import GraphLayer
from parenvs.tasks.hybrid.graph.program import BACKWARD, FORWARD, Program
from parenvs.tasks.hybrid.graph.splitting import Splitting
from parenvs.tasks.hybrid.graph.work import COSTS, Work
from parenvs.tasks.partition.classes import DimensionClasses


@dataclass(frozen=True, eq=False)
class GraphChain:
    """The layers of a graph.

    Attributes:
        work: what they do.
        kinds: the K different layers.
        kind_of: (n,) kind of each layer.
        crossing: (n-1,) elements per sample that pass from each layer to the next.
        embedding: what is in front of the first layer, or None.
        head: what is behind the last, or None.
    """

    work: Work
    kinds: tuple[GraphLayer, ...]
    kind_of: tuple[int, ...]
    crossing: tuple[float, ...]
    embedding: GraphLayer | None
    head: GraphLayer | None

    @property
    def program(self) -> Program:
        """The instructions by layers."""
        return self.work.program

    @property
    def splitting(self) -> Splitting:
        """What tensor parallelism splits."""
        return self.work.splitting

    @property
    def names(self) -> tuple[str, ...]:
        """(n,) what the graph calls its layers."""
        return self.program.borders.names

    @property
    def notes(self) -> tuple[str, ...]:
        """What was guessed, in sentences."""
        return self.program.notes

    @property
    def shared(self) -> dict[str, list[int]]:
        """Trainable weight -> layers, 1 to n, that read it, if several; 0 embeds, n + 1 ends."""
        graph, labels = self.program.graph, self.program.weight_labels
        return {
            graph.paths[index]: places for index, places in labels.items()
            if len(places) > 1 and graph.parameter_role[index] == Role.VARIABLE
        }  # fmt: skip

    @property
    def tied_parameters(self) -> float:
        """Numbers of the weights that the head shares with something in front of it."""
        return self.work.tied_elements() if self.head is not None else 0.0

    @property
    def is_half(self) -> bool:
        """Whether the graph's products are in half precision."""
        return self.program.is_half

    @cached_property
    def parameters(self) -> float:
        """Numbers of all weights that the forward pass reads."""
        graph = self.program.graph
        read = [int(graph.parameter_tensor[i]) for i in self.program.weight_labels]
        return float(self.program.elements[read].sum())

    def flops(self, samples: float, recompute: bool = False) -> float:
        """FLOPs of products and convolutions of a step; with the layers' forward pass again.

        Args:
            samples: samples of the step.
            recompute: whether the layers' forward passes count twice.
        """
        program, flow = self.program, self.program.flow
        heavy = np.array([opcode in ("dot", "convolution") for opcode in flow.opcode])
        each = np.where(heavy, program.graph.flops * self.work.runs, 0.0)
        forward = each * (program.graph.phase == FORWARD)
        inside = (program.label > 0) & (program.label <= program.layers)
        ahead = float(forward[program.label >= 0].sum())
        back = float(each[(program.graph.phase == BACKWARD) & (program.label >= 0)].sum())
        total = ahead + (2 * ahead if program.twice else back)
        total += float(forward[inside].sum()) if recompute else 0.0
        return total * samples / program.graph.batch_size


def chain_of(
    graph: Graph,
    costs: str = COSTS[0],
    uneven: str = "forbid",
    classes: DimensionClasses | None = None,
    chosen: np.ndarray | Mapping[str, int] | None = None,
    cuts: Sequence[int] = (),
) -> GraphChain:
    """Make the chain of a graph's layers.

    Args:
        graph: a training step, or a forward pass.
        costs: one of ``COSTS``.
        uneven: ``"forbid"`` or ``"pad"``, see ``Splitting``.
        classes: dimension classes of the graph, if it has no loops over layers.
        chosen: the classes that tensor parallelism splits, see ``Splitting``.
        cuts: pivots at which layers are cut, too.

    Raises:
        ParenvsError: unknown costs, or the graph has no forward pass to plan.
    """
    if costs not in COSTS:
        raise ParenvsError(
            f"costs must be one of {', '.join(COSTS)}, not {shown(costs)}"
            f"{did_you_mean(str(costs), COSTS)}"
        )
    program = Program.of(graph, costs == "flops", cuts)
    if not len(program.pivots):
        raise ParenvsError(f"{graph.name}: its forward pass has no instruction; nothing to plan")
    work = Work(program, Splitting(program, uneven, classes, chosen), costs)
    names = program.borders.names
    layers = [GraphLayer(work, label, name) for label, name in enumerate(names, 1)]
    kinds: dict[object, int] = {}
    kind_of = [kinds.setdefault(_signature(layer), len(kinds)) for layer in layers]
    different = tuple(layers[kind_of.index(kind)] for kind in range(len(kinds)))
    bounds = program.borders.bounds
    scale = work.element_bytes * graph_batch(program)
    crossing = program.counted.cut[bounds[1:-1] - 1] / scale
    ends = [
        GraphLayer(work, label, name) if _does(work, label) else None
        for label, name in ((0, "embedding"), (len(names) + 1, "head"))
    ]
    return GraphChain(work, different, tuple(kind_of), tuple(crossing.tolist()), ends[0], ends[1])


def graph_batch(program: Program) -> int:
    """Samples of the graph's batch."""
    return program.graph.batch_size


def _does(work: Work, label: int) -> bool:
    """Whether anything is in front of the first layer, or behind the last."""
    bounds = work.program.borders.bounds
    pivots = bounds[0] > 0 if label == 0 else bounds[-1] < len(work.program.pivots)
    return bool(pivots) or bool((work.program.label == label).any())


def _signature(layer: GraphLayer) -> object:
    """What tells a layer from others: layers of one signature cost the same, split or not."""
    work, label = layer.work, layer.label
    program = work.program
    if work.costs != "kernels":
        return label
    flow, elements = program.flow, program.elements

    def sizes(tensors: object) -> tuple[object, ...]:
        return tuple(sorted(
            (float(elements[t]), bool(program.grows[t]), bool(program.at_precision[t]))
            for t in tensors  # type: ignore[attr-defined]
        ))  # fmt: skip

    rows = sorted(
        (kernel.phase, flow.opcode[kernel.members[0]], number in work.cores.kernels,
         work.products.get(kernel.members[0], (None,))[0] or (), sizes(kernel.reads),
         sizes(kernel.writes))
        for number in work.of_label.get(label, []) for kernel in (work.kernels[number],)
    )  # fmt: skip
    weights = sizes(t for t, _ in work.weights.get(label, []))
    kept = sizes(work.kept_tensors.get(label, ()))
    return tuple(rows), weights, kept, label in work.cores.causal
