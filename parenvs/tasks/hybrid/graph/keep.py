"""What the forward pass keeps for the backward pass of a fused graph.

Automatic differentiation keeps every intermediate result that a derivative needs. Compilers that
see both passes keep less: what elementwise instructions of one kernel can make again from what is
kept anyway, the backward kernel makes again. Of each kernel the smallest set that suffices is kept,
a minimum cut between what it reads and what backward kernels read of it (as PyTorch's
``min_cut_rematerialization_partition``). Reductions are never repeated, and no product is.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from parenvs.tasks.hybrid.graph.fusion import FUSIBLE, Kernel
from parenvs.tasks.hybrid.graph.program import BACKWARD, Program

_SMALL = 8
"""A divisor is small if its elements are at least so many times fewer than the quotient's."""
_SCALE = 10**6
"""Capacities are whole numbers: bytes over those of the largest tensor, times this."""


def with_least_kept(program: Program, kernels: list[Kernel]) -> list[Kernel]:
    """Return the kernels with what they read and write if as little as possible is kept.

    Args:
        program: the instructions by layers.
        kernels: fused kernels of both passes.
    """
    opcode = program.flow.opcode
    backward = [k for k, kernel in enumerate(kernels) if kernel.phase == BACKWARD]
    fused = [k for k in backward if opcode[kernels[k].members[0]] in FUSIBLE]
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
        made = [t for i in kernel.members for t in program.flow.results[i]]
        targets = [t for t in made if t in wanted and t not in kept]
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
            t for t in made
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
        found: list[int] = []
        waiting, seen = [target], {target}
        while waiting:
            tensor = waiting.pop()
            if tensor in chosen or not before.get(tensor):
                if not program.free_tensors[tensor]:
                    found.append(tensor)
                continue
            for other in before[tensor]:
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        instead[target] = tuple(sorted(found))
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
