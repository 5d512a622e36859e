"""LoRA: frozen weights have no gradients, no optimizer state, and are gathered like others."""

from dataclasses import replace
from functools import partial

import pytest

import parenvs
from parenvs import Cluster, ParenvsError, StageProfile
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.layers import Split, matmul_seconds
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.stack import STACKS
from parenvs.tasks.hybrid.uniform import Uniform, uniform_stages
from parenvs.tasks.hybrid.view import answer

jax, torch, nn = map(pytest.importorskip, ("jax", "torch", "torch.nn"))

LAYERS, WIDTH, RANK, WORDS = 3, 16, 2, 32
TRAINED = 4 * RANK * WIDTH  # of a layer
LAYER = 5 * WIDTH * WIDTH + WIDTH + TRAINED
WEIGHTS = LAYERS * LAYER + 2 * WORDS * WIDTH + WIDTH
CLUSTER = Cluster.parse("1x4:h100")
hybrid = partial(parenvs.problem, cluster=CLUSTER, task="hybrid", batch=8)
MACHINE = STACKS["llama-2024"].machine(CLUSTER, "bf16")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [(WIDTH, WIDTH)] * 5 + [(WIDTH, RANK), (RANK, WIDTH)] * 2
        matrices = (nn.Linear(*size, bias=False) for size in sizes)
        self.q, self.k, self.v, self.o, self.up, *adapters = matrices
        self.norm, self.adapters = nn.RMSNorm(WIDTH), nn.ModuleList(adapters)

    def forward(self, x):
        y, (a, b, c, d) = self.norm(x), self.adapters
        q, v = self.q(y) + b(a(y)), self.v(y) + d(c(y))
        x = x + self.o(nn.functional.scaled_dot_product_attention(q, self.k(y), v))
        return x + self.up(x).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.RMSNorm(WIDTH)
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))
        for name, weight in self.named_parameters():
            weight.requires_grad_("adapters" in name)

    def forward(self, words, labels):
        logits = self.head(self.norm(self.layers(self.words(words) * self.scale)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def arguments():
    return torch.arange(64).reshape(8, 8) % WORDS, torch.arange(64).reshape(8, 8) % 7


@pytest.fixture(scope="module")
def graph():
    return parenvs.from_torch(Net(), *arguments())


def test_memory__of_adapters_by_hand(graph):
    plans = Uniform(tp=1, pp=1, dp=4, micro_batch=1, batch=8, zero=[0, 1, 2, 3], gradient_bytes=4.0)
    whole = parenvs.from_torch(Net().requires_grad_(), *arguments())
    models = [HybridModel.of_graph(x) for x in (graph, whole)]
    held = plans.memory(models[0], MACHINE)
    trained, whole = LAYERS * TRAINED, WEIGHTS + WIDTH  # and a buffer
    # ZeRO 3 gathers two layers; from ZeRO 2 on the gradients of one are whole.
    weights, sums = whole / 4 + 2 * LAYER, trained / 4 + TRAINED
    assert held["weights"] == pytest.approx([2 * x for x in (whole, whole, whole, weights)])
    assert held["gradients"] == pytest.approx([4 * x for x in (trained, trained, sums, sums)])
    assert held["optimizer"] == pytest.approx([12 * trained / x for x in (1, 4, 4, 4)])
    stages = uniform_stages(models[0], plans, 1)
    lora, full = (formulas.step(x, CLUSTER, MACHINE, stages) for x in models)
    assert (lora.length < full.length).all() and (lora.gathers <= full.gathers).all()


def replicas(graph, zero):
    problem = hybrid(graph, cluster="1x2:v100", precision="fp32", stack="roofline")
    limits = {"tp": 1, "pp": 1, "zero": (zero,), "micro_batch": 2, "framework": "torch"}
    return parenvs.plan(problem, "uniform", constraints=limits).plan


def test_zero__gathers_all_weights_and_scatters_gradients_of_trained_ones(graph):
    from parenvs.clock.comparison import of_plan

    for zero, gathers in ((2, 1), (3, 4)):  # of ZeRO 3, in both passes of two micro-batches
        sent = {"all-gather": gathers * 8 * WEIGHTS, "reduce-scatter": 16 * LAYERS * TRAINED}
        assert of_plan(replicas(graph, zero), graph, None, "cpu")[1].traffic == sent


@pytest.mark.slow
def test_zero__sends_what_is_predicted(graph, tmp_path):
    from parenvs.clock.run import run

    graph.save(tmp_path / "graph.npz")
    replicas(tmp_path / "graph.npz", 3).save(tmp_path / "plan.json")
    result = run(tmp_path / "plan.json", f"{__file__}:Net", "arguments", steps=2)
    assert result.agrees and all(x.predicted == x.bytes for x in result.traffic.values())


def test_exports__that_train_every_weight_are_refused(graph):
    plan = parenvs.plan(hybrid(graph), "uniform", constraints={"tp": 1}).plan
    for name in ("megatron", "torchtitan"):
        with pytest.raises(ParenvsError, match=r"train every weight, .*\(head/weight and "):
            parenvs.export(plan, name, graph)
        with pytest.raises(ParenvsError, match=r"none of the \d+ uniform plans is one that"):
            parenvs.plan(hybrid(graph), "uniform", constraints={"framework": name})
    # Buffers are never trained.
    assert parenvs.export(plan, "megatron", replace(graph, buffers=("scale", *graph.frozen)))


def test_backward__of_a_forward_pass_has_no_products_for_frozen_weights():
    def forward(weights, x):
        return (x @ weights["a"] @ weights["b"] @ weights["head"] @ weights["last"]).sum()

    weights = {x: jax.ShapeDtypeStruct((8, 8), "float32") for x in ("a", "b", "head", "last")}
    backward, x = [], jax.ShapeDtypeStruct((4, 8), "float32")
    for variables, factors in (("head", [0, 0, 1, 1]), (0, [2, 2, 2, 2])):
        graph = parenvs.from_jax(forward, weights, x, variables=variables, batch=1)
        profile = StageProfile.from_graph(graph, CLUSTER.device, 4)
        products = profile.forward > profile.forward.max() / 2
        assert (profile.backward / profile.forward)[products].tolist() == factors
        model = HybridModel.of_graph(graph)
        assert model.flops(4) == 2 * 4 * 8 * 8 * (4 + sum(factors))
        layers = [*(model.kinds[kind] for kind in model.kind_of), model.head]
        seconds = [layer.seconds(MACHINE, Split(1, 4.0)) for layer in layers if layer]
        backward.append(sum(x.backward for x in seconds))
    saved = float(backward[1] - backward[0])
    assert saved == pytest.approx(6 * float(matmul_seconds(MACHINE, 4, 8, 8)))


@pytest.mark.parametrize("trains", [True, False])
def test_tied__weights_are_trained_beside_frozen_ones(trains):
    module = Net()
    module.head.weight = module.words.weight.requires_grad_(trains)
    model = HybridModel.of_graph(parenvs.from_torch(module, *arguments()))
    held = Uniform(tp=1, pp=1, dp=1, micro_batch=1, batch=8).memory(model, MACHINE)
    assert held["optimizer"] == 12 * (LAYERS * TRAINED + trains * WORDS * WIDTH)


def test_precision__of_modules_is_mixed_unless_told(graph, tmp_path):
    graph.save(tmp_path / "graph.npz")
    assert answer(parenvs.plan(hybrid(tmp_path / "graph.npz")).report).endswith(" in bf16")
    assert (
        hybrid(graph).precision == "bf16" and hybrid(graph, cluster="1x4:v100").precision == "fp16"
    )
    assert hybrid(replace(graph, buffers=None)).precision == "tf32"  # a function of fp32
