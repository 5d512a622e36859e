"""Factor rules against XLA's own partitioner on functions of one instruction."""

import warnings
from collections import Counter

import pytest
from jax_versions import jax_that_verifies

jax_that_verifies()

from benchmarks.shardy import STRICTER, Case  # noqa: E402
from benchmarks.single_ops import OPS  # noqa: E402
from parenvs.graph import opcodes  # noqa: E402

pytestmark = pytest.mark.thorough


def outcomes(opcode):
    """Outcomes of all decisions on the functions of an opcode, and what is documented of them."""
    counts, odd, stricter = Counter(), [], set()
    for name, (function, args) in OPS[opcode].items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of trip counts and callbacks
            case = Case(f"{opcode}, {name}", function, args)
        single, pairs = case.every()
        counts += single + pairs
        odd += case.odd
        stricter |= {*case.stricter["single"], *case.stricter["pair"]}
    return counts, odd, stricter


@pytest.mark.thorough
@pytest.mark.parametrize("opcode", OPS)
def test_rules_oracle__never_laxer_and_stricter_only_where_documented(opcode):
    counts, odd, stricter = outcomes(opcode)
    assert counts["legal in both"]
    assert not counts["disagree"], odd
    assert stricter <= set(STRICTER), odd


def test_rules_oracle__finds_a_laxer_rule(monkeypatch):
    """Rows that are written, not added, have an order: Shardy does not split them."""
    monkeypatch.setattr(opcodes, "_COMBINERS", [*opcodes._COMBINERS, []])
    counts, odd, _ = outcomes("scatter")
    assert counts["disagree"]
    assert all("set" in x for x in odd)


def test_rules_oracle__finds_a_missing_link(monkeypatch):
    def one_sided(x):
        return (opcodes.Factor(f.pairs[:1], f.kind) for f in opcodes.dot(x))

    monkeypatch.setitem(opcodes.RULES, "dot", one_sided)
    assert outcomes("dot")[0]["disagree"]


def test_rules_oracle__finds_a_wrong_kind(monkeypatch):
    """Where a contraction is split there is an all-reduce, and nowhere else."""

    def kept(x):
        return (opcodes.Factor(f.pairs) for f in opcodes.dot(x))

    monkeypatch.setitem(opcodes.RULES, "dot", kept)
    counts, odd, _ = outcomes("dot")
    assert counts["disagree"]
    assert all(x.endswith("other all-reduces") for x in odd)
