"""Chains of layers made of graphs: shipped ones, and those of users who name nothing."""

from functools import lru_cache

import numpy as np
import pytest
from cases import slow

import parenvs
from parenvs.cluster import Cluster
from parenvs.graph.graph import Phase
from parenvs.instances import load_graph
from parenvs.tasks.hybrid.graph_program import Program
from parenvs.tasks.hybrid.layers import Split
from parenvs.tasks.hybrid.model import HybridModel, load_model
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import STACKS
from parenvs.tasks.hybrid.uniform import Uniform

LAYERS = {"vgg-19": 18, "t5-base": 24, "t5-3b": 48, "t5-11b": 48, "bert-48": 48}
FIRST_AND_LAST = {
    "vgg-19": ("block1_conv1", "fc2"),
    "t5-base": ("encoder/layer_0", "decoder/layer_11"),
    "t5-3b": ("encoder/layer_0", "decoder/layer_23"),
    "t5-11b": ("encoder/layer_0", "decoder/layer_23"),
    "bert-48": ("encoder/layer_0", "encoder/layer_47"),
}
BERT = TransformerShape(
    "bert", 48, 1024, 16, 512, 30522, dropout=False, causal=False, positions=512
)


@lru_cache(8)
def machine(device="a100", precision="bf16", stack="megatron-2022"):
    return STACKS[stack].machine(Cluster.parse(f"1x8:{device}"), precision)


def number(figure):
    return float(np.squeeze(figure))


@pytest.mark.parametrize("name", ["vgg-19", "t5-base", *slow("t5-3b", "t5-11b", "bert-48")])
def test_graph__layers_of_shipped_graphs(name):
    program = Program.of(load_graph(name))
    assert program.layers == LAYERS[name] and not program.twice and not program.notes
    assert (program.borders.names[0], program.borders.names[-1]) == FIRST_AND_LAST[name]
    assert (np.diff(program.borders.bounds) > 0).all()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["vgg-19", "t5-base"])
def test_graph__every_product_of_the_step_has_a_layer_and_its_flops_count_once(name):
    graph, model = load_graph(name), load_model(name)
    program = model.work.program
    heavy = [i for i, opcode in enumerate(program.flow.opcode) if opcode in ("dot", "convolution")]
    assert (program.label[heavy] >= 0).all()
    assert model.flops(graph.batch_size) == pytest.approx(graph.flops[heavy].sum(), rel=1e-12)
    forward = graph.flops[[i for i in heavy if graph.phase[i] == Phase.FORWARD]].sum()
    again = model.flops(graph.batch_size, recompute=True) - model.flops(graph.batch_size)
    assert 0.9 * forward < again < forward  # the head is not recomputed


@pytest.mark.thorough
@pytest.mark.parametrize(("device", "precision"), [("a100", "bf16"), ("h100", "bf16"),
                                                   ("v100", "fp16"), ("a100", "tf32")])  # fmt: skip
def test_graph__a_layer_takes_as_long_by_its_graph_as_by_its_shape(device, precision):
    model, shape = load_model("bert-48"), HybridModel.of_shape(BERT)
    here, split = machine(device, precision), Split(1, 8.0)
    layer, block = model.kinds[model.kind_of[20]], shape.kinds[0]
    seconds = [[number(figure) for figure in x.seconds(here, split)] for x in (layer, block)]
    assert seconds[0][0] == pytest.approx(seconds[1][0], rel=0.08)
    # The gradients of biases are kernels apart, and products of queries, keys and values, which
    # the shape takes as one, do not fill an H100.
    assert seconds[0][1] == pytest.approx(seconds[1][1], rel=0.18 if device == "h100" else 0.12)
    assert seconds[0][4] == pytest.approx(seconds[1][4], rel=0.02)


@pytest.mark.thorough
def test_graph__fused_attention_keeps_no_scores_and_is_one_kernel():
    layer, split = load_model("bert-48").kinds[1], Split(1, 8.0)
    apart, fused = machine(), machine("a100", "bf16", "nemo-2024")
    assert number(layer.seconds(fused, split).attention) == 0.0
    assert number(layer.seconds(apart, split).attention) > 0.0
    kept = [number(layer.saved_bytes(here, split, mode))
            for here, mode in ((fused, "none"), (apart, "selective"))]  # fmt: skip
    assert kept[0] == kept[1]


@pytest.mark.thorough
def test_graph__a_problem_is_planned_and_judged():
    problem = parenvs.problem("t5-base", "a100-2", task="hybrid", batch=128)
    assert problem.precision == "tf32"
    plans = Uniform(tp=[1, 2, 4], pp=[1, 2, 4], dp=[16, 4, 1], micro_batch=4, batch=128)
    seconds, size = plans.judged(problem.model, problem.cluster, problem.machine)
    for number_, length in enumerate(seconds["length"]):
        report = problem.report(problem.uniform_plan(plans, number_))
        assert report.legal, report.reasons
        assert report.length_seconds == pytest.approx(length, rel=1e-9)
    assert (np.diff(size["weights"]) < 0).all()
    assert 0 < report.mfu < 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("layer", "options"),
    [
        ("fused", {"scan": True}),
        *slow(("separate", {})),
        ("experts", {"remat": True}),
        *slow(*(("separate", {way: True}) for way in ("scan", "remat"))),
        *slow(
            ("fused", {}), ("fused", {"remat": True}), ("experts", {}), ("experts", {"scan": True})
        ),
    ],
)
def test_graph__users_graphs_without_names(layer, options):
    pytest.importorskip("jax")
    import unnamed_layers

    step, arguments = unnamed_layers.training_step(getattr(unnamed_layers, layer), 5, **options)
    graph = parenvs.from_jax(step, *arguments)
    model = HybridModel.of_graph(graph)
    alike = max(model.kind_of.count(kind) for kind in set(model.kind_of))
    assert alike == 5 and model.embedding is not None and model.head is not None
    assert model.notes  # it says what it went by
    held = sum(model.work.parameters(label, 1) for label in range(len(model) + 2))
    assert (held - model.tied_parameters) * 4 == graph.parameter_bytes
    assert model.tied_parameters == unnamed_layers.WORDS * unnamed_layers.WIDTH
    assert model.work.program.twice == bool(options.get("scan"))
    seconds = model.kinds[0].seconds(machine(), Split(2, 4.0))
    assert number(seconds.backward) > number(seconds.forward) > 0
    if layer == "separate":
        assert number(seconds.forward_exchange) > 0
