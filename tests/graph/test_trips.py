"""Trip counts: any start, step, direction and comparison, against a count in Python."""

import warnings

import pytest
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st

from parenvs.graph.reader import read_module
from parenvs.graph.text import parse

OPERATORS = {
    "LT": int.__lt__, "LE": int.__le__, "GT": int.__gt__, "GE": int.__ge__, "NE": int.__ne__,
}  # fmt: skip
TEXT = """
HloModule loop
body {{
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4] get-tuple-element(p), index=1
  by = s32[] constant({step})
  next = s32[] {opcode}(i, by)
  y = f32[4] add(x, x)
  ROOT out = (s32[], f32[4]) tuple(next, y)
}}
condition {{
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  end = s32[] constant({end})
  ROOT more = pred[] compare({operands}), direction={direction}
}}
ENTRY main {{
  x = f32[4] parameter(0)
  a = s32[] constant({start})
  b = s32[] constant(2)
  first = s32[] subtract(a, b)
  t = (s32[], f32[4]) tuple(first, x)
  w = (s32[], f32[4]) while(t), condition=condition, body=body
  ROOT y = f32[4] get-tuple-element(w), index=1
}}
"""


def read(**fields):
    """The trip count in the graph of a loop, None if it is not known."""
    text = TEXT.format(**{"opcode": "add", "operands": "i, end", **fields})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = read_module(parse(text), batch_size=1)
    trips = next(text for text in graph.strings if "trip_count" in text)
    count = int(trips.split(":")[1].rstrip("}"))
    loop = graph.opcodes.index("while")
    assert graph.flops[graph.opcode == loop].tolist() == [count * (4 + 1 + 1)]
    if not any("trip count of" in str(warning.message) for warning in caught):
        return count
    assert count == 1
    return None


def counted(start, step, end, goes_on, limit=10_000):
    """Trips of the loop, run in Python; None if it runs too long."""
    i, count = start - 2, 0
    while goes_on(i, end):
        i += step
        count += 1
        if count > limit:
            return None
    return count


@pytest.mark.thorough
@settings(max_examples=40)
@given(
    st.integers(-30, 30), st.integers(-4, 4), st.integers(-30, 30), st.sampled_from([*OPERATORS])
)
def test_trips__as_run(start, step, end, direction):
    wanted = counted(start, step, end, OPERATORS[direction])
    assert read(start=start, step=step, end=end, direction=direction) == wanted


@pytest.mark.thorough
@each("end", [2_047, 2_048, 2_049, 4_096, 1_000_000, 2**31 - 1])
@each(("direction", "more"), [("LT", 0), ("LE", 1)])
def test_trips__long_loops_follow_from_the_step(end, direction, more):
    wanted = -(-(end + more - 1) // 3)
    assert read(start=3, step=3, end=end, direction=direction) == wanted


def test_trips__a_step_that_grows():
    fields = {"start": 3, "opcode": "multiply", "direction": "LT"}
    assert read(step=2, end=1000, **fields) == 10
    assert read(step=1, end=1000, **fields) is None  # it never ends


def test_trips__counter_on_the_right():
    assert read(start=2, step=1, end=7, operands="end, i", direction="GT") == 7


def test_trips__in_a_loop_around():
    """The inner loop's end comes from outside, unchanged through the outer loop."""
    jax = pytest.importorskip("jax")
    from parenvs import from_jax

    def function(x):
        def inner(n, x):
            return jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] @ c[1]), (0, x))

        def outer(c):
            return c[0] - 2, c[1], inner(c[1], c[2])[1]

        return jax.lax.while_loop(lambda c: c[0] > 0, outer, (8, 3, x))[2]

    graph = from_jax(function, jax.ShapeDtypeStruct((4, 4), "float32"))
    assert graph.total_flops == 4 * (3 * (2 * 4**3 + 2) + 2)
