"""Plays policies on the courses of problems: all courses at once, for tables and networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parenvs.agents.elastic.formats import (
    Network,
    Ratings,
    Recorded,
    Rule,
    Table,
    read_policy,
)
from parenvs.agents.elastic.rules import RULES
from parenvs.tasks.elastic.library import MAX_PLANS
from parenvs.tasks.elastic.load import load_elastic
from parenvs.tasks.elastic.markov import Markov
from parenvs.tasks.elastic.problem import Elastic
from parenvs.tasks.elastic.run import follow
from parenvs.tasks.elastic.tables import Tables
from parenvs.tasks.elastic.turns import Turns

COURSES = 2
"""Courses of a problem on which chance decides; all policies have the same."""
Plans = list[list[int]]
"""Plans of each course of a problem, interval by interval."""


def seeds(problem: Elastic, seed: int) -> range:
    """Return the seeds of a problem's courses, as of ``Elastic.drawn``.

    Args:
        problem: the problem; where nothing is random it has one course.
        seed: of the checker.
    """
    count = COURSES if problem.is_random else 1
    return range(seed * COURSES, seed * COURSES + count)


def load(name: str) -> Elastic:
    """Load a problem: ``SET/NAME`` of a shipped set, or ``TRACE/MODEL``."""
    return load_elastic(name)


def play(job: dict[str, Any]) -> dict[str, Plans]:
    """Turns a policy; called in the sandbox.

    Args:
        job: ``policy``, JSON types; ``problems``, their names; ``seed``, of the checker.

    Returns:
        Name of a problem -> the plans chosen on each of its courses.
    """
    policy = read_policy(job["policy"])
    problems = {name: load(name) for name in job["problems"]}
    if isinstance(policy, Rule):
        return {name: followed(policy, x, job["seed"]) for name, x in problems.items()}
    assert not isinstance(policy, Recorded)
    chains = {k: x for k, x in problems.items() if isinstance(x.source, Markov)}
    plans = together(policy, chains, job["seed"]) if chains else {}
    for name in problems.keys() - chains.keys():
        plans |= together(policy, {name: problems[name]}, job["seed"])
    return plans


def followed(rule: Rule, problem: Elastic, seed: int) -> Plans:
    """Return what a rule chooses on the courses of a problem."""
    policy = RULES[rule.name]
    courses = [problem.drawn(number) for number in seeds(problem, seed)]
    return [follow(problem, course, policy()).chosen.tolist() for course in courses]


def together(
    policy: Table | Network | Ratings, problems: dict[str, Elastic], seed: int
) -> dict[str, Plans]:
    """Return what a policy chooses on the courses of problems, all played at once.

    Args:
        policy: the policy.
        problems: name -> problem, all of chains, or one of a trace.
        seed: of the checker.
    """
    tables = Tables.of(list(problems.values()))
    each = [
        (i, number)
        for i, problem in enumerate(problems.values())
        for number in seeds(problem, seed)
    ]
    drawn = [tables.problems[i].draw(np.random.default_rng(number)) for i, number in each]
    batch = Turns(len(each), tables)
    batch.start(np.arange(len(each)), [i for i, _ in each], drawn)
    rows = np.arange(len(each))
    while rows.size:
        chosen = np.zeros(len(each), dtype=np.int64)
        chosen[rows] = _chosen(policy, batch, rows)
        _, over = batch.step(rows, chosen[rows])
        rows = rows[~over]
    plans: dict[str, Plans] = {name: [] for name in problems}
    names = list(problems)
    for row, (i, _) in enumerate(each):
        plans[names[i]].append(batch.chosen[row, : batch.length[row]].tolist())
    return plans


def _chosen(policy: Table | Network | Ratings, batch: Turns, rows: np.ndarray) -> np.ndarray:
    """Return the plans that a policy chooses in episodes ``rows``, (k,)."""
    fits = batch.masks()[rows] > 0
    if isinstance(policy, Table):
        return _looked_up(policy, batch, rows, fits)
    tables = batch.tables
    observation = {"plans": tables.plans[batch.row[rows]], **batch.observation(rows)}
    scores = np.nan_to_num(policy.scores(observation), nan=-np.inf)
    return np.asarray(np.where(fits, scores, -np.inf).argmax(axis=1) * fits.any(axis=1))


def _looked_up(policy: Table, batch: Turns, rows: np.ndarray, fits: np.ndarray) -> np.ndarray:
    """Return what a table says; what it has no row for, or does not fit, is to wait."""
    result = np.zeros(len(rows), dtype=np.int64)
    libraries: Sequence[str] = [
        batch.tables.problems[i].library.name for i in batch.problem[rows].tolist()
    ]
    for name in set(libraries) & policy.choices.keys():
        mine = np.flatnonzero([library == name for library in libraries])
        table, these = policy.choices[name], rows[mine]
        nodes = np.minimum(batch.nodes[these], table.shape[1] - 1)
        plan = batch.plan[these]
        known = plan < table.shape[2]
        event = batch.event[these]
        result[mine] = np.where(known, table[event, nodes, plan * known], 0)
    return np.asarray(np.where(fits[np.arange(len(rows)), result % MAX_PLANS], result, 0))
