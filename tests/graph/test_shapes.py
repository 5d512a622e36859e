"""Modules that do not fit, or ask for too much, end in one line."""

from __future__ import annotations

import warnings

import pytest
from cases import each

from parenvs.errors import HloError
from parenvs.graph.reader import read_module
from parenvs.graph.text import parse

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


def read(line):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_module(parse(MODULE.format(line=line), "mine.txt"), "mine.txt")


@each(
    ("line", "words"),
    [
        ("f32[4,6] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={1}", "do not fit"),
        ("f32[4,6] dot(x, y), lhs_contracting_dims={2}, rhs_contracting_dims={0}", "not"),
        ("f32[4,6] dot(x), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "has 1 operands"),
        ("f32[4,8] add(x, x, x)", "has 3 operands"),
        ("f32[3,4,8] broadcast(x), dimensions={1,-1}", "do not fit"),
        ("f32[8,4] transpose(x), dimensions={1,2}", "do not fit"),
        ("f32[8] reduce(x, z), dimensions={1}, to_apply=sum", "do not fit"),
        ("f32[2,16] reshape(y)", "do not fit"),
    ],
)
def test_shapes__dimensions_that_do_not_fit_are_one_line(line, words):
    with pytest.raises(HloError, match=rf"^mine\.txt: .*{words}") as caught:
        read(line)
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
