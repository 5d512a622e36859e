"""Orders of unequal servers by rule and by search; each order is one judged plan.

An order is completed by ``parenvs.agents.hybrid.servers.order``: the cuts, tp, ZeRO and
recomputation of least core. A first order is judged in every setting (micro-batch, sequence
parallelism) that may hold the best plan, and each of these counts as a judged plan; later ones in
the best setting alone.
"""

from __future__ import annotations

import numpy as np

from parenvs.agents.hybrid.servers.solve import Orders, by_speed
from parenvs.agents.hybrid.servers.tables import one_server
from parenvs.core.plan import Answer
from parenvs.core.request import Budget
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints

EVALUATIONS = 800
"""Plans that a search judges where no time limit is given."""


def swap_search(
    problem: Hybrid,
    rng: np.random.Generator,
    constraints: Constraints | None = None,
    evaluations: int | None = None,
    time_limit: float | None = None,
) -> Answer:
    """Return what swaps of two servers make of the better order by speed.

    A random pair of servers changes places; the new order is kept if it is no worse.

    Args:
        problem: the problem.
        rng: source of the pairs.
        constraints: that the plan must keep to.
        evaluations: plans that are judged (default: ``EVALUATIONS``; with a time limit, as many as
            it allows).
        time_limit: seconds.

    Raises:
        InfeasibleError: no plan of the orders by speed fits.
    """
    budget = Budget(EVALUATIONS, evaluations, time_limit)
    orders, servers = Orders(problem, one_server(constraints)), problem.cluster.servers
    orders.start([by_speed(problem), by_speed(problem, False)])
    setting, best = orders.setting, orders.best
    if setting is not None and best is not None and servers > 1:
        used = len(best.stages)
        current, length = np.array([*best.servers[used:], *best.servers[:used]]), orders.length
        while budget.left(orders.judged):
            pair = rng.choice(servers, 2, replace=False)
            other = current.copy()
            other[pair] = other[pair[::-1]]
            found = float(orders.judge(other[None], setting)[0])
            if found <= length:
                current, length = other, found
    return orders.answer("swap-search", budget.begin)
