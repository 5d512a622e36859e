"""Hybrid plans by rule."""

import numpy as np
import pytest
from cases import each

import parenvs
from parenvs.agents.hybrid.heuristics import PURE, megatron, pure, random_plan
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.hybrid.space import Constraints, UniformSpace


@pytest.fixture(scope="module")
def problem():
    return parenvs.problem("llama3-8b", "h100-2", task="hybrid", batch=64)


def test_megatron__rule(problem):
    """tp fills a server, pp is the least that fits, chunks as many as there can be, ZeRO 1."""
    big = parenvs.problem("llama3-70b", "16x8:h100", task="hybrid", batch=1024)
    answer = megatron(big)
    plan, stage = answer.plan, answer.plan.stages[0]
    assert answer.report.legal and not answer.proven
    assert (stage.tp, stage.zero, plan.micro_batch, plan.sequence_parallel) == (8, 1, 1, True)
    assert (len(plan.stages), plan.chunks) == (2, 40)
    alone = Constraints(tp=8, pp=1, zero=(1,), recompute=("selective",), context=1)
    fewer = UniformSpace.build(big, alone)
    assert not fewer.fits[fewer.plans.micro_batch == 1].any()
    assert len(megatron(problem).plan.stages) == 1


@each("kind", PURE)
def test_pure__one_axis(problem, kind):
    answer = pure(problem, kind)
    plan = answer.plan
    ranks = {
        "pp": len(plan.stages), "tp": max(stage.tp for stage in plan.stages),
        "dp": max(stage.devices // stage.tp for stage in plan.stages),
    }  # fmt: skip
    own = {"tensor": "tp", "pipeline": "pp"}.get(kind, "dp")
    assert answer.report.legal and answer.method == kind
    assert {axis for axis, count in ranks.items() if count > 1} == {own}
    assert (plan.stages[0].zero == 3) == (kind == "zero-3")
    with pytest.raises(ParenvsError, match="unknown kind"):
        pure(problem, "expert")


def test_random_plan__fits_and_follows_the_seed(problem):
    drawn = [random_plan(problem, np.random.default_rng(seed)).plan for seed in (0, 0, 1, 2)]
    assert drawn[0] == drawn[1] and len({str(plan.to_json()) for plan in drawn}) > 1
    assert all(problem.report(plan).legal for plan in drawn)


def test_rules__say_what_is_missing():
    problem = parenvs.problem("gpt3-175b", "h100-2", task="hybrid", batch=64)
    for call in (megatron, lambda p: pure(p, "data-parallel")):
        with pytest.raises(InfeasibleError, match=r"needs [\d,]+ bytes more"):
            call(problem)
