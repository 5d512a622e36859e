"""Dimension classes: known optima, exhaustive search on small graphs, loops and branches."""

import json

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from parenvs import Graph, ParenvsError, load_graph
from parenvs.dimensions import dimension_classes
from parenvs.rules import Instruction, factors_of

KNOWN = {  # partitioned variable dimensions at most: shardy, automap
    "vgg-19": (29, 27),
    "t5-base": (343, 218),
    "t5-3b": (679, 434),
    "t5-11b": (679, 434),
    "bert-48": (486, 484),
}


def most(classes):
    """Largest number of variable dimensions that can be partitioned together."""
    live = np.flatnonzero((classes.variable_counts > 0) & ~classes.blocked)
    place = np.full(len(classes.blocked), -1)
    place[live] = np.arange(len(live))
    pairs = place[classes.conflicts]
    pairs = pairs[(pairs >= 0).all(axis=1)]
    rows = np.zeros((len(pairs), len(live)))
    rows[np.arange(len(pairs))[:, None], pairs] = 1
    limits = [LinearConstraint(rows, ub=1)] if len(pairs) else []
    counts = classes.variable_counts[live]
    found = milp(-counts, integrality=np.ones(len(live)), bounds=Bounds(0, 1), constraints=limits)
    return round(-found.fun)


@pytest.mark.parametrize("name", KNOWN)
def test_dimensions__known_optima(name):
    graph = load_graph(name)
    assert tuple(most(dimension_classes(graph, r)) for r in ("shardy", "automap")) == KNOWN[name]


def test_dimensions__six_layers():
    pytest.importorskip("jax")
    from parenvs.datasets.models import t5, train_step

    function, args = train_step(t5(6))
    graph = Graph.from_jax(function, *args)
    assert most(dimension_classes(graph)) == 175
    assert most(dimension_classes(graph, "automap")) == 110


def test_dimensions__automap_gives_the_expert_plan_of_t5():
    """Attention q, k, v and conv1 are split, o and conv2 in rows (2007.04069, Table 3)."""
    graph = load_graph("t5-3b")
    classes = dimension_classes(graph, "automap")
    inner = {}
    for index in graph.variables:
        tensor = graph.parameter_tensor[index]
        for d in range(len(graph.shape(tensor))):
            c = classes.label[graph.dim_offset[tensor] + d]
            inner[graph.paths[index], d] = int(c), bool(classes.blocked[c])
    for layer in ("encoder/layer_0", "decoder/layer_23"):
        heads = {inner[f"{layer}/self/{key}", 1] for key in "qkv"} | {inner[f"{layer}/self/o", 0]}
        assert len(heads) == 1
        assert not next(iter(heads))[1]
        hidden = {
            inner[f"{layer}/conv1/kernel", 1],
            inner[f"{layer}/conv1/bias", 0],
            inner[f"{layer}/conv2/kernel", 0],
        }
        assert len(hidden) == 1
        assert not next(iter(hidden))[1]
        assert inner[f"{layer}/conv2/bias", 0][1]  # the residual width: the norms reduce it
    assert all(blocked for (path, _), (_, blocked) in inner.items() if path == "embedding")


def lower(function, *shapes):
    jax = pytest.importorskip("jax")
    return Graph.from_jax(function, *(jax.ShapeDtypeStruct(s, np.float32) for s in shapes))


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


@pytest.mark.parametrize(
    "name",
    [
        "dense",
        "square",
        "softmax",
        "residual",
        "symmetric",
        "heads",
        "merge",
        "slices",
        "outer",
        "lookup",
        "norm",
    ],
)
def test_dimensions__equal_exhaustive_search(name):
    """All assignments of 0 and 1 to all dimensions, kept if every rule of the game holds."""
    pytest.importorskip("jax")
    function, *shapes = small_functions()[name]
    graph = lower(function, *shapes)
    classes = dimension_classes(graph)
    free = np.zeros(len(graph.element_type), dtype=bool)
    for index in np.flatnonzero(graph.free):
        free[graph.results[graph.result_offset[index] : graph.result_offset[index + 1]]] = True
    shown = [
        graph.dim_offset[t] + d
        for t in range(len(free))
        if not free[t]
        for d, size in enumerate(graph.shape(t))
        if size > 1
    ]
    # Partial assignments are extended one dimension at a time and dropped when a rule breaks.
    constraints = []
    for index in np.flatnonzero(~graph.free):
        opcode = graph.opcodes[graph.opcode[index]]
        if opcode == "parameter":
            continue
        ins = graph.operands[graph.operand_offset[index] : graph.operand_offset[index + 1]]
        outs = graph.results[graph.result_offset[index] : graph.result_offset[index + 1]]
        slots = {**dict(enumerate(ins)), **{-1 - k: t for k, t in enumerate(outs)}}
        text = graph.strings[graph.attribute[index]]
        factors = factors_of(
            Instruction(
                opcode,
                json.loads(text) if text else {},
                [graph.shape(t) for t in ins],
                [graph.shape(t) for t in outs],
            )
        )
        members = [
            [shown.index(graph.dim_offset[slots[s]] + d) for s, d in f.pairs if not free[slots[s]]]
            for f in factors
        ]
        touched = {
            shown.index(graph.dim_offset[t] + d)
            for t in slots.values()
            if not free[t]
            for d, size in enumerate(graph.shape(t))
            if size > 1
        }
        constraints.append(([m for m in members if m], touched))
    legal = np.zeros((1, 0), dtype=bool)
    for position in range(len(shown)):
        both = np.repeat(legal, 2, axis=0)
        legal = np.column_stack([both, np.tile([False, True], len(legal))])
        keep = np.ones(len(legal), dtype=bool)
        for members, touched in constraints:
            if max(touched, default=-1) != position:
                continue
            held = {x for m in members for x in m}
            for x in touched - held:
                keep &= ~legal[:, x]
            parts = [legal[:, m] for m in members]
            for part in parts:
                keep &= part.all(axis=1) | ~part.any(axis=1)
            if parts:
                keep &= sum(part[:, 0].astype(int) for part in parts) <= 1
        legal = legal[keep]
        assert len(legal) < 300_000
    label, blocked = classes.label[shown], classes.blocked
    pairs = {tuple(p) for p in classes.conflicts.tolist()}
    assert (legal.any(axis=0) == ~blocked[label]).all()
    for a in range(len(shown)):
        for b in range(a):
            if blocked[label[a]] or blocked[label[b]]:
                continue
            together = (legal[:, a] & legal[:, b]).any()
            one, other = sorted((int(label[a]), int(label[b])))
            assert together == ((one, other) not in pairs), (name, shown[a], shown[b])
            assert (legal[:, a] == legal[:, b]).all() == (one == other)


def test_dimensions__scan_links_carried_state_and_body():
    """Scanning over stacked layers splits them as unrolled ones are split, but never the layers."""
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    def layer(x, weights):
        up, down = weights
        return x + jnp.tanh(x @ up) @ down, None

    graph = lower(
        lambda up, down, x: jax.lax.scan(layer, x, (up, down))[0],
        (5, 3, 4),
        (5, 4, 3),
        (2, 3),
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
    assert most(dimension_classes(graph, "automap", "forbid", 8)) == 218 - 36 * 4


@pytest.mark.parametrize("options", [{"rules": "gspmd"}, {"uneven": "drop"}])
def test_dimensions__unknown_options(options):
    with pytest.raises(ParenvsError, match="must be one of"):
        dimension_classes(load_graph("vgg-19"), **options)
