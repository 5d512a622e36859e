"""``PipelineImprove-v0``: relocations beside the costs of pipelines, pairs, sources, errors."""

import itertools
import math

import gymnasium as gym
import numpy as np
import pytest
from cases import each

import parenvs
from parenvs.datasets.pipeline.problems import family_of
from parenvs.errors import ParenvsError
from parenvs.tasks.pipeline.improve import FAILED, SHARP, PipelineImprovementEnv
from parenvs.tasks.pipeline.relocations import mend, relocate, relocated

ID = "PipelineImprove-v0"
SMALL = {"instance": "generated-3/s8/5"}


def any_legal(rng, info):
    return int(rng.choice(np.flatnonzero(info["action_mask"])))


def rows_of(env, observation):
    return dict(zip(env.game.shown, observation["actions"].T, strict=True))


@pytest.mark.thorough
def test_improve__plays_relocations_of_the_planner_and_drops_those_that_do_not_shorten():
    env, rng, gained = PipelineImprovementEnv(**SMALL, turns=40), np.random.default_rng(0), 0
    _, info = env.reset(seed=0)
    game, done, total = env.game, False, 0.0
    board, tried = game.source.only, set()
    while not done:
        action = any_legal(rng, info)
        plan = game.cuts[0].copy(), game.devices[0].copy()
        s, t = divmod(action, 7)
        expected = relocated(board.tables, *plan, s + 1, t, *board.modes, game.seconds[0])
        before = game.seconds[0]
        _, reward, done, _, info = env.step(action)
        total += reward
        assert game.seconds[0] == expected
        assert all(map(np.array_equal, plan, (game.cuts[0], game.devices[0])))
        tried = tried | {action} if expected == before else set()
        gained += expected < before
        if not done:
            assert set(np.flatnonzero(info["action_mask"] == 0)) == tried
    report = parenvs.judge(game.plan(0), game.problem(0))
    assert report.legal and report.cost == pytest.approx(info["cost"], rel=1e-12)
    assert total == pytest.approx(math.log(info["start"] / info["cost"])) and gained > 1


def test_improve__begins_with_a_plan_that_mending_does_not_shorten():
    for number in range(4):
        board = PipelineImprovementEnv(instance=f"generated-3/s8/{number}").game.source.only
        plan, free = [x.copy() for x in board.start], np.ones(9, dtype=np.bool_)
        modes = np.concatenate(board.modes)
        after = mend(board.tables, *plan, modes, free, board.seconds)
        assert after >= board.seconds * (1 - 1e-6)
        length = board.pipeline.length(board.pivots[board.start[0][1:-1]], board.start[1][1:-1])
        assert length == pytest.approx(board.seconds, rel=1e-12)


def test_improve__rows_tell_what_the_judge_of_the_plan_tells():
    env, rng = PipelineImprovementEnv(**SMALL), np.random.default_rng(1)
    observation, info = env.reset()
    for _ in range(5):
        game, board, rows = env.game, env.game.source.only, rows_of(env, observation)
        pipeline, failed = board.pipeline, [divmod(x, 7) for x in np.flatnonzero(game.tried[0])]
        failed = [(s + 1, t if t <= s else t + 1) for s, t in failed]
        cuts, devices = board.pivots[game.cuts[0]], game.devices[0]
        work = np.diff(pipeline.seconds_sum[cuts]) / np.diff(devices)
        times = pipeline.stage_seconds(cuts[1:-1], devices[1:-1])
        links = (times.forward + times.backward)[1::2]
        for s, t in itertools.product(range(1, 8), range(7)):
            action = (s - 1) * 7 + t
            if not info["action_mask"][action]:
                continue
            moved = game.cuts[0].copy(), game.devices[0].copy()
            relocate(board.tables, *moved, s, t)
            length = pipeline.length(board.pivots[moved[0][1:-1]], moved[1][1:-1])
            gain = SHARP * math.log(game.seconds[0] / length)
            assert rows["gain"][action] == pytest.approx(max(gain, -100), rel=1e-4, abs=1e-4)
            part = t if t < s else t + 1
            tried = sum(x == s for x, _ in failed), sum(x == part for _, x in failed)
            found = rows["cut tried"][action], rows["part tried"][action]
            assert found == pytest.approx((tried[0] / 7, tried[1] / 7))
            assert rows["rule"][action] == pytest.approx(
                rows["gain"][action] - FAILED * sum(tried), rel=1e-4, abs=1e-4
            )
            assert rows["part seconds"][action] == pytest.approx(work[part] / work.max(), rel=1e-5)
            link = links[s - 1] / (links[s - 1] + work.max())
            assert rows["link"][action] == pytest.approx(link, rel=1e-5)
        observation, *_, info = env.step(any_legal(rng, info))
    assert failed


@each("rows", ["ahead", "bare"])
def test_improve__pairs_play_the_same_relocations(rows):
    flat, paired = (PipelineImprovementEnv(**SMALL, rows=rows, pairs=x) for x in (False, True))
    assert flat.action_space.n == 49 and paired.action_space.n == 14
    (seen, info), (cut_seen, cut_info) = flat.reset(), paired.reset()
    rng, done = np.random.default_rng(2), False
    while not done:
        action = any_legal(rng, info)
        s, t = divmod(action, 7)
        table = info["action_mask"].reshape(7, 7)
        assert np.array_equal(cut_info["action_mask"], [*table.any(axis=1), *[0] * 7])
        assert not cut_seen["actions"][7:].any()
        stage_seen, nothing, over, _, stage_info = paired.step(s)
        assert (nothing, over) == (0.0, False)
        assert np.array_equal(stage_info["action_mask"], [*[0] * 7, *table[s]])
        features = seen["actions"].reshape(7, 7, -1)[s]
        assert np.array_equal(stage_seen["actions"][7:], features)
        seen, reward, done, _, info = flat.step(action)
        cut_seen, same, over, _, cut_info = paired.step(7 + t)
        assert (same, over) == (reward, done)
    assert cut_info["cost"] == info["cost"]


def test_improve__an_illegal_half_of_a_pair_ends_the_episode_below_all_others():
    env = PipelineImprovementEnv(**SMALL, pairs=True)
    env.reset()
    env.step(3)
    _, reward, done, _, info = env.step(3)  # a cut where a stage is to be chosen
    assert done and reward == pytest.approx(-1) and "cost" not in info


def test_improve__draws_from_a_pool_of_its_tier_or_without_end():
    for fresh, least, most in ((False, 0, 1024), (True, 1024, 2**31)):
        env, names = gym.make(ID, tier="s8", fresh=fresh, family="cnn"), set()
        for seed in range(3):
            names.add(env.reset(seed=seed)[1]["instance"])
            assert env.reset(seed=seed)[1]["instance"] in names
        first, tier, _ = next(iter(names)).split("/")
        assert (first, tier, len(names)) == ("generated-3", "s8", 3)
        assert {family_of(name) for name in names} == {"cnn"}
        assert all(least <= int(name.rpartition("/")[2]) < most for name in names)
    assert gym.make(ID).action_space.n == 225 and gym.make(ID, tier="s32").action_space.n == 62


def test_improve__plans_real_models_and_problems_of_users():
    settings = {"cluster": "B", "stages": 6}
    env = gym.make(ID, instance="t5-base", **settings).unwrapped
    same = gym.make(ID, problem=parenvs.problem("t5-base", **settings)).unwrapped
    costs = []
    for one in (env, same):
        rng, (_, info), done = np.random.default_rng(0), one.reset(seed=0), False
        while not done:
            _, _, done, _, info = one.step(any_legal(rng, info))
        report = parenvs.judge(one.game.plan(0), one.game.problem(0))
        assert report.legal and report.cost == pytest.approx(info["cost"])
        costs.append(info["cost"])
    assert costs[0] == costs[1] <= info["start"]
    env.reset(options={"micro_batches": 4})
    assert env.game.problem(0).micro_batches == 4
    with pytest.raises(ParenvsError, match="has 5 stages, this environment 6; make another"):
        env.reset(options={"stages": 5})


@each(
    "arguments, words",
    [
        ({"tier": "s9"}, "unknown tier 's9'"),
        ({"tier": "s16", "instance": "plan-s16-test"}, "tier: it is of drawn problems; leave it"),
        ({"fresh": True, "instance": "plan-s16-test"}, "fresh: it is of drawn problems"),
        ({"family": "no"}, "unknown family 'no'"),
        ({"instance": "t5-base", "family": "cnn"}, "family: it is of drawn problems or a set"),
        ({"order": "sequential"}, "order: it is of a set, like 'plan-s16-test'"),
        ({"stages": 4}, "stages: it is of models and files"),
        ({"instance": "plan-test"}, "different numbers of stages; PipelinePlan-v0 plays it"),
        ({"instance": "t5-base", "cluster": "B", "stages": 1}, "a plan of one stage has none to"),
        ({"turns": 0}, "turns"),
        (
            {"instance": "t5-11b", "cluster": "A", "stages": 2},
            "found no plan of 2 stages that fits",
        ),
    ],
)
def test_improve__refuses_what_it_would_ignore_and_what_has_no_plan(arguments, words):
    with pytest.raises(ParenvsError, match=words):
        gym.make(ID, **arguments)
