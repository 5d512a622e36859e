"""The work of each layer of a graph, as numbers that depend on samples and ranks alone.

A figure has four parts: numbers at the plan's precision and other bytes, of what grows with the
samples and of what does not. Products are known by (batch, m, n, k), of which one grows.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from parenvs.compiled import Array
from parenvs.graph.flow import PRODUCTS
from parenvs.graph.graph import Role
from parenvs.graph.layout import against_stages
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
from parenvs.tasks.partition.eager import causes_of
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
        chosen: Array | Mapping[str, int] | None = None,
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
    def chosen(self) -> Array:
        """(C,) bool, the classes that are split."""
        if isinstance(self._chosen, Mapping):
            return self.classes.chosen(self._chosen)
        if self._chosen is not None:
            return self._chosen
        # Megatron's pattern, and beside it the vocabulary and features of convolutions.
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
            for operand in flow.operands[index] if flow.opcode[index] == "dot" else ():
                if not program.on_data[operand]:
                    return self._outputs(index, operand)
        return []

    def _features(self) -> list[int]:
        """Classes of the output features of the convolutions, in order."""
        program, flow = self.program, self.program.flow
        return [
            label
            for index in np.flatnonzero(program.graph.phase == FORWARD).tolist()
            if flow.opcode[index] == "convolution" and not program.on_data[flow.operands[index][1]]
            for label in self._outputs(index, flow.operands[index][1])
        ]

    def _outputs(self, index: int, operand: int) -> list[int]:
        """Classes of an instruction's operand that its result has, too."""
        result = self._labels(self.program.flow.results[index][0])
        return [label for label in self._labels(operand) if label in result]

    def _labels(self, tensor: int) -> list[int]:
        start, end = self.program.graph.dim_offset[tensor : tensor + 2].tolist()
        # Dimensions of size 1 (broadcasts) cannot be split.
        wide = self.program.graph.dims[start:end] > 1
        return self.classes.label[start:end][wide].tolist()

    def class_shares(self, tp: int) -> Array:
        """(C,) share of each class that a rank holds."""
        split, dims = self.chosen.copy(), self.program.graph.dims
        if self.uneven == "forbid":
            # A class is split in all of its tensors or in none.
            split[self.classes.label[(dims > 1) & (dims % tp != 0)]] = False
        return np.where(split & (tp > 1), formulas.device_share(self.classes, tp), 1.0)

    def dimension_shares(self, tp: int) -> Array:
        """(N,) share of each dimension of each tensor that a rank holds."""
        shares = self.class_shares(tp)[self.classes.label]
        return np.where(self.program.graph.dims > 1, shares, 1.0)

    def tensor_shares(self, tp: int) -> Array:
        """(T,) share of each tensor that a rank holds."""
        graph = self.program.graph
        share = np.ones(len(graph.element_type))
        # A tensor's share is the product of those of its dimensions.
        owner = np.repeat(np.arange(len(share)), np.diff(graph.dim_offset))
        np.multiply.at(share, owner, self.dimension_shares(tp))
        return share

    def instruction_shares(self, tp: int) -> Array:
        """(I,) share of each instruction that a rank runs."""
        share, classes = np.ones(len(self.program.graph.opcode)), self.classes
        of_factor = self.class_shares(tp)[classes.factor_class]
        np.minimum.at(share, classes.factors.instruction, of_factor)
        return share

    def summed(self, tp: int) -> dict[int, tuple[int, ...]]:
        """Tensor that is all-reduced -> the instructions that leave its partial results."""
        program, flow, factors = self.program, self.program.flow, self.classes.factors
        split = self.class_shares(tp)[self.classes.factor_class] < 1
        left = set(factors.instruction[split & factors.partial].tolist())
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
        if tp == 1 or (self.class_shares(tp) < 1).any():
            return None
        if not self.chosen.any():
            why = "it has no attention, feed-forward network or dense layer"
            return (
                f"tp {tp}: no matrix of {self.program.graph.name} can be divided among ranks: "
                f"{'; '.join(self.notes) or why}"
            )
        dims = self.program.graph.dims
        odd = self.chosen[self.classes.label] & (dims > 1) & (dims % tp != 0)
        listed = ", ".join(map(str, np.unique(dims[odd])[:3].tolist()))
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
    outputs = {program.sources[t] for t in program.graph.outputs.tolist()}
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
                sources += [] if program.free_tensors[tensor] else [tensor]
                continue
            new = [other for other in dict.fromkeys(before[tensor]) if other not in seen]
            seen.update(new)
            waiting += new
        instead[target] = tuple(sorted(sources))
    return instead


def _made_of(program: Program, kernel: Kernel, kept: set[int]) -> dict[int, tuple[int, ...]]:
    """Tensor made in a kernel -> what it can be made of again; nothing for reductions.

    What is divided by sums is quotient times sum, where the quotient is kept (softmax).
    """
    flow, elements = program.flow, program.elements
    before: dict[int, tuple[int, ...]] = {}
    for index in kernel.members:
        read = tuple(dict.fromkeys(program.sources[t] for t in flow.operands[index]))
        again = () if flow.opcode[index] in ("reduce", "map") else read
        for tensor in flow.results[index]:
            before[tensor] = again
    for index in kernel.members:
        if flow.opcode[index] != "divide":
            continue
        dividend, divisor = (program.sources[t] for t in flow.operands[index])
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
    sources = (other for others in before.values() for other in others)
    tensors = list(dict.fromkeys([*kernel.reads, *before, *sources]))
    place = {tensor: number for number, tensor in enumerate(tensors)}
    size = program.graph.tensor_bytes[tensors]
    # Of equal bytes, what the kernel reads is better than what it must write, too.
    weights = (_SCALE * size / max(size.max(initial=0), 1e-300)).astype(np.int64)
    weights = weights + np.array([2 if tensor in before else 1 for tensor in tensors])
    costless = [tensor in kept or bool(program.free_tensors[tensor]) for tensor in tensors]
    weights = np.where(costless, 0, weights)
    made_of = [tuple(place[other] for other in before.get(tensor, ())) for tensor in tensors]
    wanted = tuple(sorted({place[tensor] for tensor in targets}))
    key = (tuple(weights.tolist()), tuple(made_of), wanted)
    if key not in known:
        known[key] = _minimum_cut(*key)
    return {tensors[number] for number in known[key]}


def _minimum_cut(
    weights: tuple[int, ...], made_of: tuple[tuple[int, ...], ...], wanted: tuple[int, ...]
) -> tuple[int, ...]:
    """The nodes of least weight on all ways from nodes made of nothing to those that are wanted."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    # A node is an edge from its entrance 2 k to its exit 2 k + 1, which has the node's weight.
    start, end = 2 * len(weights), 2 * len(weights) + 1
    unlimited = _SCALE * (len(weights) + 1)
    edges = [(2 * node + 1, end, unlimited) for node in wanted]
    for node, (weight, sources) in enumerate(zip(weights, made_of, strict=True)):
        edges.append((2 * node, 2 * node + 1, weight))
        exits = [2 * other + 1 for other in sources] or [start]
        edges += [(place, 2 * node, unlimited) for place in exits]
    # SciPy before 1.12 finds flows over indices of 32 bits alone.
    rows, columns, limits = np.array(edges).astype(np.int32).T
    capacity = coo_array((limits, (rows, columns)), shape=(end + 1, end + 1)).tocsr()
    residual = capacity - maximum_flow(capacity, start, end).flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    reached = set(breadth_first_order(residual, start, return_predecessors=False).tolist())
    nodes = range(len(weights))
    return tuple(k for k in nodes if 2 * k in reached and 2 * k + 1 not in reached)


Sums = tuple[tuple[int, Array, tuple[int, ...]], ...]
"""All-reduces: phase, (4,) what is summed, and products (R) behind which it may hide."""
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
        sums: see ``Sums``.
        sizes: (R, 4) batch, m, n, k.
        grows: (R, 4) bool.
        product_at: (R,) phase of each, ``Phase``.
        product_core: (R,) bool, whether it is of an attention core.
        product_runs: (R,) how often it runs.
        product_needless: (R,) see ``needless_gradients``.
        flops: (K,) of each other kernel.
        flops_grow: (K,) bool.
        traffic: (K, 4) what each reads and writes.
        kernel_at, kernel_core, kernel_runs: (K,) as for products.
    """

    sums: Sums
    sizes: Array
    grows: Array
    product_at: Array
    product_core: Array
    product_runs: Array
    product_needless: Array
    flops: Array
    flops_grow: Array
    traffic: Array
    kernel_at: Array
    kernel_core: Array
    kernel_runs: Array


class Work:
    """What the layers of a graph do, hold and keep."""

    def __init__(self, program: Program, splitting: Splitting) -> None:
        self.program, self.splitting = program, splitting
        self._known: dict[tuple[Any, ...], Any] = {}

    def _once(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns, which is called once for the same arguments."""
        key = (make.__name__, *arguments)
        if key not in self._known:
            self._known[key] = make(*arguments)
        return self._known[key]

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
    def runs(self) -> Array:
        """(I,) how often each instruction runs."""
        return runs(self.program.graph, self.program.graph.flops)

    @cached_property
    def products(self) -> dict[int, Product]:
        """Instruction -> the matrix product that it is."""
        first = [kernel.members[0] for kernel in self.kernels]
        return {i: self._product(i) for i in first if self.program.flow.opcode[i] == "dot"}

    def _product(self, index: int) -> Product:
        graph, flow, program = self.program.graph, self.program.flow, self.program
        attribute = json.loads(graph.strings[graph.attribute[index]] or "{}").get("dot", {})
        operands = flow.operands[index][:2]
        # batch, m, n, k
        sizes = [1.0] * 4
        factors: list[tuple[int, int]] = []
        for side, (name, tensor) in enumerate(zip(("lhs", "rhs"), operands, strict=True)):
            batch, contracted = (attribute.get(f"{name}_{x}", []) for x in ("batch", "contracting"))
            start = int(graph.dim_offset[tensor])
            for dimension, size in enumerate(flow.shapes[tensor]):
                # The free dimensions of the left side are m, of the right side n.
                place = 0 if dimension in batch else 3 if dimension in contracted else 1 + side
                if place in (1, 2) or not side:  # both sides may be the same tensor
                    sizes[place] *= size
                    factors.append((place, start + dimension))
        left, right = (bool(program.grows[program.sources[t]]) for t in operands)
        if left and right:
            # A result that does not grow sums over the samples; batches grow, else rows do.
            has_batch = any(place == 0 for place, _ in factors)
            grows: int | None = (
                3 if not program.grows[flow.results[index][0]] else 0 if has_batch else 1
            )
        else:
            grows = 1 if left else 2 if right else None
        return Product(tuple(sizes), grows, tuple(factors))  # type: ignore[arg-type]

    def weigh(self, tensors: dict[int, float], shares: Array) -> Array:
        """(4,) the parts of tensors together, of each the given share, and that of a rank."""
        program, parts = self.program, np.zeros(PARTS)
        for tensor, share in tensors.items():
            place = 0 if program.grows[tensor] else 2
            if program.at_precision[tensor]:
                parts[place] += share * shares[tensor] * program.elements[tensor]
            else:
                parts[place + 1] += share * shares[tensor] * program.graph.tensor_bytes[tensor]
        return parts

    def held(self, tp: int, sequence_parallel: bool) -> Array:
        """(T,) share of each tensor that a rank holds."""
        return self._once(self._held, tp, sequence_parallel)

    def _held(self, tp: int, sequence_parallel: bool) -> Array:
        shares = self.splitting.tensor_shares(tp)
        whole = (shares == 1) & self.program.grows
        return np.where(whole, shares / tp, shares) if sequence_parallel else shares

    def rows(self, label: int, tp: int, sequence_parallel: bool) -> Rows:
        """The kernels of a layer, split among ``tp`` ranks."""
        return self._once(self._rows, label, tp, sequence_parallel)

    def _rows(self, label: int, tp: int, sequence_parallel: bool) -> Rows:
        program, opcode = self.program, self.program.flow.opcode
        # Dimensions divide products, factors of classes other instructions.
        of_dimension = self._once(self.splitting.dimension_shares, tp)
        of_instruction = self._once(self.splitting.instruction_shares, tp)
        held = self.held(tp, sequence_parallel)
        products, others = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
        for number in self.of_label.get(label, []):
            kernel = self.kernels[number]
            index = kernel.members[0]
            place = (kernel.phase, number in self.cores.kernels, self.runs[index])
            if opcode[index] == "dot":
                sizes, grows, dimensions = self.products[index]
                shared = np.array(sizes)
                for side, position in dimensions:
                    shared[side] *= of_dimension[position]
                growing = np.arange(PARTS) == (-1 if grows is None else grows)
                products.append((shared, growing, *place, program.needless[index], index))
                continue
            fused, share = opcode[index] in FUSIBLE, of_instruction[index]
            flops = 0.0 if fused else program.graph.flops[index] * share
            if fused or opcode[index] == "convolution":
                writes = dict.fromkeys(kernel.writes, 1.0)
                traffic = self.weigh(kernel.reads, held) + self.weigh(writes, held)
            else:
                traffic = self._moved(index) * share
            does = any(program.grows[t] for t in (*kernel.reads, *kernel.writes))
            others.append((flops, does, traffic, *place))
        sums = self._sums(label, tp, [row[-1] for row in products])
        # The fields of each are those of ``Rows``, in its order.
        wide, whole, flag = np.zeros((0, PARTS)), np.zeros(0, int), np.zeros(0, bool)
        no_products = [wide, wide > 0, whole, flag, whole, whole]
        no_others = [whole, flag, wide, whole, flag, whole]
        columns: list[Array] = []
        for rows, empty in ((products, no_products), (others, no_others)):
            arrays = [np.array(column) for column in zip(*rows, strict=True)]
            columns += arrays[: len(empty)] if rows else empty
        return Rows(sums, *columns)

    def _moved(self, index: int) -> Array:
        """(4,) what an instruction moves that is never fused."""
        program, size, parts = self.program, self.program.graph.tensor_bytes, np.zeros(PARTS)
        operands, results = program.flow.operands[index], program.flow.results[index]
        read, written = ([float(size[t]) for t in tensors] for tensors in (operands, results))
        moved = bytes_of(program.flow.opcode[index], read, written)
        grows = any(program.grows[program.sources[t]] for t in (*operands, *results))
        place = 0 if grows else 2
        if results and program.at_precision[results[0]]:
            width = size[results[0]] / max(program.elements[results[0]], 1.0)
            parts[place] = moved / width
        else:
            parts[place + 1] = moved
        return parts

    def _sums(self, label: int, tp: int, products: list[int]) -> Sums:
        """All-reduces of a layer; in the backward pass those of input gradients may hide."""
        program, flow = self.program, self.program.flow
        if tp == 1:
            return ()
        shares = self.splitting.tensor_shares(tp)
        place = {index: number for number, index in enumerate(products)}
        sums = []
        for tensor, origins in self._once(self.splitting.summed, tp).items():
            if program.label[origins[-1]] != label or self._makes_gradient(origins):
                continue  # gradients of weights are summed once a step
            phase = int(program.graph.phase[origins[-1]])
            behind: set[int] = set()
            if phase == BACKWARD:
                gradients = {program.sources[t] for i in origins for t in flow.operands[i]}
                readers = {r for t in gradients for r in program.readers[t] if r in place}
                behind = {place[r] for r in readers if self._makes_gradient((r,))}
            sums.append((phase, self.weigh({tensor: 1.0}, shares), tuple(sorted(behind))))
        return tuple(sums)

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
            summed = self._once(self.splitting.summed, tp).items()
            tensors = {t for t, origins in summed if self._makes_gradient(origins)}
        else:
            split = np.flatnonzero(self.splitting.instruction_shares(tp) < 1).tolist()
            read = {program.sources[t] for i in split for t in program.flow.operands[i]}
            weights = {t for held in self.weights.values() for t, trains in held if trains}
            tensors = {t for t in read & weights if shares[t] == 1}
        return float(sum(program.elements[t] * shares[t] for t in sorted(tensors)))

    @cached_property
    def weights(self) -> dict[int, list[tuple[int, bool]]]:
        """Label -> tensors of the weights that it holds, and whether each is trainable."""
        graph = self.program.graph
        held: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        for index, labels in self.program.weight_labels.items():
            trainable = bool(graph.parameter_role[index] == Role.VARIABLE)
            # A tied weight is held twice, by embedding and head; any other one by its first layer.
            for label in [labels[0], labels[-1]] if self.is_tied(labels) else labels[:1]:
                held[label].append((int(graph.parameter_tensor[index]), trainable))
        return held

    def is_tied(self, labels: list[int]) -> bool:
        """Whether a weight is read by the head, and by something in front of it."""
        return labels[0] < labels[-1] == self.program.layers + 1

    @cached_property
    def causes(self) -> dict[str, str]:
        """What PyTorch does not do of the module, as ``against`` takes it."""
        graph, borders = self.program.graph, self.program.borders
        causes = causes_of(graph, self.splitting.classes)
        if words := against_stages(graph, borders.names[1:], list(self.shared)):
            causes["pp"] = words
        if self.splitting.convolves:
            causes["tp"] = "tp: PyTorch's DTensors split no convolutions; plan replicas alone"
        return causes

    def tied_elements(self, tp: int = 1, trained: bool = False) -> float:
        """Numbers, on a rank, of (trained) weights that the head and an earlier layer share."""
        graph, labels = self.program.graph, self.program.weight_labels
        held = self.program.elements * self.held(tp, False)
        which = [i for i in (graph.variables if trained else graph.weights) if i in labels]
        return float(sum(held[graph.parameter_tensor[i]] for i in which if self.is_tied(labels[i])))

    @property
    def shared(self) -> dict[str, list[int]]:
        """Trainable weight -> layers, 1 to n, that read it, if several; 0 embeds, n + 1 ends."""
        graph, labels = self.program.graph, self.program.weight_labels
        return {
            graph.paths[index]: places for index, places in labels.items()
            if len(places) > 1 and graph.parameter_role[index] == Role.VARIABLE
        }  # fmt: skip

    def flops(self, samples: float, recompute: bool = False) -> float:
        """FLOPs of products and convolutions; ``recompute`` counts forward passes twice."""
        program, phase = self.program, self.program.graph.phase
        heavy = np.isin(program.flow.opcode, PRODUCTS)
        flops = np.where(heavy & (program.label >= 0), program.graph.flops * self.runs, 0.0)
        forward = flops * (phase == FORWARD)
        inside = (program.label > 0) & (program.label <= program.layers)
        ahead = float(forward.sum())
        # Gradients of inputs and of weights: two products for each of the forward pass.
        back = float(flops[phase == BACKWARD].sum())
        if program.twice:
            back = 2 * ahead - float((forward * program.needless).sum())
        again = float(forward[inside].sum()) if recompute else 0.0
        return (ahead + back + again) * samples / program.graph.batch_size

    def parameters(self, label: int, tp: int, trained: bool = False) -> float:
        """Numbers of the weights of a layer on a rank, or of those alone that are trained."""
        shares = self.held(tp, False)
        weights = [t for t, trains in self.weights.get(label, []) if trains or not trained]
        return float(sum(self.program.elements[t] * shares[t] for t in weights))

    def kept(self, label: int, tp: int, sequence_parallel: bool, mode: str, fused: bool) -> Any:
        """(4,) what a layer keeps for the backward pass.

        ``mode`` is what is recomputed, ``"none"``, ``"selective"`` or ``"full"``; ``fused``
        attention is one kernel, which keeps no scores.
        """
        return self._once(self._kept, label, tp, sequence_parallel, mode, fused)

    def _kept(self, label: int, tp: int, sequence_parallel: bool, mode: str, fused: bool) -> Any:
        chosen = (self._entering if mode == "full" else self.kept_tensors).get(label, set())
        if mode == "selective" or fused:
            chosen = chosen - self.cores.inner
        return self.weigh(dict.fromkeys(sorted(chosen), 1.0), self.held(tp, sequence_parallel))

    @cached_property
    def kept_tensors(self) -> dict[int, set[int]]:
        """Label -> tensors that its backward pass reads and none in front of it does."""
        program = self.program
        phase = FORWARD if program.twice else BACKWARD
        first: dict[int, int] = {}
        for kernel in self.kernels:
            for tensor in kernel.reads if kernel.phase == phase else ():
                maker = program.flow.producer[tensor]
                is_result = maker >= 0 and program.flow.opcode[maker] != "parameter"
                if not is_result or program.graph.phase[maker] == FORWARD:
                    first[tensor] = min(first.get(tensor, kernel.label), kernel.label)
        return self._by_label(first)

    def _by_label(self, first: dict[int, int]) -> dict[int, set[int]]:
        """Label -> those tensors with it that depend on the batch and are no weights."""
        program = self.program
        weights = set(program.graph.parameter_tensor[program.graph.weights].tolist())
        tensors: dict[int, set[int]] = defaultdict(set)
        for tensor, label in first.items():
            if tensor not in weights and program.on_data[tensor]:
                tensors[label].add(tensor)
        return tensors

    @cached_property
    def _entering(self) -> dict[int, set[int]]:
        """Label -> tensors that it is the first to read and something in front of it makes."""
        first: dict[int, int] = {}
        label_of: dict[int, int] = {}
        for kernel in self.kernels:
            if kernel.phase != FORWARD:
                continue
            results = (self.program.flow.results[i] for i in kernel.members)
            label_of.update(dict.fromkeys((t for part in results for t in part), kernel.label))
            for tensor in kernel.reads:
                if label_of.get(tensor) != kernel.label:
                    first[tensor] = min(first.get(tensor, kernel.label), kernel.label)
        return self._by_label(first)

    def largest(self, label: int) -> int | None:
        """The tensor of most numbers that a layer's forward pass makes, or None."""
        results = [
            t for number in self.of_label.get(label, []) for t in self.kernels[number].writes
            if self.kernels[number].phase == FORWARD
        ]  # fmt: skip
        return max(results, key=lambda t: self.program.elements[t], default=None)
