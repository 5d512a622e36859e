"""Finds the training step in a module's data flow: its updates, gradients and losses.

An **update** is an output that takes an input's place: it is made of the input one element for one,
as in ``w - rate * g``, and has its type and shape. What else it is made of, one for one, ends in
its **roots**: matrix products, reductions, scatters. Roots that the loss does not need are
gradients. The step is a **certain** one if a gradient is the transpose of how its variable is
read: a product that reads what the variable was multiplied with, a scatter at the rows that were
gathered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from parenvs.graph.checks.limits import FLOATING
from parenvs.graph.flops import ELEMENTWISE
from parenvs.graph.flow import CARRIES, PARTS, VIEWS, Flow

_QUIET = {"constant", "iota", "broadcast", "rng", "rng-bit-generator"}
"""Opcodes at which the search for roots ends without one."""
_AROUND = ("scatter", "dynamic-update-slice", "pad")
"""Opcodes whose result holds the elements of their first operand, but for what else is written."""
_THROUGH = ELEMENTWISE | VIEWS | PARTS | {"pad", "parameter", *CARRIES}
"""Opcodes at which there is no root."""
_OTHERS = 2
"""Rank of inputs that have the path of another output."""
_SEEN_THROUGH = VIEWS | {"slice", "dynamic-slice", "parameter", *CARRIES}
"""Opcodes through which a tensor is read as it is."""


@dataclass
class Update:
    """An output that takes the place of an input.

    Attributes:
        output: its tensor.
        source: tensor of the input.
        roots: tensors at which what it is made of, one for one, ends.
        passed: other outputs that it is made of, one for one.
    """

    output: int
    source: int
    roots: list[int] = field(default_factory=list)
    passed: set[int] = field(default_factory=set)


@dataclass
class Training:
    """A training step as the data flow tells it. T tensors.

    Attributes:
        losses: outputs that are no updates and no gradients, and that need no gradient.
        forward: (T,) bool, what the losses are made of.
        backward: (T,) bool, what the gradients are made of besides.
        certain: whether a gradient is the transpose of how its variable is read.
    """

    losses: list[int]
    forward: np.ndarray
    backward: np.ndarray
    certain: bool

    @classmethod
    def of(cls, flow: Flow) -> Training | None:
        """Find the step, or None if the data flow shows no gradient."""
        updates = find_updates(flow)
        returned = returned_gradients(flow, updates)
        taken = {u.output for u in updates} | set(returned)
        floating = flow.graph.element_type
        others = [
            t
            for t in dict.fromkeys(flow.graph.outputs.tolist())
            if t not in taken and int(floating[t]) in FLOATING and flow.producer[t] >= 0
        ]
        roots = {root for update in updates for root in update.roots}
        roots |= {root for output in returned for root in walk(flow, output).roots}
        if not roots:
            return None
        losses = _losses(flow, updates, returned, roots, others)
        if losses:
            forward = flow.ancestors(losses)
        else:
            forward = flow.ancestors(_first_readers(flow, updates, returned, roots))
        gradients = {root for root in roots if not forward[root]}
        transposed = [
            (source, root)
            for source, found in _by_source(flow, updates, returned)
            for root in found
            if root in gradients and is_transpose(flow, source, root)
        ]
        scalar = any(not flow.shapes[t] for t in losses)
        if not gradients or not (transposed or (scalar and updates)):
            return None
        gradients -= _statistics(flow, gradients, transposed, forward)
        for update in updates:  # statistics are forward
            if not any(root in gradients for root in update.roots):
                forward |= flow.ancestors([update.output])
        backward = flow.ancestors(_gradients(flow, updates, gradients)) & ~forward
        return cls(losses, forward, backward, bool(transposed))


@dataclass
class Walk:
    """What an output is made of one element for one: inputs with their distance, and roots."""

    inputs: dict[int, int]
    roots: list[int]
    passed: set[int]  # tensors on the way


def walk(flow: Flow, output: int, within: frozenset[int] = frozenset()) -> Walk:
    """Follow an output back through elementwise operations, casts, layouts, loops and branches.

    A stack that a loop writes block by block counts as made of stacked inputs one for one if its
    blocks are; else it is a root.

    Args:
        flow: the flow of data.
        output: where to start.
        within: stacks whose blocks are being followed.
    """
    inputs: dict[int, int] = {}
    roots: list[int] = []
    seen = {output}
    waiting = deque([(output, 0)])
    parents = flow.graph.parent
    while waiting:
        tensor, distance = waiting.popleft()
        index = flow.producer[tensor]
        opcode = flow.opcode[index] if index >= 0 else "parameter"
        if opcode == "parameter" and (index < 0 or parents[index] < 0):
            inputs.setdefault(tensor, distance)
            continue
        if opcode == "dynamic-update-slice" and parents[index] >= 0 and tensor not in within:
            stack, block = flow.operands[index][:2]
            inner = walk(flow, block, within | {tensor})
            if any(flow.shapes[t] == flow.shapes[tensor] for t in inner.inputs):
                for source, steps in inner.inputs.items():
                    inputs.setdefault(source, distance + steps + 1)
                roots += [root for root in inner.roots if root not in roots]
                seen |= inner.passed
                if stack not in seen:
                    seen.add(stack)
                    waiting.append((stack, distance + 1))
                continue
        sources = flow.sources(tensor)
        if opcode in _AROUND:
            sources = flow.operands[index][:1]
        if opcode not in _THROUGH and opcode not in _QUIET:
            roots.append(tensor)
        for source in sources:
            if source not in seen:
                seen.add(source)
                waiting.append((source, distance + 1))
    return Walk(inputs, roots, seen)


def find_updates(flow: Flow) -> list[Update]:
    """Pair outputs with the inputs whose place they take: the nearest of their type and shape.

    An input of the output's path comes before all others (``Graph.twins``), and one that has the
    path of another output after them. The nearest pairs are made first, of numbers those of the
    outputs that need most, which the loss does not; and an input that is taken is not taken again
    as long as there is another one. One that is returned as it is has no update.
    """
    graph, shapes = flow.graph, flow.shapes
    twin = dict(graph.twins)
    claimed = set(twin.values())
    kind = graph.element_type.tolist()
    inputs = set(graph.parameter_tensor.tolist())
    outputs = dict.fromkeys(graph.outputs.tolist())
    walks: dict[int, Walk] = {}
    pairs: list[tuple[int, int, int, int, int]] = []
    for output in outputs:
        if output in inputs or kind[output] not in FLOATING:
            continue
        walks[output] = walk(flow, output)
        last = 0 if shapes[output] else -int(flow.ancestors([output]).sum())  # a loss comes early
        near = [
            (_rank(source, twin.get(output), claimed), last, distance, source, output)
            for source, distance in walks[output].inputs.items()
            if kind[source] == kind[output] and shapes[source] == shapes[output]
        ]
        if near and (twin.get(output) is None or min(near)[0] < _OTHERS):
            pairs += near
    pairs.sort()
    source_of: dict[int, int] = {}
    taken: set[int] = set()
    for *_, source, output in pairs:
        if output not in source_of and source not in taken:
            source_of[output] = source
            taken.add(source)
    for *_, source, output in pairs:  # those of which all inputs are taken; a number is a loss
        if shapes[output] or source == twin.get(output):
            source_of.setdefault(output, source)
    handed_on = {t: output for output in outputs for t in _handed_on(flow, output)}
    return [
        Update(
            output,
            source_of[output],
            found.roots,
            {handed_on[t] for t in found.passed & handed_on.keys()} - {output},
        )
        for output, found in walks.items()
        if output in source_of
    ]


def _handed_on(flow: Flow, output: int) -> set[int]:
    """The output, and what the loops or branches that return it have computed it as."""
    waiting, made = [output], set()
    while waiting:
        tensor = waiting.pop()
        index = flow.producer[tensor]
        if index >= 0 and flow.opcode[index] != "parameter" and tensor not in made:
            made.add(tensor)
            if flow.opcode[index] in CARRIES:
                waiting += flow.before[tensor]
    return made


def _rank(source: int, twin: int | None, claimed: set[int]) -> int:
    """Which inputs come first: that of the output's path, those of no output's, the others."""
    return 0 if source == twin else _OTHERS if source in claimed else 1


def returned_gradients(
    flow: Flow, updates: list[Update], is_gradient: Callable[[int], bool] | None = None
) -> dict[int, int]:
    """Pair outputs that are gradients, or made of them, with inputs of their type and shape.

    So it is with ``jax.grad``, and with a cast copy of a variable that is kept elsewhere. First
    come those of which a root is the transpose of how the input is read; then, where there are
    any, those of the input's path (``Graph.twins``), and the others in order.

    Args:
        flow: the flow of data.
        updates: outputs that are paired already, see ``find_updates``.
        is_gradient: tells of an output whether it depends on gradients (default: it does not if
            its roots are needed for the gradients that were found first).
    """
    graph, shapes = flow.graph, flow.shapes
    kind = graph.element_type.tolist()
    taken = {u.output for u in updates} | set(graph.parameter_tensor.tolist())
    open_outputs = {
        t: walk(flow, t).roots
        for t in graph.outputs.tolist()
        if t not in taken and kind[t] in FLOATING and shapes[t]
    }
    sources = dict.fromkeys(t for t in graph.parameter_tensor.tolist() if kind[t] in FLOATING)
    for update in updates:
        sources.pop(update.source, None)
    pairs: dict[int, int] = {}

    def pair(qualifies: Callable[[int, int], bool]) -> None:
        for output in [t for t in open_outputs if t not in pairs]:
            for source in sources:
                alike = shapes[source] == shapes[output] and kind[source] == kind[output]
                if alike and qualifies(source, output):
                    pairs[output] = source
                    del sources[source]
                    break

    may_be = is_gradient or (lambda output: True)
    pair(
        lambda source, output: (
            may_be(output) and any(is_transpose(flow, source, r) for r in open_outputs[output])
        )
    )
    if is_gradient is None:
        found = [root for output in pairs for root in open_outputs[output]]
        needed = flow.ancestors(found)
        known = set(found)

        def is_gradient(output: int) -> bool:
            inner = [root for root in open_outputs[output] if root not in known]
            return bool(found) and not any(needed[root] for root in inner)

    gradient, twins = is_gradient, set(graph.twins)
    pair(lambda source, output: (output, source) in twins and gradient(output))
    pair(lambda source, output: bool(open_outputs[output]) and gradient(output))
    return pairs


def is_transpose(flow: Flow, source: int, root: int) -> bool:
    """Whether ``root`` reads what some product, convolution or gather combines ``source`` with."""
    index = flow.producer[root]
    opcode = flow.opcode[index]
    if opcode not in ("dot", "convolution", "scatter"):
        return False
    mine = {flow.origin(t) for t in flow.operands[index]} - {source}
    for reader in viewed_readers(flow, source):
        pair = flow.operands[reader]
        if flow.opcode[reader] in ("dot", "convolution", "gather") and reader != index:
            partners = {flow.origin(t) for t in pair} - {source}
            if partners & mine:
                return True
    return False


def viewed_readers(flow: Flow, tensor: int) -> list[int]:
    """Instructions that read a tensor, its casts, layouts and slices, inside loops as well."""
    readers: list[int] = []
    seen = {tensor}
    waiting = [tensor]
    while waiting:
        current = waiting.pop()
        readers += [r for r in flow.readers[current] if flow.opcode[r] not in _SEEN_THROUGH]
        for target in flow.after[current]:
            if flow.opcode[flow.producer[target]] in _SEEN_THROUGH and target not in seen:
                seen.add(target)
                waiting.append(target)
    return [r for r in readers if flow.opcode[r] != "return"]


def _losses(
    flow: Flow,
    updates: list[Update],
    returned: dict[int, int],
    roots: set[int],
    others: list[int],
) -> list[int]:
    """Of the outputs that are no updates, those that need least of the roots: the loss, metrics.

    They depend on an input that is updated or has a gradient, and on one that has neither.
    """
    changing = {u.source for u in updates} | set(returned.values())
    fixed = {t for t in flow.graph.parameter_tensor.tolist() if t not in changing}
    needed: dict[int, int] = {}
    for output in others:
        made_of = flow.ancestors([output])
        if any(made_of[t] for t in changing) and any(made_of[t] for t in fixed):
            needed[output] = sum(bool(made_of[root]) for root in roots)
    least = min(needed.values(), default=0)
    return [output for output, count in needed.items() if count == least < len(roots)]


def _statistics(
    flow: Flow, roots: set[int], transposed: list[tuple[int, int]], forward: np.ndarray
) -> set[int]:
    """Of the roots that the loss does not need, those that are sums of forward values alone.

    A product that is the transpose of how a variable is read has the cotangent as an operand. What
    is made of no cotangent, nor of what cotangents are made of, is a moment or a count.
    """
    given = flow.descendants(flow.graph.parameter_tensor.tolist())
    known = {root for _, root in transposed}
    cotangents = {
        t
        for root in known
        for t in flow.operands[flow.producer[root]]
        if given[t] and not forward[flow.origin(t)]
    }
    if not cotangents:
        return set()
    backward = flow.ancestors(cotangents) & given & ~forward
    made_of = flow.descendants([*np.flatnonzero(backward).tolist(), *known])
    return {root for root in roots if given[root] and not made_of[root]}


def _gradients(flow: Flow, updates: list[Update], roots: set[int]) -> set[int]:
    """The gradients proper: without the roots that an update makes of them, in their last form.

    Those depend on an updated value, as an orthogonalised momentum does, or are reductions of
    gradients that no other root needs, as the means of squares in Adafactor. The last form is
    behind casts, layouts and sums of several gradients of one variable.
    """
    changed = flow.descendants(u.output for u in updates if roots.intersection(u.roots))
    made_of_roots = flow.descendants(t for root in roots for t in flow.after[root])
    needed = flow.ancestors(t for root in roots for t in flow.before[root])
    proper = {
        root
        for root in roots
        if not changed[root]
        and (
            flow.opcode[flow.producer[root]] != "reduce" or not made_of_roots[root] or needed[root]
        )
    } or roots
    waiting, last = list(proper), set(proper)
    while waiting:
        for tensor in flow.after[waiting.pop()]:
            opcode = flow.opcode[flow.producer[tensor]]
            summed = opcode == "add" and all(t in last for t in flow.sources(tensor))
            if (opcode in VIEWS or summed) and tensor not in last:
                last.add(tensor)
                waiting.append(tensor)
    return last


def _first_readers(
    flow: Flow, updates: list[Update], returned: dict[int, int], roots: set[int]
) -> list[int]:
    """Results of the first instruction that combines each variable with something."""
    needed = flow.ancestors(roots)
    first = []
    for source in {u.source for u in updates} | set(returned.values()):
        readers = [r for r in viewed_readers(flow, source) if any(needed[flow.results[r]])]
        if needed[source] and readers:
            first += flow.results[min(readers)]
    return first


def _by_source(
    flow: Flow, updates: list[Update], returned: dict[int, int]
) -> list[tuple[int, list[int]]]:
    """Each input that is updated or has a gradient, and the roots of that."""
    pairs = [(u.source, u.roots) for u in updates]
    return pairs + [(source, walk(flow, output).roots) for output, source in returned.items()]
