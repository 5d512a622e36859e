"""Numbered problems: the same whatever was made before, where and by whom."""

import gymnasium as gym
import numpy as np
import pytest
from scipy.stats import ks_2samp

import parenvs
from parenvs.datasets.pipeline import generators, sequence
from parenvs.datasets.pipeline.generators import ratios
from parenvs.datasets.pipeline.sequence import problem_of
from parenvs.errors import ParenvsError

PROBLEM = ("uniform", 2, 95, 0.03423735499382019)


def test_drawn__problems_are_fixed():
    """The problem of a number, by a checksum of its chain."""
    problem = problem_of(17, None, "inside")
    assert problem.name == "generated-2/inside/any/17"
    profile = problem.pipeline.profile
    found = (problem.family, problem.stages, len(profile), float(profile.forward.sum()))
    assert found == PROBLEM
    assert problem_of(17, "cnn", "inside").family == "cnn"
    assert problem_of(3, None, "outside").name == "generated-2/outside/any/3"


@pytest.mark.thorough
def test_drawn__same_distribution():
    """Problems of both versions are drawn alike: ratios, stages, pivots, devices, micro-batches."""
    rng = np.random.default_rng(0)
    old = [generators.draw(rng).pipeline for _ in range(150)]
    new = [problem_of(number, None, "inside").pipeline for number in range(150)]
    figures = [
        *(lambda p, i=i: ratios(p)[i] for i in range(4)),
        lambda p: p.stages,
        lambda p: len(p.profile),
        lambda p: p.cluster.devices,
        lambda p: p.micro_batches,
    ]
    for figure in figures:
        assert ks_2samp([figure(p) for p in old], [figure(p) for p in new]).pvalue > 0.001


def test_drawn__names_make_problems_again():
    """Wherever an instance is taken."""
    numbered = problem_of(5, "cnn", "outside")
    drawn = sequence.drawn_by(np.random.default_rng(3), "cnn", "outside")
    for problem in (numbered, drawn):
        fingerprint = problem.pipeline.profile.fingerprint
        assert parenvs.problem(problem.name).profile.fingerprint == fingerprint
        env = gym.make("PipelinePlan-v1", instance=problem.name)
        assert env.reset()[1]["instance"] == problem.name
        assert env.unwrapped.problem.profile.fingerprint == fingerprint
    for wrong in ("generated-2/outside/cnn", "generated-2/here/cnn/1", "generated-2/inside/cnm/1"):
        with pytest.raises(ParenvsError, match=r"unknown problem .*like generated-2/inside/any/17"):
            parenvs.problem(wrong)
    with pytest.raises(ParenvsError, match="stages: drawn problems have settings"):
        gym.make("PipelinePlan-v1", instance=numbered.name, stages=3)
