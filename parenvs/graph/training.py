"""Finds the training step in a module's data flow: its updates, gradients and losses.

An **update** is an output that takes an input's place: it is made of the input one element for one,
as in ``w - rate * g``, and has its type and shape. What else it is made of, one for one, ends in
its **roots**: matrix products, reductions, scatters. Roots that the loss does not need are
gradients. The step is a **certain** one if a gradient is the transpose of how its variable is
read: a product that reads what the variable was multiplied with, a scatter at the rows that were
gathered.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from parenvs.compiled import Array
from parenvs.graph.checks import FLOATING
from parenvs.graph.flow import CARRIES, PARTS, VIEWS, Flow, reachable
from parenvs.graph.graph import Graph, Phase, Role
from parenvs.graph.opcodes import ELEMENTWISE

_QUIET = {"constant", "iota", "broadcast", "rng", "rng-bit-generator"}
"""Opcodes at which the search for roots ends without one."""
_AROUND = ("scatter", "dynamic-update-slice", "pad")
"""Opcodes whose result holds the elements of their first operand, but for what else is written."""
_THROUGH = ELEMENTWISE | VIEWS | PARTS | {"pad", "parameter", *CARRIES}
"""Opcodes at which there is no root."""
_CLAIMED = 2
"""Rank of inputs whose path is that of another output."""
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
    forward: Array
    backward: Array
    certain: bool

    @classmethod
    def of(cls, flow: Flow) -> Training | None:
        """Find the step, or None if the data flow shows no gradient."""
        updates = find_updates(flow)
        returned = returned_gradients(flow, updates)
        paired = {u.output for u in updates} | set(returned)
        candidates = [
            t
            for t in dict.fromkeys(flow.outputs)
            if t not in paired and flow.types[t] in FLOATING and flow.producer[t] >= 0
        ]
        pairs = [(update.source, update.roots) for update in updates]
        pairs += [(source, walk(flow, output).roots) for output, source in returned.items()]
        changing = {source for source, _ in pairs}
        roots = {root for _, ends in pairs for root in ends}
        if not roots:
            return None
        # Losses and metrics are made of few roots; a norm of the gradients is made of all.
        losses = _losses(flow, changing, roots, candidates)
        # Without a loss among the outputs, the forward pass is what first reads the variables.
        forward = flow.ancestors(losses or _first_readers(flow, changing, roots))
        gradients = {root for root in roots if not forward[root]}
        transposed = [
            (source, root)
            for source, ends in pairs
            for root in ends
            if root in gradients and is_transpose(flow, source, root)
        ]
        scalar = any(not flow.shapes[t] for t in losses)
        # Evidence of differentiation: a transposed read, or a scalar loss beside updates.
        if not gradients or not (transposed or (scalar and updates)):
            return None
        gradients -= _statistics(flow, gradients, {root for _, root in transposed}, forward)
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
    blocks are; else it is a root. ``within`` holds the stacks whose blocks are being followed.
    """
    inputs: dict[int, int] = {}
    roots: list[int] = []
    seen = {output}
    # Breadth first, so that ``distance`` is the least number of steps to an input.
    queue = deque([(output, 0)])
    parents = flow.graph.parent
    while queue:
        tensor, distance = queue.popleft()
        index, opcode = flow.producer[tensor], flow.opcode_of(tensor)
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
                    queue.append((stack, distance + 1))
                continue
        sources = flow.sources(tensor)
        if opcode in _AROUND:
            sources = flow.operands[index][:1]
        # A product, reduction or scatter ends what is made one for one.
        if opcode not in _THROUGH and opcode not in _QUIET:
            roots.append(tensor)
        for source in sources:
            if source not in seen:
                seen.add(source)
                queue.append((source, distance + 1))
    return Walk(inputs, roots, seen)


def find_updates(flow: Flow) -> list[Update]:
    """Pair outputs with the inputs whose place they take: the nearest of their type and shape.

    An input of the output's path comes before all others (``Graph.twins``), and one that has the
    path of another output after them. The nearest pairs are made first, and an input is not taken
    twice as long as there is another one. One that is returned as it is has no update.
    """
    shapes, types = flow.shapes, flow.types
    twin_of = dict(flow.graph.twins)
    claimed, inputs = set(twin_of.values()), set(flow.inputs)
    outputs = dict.fromkeys(flow.outputs)
    walks: dict[int, Walk] = {}
    pairs: list[tuple[int, int, int, int, int]] = []
    for output in outputs:
        if output in inputs or types[output] not in FLOATING:
            continue
        walks[output] = walk(flow, output)
        order = 0 if shapes[output] else -int(flow.ancestors([output]).sum())  # a loss comes early
        candidates = []
        for source, distance in walks[output].inputs.items():
            if types[source] == types[output] and shapes[source] == shapes[output]:
                rank = 0 if source == twin_of.get(output) else _CLAIMED if source in claimed else 1
                candidates.append((rank, order, distance, source, output))
        if candidates and (twin_of.get(output) is None or min(candidates)[0] < _CLAIMED):
            pairs += candidates
    # Nearest first, so that moments do not take the input that a weight's new value is nearer to.
    pairs.sort()
    source_of: dict[int, int] = {}
    taken: set[int] = set()
    for *_, source, output in pairs:
        if output not in source_of and source not in taken:
            source_of[output] = source
            taken.add(source)
    for *_, source, output in pairs:  # those of which all inputs are taken; a number is a loss
        if shapes[output] or source == twin_of.get(output):
            source_of.setdefault(output, source)
    # An update may read another output's value before a loop or branch returns it.
    output_of = {t: output for output in outputs for t in _computed_as(flow, output)}
    updates = []
    for output in filter(source_of.__contains__, walks):
        passed = {output_of[t] for t in walks[output].passed & output_of.keys()} - {output}
        updates.append(Update(output, source_of[output], walks[output].roots, passed))
    return updates


def _computed_as(flow: Flow, output: int) -> set[int]:
    """The output, and what the loops or branches that return it have computed it as."""
    sources = reachable([output], lambda t: flow.before[t] if flow.opcode_of(t) in CARRIES else ())
    return {tensor for tensor in sources if flow.opcode_of(tensor) != "parameter"}


def returned_gradients(
    flow: Flow, updates: list[Update], is_gradient: Callable[[int], bool] | None = None
) -> dict[int, int]:
    """Pair outputs that are gradients, or made of them, with inputs of their type and shape.

    So it is with ``jax.grad``, and with a cast copy of a variable that is kept elsewhere. First
    come those of which a root is the transpose of how the input is read; then, where there are
    any, those of the input's path (``Graph.twins``), and the others in order. ``is_gradient``
    defaults to whether the output's roots are needed for the gradients that were found first.
    """
    shapes, types = flow.shapes, flow.types
    others = {*(u.output for u in updates), *flow.inputs}
    open_outputs = {
        t: walk(flow, t).roots
        for t in flow.outputs
        if t not in others and types[t] in FLOATING and shapes[t]
    }
    sources = dict.fromkeys(t for t in flow.inputs if types[t] in FLOATING)
    for update in updates:
        sources.pop(update.source, None)
    pairs: dict[int, int] = {}

    def pair(qualifies: Callable[[int, int], bool]) -> None:
        for output in [t for t in open_outputs if t not in pairs]:
            for source in sources:
                same_type = shapes[source] == shapes[output] and types[source] == types[output]
                if same_type and qualifies(source, output):
                    pairs[output] = source
                    del sources[source]
                    break

    may_be = is_gradient or (lambda output: True)
    # Certain pairs first: a later, weaker test only sees the inputs that are left.
    pair(
        lambda source, output: (
            may_be(output) and any(is_transpose(flow, source, r) for r in open_outputs[output])
        )
    )
    if is_gradient is None:
        known_roots = [root for output in pairs for root in open_outputs[output]]
        needed = flow.ancestors(known_roots)
        known = set(known_roots)

        def is_gradient(output: int) -> bool:
            inner = [root for root in open_outputs[output] if root not in known]
            return bool(known_roots) and not any(needed[root] for root in inner)

    gradient, twins = is_gradient, set(flow.graph.twins)
    pair(lambda source, output: (output, source) in twins and gradient(output))
    pair(lambda source, output: bool(open_outputs[output]) and gradient(output))
    return pairs


def is_transpose(flow: Flow, source: int, root: int) -> bool:
    """Whether ``root`` reads what some product, convolution or gather combines ``source`` with."""
    index = flow.producer[root]
    opcode = flow.opcode[index]
    if opcode not in ("dot", "convolution", "scatter"):
        return False
    # y = x w has dL/dw = x^T dL/dy: the gradient's product reads w's partner x again.
    gradient_operands = {flow.origin(t) for t in flow.operands[index]} - {source}
    for reader in viewed_readers(flow, source):
        operands = flow.operands[reader]
        if flow.opcode[reader] in ("dot", "convolution", "gather") and reader != index:
            partners = {flow.origin(t) for t in operands} - {source}
            if partners & gradient_operands:
                return True
    return False


def viewed_readers(flow: Flow, tensor: int) -> list[int]:
    """Instructions that read a tensor, its casts, layouts and slices, inside loops as well."""

    def views(source: int) -> list[int]:
        return [t for t in flow.after[source] if flow.opcode[flow.producer[t]] in _SEEN_THROUGH]

    readers = [r for source in reachable([tensor], views) for r in flow.readers[source]]
    return [r for r in readers if flow.opcode[r] not in _SEEN_THROUGH | {"return"}]


def _losses(flow: Flow, changing: set[int], roots: set[int], candidates: list[int]) -> list[int]:
    """Of the outputs that are no updates, those that need least of the roots: the loss, metrics."""
    fixed = set(flow.inputs) - changing
    needed: dict[int, int] = {}
    for output in candidates:
        made_of = flow.ancestors([output])
        if any(made_of[t] for t in changing) and any(made_of[t] for t in fixed):
            needed[output] = sum(bool(made_of[root]) for root in roots)
    least = min(needed.values(), default=0)
    return [output for output, count in needed.items() if count == least < len(roots)]


def _statistics(flow: Flow, roots: set[int], known: set[int], forward: Array) -> set[int]:
    """Of the roots that the loss does not need, those that are sums of forward values alone.

    A product that is the transpose of how a variable is read (``known``) has the cotangent as an
    operand. What is made of no cotangent, nor of what these are made of, is a moment or a count.
    """
    given = flow.descendants(flow.inputs)
    operands = [t for root in known for t in flow.operands[flow.producer[root]]]
    cotangents = {t for t in operands if given[t] and not forward[flow.origin(t)]}
    if not cotangents:
        return set()
    backward = flow.ancestors(cotangents) & given & ~forward
    made_of = flow.descendants([*np.flatnonzero(backward).tolist(), *known])
    return {root for root in roots if given[root] and not made_of[root]}


def _gradients(flow: Flow, updates: list[Update], roots: set[int]) -> set[int]:
    """The gradients proper: without the roots that an update makes of them, in their last form.

    Roots of an update depend on an updated value (an orthogonalized momentum), or are reductions of
    gradients that no other root needs (Adafactor's means of squares). The last form is behind
    casts, layouts and sums of several gradients of one variable.
    """
    changed = flow.descendants(u.output for u in updates if roots.intersection(u.roots))
    made_of_roots = flow.descendants(t for root in roots for t in flow.after[root])
    needed = flow.ancestors(t for root in roots for t in flow.before[root])
    means = {r for r in roots if flow.opcode[flow.producer[r]] == "reduce" and made_of_roots[r]}
    proper = {r for r in roots if not changed[r] and (r not in means or needed[r])} or roots
    stack, final = list(proper), set(proper)
    while stack:
        for tensor in flow.after[stack.pop()]:
            opcode = flow.opcode[flow.producer[tensor]]
            summed = opcode == "add" and all(t in final for t in flow.sources(tensor))
            if (opcode in VIEWS or summed) and tensor not in final:
                final.add(tensor)
                stack.append(tensor)
    return final


def _first_readers(flow: Flow, changing: set[int], roots: set[int]) -> list[int]:
    # Without a loss, the gradients' ancestors that read a weight first are where the model begins.
    needed = flow.ancestors(roots)
    first = []
    for source in changing:
        readers = [r for r in viewed_readers(flow, source) if any(needed[flow.results[r]])]
        if needed[source] and readers:
            first += flow.results[min(readers)]
    return first


_FORWARD, _BACKWARD, _UPDATE = map(int, Phase)
_UNKNOWN = -1
_SCOPES = {None: _UNKNOWN, "jvp(": _FORWARD, "transpose(": _BACKWARD}
_DIFFERENTIATION = re.compile(r"\bjvp\(|\btranspose\(")
_NAMELESS = ("parameter", "constant", "iota", "return", *CARRIES)
"""Opcodes that compute nothing, so that their scopes say nothing."""
_OUTERMOST = "/jit(main)/"
"""In names of JAX before 0.7. Its scopes of differentiation stand around named functions alone."""


def with_phases(graph: Graph, flow: Flow) -> Graph:
    """Return the graph with the phase of each instruction, and a note if it had to be inferred."""
    names = [graph.strings[i] for i in graph.op_name.tolist()]
    by_scope = scope_phases(names)
    if _BACKWARD in by_scope:
        if any(_OUTERMOST in name for name in names):
            # What has no scope gets the phase of the data flow, if that is certain.
            training = Training.of(flow)
            if training is not None and training.certain:
                by_flow = _flow_phases(flow, training).tolist()
                pairs = zip(by_scope, by_flow, strict=True)
                by_scope = [other if scope < 0 else scope for scope, other in pairs]
        return replace(graph, phase=_filled(flow, by_scope, _UPDATE))
    training = Training.of(flow)
    computed = [opcode not in _NAMELESS for opcode in flow.opcode]
    named = any(graph.strings[i] for i in np.unique(graph.op_name[computed]).tolist())
    if training is None or (named and not training.certain):
        notes = graph.notes
        if not named and len(graph.outputs) > 1:
            notes += (
                "the module has no scopes and no gradient was found in its data flow; every "
                "instruction is taken as forward; roles rest on that",
            )
        return replace(graph, phase=np.zeros(len(by_scope), np.uint8), notes=notes)
    phase = _flow_phases(flow, training)
    used = flow.producers(flow.ancestors(flow.outputs))
    phase[~used & (flow.graph.parent < 0)] = _FORWARD  # a loss that is not returned
    basis = (
        "what its loss needs is forward"
        if training.losses
        else "it returns no loss, so forward is what the first readers of its variables need"
    )
    note = (
        f"the module has no scopes of automatic differentiation; its phases follow from its data "
        f"flow: {basis}, what the gradients need besides is backward; roles rest on that"
    )
    return replace(graph, phase=_filled(flow, phase.tolist(), _FORWARD), notes=(*graph.notes, note))


def _flow_phases(flow: Flow, training: Training) -> Array:
    """(I,) phase of what the losses and the gradients are made of, -1 elsewhere."""
    phase = np.full(len(flow.opcode), _UNKNOWN)
    phase[flow.producers(training.backward)] = _BACKWARD
    phase[flow.producers(training.forward)] = _FORWARD
    return phase


def scope_phases(names: list[str]) -> list[int]:
    """(I,) phase by the scopes in each ``op_name``, -1 where it has none."""
    by_name: dict[str, int] = {}
    for name in set(names):
        outermost = _DIFFERENTIATION.search(name)
        by_name[name] = _SCOPES[outermost and outermost.group()]
    return [by_name[name] for name in names]


def _filled(flow: Flow, known: list[int], unused: int) -> Array:
    """Give a phase to the instructions whose ``known`` phase is -1.

    An instruction is update if it depends on the backward pass; else it has the earliest phase
    among its users, or ``unused`` if nothing uses it. Instructions inside a loop or branch have
    its phase, unless it has no scope and holds a backward pass of its own: then they have theirs,
    those of a loop are no update, and it is forward.
    """
    phase = list(known)
    parents = flow.graph.parent.tolist()
    mixed = _with_both_passes(phase, parents)
    for outer in mixed:
        phase[outer] = _FORWARD
    backward = [t for i, p in enumerate(phase) if p == _BACKWARD for t in flow.results[i]]
    after_backward = flow.descendants(backward)
    for index, results in enumerate(flow.results):
        reads = flow.operands[index] if index not in mixed else []
        if phase[index] < 0 and any(after_backward[t] for t in (*reads, *results)):
            phase[index] = _UPDATE
    # Backwards, so that the users of an instruction have their phase before it.
    earliest = [_UPDATE + 1] * len(flow.before)  # more than any phase: nothing uses it
    for t in flow.outputs:
        earliest[t] = _UPDATE
    for index in range(len(phase) - 1, -1, -1):
        if phase[index] < 0:
            used = min((earliest[t] for t in flow.results[index]), default=_UPDATE)
            phase[index] = used if used <= _UPDATE else unused
        for t in flow.operands[index]:
            earliest[t] = min(earliest[t], phase[index])
    for index, outer in enumerate(parents):  # parents stand before their instructions
        if outer >= 0 and outer not in mixed:
            phase[index] = phase[outer]
        elif flow.opcode[outer] == "while" and known[index] < 0 and phase[index] == _UPDATE:
            inherits = any(after_backward[t] for t in flow.operands[index])
            phase[index] = _BACKWARD if inherits else _FORWARD
    return np.array(phase, np.uint8)


def _with_both_passes(phase: list[int], parents: list[int]) -> set[int]:
    """Loops and branches that hold a backward pass, and a forward one or no phase by scope."""
    inside: dict[int, set[int]] = {}
    for index in range(len(phase) - 1, -1, -1):  # instructions inside have higher numbers
        outer = parents[index]
        if outer >= 0:
            inside.setdefault(outer, set()).update({phase[index]}, inside.get(index, set()))
    return {
        outer
        for outer, phases in inside.items()
        if _BACKWARD in phases and (phase[outer] < 0 or _FORWARD in phases)
    }


def without_updates(graph: Graph, frozen: set[int], flow: Flow) -> Graph:
    """Return the graph without the gradients, updates and optimizer state of ``frozen`` weights.

    Their new values are no outputs any more, nor are those of optimizer state that is made of no
    other weight's gradient. Instructions that no output needs go, and so does that state.
    """
    updates = find_updates(flow)
    role = dict(zip(flow.inputs, graph.parameter_role.tolist(), strict=True))
    trained = {r for u in updates if role[u.source] == Role.VARIABLE for r in u.roots}
    dropped, state = set(), set()
    for update in updates:
        is_state = role[update.source] == Role.OPTIMIZER and update.roots
        if is_state and trained.isdisjoint(update.roots):
            state.add(update.source)
        if update.source in state | frozen:
            dropped.add(update.output)
    if not dropped:
        return graph
    outputs = [t for t in flow.outputs if t not in dropped]
    # A loop or branch that is needed needs all that it takes, whatever becomes of it.
    needed = reachable(outputs, lambda t: flow.operands[flow.producer[t]])
    retained = np.zeros(len(flow.opcode), bool)
    retained[[flow.producer[t] for t in needed]] = True
    # State that other weights' updates need, too, stays: a shared step count.
    state -= needed
    for index, results in enumerate(flow.results):
        if flow.opcode[index] == "parameter" and graph.parent[index] < 0:
            retained[index] = state.isdisjoint(results)
    for index, outer in enumerate(graph.parent.tolist()):  # parents stand before what is in them
        if outer >= 0:
            retained[index] = retained[outer]
    note = (
        f"gradients, updates and optimizer state of {len(frozen)} frozen weights are left "
        "out of the step"
    )
    selected = _subgraph(graph, retained, np.array(outputs, np.int32), state)
    return replace(selected, notes=(*graph.notes, note))


def _subgraph(graph: Graph, retained: Array, outputs: Array, dropped: set[int]) -> Graph:
    """Return the graph of the retained instructions, without ``dropped`` inputs, renumbered."""
    rows = np.flatnonzero(retained)
    new_index = np.cumsum(retained) - 1
    columns = ("opcode", "flops", "bytes_accessed", "phase", "free", "op_name", "attribute")
    parent = graph.parent[rows]
    remaining = ~np.isin(graph.parameter_tensor, sorted(dropped))
    inputs = ("parameter_tensor", "parameter_path", "parameter_argument", "parameter_role")
    users, operands = graph.uses(rows)
    makers, results = graph.makes(rows)

    def offsets(owner: Array) -> Array:
        return np.append(0, np.cumsum(np.bincount(owner, minlength=len(rows)))).astype(np.int32)

    return replace(
        graph,
        **{name: getattr(graph, name)[rows] for name in columns},
        **{name: getattr(graph, name)[remaining] for name in inputs},
        parent=np.where(parent < 0, -1, new_index[parent]).astype(np.int32),
        operands=operands,
        operand_offset=offsets(users),
        results=results,
        result_offset=offsets(makers),
        outputs=outputs,
    )
