"""The order of micro-batches: rules, searches, the exact method and PPO on the test set.

    python benchmarks/packed_order.py                       # heuristics, then exact, then PPO
    python benchmarks/packed_order.py --only heuristics     # of these parts
    python benchmarks/packed_order.py --tiers p8-m16 --only ppo --seeds 0 1 2 --steps 400000

Gaps are to the bound of ``order-references.json``, a certified lower bound, and to the best known
order. PPO is trained on pools of the generator, never on the test set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.framework import Case, Row, main, measurement, percent, table
from benchmarks.trained import kept
from parenvs.agents.order import exact_order
from parenvs.agents.order.heuristics import RULES, by_rule, local_search, neh, random_order
from parenvs.agents.order.references import order_references
from parenvs.bench.play import batch_play, make, rate
from parenvs.datasets.order.drawing import TIERS
from parenvs.tasks.order.load import load_ordering, ordering_steps
from parenvs.tasks.order.problem import Order

PARTS = ("heuristics", "exact", "ppo", "transfer", "speed")
TAUGHT = "p8-m32"
"""Tier whose agents order the micro-batches of the others, too."""
SET = "order-test"
BUDGETS = (60, 600)
"""Judged orders of searches."""
EXACT = 2
"""Problems of each tier that the exact method gets."""
LIMIT = 6.0
"""Its processor seconds for each."""
SAMPLES = 1000
"""Bootstrap samples of the interval."""


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


def _key(tier: str, problem: str, method: str, seed: int | None = None) -> Row:
    key = {"tier": tier, "problem": problem, "method": method}
    return key if seed is None else {**key, "seed": seed}


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
            methods[f"swap-{budget}"] = partial(local_search, problem, budget, rng)
        for method, plan in methods.items():
            yield _key(tier, name, method), partial(timed, plan)


def exact(tier: str) -> Iterator[Case]:
    """Branch and bound within a limit of processor time."""
    for name, problem in list(problems(tier))[:EXACT]:
        plan = partial(exact_order, problem, LIMIT, clock=time.process_time)
        yield _key(tier, name, "exact"), partial(timed, plan)


@cache
def trained(tier: str, seed: int, steps: int, agents: Path) -> tuple[Any, float]:
    from sb3_contrib import MaskablePPO

    from parenvs.agents.learning.order.train import train

    load = partial(MaskablePPO.load, device="cpu")
    return kept(agents / f"{tier}-{steps}-{seed}.zip", partial(train, tier, seed, steps), load)


def ppo(tier: str, seeds: tuple[int, ...], steps: int, agents: Path) -> Iterator[Case]:
    """Train an agent for each seed, and sample orders from it."""
    ways = {"ppo-1": 1, "ppo-60": 60, "ppo-swap-60": 60, "ppo-600": 600, "ppo-swap-600": 600}
    for seed in seeds:
        for method, judged in ways.items():
            for name, problem in problems(tier):
                given = (tier, seed, steps, agents)
                yield (
                    _key(tier, name, method, seed),
                    partial(sampled, given, problem, judged, "swap" in method),
                )


def sampled(given: Any, problem: Order, judged: int, searched: bool) -> Row:
    from parenvs.agents.learning.order.train import sample, sample_and_search

    agent, seconds = trained(*given)
    rng = np.random.default_rng([given[1], judged, *([1] if searched else [])])
    way = sample_and_search if searched else sample
    found = timed(partial(way, agent, problem, judged, rng))
    return {**found, "steps": given[2], "trained": seconds}


def transfer(tier: str, seeds: tuple[int, ...], steps: int, agents: Path) -> Iterator[Case]:
    """Sample orders of the other tiers from the agents of one."""
    for seed in seeds:
        given = (TAUGHT, seed, steps, agents)
        if tier != TAUGHT and (agents / f"{TAUGHT}-{steps}-{seed}.zip").exists():
            for name, problem in problems(tier):
                for judged in (1, BUDGETS[0]):
                    key = _key(tier, name, f"taught-{judged}", seed)
                    yield key, partial(sampled, given, problem, judged, False)


def speed(tier: str) -> Iterator[Case]:
    """Steps a second of 1,024 environments on one core, problems from a pool of 64."""
    for copy in (True, False):
        method = "copied" if copy else "views"
        yield _key(tier, f"speed-{tier}", method), partial(played, tier, copy)


def played(tier: str, copy: bool) -> Row:
    """The best of five rounds."""
    kwargs = {"tier": tier, "pool": 64, "copy": copy}
    play, steps = batch_play(make(("MicroBatchOrder-v0", kwargs), 1024))
    return {"steps_per_second": max(rate(play, steps, 0.0) for _ in range(5))}


def interquartile_mean(values: np.ndarray) -> float:
    """Mean of the middle half of values, those at its ends by their share."""
    ordered = np.sort(np.asarray(values, dtype=float).ravel())
    count = len(ordered)
    low, high = count / 4, 3 * count / 4
    at = np.arange(count)
    weight = np.clip(np.minimum(at + 1, high) - np.maximum(at, low), 0, 1)
    return float((ordered * weight).sum() / weight.sum())


def interval(values: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the interquartile mean over seeds."""
    rng = np.random.default_rng(0)
    drawn = rng.choice(values, (SAMPLES, len(values)))
    means = [interquartile_mean(row) for row in drawn]
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


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
    "swap-60", "swap-600", "ppo-1", "ppo-60", "ppo-600", "ppo-swap-60", "ppo-swap-600",
    "taught-1", "taught-60",
)  # fmt: skip


@measurement(
    key=lambda row: (row["problem"], row["method"], row.get("seed", 0)),
    among={"tiers": TIERS, "only": PARTS},
    about={"steps": "environment steps of a training", "agents": "folder of the agents"},
)
def packed_order(
    tiers: tuple[str, ...] = tuple(TIERS),
    only: tuple[str, ...] = PARTS,
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    steps: int = 400_000,
    agents: Path = Path("runs/packed-order"),
) -> Iterator[Case]:
    parts: dict[str, Callable[[str], Iterator[Case]]] = {
        "heuristics": heuristics,
        "exact": exact,
        "ppo": partial(ppo, seeds=seeds, steps=steps, agents=agents),
        "transfer": partial(transfer, seeds=seeds, steps=steps, agents=agents),
        "speed": speed,
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
                names = [name for name in ordering_steps(SET) if name.startswith(f"{tier}-")]
                found = of(tier, method)
                if not found:
                    cells.append("")
                    continue
                share = gaps(found, key, best)
                if not method.startswith(("ppo", "taught")):
                    cells.append(percent(float(share.mean())))
                    continue
                seeds = np.array([row["seed"] for row in found])
                whole = [k for k in np.unique(seeds) if (seeds == k).sum() == len(names)]
                means = np.array([share[seeds == seed].mean() for seed in whole])
                if not whole:
                    cells.append("")
                    continue
                if len(means) == 1:
                    cells.append(f"{percent(float(means[0]))} (1 seed)")
                    continue
                low, high = interval(means)
                cells.append(
                    f"{percent(interquartile_mean(means))} ({percent(low)} to {percent(high)})"
                )
            lines.append([method, *cells])
        sections.append(f"Mean gap to {words}, over the 20 problems of each tier of `{SET}`:")
        sections.append(table(["method", *tiers], lines))
    sections.append(
        "`NAME-n` judges n orders. `swap` searches from `pyramid` by swaps and insertions; "
        "`ppo-1` is the greedy order, `ppo-n` the best of it and n - 1 drawn ones; `ppo-swap-n` "
        "draws n / 10 and searches from the best of them as `swap` does; `taught-n` is `ppo-n` of "
        f"the agents that were trained on {TAUGHT} only. Agents: interquartile mean over seeds of "
        "the mean over problems, with a 95 % bootstrap interval over seeds."
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
    trained = {
        (row["tier"], row["seed"]): (row["steps"], row["trained"])
        for row in rows
        if row["method"] == "ppo-1"
    }
    for tier in tiers:
        of_tier = [value for (name, _), value in trained.items() if name == tier]
        if of_tier:
            count = f"{len(of_tier)} agent{'s' if len(of_tier) > 1 else ''}"
            sections.append(
                f"{tier}: {count} of {of_tier[0][0]:,} environment steps, "
                f"{np.mean([x[1] for x in of_tier]):.0f} s of processor time each."
            )
    lines = [
        [tier, *(f"{row['steps_per_second']:,.0f}" for row in both)]
        for tier in tiers
        if (both := [*of(tier, "copied"), *of(tier, "views")])
    ]
    if lines:
        sections.append("Steps a second (processor time) of 1,024 environments, a pool of 64:")
        sections.append(table(["tier", "observations copied", "as views (`copy=False`)"], lines))
    return sections


if __name__ == "__main__":
    main(packed_order)
