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

from parenvs.core.game import Rows
from parenvs.errors import InfeasibleError
from parenvs.tasks.partition.classes import batch_classes, compatible, owner_of
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


@dataclass(frozen=True, eq=False)
class Linear:
    """A problem with a limit of memory. K classes that can be split, M moments, G groups.

    Attributes:
        classes: (K,) int64, the classes of the graph, in the order of the questions.
        gain: (K,) share of the replicated step's seconds that each class saves.
        replicated: seconds of the step that splits nothing.
        rivals: per class, the classes that it excludes, ascending.
        whole: (M,) bytes of the replicated plan at each moment.
        saved: (K, M) bytes that each class saves there.
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
    classes: np.ndarray
    gain: np.ndarray
    replicated: float
    rivals: tuple[np.ndarray, ...]
    whole: np.ndarray
    saved: np.ndarray
    limit: float
    groups: tuple[np.ndarray, ...]
    weights: np.ndarray
    paid: np.ndarray
    figures: np.ndarray
    step: np.ndarray
    witnesses: np.ndarray
    fullest: np.ndarray
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

    def seconds(self, chosen: np.ndarray) -> np.ndarray:
        """(...) seconds of the steps that split ``chosen``, (..., K) bool."""
        saved = np.where(chosen, self.gain, 0.0).sum(axis=-1)
        return np.asarray(self.replicated * (1.0 - saved))

    def slack(self, chosen: np.ndarray) -> np.ndarray:
        """(..., M) bytes that plans leave at each moment, (..., K) bool; negative if too many."""
        return np.asarray(self.limit - self.whole + chosen.astype(np.float64) @ self.saved)

    def fits(self, chosen: np.ndarray) -> np.ndarray:
        """(...) whether plans keep to the limit at all moments."""
        return np.asarray(self.slack(chosen).min(axis=-1) >= 0)

    def legal(self, chosen: np.ndarray) -> bool:
        """Whether a plan, (K,) bool, splits no two classes that exclude each other."""
        return not any(chosen[row].any() for row in np.array(self.rivals, object)[chosen].tolist())

    @cached_property
    def priced(self) -> tuple[float, np.ndarray]:
        """The price of bytes, and what each class is worth at it, (K,).

        A class is worth the share of the replicated step's seconds that it saves, and the share of
        the limit that it saves in the mean of the moments; the price in [0, 1] is the weight of the
        second, and one less it that of the first. It is the least of some at which a plan fits that
        splits the classes worth most, as far as they may be split together; 1 if none does.
        """
        spared = self.saved.mean(axis=1) / self.limit

        def worth(price: float) -> np.ndarray:
            return (1.0 - price) * self.gain + price * spared

        def fits(price: float) -> bool:
            gain = worth(price)
            order = np.argsort(-gain, kind="stable")[: (gain > 0).sum()]
            return bool(self.fits(compatible(order, self.rivals.__getitem__, len(gain))))

        prices = [0.0, *PRICES.tolist(), 1.0]
        index = next((i for i, price in enumerate(prices) if fits(price)), len(prices) - 1)
        # Bisection between the last price that fails and the first that fits.
        least, price = prices[max(index - 1, 0)], prices[index]
        for _ in range(HALVINGS):
            middle = (least + price) / 2
            if fits(middle):
                price = middle
            else:
                least = middle
        return price, worth(price)

    @classmethod
    def of(cls, problem: Partitioning, name: str = "") -> Linear:
        """Look at a problem with a limit of memory; it has no witnesses yet.

        Raises:
            InfeasibleError: no dimension can be partitioned, or no plan can fit.
        """
        space = PartitionSpace.of(problem, True)
        classes, name = space.classes, name or problem.instance
        least, limit = problem.footprint.least(~problem.classes.blocked), problem.memory_limit
        if least > limit:
            raise InfeasibleError(
                f"no plan fits the memory: {name} on {problem.cluster}: the peak exceeds "
                f"memory_limit by {least - limit:,.0f} bytes or more, whatever is partitioned"
            )
        seconds = problem.replicate_seconds or 1.0
        saves, gain = problem.saved_seconds[classes], problem.gain_seconds[classes]
        share = np.divide(gain, saves, out=np.zeros(len(classes)), where=saves > 0)
        spared = 1.0 - problem.device_share[classes]
        whole, held = _moments(problem, space)
        groups, weights = _instructions(problem, space)
        at = problem.footprint.memory(np.zeros(len(problem.classes), dtype=bool)).at
        full = problem.footprint.saved_at(at)
        return cls(
            name=name,
            classes=np.asarray(classes, dtype=np.int64),
            gain=gain / seconds,
            replicated=problem.replicate_seconds,
            rivals=tuple(np.array(sorted(row), dtype=np.int64) for row in space.rivals),
            whole=whole,
            saved=held * spared[:, None],
            limit=limit,
            groups=groups,
            weights=weights / seconds,
            paid=spared * np.maximum(share, 0.0),
            figures=_figures(problem, space, gain / seconds, full.saved[classes] / full.whole),
            step=_step(problem, len(classes), float(whole.max())),
            witnesses=np.zeros((0, len(classes)), dtype=bool),
            fullest=np.arange(len(whole)),
        )

    def at(self, limit: float) -> Linear:
        """Return the problem at another limit of memory, with the first of its witnesses."""
        step = self.step.copy()
        step[0] = _fullness(float(self.whole.max()), limit)
        return replace(self, limit=limit, step=step, witnesses=self.witnesses[:1], cache={})

    def begun(self, witnesses: np.ndarray) -> Linear:
        """Return the problem with witnesses, (W, K) bool; each fits and is legal."""
        return replace(self, witnesses=witnesses, cache={})


def logarithmic(shares: np.ndarray) -> np.ndarray:
    """Return shares as figures in [-1, 1] by size: 1 is all, 0.5 a thousandth, 0 a millionth."""
    size = np.log10(np.maximum(np.abs(shares), 10.0**-DECADES)) / DECADES + 1.0
    return np.asarray(np.copysign(np.minimum(size, 1.0), shares))


def _fullness(held: float, limit: float) -> float:
    """Return bytes over the limit as a figure in [-1, 1]: 0 is the limit, 1 is 16 times it."""
    return float(np.clip(np.log2(held / limit) / 4, -1.0, 1.0))


def _figures(
    problem: Partitioning, space: PartitionSpace, gain: np.ndarray, memory: np.ndarray
) -> np.ndarray:
    """(K, 9) float32 features of the classes, ``CLASS``."""
    classes = space.classes
    stakes = np.zeros((len(classes), 5), dtype=np.float32)
    stakes[np.asarray(space.question_class)] = space.stakes[:-1]
    seconds = problem.replicate_seconds or 1.0
    columns = (  # in the order of ``CLASS``
        stakes[:, 0],
        stakes[:, 1],
        np.clip(gain, -1.0, 1.0),
        logarithmic(gain),
        np.minimum(problem.all_reduce_seconds[classes] / seconds, 1.0),
        np.clip(memory, 0.0, 1.0),
        problem.device_share[classes],
        batch_classes(problem.classes)[classes],
        problem.counts("variables")[classes] > 0,
    )
    return np.stack(columns, axis=1).astype(np.float32)


def _step(problem: Partitioning, classes: int, replicated: float) -> np.ndarray:
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
    return np.clip(np.array(figures, dtype=np.float32), -1.0, 1.0)


def _moments(problem: Partitioning, space: PartitionSpace) -> tuple[np.ndarray, np.ndarray]:
    """(M,) bytes of the replicated plan, (K, M) bytes that each class splits, where they matter.

    Tensors whose dimensions are in the same classes form a group. A moment at which no group holds
    more than at another is not needed: whatever is split, the other one is as full.
    """
    footprint, graph = problem.footprint, problem.graph
    places = _places(problem, space)[problem.classes.label]
    owner = owner_of(graph)
    counts = (places >= 0) & (graph.dims > 1)
    group, members = _grouped(owner[counts], places[counts], len(graph.element_type))
    tensor, first, last = footprint.stays
    step = np.zeros((len(footprint.order) + 1, len(members)))
    np.add.at(step, (first, group[tensor]), footprint.bytes[tensor])
    np.subtract.at(step, (last + 1, group[tensor]), footprint.bytes[tensor])
    ends = np.unique(np.minimum(last, len(step) - 2))  # moments after which something goes
    # Bytes are whole numbers, so rounding removes the error of the running sums.
    held = np.rint(np.cumsum(step, axis=0)[ends] if len(ends) else step[:1])
    held += np.bincount(
        group[footprint.parameters], footprint.bytes[footprint.parameters], len(members)
    )
    kept = _maximal(held)
    by_class = np.zeros((len(space.classes), len(kept)))
    for index, row in enumerate(members):
        by_class[list(row)] += kept[:, index]
    return kept.sum(axis=1), by_class


def _maximal(rows: np.ndarray) -> np.ndarray:
    """Return the rows, (m, g), of which no other one is as large in every column."""
    rows = np.unique(rows, axis=0)
    # Only a row with a larger sum can dominate, so one pass in this order suffices.
    rows = rows[np.argsort(-rows.sum(axis=1), kind="stable")]
    # Columns that vary most decide most comparisons, on a slice that stays in the cache.
    order = np.argsort(-rows.std(axis=0), kind="stable")
    rows, kept, count = rows[:, order], np.empty_like(rows), 0
    some = slice(0, FIRST_COLUMNS)
    for row in rows:
        above = kept[:count]
        close = np.flatnonzero((above[:, some] >= row[some]).all(axis=1))
        if not (above[close] >= row).all(axis=1).any():
            kept[count] = row
            count += 1
    result = np.empty_like(kept[:count])
    result[:, order] = kept[:count]
    return result


def _instructions(
    problem: Partitioning, space: PartitionSpace
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Groups of the instructions that take time, and their seconds."""
    factors = problem.classes.factors
    own = _places(problem, space)[problem.classes.factor_class]
    counts = (own >= 0) & (problem.seconds[factors.instruction] > 0)
    group, members = _grouped(factors.instruction[counts], own[counts], len(problem.graph.opcode))
    seconds = np.bincount(group, problem.seconds, len(members))
    return tuple(np.array(row, dtype=np.int64) for row in members[1:]), seconds[1:]


def _places(problem: Partitioning, space: PartitionSpace) -> np.ndarray:
    """(C,) index in the space of each class of the graph, -1 if it is none."""
    position = np.full(len(problem.classes), -1)
    position[space.classes] = np.arange(len(space.classes))
    return position


def _grouped(
    owner: np.ndarray, own: np.ndarray, count: int
) -> tuple[np.ndarray, Sequence[tuple[int, ...]]]:
    """Group ``count`` items by the set of their classes; the pairs are ``owner`` and ``own``, (p,).

    Returns:
        (count,) the group of each item, and the classes of each group; group 0 has none.
    """
    pairs = np.unique(np.stack([owner, own], axis=1), axis=0)
    things, first, sizes = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    groups: dict[tuple[int, ...], int] = {(): 0}
    result = np.zeros(count, dtype=np.int64)
    for thing, begin, size in zip(things.tolist(), first.tolist(), sizes.tolist(), strict=True):
        members = tuple(pairs[begin : begin + size, 1].tolist())
        result[thing] = groups.setdefault(members, len(groups))
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
        self.saved = np.zeros((slots, k, m))
        self.figures = np.zeros((slots, k, len(CLASS)), dtype=np.float32)
        self.excluding = np.zeros((slots, k, len(EXCLUDED)), dtype=np.float32)
        # The classes that each excludes, and how many; the heuristic's score by size.
        self.rivals = np.zeros((slots, k, k), dtype=np.int16)
        self.many = np.zeros((slots, k), dtype=np.int64)
        self.rule = np.zeros((slots, k), dtype=np.float32)
        # The classes of each group of instructions, k where there are fewer, and its weight.
        self.members = np.full((slots, size.members, size.groups), k)
        self.weights = np.zeros((slots, size.groups))
        # Of each problem: classes, moments, bytes, seconds replicated and at the start, price.
        self.size, self.moments = np.zeros((2, slots), dtype=np.int64)
        self.limit, self.replicated, self.start, self.price = np.zeros((4, slots))
        self.step = np.zeros((slots, len(STEP)), dtype=np.float32)
        # Decisions before the first step; witnesses, repeated where fewer; the bytes they leave.
        self.known = np.full((slots, k), REPLICATE, dtype=np.int8)
        self.plans = np.zeros((slots, k, w), dtype=np.bool_)
        self.slack = np.full((slots, w, m), np.inf)

    def put(self, slot: int, problem: Linear) -> None:
        """Write a problem into an empty slot."""
        k, m, plans = len(problem.gain), len(problem.fullest), problem.witnesses
        self.gain[slot, :k], self.paid[slot, :k] = problem.gain, problem.paid
        self.saved[slot, :k, :m] = problem.saved[:, problem.fullest]
        self.figures[slot, :k] = problem.figures
        self.excluding[slot, :k] = np.maximum(
            problem.figures[:, [CLASS.index(name) for name in EXCLUDED]], 0.0
        )
        for index, row in enumerate(problem.rivals):
            self.rivals[slot, index, : len(row)], self.many[slot, index] = row, len(row)
        for index, row in enumerate(problem.groups):
            self.members[slot, : len(row), index] = row
        self.weights[slot, : len(problem.weights)] = problem.weights
        self.size[slot], self.moments[slot] = k, m
        self.limit[slot], self.replicated[slot] = problem.limit, problem.replicated
        self.start[slot], self.step[slot] = problem.seconds(plans[0]), problem.step
        self.price[slot], worth = problem.priced
        self.rule[slot, :k] = logarithmic(worth)
        self.known[slot, :k] = OPEN
        several = np.arange(self.plans.shape[2]) % len(plans)
        self.plans[slot, :k] = plans[several].T
        self.slack[slot, :, :m] = problem.slack(plans)[several][:, problem.fullest]


class Boards:
    """Decisions of n episodes, and the completions of them that are known to fit.

    Args:
        largest: sizes of the largest problem.

    Attributes:
        slot: (n,) int64, the slot of each episode's problem.
        known: (n, K) int8 decisions: 1 partitioned, 0 replicated, -1 open.
        plans: (n, K, W) bool, the witnesses, which follow the decisions.
        slack: (n, W, 2, M) bytes that each leaves at each moment, as it is and if it made the other
            choice at stake; least: (n, W, 2) of all moments.
        now: (n, W) int8, in which of the two each is as it is.
    """

    def __init__(self, count: int, largest: Sizes) -> None:
        self.largest = largest
        self._slots: dict[Linear, int] = {}
        self.problems: list[Linear] = []
        self.tables = Tables(FIRST, largest)
        k, m, w = largest.classes, largest.moments, largest.witnesses
        self.slot = np.zeros(count, dtype=np.int64)
        self.known = np.full((count, k), OPEN, dtype=np.int8)
        self.plans = np.zeros((count, k, w), dtype=np.bool_)
        self.slack, self.least = np.zeros((count, w, 2, m)), np.zeros((count, w, 2))
        self.now, self._witness = np.zeros((count, w), dtype=np.int8), np.arange(w)

    def has_room(self, problem: Linear) -> bool:
        """Whether a problem is no larger than the largest."""
        return self.largest.with_(Sizes.of(problem)) == self.largest

    def put(self, rows: Rows, problem: Linear) -> None:
        """Give episodes a problem."""
        slot = self._slots.get(problem)
        if slot is None:
            slot = self._slots[problem] = len(self.problems)
            self.problems.append(problem)
            if slot == len(self.tables.gain):
                # Slots double, so that a problem costs constant time on average.
                more = Tables(slot, self.largest)
                for name, mine in vars(self.tables).items():
                    setattr(self.tables, name, np.concatenate([mine, getattr(more, name)]))
            self.tables.put(slot, problem)
        self.slot[rows] = slot

    def start(self, rows: Rows) -> None:
        """Begin episodes with nothing decided."""
        tables, slot = self.tables, self.slot[rows]
        self.known[rows], self.plans[rows] = tables.known[slot], tables.plans[slot]
        self.slack[rows, :, 0], self.slack[rows, :, 1] = tables.slack[slot], np.inf
        self.least[rows, :, 0], self.now[rows] = tables.slack[slot].min(axis=-1), 0

    def rivals(self, rows: np.ndarray, stake: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of a place in ``rows`` and a class that the one at stake there excludes."""
        slot = self.slot[rows]
        many = self.tables.many[slot, stake]
        place = np.repeat(np.arange(len(rows)), many)
        number = np.arange(len(place)) - np.repeat(many.cumsum() - many, many)
        return place, self.tables.rivals[slot[place], stake[place], number]

    def rooms(self, rows: np.ndarray, stake: np.ndarray) -> np.ndarray:
        """(k, 2) bytes that the leanest known completion of either choice of ``stake`` leaves."""
        slot = self.slot[rows]
        moments = int(self.tables.moments[slot].max())
        saved = self.tables.saved[:, :, :moments]
        chosen = self.plans[rows, stake]  # (k, W)
        now = rows[:, None], self._witness, self.now[rows]
        slack = saved[slot, stake][:, None] * np.where(chosen, -1.0, 1.0)[..., None]
        slack += self.slack[..., :moments][now]
        # A witness that splits the class no longer splits those that it excludes, which are taken
        # one after the other, so that the sums are the same whatever stands beside them.
        place, rival = self.rivals(rows, stake)
        witness, pair = self.plans[rows[place], rival].T.nonzero()
        if len(pair):
            place, rival = place[pair], rival[pair]
            first = np.flatnonzero(np.diff(witness * len(rows) + place, prepend=-1))
            changed = place[first], witness[first]
            given = np.insert(saved[slot[place], rival], first, slack[changed], axis=0)
            slack[changed] = np.subtract.reduceat(given, first + np.arange(len(first)))
        least, other = self.least[now], slack.min(axis=-1)
        flipped = *now[:2], now[2] ^ 1
        self.slack[..., :moments][flipped], self.least[flipped] = slack, other
        less, more = np.where(chosen, (other, least), (least, other))
        return np.stack([less.max(axis=1), more.max(axis=1)], axis=1)

    def decide(self, rows: np.ndarray, stake: np.ndarray, split: np.ndarray) -> None:
        """Decide the classes that ``rooms`` was asked about last: split those of ``split``."""
        # ``rooms`` has computed the other choice beside: switch witnesses that now make it.
        self.now[rows] ^= self.plans[rows, stake] != split[:, None]
        self.plans[rows, stake] = split[:, None]
        self.known[rows, stake] = np.where(split, PARTITION, REPLICATE)
        rows = rows[split]
        place, rival = self.rivals(rows, stake[split])
        self.plans[rows[place], rival] = False
        self.known[rows[place], rival] = REPLICATE

    def bounds(self, rows: np.ndarray, stake: np.ndarray, is_open: np.ndarray) -> np.ndarray:
        """(k, 2) bounds of the savings of the classes open, ``is_open`` (k, K) bool, and at stake.

        An instruction is split at most once, by the class that saves most of it.
        """
        tables, slot, every = self.tables, self.slot[rows], np.arange(len(rows))
        can = np.zeros((2, len(rows), is_open.shape[1] + 1), dtype=np.bool_)
        can[:, :, :-1] = is_open
        can[:, every, stake] = False
        # Partitioning the class at stake excludes its rivals.
        can[1][self.rivals(rows, stake)] = False
        paid = np.where(can, tables.paid[slot], 0.0)
        members = tables.members[slot] + every[:, None, None] * paid.shape[2]
        result = np.empty((len(rows), 2))
        for choice in (REPLICATE, PARTITION):
            best = paid[choice].take(members).max(axis=1)
            result[:, choice] = (best * tables.weights[slot]).sum(axis=-1)
        result[:, PARTITION] += tables.gain[slot, stake]
        return result

    def excluded(self, rows: np.ndarray, stake: np.ndarray, is_open: np.ndarray) -> np.ndarray:
        """Return what the open rivals of the classes at stake have of ``EXCLUDED``, (k, 3)."""
        figures = np.zeros((len(rows), len(EXCLUDED)), dtype=np.float32)
        place, rival = self.rivals(rows, stake)
        there = is_open[place, rival]
        place, rival = place[there], rival[there]
        np.add.at(figures, place, self.tables.excluding[self.slot[rows[place]], rival])
        return np.minimum(figures, 1.0)

    def coming(
        self, rows: np.ndarray, stake: np.ndarray, is_open: np.ndarray, count: int,
        names: Sequence[str],
    ) -> np.ndarray:  # fmt: skip
        """Return figures of the next open classes after those at stake, (k, count * names)."""
        every, slot = np.arange(len(rows)), self.slot[rows]
        left = is_open.copy()
        left[every, stake] = False
        coming = np.empty((len(rows), count), dtype=np.int64)
        there = np.empty((len(rows), count), dtype=np.bool_)
        for index in range(count):
            coming[:, index] = first = left.argmax(axis=1)
            there[:, index], left[every, first] = left[every, first], False
        columns = [CLASS.index(name) for name in names]
        figures = self.tables.figures[:, :, columns][slot[:, None], coming]
        return np.where(there[..., None], figures, np.float32(0)).reshape(len(rows), -1)
