"""The order of the trace, recovered from names and operands."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parenvs.graph.text import trace_order


def test_trace_order__example():
    """The program traces q, k and v in turn; the text has v only where it is needed."""
    trace = [f"{name}.{k}" for k in (1, 2, 3) for name in ("dot", "reshape")]
    trace += ["dot.4", "exp.1", "dot.5"]
    uses = {"reshape.1": ["dot.1"], "reshape.2": ["dot.2"], "reshape.3": ["dot.3"]}
    uses |= {"dot.4": ["reshape.1", "reshape.2"], "exp.1": ["dot.4"]}
    uses["dot.5"] = ["exp.1", "reshape.3"]
    text = [*trace[:4], "dot.4", "exp.1", "dot.3", "reshape.3", "dot.5"]
    order = trace_order(text, [[text.index(x) for x in uses.get(name, [])] for name in text])
    assert [text[i] for i in order] == trace


def test_trace_order__names_that_are_no_counters():
    assert trace_order(["b.2", "a.1", "a"], [[], [0], [1]]) == [0, 1, 2]
    assert trace_order(["a.2", "a.1"], [[], [0]]) == [0, 1]  # the counter contradicts the use
    assert trace_order([], []) == []


@pytest.mark.thorough
@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(1, 4), st.randoms(use_true_random=False))
def test_trace_order__obeys_operands_and_counters(count, stems, rng: random.Random):
    """Random programs, each printed in a random topological order."""
    names, uses, counter = [], [], [0] * stems
    for i in range(count):
        stem = rng.randrange(stems)
        counter[stem] += rng.randint(1, 9)
        names.append(f"s{stem}.{counter[stem]}")
        uses.append(sorted(rng.sample(range(i), min(i, rng.randint(0, 3)))))
    text, left = [], set(range(count))
    while left:
        text.append(rng.choice([i for i in sorted(left) if not left.intersection(uses[i])]))
        left.discard(text[-1])
    place = {i: k for k, i in enumerate(text)}
    order = trace_order([names[i] for i in text], [[place[j] for j in uses[i]] for i in text])
    restored = [text[k] for k in order]
    assert sorted(restored) == list(range(count))
    rank = {i: k for k, i in enumerate(restored)}
    assert all(rank[j] < rank[i] for i in range(count) for j in uses[i])
    for stem in range(stems):
        same = [i for i in restored if names[i].startswith(f"s{stem}.")]
        assert same == sorted(same)
