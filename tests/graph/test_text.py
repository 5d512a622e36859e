"""HLO text: every syntax that printers use, broken texts, and whole models."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from parenvs import from_hlo
from parenvs.errors import HloError
from parenvs.graph.flow import chain_bytes
from parenvs.graph.graph import Role
from parenvs.graph.reader import read_module
from parenvs.graph.text import parse, without_comments

# As an optimizing compiler prints: %, operand types, comments, tiled layouts, shardings, windows.
SAMPLE = """\
// a comment
HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8,12,10,4]{3,2,1,0})->f32[]}

FileNames
1 "a {weird} = name.py"

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%region_0.1 (a.1: f32[], b.1: f32[]) -> f32[] {
  %a.1 = f32[]{:T(128)} parameter(0)
  %b.1 = f32[]{:T(128)} parameter(1)
  ROOT %add.1 = f32[]{:T(128)} add(f32[]{:T(128)} %a.1, f32[]{:T(128)} %b.1)
}

%fused_computation (p.1: f32[8,12,10,4]) -> f32[8,12,10,4] {
  %p.1 = f32[8,12,10,4]{3,2,1,0:T(8,128)(2,1)S(1)} parameter(0)
  ROOT %tanh.1 = f32[8,12,10,4]{3,2,1,0:T(8,128)} tanh(%p.1), metadata={op_name="tanh"}
}, execution_thread="main"

ENTRY %main.9 (images.1: f32[8,12,10,4], kernel.1: f32[3,5,2,6]) -> (f32[], f32[8,6]) {
  %kernel.1 = f32[3,5,2,6]{3,2,1,0} parameter(1), sharding={devices=[1,1,1,2]<=[2]}, \
metadata={op_name="params[\\'kernel\\']"}
  %images.1 = f32[8,12,10,4]{3,2,1,0:T(8,128)} parameter(0), sharding={replicated}, \
metadata={op_name="batch[\\'images\\']"}
  %zero.1 = f32[] constant(0)
  %fusion.1 = f32[8,12,10,4]{3,2,1,0} fusion(f32[8,12,10,4]{3,2,1,0:T(8,128)} %images.1), \
kind=kLoop, calls=%fused_computation, metadata={op_name="jit(step)/act" source_file="a,b{.py"}
  %conv.1 = f32[8,6,12,6]{3,2,1,0} convolution(%fusion.1, %kernel.1), \
window={size=3x5 stride=2x1 pad=0_1x2_4 rhs_dilate=1x1 lhs_dilate=1x1 rhs_reversal=0x1}, \
dim_labels=b01f_01io->b01f, feature_group_count=2, frontend_attributes={a="x, y",b="{"}, \
metadata={op_name="jit(step)/say \\"conv\\""}
  ROOT %tuple.1 = (f32[], /*index=1*/(f32[8,6]{1,0}, s32[])) \
custom-call(%conv.1, /*index=1*/%zero.1), \
custom_call_target="x, \\"y\\" = z", backend_config={"a": [1, "}"]}
}
"""


def read(text, **options):
    return read_module(parse(text, "sample"), where="sample", **options)


def rows(graph):
    """Opcode and shape of the first result, in order."""
    return [
        (graph.opcodes[code], graph.shape(graph.results[start]) if start < stop else None)
        for code, start, stop in zip(
            graph.opcode, graph.result_offset[:-1], graph.result_offset[1:], strict=True
        )
    ]


def test_text__sample():
    module = parse(SAMPLE)
    assert module.name == "jit_step"
    assert module.entry_computation_name == "main.9"
    assert [c.name for c in module.computations] == ["region_0.1", "fused_computation", "main.9"]
    nodes = {x.name: x for x in module.computations[2].instructions}
    conv = nodes["conv.1"]
    windows = [
        (w.size, w.stride, w.padding_low, w.padding_high, w.window_dilation, w.reversal)
        for w in conv.window.dimensions
    ]
    assert windows == [(3, 2, 0, 1, 1, False), (5, 1, 2, 4, 1, True)]
    assert conv.feature_group_count == 2
    assert conv.metadata.op_name == 'jit(step)/say "conv"'
    assert list(conv.convolution.kernel_spatial) == [0, 1]
    assert (conv.convolution.kernel_input_feature, conv.convolution.kernel_output_feature) == (2, 3)
    assert list(nodes["fusion.1"].shape.layout.minor_to_major) == [3, 2, 1, 0]
    assert nodes["tuple.1"].custom_call_target.startswith("x, ")
    graph = read(SAMPLE, variables=1)
    assert rows(graph) == [
        ("parameter", (8, 12, 10, 4)),
        ("parameter", (3, 5, 2, 6)),
        ("constant", ()),
        ("tanh", (8, 12, 10, 4)),
        ("convolution", (8, 6, 12, 6)),
        ("custom-call", ()),
    ]
    assert graph.paths == ["images", "kernel"]
    assert [Role(r).name for r in graph.parameter_role] == ["BATCH", "VARIABLE"]
    assert graph.strings[graph.op_name[3]] == "jit(step)/act/tanh"
    assert [graph.shape(t) for t in graph.outputs] == [(), (8, 6), ()]
    rows_of_taps = sum(2 * o + k < 12 for o in range(6) for k in range(3))
    columns = sum(0 <= o - 2 + k < 10 for o in range(12) for k in range(5))
    assert graph.total_flops == 2 * 8 * 6 * 2 * rows_of_taps * columns


ATTRIBUTES = """\
HloModule attributes

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT add = f32[] add(x, y)
}

ge {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT ge = pred[] compare(x, y), direction=GE
}

ENTRY main {
  a = f32[6,10]{1,0} parameter(0)
  i = s32[3,1]{1,0} parameter(1)
  zero = f32[] constant(0)
  ids = s32[6]{0} iota(), iota_dimension=0
  slice = f32[3,4]{1,0} slice(a), slice={[0:6:2], [1:5]}
  pad = f32[11,5]{1,0} pad(slice, zero), padding=1_3_2x0_1
  gather = f32[3,10]{1,0} gather(a, i), offset_dims={1}, collapsed_slice_dims={0}, \
start_index_map={0}, index_vector_dim=1, slice_sizes={1,10}
  scatter = f32[6,10]{1,0} scatter(a, i, gather), update_window_dims={1}, \
inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
  dot = f32[6,6]{1,0} dot(a, scatter), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  window = f32[3,10]{1,0} reduce-window(scatter, zero), window={size=2x1 stride=2x1}, to_apply=add
  back = f32[6,10]{1,0} select-and-scatter(a, window, zero), window={size=2x1 stride=2x1}, \
select=ge, scatter=add
  turn = f32[10,6]{0,1} transpose(back), dimensions={1,0}
  ROOT out = (f32[6,6]{1,0}, (f32[11,5]{1,0}, f32[10,6]{0,1})) tuple(dot, pair)
}
"""


def test_text__attributes():
    pair = "  pair = (f32[11,5]{1,0}, f32[10,6]{0,1}) tuple(pad, turn)\n  ROOT"
    graph = read(ATTRIBUTES.replace("  ROOT out", f"{pair} out"))
    flops = {graph.opcodes[k]: f for k, f in zip(graph.opcode, graph.flops, strict=True)}
    assert flops["dot"] == 2 * 6 * 6 * 10
    assert flops["scatter"] == 30
    assert flops["reduce-window"] == 30
    assert flops["select-and-scatter"] == 30 * (1 + 1)
    moved = {graph.opcodes[k]: b for k, b in zip(graph.opcode, graph.bytes_accessed, strict=True)}
    assert moved["transpose"] == 0  # a change of layout only
    assert moved["gather"] == 4 * (30 + 30 + 3)
    assert [graph.shape(t) for t in graph.outputs] == [(6, 6), (11, 5), (10, 6)]
    text = {
        graph.opcodes[k]: graph.strings[a]
        for k, a in zip(graph.opcode, graph.attribute, strict=True)
    }
    assert '"slices":[[0,6,2],[1,5,1]]' in text["slice"]
    assert '{"low":1,"high":3,"interior":2}' in text["pad"]
    assert '"gather_slice_sizes":[1,10]' in text["gather"]
    assert '"update_window_dims":[1]' in text["scatter"]
    assert '"dimensions":[1,0]' in text["transpose"]


LOOP = """\
HloModule loop
body {
  t = (s32[], f32[4,4]{1,0}) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[4,4]{1,0} get-tuple-element(t), index=1
  dot = f32[4,4]{1,0} dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = (s32[], f32[4,4]{1,0}) tuple(next, dot)
}
condition {
  t = (s32[], f32[4,4]{1,0}) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(9)
  ROOT lt = pred[] compare(i, n), direction=LT
}
left { ROOT a = f32[4,4]{1,0} parameter(0)
}
right {
  b = f32[4,4]{1,0} parameter(0)
  ROOT c = f32[4,4]{1,0} add(b, b)
}
ENTRY main {
  x = f32[4,4]{1,0} parameter(0)
  p = pred[] parameter(1)
  start = s32[] constant(2)
  t = (s32[], f32[4,4]{1,0}) tuple(start, x)
  w = (s32[], f32[4,4]{1,0}) while(t), condition=condition, body=body
  y = f32[4,4]{1,0} get-tuple-element(w), index=1
  ROOT c = f32[4,4]{1,0} conditional(p, y, y), true_computation=left, false_computation=right
}
"""
LOOP = LOOP.replace("left { ROOT", "left {\n  ROOT")


def test_text__called_computations():
    graph = read(LOOP)
    assert graph.total_flops == 7 * (2 * 64 + 1 + 1) + 16
    branches = "branch_computations={left, right}"
    text = LOOP.replace("true_computation=left, false_computation=right", branches)
    assert read(text).fingerprint == graph.fingerprint


BAD = [
    ("", "no 'HloModule' line; is this HLO text?"),
    ("Dear reader,\nthis is a letter.\n", "no 'HloModule' line"),
    ("HloModule m\n", "truncated: no complete ENTRY"),
    ("HloModule m\nENTRY e {\n}\n", "line 3: '}' behind no instruction"),
    ("HloModule m\n}\n", "line 2: '}' behind no instruction"),
    (LOOP[: LOOP.index("ENTRY")], "truncated: no complete ENTRY"),
    (LOOP.rstrip()[:-1], "truncated: no complete ENTRY"),
    (LOOP.replace("add(i, one)", "add(i, two)"), "line 6 does not parse: 'two'"),
    (LOOP.replace("add(i, one)", "add(i, one"), "line 6 does not parse: brackets do not match"),
    (LOOP.replace("s32[] add(i", "i32[] add(i"), "line 6 does not parse: unknown shape 'i32"),
    (LOOP.replace("= s32[] add(i, one)", ""), "line 6 does not parse: expected 'name = shape"),
    (
        LOOP.replace("add(i, one)", "7"),
        "line 6 does not parse: no opcode after the shape of 'next'",
    ),
    (LOOP.replace("body=body", "body=gone"), "'w' calls unknown computation 'gone'"),
    (LOOP.replace("parameter(1)", "parameter(x)"), "line 26 does not parse"),
    (LOOP.replace("index=1\n  ROOT c", "index=5\n  ROOT c"), "broken or truncated module"),
    (LOOP.replace("dot(x, x)", "frobnicate(x, x)"), "instruction 'dot' has opcode 'frobnicate'"),
    (LOOP.replace("dot(x, x)", "all-reduce(x)"), "already partitioned; give the module before"),
    (LOOP.replace("{\n  b = ", "{\n  b = f32[4,4]{1,0} parameter(0)\n  b = "), "'b' a second time"),
    (LOOP.replace("f32[4,4]{1,0} parameter(0)\n  p", "f32[4,<=4]{1,0} parameter(0)\n  p"), ""),
    (
        LOOP.replace("f32[4,4]{1,0} parameter(0)\n  p", "f32[4,?]{1,0} parameter(0)\n  p"),
        "line 25 does not parse",
    ),
]


@each(("text", "message"), BAD)
def test_text__bad(text, message, tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(text)
    if not message:  # a bound on a dimension is taken for its size
        assert from_hlo(path).shape(0) == (4, 4)
        return
    with pytest.raises(HloError, match=re.escape(message)) as caught:
        from_hlo(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_text__not_text(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes(b"\x89PNG\xff")
    with pytest.raises(HloError, match=r"mine\.txt: not HLO text"):
        from_hlo(path)


@given(st.integers(0, len(SAMPLE) - 1))
def test_text__truncated(length):
    """No part of a text passes for the whole, unless only the last newline is gone."""
    if SAMPLE[:length].rstrip() == SAMPLE.rstrip():
        return
    with pytest.raises(HloError):
        read(SAMPLE[:length])


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*trip count:UserWarning")
@given(st.integers(0, len(LOOP) - 1), st.characters(codec="ascii"))
def test_text__one_character_changed(place, character):
    try:
        read(LOOP[:place] + character + LOOP[place + 1 :])
    except HloError as error:
        assert "\n" not in str(error)


@each(
    ("name", "path", "argument"),
    [
        ("params__embedding__", "embedding", "params"),
        ("opt_state__m____layer_0____q__", "m/layer_0/q", "opt_state"),
        ("params__layers___10___norm__", "layers/10/norm", "params"),
        ("args_0_", "0", "args"),
        ("x", "x", "x"),
        ("Arg_0", "Arg_0", "Arg_0"),
    ],
)
def test_text__argument_names(name, path, argument):
    text = f"HloModule m\nENTRY e {{\n  ROOT {name}.1 = f32[2,3]{{1,0}} parameter(0)\n}}\n"
    graph = read(text)
    assert graph.paths == [path]
    assert graph.strings[graph.op_name[0]].startswith(argument)


def crossing(graph):
    """Cut bytes and variable bytes of the chain."""
    counted = chain_bytes(graph, graph.pivots())
    return counted.cut, counted.variables


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "elsewhere"),  # share of the pivots at another place than in the trace, rounded up
    [
        ("vgg-19", 0.13),
        pytest.param("resnet50", 0.30, marks=pytest.mark.slow),
        ("decoder", 0.10),
        pytest.param("t5-base", 0.02, marks=pytest.mark.slow),
        pytest.param("t5-3b", 0.01, marks=pytest.mark.slow),
        pytest.param("t5-11b", 0.01, marks=pytest.mark.slow),
        pytest.param("bert-48", 0.02, marks=pytest.mark.slow),
    ],
)
def test_text__model(name, elsewhere):
    pytest.importorskip("jax")
    from jax_graphs import graph, lowered

    expected = graph(name, "forward")
    from_text = read(lowered(name, "forward").as_text("hlo"))
    assert from_text.total_flops == expected.total_flops
    assert from_text.bytes_accessed.sum() == expected.bytes_accessed.sum()
    assert from_text.paths == expected.paths
    np.testing.assert_array_equal(from_text.parameter_role, expected.parameter_role)
    assert from_text.batch_size == expected.batch_size
    kinds = [np.array([*map(str, rows(g))])[g.pivots()] for g in (expected, from_text)]
    assert sorted(kinds[0]) == sorted(kinds[1])
    assert np.mean(kinds[0] != kinds[1]) <= elsewhere
    (cut, variables), (text_cut, text_variables) = crossing(expected), crossing(from_text)
    assert np.mean(cut != text_cut) <= elsewhere + 0.01
    assert text_variables.sum() == variables.sum()


@pytest.mark.slow
def test_text__open_comments_take_linear_time():
    start = time.perf_counter()
    assert without_comments("a/*b*/c/*/d*/e/*f" + "/* " * 500_000).startswith("ace/*f")
    assert time.perf_counter() - start < 2


def test_text__deep_tuples_are_one_line():
    shape = "(" * 5000 + "f32[]" + ")" * 5000
    with pytest.raises(HloError, match=r"line 3 does not parse: .*tuples nested more than 50 deep"):
        parse(f"HloModule m\nENTRY e {{\n  p = {shape} parameter(0)\n}}")
