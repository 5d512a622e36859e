"""Graphs: chains, files, frozen arrays."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parenvs import from_hlo
from parenvs.errors import HloError
from parenvs.graph.flow import chain_bytes
from parenvs.graph.graph import Graph, Role
from parenvs.graph.reader import read_module
from parenvs.graph.text import parse


def from_text(lines, **options):
    text = "HloModule m\nENTRY e {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"
    return read_module(parse(text), **options)


@st.composite
def programs(draw):
    """A random program: variables, a batch, and additions and tuple-valued calls of any of them."""
    count = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 50), min_size=count + 1, max_size=count + 1))
    lines = [f"params__v{i}__.1 = f32[{n}]{{0}} parameter({i})" for i, n in enumerate(sizes[:-1])]
    lines.append(f"batch.1 = f32[{sizes[-1]}]{{0}} parameter({count})")
    lines += ["zero = f32[] constant(0)", "free = f32[7]{0} broadcast(zero), dimensions={}"]
    known = [line.split()[0] for line in lines]
    for i in range(draw(st.integers(1, 12))):
        read = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))
        shapes = [
            f"f32[{n}]{{0}}" for n in draw(st.lists(st.integers(1, 50), min_size=1, max_size=3))
        ]
        is_single = len(shapes) == 1
        shape = shapes[0] if is_single else f"({', '.join(shapes)})"
        lines.append(f'call.{i} = {shape} custom-call({", ".join(read)}), custom_call_target="x"')
        if is_single:
            known.append(f"call.{i}")
        else:
            for k, part in enumerate(shapes):
                lines.append(f"part.{i}_{k} = {part} get-tuple-element(call.{i}), index={k}")
                known.append(f"part.{i}_{k}")
    lines[-1] = f"ROOT {lines[-1]}"
    return lines


def cuts_by_sets(graph):
    """Bytes that cross each cut and bytes of the variables first used, by the definition."""
    pivots = graph.pivots().tolist()
    width = {1: 1, 4: 4, 11: 4}  # pred, s32, f32
    size = [
        int(np.prod(graph.shape(t))) * width[k] for t, k in enumerate(graph.element_type.tolist())
    ]

    def row(flat, offset, i):
        return set(flat[offset[i] : offset[i + 1]].tolist())

    produced = [row(graph.results, graph.result_offset, i) for i in pivots]
    used = [row(graph.operands, graph.operand_offset, i) for i in pivots]
    variables = set(graph.parameter_tensor[graph.variables].tolist())
    cut, parameter, used_before = [], [], set()
    for k in range(len(pivots)):
        before = set().union(*produced[: k + 1])
        after = set().union(*used[k + 1 :])
        cut.append(sum(size[t] for t in before & after))
        parameter.append(sum(size[t] for t in (used[k] & variables) - used_before))
        used_before |= used[k]
    return cut, parameter


@pytest.mark.thorough
@given(programs())
def test_graph__chain_bytes_by_sets(lines):
    graph = from_text(lines)
    assert "free" not in {graph.strings[graph.op_name[i]] for i in graph.pivots()}
    counted = chain_bytes(graph, graph.pivots())
    cut, parameter = counted.cut, counted.variables
    expected_cut, expected_parameter = cuts_by_sets(graph)
    assert cut.tolist() == expected_cut
    assert parameter.tolist() == expected_parameter


def test_graph__tied_variable_counts_once_where_first_used():
    graph = from_text(
        [
            "params__tied__.1 = f32[10]{0} parameter(0)",
            "params__late__.1 = f32[3]{0} parameter(1)",
            "params__unused__.1 = f32[99]{0} parameter(2)",
            "x.1 = f32[10]{0} parameter(3)",
            "a.1 = f32[10]{0} negate(x.1)",
            "b.1 = f32[10]{0} add(a.1, params__tied__.1)",
            "c.1 = f32[10]{0} multiply(b.1, params__tied__.1)",
            "ROOT d.1 = f32[13]{0} concatenate(c.1, params__late__.1), dimensions={0}",
        ]
    )
    counted = chain_bytes(graph, graph.pivots())
    cut, parameter = counted.cut, counted.variables
    assert parameter.tolist() == [0, 40, 0, 12]
    assert cut.tolist() == [40, 40, 40, 0]
    assert graph.parameter_bytes == 40 + 12 + 4 * 99
    assert graph.tensor_bytes_of(graph.pivots()).tolist() == [40, 40, 40, 52]


def test_graph__pivots_of_a_chain_with_free_parts():
    graph = from_text(
        [
            "x.1 = f32[4]{0} parameter(0)",
            "rate.1 = f32[] parameter(1)",
            "one.1 = f32[] constant(1)",
            "sum.1 = f32[] add(rate.1, one.1)",
            "wide.1 = f32[4]{0} broadcast(sum.1), dimensions={}",
            "iota.1 = f32[4]{0} iota(), iota_dimension=0",
            "free.1 = f32[4]{0} multiply(wide.1, iota.1)",
            "random.1 = f32[4]{0} rng(one.1, one.1), distribution=rng_uniform",
            "ROOT y.1 = f32[4]{0} multiply(x.1, free.1)",
        ],
        variables="*x*",
    )
    names = [graph.opcodes[graph.opcode[i]] for i in graph.pivots()]
    assert sorted(names) == ["multiply", "rng"]
    assert [Role(r).name for r in graph.parameter_role] == ["VARIABLE", "SCALAR"]
    assert int(graph.free.sum()) == 6


def test_graph__is_frozen():
    graph = from_text(["ROOT x = f32[4]{0} parameter(0)"])
    for key, value in vars(graph).items():
        if isinstance(value, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                value[...] = 0
            assert not value.flags.writeable, key


# Files.


@pytest.fixture
def saved(tmp_path):
    graph = from_text(
        [
            "params__w__.1 = f32[8,4]{1,0} parameter(0)",
            "batch__x__.1 = f32[16,8]{1,0} parameter(1)",
            "dot.1 = f32[16,4]{1,0} dot(batch__x__.1, params__w__.1), "
            "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            "ROOT tanh.1 = f32[16,4]{1,0} tanh(dot.1)",
        ],
        name="mine",
    )
    path = tmp_path / "mine.npz"
    graph.save(path)
    return graph, path


def test_graph__npz_round_trip(saved):
    graph, path = saved
    for again in (Graph.load(path), from_hlo(path), from_hlo(str(path))):
        assert again.fingerprint == graph.fingerprint
        assert (again.name, again.batch_size) == ("mine", 16)
        assert again.opcodes == graph.opcodes
        assert again.strings == graph.strings
        assert not again.flops.flags.writeable
        assert "mine" in repr(again)


def test_graph__fingerprint_sees_every_array(saved):
    graph, _ = saved
    arrays = {k: v for k, v in vars(graph).items() if isinstance(v, np.ndarray)}
    fingerprints = {graph.fingerprint, replace(graph, batch_size=17).fingerprint}
    for key, value in arrays.items():
        changed = value.copy()
        changed[-1] = not changed[-1] if changed.dtype == bool else changed[-1] + 1
        fingerprints.add(replace(graph, **{key: changed}).fingerprint)
    assert len(fingerprints) == len(arrays) + 2
    assert replace(graph, name="other").fingerprint == graph.fingerprint


def rewrite(graph, path, head=None, **changes):
    """Writes a graph file with some of its content changed."""
    first = {"schema": 1, "name": "x", "batch_size": 4, **(head or {})}
    arrays = {k: v for k, v in vars(graph).items() if isinstance(v, np.ndarray)}
    arrays = {k: v for k, v in {**arrays, **changes}.items() if v is not None}
    np.savez(path, head=np.frombuffer(json.dumps(first).encode(), dtype=np.uint8), **arrays)


def test_graph__npz_of_another_schema(saved):
    graph, path = saved
    for options in ({"head": {"schema": 2}}, {"flops": None}, {"extra": np.ones(2)}):
        rewrite(graph, path, **options)
        with pytest.raises(HloError, match=r"graph schema \d is not 1; build the file anew"):
            Graph.load(path)
