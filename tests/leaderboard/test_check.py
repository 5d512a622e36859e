"""Verdicts, scores and rankings, on made-up scores and on the committed entries."""

from pathlib import Path

import numpy as np
import pytest

from parenvs.core.leaderboard import kind_of
from parenvs.leaderboard.check import CheckedEntry, PlanState, Verdict, check_file, improvements
from parenvs.leaderboard.entry import Entry
from parenvs.leaderboard.submit import learned_from
from parenvs.leaderboard.tasks import tasks
from parenvs.tasks.elastic.problems import ELASTIC_SETS

pytestmark = pytest.mark.thorough

BOARD = Path(__file__).parents[2] / "leaderboard"


def test_check__all_are_accepted(board):
    for path, checked in board.items():
        assert checked.reasons == ()
        assert (path.parent.name, path.stem) == (checked.task.name, checked.entry.entry)
    assert not improvements(list(board.values()))


def test_check__ours_say_what_they_learned_from(board):
    for checked in board.values():
        entry = checked.entry
        if (entry.policy or {}).get("kind") == "network":  # made of weights by a command
            assert entry.learned and entry.trained_on == (f"other: {ELASTIC_SETS[0]}",)
        elif entry.authors == ("parenvs",) and "made by an older version" not in entry.method:
            agents = kind_of(checked.task.name).agents
            assert bool(entry.script) or entry.entry in agents
            assert entry.trained_on == learned_from(entry.entry)
            assert bool(entry.script) or entry.method == agents[entry.entry].method


def test_check__every_reference_is_some_entry_s(board):
    """Every best known cost is the cost of a plan in a committed entry."""
    best = {}
    for checked in board.values():
        for verdict in checked.verdicts:
            if verdict.state == PlanState.LEGAL:
                key = checked.task.name, verdict.problem.name
                best[key] = min(best.get(key, np.inf), verdict.cost)
    boards = (checked.task for checked in board.values() if not checked.entry.script)
    for task in {task.name: task for task in boards}.values():
        for name, problem in task.counted.items():
            assert best[task.name, name] == pytest.approx(problem.reference.cost, rel=1e-6)


def test_check__exact_ones_reach_every_proven_reference(board):
    for checked in board.values():
        names = {"pipeline-cut": "exact", "pipeline-plan": "exact"}
        names |= {"hybrid": "best-known", "hetero": "best-known"}
        if checked.entry.entry == names.get(checked.task.name, "exact"):
            assert checked.score == pytest.approx(1, abs=1e-6)
            assert all(v.reaches for v in checked.verdicts if v.counts)


def verdicts_of(task, *scores):
    """Return verdicts with these scores, and with missing plans for the other problems."""
    problems = list(tasks().task(task).problems.values())
    states = [PlanState.LEGAL] * len(scores)
    states += [PlanState.MISSING] * (len(problems) - len(scores))
    filled = [*scores, *[None] * (len(problems) - len(scores))]
    return tuple(
        Verdict(p, state, p.trivial if score is None else p.reference.cost / score)
        for p, state, score in zip(problems, states, filled, strict=True)
    )


def checked_of(name, *scores):
    task = tasks().task("data-parallel")
    entry = Entry("data-parallel", name, ("a",), "x", {})
    return CheckedEntry(entry, task, verdicts_of("data-parallel", *scores))


def test_check__geometric_mean():
    assert checked_of("a", *[1.0, 0.25] * 5).score == pytest.approx(0.5)
    assert checked_of("a", *[1.0] * 10).score == 1
    one_missing = checked_of("a", *[1.0] * 9)
    last = list(one_missing.task.problems.values())[-1]
    expected = (last.reference.cost / last.trivial) ** (1 / 10)
    assert one_missing.score == pytest.approx(expected)
    assert one_missing.count(PlanState.MISSING) == 1


@pytest.mark.slow
def test_check__better_than_the_optimum_is_an_error(own_tasks, run):
    """The reference of one problem is made a hundredth worse than it is."""
    known = tasks().task("data-parallel").problems["vgg-19-shardy-8"].reference
    worse = 1.01 * known.cost
    own_tasks("data-parallel", "vgg-19-shardy-8", cost=worse, bound=worse)
    file = BOARD / "submissions" / "data-parallel" / "exact.json"
    checked = check_file(file)
    (reason,) = checked.reasons
    assert "better than the proven optimum" in reason
    assert "plans.vgg-19-shardy-8" in reason
    assert all(v.score <= 1 for v in checked.verdicts)
    status, _, err = run("check", file)
    assert status == 2
    assert "better than the proven optimum" in err
    assert run("update", file)[0] == 2


def test_improvements__a_plan_as_good_as_the_bound_is_optimal(own_tasks):
    name = "vgg-19-shardy-8"
    known = tasks().task("data-parallel").problems[name].reference
    own_tasks("data-parallel", name, cost=2 * known.cost, status="bound")
    files = [BOARD / "submissions" / "data-parallel" / f"{e}.json" for e in ("greedy", "exact")]
    better = improvements([check_file(file) for file in files])
    assert list(better) == ["data-parallel"]
    (new,) = better["data-parallel"].values()
    assert (new.status, new.method) == ("optimal", "greedy")
    assert new.cost == new.bound == pytest.approx(known.cost)
    assert tasks().improved(better).revision == tasks().revision + 1
