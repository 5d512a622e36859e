"""What PyTorch does not do of a module is refused as it is planned and exported, with its cause."""

import re

import pytest

import parenvs
from parenvs import ParenvsError, from_torch, problem
from parenvs.exports.torch import torch_plan

pytestmark = pytest.mark.thorough
pytest.importorskip("torch")
pytest.importorskip("jax")
foreign = pytest.importorskip("foreign")

LIMITS = {
    "zero": {"zero": (3,)}, "samples": {"micro_batch": 2}, "dp": {"zero": (0,)}, "tp": {"tp": 2},
    "pp": {"pp": 2, "micro_batch": 1, "recompute": ("none",), "uneven": True},
}  # fmt: skip


@pytest.mark.parametrize("kind", foreign.KINDS)
def test_causes__refuse_plans_and_exports(kind):
    graph = from_torch(foreign.Foreign(kind), *foreign.batch(kind))
    target = problem(graph, "1x2:v100", task="hybrid", batch=8, precision="fp32")
    causes, field = target.model.work.causes, foreign.KINDS[kind]
    if not field:
        assert causes == {}
        return
    limits = {"pp": 1, "tp": 1, **LIMITS[field]}
    words = re.escape(causes[field])
    with pytest.raises(ParenvsError, match=f"is one that torch runs as it is .*{words}"):
        parenvs.plan(target, "uniform", constraints={**limits, "framework": "torch"})
    plan = parenvs.plan(target, "uniform", constraints=limits).plan
    # An export knows the cuts of its plan, and names no others.
    with pytest.raises(ParenvsError, match=words.partition("'")[0]):
        torch_plan(plan, graph)
