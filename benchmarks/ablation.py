"""Rainbow without each of its parts, on one problem of each kind."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import parser, progress, publish, table
from parenvs.agents.learning.rainbow.algorithm import Rainbow
from parenvs.agents.learning.rainbow.buffer import RainbowSamples
from parenvs.agents.learning.train.learners import LEARNERS, rainbow_settings
from parenvs.bench import agents as bench
from parenvs.bench.agents import TrainingRun
from parenvs.bench.problems import CLUSTERS, BenchProblem, solve_problems
from parenvs.bench.runs import append, reached, read, run_all

PROBLEMS = {
    ("pipeline-cut", "B", "t5-base"): 40_000,
    ("operator-partition", "step_time/automap", "t5-base"): 20_000,
    ("data-parallel", "paper", "bert-48"): 4_000,
}
"""Environment steps of a run, by task, setting and instance."""
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


def late_mean(record: dict[str, Any]) -> float:
    """Mean return over the last tenth of the budget of a run."""
    points = [p for p in record["points"] if p[0] > 0.9 * record["budget"]]
    return float(np.mean([mean for _, mean, _ in points]))


def row(problem: BenchProblem, agent: str, records: Sequence[dict[str, Any]]) -> list[Any]:
    """The table's row of an agent on a problem."""
    good = [reached(r) for r in records]
    steps = [r["target_steps"] if ok else np.inf for r, ok in zip(records, good, strict=True)]
    words = [f"{x:,.0f}" if np.isfinite(x) else "not" for x in (median(steps), max(steps))]
    late = np.array([late_mean(r) for r in records]) / problem.optimum
    best = max(0.0, *(problem.gap(r["value"]) for r in records))  # 0: rounding
    return [
        agent,
        f"{sum(good)} of {len(good)}",
        *words,
        f"{100 * best:.2f} %",
        f"{100 * late.mean():.1f} %",
        f"{100 * late.std(ddof=1):.1f} %" if len(late) > 1 else "",
        f"{median(r['seconds'] for r in records):.0f}",
    ]


def wanted() -> Iterable[tuple[BenchProblem, int]]:
    """Solve the problems; yields each with its budget."""
    for (task, setting, instance), steps in PROBLEMS.items():
        found, _ = solve_problems([task], [instance], CLUSTERS)
        yield next(p for p in found if p.setting == setting), steps


def main() -> None:
    """Run what is missing, print and write."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--jobs", type=int, default=1, help="processes")
    chosen = options.parse_args()
    path = chosen.out / "ablation.jsonl"
    done = read(path, bench.key_of)
    problems = list(wanted())
    runs = [
        TrainingRun(problem, agent, seed, steps, full=True)
        for seed in range(chosen.seeds)
        for problem, steps in problems
        for agent in AGENTS
    ]
    missing = [run for run in runs if run.key not in done]
    for number, record in enumerate(run_all(perform, missing, chosen.jobs), 1):
        append(path, record)
        progress(f"{number}/{len(missing)} {record['problem']} {record['agent']}")
    done = read(path, bench.key_of)
    header = ["agent", "seeds that reach it", "steps, median", "worst", "gap of the best, worst"]
    header += ["return at the end", "spread", "seconds"]
    sections = [
        "The preset `tuned`: double Q, dueling, priorities and 3-step returns; each line changes "
        "one thing. Reached: an episode within 0.1 % of the optimum. Return at the end: mean over "
        "the last tenth of the steps, exploration included, as a share of the optimum's; mean and "
        f"standard deviation over {chosen.seeds} seeds. Processor seconds, median. *{UNMASKED}*: "
        "illegal actions are never taken, but enter the targets, as in agents that mask the "
        "behaviour only; nothing changes where every action is legal."
    ]
    for problem, steps in problems:
        of_agent = {
            agent: [done[r.key] for r in runs if (r.problem, r.agent) == (problem, agent)]
            for agent in AGENTS
        }
        rows = [row(problem, agent, records) for agent, records in of_agent.items()]
        sections += [f"{problem.name}, {steps:,} steps:", table(header, rows)]
    publish("ablation", sections, {}, chosen.out)


if __name__ == "__main__":
    sys.exit(main())
