"""Partitions of graph families that an agent has not seen: PPO of five seeds beside simple rules.

    python benchmarks/partition_families.py                       # rules, then PPO
    python benchmarks/partition_families.py --seeds 0 1 --steps 20000

PPO is trained on ``partition-train`` alone, and plays every problem of the three sets once, by its
best actions. An agent that is in ``--agents`` is not trained again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.framework import Case, Row, main, measurement, percent, table
from benchmarks.trained import kept
from parenvs.agents.evaluation.evaluate_set import evaluate_set
from parenvs.agents.evaluation.set_evaluation import SetEvaluation, references_of
from parenvs.core.sets import set_of
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


def rule(seen: dict[str, np.ndarray], mask: np.ndarray) -> int:
    """Partition unless that alone exceeds memory; where both may fit, by the bound of returns."""
    replicate, partition = seen["choices"][:, MAY_FIT]
    if replicate != partition:
        return int(partition > replicate)
    return int(seen["plan"][ADVANTAGE] >= 0)


def played(policy: Any, name: str, seed: int) -> Row:
    """What a policy earns on each problem of a set."""
    evaluation = evaluate_set(policy, name, seed=seed)
    return {"values": dict(zip(evaluation.problems, evaluation.values[0].tolist(), strict=True))}


def rules(seeds: tuple[int, ...]) -> Iterator[tuple[str, int, Any]]:
    """Yield what does not learn, with its name and seed."""
    yield "ones", 0, lambda seen, mask: 1
    yield "rule", 0, rule
    yield "data-parallel", 0, "data-parallel"
    yield "greedy", 0, "greedy"
    for seed in seeds:
        rng = np.random.default_rng(seed)
        yield "random", seed, lambda seen, mask, rng=rng: int(rng.integers(2))


@cache
def trained(seed: int, steps: int, agents: Path) -> tuple[Any, float]:
    from parenvs.agents.learning.config import TrainConfig
    from parenvs.agents.learning.trainer import player, train

    place = agents / f"{steps}-{seed}"
    config = TrainConfig(env_id=ENV, agent="ppo", seed=seed, steps=steps)

    def learnt() -> Any:
        train(config, place, resume=True)
        return player(place)

    made = kept(
        place / "processor_seconds.json",
        learnt,
        lambda path: player(path.parent),
        lambda agent, path: None,  # the training keeps it
    )
    return made


def by_ppo(seed: int, steps: int, agents: Path, name: str) -> Row:
    model, seconds = trained(seed, steps, agents)
    return {"steps": steps, "seconds": seconds, **played(model, name, seed)}


@measurement(
    title="Graph families that an agent has not seen",
    key="method seed set",
    among={"only": ("rules", "ppo")},
)
def partition_families(
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    steps: int = 20_000,
    agents: Path = Path("runs/partition-families"),
    only: tuple[str, ...] = ("rules", "ppo"),
) -> Iterator[Case]:
    for name in PARTITION_SETS:
        for method, seed, policy in rules(seeds) if "rules" in only else ():
            yield _key(method, seed, name), partial(played, policy, name, seed)
    for seed in seeds if "ppo" in only else ():
        for name in PARTITION_SETS:
            yield _key("ppo", seed, name), partial(by_ppo, seed, steps, agents, name)


def _key(method: str, seed: int, name: str) -> Row:
    return {"method": method, "seed": seed, "set": name}


def evaluation_of(
    rows: list[Row], method: str, name: str, family: str | None = None
) -> SetEvaluation | None:
    """All seeds of a method on a set, or a family of it; those of another version do not count."""
    problems = set_of(name).of(family)
    found = [
        row["values"]
        for row in sorted(rows, key=itemgetter("seed"))
        if (row["method"], row["set"]) == (method, name)
        if set(row["values"]) == set(set_of(name).problems)
    ]
    if not found:
        return None
    values = np.array([[one[problem] for problem in problems] for one in found])
    return SetEvaluation(name, problems, values, references_of(name, problems))


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


@partition_families.page
def page(rows: list[Row]) -> list[str]:
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
            found = evaluation_of(rows, method, name)
            if found is not None:
                lines.append([words, len(found.values), *cells(found)])
        sections.append(f"`{name}`: {len(problems)} problems of {', '.join(families)}.")
        head = ["method", "runs", "regret", "95 % interval", "mean", "does not fit", "optimal"]
        sections.append(table([*head, "step time", "most"], lines))
    lines = []
    for name in PARTITION_SETS:
        for family in dict.fromkeys(map(family_of, set_of(name).problems)):
            found = {method: evaluation_of(rows, method, name, family) for method in WORDS}
            shown = [f"{x.regrets.mean():.4f}" if x is not None else "" for x in found.values()]
            lines.append([name, family, *shown])
    sections.append("Mean regret by family:")
    sections.append(table(["set", "family", *WORDS], lines))
    trained = [row for row in rows if row["method"] == "ppo" and "seconds" in row]
    if trained:
        seconds = {row["seed"]: row["seconds"] for row in trained}
        sections.append(
            f"PPO: {len(seconds)} agents of {trained[0]['steps']:,} environment steps, "
            f"{min(seconds.values()):.0f} to {max(seconds.values()):.0f} s of processor time each; "
            "the first of a process also reads the graphs."
        )
    return sections


if __name__ == "__main__":
    main(partition_families)
