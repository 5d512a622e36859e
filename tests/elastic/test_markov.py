"""Chains: courses against their probabilities, families, what is refused."""

import elastic_toys as toys
import numpy as np
import pytest
from cases import each

from parenvs.errors import ParenvsError
from parenvs.fields import read
from parenvs.tasks.elastic.problems import Markov, courses, draw_markov


@each("name", toys.CHAINS)
def test_markov__courses_follow_the_probabilities(name):
    chain, count, intervals = toys.CHAINS[name], 4000, 6
    rng = np.random.default_rng(0)
    drawn = np.stack([chain.uniform(rng, intervals) for _ in range(count)])
    course = courses([chain] * count, drawn)
    wanted = chain.distribution(intervals)
    assert wanted.sum(axis=1) == pytest.approx(1.0)
    for t in range(intervals):
        seen = np.bincount(course.nodes[:, t], minlength=chain.nodes + 1) / count
        assert np.abs(seen - wanted[t]).max() < 0.035
    steps = np.diff(course.nodes.astype(int), axis=1)
    assert (steps == course.joined[:, 1:] - course.left[:, 1:]).all()
    assert (course.lost[:, :, -1] == course.left).all()
    one = courses([chain], drawn[7:8]).of(0)  # alone as among others
    assert all((mine == its[7]).all() for mine, its in zip(one, course, strict=True))


def test_markov__chains_side_by_side():
    """Numbers for nodes that a chain does not have change nothing."""
    small, wide = toys.CHAINS["bulk"], toys.CHAINS["wide"]
    rng = np.random.default_rng(1)
    draws = [chain.uniform(rng, 9) for chain in (small, wide)]
    block = np.ones((2, 9, 7), dtype=np.float32)
    block[0, :, :4], block[1] = draws
    both = courses([small, wide], block)
    alone = courses([small], draws[0][None])
    assert (both.nodes[0] == alone.nodes[0]).all()
    assert (both.lost[0, :, :4] == alone.lost[0]).all()


def test_markov__bad_input():
    with pytest.raises(ParenvsError, match=r"unknown family 'bulky' \(did you mean 'bulk'"):
        draw_markov(np.random.default_rng(0), "bulky", 8)
    good = {k: list(x) if isinstance(x, tuple) else x for k, x in vars(toys.CHAINS["calm"]).items()}
    for change, words in (
        ({"nodes": 65}, "field 'nodes' must be a whole number from 1 to 64, not 65"),
        ({"start": 4}, "start must be at most 3, the nodes, not 4"),
        ({"leave": [1.5]}, r"field 'leave\[0\]' must be a probability from 0 to 1, not 1.5"),
        ({"leave": []}, "lists of equal length"),
        ({"leave": 0.5}, "field 'leave' must be a list, not 0.5"),
        ({"joins": [0.5]}, r"unknown field 'joins' \(did you mean 'join'"),
    ):
        with pytest.raises(ParenvsError, match=f"here: .*{words}"):
            read(Markov, {**good, **change}, "here")
    with pytest.raises(ParenvsError, match="field 'start' is missing"):
        read(Markov, {k: v for k, v in good.items() if k != "start"}, "here")
