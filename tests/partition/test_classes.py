"""Dimension classes: known optima, exhaustive search on small graphs, loops and branches."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import partition_toys as toys
import pytest
from cases import each, slow
from exhaustive import disagreements, search
from hypothesis import given, note, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from parenvs import ParenvsError, from_jax, load_graph
from parenvs.tasks.partition.classes import RULE_SETS, DimensionClasses, dimension_classes

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


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["vgg-19", "t5-base", *slow(*sorted({*KNOWN} - {"vgg-19", "t5-base"}))]
)
def test_dimensions__known_optima(name):
    graph = load_graph(name)
    assert tuple(most(dimension_classes(graph, r)) for r in ("shardy", "automap")) == KNOWN[name]


@pytest.mark.slow
def test_dimensions__six_layers():
    pytest.importorskip("jax")
    from parenvs.datasets.models import t5, train_step

    function, args = train_step(t5(6))
    graph = from_jax(function, *args)
    assert most(dimension_classes(graph)) == 175
    assert most(dimension_classes(graph, "automap")) == 110


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
    assert most(dimension_classes(clipped_step(by_global_norm), "automap")) == 3


@pytest.mark.thorough
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
    for rules in RULE_SETS:
        assert not disagreements(dimension_classes(graph, rules), search(graph, rules))


@pytest.mark.thorough
@settings(max_examples=50, derandomize=True)
@given(data=st.data())
def test_dimensions__equal_exhaustive_search_on_random_programs(data):
    """Functions of a few steps and gradients of such; benchmarks/classes.py has thousands."""
    pytest.importorskip("jax")
    from random_programs import Program

    program = Program(lambda options: data.draw(st.sampled_from(options)))
    note("; ".join([*program.text, "gradient" * program.gradient]))
    graph = from_jax(program.function, *program.arguments)
    for rules in RULE_SETS:
        assert not disagreements(dimension_classes(graph, rules), search(graph, rules))


def test_dimensions__no_instruction_has_a_factor():
    pytest.importorskip("jax")
    graph = lower(lambda x: x[::-1], (3,))
    classes = dimension_classes(graph)
    assert classes.blocked[classes.label[graph.dim_offset[graph.parameter_tensor[0]]]]


def test_dimensions__exhaustive_search_of_a_product():
    """x @ w: the rows of x, the columns of w or what is contracted can be split, or nothing."""
    pytest.importorskip("jax")
    graph = lower(lambda w, x: x @ w, (3, 4), (2, 3))
    found = search(graph)
    w, x, y = graph.dim_offset[[*graph.parameter_tensor, graph.outputs[0]]]
    sets = {frozenset(found.dims[row].tolist()) for row in found.legal}
    assert sets == {frozenset(s) for s in ((), (x, y), (w + 1, y + 1), (x + 1, w))}
    assert len(found.legal) == 4


@pytest.mark.parametrize("change", ["blocks", "frees", "conflicts", "agrees", "merges", "splits"])
def test_dimensions__exhaustive_search_finds_what_is_wrong(change):
    jax = pytest.importorskip("jax")
    graph = lower(lambda w, x: jax.nn.softmax(x[:, 1:] @ w), (3, 4), (2, 4))
    classes, found = dimension_classes(graph), search(graph)
    assert not disagreements(classes, found)
    touched = np.unique(classes.label[found.dims])
    live = [c for c in touched if not classes.blocked[c]]
    stuck = [c for c in touched if classes.blocked[c]]
    pairs = [tuple(p) for p in classes.conflicts.tolist()]
    assert len(live) == 2
    if change in ("blocks", "frees"):
        blocked = classes.blocked.copy()
        blocked[live[0] if change == "blocks" else stuck[0]] ^= True
        wrong = replace(classes, blocked=blocked)
    elif change == "conflicts":
        assert (live[0], live[1]) in pairs
        wrong = replace(classes, conflicts=classes.conflicts[:0])
    elif change == "agrees":
        graph = lower(lambda w, x: (w + 1, x + 1), (3,), (2,))
        classes, found = dimension_classes(graph), search(graph)
        one, other = np.unique(classes.label[found.dims])
        wrong = replace(classes, conflicts=np.array([[one, other]]))
    else:
        label = classes.label.copy()
        if change == "merges":
            label[label == live[0]] = live[1]
        else:
            free = next(c for c in range(len(classes)) if c not in touched)
            label[found.dims[label[found.dims] == live[0]][0]] = free
        wrong = replace(classes, label=label)
    assert disagreements(wrong, found)


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
    assert most(dimension_classes(graph, "automap", "forbid", 8)) == 218 - 36 * 4


@pytest.mark.parametrize("options", [{"rules": "gspmd"}, {"uneven": "drop"}])
def test_dimensions__unknown_options(options):
    with pytest.raises(ParenvsError, match="must be one of"):
        dimension_classes(load_graph("vgg-19"), **options)


def test_dimensions__few_devices_forbid_nothing():
    """Any size is a multiple of one; without a number of devices there is nothing to forbid."""
    graph = load_graph("vgg-19")
    padded = dimension_classes(graph)
    assert padded.devices == 0
    assert (padded.blocked_by[~padded.blocked] == -1).all()
    for devices in (0, 1):
        forbidden = dimension_classes(graph, uneven="forbid", devices=devices)
        assert np.array_equal(forbidden.blocked, padded.blocked)


@each(("size", "blocked"), [(8, False), (9, True), (15, True), (16, False)])
def test_dimensions__one_too_many_or_too_few_is_uneven(size, blocked):
    shape = f"f32[{size},8]{{1,0}}"
    inputs = {"params__w__": shape, "batch__x__": shape}
    graph = toys.read(toys.module(inputs, [], f"op.1 = {shape} add(batch__x__.1, params__w__.1)"))
    classes = dimension_classes(graph, uneven="forbid", devices=8)
    rows = classes.label[graph.dim_offset[graph.parameter_tensor[0]]]
    assert classes.blocked[rows] == blocked


def test_dimensions__of_size_one_are_neither_uneven_nor_partitioned():
    shape = "f32[1,8]{1,0}"
    inputs = {"params__w__": shape, "batch__x__": shape}
    graph = toys.read(toys.module(inputs, [], f"op.1 = {shape} add(batch__x__.1, params__w__.1)"))
    classes = dimension_classes(graph, uneven="forbid", devices=4)
    rows, columns = classes.label[graph.dim_offset[graph.parameter_tensor[0]] + np.arange(2)]
    assert rows != columns and not classes.blocked[rows]
    chosen = np.zeros(len(classes), dtype=bool)
    chosen[rows] = True
    assert classes.partition(chosen, "variables") == {}
    chosen[columns] = True
    assert classes.partition(chosen, "variables") == {"w": 1}


def test_dimensions__the_first_instruction_that_blocks_is_named():
    shape = "f32[8,8]{1,0}"
    inputs = {"params__w__": shape, "batch__x__": shape}
    lines = [
        f"op.1 = {shape} cholesky(params__w__.1), lower=true",
        f"op.2 = {shape} add(op.1, batch__x__.1)",
        f"op.3 = {shape} reverse(op.2), dimensions={{0,1}}",
    ]
    graph = toys.read(toys.module(inputs, lines, f"op.4 = {shape} add(op.3, op.1)"))
    classes = dimension_classes(graph)
    assert classes.blocked.all()
    assert {graph.opcodes[graph.opcode[at]] for at in classes.blocked_by} == {"cholesky"}
    opcodes = {graph.opcodes[graph.opcode[at]] for at, _ in classes.factors.untouchable}
    assert opcodes == {"cholesky", "reverse"}


def test_dimensions__sizes_of_two_are_odd_over_four_devices():
    lines = ["op.1 = f32[2,8]{1,0} tanh(batch__x__.1)"]
    text = toys.module(
        {"params__w__": "f32[2,8]{1,0}", "batch__x__": "f32[2,8]{1,0}"},
        lines, "op.2 = f32[2,8]{1,0} add(op.1, params__w__.1)",
    )  # fmt: skip
    graph = toys.read(text)
    classes = dimension_classes(graph, uneven="forbid", devices=4)
    rows, columns = classes.label[graph.dim_offset[graph.parameter_tensor[0]] + np.arange(2)]
    assert classes.blocked[rows] and not classes.blocked[columns]
    padded = dimension_classes(graph)
    assert padded.variable_counts[[rows, columns]].tolist() == [1, 1]
    assert padded.dimensions_of(np.zeros(0, dtype=np.int64)).tolist() == []
    chosen = padded.chosen({"w": 0})
    assert chosen.nonzero()[0].tolist() == [rows]
    assert padded.partition(chosen, "variables") == {"w": 0}


def test_dimensions__the_second_instruction_counts():
    """x @ x, right behind the only parameter, has three factors: its two dimensions exclude."""
    text = toys.module(
        {"params__w__": "f32[8,8]{1,0}"},
        [],
        "dot.1 = f32[8,8]{1,0} dot(params__w__.1, params__w__.1), lhs_contracting_dims={1}, "
        "rhs_contracting_dims={0}",
    )
    graph = toys.read(text)
    classes = dimension_classes(graph)
    first = graph.dim_offset[graph.parameter_tensor[0]]
    assert classes.blocked[classes.label[[first, first + 1]]].all()
    assert (classes.blocked_by[classes.label[[first, first + 1]]] == 1).all()


def test_dimensions__of_one_graph_are_made_once():
    graph = load_graph("vgg-19")
    assert dimension_classes(graph).label is dimension_classes(graph, devices=4).label
    assert dimension_classes(replace(graph)).label is not dimension_classes(graph).label


def test_dimensions__cannot_be_changed():
    classes = dimension_classes(load_graph("vgg-19"))
    with pytest.raises(FrozenInstanceError):
        classes.devices = 3


def test_dimensions__devices_are_known_only_where_they_count():
    given = dimension_classes(load_graph("vgg-19"), uneven="forbid", devices=8)
    assert given.devices == 8
    names = ("graph", "factors", "label", "blocked", "blocked_by", "conflicts", "conflict_at")
    assert DimensionClasses(**{name: getattr(given, name) for name in names}).devices == 0
