"""All planners of all tasks against brute force, with time limits of 1 ms to none."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.framework import main, measurement, progress, table
from brute_force import all_plans, best_of, legal_plans, random_pipeline, random_space
from every_plan import DRAWN, LIMITS, outcome, planners
from parenvs.agents.pipeline import bounds as prefixes
from parenvs.agents.pipeline import exact
from parenvs.agents.pipeline.exact import exact_full, exact_pruned
from parenvs.agents.pipeline.least_memory import least_excess, least_excess_pruned
from parenvs.core.answer import Answer
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
        excess = least_excess(pipeline.with_stages(stages)).excess_bytes
    else:
        space = random_space(rng)
        pipeline = space.pipeline
        best = best_of(pipeline, legal_plans(space))
        excess = least_excess_pruned(space).excess_bytes
    if abs(excess - best.excess) > 0.5:
        return f"WRONG: {kind} case {seed}: least excess {excess}, brute force {best.excess}"
    try:
        if kind == "full":
            # Every other case starts from some plan, so that the bounds have something to cut.
            answer = exact_full(pipeline.with_stages(stages), _some_plan(pipeline, plans, rng))
        else:
            answer = exact_pruned(space)
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


def limited(task: str, planner: str, count: int) -> tuple[list[str], list[str]]:
    """Hold a planner's answers to drawn problems against all plans: a row, what is wrong."""
    begin = time.perf_counter()
    found = Counter(outcome(task, planner, number) for number in range(count))
    wrong = [f"{task} {planner}: {words}" for words in found if words.startswith("WRONG")]
    counts = [count - sum(found[kind] for kind in KINDS), *(found[kind] for kind in KINDS)]
    seconds = f"{time.perf_counter() - begin:.1f}"
    return [task, planner, *map(str, counts), seconds], wrong


@measurement(
    wrong=lambda data: data.get("wrong"),
    about={"cases": "random problems of each planner", "each": "random problems of each planner"},
)
def proofs(cases: int = 500, each: int = 300) -> dict[str, Any]:
    found = []
    for task in DRAWN:
        for planner in planners(task):
            progress(f"{task} {planner}")
            found.append(limited(task, planner, each))
    limits = [row for row, _ in found]
    exact._MANY, prefixes._BLOCKS = 0, 4  # the bounds meant for large graphs, on these small ones
    rows, wrong = [], [words for _, wrong in found for words in wrong]
    for kind in ("pruned", "full"):
        begin = time.perf_counter()
        outcomes = Counter(check(kind, seed) for seed in range(cases))
        bad = [x for x in outcomes if x.startswith("WRONG")]
        wrong += bad
        seconds = f"{time.perf_counter() - begin:.1f}"
        counts = [cases, outcomes["equal"], outcomes["infeasible"], len(bad)]
        rows.append([f"exact, {kind}", *map(str, counts), seconds])
    return {"rows": rows, "limits": limits, "wrong": wrong}


@proofs.page
def page(data: dict[str, Any]) -> list[str]:
    header = ["planner", "cases", "equal to brute force", "infeasible in both", "wrong", "seconds"]
    return [
        "Random small problems with memory limits, server sizes, micro-batches, copies and ways of "
        "synchronising drawn; brute force lists every legal plan. The least excess over the "
        "memory is compared as well.",
        table(header, data["rows"]),
        "Every planner of every task that needs no training, on small problems whose plans are all "
        f"tried. Those that take a time limit have {', '.join(f'{x:g} s' for x in LIMITS if x)} "
        "or any time, by turns, or a number of rounds. Wrong: a worse plan called proven, a bound "
        "beyond the best plan, a plan that is better than all or does not cost what the judge "
        "says, and of exact planners an illegal plan or a problem called infeasible that is not. "
        "All plans are those that a planner chooses among: of hybrid ones 1F1B plans of free "
        "stages (`exact-hybrid`), uniform ones (`uniform`), or both (`exact`), so that `proven "
        "among some` is held against the best of these; `local-search` reaches plans that are too "
        "many to be tried, and of `exact-points` and `exact-pruned`, which choose among "
        "candidates, bounds and proofs are not held against all plans (but above, those of the "
        "pruned one).",
        table(["task", "planner", "wrong", *KINDS, "seconds"], data["limits"]),
        *data["wrong"][:5],
    ]


if __name__ == "__main__":
    main(proofs)
