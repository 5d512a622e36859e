"""Dimension classes: known optima, exhaustive search on small graphs, loops and branches."""

import numpy as np
import pytest
from cases import each
from exhaustive import disagreements, search
from hypothesis import given, note, settings
from hypothesis import strategies as st

from parenvs import from_jax, load_graph
from parenvs.agents.partition.exact import exact_partition
from parenvs.tasks.partition.classes import RULE_SETS, dimension_classes
from parenvs.tasks.partition.problem import load_partitioning


def clipped_step(clip):
    """A step of two dense layers and their biases, with gradients that ``clip`` changes."""
    jax = pytest.importorskip("jax")

    def step(params, x):
        def loss(params):
            hidden = jax.numpy.tanh(x @ params["up"] + params["bias"])
            return jax.numpy.square(hidden @ params["down"]).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, params, clip(gradients))

    shapes = {"up": (6, 8), "bias": (8,), "down": (8, 4)}
    args = {k: jax.ShapeDtypeStruct(v, np.float32) for k, v in shapes.items()}
    return from_jax(step, args, jax.ShapeDtypeStruct((10, 6), np.float32))


def by_global_norm(gradients):
    """As optax.clip_by_global_norm writes it."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradients)))
    return jax.tree.map(lambda g: jax.lax.select(norm < 1, g, g / norm), gradients)


def by_row_norm(gradients):
    """One norm for each row: no number, so that the other dimension stays whole."""
    jnp = pytest.importorskip("jax.numpy")
    norm = jnp.square(gradients["up"]).sum(1, keepdims=True)
    return {**gradients, "up": gradients["up"] / norm}


@pytest.mark.thorough
def test_dimensions__automap_clips_by_the_global_norm():
    """The norm reduces every gradient: it blocked all classes, and most was 0."""

    def open_dimensions(clip, rules):
        classes = dimension_classes(clipped_step(clip), rules)
        return {
            (path, d)
            for path, tensor in classes.tensor.items()
            for d in range(len(classes.graph.shape(tensor)))
            if not classes.blocked[classes.label[classes.graph.dim_offset[tensor] + d]]
        }

    hidden = {("up", 1), ("bias", 0), ("down", 0)}
    plain = open_dimensions(lambda gradients: gradients, "automap")
    assert plain == {*hidden, ("up", 0), ("x", 1)}  # the loss reduces batch and outputs
    assert open_dimensions(by_global_norm, "automap") == plain
    assert open_dimensions(by_row_norm, "automap") == plain - hidden
    for clip in (by_global_norm, by_row_norm):
        graph = clipped_step(clip)
        shardy, automap = (dimension_classes(graph, rules) for rules in ("shardy", "automap"))
        assert np.array_equal(shardy.label, automap.label)


def lower(function, *shapes):
    jax = pytest.importorskip("jax")
    return from_jax(function, *(jax.ShapeDtypeStruct(s, np.float32) for s in shapes))


def small_functions():
    import jax
    import jax.numpy as jnp

    return {
        "dense": (lambda w, x: jnp.tanh(x @ w), (3, 4), (2, 3)),
        "square": (lambda w, x: x @ w @ w, (3, 3), (2, 3)),
        "softmax": (lambda w, x: jax.nn.softmax(x @ w), (3, 4), (2, 3)),
        "residual": (lambda w, x: x + jnp.tanh(x @ w), (3, 3), (2, 3)),
        "symmetric": (lambda w: w + w.T, (3, 3)),
        "heads": (lambda w, x: (x @ w).reshape(2, 2, 3).sum(1), (3, 6), (2, 3)),
        "merge": (lambda w, x: x.reshape(6) * w, (6,), (2, 3)),
        "slices": (lambda w, x: x[:, 1:] * w, (2,), (2, 3)),
        "outer": (lambda w, x: w[:, None] * x[None, :] @ w[:, None][:3], (4,), (3,)),
        "lookup": (lambda w, x: jnp.take(w, x.astype(int), axis=0, mode="clip"), (5, 3), (2,)),
        "norm": (lambda w, x: (x - x.mean(1, keepdims=True)) * w, (3,), (2, 3)),
    }


@each("number", range(11))
def test_dimensions__equal_exhaustive_search(number):
    """All assignments of 0 and 1 to all dimensions, kept if every rule of the game holds."""
    pytest.importorskip("jax")
    function, *shapes = list(small_functions().values())[number]
    graph = lower(function, *shapes)
    for rules in RULE_SETS:
        assert not disagreements(dimension_classes(graph, rules), search(graph, rules))


@pytest.mark.thorough
@settings(max_examples=50, derandomize=True)
@given(data=st.data())
def test_dimensions__equal_exhaustive_search_on_random_programs(data):
    """Functions of a few steps and gradients of such."""
    pytest.importorskip("jax")
    from random_programs import Program

    program = Program(lambda options: data.draw(st.sampled_from(options)))
    note("; ".join([*program.text, "gradient" * program.gradient]))
    graph = from_jax(program.function, *program.arguments)
    for rules in RULE_SETS:
        assert not disagreements(dimension_classes(graph, rules), search(graph, rules))


def test_dimensions__scan_links_carried_state_and_body():
    """Scanning over stacked layers splits them as unrolled ones are split, but never the layers."""
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    def layer(x, weights):
        up, down = weights
        return x + jnp.tanh(x @ up) @ down, None

    graph = lower(
        lambda up, down, x: jax.lax.scan(layer, x, (up, down))[0], (5, 3, 4), (5, 4, 3), (2, 3)
    )
    classes = dimension_classes(graph)
    tensors = graph.parameter_tensor
    label = [classes.label[graph.dim_offset[t] : graph.dim_offset[t + 1]] for t in tensors]
    up, down, x = label
    assert up[2] == down[1]  # the hidden width
    assert up[1] == down[2] == x[1]  # the residual width
    assert not classes.blocked[[up[2], up[1], x[0]]].any()
    assert classes.blocked[[up[0], down[0]]].all()
    assert up[2] in classes.rivals(up[1])


def test_dimensions__branches_are_linked_to_their_operands():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    graph = lower(
        lambda w, x: jax.lax.cond(w[0, 0] > 0, lambda a: jnp.tanh(a @ w), lambda a: a, x),
        (3, 3),
        (2, 3),
    )
    classes = dimension_classes(graph)
    x = graph.parameter_tensor[1]
    out = graph.outputs[0]
    batch = classes.label[graph.dim_offset[x]]
    assert batch == classes.label[graph.dim_offset[out]]
    assert not classes.blocked[batch]


@pytest.mark.thorough
def test_dimensions__uneven_dimensions_can_be_forbidden():
    """T5-base has 12 heads: they cannot be split over 8 devices without padding."""
    graph = load_graph("t5-base")
    path = graph.paths.index("encoder/layer_0/self/q")
    tensor = graph.parameter_tensor[path]
    padded, even = dimension_classes(graph), dimension_classes(graph, uneven="forbid", devices=8)
    heads = padded.label[graph.dim_offset[tensor] + 1]
    assert not padded.blocked[heads]
    assert even.blocked[heads]
    assert even.blocked_by[heads] < 0
    assert not dimension_classes(graph, uneven="forbid", devices=4).blocked[heads]
    # The optimum then loses q, k, v and o of 12 encoder and 2 x 12 decoder attentions; the tables
    # of relative positions are split by their 32 rows instead of their 12 heads.
    best = exact_partition(load_partitioning("t5-base", "1x8:v100", "automap", "forbid"))
    assert best.report.partitioned_dimensions == 218 - 36 * 4
