"""The page of rules: what plays an environment of rows without learning, on its test sets.

    python benchmarks/rules.py                                   # every environment of rows
    python benchmarks/rules.py --envs MicroBatchOrder-v1

Rules are chance, constants, and the least and the largest of every column of the rows; the rule of
column 0 is the largest of it. Beside them stand the planners of the task, with the processor
seconds that they take. An environment is called *sanity* if a rule over bare rows, or column 0
alone, is within 2 % of the best known on most problems of a set.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.framework import Case, Row, main, measurement, percent, table
from parenvs.agents.evaluation.rules import Played, play_rule, rules
from parenvs.agents.planners import solve
from parenvs.core.registry import TASKS
from parenvs.core.rows import RowGame
from parenvs.core.sets import set_of
from parenvs.core.task import late
from parenvs.errors import NO_PLAN

NEAR, MOST = 0.02, 0.5
"""Within this of the best known on more than this share of problems, a rule makes *sanity*."""


def places() -> dict[str, tuple[Any, list[tuple[str, str | None]], dict[str, dict[str, Any]]]]:
    """Environment of rows -> its game; sets and families; planners and their options."""
    result = {}
    for task in TASKS.values():
        if "rules" in task.hooks:
            for env_id, sets, planners in task.hook("rules")():
                result[env_id] = late(task.envs[env_id]), sets, planners
    return result


def figures(played: Played) -> Row:
    """What the page keeps of a rule."""
    shares = played.shares
    return {
        "share": float(shares.mean()),
        "near": float((shares >= 1 - NEAR).mean()),
        "start": float((played.best / played.start).mean()),
        "seconds": played.seconds / len(shares),
        "turns": float(played.turns.mean()),
        "problems": len(shares),
    }


def ruled(env_id: str, name: str, family: str | None, rule: str, first: int | None) -> Row:
    """Play a rule."""
    game: type[RowGame] = places()[env_id][0]
    bare = rules(game, "bare")
    rows = "bare" if rule in bare else "ahead"
    choose = bare[rule] if rule in bare else rules(game)[rule]
    return figures(play_rule(env_id, name, choose, family, rows, first))


def planned(
    name: str, family: str | None, planner: str, options: dict[str, Any], first: int | None
) -> Row:
    """Solve by a planner, against the best costs known."""
    played = set_of(name)
    shares, seconds = [], 0.0
    for problem in played.of(family)[:first]:
        loaded = played.load(problem)
        begin = time.process_time()
        try:
            answer = solve(loaded, planner.split("/")[0], **options)
        except NO_PLAN:
            answer = None
        seconds += time.process_time() - begin
        known = played.reference(problem)
        shares.append(0.0 if answer is None else played.answered(answer) / known.value)
    return {
        "share": float(np.mean(shares)),
        "near": float(np.mean(np.array(shares) >= 1 - NEAR)),
        "seconds": seconds / len(shares),
        "problems": len(shares),
    }


@measurement(
    key="env set family method",
    title="Rules of one line",
    about={"envs": "environments (default: all)", "first": "problems of each set"},
)
def rules_(envs: tuple[str, ...] = (), first: int | None = None) -> Iterator[Case]:
    for env_id, (game, sets, planners) in places().items():
        if envs and env_id not in envs:
            continue
        for name, family in sets:
            key = {"env": env_id, "set": name, "family": family or ""}
            for rule in rules(game):
                yield {**key, "method": rule}, partial(ruled, env_id, name, family, rule, first)
            for planner, options in planners.items():
                work = partial(planned, name, family, planner, options, first)
                yield {**key, "method": f"planner {planner}"}, work


@rules_.page
def page(rows: list[Row]) -> list[str]:
    sections = [
        "Mean share of the best known cost, the share of problems within 2 % of it, and processor "
        "seconds a problem. Constants and chance are of legal actions; ties go to the first."
    ]
    for env_id, (game, sets, _) in places().items():
        mine = [row for row in rows if row["env"] == env_id]
        if not mine:
            continue
        bare = rules(game, "bare")
        sane = {
            (row["method"], row["set"], row["family"])
            for row in mine
            if row["near"] > MOST and (row["method"] in bare or row["method"] == "largest rule")
        }
        of = {f"{name} {family}".strip() for _, name, family in sane}
        words = f"sanity on {', '.join(sorted(of))}" if of else "no set is sanity"
        sections.append(f"## {env_id}")
        sections.append(f"The rule of column 0: {game.rule}. {words.capitalize()}.")
        columns = [(name, family or "") for name, family in sets]
        methods = list(dict.fromkeys(row["method"] for row in mine))
        by = {(row["method"], row["set"], row["family"]): row for row in mine}
        lines = []
        for method in methods:
            cells = []
            for column in columns:
                row = by.get((method, *column))
                cells.append(
                    ""
                    if row is None
                    else f"{row['share']:.4f}, {percent(row['near'], 0)}, {row['seconds']:.3g} s"
                )
            lines.append([method, *cells])
        heads = [f"{name} {family}".strip() for name, family in columns]
        sections.append(table(["method", *heads], lines))
    return sections


if __name__ == "__main__":
    main(rules_)
