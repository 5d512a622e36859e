"""FLOPs and bytes against XLA's own cost analysis."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from cases import each, slow

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax_graphs import NAMES, graph, lowered  # noqa: E402
from jax_primitives import CASES, ints, shape  # noqa: E402
from jax_versions import counts_results_in_tuples  # noqa: E402

from parenvs import from_jax  # noqa: E402

pytestmark = pytest.mark.thorough

LOOPS = {"rng_uniform", "rng_split", "dropout"}
CUSTOM_CALLS = {"cholesky", "triangular_solve", "triangular_solve_right"}
# XLA counts the pointers of tuples, a barrier's tuples in full, and 4-bit numbers as bytes.
OTHER_BYTES = {*LOOPS, *CUSTOM_CALLS, "optimization_barrier", "copy", "remat", "int4"}
# XLA counts what lies in padding, and holes, too, as cumulative sums have.
WINDOWS = {"max_pool_same", "avg_pool", "avg_pool_gradient", "max_pool_gradient"}
TUPLES = {"sort_pairs", "argsort", "top_k"}


def both(function, *args):
    """FLOPs and bytes by XLA, and the graph."""
    module = jax.jit(function, keep_unused=True).lower(*args)
    cost = module.cost_analysis() or {}
    return cost.get("flops", 0.0), cost.get("bytes accessed", 0.0), from_jax(function, *args)


@cache
def primitive(name):
    function, args = CASES[name]
    return both(function, *args)


def bytes_accessed(graph):
    return graph.bytes_accessed[graph.parent < 0].sum()


@each("name", CASES)
def test_flops__primitive(name):
    flops, moved, graph = primitive(name)
    if name in CUSTOM_CALLS:
        assert graph.total_flops == flops + 1  # XLA's figure for a custom call is -1, ours 0
    elif name in WINDOWS or name.startswith("cum"):
        assert 0 <= graph.total_flops <= flops
    elif name in LOOPS:
        assert graph.total_flops > flops
    else:
        assert graph.total_flops == flops
    if name in TUPLES and not counts_results_in_tuples():
        assert bytes_accessed(graph) > moved
    elif name not in OTHER_BYTES:
        assert bytes_accessed(graph) == pytest.approx(moved, abs=72)


@each("steps", [1, 3, 7])
def test_flops__loop_counts_every_iteration(steps):
    def loop(x):
        return lax.scan(lambda c, _: (jnp.tanh(c @ c), None), x, length=steps)[0]

    flops, moved, graph = both(loop, shape(4, 4))
    assert flops == 2 * 4**3 + 2  # XLA: one iteration, its counter's addition and comparison
    assert graph.total_flops == steps * flops
    assert bytes_accessed(graph) == pytest.approx(steps * moved, abs=48 * steps)


def test_flops__unknown_trip_count_warns():
    def loop(x, n):
        return lax.fori_loop(0, n, lambda _, c: c @ c, x)

    with pytest.warns(UserWarning, match=r"trip count of \S*while is not known"):
        graph = from_jax(loop, shape(4, 4), ints())
    assert graph.total_flops == 2 * 4**3 + 2


def test_flops__conditional_costs_its_dearest_branch():
    function, args = CASES["cond"]
    graph = from_jax(function, *args)
    top = graph.parent < 0
    dots = [i for i, k in enumerate(graph.opcode) if graph.opcodes[k] == "dot"]
    assert [bool(top[i]) for i in dots] == [False]
    assert graph.flops[dots[0]] == 2 * 6 * 6 * 10
    assert graph.total_flops == 720 + 2  # and the comparison, with its conversion


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("vgg-19", "forward"), ("t5", "forward"), ("bert", "train")),
        *slow(*((name, "forward") for name in NAMES if name not in ("vgg-19", "t5"))),
        *slow(*((name, "train") for name in NAMES if name != "bert")),
    ],
)
def test_flops__model(name, kind):
    cost = lowered(name, kind).cost_analysis()
    read = graph(name, kind)
    assert read.total_flops == pytest.approx(cost["flops"], rel=1e-3)
    assert bytes_accessed(read) == pytest.approx(cost["bytes accessed"], rel=1e-3)


def test_flops__a_pool_over_the_whole_image_costs_an_addition_a_pixel():
    """Forward one of each, backward one share for each: not a window for every pixel."""
    image = jax.ShapeDtypeStruct((2, 56, 56, 8), np.float32)

    def pooled(x):
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 56, 56, 1), (1, 56, 56, 1), "VALID")

    pixels = 2 * 56 * 56 * 8
    assert from_jax(pooled, image).total_flops == pixels - 2 * 8
    both_ways = from_jax(jax.value_and_grad(lambda x: pooled(x).sum()), image)
    assert both_ways.total_flops <= 2 * pixels
