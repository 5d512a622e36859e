"""References: solved again, compared with the file, and the better of two."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import each

from benchmarks import leaderboard_references as references
from parenvs.core.leaderboard import Reference, is_less, reference_of
from parenvs.leaderboard.check import check_file, improvements
from parenvs.leaderboard.tasks import read_tasks, tasks

BOARD = Path(__file__).parents[2] / "leaderboard"


@pytest.mark.slow
def test_references__anew(capsys):
    assert references.main(["--check"]) == 0, capsys.readouterr().err


def test_references__differences_are_told(own_tasks, capsys):
    path = own_tasks("data-parallel", "vgg-19-shardy-8", cost=1.0, bound=0.5, status="bound")
    arguments = ["--check", "--instances", "vgg-19", "--tasks", "data-parallel", "--out", str(path)]
    assert references.main(arguments) == 2
    assert "data-parallel vgg-19-shardy-8: " in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        references.main([*arguments[1:], "--out", str(path)])
    assert references.main([*arguments[:-1], str(path.with_name("none"))]) == 2


def test_references__the_better_is_kept():
    old = Reference(2.0, 1.0, "bound", "old")
    assert references.better(Reference(3.0, 1.5, "bound", "new"), old) == replace(old, bound=1.5)
    new = Reference(1.8, 0.5, "bound", "new")
    assert references.better(new, old) == replace(new, bound=1.0)
    assert references.better(old, Reference(1.7, 1.7, "optimal", "x")).cost == 1.7
    assert references.better(Reference(1.7, 1.7, "optimal", "x"), old).cost == 1.7


COST = 651_833_115_436
"""Of a plan of the contest's problem P, whose bound is 650,494 lower: a millionth."""


@each("cost, bound, proven", [
    (COST, COST, True), (COST, COST - 1, False), (COST, 651_832_464_942, False),
    (2**59 + 1, 2**59, False), (np.int64(7), 7, True), (np.int64(8), np.int64(7), False),
    (0, 0, True), (1.0, 1.0 - 1e-9, True), (1.0, 1.0 - 1e-5, False), (2.0, 2, True),
])  # fmt: skip
def test_references__whole_numbers_are_proven_to_the_last_digit(cost, bound, proven):
    """Seconds are, but for rounding."""
    reference = reference_of(cost, bound, "x")
    assert reference.proven == proven == (not is_less(bound, cost))
    assert reference.bound == (cost if proven else bound)


@pytest.mark.thorough
def test_references__a_plan_better_by_one_is_better(own_tasks):
    """It is taken over; below what is proven it is an error of the proof or of the judge."""
    file, name = BOARD / "submissions" / "iopddl" / "solver.json", "vgg-19-8x8-2975MB"
    known = tasks().task("iopddl").problems[name].reference
    cost = known.cost
    for status, bound, words in (
        ("bound", cost - 9, ""), ("optimal", cost + 1, "the proven optimum"),
        ("bound", cost + 1, "the proven lower bound"),
    ):  # fmt: skip
        path = own_tasks("iopddl", name, cost=cost + 1, bound=bound, status=status)
        checked = check_file(file)
        (verdict,) = [v for v in checked.verdicts if v.problem.name == name]
        assert verdict.improves == (not words) and verdict.reaches == (not words)
        assert bool(words) == bool(verdict.reasons) and words in "".join(verdict.reasons)
        (new,) = (improvements([checked]).get("iopddl") or {name: known}).values()
        assert new.cost == cost and (words or new.bound == cost - 9)
        assert read_tasks(path).tasks["iopddl"].problems[name].reference.status == status
    new, old = (Reference(x, 1, "bound", "x") for x in (cost, cost + 1))
    assert references.better(new, old).cost == references.better(old, new).cost == cost
    worse = own_tasks("iopddl", name, cost=cost - 1, bound=cost - 1, status="optimal")
    (verdict,) = [v for v in check_file(file).verdicts if v.problem.name == name]
    assert worse.exists() and not verdict.reaches and not verdict.reasons


def test_references__of_other_software_have_other_costs():
    """Its trivial plan may cost what it did: ZeRO's gathers are none of it."""
    known = tasks().task("hybrid").problems["hybrid-test/gpt-000"]
    trivial = known.trivial
    assert references.has_same_costs(known, trivial, known)
    assert not references.has_same_costs(known, trivial * 1.01, known)
    old = replace(known, settings={**known.settings, "stack": "nemo-2025"})
    assert not references.has_same_costs(known, trivial, old)
    found = replace(known, settings={**known.settings, "expected": 0.5})
    assert references.has_same_costs(found, trivial, known)  # what is found with a reference


def test_references__better_plans_are_listed(own_tasks):
    """Whether the cost model changed, too, or not."""
    known, name = tasks(), "vgg-19-shardy-8"
    cost = known.task("data-parallel").problems[name].reference.cost
    worse = read_tasks(own_tasks("data-parallel", name, cost=1.1 * cost, status="bound"))
    ((task, problem, old, new, *trivial),) = references.changes(worse, known)
    assert (task, problem) == ("data-parallel", name) and trivial[0] == trivial[1]
    assert float(old) == pytest.approx(1.1 * float(new), rel=1e-4)
    assert not references.changes(known, known)
