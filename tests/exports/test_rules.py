"""Weights that are several in one, of which each rank holds a share of every part."""

import json

import pytest
from cases import each
from commands import caller

from parenvs.errors import ParenvsError

torch = pytest.importorskip("torch", "2.13", reason="plans run on the tested PyTorch")

PARTS, WIDTH = 3, 4


@pytest.fixture
def product(first_of_two):
    """A product with three weights in one, of which this rank has half of each, and the whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
    from torch.distributed.tensor.experimental import implicit_replication
    from torch.distributed.tensor.placement_types import _StridedShard
    from torch.nn.utils import parametrize

    from parenvs.exports.rules import Apart, Shares

    torch.manual_seed(0)
    layer = torch.nn.Linear(5, PARTS * WIDTH)
    x = torch.randn(2, 6, 5)
    whole = layer(x).detach()
    mesh = init_device_mesh("cpu", (2,))
    placements = [_StridedShard(0, split_factor=PARTS)]
    for name in ("weight", "bias"):
        weight = getattr(layer, name).detach()
        placed = distribute_tensor(weight, mesh, placements, src_data_rank=None)
        setattr(layer, name, torch.nn.Parameter(placed))
        parametrize.register_parametrization(layer, name, Shares(PARTS), unsafe=True)
    with implicit_replication(), Apart():
        yield layer(DTensor.from_local(x, mesh, [Replicate()], run_check=False)), whole


def share(whole):
    """This rank's half of the last dimension."""
    return whole.chunk(2, -1)[0]


def test_apart__each_rank_takes_its_shares(product):
    made, whole = product
    parts = whole.split(WIDTH, -1)
    as_parts = whole.view(2, 6, PARTS, WIDTH)
    for what, found, wanted in [
        ("split", made.split(WIDTH, dim=2), [share(x) for x in parts]),
        ("split by sizes", made.split([WIDTH, 2 * WIDTH], -1)[:1], [share(parts[0])]),
        ("what is left is split", made[..., WIDTH:].chunk(2, -1), [share(x) for x in parts[1:]]),
        ("chunk", torch.chunk(made, PARTS, -1), [share(x) for x in parts]),
        ("slices", [made[:, :, WIDTH : 2 * WIDTH]], [share(parts[1])]),
        ("view", [made.view(2, 6, PARTS, WIDTH)], [share(as_parts)]),
        ("reshape", [made.reshape(2, -1, PARTS, 2, 2)], [as_parts.view(2, 6, 3, 2, 2)[..., :1, :]]),
        ("unflatten", [made.unflatten(-1, (PARTS, WIDTH))], [share(as_parts)]),
        ("in rows", made.view(-1, 12).split(WIDTH, 1), [share(x.view(12, 4)) for x in parts]),
        ("floats", made.float().split(WIDTH, 2), [share(x) for x in parts]),
    ]:
        assert len(found) == len(wanted), what
        for own, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(own.to_local(), other, msg=what)
    assert made.split(WIDTH, -1)[0].shape == (2, 6, WIDTH)


@each(
    ("use", "words"),
    [
        (lambda x: torch.tanh(x), "3 in one goes into tanh before it is taken apart"),
        (lambda x: x.split(6, -1), r"3 parts of 4 each is cut into \[6, 6\]"),
        (lambda x: x[..., 2:6], r"cut into \[2, 4, 6\]"),
        (lambda x: x @ torch.ones(12, 2), "3 in one goes into matmul before it is taken apart"),
        (lambda x: torch.nn.functional.linear(x, torch.ones(2, 12)), "3 in one goes into linear"),
        (lambda x: x[0], "an index of a product with parts"),
        (lambda x: x.split(1, 0), "split along dimension 0"),
        (lambda x: x.view(2, 6, 4, 3), r"3 parts, .* is seen as \(2, 6, 4, 3\)"),
    ],
)
def test_apart__refuses_what_mixes_parts(product, use, words):
    with pytest.raises(ParenvsError, match=words):
        use(product[0])


def test_whole__what_no_rule_splits_is_done_by_every_rank(first_of_two):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    from parenvs.exports.rules import Whole

    mesh = init_device_mesh("cpu", (2,))
    own = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    x = DTensor.from_local(own, mesh, [Replicate()], run_check=False).requires_grad_()
    with pytest.raises(NotImplementedError):
        torch.nn.functional.adaptive_avg_pool2d(x, 1)
    with Whole():
        pooled = torch.nn.functional.adaptive_avg_pool2d(x, 1)
        changed = DTensor.from_local(torch.zeros(3, 2), mesh, [Replicate()], run_check=False)
        changed[1:] = 2.0
        part = DTensor.from_local(torch.zeros(3, 2), mesh, [Shard(1)], run_check=False)
        with pytest.raises(NotImplementedError):
            part[1:] = 2.0
    torch.testing.assert_close(pooled.to_local(), torch.nn.functional.adaptive_avg_pool2d(own, 1))
    pooled.sum().backward()
    torch.testing.assert_close(x.grad.to_local(), torch.full_like(own, 1 / 16))
    assert changed.to_local().tolist() == [[0.0] * 2, [2.0] * 2, [2.0] * 2]


def test_parallel__shares_of_parts_are_not_shared_by_replicas_again():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from parenvs.exports.parallel import Parallel
    from parenvs.exports.torch import TorchPlan

    plan = TorchPlan(
        "net", "hybrid", 1, 2, 2, {"weight": (3, 4, 4), "bias": (3, 4)},
        {"weight": (None, 1)}, {}, batch=8, zero=2,
    )  # fmt: skip
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        with pytest.raises(ParenvsError, match="zero: weight is 3 weights in one"):
            Parallel(torch.nn.Linear(4, 12), lambda x: x.mean(), plan, torch.ones(8, 4))
    finally:
        torch.distributed.destroy_process_group()


MODEL = """
import torch
from torch import nn
F = nn.functional

class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 24) / 3), nn.Parameter(torch.zeros(24))
    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, 8), self.weight).view(*x.shape[:-1], 24)

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.qkv, self.turned = nn.Embedding(10, 8), nn.Linear(8, 24), Turned()
        self.gates, self.slices = nn.Linear(8, 32, bias=False), nn.Linear(8, 32)
        self.out, self.again = nn.Linear(8, 8), nn.Linear(8, 8)
        self.down, self.lower = nn.Linear(16, 8), nn.Linear(16, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.once = nn.Parameter(torch.randn(32, 8))
    def attended(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    def forward(self, words, labels=None):
        x = self.words(words)
        b, t, _ = x.shape
        seen = self.qkv(x).reshape(b, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attended(*seen.unbind(0)))
        heads = [y.view(b, t, 2, 4).transpose(1, 2) for y in self.turned(x).split(8, dim=2)]
        x = x + self.again(self.attended(*heads))
        gate, up = self.gates(x).chunk(2, dim=-1)
        x = x + self.down(F.silu(gate) * up)
        both = self.slices(x)
        x = x + self.lower(both[..., :16] * torch.tanh(both[..., 16:]))
        left, right = F.linear(x, self.once).chunk(2, -1)
        x = x + self.down(left * right)
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        x = self.layer(x, src_mask=future, src_key_padding_mask=words == 9)
        return F.cross_entropy((x @ self.words.weight.T).flatten(0, 1), labels.flatten())

def batch():
    words = torch.arange(32).reshape(8, 4) % 10
    return {"words": words, "labels": (words * 3) % 10}
"""


@pytest.mark.slow
def test_run__fused_weights_are_taken_apart_in_six_ways(monkeypatch, capfd, tmp_path):
    """Views, pieces, halves, slices, attention, and a weight of the module itself: one device."""
    (tmp_path / "own_several.py").write_text(MODEL, encoding="utf-8")
    source = ("own_several.py:Own", "--args", "batch")
    call = caller(monkeypatch, capfd, tmp_path)
    options = ("--task", "hybrid", "--cluster", "1x2:v100", "--tp", 2, "--stages", 1, "--batch", 8)
    status, _, err = call("plan", *source, *options, "--precision", "fp32", "--out", "p.json")
    assert status == 0, err
    status, out, err = call("run", "p.json", *source, "--repeats", 1, "--json")
    assert status == 0, err
    found = json.loads(out)
    assert found["agrees"] and found["losses"] == pytest.approx(found["single"], rel=1e-5)
    from parenvs import load_plan
    from parenvs.exports.torch import torch_plan

    split = torch_plan(load_plan(tmp_path / "p.json")).placements
    weights = {f"{name}.weight" for name in ("qkv", "turned", "gates", "slices")}
    assert {"layer.self_attn.in_proj_weight", "once", *weights} <= set(split)


@each("loss", ["mse", "smooth_l1", "huber", "soft_margin", "binary_cross_entropy"])
@each("way", ["mean", "sum"])
def test_means__gradients_are_those_of_all_samples(first_of_two, loss, way):
    """Of two ranks: this one's part of the gradient, of a mean over the samples of both."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.nn import functional

    from parenvs.exports.rules import Means

    torch.manual_seed(0)
    x, y = torch.rand(8, 3), torch.rand(8, 3)
    name = loss if loss.startswith("binary") else f"{loss}_loss"
    functions = [getattr(functional, name)]
    numbers = {"mean": 1, "sum": 2}
    aten = getattr(torch.ops.aten, name)
    given = (None, numbers[way]) if loss.startswith("binary") else (numbers[way],)
    whole = x.clone().requires_grad_()
    functions[0](whole, y, reduction=way).backward()
    mesh = init_device_mesh("cpu", (2,))

    def halved(whole):
        return DTensor.from_local(whole.detach().chunk(2)[0], mesh, [Shard(0)], run_check=False)

    for call in (
        lambda a, b: functions[0](a, b, reduction=way),
        lambda a, b: aten(a, b, *given),
        lambda a, b: aten.default(a, b, *given),
    ):
        half = halved(x).requires_grad_()
        with Means():
            call(half, halved(y)).backward()
        torch.testing.assert_close(half.grad.to_local(), whole.grad.chunk(2)[0])
