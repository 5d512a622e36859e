"""What XLA's verifier refuses is refused, and what it accepts is read."""

from __future__ import annotations

import warnings

import pytest
from cases import each

from parenvs.errors import HloError
from parenvs.graph.formats.text import parse
from parenvs.graph.reader import read_module

MODULE = """\
HloModule m
sum {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}
less {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}}
ENTRY main {{
  x = f32[4,8] parameter(0)
  y = f32[8,6] parameter(1)
  z = f32[] parameter(2)
  i = s32[5,1] parameter(3)
  u = f32[5,8] parameter(4)
  n = f32[2,9,9,4] parameter(5)
  k = f32[3,3,4,6] parameter(6)
  ROOT r = {line}
}}
"""
GATHER = (
    "gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
    "index_vector_dim=1, slice_sizes="
)
SCATTER = (
    "scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0}, "
    "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum"
)
CONVOLUTION = "convolution(n, k), window={size=3x3}, dim_labels=b01f_01io->b01f"
GOOD_AND_BAD = {
    "f32[4,6] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}": [
        ("rhs_contracting_dims={0}", "rhs_contracting_dims={1}", "contracts"),
        ("f32[4,6]", "f32[4,7]", "should be"),
        ("lhs_contracting_dims={1}", "lhs_contracting_dims={2}", "out of range"),
    ],
    "f32[4,8] add(x, x)": [("f32[4,8]", "f32[8,4]", "differ"), ("x, x", "x, y", "differ")],
    "f32[3,4,8] broadcast(x), dimensions={1,2}": [
        ("{1,2}", "{0,2}", "should be"),
        ("{1,2}", "{1,1}", "where"),
        ("{1,2}", "{1}", "where"),
    ],
    "f32[8,4] transpose(x), dimensions={1,0}": [
        ("{1,0}", "{0,1}", "should be"),
        ("{1,0}", "{1,1}", "permutation"),
    ],
    "f32[2,16] reshape(x)": [("[2,16]", "[2,17]", "elements")],
    "f32[9,8] concatenate(x, u), dimensions={0}": [
        ("[9,8]", "[8,8]", "should be"),
        ("{0}", "{1}", "differ"),
        ("{0}", "{3}", "out of range"),
    ],
    "f32[2,8] slice(x), slice={[1:4:2], [0:8]}": [
        ("1:4:2", "1:5:2", "not inside"),
        ("[2,8]", "[3,8]", "should be"),
    ],
    "f32[4,20] pad(x, z), padding=0_0x3_2_1": [("4,20", "4,21", "should be")],
    "f32[8] reduce(x, z), dimensions={0}, to_apply=sum": [
        ("{0}", "{1}", "should be"),
        ("{0}", "{2}", "out of range"),
    ],
    f"f32[2,7,7,6] {CONVOLUTION}": [
        ("(n, k)", "(n, n)", "features"),
        ("b01f_01io->b01f", "b01f_01oi->b01f", "features"),
        ("[2,7,7,6]", "[3,7,7,6]", "samples"),
        ("[2,7,7,6]", "[2,7,8,6]", r"\[7, 8\] should be \[7, 7\]"),
        ("size=3x3", "size=3x2", r"\[3, 3\] should be \[3, 2\]"),
        ("size=3x3", "size=3x3 stride=2x1", r"\[7, 7\] should be \[4, 7\]"),
        ("size=3x3", "size=3x3 pad=0_1x0_0", r"\[7, 7\] should be \[8, 7\]"),
    ],
    "f32[4,8] sort(x), dimensions={1}, to_apply=less": [
        ("{1}", "{2}", "out of range"),
        ("f32[4,8]", "f32[8,4]", "should be"),
        ("(x)", "(x, y)", "differ"),
    ],
    "c64[4,5] fft(x), fft_type=RFFT, fft_length={8}": [
        ("{8}", "{4}", "lengths are"),
        ("c64[4,5]", "c64[4,6]", "lengths are"),
        ("c64[4,5]", "c64[3,5]", "leaves alone"),
        ("{8}", "{}", "one to three positive"),
    ],
    "f32[4,8] bitcast(x)": [("(x)", "(x, x)", "2 operands")],
    "u64[2] rng-get-and-update-state(), delta=1": [("()", "(x)", "1 operands")],
    f"f32[5,8] {GATHER}{{1,8}}": [
        ("{1,8}", "{1,9}", "do not fit"),
        ("start_index_map={0}", "start_index_map={2}", "indices"),
        ("f32[5,8]", "f32[6,8]", "should be"),
    ],
    f"f32[4,8] {SCATTER}": [
        ("inserted_window_dims={0}", "inserted_window_dims={1}", "do not fit"),
        ("scatter_dims_to_operand_dims={0}", "scatter_dims_to_operand_dims={0,1}", "indices"),
    ],
}


def read(line):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_module(parse(MODULE.format(line=line), "mine.txt"), "mine.txt")


@pytest.mark.thorough
@each("line", GOOD_AND_BAD)
def test_shapes__good_and_bad(line):
    read(line)
    for old, new, words in GOOD_AND_BAD[line]:
        assert old in line
        with pytest.raises(HloError, match=rf"^mine\.txt: instruction 'r': .*{words}") as caught:
            read(line.replace(old, new, 1))
        assert "\n" not in str(caught.value)


@each(
    ("old", "new", "words"),
    [
        ("b = f32[] parameter(1)", "b = f32[] parameter(0)", "'sum' has a parameter of number 0"),
        ("y = f32[8,6] parameter(1)", "y = f32[8,6] parameter(9)", "'main' has a parameter of"),
        ("x = f32[4,8] parameter(0)", "x = f32[4,8] parameter(-1)", "of number -1; its 7 are to"),
        ("call(z, z)", "call(z)", "'sum' takes 2 operands, given 1"),
        ("call(z, z)", "call(z, z, z)", "'sum' takes 2 operands, given 3"),
    ],
)
def test_shapes__parameters_of_computations(old, new, words):
    text = MODULE.format(line="f32[] call(z, z), to_apply=sum")
    read_module(parse(text))
    assert old in text
    with pytest.raises(HloError, match=words):
        read_module(parse(text.replace(old, new, 1)))


@pytest.mark.thorough
def test_shapes__calls_that_double_are_stopped():
    """Forty computations that call the one before twice would be 2^40 instructions."""
    lines = ["HloModule m", "c0 {", "  ROOT p = f32[4] parameter(0)", "}"]
    for k in range(1, 41):
        lines += [f"c{k} {{", "  p = f32[4] parameter(0)"]
        lines += [f"  a = f32[4] call(p), to_apply=c{k - 1}"]
        lines += [f"  ROOT b = f32[4] call(a), to_apply=c{k - 1}", "}"]
    lines += ["ENTRY main {", "  p = f32[4] parameter(0)"]
    lines += ["  ROOT r = f32[4] call(p), to_apply=c40", "}"]
    with pytest.raises(HloError, match=r"would become more than \d+,\d+ instructions"):
        read_module(parse("\n".join(lines)))


def test_shapes__tuples_that_double_are_stopped():
    lines = ["HloModule m", "ENTRY main {", "  t0 = f32[4] parameter(0)"]
    lines += [f"  t{k} = (f32[4], f32[4]) tuple(t{k - 1}, t{k - 1})" for k in range(1, 60)]
    with pytest.raises(HloError, match="does not fit its shape"):
        read_module(parse("\n".join([*lines, "}"])))


def test_shapes__deep_calls_are_stopped():
    lines = ["HloModule m", "c0 {", "  ROOT p = f32[4] parameter(0)", "}"]
    for k in range(1, 120):
        lines += [f"c{k} {{", "  p = f32[4] parameter(0)"]
        lines += [f"  ROOT a = f32[4] call(p), to_apply=c{k - 1}", "}"]
    lines += ["ENTRY main {", "  p = f32[4] parameter(0)"]
    lines += ["  ROOT r = f32[4] call(p), to_apply=c119", "}"]
    with pytest.raises(HloError, match="nested more than 100 deep"):
        read_module(parse("\n".join(lines)))


def test_shapes__bytes_that_cannot_be_counted():
    huge = ",".join(["1099511627776"] * 4)
    with pytest.raises(HloError, match="more bytes than can be counted"):
        read(f"f32[{huge}] broadcast(z), dimensions={{}}")
