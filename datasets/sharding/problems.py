"""Draws IOPDDL problems from parts of the shipped graphs, with costs and limits at random.

Two families of problems. ``mesh``: the nodes are tensors, in the order in which they are made; a
strategy splits dimensions over the two axes of a mesh, an edge leads from what an instruction reads
to what it makes and costs what changing the splits costs. No pair is forbidden, as in the contest's
problems after their reduction. ``classes``: the partition problem of a graph as ``parenvs iopddl
export`` writes it (``parenvs.tasks.sharding.files``), cut to a part of the step; nodes are
dimension classes and groups of tensors, and most edges forbid something.

A problem is known by its number: what is drawn depends on family, ranges and number alone. Sets
are numbers; references have the fingerprints of their problems, so that a change of the generator
is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from parenvs.cluster import Cluster
from parenvs.core.sets import BestValue, SetKind, member_of
from parenvs.datasets.banks import Bank
from parenvs.datasets.pipeline.families import log_uniform
from parenvs.datasets.references import INTRA_OP, costs_of, references
from parenvs.errors import (
    InfeasibleError,
    ParenvsError,
    UnknownInstanceError,
    refuse_unknown,
    shown,
)
from parenvs.graph.graph import Graph
from parenvs.tasks.partition.problem import Partitioning, load_partitioning
from parenvs.tasks.sharding.board import Board, KnownCosts
from parenvs.tasks.sharding.files import Exchange
from parenvs.tasks.sharding.problem import Reduced, Sharding
from parenvs.tasks.sharding.turns import board_of, completed

FIRST = "intra-op"
"""First word of the names of drawn problems."""
SEED = 2025
FAMILIES = ("mesh", "classes")
STRATEGIES = {"mesh": 25, "classes": 8}
"""Most strategies of a node that a family's reduced problems have."""
NODES = (8, 160)
"""Least and most nodes of a reduced problem; what is drawn beyond is drawn again."""
_AXES = ((2, 4), (2, 8), (4, 4))
# What limits have beyond the spare share, where no legal plan is found without.
_MORE = (0.0, 0.1, 0.3)
_TRIES = 50


class Ranges(NamedTuple):
    """What problems are drawn from.

    Attributes:
        tensors: least and most tensors of a part.
        noise: standard deviation of the logarithm of every cost.
        spare: how much more than a lean plan's peak may be used, as a share of it, (from, to).
    """

    graphs: tuple[str, ...]
    tensors: tuple[int, int]
    noise: float
    spare: tuple[float, float]


RANGES = {
    "inside": Ranges(("vgg-19", "resnet-50", "t5-base", "bert-48"), (60, 160), 0.3, (0.05, 0.3)),
    "outside": Ranges(("llama3-8b", "unet-sd1"), (160, 240), 0.5, (0.02, 0.15)),
}
"""Values of ``ranges``: what agents train on, and other graphs, larger parts, tighter limits."""
SETS = {
    "intra-op-validation": ("inside", 10, 1_000_000),
    "intra-op-test": ("inside", 20, 2_000_000),
    "intra-op-outside": ("outside", 10, 2_000_000),
}
"""Set -> its ranges, its problems of each family, and their first number."""


def drawn(family: str, number: int, ranges: str = "inside") -> Sharding:
    """Return the problem of a number.

    Args:
        family: one of ``FAMILIES``.
        number: from 0.
        ranges: a key of ``RANGES``.

    Raises:
        ParenvsError: there is no such family.
    """
    check_family(family)
    words = [SEED, FAMILIES.index(family), list(RANGES).index(ranges), number]
    rng = np.random.default_rng(words)
    name = name_of(family, number, ranges)
    # Parts of graphs may be decided by reduction alone, or be too large: then another is drawn.
    for _ in range(_TRIES):
        problem = (_mesh if family == "mesh" else _classes)(rng, RANGES[ranges], name)
        if problem is not None:
            return problem
    raise InfeasibleError(f"{name}: nothing fit to play was drawn in {_TRIES} attempts")


def name_of(family: str, number: int, ranges: str) -> str:
    """Return the name of the problem that ``drawn`` draws by the same arguments."""
    return f"{FIRST}/{ranges}/{family}/{number}"


def check_family(family: object) -> None:
    """Raise ``ParenvsError`` unless a family is one of ``FAMILIES``."""
    refuse_unknown("unknown family", family, FAMILIES)


@dataclass(frozen=True, eq=False)
class _Source:
    """A graph's tensors that have a place in memory, in the order in which they are made.

    Attributes:
        tensors: (n,) tensors.
        lives: (n, 2) half-open interval of instructions.
        made_of: tensors and entry parameters that each tensor is made of.
        held: entry parameters, which are there all the time.
    """

    partitioning: Partitioning
    tensors: np.ndarray
    lives: np.ndarray
    made_of: tuple[tuple[int, ...], ...]
    held: frozenset[int]


@lru_cache(maxsize=16)
def _source(name: str) -> _Source:
    cluster = Cluster.parse("1x8:v100")
    partitioning = load_partitioning(name, cluster, "shardy", "pad", "variables", "step_time")
    graph, footprint = partitioning.graph, partitioning.footprint
    transient = np.flatnonzero(footprint.transient & (footprint.bytes > 0))
    transient = transient[np.argsort(footprint.first[transient], kind="stable")]
    parameters = footprint.parameters[footprint.bytes[footprint.parameters] > 0]
    made_of = _made_of(graph, set(transient.tolist()) | set(parameters.tolist()))
    return _Source(
        partitioning,
        transient,
        np.stack([footprint.first[transient], footprint.last[transient] + 1], axis=1),
        tuple(tuple(sorted(made_of[tensor])) for tensor in transient.tolist()),
        frozenset(parameters.tolist()),
    )


def _made_of(graph: Graph, wanted: set[int]) -> dict[int, set[int]]:
    """Return the kept tensors that each tensor is made of, through those that are not kept."""
    # Instructions are in program order, so sources of all operands are known.
    sources_of: dict[int, set[int]] = {}
    for instruction in range(len(graph.opcode)):
        read = graph.operands[slice(*graph.operand_offset[instruction : instruction + 2])].tolist()
        sources: set[int] = set()
        for tensor in read:
            sources |= {tensor} if tensor in wanted else sources_of.get(tensor, set())
        results = slice(*graph.result_offset[instruction : instruction + 2])
        for tensor in graph.results[results].tolist():
            sources_of[tensor] = sources - {tensor}
    return sources_of


def _part(rng: Generator, ranges: Ranges) -> tuple[_Source, int, int]:
    source = _source(ranges.graphs[int(rng.integers(len(ranges.graphs)))])
    count = int(rng.integers(ranges.tensors[0], ranges.tensors[1] + 1))
    count = min(count, len(source.tensors))
    begin = int(rng.integers(len(source.tensors) - count + 1))
    return source, begin, begin + count


def _mesh(rng: Generator, ranges: Ranges, name: str) -> Sharding | None:
    source, begin, end = _part(rng, ranges)
    axes = _AXES[int(rng.integers(len(_AXES)))]
    graph, footprint = source.partitioning.graph, source.partitioning.footprint
    # Log-uniform: resharding is from five times cheaper to five times dearer than compute.
    slow = log_uniform(rng, 0.2, 5.0)  # of changing splits
    inner = source.tensors[begin:end].tolist()
    read = {x for producers in source.made_of[begin:end] for x in producers if x in source.held}
    tensors = [*sorted(read), *inner]
    first, last = int(source.lives[begin, 0]), int(source.lives[end - 1, 0]) + 1
    lives = np.array([[first, last]] * len(read) + source.lives[begin:end].tolist())
    splits: list[list[tuple[int, int]]] = []  # of each node: class split by each axis, -1: none
    costs, usages = [], []
    for tensor in tensors:
        dims = slice(*graph.dim_offset[tensor : tensor + 2])
        whole = dict(zip(footprint.label[dims].tolist(), graph.dims[dims].tolist(), strict=True))
        mine = [x for x in product([-1, *whole], repeat=2) if _divides(whole, x[0], x[1], axes)]
        splits.append(mine[: STRATEGIES["mesh"]])
        # Split over an axis of n devices, a device holds 1 / n of the tensor.
        share = np.array([float(axes[0]) ** -(a >= 0) * float(axes[1]) ** -(b >= 0)
                          for a, b in splits[-1]])  # fmt: skip
        used = float(footprint.bytes[tensor]) * share
        usages.append(np.ceil(used).astype(np.int64).tolist())
        # What makes a tensor takes time by its bytes, on all devices that hold the same part.
        noise = np.exp(ranges.noise * rng.standard_normal(len(share)))
        costs.append(np.rint(0.1 * used * noise).astype(np.int64).tolist())
    index = {tensor: at for at, tensor in enumerate(tensors)}
    ends, tables = [], []
    for tensor, made_of in zip(inner, source.made_of[begin:end], strict=True):
        b = index[tensor]
        labels = {label for split in splits[b] for label in split}
        for a in (index[x] for x in made_of if x in index):
            sizes = float(footprint.bytes[tensors[a]]), float(footprint.bytes[tensor])
            table = [[_reshard(before, after, labels, *sizes, axes) for after in splits[b]]
                     for before in splits[a]]  # fmt: skip
            moved = slow * np.exp(ranges.noise * rng.standard_normal()) * np.array(table)
            ends.append([a, b])
            tables.append(np.rint(moved).astype(np.int64).ravel().tolist())
    return _with_limit(rng, ranges, name, "mesh", lives, costs, usages, ends, tables)


def _divides(whole: dict[int, int], a: int, b: int, axes: tuple[int, int]) -> bool:
    """Whether splits of the dimensions of classes a and b by the axes leave no rest."""
    if a == b >= 0:
        return whole[a] % (axes[0] * axes[1]) == 0
    return (a < 0 or whole[a] % axes[0] == 0) and (b < 0 or whole[b] % axes[1] == 0)


def _reshard(
    one: tuple[int, int], other: tuple[int, int], held: set[int], read: float, made: float,
    axes: tuple[int, int],
) -> float:  # fmt: skip
    """Return bytes that devices exchange where what is read is split otherwise than what is made.

    A split that the result could keep and does not is gathered, one that it cannot have is a sum
    over the axis (all-reduce), and one that only the result has costs nothing: a device takes its
    part.
    """
    moved = 0.0
    left = read
    for axis, (a, b) in enumerate(zip(one, other, strict=True)):
        ways = axes[axis]
        if a >= 0 and a != b:
            moved += left * (ways - 1) / ways if a in held else 2 * made * (ways - 1) / ways
        # What the next axis moves is already split by this one.
        left /= ways if b >= 0 else 1
    return moved


_exchange = lru_cache(maxsize=16)(Exchange.of)


def _classes(rng: Generator, ranges: Ranges, name: str) -> Sharding | None:
    source, begin, end = _part(rng, ranges)
    whole = _exchange(source.partitioning).problem
    first, last = source.lives[begin, 0], source.lives[end - 1, 0] + 1
    lo, hi = whole.intervals.T
    # Groups of tensors that live within the part; classes live nowhere.
    inside = (lo < hi) & (lo < last) & (hi > first)
    edges = inside[whole.ends].any(axis=1)
    is_kept = inside.copy()
    is_kept[whole.ends[edges]] = True
    nodes = np.flatnonzero(is_kept)
    # Number in the part, -1 outside of it.
    index = np.full(len(whole), -1)
    index[nodes] = np.arange(len(nodes))
    lives = np.clip(whole.intervals[nodes], first, last) - first
    lives[whole.intervals[nodes, 0] == whole.intervals[nodes, 1]] = 0
    typical = float(np.median(whole.costs[whole.costs > 0])) if (whole.costs > 0).any() else 1e3
    costs, usages = [], []
    for node, (starts, stops) in zip(nodes.tolist(), lives.tolist(), strict=True):
        at = slice(*whole.offset[node : node + 2])
        drawn_costs = whole.costs[at].astype(float)
        if starts == stops and len(drawn_costs) == 2:
            # Classes would nearly all be partitioned at the true costs.
            drawn_costs += typical * (rng.random(2) < 0.5)
            drawn_costs *= np.exp(rng.standard_normal(2))
        drawn_costs *= np.exp(ranges.noise * rng.standard_normal(len(drawn_costs)))
        costs.append(np.rint(drawn_costs).astype(np.int64).tolist())
        usages.append(whole.usages[at].tolist())
    inner = np.flatnonzero((index[whole.ends] >= 0).all(axis=1))
    ends = index[whole.ends[inner]].tolist()
    spans = zip(whole.edge_offset[inner], whole.edge_offset[inner + 1], strict=True)
    tables = [whole.edge_costs[begin:end].tolist() for begin, end in spans]
    return _with_limit(rng, ranges, name, "classes", lives, costs, usages, ends, tables)


def _with_limit(
    rng: Generator, ranges: Ranges, name: str, family: str, lives: np.ndarray,
    costs: list[list[int]], usages: list[list[int]], ends: list[list[int]],
    tables: list[list[int]],
) -> Sharding | None:  # fmt: skip
    """Make the problem, with a limit above what it uses if every node uses its least.

    Returns:
        The problem, or None if no legal plan is found, or little or much is left to decide.
    """
    lives = lives - lives[:, 0].min()
    problem = Sharding.of_lists(name, None, lives, costs, usages, ends, tables)
    # Limits are a share above the peak of the leanest plan: memory matters, and plans exist.
    lean, _ = problem.usage(np.array([int(np.argmin(row)) for row in usages]))
    spare = rng.uniform(*ranges.spare)
    for more in _MORE:
        limited = replace(problem, limit=int(lean * (1.0 + more + spare)), instance="")
        try:
            board = Board.of(limited)
            if not NODES[0] <= len(board) <= NODES[1] or board.sizes.max() > STRATEGIES[family]:
                return None
            completed(board)
        except InfeasibleError:
            continue
        return limited
    return None


@lru_cache(maxsize=len(SETS))
def members(name: str) -> dict[str, tuple[str, int, str]]:
    """Return the problems of a set, FAMILY-NUMBER -> the arguments of ``drawn``."""
    ranges, count, first = SETS[name]
    return {f"{x}-{k:03d}": (x, first + k, ranges) for x in FAMILIES for k in range(count)}


def set_names(name: str) -> list[str]:
    """Return the names of a set's problems, ``SET/FAMILY-NUMBER``."""
    return [f"{name}/{member}" for member in members(name)]


def of_set(name: str) -> Sharding:
    """Return a problem of a set.

    Args:
        name: ``SET/FAMILY-NUMBER``.

    Raises:
        ParenvsError: there is no such problem, or the generator no longer draws it.
    """
    problem = drawn(*member_of(members(name.partition("/")[0]), name))
    row = references(INTRA_OP).get(name)
    if row is not None and row.get("fingerprint") != problem.fingerprint:
        raise ParenvsError(
            f"{name}: the generator draws another problem now than when the set was made; install "
            "the version that made it"
        )
    return replace(problem, name=name, instance="")


def named(name: str) -> tuple[str, int, str]:
    """Return the arguments of ``drawn`` for the name of its problem.

    Raises:
        ParenvsError: it is no such name.
    """
    first, *words = name.split("/")
    is_whole = len(words) == 3 and words[2].isdecimal() and len(words[2]) < 10
    if first == FIRST and is_whole and words[0] in RANGES and words[1] in FAMILIES:
        return words[1], int(words[2]), words[0]
    raise UnknownInstanceError(
        f"unknown problem {shown(name)}; drawn ones are called like {FIRST}/inside/mesh/17: "
        f"ranges ({', '.join(RANGES)}), family ({', '.join(FAMILIES)}) and number"
    )


def find(name: str) -> Sharding:
    """Return a problem of a set, or a drawn one, by its name.

    Raises:
        ParenvsError: there is none, see ``of_set`` and ``named``.
    """
    return of_set(name) if name.split("/")[0] in SETS else drawn(*named(name))


def set_kind(name: str) -> SetKind:
    """Return what evaluations know of a set of sharding problems; see ``SetKind``."""

    def known(name: str) -> BestValue | None:
        # Drawing a problem takes longer than all that is done with its costs.
        row = references(INTRA_OP).get(name, {})
        return costs_of(INTRA_OP, name, str(row.get("fingerprint")))

    return SetKind("IntraOpSharding-v2", set_names, of_set, known)


BANKS = {"mesh": 400, "classes": 200}
"""Family -> problems of its bank, those of the numbers from 0 and ranges inside."""
ARRAYS = (
    "offset", "costs", "ends", "edge_offset", "edge_costs", "term_node", "term_times",
    "term_offset", "usages", "slack",
)  # fmt: skip
"""Fields of a reduced problem that a bank keeps."""


@lru_cache(maxsize=len(BANKS))
def bank(family: str) -> Bank:
    """Return the bank of a family."""
    return Bank(f"intra-op-{family}", BANKS[family])


def numbered(family: str, number: int, ranges: str = "inside") -> Board:
    """Return the board of a drawn problem by its number, from 0, which may be of the bank."""
    if ranges != "inside" or number >= BANKS[family]:
        return board_of(drawn(family, number, ranges))
    row = bank(family)[number]
    reduced = Reduced(
        problem=None, nodes=np.arange(len(row["offset"]) - 1), constant=int(row["constant"]),
        values=np.zeros(0, np.int64), steps=(), **{name: row[name] for name in ARRAYS},
    )  # fmt: skip
    name = name_of(family, number, ranges)
    return replace(
        Board.of_reduced(name, reduced),
        witness=row["witness"],
        greedy=row["first"],
        reference=reduced.cost(row["first"]),
        known=known_of(name, str(row["fingerprint"])),
        generate=find,
        stored_messages=row["messages"],
    )


def board_of_set(name: str) -> Board:
    """Return the board of a problem of a set, with what is known of it."""
    problem = of_set(name)
    return replace(board_of(problem), known=known_of(name, problem.fingerprint))


def known_of(name: str, fingerprint: str) -> KnownCosts:
    """Return what is known of the costs of a problem of a set or a bank."""
    reference = costs_of(INTRA_OP, name, fingerprint)
    return KnownCosts() if reference is None else KnownCosts(reference.bound, reference.value)
