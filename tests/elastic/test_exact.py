"""The optimal policy against brute force, the hindsight optimum against every policy."""

from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import combinations, product

import elastic_toys as toys
import numpy as np
import pytest

from parenvs.agents.elastic.policies import optimal
from parenvs.errors import ParenvsError
from parenvs.tasks.elastic.library import CHECKPOINT, intact
from parenvs.tasks.elastic.problem import Course, Moment, Recorded, hindsight, replay
from parenvs.tasks.elastic.problems import load_trace


def expected(problem):
    """The most samples that can be expected, by trying all choices and all that may happen."""
    chain = problem.source
    lots = [(mode, *bits) for mode in (0, 1) for bits in product((0, 1), repeat=chain.nodes)]

    def happenings(n, t):
        phase = chain.phase_of(t)
        for bulk, *bits in lots:
            leave = chain.severity if bulk else chain.leave[phase]
            chance = chain.bulk if bulk else 1.0 - chain.bulk
            for rank, happens in enumerate(bits):
                p = leave if rank < n else chain.join[phase]
                chance *= p if happens else 1.0 - p
            gone = np.array(bits[:n] + [0] * (chain.nodes - n))
            if chance:
                yield chance, n - sum(bits[:n]) + sum(bits[n:]), np.append(0, gone.cumsum())

    @cache
    def best(moment):
        if moment.interval == problem.intervals:
            return 0.0
        found = []
        plans = np.flatnonzero(problem.fits(moment.nodes)).tolist()
        for plan in [*plans, CHECKPOINT]:
            if problem.refused(moment, plan) is not None:
                continue
            total = problem.samples(moment, plan)
            if moment.interval + 1 < problem.intervals:
                for chance, nodes, lost in happenings(moment.nodes, moment.interval + 1):
                    after = np.array([nodes] * problem.intervals)
                    rows = np.array([lost] * problem.intervals, dtype=np.int8)
                    course = Course(after, after, after, rows)
                    total += chance * best(problem.after(moment, plan, course))
            found.append(total)
        return max(found)

    return best(Moment(0, chain.start))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "intervals", "checkpoints"),
    [("calm", 5, False), ("bulk", 4, False), ("day", 4, False), ("bulk", 4, True)],
)
def test_exact__optimal_is_that_of_brute_force(name, intervals, checkpoints):
    problem = toys.problem(name, intervals, checkpoints)
    assert optimal(problem).samples == pytest.approx(expected(problem), rel=1e-9)


def all_totals(problem, course):
    """What every sequence of choices earns."""
    more = [CHECKPOINT] if problem.checkpoints else []
    choices = [[*np.flatnonzero(problem.fits(int(n))).tolist(), *more] for n in course.nodes]
    for row in product(*choices):
        with suppress(ValueError):  # no whole plan to write a checkpoint of
            yield replay(problem, course, row)


def test_exact__hindsight_is_that_of_all_plans():
    """Also with checkpoints by choice; one before all nodes leave is worth its seconds."""
    gone = np.array([0, 0, 0, 7], dtype=np.uint64)
    course = Course.of_bits(3, np.array([0, 0, 0, 3]), gone, 3)
    assert (course.bits() == gone).all()
    for checkpoints in (False, True):
        chain = toys.problem("bulk", 4, checkpoints)
        leaving = replace(chain, source=Recorded("leaving", course))
        for problem, seed in ((chain, 0), (chain, 1), (leaving, 0)):
            run = hindsight(problem, problem.drawn(seed))
            best = max(other.total for other in all_totals(problem, problem.drawn(seed)))
            assert run.total == pytest.approx(best, rel=1e-12)
            assert problem.report(problem.plan(run.chosen, seed)).total == run.total
        assert run.saved.tolist() == [False, False, checkpoints, False]


def test_exact__a_checkpoint_needs_a_plan_that_is_kept():
    problem = toys.problem("bulk", 4, True)
    course = problem.drawn(0)
    with pytest.raises(ValueError, match="interval 0: there is no whole plan"):
        replay(problem, course, [CHECKPOINT])
    with pytest.raises(ValueError, match="interval 1: there is no whole plan"):
        replay(replace(problem, checkpoints=False), course, [1, CHECKPOINT])
    plan = problem.plan(hindsight(problem, course).plans)
    for saved, words in (((0,), "saved: interval 0 keeps no plan"), ((9,), "no interval 9")):
        report = problem.report(replace(plan, saved=saved))
        assert not report.legal
        assert words in report.reasons[0]


def test_exact__chances_are_those_of_all_sets():
    for groups, replicas in ((3, 1), (2, 3), (3, 2)):
        nodes = groups * replicas
        for count, found in enumerate(intact(groups, replicas)):
            sets = list(combinations(range(nodes), count))
            left = [
                len({r // replicas for r in range(nodes) if r not in lost}) == groups
                for lost in sets
            ]
            assert found == pytest.approx(np.mean(left))


def test_exact__only_chains_have_an_optimal_policy():
    problem = toys.problem("wide")
    traced = type(problem)(problem.library, load_trace("g4dn"), 60.0, 30)
    with pytest.raises(ParenvsError, match="take the hindsight optimum"):
        optimal(traced)
    with pytest.raises(ParenvsError, match="optimal policy of toy/wide is none of toy/calm"):
        optimal(problem).start(toys.problem())
