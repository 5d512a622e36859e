"""Dimension classes against XLA's own partitioner, on a sample; benchmarks/shardy.py has all."""

import itertools

import numpy as np
import pytest
from jax_versions import jax_that_verifies

from parenvs import ParenvsError, from_jax
from parenvs.tasks.partition.classes import dimension_classes

jax = jax_that_verifies()

from parenvs.datasets.models import bert, t5, train_step, vgg  # noqa: E402
from parenvs.shardy.verify import ShardyOracle  # noqa: E402

MODELS = {
    "t5": lambda: t5(1, 32, 64, 4, 8, vocab=64, tokens=8, batch_size=4),
    "bert": lambda: bert(
        1, 32, 4, 64, vocab=48, positions=8, tokens=8, predictions=4, batch_size=4
    ),
    "vgg": lambda: vgg(((1, 8), (1, 16)), 32, 10, 8, batch_size=4),
}


@pytest.fixture(
    scope="module",
    params=["vgg", *(pytest.param(name, marks=pytest.mark.slow) for name in ("t5", "bert"))],
)
def case(request):
    function, args = train_step(MODELS[request.param]())
    oracle = ShardyOracle(jax.jit(function, keep_unused=True).lower(*args))
    graph = from_jax(function, *args)
    inputs = {
        (k, d): graph.dim_offset[t] + d
        for k, t in enumerate(graph.parameter_tensor)
        for d, size in enumerate(graph.shape(t))
        if size % 2 == 0  # Shardy leaves the others alone
    }
    return oracle, dimension_classes(graph), inputs


@pytest.mark.thorough
def test_oracle__single_decisions_agree(case):
    """Every input that Shardy partitions is in the class, and it reshards just where we block."""
    oracle, classes, inputs = case
    rng = np.random.default_rng(0)
    first = {}  # one input of each class, and some more
    for pair, place in inputs.items():
        first.setdefault(int(classes.label[place]), pair)
    random_pairs = [list(inputs)[i] for i in rng.integers(len(inputs), size=5)]
    for pair in {*list(first.values())[:25], *random_pairs}:
        label = classes.label[inputs[pair]]
        propagation = oracle.propagate([pair])
        if classes.blocked[label]:
            assert propagation.reshards, pair
        else:
            assert not propagation.reshards, pair
            members = {x for x, place in inputs.items() if classes.label[place] == label}
            assert set(propagation.partitioned) == members


@pytest.mark.thorough
def test_oracle__pairs_conflict_where_shardy_reshards(case):
    oracle, classes, inputs = case
    free = {}
    for pair, place in inputs.items():
        label = int(classes.label[place])
        if not classes.blocked[label]:
            free.setdefault(label, pair)
    conflicts = {tuple(x) for x in classes.conflicts.tolist()}
    pairs = [(a, b) for a, b in itertools.combinations(sorted(free), 2) if free[a][0] != free[b][0]]
    rng = np.random.default_rng(1)
    clash = [x for x in pairs if x in conflicts]
    calm = [x for x in pairs if x not in conflicts]
    sample = [*clash[:8], *(calm[i] for i in rng.permutation(len(calm))[:8])]
    assert sample
    for a, b in sample:
        propagation = oracle.propagate([free[a], free[b]])
        assert bool(propagation.reshards) == ((a, b) in conflicts), (free[a], free[b])


def test_oracle__contraction_needs_an_all_reduce():
    lowered = lower(lambda w, x: x @ w, (6, 8), (4, 6))
    oracle = ShardyOracle(lowered)
    assert oracle.propagate([(0, 0)]) == oracle.propagate([(1, 1)])
    assert oracle.propagate([(0, 0)]).partitioned == ((0, 0), (1, 1))
    assert oracle.propagate([(0, 0)]).collectives == {"all_reduce": 1}
    assert oracle.propagate([(0, 1)]).collectives == {}
    assert oracle.propagate([(0, 1), (1, 0)]).reshards
    with pytest.raises(ParenvsError, match="at least 2"):
        ShardyOracle(lowered, devices=1)


def lower(function, *shapes):
    args = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    return jax.jit(function, keep_unused=True).lower(*args)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.numpy.square(x),  # CHLO in what JAX lowers to
        lambda x: jax.lax.erf(x),  # MHLO in what the HLO turns into
        lambda x: jax.lax.top_k(x, 4)[0],
        lambda x: jax.lax.optimization_barrier(x),
    ],
)
def test_oracle__propagates_through_operations_that_shardy_does_not_know(function):
    lowered = lower(lambda w, x, y: function(x @ w) + y, (6, 4), (8, 6), (8, 4))
    assert ShardyOracle(lowered).propagate([(2, 0)]).partitioned == ((1, 0), (2, 0))
    assert ShardyOracle(lowered).propagate([(1, 0)]).partitioned == ((1, 0), (2, 0))


def test_oracle__takes_custom_calls_with_their_rules():
    """LAPACK's: a tuple of results, and JAX's own sharding rule."""
    lowered = lower(lambda x, y: jax.lax.linalg.cholesky(x @ x) + y, (4, 6, 6), (4, 6, 6))
    propagation = ShardyOracle(lowered).propagate([(0, 0)])
    assert propagation.partitioned == ((0, 0), (1, 0)) and not propagation.reshards
    solve = jax.lax.linalg.triangular_solve
    lowered = lower(lambda a, b: solve(a, b, left_side=True), (4, 6, 6), (4, 6, 2))
    assert ShardyOracle(lowered).propagate([(1, 0)]).partitioned == ((0, 0), (1, 0))


def test_oracle__collectives_in_functions_count_once_for_each_call():
    inner = jax.jit(lambda x, w: jax.numpy.tanh(x @ w @ w.T))
    outer = jax.jit(lambda x, w: inner(inner(x, w), w))
    lowered = lower(lambda w, x: outer(outer(x, w), w), (6, 8), (4, 6))
    propagation = ShardyOracle(lowered).propagate([(0, 1)])
    assert propagation.collectives == {"all_reduce": 4}


def test_oracle__modules_that_it_cannot_take():
    with pytest.raises(ParenvsError, match="cannot turn the HLO into StableHLO"):
        ShardyOracle(b"no module")
