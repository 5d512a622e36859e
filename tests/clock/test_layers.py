"""Layers of PyTorch modules: which ones, their bytes, their gradients, the command and its file."""

import numpy as np
import pytest
from commands import caller

from parenvs import load_profile
from parenvs.errors import ProfileError

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from parenvs.clock.kernels import measured_layers  # noqa: E402

BATCH = 3


class Skip(nn.Module):
    """Layers of 4, 5 and 6 features; the first output is read by the last layer, too."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(2, 4), nn.Linear(4, 5)
        self.rest = nn.ModuleList([nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 6))])
        self.last = nn.Linear(10, 1)
        self.unused = nn.Linear(100, 100)

    def forward(self, x):
        a = self.one(x)
        b = self.two(a)
        for part in self.rest:
            b = part(b)
        return self.last(torch.cat([2 * a, b], 1))


@pytest.fixture
def skip():
    torch.manual_seed(0)
    return measured_layers(Skip(), (torch.randn(BATCH, 2),), repeats=2, warm_up=0)


@pytest.mark.thorough
def test_measured_layers__bytes_by_hand(skip):
    """A cut behind ``two`` also passes the output of ``one``, which ``last`` still reads."""
    chain = skip.profile
    assert list(chain.names) == ["one", "two", "rest.0.0", "rest.0.1", "last"]
    floats = np.array([4, 4 + 5, 4 + 5, 4 + 6, 1])
    assert chain.cut_bytes.tolist() == (4 * BATCH * floats).tolist()
    weights = [2 * 4 + 4, 4 * 5 + 5, 0, 5 * 6 + 6, 10 + 1]
    assert chain.parameter_bytes.tolist() == [4 * x for x in weights]
    # inputs of linear layers, the ReLU's output
    assert chain.resident_bytes.tolist() == [4 * BATCH * x for x in (2, 4, 5, 5, 10)]
    assert (chain.forward > 0).all() and (chain.backward > 0).all()
    assert skip.samples == BATCH and skip.forward[0].repeats == 2
    assert skip.outside == pytest.approx(sum(x.seconds for x in skip.whole) - chain.seconds.sum())


def test_measured_layers__a_layer_that_runs_twice_has_its_weights_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.layer = nn.Embedding(7, 4), nn.Linear(4, 4)

        def forward(self, words):
            return self.layer(self.layer(self.words(words)))

    found = measured_layers(Twice(), (torch.zeros(2, 3, dtype=torch.long),), repeats=1, warm_up=0)
    assert list(found.profile.names) == ["words", "layer", "layer#2"]
    assert found.profile.parameter_bytes.tolist() == [4 * 28, 4 * 20, 0]
    assert found.profile.cut_bytes.tolist() == [4 * 24] * 3


def test_measured_layers__refuses(monkeypatch):
    with pytest.raises(ProfileError, match="1 layers ran, and a chain needs at least two"):
        measured_layers(nn.Sequential(nn.Linear(2, 2)), (torch.randn(1, 2),))
    with pytest.raises(ProfileError, match="the module fails on its inputs"):
        measured_layers(Skip(), (torch.randn(1, 3),))


def test_profile__command_writes_a_chain(monkeypatch, capfd, tmp_path):
    pytest.importorskip("jax")  # one of its errors is of a JAX function
    (tmp_path / "own_skip.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n    return nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)), loss\n"
        "def loss(made, wanted):\n    return ((made - wanted) ** 2).mean()\n"
        "def batch():\n    return torch.ones(5, 2), torch.ones(5, 1)\n"
        "def wide():\n    return torch.ones(5, 9), torch.ones(5, 1)\n"
    )
    run = caller(monkeypatch, capfd, tmp_path, "profile")
    few = ("--repeats", 1, "--warm-up", 0)
    status, out, err = run("own_skip.py:make", "--args", "batch", "--out", "own.csv", *few)
    assert status == 0, err
    assert "whole step" in out and "plan it with --micro-batch 5" in out
    chain = load_profile(str(tmp_path / "own.csv"), "A")
    assert list(chain.names) == ["0", "1"] and chain.cut_bytes.tolist() == [80, 20]
    text = (tmp_path / "own.csv").read_text()
    assert text.startswith("# parenvs profile own_skip.py:make on cpu\n# one micro-batch of 5;")
    before = sorted(tmp_path.rglob("*.csv"))
    for arguments, words in (
        (("vgg-19",), "a PyTorch module or a JAX function, FILE.py:NAME, not 'vgg-19'"),
        (("none.py:make",), "no file 'none.py'"),
        (("own_skip.py:mak",), "no name 'mak' (did you mean 'make'?)"),
        (("own_skip.py:make",), "takes arguments: give --args"),
        (("own_skip.py:batch", "--args", "batch"), "it fails on its arguments"),
        (("own_skip.py:make", "--args", "wide"), "the module fails on its inputs"),
        (("own_skip.py:make", "--args", "batch", "--device", "gpu"), "--device 'gpu' is unknown"),
        (("own_skip.py:make", "--args", "batch", "--out", "x.json"), "--out must end in .csv"),
        (("own_skip.py:make", "--args", "batch", "--repeats", 0), "--repeats must be from 1"),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (2, ""), arguments
        assert words in err and len(err.splitlines()) == 1, err
    assert sorted(tmp_path.rglob("*.csv")) == before
