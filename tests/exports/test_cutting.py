"""Modules cut into stages: what stages pass on, parts without gradients, refusals."""

import copy

import pytest

from parenvs import ParenvsError

pytestmark = pytest.mark.thorough

torch = pytest.importorskip("torch")
pytest.importorskip("torch", "2.13", reason="plans run on the tested PyTorch")
nn = torch.nn


class Angles(nn.Module):
    """What rotary embeddings do: a table made without gradients, in a module of its own."""

    def __init__(self, switch=torch.no_grad):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.switch = switch

    def forward(self, x):
        """Return two tables of a row."""
        turned = x[:1] * 2
        with self.switch():
            table = turned * self.scale
            return table.cos(), table.sin()


class Layered(nn.Module):
    """Every layer reads the tables, and the last one the input, too."""

    def __init__(self, switch=torch.no_grad):
        super().__init__()
        self.angles = Angles(switch)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

    def forward(self, x):
        """Return rows as long as those of the input."""
        y, (cos, sin) = x, self.angles(x)
        for number, layer in enumerate(self.layers):
            y = layer(y) * cos + sin * number
        return y + x.tanh()


def run(stages, x):
    values = (x,)
    for stage in stages:
        assert tuple(value.shape for value in values) == stage.shapes
        values = stage.wired(values)
    (value,) = values
    return value


@pytest.mark.parametrize("cuts", [("layers.1",), ("layers.1", "layers.2", "layers.3")])
def test_cut__stages_pass_on_what_later_ones_read(cuts):
    torch.manual_seed(0)
    module, x = Layered(), torch.randn(2, 3)
    stages = cut_of(module, cuts, x)
    assert len(stages) == len(cuts) + 1
    first, last = stages[0], stages[-1]
    assert first.shapes == ((2, 3),) and sum(passed for passed, _ in first.gives) == 1  # x
    assert sorted(last.shapes) == [(1, 3), (1, 3), (2, 3), (2, 3)] and last.gives == ((False, 0),)
    # of what it is given, rows that weights made have gradients: no tables, and not the input
    assert sorted(last.given_bytes) == [(12, 0), (12, 0), (24, 0), (24, 24)]
    expected = module(x)
    found = run(stages, x)
    torch.testing.assert_close(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    own = {name: p.grad for stage in stages for name, p in stage.module.named_parameters()}
    for name, parameter in module.named_parameters():
        if name.startswith("angles"):  # no gradient goes into what is made without
            assert parameter.grad is None and own.get(name) is None
        else:
            torch.testing.assert_close(own[name], parameter.grad)


def cut_of(module, cuts, x):
    from parenvs.exports.parallel import cut

    return cut(copy.deepcopy(module), cuts, [x])


def test_cut__refuses_by_name():
    x = torch.randn(2, 3)
    with pytest.raises(ParenvsError, match=r"cuts: Layered has no module 'layer\.1'"):
        cut_of(Layered(), ("layer.1",), x)
    with pytest.raises(ParenvsError, match="cuts: angles runs wrap_with_autocast, and PyTorch"):
        cut_of(Layered(lambda: torch.autocast("cpu", torch.bfloat16)), ("layers.1",), x)

    class Branching(nn.Module):
        """Asks for a value, which no trace has."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            """Return one of two."""
            return self.layer(x) if x.sum() > 0 else x

    with pytest.raises(ParenvsError, match="PyTorch cannot trace and cut Branching") as caught:
        cut_of(Branching(), ("layer",), x)
    assert "\n" not in str(caught.value)

    class Twice(Layered):
        """Returns what its first stage makes, too."""

        def forward(self, x):
            """Return two results."""
            y = self.layers[0](x)
            return self.layers[1](y), y

    with pytest.raises(ParenvsError, match="returns more than its last stage makes"):
        cut_of(Twice(), ("layers.1",), x)
