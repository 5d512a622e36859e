"""Reads and writes IOPDDL files, ``.json`` or ``.json.gz``, within stated limits.

A file may come from anywhere: its size is compared before anything is unpacked, and every field is
checked against the others before a problem is made of it.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from parenvs.core.plan import load_plan
from parenvs.errors import ParenvsError, PlanError, UnknownInstanceError, did_you_mean, shown
from parenvs.fields import read, whole, words
from parenvs.files import StrPath, no_duplicates, replacing
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.sharding.problem import FORBIDDEN, Array, Sharding, ShardingPlan

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
    intervals: tuple[_Pair, ...]
    costs: _Rows
    usages: _Rows


@dataclass(frozen=True)
class _Edges:
    nodes: tuple[_Pair, ...]
    costs: _Rows


@dataclass(frozen=True)
class _Problem:
    name: Annotated[
        str, words("a printable text of 1 to 4,096 characters", min_length=1, max_length=4096)
    ]
    nodes: _Nodes
    edges: _Edges
    usage_limit: _Number | None = None

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise ParenvsError(f"field 'name' must be a printable text, not {shown(self.name)}")


@dataclass(frozen=True)
class _File:
    problem: _Problem


class _Refused(ValueError):
    """What is wrong with a file, without its name."""


def load_iopddl(path: StrPath) -> Sharding:
    """Read a problem in the contest's format.

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


def save_iopddl(problem: Sharding, path: StrPath) -> None:
    """Write a problem in the contest's format; packed if the path ends with ``.gz``."""
    text = json.dumps(to_json(problem), separators=(",", ":")).encode()
    if os.fspath(path).endswith(".gz"):
        text = gzip.compress(text, mtime=0)  # the same bytes every time
    with replacing(path) as stream:
        stream.write(text)


def to_json(problem: Sharding) -> dict[str, Any]:
    """Return a problem as the object that files of the format hold."""

    def split(values: Array, offset: Array) -> list[list[int]]:
        return [values[begin:end].tolist() for begin, end in pairwise(offset.tolist())]

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


def load_strategies(path: StrPath, problem: Sharding) -> ShardingPlan:
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
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > MOST_BYTES:
            raise _Refused(f"it has {size:,} bytes, and problems at most {MOST_BYTES:,}")
        packed = stream.read(size)
    if not packed.startswith(_GZIP):
        return packed
    max_bytes = min(MOST_BYTES, max(FREE_BYTES, MAX_RATIO * len(packed)))
    # Refused before unpacking: a small file may claim, or hide, gigabytes.
    stated = int.from_bytes(packed[-4:], "little")  # ISIZE, RFC 1952
    unpacker = zlib.decompressobj(wbits=31)
    text = unpacker.decompress(packed, max_bytes + 1) if stated <= max_bytes else b""
    if stated > max_bytes or len(text) > max_bytes:
        raise _Refused(f"it unpacks to more than {max_bytes:,} bytes, the most for its size")
    if not unpacker.eof or unpacker.unused_data:
        raise _Refused("its gzip data are cut short, or something follows them")
    return text


def _parsed(text: bytes) -> Any:
    def fraction(number: str) -> Any:
        raise _Refused(f"{shown(number)} is no whole number")

    try:
        with _without_collection():
            return json.loads(
                text, object_pairs_hook=no_duplicates, parse_float=fraction, parse_constant=fraction
            )
    except _Refused:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or "nested too deeply"
        raise _Refused(f"not a JSON file ({reason})") from None


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disable garbage collection, which would traverse millions of new lists again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _problem(content: Any, where: str) -> Sharding:
    with _without_collection():
        given = read(_File, content, where).problem
    nodes, edges = given.nodes, given.edges
    counts = [len(nodes.intervals), len(nodes.costs), len(nodes.usages)]
    if len(set(counts)) > 1:
        raise _Refused(
            "nodes.intervals, nodes.costs and nodes.usages have "
            f"{counts[0]:,}, {counts[1]:,} and {counts[2]:,} entries, not one for each node"
        )
    if len(edges.nodes) != len(edges.costs):
        counts = [len(edges.nodes), len(edges.costs)]
        raise _Refused(f"edges.nodes and edges.costs have {counts[0]:,} and {counts[1]:,} entries")
    problem = Sharding.of_lists(
        given.name, given.usage_limit, nodes.intervals, nodes.costs, nodes.usages, edges.nodes,
        edges.costs, where,
    )  # fmt: skip
    sizes, ends = problem.sizes, problem.ends
    used = np.array([len(row) for row in nodes.usages], np.int64)
    _require(sizes > 0, "nodes.costs", "is empty; a node has at least one strategy")
    _require(sizes == used, "nodes.usages", "has not as many numbers as its costs")
    is_node = (ends < len(problem)).all(axis=1)
    _require(is_node, "edges.nodes", f"names a node that is not below {len(problem):,}")
    is_whole = sizes[ends].prod(axis=1) == np.diff(problem.edge_offset)
    _require(is_whole, "edges.costs", "has not one number for each pair of strategies")
    return problem


def _require(valid: Any, field: str, text: str) -> None:
    if not valid.all():
        raise _Refused(f"{field}[{valid.argmin()}] {text}")


class ContestRecord(NamedTuple):
    """A problem of the contest: its time limit on 8 cores, and costs in its units.

    Attributes:
        contest: cost of the best team's plan.
        best: best known cost.
        bound: best known lower bound.
    """

    model: str
    seconds: int
    contest: int
    best: int
    bound: int


CONTEST_RECORDS: dict[str, ContestRecord] = {
    letter: ContestRecord(*row)
    for letter, row in {
        "A": ("GNS", 60, 6548641531, 6548641531, 6513812172),
        "B": ("Transformer", 60, 532843, 532843, 532843),
        "C": ("Gemma1-2B", 60, 84102445260, 84102445244, 82509087987),
        "D": ("Gemma1-7B", 60, 313613524736, 309396217429, 298253500099),
        "G": ("Transformer", 120, 217039, 217039, 216931),
        "K": ("GNS", 180, 2274276676, 2242635784, 2065623588),
        "L": ("U-Net", 180, 1970993742, 1970993742, 1918617707),
        "M": ("Gemma1-2B", 180, 49928460991, 49928157537, 49407421919),
        "N": ("Gemma1-7B", 180, 202739586553, 199470115118, 172940125422),
        "P": ("Gemma1-27B", 240, 662197407330, 651833115436, 616246285727),
        "Q": ("Gemma2-9B", 240, 526776842042, 526776842042, 505549458726),
        "R": ("Gemma2-27B", 240, 371899551572, 351826900528, 304520000000),
        "S": ("U-Net", 240, 1534613444, 1521949307, 1511240136),
        "T": ("Diffusion", 240, 682895254913, 656798881333, 585686829499),
        "U": ("GNS", 300, 2569342178, 2443995952, 2018900000),
        "V": ("Transformer", 300, 1632051, 1617084, 1617084),
    }.items()
}
SHA256 = {
    "B": "03d742412734762fe2e9cebcdfe381a6508c2e33be14a44625156256f55215f2",
    "G": "c63898defb2136a47ea1cd8c264891dac82ae0223c6348884e6940ba986cd2bf",
    "K": "ee4ce51d2a74c5735df5722349ae78c2defae36f49c0badfd7823a460403f4da",
    "L": "591864a653a99000b9fe8d705b1ed0f496abfda7ca367d5da0fb8e6398d75949",
    "P": "42305e52616128d6b36a46c4db015e718c525e70c0563b5a77ac672ddf1a7773",
    "V": "22918f968ce8cde6266ecaea5e1075e6ab74580986cd57d5be77445b985a7c72",
}
"""Letter of a problem -> SHA-256 of its file ``asplos-2025-iopddl-<letter>.json.gz``."""


def contest_record(name: str) -> ContestRecord | None:
    """Return the record of a problem, like ``asplos-2025-iopddl-B``; None if it is not listed."""
    return CONTEST_RECORDS.get(name.removeprefix("asplos-2025-iopddl-"))


SUFFIXES = (".json", ".json.gz")


def folder() -> Path:
    """Return the folder of the added files; it may not exist yet."""
    given = os.environ.get("PARENVS_IOPDDL")
    return Path(given) if given else Path.home() / ".local" / "share" / "parenvs" / "iopddl"


def added() -> dict[str, Path]:
    """Return the added files by their names without suffixes, sorted; packed ones come first."""
    paths = {
        path.name.removesuffix(suffix): path
        for suffix in SUFFIXES
        for path in folder().glob(f"[!.]*{suffix}")
    }
    return dict(sorted(paths.items()))


def add(path: StrPath) -> tuple[Sharding, Path, bool]:
    """Check a file and copy it to the folder.

    Returns:
        The problem, where its copy is, and whether it is the contest's file by its SHA-256.

    Raises:
        ParenvsError: the file holds no problem, is not what it calls itself, or another of its
            name was added.
    """
    source = Path(path)
    problem, data = load_iopddl(source), source.read_bytes()
    expected = SHA256.get(problem.name.removeprefix("asplos-2025-iopddl-"))
    is_known = expected is not None and source.suffix == ".gz"
    digest = hashlib.sha256(data).hexdigest()
    if is_known and digest != expected:
        raise ParenvsError(
            f"{source}: it calls itself {problem.name}, but its SHA-256 is {digest}, not that of "
            f"the contest's file, {expected}; rename the problem or take the contest's file"
        )
    if not source.name.endswith(SUFFIXES):
        raise ParenvsError(f"{source}: the name of a problem's file ends with .json or .json.gz")
    target = folder() / source.name
    if target.exists() and target.read_bytes() != data:
        raise ParenvsError(f"{target} exists and differs; remove it, or rename {source}")
    with replacing(target) as stream:
        stream.write(data)
    return problem, target, is_known


def find(target: str, sets: Iterable[str] = ()) -> Sharding:
    """Read a problem by path, or by the name of an added file (its last letter is enough).

    Args:
        target: the path or the name.
        sets: further names that the caller knows, offered when ``target`` is near one.

    Raises:
        UnknownInstanceError: it is neither.
        ParenvsError: the file holds no problem.
    """
    if Path(target).is_file():
        return load_iopddl(target)
    files = added()
    matches = [name for name in files if name.endswith(f"-{target}")]
    for name in (target, *matches):
        if name in files and files[name].is_file():
            return load_iopddl(files[name])
    hint = did_you_mean(target, (*files, *sets))
    raise UnknownInstanceError(
        f"{target!r} is neither a file nor an added IOPDDL problem{hint}; "
        "add files with parenvs iopddl add FILE.json.gz"
    )


NANOSECONDS = 1e9
"""Units of cost in a second."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """A partition problem and its form as an IOPDDL problem.

    Attributes:
        partitioning: the partition problem; its plans are to be fast within the memory.
        problem: the IOPDDL problem; its cost is nanoseconds of a step.
        classes: (k,) classes of the first k nodes.
    """

    partitioning: Partitioning
    problem: Sharding
    classes: Array

    @classmethod
    def of(cls, partitioning: Partitioning, limit: float | None = None) -> Exchange:
        """Write a partition problem in the contest's format.

        Args:
            partitioning: the partition problem.
            limit: bytes that a device may use (default: the cluster's).
        """
        classes = partitioning.decidable()
        gain = np.rint(partitioning.gain_seconds[classes] * NANOSECONDS).astype(np.int64)
        saved = np.maximum(gain, 0)
        whole = round(partitioning.replicate_seconds * NANOSECONDS)
        costs = [[int(a), int(b)] for a, b in zip(saved, np.maximum(-gain, 0), strict=True)]
        costs.append([max(whole - int(saved.sum()), 0)])
        usages = [[0] * len(row) for row in costs]
        intervals = [[0, 0]] * len(costs)
        node_of = {int(label): node for node, label in enumerate(classes)}
        ends, tables = [], []
        for a, b in partitioning.classes.conflicts.tolist():
            if a in node_of and b in node_of:
                ends.append([node_of[a], node_of[b]])
                tables.append([0, 0, 0, FORBIDDEN])
        for (lo, hi, parameters), sizes in _groups(partitioning, node_of).items():
            for index, label in enumerate(parameters):
                # A group splits by a class if, and only if, the class is partitioned.
                is_own = np.arange(len(sizes)) == index + 1
                tie = np.where([is_own, ~is_own], FORBIDDEN, 0)
                ends.append([node_of[label], len(costs)])
                tables.append(tie.ravel().tolist())
            costs.append([0] * len(sizes))
            usages.append([int(np.ceil(size)) for size in sizes])
            intervals.append([lo, hi])
        allowed = partitioning.memory_limit if limit is None else limit
        problem = Sharding.of_lists(
            partitioning.graph.name, int(min(allowed, 2.0**62)), intervals, costs, usages, ends,
            tables,
        )  # fmt: skip
        return cls(partitioning, problem, classes)

    def strategies(self, chosen: Array) -> Array:
        """(n,) strategies of the IOPDDL problem that partition these classes, (C,) bool.

        A group of tensors takes the strategy that its ties to the classes leave.
        """
        problem, count = self.problem, len(self.classes)
        taken = np.zeros(len(problem), np.int64)
        taken[:count] = chosen[self.classes]
        for (a, b), first in zip(problem.ends, problem.edge_offset[:-1], strict=True):
            if b > count and taken[a]:
                size = problem.sizes[b]
                row = problem.edge_costs[first + size : first + 2 * size]
                taken[b] = int(np.argmin(row))
        return taken

    def chosen(self, plan: ShardingPlan) -> Array:
        """(C,) bool, the classes that a plan of the IOPDDL problem partitions.

        Raises:
            ParenvsError: the plan is for another problem, exceeds the limit or takes what is
                forbidden.
        """
        report = self.problem.report(plan)
        if not report.legal or report.forbidden:
            reasons = "; ".join(report.reasons) or "it takes what is forbidden"
            raise ParenvsError(f"{self.problem.name}: the solution is no plan: {reasons}")
        chosen = np.zeros(len(self.partitioning.classes), bool)
        taken = np.array(plan.strategies[: len(self.classes)], np.int64)
        chosen[self.classes[taken > 0]] = True
        return chosen


def _groups(
    partitioning: Partitioning, node_of: dict[int, int]
) -> dict[tuple[int, int, tuple[int, ...]], Array]:
    """(first moment, end, classes) -> bytes if none of these is partitioned, or each one."""
    footprint, graph = partitioning.footprint, partitioning.graph
    moments = max(len(footprint.order), 1)
    parameters = footprint.parameters[footprint.bytes[footprint.parameters] > 0]
    lives = [(tensor, 0, moments) for tensor in parameters.tolist()]
    stays = np.stack(footprint.lifetimes, axis=1)
    lives += [(tensor, first, last + 1) for tensor, first, last in stays.tolist()]
    groups: dict[tuple[int, int, tuple[int, ...]], Array] = {}
    for tensor, lo, hi in sorted(lives, key=lambda life: life[0]):
        labels = footprint.label[graph.dim_offset[tensor] : graph.dim_offset[tensor + 1]].tolist()
        classes = tuple(sorted({x for x in labels if x in node_of and footprint.share[x] < 1}))
        size = float(footprint.bytes[tensor])
        sizes = [size] + [size * float(footprint.share[x]) ** labels.count(x) for x in classes]
        key = (lo, hi, classes)
        groups[key] = groups.get(key, np.zeros(len(sizes))) + np.array(sizes)
    return groups
