from dataclasses import replace

import numpy as np
import pytest
from drawn_orders import drawn

from parenvs.view import figure, rgb_array, save, text


@pytest.fixture
def problem():
    return drawn(np.random.default_rng(0), 3, 6)


def test_text__says_what_the_judge_says(problem):
    report = problem.report(problem.plan([5, 3, 1, 0, 2, 4]))
    lines = text(report).splitlines()
    assert lines[1].startswith("legal")
    assert f"value {report.value:.4f}" in lines[1]
    assert lines[2] == "order  5 3 1 0 2 4"
    assert lines[3].split()[1][int(np.argmax(problem.work[[5, 3, 1, 0, 2, 4]]))] == "█"
    assert max(map(len, lines)) <= 110
    assert "no order yet" in text(problem)
    at_bound = replace(report, length=report.bound_seconds * (1 - 1e-15))
    assert "  0.00% over the machine bound" in text(at_bound) + str(at_bound)


def test_text__of_what_is_no_order(problem):
    words = text(problem.report(problem.plan([0, 0])))
    assert "MALFORMED" in words
    assert "order: has 2 positions" in words
    assert rgb_array(problem.report(problem.plan([0, 0]))).shape == (800, 1280, 3)


@pytest.mark.thorough
def test_figure__has_every_pass(problem, tmp_path):
    drawn_figure = figure(problem.report(problem.plan(range(6))))
    passes = [c for axes in drawn_figure.axes for c in axes.collections if c.get_gid() == "passes"]
    assert len(passes[0].get_paths()) == 2 * 3 * 6
    for name in ("a.png", "b.png"):
        save(tmp_path / name, problem.report(problem.plan(range(6))))
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with pytest.raises(TypeError, match="undecided"):
        text(problem, undecided=[])
