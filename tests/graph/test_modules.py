"""Whole modules: loss, gradients and statistics as PyTorch's, FLOPs, and what can be split."""

import pytest

torch = pytest.importorskip("torch", "2.9", reason="extra torch")
pytest.importorskip("jax", reason="extra jax")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_agreement import agreement  # noqa: E402
from torch_modules import MODULES, Gpt  # noqa: E402

from parenvs import Partitioning, verify  # noqa: E402
from parenvs.cluster import choose_cluster  # noqa: E402
from parenvs.graph.graph import Phase, Role  # noqa: E402
from parenvs.graph.sources import lower_module  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODULES))
def test_module__computes_as_pytorch_does(name):
    torch.manual_seed(0)
    module, inputs = MODULES[name]()
    found = agreement(module, inputs)
    assert found.loss_error < 1e-12 and found.statistics_error < 1e-12
    assert found.gradient_error < 1e-9, found
    assert found.gradients == len([p for p in module.parameters() if p.requires_grad])


def megatron(graph, split):
    """The problem and the plan in which the variables of ``split`` are split as it says."""
    problem = Partitioning.build(graph, choose_cluster(devices=4), uneven="forbid")
    named = {
        path: dimension
        for path in (graph.paths[k] for k in graph.variables)
        for end, dimension in split.items()
        if path.endswith(end)
    }
    chosen = problem.chosen(named)
    assert len(named) >= len(split) and not (chosen & problem.classes.blocked).any()
    assert problem.legal(chosen)
    report = problem.report(problem.plan(chosen))
    assert {path: report.plan.partition.get(path) for path in named} == named
    return report.plan


@pytest.mark.slow
def test_gpt__splits_as_megatron_does_and_costs_what_pytorch_counts():
    with torch.device("meta"):
        module, ids = Gpt(dropout=0.1), torch.zeros(4, 16, dtype=torch.long)
    lowered = lower_module(module, (ids, ids))
    graph = lowered.graph()
    plan = megatron(
        graph,
        {
            "qkv/weight": 1, "qkv/bias": 1, "proj/weight": 1,
            "mlp/0/weight": 0, "mlp/0/bias": 0, "mlp/2/weight": 1,
        },
    )  # fmt: skip
    found = verify(graph, plan, lowered)
    assert found.agrees and found.all_reduces == found.predicted_all_reduces
    dots = (graph.opcode == graph.opcodes.index("dot")) & (graph.phase == Phase.FORWARD)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        module(ids, ids)
    assert graph.flops[dots].sum() == counter.get_total_flops()


@pytest.mark.slow
def test_branches__are_branches_of_the_graph():
    module, inputs = MODULES["branches"]()
    module.drop.p = 0.5
    graph = lower_module(module, inputs).graph()
    held = {graph.opcodes[k] for k in graph.opcode.tolist()}
    assert {"conditional", "while", "dot"} <= held and graph.batch_size == 4
    assert len(graph.notes) == 1 and "leading positions of batch inputs" in graph.notes[0]
    roles = dict(zip(graph.paths, map(Role, graph.parameter_role.tolist()), strict=True))
    assert roles["first/weight"] == roles["second/bias"] == Role.VARIABLE
    assert roles["key"] == Role.SCALAR and roles["x"] == Role.BATCH
