"""Factor rules: each opcode's factors on a small instruction, written out by hand."""

import warnings

import numpy as np
import pytest
from cases import each

from parenvs.errors import HloError
from parenvs.graph.opcodes import RULES, Instruction, Kind, factors_of

K, C, R, I = Kind.KEPT, Kind.CONTRACTED, Kind.REDUCED, Kind.INDEXED  # noqa: E741
CASES = {
    "select by a scalar": ("select", {}, [(), (4,), (4,)], [(4,)], [("1.0 2.0 r.0", K)]),
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
    "reshape that splits": (
        "reshape",
        {},
        [(4, 12)],
        [(4, 3, 4)],
        [("0.0 r.0", K), ("0.1 r.1", K)],
    ),
    "reshape across": ("reshape", {}, [(6, 4)], [(8, 3)], [("0.0 r.0", K)]),
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
    "writing rows": (  # the last one wins, so that their order matters
        "scatter",
        {
            "scatter": {
                "update_window_dims": [1],
                "inserted_window_dims": [0],
                "scatter_dims_to_operand_dims": [0],
                "index_vector_dim": 1,
            },
            "applies": [[]],
        },
        [(100, 8), (4, 1), (4, 8)],
        [(100, 8)],
        [("0.1 2.1 r.1", K), ("0.0 r.0", K)],
    ),
    "rows of two arrays, batch by batch": (
        "scatter",
        {
            "scatter": {
                "update_window_dims": [2],
                "inserted_window_dims": [1],
                "input_batching_dims": [0],
                "scatter_indices_batching_dims": [0],
                "scatter_dims_to_operand_dims": [1],
                "index_vector_dim": 2,
            },
            "applies": [["add"]],
        },
        [(2, 100, 8), (2, 100, 8), (2, 4, 1), (2, 4, 8), (2, 4, 8)],
        [(2, 100, 8), (2, 100, 8)],
        [
            ("2.0 3.0 4.0 0.0 r.0 1.0 s.0", K),
            ("2.1 3.1 4.1", R),
            ("0.2 3.2 r.2 1.2 4.2 s.2", K),
            ("0.1 r.1 1.1 s.1", K),
        ],
    ),
    "unknown custom call": ("custom-call", {"target": "x"}, [(4,)], [(4,)], []),
    "annotation": ("custom-call", {"target": "Sharding"}, [(4,)], [(4,)], [("0.0 r.0", K)]),
    "approximate top-k": (
        "custom-call",
        {"target": "ApproxTopK"},
        [(8, 4), (8, 4), (), ()],
        [(2, 4), (2, 4)],
        [("0.1 1.1 r.1 s.1", K)],
    ),
    "approximate top-k of all": (  # which dimension it selects from cannot be told
        "custom-call",
        {"target": "ApproxTopK"},
        [(8, 4), (8, 4), (), ()],
        [(8, 4), (8, 4)],
        [],
    ),
    "partial reduction beside a shorter table": (
        "custom-call",
        {"target": "PartialReduce"},
        [(8, 4), (4,)],
        [(2, 4)],
        [("0.1 r.1", K)],
    ),
    "eigenvalues of a batch": (
        "custom-call",
        {"target": "lapack_ssyevd_ffi"},
        [(2, 4, 6, 6)],
        [(2, 4, 6, 6), (2, 4, 6), (2, 4)],
        [("0.0 r.0 s.0 t.0", K), ("0.1 r.1 s.1 t.1", K)],
    ),
}


def read(text):
    slots = {"r": -1, "s": -2, "t": -3}
    pairs = (pair.split(".") for pair in text.split())
    return frozenset((slots.get(slot) or int(slot), int(d)) for slot, d in pairs)


@each("name", CASES)
def test_rules__factors(name):
    opcode, attribute, operands, results, wanted = CASES[name]
    found = factors_of(Instruction(opcode, attribute, operands, results))
    assert {(frozenset(f.pairs), f.kind) for f in found} == {(read(t), k) for t, k in wanted}
    assert len(found) == len(wanted)


def test_rules__unknown_custom_calls_are_named_once():
    jax = pytest.importorskip("jax")
    from parenvs import from_jax
    from parenvs.tasks.partition.classes import dimension_classes

    shape = jax.ShapeDtypeStruct((4, 6), np.float32)

    def twice(x):
        for _ in range(2):
            x = jax.pure_callback(np.sin, shape, x * 2)
        return x, jax.lax.linalg.eigh(x @ x.T)

    graph = from_jax(twice, shape, name="mine")
    with pytest.warns(UserWarning) as found:
        classes = dimension_classes(graph)
    texts = [str(x.message) for x in found]
    assert len(texts) == 1
    assert "mine" in texts[0]
    assert "python_cpu_callback" in texts[0]  # its name's beginning changes with JAX
    assert "pure_callback" in texts[0].split("(", 1)[1]  # the op_name
    assert "never partitioned" in texts[0]
    x = graph.dim_offset[graph.parameter_tensor[0]]
    assert classes.blocked[classes.label[[x, x + 1]]].all()


def test_rules__known_custom_calls_are_not_named():
    jax = pytest.importorskip("jax")
    from parenvs import from_jax
    from parenvs.tasks.partition.classes import dimension_classes

    shape = jax.ShapeDtypeStruct((4, 6, 6), np.float32)
    graph = from_jax(lambda x: jax.lax.linalg.svd(x), shape)
    assert "custom-call" in graph.opcodes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classes = dimension_classes(graph)
    x = graph.dim_offset[graph.parameter_tensor[0]]
    assert classes.blocked[classes.label[x : x + 3]].tolist() == [False, True, True]


def test_rules__an_opcode_without_a_rule_is_named():
    with pytest.raises(HloError, match="infeed"):
        factors_of(Instruction("infeed", {}, [], [(4,)]))


def test_rules__cover_every_opcode_that_the_reader_knows():
    from parenvs.graph.opcodes import OPCODES
    from parenvs.tasks.partition.classes import LINKED

    inlined = {"call", "fusion", "get-tuple-element", "tuple"}
    assert set(OPCODES) - set(RULES) == {
        *LINKED,
        "parameter",
        "constant",
        "iota",
        "partition-id",
        "replica-id",
        *inlined,
    }


BATCHES = {
    "mhlo.topk": 1,
    "cu_lu_pivots_to_permutation": 1,
    "lapack_sgetrf_ffi": 2,
    "hipsolver_getrf_ffi": 2,
    "cuhybrid_eig_comp": 2,
    "Eigh": 2,
    "ProductOfElementaryHouseholderReflectors": 2,
}
"""Target -> the last dimensions that it needs whole."""


@each("target", BATCHES)
def test_rules__what_works_on_batches_splits_the_batch_alone(target):
    for batch in (0, 1, 2):
        shape = (2, 3, 4, 4)[4 - BATCHES[target] - batch :]
        call = Instruction("custom-call", {"target": target}, [shape], [shape])
        found = [factor.pairs for factor in factors_of(call)]
        assert found == [((0, d), (-1, d)) for d in range(batch)]
