"""``from_torch``, the command's way to a module, losses, optimizers, and what is refused."""

import sys

import numpy as np
import pytest
from cases import slow

torch = pytest.importorskip("torch", "2.9", reason="extra torch")
jax = pytest.importorskip("jax", reason="extra jax")

from torch._higher_order_ops import while_loop  # noqa: E402
from torch.nn.attention.flex_attention import flex_attention  # noqa: E402

from parenvs import ParenvsError, from_torch  # noqa: E402
from parenvs.graph.checks import ELEMENT_TYPES  # noqa: E402
from parenvs.graph.graph import Role  # noqa: E402
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
    graph = from_torch(module, torch.ones(2, 200_000, device="meta"), optimizer="sgd")
    assert graph.parameter_bytes == 4 * 200_000 * 200_001


def test_from_torch__takes_a_loss_keywords_and_options_of_reading():
    with pytest.warns(UserWarning, match="no loss, so the mean square of its output stands in"):
        from_torch(Dense(), BATCH, optimizer="sgd")
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
def test_step__changes_weights_as_pytorchs_optimizers_do(name):
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


class Student(torch.nn.Module):
    """Learns what a teacher says; codes are the nearest of a table, which is looked at alone."""

    def __init__(self):
        super().__init__()
        self.teacher, self.student = torch.nn.Linear(4, 6), torch.nn.Linear(4, 6)
        self.table = torch.nn.Parameter(torch.ones(6, 6))

    def forward(self, x):
        with torch.no_grad():
            aim = self.teacher(x).softmax(-1)
        out = self.student(x)
        nearest = torch.cdist(out, self.table).argmin(-1)
        return -(aim * out.log_softmax(-1)).sum(-1)[nearest].mean()


def test_roles__weights_without_a_gradient_are_frozen_and_said_to_be():
    """Each requires one, but is used under ``no_grad``, or for whole numbers, alone."""
    with pytest.warns(UserWarning, match="no gradient reaches table, teacher/weight, teacher/bias"):
        graph = from_torch(Student(), BATCH)
    roles = {p: Role(r).name for p, r in zip(graph.paths, graph.parameter_role, strict=True)}
    assert {path for path, role in roles.items() if role == "FROZEN"} == {
        "table",
        "teacher/weight",
        "teacher/bias",
    }
    assert {path for path, role in roles.items() if role == "OPTIMIZER"} == {
        f"{state}/student/{name}" for state in "mv" for name in ("weight", "bias")
    }


def test_errors__name_the_operation_and_the_submodule():
    class Inner(torch.nn.Module):
        def forward(self, x):
            return torch.special.bessel_y0(x) + torch.special.bessel_j0(x)

    whole = torch.nn.Sequential(torch.nn.Linear(4, 4), Inner())
    text = error_of(whole, torch.ones(4, 4), loss=torch.sum)
    line = Inner.forward.__code__.co_firstlineno + 1
    for name in ("special_bessel_y0", "special_bessel_j0"):
        assert f"{name} (in 1, called at {__file__}:{line})" in text
    assert "did you mean" not in text

    class Routed(torch.nn.Module):
        def forward(self, x):
            return x[x[:, 0] > 0] if x.sum() > 0 else x

    routed = torch.nn.Sequential(torch.nn.Linear(4, 4), Routed())
    text = error_of(routed, BATCH)
    assert "submodule 1 (Routed)" in text and "test_read.py:" in text and "mask them" in text
    assert "loss" in error_of(Dense(), BATCH, loss=lambda y: y)
    assert "unknown optimizer 'adma' (did you mean 'adam'?)" in error_of(
        Dense(), BATCH, optimizer="adma"
    )
    assert "no torch.nn.Module" in error_of("model.pt")
    assert "numpy" in error_of(Dense(), np.ones((8, 4)))


class Packed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.LSTM(4, 4, batch_first=True)

    def forward(self, x, lengths):
        x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return torch.nn.utils.rnn.pad_packed_sequence(self.layer(x)[0], batch_first=True)[0].mean()


class Repeated(torch.nn.Module):
    def __init__(self, trained):
        super().__init__()
        self.dense, self.trained = torch.nn.Linear(4, 4), trained

    def forward(self, x):
        y = x if not self.trained else self.dense(x)
        _, y = while_loop(lambda k, y: k < 3, lambda k, y: (k + 1, y * 2), (torch.tensor(0), y))
        return self.dense(y).sum()


class Aligned(torch.nn.Module):
    def __init__(self, direct=False):
        super().__init__()
        self.dense, self.direct = torch.nn.Linear(4, 6), direct

    def forward(self, x, labels, steps, lengths):
        x = self.dense(x).log_softmax(-1)
        loss = torch.ctc_loss if self.direct else torch.nn.functional.ctc_loss
        return loss(x, labels, steps, lengths).mean()


class Flexible(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(4, 24)

    def forward(self, x):
        query, key, value = self.dense(x).view(-1, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return flex_attention(query, key, value, lambda s, b, h, i, j: s + i - j).square().mean()


def test_errors__say_what_to_write_in_the_place_of_kernels_that_are_not_traced():
    labels, counts = torch.ones(3, 2, dtype=torch.long), torch.full((3,), 2)
    for direct in (False, True):
        text = error_of(Aligned(direct), torch.ones(5, 3, 4), labels, counts + 3, counts)
        assert "ctc_loss: a kernel computes it" in text and "return the log probabilities" in text
    text = error_of(Flexible(), torch.ones(2, 16, 4))
    assert "write it as scaled_dot_product_attention" in text


class Told(torch.nn.Linear):
    def forward(self, x):
        print("traced", file=sys.stderr)
        return super().forward(x)


def test_errors__say_what_to_write_in_the_place_of_packed_sequences_and_open_loops(capsys):
    text = error_of(Packed(), torch.ones(3, 5, 4), torch.tensor([5, 3, 2]))
    assert capsys.readouterr().err == ""  # PyTorch lists what it traced, and the line is enough
    from_torch(Told(4, 4), BATCH, loss=torch.sum)
    assert capsys.readouterr().err == "traced\n"
    assert "give the recurrent layer the padded batch, and mask" in text
    assert from_torch(Repeated(False), BATCH, optimizer="sgd").parameter_bytes == 80
    text = error_of(Repeated(True), BATCH)
    assert "a loop whose length depends on values; write a loop of fixed length" in text


def test_exported_program__is_read_as_its_module(tmp_path, monkeypatch):
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), Dense(), torch.nn.BatchNorm1d(4))
    module[0].bias.requires_grad_(False)
    program = torch.export.export(module, (BATCH,))
    mine, theirs = (
        from_torch(thing, *given, loss=torch.nn.functional.mse_loss, targets=(BATCH,))
        for thing, given in ((module, (BATCH,)), (program, ()))
    )
    assert theirs.name == mine.name == "Sequential"
    assert theirs.paths == mine.paths and "1/dense/weight" in mine.paths
    np.testing.assert_array_equal(theirs.parameter_role, mine.parameter_role)
    np.testing.assert_array_equal(theirs.opcode, mine.opcode)
    assert any("1/dense" in name for name in theirs.strings)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch_program.py").write_text(PROGRAM)
    try:
        for name in ("program", "make"):
            graph = graph_of(f"torch_program.py:{name}")
            assert graph.paths[:2] == ["bias", "weight"] and graph.batch_size == 6
        assert graph_of("torch_program.py:pair", "both").batch_size == 6
    finally:
        sys.modules.pop("torch_program", None)


PROGRAM = """
import torch

class Net(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).square().mean()

program = torch.export.export(Net(4, 4), (torch.ones(6, 4),))

def make():
    return program

def pair():
    return torch.export.export(torch.nn.Linear(4, 4), (torch.ones(6, 4),)), torch.nn.MSELoss()

def both():
    return torch.ones(6, 4), torch.ones(6, 4)
"""


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
