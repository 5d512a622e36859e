"""Dimension classes against XLA's own partitioner, on a sample; benchmarks/shardy.py has all."""

import itertools

import numpy as np
import pytest

from parenvs import Graph, ParenvsError
from parenvs.dimensions import dimension_classes

jax = pytest.importorskip("jax")

from parenvs.datasets.models import bert, t5, train_step, vgg  # noqa: E402
from parenvs.oracle import ShardyOracle  # noqa: E402

MODELS = {
    "t5": lambda: t5(1, 32, 64, 4, 8, vocab=64, tokens=8, batch_size=4),
    "bert": lambda: bert(
        1, 32, 4, 64, vocab=48, positions=8, tokens=8, predictions=4, batch_size=4
    ),
    "vgg": lambda: vgg(((1, 8), (1, 16)), 32, 10, 8, batch_size=4),
}


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    function, args = train_step(MODELS[request.param]())
    oracle = ShardyOracle(jax.jit(function, keep_unused=True).lower(*args))
    graph = Graph.from_jax(function, *args)
    inputs = {
        (k, d): graph.dim_offset[t] + d
        for k, t in enumerate(graph.parameter_tensor)
        for d, size in enumerate(graph.shape(t))
        if size % 2 == 0  # Shardy leaves the others alone
    }
    return oracle, dimension_classes(graph), inputs


def test_oracle__single_decisions_agree(case):
    """Every input that Shardy partitions is in the class, and it reshards just where we block."""
    oracle, classes, inputs = case
    rng = np.random.default_rng(0)
    first = {}  # one input of each class, and some more
    for pair, place in inputs.items():
        first.setdefault(int(classes.label[place]), pair)
    some = [list(inputs)[i] for i in rng.integers(len(inputs), size=5)]
    for pair in {*list(first.values())[:25], *some}:
        label = classes.label[inputs[pair]]
        found = oracle.propagate([pair])
        if classes.blocked[label]:
            assert found.reshards, pair
        else:
            assert not found.reshards, pair
            members = {x for x, place in inputs.items() if classes.label[place] == label}
            assert set(found.partitioned) == members


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
        found = oracle.propagate([free[a], free[b]])
        assert bool(found.reshards) == ((a, b) in conflicts), (free[a], free[b])


def test_oracle__contraction_needs_an_all_reduce():
    def product(w, x):
        return x @ w

    shape = jax.ShapeDtypeStruct
    lowered = jax.jit(product, keep_unused=True).lower(
        shape((6, 8), np.float32), shape((4, 6), np.float32)
    )
    oracle = ShardyOracle(lowered)
    assert oracle.propagate([(0, 0)]) == oracle.propagate([(1, 1)])
    assert oracle.propagate([(0, 0)]).partitioned == ((0, 0), (1, 1))
    assert oracle.propagate([(0, 0)]).all_reduces == 1
    assert oracle.propagate([(0, 1)]).all_reduces == 0
    assert oracle.propagate([(0, 1), (1, 0)]).reshards
    with pytest.raises(ParenvsError, match="at least 2"):
        ShardyOracle(lowered, devices=1)
