"""``StageProfile``: a model as a chain of pivots, made from a graph or read from measurements.

A pivot is an instruction of the forward pass after which the chain can be cut.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.cluster import EFFICIENCY, Cluster, Device
from parenvs.compiled import Array
from parenvs.errors import ParenvsError, ProfileError, shown
from parenvs.fields import Count, checked
from parenvs.files import StrPath, replacing
from parenvs.graph.flow import Flow, Reads, chain_bytes, needless_gradients
from parenvs.graph.graph import Graph
from parenvs.graph.unroll import unrolled
from parenvs.instances import check_no_reading, exists, load_graph, text_of, unknown
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.plan import MICRO_BATCH, TIED, PipelinePlan

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
    names: Array
    forward: Array
    backward: Array
    cut_bytes: Array
    parameter_bytes: Array
    resident_bytes: Array | None = None
    micro_batch: Count = MICRO_BATCH
    source: str = ""
    device: Device | None = None
    frozen_bytes: Array | None = None
    tied: tuple[Reads, ...] = ()
    reads: Array | None = None
    graph: Graph | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Freeze the arrays.

        Raises:
            ProfileError: the lengths differ, a value is negative or not finite, there are fewer
                than two pivots, or all times are zero.
        """
        set_ = object.__setattr__
        set_(self, "names", np.array(self.names, object))
        self.names.setflags(write=False)
        _check_samples(self.name, self.micro_batch)
        for key in self._numeric:
            array = np.array(getattr(self, key), float)
            if array.shape != self.names.shape:
                raise ProfileError(
                    f"profile {self.name}: {key} has {array.size} values for "
                    f"{self.names.size} pivots"
                )
            bad = np.flatnonzero(~((array >= 0) & (array <= LARGEST)))
            if bad.size:
                pivot = bad[0]
                raise ProfileError(
                    f"profile {self.name}: {key} of pivot {pivot} ({self.names[pivot]}) is "
                    f"{array[pivot]}; must be >= 0 and at most {LARGEST:g}"
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
        keys = ("forward", "backward", "cut_bytes", "parameter_bytes")
        optional = (_OPTIONAL, "frozen_bytes")
        return (*keys, *(key for key in optional if getattr(self, key) is not None))

    @cached_property
    def seconds(self) -> Array:
        """(n,) float64, forward plus backward seconds."""
        return self.forward + self.backward

    @cached_property
    def fingerprint(self) -> str:
        """``sha256:...`` of the graph behind the chain, or of the chain's own arrays."""
        if self.source:
            return self.source
        # Names and the device are left out, as no plan's cost depends on them.
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
        Backward seconds are ``BACKWARD_RATIO`` times the forward seconds, less the gradients that
        frozen weights do not need. Times and activations are scaled from the graph's batch to the
        micro-batch. Weights belong to the pivots that read them, see ``parenvs.graph.flow``; loops
        over layers are written out, see ``parenvs.graph.unroll``.

        Args:
            graph: the forward pass, or a training step, of which the forward part is taken.
            device: the device that all stages run on.
            micro_batch: samples per micro-batch.
            efficiency: share of the device's peak FLOP/s that the pivots reach.
        """
        _check_samples(graph.name, micro_batch)
        source, graph = graph, unrolled(graph)
        pivots = graph.pivots()
        scale = micro_batch / graph.batch_size
        # FLOPs / (efficiency * peak), scaled from the graph's batch to the micro-batch.
        forward = graph.flops[pivots] * scale / (efficiency * graph.peak_flops(device)[pivots])
        sizes = chain_bytes(graph, pivots)
        return cls(
            name=graph.name,
            names=graph.op_names(pivots),
            forward=forward,
            backward=(BACKWARD_RATIO - needless_gradients(Flow(graph))[pivots]) * forward,
            cut_bytes=sizes.cut * scale,
            parameter_bytes=sizes.variables,
            resident_bytes=graph.tensor_bytes_of(pivots) * scale,
            micro_batch=micro_batch,
            source=source.fingerprint,
            device=device,
            frozen_bytes=sizes.frozen,
            tied=sizes.tied,
            reads=sizes.reads,
            graph=source,
        )

    @classmethod
    def from_csv(cls, path: StrPath, micro_batch: int = MICRO_BATCH) -> StageProfile:
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
        _, titles = next(records, (0, []))
        header = [x.strip() for x in titles]
        for column in ("name", *_COLUMNS):
            if column not in header:
                raise ProfileError(
                    f"{path}: missing column {column!r}; the header must hold "
                    f"name, {', '.join(_COLUMNS)}"
                )
        for column in ("name", *_COLUMNS, _OPTIONAL):
            if header.count(column) > 1:
                raise ProfileError(f"{path}: the header holds column {column!r} twice")
        names: list[str] = []
        values: dict[str, list[float]] = {x: [] for x in (*_COLUMNS, _OPTIONAL) if x in header}
        for line, row in records:
            if len(row) != len(header):
                raise ProfileError(
                    f"{path}: line {line} has {len(row)} fields, the header {len(header)}"
                )
            names.append(row[header.index("name")])
            for key in values:
                values[key].append(_number(row[header.index(key)], f"{path}: line {line}", key))
        if not names:
            raise ProfileError(f"{path}: no rows below the header")
        arrays: Any = {key.removesuffix("_ms"): np.array(x) for key, x in values.items()}
        try:
            return cls(path.stem, np.array(names, object), **arrays, micro_batch=micro_batch)
        except ProfileError as error:
            raise ProfileError(f"{path}: {error}") from None

    def to_csv(self, path: StrPath, comments: Iterable[str] = ()) -> None:
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
            [_field(x, key) for x in getattr(self, attribute)] for key, attribute in keys.items()
        ]
        lines += [
            ",".join((_quoted(str(name)), *row))
            for name, *row in zip(self.names, *columns, strict=True)
        ]
        try:
            data = "".join(f"{line}\n" for line in lines).encode()
        except UnicodeEncodeError as error:
            raise ProfileError(f"profile {self.name}: a name is no text ({error})") from None
        # Before Python 3.11, the csv module cannot read a NUL.
        if b"\0" in data:
            raise ProfileError(f"profile {self.name}: a name holds a NUL; rename it")
        with replacing(path) as stream:
            stream.write(data)


def load_profile(
    instance: StrPath | Graph | StageProfile,
    cluster: str | dict[str, Any] | Cluster | Device,
    micro_batch: int = MICRO_BATCH,
    **reading: Any,
) -> StageProfile:
    """Load a chain by shipped name or by path (of a graph, or of a ``.csv`` profile).

    Args:
        instance: the name, path or function, or a ``Graph``; a ``StageProfile`` is returned as it
            is.
        cluster: the cluster, or the device, for which a graph's chain is timed; a profile keeps its
            own seconds.
        micro_batch: samples per micro-batch; a ``StageProfile`` has its own.
        **reading: see ``load_graph``; a profile has no parameters to read.

    Raises:
        TypeError: ``instance`` is nothing of these.
        UnknownInstanceError: ``instance`` is neither a shipped name nor a file.
        ParenvsError: options of reading, or other samples, are given for a profile.
    """
    if isinstance(instance, StageProfile):
        check_no_reading(reading, f"{instance.name}: a profile")
        if micro_batch not in (MICRO_BATCH, instance.micro_batch):
            raise ParenvsError(
                f"micro_batch: the profile {instance.name} is of micro-batches of "
                f"{instance.micro_batch}, not {micro_batch}; leave it out"
            )
        return instance
    if not isinstance(instance, Graph):
        instance = text_of(instance, "a Graph", "a StageProfile")
        if instance.endswith(".csv"):
            if not exists(instance):
                raise unknown(instance)
            check_no_reading(reading, f"{instance}: a profile")
            return StageProfile.from_csv(instance, micro_batch)
    device = cluster if isinstance(cluster, Device) else Cluster.parse(cluster).device
    return StageProfile.from_graph(load_graph(instance, "forward", **reading), device, micro_batch)


def _check_samples(name: str, micro_batch: Any) -> None:
    checked(StageProfile, {"micro_batch": micro_batch}, f"profile {name}: ", ProfileError)


def _records(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV text, each with the number of the line that it starts on.

    Blank lines and comments are left out, except inside a quoted name of several lines.
    """
    # Line that the current record starts on, 0 between records.
    first = 0

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
    if re.search(r'[",\r\n]|^[#\s]|\s$|^$', name):
        name = '"' + name.replace('"', '""') + '"'
    return name


def _number(text: str, where: str, column: str) -> float:
    """Parse a field from 0 to ``LARGEST``; milliseconds become seconds."""
    try:
        # In decimals, milliseconds become seconds without a rounding of their own.
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


def _field(value: float, column: str) -> str:
    # repr is the shortest text that reads back as the same number.
    number = Decimal(repr(float(value)))
    return str(number.scaleb(3) if column.endswith("_ms") else number)


class TiedWeights:
    """Bytes of tied weights by stage, for a chain of n pivots.

    What a stage holds depends only on how many of the pivots that read a tied weight, U in all, lie
    before its two ends: tables of (U+1, U+1) have it.

    Args:
        reads: the weights.
        pivots: n.

    Attributes:
        rank: (n+1,) int64, pivots before each that read a tied weight.
        again: bytes of the variables that a stage reads and an earlier pivot has read.
        frozen: bytes of the frozen weights likewise.
        shared: bytes of the variables that a stage reads and another pivot reads as well.
    """

    def __init__(self, reads: Sequence[Reads], pivots: int) -> None:
        readers = np.unique([p for weight in reads for p in weight.positions]).astype(np.int64)
        self.rank = np.searchsorted(readers, np.arange(pivots + 1))
        size = len(readers) + 1
        self.again, self.frozen, self.shared = np.zeros((3, size, size))
        bytes_of: dict[tuple[tuple[int, ...], bool], float] = defaultdict(float)
        for weight in reads:
            bytes_of[weight.positions, weight.trainable] += weight.size
        for (positions, trainable), bytes_ in bytes_of.items():
            before = np.searchsorted(positions, np.append(readers, pivots), side="left")
            inside = before[None, :] - before[:, None]  # of its reads, between two ranks
            is_read = inside > 0
            # An earlier pivot has read the weight if one of its reads lies before the first rank.
            read_again = bytes_ * (is_read & (before[:, None] > 0))
            if trainable:
                self.again += read_again
                # Another pivot reads it as well if some of its reads lie outside.
                self.shared += bytes_ * (is_read & (inside < len(positions)))
            else:
                self.frozen += read_again

    def between(self, table: Array, first: Array, end: Array) -> Array:
        """Return the bytes that one of the tables has of stages ``[first, end)``, elementwise."""
        return table[self.rank[first], self.rank[end]]


class RangeTable:
    """A sparse table: the best of ``values[first:end]`` and where it is, in constant time.

    Args:
        values: (n,) numbers.
        greatest: whether greater values are better; else smaller ones.
    """

    def __init__(self, values: Array, greatest: bool = False) -> None:
        """Prepare the ranges of 2, 4, 8, ... values, in O(n log n)."""
        self.values = values
        self._better = np.greater if greatest else np.less
        self._best = np.maximum if greatest else np.minimum
        # Row j holds the best of 2**j consecutive values, shorter ranges at the end of the array.
        rows = [values]
        while (width := 1 << len(rows)) <= len(values):
            row, half = rows[-1].copy(), width // 2
            self._best(rows[-1][:-half], rows[-1][half:], out=row[:-half])
            rows.append(row)
        self.rows = np.stack(rows)

    def value(self, first: Array, end: Array) -> Array:
        """The best value of each range ``[first, end)``, elementwise; ``first < end``."""
        level, last = self._cover(first, end)
        return self._best(self.rows[level, first], self.rows[level, last])

    def index(self, first: Array, end: Array) -> Array:
        """Index of the best value of each range ``[first, end)``; ``first < end``."""
        level, last = self._cover(first, end)
        left, right = self._indices[level, first], self._indices[level, last]
        return np.where(self._better(self.values[right], self.values[left]), right, left)

    @staticmethod
    def _cover(first: Array, end: Array) -> tuple[Array, Array]:
        """Level and start of the second of two ranges of 2**level values that cover a range."""
        _, bits = np.frexp(end - first)
        return bits - 1, end - (1 << (bits - 1))

    @cached_property
    def _indices(self) -> Array:
        """(levels, n) index in ``values`` of each entry of ``rows``; of equal ones the left."""
        levels = [np.arange(len(self.values))]
        for level, values in enumerate(self.rows[:-1]):
            half = 1 << level
            left = levels[-1]
            indices = left.copy()
            right_is_better = np.flatnonzero(self._better(values[half:], values[:-half]))
            indices[right_is_better] = left[right_is_better + half]
            levels.append(indices)
        return np.stack(levels)


class ChainSums:
    """What a ``Pipeline`` knows of its chain alone, on whatever cluster.

    Attributes:
        profile: the chain, n pivots.
        tied: see ``Pipeline``.
    """

    profile: StageProfile
    tied: str
    copies: float

    # Entry p of a prefix sum is the sum over the pivots before p; its shape is (n+1,).

    forward_sum = cached_property(lambda self: _prefix(self.profile.forward))
    """Prefix sum of forward seconds, (n+1,)."""
    backward_sum = cached_property(lambda self: _prefix(self.profile.backward))
    """Prefix sum of backward seconds, (n+1,)."""
    parameter_sum = cached_property(lambda self: _prefix(self.profile.parameter_bytes))
    """Prefix sum of parameter bytes, (n+1,)."""
    frozen_sum = cached_property(lambda self: self._prefix_or_zeros(self.profile.frozen_bytes))
    """Prefix sum of the bytes of frozen weights, (n+1,)."""
    resident_sum = cached_property(lambda self: self._prefix_or_zeros(self.profile.resident_bytes))
    """Prefix sum of resident activation bytes, (n+1,); zeros if the profile has none."""

    @cached_property
    def seconds_sum(self) -> Array:
        """Prefix sum of forward plus backward seconds, (n+1,)."""
        return self.forward_sum + self.backward_sum

    @cached_property
    def variable_sum(self) -> Array:
        """Number of pivots with weights before each pivot, (n+1,)."""
        weights = self.profile.parameter_bytes > 0
        if self.profile.frozen_bytes is not None:
            weights = weights | (self.profile.frozen_bytes > 0)
        return np.append(0, np.cumsum(weights))

    def _prefix_or_zeros(self, values: Array | None) -> Array:
        return _prefix(np.zeros(len(self.profile)) if values is None else values)

    @cached_property
    def tied_weights(self) -> TiedWeights | None:
        """Weights that several stages may hold, or None if there are none or they count once."""
        if self.tied == TIED[0] or not self.profile.tied:
            return None
        return TiedWeights(self.profile.tied, len(self.profile))

    @cached_property
    def cut_before(self) -> Array:
        """Bytes that cross a cut right before each pivot, (n+1,); zero at both ends."""
        crossing_bytes = np.append(0.0, self.profile.cut_bytes)
        # Nothing is sent behind the last pivot, whatever a measurement says.
        crossing_bytes[-1] = 0.0
        return crossing_bytes

    @cached_property
    def cuts_after(self) -> RangeTable:
        """Table of the bytes that cross a cut right after each pivot."""
        return RangeTable(self.cut_before[1:], greatest=True)

    def largest_cut(self, first: Array, end: Array) -> Array:
        """Return the largest ``cut_bytes`` of the pivots ``[first, end)``, elementwise.

        ``first`` must be less than ``end``.
        """
        return self.cuts_after.value(np.asarray(first), np.asarray(end))

    def weight_bytes(self, first: Array, end: Array) -> Array:
        """Return the bytes of all copies of the weights of stages ``[first, end)``, elementwise."""
        frozen_bytes = self.frozen_sum[end] - self.frozen_sum[first]
        if tied := self.tied_weights:
            frozen_bytes = frozen_bytes + tied.between(tied.frozen, first, end)
        return formulas.weight_bytes(self.variable_bytes(first, end), self.copies, frozen_bytes)

    def variable_bytes(self, first: Array, end: Array) -> Array:
        """Return the bytes of the variables of the stages ``[first, end)``, elementwise."""
        variable_bytes = self.parameter_sum[end] - self.parameter_sum[first]
        if tied := self.tied_weights:
            variable_bytes = variable_bytes + tied.between(tied.again, first, end)
        return variable_bytes


def _prefix(values: Array) -> Array:
    return np.append(0.0, np.cumsum(values))


def mismatches(
    plan: PipelinePlan, profile: StageProfile, cluster: Cluster, settings: Mapping[str, Any]
) -> list[str]:
    """Reasons for which a plan is for something else than a chain on a cluster.

    Args:
        plan: the plan.
        profile: the chain.
        cluster: the devices.
        settings: what the plan's fields of these names have to be.
    """
    settings = {"cluster": cluster, **settings}
    reasons = plan.mismatches(profile.name, profile.fingerprint, settings)
    if plan.cut_after and len(plan.cut_after) != len(plan.cuts):
        reasons.append(f"cut_after: {len(plan.cut_after)} names for {len(plan.cuts)} cuts")
    for cut, name in zip(plan.cuts, plan.cut_after, strict=False):
        if 1 <= cut < len(profile) and name != profile.names[cut - 1]:
            reasons.append(
                f"cut_after: the pivot before cut {cut} is {profile.names[cut - 1]!r}, not {name!r}"
            )
    return reasons
