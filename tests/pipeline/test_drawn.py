"""Numbered problems: the same whatever was made before, where and by whom."""

import gymnasium as gym
import pytest

import parenvs
from parenvs.datasets.pipeline.problems import problem_of
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


def test_drawn__names_make_problems_again():
    """Wherever an instance is taken."""
    numbered = problem_of(5, "cnn", "outside")
    fingerprint = numbered.pipeline.profile.fingerprint
    assert parenvs.problem(numbered.name).profile.fingerprint == fingerprint
    env = gym.make("PipelinePlan-v1", instance=numbered.name)
    assert env.reset()[1]["instance"] == numbered.name
    assert env.unwrapped.problem.profile.fingerprint == fingerprint
    for wrong in ("generated-2/outside/cnn", "generated-2/here/cnn/1", "generated-2/inside/cnm/1"):
        with pytest.raises(ParenvsError, match=r"unknown problem .*like generated-2/inside/any/17"):
            parenvs.problem(wrong)
    with pytest.raises(ParenvsError, match="stages: drawn problems have settings"):
        gym.make("PipelinePlan-v1", instance=numbered.name, stages=3)
