"""Each environment in a row: chance, the best rule of one line, agents that were trained, planners.

    python benchmarks/environments.py

Reads ``rules.jsonl`` and ``learners.jsonl`` of ``benchmarks/results``; what is not measured there
is left empty. README shows the table, and the page of every environment its row.
"""

from __future__ import annotations

import json
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
    if not whole:
        return ""
    means = [float(np.mean([x for place in places for x in of[place]])) for of in whole]
    if len(means) == 1:
        return f"{means[0]:.3f} (one seed)"
    return f"{np.mean(means):.3f} ({min(means):.3f} to {max(means):.3f}, {len(means)} seeds)"


@measurement(derived=True, title="Environments beside rules of one line")
def environments() -> list[list[str]]:
    ruled, learned = rows("rules"), rows("learners")
    shown = []
    for env in dict.fromkeys(row["env"] for row in ruled):
        mine = [row for row in ruled if row["env"] == env]
        agents = [row for row in learned if row["env"] == env]
        of_agents = {(row["set"], row["family"]) for row in agents}
        places = {(row["set"], row["family"]) for row in mine if row["method"] == "random"}
        places = places & of_agents or places
        methods = dict.fromkeys(row["method"] for row in mine)
        means = {name: mean([r for r in mine if r["method"] == name], places) for name in methods}
        known = {name: value for name, value in means.items() if value is not None}
        planners = {k: v for k, v in known.items() if k.startswith("planner ")}
        rules = {k: v for k, v in known.items() if k not in planners and k != "random"}
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
    return sorted(shown)


@environments.page
def page(found: list[list[str]]) -> list[str]:
    heads = ["environment", "set", "random", "best rule of one line", "PPO", "group", "planner"]
    return [
        "Mean share of the best known cost: 1 is as good. A rule takes the action whose row is "
        "largest or least in one column; agents were trained for 65,536 steps and play their best "
        "actions, with the least and the most of their seeds; the planner is the best of a few.",
        table(heads, found, 2),
    ]


if __name__ == "__main__":
    main(environments)
