"""The expert against Megatron's plans made by hand, on layers whose weights have no names."""

import itertools
import re

import pytest
from cases import slow

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import unnamed_layers as layers
from jax_versions import jax_that_names_derivatives
from unnamed_layers import LAYERS, PLANS, floats, training_step

from parenvs import from_jax
from parenvs.agents.partition.planners import expert
from parenvs.cluster import choose_cluster
from parenvs.errors import InfeasibleError
from parenvs.tasks.partition.game import PartitionSpace
from parenvs.tasks.partition.problem import Partitioning

FUSED = [layers.fused, layers.fused_gate]
QUICK = [layers.biases, layers.grouped, layers.cross, layers.transposed, *FUSED]


def answer_of(step, args, rules="shardy", parts=True, **options):
    """The expert's answer, whose plan is legal and leaves the batch whole."""
    graph = from_jax(step, *args, name="unnamed", parts=parts)
    problem = Partitioning.build(graph, choose_cluster(devices=2), rules, **options)
    answer = expert(PartitionSpace.of(problem))
    assert answer.report.legal, answer.report.reasons
    assert not problem.partition(answer.report.chosen, "inputs")
    return answer


def plan_of(answer):
    return dict(answer.plan.partition)


def by_layer(plan, count=2, scan=False):
    """Megatron's plan of one layer for all of them, by path."""
    if scan:
        return {f"1/{weight}": dim + 1 for weight, dim in plan.items()}
    return {f"1/{k}/{weight}": dim for k in range(count) for weight, dim in plan.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("rules", ["shardy", *slow("automap")])
@pytest.mark.parametrize(
    "layer",
    [*QUICK, *slow(*(one for one in LAYERS if one not in QUICK))],
    ids=lambda layer: layer.__name__,
)
def test_expert__is_megatron_by_hand(layer, rules):
    """Nothing but the blocks: neither the tied head, nor the pooler and classifier."""
    answer = answer_of(*training_step(layer), rules)
    assert plan_of(answer) == by_layer(PLANS[layer])
    assert bool(answer.notes) == (layer is layers.folded)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "layer", [layers.separate, layers.experts], ids=lambda layer: layer.__name__
)
@pytest.mark.parametrize("way", ["scan", *slow("remat")])
def test_expert__layers_in_a_loop_or_computed_again(layer, way):
    answer = answer_of(*training_step(layer, **{way: True}))
    assert plan_of(answer) == by_layer(PLANS[layer], scan=way == "scan")


@pytest.mark.thorough
def test_expert__forward_pass_alone():
    step, args = training_step(layers.separate)
    answer = answer_of(lambda params, batch: step(params, batch)[0], args)
    assert plan_of(answer) == by_layer(PLANS[layers.separate])


@pytest.mark.thorough
def test_expert__says_which_blocks_stay_whole_and_why():
    jax_that_names_derivatives()
    whole = answer_of(*training_step(layers.fused), parts=False)
    assert plan_of(whole) == by_layer({2: 1, 3: 0})
    (note,) = whole.notes
    assert re.fullmatch(
        r"2 attention classes stay whole: instruction \d+, slice \(jit\(step\)/jvp\(\)/split\) "
        r"cannot split dimension 2 of f32\[4,12,32\]",
        note,
    )
    (note,) = answer_of(*training_step(layers.folded)).notes
    assert re.match(r"2 attention classes stay whole: instruction \d+, reshape ", note)
    whole = answer_of(*training_step(layers.fused_gate), parts=False)
    assert plan_of(whole) == by_layer({0: 1, 1: 1, 2: 1, 3: 0})
    (note,) = whole.notes
    assert re.match(r"2 feed-forward classes stay whole: instruction \d+, slice ", note)
    step, args = training_step(layers.separate)
    graph = from_jax(step, *args, name="unnamed")
    problem = Partitioning.build(graph, choose_cluster(devices=8), uneven="forbid")
    answer = expert(PartitionSpace.of(problem))  # 4 heads on 8 devices
    assert plan_of(answer) == by_layer({4: 1, 5: 0})
    assert "2 attention classes stay whole: dimension" in answer.notes[0]
    assert answer.notes[0].endswith("is no multiple of 8 devices (uneven=forbid)")


def chain(widths, act=jax.nn.relu):
    """Dense layers with biases, one after the other, and a mean."""
    params = [[floats(*pair), floats(pair[1])] for pair in itertools.pairwise(widths)]

    def forward(params, x):
        for kernel, bias in params[:-1]:
            x = act(x @ kernel + bias)
        return jnp.square(x @ params[-1][0] + params[-1][1]).mean()

    return forward, (params, floats(16, widths[0]))


def test_expert__chain_of_dense_layers_by_turns():
    """Columns, rows, columns, rows; the last by columns if its turn is that."""
    assert plan_of(answer_of(*chain([8, 12, 20, 28, 36]))) == {
        "0/0": 1, "0/1": 0, "1/0": 0, "2/0": 1, "2/1": 0, "3/0": 0,
    }  # fmt: skip
    three = {"0/0": 1, "0/1": 0, "1/0": 0, "2/0": 1, "2/1": 0}
    assert plan_of(answer_of(*chain([8, 12, 20, 28]))) == three


def test_expert__mixing_tokens_without_attention():
    """Two hidden widths a layer, pooler and classifier; the tied embedding stays whole."""
    jax_that_names_derivatives()

    def mixer(w, x):
        y = layers.norm(x).swapaxes(1, 2)
        x += (jax.nn.gelu(y @ w[0]) @ w[1]).swapaxes(1, 2)
        return x + jax.nn.gelu(layers.norm(x) @ w[2]) @ w[3]

    shapes = [(12, 24), (24, 12), (32, 64), (64, 32)]
    answer = answer_of(*training_step(mixer, shapes=shapes))
    assert plan_of(answer) == {**by_layer({0: 1, 1: 0, 2: 1, 3: 0}), "2/0": 1, "2/1": 0}


def test_expert__gradients_of_micro_batches_in_a_loop():
    """Forward and backward pass stand in one body, which has no phase of its own."""
    jax_that_names_derivatives()
    weights = [floats(*shape) for shape in LAYERS[layers.separate]]

    def step(params, batch):
        def add(total, x):
            loss = jax.grad(lambda w: jnp.square(layers.norm(layers.separate(w, x))).mean())
            return jax.tree.map(jnp.add, total, loss(params)), None

        gradients, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), batch["x"])
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    answer = answer_of(step, (weights, {"x": floats(3, 4, 12, 32)}))
    assert plan_of(answer) == {str(k): dim for k, dim in PLANS[layers.separate].items()}


def test_expert__dense_layers_after_convolutions():
    """Channels stay whole, whatever dense layers gate them (squeeze and excitation)."""
    params = [floats(3, 3, 3, 8), floats(8, 2), floats(2, 8), floats(3, 3, 8, 8), floats(8, 10)]

    def forward(params, x):
        stem, squeeze, excite, kernel, head = params
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, stem, (1, 1), "SAME", dimension_numbers=layout)
        gate = jax.nn.sigmoid(jax.nn.relu(x.mean((1, 2)) @ squeeze) @ excite)
        x = x * gate[:, None, None]
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)
        return jax.nn.logsumexp(x.mean((1, 2)) @ head, -1).mean()

    answer = answer_of(forward, (params, floats(4, 16, 16, 3)))
    assert plan_of(answer) == {"1": 1, "2": 0, "4": 1}


def test_expert__nothing_to_split():
    def forward(params, x):
        return jnp.tanh(x * params[0]).sum()

    with pytest.raises(InfeasibleError, match=r"unnamed: no expert plan is known: no attention, "):
        answer_of(forward, ([floats(8)], floats(4, 8)))
