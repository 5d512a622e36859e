"""Modules of architectures of many kinds: each input has the role that was written down first."""

import pytest
from cases import slow

torch = pytest.importorskip("torch", "2.9", reason="extra torch")
pytest.importorskip("jax", reason="extra jax")

from torch_agreement import agreement  # noqa: E402
from torch_architectures import TORCH_ARCHITECTURES  # noqa: E402
from torch_programs import PROGRAMS, stated  # noqa: E402

from parenvs.graph.graph import Role  # noqa: E402
from parenvs.graph.sources import lower_module  # noqa: E402

ALL = PROGRAMS | TORCH_ARCHITECTURES
DRAWN = {"denoiser"}
"""Programs that draw noise, which is another in PyTorch."""
FIRST = ("bootstrapped", "adapted", "balanced experts", "time in front")


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*FIRST, *slow(*(x for x in ALL if x not in FIRST))])
def test_roles__are_those_stated_by_hand(name):
    torch.manual_seed(0)
    make, samples, truth = ALL[name]
    module, inputs = make()
    graph = lower_module(module, inputs).graph()
    wrong = {}
    for path, role in zip(graph.paths, map(Role, graph.parameter_role.tolist()), strict=True):
        if role != stated(path, truth):
            wrong[path] = (role, stated(path, truth))
    assert wrong == {} and graph.batch_size == samples
    trained = {p.data_ptr(): p.nbytes for n, p in module.named_parameters() if _is(truth, n)}
    assert graph.parameter_bytes == sum(trained.values())


def _is(truth, name):
    path = name.replace(".", "/")
    return any(r == Role.VARIABLE and (path + "/").startswith(x + "/") for x, r in truth.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", [x for x in ALL if x not in DRAWN])
def test_program__computes_as_pytorch_does(name):
    torch.manual_seed(0)
    module, inputs = ALL[name][0]()
    found = agreement(module, inputs)
    assert found.loss_error < 1e-12 and found.gradient_error < 1e-8, found
    assert found.statistics_error < 1e-12
