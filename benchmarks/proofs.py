"""All planners of all tasks against brute force, with time limits of 1 ms to none."""

from __future__ import annotations

from collections import Counter
from functools import partial

from benchmarks.framework import Case, Row, main, measurement, progress, table
from every_plan import DRAWN, LIMITS, outcome, planners

KINDS = ("proven", "proven among some", "plan", "illegal plan", "no plan", "no plan in time")


def limited(task: str, planner: str, count: int) -> Row:
    """Hold a planner's answers to drawn problems against all plans."""
    progress(f"{task} {planner}")
    found = Counter(outcome(task, planner, number) for number in range(count))
    words = [f"{task} {planner}: {x}" for x in found if x.startswith("WRONG")]
    counts = {kind: found[kind] for kind in KINDS}
    return {"wrong": count - sum(counts.values()), **counts, "words": words}


@measurement(
    title="Planners against brute force",
    key="task planner",
    wrong=lambda rows: any(row["wrong"] for row in rows),
    about={"each": "random problems of each planner"},
    among={"tasks": DRAWN},
)
def proofs(each: int = 1000, tasks: tuple[str, ...] = tuple(DRAWN)) -> list[Case]:
    return [
        ({"task": task, "planner": planner}, partial(limited, task, planner, each))
        for task in tasks
        for planner in planners(task)
    ]


@proofs.page
def page(rows: list[Row]) -> list[str]:
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        counts = {kind: sum(row.get(kind, 0) for row in mine) for kind in KINDS}
        wrong = sum(row["wrong"] for row in mine)
        cases = sum(counts.values()) + wrong
        lines.append([task, len(mine), f"{cases:,}", wrong, f"{counts['proven']:,}"])
    return [
        "Every planner that needs no training, on random small problems whose plans are all "
        f"tried, with limits of {', '.join(f'{x:g} s' for x in LIMITS if x)} or none. Wrong: a "
        "worse plan called proven, a bound beyond the best plan, a plan that does not cost what "
        "the evaluator says, and of exact planners an illegal plan or a feasible problem called "
        "infeasible.",
        table(["task", "planners", "answers", "wrong", "proven"], lines),
        *[words for row in rows for words in row["words"]][:5],
    ]


if __name__ == "__main__":
    main(proofs)
