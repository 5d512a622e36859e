"""Attention cores of a graph: scores, softmax and context, forward and backward.

A core is two products of data by data, one after the other, with nothing between that is never
fused: what fused attention kernels replace and what selective recomputation repeats
(arXiv 2205.05198, section 5).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from parenvs.tasks.hybrid.graph.fusion import FUSIBLE, Kernel
from parenvs.tasks.hybrid.graph.program import BACKWARD, FORWARD, Program


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
        found = _between(program, kernels, maker, numbers, products, products)
        if not found:
            continue
        touched = {t for n in found & products for t in (*kernels[n].reads, *kernels[n].writes)}
        behind = of_label.get((label, int(BACKWARD)), [])
        parent = program.graph.parent
        in_loop = any(parent[kernels[n].members[0]] >= 0 for n in found)
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
        last = found & products - {
            n for n in products for t in kernels[n].writes
            if any(t in kernels[m].reads for m in found)
        }  # fmt: skip
        made = {t for n in found - last for i in kernels[n].members for t in flow.results[i]}
        cores.inner |= made
        cores.kernels |= found | gradients
        cores.kernels |= _between(program, kernels, maker, behind, gradients, gradients)
        members = [i for n in found for i in kernels[n].members]
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
    found: set[int] = set()
    before = -1
    while before != (before := sum(map(len, ways.values()))):  # a kernel may begin in front of
        for number in numbers:  # what it waits for
            ahead = [maker[t] for t in kernels[number].reads if t in maker]
            led = set().union(*(ways[n] for n in ahead if n in ways))
            if number in last and led:
                found |= led | {number}
            if number in first:
                ways[number] = {number}
            elif led and _opcode(program, kernels[number]) in FUSIBLE:
                ways[number] = led | {number}
    return found
