"""Phases of a training step, by the scopes of its instructions or else by the flow of its data.

Automatic differentiation leaves its scopes in ``op_name``: ``jvp(...)`` forward and
``transpose(jvp(...))`` backward. The outermost counts: a gradient that a loss is made of, as in a
penalty on gradients, is forward, ``jvp(transpose(jvp(...)))``. Text printed without metadata, and
tools that strip it, lose them; then the backward pass is what the variables' gradients need and the
loss does not.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from parenvs.graph.flow import CARRIES, Flow
from parenvs.graph.graph import Graph, Phase
from parenvs.graph.training import Training

_FORWARD, _BACKWARD, _UPDATE = map(int, Phase)
_UNKNOWN = -1
_DIFFERENTIATION = re.compile(r"\bjvp\(|\btranspose\(")
_OUTERMOST = "/jit(main)/"
"""In names of JAX before 0.7. Its scopes of differentiation stand around named functions alone."""


def with_phases(graph: Graph, flow: Flow) -> Graph:
    """Return the graph with the phase of each instruction, and a note if it had to be inferred."""
    names = [graph.strings[i] for i in graph.op_name.tolist()]
    by_scope = scope_phases(names)
    if _BACKWARD in by_scope:
        if any(_OUTERMOST in name for name in names):
            by_scope = _completed(flow, by_scope)
        return replace(graph, phase=_filled(flow, by_scope, _UPDATE))
    training = Training.of(flow)
    named = any(graph.strings[i] for i in np.unique(graph.op_name[_computing(flow)]).tolist())
    if training is None or (named and not training.certain):
        notes = graph.notes
        if not named and len(graph.outputs) > 1:
            notes += (
                "the module has no scopes and no gradient was found in its data flow; every "
                "instruction is taken as forward; roles rest on that",
            )
        return replace(graph, phase=np.zeros(len(by_scope), dtype=np.uint8), notes=notes)
    phase = _flow_phases(flow, training)
    used = flow.makers(flow.ancestors(flow.graph.outputs.tolist()))
    phase[~used & (flow.graph.parent < 0)] = _FORWARD  # a loss that is not returned
    told = (
        "what its loss needs is forward"
        if training.losses
        else "it returns no loss, so forward is what the first readers of its variables need"
    )
    note = (
        f"the module has no scopes of automatic differentiation; its phases follow from its data "
        f"flow: {told}, what the gradients need besides is backward; roles rest on that"
    )
    return replace(graph, phase=_filled(flow, phase.tolist(), _FORWARD), notes=(*graph.notes, note))


def _flow_phases(flow: Flow, training: Training) -> np.ndarray:
    """(I,) phase of what the losses and the gradients are made of, -1 elsewhere."""
    phase = np.full(len(flow.graph.op_name), _UNKNOWN)
    phase[flow.makers(training.backward)] = _BACKWARD
    phase[flow.makers(training.forward)] = _FORWARD
    return phase


def _completed(flow: Flow, by_scope: list[int]) -> list[int]:
    """Give what has no scope the phase that the data flow tells, if it tells it for certain."""
    training = Training.of(flow)
    if training is None or not training.certain:
        return by_scope
    by_flow = _flow_phases(flow, training).tolist()
    return [other if scope < 0 else scope for scope, other in zip(by_scope, by_flow, strict=True)]


def scope_phases(names: list[str]) -> list[int]:
    """(I,) phase by the scopes in each ``op_name``, -1 where it has none."""
    by_name: dict[str, int] = {}
    for name in names:
        if name not in by_name:
            outermost = _DIFFERENTIATION.search(name)
            scope = {None: _UNKNOWN, "jvp(": _FORWARD, "transpose(": _BACKWARD}
            by_name[name] = scope[outermost and outermost.group()]
    return [by_name[name] for name in names]


def _filled(flow: Flow, known: list[int], unused: int) -> np.ndarray:
    """Give a phase to the instructions whose ``known`` phase is -1.

    An instruction is update if it depends on the backward pass; else it has the earliest phase
    among its users, or ``unused`` if nothing uses it. Instructions inside a loop or branch have
    its phase, unless it has no scope and holds a backward pass of its own: then they have theirs,
    those of a loop are no update, and it is forward.
    """
    phase = list(known)
    parents = flow.graph.parent.tolist()
    mixed = _mixed(flow, phase, parents)
    for outer in mixed:
        phase[outer] = _FORWARD
    backward = [t for i, p in enumerate(phase) if p == _BACKWARD for t in flow.results[i]]
    after_backward = flow.descendants(backward)
    for index, results in enumerate(flow.results):
        reads = flow.operands[index] if index not in mixed else []
        if phase[index] < 0 and (
            any(after_backward[t] for t in reads) or any(after_backward[t] for t in results)
        ):
            phase[index] = _UPDATE
    earliest = [_UPDATE + 1] * len(flow.before)  # more than any phase: nothing uses it
    for t in flow.graph.outputs.tolist():
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
    return np.array(phase, dtype=np.uint8)


def _mixed(flow: Flow, phase: list[int], parents: list[int]) -> set[int]:
    """Loops and branches without a phase of their own that hold forward and backward ones."""
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


def _computing(flow: Flow) -> np.ndarray:
    """(I,) bool: instructions that are neither parameters, constants nor structure."""
    quiet = {"parameter", "constant", "iota", "return", *CARRIES}
    return np.array([opcode not in quiet for opcode in flow.opcode])
