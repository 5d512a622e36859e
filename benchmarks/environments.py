"""Each environment in a row: chance, the best rule of one line, agents that were trained, planners.

    python benchmarks/environments.py

Reads ``rules.jsonl``, ``learners.jsonl``, ``agents.jsonl`` of ``benchmarks/results``; what is not
measured there is left empty. README shows the table, and the page of every environment its row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.framework import RESULTS, main, measurement, table

AGENTS = ("ppo", "group")
"""Agents of ``benchmarks/learners.py`` that have a column; PPO, and PPO by groups of plays."""
Row = dict[str, Any]


def rows(name: str) -> list[Row]:
    """The rows of a measurement."""
    lines = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def mean(chosen: Sequence[Row], places: set[tuple[str, str]]) -> float | None:
    """Mean share over the problems of some families of sets; None if one is missing."""
    found = {(row["set"], row["family"]): row for row in chosen}
    if not places <= set(found):
        return None
    counts = [found[place]["problems"] for place in places]
    return float(np.average([found[place]["share"] for place in places], weights=counts))


def trained(chosen: Sequence[Row], places: set[tuple[str, str]]) -> str:
    """Mean share of an agent's seeds, the least and the most of them, and how many there are."""
    seeds: dict[int, dict[tuple[str, str], list[float]]] = {}
    for row in chosen:
        seeds.setdefault(row["seed"], {})[row["set"], row["family"]] = row["alone"]["1"]
    whole = [of for of in seeds.values() if places <= set(of)]
    return by_seed([float(np.mean([x for place in places for x in of[place]])) for of in whole])


def by_seed(means: Sequence[float]) -> str:
    """The mean of an agent's seeds, the least and the most of them, and how many there are."""
    if not means:
        return ""
    if len(means) == 1:
        return f"{means[0]:.3f} (one seed)"
    return f"{np.mean(means):.3f} ({min(means):.3f} to {max(means):.3f}, {len(means)} seeds)"


def searched(found: Sequence[Row]) -> list[list[str]]:
    """A row for each environment in which agents search on one problem, beside its optimum."""
    shown = []
    for env in dict.fromkeys(row["problem"].split()[0] for row in found):
        mine = [x for x in found if x["agent"] == "ppo" and x["problem"].split()[0] == env]
        count = len({row["problem"] for row in mine})
        runs = Counter(row["seed"] for row in mine)
        mine = [row for row in mine if runs[row["seed"]] == count]  # of seeds that are whole

        def share(name: str, chosen: Sequence[Row]) -> float:
            return float(np.mean([(row.get(name) or 0.0) / row["optimum"] for row in chosen]))

        known = set.intersection(*(set(row["references"]) for row in mine))
        rules = {name: share(name, [{**x, **x["references"]} for x in mine]) for name in known}
        best = max(sorted(rules), key=rules.__getitem__)
        of_seeds = [
            [row for row in mine if row["seed"] == seed]
            for seed in sorted({row["seed"] for row in mine})
        ]
        shown.append(
            [
                f"`{env}`",
                f"{count} problems, each searched",
                f"{share('random_value', mine):.3f}",
                f"{best} {rules[best]:.3f}",
                by_seed([share("value", of) for of in of_seeds]),
                "",
                "exact 1.000",
            ]
        )
    return shown


@measurement(derived=True, title="Environments beside rules of one line")
def environments() -> list[list[str]]:
    ruled, learned = rows("rules"), rows("learners")
    shown = []
    for env in dict.fromkeys(row["env"] for row in ruled):
        mine = [row for row in ruled if row["env"] == env]
        agents = [row for row in learned if row["env"] == env and row["method"] in AGENTS]
        of_agents = {(row["set"], row["family"]) for row in agents}
        places = {(row["set"], row["family"]) for row in mine if row["method"] == "random"}
        places = places & of_agents or places
        methods = dict.fromkeys(row["method"] for row in mine)
        means = {name: mean([r for r in mine if r["method"] == name], places) for name in methods}
        known = {name: value for name, value in means.items() if value is not None}
        planners = {k: v for k, v in known.items() if k.startswith("planner ")}
        others = {name for name in known if name.startswith(("planner ", "PPO, seed "))}
        rules = {k: v for k, v in known.items() if k not in {*others, "random"}}
        best, planner = max(rules, key=rules.__getitem__), max(planners, key=planners.__getitem__)
        by = [trained([r for r in agents if r["method"] == name], places) for name in AGENTS]
        sets = ", ".join(dict.fromkeys(name for name, _ in sorted(places)))
        shown.append(
            [
                f"`{env}`",
                sets,
                f"{known['random']:.3f}",
                f"{best} {rules[best]:.3f}",
                *by,
                f"{planner.removeprefix('planner ')} {planners[planner]:.3f}",
            ]
        )
    return sorted(shown + searched(rows("agents")))


@environments.page
def page(found: list[list[str]]) -> list[str]:
    heads = ["environment", "set", "random", "best rule", "PPO", "group", "planner"]
    return [
        "Best known cost over the plan's cost, on average: 1 is as good as the best plan known. "
        "A rule takes the action whose row is largest or least in one column; agents were trained "
        "for 65,536 steps and play their best actions, with the least and the most of their seeds; "
        "the planner is the best of a few. Where a problem is searched, cells are mean shares of "
        "its optimum, which the planner proves: the best episode of PPO within 200,000 steps on "
        "it, and of as many random episodes; a rule is a heuristic.",
        table(heads, found, 2),
    ]


if __name__ == "__main__":
    main(environments)
