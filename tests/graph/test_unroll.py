"""Loops over layers against the same models written out, and loops that stay rolled."""

import warnings
from functools import cache

import numpy as np
import pytest
from cases import slow

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from layer_programs import (  # noqa: E402
    BATCH,
    LAYERS,
    LENGTH,
    LISTED,
    PAIRS,
    STACKED,
    TOKENS,
    WIDTH,
    accumulated,
    block,
    loss,
    recurrent,
    scanned,
    shape,
    step,
)  # fmt: skip

import parenvs  # noqa: E402
from parenvs import (  # noqa: E402
    StageProfile,
    from_jax,
)
from parenvs.cluster import DEVICES, Cluster  # noqa: E402
from parenvs.graph import unroll  # noqa: E402
from parenvs.graph.graph import Phase  # noqa: E402
from parenvs.graph.unroll import unrolled  # noqa: E402
from parenvs.tasks.pipeline.problem import Pipeline  # noqa: E402

V100 = DEVICES["v100"]
LAYER = sum(4 * np.prod(x.shape) for x in jax.tree.leaves(LISTED["layers"][0]))


def read(function, *args, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*trip count")
        return from_jax(function, *args, variables=0, **options)


@cache
def pair(name, wrap=step):
    """The graphs of a model written as a loop and written out, and the first one unrolled."""
    looped, written_out = PAIRS[name]
    params = LISTED if name == "joined" else STACKED
    graph = read(wrap(loss(looped)), params, TOKENS)
    result = unrolled(graph)
    assert result is not graph
    assert result.complaint() == ""
    return graph, result, read(wrap(loss(written_out)), LISTED, TOKENS)


def chain(graph):
    """The chain of a graph, for a micro-batch of the graph's own size."""
    return StageProfile.from_graph(graph, V100, graph.batch_size)


def narrowest(graph):
    """Bytes of variables used so far -> the fewest bytes that cross a cut there."""
    profile = chain(graph)
    so_far = np.cumsum(profile.parameter_bytes)
    return {x: profile.cut_bytes[so_far == x].min() for x in np.unique(so_far)}


def forward_flops(graph):
    return graph.flops[graph.pivots()].sum()


def plain(function):
    return function


QUICK = ("scan", "groups", "recurrent")
CASES = [(name, step) for name in QUICK] + [("scan", plain)]
MORE = [(name, step) for name in PAIRS if name not in QUICK] + [("cast before", plain)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "wrap"), [*CASES, *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE)]
)
def test_unroll__as_if_written_out(name, wrap):
    graph, result, other = pair(name, wrap)
    assert result.total_flops == pytest.approx(graph.total_flops, rel=1e-12)
    assert forward_flops(result) == pytest.approx(forward_flops(other), rel=1e-12)
    assert result.parameter_bytes == other.parameter_bytes == graph.parameter_bytes
    ours, theirs = narrowest(result), narrowest(other)
    first = 4 * 32 * WIDTH
    layer = LAYER if name != "recurrent" else 2 * 4 * WIDTH * WIDTH
    ends = [first + k * layer for k in range(1, LAYERS)]
    assert [ours[x] for x in ends] == [theirs[x] for x in ends]
    assert all(ours[x] > 0 for x in ends)


def told(graph, name):
    """Bytes that cross, bytes of weights and FLOPs of each pivot.

    JAX before 0.9 reshapes the bias in the body of a ``fori_loop``: a pivot that does nothing.
    """
    profile, pivots = chain(graph), graph.pivots()
    kept = [name != "fori_loop" or graph.opcodes[graph.opcode[p]] != "reshape" for p in pivots]
    columns = (profile.cut_bytes, profile.parameter_bytes, graph.flops[pivots])
    return [column[kept].tolist() for column in columns]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [*("scan", "groups"), *slow("fori_loop", "rematerialized", "reverse")]
)
def test_unroll__the_same_chain_and_plan(name):
    _, result, other = pair(name)
    ours, theirs = told(result, name), told(other, name)
    assert ours == theirs
    cluster = Cluster.parse("2x2:v100,25Gbps")
    lengths = [
        parenvs.plan(Pipeline(StageProfile.from_graph(g, V100, 4), cluster, 3), "exact").cost
        for g in (result, other)
    ]
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-9)


@pytest.mark.thorough
def test_unroll__names_tell_the_layer():
    graph, result, _ = pair("scan")
    names = [n for n in result.op_names(result.pivots()) if "attention" in n]
    layers = [name.split("[")[1].split("]")[0] for name in names]
    assert list(dict.fromkeys(layers)) == [str(k) for k in range(LAYERS)]
    assert names[0].startswith("jit(train)/jvp()/layers[0]/attention/")
    paths = [result.paths[i] for i in result.variables]
    assert paths[:3] == ["embedding", "layers/bias[0]", "layers/bias[1]"]
    kept = [result.shape(t) for t in result.parameter_tensor[result.variables]]
    assert kept[1] == (4 * WIDTH,)
    profile = StageProfile.from_graph(graph, V100)
    assert profile.source == graph.fingerprint != result.fingerprint
    assert list(profile.names) == list(result.op_names(result.pivots()))


def test_unroll__two_loops_have_two_names():
    def both(params, tokens):
        x = scanned()(params["embedding"][tokens], params["layers"])
        return scanned(lambda h, p: block(h + x, p))(x, params["layers"]).sum()

    result = unrolled(read(both, STACKED, TOKENS))
    names = result.op_names(result.pivots())
    assert any("/layers[3]/" in name for name in names)
    assert any("/layers_2[3]/" in name for name in names)
    assert result.parameter_bytes == read(both, STACKED, TOKENS).parameter_bytes
    assert (
        chain(result).parameter_bytes.sum() == 4 * 32 * WIDTH + LAYERS * LAYER
    )  # the second use is of the same ones


@pytest.mark.thorough
def test_unroll__a_loop_over_time_stays():
    def through(x, layers):
        return recurrent(x, layers)

    params = {**LISTED, "layers": LISTED["layers"][0]}
    graph = read(step(loss(through)), params, TOKENS)
    assert unrolled(graph) is graph
    inner = unrolled(read(loss(scanned(recurrent)), STACKED, TOKENS))
    loops = inner.opcode == inner.opcodes.index("while")
    assert (inner.parent[loops] < 0).sum() == LAYERS
    assert not set(np.flatnonzero(inner.parent >= 0)) & set(inner.pivots())


@pytest.mark.thorough
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", ["scan", *slow("rematerialized")])
def test_unroll__accumulated_gradients_are_one_forward_pass(name, flat):
    looped, _ = PAIRS[name]
    other = pair(name)[2]
    function, tokens = accumulated(loss(looped)), shape(5, BATCH, LENGTH, dtype=jnp.int32)
    if flat:
        inner, tokens = function, shape(5 * BATCH, LENGTH, dtype=jnp.int32)
        function = lambda p, x: inner(p, x.reshape(5, BATCH, LENGTH))  # noqa: E731
    graph = read(function, STACKED, tokens)
    result = unrolled(graph)
    assert result.complaint() == ""
    assert result.batch_size == BATCH != graph.batch_size
    assert forward_flops(result) == pytest.approx(forward_flops(other), rel=1e-12)
    first = 4 * 32 * WIDTH
    ends = [first + k * LAYER for k in range(1, LAYERS)]
    ours, theirs = narrowest(result), narrowest(other)
    assert [ours[x] for x in ends] == [theirs[x] for x in ends]


def test_unroll__backward_loops_stay_and_do_not_widen_cuts():
    _, result, _ = pair("scan")
    rolled = (result.opcode == result.opcodes.index("while")) & (result.parent < 0)
    assert rolled.sum() == 1
    assert (result.phase[rolled] == Phase.BACKWARD).all()
    reads = result.operand_offset[np.flatnonzero(rolled)[0] :][:2]
    stacks = [t for t in result.operands[slice(*reads)] if result.shape(t)[:1] == (LAYERS,)]
    assert len(stacks) > 5  # residuals, joined for the backward pass only


def test_unroll__too_many_instructions(monkeypatch):
    graph = read(loss(scanned()), STACKED, TOKENS)
    monkeypatch.setattr(unroll, "MOST_INSTRUCTIONS", 20)
    with pytest.warns(UserWarning, match="its loops stay rolled, one pivot each"):
        assert unrolled(graph) is graph
