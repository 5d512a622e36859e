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
        if update.source in frozen:
            dropped.add(update.output)
        elif role[update.source] == Role.OPTIMISER and trained.isdisjoint(update.roots):
            dropped.add(update.output)
            state.add(update.source)
    if not dropped:
        return graph
    outputs = [t for t in graph.outputs.tolist() if t not in dropped]
    made = flow.makers(flow.ancestors(outputs))
    top = graph.parent < 0
    parameter = np.array([opcode == "parameter" for opcode in flow.opcode]) & top
    lost = np.array([bool(state.intersection(made)) for made in flow.results])
    kept = (made & top) | (parameter & ~lost)
    # A loop or branch stays whole, or goes whole.
    holders = [i for i, opcode in enumerate(flow.opcode) if opcode in ("while", "conditional")]
    needed = flow.ancestors(outputs)
    for index in holders:
        kept[index] = top[index] and any(needed[t] for t in flow.results[index])
    outer = graph.parent.copy()
    while (outer >= 0).any():  # inside instructions share the fate of the one at the top
        inner = outer >= 0
        above = graph.parent[outer[inner]]
        done = above < 0
        places = np.flatnonzero(inner)
        kept[places[done]] = kept[outer[places[done]]]
        outer[places] = np.where(done, -1, above)
    note = (
        f"gradients, updates and optimiser state of {len(frozen)} frozen weights are left "
        "out of the step"
    )
    selected = _selected(graph, kept, np.array(outputs, dtype=np.int32), state)
    return replace(selected, notes=(*graph.notes, note))


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
