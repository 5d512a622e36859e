"""What DTensor exchanges on its own account is predicted, by bytes and seconds."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

import jax  # noqa: E402
import torch.distributed as dist  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from parenvs import from_jax  # noqa: E402
from parenvs.clock import torch_runs as runs  # noqa: E402
from parenvs.clock.comparison import Traced, of_plan  # noqa: E402
from parenvs.cluster import choose_cluster  # noqa: E402
from parenvs.exports.torch import TorchPlan  # noqa: E402
from parenvs.tasks.partition.problem import PartitionPlan  # noqa: E402

SAMPLES, WIDTH, RANK = 8, 6, 4
MODEL = f"""
import torch
from torch import nn
class Latent(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Linear({WIDTH}, {RANK}, bias=False)
    def forward(self, x):
        return self.down(x).softmax(-1).square().sum()
class Normed(Latent):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm({RANK})
    def forward(self, x):
        return self.norm(self.down(x)).square().sum()
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.Parameter(torch.randn(2, 16, 16))
    def forward(self, x):
        ends = torch.tensor([{SAMPLES} // 2, {SAMPLES}], dtype=torch.int32)
        x = x.repeat(1, 3)[:, :16].contiguous()
        return torch._grouped_mm(x, self.experts, offs=ends).square().sum()
def batch():
    return torch.ones({SAMPLES}, {WIDTH}),
"""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Two ranks that split what a softmax reads whole."""
    (tmp_path / "latent_net.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    placements = {"down.weight": (None, 0)}
    return TorchPlan("net", "hybrid", 1, 1, 2, {}, placements, {}, SAMPLES)


@pytest.mark.thorough
def test_traced__has_the_gathers_of_a_softmax_over_a_split_dimension(plan):
    """What it reads is gathered, (8, 4) of 4 bytes, once in each of two processes."""
    found = runs.traced("latent_net.py:Latent", "batch", plan)
    assert found.traffic == {"all-gather": 2.0 * SAMPLES * RANK * 4}
    twice = runs.traced("latent_net.py:Latent", "batch", replace(plan, micro_batches=2))
    assert twice.traffic == found.traffic  # half as many samples, twice
    assert found.notes == () and not dist.is_initialized()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "split", "size"),
    [("Normed", {"down.weight": (None, 0)}, SAMPLES * RANK),
     ("Experts", {"experts": (None, 2)}, 2 * 16 * 16)],
)  # fmt: skip
def test_traced__what_dtensor_has_no_rule_for_is_done_whole(plan, caplog, name, split, size):
    """A norm over a split dimension, and products by expert, whose shapes ask for half precision.

    What each reads is gathered, and nothing else: every rank does all of it.
    """
    found = runs.traced(f"latent_net.py:{name}", "batch", replace(plan, placements=split))
    assert (found.traffic, found.notes) == ({"all-gather": 2.0 * size * 4}, ())
    assert caplog.text == ""


@pytest.mark.thorough
def test_of_plan__takes_what_was_rehearsed_and_says_what_it_costs():
    """8 MB gathered in all by two processes, half of each 4 MB over links of 150 GB/s."""

    def loss(weights, x):
        return jnp.tanh(x @ weights["w"]).sum()

    shape = {"w": jax.ShapeDtypeStruct((6, 4), "float32")}, jax.ShapeDtypeStruct((8, 6), "float32")
    graph = from_jax(jax.value_and_grad(loss), *shape, variables=0, batch=1)
    (path,) = (x for x in graph.paths if x.endswith("w"))
    plan = PartitionPlan("net", graph.fingerprint, choose_cluster(devices=2), {path: 1})
    alone = of_plan(plan, graph, None, "cpu")[1]
    told = Traced({}, traffic={**alone.traffic, "all-gather": 8e6})
    _, expected = of_plan(plan, graph, None, "cpu", trace=lambda found: told)
    assert expected.traffic == {**alone.traffic, "all-gather": 8e6}
    (note,) = set(expected.notes) - set(alone.notes)
    counted = sum(alone.traffic.values())
    assert note.startswith(
        f"PyTorch's tensors exchange {8e6 + counted:,.0f} bytes a step where the plan counts "
        f"{counted:,.0f}: {4e6 / 2 / 150e9:.3g} s more on"
    )
    same = of_plan(plan, graph, None, "cpu", trace=lambda found: Traced({}, traffic=alone.traffic))
    assert same[1].notes == alone.notes
