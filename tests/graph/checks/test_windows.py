"""Results of windows, products and transforms: JAX's are accepted, and no other sizes are."""

from __future__ import annotations

import random

import pytest
from cases import each

from parenvs import from_jax
from parenvs.errors import HloError
from parenvs.graph.checks.shapes import CHECKS, NOT_CHECKED, check_shapes
from parenvs.graph.flops import OPCODES

pytestmark = [pytest.mark.filterwarnings("ignore:.*nothing tells whether"), pytest.mark.thorough]
jax = pytest.importorskip("jax")
from jax import lax  # noqa: E402
from jax_primitives import CASES, shape  # noqa: E402

STARTS = "conv pool reduce fft rfft irfft sort cumsum dot scatter take pad slice top_k".split()  # noqa: SIM905
OPEN = {"broadcast", "iota", "rng-bit-generator", "reshape"}
"""Opcodes of which several results are possible."""


def instructions(graph):
    """Opcode, operands, results and fields of each instruction that is checked."""
    from parenvs.graph.checks.npz import fields_of

    for row, code in enumerate(graph.opcode.tolist()):
        if graph.opcodes[code] in CHECKS:
            used, made = (
                [graph.shape(t) for t in flat[offset[row] : offset[row + 1]].tolist()]
                for flat, offset in (
                    (graph.operands, graph.operand_offset),
                    (graph.results, graph.result_offset),
                )
            )
            text = graph.strings[graph.attribute[row]]
            yield graph.opcodes[code], used, made, (fields_of(text) or {}) if text else {}


def check_against_neighbours(graph):
    """What was read is accepted; with one size of a result changed it is not."""
    refused = 0
    for opcode, used, made, fields in instructions(graph):
        check_shapes(opcode, used, made, fields)
        for k, sizes in enumerate(made):
            for d in range(len(sizes)) if opcode not in OPEN else ():
                for step in (1, -1):
                    other = (*sizes[:d], sizes[d] + step, *sizes[d + 1 :])
                    with pytest.raises(HloError):
                        check_shapes(opcode, used, [*made[:k], other, *made[k + 1 :]], fields)
                    refused += 1
    return refused


def test_windows__every_opcode_is_checked_or_listed():
    structure = {"call", "conditional", "fusion", "get-tuple-element", "tuple", "while"}
    assert set(OPCODES) == set(CHECKS) | (NOT_CHECKED - {"return"}) | structure
    assert not set(CHECKS) & NOT_CHECKED


@each("start", STARTS)
def test_windows__results_of_jax(start):
    names = [name for name in CASES if name.startswith(start)]
    graphs = [from_jax(CASES[name][0], *CASES[name][1]) for name in names[:6]]
    assert sum(map(check_against_neighbours, graphs)) or not names


def random_convolution(draw):
    """A convolution with drawn sizes, strides, padding, dilation and groups, and its arguments."""
    rank = draw.choice((1, 1, 2))
    feature_groups, batch_groups = draw.choice(((1, 1), (1, 1), (2, 1), (1, 2)))
    several = feature_groups * batch_groups
    images = shape(2 * batch_groups, 2 * several, *(draw.randint(5, 9) for _ in range(rank)))
    features = 2 * several // feature_groups
    kernel = shape(2 * several, features, *(draw.randint(1, 3) for _ in range(rank)))
    options = {
        "window_strides": tuple(draw.randint(1, 3) for _ in range(rank)),
        "padding": tuple((draw.randint(-1, 3), draw.randint(0, 3)) for _ in range(rank)),
        "lhs_dilation": tuple(draw.randint(1, 2) for _ in range(rank)),
        "rhs_dilation": tuple(draw.randint(1, 2) for _ in range(rank)),
        "feature_group_count": feature_groups,
        "batch_group_count": batch_groups,
    }
    return lambda x, k: lax.conv_general_dilated(x, k, **options), images, kernel


def random_pooling(draw):
    """A pooling with a drawn window, and its argument."""
    rank = draw.choice((1, 2, 3))
    options = {
        "window_dimensions": tuple(draw.randint(1, 3) for _ in range(rank)),
        "window_strides": tuple(draw.randint(1, 3) for _ in range(rank)),
        "padding": tuple((draw.randint(0, 2), draw.randint(0, 2)) for _ in range(rank)),
        "base_dilation": tuple(draw.randint(1, 2) for _ in range(rank)),
        "window_dilation": tuple(draw.randint(1, 2) for _ in range(rank)),
    }
    sizes = shape(*(draw.randint(5, 9) for _ in range(rank)))
    return lambda x: lax.reduce_window(x, -1.0, lax.max, **options), sizes


@pytest.mark.parametrize("drawn", [random_convolution, random_pooling])
def test_windows__drawn(drawn):
    draw, counts = random.Random(7), []
    for _ in range(20):
        function, *args = drawn(draw)
        counts.append(check_against_neighbours(from_jax(function, *args)))
    assert sum(count > 0 for count in counts) > 15  # JAX leaves out what has no elements
