"""The sets of chains are what their maker draws."""

import numpy as np
import pytest
from cases import each

from benchmarks import make_sets
from parenvs.instances import data_folder
from parenvs.tasks.elastic import problems
from parenvs.tasks.elastic.problems import (
    CHAINS,
    ELASTIC_SETS,
    FAMILIES,
    MEASURED,
    STRIDE,
    TRACES,
    WINDOW,
    draw_course,
    elastic_rows,
    load_elastic,
    window,
    windows,
)


def test_elastic_sets__are_those_of_the_command(tmp_path):
    files = [f"{name}.json" for name in ELASTIC_SETS]
    assert make_sets.main([*files, "--out", str(tmp_path)]) == 0
    for name in ELASTIC_SETS:
        made = (tmp_path / f"{name}.json").read_bytes()
        assert made == (data_folder() / f"{name}.json").read_bytes()
        rows = elastic_rows(name)
        assert {row.split("-")[0] for row in rows} == set(CHAINS)
    chains = [row.chain for name in ELASTIC_SETS for row in elastic_rows(name).values()]
    assert len(set(chains)) == len(chains)  # none is trained on and tested


@pytest.mark.thorough
@each("family", FAMILIES)
def test_banks__are_the_numbered_courses(family):
    kept = problems.bank(family)
    assert len(kept) == len(kept.arrays["gone"]) == problems.COUNT
    for number in (0, len(kept) - 1):
        row = make_sets.elastic_row(family, number)
        assert all(np.array_equal(kept[number][key], row[key]) for key in row)
    shares = kept.arrays["fastest"] / kept.arrays["hindsight"]
    assert 0.5 < shares.mean() < 1 and shares.max() <= 1


@each("family", FAMILIES)
def test_draw_course__is_a_course(family):
    for seed in range(3):
        course = draw_course(np.random.default_rng(seed), family, 20, 90)
        now = course.nodes.astype(int)
        assert (np.diff(now) == course.joined[1:] - course.left[1:]).all()
        assert (now >= 0).all() and (now <= 20).all()
        assert (course.lost[:, -1] == course.left).all()
        assert (np.diff(course.lost, axis=1) >= 0).all()
        beyond = np.arange(21) >= np.concatenate([[0], now[:-1]])[:, None]
        assert (course.lost[beyond] == course.left.repeat(21).reshape(-1, 21)[beyond]).all()
    if family == "gone":
        assert (now == 0).any()


def test_windows__are_those_of_the_traces():
    known = windows()
    assert len(known) == 314
    for trace in TRACES:
        whole = load_elastic(trace).drawn(0)
        for model in MEASURED:
            starts = [first for t, m, first in known.values() if (t, m) == (trace, model)]
            assert set(np.diff(starts)) == {STRIDE} and whole.nodes[starts[0]] > 0
            assert len(whole) - STRIDE < starts[-1] + WINDOW <= len(whole)
        problem = window(f"{trace}-{MEASURED[0]}-003")
        first = known[f"{trace}-{MEASURED[0]}-003"][2]
        course = problem.course()
        assert (course.nodes == whole.nodes[first : first + WINDOW]).all()
        assert (course.lost[1:] == whole.lost[first + 1 : first + WINDOW]).all()
        assert course.joined[0] == course.nodes[0] and not course.left[0]
        assert problem.checkpoints and not problem.is_random
