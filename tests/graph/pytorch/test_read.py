"""``from_torch``, the command's way to a module, losses, optimisers, and what is refused."""

import sys

import numpy as np
import pytest
from cases import slow

torch = pytest.importorskip("torch", "2.9", reason="extra torch")
jax = pytest.importorskip("jax", reason="extra jax")

from parenvs import ParenvsError, from_torch  # noqa: E402
from parenvs.graph.graph import Role  # noqa: E402
from parenvs.graph.proto import ELEMENT_TYPES  # noqa: E402
from parenvs.graph.python_source import graph_of  # noqa: E402
from parenvs.graph.pytorch.export import exported  # noqa: E402
from parenvs.graph.pytorch.step import Step  # noqa: E402

pytestmark = pytest.mark.thorough


class Dense(torch.nn.Module):
    def __init__(self, width=4, returned=None):
        super().__init__()
        self.dense, self.returned = torch.nn.Linear(width, width), returned

    def forward(self, x, scale=None):
        y = self.dense(x) if scale is None else self.dense(x) * scale
        return y if self.returned is None else self.returned(y, x)


BATCH = torch.ones(8, 4)


def error_of(module, *inputs, **keywords):
    with pytest.raises(ParenvsError) as caught:
        from_torch(module, *inputs, **keywords)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_from_torch__allocates_nothing_of_a_huge_module():
    with torch.device("meta"):
        module = Dense(200_000)  # 160 GB
    graph = from_torch(module, torch.ones(2, 200_000, device="meta"), optimiser="sgd")
    assert graph.parameter_bytes == 4 * 200_000 * 200_001


def test_from_torch__takes_a_loss_keywords_and_options_of_reading():
    with pytest.warns(UserWarning, match="no loss, so the mean square of its output stands in"):
        from_torch(Dense(), BATCH, optimiser="sgd")
    graph = from_torch(
        Dense(), BATCH, scale=torch.ones(4), loss=torch.nn.functional.mse_loss, targets=(BATCH,),
        reading={"frozen": "dense/weight", "name": "mine"},
    )  # fmt: skip
    roles = dict(zip(graph.paths, map(Role, graph.parameter_role.tolist()), strict=True))
    assert {path for path, role in roles.items() if role == Role.BATCH} == {"x", "scale", "target"}
    assert roles["dense/weight"] == Role.FROZEN and graph.name == "mine"


def test_from_torch__keeps_masters_of_half_weights():
    module = Dense(returned=lambda y, x: y.square().mean()).bfloat16()
    graph = from_torch(module, BATCH.bfloat16(), masters=True)
    kinds = {
        path: ELEMENT_TYPES[int(graph.element_type[t])][0]
        for path, t in zip(graph.paths, graph.parameter_tensor.tolist(), strict=True)
    }
    assert kinds["dense/weight"] == kinds["x"] == "bf16"
    assert (
        kinds["m/dense/weight"] == kinds["v/dense/weight"] == kinds["master/dense/weight"] == "f32"
    )


@pytest.mark.parametrize("name", ["adam", *slow("momentum", "sgd")])
def test_step__changes_weights_as_pytorchs_optimisers_do(name):
    torch.manual_seed(0)
    module = Dense(returned=lambda y, x: (y - x).square().mean())
    step = Step.of(exported(module, (BATCH,)), name)
    weights = {
        path: module.dense.get_parameter(path[6:]) for path in ("dense/weight", "dense/bias")
    }
    now = {path: jax.numpy.asarray(w.detach().numpy().copy()) for path, w in weights.items()}
    state = jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), step.arguments[1])
    ours = {
        "adam": torch.optim.Adam,
        "momentum": lambda p: torch.optim.SGD(p, 1e-3, 0.9),
        "sgd": lambda p: torch.optim.SGD(p, 1e-3),
    }[name](module.parameters())
    run = jax.jit(step.function)
    for _ in range(3):
        now, state, _, _ = run(now, state, {}, {}, {"x": BATCH.numpy()}, None)
        ours.zero_grad()
        module(BATCH).backward()
        ours.step()
    for path, weight in weights.items():
        np.testing.assert_allclose(now[path], weight.detach().numpy(), 1e-5, 1e-6)


def test_gradients__stop_where_the_module_says():
    def returned(y, x):
        with torch.no_grad():
            still = y.sum()
        return (y * still).mean() + (y.detach() * y).mean()

    from torch_agreement import agreement

    assert agreement(Dense(returned=returned), (BATCH,)).gradient_error < 1e-12


def test_errors__name_the_operation_and_the_submodule():
    class Inner(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.qr(x)[0] + torch.special.bessel_j0(x)

    whole = torch.nn.Sequential(torch.nn.Linear(4, 4), Inner())
    text = error_of(whole, torch.ones(4, 4), loss=torch.sum)
    assert "linalg_qr (in 1)" in text and "special_bessel_j0 (in 1)" in text

    class Routed(torch.nn.Module):
        def forward(self, x):
            return x[x[:, 0] > 0] if x.sum() > 0 else x

    routed = torch.nn.Sequential(torch.nn.Linear(4, 4), Routed())
    text = error_of(routed, BATCH)
    assert "submodule 1 (Routed)" in text and "test_read.py:" in text and "mask them" in text
    assert "loss" in error_of(Dense(), BATCH, loss=lambda y: y)
    assert "optimiser: 'adma' is unknown (did you mean 'adam'?)" in error_of(
        Dense(), BATCH, optimiser="adma"
    )
    assert "no torch.nn.Module" in error_of("model.pt")
    assert "numpy" in error_of(Dense(), np.ones((8, 4)))


SCRIPT = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

def build():
    return Net(), nn.functional.cross_entropy

def args():
    return torch.randn(6, 4), torch.zeros(6, dtype=torch.long)

def alone():
    return torch.randn(6, 4)
"""


def test_python_source__takes_modules_classes_and_what_makes_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch_script.py").write_text(SCRIPT)
    try:
        graph = graph_of("torch_script.py:build", "args")
        assert graph.name == "build" and graph.batch_size == 6 and graph.notes == ()
        assert graph.paths[:2] == ["0/bias", "0/weight"]
        with pytest.warns(UserWarning, match="stands in"):
            assert graph_of("torch_script.py:Net", "alone").variables.size == 4
        with pytest.raises(ParenvsError, match="takes arguments: give --args"):
            graph_of("torch_script.py:build")
    finally:
        sys.modules.pop("torch_script", None)
