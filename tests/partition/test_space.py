"""What is asked, in which order, and what the answers pay."""

import partition_toys as toys
import pytest

from parenvs.errors import InfeasibleError
from parenvs.tasks.partition.game import PartitionSpace

pytestmark = pytest.mark.thorough

SCOPES = ("variables", "inputs")
REWARDS = ("paper", "step_time")


def full_scope(scope, reward):
    return {("variables", "paper"): "variables", ("variables", "step_time"): "all"}.get(
        (scope, reward), "inputs"
    )


def problems():
    yield from (toys.shipped(name) for name in ("vgg-19", "t5-base"))
    yield toys.shipped("t5-base", "automap", "forbid")
    yield from (toys.random_problem(seed, steps=14) for seed in range(12))


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("scope", SCOPES)
def test_partition_space__order_of_the_questions(scope, reward):
    """What a class earns, descending; then path and dimension, as the names say."""
    checked = 0
    for problem in problems():
        space = toys.space_of(problem, scope, reward, linkage=False)
        if space is None:
            continue
        closure = toys.Closure(problem, full_scope(scope, reward))
        assert space.dimensions.tolist() == closure.positions
        assert (space.start == -1).all()
        if reward == "paper":
            worth = [closure.label.count(c) for c in closure.label]
        else:
            worth = [float(problem.gain_seconds[c]) for c in closure.label]
        wide = problem.graph.dims[space.dimensions] > 1
        expected = sorted(
            range(len(worth)),
            key=lambda k: (not wide[k], -worth[k] if wide[k] else 0, closure.names[k]),
        )
        assert space.questions.tolist() == expected
        asked = [closure.names[k] for k in expected if not closure.stuck[k]]
        linked = toys.space_of(problem, scope, reward, linkage=True)
        assert (linked.start == 0).tolist() == closure.stuck
        assert [closure.names[k] for k in linked.questions] == first_of_each(
            asked, dict(zip(closure.names, closure.label, strict=True))
        )
        checked += 1
    assert checked >= 6


def first_of_each(names, label):
    seen, found = set(), []
    for name in names:
        if label[name] not in seen:
            seen.add(label[name])
            found.append(name)
    return found


def test_partition_space__by_hand():
    """Hidden first, it has two dimensions; then w1 0 and w2 1, by path."""
    problem = toys.problem_of(toys.MLP)
    space = toys.space_of(problem)
    names = toys.Closure(problem, "variables").names
    assert [names[k] for k in space.questions] == [("w1", 1), ("w1", 0), ("w2", 1)]
    assert space.paid == [pytest.approx((0.2, 0.8)), *[pytest.approx((0.1, 0.4))] * 2]
    assert [set(r) for r in space.rivals] == [{1, 2}, {0}, {0}]
    flat = toys.space_of(problem, linkage=False)
    order = [("w1", 1), ("w2", 0), ("w1", 0), ("w2", 1)]
    assert [names[k] for k in flat.questions] == order
    inputs = toys.space_of(problem, "inputs", linkage=False)
    assert inputs.dimensions.size == 4


def test_partition_space__errors():
    with pytest.raises(
        InfeasibleError, match=r"t5-base: no dimension of any batch input .*automap"
    ):
        PartitionSpace.of(toys.shipped("t5-base", "automap", scope="inputs"), False)
    text = toys.module(
        {"params__w__": "f32[4,4]{1,0}"}, [], "op.1 = f32[4,4]{1,0} tanh(params__w__.1)"
    )
    with pytest.raises(InfeasibleError, match="no dimension of any batch input"):
        PartitionSpace.of(toys.asked(toys.problem_of(text), "inputs"), False)
    # A triangle is blocked: w + its transpose ties the two dimensions of one instruction.
    text = toys.module(
        {"params__w__": "f32[4,4]{1,0}"},
        ["op.1 = f32[4,4]{1,0} transpose(params__w__.1), dimensions={1,0}"],
        "op.2 = f32[4,4]{1,0} add(op.1, params__w__.1)",
    )
    with pytest.raises(InfeasibleError, match="no dimension of any variable can be partitioned"):
        PartitionSpace.of(toys.problem_of(text))
