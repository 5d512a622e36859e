"""Every planner of every task that takes a time limit, on a large problem: do limits hold?

Limits count processor seconds, as other work on the machine would take its share of wall seconds;
only HiGHS, where it is asked, ends by the wall's. Each planner first plans a small problem, so that
loading what it needs does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from itertools import count
from typing import Any

import numpy as np

from benchmarks.framework import (
    Case,
    Row,
    forked,
    main,
    measurement,
    processor_clock,
    progress,
    spent,
    table,
)
from benchmarks.scaling import chain
from every_plan import DRAWN
from parenvs.agents import planners
from parenvs.core.registry import problem
from parenvs.errors import InfeasibleError, TimeLimitError

SHARE, MORE = 0.1, 0.2
"""A limit holds that is exceeded by no more than this share and these seconds."""
PLANNERS = {
    "pipeline": ("exact", "search"),
    "partition": ("exact",),
    "hybrid": ("exact", "search"),
    "hetero": ("subset-dp",),
    "sharding": ("exact",),
}
"""Task, or kind of its problems that has planners of its own -> those that take a limit."""


LARGE: dict[str, tuple[str, Callable[[], Any]]] = {
    "pipeline": ("2,000 pivots, 16 stages, 1,024 devices", lambda: chain(2_000)),
    "partition": (
        "gpt3-175b on 2x8:a100",
        lambda: problem("gpt3-175b", "2x8:a100", task="partition"),
    ),
    "hybrid": (
        "llama3-70b on 16x8:h100, 1,024 samples",
        lambda: problem("llama3-70b", "16x8:h100", task="hybrid", batch=1024),
    ),
    "hetero": (
        "hetero-64-test/spread-001",
        lambda: problem("hetero-64-test/spread-001", task="hybrid"),
    ),
    "sharding": ("intra-op/outside/mesh/1", lambda: problem("intra-op/outside/mesh/1")),
}
"""The same -> a large problem, in words and made."""


def _small(kind: str) -> Any:
    """A problem that has a plan."""
    if kind == "hetero":
        return problem("hetero-8-test/spread-001", task="hybrid")
    drawn = (DRAWN[kind](number) for number in count())
    return next(small for small, best in drawn if np.isfinite(best))


@cache
def _large(kind: str) -> Any:
    return LARGE[kind][1]()


def asked(kind: str, planner: str, limits: tuple[float, ...]) -> Row:
    """Ask a planner for a plan within each limit."""
    progress(f"{kind} {planner}")
    _large(kind)  # made once, for all copies of this process
    row: Row = {"asked": []}
    for limit in limits:
        row["asked"].append(forked(partial(_within, kind, planner, limit)))
    return row


def _within(kind: str, planner: str, limit: float) -> Row:
    row: Row = {"limit": limit}
    with processor_clock():
        with suppress(InfeasibleError, TimeLimitError):
            planners.plan(_small(kind), agent=planner, time_limit=0.1)
        large = _large(kind)
        with spent(row):
            try:
                answer = planners.plan(large, agent=planner, time_limit=limit)
                row["plan"] = answer.status if answer.report.legal else "illegal plan"
            except TimeLimitError:
                row["plan"] = "no plan in time"
            except InfeasibleError:
                row["plan"] = "no plan"
    return row


def over(case: Row) -> float:
    """Seconds by which a limit is exceeded, beyond what is granted; negative where it holds."""
    return float(case["seconds"] - case["limit"] * (1 + SHARE) - MORE)


@measurement(
    title="Time limits on large problems",
    key="kind planner",
    about={"limits": "processor seconds"},
    among={"kinds": LARGE},
)
def limits(
    limits: tuple[float, ...] = (0.1, 1.0, 5.0), kinds: tuple[str, ...] = tuple(LARGE)
) -> list[Case]:
    return [
        ({"kind": kind, "planner": name}, partial(asked, kind, name, limits))
        for kind in kinds
        for name in PLANNERS[kind]
    ]


@limits.page
def page(rows: list[Row]) -> list[str]:
    cases = [(row, case) for row in rows for case in row["asked"]]
    row, worst = max(cases, key=lambda pair: over(pair[1]))
    late = sum(over(case) > 0 for _, case in cases)
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [(x, case) for x, case in cases if x["kind"] == kind]
        longest = max(case["seconds"] - case["limit"] for _, case in mine)
        lines.append([
            kind, len({x["planner"] for x, _ in mine}), len(mine),
            sum(over(case) > 0 for _, case in mine), f"{longest:.2f}",
            sum(case["plan"].startswith("no plan") for _, case in mine),
        ])  # fmt: skip
    return [
        f"{late} of {len(cases)} limits are exceeded by more than {SHARE:.0%} and {MORE:g} "
        f"processor seconds; most by `{row['planner']}` ({row['kind']}), which took "
        f"{worst['seconds']:.2f} s of {worst['limit']:g} s. One large problem per kind.",
        table(["problem", "planners", "limits", "exceeded", "longest excess, s", "no plan"], lines),
    ]


if __name__ == "__main__":
    main(limits)
