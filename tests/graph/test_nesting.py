"""What is inside loops and branches takes and returns what it is given and asked for."""

from __future__ import annotations

import pytest
from cases import each

from parenvs.errors import HloError
from parenvs.graph.checks import Computation, wrong_nesting
from parenvs.graph.reader import read_module
from parenvs.graph.text import parse

F, S, P = (11, (4, 8)), (4, ()), (1, ())
LOOP = [S, F], [S, F], [Computation([S, F], [S, F]), Computation([S, F], [P])]
BRANCH = [P, F, S], [F], [Computation([F], [F]), Computation([S], [F])]


def test_nesting__what_fits():
    assert wrong_nesting("while", *LOOP) == ""
    assert wrong_nesting("conditional", *BRANCH) == ""


@each(
    ("opcode", "operands", "results", "inside", "words"),
    [
        ("while", *LOOP[:2], LOOP[2][:1], "has 1 computations"),
        ("while", *LOOP[:2], [*LOOP[2], LOOP[2][0]], "has 3 computations"),
        ("while", [F, S], *LOOP[1:], "differ"),
        ("while", LOOP[0], [S, (11, (4, 9))], LOOP[2], "differ"),
        ("while", *LOOP[:2], [Computation([S, F], [S, S]), LOOP[2][1]], "differ"),
        ("while", *LOOP[:2], [Computation([S, (12, (4, 8))], [S, F]), LOOP[2][1]], "differ"),
        ("while", *LOOP[:2], [LOOP[2][0], Computation([S], [P])], "condition is not what"),
        ("while", *LOOP[:2], [LOOP[2][0], Computation([S, F], [F])], "not one scalar"),
        ("while", *LOOP[:2], [LOOP[2][0], Computation([S, F], [P, P])], "not one scalar"),
        ("conditional", *BRANCH[:2], [], "no computation"),
        ("conditional", [F, F, S], *BRANCH[1:], "first operand"),
        ("conditional", [P, F], *BRANCH[1:], "other arrays than it is given"),
        ("conditional", [P, S, F], *BRANCH[1:], "other arrays than it is given"),
        ("conditional", BRANCH[0], [S], BRANCH[2], "other arrays than it does"),
    ],
)
def test_nesting__what_does_not(opcode, operands, results, inside, words):
    assert words in wrong_nesting(opcode, operands, results, inside)


@pytest.mark.thorough
def test_nesting__costs_of_loops_in_loops():
    """Six loops in each other, of 2^40 iterations each: costs that no float could sum."""
    state = "(s32[], f32[1048576,1048576])"
    lines = ["HloModule m", "test {", f"  p = {state} parameter(0)"]
    lines += ["  i = s32[] get-tuple-element(p), index=0", "  n = s32[] constant(1099511627776)"]
    lines += ["  ROOT l = pred[] compare(i, n), direction=LT", "}", "b0 {"]
    lines += [f"  p = {state} parameter(0)", "  i = s32[] get-tuple-element(p), index=0"]
    lines += ["  x = f32[1048576,1048576] get-tuple-element(p), index=1"]
    lines += ["  one = s32[] constant(1)", "  n = s32[] add(i, one)"]
    lines += ["  y = f32[1048576,1048576] add(x, x)", f"  ROOT r = {state} tuple(n, y)", "}"]
    for k in range(1, 7):
        lines += [f"b{k} {{", f"  p = {state} parameter(0)"]
        lines += ["  i = s32[] get-tuple-element(p), index=0", "  zero = s32[] constant(0)"]
        lines += ["  x = f32[1048576,1048576] get-tuple-element(p), index=1"]
        lines += ["  one = s32[] constant(1)", "  n = s32[] add(i, one)"]
        lines += [f"  s = {state} tuple(zero, x)"]
        lines += [f"  w = {state} while(s), condition=test, body=b{k - 1}"]
        lines += ["  y = f32[1048576,1048576] get-tuple-element(w), index=1"]
        lines += [f"  ROOT r = {state} tuple(n, y)", "}"]
    lines += ["ENTRY main {", "  q = f32[1048576,1048576] parameter(0)"]
    lines += ["  none = s32[] constant(0)", f"  s = {state} tuple(none, q)"]
    lines += [f"  ROOT w = {state} while(s), condition=test, body=b6", "}"]
    with pytest.raises(HloError, match=r"^m: instruction 'while' costs 1\.\d+e\+\d+ FLOPs"):
        read_module(parse("\n".join(lines)), "m")
