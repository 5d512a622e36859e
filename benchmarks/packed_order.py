"""The order of micro-batches: rules, searches and the exact method on the test set.

    python benchmarks/packed_order.py                       # heuristics, exact
    python benchmarks/packed_order.py --only heuristics     # of these parts
    python benchmarks/packed_order.py --tiers p8-m16 --only exact

Gaps are to the bound of ``order-references.json``, a certified lower bound, and to the best known
order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.framework import Case, Row, main, measurement, percent, table
from parenvs.agents.order import exact_order
from parenvs.agents.order.heuristics import RULES, by_rule, neh, random_order, swap
from parenvs.agents.order.references import order_references
from parenvs.core.request import Budget
from parenvs.datasets.order.drawing import TIERS
from parenvs.tasks.order.load import load_ordering, ordering_steps
from parenvs.tasks.order.problem import Order

PARTS = ("heuristics", "exact")
SET = "order-test"
BUDGETS = (60, 600)
"""Judged orders of searches."""
EXACT = 5
"""Problems of each tier that the exact method gets."""
LIMIT = 60.0
"""Its processor seconds for each."""


def problems(tier: str) -> Iterator[tuple[str, Order]]:
    """Names and problems of a tier of the test set."""
    for member in ordering_steps(SET):
        if member.startswith(f"{tier}-"):
            yield f"{SET}/{member}", load_ordering(f"{SET}/{member}")


def timed(plan: Callable[[], Any]) -> Row:
    """Run a planner: length, bound if proven, judged orders, processor seconds."""
    begin = time.process_time()
    answer = plan()
    return {
        "length": answer.cost,
        "judged": answer.evaluations,
        "proven": answer.proven,
        "bound": answer.bound,
        "seconds": time.process_time() - begin,
    }


def _key(tier: str, problem: str, method: str) -> Row:
    return {"tier": tier, "problem": problem, "method": method}


def heuristics(tier: str) -> Iterator[Case]:
    """Rules, NEH, and searches of equally many judged orders."""
    for name, problem in problems(tier):
        methods: dict[str, Callable[[], Any]] = {"neh": partial(neh, problem)}
        for rule in RULES:
            methods[rule] = partial(by_rule, problem, rule)
        for budget in (1, *BUDGETS):
            rng = np.random.default_rng([1, budget])
            methods[f"random-{budget}"] = partial(random_order, problem, budget, rng)
        for budget in BUDGETS:
            rng = np.random.default_rng([2, budget])
            methods[f"swap-{budget}"] = partial(swap, problem, Budget(budget), rng)
        for method, plan in methods.items():
            yield _key(tier, name, method), partial(timed, plan)


def exact(tier: str) -> Iterator[Case]:
    """Branch and bound within a limit of processor time."""
    for name, problem in list(problems(tier))[:EXACT]:
        plan = partial(exact_order, problem, LIMIT, clock=time.process_time)
        yield _key(tier, name, "exact"), partial(timed, plan)


def gaps(rows: list[Row], key: str, best: dict[str, float]) -> np.ndarray:
    """Lengths of rows over the reference's bound or best length, less 1."""
    known = order_references()
    over = [best[x["problem"]] if key == "length" else known[x["problem"]][key] for x in rows]
    return np.array([x["length"] for x in rows]) / over - 1


def best_lengths(rows: list[Row]) -> dict[str, float]:
    """The least length of each problem that the reference or any method here has found."""
    best = {row["problem"]: order_references()[row["problem"]]["length"]
            for row in rows if "length" in row}  # fmt: skip
    for row in rows:
        if "length" in row:
            best[row["problem"]] = min(best[row["problem"]], row["length"])
    return best


METHODS = (
    "random-1", "as-drawn", "random-60", "random-600", "ascending", "descending", "pyramid", "neh",
    "swap-60", "swap-600",
)  # fmt: skip


@measurement(
    title="Orders of micro-batches: planners and agents",
    key="problem method",
    among={"tiers": TIERS, "only": PARTS},
)
def packed_order(
    tiers: tuple[str, ...] = tuple(TIERS),
    only: tuple[str, ...] = PARTS,
) -> Iterator[Case]:
    parts: dict[str, Callable[[str], Iterator[Case]]] = {
        "heuristics": heuristics,
        "exact": exact,
    }
    for part in only:
        for tier in tiers:
            yield from parts[part](tier)


@packed_order.page
def page(rows: list[Row]) -> list[str]:
    tiers = list(TIERS)
    best = best_lengths(rows)

    def of(tier: str, method: str) -> list[Row]:
        return [row for row in rows if (row["tier"], row["method"]) == (tier, method)]

    sections = []
    for key, words in (("bound", "the certified bound"), ("length", "the best known order")):
        lines = []
        for method in METHODS:
            cells = []
            for tier in tiers:
                found = of(tier, method)
                cells.append(percent(float(gaps(found, key, best).mean())) if found else "")
            lines.append([method, *cells])
        sections.append(f"Mean gap to {words}, over the 20 problems of each tier of `{SET}`:")
        sections.append(table(["method", *tiers], lines))
    sections.append(
        "`NAME-n` judges n orders; `swap` searches by swaps and insertions from the better of the "
        "pyramid and the order of NEH, which judges its own."
    )
    lines = []
    for tier in tiers:
        known = [order_references()[name] for name, _ in problems(tier)]
        left = np.mean([row["length"] / row["bound"] - 1 for row in known])
        loose = np.mean(
            [
                row["length"] / problem.bound_seconds - 1
                for row, (_, problem) in zip(known, problems(tier), strict=True)
            ]
        )
        proven = sum(row["proven"] for row in known)
        found = of(tier, "exact")
        cells = [
            f"{sum(row['proven'] for row in found)} of {len(found)}",
            percent(float(np.mean([row["length"] / row["bound"] - 1 for row in found]))),
            f"{np.mean([row['judged'] for row in found]):,.0f}",
        ] if found else ["", "", ""]  # fmt: skip
        shares = [percent(float(left)), percent(float(loose))]
        lines.append([tier, *shares, f"{proven} of {len(known)}", *cells])
    sections.append(
        "References (best known order over the certified bound, and over the machine bound), and "
        "the exact method in "
        f"{LIMIT:.0f} s of processor time:"
    )
    sections.append(
        table(
            [
                "tier",
                "open",
                "over the machine bound",
                "proven",
                "exact proves",
                "its own gap",
                "nodes",
            ],
            lines,
        )
    )
    return sections


if __name__ == "__main__":
    main(packed_order)
