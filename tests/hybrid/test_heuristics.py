"""Hybrid plans by rule."""

import numpy as np
import pytest

import parenvs
from parenvs.agents.hybrid.baseline import random_plan, rule_of_thumb
from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.space import Constraints, UniformSpace


@pytest.fixture(scope="module")
def problem():
    return parenvs.problem("llama3-8b", "h100-2", task="hybrid", batch=64)


def test_rule_of_thumb(problem):
    """tp fills a server, pp is the least that fits, chunks as many as there can be, ZeRO 1."""
    big = parenvs.problem("llama3-70b", "16x8:h100", task="hybrid", batch=1024)
    answer = rule_of_thumb(big)
    plan, stage = answer.plan, answer.plan.stages[0]
    assert answer.report.legal and not answer.proven
    assert (stage.tp, stage.zero, plan.micro_batch, plan.sequence_parallel) == (8, 1, 1, True)
    assert (len(plan.stages), plan.chunks) == (2, 40)
    alone = Constraints(tp=8, pp=1, zero=(1,), recompute=("selective",), context=1)
    fewer = UniformSpace.build(big, alone)
    assert not fewer.fits[fewer.plans.micro_batch == 1].any()
    assert len(rule_of_thumb(problem).plan.stages) == 1


def test_random_plan__fits_and_follows_the_seed(problem):
    drawn = [random_plan(problem, np.random.default_rng(seed)).plan for seed in (0, 0, 1, 2)]
    assert drawn[0] == drawn[1] and len({str(plan.to_json()) for plan in drawn}) > 1
    assert all(problem.report(plan).legal for plan in drawn)


def test_rule_of_thumb__says_what_is_missing():
    problem = parenvs.problem("gpt3-175b", "h100-2", task="hybrid", batch=64)
    with pytest.raises(InfeasibleError, match=r"needs [\d,]+ bytes more"):
        rule_of_thumb(problem)
