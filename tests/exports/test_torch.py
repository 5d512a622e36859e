"""Plans in PyTorch's words: placements and cuts by name, refusals, and equal losses."""

import json
import re
from dataclasses import replace

import pytest

import parenvs
from parenvs import HybridPlan, HybridStage, ParenvsError
from parenvs.cluster import Cluster, choose_cluster
from parenvs.exports.torch import torch_plan
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.partition.problem import PartitionPlan

pytestmark = pytest.mark.thorough

pytest.importorskip("jax")
torch = pytest.importorskip("torch")


def hybrid(graph, stages=((0, 1), (1, 3)), devices=4, tp=2, **options):
    parts = tuple(HybridStage((part,), devices // len(stages), tp=tp) for part in stages)
    plan = HybridPlan(
        "net", graph.fingerprint, Cluster.parse(f"1x{devices}:v100"), "roofline", "fp32",
        batch=8, micro_batch=2, stages=parts,
    )  # fmt: skip
    return replace(plan, **options)


def test_torch_plan__names_placements_and_cuts(graph):
    found = torch_plan(hybrid(graph), graph)
    assert (found.pipe, found.data, found.model) == (2, 1, 2)
    assert found.cuts == ("layers.1",) and found.schedule == "1F1B" and found.micro_batches == 4
    assert found.placements["layers.2.q.weight"] == (None, 0)
    assert found.placements["layers.2.q.bias"] == (None, 0)
    assert found.placements["layers.2.out.weight"] == (None, 1)
    assert "layers.2.out.bias" not in found.placements
    content = json.loads(json.dumps(found.to_json()))
    placement = {"data": "Replicate()", "model": "Shard(dim=0)"}
    assert content["placements"]["layers.0.up.weight"] == placement
    assert found.shapes["layers.0.up.weight"] == (128, 32)
    assert "pipe 2 x model 2, cut before layers.1, 1F1B" in found.words


def test_torch_plan__inputs_of_replicas(graph):
    found = torch_plan(hybrid(graph, ((0, 3),), tp=1), graph)
    assert found.inputs == {"words": (0, None), "target": (0, None)}
    assert (found.data, found.cuts, found.placements) == (4, (), {})
    two, both = choose_cluster(devices=2), {"words": 0, "target": 0}
    plan = PartitionPlan("net", graph.fingerprint, two, both, "inputs")
    assert torch_plan(plan, graph).inputs == found.inputs


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: replace(p, schedule="early"), "schedule: early is none of 1f1b, interleaved"),
        (lambda p: replace(p, stages=(p.stages[0], replace(p.stages[1], tp=1))), "stages[1].tp"),
        (lambda p: replace(p, micro_batch=8), "micro_batch: it makes 1 of a step, and PyTorch's"),
        (lambda p: replace(p, instance="gpt-1.7b"), "gpt-1.7b is a shape, which has no modules"),
    ],
)
def test_torch_plan__refuses_by_field(graph, change, words):
    plan = change(hybrid(graph))
    with pytest.raises(ParenvsError, match=re.escape(words)):
        torch_plan(plan, None if plan.instance == "gpt-1.7b" else graph)


def test_torch_plan__splits_no_convolutions():
    from torch_modules import ResNet

    from parenvs import from_torch, problem

    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 5
    graph = from_torch(ResNet(), images, labels)
    target = problem(graph, "1x2:v100", task="hybrid", batch=8, precision="fp32")
    plan = parenvs.plan(target, "uniform", constraints={"tp": 2, "pp": 1}).plan
    words = "is of a convolution, which PyTorch's DTensors cannot"
    refused(words, plan, graph, call=torch_plan)
    with pytest.raises(ParenvsError, match="is one that torch runs as it is"):
        parenvs.plan(target, "uniform", constraints={"tp": 2, "pp": 1, "framework": "torch"})
    limits = {"pp": 1, "zero": (0,), "framework": "torch"}
    replicas = torch_plan(parenvs.plan(target, "uniform", constraints=limits).plan, graph)
    assert replicas.words == "data 2" and replicas.apart


def refused(words, *args, call=None):
    from parenvs.exports.parallel import Parallel

    with pytest.raises(ParenvsError, match=re.escape(words)):
        (call or Parallel)(*args)


def test_parallel__refuses_other_modules_and_groups(example, graph, alone):
    words, _ = example.batch()
    model = example.make()[0]
    plan = torch_plan(hybrid(graph), graph)
    refused("processes: the plan is for 4, and the group has 1", model, example.loss, plan, words)
    single = replace(plan, pipe=1, model=1, cuts=(), placements={"norm.weight": (None, 0)})
    few = "the plan is for a batch of 8, and the first has 4"
    refused(few, model, example.loss, single, words[:4])
    other = torch.nn.Sequential(model.norm)
    expected = "the plan has no '0.weight', '0.bias'; the module has no 'embedding.weight'"
    refused(expected, other, example.loss, single, words)
    model.norm = torch.nn.LayerNorm(16)
    expected = "norm.weight has the shape (16,), but was"
    refused(expected, model, example.loss, single, words)


def test_parallel__buffers_are_no_parameters(graph, alone):
    """A table of positions is a frozen weight to the plan, and a buffer to the module."""
    from parenvs.exports.parallel import Parallel

    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(4))
            self.register_buffer("places", torch.arange(4.0), persistent=False)

        def forward(self, x):
            return x * self.scale + self.places

    plan = replace(
        torch_plan(hybrid(graph), graph), pipe=1, model=1, cuts=(), placements={}, inputs={},
        shapes={"scale": (4,), "places": (4,)}, micro_batches=2,
    )  # fmt: skip
    inputs, targets = torch.ones(8, 4), torch.zeros(8, 4)
    parallel = Parallel(Shifted(), torch.nn.functional.mse_loss, plan, inputs)
    assert parallel.step(inputs, targets) == 7.5  # the mean of 1, 4, 9 and 16
    words = "[0]: a step is for the shape (8, 4), and this"
    refused(f"inputs{words}", inputs[:6], targets[:6], call=parallel.step)
    refused(f"targets{words}", inputs, targets[:6], call=parallel.step)
    other = replace(plan, shapes={**plan.shapes, "shift": (4,)})
    refused("the module has no 'shift'", Shifted(), torch.nn.functional.mse_loss, other, inputs)


def named_batch():
    random = torch.Generator().manual_seed(0)
    words, labels = (torch.randint(0, 10, (8, 3), generator=random) for _ in range(2))
    return {"words": words, "labels": labels, "mask": torch.ones(8, 3), "places": torch.ones(1, 3)}


class Indexed(torch.nn.Module):
    """Reads a mask by numbers of samples: the batch is two dimensions of one gather."""

    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10)

    def forward(self, words, mask, labels):
        rows, places = torch.arange(len(words))[:, None, None], torch.arange(3)[None, None]
        x = self.words(words) * mask[rows, places].transpose(1, 2)
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def test_apart__replicas_whose_batch_no_dimension_splits(first_of_two):
    """They run on samples of their own, and sum gradients; before, the plan was refused."""
    from parenvs import from_torch
    from parenvs.clock.torch_runs import Meter
    from parenvs.exports.parallel import Parallel

    module = Indexed()
    words, labels, mask, _ = named_batch().values()
    graph = from_torch(module, words, mask, labels)
    plan = hybrid(graph, ((0, 1),), devices=2, tp=1)
    whole = HybridModel.of_graph(graph)
    plan = replace(plan, stages=(HybridStage(((0, len(whole)),), 2),), micro_batch=4)
    found = replace(torch_plan(plan, graph), loss="mean")  # no process counts labels for others
    assert found.apart and any("samples of its own" in words for words in found.notes)
    parallel = Parallel(module, lambda loss, _: loss, found, words, mask, labels)
    parallel.step(words, mask, labels, torch.zeros(8))
    module(words[:4], mask[:4], labels[:4]).backward()  # this process's; sums are its own part
    for own, parameter in zip(module.parameters(), parallel.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, own.grad / 2)
    with Meter() as meter:
        parallel.step(words, mask, labels, torch.zeros(8))
    assert meter.traffic["all-reduce"][0] == len(list(module.parameters()))


class Bare(torch.nn.Module):
    """Layers by a name that loops have, too, as modules or as weights alone."""

    def __init__(self, is_list):
        super().__init__()
        weights = (torch.nn.Parameter(torch.randn(6, 6)) for _ in range(4))
        layers = (torch.nn.Linear(6, 6) for _ in range(4))
        self.body = torch.nn.ModuleList(layers) if is_list else torch.nn.ParameterList(weights)

    def forward(self, x):
        for layer in self.body:
            x = torch.tanh(layer(x) if isinstance(layer, torch.nn.Module) else x @ layer)
        return x


@pytest.mark.parametrize("is_list", [False, True])
def test_plans__of_stages_begin_with_modules(is_list):
    graph = parenvs.from_torch(Bare(is_list), torch.randn(8, 6))
    target = parenvs.problem(graph, "1x2:v100", task="hybrid", batch=8, precision="fp32")
    limits = {"pp": 2, "tp": 1, "micro_batch": 1, "recompute": ("none",), "uneven": True}
    plan = parenvs.plan(target, "uniform", constraints=limits).plan
    if is_list:
        assert torch_plan(plan, graph).cuts == ("body.2",)
        return
    with pytest.raises(ParenvsError, match=r"cuts: no module of its own begins at 'body/2'"):
        torch_plan(plan, graph)
    with pytest.raises(
        ParenvsError, match=r"runs as it is \(cuts: no module of its own begins at 'body/1'"
    ):
        parenvs.plan(target, "uniform", constraints={**limits, "framework": "torch"})


@pytest.mark.slow
@pytest.mark.parametrize("is_tied", [False, True])
def test_plans__of_stages_share_no_weight(example, is_tied):
    """What would be refused as it runs is refused as it is planned, and as it is exported."""
    from parenvs import from_torch, problem

    model, loss = example.make()
    if is_tied:
        model.head.weight = model.embedding.weight
    words, targets = example.batch()
    graph = from_torch(model, words, loss=loss, targets=(targets,))
    target = problem(graph, "1x2:v100", task="hybrid", batch=graph.batch_size, precision="fp32")
    limits = {"pp": 2, "tp": 1, "micro_batch": 1, "recompute": ("none",), "uneven": True}
    plan = parenvs.plan(target, "uniform", constraints=limits).plan
    of_torch = {**limits, "framework": "torch"}
    if not is_tied:
        assert torch_plan(plan, graph).pipe == 2
        assert len(parenvs.plan(target, "uniform", constraints=of_torch).plan.stages) == 2
        return
    with pytest.raises(ParenvsError, match=r"cuts: \w+\.weight is one weight on several stages"):
        torch_plan(plan, graph)
    with pytest.raises(ParenvsError, match=r"torch runs as it is \(cuts: \w+\.weight is one"):
        parenvs.plan(target, "uniform", constraints=of_torch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "names"), [(2, ("operator", "data", "pipeline")), (4, ("pipeline x tensor",))]
)
def test_example__losses_are_those_of_one_device(example, processes, names):
    """Twenty steps; every process compares with one device, and an error ends all of them."""
    # The processes of 2.9 disagree on their messages, and DTensor of 2.10 joins no dimensions of
    # which one is sharded.
    pytest.importorskip("torch", "2.13", reason="plans run on the tested PyTorch")
    found = example.plans(processes)
    example.start(processes, {name: found[name] for name in names})
