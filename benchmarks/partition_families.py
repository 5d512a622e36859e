"""Partitions of graph families that an agent has not seen: PPO of five seeds beside simple rules.

    python benchmarks/partition_families.py                       # rules, then PPO
    python benchmarks/partition_families.py --seeds 0 1 --steps 20000

PPO is trained on ``partition-train`` alone, and plays every problem of the three sets once, by its
best actions. Rows go to ``partition_families.jsonl`` as they are known; what is there already is
not done again, and an agent that is in ``--agents`` is not trained again.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import parser, percent, progress, publish, table
from parenvs.agents.evaluation.evaluate_set import evaluate_set
from parenvs.agents.evaluation.set_evaluation import SetEvaluation, references_of
from parenvs.core.sets import set_of
from parenvs.files import write_text
from parenvs.tasks.partition.episode import CHOICE, PLAN
from parenvs.tasks.partition.sets import PARTITION_SETS, family_of

ENV = "PartitionPlan-v0"
MAY_FIT, ADVANTAGE = CHOICE.index("may_fit"), PLAN.index("advantage")
WORDS = {
    "ones": "constant action 1",
    "data-parallel": "data parallelism",
    "greedy": "greedy by seconds (GWMIN), memory ignored",
    "random": "random actions",
    "rule": "the larger bound of the return that may fit",
    "ppo": "PPO, trained on `partition-train`",
}
"""Method -> its name in the tables, in their order."""
Row = dict[str, Any]


def rule(seen: dict[str, np.ndarray], mask: np.ndarray) -> int:
    """Partition unless that alone exceeds memory; where both may fit, by the bound of returns."""
    replicate, partition = seen["choices"][:, MAY_FIT]
    if replicate != partition:
        return int(partition > replicate)
    return int(seen["plan"][ADVANTAGE] >= 0)


class Rows:
    """Rows of a file, by method, seed and set; those of another version of a set do not count."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            row = json.loads(line)
            if set(row["values"]) == set(set_of(row["set"]).problems):
                self.rows[row["method"], row["seed"], row["set"]] = row

    def add(self, method: str, seed: int, name: str, policy: Any, **more: Any) -> None:
        """Play a set by a policy, unless that is known."""
        if (method, seed, name) in self.rows:
            return
        evaluation = evaluate_set(policy, name, seed=seed)
        values = dict(zip(evaluation.problems, evaluation.values[0].tolist(), strict=True))
        row = {"method": method, "seed": seed, "set": name, **more, "values": values}
        self.rows[method, seed, name] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        progress(f"{method}, seed {seed}, {name}: regret {evaluation.regret:.4f}")

    def evaluation(self, method: str, name: str, family: str | None = None) -> SetEvaluation | None:
        """All seeds of a method on a set, or a family of it."""
        problems = set_of(name).of(family)
        found = [row for key, row in sorted(self.rows.items()) if key[::2] == (method, name)]
        if not found:
            return None
        values = np.array([[row["values"][problem] for problem in problems] for row in found])
        return SetEvaluation(name, problems, values, references_of(name, problems))


def rules(rows: Rows, seeds: list[int]) -> None:
    """Play all sets by what does not learn."""
    for name in PARTITION_SETS:
        rows.add("ones", 0, name, lambda seen, mask: 1)
        rows.add("rule", 0, name, rule)
        for planner in ("data-parallel", "greedy"):
            rows.add(planner, 0, name, planner)
        for seed in seeds:
            rng = np.random.default_rng(seed)
            rows.add("random", seed, name, lambda seen, mask, rng=rng: int(rng.integers(2)))


def ppo(rows: Rows, seeds: list[int], steps: int, agents: Path) -> None:
    """Train an agent for each seed, or load it, and play all sets."""
    from parenvs.agents.learning.train.run import Config, load_model, train

    for seed in seeds:
        if all(("ppo", seed, name) in rows.rows for name in PARTITION_SETS):
            continue
        place = agents / f"{steps}-{seed}"
        cost = place / "processor_seconds.json"
        if cost.exists():
            model = load_model(place)
        else:
            begin = time.process_time()
            config = Config(ENV, {}, agent="ppo", seed=seed, steps=steps)
            _, model = train(config, place, resume=True)
            write_text(cost, json.dumps(time.process_time() - begin))
        spent = json.loads(cost.read_text(encoding="utf-8"))
        for name in PARTITION_SETS:
            rows.add("ppo", seed, name, model, steps=steps, seconds=spent)


def cells(evaluation: SetEvaluation) -> list[str]:
    """Regret with its interval, shares, and step time over the optimum's where a plan fits."""
    low, high = evaluation.interval
    values, best = evaluation.values, evaluation.optima
    fits = values != -1.0  # a slow plan may return less
    ratios = ((1.0 - values) / (1.0 - best))[fits]
    return [
        f"{evaluation.regret:.4f}",
        f"{low:.4f} to {high:.4f}",
        f"{evaluation.regrets.mean():.4f}",
        percent(float((~fits).mean()), 1),
        percent(evaluation.optimal, 1),
        f"{np.median(ratios):.3f}" if ratios.size else "",
        f"{ratios.max():.2f}" if ratios.size else "",
    ]


def report(rows: Rows) -> list[str]:
    """The tables."""
    sections = [
        "Regret to the proven optimum: interquartile mean over runs and problems with its 95 % "
        "interval (over seeds for PPO and random actions, over problems for the others, "
        "stratified), and mean. A plan that exceeds the memory of a device has regret 1. Step "
        "time: over the optimum's, median and most of the plans that fit."
    ]
    for name in PARTITION_SETS:
        problems = set_of(name).problems
        families = list(dict.fromkeys(map(family_of, problems)))
        lines = []
        for method, words in WORDS.items():
            found = rows.evaluation(method, name)
            if found is not None:
                lines.append([words, len(found.values), *cells(found)])
        sections.append(f"`{name}`: {len(problems)} problems of {', '.join(families)}.")
        head = ["method", "runs", "regret", "95 % interval", "mean", "does not fit", "optimal"]
        sections.append(table([*head, "step time", "most"], lines))
    lines = []
    for name in PARTITION_SETS:
        for family in dict.fromkeys(map(family_of, set_of(name).problems)):
            found = {method: rows.evaluation(method, name, family) for method in WORDS}
            shown = [f"{x.regrets.mean():.4f}" if x is not None else "" for x in found.values()]
            lines.append([name, family, *shown])
    sections.append("Mean regret by family:")
    sections.append(table(["set", "family", *WORDS], lines))
    trained = [row for key, row in rows.rows.items() if key[0] == "ppo" and "seconds" in row]
    if trained:
        seconds = {row["seed"]: row["seconds"] for row in trained}
        sections.append(
            f"PPO: {len(seconds)} agents of {trained[0]['steps']:,} environment steps, "
            f"{min(seconds.values()):.0f} to {max(seconds.values()):.0f} s of processor time each; "
            "the first of a process also reads the graphs."
        )
    return sections


def main() -> None:
    """Compute what is missing, and write the tables."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    options.add_argument("--steps", type=int, default=20_000)
    options.add_argument("--agents", type=Path, default=Path("runs/partition-families"))
    options.add_argument("--only", nargs="*", default=["rules", "ppo"], choices=["rules", "ppo"])
    args = options.parse_args()
    rows = Rows(args.out / "partition_families.jsonl")
    if "rules" in args.only:
        rules(rows, args.seeds)
    if "ppo" in args.only:
        ppo(rows, args.seeds, args.steps, args.agents)
    publish("partition_families", report(rows), None, args.out)


if __name__ == "__main__":
    main()
