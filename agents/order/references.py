"""Makes the references of the shipped sets of orders: a bound and a good order of each problem.

    python -m parenvs.agents.order.references             # what is missing or outdated
    python -m parenvs.agents.order.references --again     # all anew; the better of both stays
    python -m parenvs.agents.order.references --check     # judge all, change nothing

``exact_order`` gives both, in a number of linear programs that falls with their size; NEH and the
machines give those of the largest problems. Swaps improve the order of what is not proven then, or
the shipped one if that is better. What is proven is marked so. Each row is written when it is
known, so an interruption loses one problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from parenvs.agents.order.heuristics import TOGETHER, local_search, neh
from parenvs.agents.order.search import exact_order
from parenvs.agents.references import SAME, ReferenceFile, run
from parenvs.core.request import Budget
from parenvs.datasets.references import ORDERS, references
from parenvs.tasks.order.load import ORDER_SETS, load_ordering, ordering_steps
from parenvs.tasks.order.problem import Order

WORK = 2**27
"""Stages times micro-batches to the third power, over all programs of a problem."""
LEAST_ROUNDS = 4
"""Problems of fewer programs are ordered by NEH."""
JUDGED = 60_000
"""Orders that the swaps judge."""


def order_references() -> dict[str, dict[str, Any]]:
    """Read the references: name of a problem -> fingerprint, bound, length, proven and order."""
    return references(ORDERS)


def reference_of(problem: Order) -> dict[str, Any]:
    """Compute the reference of a problem, as an object of JSON types (seconds)."""
    rounds = WORK // (problem.stages * problem.micro_batches**3)
    answer = neh(problem) if rounds < LEAST_ROUNDS else exact_order(problem, rounds=rounds)
    cost, order = answer.cost, answer.plan.order
    if not answer.proven:
        known = order_references().get(problem.instance)
        if known is not None and not fault_of(problem, known) and known["length"] < cost:
            order = known["order"]
        rng = np.random.default_rng(0)
        better = local_search(problem, Budget(JUDGED), rng, np.array(order), TOGETHER)
        cost, order = better.cost, better.plan.order
    return {
        "fingerprint": problem.fingerprint,
        "bound": answer.bound,
        "length": cost,
        "proven": answer.bound >= cost,
        "order": list(order),
    }


def fault_of(problem: Order, row: dict[str, Any]) -> str:
    """Return what is wrong with a reference in words, or an empty string."""
    if row["fingerprint"] != problem.fingerprint:
        return "is of other seconds"
    report = problem.report(problem.plan(row["order"]))
    if not report.legal or abs(report.length_seconds / row["length"] - 1) > SAME:
        return f"its order takes {report.length_seconds} s, not {row['length']}"
    if not problem.bound_seconds * (1 - 1e-5) <= row["bound"] <= row["length"] * (1 + SAME):
        return f"its bound {row['bound']} s is not between the machine bound and the length"
    return ""


def _names() -> Iterator[str]:
    for set_name in ORDER_SETS:
        yield from (f"{set_name}/{member}" for member in ordering_steps(set_name))


ORDER_REFERENCES = ReferenceFile(
    ORDERS,
    "python -m parenvs.agents.order.references",
    _names,
    load_ordering,
    reference_of,
    fault_of,
)
"""References of all shipped sets of orders."""

if __name__ == "__main__":
    run(ORDER_REFERENCES)
