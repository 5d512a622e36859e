"""Reads and writes IOPDDL files, ``.json`` or ``.json.gz``, within stated limits.

A file may come from anywhere: its size is compared before anything is unpacked, and every field is
checked against the others before a problem is made of it.
"""

from __future__ import annotations

import gc
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from parenvs.core.plan import load_plan
from parenvs.errors import ParenvsError, PlanError, shown
from parenvs.fields import read, whole, words
from parenvs.files import no_duplicates, replacing
from parenvs.tasks.sharding.plan import ShardingPlan
from parenvs.tasks.sharding.problem import Sharding

MOST_BYTES = 2**29
"""Limit of the bytes of a file unpacked."""
MAX_RATIO, FREE_BYTES = 200, 2**24
"""Limit of the bytes unpacked to one that is read; so many bytes unpacked are never too much."""
LARGEST = 2**63 - 1
"""Largest number of a file."""
_GZIP = b"\x1f\x8b"


_Number = Annotated[int, whole(0, LARGEST)]
_Pair = Annotated[tuple[_Number, _Number], words("a pair of whole numbers from 0")]
_Rows = tuple[Annotated[tuple[_Number, ...], words("a list of whole numbers from 0")], ...]


@dataclass(frozen=True)
class _Nodes:
    """Of each node when it uses memory, and for each strategy its cost and its memory."""

    intervals: tuple[_Pair, ...]
    costs: _Rows
    usages: _Rows


@dataclass(frozen=True)
class _Edges:
    """Of each edge its nodes, and for each pair of their strategies its cost."""

    nodes: tuple[_Pair, ...]
    costs: _Rows


@dataclass(frozen=True)
class _Problem:
    """The problem of a file."""

    name: Annotated[
        str, words("a printable text of 1 to 4,096 characters", min_length=1, max_length=4096)
    ]
    nodes: _Nodes
    edges: _Edges
    usage_limit: _Number | None = None

    def __post_init__(self) -> None:
        """Refuse a name that no line can show."""
        if not self.name.isprintable():
            raise ParenvsError(f"field 'name' must be a printable text, not {shown(self.name)}")


@dataclass(frozen=True)
class _File:
    """A file of the contest."""

    problem: _Problem


class _Refused(ValueError):
    """What is wrong with a file, without its name."""


def load_iopddl(path: str | os.PathLike[str]) -> Sharding:
    """Read a problem in the contest's format.

    Args:
        path: the file, JSON, plain or packed by gzip.

    Returns:
        The problem; plans of it carry the path.

    Raises:
        ParenvsError: there is no such file, it is too large, no JSON, or a field is wrong; the
            text names the file and the field.
    """
    where = os.fspath(path)
    try:
        return _problem(_parsed(_unpacked(Path(path))), where)
    except _Refused as error:
        raise ParenvsError(f"{where}: {error}") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ParenvsError(f"{where}: cannot be read ({reason})") from None


def save_iopddl(problem: Sharding, path: str | os.PathLike[str]) -> None:
    """Write a problem in the contest's format; packed if the path ends with ``.gz``."""
    text = json.dumps(to_json(problem), separators=(",", ":")).encode()
    if os.fspath(path).endswith(".gz"):
        text = gzip.compress(text, mtime=0)  # the same bytes every time
    with replacing(path) as stream:
        stream.write(text)


def to_json(problem: Sharding) -> dict[str, Any]:
    """Return a problem as the object that files of the format hold."""

    def split(values: np.ndarray, offset: np.ndarray) -> list[list[int]]:
        flat, at = values.tolist(), offset.tolist()
        return [flat[begin:end] for begin, end in pairwise(at)]

    return {
        "problem": {
            "name": problem.name,
            "nodes": {
                "intervals": problem.intervals.tolist(),
                "costs": split(problem.costs, problem.offset),
                "usages": split(problem.usages, problem.offset),
            },
            "edges": {
                "nodes": problem.ends.tolist(),
                "costs": split(problem.edge_costs, problem.edge_offset),
            },
            **({} if problem.limit is None else {"usage_limit": problem.limit}),
        }
    }


def load_strategies(path: str | os.PathLike[str], problem: Sharding) -> ShardingPlan:
    """Read a plan of a problem: a plan file, or a list of strategies as contest solvers print it.

    Raises:
        PlanError: the file is neither.
    """
    where = os.fspath(path)
    try:
        text = Path(path).read_bytes()[: 2**27]
    except OSError as error:
        raise PlanError(f"{where}: cannot be read ({error.strerror})") from None
    if not text.lstrip().startswith(b"["):
        plan = load_plan(path)
        if not isinstance(plan, ShardingPlan):
            raise PlanError(f"{where}: a plan of task {plan.task}, not of {ShardingPlan.task}")
        return plan
    try:
        listed = _parsed(text)
    except _Refused as error:
        raise PlanError(f"{where}: {error}") from None
    head = {"schema": 1, "task": ShardingPlan.task, "instance": problem.instance}
    content = {**head, "fingerprint": problem.fingerprint, "strategies": listed}
    return ShardingPlan.from_json(content, where)


def _unpacked(path: Path) -> bytes:
    """Return the bytes of a file, unpacked; what it says of its size is compared first."""
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > MOST_BYTES:
            raise _Refused(f"it has {size:,} bytes, and problems at most {MOST_BYTES:,}")
        packed = stream.read(size)
    if not packed.startswith(_GZIP):
        return packed
    max_bytes = min(MOST_BYTES, max(FREE_BYTES, MAX_RATIO * len(packed)))
    stated = int.from_bytes(packed[-4:], "little")  # ISIZE, RFC 1952
    unpacker = zlib.decompressobj(wbits=31)
    text = unpacker.decompress(packed, max_bytes + 1) if stated <= max_bytes else b""
    if stated > max_bytes or len(text) > max_bytes:
        raise _Refused(f"it unpacks to more than {max_bytes:,} bytes, the most for its size")
    if not unpacker.eof or unpacker.unused_data:
        raise _Refused("its gzip data are cut short, or something follows them")
    return text


def _parsed(text: bytes) -> Any:
    """Return the content of a JSON text that holds no fractions."""

    def fraction(number: str) -> Any:
        raise _Refused(f"{shown(number)} is no whole number")

    try:
        with _uncollected():
            return json.loads(
                text,
                object_pairs_hook=no_duplicates,
                parse_float=fraction,
                parse_constant=fraction,
            )
    except _Refused:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or "nested too deeply"
        raise _Refused(f"not a JSON file ({reason})") from None


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the collector of garbage from going through millions of new lists again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _problem(content: Any, where: str) -> Sharding:
    """Check the object of a file and make a problem of it."""
    with _uncollected():
        given = read(_File, content, where).problem
    nodes, edges = given.nodes, given.edges
    intervals, ends = (_pairs(pairs) for pairs in (nodes.intervals, edges.nodes))
    costs, offset = _flat(nodes.costs)
    usages, usage_offset = _flat(nodes.usages)
    count = len(offset) - 1
    if not len(intervals) == count == len(usage_offset) - 1:
        raise _Refused(
            f"nodes.intervals, nodes.costs and nodes.usages have {len(intervals):,}, {count:,} "
            f"and {len(usage_offset) - 1:,} entries, not one for each node"
        )
    sizes = np.diff(offset)
    _first(sizes == 0, "nodes.costs", "is empty; a node has at least one strategy")
    _first(sizes != np.diff(usage_offset), "nodes.usages", "has not as many numbers as its costs")
    edge_costs, edge_offset = _flat(edges.costs)
    if len(ends) != len(edge_offset) - 1:
        raise _Refused(
            f"edges.nodes and edges.costs have {len(ends):,} and {len(edge_offset) - 1:,} entries"
        )
    _first(
        np.any(ends >= count, axis=1), "edges.nodes", f"names a node that is not below {count:,}"
    )
    pairs = sizes[ends[:, 0]] * sizes[ends[:, 1]]
    _first(
        pairs != np.diff(edge_offset), "edges.costs",
        "has not one number for each pair of strategies",
    )  # fmt: skip
    return Sharding(
        given.name, given.usage_limit, intervals, offset, costs, usages, ends, edge_offset,
        edge_costs, where,
    )  # fmt: skip


def _flat(rows: _Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of a list of lists one after another, and where each list begins."""
    offset = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offset[1:])
    return np.fromiter(chain.from_iterable(rows), np.int64, int(offset[-1])), offset


def _pairs(rows: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Return pairs of numbers as an array, (n, 2)."""
    return np.fromiter(chain.from_iterable(rows), np.int64, 2 * len(rows)).reshape(-1, 2)


def _first(wrong: np.ndarray, what: str, text: str) -> None:
    """Refuse the first entry that is wrong."""
    (indices,) = np.nonzero(wrong)
    if len(indices):
        raise _Refused(f"{what}[{indices[0]}] {text}")
