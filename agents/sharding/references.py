"""Makes the references of ``IntraOpSharding-v2``'s sets and banks: a good plan and a bound.

    python -m parenvs.agents.sharding.references             # what is missing or outdated
    python -m parenvs.agents.sharding.references --check     # judge all, change nothing

Plans and bounds are those of ``solve_iopddl`` after ``SECONDS``. Each row is written when it is
known, so an interruption loses one problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parenvs.agents.references import ReferenceFile, run
from parenvs.agents.sharding.planners import solve_iopddl
from parenvs.datasets.references import INTRA_OP
from parenvs.datasets.sharding.problems import BANKS, SETS, find, name_of, set_names
from parenvs.tasks.sharding.problem import Sharding
from parenvs.tasks.sharding.turns import board_of

SECONDS = 20.0
"""Processor seconds of the search on a problem; it ends sooner where the bound is met."""


def reference_of(problem: Sharding) -> dict[str, Any]:
    """Compute the reference of a problem, as an object of JSON types.

    Returns:
        Its fingerprint; the costs of the greedy plan without advice and of the best plan known, a
        proven lower bound of costs, whether that plan is proven optimal, and its strategies.
    """
    answer = solve_iopddl(problem, SECONDS, processor=True)
    return {
        "fingerprint": problem.fingerprint,
        "greedy": int(board_of(problem).reference),
        "length": int(answer.cost),
        "bound": min(answer.bound or 0, answer.cost),
        "proven": answer.proven,
        "strategies": list(answer.plan.strategies),
    }


def fault_of(problem: Sharding, row: dict[str, Any]) -> str:
    """Return what is wrong with a reference in words, or an empty string."""
    if row["fingerprint"] != problem.fingerprint:
        return "is of another problem"
    report = problem.report(problem.plan(row["strategies"]))
    if not report.legal or report.cost != row["length"]:
        return f"its plan costs {report.cost}, not {row['length']}"
    if not 0 <= row["bound"] <= row["length"]:
        return f"its bound {row['bound']} is above the cost"
    if row["greedy"] != board_of(problem).reference:
        return f"the greedy plan costs {board_of(problem).reference}, not {row['greedy']}"
    return ""


def _names() -> Iterator[str]:
    for name in SETS:
        yield from set_names(name)
    for family, count in BANKS.items():
        yield from (name_of(family, number, "inside") for number in range(count))


INTRA_OP_REFERENCES = ReferenceFile(
    INTRA_OP, "python -m parenvs.agents.sharding.references", _names, find, reference_of, fault_of
)
"""References of all shipped sets of sharding problems, and of the banks."""

if __name__ == "__main__":
    run(INTRA_OP_REFERENCES)
