"""A certified lower bound and a plan for many servers: speeds rounded to few types, then exact.

Servers are put into types. With every server as fast as the fastest of its type, no plan becomes
slower, so the optimum there, exact over (layers, used of each type), bounds every plan from below.
With every server as slow as the slowest of its type, each plan found is a plan of the true servers,
which is judged with their true speeds.
"""

from __future__ import annotations

import time

import numpy as np

from parenvs.agents.hybrid.labels import SLACK
from parenvs.agents.hybrid.servers.labels import (
    Chosen,
    ServerLabels,
    deepened,
    plan_of_types,
    subset_search,
)
from parenvs.agents.hybrid.servers.solve import Bounded, Orders, by_speed, speeds_of
from parenvs.agents.hybrid.servers.tables import ONE_SERVER, ServerTables
from parenvs.core.plan import Answer
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints

MAX_TYPES = 8
"""Types of servers, at most."""
MAX_STATES = 20_000
"""Sets of servers by type, at most."""
MAX_SUBSETS = 2.0**16
"""Sets of servers by type that are searched exactly: 16 servers of different speeds."""
SECONDS = 60.0
"""Seconds of each search of the planner, by default."""
_WEIGHT = 0.3  # of speed that is rounded away where no run more fits


def types(speeds: np.ndarray, holds: np.ndarray, most: int, states: int) -> list[np.ndarray]:
    """Put servers into types of neighbouring speeds, so that rounding up changes little.

    What rounding up changes is first of all the largest run of layers that a server can hold within
    the incumbent's length: types end where that grows, as far as they go. Of all cuts of the sorted
    servers those are taken that add least capacity, with as many types as ``states`` allows.

    Args:
        speeds: (P,) of the servers.
        holds: (P,) work of the largest run that each can hold.
        most: types, at most.
        states: sets of servers by type, at most.

    Returns:
        The servers of each type, the slowest type first.
    """
    order = np.argsort(speeds, kind="stable")
    fast, held, count = speeds[order], holds[order], len(speeds)
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
    cuts: list[np.ndarray] = []
    chosen = [np.array([0, count])]
    for kinds in range(2, min(most, len(np.unique(fast))) + 1):
        through = best[:, None] + added
        cuts.append(through.argmin(axis=0))
        best = through.min(axis=0)
        bounds = [count]
        for back in reversed(cuts):
            bounds.append(int(back[bounds[-1]]))
        found = np.array([0, *bounds[::-1]])
        if np.prod(np.diff(found) + 1.0) <= states and len(np.unique(found)) == kinds + 1:
            chosen.append(found)
    return [order[a:b] for a, b in zip(chosen[-1][:-1], chosen[-1][1:], strict=True)]


def lower_bound(
    orders: Orders,
    most_types: int = MAX_TYPES,
    states: int = MAX_STATES,
    deadline: float = np.inf,
) -> tuple[float, int]:
    """Return a certified lower bound of every plan of one server a stage, and labels kept.

    It is at most the length of the best plan that was judged. The setting whose bound is least is
    looked at first, again and again with other types.

    Args:
        orders: plans judged before.
        most_types: types of servers, at most.
        states: sets of servers by type, at most.
        deadline: give up at this ``time.perf_counter()``; what is proven until then counts.
    """
    proven = {bounded.setting: bounded.bound for bounded in orders.settings}
    rounds = dict.fromkeys(proven, 0)
    labels = 0
    while True:
        setting = min(proven, key=lambda x: proven[x])
        least, number = proven[setting], rounds[setting]
        late = time.perf_counter() > deadline
        if least >= orders.length * (1 - SLACK) or number == len(_ROUNDS) or late:
            return min(least, orders.length), labels
        share, factor = _ROUNDS[number]
        expected = least + share * (orders.length - least)
        found, kept = _rounded_up(
            orders, Bounded(setting, least), expected, most_types, factor * states, deadline
        )
        proven[setting] = max(least, found)
        rounds[setting] += 1
        labels += kept


_ROUNDS = ((1.0, 1), (0.5, 1), (0.2, 1), (0.2, 4))
"""Rounds of a setting: where types end, between bound and incumbent, and a factor of the states."""


def _rounded_up(
    orders: Orders,
    bounded: Bounded,
    expected: float,
    most_types: int,
    states: int,
    deadline: float,
) -> tuple[float, int]:
    """Bound the plans of one setting by types that suit plans of ``expected`` seconds."""
    setting, speeds = bounded.setting, speeds_of(orders.problem)
    tables = orders.tables(setting)
    longest = orders.length / setting.micro_batches
    holds = tables.most_work(expected / setting.micro_batches)
    groups = types(speeds, holds[np.searchsorted(tables.speeds, speeds)], most_types, states)
    fast = np.array([speeds[group].max() for group in groups])
    rounded = ServerTables(orders.problem, setting, fast, longest, orders.limits)
    counts = np.array([len(group) for group in groups])
    search = ServerLabels(rounded, np.searchsorted(rounded.speeds, fast), counts, relaxed=True)
    proven, stages = deepened(search, bounded.bound, orders.length, deadline)
    if stages is not None:
        _judge(orders, tables, groups, stages)
    return proven, search.evaluations


def _judge(
    orders: Orders,
    tables: ServerTables,
    groups: list[np.ndarray],
    stages: tuple[Chosen, ...],
) -> None:
    """Judge the plan of stages on types of servers, and its order completed anew."""
    # Of a type, faster servers come first: a stage in front may take longer (bound 1).
    plan = plan_of_types(tables, [group[::-1].tolist() for group in groups], stages)
    setting, used = tables.setting, len(stages)
    orders.judged += 1
    length = orders.problem.length(plan)
    if orders.problem.report(plan).legal:
        orders.keep(plan, setting, length)
    orders.judge(np.array([[*plan.servers[used:], *plan.servers[:used]]]), setting)


def rounded_down(
    orders: Orders,
    most_types: int = MAX_TYPES,
    states: int = MAX_STATES,
    deadline: float = np.inf,
) -> int:
    """Judge the best plan with every server as slow as the slowest of its type; return labels kept.

    Only the setting of the best plan so far is searched. The order that is found is completed anew
    with true speeds.

    Args:
        orders: plans judged before; a better one is kept there.
        most_types: types of servers, at most.
        states: sets of servers by type, at most.
        deadline: give up at this ``time.perf_counter()``.
    """
    setting, speeds = orders.setting, speeds_of(orders.problem)
    assert setting is not None
    tables = orders.tables(setting)
    # A plan that beats the incumbent may be longer with slower servers.
    upper = orders.length * float(speeds.max() / speeds.min())
    longest = upper / setting.micro_batches
    holds = tables.most_work(orders.length / setting.micro_batches)
    groups = types(speeds, holds[np.searchsorted(tables.speeds, speeds)], most_types, states)
    slow = np.array([speeds[group].min() for group in groups])
    rounded = ServerTables(orders.problem, setting, slow, longest, orders.limits)
    counts = np.array([len(group) for group in groups])
    search = ServerLabels(rounded, np.searchsorted(rounded.speeds, slow), counts)
    _, stages = deepened(search, rounded.root_bound(), upper, deadline)
    if stages is not None:
        _judge(orders, tables, groups, stages)
    return search.evaluations


def sandwich(
    problem: Hybrid,
    limits: Constraints = ONE_SERVER,
    most_types: int = MAX_TYPES,
    states: int = MAX_STATES,
    time_limit: float | None = None,
    orders: Orders | None = None,
) -> Answer:
    """Return a plan and a certified lower bound by rounding speeds to few types.

    Args:
        problem: the problem.
        limits: the constraints.
        most_types: types of servers, at most.
        states: sets of servers by type, at most.
        time_limit: seconds of both searches, of which the first has half (default: ``SECONDS`` for
            each); the first plan that fits takes as long as it does.
        orders: plans judged before.

    Raises:
        InfeasibleError: no plan fits.
    """
    begin = time.perf_counter()
    state = orders or Orders(problem, limits)
    labels, half = 0, SECONDS if time_limit is None else time_limit / 2
    if orders is None:
        late = np.inf if time_limit is None else begin + half
        state.start([by_speed(problem), by_speed(problem, False)], late)
    if state.best is not None and time.perf_counter() < begin + 2 * half:
        labels = rounded_down(state, most_types, states, begin + half)
    bound, more = lower_bound(state, most_types, states, begin + 2 * half)
    return state.answer(
        "subset-dp", begin, proven=bound >= state.length * (1 - 1e-9), bound=bound,
        evaluations=labels + more + state.judged,
    )  # fmt: skip


def subset_dp(problem: Hybrid, limits: Constraints, time_limit: float | None = None) -> Answer:
    """Return the optimum where subsets of the servers are few, else a plan with a bound.

    Args:
        problem: the problem.
        limits: the constraints.
        time_limit: seconds.

    Raises:
        InfeasibleError: no plan fits.
    """
    counts = np.unique(speeds_of(problem), return_counts=True)[1]
    plan = subset_search if np.prod(counts + 1.0) <= MAX_SUBSETS else sandwich
    return plan(problem, limits, time_limit=time_limit)
