"""The search over the order of servers: suffixes of plans by the servers they use.

A plan is built from its last stage to its first. A suffix is the last k stages, from layer i on,
with the send in front of it; the servers that it uses are known by *type*: how many of each. With
every server a type of its own this is the dynamic program over subsets, 2^P states; servers of
equal speed are one type. Which server of a type a stage has makes no difference to its cost.

A label is (core, tail, update), in seconds, as in ``parenvs.agents.hybrid.labels``:

1. ``prepend_core`` and ``prepend_tail`` put a stage in front; both, and the longest update, grow
   with the old ones. So of the labels of a state only the Pareto front has to be kept.
2. A stage of a suffix of k holds min(k, M) micro-batches, so what it must recompute is known.
3. Stages in front hide at least their least backward seconds, and the longest of their updates
   takes at least the mean over the free servers. Tails and updates below are raised.
4. Bounds on what is in front drop labels that cannot beat the incumbent, see ``_front``.

A type has two speeds. Seconds are those of the ``fast`` one, and in ``relaxed`` searches tails are
those that every plan has, whatever its servers' speeds and however much it recomputes. So with
types of unequal servers, ``fast`` their fastest, the optimum bounds every plan from below.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from parenvs.agents.hybrid.front import pareto3
from parenvs.agents.hybrid.labels import PACE, SLACK, OutOfTimeError
from parenvs.agents.hybrid.servers.order import plan_of
from parenvs.agents.hybrid.servers.solve import Orders, by_speed, speeds_of
from parenvs.agents.hybrid.servers.tables import NEVER, ONE_SERVER, ServerTables
from parenvs.agents.hybrid.tables import FIRST, INNER, LAST
from parenvs.core.plan import Answer
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints
from parenvs.tasks.pipeline.formulas import prepend_core, prepend_tail

_BLOCK = 40_000  # labels that are extended at once
MAX_LABELS = 12_000_000
"""Labels above which a search gives up: about 2 GB."""


class Chosen(NamedTuple):
    """A stage of a found plan.

    Attributes:
        layers: half-open range.
        kind: type of its server.
        split: number of its tp and ZeRO in the tables.
    """

    layers: tuple[int, int]
    kind: int
    split: int


class _Labels(NamedTuple):
    """Suffixes of k stages, (l,) each: servers used, first layer, label, first stage, parent."""

    code: np.ndarray
    layer: np.ndarray
    core: np.ndarray
    tail: np.ndarray
    update: np.ndarray
    kind: np.ndarray
    split: np.ndarray
    parent: np.ndarray

    def take(self, which: np.ndarray) -> _Labels:
        return _Labels(*(column[which] for column in self))


class ServerLabels:
    """Finds the fastest plan of a setting with two stages or more, or proves none beats ``upper``.

    Attributes:
        upper: seconds, the length of the best plan found, or that of the incumbent.
        stages: those of the best plan, or None if none beats the incumbent.
        evaluations: number of labels kept.
    """

    def __init__(
        self, tables: ServerTables, fast: np.ndarray, counts: np.ndarray, relaxed: bool = False
    ) -> None:
        """Prepare a search.

        Args:
            tables: costs; its ``longest`` bounds the stages that are looked at.
            fast: (T,) numbers of the types' speeds in ``tables.speeds``.
            counts: (T,) servers of each type.
            relaxed: whether tails are those that every plan has.
        """
        order = np.argsort(-tables.speeds[fast], kind="stable")
        self.types = order
        self.tables, self.relaxed = tables, relaxed
        self.fast, self.counts = fast[order], np.asarray(counts, dtype=np.int64)[order]
        self.speeds = tables.speeds[self.fast]
        self.radix = self.counts + 1
        self.strides = np.cumprod(np.append(1, self.radix))[:-1].astype(np.int64)
        self.upper, self.deadline, self.evaluations = np.inf, np.inf, 0
        self.stages: tuple[Chosen, ...] | None = None
        self.m = tables.setting.micro_batches
        self._layers: list[_Labels] = []

    @property
    def states(self) -> int:
        """Number of the sets of servers."""
        return int(np.prod(self.radix.astype(float)))

    def run(self, upper: float, deadline: float = np.inf) -> None:
        """Search for plans shorter than ``upper``.

        Raises:
            OutOfTimeError: the deadline (``time.perf_counter()``) passed, or there are too many
                labels.
        """
        self.upper, self.deadline, self.stages = min(upper, NEVER / 2), deadline, None
        n = len(self.tables.problem.model)
        self._holds = self.tables.most_work(upper / self.m)[self.fast]
        one = np.zeros(1)
        none = np.full(1, -1)
        root = _Labels(none * 0, none * 0 + n, one, one, one, none, none, none)
        self._layers = [root]
        for k in range(1, int(self.counts.sum()) + 1):
            labels = self._layers[-1]
            if not len(labels.core):
                break
            if k > 1:
                self._complete(k, labels)
            if k < self.counts.sum():
                self._layers.append(self._extend(k, labels))

    def _free(self, code: np.ndarray) -> np.ndarray:
        """(T, l) servers of each type that are not used."""
        used = code[None] // self.strides[:, None] % self.radix[:, None]
        return np.asarray(self.counts[:, None] - used)

    def _front(self, free: np.ndarray, work: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower bounds of the stages in front, (l,): their own core, and their sum of seconds.

        On free servers of speeds s_0 >= s_1 >= ... the stages in front take x_0, x_1, ... seconds
        of a micro-batch, and M x_j <= C - sum_{a<j} x_a for a core C. Then their work is at most
        C/M sum_j s_j q^j with q = 1 - 1/M (docs/hetero.md, bound 1). By the same limits for the
        incumbent, they take the least sum where the fastest servers have as much as they can.

        Args:
            free: (T, l) free servers of each type, the fastest type first.
            work: (l,) in front.
        """
        q = 1.0 - 1.0 / self.m
        before = free.cumsum(axis=0) - free
        if self.m > 1:
            turns = q**before * (1.0 - q**free) * self.m
        else:
            turns = np.where((before == 0) & (free > 0), 1.0, 0.0)
        capacity = self.speeds[:, None] * turns
        with np.errstate(divide="ignore", invalid="ignore"):
            core = np.where(work > 0, self.m * work / capacity.sum(axis=0), 0.0)
        share = self.upper / self.m
        filled = np.minimum(np.maximum(work - share * (capacity.cumsum(axis=0) - capacity), 0.0),
                            share * capacity)  # fmt: skip
        return core, (filled / self.speeds[:, None]).sum(axis=0)

    def _extend(self, k: int, labels: _Labels) -> _Labels:
        """Put a stage that is not the first in front of all labels, and keep the fronts."""
        parts: list[_Labels] = []
        kept_before = sum(len(layer.core) for layer in self._layers)
        for kind in range(len(self.counts)):
            used = labels.code // self.strides[kind] % self.radix[kind]
            rows = np.flatnonzero(used < self.counts[kind])
            for begin in range(0, len(rows), _BLOCK):
                count = sum(len(part.core) for part in parts)
                if time.perf_counter() + count * PACE > self.deadline:
                    raise OutOfTimeError
                parts += self._stage(k, kind, rows[begin : begin + _BLOCK], labels)
            if kept_before + sum(len(part.core) for part in parts) > MAX_LABELS:
                raise OutOfTimeError
        if not parts:
            return labels.take(np.zeros(0, dtype=np.int64))
        joined = _Labels(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        kept = joined.take(self._best_of(joined))
        self.evaluations += len(kept.core)
        return kept

    def _best_of(self, labels: _Labels) -> np.ndarray:
        """Indices of the labels that no other one of their state dominates."""
        state = labels.code * (len(self.tables.problem.model) + 1) + labels.layer
        return pareto3(state, labels.core, labels.tail, labels.update)

    def _stage(self, k: int, kind: int, rows: np.ndarray, labels: _Labels) -> list[_Labels]:
        """Put stages on a server of one type in front of some labels."""
        tables, model, m = self.tables, self.tables.problem.model, self.m
        costs = tables.costs(LAST if k == 1 else INNER, k)
        code = labels.code[rows] + self.strides[kind]
        free = self._free(code)
        least = 0 if k == 1 and model.head is not None else 1
        sizes = tables.sizes[tables.sizes >= least]
        end = labels.layer[rows][:, None]
        first = end - sizes
        lowest = 0 if model.embedding is not None else 1
        inside = np.maximum(first, 0)
        number = np.where(first >= lowest, tables.number[inside, end], -1)
        speed = int(self.fast[kind])
        core = labels.core[rows][None, :, None]
        core = prepend_core(core, costs.seconds[speed][:, number], m)
        # No server in front can hold more than its largest run: a cheap test.
        work = tables.work[inside]
        holds = (free * self._holds[:, None]).sum(axis=0)
        core[:, (work > holds[:, None] * (1 + SLACK)) | (first < lowest)] = np.inf
        split, row, column = np.nonzero(core < self.upper)
        if not len(row):
            return []
        begin, number = first[row, column], number[row, column]
        core = prepend_core(core[split, row, column], 2 * tables.link[split, begin], m)
        parent = rows[row]
        hiding = costs.hiding[speed, split, number]
        exposed = costs.exposed[speed, split, number]
        if self.relaxed:
            tail = np.zeros_like(core)
        else:
            tail = prepend_tail(labels.tail[parent], hiding, exposed) - tables.link[split, begin]
            tail = np.maximum(tail, tables.least_hiding[begin])
        update = np.maximum(labels.update[parent], costs.update[speed, split, number])
        servers = free.sum(axis=0)[row]
        update = np.maximum(update, tables.server_update[begin] / servers)
        front, passed = self._front(free[:, row], tables.work[begin])
        length = np.maximum(front, core + np.maximum(tail, passed)) + update
        keep = np.flatnonzero(length * (1 + SLACK) < self.upper)
        if not len(keep):
            return []
        kinds = np.full(len(keep), kind)
        code = code[row[keep]]
        return [
            _Labels(code, begin[keep], core[keep], tail[keep], update[keep], kinds, split[keep],
                    parent[keep])
        ]  # fmt: skip

    def _complete(self, k: int, labels: _Labels) -> None:
        """Put the first stage in front of all labels; keep the best plan."""
        tables, m = self.tables, self.m
        costs = tables.costs(FIRST, k)
        number = tables.number[0, labels.layer]
        for kind in range(len(self.counts)):
            used = labels.code // self.strides[kind] % self.radix[kind]
            rows = np.flatnonzero(used < self.counts[kind])
            if not len(rows):
                continue
            speed, own = int(self.fast[kind]), number[rows]
            core = prepend_core(labels.core[rows], costs.seconds[speed][:, own], m)
            if self.relaxed:
                tail = costs.least[speed][:, own]
            else:
                hiding, exposed = costs.hiding[speed][:, own], costs.exposed[speed][:, own]
                tail = prepend_tail(labels.tail[rows], hiding, exposed)
            update = np.maximum(labels.update[rows], costs.update[speed][:, own])
            length = core + np.maximum(tail, 0.0) + update
            split, best = np.unravel_index(int(length.argmin()), length.shape)
            if length[split, best] < self.upper * (1 - SLACK):
                self.upper = float(length[split, best])
                self.stages = self._stages(k, kind, int(split), int(rows[best]))

    def _stages(self, k: int, kind: int, split: int, label: int) -> tuple[Chosen, ...]:
        """The stages of a plan of k stages: its first one's server and split, the label behind."""
        stages, first = [], 0
        for left in range(k, 0, -1):
            labels = self._layers[left - 1]
            end = int(labels.layer[label])
            stages.append(Chosen((first, end), int(self.types[kind]), split))
            first, kind, split = end, int(labels.kind[label]), int(labels.split[label])
            label = int(labels.parent[label])
        return tuple(stages)


_SHARES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.4, 1.0, 4.0, np.inf)
"""Shares of the lower bound within which plans are looked for, one after the other."""


def deepened(
    search: ServerLabels, bound: float, upper: float, deadline: float
) -> tuple[float, tuple[Chosen, ...] | None]:
    """Search for plans within ever more of a bound, until one is found or none beats ``upper``.

    Returns:
        The proven bound, and the best stages if they were found.
    """
    proven = bound
    for share in _SHARES:
        target = min(upper, bound * (1 + share))
        if target <= proven and target < upper:
            continue
        try:
            search.run(target, deadline)
        except OutOfTimeError:
            return proven, None
        if search.stages is not None:
            return search.upper, search.stages
        proven = max(proven, target)
        if target >= upper:
            break
    return proven, None


def subset_search(
    problem: Hybrid,
    limits: Constraints = ONE_SERVER,
    time_limit: float | None = None,
    orders: Orders | None = None,
) -> Answer:
    """Return the best plan of one server for each stage, with proof: 2^P subsets of P servers.

    Servers of equal speed are one type, so a cluster of few generations is easy at any size.

    Args:
        problem: the problem.
        limits: the constraints.
        time_limit: seconds after which the best plan is returned with the bound proven so far.
        orders: plans judged before.

    Raises:
        InfeasibleError: no plan fits.
    """
    begin = time.perf_counter()
    deadline = np.inf if time_limit is None else begin + time_limit
    state = orders or Orders(problem, limits)
    if orders is None:
        state.start([by_speed(problem), by_speed(problem, False)], deadline)
    bound, labels = np.inf, 0
    for bounded in state.settings:
        late = time.perf_counter() > deadline
        if late or bounded.bound >= min(bound, state.length):
            bound = min(bound, bounded.bound)
            break
        setting = bounded.setting
        longest = state.length / setting.micro_batches
        speeds, counts = np.unique(speeds_of(problem), return_counts=True)
        tables = ServerTables(problem, setting, speeds, longest, limits)
        search = ServerLabels(tables, np.arange(len(speeds)), counts)
        proven, stages = deepened(search, bounded.bound, state.length, deadline)
        bound, labels = min(bound, proven), labels + search.evaluations
        if stages is not None:
            groups = [np.flatnonzero(speeds_of(problem) == speed).tolist() for speed in speeds]
            plan = plan_of_types(tables, groups, stages)
            state.keep(plan, setting, problem.length(plan))
    bound = min(bound, state.length)
    return state.answer(
        "subset-dp", begin, proven=bound >= state.length * (1 - 1e-9), bound=bound,
        evaluations=labels + state.judged,
    )  # fmt: skip


def plan_of_types(
    tables: ServerTables, groups: list[list[int]], stages: tuple[Chosen, ...]
) -> HybridPlan:
    """Return the plan of stages whose servers are known by type.

    Args:
        tables: the costs; every server's own speed must be among its speeds.
        groups: servers of each type.
        stages: of the plan.
    """
    left = [list(group) for group in groups]
    servers = [left[stage.kind].pop(0) for stage in stages]
    return plan_of(
        tables, servers, [stage.layers[0] for stage in stages], [stage.split for stage in stages]
    )
