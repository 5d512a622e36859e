"""Makes references of hetero problems: the best plan known and a certified bound for each.

    python -m parenvs.agents.hybrid.servers.references            # the first problems of each tier
    python -m parenvs.agents.hybrid.servers.references hetero-32-test/spread-007
    python -m parenvs.agents.hybrid.servers.references --check    # judge all, change nothing

The plan is the best of swap searches, of speeds rounded down and, with few servers, of the subset
program. ``bound`` is that of speeds rounded up, which holds for every plan of one server a stage,
however much it recomputes; the subset program proves optima ``among`` those that recompute no more
than they must.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parenvs.agents.hybrid.references import hybrid_fault, row_of
from parenvs.agents.hybrid.servers.heuristics import swap_search
from parenvs.agents.hybrid.servers.labels import subset_search
from parenvs.agents.hybrid.servers.sandwich import lower_bound, rounded_down
from parenvs.agents.hybrid.servers.solve import AMONG, Orders, by_speed
from parenvs.agents.references import ReferenceFile, run
from parenvs.datasets.hybrid.named import find_hybrid
from parenvs.datasets.hybrid.servers import TIERS
from parenvs.datasets.references import HETERO, Row
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shipped import hetero_sets

FIRST = 3
"""Problems of each test set whose references are made by default: the first ones."""
EVALUATIONS, SEEDS = 800, (0, 1)
"""Plans that each swap search judges, and the seeds of the searches."""
EXACT = 16
"""Servers up to which the subset program runs."""
STATES = 8_000
"""Sets of servers by type, at most, of more than 32 servers; 20,000 of fewer."""
SECONDS = 120.0
"""Wall seconds of the subset program; the bounds' searches end by their sets of servers, so that a
reference has the same bound on every machine."""


def reference_of(problem: Hybrid) -> Row:
    """Compute the reference of a hetero problem."""
    servers = problem.cluster.servers
    states = STATES if servers > 32 else 20_000
    orders = Orders(problem)
    orders.start([by_speed(problem), by_speed(problem, False)])
    method = "sorted servers"
    for seed in SEEDS:
        answer = swap_search(problem, np.random.default_rng(seed), None, EVALUATIONS)
        if answer.cost < orders.length and orders.setting is not None:
            orders.keep(answer.plan, orders.setting, answer.cost)
            method = f"swap search, {EVALUATIONS} plans, seed {seed}"
    before = orders.length
    rounded_down(orders, states=states)
    method = method if orders.length == before else "speeds rounded down"
    before, among = orders.length, ""
    bound = lower_bound(orders, states=states)[0]
    method = method if orders.length == before else "speeds rounded up"
    if servers <= EXACT and bound < orders.length:
        before = orders.length
        exact = subset_search(problem, time_limit=SECONDS, orders=orders)
        among = AMONG if exact.proven else ""
        method = method if orders.length == before else "subset program"
        bound = min(bound, exact.cost)
    assert orders.best is not None
    return row_of(problem, orders.best, orders.length, bound, among, method)


def _names() -> Iterator[str]:
    for tier in TIERS:
        yield from (problem.instance for problem in hetero_sets()[f"{tier}-test"][:FIRST])


HETERO_REFERENCES = ReferenceFile(
    HETERO,
    "python -m parenvs.agents.hybrid.servers.references",
    _names,
    find_hybrid,
    reference_of,
    hybrid_fault,
)
"""References of the first problems of each hetero test set."""

if __name__ == "__main__":
    run(HETERO_REFERENCES)
