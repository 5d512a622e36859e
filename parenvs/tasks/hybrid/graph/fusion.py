"""Kernels of a graph: which instructions of a layer and phase a compiler fuses into one.

Elementwise instructions, casts, broadcasts, reductions and what picks parts of tensors are joined
with what they read and what reads them, inside one layer and phase. Products, convolutions,
gathers, scatters and loops are never joined, and lie between kernels: an instruction is on level k
if k of these lie on the longest way to it, and only those on one level are joined. So no kernel
waits for a product that waits for it. An instruction that only later levels of its layer and phase
read is made there.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from parenvs.graph.opcodes import ELEMENTWISE
from parenvs.tasks.hybrid.graph.program import NOWHERE, Program

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


def kernels_of(program: Program, fuse: bool = True) -> list[Kernel]:
    """Return the kernels of all layers, in the order of their first instructions.

    Args:
        program: the instructions by layers.
        fuse: whether to join instructions; else each is a kernel.
    """
    works = program.works
    groups: dict[int, list[int]] = {index: [index] for index in works}
    if fuse:
        groups = _joined(program, works)
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
