"""Dimension classes against exhaustive search on random programs. Needs the extra ``jax``."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.framework import main, measurement, progress, table
from exhaustive import TooMany, disagreements, search
from parenvs import Graph, from_jax
from parenvs.tasks.partition.classes import RULE_SETS, dimension_classes
from random_programs import Program

COLUMNS = ("cases", "instructions", "dimensions", "classes", "blocked", "conflicts", "assignments")
COLUMNS += ("legal", "pairs compared", "too many", "disagreements")


def program(seed: int) -> Any:
    """The random program that a seed draws."""
    rng = np.random.default_rng(seed)
    return Program(lambda options: options[rng.integers(len(options))])


def check(graph: Graph, rules: str) -> tuple[Counter[str], list[str]]:
    """Figures of one graph, and where the classes and the search disagree."""
    counts = Counter({"cases": 1, "instructions": len(graph.opcode)})
    try:
        found = search(graph, rules)
    except TooMany:
        return counts + Counter({"too many": 1}), []
    ours = dimension_classes(graph, rules)
    wrong = disagreements(ours, found)
    touched = np.unique(ours.label[found.dims])
    inside = np.isin(ours.conflicts, touched).all(axis=1)
    live = int((found.split > 0).sum())
    return counts + Counter(
        {
            "dimensions": len(found.dims),
            "classes": len(touched),
            "blocked": int(ours.blocked[touched].sum()),
            "conflicts": int(inside.sum()),
            "assignments": found.tried,
            "legal": len(found.legal),
            "pairs compared": live * live,
            "disagreements": len(wrong),
        }
    ), wrong


@measurement(
    title="Dimension classes against exhaustive search",
    wrong=lambda data: data.get("wrong"),
    about={"cases": "random programs"},
)
def classes(cases: int = 1000) -> dict[str, Any]:
    begin = time.perf_counter()
    counts: dict[tuple[str, str], Counter[str]] = {}
    wrong = []
    for seed in range(cases):
        made = program(seed)
        graph = from_jax(made.function, *made.arguments, name=f"case {seed}")
        kind = "gradient" if made.gradient else "function"
        for rules in RULE_SETS:
            found, words = check(graph, rules)
            counts[kind, rules] = counts.get((kind, rules), Counter()) + found
            wrong += [f"case {seed}, {rules}: {word}: {'; '.join(made.text)}" for word in words]
        if seed % 100 == 99:
            progress(f"{seed + 1} of {cases}, {len(wrong)} disagreements")
    counts = dict(sorted(counts.items()))
    counts["all", ""] = sum(counts.values(), Counter())
    raw = {" ".join(key).strip(): found for key, found in counts.items()}
    return {"counts": raw, "wrong": wrong, "seconds": time.perf_counter() - begin}


@classes.page
def page(data: dict[str, Any], cases: int) -> list[str]:
    rows = [
        [*(*name.split(), "")[:2], *(f"{found.get(c, 0):,}" for c in COLUMNS)]
        for name, found in data["counts"].items()
    ]
    return [
        f"Random JAX functions of 2 to 8 steps and gradients of such, {cases} in all, under "
        "both rule sets. `assignments`: looked at by the search, of single instructions and of "
        "whole programs; `legal`: of whole programs; `pairs compared`: of dimensions that can be "
        "split, whether they can be split together and whether they always are. Left out: `too "
        "many` legal assignments for the search to hold. "
        f"{data['seconds']:.0f} s.",
        table(["program", "rules", *COLUMNS], rows, left=2),
        *data["wrong"][:20],
    ]


if __name__ == "__main__":
    main(classes)
