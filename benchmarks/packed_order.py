"""The order of micro-batches: rules, searches, the exact method and PPO on the test set.

    python benchmarks/packed_order.py                       # heuristics, then exact, then PPO
    python benchmarks/packed_order.py --only heuristics     # of these parts
    python benchmarks/packed_order.py --tiers p8-m16 --only ppo --seeds 0 1 2 --steps 400000

Rows go to ``packed_order.jsonl`` as they are known; what is there already is not done again. Gaps
are to the bound of ``order-references.json``, a certified lower bound, and to the best known order.
PPO is trained on pools of the generator, never on the test set.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import parser, percent, progress, publish, table
from parenvs.agents.order import exact_order
from parenvs.agents.order.heuristics import RULES, by_rule, local_search, neh, random_order
from parenvs.agents.order.references import order_references
from parenvs.datasets.order.drawing import TIERS
from parenvs.tasks.order.game import MicroBatchOrderVectorEnv
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
Row = dict[str, Any]


class Rows:
    """Rows of a file, by tier, problem, method and seed; each is written when it is known."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self.rows[self.key(row)] = row

    @staticmethod
    def key(row: Row) -> tuple[Any, ...]:
        """What a row is of."""
        return row["problem"], row["method"], row.get("seed", 0)

    def add(self, row: Row, make: Callable[[], Row]) -> None:
        """Compute a row unless it is there."""
        if self.key(row) in self.rows:
            return
        self.rows[self.key(row)] = full = {**row, **make()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(full) + "\n")

    def of(self, tier: str, method: str) -> list[Row]:
        """Rows of a method on a tier."""
        return [
            row for row in self.rows.values() if row["tier"] == tier and row["method"] == method
        ]


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


def heuristics(rows: Rows, tier: str) -> None:
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
            rows.add({"tier": tier, "problem": name, "method": method}, partial(timed, plan))
    progress(f"{tier}: heuristics")


def exact(rows: Rows, tier: str) -> None:
    """Branch and bound within a limit of processor time."""
    for number, (name, problem) in enumerate(problems(tier)):
        if number < EXACT:
            plan = partial(timed, partial(exact_order, problem, LIMIT, clock=time.process_time))
            rows.add({"tier": tier, "problem": name, "method": "exact"}, plan)
    progress(f"{tier}: exact")


def ppo(rows: Rows, tier: str, seeds: list[int], steps: int, agents: Path) -> None:
    """Train an agent for each seed, or load it from a folder, and sample orders from it."""
    from sb3_contrib import MaskablePPO

    from parenvs.agents.learning.order.train import sample, sample_and_search, train

    named = list(problems(tier))
    for seed in seeds:
        done = [rows.key({"problem": n, "method": "ppo-swap-600", "seed": seed}) for n, _ in named]
        if set(done) <= set(rows.rows):
            continue
        place = agents / f"{tier}-{steps}-{seed}.zip"
        cost = place.with_suffix(".json")
        if cost.exists():
            agent, spent = MaskablePPO.load(place, device="cpu"), json.loads(cost.read_text())
        else:
            begin = time.process_time()
            agent = train(tier, seed, steps)
            spent = time.process_time() - begin
            agent.save(place)
            cost.write_text(json.dumps(spent))
            progress(f"{tier}: ppo, seed {seed}, {spent:.0f} s of processor time")
        ways = [
            ("ppo-1", sample, 1),
            ("ppo-60", sample, 60),
            ("ppo-swap-60", sample_and_search, 60),
        ]
        ways += [("ppo-600", sample, 600), ("ppo-swap-600", sample_and_search, 600)]
        for method, way, judged in ways:
            for name, problem in named:
                row = {"tier": tier, "problem": name, "method": method, "seed": seed}
                rng = np.random.default_rng(
                    [seed, judged, *([1] if way is sample_and_search else [])]
                )
                plan = partial(timed, partial(way, agent, problem, judged, rng))
                rows.add({**row, "steps": steps, "trained": spent}, plan)
        progress(f"{tier}: ppo, seed {seed} judged")


def transfer(rows: Rows, tier: str, seeds: list[int], steps: int, agents: Path) -> None:
    """Sample orders of the other tiers from the agents of one."""
    from sb3_contrib import MaskablePPO

    from parenvs.agents.learning.order.train import sample

    for seed in seeds:
        place = agents / f"{TAUGHT}-{steps}-{seed}.zip"
        if tier == TAUGHT or not place.exists():
            continue
        agent = MaskablePPO.load(place, device="cpu")
        for name, problem in problems(tier):
            for judged in (1, BUDGETS[0]):
                row = {"tier": tier, "problem": name, "method": f"taught-{judged}", "seed": seed}
                rng = np.random.default_rng([seed, judged])
                rows.add(row, partial(timed, partial(sample, agent, problem, judged, rng)))
        progress(f"{tier}: orders of the agent of {TAUGHT}, seed {seed}")


def speed(rows: Rows, tier: str) -> None:
    """Steps a second of 1,024 environments on one core, problems from a pool of 64."""
    for copy in (True, False):
        row = {"tier": tier, "problem": f"speed-{tier}", "method": "copied" if copy else "views"}
        rows.add(row, partial(played, tier, copy))
    progress(f"{tier}: speed")


def played(tier: str, copy: bool) -> Row:
    """Play episodes of 1,024 environments, and return the best of five rounds."""
    env = MicroBatchOrderVectorEnv(1024, tier=tier, pool=64, copy=copy)
    rng, length = np.random.default_rng(0), TIERS[tier].micro_batches
    best = 0.0
    _, infos = env.reset(seed=0)
    for _ in range(5):
        spent = 0.0
        for _ in range(2 * (length + 1)):
            ranks = rng.random(infos["action_mask"].shape) * infos["action_mask"]
            actions = ranks.argmax(axis=1)
            begin = time.process_time()
            *_, infos = env.step(actions)
            spent += time.process_time() - begin
        best = max(best, 1024 * 2 * (length + 1) / spent)
    return {"steps_per_second": best}


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


def gaps(rows: list[Row], key: str) -> np.ndarray:
    """Lengths of rows over the reference's bound or best length, less 1."""
    known = order_references()
    best = best_lengths(rows) if key == "length" else {}
    return np.array(
        [row["length"] / best.get(row["problem"], known[row["problem"]][key]) - 1 for row in rows]
    )


_ALL: list[Row] = []


def best_lengths(rows: list[Row]) -> dict[str, float]:
    """The least length of each problem that the reference or any method here has found."""
    best = {row["problem"]: order_references()[row["problem"]]["length"] for row in rows}
    for row in _ALL:
        if row["problem"] in best and "length" in row:
            best[row["problem"]] = min(best[row["problem"]], row["length"])
    return best


METHODS = (
    "random-1", "as-drawn", "random-60", "random-600", "ascending", "descending", "pyramid", "neh",
    "swap-60", "swap-600", "ppo-1", "ppo-60", "ppo-600", "ppo-swap-60", "ppo-swap-600",
    "taught-1", "taught-60",
)  # fmt: skip


def report(rows: Rows, tiers: list[str]) -> list[str]:
    """The tables."""
    _ALL[:] = [row for row in rows.rows.values() if "length" in row]
    sections = []
    for key, words in (("bound", "the certified bound"), ("length", "the best known order")):
        lines = []
        for method in METHODS:
            cells = []
            for tier in tiers:
                names = [name for name in ordering_steps(SET) if name.startswith(f"{tier}-")]
                found = rows.of(tier, method)
                if not found:
                    cells.append("")
                    continue
                share = gaps(found, key)
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
        found = rows.of(tier, "exact")
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
        for row in rows.rows.values()
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
        if (both := [*rows.of(tier, "copied"), *rows.of(tier, "views")])
    ]
    if lines:
        sections.append("Steps a second (processor time) of 1,024 environments, a pool of 64:")
        sections.append(table(["tier", "observations copied", "as views (`copy=False`)"], lines))
    return sections


def main() -> None:
    """Compute what is missing, and write the tables."""
    options = parser(__doc__)
    options.add_argument("--tiers", nargs="+", default=list(TIERS), choices=list(TIERS))
    options.add_argument("--only", nargs="*", default=list(PARTS), choices=PARTS)
    options.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    options.add_argument("--steps", type=int, default=400_000)
    options.add_argument("--agents", type=Path, default=Path("runs/packed-order"))
    args = options.parse_args()
    rows = Rows(args.out / "packed_order.jsonl")
    for part in args.only:
        for tier in args.tiers:
            if part == "heuristics":
                heuristics(rows, tier)
            elif part == "exact":
                exact(rows, tier)
            elif part == "ppo":
                ppo(rows, tier, args.seeds, args.steps, args.agents)
            elif part == "transfer":
                transfer(rows, tier, args.seeds, args.steps, args.agents)
            else:
                speed(rows, tier)
    publish("packed_order", report(rows, list(TIERS)), None, args.out)


if __name__ == "__main__":
    main()
