"""Tables of agents' runs: where they find the optimum, and where nothing has to be learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from parenvs.bench import agents as bench
from parenvs.bench.measurement import Case, measurement
from parenvs.bench.problems import BenchProblem, suites
from parenvs.bench.runs import reached
from parenvs.markdown import table

Record = Mapping[str, Any]
"""What ``perform`` returned for a run, with the number of ``jobs`` beside it."""


def _line(record: Record) -> str:
    """One line on a run that is done."""
    end = "optimum not reached"
    if reached(record):
        end = f"optimum after {record['target_steps']:,} steps"
    names = f"{record['problem']} {record['agent']} seed {record['seed']}"
    return f"{names}: {end}, {record['seconds']:.1f} s"


@measurement(key=bench.key_of, title="Agents on the problems of the paper", line=_line)
def agents(runs: Sequence[bench.TrainingRun]) -> list[Case]:
    """Perform runs."""
    return [bench.case(run, bench.perform) for run in runs]


@agents.page
def page(
    records: Sequence[Record],
    problems: Sequence[BenchProblem],
    skipped: Mapping[str, str],
    agents: Sequence[str],
) -> dict[str, list[str]]:
    """The results, and the totals alone.

    Args:
        records: the records of the runs.
        problems: the problems that agents were trained on.
        skipped: names of the problems without a legal plan, and why there is none.
        agents: names of the agents, in the order of the columns.
    """
    sections = [_preface(records)]
    known = suites()
    for env_id in dict.fromkeys(p.env_id for p in problems):
        head = [known[env_id].word, "instance", "optimum", *agents]
        head += [f"random as long as {agent}" for agent in agents] + ["heuristic"]
        rows = [
            row(p, [r for r in records if r["problem"] == p.name], agents)
            for p in problems
            if p.env_id == env_id
        ]
        sections += [f"## {env_id}", table(head, rows, left=2)]
        none = [name for name in skipped if name.startswith(f"{env_id} ")]
        if none:
            words = ", ".join(name.removeprefix(f"{env_id} ") for name in none)
            sections.append(f"No plan is legal, so nothing is run: {words}.")
    everything = table(TOTALS, totals(problems, records, agents), left=2)
    plainly = _plainly(problems, records, agents)
    sections += ["## In all", everything, "## Where nothing has to be learned", *plainly]
    counts = Counter(problem for problem, _ in {(r["problem"], r["seed"]) for r in records})
    seeds = " to ".join(str(n) for n in sorted({*counts.values()}) or [0])
    preface = (
        f"{len(problems)} problems, {seeds} seeds each, within a budget of environment steps "
        f"({_budgets(records)}). Reached: the cost of an episode is within 0.1 % of the proven "
        "optimum's. Random search: as many episodes as that agent played, run by run. Processor "
        "seconds, of all runs together."
    )
    return {"agents": sections, "agents_totals": [preface, everything, *plainly]}


@agents.picture("curves")
def curves(
    records: Sequence[Record], problems: Sequence[BenchProblem], skipped: Mapping[str, str]
) -> Any:
    """The learning curves."""
    from parenvs.bench.curves import draw

    return draw(problems, skipped, records)


def row(problem: BenchProblem, records: Sequence[Record], agents: Sequence[str]) -> list[str]:
    """The row of one problem: its optimum, each agent's runs, random search, the heuristic."""
    cells = [problem.setting, problem.instance, f"{problem.optimum:.{_digits(problem)}f}"]
    runs = {agent: [r for r in records if r["agent"] == agent] for agent in agents}
    cells += [agent_cell(problem, runs[agent]) for agent in agents]
    for agent in agents:
        lucky = sum(r["random_value"] >= problem.target for r in runs[agent])
        cells.append(f"{lucky} of {len(runs[agent])}" if runs[agent] else "")
    name, value = best_reference(problem)
    shown = "optimal" if value >= problem.target else _missed(problem, value)
    return [*cells, f"{name}: {shown}"]


TOTALS = (
    "agent", "environment", "runs that reach it", "problems with all seeds", "problems with none",
    "random search as long", "seconds of training",
)  # fmt: skip
"""Titles of the columns of the totals."""


def totals(
    problems: Sequence[BenchProblem], records: Sequence[Record], agents: Sequence[str]
) -> list[list[str]]:
    """A row for each agent and task, with the columns ``TOTALS``."""
    rows = []
    for agent in agents:
        for env_id in dict.fromkeys(p.env_id for p in problems):
            by_name = {p.name: p for p in problems if p.env_id == env_id}
            runs = [r for r in records if r["agent"] == agent and r["problem"] in by_name]
            outcomes = {n: [reached(r) for r in runs if r["problem"] == n] for n in by_name}
            tried = [seeds for seeds in outcomes.values() if seeds]
            lucky = sum(r["random_value"] >= by_name[r["problem"]].target for r in runs)
            rows.append(
                [
                    agent,
                    env_id,
                    f"{sum(map(reached, runs))} of {len(runs)}",
                    f"{sum(map(all, tried))} of {len(tried)}",
                    f"{sum(not any(seeds) for seeds in tried)} of {len(tried)}",
                    f"{lucky} of {len(runs)}",
                    f"{sum(r['seconds'] for r in runs):,.0f}",
                ]
            )
    return rows


def best_reference(problem: BenchProblem) -> tuple[str, float]:
    """Name and return of the best heuristic on a problem."""
    return max(problem.references.items(), key=lambda item: item[1])


def random_as_good(problem: BenchProblem, runs: Sequence[Record]) -> bool:
    """Whether random search is as good as an agent's runs, with as many episodes.

    It is if it reaches the optimum with more seeds. With equally many it is, too, if those are all
    seeds or if its median return is no worse.
    """
    lucky = sum(r["random_value"] >= problem.target for r in runs)
    learned = sum(map(reached, runs))
    if lucky != learned or lucky == len(runs):
        return lucky >= learned
    return _no_worse(problem, median(r["random_value"] for r in runs), runs)


def reference_as_good(problem: BenchProblem, runs: Sequence[Record]) -> bool:
    """Whether a heuristic reaches the optimum, or at least the median return of an agent's runs."""
    value = best_reference(problem)[1]
    return value >= problem.target or _no_worse(problem, value, runs)


def _no_worse(problem: BenchProblem, value: float, runs: Sequence[Record]) -> bool:
    """Whether a return is no worse than the runs' median, rounding aside."""
    return problem.gap(value) <= problem.gap(median(r["value"] for r in runs)) + 1e-6


def _preface(records: Sequence[Record]) -> str:
    """The paragraph that explains the table."""
    seeds = len({r["seed"] for r in records})
    ends = {r["settings"]["full"] for r in records}
    end = " A run ends there." if ends == {False} else ""
    jobs = _joined({str(r["jobs"]) for r in records})
    return (
        f"Cells of an agent: seeds (of {seeds}) that reach the optimum within a budget of "
        f"environment steps ({_budgets(records)}); medians over all seeds of the steps and "
        "processor seconds until then, a seed that does not counting as infinite; if not all do, "
        "the median gap of the best episode. Reached: the cost of an episode (L, the step time, "
        "the paper's return) is within 0.1 % of "
        f"the proven optimum's.{end} Random search draws as many episodes as that agent did, run "
        "by run, uniform among legal actions. Heuristic: the better of GWMIN (greedy) and "
        "partitioning whatever is asked for (ones); for pipelines even cuts, as GPipe's. "
        f"Partitions are on one server of 8 V100. {_joined({r['machine'] for r in records})}; "
        f"{jobs} run(s) at a time, each on one thread."
    )


def _budgets(records: Sequence[Record]) -> str:
    """The budget of each agent, in words."""
    return ", ".join(dict.fromkeys(f"{r['agent']} {r['budget']:,}" for r in records))


def agent_cell(problem: BenchProblem, runs: Sequence[Record]) -> str:
    """The cell of an agent's runs on a problem: seeds, steps, seconds, gap."""
    if not runs:
        return "no run yet"
    outcomes = [reached(r) for r in runs]
    words = [f"{sum(outcomes)} of {len(runs)}"]
    for key, form, unit in (("target_steps", ",.0f", ""), ("target_seconds", ".2f", " s")):
        middle = median(r[key] if ok else np.inf for r, ok in zip(runs, outcomes, strict=True))
        if np.isfinite(middle):
            words.append(f"{middle:{form}}{unit}")
    if not all(outcomes):
        words.append(_missed(problem, median(r["value"] for r in runs)))
    return "; ".join(words)


def _missed(problem: BenchProblem, value: float) -> str:
    """By how much a return misses the optimum, in words."""
    gap = max(problem.gap(value), 0.0)  # rounding may give less than 0
    return f"gap {100 * gap:.2f} %" if np.isfinite(gap) else "no legal plan"


def _plainly(
    problems: Sequence[BenchProblem], records: Sequence[Record], agents: Sequence[str]
) -> list[str]:
    """Sentences on where heuristics and random search are as good as the agents."""
    lines = []
    best = [p.name for p in problems if best_reference(p)[1] >= p.target]
    lines.append(
        f"A heuristic reaches the optimum on {len(best)} of {len(problems)} problems"
        f"{_of_tasks(best, problems)}."
    )
    for agent in agents:
        tried = [
            (p, runs)
            for p in problems
            if (runs := [r for r in records if (r["problem"], r["agent"]) == (p.name, agent)])
        ]
        lucky = [p.name for p, runs in tried if random_as_good(p, runs)]
        plain = [p.name for p, runs in tried if reference_as_good(p, runs)]
        lines.append(
            f"**{agent}**: random search with as many episodes is as good on {len(lucky)} of "
            f"{len(tried)} problems{_of_tasks(lucky, problems)}. A heuristic is as good on "
            f"{len(plain)}{_of_tasks(plain, problems)}."
        )
    return lines


def _of_tasks(names: Iterable[str], problems: Sequence[BenchProblem]) -> str:
    """The problems in words: ``" (environment: setting (instance, ...); environment: ...)"``."""
    chosen, parts = set(names), []
    for env_id in dict.fromkeys(p.env_id for p in problems):
        words = []
        for setting in dict.fromkeys(p.setting for p in problems if p.env_id == env_id):
            group = [p for p in problems if (p.env_id, p.setting) == (env_id, setting)]
            own = [p.instance for p in group if p.name in chosen]
            if own:
                shown = "all" if len(own) == len(group) > 1 else ", ".join(own)
                words.append(f"{setting} ({shown})")
        if words:
            parts.append(f"{env_id}: {', '.join(words)}")
    return f" ({'; '.join(parts)})" if parts else ""


def _joined(words: Iterable[str]) -> str:
    return " or ".join(sorted(words))


def _digits(problem: BenchProblem) -> int:
    return 1 if problem.reward == "paper" else 4
