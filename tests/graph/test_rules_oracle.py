"""Factor rules against XLA's own partitioner on functions of one instruction."""

import warnings
from collections import Counter

import pytest
from jax_versions import jax_that_verifies

jax_that_verifies()

from single_ops import OPS  # noqa: E402

from benchmarks.shardy import STRICTER, Case  # noqa: E402

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
