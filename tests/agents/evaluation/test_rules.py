import numpy as np
import pytest

from parenvs.agents.evaluation.rules import play_rule, rules
from parenvs.agents.order.heuristics import by_rule, neh
from parenvs.agents.order.references import order_references
from parenvs.core.sets import set_of
from parenvs.tasks.order.insertion import MicroBatchInsertion

GAME, ENV = MicroBatchInsertion, "MicroBatchOrder-v1"


def test_rules__are_complete_over_the_columns():
    for rows, columns in (
        ("ahead", GAME.columns),
        ("bare", [name for name in GAME.columns if name not in GAME.ahead]),
    ):
        expected = [f"{kind} {name}" for name in columns for kind in ("largest", "least")]
        assert list(rules(GAME, rows)) == ["random", "first", "last", *expected]


def test_rules__choose_legal_actions_of_their_column():
    mask = np.array([[0, 1, 1, 1], [1, 0, 1, 0]], dtype=np.int8)
    values = np.array([[9.0, 2.0, 3.0, 3.0], [-1.0, -9.0, -2.0, 9.0]])
    actions = np.zeros((2, 4, len(GAME.columns)))
    actions[..., 0] = values
    seen, rng = {"actions": actions, "action_mask": mask}, np.random.default_rng(0)
    of = rules(GAME)
    assert of["largest rule"](seen, rng).tolist() == [2, 0]
    assert of["least rule"](seen, rng).tolist() == [1, 2]
    assert of["first"](seen, rng).tolist() == [1, 0]
    assert of["last"](seen, rng).tolist() == [3, 2]
    drawn = np.array([of["random"](seen, rng) for _ in range(40)])
    assert set(drawn[:, 0]) == {1, 2, 3} and set(drawn[:, 1]) == {0, 2}


@pytest.mark.thorough
def test_play_rule__plays_each_problem_once_in_order():
    problems = [set_of("order-test").load(x) for x in set_of("order-test").of("p4-m8")]
    played = play_rule(ENV, "order-test", rules(GAME)["largest rule"], "p4-m8")
    assert played.costs == pytest.approx([neh(problem).cost for problem in problems], rel=1e-12)
    assert played.start.tolist() == [by_rule(problem, "pyramid").cost for problem in problems]
    assert (played.turns == 8).all() and (played.shares <= 1 + 1e-9).all()
    known = order_references()
    best = [known[x]["length"] for x in set_of("order-test").of("p4-m8")]
    assert played.best.tolist() == best
    few = play_rule(ENV, "order-test", rules(GAME, "bare")["first"], "p4-m8", "bare", first=3)
    assert len(few.costs) == 3 and (few.shares < 1).all()


@pytest.mark.thorough
def test_play_rule__a_share_is_that_of_planners():
    """On a set whose worth is a share of the best known, too."""
    problems = set_of("order-large")
    played = play_rule(ENV, "order-large", rules(GAME, "bare")["last"], "p32-m128", "bare", first=1)
    answer = by_rule(problems.load(problems.of("p32-m128")[0]), "descending")
    assert played.start[0] == by_rule(answer.problem, "pyramid").cost
    assert played.costs[0] == answer.cost
    assert played.shares[0] == pytest.approx(problems.answered(answer), rel=1e-12)
