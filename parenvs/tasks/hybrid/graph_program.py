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

from parenvs.compiled import Array
from parenvs.graph.checks import ELEMENT_TYPES, FLOATING
from parenvs.graph.flow import (
    PRODUCTS,
    VIEWS,
    ChainBytes,
    Flow,
    chain_bytes,
    needless_gradients,
    weight_reads,
)
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
    pivots: Array
    counted: ChainBytes
    borders: Borders
    twice: bool
    label: Array
    notes: tuple[str, ...]
    remade: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(cls, graph: Graph, cuts: Sequence[int] = ()) -> Program:
        """Find the layers of a graph and of its instructions; layers are cut at ``cuts``, too."""
        notes: list[str] = []
        written = unrolled(graph)
        names = np.array(written.opcodes)[written.opcode]
        backward, twice = (written.phase == BACKWARD) & ~written.free, True
        if not backward.any():
            notes.append("it has no backward pass: twice the forward pass is taken")
        elif written is not graph and (names[backward] == "while").any():
            notes.append("its backward pass is a loop over layers: twice the forward pass is taken")
        else:
            twice = False
        # Instructions of a forward pass that checkpoints make again.
        is_remade = np.array(["rematted_computation" in text for text in written.strings])
        again = backward & is_remade[written.op_name]
        if again.any():
            notes.append("its backward pass itself recomputes what its checkpoints say")
        remade = _product_flops(written, again) if twice and again.any() else (0.0, 0.0)
        written = forward_part(written) if twice else written
        pivots = written.pivots()
        counted = chain_bytes(written, pivots)
        borders = borders_of(written, pivots, counted).cut_at(cuts)
        flow = Flow(written)
        if borders.source == "variables":
            notes.append("no scope is numbered: layers are told by the paths of variables")
        if borders.source == "flow":
            notes.append(
                "nothing is numbered: a layer is what lies between two places that one tensor "
                f"crosses; {len(borders.names)} found"
            )
        label = np.full(len(written.opcode), NOWHERE)
        # Bounds are the first pivots of the layers, and the one behind the last.
        label[pivots] = np.searchsorted(borders.bounds, np.arange(len(pivots)), side="right")
        if not twice:
            _label_backward(written, flow, borders, label)
        for index in np.flatnonzero(written.parent >= 0).tolist():  # parents stand in front
            label[index] = label[written.parent[index]]
        label[np.isin(flow.opcode, list(STRUCTURE)) | written.free] = NOWHERE
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
        of_weights, of_data = (a / b if b else 0.0 for a, b in zip(self.remade, flops, strict=True))
        return of_weights, of_data

    @cached_property
    def needless(self) -> Array:
        """(I,) see ``needless_gradients``."""
        return needless_gradients(self.flow)

    @cached_property
    def on_data(self) -> Array:
        """(T,) bool: tensors that depend on the batch."""
        return _on_data(self.graph, self.flow)

    @cached_property
    def is_gradient(self) -> Array:
        """(T,) bool: gradients of weights, which the update reads or the step returns."""
        flow, graph = self.flow, self.graph
        gradients = np.zeros(len(flow.before), bool)
        phase, size = graph.phase.tolist(), self.elements.tolist()
        updates = np.flatnonzero(graph.phase == UPDATE).tolist()
        waiting = [*{t for i in updates for t in flow.operands[i]}, *graph.outputs.tolist()]
        seen = set(waiting)
        while waiting:
            tensor = waiting.pop()
            index = flow.producer[tensor]
            if index < 0 or phase[index] != BACKWARD:
                continue
            gradients[tensor] = True
            if flow.opcode[index] in (*ELEMENTWISE, *VIEWS, "reduce"):  # of dimensions of size 1
                same = {t for t in flow.operands[index] if size[t] == size[tensor]} - seen
                seen |= same
                waiting += same
        return gradients

    @cached_property
    def elements(self) -> Array:
        """(T,) float64, numbers in each tensor."""
        ranks = np.diff(self.graph.dim_offset)
        size = np.ones(len(ranks))
        np.multiply.at(size, np.repeat(np.arange(len(ranks)), ranks), self.graph.dims)
        return size

    @cached_property
    def grows(self) -> Array:
        """(T,) bool: tensors that are as many times as large as there are samples."""
        return self.on_data & ~self.is_gradient

    @cached_property
    def is_half(self) -> bool:
        """Whether the graph says itself what is in half precision: most products' operands are."""
        flops = {True: 0.0, False: 0.0}
        for index in np.flatnonzero(np.isin(self.flow.opcode, PRODUCTS)).tolist():
            kind = ELEMENT_TYPES[int(self.graph.element_type[self.flow.operands[index][0]])]
            flops[kind[1] <= 16] += float(self.graph.flops[index])
        return flops[True] > flops[False]

    @cached_property
    def at_precision(self) -> Array:
        """(T,) bool: floating tensors that are kept at the plan's precision.

        In a graph of full precision these are all but sums (statistics) and what the loss is made
        of; one of half precision says itself what is wider.
        """
        flow, graph = self.flow, self.graph
        floating = np.isin(graph.element_type, list(FLOATING))
        if self.is_half:
            narrow = [kind for kind, (_, bits) in ELEMENT_TYPES.items() if bits <= 16]
            at_plan = floating & np.isin(graph.element_type, narrow)
            weights = graph.parameter_tensor[graph.weights]
            at_plan[weights] = floating[weights]
            return at_plan
        for index, opcode in enumerate(flow.opcode):
            if opcode == "reduce" and not self.is_gradient[flow.results[index]].any():
                floating[flow.results[index]] = False
        floating[self._of_loss] = False
        return floating

    @cached_property
    def _of_loss(self) -> list[int]:
        """Tensors between the last product of the head's forward pass and the first backward."""
        flow, phase = self.flow, self.graph.phase
        head = np.flatnonzero(self.label == self.layers + 1).tolist()
        products = [i for i in head if flow.opcode[i] in PRODUCTS]
        ahead = [i for i in products if phase[i] == FORWARD]
        if not ahead:
            return []
        touched = {t for i in products for t in (*flow.operands[i], *flow.results[i])}
        touched |= {self.sources[t] for i in products for t in flow.operands[i]}
        behind = flow.descendants(flow.results[ahead[-1]])
        end = next((i for i in products if phase[i] == BACKWARD), len(flow.opcode))
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

    @cached_property
    def free_tensors(self) -> Array:
        """(T,) bool: constants and what is made of constants alone, which compilers fold in."""
        graph = self.graph
        made = np.repeat(graph.free, np.diff(graph.result_offset))
        free = np.zeros(len(graph.element_type), bool)
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
        # (N,) label of each pivot, whatever it does.
        places = np.arange(len(self.pivots))
        label = np.searchsorted(self.borders.bounds, places, side="right").tolist()
        return {index: sorted({label[p] for p in places}) for index, places in reads.items()}


def _on_data(graph: Graph, flow: Flow) -> Array:
    """(T,) bool: tensors that depend on the batch."""
    return flow.descendants(graph.parameter_tensor[graph.parameter_role == Role.BATCH].tolist())


def _product_flops(graph: Graph, which: Array) -> tuple[float, float]:
    """FLOPs of the products and convolutions among ``which``: with weights, and of data by data."""
    flow, sums = Flow(graph), [0.0, 0.0]
    data, flops = _on_data(graph, flow), graph.flops * runs(graph, graph.flops)
    for index in np.flatnonzero(which & np.isin(flow.opcode, PRODUCTS)).tolist():
        sums[all(data[t] for t in flow.operands[index][:2])] += float(flops[index])
    return sums[0], sums[1]


def _label_backward(graph: Graph, flow: Flow, borders: Borders, label: Array) -> None:
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


def _candidates(graph: Graph, flow: Flow, label: Array) -> dict[int, set[int]]:
    """Forward tensor or weight -> labels that make or read it, views counted through."""
    labels_of: dict[int, set[int]] = defaultdict(set)
    weights = set(graph.parameter_tensor[graph.weights].tolist())
    forward = np.flatnonzero(label != NOWHERE).tolist()
    views: set[int] = set()  # of weights
    viewed = set(weights)
    for index in forward:
        operands = flow.operands[index]
        if flow.opcode[index] in VIEWS and operands and operands[0] in viewed:
            viewed.update(flow.results[index])
            views.add(index)
    # Backward over the program, so that readers of a view are known before it.
    for index in reversed(forward):
        results = flow.results[index]
        if index in views:
            read = set().union(*(labels_of.get(t, set()) for t in results))
        else:
            read = {int(label[index])}
            for tensor in results:
                labels_of[tensor] |= read
        for tensor in flow.operands[index]:
            if flow.producer[tensor] >= 0 or tensor in weights:
                labels_of[tensor] |= read
    # Structure, constants and inputs belong to no layer.
    nowhere = graph.parameter_tensor[~np.isin(graph.parameter_tensor, list(weights))].tolist()
    for index in forward:
        if flow.opcode[index] in STRUCTURE or graph.free[index]:
            nowhere += flow.results[index]
    for tensor in nowhere:
        labels_of.pop(tensor, None)
    return labels_of


PARTS = frozenset(("slice", "pad", "concatenate", "reverse"))
"""Opcodes that pick or place parts of tensors, by index arithmetic."""
FUSIBLE = ELEMENTWISE | PARTS | {"reduce", "map"}
"""Opcodes that are joined; relabelling ones (``Program.sources``) take part in no kernel."""


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
    group_of = {index: members[0] for members in groups for index in members}
    outputs = {program.sources[t] for t in program.graph.outputs.tolist()}
    kernels = []
    for members in groups:
        first = members[0]
        results = [t for i in members for t in program.flow.results[i]]
        # What an instruction of another kernel reads, or the step returns.
        writes = tuple(
            t for t in results
            if t in outputs or any(group_of.get(r) != first for r in program.readers[t])
        )  # fmt: skip
        label, phase = int(program.label[first]), int(program.graph.phase[first])
        reads = _reads(program, members, set(results))
        kernels.append(Kernel(label, phase, tuple(members), reads, writes))
    return kernels


def _reads(program: Program, members: list[int], made: set[int]) -> dict[int, float]:
    """Tensors that come from outside, and the share of each that is read: slices read parts."""
    shares: dict[int, float] = defaultdict(float)
    flow, size = program.flow, program.elements
    for index in members:
        for tensor in {program.sources[t] for t in flow.operands[index]}:
            if tensor in made or program.free_tensors[tensor]:
                continue
            is_part = flow.opcode[index] == "slice"
            part = size[flow.results[index][0]] / max(size[tensor], 1.0) if is_part else 1.0
            shares[tensor] = min(shares[tensor] + part, 1.0)
    return dict(shares)


def _joined(program: Program, works: list[int]) -> list[list[int]]:
    """Members of each kernel, ascending."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    level, producer = _levels(program, works), program.flow.producer
    graph, count = program.graph, len(program.label)
    place = np.stack([program.label, graph.phase, graph.parent], axis=1).tolist()
    fusible = {index for index in works if program.flow.opcode[index] in FUSIBLE}
    ends: tuple[list[int], list[int]] = ([], [])  # of edges between instructions that join
    for index in fusible:
        for tensor in program.flow.operands[index]:
            maker = producer[program.sources[tensor]]
            if maker in fusible and (level[maker], place[maker]) == (level[index], place[index]):
                ends[0].append(maker)
                ends[1].append(index)
    edges = coo_array((np.ones(len(ends[0])), ends), shape=(count, count))
    _, group_of = connected_components(edges, directed=False)
    groups: dict[int, list[int]] = {}
    for index in works:
        groups.setdefault(int(group_of[index]), []).append(index)
    return list(groups.values())


def _levels(program: Program, works: list[int]) -> dict[int, int]:
    """Instruction -> number of those that are never joined on the longest way to it."""
    opcode, producer = program.flow.opcode, program.flow.producer
    place = np.stack([program.label, program.graph.phase], axis=1).tolist()
    level: dict[int, int] = {}
    for index in works:
        makers = [producer[program.sources[t]] for t in program.flow.operands[index]]
        ahead = [level[x] + (opcode[x] not in FUSIBLE) for x in makers if x in level]
        level[index] = max(ahead, default=0)
    # What is read later only is made as late as possible, beside what reads it.
    for index in reversed([i for i in works if opcode[i] in FUSIBLE]):
        after = {r for t in program.flow.results[index] for r in program.readers[t]}
        if after and all(place[r] == place[index] for r in after):
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
    cores, flow, parent = Cores(), program.flow, program.graph.parent
    of_label: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, kernel in enumerate(kernels):
        of_label[kernel.label, kernel.phase].append(number)
    maker = {
        t: number for number, k in enumerate(kernels) for i in k.members for t in flow.results[i]
    }

    def multiplies_data(number: int) -> bool:
        operands = flow.operands[kernels[number].members[0]]
        is_dot = _opcode(program, kernels[number]) == "dot"
        return is_dot and all(program.on_data[program.sources[t]] for t in operands)

    for label in [label for label, phase in of_label if phase == FORWARD]:
        numbers, behind = of_label[label, FORWARD], of_label.get((label, BACKWARD), [])
        products = {n for n in numbers if multiplies_data(n)}
        # Scores, softmax and sum: all between two products of data by data.
        core = _between(program, kernels, maker, numbers, products)
        if not core:
            continue
        ends = core & products
        touched = {t for n in ends for t in (*kernels[n].reads, *kernels[n].writes)}
        in_loop = any(parent[kernels[n].members[0]] >= 0 for n in core)
        gradients = {
            n for n in behind
            if multiplies_data(n)
            and (
                parent[kernels[n].members[0]] >= 0  # in blocks of queries or keys, one by one
                if in_loop else not touched.isdisjoint(kernels[n].reads)
            )
            and all(program.grows[t] for t in kernels[n].writes)
        }  # fmt: skip
        # The last product's result leaves the core, so it is kept even if the core is fused.
        read = {t for n in core for t in kernels[n].reads}
        last = {n for n in ends if read.isdisjoint(kernels[n].writes)}
        cores.inner |= {t for n in core - last for i in kernels[n].members for t in flow.results[i]}
        cores.kernels |= core | gradients
        cores.kernels |= _between(program, kernels, maker, behind, gradients)
        members = [i for n in core for i in kernels[n].members]
        if any(flow.opcode[i] == "select" and _is_of_places(program, i) for i in members):
            cores.causal.add(label)
    return cores


def _is_of_places(program: Program, select: int) -> bool:
    """Whether scores are chosen by their places, the same of every sample and head."""
    chooser = program.sources[program.flow.operands[select][0]]
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
    ends: Collection[int],
) -> set[int]:
    """Kernels on ways from one of ``ends`` through fused kernels to another, ends too."""
    ways: dict[int, set[int]] = {}  # kernel -> kernels on the ways that lead to it, itself too
    between: set[int] = set()
    before = -1
    while before != (before := sum(map(len, ways.values()))):  # a kernel may begin in front of
        for number in numbers:  # what it waits for
            ahead = [maker[t] for t in kernels[number].reads if t in maker]
            led = set().union(*(ways[n] for n in ahead if n in ways))
            if number in ends:
                between |= led | {number} if led else set()
                ways[number] = {number}
            elif led and _opcode(program, kernels[number]) in FUSIBLE:
                ways[number] = led | {number}
    return between
