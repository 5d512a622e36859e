"""The work of each layer of a graph, as numbers that depend on samples and ranks alone.

A figure has four parts: numbers at the plan's precision and other bytes, of what grows with the
samples and of what does not. Products are known by (batch, m, n, k), of which one grows.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from parenvs.graph.graph import Role
from parenvs.graph.opcodes import bytes_of
from parenvs.tasks.hybrid.graph_program import (
    BACKWARD,
    FORWARD,
    FUSIBLE,
    Cores,
    Kernel,
    Program,
    cores_of,
    kernels_of,
)
from parenvs.tasks.partition import formulas
from parenvs.tasks.partition.classes import DimensionClasses, dimension_classes
from parenvs.tasks.partition.formulas import runs
from parenvs.tasks.partition.megatron import find_blocks, megatron_classes
from parenvs.tasks.partition.words import Explainer

_LINEAR = ("add", "convert", "reshape", "transpose", "copy", "bitcast")
"""Opcodes behind which partial results can be summed as well as in front of them; what is added to
them, one rank adds."""


class Splitting:
    """The classes that tensor parallelism splits, and what that leaves of each tensor.

    Args:
        uneven: ``"forbid"``: only dimensions that the ranks divide are split; ``"pad"``: any.
        chosen: (C,) bool, the classes to split, or path of an entry parameter -> the dimension of
            it that is (default: Megatron's pattern).
    """

    def __init__(
        self,
        program: Program,
        uneven: str = "forbid",
        chosen: np.ndarray | Mapping[str, int] | None = None,
    ) -> None:
        self.program, self.uneven = program, uneven
        self._chosen = chosen

    @cached_property
    def classes(self) -> DimensionClasses:
        """The dimension classes."""
        return dimension_classes(self.program.graph)

    @cached_property
    def has_attention(self) -> bool:
        """Whether the pattern is a transformer's."""
        return any(block.kind != "dense" for block in find_blocks(self.classes))

    @cached_property
    def chosen(self) -> np.ndarray:
        """(C,) bool, the classes that are split."""
        if isinstance(self._chosen, Mapping):
            return self.classes.chosen(self._chosen)
        if self._chosen is not None:
            return self._chosen
        chosen, _ = megatron_classes(self.classes)
        for label in [*self._words(), *self._features()]:
            # Two classes of one tensor cannot both be split over the same ranks.
            open_ = not self.classes.blocked[label] and not chosen[label]
            if open_ and not chosen[self.classes.rivals(label)].any():
                chosen[label] = True
        return chosen

    @cached_property
    def convolves(self) -> bool:
        """Whether output features of convolutions are split."""
        return bool(self.chosen[self._features()].any())

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Which blocks stay whole at any tp, and why."""
        words = Explainer(self.classes)
        _, whole = megatron_classes(self.classes)
        return tuple(
            f"{len(labels)} {kind} class{'es stay' if len(labels) > 1 else ' stays'} whole under "
            f"tensor parallelism: {words.blocked(labels[0])}"
            for kind, labels in whole.items()
        )

    def _words(self) -> list[int]:
        """Class of the outputs of the head's last product with a weight."""
        program, flow = self.program, self.program.flow
        head = (program.label == program.layers + 1) & (program.graph.phase == FORWARD)
        for index in np.flatnonzero(head).tolist()[::-1]:
            operands = flow.operands[index]
            if flow.opcode[index] == "dot":
                for operand in operands:
                    if not program.on_data[operand]:
                        outputs = set(self._labels(flow.results[index][0]))
                        return [c for c in self._labels(operand) if c in outputs]
        return []

    def _features(self) -> list[int]:
        """Classes of the output features of the convolutions, in order."""
        program, flow = self.program, self.program.flow
        features = []
        for index in np.flatnonzero(program.graph.phase == FORWARD).tolist():
            if flow.opcode[index] == "convolution":
                kernel = flow.operands[index][1]
                if not program.on_data[kernel]:
                    outputs = set(self._labels(flow.results[index][0]))
                    features += [c for c in self._labels(kernel) if c in outputs]
        return features

    def _labels(self, tensor: int) -> list[int]:
        start, end = self.program.graph.dim_offset[tensor : tensor + 2].tolist()
        # Dimensions of size 1 (broadcasts) cannot be split.
        wide = self.program.graph.dims[start:end] > 1
        return self.classes.label[start:end][wide].tolist()

    def class_shares(self, tp: int) -> np.ndarray:
        """(C,) share of each class that a rank holds."""
        if tp == 1:
            return np.ones(len(self.classes))
        share = formulas.device_share(self.classes, tp)
        split = self.chosen.copy()
        if self.uneven == "forbid":
            dims = self.program.graph.dims
            # A class is split in all of its tensors or in none.
            odd = (dims > 1) & (dims % tp != 0)
            split[self.classes.label[odd]] = False
        return np.where(split, share, 1.0)

    def dimension_shares(self, tp: int) -> np.ndarray:
        """(N,) share of each dimension of each tensor that a rank holds."""
        if tp == 1:
            return np.ones(len(self.program.graph.dims))
        shares = self.class_shares(tp)[self.classes.label]
        return np.where(self.program.graph.dims > 1, shares, 1.0)

    def tensor_shares(self, tp: int) -> np.ndarray:
        """(T,) share of each tensor that a rank holds."""
        graph = self.program.graph
        share = np.ones(len(graph.element_type))
        if tp > 1:
            owner = np.repeat(np.arange(len(share)), np.diff(graph.dim_offset))
            np.multiply.at(share, owner, self.dimension_shares(tp))
        return share

    def instruction_shares(self, tp: int) -> np.ndarray:
        """(I,) share of each instruction that a rank runs."""
        graph = self.program.graph
        share = np.ones(len(graph.opcode))
        if tp > 1:
            of_class = self.class_shares(tp)
            factors = self.classes.factors
            np.minimum.at(share, factors.instruction, of_class[self.classes.factor_class])
        return share

    def partial(self, tp: int) -> list[int]:
        """Instructions that leave partial results, ascending."""
        if tp == 1:
            return []
        factors = self.classes.factors
        split = self.class_shares(tp)[self.classes.factor_class] < 1
        return np.unique(factors.instruction[split & factors.partial]).tolist()

    def summed(self, tp: int) -> dict[int, tuple[int, ...]]:
        """Tensor that is all-reduced -> the instructions that leave its partial results."""
        program, flow = self.program, self.program.flow
        left = set(self.partial(tp))
        open_: dict[int, tuple[int, ...]] = {}
        done: dict[int, tuple[int, ...]] = {}
        for index, operands in enumerate(flow.operands):
            reads = [t for t in dict.fromkeys(operands) if t in open_]
            if reads:
                opcode = flow.opcode[index]
                alone = all(len(flow.after[t]) == 1 for t in reads)
                # Sums commute with linear operations: reduce the result once, if nothing else reads
                # it.
                if opcode in _LINEAR and alone:
                    origin = tuple(i for t in reads for i in open_.pop(t))
                    open_[flow.results[index][0]] = origin
                else:
                    done.update((t, open_.pop(t)) for t in reads)
            if index in left and program.label[index] >= 0:
                open_.update(dict.fromkeys(flow.results[index], (index,)))
        return {**done, **open_}

    def reason_against(self, tp: int) -> str | None:
        """Why nothing can be divided among ``tp`` ranks, or None."""
        name = self.program.graph.name
        if tp == 1 or (self.class_shares(tp) < 1).any():
            return None
        if not self.chosen.any():
            why = (
                "; ".join(self.notes) or "it has no attention, feed-forward network or dense layer"
            )
            return f"tp {tp}: no matrix of {name} can be divided among ranks: {why}"
        dims = self.program.graph.dims
        split = self.chosen[self.classes.label] & (dims > 1)
        widths = sorted(set(dims[split & (dims % tp != 0)].tolist()))[:3]
        listed = ", ".join(map(str, widths))
        return f"tp {tp} divides none of the widths that would be split ({listed})"


_SMALL = 8
"""A divisor is small if its elements are at least so many times fewer than the quotient's."""
_SCALE = 10**6
"""Capacities are whole numbers: bytes over those of the largest tensor, times this."""


def with_least_kept(program: Program, kernels: list[Kernel]) -> list[Kernel]:
    """Return the kernels with what they read and write if as little as possible is kept."""
    opcode = program.flow.opcode
    backward = [k for k, kernel in enumerate(kernels) if kernel.phase == BACKWARD]
    fused = [k for k in backward if opcode[kernels[k].members[0]] in FUSIBLE]
    # Products and other kernels need their operands in memory: these are kept anyway.
    kept = {t for k in set(backward) - set(fused) for t in kernels[k].reads}
    kept |= set(program.graph.parameter_tensor.tolist())
    wanted: dict[int, list[int]] = defaultdict(list)  # tensor -> backward kernels that read it
    for k in fused:
        for tensor in kernels[k].reads:
            wanted[tensor].append(k)
    reads = {k: dict(kernels[k].reads) for k in fused}
    result = list(kernels)
    known: dict[Any, tuple[int, ...]] = {}  # layers repeat
    gone: dict[int, tuple[int, ...]] = {}  # tensor -> the kept ones that it is made of again
    outputs = {program.source(t) for t in program.graph.outputs.tolist()}
    phases = program.graph.phase.tolist()
    in_order = sorted(range(len(kernels)), key=lambda k: kernels[k].phase)
    for number in in_order:
        kernel = kernels[number]
        if kernel.phase > BACKWARD or opcode[kernel.members[0]] not in FUSIBLE:
            continue
        results = [t for i in kernel.members for t in program.flow.results[i]]
        targets = [t for t in results if t in wanted and t not in kept]
        # What only the kernel itself reads never leaves it.
        targets = [t for t in targets if wanted[t] != [number]]
        if not targets:
            continue
        needed = set()
        for tensor, others in _instead(program, kernel, targets, kept, known).items():
            whole = {t for other in others for t in gone.get(other, (other,))}
            needed |= whole
            if whole != {tensor}:
                gone[tensor] = tuple(sorted(whole))
            for k in wanted[tensor]:
                if k != number:
                    del reads[k][tensor]
                    reads[k].update(dict.fromkeys(sorted(whole), 1.0))
        members = set(kernel.members)
        writes = [
            t for t in results
            if t in needed or t in outputs or (t in kept and t in kernel.writes) or any(
                r not in members and (phases[r] != BACKWARD or opcode[r] not in FUSIBLE)
                for r in program.readers[t]
            )
        ]  # fmt: skip
        result[number] = replace(kernel, writes=tuple(writes))
    for k, tensors in reads.items():
        result[k] = replace(result[k], reads=tensors)
    return result


def _instead(
    program: Program,
    kernel: Kernel,
    targets: list[int],
    kept: set[int],
    known: dict[Any, tuple[int, ...]],
) -> dict[int, tuple[int, ...]]:
    """Tensor that backward kernels read -> the kept ones that it is made of again."""
    before = _made_of(program, kernel, kept)
    chosen = _cut(program, kernel, targets, before, kept, known)
    instead = {}
    for target in targets:
        sources: list[int] = []
        waiting, seen = [target], {target}
        while waiting:
            tensor = waiting.pop()
            if tensor in chosen or not before.get(tensor):
                if not program.free_tensors[tensor]:
                    sources.append(tensor)
                continue
            for other in before[tensor]:
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        instead[target] = tuple(sorted(sources))
    return instead


def _made_of(program: Program, kernel: Kernel, kept: set[int]) -> dict[int, tuple[int, ...]]:
    """Tensor made in a kernel -> what it can be made of again; nothing for reductions.

    What is divided by sums is quotient times sum, where the quotient is kept (softmax).
    """
    flow, elements = program.flow, program.elements
    before: dict[int, tuple[int, ...]] = {}
    for index in kernel.members:
        read = tuple(dict.fromkeys(program.source(t) for t in flow.operands[index]))
        again = () if flow.opcode[index] in ("reduce", "map") else read
        for tensor in flow.results[index]:
            before[tensor] = again
    for index in kernel.members:
        if flow.opcode[index] != "divide":
            continue
        dividend, divisor = (program.source(t) for t in flow.operands[index])
        (quotient,) = flow.results[index]
        small = elements[divisor] * _SMALL <= elements[quotient]
        if quotient in kept and small and before.get(dividend):
            before[dividend] = (quotient, divisor)
            before[quotient] = ()
    return before


def _cut(
    program: Program,
    kernel: Kernel,
    targets: list[int],
    before: dict[int, tuple[int, ...]],
    kept: set[int],
    known: dict[Any, tuple[int, ...]],
) -> set[int]:
    """The tensors of least bytes of which the targets can be made."""
    tensors = list(
        dict.fromkeys([*kernel.reads, *before, *(t for b in before.values() for t in b)])
    )
    place = {tensor: number for number, tensor in enumerate(tensors)}
    size, free = program.graph.tensor_bytes, program.free_tensors
    largest = max((float(size[t]) for t in tensors), default=1.0)
    weights = []
    for tensor in tensors:
        weight = int(_SCALE * float(size[tensor]) / largest) + (2 if tensor in before else 1)
        weights.append(0 if tensor in kept or free[tensor] else weight)  # others are written, too
    made_of = [tuple(place[other] for other in before.get(tensor, ())) for tensor in tensors]
    wanted = tuple(sorted({place[tensor] for tensor in targets}))
    key = (tuple(weights), tuple(made_of), wanted)
    if key not in known:
        known[key] = _minimum_cut(weights, made_of, wanted)
    return {tensors[number] for number in known[key]}


def _minimum_cut(
    weights: list[int], made_of: list[tuple[int, ...]], wanted: tuple[int, ...]
) -> tuple[int, ...]:
    """The nodes of least weight on all ways from nodes made of nothing to those that are wanted."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    start, end = 2 * len(weights), 2 * len(weights) + 1
    unlimited = _SCALE * (len(weights) + 1)
    edges = []
    for node, (weight, sources) in enumerate(zip(weights, made_of, strict=True)):
        edges.append((2 * node, 2 * node + 1, weight))
        edges += [(2 * other + 1, 2 * node, unlimited) for other in sources]
        if not sources:
            edges.append((start, 2 * node, unlimited))
    edges += [(2 * node + 1, end, unlimited) for node in wanted]
    # SciPy before 1.12 finds flows over indices of 32 bits alone.
    rows, columns, limits = np.array(edges).astype(np.int32).T
    capacity = coo_array((limits, (rows, columns)), shape=(end + 1, end + 1)).tocsr()
    residual = capacity - maximum_flow(capacity, start, end).flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    reached = set(breadth_first_order(residual, start, return_predecessors=False).tolist())
    return tuple(
        node for node in range(len(weights)) if 2 * node in reached and 2 * node + 1 not in reached
    )


PARTS = 4
"""Numbers at the plan's precision and other bytes, growing with the samples; and the same, not."""


class Product(NamedTuple):
    """A matrix product.

    Attributes:
        sizes: batch, m, n, k of the graph's whole batch.
        grows: which of them is proportional to the samples, or None.
        dimensions: which of them each of these dimensions is a factor of: pairs of a place in
            ``sizes`` and a position in ``graph.dims``.
    """

    sizes: tuple[float, float, float, float]
    grows: int | None
    dimensions: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Rows:
    """Kernels of one layer, split in one way; R products and K others.

    Attributes:
        sums: all-reduces: phase, (4,) what is summed, and products (R) behind which it may hide.
        sizes: (R, 4) batch, m, n, k.
        grows: (R, 4) bool.
        product_at: (R,) phase of each, ``Phase``.
        product_core: (R,) bool, whether it is of an attention core.
        product_runs: (R,) how often it runs.
        flops: (K,) of each other kernel.
        flops_grow: (K,) bool.
        traffic: (K, 4) what each reads and writes.
        kernel_at, kernel_core, kernel_runs: (K,) as for products.
    """

    sums: tuple[tuple[int, np.ndarray, tuple[int, ...]], ...]
    sizes: np.ndarray
    grows: np.ndarray
    product_at: np.ndarray
    product_core: np.ndarray
    product_runs: np.ndarray
    flops: np.ndarray
    flops_grow: np.ndarray
    traffic: np.ndarray
    kernel_at: np.ndarray
    kernel_core: np.ndarray
    kernel_runs: np.ndarray


class Work:
    """What the layers of a graph do, hold and keep."""

    def __init__(self, program: Program, splitting: Splitting) -> None:
        self.program, self.splitting = program, splitting
        self._known: dict[tuple[Any, ...], Any] = {}

    @property
    def element_bytes(self) -> float:
        """Bytes of an element of the graph's activations."""
        return 2.0 if self.program.is_half else 4.0

    @cached_property
    def kernels(self) -> list[Kernel]:
        """All kernels."""
        kernels = kernels_of(self.program)
        return kernels if self.program.twice else with_least_kept(self.program, kernels)

    @cached_property
    def of_label(self) -> dict[int, list[int]]:
        """Label -> numbers of its kernels."""
        numbers: dict[int, list[int]] = defaultdict(list)
        for number, kernel in enumerate(self.kernels):
            numbers[kernel.label].append(number)
        return numbers

    @cached_property
    def cores(self) -> Cores:
        """The attention cores."""
        return cores_of(self.program, self.kernels)

    @cached_property
    def runs(self) -> np.ndarray:
        """(I,) how often each instruction runs."""
        return runs(self.program.graph, self.program.graph.flops)

    @cached_property
    def products(self) -> dict[int, Product]:
        """Instruction -> the matrix product that it is."""
        flow = self.program.flow
        return {
            kernel.members[0]: self._product(kernel.members[0])
            for kernel in self.kernels
            if flow.opcode[kernel.members[0]] == "dot"
        }

    def _product(self, index: int) -> Product:
        graph, flow, program = self.program.graph, self.program.flow, self.program
        attribute = json.loads(graph.strings[graph.attribute[index]] or "{}").get("dot", {})
        left, right = flow.operands[index][:2]
        dims: list[list[int]] = [[], [], [], []]
        factors: list[tuple[int, int]] = []
        roles = (
            (left, attribute.get("lhs_batch", []), attribute.get("lhs_contracting", []), 1),
            (right, attribute.get("rhs_batch", []), attribute.get("rhs_contracting", []), 2),
        )
        for side, (tensor, batch, contracted, free) in enumerate(roles):
            start = int(graph.dim_offset[tensor])
            for dimension, size in enumerate(flow.shapes[tensor]):
                place = 0 if dimension in batch else 3 if dimension in contracted else free
                if place in (1, 2) or not side:  # both sides may be the same tensor
                    dims[place].append(size)
                    factors.append((place, start + dimension))
        sizes = tuple(float(np.prod(row)) if row else 1.0 for row in dims)
        grows = [bool(program.grows[program.source(t)]) for t in (left, right)]
        result = bool(program.grows[flow.results[index][0]])
        place_of = {(True, False): 1, (False, True): 2, (False, False): None}
        both = 3 if not result else 0 if dims[0] else 1
        which = both if all(grows) else place_of[grows[0], grows[1]]
        return Product(sizes, which, tuple(factors))  # type: ignore[arg-type]

    def weigh(self, tensors: dict[int, float], shares: np.ndarray) -> np.ndarray:
        """(4,) the parts of tensors together, of each the given share, and that of a rank."""
        program, parts = self.program, np.zeros(PARTS)
        for tensor, share in tensors.items():
            place = 0 if program.grows[tensor] else 2
            if program.at_precision[tensor]:
                parts[place] += share * shares[tensor] * program.elements[tensor]
            else:
                parts[place + 1] += share * shares[tensor] * program.graph.tensor_bytes[tensor]
        return parts

    def held(self, tp: int, sequence_parallel: bool) -> np.ndarray:
        """(T,) share of each tensor that a rank holds."""
        key = ("held", tp, sequence_parallel)
        if key not in self._known:
            shares = self.splitting.tensor_shares(tp)
            if sequence_parallel:
                whole = (shares == 1) & self.program.grows
                shares = np.where(whole, shares / tp, shares)
            self._known[key] = shares
        return self._known[key]

    def rows(self, label: int, tp: int, sequence_parallel: bool) -> Rows:
        """The kernels of a layer, split among ``tp`` ranks."""
        key = ("rows", label, tp, sequence_parallel)
        if key not in self._known:
            self._known[key] = self._rows(label, tp, sequence_parallel)
        return self._known[key]

    def _rows(self, label: int, tp: int, sequence_parallel: bool) -> Rows:
        program, opcode = self.program, self.program.flow.opcode
        key = ("dimensions", tp)
        if key not in self._known:
            self._known[key] = (
                self.splitting.dimension_shares(tp), self.splitting.instruction_shares(tp)
            )  # fmt: skip
        of_dimension, of_instruction = self._known[key]
        held = self.held(tp, sequence_parallel)
        products, others = [], []
        for number in self.of_label.get(label, []):
            kernel = self.kernels[number]
            index = kernel.members[0]
            core = number in self.cores.kernels
            times = self.runs[index]
            if opcode[index] == "dot":
                sizes, grows, dimensions = self.products[index]
                shared = np.array(sizes)
                for place, position in dimensions:
                    shared[place] *= of_dimension[position]
                growing = np.arange(PARTS) == (-1 if grows is None else grows)
                products.append((shared, growing, kernel.phase, core, times, index))
                continue
            fused = opcode[index] in FUSIBLE
            share = of_instruction[index]
            flops = 0.0 if fused else program.graph.flops[index] * share
            if fused or opcode[index] == "convolution":
                moved = {**dict.fromkeys(kernel.writes, 1.0)}
                traffic = self.weigh(kernel.reads, held) + self.weigh(moved, held)
            else:
                traffic = self._moved(index) * share
            does = any(program.grows[t] for t in (*kernel.reads, *kernel.writes))
            others.append((flops, does, traffic, kernel.phase, core, times))
        sums = self._sums(label, tp, sequence_parallel, [row[-1] for row in products])
        return _rows_of(products, others, sums)

    def _moved(self, index: int) -> np.ndarray:
        """(4,) what an instruction moves that is never fused."""
        program = self.program
        graph, flow = program.graph, program.flow
        results = flow.results[index]
        size = bytes_of(
            flow.opcode[index],
            [float(graph.tensor_bytes[t]) for t in flow.operands[index]],
            [float(graph.tensor_bytes[t]) for t in results],
        )
        parts = np.zeros(PARTS)
        grows = any(program.grows[program.source(t)] for t in (*flow.operands[index], *results))
        place = 0 if grows else 2
        if results and program.at_precision[results[0]]:
            width = graph.tensor_bytes[results[0]] / max(program.elements[results[0]], 1.0)
            parts[place] = size / width
        else:
            parts[place + 1] = size
        return parts

    def _sums(
        self, label: int, tp: int, sequence_parallel: bool, products: list[int]
    ) -> tuple[tuple[int, np.ndarray, tuple[int, ...]], ...]:
        """All-reduces of a layer; in the backward pass those of input gradients may hide."""
        program, flow = self.program, self.program.flow
        if tp == 1:
            return ()
        shares = self.splitting.tensor_shares(tp)
        place = {index: number for number, index in enumerate(products)}
        sums = []
        for tensor, origins in self._summed(tp).items():
            if program.label[origins[-1]] != label or self._makes_gradient(origins):
                continue  # gradients of weights are summed once a step
            phase = int(program.graph.phase[origins[-1]])
            behind: set[int] = set()
            if phase == BACKWARD:
                gradients = {program.source(t) for i in origins for t in flow.operands[i]}
                behind = {
                    place[r] for t in gradients for r in program.readers[t]
                    if r in place and program.is_gradient[flow.results[r]].any()
                }  # fmt: skip
            sums.append((phase, self.weigh({tensor: 1.0}, shares), tuple(sorted(behind))))
        return tuple(sums)

    def _summed(self, tp: int) -> dict[int, tuple[int, ...]]:
        key = ("summed", tp)
        if key not in self._known:
            self._known[key] = self.splitting.summed(tp)
        return self._known[key]

    def _makes_gradient(self, origins: tuple[int, ...]) -> bool:
        results = [t for i in origins for t in self.program.flow.results[i]]
        return bool(self.program.is_gradient[results].any())

    def summed_gradients(self, tp: int) -> float:
        """Numbers of the gradients that ranks sum once a step, as where they share the samples.

        Without a backward pass by layers these are the gradients of the weights that are whole on
        each rank and read by what the ranks split.
        """
        program, shares = self.program, self.splitting.tensor_shares(tp)
        if not program.twice:
            tensors = {
                t for t, origins in self._summed(tp).items() if self._makes_gradient(origins)
            }
        else:
            of_instruction = self.splitting.instruction_shares(tp)
            weights = {t for held in self.weights.values() for t, trains in held if trains}
            read = {
                program.source(t) for index in np.flatnonzero(of_instruction < 1).tolist()
                for t in program.flow.operands[index]
            }  # fmt: skip
            tensors = {t for t in read & weights if shares[t] == 1}
        return float(sum(program.elements[t] * shares[t] for t in sorted(tensors)))

    @cached_property
    def weights(self) -> dict[int, list[tuple[int, bool]]]:
        """Label -> tensors of the weights that it holds, and whether each is trainable."""
        program, graph = self.program, self.program.graph
        held: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        for index, labels in program.weight_labels.items():
            trainable = graph.parameter_role[index] == Role.VARIABLE
            tensor = int(graph.parameter_tensor[index])
            places = labels[:1]
            # A tied weight is held twice, by embedding and head; any other one by its first layer.
            if self.is_tied(labels):
                places = [labels[0], labels[-1]]
            for label in places:
                held[label].append((tensor, bool(trainable)))
        return held

    def is_tied(self, labels: list[int]) -> bool:
        """Whether a weight is read by the head, and by something in front of it."""
        return labels[0] < labels[-1] == self.program.layers + 1

    def tied_elements(self, tp: int = 1) -> float:
        """Numbers, on a rank, of the weights that the head shares with something in front of it."""
        program, shares = self.program, self.held(tp, False)
        tensors = program.graph.parameter_tensor
        return float(sum(
            program.elements[tensors[index]] * shares[tensors[index]]
            for index, labels in program.weight_labels.items() if self.is_tied(labels)
        ))  # fmt: skip

    def parameters(self, label: int, tp: int) -> float:
        """Numbers of the weights of a layer on a rank."""
        shares = self.held(tp, False)
        weights = self.weights.get(label, [])
        return float(sum(self.program.elements[t] * shares[t] for t, _ in weights))

    def kept(self, label: int, tp: int, sequence_parallel: bool, mode: str, fused: bool) -> Any:
        """(4,) what a layer keeps for the backward pass.

        ``mode`` is what is recomputed, ``"none"``, ``"selective"`` or ``"full"``; ``fused``
        attention is one kernel, which keeps no scores.
        """
        key = ("kept", label, tp, sequence_parallel, mode, fused)
        if key not in self._known:
            tensors = self._entering if mode == "full" else self.kept_tensors
            chosen = tensors.get(label, set())
            if mode == "selective" or fused:
                chosen = chosen - self.cores.inner
            shares = self.held(tp, sequence_parallel)
            self._known[key] = self.weigh(dict.fromkeys(sorted(chosen), 1.0), shares)
        return self._known[key]

    @cached_property
    def kept_tensors(self) -> dict[int, set[int]]:
        """Label -> tensors that its backward pass reads and none in front of it does."""
        program = self.program
        weights = set(program.graph.parameter_tensor[program.graph.weights].tolist())
        phase = FORWARD if program.twice else BACKWARD
        first: dict[int, int] = {}
        for kernel in self.kernels:
            if kernel.phase == phase:
                for tensor in kernel.reads:
                    first[tensor] = min(first.get(tensor, kernel.label), kernel.label)
        kept: dict[int, set[int]] = defaultdict(set)
        for tensor, label in first.items():
            maker = program.flow.producer[tensor]
            is_result = maker >= 0 and program.flow.opcode[maker] != "parameter"
            if is_result and program.graph.phase[maker] != FORWARD:
                continue
            if tensor not in weights and program.on_data[tensor]:
                kept[label].add(tensor)
        return kept

    @cached_property
    def _entering(self) -> dict[int, set[int]]:
        """Label -> tensors that it is the first to read and something in front of it makes."""
        program = self.program
        weights = set(program.graph.parameter_tensor[program.graph.weights].tolist())
        first: dict[int, int] = {}
        label_of: dict[int, int] = {}
        for kernel in self.kernels:
            if kernel.phase != FORWARD:
                continue
            for index in kernel.members:
                label_of.update(dict.fromkeys(program.flow.results[index], kernel.label))
            for tensor in kernel.reads:
                if label_of.get(tensor) != kernel.label:
                    first[tensor] = min(first.get(tensor, kernel.label), kernel.label)
        entering: dict[int, set[int]] = defaultdict(set)
        for tensor, label in first.items():
            if tensor not in weights and program.on_data[tensor]:
                entering[label].add(tensor)
        return entering

    def largest(self, label: int) -> int | None:
        """The tensor of most numbers that a layer's forward pass makes, or None."""
        results = [
            t for number in self.of_label.get(label, []) for t in self.kernels[number].writes
            if self.kernels[number].phase == FORWARD
        ]  # fmt: skip
        return max(results, key=lambda t: self.program.elements[t], default=None)


def _rows_of(
    products: list[tuple[Any, ...]],
    others: list[tuple[Any, ...]],
    sums: tuple[tuple[int, np.ndarray, tuple[int, ...]], ...],
) -> Rows:
    """Rows as arrays; the fields of each are those of ``Rows``, in its order."""
    wide = np.zeros((0, PARTS))
    none = np.zeros(0, dtype=int)
    no_products = [wide, wide > 0, none, none > 0, none]
    no_others = [none, none > 0, wide, none, none > 0, none]
    columns = []
    for rows, empty in ((products, no_products), (others, no_others)):
        arrays = [np.array(column) for column in zip(*rows, strict=True)]
        columns += arrays[: len(empty)] if rows else empty
    return Rows(sums, *columns)
