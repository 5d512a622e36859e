"""Planners on the sets of ``HybridPlan-v0``: how near they come to the best plan known.

python benchmarks/hybrid_envs.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.framework import (
    Case,
    Row,
    Rows,
    main,
    measurement,
    percent,
    spent,
    table,
)
from parenvs.agents.evaluation.statistics import bootstrap_interval, interquartile_mean
from parenvs.agents.hybrid import exact_hybrid, exact_uniform
from parenvs.agents.hybrid.episodes import local_search, random_play
from parenvs.agents.hybrid.heuristics import megatron
from parenvs.agents.hybrid.servers.heuristics import sorted_orders, swap_search
from parenvs.errors import InfeasibleError, TimeLimitError
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shipped import problem_sets
from parenvs.tasks.hybrid.turns.rules import rules_of

SETS = {"hybrid-test": 30, "hybrid-outside": 15, "hetero-8-test": 16, "hetero-32-test": 16}
"""Set -> its first problems, on which everything is measured."""
SAMPLES = 60
"""Plans that small searches judge."""
LIMIT, MORE = 60.0, 600.0
"""Wall seconds of the exact search of a problem, and where these leave it open."""
EXACT = "exact, a minute"


def planners(problem: Hybrid, set_name: str) -> Iterator[tuple[str, Any]]:
    """Yield planners of a problem by name; those of the hetero sets keep to their rules."""
    rules = rules_of(set_name)
    for name, plays, mask in (
        ("random", 1, "legal"),
        ("random, completable", 1, "completable"),
        (f"random, completable, best of {SAMPLES}", SAMPLES, "completable"),
    ):
        yield (
            name,
            lambda plays=plays, mask=mask: random_play(
                problem, np.random.default_rng(0), plays, mask, rules
            ),
        )
    for count in (SAMPLES, 600):
        yield (
            f"local search, {count} plans",
            lambda count=count: local_search(problem, np.random.default_rng(0), count, rules),
        )
    if set_name.startswith("hybrid"):
        yield "Megatron's rule", lambda: megatron(problem)
        yield "all uniform plans", lambda: exact_uniform(problem)
        yield EXACT, lambda: exact_hybrid(problem, time_limit=LIMIT)
        return
    yield "servers by speed", lambda: sorted_orders(problem)
    for count in (SAMPLES, 600):
        yield (
            f"swap search, {count} plans",
            lambda count=count: swap_search(problem, np.random.default_rng(0), None, count),
        )


def _key(set_name: str, method: str, problem: Hybrid) -> Row:
    return {"set": set_name, "method": method, "problem": problem.instance}


def planned(name: str, plan: Callable[[], Any]) -> Row:
    row: Row = {"length": None, "proven": False, "bound": None}
    with spent(row), suppress(InfeasibleError, TimeLimitError):
        answer = plan()
        assert answer.report.legal
        row |= {"length": answer.cost, "proven": bool(answer.proven),
                "bound": answer.bound if name.startswith("exact") else None}  # fmt: skip
    return row


def bounds(rows: list[Row], folder: Path) -> tuple[dict[str, float], list[str]]:
    """Return what no plan is faster than, by problem, and the problems where nobody knows.

    It is a proven optimum or a certified bound, in seconds of a step; the fastest plan known stands
    in where there is neither.
    """
    best, proven, certified = {}, set(), {}  # type: ignore[var-annotated]
    for row in rows:
        if row["length"] is not None:
            best[row["problem"]] = min(best.get(row["problem"], np.inf), row["length"])
        if row["proven"] and row["method"].startswith("exact"):
            proven.add(row["problem"])
        elif row.get("bound"):
            certified[row["problem"]] = max(row["bound"], certified.get(row["problem"], 0.0))
    hetero = folder / "hetero.jsonl"
    if hetero.exists():
        for line in hetero.read_text().splitlines():
            row = json.loads(line)
            if row["kind"] == "whole":
                certified[row["row"]["instance"]] = row["row"]["bound"]
    for problem, bound in certified.items():
        if problem in best:
            assert bound <= best[problem] * (1 + 1e-9), f"{problem}: a plan is below its bound"
    unknown = sorted(set(best) - proven - set(certified))
    return {
        problem: best[problem] if problem in proven else certified.get(problem, best[problem])
        for problem in best
    }, unknown


@measurement(
    key="set method problem",
)
def hybrid_envs(rows: Rows) -> Iterator[Case]:
    """Plan every problem by every planner, and longer what a minute leaves open."""
    for set_name, count in SETS.items():
        for problem in problem_sets()[set_name][:count]:
            for name, plan in planners(problem, set_name):
                yield _key(set_name, name, problem), partial(planned, name, plan)
            if rows.of(problem=problem.instance, method=EXACT, proven=False):
                plan = partial(exact_hybrid, problem, time_limit=MORE)
                name = "exact, ten minutes, of what is open"
                yield _key(set_name, name, problem), partial(planned, name, plan)


@hybrid_envs.page
def page(rows: list[Row], folder: Path) -> list[str]:
    bound, unknown = bounds(rows, folder)
    instead = f"; of {', '.join(unknown)}, the fastest plan known" if unknown else ""
    sections = [
        "Share of the speed that no plan exceeds, 0 if a plan does not fit: the bound of a problem "
        "over a method's seconds of a step. Interquartile mean over problems, with the 95 % "
        "interval of a bootstrap. The bound is the proven optimum of the exact search, on unequal "
        f"servers the certified bound of `hetero.md`{instead}. `gap`: seconds over the "
        "bound, median of the plans that fit. `no plan`: share of the problems "
        "without a plan that fits. `seconds`: of processor time for a problem, median."
    ]
    for set_name in SETS:
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            if row["set"] == set_name:
                found[row["method"]].append(row)
        lines = []
        for method, own in found.items():
            lengths = [np.inf if row["length"] is None else row["length"] for row in own]
            shares = np.array([bound[row["problem"]] for row in own]) / lengths
            low, high = bootstrap_interval(interquartile_mean, shares[None])
            fits = shares[shares > 0]
            lines.append([
                method, len(own), f"{interquartile_mean(shares):.3f}", f"{low:.3f} to {high:.3f}",
                f"{shares.mean():.3f}",
                percent(float(np.median(1 / fits - 1)), 1) if len(fits) else "",
                percent((shares == 0).mean(), 0),
                sum(bool(row["proven"]) for row in own) or "",
                f"{np.median([row['seconds'] for row in own]):.2f}",
            ])  # fmt: skip
        if lines:
            head = ["method", "problems", "share", "95 % interval", "mean", "gap", "no plan",
                    "proven", "seconds"]  # fmt: skip
            sections += [f"## {set_name}", table(head, lines)]
    return sections


if __name__ == "__main__":
    main(hybrid_envs)
