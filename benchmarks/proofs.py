"""All planners of all tasks against brute force, with time limits of 1 ms to none."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

import numpy as np

from benchmarks.framework import Case, Row, main, measurement, progress, spent, table
from brute_force import all_plans, best_of, legal_plans, random_pipeline, random_space
from every_plan import DRAWN, LIMITS, outcome, planners
from parenvs.agents.pipeline import bounds as prefixes
from parenvs.agents.pipeline import labels
from parenvs.agents.pipeline.exact import exact_candidates, exact_full, least_excess
from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.problem import Pipeline


def _some_plan(
    pipeline: Pipeline, plans: tuple[np.ndarray, np.ndarray], rng: np.random.Generator
) -> Answer | None:
    if rng.random() < 0.5:
        return None
    i = rng.integers(len(plans[0]))
    return Answer(problem=pipeline, plan=pipeline.plan(plans[0][i], plans[1][i]))


def check(kind: str, seed: int) -> str:
    """Compare one random case; returns its kind of outcome."""
    rng = np.random.default_rng([seed, kind == "full"])
    if kind == "full":
        pipeline, stages = random_pipeline(rng)
        plans = all_plans(pipeline, stages)
        best = best_of(pipeline, plans)
        excess = least_excess(pipeline.with_stages(stages))[1]
    else:
        space = random_space(rng)
        pipeline = space.pipeline
        best = best_of(pipeline, legal_plans(space))
        excess = best.excess
    if abs(excess - best.excess) > 0.5:
        return f"WRONG: {kind} case {seed}: least excess {excess}, brute force {best.excess}"
    try:
        if kind == "full":
            # Every other case starts from some plan, so that the bounds have something to cut.
            answer = exact_full(pipeline.with_stages(stages), _some_plan(pipeline, plans, rng))
        else:
            answer = exact_candidates(space)
    except InfeasibleError:
        return "infeasible" if best.length == np.inf else f"WRONG: {kind} case {seed}: infeasible"
    again = float(pipeline.length(answer.plan.cuts, answer.plan.device_cuts))
    fits = pipeline.excess_bytes(answer.plan.cuts, answer.plan.device_cuts) <= 0
    if not (answer.cost == again and fits and answer.status == "optimal"):
        return f"WRONG: {kind} case {seed}: {answer}"
    if abs(answer.cost - best.length) > 1e-9 * best.length:
        return f"WRONG: {kind} case {seed}: {answer.cost}, brute force {best.length}"
    return "equal"


KINDS = ("proven", "proven among some", "plan", "illegal plan", "no plan", "no plan in time")
SMALL = {"exact, pruned": "pruned", "exact, full": "full"}
"""Searches whose bounds are held to account on their own."""


def limited(task: str, planner: str, count: int) -> Row:
    """Hold a planner's answers to drawn problems against all plans."""
    progress(f"{task} {planner}")
    row: Row = {}
    with spent(row, clock=time.perf_counter):
        found = Counter(outcome(task, planner, number) for number in range(count))
    words = [f"{task} {planner}: {x}" for x in found if x.startswith("WRONG")]
    counts = {kind: found[kind] for kind in KINDS}
    return {**row, "wrong": count - sum(counts.values()), **counts, "words": words}


def bounded(planner: str, count: int) -> Row:
    """Hold a search against brute force, its bounds for large graphs on small ones, too."""
    progress(planner)
    row: Row = {}
    before = labels.MANY, prefixes.BLOCKS
    labels.MANY, prefixes.BLOCKS = 0, 4
    try:
        with spent(row, clock=time.perf_counter):
            found = Counter(check(SMALL[planner], seed) for seed in range(count))
    finally:
        labels.MANY, prefixes.BLOCKS = before
    words = [x for x in found if x.startswith("WRONG")]
    counts = {"cases": count, "equal": found["equal"], "infeasible": found["infeasible"]}
    return {**row, **counts, "wrong": len(words), "words": words}


@measurement(
    title="Planners against brute force",
    key="against task planner",
    wrong=lambda rows: any(row["wrong"] for row in rows),
    about={"cases": "random problems of each search", "each": "random problems of each planner"},
    among={"tasks": DRAWN},
)
def proofs(
    cases: int = 1000, each: int = 1000, tasks: tuple[str, ...] = tuple(DRAWN)
) -> list[Case]:
    return [
        *(
            ({"against": "excess", "task": "pipeline", "planner": name},
             partial(bounded, name, cases))
            for name in (SMALL if "pipeline" in tasks else ())
        ),
        *(
            ({"against": "plans", "task": task, "planner": planner},
             partial(limited, task, planner, each))
            for task in tasks for planner in planners(task)
        ),
    ]  # fmt: skip


@proofs.page
def page(rows: list[Row]) -> list[str]:
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        counts = {kind: sum(row.get(kind, 0) for row in mine) for kind in KINDS}
        exact = sum(row.get("equal", 0) + row.get("infeasible", 0) for row in mine)
        cases = exact + sum(counts.values())
        wrong = sum(row["wrong"] for row in mine)
        lines.append(
            [task, len(mine), f"{cases + wrong:,}", wrong, f"{exact + counts['proven']:,}"]
        )
    return [
        "Every planner that needs no training, on random small problems whose plans are all "
        f"tried, with limits of {', '.join(f'{x:g} s' for x in LIMITS if x)} or none. Wrong: a "
        "worse plan called proven, a bound beyond the best plan, a plan that does not cost what "
        "the evaluator says, and of exact planners an illegal plan or a feasible problem called "
        "infeasible.",
        table(["task", "planners", "answers", "wrong", "proven or equal to brute force"], lines),
        *[words for row in rows for words in row["words"]][:5],
    ]


if __name__ == "__main__":
    main(proofs)
