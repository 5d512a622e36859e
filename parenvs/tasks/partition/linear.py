"""A problem of partitioning as its environment plays it: linear in the classes that are split.

A legal plan splits a tensor at most once, and an instruction too. So the seconds of its step and
its bytes at each moment are linear in the classes: a plan saves what each of its classes saves.
Of the tens of thousands of moments of a step a few hundred can be the fullest of some plan; a
``Linear`` keeps these, and needs the graph no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from parenvs.compiled import Array
from parenvs.core.game import Rows
from parenvs.errors import InfeasibleError
from parenvs.tasks.partition.classes import batch_classes, compatible, conflict_matrix, owner_of
from parenvs.tasks.partition.game import OPEN, PARTITION, REPLICATE, PartitionSpace
from parenvs.tasks.partition.problem import Partitioning

CLASS = (
    "dimensions", "bytes", "seconds", "seconds_log", "all_reduce", "memory", "share", "batch",
    "parameters",
)  # fmt: skip
EXCLUDED = ("dimensions", "seconds", "memory")
"""Figures of which is told what the open classes have that a class excludes."""
STEP = ("replicated_memory", "devices", "one_server", "micro_batches", "recompute", "classes")
DECADES = 6
"""Decades of a logarithmic figure, below which it is 0."""
DOUBLINGS = 10
"""Doublings of devices, micro-batches and classes at which their figures are 1."""
PRICES = 1.0 / (1.0 + 4.0 ** -np.arange(-10, 21))
"""Prices of bytes that are tried one after the other, up from a millionth."""
HALVINGS = 12
"""Of the interval between the first at which a plan fits and the one before."""
FIRST_COLUMNS = 16
"""Columns by which most moments are told apart at once."""


class Relaxed(NamedTuple):
    """The optimum of a linear relaxation, whose prices tell what bytes and exclusions are worth.

    Attributes:
        split: (K,) in [0, 1], the share of each class that is split.
        worth: (K,) reduced worth, a share of the replicated step's seconds: gain plus saved bytes
            at their prices, less the prices of what is excluded.
        own: (K,) the same without exclusions.
        prices: (M',) of the share of the limit at each of ``Linear.fullest``.
    """

    split: Array
    worth: Array
    own: Array
    prices: Array


@dataclass(frozen=True, eq=False)
class Linear:
    """A problem with a limit of memory. K classes that can be split, M moments, G groups.

    Attributes:
        classes: (K,) int64, the classes of the graph, in the order of the questions.
        gain: (K,) share of the replicated step's seconds that each class saves.
        replicated_seconds: step time of the plan that splits nothing.
        rivals: per class, the classes that it excludes, ascending.
        replicated_bytes: (M,) bytes of the replicated plan at each moment.
        saved_bytes: (K, M) bytes that each class saves there.
        limit: bytes that a device may hold.
        groups: per group, the classes that can split its instructions.
        weights: (G,) share of the replicated step's seconds that its instructions take.
        paid: (K,) share of an instruction's seconds that a class saves, less its all-reduces, which
            are spread over the instructions that it splits; 0 where it saves nothing.
        figures: (K, 9) float32, ``CLASS``.
        step: (6,) float32, ``STEP``.
        witnesses: (W, K) bool, plans that fit; the first is the start plan.
        fullest: (M',) int64, moments among which the fullest of every legal plan is.
        best: seconds of the best plan known, NaN if none is known.
        optimal: whether it is proven to be the shortest.
    """

    name: str
    classes: Array
    gain: Array
    replicated_seconds: float
    rivals: tuple[Array, ...]
    replicated_bytes: Array
    saved_bytes: Array
    limit: float
    groups: tuple[Array, ...]
    weights: Array
    paid: Array
    figures: Array
    step: Array
    witnesses: Array
    fullest: Array
    best: float = math.nan
    optimal: bool = False
    cache: dict[str, Any] = field(default_factory=dict, repr=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Linear:
        """Itself: nothing in it changes, and environments that are forked share it."""
        return self

    @property
    def instance(self) -> str:
        """Its name."""
        return self.name

    def seconds(self, chosen: Array) -> Array:
        """(...) seconds of the steps that split ``chosen``, (..., K) bool."""
        saved = np.where(chosen, self.gain, 0.0).sum(axis=-1)
        return np.asarray(self.replicated_seconds * (1.0 - saved))

    @property
    def longest(self) -> float:
        """Step time that no plan exceeds: with every loss and no saving."""
        return float(self.replicated_seconds * (1.0 - np.minimum(self.gain, 0.0).sum()))

    def slack(self, chosen: Array) -> Array:
        """(..., M) bytes that plans leave at each moment, (..., K) bool; negative if too many."""
        return self.limit - self.replicated_bytes + chosen.astype(float) @ self.saved_bytes

    def fits(self, chosen: Array) -> Array:
        """(...) whether plans keep to the limit at all moments."""
        return np.asarray(self.slack(chosen).min(axis=-1) >= 0)

    def legal(self, chosen: Array) -> bool:
        """Whether a plan, (K,) bool, splits no two classes that exclude each other."""
        return not any(chosen[self.rivals[k]].any() for k in np.flatnonzero(chosen).tolist())

    @cached_property
    def priced(self) -> tuple[float, Array]:
        """The price of memory in [0, 1], a Lagrange multiplier, and the (K,) scores at it.

        The score of a class is (1 - price) times its share of the replicated step's seconds, plus
        price times the mean share of the limit that it saves. The price is the lowest of some at
        which the plan fits that takes classes greedily by score; 1 if none does.
        """
        saved_share = self.saved_bytes.mean(axis=1) / self.limit

        def scores(price: float) -> Array:
            return (1.0 - price) * self.gain + price * saved_share

        def greedy_fits(price: float) -> bool:
            score = scores(price)
            order = np.argsort(-score, kind="stable")[: (score > 0).sum()]
            return bool(self.fits(compatible(order, self.rivals.__getitem__, len(score))))

        prices = [0.0, *PRICES.tolist(), 1.0]
        index = next((i for i, price in enumerate(prices) if greedy_fits(price)), len(prices) - 1)
        # Bisection between the last price that fails and the first that fits.
        low, price = prices[max(index - 1, 0)], prices[index]
        for _ in range(HALVINGS):
            middle = (low + price) / 2
            if greedy_fits(middle):
                price = middle
            else:
                low = middle
        return price, scores(price)

    @cached_property
    def conflicts(self) -> Any:
        """(pairs, K) sparse, a row of two ones for each pair of classes that exclude each other."""
        pairs = [(k, x) for k, rivals in enumerate(self.rivals) for x in rivals.tolist() if k < x]
        return conflict_matrix(np.array(pairs, np.int64).reshape(-1, 2), len(self.gain))

    @cached_property
    def relaxed(self) -> Relaxed:
        """The linear relaxation: classes are split in part, two that exclude each other one in sum.

        Moments at which the replicated plan fits have no price.
        """
        from scipy.optimize import linprog
        from scipy.sparse import coo_array, vstack

        saved = self.saved_bytes[:, self.fullest].T / self.limit
        excess = self.replicated_bytes[self.fullest] / self.limit - 1.0
        tight = excess > 0
        found = linprog(
            -self.gain,
            A_ub=vstack([coo_array(-saved[tight]), self.conflicts]),
            b_ub=np.concatenate([-excess[tight], np.ones(self.conflicts.shape[0])]),
            bounds=(0, 1),
            method="highs",
        )
        duals, prices = -found.ineqlin.marginals, np.zeros(len(excess))
        prices[tight], conflicts = np.split(duals, [np.count_nonzero(tight)])
        own = self.gain + prices @ saved
        return Relaxed(found.x, own - self.conflicts.T @ conflicts, own, prices)

    @classmethod
    def of(cls, problem: Partitioning, name: str = "") -> Linear:
        """Return the linear form of a problem with a limit of memory, without witnesses.

        Raises:
            InfeasibleError: no dimension can be partitioned, or no plan can fit.
        """
        space = PartitionSpace.of(problem, True)
        classes, name = space.classes, name or problem.instance
        bound, limit = problem.footprint.lower_bound(~problem.classes.blocked), problem.memory_limit
        if bound > limit:
            raise InfeasibleError(
                f"no plan fits the memory: {name} on {problem.cluster}: the peak exceeds "
                f"memory_limit by {bound - limit:,.0f} bytes or more, whatever is partitioned"
            )
        seconds = problem.replicate_seconds or 1.0
        computed, gain = problem.saved_seconds[classes], problem.gain_seconds[classes]
        net_share = np.divide(gain, computed, out=np.zeros(len(classes)), where=computed > 0)
        saved_share = 1.0 - problem.device_share[classes]
        replicated_bytes, split_bytes = _moment_bytes(problem, space)
        groups, weights = _instruction_groups(problem, space)
        at = problem.footprint.memory(np.zeros(len(problem.classes), bool)).at
        peak = problem.footprint.saved_at(at)
        return cls(
            name=name,
            classes=np.asarray(classes, np.int64),
            gain=gain / seconds,
            replicated_seconds=problem.replicate_seconds,
            rivals=tuple(np.array(sorted(rivals), np.int64) for rivals in space.rivals),
            replicated_bytes=replicated_bytes,
            saved_bytes=split_bytes * saved_share[:, None],
            limit=limit,
            groups=groups,
            weights=weights / seconds,
            paid=saved_share * np.maximum(net_share, 0.0),
            figures=_figures(
                problem, space, gain / seconds, peak.saved_bytes[classes] / peak.replicated_bytes
            ),
            step=_step(problem, len(classes), float(replicated_bytes.max())),
            witnesses=np.zeros((0, len(classes)), bool),
            fullest=np.arange(len(replicated_bytes)),
        )

    def at(self, limit: float) -> Linear:
        """Return the problem at another limit of memory, with the first of its witnesses."""
        step = self.step.copy()
        step[0] = _fullness(float(self.replicated_bytes.max()), limit)
        return replace(self, limit=limit, step=step, witnesses=self.witnesses[:1], cache={})

    def with_witnesses(self, witnesses: Array) -> Linear:
        """Return the problem with these witnesses, (W, K) bool; each fits and is legal."""
        return replace(self, witnesses=witnesses, cache={})


def logarithmic(shares: Array) -> Array:
    """Return shares as figures in [-1, 1] by size: 1 is all, 0.5 a thousandth, 0 a millionth."""
    size = np.log10(np.maximum(np.abs(shares), 10.0**-DECADES)) / DECADES + 1.0
    return np.copysign(np.minimum(size, 1.0), shares)


def _fullness(used: float, limit: float) -> float:
    """Return bytes over the limit as a figure in [-1, 1]: 0 is the limit, 1 is 16 times it."""
    return float(np.clip(np.log2(used / limit) / 4, -1.0, 1.0))


def _figures(problem: Partitioning, space: PartitionSpace, gain: Array, memory: Array) -> Array:
    """(K, 9) float32 features of the classes, ``CLASS``."""
    classes = space.classes
    stakes = np.zeros((len(classes), 5), np.float32)
    stakes[np.asarray(space.question_class)] = space.stakes[:-1]
    dimensions, parameter_bytes, *_ = stakes.T
    seconds = problem.replicate_seconds or 1.0
    columns = (  # in the order of ``CLASS``
        dimensions,
        parameter_bytes,
        np.clip(gain, -1.0, 1.0),
        logarithmic(gain),
        np.minimum(problem.all_reduce_seconds[classes] / seconds, 1.0),
        np.clip(memory, 0.0, 1.0),
        problem.device_share[classes],
        batch_classes(problem.classes)[classes],
        problem.counts("variables")[classes] > 0,
    )
    return np.stack(columns, axis=1).astype(np.float32)


def _step(problem: Partitioning, classes: int, replicated: float) -> Array:
    """(6,) float32 features of the problem, ``STEP``."""
    cluster, step = problem.cluster, problem.step
    figures = (
        _fullness(replicated, problem.memory_limit),
        np.log2(cluster.devices) / DOUBLINGS,
        cluster.servers == 1,
        np.log2(step.micro_batches) / DOUBLINGS,
        step.recomputes,
        np.log2(classes) / DOUBLINGS,
    )
    return np.clip(np.array(figures, np.float32), -1.0, 1.0)


def _moment_bytes(problem: Partitioning, space: PartitionSpace) -> tuple[Array, Array]:
    """(M,) bytes of the replicated plan, (K, M) bytes that each class splits, where they matter.

    Tensors whose dimensions are in the same classes form a group. A moment at which no group holds
    more than at another is not needed: whatever is split, the other one is as full.
    """
    footprint, graph = problem.footprint, problem.graph
    index = _space_index(problem, space)[problem.classes.label]
    owner = owner_of(graph)
    counts = (index >= 0) & (graph.dims > 1)
    group, members = _grouped_by_classes(owner[counts], index[counts], len(graph.element_type))
    tensor, first, last = footprint.lifetimes
    step = np.zeros((len(footprint.order) + 1, len(members)))
    np.add.at(step, (first, group[tensor]), footprint.bytes[tensor])
    np.subtract.at(step, (last + 1, group[tensor]), footprint.bytes[tensor])
    ends = np.unique(np.minimum(last, len(step) - 2))  # moments after which something goes
    # Bytes are whole numbers, so rounding removes the error of the running sums.
    group_bytes = np.rint(np.cumsum(step, axis=0)[ends] if len(ends) else step[:1])
    group_bytes += np.bincount(
        group[footprint.parameters], footprint.bytes[footprint.parameters], len(members)
    )
    front = _pareto_front(group_bytes)
    by_class = np.zeros((len(space.classes), len(front)))
    for classes, column in zip(members, front.T, strict=True):
        by_class[list(classes)] += column
    return front.sum(axis=1), by_class


def _pareto_front(rows: Array) -> Array:
    """Return the rows, (m, g), that no other one dominates: is as large in every column."""
    rows = np.unique(rows, axis=0)
    # Only a row with a larger sum can dominate, so one pass in this order suffices.
    rows = rows[np.argsort(-rows.sum(axis=1), kind="stable")]
    # Columns that vary most decide most comparisons, on a slice that stays in the cache.
    order = np.argsort(-rows.std(axis=0), kind="stable")
    rows, front, count = rows[:, order], np.empty_like(rows), 0
    first = slice(0, FIRST_COLUMNS)
    for row in rows:
        larger = front[:count]
        candidates = np.flatnonzero((larger[:, first] >= row[first]).all(axis=1))
        if not (larger[candidates] >= row).all(axis=1).any():
            front[count] = row
            count += 1
    result = np.empty_like(front[:count])
    result[:, order] = front[:count]
    return result


def _instruction_groups(
    problem: Partitioning, space: PartitionSpace
) -> tuple[tuple[Array, ...], Array]:
    factors = problem.classes.factors
    index = _space_index(problem, space)[problem.classes.factor_class]
    counts = (index >= 0) & (problem.seconds[factors.instruction] > 0)
    instructions = factors.instruction[counts]
    group, members = _grouped_by_classes(instructions, index[counts], len(problem.graph.opcode))
    seconds = np.bincount(group, problem.seconds, len(members))
    # Group 0, of instructions that no class splits, is left out.
    return tuple(np.array(classes, np.int64) for classes in members[1:]), seconds[1:]


def _space_index(problem: Partitioning, space: PartitionSpace) -> Array:
    """(C,) index in the space of each class of the graph, -1 if it is none."""
    position = np.full(len(problem.classes), -1)
    position[space.classes] = np.arange(len(space.classes))
    return position


def _grouped_by_classes(
    item: Array, class_: Array, count: int
) -> tuple[Array, Sequence[tuple[int, ...]]]:
    """Group ``count`` items by the set of their classes; ``item`` and ``class_`` are pairs, (p,).

    Returns:
        (count,) the group of each item, and the classes of each group; group 0 has none.
    """
    pairs = np.unique(np.stack([item, class_], axis=1), axis=0)
    items, first, sizes = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    groups: dict[tuple[int, ...], int] = {(): 0}
    result = np.zeros(count, np.int64)
    for index, begin, size in zip(items.tolist(), first.tolist(), sizes.tolist(), strict=True):
        members = tuple(pairs[begin : begin + size, 1].tolist())
        result[index] = groups.setdefault(members, len(groups))
    return result, list(groups)


FIRST = 4
"""Problems that there is room for at first."""


class Sizes(NamedTuple):
    """Sizes of the largest problem: of each axis the largest."""

    classes: int
    moments: int
    groups: int
    members: int
    witnesses: int

    @classmethod
    def of(cls, problem: Linear) -> Sizes:
        """Return the sizes of a problem."""
        members = max(map(len, problem.groups), default=1)
        moments, groups = len(problem.fullest), len(problem.groups)
        return cls(len(problem.gain), moments, groups, members, len(problem.witnesses))

    def with_(self, other: Sizes) -> Sizes:
        """Return the sizes that hold both."""
        return Sizes(*map(max, self, other))


class Tables:
    """Problems in S slots, padded with zeros; M moments that can be the fullest, W witnesses."""

    def __init__(self, slots: int, size: Sizes) -> None:
        k, m, w = size.classes, size.moments, size.witnesses
        # Of each class: gain, and the same with a last class that pays nothing; bytes per moment.
        self.gain = np.zeros((slots, k))
        self.paid = np.zeros((slots, k + 1))
        self.saved_bytes = np.zeros((slots, k, m))
        self.figures = np.zeros((slots, k, len(CLASS)), np.float32)
        self.excluding = np.zeros((slots, k, len(EXCLUDED)), np.float32)
        # The classes that each excludes, and how many; the heuristic's score by size.
        self.rivals = np.zeros((slots, k, k), np.int16)
        self.rival_count = np.zeros((slots, k), np.int64)
        self.rule = np.zeros((slots, k), np.float32)
        # Of each class the relaxation's split, reduced worth and own worth; bytes that it leaves at
        # each moment, and their price.
        self.split, self.worth, self.own = np.zeros((3, slots, k))
        self.expected, self.prices = np.full((slots, m), np.inf), np.zeros((slots, m))
        # The classes of each group of instructions, k where there are fewer, and its weight.
        self.members = np.full((slots, size.members, size.groups), k)
        self.weights = np.zeros((slots, size.groups))
        # Of each problem: classes, moments, bytes, seconds replicated and at the start, price.
        self.size, self.moments = np.zeros((2, slots), np.int64)
        self.limit, self.replicated_seconds, self.start, self.price = np.zeros((4, slots))
        self.step = np.zeros((slots, len(STEP)), np.float32)
        # Decisions before the first step; witnesses, repeated where fewer; the bytes they leave.
        self.decisions = np.full((slots, k), REPLICATE, np.int8)
        self.completions = np.zeros((slots, k, w), bool)
        self.slack = np.full((slots, w, m), np.inf)

    def put(self, slot: int, problem: Linear) -> None:
        """Write a problem into an empty slot."""
        k, m, plans = len(problem.gain), len(problem.fullest), problem.witnesses
        self.gain[slot, :k], self.paid[slot, :k] = problem.gain, problem.paid
        self.saved_bytes[slot, :k, :m] = problem.saved_bytes[:, problem.fullest]
        self.figures[slot, :k] = problem.figures
        self.excluding[slot, :k] = np.maximum(
            problem.figures[:, [CLASS.index(name) for name in EXCLUDED]], 0.0
        )
        for index, rivals in enumerate(problem.rivals):
            self.rivals[slot, index, : len(rivals)] = rivals
            self.rival_count[slot, index] = len(rivals)
        for index, classes in enumerate(problem.groups):
            self.members[slot, : len(classes), index] = classes
        self.weights[slot, : len(problem.weights)] = problem.weights
        self.size[slot], self.moments[slot] = k, m
        self.limit[slot], self.replicated_seconds[slot] = problem.limit, problem.replicated_seconds
        self.start[slot], self.step[slot] = problem.seconds(plans[0]), problem.step
        self.price[slot], scores = problem.priced
        self.rule[slot, :k] = logarithmic(scores)
        relaxed = problem.relaxed
        self.split[slot, :k], self.worth[slot, :k], self.own[slot, :k] = relaxed[:3]
        left = problem.slack(relaxed.split)[problem.fullest]
        self.expected[slot, :m], self.prices[slot, :m] = left, relaxed.prices
        self.decisions[slot, :k] = OPEN
        repeated = np.arange(self.completions.shape[2]) % len(plans)
        self.completions[slot, :k] = plans[repeated].T
        self.slack[slot, :, :m] = problem.slack(plans)[repeated][:, problem.fullest]


class PartialPlans:
    """The partial plans of n episodes, and completions of them that are known to fit the memory.

    Args:
        largest: sizes of the largest problem.

    Attributes:
        slot: (n,) int64, the slot of each episode's problem.
        decisions: (n, K) int8: 1 partitioned, 0 replicated, -1 open.
        completions: (n, K, W) bool, complete plans that agree with the decisions.
        slack: (n, W, 2, M) bytes that each leaves at each moment, as it is and with the other
            choice for the candidate, the class decided next; least: (n, W, 2) their minimum.
        current: (n, W) int8, which of the two is the completion as it is.
        expected: (n, M) bytes that are left at each moment if of the open classes as much is split
            as in the relaxation.
    """

    def __init__(self, count: int, largest: Sizes) -> None:
        self.largest = largest
        self._slots: dict[Linear, int] = {}
        self.problems: list[Linear] = []
        self.tables = Tables(FIRST, largest)
        k, m, w = largest.classes, largest.moments, largest.witnesses
        self.slot = np.zeros(count, np.int64)
        self.decisions = np.full((count, k), OPEN, np.int8)
        self.completions = np.zeros((count, k, w), bool)
        self.slack, self.least = np.zeros((count, w, 2, m)), np.zeros((count, w, 2))
        self.expected = np.zeros((count, m))
        self.current, self._witness_index = np.zeros((count, w), np.int8), np.arange(w)

    def has_room(self, problem: Linear) -> bool:
        """Whether a problem is no larger than the largest."""
        return self.largest.with_(Sizes.of(problem)) == self.largest

    def put(self, rows: Rows, problem: Linear) -> None:
        """Set the problem of episodes."""
        slot = self._slots.get(problem)
        if slot is None:
            slot = self._slots[problem] = len(self.problems)
            self.problems.append(problem)
            if slot == len(self.tables.gain):
                # Slots double, so that a problem costs constant time on average.
                more = Tables(slot, self.largest)
                for name, table in vars(self.tables).items():
                    setattr(self.tables, name, np.concatenate([table, getattr(more, name)]))
            self.tables.put(slot, problem)
        self.slot[rows] = slot

    def start(self, rows: Rows) -> None:
        """Begin episodes with nothing decided."""
        tables, slot = self.tables, self.slot[rows]
        self.decisions[rows] = tables.decisions[slot]
        self.completions[rows] = tables.completions[slot]
        self.expected[rows] = tables.expected[slot]
        self.slack[rows, :, 0], self.slack[rows, :, 1] = tables.slack[slot], np.inf
        self.least[rows, :, 0], self.current[rows] = tables.slack[slot].min(axis=-1), 0

    def rivals(self, rows: Array, candidates: Array) -> tuple[Array, Array]:
        """Return pairs of a position in ``rows`` and a class that its candidate excludes."""
        slot = self.slot[rows]
        counts = self.tables.rival_count[slot, candidates]
        episode = np.repeat(np.arange(len(rows)), counts)
        number = np.arange(len(episode)) - np.repeat(counts.cumsum() - counts, counts)
        return episode, self.tables.rivals[slot[episode], candidates[episode], number]

    def remaining_bytes(self, rows: Array, candidates: Array) -> Array:
        """(k, 2) bytes that the leanest known completion leaves, by choice for ``candidates``."""
        slot = self.slot[rows]
        moments = int(self.tables.moments[slot].max())
        saved = self.tables.saved_bytes[:, :, :moments]
        chosen = self.completions[rows, candidates]  # (k, W)
        as_is = rows[:, None], self._witness_index, self.current[rows]
        slack = saved[slot, candidates][:, None] * np.where(chosen, -1.0, 1.0)[..., None]
        slack += self.slack[..., :moments][as_is]
        # A witness that splits the class no longer splits those that it excludes, which are taken
        # one after the other, so that the sums are the same whatever stands beside them.
        episode, rival = self.rivals(rows, candidates)
        index, pair = self.completions[rows[episode], rival].T.nonzero()
        if len(pair):
            episode, rival = episode[pair], rival[pair]
            first = np.flatnonzero(np.diff(index * len(rows) + episode, prepend=-1))
            changed = episode[first], index[first]
            terms = np.insert(saved[slot[episode], rival], first, slack[changed], axis=0)
            slack[changed] = np.subtract.reduceat(terms, first + np.arange(len(first)))
        least, other_least = self.least[as_is], slack.min(axis=-1)
        alternative = *as_is[:2], as_is[2] ^ 1
        self.slack[..., :moments][alternative], self.least[alternative] = slack, other_least
        replicated, partitioned = np.where(chosen, (other_least, least), (least, other_least))
        return np.stack([replicated.max(axis=1), partitioned.max(axis=1)], axis=1)

    def decide(self, rows: Array, candidates: Array, split: Array) -> None:
        """Decide the candidates of the last call of ``remaining_bytes``; ``split`` is (k,) bool."""
        # ``remaining_bytes`` has computed both choices: switch witnesses whose choice changes.
        tables, slot = self.tables, self.slot[rows]
        change = split - tables.split[slot, candidates]
        self.expected[rows] += change[:, None] * tables.saved_bytes[slot, candidates]
        self.current[rows] ^= self.completions[rows, candidates] != split[:, None]
        self.completions[rows, candidates] = split[:, None]
        self.decisions[rows, candidates] = np.where(split, PARTITION, REPLICATE)
        rows = rows[split]
        episode, rival = self.rivals(rows, candidates[split])
        was_open = self.decisions[rows[episode], rival] == OPEN
        row, lost = rows[episode[was_open]], rival[was_open]
        slot = self.slot[row]
        np.subtract.at(
            self.expected, row, tables.split[slot, lost][:, None] * tables.saved_bytes[slot, lost]
        )
        self.completions[rows[episode], rival] = False
        self.decisions[rows[episode], rival] = REPLICATE

    def bounds(self, rows: Array, candidates: Array, is_open: Array) -> Array:
        """(k, 2) bounds of the savings of the open classes, ``is_open`` (k, K), and the candidates.

        An instruction is split at most once, by the class that saves most of it.
        """
        tables, slot, episodes = self.tables, self.slot[rows], np.arange(len(rows))
        splittable = np.zeros((2, len(rows), is_open.shape[1] + 1), bool)
        splittable[:, :, :-1] = is_open
        splittable[:, episodes, candidates] = False
        # Partitioning a candidate excludes its rivals.
        splittable[PARTITION][self.rivals(rows, candidates)] = False
        paid = np.where(splittable, tables.paid[slot], 0.0)
        members = tables.members[slot] + episodes[:, None, None] * paid.shape[2]
        result = np.empty((len(rows), 2))
        for choice in (REPLICATE, PARTITION):
            best = paid[choice].take(members).max(axis=1)
            result[:, choice] = (best * tables.weights[slot]).sum(axis=-1)
        result[:, PARTITION] += tables.gain[slot, candidates]
        return result

    def relaxed(self, rows: Array, candidates: Array, is_open: Array) -> tuple[Array, Array]:
        """Return what the relaxation says of the candidates, (k, 6), and of the rest, (k, 2)."""
        tables, slot = self.tables, self.slot[rows]
        episode, rival = self.rivals(rows, candidates)
        still = is_open[episode, rival]
        episode, rival = episode[still], rival[still]
        own, best = np.zeros((2, len(rows)))
        others = tables.own[slot[episode], rival]
        np.add.at(own, episode, tables.split[slot[episode], rival] * others)
        np.maximum.at(best, episode, others)
        left, limit = self.expected[rows], tables.limit[slot]
        tightest = left.argmin(axis=1)
        of_class = (
            logarithmic(tables.worth[slot, candidates]),
            tables.split[slot, candidates],
            logarithmic(tables.own[slot, candidates]),
            logarithmic(own),
            logarithmic(best),
            tables.saved_bytes[slot, candidates, tightest] / limit,
        )
        least = left[np.arange(len(rows)), tightest] / limit
        owed = (tables.prices[slot] * np.where(np.isfinite(left), left, 0.0)).sum(axis=1) / limit
        return np.stack(of_class, axis=1), np.stack([least, logarithmic(owed)], axis=1)

    def excluded(self, rows: Array, candidates: Array, is_open: Array) -> Array:
        """Return the sums of ``EXCLUDED`` over the open rivals of the candidates, (k, 3)."""
        figures = np.zeros((len(rows), len(EXCLUDED)), np.float32)
        episode, rival = self.rivals(rows, candidates)
        rival_open = is_open[episode, rival]
        episode, rival = episode[rival_open], rival[rival_open]
        np.add.at(figures, episode, self.tables.excluding[self.slot[rows[episode]], rival])
        return np.minimum(figures, 1.0)

    def coming(
        self, rows: Array, candidates: Array, is_open: Array, count: int,
        names: Sequence[str],
    ) -> Array:  # fmt: skip
        """Return figures of the next open classes after the candidates, (k, count * names)."""
        episodes, slot = np.arange(len(rows)), self.slot[rows]
        remaining = is_open.copy()
        remaining[episodes, candidates] = False
        classes = np.empty((len(rows), count), np.int64)
        exists = np.empty((len(rows), count), bool)
        for index in range(count):
            classes[:, index] = first = remaining.argmax(axis=1)
            exists[:, index] = remaining[episodes, first]
            remaining[episodes, first] = False
        columns = [CLASS.index(name) for name in names]
        figures = self.tables.figures[:, :, columns][slot[:, None], classes]
        return np.where(exists[..., None], figures, np.float32(0)).reshape(len(rows), -1)
