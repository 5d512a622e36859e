"""Rainbow without each of its parts, on one problem of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.framework import Case, Column, Row, columns, main, measurement
from parenvs.agents.learning.rainbow.algorithm import Rainbow
from parenvs.agents.learning.rainbow.buffer import RainbowSamples
from parenvs.agents.learning.train.learners import LEARNERS, rainbow_settings
from parenvs.bench import agents as bench
from parenvs.bench.agents import TrainingRun
from parenvs.bench.problems import BenchProblem, solve_problems
from parenvs.bench.runs import reached

PROBLEMS = {
    ("PipelineCut-v0", "B", "t5-base"): 40_000,
    ("OperatorPartition-v0", "step_time/automap", "t5-base"): 20_000,
    ("DataParallel-v0", "paper", "bert-48"): 4_000,
}
"""Environment steps of a run, by environment, setting and instance."""
WITHOUT: dict[str, dict[str, Any]] = {
    "tuned": {},
    "without double Q": {"double_q": False},
    "without dueling": {"dueling": False},
    "without priorities": {"prioritized": False},
    "single steps": {"n_steps": 1},
    "with C51": {"distributional": True, "v_min": -1.0, "v_max": 1.0},
    "with noisy layers": {"noisy": True},
    "none of them (DQN)": {
        "double_q": False, "dueling": False, "prioritized": False, "n_steps": 1,
    },
}  # fmt: skip
UNMASKED = "target not masked"


class BehaviourOnly(Rainbow):
    """Rainbow that masks its actions but not its targets, which any action may enter."""

    def targets(self, batch: RainbowSamples) -> Any:
        """The targets as if every action of the next state were legal."""
        return super().targets(batch._replace(next_masks=batch.next_masks | True))


def _settings(changes: dict[str, Any], env_id: str, episode_steps: int) -> dict[str, Any]:
    return {**rainbow_settings("tuned", env_id, episode_steps), **changes}


# Registered at import, so that spawned processes know them too.
for _name, _changes in WITHOUT.items():
    LEARNERS[_name] = replace(LEARNERS["rainbow"], settings=partial(_settings, _changes))
LEARNERS[UNMASKED] = replace(LEARNERS["rainbow"], algorithm=BehaviourOnly)
AGENTS = (*WITHOUT, UNMASKED)


def perform(run: TrainingRun) -> dict[str, Any]:
    """``bench.perform``, defined here so that a process that performs it imports this file."""
    return bench.perform(run)


def late_mean(record: Row) -> float:
    """Mean return over the last tenth of the budget of a run."""
    points = [p for p in record["points"] if p[0] > 0.9 * record["budget"]]
    return float(np.mean([mean for _, mean, _ in points]))


def told(problem: BenchProblem, agent: str, records: Sequence[Row]) -> Row:
    """Figures of an agent on a problem."""
    good = [reached(r) for r in records]
    steps = [r["target_steps"] if ok else np.inf for r, ok in zip(records, good, strict=True)]
    late = np.array([late_mean(r) for r in records]) / problem.optimum
    return {
        "agent": agent,
        "reached": f"{sum(good)} of {len(good)}",
        "steps": [f"{x:,.0f}" if np.isfinite(x) else "not" for x in (median(steps), max(steps))],
        "gap": max(0.0, *(problem.gap(r["value"]) for r in records)),  # 0: rounding
        "late": late.mean(),
        "spread": late.std(ddof=1) if len(late) > 1 else None,
        "seconds": median(r["seconds"] for r in records),
    }


COLUMNS: list[Column] = [
    ("agent", "{agent}"),
    ("seeds that reach it", "{reached}"),
    ("steps, median", "{steps[0]}"),
    ("worst", "{steps[1]}"),
    ("gap of the best, worst", "{gap:.2%}"),
    ("return at the end", "{late:.1%}"),
    ("spread", "{spread:.1%}"),
    ("seconds", "{seconds:.0f}"),
]


@cache
def problems() -> dict[str, tuple[BenchProblem, int]]:
    """The solved problems by name, each with its budget."""
    solved = {}
    for (env_id, setting, instance), steps in PROBLEMS.items():
        for problem in solve_problems([env_id], [instance], "ABC")[0]:
            if problem.setting == setting:
                solved[problem.name] = problem, steps
    return solved


@measurement(key=bench.key_of)
def ablation(seeds: int = 5) -> list[Case]:
    return [
        bench.case(TrainingRun(problem, agent, seed, steps, full=True), perform)
        for seed in range(seeds)
        for problem, steps in problems().values()
        for agent in AGENTS
    ]


@ablation.page
def page(records: list[Row], seeds: int) -> list[str]:
    sections = [
        "The preset `tuned`: double Q, dueling, priorities and 3-step returns; each line changes "
        "one thing. Reached: an episode within 0.1 % of the optimum. Return at the end: mean over "
        "the last tenth of the steps, exploration included, as a share of the optimum's; mean and "
        f"standard deviation over {seeds} seeds. Processor seconds, median. *{UNMASKED}*: "
        "illegal actions are never taken, but enter the targets, as in agents that mask the "
        "behaviour only; nothing changes where every action is legal."
    ]
    for name, (problem, steps) in problems().items():
        rows = [
            told(
                problem, agent, [r for r in records if (r["problem"], r["agent"]) == (name, agent)]
            )
            for agent in AGENTS
        ]
        sections += [f"{name}, {steps:,} steps:", columns(rows, COLUMNS)]
    return sections


if __name__ == "__main__":
    main(ablation)
