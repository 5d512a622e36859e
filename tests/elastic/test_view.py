"""Texts and pictures of jobs on nodes that come and go."""

import elastic_toys as toys
import pytest

from parenvs.agents.elastic.policies import Fastest
from parenvs.tasks.elastic.problem import follow, replay
from parenvs.view import save, text


def test_elastic__text():
    problem = toys.problem("bulk", 30)
    run = follow(problem, problem.drawn(2), Fastest())
    lines = text(run).splitlines()
    assert lines[0] == "toy/bulk: 30:00 min of nodes, fastest"
    assert f"{run.total:,.0f} samples in 30:00 min" in lines[1]
    assert max(map(len, lines)) <= 110
    assert sum("->" in line or "repaired" in line for line in lines) == min(run.changed.sum(), 12)
    assert "nothing chosen yet" in text(replay(problem, problem.drawn(2), []))


@pytest.mark.thorough
def test_elastic__picture(tmp_path):
    problem = toys.problem("bulk", 30)
    course = problem.drawn(2)
    path, drawn = tmp_path / "run.png", []
    for run in (follow(problem, course, Fastest()), replay(problem, course, [])) * 2:
        save(path, run)
        drawn.append(path.read_bytes())
    assert drawn[:2] == drawn[2:]
    assert drawn[0] != drawn[1]
