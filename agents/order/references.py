"""Makes the references of the shipped sets of orders: a bound and a good order of each problem.

    python -m parenvs.agents.order.references             # what is missing or outdated
    python -m parenvs.agents.order.references --check     # judge all, change nothing

Problems of at most ``FEW`` micro-batches are solved by ``exact_order``; of others the bound is
``path_bound`` (``relaxed_bound`` is seldom higher, and takes seconds), and the order is the best of
two long local searches, from the pyramid and from NEH. Each row is written when it is known, so an
interruption loses one problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from parenvs.agents.order.bounds import path_bound
from parenvs.agents.order.heuristics import local_search, neh
from parenvs.agents.order.search import exact_order
from parenvs.agents.references import SAME, ReferenceFile, run
from parenvs.datasets.references import ORDERS, references
from parenvs.tasks.order.load import ORDER_SETS, load_ordering, ordering_steps
from parenvs.tasks.order.problem import Order

FEW = 8
"""Most micro-batches of problems that are solved exactly."""
JUDGED, WIDTH = 4_096, 64
"""Orders that each local search judges, and how many together."""


def order_references() -> dict[str, dict[str, Any]]:
    """Read the references: name of a problem -> fingerprint, bound, length, proven and order."""
    return references(ORDERS)


def reference_of(problem: Order) -> dict[str, Any]:
    """Compute the reference of a problem, as an object of JSON types (seconds)."""
    if problem.micro_batches <= FEW:
        answer = exact_order(problem)
        reference = {"bound": answer.bound, "length": answer.cost, "proven": answer.proven}
        order = answer.plan.order
    else:
        starts = (None, neh(problem).plan.order)
        answers = [
            local_search(problem, JUDGED, np.random.default_rng(k), start, WIDTH)
            for k, start in enumerate(starts)
        ]
        best = min(answers, key=lambda answer: answer.cost)
        bound = path_bound(problem)
        reference = {"bound": bound, "length": best.cost, "proven": False}
        order = best.plan.order
    return {"fingerprint": problem.fingerprint, **reference, "order": list(order)}


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
