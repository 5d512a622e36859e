"""Merged arrays against NumPy: views, permutations and what is done on them in any order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

jax = pytest.importorskip("jax", reason="extra jax")
pytest.importorskip("torch", "2.9", reason="extra torch")

from parenvs.graph.pytorch import merged, operations, step  # noqa: E402, F401  # step fills the table
from parenvs.graph.pytorch.operations import OPERATIONS  # noqa: E402

FACTORS = (2, 3, 1, 4)


def run(name, *args):
    return merged.apply(name, OPERATIONS[name], name in operations.ELEMENTWISE, args, {})


@pytest.mark.thorough
@settings(max_examples=12, derandomize=True, database=None)
@given(st.data())
def test_layout__any_order_of_views_gives_numpys_array(data):
    ours = array = np.arange(24.0).reshape(FACTORS)
    ours = jax.numpy.asarray(ours)
    for _ in range(data.draw(st.integers(1, 5))):
        what = data.draw(st.sampled_from(("view", "permute", "add", "slice", "select", "sum")))
        rank = array.ndim
        dim = data.draw(st.integers(0, rank - 1)) if rank else 0
        if what == "view":
            sizes, left = [], array.size
            while left > 1:
                sizes.append(
                    data.draw(st.sampled_from([k for k in range(2, left + 1) if left % k == 0]))
                )
                left //= sizes[-1]
            sizes.insert(data.draw(st.integers(0, len(sizes))), 1)
            ours, array = run("view", ours, sizes), array.reshape(sizes)
        elif what == "permute":
            order = data.draw(st.permutations(range(rank)))
            ours, array = run("permute", ours, order), array.transpose(order)
        elif what == "add" and rank:
            other = np.arange(float(array.shape[-1]))
            ours, array = run("add.Tensor", ours, jax.numpy.asarray(other)), array + other
        elif what == "slice" and rank and array.shape[dim] > 1:
            start = data.draw(st.integers(0, array.shape[dim] - 1))
            ours = run("slice.Tensor", ours, dim, start, 99)
            array = array[(slice(None),) * dim + (slice(start, None),)]
        elif what == "select" and rank > 1:
            ours, array = run("select.int", ours, dim, -1), array.take(-1, dim)
        elif what == "sum" and rank > 1:
            ours, array = run("sum.dim_IntList", ours, [dim]), array.sum(dim)
        assert tuple(ours.shape) == array.shape
    np.testing.assert_array_equal(merged.plain(ours), array)


def test_layout__heads_stay_apart_from_the_batch():
    x = jax.numpy.zeros((6, 4, 8))  # (length, batch, width)
    seen = merged.view(x, (6, 4 * 2, 4))
    assert seen.groups == ((6,), (4, 2), (4,)) and seen.array.shape == (6, 4, 2, 4)
    turned = run("permute", seen, [1, 0, 2])
    assert isinstance(run("view", turned, [4, 2, 6, 4]), jax.Array)
