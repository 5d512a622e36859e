"""Factor rules: each opcode's factors on a small instruction, written out by hand."""

import json

import numpy as np
import pytest

from parenvs.errors import HloError
from parenvs.rules import RULES, Instruction, Kind, factors_of

K, C, R, I = Kind.KEPT, Kind.CONTRACTED, Kind.REDUCED, Kind.INDEXED  # noqa: E741
CASES = {
    "add": ("add", {}, [(4, 6), (4, 6)], [(4, 6)], [("0.0 1.0 r.0", K), ("0.1 1.1 r.1", K)]),
    "select by a scalar": ("select", {}, [(), (4,), (4,)], [(4,)], [("1.0 2.0 r.0", K)]),
    "dimensions of size 1": ("add", {}, [(1, 6), (1, 6)], [(1, 6)], [("0.1 1.1 r.1", K)]),
    "dot": (
        "dot",
        {"dot": {"lhs_contracting": [1], "rhs_contracting": [0]}},
        [(4, 6), (6, 8)],
        [(4, 8)],
        [("0.0 r.0", K), ("1.1 r.1", K), ("0.1 1.0", C)],
    ),
    "dot with a batch": (
        "dot",
        {
            "dot": {
                "lhs_batch": [0],
                "rhs_batch": [1],
                "lhs_contracting": [2],
                "rhs_contracting": [0],
            }
        },
        [(2, 4, 6), (6, 2, 8)],
        [(2, 4, 8)],
        [("0.0 1.1 r.0", K), ("0.1 r.1", K), ("1.2 r.2", K), ("0.2 1.0", C)],
    ),
    "reduce": (
        "reduce",
        {"dimensions": [1]},
        [(4, 6, 8), ()],
        [(4, 8)],
        [("0.0 r.0", K), ("0.1", R), ("0.2 r.1", K)],
    ),
    "reduce of two arrays": (
        "reduce",
        {"dimensions": [0]},
        [(4, 6), (4, 6), (), ()],
        [(6,), (6,)],
        [("0.0 1.0", R), ("0.1 1.1 r.0 s.0", K)],
    ),
    "broadcast": (
        "broadcast",
        {"dimensions": [1]},
        [(6,)],
        [(4, 6)],
        [("0.0 r.1", K), ("r.0", K)],
    ),
    "transpose": (
        "transpose",
        {"dimensions": [1, 0]},
        [(4, 6)],
        [(6, 4)],
        [("0.1 r.0", K), ("0.0 r.1", K)],
    ),
    "reshape that splits": (
        "reshape",
        {},
        [(4, 12)],
        [(4, 3, 4)],
        [("0.0 r.0", K), ("0.1 r.1", K)],
    ),
    "reshape that merges": (
        "reshape",
        {},
        [(4, 3, 5)],
        [(12, 5)],
        [("0.0 r.0", K), ("0.2 r.1", K)],
    ),
    "reshape across": ("reshape", {}, [(6, 4)], [(8, 3)], [("0.0 r.0", K)]),
    "reshape with ones": ("reshape", {}, [(4, 1, 6)], [(4, 6)], [("0.0 r.0", K), ("0.2 r.1", K)]),
    "concatenate": (
        "concatenate",
        {"dimensions": [1]},
        [(4, 6), (4, 2)],
        [(4, 8)],
        [("0.0 1.0 r.0", K)],
    ),
    "slice": ("slice", {}, [(4, 6)], [(4, 3)], [("0.0 r.0", K)]),
    "pad": ("pad", {}, [(4, 6), ()], [(5, 6)], [("0.1 r.1", K)]),
    "reverse": ("reverse", {"dimensions": [0]}, [(4, 6)], [(4, 6)], [("0.1 r.1", K)]),
    "sort of keys and values": (
        "sort",
        {"dimensions": [1]},
        [(4, 6), (4, 6)],
        [(4, 6), (4, 6)],
        [("0.0 1.0 r.0 s.0", K)],
    ),
    "dynamic-slice": ("dynamic-slice", {}, [(4, 6), (), ()], [(1, 6)], [("0.1 r.1", K)]),
    "dynamic-update-slice": (
        "dynamic-update-slice",
        {},
        [(4, 6), (2, 6), (), ()],
        [(4, 6)],
        [("0.1 1.1 r.1", K)],
    ),
    "embedding": (
        "gather",
        {
            "gather": {
                "offset_dims": [1],
                "collapsed_slice_dims": [0],
                "start_index_map": [0],
                "index_vector_dim": 1,
            },
            "gather_slice_sizes": [1, 8],
        },
        [(100, 8), (4, 1)],
        [(4, 8)],
        [("1.0 r.0", K), ("0.1 r.1", K), ("0.0", I)],
    ),
    "gradient of an embedding": (
        "scatter",
        {
            "scatter": {
                "update_window_dims": [1],
                "inserted_window_dims": [0],
                "scatter_dims_to_operand_dims": [0],
                "index_vector_dim": 1,
            }
        },
        [(100, 8), (4, 1), (4, 8)],
        [(100, 8)],
        [("1.0 2.0", R), ("0.1 2.1 r.1", K), ("0.0 r.0", K)],
    ),
    "cholesky": ("cholesky", {}, [(4, 6, 6)], [(4, 6, 6)], [("0.0 r.0", K)]),
    "custom-call": ("custom-call", {"target": "x"}, [(4,)], [(4,)], []),
}


def read(text):
    slots = {"r": -1, "s": -2}
    pairs = (pair.split(".") for pair in text.split())
    return frozenset((slots.get(slot) or int(slot), int(d)) for slot, d in pairs)


@pytest.mark.parametrize("name", CASES)
def test_rules__factors(name):
    opcode, attribute, operands, results, wanted = CASES[name]
    found = factors_of(Instruction(opcode, attribute, operands, results))
    assert {(frozenset(f.pairs), f.kind) for f in found} == {(read(t), k) for t, k in wanted}
    assert len(found) == len(wanted)


@pytest.mark.parametrize("groups", [1, 2])
def test_rules__convolution(groups):
    """NHWC images, HWIO kernel; with groups the features are left alone."""
    jax = pytest.importorskip("jax")
    from parenvs import Graph

    shape = jax.ShapeDtypeStruct
    graph = Graph.from_jax(
        lambda w, x: jax.lax.conv_general_dilated(
            x,
            w,
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        ),
        shape((3, 3, 8 // groups, 16), np.float32),
        shape((4, 10, 10, 8), np.float32),
    )
    index = list(graph.opcode).index(graph.opcodes.index("convolution"))
    instruction = Instruction(
        "convolution",
        json.loads(graph.strings[graph.attribute[index]]),
        [(4, 10, 10, 8), (3, 3, 8 // groups, 16)],
        [(4, 10, 10, 16)],
    )
    found = {(frozenset(f.pairs), f.kind) for f in factors_of(instruction)}
    wanted = {(read("0.0 r.0"), K)}
    if groups == 1:
        wanted |= {(read("1.3 r.3"), K), (read("0.3 1.2"), C)}
    assert found == wanted


def test_rules__an_opcode_without_a_rule_is_named():
    with pytest.raises(HloError, match="infeed"):
        factors_of(Instruction("infeed", {}, [], [(4,)]))


def test_rules__cover_every_opcode_of_the_shipped_graphs():
    from parenvs import load_graph
    from parenvs.instances import names

    used = {opcode for name in names() for opcode in load_graph(name).opcodes}
    assert used - set(RULES) <= {"parameter", "constant", "iota"}
