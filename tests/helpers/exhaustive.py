"""The dimension classes of small graphs by exhaustive search, and random graphs to search.

Nothing here knows about classes: an assignment says of every dimension of every tensor whether it
is split, and is legal if each instruction splits at most one of its factors, all members of it
together, and no dimension that is in none of them.
"""

import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parenvs.graph.opcodes import Instruction, Kind, factors_of


class TooMany(Exception):
    """More legal assignments than the search may hold."""


@dataclass(frozen=True)
class Search:
    """Every legal assignment of one graph.

    Attributes:
        dims: (D,) positions in ``graph.dims`` of the dimensions larger than 1 that an instruction
            touches, tensors that are free left out.
        legal: (A, D) bool, the legal assignments.
        tried: number of assignments looked at, of single instructions and of their combinations.
    """

    dims: np.ndarray
    legal: np.ndarray
    tried: int

    @cached_property
    def split(self):
        """(D,) number of legal assignments that split each dimension."""
        return self.legal.sum(axis=0)

    @cached_property
    def both(self):
        """(D, D) number of legal assignments that split each pair of dimensions."""
        # Float products are exact up to 2**24 and fast; whole numbers would take no BLAS.
        return (self.legal.T.astype(np.float32) @ self.legal.astype(np.float32)).astype(int)


def search(graph, rules="shardy", limit=100_000):
    """All legal assignments, by joining those of one instruction after the other.

    Raises:
        TooMany: there are more than ``limit``, on the way or in the end.
    """
    column = {}
    legal, tried = np.zeros((1, 0), dtype=bool), 0
    for members, touched in constraints(graph, rules):
        local = every(len(touched))
        tried += len(local)
        local = local[allowed(local, [[touched.index(x) for x in m] for m in members])]
        known = [k for k, x in enumerate(touched) if x in column]
        new = [k for k, x in enumerate(touched) if x not in column]
        # Both sides by what they say of the dimensions that both have.
        weights = 1 << np.arange(len(known))
        mine = legal[:, [column[touched[k]] for k in known]] @ weights
        theirs = local[:, known] @ weights
        parts = []
        for key, row in zip(theirs, local[:, new], strict=True):
            match = legal[mine == key]
            parts.append(np.column_stack([match, np.tile(row, (len(match), 1))]))
        legal = np.concatenate(parts)
        tried += len(legal)
        if len(legal) > limit:
            raise TooMany(len(legal))
        column |= {touched[k]: len(column) + n for n, k in enumerate(new)}
    return Search(np.array(list(column), dtype=int), legal, tried)


def every(count):
    """(2**count, count) bool: all assignments of so many dimensions."""
    if count > 18:
        raise TooMany(2**count)
    return (np.arange(2**count)[:, None] >> np.arange(count) & 1).astype(bool)


def allowed(table, factors):
    """(A,) bool: which assignments of an instruction's dimensions it allows, given its factors."""
    in_none = [x for x in range(table.shape[1]) if all(x not in members for members in factors)]
    keep = ~table[:, in_none].any(axis=1)
    split = np.zeros(len(table), dtype=int)
    for members in factors:
        part = table[:, members]
        keep &= part.all(axis=1) | ~part.any(axis=1)
        split += part.any(axis=1)
    return keep & (split <= 1)


def constraints(graph, rules):
    """(members of each factor, all dimensions touched) of every instruction that is not free."""
    free = {
        tensor
        for i in np.flatnonzero(graph.free)
        for tensor in graph.results[graph.result_offset[i] : graph.result_offset[i + 1]].tolist()
    }
    for i in np.flatnonzero(~graph.free):
        opcode = graph.opcodes[graph.opcode[i]]
        assert opcode not in ("while", "conditional"), "no rule of its own"
        if opcode == "parameter":
            continue
        ins = graph.operands[graph.operand_offset[i] : graph.operand_offset[i + 1]].tolist()
        outs = graph.results[graph.result_offset[i] : graph.result_offset[i + 1]].tolist()
        slots = {**dict(enumerate(ins)), **{-1 - k: t for k, t in enumerate(outs)}}
        shapes = {slot: graph.shape(t) for slot, t in slots.items()}
        start = {slot: int(graph.dim_offset[t]) for slot, t in slots.items() if t not in free}
        factors = factors_of(
            Instruction(
                opcode,
                json.loads(graph.strings[graph.attribute[i]] or "{}"),
                [shapes[k] for k in range(len(ins))],
                [shapes[-1 - k] for k in range(len(outs))],
            )
        )
        # Automap leaves what a reduce takes away whole, unless it makes a number of gradients.
        made = {d for slot, shape in shapes.items() if slot < 0 for d in shape}
        one = graph.phase[i] > 0 and made <= {1}
        automap = rules == "automap" and opcode == "reduce" and not one
        members = [
            [start[slot] + d for slot, d in factor.pairs if slot in start]
            for factor in factors
            if not (automap and factor.kind == Kind.REDUCED)
        ]
        touched = {
            start[slot] + d for slot in start for d, size in enumerate(shapes[slot]) if size != 1
        }
        if touched:
            yield [m for m in members if m], sorted(touched)


def disagreements(classes, found):
    """What dimension classes say otherwise than the search, in words; empty if nothing."""
    dims, label = found.dims, classes.label[found.dims]
    blocked = classes.blocked[label]
    wrong = [f"dimension {x}: blocked or not" for x in dims[blocked != (found.split == 0)]]
    conflict = np.zeros((len(classes), len(classes)), dtype=bool)
    conflict[tuple(classes.conflicts.T)] = True
    conflict |= conflict.T
    same = label[:, None] == label
    live = ~blocked[:, None] & ~blocked
    together = found.both > 0
    equal = (found.both == found.split) & (found.both == found.split[:, None])
    for a, b in np.argwhere(live & (together == conflict[label[:, None], label])):
        wrong.append(f"dimensions {dims[a]}, {dims[b]}: conflict or not")
    for a, b in np.argwhere(live & (equal != same)):
        wrong.append(f"dimensions {dims[a]}, {dims[b]}: one class or not")
    return wrong
