"""Steps of plans on an accelerator: what is given to collectives is there, as NCCL asks."""

from dataclasses import replace

import pytest
from cases import slow

import parenvs
from parenvs import HybridPlan, HybridStage, problem
from parenvs.cluster import Cluster
from parenvs.exports.torch import torch_plan

pytestmark = pytest.mark.thorough

torch = pytest.importorskip("torch", "2.13", reason="patches what PyTorch has inside")


ONE, TWO = (((0, 3),),), (((0, 1),), ((1, 3),))
KINDS = {
    "data": (ONE, 2, 1, 0),
    "tensor": (ONE, 2, 2, 0),
    "data x tensor": (ONE, 4, 2, 0),
    "ZeRO 1": (ONE, 2, 1, 1),
    "ZeRO 2": (ONE, 2, 1, 2),
    "ZeRO 3": (ONE, 2, 1, 3),
    "tensor x ZeRO 3": (ONE, 4, 2, 3),
    "pipe": (TWO, 2, 1, 0),
    "pipe x data": (TWO, 4, 1, 0),
    "pipe x tensor": (TWO, 4, 2, 0),
    "pipe x ZeRO 1": (TWO, 4, 1, 1),
    "pipe x data x tensor": (TWO, 8, 2, 0),
}
"""Name -> layers of stages, devices, ranks of a tensor and ZeRO."""


def plan_of(graph, stages, devices, tp, zero):
    parts = tuple(HybridStage(x, devices // len(stages), tp=tp, zero=zero) for x in stages)
    return HybridPlan(
        "net", graph.fingerprint, Cluster.parse(f"1x{devices}:v100"), "roofline", "fp32",
        batch=8, micro_batch=2, stages=parts,
    )  # fmt: skip


def steps(example, found):
    """Run a step as a process of each stage."""
    from device_only import DEVICE, by_turns

    from parenvs.exports.parallel import Parallel

    words, targets = example.batch()

    def step():
        parallel = Parallel(example.make()[0], example.loss, found, words, device=DEVICE)
        loss = parallel.step(words, targets)
        assert all(x.grad.device.type == DEVICE for x in parallel.parameters())
        return loss

    each = found.data * found.model
    return by_turns(found.pipe * each, range(0, found.pipe * each, each), step)


@pytest.mark.parametrize("kind", [*list(KINDS)[:4], *slow(*list(KINDS)[4:])])
def test_step__collectives_get_tensors_of_the_device(example, graph, kind):
    found = torch_plan(plan_of(graph, *KINDS[kind]), graph)
    assert len(steps(example, found)) == found.pipe


def test_step__by_gpipe_and_by_operators(example, graph):
    """The schedule that users may choose, and a plan that splits operators one by one."""
    found = replace(torch_plan(plan_of(graph, *KINDS["pipe x data"]), graph), schedule="GPipe")
    assert len(steps(example, found)) == found.pipe
    answer = parenvs.plan(problem(graph, "1x2:v100", task="partition"), "greedy")
    found = torch_plan(answer.plan, graph)
    assert found.placements and len(steps(example, found)) == 1
