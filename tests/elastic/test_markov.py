"""Chains: courses against their probabilities, families, what is refused."""

import elastic_toys as toys
import numpy as np
import pytest
from cases import each

from parenvs.agents.elastic.policies import optimal
from parenvs.errors import ParenvsError
from parenvs.fields import read
from parenvs.tasks.elastic.problems import Markov


@pytest.mark.thorough
@each("name", toys.CHAINS)
def test_markov__courses_follow_the_probabilities(name):
    chain, count, intervals = toys.CHAINS[name], 4000, 6
    rng = np.random.default_rng(0)
    drawn = [chain.course(60.0, chain.draw(rng, 60.0, intervals)) for _ in range(count)]
    nodes, joined, left, lost = (np.stack(part) for part in zip(*drawn, strict=True))
    wanted = optimal(toys.problem(name, intervals)).nodes
    assert wanted.sum(axis=1) == pytest.approx(1.0)
    for t in range(intervals):
        seen = np.bincount(nodes[:, t], minlength=chain.nodes + 1) / count
        assert np.abs(seen - wanted[t]).max() < 0.035
    assert (np.diff(nodes.astype(int), axis=1) == joined[:, 1:] - left[:, 1:]).all()
    assert (lost[:, :, -1] == left).all()


def test_markov__bad_input():
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
