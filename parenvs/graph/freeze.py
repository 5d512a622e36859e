"""Leaves out of a training step what only its frozen weights need."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parenvs.graph.flow import Flow
from parenvs.graph.graph import Graph, Role
from parenvs.graph.training import find_updates


def without_updates(graph: Graph, frozen: set[int], flow: Flow) -> Graph:
    """Return the graph without the gradients, updates and optimiser state of some weights.

    Their new values are no outputs any more, nor are those of optimiser state that is made of no
    other weight's gradient. Instructions that no output needs go, and so does that state.

    Args:
        graph: the graph, with phases and roles.
        frozen: tensors of the weights.
        flow: the graph's flow.
    """
    updates = find_updates(flow)
    role = dict(zip(graph.parameter_tensor.tolist(), graph.parameter_role.tolist(), strict=True))
    trained = {r for u in updates if role[u.source] == Role.VARIABLE for r in u.roots}
    dropped, state = set(), set()
    for update in updates:
        is_state = role[update.source] == Role.OPTIMISER and update.roots
        if is_state and trained.isdisjoint(update.roots):
            state.add(update.source)
        if update.source in state | frozen:
            dropped.add(update.output)
    if not dropped:
        return graph
    outputs = [t for t in graph.outputs.tolist() if t not in dropped]
    kept, needed = _live(flow, outputs)
    state -= needed
    for index, made in enumerate(flow.results):
        if flow.opcode[index] == "parameter" and graph.parent[index] < 0:
            kept[index] = state.isdisjoint(made)
    for index, outer in enumerate(graph.parent.tolist()):  # parents stand before what is in them
        if outer >= 0:
            kept[index] = kept[outer]
    note = (
        f"gradients, updates and optimiser state of {len(frozen)} frozen weights are left "
        "out of the step"
    )
    selected = _selected(graph, kept, np.array(outputs, dtype=np.int32), state)
    return replace(selected, notes=(*graph.notes, note))


def _live(flow: Flow, outputs: list[int]) -> tuple[np.ndarray, set[int]]:
    """The instructions at the top that outputs need, (I,) bool, and all that those read or make.

    A loop or branch that is needed needs all that it takes, whatever becomes of it.
    """
    live = np.zeros(len(flow.opcode), dtype=bool)
    needed = set(outputs)
    waiting = list(needed)
    while waiting:
        index = flow.producer[waiting.pop()]
        if not live[index]:
            live[index] = True
            more = needed.union(flow.operands[index]) - needed
            needed |= more
            waiting += more
    return live, needed


def _selected(graph: Graph, kept: np.ndarray, outputs: np.ndarray, gone: set[int]) -> Graph:
    """The graph of the instructions ``kept``, (I,) bool, without the entry parameters ``gone``."""
    rows = np.flatnonzero(kept)
    number = np.cumsum(kept) - 1
    columns = ("opcode", "flops", "bytes_accessed", "phase", "free", "op_name", "attribute")
    parent = graph.parent[rows]
    stay = ~np.isin(graph.parameter_tensor, sorted(gone))
    inputs = ("parameter_tensor", "parameter_path", "parameter_argument", "parameter_role")
    operands, results = graph.uses(rows), graph.makes(rows)

    def offsets(owner: np.ndarray) -> np.ndarray:
        return np.append(0, np.cumsum(np.bincount(owner, minlength=len(rows)))).astype(np.int32)

    return replace(
        graph,
        **{name: getattr(graph, name)[rows] for name in columns},
        **{name: getattr(graph, name)[stay] for name in inputs},
        parent=np.where(parent < 0, -1, number[parent]).astype(np.int32),
        operands=operands[1],
        operand_offset=offsets(operands[0]),
        results=results[1],
        result_offset=offsets(results[0]),
        outputs=outputs,
    )
