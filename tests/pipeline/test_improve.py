"""``PipelinePlan-v1``: rows as the judge has them, moves, problems by name, banks, references."""

import math
from dataclasses import replace
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from batches import assert_same, both, drawn
from cases import each

import parenvs
from parenvs.agents.pipeline.references import PIPELINE_REFERENCES
from parenvs.datasets.pipeline.problems import (
    BANKS,
    LARGE,
    REFERENCES,
    bank,
    begin,
    load_set,
    numbered,
)
from parenvs.datasets.references import references
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.pipeline.improve import (
    KINDS,
    MERGE,
    SPLIT,
    SWAP,
    PipelineImprovement,
    PipelineImprovementEnv,
    PipelineImprovementVectorEnv,
)
from parenvs.tasks.pipeline.spaces import fitting

COLUMNS = list(PipelineImprovement.columns)
CONTEXTS = list(PipelineImprovement.contexts)
CHAIN = {"instance": "t5-3b", "cluster": "2x8:v100", "stages": 5, "micro_batches": 7}


def column(observation, name):
    return observation["actions"][:, COLUMNS.index(name)]


def judged(game):
    """The judge's report on the plan that an episode has, and the boundaries of its stages."""
    pipeline, board = game.problem(0), game.starts[0].board
    points, devices = (
        x[: pipeline.stages + 1, 0] for x in (game.boards.points, game.boards.devices)
    )
    plan = pipeline.plan(board.pivots[points[1:-1]], devices[1:-1])
    return pipeline.report(plan), points.tolist(), devices.tolist()


def moved(pipeline, pivots, points, devices, boundary, kind):
    """A second writing of the moves: boundaries of points and devices after one, None without."""
    stages = pipeline.stages
    variables = pipeline.variable_sum[pivots]
    work = pipeline.seconds_sum[pivots]
    points, devices = list(points), list(devices)
    b = boundary

    def far(values):
        return max((values[b] - values[b - 1]) // 4, 2), max((values[b + 1] - values[b]) // 4, 2)

    def half(stage):
        """The boundary that parts a stage, from 0, in halves; None if a part would be empty."""
        p, q, d, e = points[stage], points[stage + 1], devices[stage], devices[stage + 1]
        fine = [
            c for c in range(p + 1, q) if variables[p] < variables[c] < variables[q]
        ]  # fmt: skip
        if not fine or e - d < 2:
            return None
        return min(max(p + (q - p) // 2, fine[0]), fine[-1]), d + (e - d) // 2

    if kind < SWAP:
        back, ahead = far(points)
        device_back, device_ahead = far(devices)
        points[b] += (-back, -1, 1, ahead, 0, 0, 0, 0, -back, ahead)[kind]
        devices[b] += (0, 0, 0, 0, -device_back, -1, 1, device_ahead, -device_back, device_ahead)[
            kind
        ]
    elif kind == SWAP:
        if devices[b] - devices[b - 1] == devices[b + 1] - devices[b]:
            return None
        devices[b] = devices[b - 1] + devices[b + 1] - devices[b]
    elif stages < 3:
        return None
    elif kind == MERGE:
        load = [
            (work[points[s + 1]] - work[points[s]]) / (devices[s + 1] - devices[s])
            if half(s)
            else -1.0
            for s in range(stages)
        ]
        slowest = int(np.argmax(load))
        if half(slowest) is None or slowest in (b - 1, b):
            return None
        new = half(slowest)
        pairs = [x for i, x in enumerate(zip(points, devices, strict=True)) if i != b]
        points, devices = zip(*sorted([*pairs, new]), strict=True)
    elif kind == SPLIT:
        joined = [
            (work[points[i + 1]] - work[points[i - 1]]) / (devices[i + 1] - devices[i - 1])
            for i in range(1, stages)
        ]
        light, new = 1 + int(np.argmin(joined)), half(b)
        if new is None or light in (b, b + 1):
            return None
        pairs = [x for i, x in enumerate(zip(points, devices, strict=True)) if i != light]
        points, devices = zip(*sorted([*pairs, new]), strict=True)
    if any(p < 0 or p > len(pivots) - 1 for p in points):
        return None
    rising = all(x < y for x, y in pairwise(devices))
    holding = all(variables[x] < variables[y] for x, y in pairwise(points))
    return (list(points), list(devices)) if rising and holding else None


PLAYED = [
    {"instance": "plan-s16-test/cnn-001"},
    {"instance": "generated-3/s8/5"},
    {"instance": "plan-test/transformer-003"},
    CHAIN,
    {**CHAIN, "recompute": "none", "tied": "held", "micro_batch": 2},
    {**CHAIN, "sync": "sharded-parameter-server"},
]


@pytest.mark.thorough
@each("arguments", PLAYED)
def test_improve__rows_are_what_the_judge_says(arguments):
    env, rng = PipelineImprovementEnv(**arguments), np.random.default_rng(3)
    observation, _ = env.reset()
    game, pipeline = env.game, env.problem
    pivots, fastest = game.starts[0].board.pivots, game.cost[0]
    for turn in range(5):
        report, points, devices = judged(game)
        now = report.length_seconds
        context = dict(zip(CONTEXTS, observation["context"].tolist(), strict=True))
        assert context["left"] == pytest.approx(1 - turn / max(2 * pipeline.stages, 16))
        assert context["behind_best"] == pytest.approx(math.log(now / fastest), abs=1e-6)
        for action in range(len(observation["actions"]) - 1):
            after = moved(pipeline, pivots, points, devices, action // KINDS + 1, action % KINDS)
            assert (after is not None) == observation["action_mask"][action], action
        legal = np.flatnonzero(observation["action_mask"])
        assert column(observation, "stop")[legal].tolist() == [0.0] * (len(legal) - 1) + [1.0]
        action = int(rng.choice(legal[:-1]))
        boundary, kind = action // KINDS + 1, action % KINDS
        row = dict(zip(COLUMNS, observation["actions"][action].tolist(), strict=True))
        after = moved(pipeline, pivots, points, devices, boundary, kind)
        observation, reward, *_ = env.step(action)
        report, *its = judged(game)
        assert tuple(its) == after
        length, limit = report.length_seconds, pipeline.memory_limit
        assert game._now.seconds[0] == pytest.approx(length, rel=1e-12)
        assert row["gain"] == pytest.approx(math.log(now / length), rel=1e-4, abs=1e-6)
        assert row["record"] == pytest.approx(math.log(fastest / length), rel=1e-4, abs=1e-6)
        excess = max(stage.memory_bytes for stage in report.stages) / limit - 1
        assert row["excess"] == pytest.approx(min(excess, 1.0), rel=1e-4, abs=1e-5)
        assert report.legal == (row["excess"] <= 0)
        kinds = [row[name] for name in ("cut", "device", "swap", "merge", "split")]
        cut = kind < 4 or kind in (8, 9)
        device = 4 <= kind < SWAP
        assert kinds == [cut, device, kind == SWAP, kind == MERGE, kind == SPLIT]
        shorter = min(length, fastest) if report.legal else fastest
        if turn:
            assert reward == pytest.approx(math.log(fastest / shorter), abs=1e-12)
        fastest = shorter
        assert env.problem.report(env.plan()).length_seconds == pytest.approx(fastest, rel=1e-12)
    *_, info = env.step(int(observation["action_mask"].size - 1))
    assert info["cost"] == fastest


def test_improve__what_breaks_the_memory_does_not_count():
    """Column 0 puts it behind, and an episode may go through it."""
    env = PipelineImprovementEnv(instance="plan-s16-test/heavy-head-000")
    observation, _ = env.reset()
    over = np.flatnonzero(column(observation, "excess") > 0)
    gains = column(observation, "gain")
    rule = column(observation, "rule")[over]
    lost = 1 + column(observation, "excess")[over]
    assert over.size and np.allclose(rule, 30 * (gains[over] - lost) - 1e-3, atol=1e-3)
    observation, reward, done, *_ = env.step(int(over[0]))
    assert not done and reward == pytest.approx(math.log(env.game.reference[0] / env.game.cost[0]))
    assert observation["context"][CONTEXTS.index("over")] > 0
    assert env.problem.report(env.plan()).legal


@pytest.mark.thorough
def test_improve__a_batch_of_several_sizes_is_single():
    """Problems of 2 to 8 stages, of other lengths, and with another formula, one in each row."""
    batched, single = both(PipelineImprovementVectorEnv, {"instance": "plan-outside"}, 4)
    rng = np.random.default_rng(1)
    assert_same(batched.reset(seed=2), single.reset(seed=2))
    for turn in range(16):
        if turn == 7:
            options = {**CHAIN, "sync": "parameter-server", "reset_mask": np.arange(4) == 1}
            assert_same(*(x.reset(options=dict(options)) for x in (batched, single)))
        actions = drawn(batched.action_masks(), rng)
        assert_same(batched.step(actions), single.step(actions))


@pytest.mark.thorough
def test_improve__plays_what_arguments_name():
    for instance in ("plan-s32-validation", "plan-validation"):
        env = gym.make("PipelinePlan-v1", instance=instance).unwrapped
        assert env.reset(seed=1)[1]["instance"].startswith(f"{instance}/")
    for arguments in ({}, {"instance": "plan-s16-test"}, {"tier": "s8", "fresh": True}):
        env = PipelineImprovementEnv(family="cnn", **arguments)
        for seed in range(3):
            env.reset(seed=seed)
            assert "cnn" in env.problem.profile.name or _family(env.problem.instance) == "cnn"
    assert int(env.problem.instance.split("/")[2]) >= BANKS["s8"]
    problem = parenvs.problem("t5-3b", "2x8:v100", stages=3)
    env = PipelineImprovementEnv(problem=problem)
    assert env.problem.profile is problem.profile and not env.draws
    _, info = env.reset(options={**CHAIN, "stages": 3})
    assert env.problem.micro_batches == 7 and info["instance"] == "t5-3b"


def _family(name):
    _, tier, number = name.split("/")
    return numbered(int(number), tier).family


@pytest.mark.thorough
@each(
    "arguments, words",
    [
        ({"order": "sequential"}, "order: 'sequential' plays a set"),
        ({"order": "last"}, "order must be one of random, sequential"),
        ({"instance": "plan-s16-test", "fresh": True}, "fresh: no problems are drawn here"),
        ({"instance": "vgg-19", "family": "cnn"}, "family: no problems are drawn here"),
        ({"instance": "plan-s16-test", "copies": 3}, "copies: drawn problems have settings"),
        ({"instance": "plan-s16-test/cnn-999"}, "unknown problem 'plan-s16-test/cnn-999'"),
        ({"instance": "generated-3/s17/1"}, "unknown problem 'generated-3/s17/1'"),
        ({"family": "cnm"}, r"unknown family 'cnm' \(did you mean 'cnn'"),
        ({"tier": "s17"}, r"unknown tier 's17' \(did you mean 's1"),
        ({"tier": None}, "unknown tier None"),
        ({"instance": "t5-3b", "cluster": "1000x8:a100"}, "at most 64 on 4096"),
        ({"instance": "t5-11b", "cluster": "1x2:v100", "stages": 2}, "t5-11b"),
        ({"problem": "vgg-19"}, "problem must be a parenvs.Pipeline"),
        ({"rows": "some"}, "rows must be one of ahead, bare"),
    ],
)
def test_improve__bad_arguments(arguments, words):
    with pytest.raises(ParenvsError, match=words):
        PipelineImprovement(1, **arguments)


def test_improve__bad_options():
    env = PipelineImprovementEnv(instance="plan-test/cnn-003")
    before = env.reset()[0]
    for options, words in (
        ({"copies": 3}, "copies: drawn problems have settings"),
        ({"instance": "plan-s16-test"}, "must name a problem"),
        ({"instance": "plan-s16-test/cnn-001"}, "make another one for it"),
        ({"tier": "s16"}, "unknown 'tier'"),
    ):
        with pytest.raises(ParenvsError, match=words):
            env.reset(options=options)
    assert_same(before, env.reset()[0])


@pytest.mark.thorough
@each("tier", BANKS)
def test_banks__are_problems_by_number_and_their_start_plans(tier):
    kept = bank(tier)
    assert len(kept) == BANKS[tier] == len(kept.arrays["seconds"])
    for number in (0, len(kept) - 1):
        pipeline = numbered(number, tier).pipeline
        assert pipeline.instance == f"generated-3/{tier}/{number}"
        again = parenvs.problem(pipeline.instance)
        assert replace(again, profile=pipeline.profile) == pipeline
        assert again.profile.fingerprint == pipeline.profile.fingerprint
        plan = begin(pipeline)
        report = pipeline.report(pipeline.plan(*plan))
        assert report.legal and report.length_seconds == pytest.approx(kept[number]["seconds"])
        assert report.length_seconds <= pipeline.length(*fitting(pipeline))
    made = kept.row(0)
    assert all(np.array_equal(kept[0][key], made[key]) for key in made)


def test_references__are_of_all_problems_of_the_sets():
    rows = references(REFERENCES)
    assert set(rows) == {problem.name for name in LARGE for problem in load_set(name)}
    for name in ("plan-s16-test/cnn-001", "plan-s64-validation/uniform-000"):
        problem = PIPELINE_REFERENCES.load(name)
        assert PIPELINE_REFERENCES.fault(problem, rows[name]) == ""
        for key, value, words in (
            ("fingerprint", "0", "of another chain"),
            ("length", rows[name]["length"] * 1.01, "its plan takes"),
            ("bound", rows[name]["length"] * 1.01, "its bound"),
            ("bound", rows[name]["bound"] / 2, "its bound"),
        ):
            assert words in PIPELINE_REFERENCES.fault(problem, {**rows[name], key: value})


def test_improve__a_problem_too_large_says_so():
    pipeline = parenvs.problem("t5-3b", "9x8:v100", stages=65)
    with pytest.raises(InfeasibleError, match="65 stages on 72 devices; PipelinePlan-v1 has"):
        PipelineImprovementEnv(problem=pipeline)
