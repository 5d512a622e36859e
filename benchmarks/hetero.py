"""Planners of unequal servers in any order, beside certified bounds: tiers of 8 to 64 servers.

Problems of a set are taken one after the other, each in all tiers, so that a stopped run is a
smaller one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.framework import Case, Row, main, measurement, percent, table
from drawn_hybrids import best_of_orders, drawn_hetero
from parenvs.agents.hybrid.servers import bottleneck
from parenvs.agents.hybrid.servers.heuristics import random_orders, sorted_orders, swap_search
from parenvs.agents.hybrid.servers.sandwich import lower_bound, rounded_down, sandwich
from parenvs.agents.hybrid.servers.solve import Orders, by_speed, subset_search
from parenvs.datasets.hybrid.server_sets import hetero_set
from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.problem import Hybrid

TIERS = (8, 16, 32, 64)
EXACT = 16
"""Servers up to which the subset program runs."""
STATES = {8: 20_000, 16: 20_000, 32: 20_000, 64: 8_000}
"""Servers -> sets of servers by type in the sandwich."""
LIMIT = 300.0
"""Wall seconds of exact searches."""
PURE = ((20, 8), (40, 16), (80, 32), (128, 64))
"""Layers and servers of the pure bottleneck problem."""
TYPES = {8: 8, 16: 8, 32: 8, 64: 4}
"""Servers -> types of its sandwich."""


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return a result and its processor seconds."""
    begin = time.process_time()
    return run(), time.process_time() - begin


def whole(servers: int, number: int) -> Row:
    """Plan a problem of a test set by every planner."""
    problem = hetero_set(f"hetero-{servers}-test")[number]
    row: Row = {"servers": servers, "instance": problem.instance}
    orders = Orders(problem)
    row["mean"] = orders.settings[0].bound
    for name, run in (
        ("sorted", lambda: sorted_orders(problem)),
        ("random 100", lambda: random_orders(problem, np.random.default_rng(0), None, 100)),
        ("random 800", lambda: random_orders(problem, np.random.default_rng(0), None, 800)),
        ("swap 100", lambda: swap_search(problem, np.random.default_rng(0), None, 100)),
        ("swap 800", lambda: swap_search(problem, np.random.default_rng(0), None, 800)),
    ):
        answer, seconds = timed(run)
        assert answer.report.legal, answer.report.reasons
        row[name], row[f"{name} seconds"] = answer.cost, seconds
        orders.keep(answer.plan, _setting_of(orders, answer.plan), answer.cost)
    down, seconds = timed(lambda: _rounded_down(problem))
    row["rounded down"], row["rounded down seconds"] = down, seconds
    (bound, _), seconds = timed(lambda: lower_bound(orders, states=STATES[servers]))
    row["bound"], row["bound seconds"] = bound, seconds
    if servers <= EXACT:
        answer, seconds = timed(lambda: subset_search(problem, time_limit=LIMIT, orders=orders))
        row["exact"], row["exact seconds"] = answer.cost, seconds
        row["proven"] = answer.proven
        row["bound"] = max(row["bound"], answer.bound)
    row["best"] = orders.length
    return row


def _rounded_down(problem: Hybrid) -> float:
    """Seconds of the sandwich's own plan, or of the sorted orders where that is no better."""
    orders = Orders(problem)
    orders.start([by_speed(problem), by_speed(problem, False)])
    rounded_down(orders, states=STATES[problem.cluster.servers])
    return orders.length


def _setting_of(orders: Orders, plan: Any) -> Any:
    """The setting of a plan among those of a problem."""
    stage = plan.stages[0]
    samples = plan.micro_batch * (stage.devices // stage.tp)
    return next(
        bounded.setting
        for bounded in orders.settings
        if bounded.setting.samples == samples
        and bounded.setting.sequence_parallel == plan.sequence_parallel
    )


def pure(layers: int, servers: int, seed: int) -> Row:
    """The bottleneck alone: weights of dense and expert blocks by turns, speeds U(0.6, 1)."""
    rng = np.random.default_rng([servers, seed])
    weights = np.where(np.arange(layers) % 2, rng.uniform(1.2, 2.0), 1.0)
    weights = weights * rng.uniform(0.9, 1.1, layers)
    speeds = rng.uniform(0.6, 1.0, servers)
    bound = bottleneck.mean_bound(weights, speeds)
    found: Row = {"servers": servers, "layers": layers, "seed": seed, "mean": bound}
    around, found["sandwich seconds"] = timed(
        lambda: bottleneck.rounded_bottleneck(weights, speeds, TYPES[servers])
    )
    found["lower"], found["upper"] = around
    drawn = [bottleneck.in_order(weights, rng.permutation(speeds)) for _ in range(60)]
    found["random"] = float(np.mean(drawn))
    sorted_ones = np.sort(speeds), np.sort(speeds)[::-1]
    found["sorted"] = min(bottleneck.in_order(weights, order) for order in sorted_ones)
    current = min(sorted_ones, key=lambda order: bottleneck.in_order(weights, order)).copy()
    best = found["sorted"]
    for count in range(2, 800):
        pair = rng.choice(servers, 2, replace=False)
        other = current.copy()
        other[pair] = other[pair[::-1]]
        length = bottleneck.in_order(weights, other)
        if length <= best:
            current, best = other, length
        if count == 99:
            found["swap 100"] = best
    found["swap 800"] = best
    if servers <= EXACT:
        found["exact"], found["exact seconds"] = timed(
            lambda: bottleneck.subset_bottleneck(weights, speeds)
        )
    return found


def integer(seed: int) -> Row:
    """The integer program beside the subset program, on 3 to 10 servers."""
    rng = np.random.default_rng(seed)
    servers = 3 + seed % 8
    weights, speeds = rng.uniform(0.5, 2.0, servers + 2), rng.uniform(0.6, 1.0, servers)
    best, own = timed(lambda: bottleneck.subset_bottleneck(weights, speeds))
    found, seconds = timed(lambda: bottleneck.milp_bottleneck(weights, speeds, LIMIT))
    return {"servers": servers, "subset": best, "milp": found, "seconds": own,
            "milp seconds": seconds}  # fmt: skip


def brute(seed: int) -> Row:
    """The subset program beside every plan of a small drawn problem."""
    problem = drawn_hetero(np.random.default_rng(seed))
    best = best_of_orders(problem)
    try:
        answer = subset_search(problem)
        around = sandwich(problem, most_types=2)
    except InfeasibleError:
        return {"seed": seed, "equal": best == np.inf, "inside": True, "feasible": False}
    return {
        "seed": seed,
        "equal": bool(abs(answer.cost - best) <= 1e-9 * best) and answer.proven,
        "inside": bool(around.bound <= best * (1 + 1e-9) <= around.cost * (1 + 2e-9)),
        "feasible": True,
    }


METHODS = ("sorted", "random 100", "random 800", "swap 100", "swap 800", "rounded down", "exact")


def tier_lines(rows: list[Row], spread: bool) -> list[list[Any]]:
    """Mean excess of every method over the certified bound, by tier."""
    lines = []
    for servers in TIERS:
        own = [r for r in rows if r["servers"] == servers and ("spread" in r["instance"]) == spread]
        if not own:
            continue
        line: list[Any] = [servers, len(own)]
        line.append(percent(float(np.mean([r["bound"] / r["mean"] - 1 for r in own]))))
        for name in METHODS:
            known = [r[name] / r["bound"] - 1 for r in own if name in r]
            line.append(percent(float(np.mean(known))) if known else "")
        line.append(percent(float(np.mean([r["best"] / r["bound"] - 1 for r in own]))))
        line.append(percent(max(r["best"] / r["bound"] - 1 for r in own)))
        lines.append(line)
    return lines


KINDS: dict[str, Callable[..., Row]] = {
    "pure": pure, "whole": whole, "integer": integer, "brute": brute
}  # fmt: skip


def run(kind: str, job: tuple[int, ...]) -> Row:
    return {"row": KINDS[kind](*job)}


@measurement(
    title="Servers of different speed: planners beside bounds",
    key=lambda row: (row["kind"], *row["job"]),
    about={
        "problems": "of each test set",
        "seeds": "pure bottleneck problems",
        "programs": "integer programs",
        "brute": "problems with every plan judged",
    },
)
def hetero(
    problems: int = 8,
    tiers: tuple[int, ...] = TIERS,
    seeds: int = 3,
    programs: int = 20,
    brute: int = 24,
) -> Iterator[Case]:
    jobs: dict[str, list[tuple[int, ...]]] = {
        "pure": [(*size, seed) for seed in range(seeds) for size in PURE],
        "whole": [(servers, number) for number in range(problems) for servers in tiers],
        "integer": [(seed,) for seed in range(programs)],
        "brute": [(seed,) for seed in range(brute)],
    }
    for kind, own in jobs.items():
        for job in own:
            yield {"kind": kind, "job": list(job)}, partial(run, kind, job)


@hetero.page
def page(kept: list[Row], seeds: int) -> list[str]:
    by_kind: dict[str, list[Row]] = {
        kind: [row["row"] for row in kept if row["kind"] == kind] for kind in KINDS
    }
    rows = sorted(by_kind["whole"], key=lambda row: row["servers"])
    chains = by_kind["pure"]
    head = ["servers", "problems", "bound over work / speed", *METHODS, "best known", "worst"]
    seconds = []
    for servers in sorted({row["servers"] for row in rows}):
        own = [r for r in rows if r["servers"] == servers]
        names = ("sorted", "random 800", "swap 800", "rounded down", "bound", "exact")
        cells = [[r[f"{name} seconds"] for r in own if f"{name} seconds" in r] for name in names]
        seconds.append([servers, *(f"{np.mean(cell):.1f}" if cell else "" for cell in cells)])
    ratios = []
    for layers, servers in PURE:
        own = [r for r in chains if r["servers"] == servers]
        line: list[Any] = [layers, servers]
        for name in ("lower", "exact", "upper", "swap 100", "swap 800", "sorted", "random"):
            known = [r[name] / r["mean"] for r in own if name in r]
            line.append(f"{np.mean(known):.3f}" if known else "")
        ratios.append([*line, f"{np.mean([r['sandwich seconds'] for r in own]):.1f}"])
    integers, small = by_kind["integer"], by_kind["brute"]
    solved = [r for r in integers if r["milp"] == r["milp"] and r["milp"] is not None]
    equal = sum(abs(r["milp"] - r["subset"]) <= 1e-6 * r["subset"] for r in solved)
    proven = [r for r in rows if r.get("proven")]
    return [
        "Seconds of a step over the certified bound, mean over the test problems. `bound over work "
        "/ speed`: the certified bound over M work / sum of s_j q^j (docs/hetero.md, bound 1). "
        "`random`, `swap`: best plan after so many judged plans. `best known`: of all methods; "
        "`worst`: its largest excess. `exact` ran with up to "
        f"{EXACT} servers, and proved {len(proven)} of "
        f"{sum('exact' in r for r in rows)}.",
        "Every server has a speed of its own (U(0.6, 1)):",
        table(head, tier_lines(rows, True)),
        "Generations and stragglers:",
        table(head, tier_lines(rows, False)),
        "Processor seconds, mean:",
        table(["servers", "sorted", "random 800", "swap 800", "rounded down", "bound", "exact"],
              seconds),
        "The bottleneck alone, over work / speed (mean of "
        f"{seeds} drawn chains; dense and expert blocks by turns, weights vary by 10 %):",
        table(["layers", "servers", "lower", "exact", "feasible", "swap 100", "swap 800", "sorted",
               "random, mean of 60", "seconds of the sandwich"], ratios),
        f"Integer program (HiGHS) beside the subset program, 3 to 10 servers: {equal} of "
        f"{len(integers)} equal, {len(integers) - len(solved)} not solved in "
        f"{LIMIT:.0f} s; seconds {sum(r['milp seconds'] for r in integers):.1f} against "
        f"{sum(r['seconds'] for r in integers):.1f}.",
        f"Every order, cut and split of {len(small)} small problems of 2 to 4 servers: "
        f"{sum(r['equal'] for r in small)} equal the subset program, "
        f"{sum(r['inside'] for r in small)} lie inside the sandwich of 2 types, "
        f"{sum(not r['feasible'] for r in small)} have no plan that fits.",
    ]  # fmt: skip


if __name__ == "__main__":
    main(hetero)
