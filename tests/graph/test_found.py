"""What fuzzing found in graphs that are read: each was a traceback, a hang or a wrong figure."""

from __future__ import annotations

import warnings

import pytest

from parenvs import problem
from parenvs.errors import HloError
from parenvs.graph.graph import Graph
from parenvs.graph.program import Program, Row, learn
from parenvs.graph.reader import read_module
from parenvs.graph.text import parse

LAYERS = """\
HloModule layers

body {
  p = (s32[], f32[4,8], f32[3,8,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  h = f32[4,8] get-tuple-element(p), index=1
  w = f32[3,8,8] get-tuple-element(p), index=2
  zero = s32[] constant(0)
  one = s32[] constant(1)
  n = s32[] add(i, one)
  l = f32[1,8,8] dynamic-slice(w, i, zero, zero), dynamic_slice_sizes={1,8,8}
  m = f32[8,8] reshape(l)
  d = f32[4,8] dot(h, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = (s32[], f32[4,8], f32[3,8,8]) tuple(n, d, w)
}

test {
  p = (s32[], f32[4,8], f32[3,8,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(TRIPS)
  ROOT less = pred[] compare(i, n), direction=LT
}

ENTRY main {
  params__layers__ = f32[3,8,8] parameter(0)
  params__head__ = f32[8,5] parameter(1)
  batch = f32[4,8] parameter(2)
  none = s32[] constant(0)
  s = (s32[], f32[4,8], f32[3,8,8]) tuple(none, batch, params__layers__)
  loop = (s32[], f32[4,8], f32[3,8,8]) while(s), condition=test, body=body
  o = f32[4,8] get-tuple-element(loop), index=1
  ROOT y = f32[4,5] dot(o, params__head__), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def read(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_module(parse(text), "x")


@pytest.mark.thorough
@pytest.mark.parametrize("trips", [15_000, 2**40])
def test_found__loop_over_very_many_layers(trips):
    """It stays rolled, and that is known before its iterations are written."""
    graph = read(LAYERS.replace("TRIPS", str(trips)))
    with pytest.warns(UserWarning, match="its loops stay rolled"):
        problem(graph, "1x2:v100", micro_batch=1)
    few = read(LAYERS.replace("TRIPS", "3"))
    assert len(problem(few, "1x2:v100", micro_batch=1).profile) > 3


def test_found__numbers_that_double():
    """A square of a square, 2,000 times, has more digits than there is memory."""
    count = 2000
    program = Program()
    for k in range(count):
        program.rows.append(Row("multiply", [k, k], [k + 1], 0, 0, 0, -1, "", ""))
    for _ in range(count + 1):
        program.tensor((), 4)
    known = {0: (3,)}
    learn(program, range(count), known)
    assert known == {k: (3**2**k,) for k in range(6)}


def test_found__sizes_that_only_one_reader_counted(tmp_path):
    """An empty dimension beside huge ones: what HLO may hold, a graph file may hold."""
    text = (
        "HloModule m\nENTRY main {\n  p = f32[SIZES] parameter(0)\n  ROOT r = f32[SIZES] tanh(p)\n}"
    )
    with pytest.raises(HloError, match="more bytes than can be counted"):
        read(text.replace("SIZES", "1099511627776,1099511627776,0"))
    graph = read(text.replace("SIZES", f"{2**59 - 1},0"))
    graph.save(tmp_path / "x.npz")
    assert Graph.load(tmp_path / "x.npz").fingerprint == graph.fingerprint


def test_found__sizes_beyond_64_bits():
    """Protobuf refuses the number; before version 5 it ends a generator with a SystemError."""
    for size in (2**63, 2**64, 10**30):
        with pytest.raises(HloError):
            read(LAYERS.replace("f32[8,5] parameter", f"f32[{size},5] parameter"))
