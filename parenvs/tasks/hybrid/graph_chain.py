"""A graph as the parts of a ``HybridModel``: its layers, and what passes between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from parenvs.compiled import Array
from parenvs.errors import ParenvsError
from parenvs.graph.graph import Graph
from parenvs.tasks.hybrid.graph_program import BACKWARD, FORWARD, Program
from parenvs.tasks.hybrid.graph_work import Rows, Splitting, Work
from parenvs.tasks.hybrid.layers import Layer, LayerSeconds, Split, matmul_seconds, roofline_seconds
from parenvs.tasks.hybrid.stack import Machine
from parenvs.tasks.pipeline.profile import BACKWARD_RATIO

Figure = Any
"""A number or an array of numbers, one for each plan."""


@dataclass(frozen=True, eq=False)
class GraphLayer(Layer):
    """A layer of a graph, or what is in front of the first or behind the last.

    Costs depend on few numbers of a plan: they are counted once for each combination. ``label`` is
    that of ``Program``.
    """

    work: Work
    label: int

    def seconds(self, machine: Machine, split: Split) -> LayerSeconds:
        """See ``Layer.seconds``: kernels by fusion, products by (batch, m, n, k)."""

        def figures(tp: int, sequence_parallel: bool, samples: Array) -> Array:
            rows = self.work.rows(self.label, tp, sequence_parallel)
            return np.stack(self._seconds(machine, rows, tp, sequence_parallel, samples))

        return LayerSeconds(*self._looked_up(split, figures, len(LayerSeconds._fields)))

    def _seconds(
        self, machine: Machine, rows: Rows, tp: int, shared: bool, part: Array
    ) -> tuple[Figure, ...]:
        """The figures of ``LayerSeconds`` for (U,) parts of the batch."""
        # Of products, (R, U), and of other kernels, (K, U).
        whole = rows.sizes[..., None]
        batch, m, n, k = np.moveaxis(np.where(rows.grows[..., None], whole * part, whole), 1, 0)
        products = matmul_seconds(machine, m, n, k, batch) * rows.product_runs[:, None]
        whole = rows.flops[:, None]
        flops = np.where(rows.flops_grow[:, None], whole * part, whole)
        others = roofline_seconds(machine, flops, _bytes(machine, rows.traffic, part))
        others = others * rows.kernel_runs[:, None]
        program, peak = self.work.program, machine.attention_flops

        def total(phase: int, core: bool) -> Array:
            of_products = (rows.product_at == phase) & (rows.product_core == core)
            of_others = (rows.kernel_at == phase) & (rows.kernel_core == core)
            return products[of_products].sum(axis=0) + others[of_others].sum(axis=0)

        forward, backward = total(FORWARD, False), total(BACKWARD, False)
        core, core_backward = total(FORWARD, True), total(BACKWARD, True)
        again, is_fused = core, peak is not None and rows.product_core.any()
        if peak is not None and is_fused:
            of_core = rows.product_core & (rows.product_at == FORWARD)
            sizes, times = rows.sizes[of_core], rows.product_runs[of_core]
            square = 2.0 * float((sizes.prod(axis=1) * times).sum())
            square *= 0.5 if self.label in self.work.cores.causal else 1.0
            batch, m, n, k = sizes.T
            # Scores are the largest of a product's three arrays; the others are read or written.
            arrays = np.stack([batch * m * k, batch * k * n, batch * m * n])
            moved = float(((arrays.sum(axis=0) - arrays.max(axis=0)) * times).sum())
            # One kernel, whose FLOPs or bytes take longer.
            core = np.maximum(square / peak, machine.width * moved / machine.memory_bw) * part
            again, core_backward = np.zeros_like(part), 2.5 * core
        if program.twice:
            # Only layers have products that checkpoints make again.
            is_layer = 0 < self.label <= program.layers
            with_weights, of_data = program.remade_shares if is_layer else (0, 0)
            backward = BACKWARD_RATIO * forward + with_weights * forward
            outside = (rows.product_at == FORWARD) & ~rows.product_core
            backward -= (products * rows.product_needless[:, None])[outside].sum(axis=0)
            if not is_fused:
                core_backward = (BACKWARD_RATIO + of_data) * core  # fused attention always does
        ahead, back = self._exchange(machine, rows, tp, shared, part, products)
        ends = np.flatnonzero((rows.product_at == FORWARD) & ~rows.product_core)
        last = products[ends[-1]] if len(ends) else np.zeros_like(part)
        return forward + core, backward + core_backward, ahead, back, again, last

    def _exchange(
        self,
        machine: Machine,
        rows: Rows,
        tp: int,
        shared: bool,
        part: Array,
        products: Array,
    ) -> tuple[Array, Array]:
        """(U,) seconds of collectives that nothing hides, forward and backward."""
        stack, links = machine.stack, machine.links
        # An all-reduce takes as long as two all-gathers.
        ahead, back = np.zeros_like(part), np.zeros_like(part)
        for phase, size, behind in rows.sums:
            gather = links.all_gather(_bytes(machine, size[None], part)[0], tp, 1)
            if phase == FORWARD:
                ahead = ahead + 2 * gather * (1 - stack.tensor_overlap)
            elif not stack.backward_overlap:
                back = back + 2 * gather
            else:
                hidden = products[list(behind)].sum(axis=0)
                if shared:
                    open_ = gather * (1 - stack.tensor_overlap)
                    back = back + open_ + stack.exposed(gather, hidden)
                else:
                    back = back + stack.exposed(2 * gather, hidden)
        # Without a backward pass of its own a layer sums as often as forward.
        if self.work.program.twice:
            back = ahead.copy()
        return ahead, back

    def parameters(self, split: Split) -> tuple[Figure, Figure]:
        return self._parameters(split, False), 0.0

    def trained(self, split: Split) -> tuple[Figure, Figure]:
        return self._parameters(split, True), 0.0

    def _parameters(self, split: Split, trained: bool) -> Figure:
        tp = np.asarray(split.tp)
        held = {x: self.work.parameters(self.label, x, trained) for x in np.unique(tp).tolist()}
        return np.vectorize(held.__getitem__, otypes=[float])(tp)

    def saved_bytes(self, machine: Machine, split: Split, mode: str) -> Figure:
        """See ``Layer.saved_bytes``: what backward kernels read; in full, what enters the layer."""
        fused = machine.attention_flops is not None

        def figures(tp: int, sequence_parallel: bool, part: Array) -> Array:
            kept = self.work.kept(self.label, tp, sequence_parallel, mode, fused)
            return _bytes(machine, kept[None], part)

        return self._looked_up(split, figures, 1)[0]

    def working_bytes(self, machine: Machine, split: Split) -> Figure:
        """See ``Layer.working_bytes``: of the head, its largest result's gradient (the logits')."""
        largest = self.work.largest(self.label)
        if largest is None or self.label != self.work.program.layers + 1:
            return 0.0

        def figures(tp: int, sequence_parallel: bool, part: Array) -> Array:
            held = self.work.held(tp, sequence_parallel)
            return _bytes(machine, self.work.weigh({largest: 1.0}, held)[None], part)

        return self._looked_up(split, figures, 1)[0]

    def _looked_up(
        self, split: Split, figures: Callable[[int, bool, Array], Array], count: int
    ) -> Array:
        """(count, ...) figures for each plan, counted once for each combination of its numbers.

        ``figures`` makes (count, U) figures of tp, sequence parallelism and (U,) parts of the
        graph's batch.
        """
        samples = np.asarray(split.samples, float) / self.work.program.graph.batch_size
        tp, part, shared = np.broadcast_arrays(split.tp, samples, split.sequence_parallel)
        result = np.empty((count, *tp.shape))
        for rank, is_shared in product(np.unique(tp).tolist(), (False, True)):
            which = (tp == rank) & (shared == is_shared)
            if which.any():
                parts, place = np.unique(part[which], return_inverse=True)
                different = figures(rank, is_shared and rank > 1, parts)
                result[:, which] = different[:, place.reshape(-1)]
        return result


def _bytes(machine: Machine, parts: Array, part: Array) -> Array:
    """(..., U) bytes of (..., 4) figures at (U,) parts of the batch, see ``Work``."""
    # The first of each pair is at the plan's precision, the second in bytes of its own.
    growing = machine.width * parts[..., 0] + parts[..., 1]
    fixed = machine.width * parts[..., 2] + parts[..., 3]
    return growing[..., None] * part + fixed[..., None]


def chain_of(
    graph: Graph,
    uneven: str = "forbid",
    chosen: Array | Mapping[str, int] | None = None,
    cuts: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the fields of a ``HybridModel`` that a graph gives.

    Args:
        graph: a training step, or a forward pass.
        uneven: ``"forbid"`` or ``"pad"``, see ``Splitting``.
        chosen: the classes that tensor parallelism splits, see ``Splitting``.
        cuts: pivots at which layers are cut, too.

    Raises:
        ParenvsError: the graph has no forward pass to plan.
    """
    program = Program.of(graph, cuts)
    count, bounds = len(program.pivots), program.borders.bounds
    if not count:
        raise ParenvsError(f"{graph.name}: its forward pass has no instruction; nothing to plan")
    work = Work(program, Splitting(program, uneven, chosen))
    # Layers of one signature are one kind, whose costs are counted once.
    layers = [GraphLayer(work, label) for label in range(1, program.layers + 1)]
    kinds: dict[object, int] = {}
    kind_of = [kinds.setdefault(_signature(layer), len(kinds)) for layer in layers]
    different = tuple(layers[kind_of.index(kind)] for kind in range(len(kinds)))
    scale = work.element_bytes * program.graph.batch_size
    crossing = program.counted.cut[bounds[1:-1] - 1] / scale
    # Something is in front of the first layer, or behind the last.
    front = bounds[0] > 0 or 0 in program.label
    back = bounds[-1] < count or program.layers + 1 in program.label
    tied = work.tied_elements()
    embedding = GraphLayer(work, 0) if front else None
    head = GraphLayer(work, program.layers + 1) if back else None
    return {
        "work": work,
        "kinds": different,
        "kind_of": tuple(kind_of),
        "crossing": tuple(crossing.tolist()),
        "embedding": embedding,
        "head": head,
        "tied_parameters": tied if back else 0.0,
        "tied_share": work.tied_elements(1, True) / tied if tied else 1.0,
        "notes": program.notes,
    }


def _signature(layer: GraphLayer) -> object:
    """What tells a layer from others: layers of one signature cost the same, split or not."""
    work, label, program = layer.work, layer.label, layer.work.program

    def sizes(tensors: Iterable[int]) -> tuple[object, ...]:
        columns = (program.elements, program.grows, program.at_precision)
        return tuple(sorted(tuple(column[t].item() for column in columns) for t in tensors))

    rows = []
    for number in work.of_label.get(label, []):
        kernel = work.kernels[number]
        first = kernel.members[0]
        product_sizes = work.products[first].sizes if first in work.products else ()
        kind = (kernel.phase, program.flow.opcode[first], number in work.cores.kernels)
        rows.append((*kind, product_sizes, sizes(kernel.reads), sizes(kernel.writes)))
    weights = [sizes(t for t, x in work.weights.get(label, []) if x == y) for y in (True, False)]
    kept = sizes(work.kept_tensors.get(label, ()))
    return tuple(sorted(rows)), *weights, kept, label in work.cores.causal
