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
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from parenvs.agents.hybrid.labels import PACE, Chosen, SuffixSearch, take, warm_up
from parenvs.agents.hybrid.orders import NEVER, ONE_SERVER, Orders, ServerTables, plan_of, speeds_of
from parenvs.agents.hybrid.tables import FIRST, INNER, LAST, Setting
from parenvs.agents.pipeline.bounds import SLACK, OutOfTimeError
from parenvs.compiled import Array
from parenvs.core.plan import Answer
from parenvs.tasks.hybrid.formulas import compose
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints
from parenvs.tasks.pipeline.formulas import prepend_core, prepend_tail

_BLOCK = 40_000  # labels that are extended at once
MAX_LABELS = 12_000_000
"""Labels above which a search gives up: about 2 GB."""


class _Labels(NamedTuple):
    """Suffixes of k stages, (l,) each: servers used, first layer, label, first stage, parent.

    ``config`` is the type of the first stage's server times the number of splits, plus its split.
    """

    code: Array
    layer: Array
    core: Array
    tail: Array
    update: Array
    config: Array
    parent: Array


class ServerLabels(SuffixSearch[_Labels]):
    """Finds the fastest plan of a setting with two stages or more, or proves none beats ``upper``.

    ``stages`` are those of the best plan, or None if none beats the incumbent.
    """

    def __init__(
        self, tables: ServerTables, fast: Array, counts: Array, relaxed: bool = False
    ) -> None:
        """Prepare a search; the tables' ``longest`` bounds the stages that are looked at.

        Args:
            tables: costs.
            fast: (T,) numbers of the types' speeds in ``tables.speeds``.
            counts: (T,) servers of each type.
            relaxed: whether tails are those that every plan has.
        """
        super().__init__()
        order = np.argsort(-tables.speeds[fast], kind="stable")
        self.types = order
        self.tables, self.relaxed = tables, relaxed
        self.fast, self.counts = fast[order], np.asarray(counts, np.int64)[order]
        self.speeds = tables.speeds[self.fast]
        self.radix = self.counts + 1
        # Mixed radix: a set of servers is a whole number, and adding one server adds its stride.
        self.strides = np.cumprod(np.append(1, self.radix))[:-1].astype(np.int64)
        self.stages: tuple[Chosen, ...] | None = None
        self.m = tables.setting.micro_batches

    def run(self, upper: float, deadline: float = np.inf) -> None:
        """Search for plans shorter than ``upper``.

        Raises OutOfTimeError at the deadline (``time.perf_counter()``), or with too many labels.
        """
        # Below ``NEVER``, so that stages which do not fit are never completed.
        self.upper, self.deadline, self.stages = min(upper, NEVER / 2), deadline, None
        n = len(self.tables.problem.model)
        self._holds = self.tables.most_work(upper / self.m)[self.fast]
        zero = np.zeros(1)
        none = np.full(1, -1)
        root = _Labels(none * 0, none * 0 + n, zero, zero, zero, none, none)
        self._search(root, int(self.counts.sum()))

    def _free(self, code: Array) -> Array:
        """(T, l) servers of each type that are not used."""
        used = code[None] // self.strides[:, None] % self.radix[:, None]
        return np.asarray(self.counts[:, None] - used)

    def _front(self, free: Array, work: Array) -> tuple[Array, Array]:
        """Lower bounds of the stages in front, (l,): their own core, and their sum of seconds.

        On free servers of speeds s_0 >= s_1 >= ... the stages in front take x_0, x_1, ... seconds
        of a micro-batch, and M x_j <= C - sum_{a<j} x_a for a core C. Then their work is at most
        C/M sum_j s_j q^j with q = 1 - 1/M (docs/hybrid.md, bound 1). By the same limits for the
        incumbent, they take the least sum where the fastest servers have as much as they can.
        """
        q = 1.0 - 1.0 / self.m
        # Servers stand fastest first: a type's terms q^j begin behind all faster servers.
        before = free.cumsum(axis=0) - free
        if self.m > 1:
            # sum_{j<n} q^j = (1 - q^n) / (1 - q), and 1 - q = 1/M.
            turns = q**before * (1.0 - q**free) * self.m
        else:
            # With one micro-batch q is 0: the first term alone is left.
            turns = np.where((before == 0) & (free > 0), 1.0, 0.0)
        capacity = self.speeds[:, None] * turns
        with np.errstate(divide="ignore", invalid="ignore"):
            core = np.where(work > 0, self.m * work / capacity.sum(axis=0), 0.0)
        share = self.upper / self.m
        # Fill the types in order, each up to its share of the incumbent's length.
        filled = np.minimum(np.maximum(work - share * (capacity.cumsum(axis=0) - capacity), 0.0),
                            share * capacity)  # fmt: skip
        return core, (filled / self.speeds[:, None]).sum(axis=0)

    def _extend(self, k: int, labels: _Labels) -> list[_Labels]:
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
        return parts

    def _state(self, labels: _Labels) -> Array:
        return labels.code * (len(self.tables.problem.model) + 1) + labels.layer

    def _stage(self, k: int, kind: int, rows: Array, labels: _Labels) -> list[_Labels]:
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
            # Slower servers and more recomputation hide more: only a tail of 0 holds for all plans.
            tail = np.zeros_like(core)
        else:
            tail = prepend_tail(labels.tail[parent], hiding, exposed) - tables.link[split, begin]
            tail = np.maximum(tail, tables.stages.least_hiding[begin])
        update = np.maximum(labels.update[parent], costs.update[speed, split, number])
        # The longest update of the stages in front is at least the mean over the free servers.
        server_update = tables.stages.device_update / tables.problem.cluster.devices_per_server
        update = np.maximum(update, server_update[begin] / free.sum(axis=0)[row])
        front, passed = self._front(free[:, row], tables.work[begin])
        stretched = np.maximum(front, core + np.maximum(tail, passed))
        length = compose(tables.problem.machine, stretched, optimizer=update)
        keep = np.flatnonzero(length * (1 + SLACK) < self.upper)
        if not len(keep):
            return []
        config = self._first_config(kind) + split
        labels = _Labels(code[row], begin, core, tail, update, config, parent)
        return [take(labels, keep)]

    def _complete(self, k: int, labels: _Labels) -> None:
        tables, m = self.tables, self.m
        costs = tables.costs(FIRST, k)
        number = tables.number[0, labels.layer]
        for kind in range(len(self.counts)):
            used = labels.code // self.strides[kind] % self.radix[kind]
            rows = np.flatnonzero(used < self.counts[kind])
            if not len(rows):
                continue
            speed, classes = int(self.fast[kind]), number[rows]
            core = prepend_core(labels.core[rows], costs.seconds[speed][:, classes], m)
            if self.relaxed:
                tail = costs.least[speed][:, classes]
            else:
                hiding, exposed = costs.hiding[speed][:, classes], costs.exposed[speed][:, classes]
                tail = prepend_tail(labels.tail[rows], hiding, exposed)
            update = np.maximum(labels.update[rows], costs.update[speed][:, classes])
            length = compose(tables.problem.machine, core, tail, optimizer=update)
            split, best = np.unravel_index(int(length.argmin()), length.shape)
            if length[split, best] < self.upper * (1 - SLACK):
                self.upper = float(length[split, best])
                config = self._first_config(kind) + int(split)
                self.stages = self._chosen(k, config, int(rows[best]))

    def _first_config(self, kind: int) -> int:
        return int(self.types[kind]) * len(self.tables.sent)


_SHARES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.4, 1.0, 4.0, np.inf)
"""Shares of the lower bound within which plans are looked for, one after the other."""


def deepened(
    search: ServerLabels, bound: float, upper: float, deadline: float
) -> tuple[float, tuple[Chosen, ...] | None]:
    """Search within ever more of a bound, until a plan is found or none beats ``upper``.

    Returns the proven bound, and the best stages if they were found.
    """
    proven = bound
    for share in _SHARES:
        target = min(upper, bound * (1 + share))
        # Nothing new is proven by a narrower search than the last.
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

    Servers of equal speed are one type, so a cluster of few generations is easy at any size. After
    ``time_limit`` seconds the best plan is returned with the bound proven so far. An
    ``InfeasibleError`` says that no plan fits.
    """
    warm_up()
    begin = time.perf_counter()
    deadline = np.inf if time_limit is None else begin + time_limit
    state = orders or Orders(problem, limits)
    if orders is None:
        state.start(deadline)
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
    return state.answer("subset-dp", begin, bound, labels)


def plan_of_types(
    tables: ServerTables, groups: list[list[int]], stages: tuple[Chosen, ...]
) -> HybridPlan:
    """Return the plan of stages whose servers are known by type.

    ``groups`` are the servers of each type; the speed of each must be among those of the tables.
    """
    left, splits = [list(group) for group in groups], len(tables.sent)
    servers = [left[stage.config // splits].pop(0) for stage in stages]
    cuts = [stage.layers[0] for stage in stages]
    return plan_of(tables, servers, cuts, [stage.config % splits for stage in stages])


MAX_TYPES = 8
"""Types of servers, at most."""
MAX_STATES = 20_000
"""Sets of servers by type, at most."""
MAX_SUBSETS = 2.0**16
"""Sets of servers by type that are searched exactly: 16 servers of different speeds."""
SECONDS = 60.0
"""Seconds of each search of the planner, by default."""
_WEIGHT = 0.3  # of speed that is rounded away where no run more fits


def types(speeds: Array, holds: Array, most: int, states: int) -> list[Array]:
    """Put servers into types of neighboring speeds, the slowest first.

    Of all cuts of the sorted servers those are taken that add least capacity by rounding up, with
    as many types as ``states`` allows.

    Args:
        speeds: (P,) of the servers.
        holds: (P,) work of the largest run that each can hold.
        most: types, at most.
        states: sets of servers by type, at most.
    """
    order = np.argsort(speeds, kind="stable")
    fast, held, count = speeds[order], holds[order], len(speeds)
    # Rounding up matters where a server can then hold a larger run of layers; speed breaks ties.
    scale = held.mean() / fast.mean()
    sums = [np.append(0.0, x.cumsum()) for x in (held, fast)]
    # added[i, j]: capacity that the servers i..j-1 gain as one type
    added = np.full((count + 1, count + 1), np.inf)
    for first in range(count):
        ends = np.arange(first + 1, count + 1)
        gained = [
            figure[ends - 1] * (ends - first) - (total[ends] - total[first])
            for figure, total in zip((held, fast), sums, strict=True)
        ]
        added[first, ends] = gained[0] + _WEIGHT * scale * gained[1]
    best = added[0].copy()
    cuts: list[Array] = []
    chosen = [np.array([0, count])]
    for _ in range(min(most, len(np.unique(fast))) - 1):
        # Shortest path over cuts: the best types in front, and one more.
        through = best[:, None] + added
        cuts.append(through.argmin(axis=0))
        best = through.min(axis=0)
        bounds = [count]
        for back in reversed(cuts):
            bounds.append(int(back[bounds[-1]]))
        bounds_of_types = np.array([0, *bounds[::-1]])
        # A type of c servers has 0 to c of them in use, c + 1 states.
        sizes = np.diff(bounds_of_types)
        if np.prod(sizes + 1.0) <= states and sizes.all():
            chosen.append(bounds_of_types)
    return [order[a:b] for a, b in zip(chosen[-1][:-1], chosen[-1][1:], strict=True)]


def lower_bound(
    orders: Orders, most_types: int = MAX_TYPES, states: int = MAX_STATES, deadline: float = np.inf
) -> tuple[float, int]:
    """Return a lower bound of every plan of one server per stage, and the number of labels.

    It is at most the length of the best plan that was judged, and proven by the deadline.
    """
    proven = {bounded.setting: bounded.bound for bounded in orders.settings}
    rounds = dict.fromkeys(proven, 0)
    labels = 0
    # The setting with the least bound limits the result, so it is refined next.
    while True:
        setting = min(proven, key=lambda x: proven[x])
        least, number = proven[setting], rounds[setting]
        late = time.perf_counter() > deadline
        if least >= orders.length * (1 - SLACK) or number == len(_ROUNDS) or late:
            return min(least, orders.length), labels
        share, factor = _ROUNDS[number]
        expected = least + share * (orders.length - least)
        search, groups = _on_types(
            orders, setting, np.max, expected, orders.length, most_types, factor * states
        )
        bound, stages = deepened(search, least, orders.length, deadline)
        if stages is not None:
            _judge(orders, setting, groups, stages)
        # Bounds of different roundings all hold: the greatest counts.
        proven[setting] = max(least, bound)
        rounds[setting] += 1
        labels += search.evaluations


_ROUNDS = ((1.0, 1), (0.5, 1), (0.2, 1), (0.2, 4))
"""Rounds of a setting: where types end, between bound and incumbent, and a factor of the states."""


def _on_types(
    orders: Orders,
    setting: Setting,
    rounding: Callable[[Array], float],
    expected: float,
    upper: float,
    most_types: int,
    states: int,
) -> tuple[ServerLabels, list[Array]]:
    """Return a search in which servers of a type have one speed, and the servers of each type.

    Types suit plans of ``expected`` seconds; runs are those of plans of ``upper`` seconds.
    ``rounding`` makes one speed of a type's: the greatest bounds plans from below, and the search
    is relaxed.
    """
    speeds, exact = speeds_of(orders.problem), orders.tables(setting)
    # All M micro-batches pass each stage, which bounds the run that a server can hold.
    holds = exact.most_work(expected / setting.micro_batches)
    groups = types(speeds, holds[np.searchsorted(exact.speeds, speeds)], most_types, states)
    rounded = np.array([rounding(speeds[group]) for group in groups])
    longest = upper / setting.micro_batches
    tables = ServerTables(orders.problem, setting, rounded, longest, orders.limits)
    numbers, counts = np.searchsorted(tables.speeds, rounded), np.array([*map(len, groups)])
    return ServerLabels(tables, numbers, counts, relaxed=rounding is np.max), groups


def _judge(
    orders: Orders, setting: Setting, groups: list[Array], stages: tuple[Chosen, ...]
) -> None:
    # Of a type, faster servers come first: a stage in front may take longer (bound 1).
    fastest_first = [group[::-1].tolist() for group in groups]
    plan = plan_of_types(orders.tables(setting), fastest_first, stages)
    used = len(stages)
    orders.judged += 1
    if orders.problem.report(plan).legal:
        orders.keep(plan, setting, orders.problem.length(plan))
    orders.judge(np.array([[*plan.servers[used:], *plan.servers[:used]]]), setting)


def rounded_down(
    orders: Orders, most_types: int = MAX_TYPES, states: int = MAX_STATES, deadline: float = np.inf
) -> int:
    """Judge the best plan with servers as slow as the slowest of their type; return labels.

    Only the setting of the best plan so far is searched; a better order is kept in ``orders``.
    """
    setting, speeds = orders.setting, speeds_of(orders.problem)
    assert setting is not None
    # A plan that beats the incumbent may be longer with slower servers.
    upper = orders.length * float(speeds.max() / speeds.min())
    search, groups = _on_types(orders, setting, np.min, orders.length, upper, most_types, states)
    _, stages = deepened(search, search.tables.root_bound(), upper, deadline)
    if stages is not None:
        _judge(orders, setting, groups, stages)
    return search.evaluations


def sandwich(
    problem: Hybrid,
    limits: Constraints = ONE_SERVER,
    most_types: int = MAX_TYPES,
    time_limit: float | None = None,
) -> Answer:
    """Return a plan and a certified lower bound by rounding speeds to few types.

    There are at most ``most_types`` types and ``MAX_STATES`` sets of servers. The first of both
    searches has half of ``time_limit`` (default: ``SECONDS`` for each); the first plan that fits
    takes as long as it does. An ``InfeasibleError`` says that no plan fits.
    """
    warm_up()
    begin = time.perf_counter()
    state = Orders(problem, limits)
    labels, half = 0, SECONDS if time_limit is None else time_limit / 2
    state.start(np.inf if time_limit is None else begin + half)
    if state.best is not None and time.perf_counter() < begin + 2 * half:
        labels = rounded_down(state, most_types, deadline=begin + half)
    bound, more = lower_bound(state, most_types, deadline=begin + 2 * half)
    return state.answer("subset-dp", begin, bound, labels + more)


def subset_dp(problem: Hybrid, limits: Constraints, time_limit: float | None = None) -> Answer:
    """Return the optimum where subsets of the servers are few, else a plan with a bound.

    An ``InfeasibleError`` says that no plan fits.
    """
    counts = np.unique(speeds_of(problem), return_counts=True)[1]
    plan = subset_search if np.prod(counts + 1.0) <= MAX_SUBSETS else sandwich
    return plan(problem, limits, time_limit=time_limit)
