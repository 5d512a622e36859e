from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import batches
import gymnasium as gym
import numpy as np
import pytest
from batches import assert_same, drawn, modes
from cases import each, slow
from drawn_intra_op import draw, optimum, second_cost
from gymnasium.utils.env_checker import check_env
from intra_op_files import FOLDER, needs_files
from scipy.sparse.csgraph import connected_components

from parenvs.datasets.references import INTRA_OP, references
from parenvs.datasets.sharding.problems import BANKS, SETS, bank, numbered, set_names
from parenvs.datasets.sharding.problems import drawn as drawn_problem
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.sharding.board import Board
from parenvs.tasks.sharding.game import IntraOpShardingVectorEnv, ShardingImprovement
from parenvs.tasks.sharding.problem import FORBIDDEN, NEVER
from parenvs.tasks.sharding.turns import AHEAD, COLUMNS, Construct, board_of

ID = "IntraOpSharding-v2"
both = partial(batches.both, IntraOpShardingVectorEnv)
ROW = np.zeros(1, dtype=np.int64)


def make(**kwargs):
    return gym.make(ID, **kwargs).unwrapped


def boards(count, free=None, **sizes):
    """Small drawn problems that have a plan, as boards, not reduced."""
    found, seed = [], 0
    while len(found) < count:
        seed += 1
        problem = draw(seed, **{"nodes": 5, "edges": 6, **sizes})
        try:
            board = board_of(problem, reduction=False)
        except InfeasibleError:
            continue
        if free is None or board.is_free == free:
            found.append(board)
    return found


FREE = {"forbidden": 0.0}
SMALL = draw(45, nodes=14, edges=34, forbidden=0.15, most=4)
"""A problem of which the reduction leaves 7 nodes, not free."""


def play(env, rng, **reset):
    """A random legal episode: its rewards and the last info."""
    observation, info = env.reset(**reset)
    rewards, over = [], False
    while not over:
        assert env.observation_space.contains(observation)
        assert np.array_equal(env.action_masks(), info["action_mask"])
        assert np.array_equal(observation["action_mask"], info["action_mask"])
        action = int(rng.choice(np.flatnonzero(info["action_mask"])))
        observation, reward, over, truncated, info = env.step(action)
        assert not truncated
        rewards.append(reward)
    assert env.observation_space.contains(observation)
    return rewards, info


def completions(board, decided):
    """Legal whole choices that begin with the decided strategies."""
    rest = [range(int(size)) for size in board.sizes[len(decided) :]]
    return [
        choice
        for tail in product(*rest)
        if board.reduced.legal(np.array(choice := (*decided, *tail), dtype=np.int64))
    ]


def masks_of(board):
    """Decided strategies and the mask, of every step that legal actions lead to."""
    waiting = [()]
    while waiting:
        decided = waiting.pop()
        episode = started(board)
        for strategy in decided:
            episode.play(ROW, np.array([strategy]))
        if episode.over[0]:
            assert not episode.dead[0]
            continue
        yield decided, episode.legal[0]
        waiting += [(*decided, int(x)) for x in np.flatnonzero(episode.legal[0])]


def started(board, columns=()):
    """An episode on a board."""
    episode = Construct(1, int(board.sizes.max()), columns)
    episode.put(0, board)
    episode.start(ROW)
    return episode


@pytest.mark.thorough
def test_masks__are_what_can_be_completed_on_free_boards():
    masked = 0
    for board in boards(6, free=True, **FREE):
        for decided, legal in masks_of(board):
            can = {choice[len(decided)] for choice in completions(board, decided)}
            assert set(np.flatnonzero(legal).tolist()) == can
            masked += int(board.sizes[len(decided)]) - len(can)
    assert masked > 10  # the limit was felt


@pytest.mark.thorough
def test_masks__never_lead_to_a_dead_end_nor_to_an_illegal_plan():
    kept = lost = 0
    for board in boards(12, free=False):
        for decided, legal in masks_of(board):
            can = {choice[len(decided)] for choice in completions(board, decided)}
            taken = set(np.flatnonzero(legal).tolist())
            assert taken
            assert taken <= can
            kept, lost = kept + len(taken), lost + len(can - taken)
    assert lost < 0.25 * kept  # what only another rest of the plan would allow


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["construct", "improve"])
def test_env__return_is_of_what_the_judge_says(form):
    rng = np.random.default_rng(0)
    for kwargs in ({"problem": SMALL}, {"instance": "intra-op-test/mesh-001"}):
        env = make(form=form, **kwargs)
        for _ in range(3):
            rewards, info = play(env, rng)
            report = env.problem.report(env.plan())
            assert report.legal and not report.forbidden
            assert report.cost == info["cost"]
            assert info["start"] == env.game.boards[0].reference
            reference = info.get("reference", info["start"])
            assert sum(rewards) == pytest.approx(np.log(reference / report.cost))
            if form == "construct":
                assert rewards[:-1] == [0.0] * (len(rewards) - 1)


@pytest.mark.thorough
def test_env__improving_never_costs_more():
    env = make(form="improve", instance="intra-op-test/mesh-001")
    assert type(env.game) is ShardingImprovement
    rewards, info = play(env, np.random.default_rng(0))
    assert min(rewards[1:]) >= 0
    assert sum(rewards[1:]) > 0
    assert len(rewards) <= 64 and info["cost"] < info["start"]


def test_env__blocks_of_all_nodes_find_the_optimum():
    found = 0
    for board in boards(8, nodes=5, edges=5):
        env = make(form="improve", problem=board.problem, reduction=False)
        play(env, np.random.default_rng(0))
        least = optimum(board.problem)
        cost = env.problem.report(env.plan()).cost
        assert cost >= least
        found += cost == least
    assert found >= 6  # the others keep the limit only with prices that were not tried


@pytest.mark.thorough
def test_messages__decide_trees_without_a_limit():
    """There their fixed point is exact, so the rule of column 0 finds nearly all optima."""
    tried = found = 0
    for seed in range(300):
        problem = draw(seed, nodes=6, edges=5, forbidden=0.05)
        pairs = {frozenset(x) for x in problem.ends.tolist() if x[0] != x[1]}
        links = np.zeros((6, 6))
        links[tuple(np.array([sorted(x) for x in pairs]).T)] = 1
        if connected_components(links, directed=False)[0] != 6 - len(pairs):
            continue  # a circle
        problem = replace(problem, limit=None)
        try:
            board = board_of(problem, reduction=False)
        except InfeasibleError:
            continue
        turns = started(board, ("rule",))
        while not turns.over[0]:
            score = turns.rows[:, :, turns.columns.index("rule")]
            turns.play(ROW, np.where(turns.legal, score, -np.inf).argmax(axis=1))
        assert (board.wanted == turns.chosen[0, : len(board)]).all()
        tried, found = tried + 1, found + (turns.cost[0] == optimum(problem))
    assert tried > 10 and found > 0.9 * tried


def test_env__pressure_is_what_the_limit_is_exceeded_by():
    """Second writing: all that follow take what the messages lead to."""
    rng, felt = np.random.default_rng(0), 0
    for board in boards(4, nodes=16, edges=24, forbidden=0.1, slack=0.5):
        env = make(problem=board.problem, reduction=False)
        observation, info = env.reset()
        wanted, decided = board.wanted, []
        while len(decided) < len(board):
            node, usage = len(decided), board.usage[len(decided)]
            legal = np.flatnonzero(info["action_mask"])
            for strategy in legal.tolist():
                shown = observation["actions"][strategy, list(COLUMNS).index("pressure")]
                if usage is None:
                    assert shown == 0
                    continue
                room = board.remaining_of(np.array([*decided, strategy, *wanted[node + 1 :]]))
                span = slice(usage.first, usage.last)
                over = -room[span].min() / max(board.headroom[span].min(), 1)
                assert shown == pytest.approx(np.clip(over, -1, 4))
                felt += over > 0
            decided.append(int(rng.choice(legal)))
            observation, _, _, _, info = env.step(decided[-1])
    assert felt


def test_env__singles_are_the_best_changes_of_a_node():
    """Second writing of what improving looks ahead to."""
    tried = 0
    for board in (numbered("mesh", 3), *boards(2, nodes=12, edges=20, forbidden=0.1, slack=0.5)):
        env = make(form="improve", problem=board.problem, reduction=False)
        board = env.game.boards[0]
        observation, _ = env.reset()
        for node, size in enumerate(board.sizes.tolist()):
            costs = []
            for strategy in range(size):
                chosen = board.greedy.copy()
                chosen[node] = strategy
                if board.reduced.legal(chosen):
                    costs.append(board.reduced.cost(chosen))
            saved = (board.reference - min(costs)) / board.unit
            assert observation["actions"][node, 1] == pytest.approx(np.log1p(saved) / 4)
            tried += saved > 0
    assert tried


@pytest.mark.thorough
@each("columns", [tuple(COLUMNS), tuple(x for x in COLUMNS if x not in AHEAD), ("rule",), ()])
def test_construct__episodes_of_any_boards_are_played_together_as_alone(columns):
    """To the last bit, whatever their numbers of nodes, neighbors and intervals are."""
    mixed = [numbered("mesh", 0), numbered("classes", 0), numbered("mesh", 3)]
    mixed += [*boards(2, free=True, **FREE), *boards(3, free=False, nodes=9, edges=14)]
    width, rng = max(int(board.sizes.max()) for board in mixed), np.random.default_rng(0)
    whole = Construct(len(mixed), width, columns)
    single = [started(board, columns) for board in mixed]
    for row, board in enumerate(mixed):
        whole.put(row, board)
    whole.start(np.arange(len(mixed)))
    while not whole.over.all():
        rows = np.flatnonzero(~whole.over)
        for row in rows.tolist():
            np.testing.assert_array_equal(whole.contexts[row], single[row].contexts[0])
            for name in ("rows", "legal"):
                mine, its = getattr(whole, name)[row], getattr(single[row], name)[0]
                np.testing.assert_array_equal(mine[: len(its)], its)
                assert not mine[len(its) :].any()
        actions = drawn(whole.legal[rows], rng)
        whole.play(rows, actions)
        for row, action in zip(rows.tolist(), actions.tolist(), strict=True):
            single[row].play(ROW, np.array([action]))
    for row, board in enumerate(mixed):
        assert whole.cost[row] == single[row].cost[0]
        assert whole.cost[row] == board.reduced.cost(whole.chosen[row, : len(board)])


def test_env__observation_of_the_first_node():
    """Second writing of costs, of the least that neighbors add, and of the memory."""
    board = boards(1, free=True, nodes=6, edges=9, forbidden=0.0)[0]
    observation, _ = make(problem=board.problem, reduction=False).reset()
    costs = board.costs[: board.sizes[0]]
    ahead = np.zeros(len(costs))
    for other in board.neighbors[0]:
        theirs = board.costs[board.offset[other.node] : board.offset[other.node + 1]]
        ahead += [min(theirs + column) - min(theirs) for column in other.table.T]
    unit = max(board.reference / len(board), 1.0)
    for column, values in (("cost", costs), ("ahead", ahead), ("both", costs + ahead)):
        expected = np.log1p((values - values.min()) / unit) / 4
        shown = observation["actions"][: len(costs), list(COLUMNS).index(column)]
        assert shown[observation["action_mask"][: len(costs)] > 0] == pytest.approx(
            expected[observation["action_mask"][: len(costs)] > 0]
        )
    legal = np.flatnonzero(observation["action_mask"])
    led = (costs + board.messages[: len(costs)])[legal]
    expected = -2 * np.log1p(20 * (led - led.min()) / unit)
    pressure = observation["actions"][legal, list(COLUMNS).index("pressure")]
    expected -= 10 * np.maximum(pressure, 0)
    assert observation["actions"][legal, 0] == pytest.approx(expected, abs=1e-5)
    assert not observation["actions"][len(costs) :].any()


def most(reduced):
    """The largest cost of every node and edge that is allowed, added up."""
    parts = [(reduced.costs, reduced.offset), (reduced.edge_costs, reduced.edge_offset)]
    return reduced.constant + sum(
        max(x for x in values[begin:end].tolist() if x < NEVER)
        for values, offset in parts
        for begin, end in pairwise(offset.tolist())
    )


@each("form", ["construct", "improve"])
@each("action", [-1, 24, 25, 2**70])
def test_env__illegal_actions_end_the_episode(form, action):
    env = make(form=form, problem=SMALL)
    env.reset()
    rewards = [env.step(int(np.flatnonzero(env.action_masks())[0]))[1]]
    if not env.game.over[0]:
        _, reward, over, _, info = env.step(action)
        assert over
        reduced, start = env.game.boards[0].reduced, env.game.reference[0]
        assert sum([*rewards, reward]) == pytest.approx(np.log(start / most(reduced)) - 1)
        assert "cost" not in info


@pytest.mark.thorough
def test_env__gymnasium_accepts_the_improving_form():
    check_env(make(form="improve", problem=SMALL), skip_render_check=True)


@needs_files
def test_env__the_contests_example():
    env = make(instance=str(FOLDER / "example.json"), reduction=False)
    for seed in range(4):
        rewards, info = play(env, np.random.default_rng(seed))
        strategies = env.plan().strategies
        cost, peak, _ = second_cost(env.problem, strategies)
        assert cost == info["cost"] < FORBIDDEN
        assert peak <= env.problem.limit
        assert sum(rewards) == pytest.approx(np.log(info["start"] / cost))


def test_env__reset_draws_under_the_seed_and_options_name_a_problem():
    env = make()
    names = [env.reset(seed=seed)[1]["instance"] for seed in (5, None, 5, None)]
    assert names[:2] == names[2:] and names[0] != names[1]
    assert {name.rpartition("/")[0] for name in names} == {"intra-op/inside/mesh"}
    _, info = env.reset(options={"instance": "intra-op-test/mesh-001"})
    assert info["instance"] == "intra-op-test/mesh-001"
    for options in ({"instanc": "x"}, {"instance": "intra-op-test"}, {"instance": 3}):
        with pytest.raises(ParenvsError) as error:
            env.reset(options=options)
        assert "\n" not in str(error.value)


@each(
    "kwargs",
    [
        {"form": "both"}, {"family": "p9"}, {"ranges": "in"}, {"rows": "all"}, {"problem": 3},
        {"instance": "intra-op-best"}, {"instance": "intra-op-test/mesh-999"},
        {"instance": "intra-op-test", "fresh": True}, {"reduction": False},
        {"order": "sequential"}, {"order": "last", "instance": "intra-op-test"},
    ],
)  # fmt: skip
def test_env__bad_arguments(kwargs):
    with pytest.raises(ParenvsError) as error:
        make(**kwargs)
    assert "\n" not in str(error.value)


def test_env__what_reduction_solves_is_refused():
    problem = draw(0, nodes=1, edges=0, forbidden=0.0)
    with pytest.raises(InfeasibleError, match="reduction=False"):
        make(problem=problem)
    assert Board.of(problem, reduction=False)


@pytest.mark.thorough
def test_env__render():
    env = make(problem=SMALL, render_mode="ansi")
    env.reset()
    assert "no strategies yet" in env.render()
    env.step(int(np.flatnonzero(env.action_masks())[0]))
    assert "cost" in env.render()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kwargs",
    [*slow({"problem": SMALL}), {"form": "improve", "problem": SMALL}, {"form": "improve"}],
    ids=["small", "improve small", "improve"],
)
@modes
def test_vector__equals_single_ones(kwargs, mode):
    batched, single = both(kwargs, 3, mode)
    rng, ended = np.random.default_rng(0), 0
    named = "intra-op-test/mesh-001" if len(kwargs) == 1 and "form" in kwargs else None
    for options in ({}, {"instance": named} if named else {}):
        assert_same(*(env.reset(seed=3, options=dict(options)) for env in (batched, single)))
        for _ in range(30):
            masks = batched.action_masks()
            assert_same(masks, np.array(single.call("action_masks")))
            actions = drawn(masks, rng, 0.05)
            outcome, expected = batched.step(actions), single.step(actions)
            assert_same(outcome, expected)
            over = outcome[2]
            ended += int(over.sum())
            if mode == "Disabled" and over.any():
                ask = {"reset_mask": over}
                assert_same(*(env.reset(options=dict(ask)) for env in (batched, single)))
        for index in range(3):
            assert batched.plan(index) == single.envs[index].plan()
    assert ended > 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "number"), [("mesh", 2), ("classes", 2), ("mesh", BANKS["mesh"])]
)
def test_bank__holds_what_is_drawn(family, number):
    board, problem = numbered(family, number), drawn_problem(family, number)
    again = board_of(problem)
    for name in ("offset", "costs", "headroom", "witness", "greedy"):
        np.testing.assert_array_equal(getattr(board, name), getattr(again, name))
    np.testing.assert_array_equal(board.messages, again.messages)
    assert (board.instance, board.reference) == (problem.instance, again.reference)
    report = problem.report(problem.plan(board.liftable.lift(board.greedy)))
    assert report.legal and report.cost == board.reference
    if number < BANKS[family]:
        assert str(bank(family)[number]["fingerprint"]) == problem.fingerprint
        assert board.known.bound <= board.known.best <= board.reference


def test_bank__no_problem_is_of_a_set():
    mine = [str(x) for family in BANKS for x in bank(family).arrays["fingerprint"]]
    rows = references(INTRA_OP)
    sets = {rows[name]["fingerprint"] for each_ in SETS for name in set_names(each_)}
    assert len(mine) == sum(BANKS.values()) and not sets & set(mine)
