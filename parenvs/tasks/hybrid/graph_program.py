"""A training step by layers: the layer and phase of each instruction, and what grows with samples.

Forward instructions belong to the layer in whose range of pivots they lie. Those of the backward
pass belong to the layer that their scope names, else to the one that the data flow tells: gradients
run from the last layer to the first, and an instruction that reads a forward tensor or a weight is
of the last layer up to there that made or read it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from parenvs.graph.checks import ELEMENT_TYPES, FLOATING
from parenvs.graph.flow import VIEWS, ChainBytes, Flow, chain_bytes, weight_reads
from parenvs.graph.graph import Graph, Phase, Role
from parenvs.graph.opcodes import ELEMENTWISE
from parenvs.graph.unroll import unrolled
from parenvs.tasks.partition.formulas import runs
from parenvs.tasks.pipeline.borders import Borders, borders_of, forward_part, key_of, scopes_of

FORWARD, BACKWARD, UPDATE = map(int, Phase)
NOWHERE = -1
"""Label of what no layer runs: entry parameters, constants, the update."""
STRUCTURE = frozenset(("parameter", "return", "while", "conditional", "constant", "iota"))
"""Opcodes that do nothing themselves."""
_RELABELS = frozenset((
    "add-dependency", "bitcast", "broadcast", "copy", "opt-barrier", "optimization-barrier",
    "reshape", "transpose",
))  # fmt: skip
"""Opcodes that whatever reads their result does on the way: it reads their operand instead."""


@dataclass(frozen=True)
class Program:
    """A graph whose instructions have layers. T tensors, I instructions, n layers.

    Labels count the embedding as 0, the layers from 1, and the head as n + 1.

    Attributes:
        graph: the graph, loops over layers written out.
        pivots: (N,) its pivots.
        counted: their bytes.
        twice: whether the backward pass is taken as twice the forward pass, as the graph has none
            by layers.
        label: (I,) label of each instruction.
        notes: what was guessed, in sentences.
        remade: where ``twice``, FLOPs of products that the graph's own backward pass makes again:
            with weights, and of data by data, as in attention.
    """

    graph: Graph
    flow: Flow
    pivots: np.ndarray
    counted: ChainBytes
    borders: Borders
    twice: bool
    label: np.ndarray
    notes: tuple[str, ...]
    remade: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(cls, graph: Graph, cuts: Sequence[int] = ()) -> Program:
        """Find the layers of a graph and of its instructions; layers are cut at ``cuts``, too."""
        notes: list[str] = []
        written = unrolled(graph)
        names = np.array(written.opcodes)[written.opcode]
        backward, twice = (written.phase == BACKWARD) & ~written.free, False
        if not backward.any():
            notes.append("it has no backward pass: twice the forward pass is taken")
            twice = True
        elif written is not graph and (names[backward] == "while").any():
            notes.append("its backward pass is a loop over layers: twice the forward pass is taken")
            twice = True
        again = backward & _remade(written)
        if again.any():
            notes.append("its backward pass itself recomputes what its checkpoints say")
        remade = _product_flops(written, again) if twice and again.any() else (0.0, 0.0)
        written = forward_part(written) if twice else written
        pivots = written.pivots()
        counted = chain_bytes(written, pivots)
        borders = borders_of(written, pivots, counted).cut_at(cuts)
        flow = Flow(written)
        if borders.told_by == "variables":
            notes.append("no scope is numbered: layers are told by the paths of variables")
        if borders.told_by == "flow":
            notes.append(
                "nothing is numbered: a layer is what lies between two places that one tensor "
                f"crosses; {len(borders.names)} found"
            )
        label = np.full(len(written.opcode), NOWHERE)
        place = np.searchsorted(borders.bounds, np.arange(len(pivots)), side="right")
        label[pivots] = place
        if not twice:
            _label_backward(written, flow, borders, label)
        for index in np.flatnonzero(written.parent >= 0).tolist():  # parents stand in front
            label[index] = label[written.parent[index]]
        structure = np.array([opcode in STRUCTURE for opcode in flow.opcode])
        label[structure | written.free] = NOWHERE
        return cls(written, flow, pivots, counted, borders, twice, label, tuple(notes), remade)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.borders.names)

    @cached_property
    def remade_shares(self) -> tuple[float, float]:
        """Share of the layers' products that is made again: with weights, and of data by data."""
        if not any(self.remade):
            return 0.0, 0.0
        inside = (self.label > 0) & (self.label <= self.layers)
        flops = _product_flops(self.graph, inside & (self.graph.phase == FORWARD))
        with_weights, of_data = (
            a / b if b else 0.0 for a, b in zip(self.remade, flops, strict=True)
        )
        return with_weights, of_data

    @cached_property
    def on_data(self) -> np.ndarray:
        """(T,) bool: tensors that depend on the batch."""
        return _on_data(self.graph, self.flow)

    @cached_property
    def is_gradient(self) -> np.ndarray:
        """(T,) bool: gradients of weights, which the update reads or the step returns."""
        flow, graph = self.flow, self.graph
        gradients = [False] * len(flow.before)
        phase, size = graph.phase.tolist(), self.elements.tolist()
        read = {
            t for i in np.flatnonzero(graph.phase == UPDATE).tolist()
            for t in flow.operands[i]
        }  # fmt: skip
        waiting = [*read, *graph.outputs.tolist()]
        seen = set(waiting)
        while waiting:
            tensor = waiting.pop()
            index = flow.producer[tensor]
            if index < 0 or phase[index] != BACKWARD:
                continue
            gradients[tensor] = True
            if flow.opcode[index] in (*ELEMENTWISE, *VIEWS, "reduce"):  # of dimensions of size 1
                for other in flow.operands[index]:
                    if other not in seen and size[other] == size[tensor]:
                        seen.add(other)
                        waiting.append(other)
        return np.array(gradients)

    @cached_property
    def elements(self) -> np.ndarray:
        """(T,) float64, numbers in each tensor."""
        ranks = np.diff(self.graph.dim_offset)
        size = np.ones(len(ranks))
        shaped = ranks > 0
        starts = self.graph.dim_offset[:-1][shaped]
        if len(starts):
            size[shaped] = np.multiply.reduceat(self.graph.dims.astype(np.float64), starts)
        return size

    @cached_property
    def grows(self) -> np.ndarray:
        """(T,) bool: tensors that are as many times as large as there are samples."""
        return self.on_data & ~self.is_gradient

    @cached_property
    def is_half(self) -> bool:
        """Whether the graph says itself what is in half precision: most products' operands are."""
        flops = {True: 0.0, False: 0.0}
        for index, opcode in enumerate(self.flow.opcode):
            if opcode in ("dot", "convolution"):
                kind = ELEMENT_TYPES[int(self.graph.element_type[self.flow.operands[index][0]])]
                flops[kind[1] <= 16] += float(self.graph.flops[index])
        return flops[True] > flops[False]

    @cached_property
    def at_precision(self) -> np.ndarray:
        """(T,) bool: floating tensors that are kept at the plan's precision.

        In a graph of full precision these are all but sums (statistics) and what the loss is made
        of; one of half precision says itself what is wider.
        """
        flow, graph = self.flow, self.graph
        kinds = graph.element_type.tolist()
        if self.is_half:
            bits = np.array([ELEMENT_TYPES.get(kind, ("", 0))[1] for kind in kinds])
            at_plan = np.isin(kinds, list(FLOATING)) & (bits <= 16)
            weights = graph.parameter_tensor[graph.weights]
            at_plan[weights] = np.isin(graph.element_type[weights], list(FLOATING))
            return at_plan
        at_plan = np.isin(kinds, list(FLOATING))
        for index, opcode in enumerate(flow.opcode):
            if opcode == "reduce" and not found_gradient(self, index):
                at_plan[flow.results[index]] = False
        at_plan[self._of_loss] = False
        return at_plan

    @cached_property
    def _of_loss(self) -> list[int]:
        """Tensors between the last product of the head's forward pass and the first backward."""
        flow, graph = self.flow, self.graph
        head = np.flatnonzero(self.label == self.layers + 1).tolist()
        products = [i for i in head if flow.opcode[i] in ("dot", "convolution")]
        ahead = [i for i in products if graph.phase[i] == FORWARD]
        if not ahead:
            return []
        touched = {t for i in products for t in (*flow.operands[i], *flow.results[i])}
        touched |= {t for i in products for o in flow.operands[i] for t in (self.source(o),)}
        behind = flow.descendants(flow.results[ahead[-1]])
        later = [i for i in products if graph.phase[i] == BACKWARD]
        end = later[0] if later else len(flow.opcode)
        return [
            t for i in head if ahead[-1] < i < end and behind[flow.results[i]].any()
            for t in flow.results[i] if t not in touched
        ]  # fmt: skip

    @cached_property
    def sources(self) -> list[int]:
        """(T,) the tensor that whatever reads a tensor reads instead.

        Reshapes, transposes, broadcasts and copies are done on the way, as compilers and libraries
        of products do; so are all views and casts of weights.
        """
        flow = self.flow
        source, on_data = list(range(len(flow.before))), self.on_data.tolist()
        for index, opcode in enumerate(flow.opcode):
            results, operands = flow.results[index], flow.operands[index]
            if opcode == "parameter" and self.graph.parent[index] >= 0:
                for result in results:  # what a loop hands on unchanged is the tensor outside
                    source[result] = source[flow.origin(result)]
                continue
            weights = opcode in (*VIEWS, "reverse", "slice") and not any(
                on_data[t] for t in results
            )
            if (opcode in _RELABELS or weights) and operands:
                for place, result in enumerate(results):
                    source[result] = source[operands[min(place, len(operands) - 1)]]
        return source

    def source(self, tensor: int) -> int:
        """The tensor that is read instead of ``tensor``, see ``sources``."""
        return self.sources[tensor]

    @cached_property
    def free_tensors(self) -> np.ndarray:
        """(T,) bool: constants and what is made of constants alone, which compilers fold in."""
        graph = self.graph
        made = np.repeat(graph.free, np.diff(graph.result_offset))
        free = np.zeros(len(graph.element_type), dtype=bool)
        free[graph.results[made]] = True
        return free

    @cached_property
    def works(self) -> list[int]:
        """Instructions of layers that do something, in order."""
        return [
            i for i in np.flatnonzero(self.label != NOWHERE).tolist()
            if any(self.sources[t] == t for t in self.flow.results[i])
        ]  # fmt: skip

    @cached_property
    def readers(self) -> list[list[int]]:
        """(T,) instructions that read each tensor, relabelling ones replaced by their readers'."""
        readers: list[list[int]] = [[] for _ in self.flow.before]
        reading = {*self.works, *np.flatnonzero(self.graph.phase == UPDATE).tolist()}
        sources = self.sources
        for index, operands in enumerate(self.flow.operands):
            if index in reading or self.flow.opcode[index] in ("while", "conditional"):
                for tensor in {sources[t] for t in operands}:
                    readers[tensor].append(index)
        return readers

    @cached_property
    def weight_labels(self) -> dict[int, list[int]]:
        """Index of a weight among the entry parameters -> labels that read it, ascending."""
        reads, _ = weight_reads(self.graph, self.pivots)
        label = self.label_of_pivot
        return {index: sorted({label[p] for p in places}) for index, places in reads.items()}

    @cached_property
    def label_of_pivot(self) -> list[int]:
        """(N,) label of each pivot, what it does or not."""
        bounds = self.borders.bounds
        return np.searchsorted(bounds, np.arange(len(self.pivots)), side="right").tolist()


def found_gradient(program: Program, index: int) -> bool:
    """Whether an instruction makes the gradient of a weight."""
    return bool(program.is_gradient[program.flow.results[index]].any())


def _on_data(graph: Graph, flow: Flow) -> np.ndarray:
    """(T,) bool: tensors that depend on the batch."""
    return flow.descendants(graph.parameter_tensor[graph.parameter_role == Role.BATCH].tolist())


def _remade(graph: Graph) -> np.ndarray:
    """(I,) bool: instructions of a forward pass that checkpoints make again."""
    return np.array(["rematted_computation" in text for text in graph.strings])[graph.op_name]


def _product_flops(graph: Graph, which: np.ndarray) -> tuple[float, float]:
    """FLOPs of the products and convolutions among ``which``: with weights, and of data by data."""
    flow, sums = Flow(graph), [0.0, 0.0]
    data, flops = _on_data(graph, flow), graph.flops * runs(graph, graph.flops)
    for index in np.flatnonzero(which).tolist():
        if flow.opcode[index] in ("dot", "convolution"):
            sums[all(data[t] for t in flow.operands[index][:2])] += float(flops[index])
    return sums[0], sums[1]


def _label_backward(graph: Graph, flow: Flow, borders: Borders, label: np.ndarray) -> None:
    """Label the instructions of the backward pass, in place."""
    head = len(borders.names) + 1
    candidates = _candidates(graph, flow, label)
    of_tensor: dict[int, int] = {}
    named: dict[str, int | None] = {}
    for index in np.flatnonzero((graph.phase == BACKWARD) & (graph.parent < 0)).tolist():
        operands = flow.operands[index]
        name = graph.strings[graph.op_name[index]]
        if name not in named:
            key = key_of(scopes_of(name.partition(";")[0], True)[0], borders.level)
            layer = borders.keys.get(key) if key is not None else None
            named[name] = None if layer is None else layer + 1
        # Gradients run from the last layer to the first: a reader is in no later layer.
        bound = min((of_tensor[t] for t in operands if t in of_tensor), default=head)
        place = named[name]
        if place is None:
            place = bound
            for tensor in operands:
                places = candidates.get(tensor)
                if places and tensor not in of_tensor:
                    place = min(place, max((p for p in places if p <= bound), default=bound))
        label[index] = place
        if not graph.free[index]:
            of_tensor.update(dict.fromkeys(flow.results[index], place))


def _candidates(graph: Graph, flow: Flow, label: np.ndarray) -> dict[int, set[int]]:
    """Forward tensor or weight -> labels that make or read it, views counted through."""
    labels_of: dict[int, set[int]] = {}
    weights = set(graph.parameter_tensor[graph.weights].tolist())
    views: set[int] = set()  # of weights
    forward = np.flatnonzero(label != NOWHERE).tolist()
    of = set(weights)
    for index in forward:
        operands = flow.operands[index]
        if flow.opcode[index] in VIEWS and operands and operands[0] in of:
            of.update(flow.results[index])
            views.add(index)
    for index in reversed(forward):
        results = flow.results[index]
        if index in views:
            read = set().union(*(labels_of.get(t, set()) for t in results))
        else:
            read = {int(label[index])}
            for tensor in results:
                labels_of.setdefault(tensor, set()).add(int(label[index]))
        for tensor in flow.operands[index]:
            if flow.producer[tensor] >= 0 or tensor in weights:
                labels_of.setdefault(tensor, set()).update(read)
    for index in forward:
        if flow.opcode[index] in STRUCTURE or graph.free[index]:
            for tensor in flow.results[index]:
                labels_of.pop(tensor, None)
    batch = graph.parameter_tensor[~np.isin(graph.parameter_tensor, list(weights))]
    for tensor in batch.tolist():
        labels_of.pop(tensor, None)
    return labels_of


PARTS = frozenset(("slice", "pad", "concatenate", "reverse"))
"""Opcodes that pick or place parts of tensors, by index arithmetic."""
FUSIBLE = ELEMENTWISE | PARTS | {"reduce", "map"}
"""Opcodes that are joined; relabelling ones (``Program.sources``) take part in no kernel."""
PRODUCTS = ("dot", "convolution")
"""Opcodes of matrix products."""


@dataclass(frozen=True)
class Kernel:
    """Instructions that run as one.

    Attributes:
        label: of the layer, see ``Program``.
        phase: ``Phase``.
        members: the instructions, ascending.
        reads: tensor -> share of it that is read.
        writes: tensors that something outside reads.
    """

    label: int
    phase: int
    members: tuple[int, ...]
    reads: dict[int, float]
    writes: tuple[int, ...]


def kernels_of(program: Program) -> list[Kernel]:
    """Return the fused kernels of all layers, in the order of their first instructions."""
    groups = _joined(program, program.works)
    group_of = {index: first for first, members in groups.items() for index in members}
    outputs = {program.source(t) for t in program.graph.outputs.tolist()}
    kernels = []
    for first, members in groups.items():
        made = {t for i in members for t in program.flow.results[i]}
        writes = tuple(
            t for i in members for t in program.flow.results[i]
            if t in outputs or any(group_of.get(r) != first for r in program.readers[t])
        )  # fmt: skip
        kernels.append(
            Kernel(
                int(program.label[first]),
                int(program.graph.phase[first]),
                tuple(members),
                _reads(program, members, made),
                writes,
            )
        )
    return kernels


def _reads(program: Program, members: list[int], made: set[int]) -> dict[int, float]:
    """Tensors that come from outside, and the share of each that is read: slices read parts."""
    shares: dict[int, float] = defaultdict(float)
    free = program.free_tensors
    for index in members:
        operands = program.flow.operands[index]
        whole = program.flow.opcode[index] != "slice"
        for tensor in {program.source(t) for t in operands}:
            if tensor in made or free[tensor]:
                continue
            if whole:
                shares[tensor] = 1.0
            else:
                part = program.elements[program.flow.results[index][0]]
                shares[tensor] += part / max(program.elements[tensor], 1.0)
    return {tensor: min(share, 1.0) for tensor, share in shares.items()}


def _joined(program: Program, works: list[int]) -> dict[int, list[int]]:
    """First member -> members of each kernel."""
    level = _levels(program, works)
    opcode, sources, producer = program.flow.opcode, program.sources, program.flow.producer
    label, phase = program.label.tolist(), program.graph.phase.tolist()
    parent = program.graph.parent.tolist()
    leader = {index: index for index in works}

    def find(index: int) -> int:
        while leader[index] != index:
            leader[index] = leader[leader[index]]
            index = leader[index]
        return index

    for index in works:
        if opcode[index] not in FUSIBLE:
            continue
        for tensor in program.flow.operands[index]:
            maker = producer[sources[tensor]]
            if (
                maker in leader
                and opcode[maker] in FUSIBLE
                and level[maker] == level[index]
                and label[maker] == label[index]
                and phase[maker] == phase[index]
                and parent[maker] == parent[index]
            ):
                one, other = find(maker), find(index)
                leader[max(one, other)] = min(one, other)
    groups: dict[int, list[int]] = {}
    for index in works:
        groups.setdefault(find(index), []).append(index)
    return groups


def _levels(program: Program, works: list[int]) -> dict[int, int]:
    """Instruction -> number of those that are never joined on the longest way to it."""
    opcode, sources, producer = program.flow.opcode, program.sources, program.flow.producer
    label, phase = program.label.tolist(), program.graph.phase.tolist()
    level: dict[int, int] = {}
    for index in works:
        most = 0
        for tensor in program.flow.operands[index]:
            maker = producer[sources[tensor]]
            if maker in level:
                most = max(most, level[maker] + (opcode[maker] not in FUSIBLE))
        level[index] = most
    for index in reversed(works):
        if opcode[index] not in FUSIBLE:
            continue
        after = {r for t in program.flow.results[index] for r in program.readers[t]}
        if after and all(
            label[r] == label[index] != NOWHERE and phase[r] == phase[index] for r in after
        ):
            level[index] = max(level[index], min(level[r] for r in after))
    return level


@dataclass
class Cores:
    """The attention cores of all layers.

    Attributes:
        kernels: numbers of the kernels that they are made of.
        causal: labels of layers in which a mask leaves out scores by their places alone.
        inner: tensors that a core makes for itself.
    """

    kernels: set[int] = field(default_factory=set)
    causal: set[int] = field(default_factory=set)
    inner: set[int] = field(default_factory=set)


def cores_of(program: Program, kernels: list[Kernel]) -> Cores:
    """Find the attention cores among the kernels."""
    cores = Cores()
    flow, data = program.flow, program.on_data
    of_label: dict[tuple[int, int], list[int]] = {}
    for number, kernel in enumerate(kernels):
        of_label.setdefault((kernel.label, kernel.phase), []).append(number)
    maker = {t: number for number, k in enumerate(kernels) for i in k.members
             for t in flow.results[i]}  # fmt: skip
    for (label, phase), numbers in of_label.items():
        if phase != FORWARD:
            continue
        products = {
            n for n in numbers
            if _opcode(program, kernels[n]) == "dot"
            and all(data[program.source(t)] for t in flow.operands[kernels[n].members[0]])
        }  # fmt: skip
        core = _between(program, kernels, maker, numbers, products, products)
        if not core:
            continue
        touched = {t for n in core & products for t in (*kernels[n].reads, *kernels[n].writes)}
        behind = of_label.get((label, int(BACKWARD)), [])
        parent = program.graph.parent
        in_loop = any(parent[kernels[n].members[0]] >= 0 for n in core)
        gradients = {
            n for n in behind
            if _opcode(program, kernels[n]) == "dot"
            and (
                parent[kernels[n].members[0]] >= 0  # in blocks of queries or keys, one by one
                if in_loop else not touched.isdisjoint(kernels[n].reads)
            )
            and all(program.grows[t] for t in kernels[n].writes)
            and all(data[program.source(t)] for t in flow.operands[kernels[n].members[0]])
        }  # fmt: skip
        # The last product's result leaves the core, so it is kept even if the core is fused.
        last = core & products - {
            n for n in products for t in kernels[n].writes
            if any(t in kernels[m].reads for m in core)
        }  # fmt: skip
        inner = {t for n in core - last for i in kernels[n].members for t in flow.results[i]}
        cores.inner |= inner
        cores.kernels |= core | gradients
        cores.kernels |= _between(program, kernels, maker, behind, gradients, gradients)
        members = [i for n in core for i in kernels[n].members]
        if any(flow.opcode[i] == "select" and _is_of_places(program, i) for i in members):
            cores.causal.add(label)
    return cores


def _is_of_places(program: Program, select: int) -> bool:
    """Whether scores are chosen by their places, the same of every sample and head."""
    chooser = program.source(program.flow.operands[select][0])
    shape = program.flow.shapes[program.flow.results[select][0]]
    whole = len(shape) > 2 and program.elements[chooser] == shape[-1] * shape[-2]
    return bool(whole or not program.on_data[chooser])


def _opcode(program: Program, kernel: Kernel) -> str:
    return program.flow.opcode[kernel.members[0]]


def _between(
    program: Program,
    kernels: list[Kernel],
    maker: dict[int, int],
    numbers: Iterable[int],
    first: Collection[int],
    last: Collection[int],
) -> set[int]:
    """Kernels on ways from one of ``first`` through fused kernels to one of ``last``, ends too."""
    ways: dict[int, set[int]] = {}  # kernel -> kernels on the ways that lead to it, itself too
    between: set[int] = set()
    before = -1
    while before != (before := sum(map(len, ways.values()))):  # a kernel may begin in front of
        for number in numbers:  # what it waits for
            ahead = [maker[t] for t in kernels[number].reads if t in maker]
            led = set().union(*(ways[n] for n in ahead if n in ways))
            if number in last and led:
                between |= led | {number}
            if number in first:
                ways[number] = {number}
            elif led and _opcode(program, kernels[number]) in FUSIBLE:
                ways[number] = led | {number}
    return between
