"""``StageProfile``: a model as a chain of pivots, made from a graph or read from measurements.

A pivot is an instruction of the forward pass after which the chain can be cut.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.cluster import EFFICIENCY, Device
from parenvs.errors import ProfileError, shown
from parenvs.fields import LARGEST_NUMBER
from parenvs.files import replacing
from parenvs.graph.chain import Reads, chain_bytes
from parenvs.graph.graph import Graph
from parenvs.graph.loops.unroll import unrolled
from parenvs.tasks.pipeline.plan import MICRO_BATCH

BACKWARD_RATIO = 2.0
"""Backward time over forward time of a chain made from a forward-only graph."""

LARGEST = 1e30
"""Most seconds and bytes of a pivot: the sums and products of plans' costs stay finite."""
_COLUMNS = ("forward_ms", "backward_ms", "cut_bytes", "parameter_bytes")
_OPTIONAL = "resident_bytes"


@dataclass(frozen=True, eq=False)
class StageProfile:
    """A chain of ``n`` pivots with the cost of each on one device for one micro-batch.

    Attributes:
        name: the instance's name.
        names: (n,) name of each pivot.
        forward: (n,) float64, forward seconds.
        backward: (n,) float64, backward seconds.
        cut_bytes: (n,) float64, activation bytes that cross a cut right after the pivot, each
            producer once.
        parameter_bytes: (n,) float64, bytes of the variables first used by the pivot.
        resident_bytes: (n,) float64, activation bytes kept for the backward pass, or None.
        micro_batch: samples per micro-batch.
        source: fingerprint of the graph that the chain was made from, empty for a measured chain.
        device: the device that the seconds of a graph's chain are for, None for a measured chain;
            the fingerprint does not depend on it.
        frozen_bytes: (n,) float64, bytes of the frozen weights first used by the pivot, or None.
        tied: weights that several pivots read, of which each may be in another stage.
        reads: (n,) path of a variable that the pivot is the first to read, empty where there is
            none; None for a measured chain. It is for readers of names alone.
    """

    name: str
    names: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    cut_bytes: np.ndarray
    parameter_bytes: np.ndarray
    resident_bytes: np.ndarray | None = None
    micro_batch: int = MICRO_BATCH
    source: str = ""
    device: Device | None = None
    frozen_bytes: np.ndarray | None = None
    tied: tuple[Reads, ...] = ()
    reads: np.ndarray | None = None
    graph: Graph | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Freeze the arrays.

        Raises:
            ProfileError: the lengths differ, a value is negative or not finite, there are fewer
                than two pivots, or all times are zero.
        """
        set_ = object.__setattr__
        set_(self, "names", np.array(self.names, dtype=object))
        self.names.setflags(write=False)
        _check_samples(self.name, self.micro_batch)
        for key in self._numeric:
            array = np.array(getattr(self, key), dtype=np.float64)
            if array.shape != self.names.shape:
                raise ProfileError(
                    f"profile {self.name}: {key} has {array.size} values for "
                    f"{self.names.size} pivots"
                )
            bad = np.flatnonzero(~((array >= 0) & (array <= LARGEST)))
            if bad.size:
                raise ProfileError(
                    f"profile {self.name}: {key} of pivot {bad[0]} "
                    f"({self.names[bad[0]]}) is {array[bad[0]]}; must be >= 0 and at most "
                    f"{LARGEST:g}"
                )
            array.setflags(write=False)
            set_(self, key, array)
        if self.names.size < 2:
            raise ProfileError(f"profile {self.name}: a chain needs at least two pivots")
        if not self.seconds.any():
            raise ProfileError(f"profile {self.name}: all times are zero")

    def __repr__(self) -> str:
        """Name, size and sums in a line."""
        return (
            f"StageProfile({self.name!r}, {len(self)} pivots, "
            f"{float(self.seconds.sum()):.4g} s a micro-batch, "
            f"{float(self.parameter_bytes.sum()) / 1e9:.4g} GB of variables)"
        )

    def __len__(self) -> int:
        """Number of pivots."""
        return int(self.names.size)

    @property
    def _numeric(self) -> tuple[str, ...]:
        """Names of the arrays of numbers."""
        keys = ("forward", "backward", "cut_bytes", "parameter_bytes")
        optional = (_OPTIONAL, "frozen_bytes")
        return (*keys, *(key for key in optional if getattr(self, key) is not None))

    @cached_property
    def seconds(self) -> np.ndarray:
        """(n,) float64, forward plus backward seconds."""
        return self.forward + self.backward

    @cached_property
    def fingerprint(self) -> str:
        """``sha256:...`` of the graph behind the chain, or of the chain's own arrays."""
        if self.source:
            return self.source
        digest = hashlib.sha256(f"profile {len(self)} {self.micro_batch}".encode())
        for key in self._numeric:
            digest.update(key.encode())
            digest.update(getattr(self, key).astype("<f8").tobytes())
        return f"sha256:{digest.hexdigest()}"

    @classmethod
    def from_graph(
        cls,
        graph: Graph,
        device: Device,
        micro_batch: int = MICRO_BATCH,
        efficiency: float = EFFICIENCY,
    ) -> StageProfile:
        """Make the chain of a graph's pivots, with the times of ``device``.

        Forward seconds are FLOPs / (efficiency * peak), the peak that of the type of elements.
        Bytes do not count: unfused HLO lists the memory traffic of every elementwise operation,
        most of which a compiler's fusion removes.
        Backward seconds are ``BACKWARD_RATIO`` times the forward seconds. Times and activations are
        scaled from the graph's batch to the micro-batch. Weights belong to the pivots that read
        them, see ``parenvs.graph.chain``; loops over layers are written out, see
        ``parenvs.graph.loops.unroll``.

        Args:
            graph: the forward pass, or a training step, of which the forward part is taken.
            device: the device that all stages run on.
            micro_batch: samples per micro-batch.
            efficiency: share of the device's peak FLOP/s that the pivots reach.
        """
        _check_samples(graph.name, micro_batch)
        read, graph = graph, unrolled(graph)
        pivots = graph.pivots()
        scale = micro_batch / graph.batch_size
        forward = graph.flops[pivots] * scale / (efficiency * graph.peak_flops(device)[pivots])
        counted = chain_bytes(graph, pivots)
        return cls(
            name=graph.name,
            names=graph.op_names(pivots),
            forward=forward,
            backward=BACKWARD_RATIO * forward,
            cut_bytes=counted.cut * scale,
            parameter_bytes=counted.variables,
            resident_bytes=graph.tensor_bytes_of(pivots) * scale,
            micro_batch=micro_batch,
            source=read.fingerprint,
            device=device,
            frozen_bytes=counted.frozen,
            tied=counted.tied,
            reads=counted.reads,
            graph=read,
        )

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], micro_batch: int = MICRO_BATCH) -> StageProfile:
        """Read a CSV file of measurements; lines that start with ``#`` are comments.

        Its columns are ``name,forward_ms,backward_ms,cut_bytes,parameter_bytes[,resident_bytes]``.

        Args:
            path: the file; its numbers are those of one micro-batch.
            micro_batch: samples per micro-batch.

        Raises:
            ProfileError: a column is missing, or a value is missing, negative or not finite; the
                message names the file, the line and the column.
        """
        path = Path(path)
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"{path}: cannot be read as text ({error})") from None
        records = _records(text, path)
        header = [x.strip() for x in next(records, (0, []))[1]]
        missing = [x for x in ("name", *_COLUMNS) if x not in header]
        if missing:
            raise ProfileError(
                f"{path}: missing column {missing[0]!r}; the header must hold "
                f"name, {', '.join(_COLUMNS)}"
            )
        twice = [x for x in ("name", *_COLUMNS, _OPTIONAL) if header.count(x) > 1]
        if twice:
            raise ProfileError(f"{path}: the header holds column {twice[0]!r} twice")
        columns = [*_COLUMNS, _OPTIONAL] if _OPTIONAL in header else list(_COLUMNS)
        names: list[str] = []
        values: dict[str, list[float]] = {key: [] for key in columns}
        for line, row in records:
            if len(row) != len(header):
                raise ProfileError(
                    f"{path}: line {line} has {len(row)} fields, the header {len(header)}"
                )
            names.append(row[header.index("name")])
            for key in columns:
                values[key].append(_number(row[header.index(key)], f"{path}: line {line}", key))
        if not names:
            raise ProfileError(f"{path}: no rows below the header")
        try:
            return cls(
                name=path.stem,
                names=np.array(names, dtype=object),
                forward=np.array(values["forward_ms"]),
                backward=np.array(values["backward_ms"]),
                cut_bytes=np.array(values["cut_bytes"]),
                parameter_bytes=np.array(values["parameter_bytes"]),
                resident_bytes=np.array(values[_OPTIONAL]) if _OPTIONAL in values else None,
                micro_batch=micro_batch,
            )
        except ProfileError as error:
            raise ProfileError(f"{path}: {error}") from None

    def to_csv(self, path: str | os.PathLike[str], comments: Iterable[str] = ()) -> None:
        """Write the chain as CSV; ``from_csv`` reads back every number and name exactly.

        Args:
            path: the file.
            comments: lines to put above the header, each behind a ``#``.

        Raises:
            ProfileError: a name cannot be written as text.
        """
        keys = dict(zip((*_COLUMNS, _OPTIONAL), self._numeric, strict=False))
        lines = [f"# {' '.join(words.splitlines())}" for words in comments]
        lines += [",".join(["name", *keys])]
        columns = [
            [_text(x, key) for x in getattr(self, attribute)] for key, attribute in keys.items()
        ]
        lines += [
            ",".join((_quoted(str(name)), *row))
            for name, *row in zip(self.names, *columns, strict=True)
        ]
        try:
            data = "".join(f"{line}\n" for line in lines).encode()
        except UnicodeEncodeError as error:
            raise ProfileError(f"profile {self.name}: a name is no text ({error})") from None
        if b"\0" in data:  # before Python 3.11, the csv module cannot read a NUL
            raise ProfileError(f"profile {self.name}: a name holds a NUL; rename it")
        with replacing(path) as stream:
            stream.write(data)


def _check_samples(name: str, micro_batch: Any) -> None:
    """Raise a ProfileError for samples per micro-batch that cannot be."""
    if not isinstance(micro_batch, int) or not 1 <= micro_batch <= LARGEST_NUMBER:
        raise ProfileError(
            f"profile {name}: micro_batch must be a whole number >= 1, not {shown(micro_batch)}"
        )


def _records(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV text, each with the number of the line that it starts on.

    Blank lines and comments are left out, except inside a quoted name of several lines.
    """
    first = 0  # line that the current record starts on, 0 between records

    def lines() -> Iterator[str]:
        nonlocal first
        for number, line in enumerate(io.StringIO(text, newline=""), 1):
            if first or (line.strip() and not line.startswith("#")):
                first = first or number
                yield line

    reader = csv.reader(lines(), strict=True)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise ProfileError(f"{path}: line {first} is no CSV ({error})") from None
        if row is None:
            return
        line, first = first, 0
        yield line, row


def _quoted(name: str) -> str:
    """Return ``name`` as a CSV field, in quotes where it has commas, quotes or odd spaces."""
    if re.search(r'[",\r\n]|^[#\s]|\s$|^$', name):
        name = '"' + name.replace('"', '""') + '"'
    return name


def _number(text: str, where: str, column: str) -> float:
    """Parse a field of a column; milliseconds become seconds.

    Raises:
        ProfileError: the field is not a number from 0 to ``LARGEST``.
    """
    try:
        number = Decimal(text.strip())
        value = float(number.scaleb(-3) if column.endswith("_ms") else number)
    except (ArithmeticError, ValueError):  # of decimal and of float
        value = math.nan
    if not 0 <= value <= LARGEST:
        raise ProfileError(
            f"{where}, column {column!r}: {shown(text)} is not a number >= 0 and at most "
            f"{LARGEST:g}"
        )
    return value


def _text(value: float, column: str) -> str:
    """Return the shortest decimal that reads back as ``value``; seconds become milliseconds."""
    number = Decimal(repr(float(value)))
    return str(number.scaleb(3) if column.endswith("_ms") else number)
