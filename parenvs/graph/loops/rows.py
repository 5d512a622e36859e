"""The rows of a graph that is being written, and graphs as lists of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from parenvs.graph.graph import Graph, Role, pack_texts
from parenvs.graph.loops.integers import Program
from parenvs.graph.roles import free_instructions

LEADING = '{"dimensions":[0]}'
"""Attribute of a concatenation along the leading dimension."""


class TooLargeError(Exception):
    """More rows were written than are allowed."""


class Row(NamedTuple):
    """One instruction of the new graph."""

    opcode: str
    operands: list[int]
    results: list[int]
    flops: float
    bytes_accessed: float
    phase: int
    parent: int
    name: str
    attribute: str


class Writer:
    """Collects instructions and tensors, and makes a graph of them.

    Attributes:
        rows: the instructions so far; those in a loop or branch follow it.
        shapes, types: dimensions and element type of each tensor.
        maker: tensor -> index of the instruction that computes it.
        most: number of rows that may be written.
    """

    def __init__(self, most: int) -> None:
        self.rows: list[Row] = []
        self.shapes: list[tuple[int, ...]] = []
        self.types: list[int] = []
        self.maker: dict[int, int] = {}
        self.most = most

    def add(self, row: Row) -> None:
        """Append an instruction.

        Raises:
            TooLargeError: there are too many.
        """
        if len(self.rows) == self.most:
            raise TooLargeError
        self.maker.update(dict.fromkeys(row.results, len(self.rows)))
        self.rows.append(row)

    def tensor(self, shape: tuple[int, ...], element_type: int) -> int:
        """Add a tensor and return its number."""
        self.shapes.append(shape)
        self.types.append(element_type)
        return len(self.shapes) - 1

    def graph(
        self,
        old: Graph,
        parameters: Sequence[int],
        tensors: Sequence[int],
        paths: Sequence[str],
        outputs: Sequence[int],
    ) -> Graph:
        """Return the graph of the rows; its entry parameters stand first.

        Args:
            old: the graph that it was made from; name, batch size and roles are its.
            parameters: (P,) parameter of ``old`` that each entry parameter is, or is a part of.
            tensors: (P,) tensor of each.
            paths: (P,) path of each.
            outputs: (O,) tensors.
        """
        computed = [row.opcode != "parameter" or row.parent >= 0 for row in self.rows]
        order = sorted(range(len(self.rows)), key=computed.__getitem__)
        place = {before: after for after, before in enumerate(order)} | {-1: -1}
        rows = [self.rows[i] for i in order]
        opcodes = _numbered(row.opcode for row in rows)
        strings = _numbered(["", *(t for r in rows for t in (r.name, r.attribute)), *paths])
        role = old.parameter_role[list(parameters)]
        scalars = {t for t, told in zip(tensors, role, strict=True) if told == Role.SCALAR}
        return replace(
            old,
            dims=np.array([d for shape in self.shapes for d in shape], dtype=np.int64),
            dim_offset=_offsets(self.shapes),
            element_type=np.array(self.types, dtype=np.uint8),
            opcode=np.array([opcodes[r.opcode] for r in rows], dtype=np.uint8),
            operands=np.array([t for r in rows for t in r.operands], dtype=np.int32),
            operand_offset=_offsets([r.operands for r in rows]),
            results=np.array([t for r in rows for t in r.results], dtype=np.int32),
            result_offset=_offsets([r.results for r in rows]),
            flops=np.array([r.flops for r in rows]),
            bytes_accessed=np.array([r.bytes_accessed for r in rows]),
            phase=np.array([r.phase for r in rows], dtype=np.uint8),
            free=free_instructions(
                [r.opcode for r in rows],
                [r.operands for r in rows],
                [r.results for r in rows],
                scalars,
            ),
            parent=np.array([place[r.parent] for r in rows], dtype=np.int32),
            op_name=np.array([strings[r.name] for r in rows], dtype=np.int32),
            attribute=np.array([strings[r.attribute] for r in rows], dtype=np.int32),
            parameter_tensor=np.array(tensors, dtype=np.int32),
            parameter_path=np.array([strings[path] for path in paths], dtype=np.int32),
            parameter_argument=old.parameter_argument[list(parameters)],
            parameter_role=role,
            outputs=np.array(outputs, dtype=np.int32),
            opcode_names=pack_texts(list(opcodes)),
            string_table=pack_texts(list(strings)),
            twins=(),
        )


def _numbered(texts: Iterable[str]) -> dict[str, int]:
    """Return the number of each text, in order of appearance."""
    return {text: number for number, text in enumerate(dict.fromkeys(texts))}


def program_of(graph: Graph) -> Program:
    """Return the instructions of a graph as lists."""
    return Program(
        [graph.opcodes[code] for code in graph.opcode.tolist()],
        [graph.strings[index] for index in graph.attribute.tolist()],
        _rows(graph.operands, graph.operand_offset),
        _rows(graph.results, graph.result_offset),
        graph.parent.tolist(),
        [tuple(row) for row in _rows(graph.dims, graph.dim_offset)],
        graph.element_type.tolist(),
    )


def _rows(flat: np.ndarray, offset: np.ndarray) -> list[list[int]]:
    """Return a ragged list as lists."""
    values, ends = flat.tolist(), offset.tolist()
    return [values[a:b] for a, b in pairwise(ends)]


def _offsets(rows: Sequence[Sequence[Any]]) -> np.ndarray:
    """Return the offsets of a ragged list, (rows + 1,) int32."""
    return np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
