"""``PipelineCut-v0``: episodes as the judge has them; batches as single ones, to the last bit."""

import warnings
from functools import partial

import batches
import brute_force as bf
import gymnasium as gym
import numpy as np
import pytest
import toys
from batches import assert_same, drawn, modes, named
from cases import each, slow
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from second_writing import slow_features

from parenvs import judge, load_profile
from parenvs.agents.pipeline.exact import exact_candidates, exact_full
from parenvs.cluster import PRESETS, Cluster
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.instances import PAPER
from parenvs.tasks.pipeline import cut as game
from parenvs.tasks.pipeline.cut import Board, PipelineCutVectorEnv
from parenvs.tasks.pipeline.spaces import CutSpace

ID = "PipelineCut-v0"
PROBLEMS = [{"instance": name, "cluster": cluster} for name in PAPER for cluster in "ABC"]


def make(**kwargs):
    return gym.make(ID, **kwargs).unwrapped


@pytest.fixture(params=[toys.balanced(), toys.dense()], ids=["balanced", "dense"])
def toy(request):
    return request.param


@pytest.fixture
def env(tmp_path):
    """Three stages, 30 plans."""
    return make(**toys.balanced().kwargs(tmp_path), candidates="all")


def masks(env, info):
    """The mask, which must be the same in every dialect."""
    mask = info["action_mask"]
    assert mask.dtype == np.int8
    assert mask.shape == (env.action_space.n,)
    assert mask.any()
    assert set(np.unique(mask)) <= {0, 1}
    assert env.action_masks().dtype == bool
    assert np.array_equal(env.action_masks(), mask)
    return mask


def play(env, rng, check=lambda *_: None):
    """A random legal episode; its return."""
    observation, info = env.reset()
    check(observation, info)
    total, done = 0.0, False
    while not done:
        action = env.action_space.sample(info["action_mask"])
        action = int(rng.choice(np.flatnonzero(info["action_mask"])))
        observation, reward, done, truncated, info = env.step(action)
        assert type(reward) is float
        assert type(done) is bool
        assert truncated is False
        assert reward == 0 or done
        check(observation, info)
        total += reward
    return total


@pytest.mark.thorough
@each("kwargs", PROBLEMS)
def test_pipeline_cut__check_env(kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*no plan fits the memory: t5-11b.*")
        check_env(make(**kwargs), skip_render_check=True)


@pytest.mark.thorough
@each("kwargs", PROBLEMS)
def test_pipeline_cut__return_is_the_judges_value(kwargs):
    """Random episodes, through ``plan()`` and ``judge()``, on the same instance loaded anew."""
    env, rng = make(**kwargs), np.random.default_rng(0)

    def check(observation, info):
        assert env.observation_space.contains(observation)
        masks(env, info)

    profile = load_profile(kwargs["instance"], Cluster.parse(kwargs["cluster"]))
    returns = set()
    for _ in range(15):
        total = play(env, rng, check)
        report = judge(env.plan(), profile)
        assert total == pytest.approx(report.value, rel=1e-12)
        assert total == -1 or 0 < total <= 1
        assert all("bytes on each device" in reason for reason in report.reasons)
        assert len(report.stages) == env.game.space.stages == PRESETS[kwargs["cluster"]].servers
        returns.add(total)
    if kwargs["instance"] == "t5-11b" and kwargs["cluster"] in "AB":
        assert returns == {-1.0}  # fits no partition
    else:
        assert max(returns) > 0


def exhaust(env):
    """(return, plan) of every episode of legal actions."""
    found = []

    def walk(prefix):
        env.reset()
        reward, done = 0.0, False
        for action in prefix:
            _, reward, done, *_ = env.step(action)
        if done:
            found.append((reward, env.plan()))
            return
        for action in np.flatnonzero(env.action_masks()):
            walk([*prefix, int(action)])

    walk([])
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("candidates", ["minima", "all"])
def test_pipeline_cut__known_optimum(toy, candidates, tmp_path):
    """Playing everything finds the optimum known by hand, and so does the exact solver."""
    env = make(**toy.kwargs(tmp_path), candidates=candidates)
    found = exhaust(env)
    best, plan = max(found, key=lambda x: x[0])
    assert best == pytest.approx(float(toy.value), rel=1e-14)
    assert (plan.cuts, plan.device_cuts) == (toy.cuts, toy.device_cuts)
    assert sorted(x for x, _ in found)[-2] < best - 1e-3  # the only one
    answer = exact_candidates(env.game.space)
    assert tuple(answer.plan.cuts) == toy.cuts
    assert tuple(answer.plan.device_cuts) == toy.device_cuts
    assert answer.cost == pytest.approx(float(toy.length), rel=1e-14)
    assert answer.status == "optimal"
    assert exact_full(env.problem.with_stages(toy.stages)).cost <= answer.cost * (1 + 1e-12)


def test_pipeline_cut__memory_is_judged_at_the_last_cut(tmp_path):
    kwargs = toys.balanced().kwargs(tmp_path)
    kwargs["cluster"] = toys.shape(1, 3, 8.0, 8.0, memory_bytes=12.0)  # 4 parameters, 2 copies
    env = make(**kwargs)
    actions = {int(p): i for i, p in enumerate(env.game.space.pivots)}
    for cuts, fits in (((4, 8), False), ((4, 6), False), ((2, 6), False)):
        env.reset()
        for p in cuts[:-1]:
            assert env.step(actions[p])[1] == 0
        observation, reward, done, truncated, _ = env.step(actions[cuts[-1]])
        assert (reward, done, truncated) == (-1, True, False)
        assert env.observation_space.contains(observation)
        assert judge(env.plan(), env.problem).legal == fits
        assert env.plan().cuts == cuts


@each("first", [[], [3]])
@each(
    "action",
    [0, np.int64(0), np.int32(0), -1, -2, 11, np.int64(11), 10**6, 2**63, np.int64(-(2**63))],
)
def test_pipeline_cut__illegal_actions(env, first, action):
    """They end the episode with -1, whatever they are, and never raise."""
    env.reset()
    for legal in first:
        env.step(legal)
    if not first and action == 0:
        action = type(action)(8)  # legal only as the second cut
    assert not (0 <= action < env.action_space.n and env.action_masks()[action])
    observation, reward, done, truncated, info = env.step(action)
    assert (reward, done, truncated) == (-1.0, True, False)
    assert type(reward) is float
    assert env.observation_space.contains(observation)
    assert observation["step"] == len(first)
    assert not observation["features"].any()
    assert masks(env, info).all()
    assert len(env.plan().cuts) == len(first)  # it is no part of the plan
    assert env.step(3)[1:4] == (-1.0, True, False)


def test_pipeline_cut__observation_by_hand(tmp_path):
    """The dense toy: features of p=3 and p=5 as its docstring computes them, over the maxima."""
    env = make(**toys.dense().kwargs(tmp_path), candidates="all")
    observation, info = env.reset()
    assert env.game.space.pivots.tolist() == [1, 2, 3, 4, 5]
    assert info["action_mask"].tolist() == [1] * 5
    assert observation["cuts"].tolist() == [-1]
    assert observation["step"] == 0
    longest_reduce = 2 * 69 * 3 / 4  # all parameters over all devices
    np.testing.assert_allclose(
        observation["features"][[2, 4]],
        [[16.5 / longest_reduce, 3 / 9, 1], [20 / 3 / longest_reduce, 3 / 9, 2 / (10 / 3)]],
        rtol=1e-6,
    )
    observation, *_ = env.step(4)
    assert observation["cuts"].tolist() == [np.float32(5 / 6)]
    assert observation["step"] == 1


@each(
    ("kwargs", "words"),
    [
        ({"instance": "t5-bse"}, "did you mean 't5-base'"),
        ({"cluster": "Z"}, "cluster 'Z' does not parse"),
        ({"stages": 1}, "at least 2 stages"),
        ({"stages": 33}, "only 32 devices"),
        ({"micro_batch": 0}, "micro_batch must be"),
    ],
)
def test_pipeline_cut__bad_arguments(kwargs, words):
    with pytest.raises(ParenvsError, match=words):
        make(**kwargs)


# Batches.

BATCHED = [
    {"instance": "vgg-19", "cluster": "B"},
    {"instance": "vgg-19", "cluster": "A", "stages": 4},  # windows overlap
    {"instance": "vgg-19", "cluster": "C", "stages": 2},
    {"instance": "t5-base", "cluster": "C"},
    # Few devices a server: some transfers stay inside one, depending on the cut before.
    {"instance": "vgg-19", "cluster": "4x3:v100", "stages": 6, "radius": 9, "candidates": "all"},
    {"instance": "t5-base", "cluster": "1x12:a100", "stages": 5, "micro_batches": 3},
]
problems = pytest.mark.parametrize(
    "kwargs", [BATCHED[0], BATCHED[4], *slow(*BATCHED[1:4], BATCHED[5])], ids=named
)
both = partial(batches.both, PipelineCutVectorEnv)


def compare(batched, single, rng, steps, illegal=0.0):
    """Play both alike; episodes that ended."""
    outcome = batched.reset(seed=1)
    assert_same(outcome, single.reset(seed=1))
    ended = 0
    for _ in range(steps):
        if batched.autoreset_mode == AutoresetMode.DISABLED and ended_now(outcome).any():
            options = {"reset_mask": ended_now(outcome)}
            outcome = batched.reset(options=options)
            assert_same(outcome, single.reset(options=options))
        masks = batched.action_masks()
        assert_same(masks, np.array(single.call("action_masks")))
        actions = drawn(masks, rng, illegal)
        outcome = batched.step(actions)
        assert_same(outcome, single.step(actions))
        assert batched.observation_space.contains(outcome[0])
        assert outcome[0]["features"].flags.c_contiguous
        ended += int(outcome[2].sum())
    return ended


def ended_now(outcome):
    return outcome[2] if len(outcome) == 5 else np.zeros(1, dtype=bool)


@pytest.mark.thorough
@problems
@modes
def test_vector__equals_single_ones(kwargs, mode):
    """Hundreds of episodes each, in step with each other and not."""
    batched, single = both(kwargs, 12, mode)
    for illegal in (0.0, 0.1):
        assert compare(batched, single, np.random.default_rng(0), 100, illegal) >= 150
        for i in range(12):
            assert batched.plan(i) == single.call("plan")[i]


@pytest.mark.thorough
@modes
def test_vector__equals_single_ones_without_tables(mode, monkeypatch):
    monkeypatch.setattr(game, "MAX_OPENINGS", 0)
    monkeypatch.setattr(game, "TABULATED", 0)
    for kwargs in BATCHED[1], BATCHED[4]:
        batched, single = both(kwargs, 8, mode)
        assert not len(batched.game.source.only.openings)
        compare(batched, single, np.random.default_rng(0), 20, 0.05)


@st.composite
def spaces(draw):
    pipeline = draw(toys.pipelines(least=3))
    stages = draw(st.integers(2, 5))
    try:
        return CutSpace.build(
            pipeline.with_stages(stages),
            draw(st.integers(0, 4)),
            draw(st.sampled_from(["all", "minima"])),
        )
    except InfeasibleError:
        assume(False)


def scaled(space, chosen, legal):
    """Features by the whole plans of the candidates, all of float64 until the end."""
    pipeline, cluster = space.pipeline, space.pipeline.cluster
    whole = (np.array(0), np.array(cluster.devices))
    scale = np.array(
        [
            cluster.sync_seconds(pipeline.parameter_sum[-1:], *whole)[0],
            pipeline.cut_before[space.pivots].max() / cluster.bandwidth(*whole),
            1.0,
        ]
    )
    scale[scale == 0] = 1.0
    candidates = space.pivots[legal], space.devices[legal]
    raw = slow_features(pipeline, *space.plan(chosen), *candidates)
    result = np.zeros((len(space.pivots), 3), dtype=np.float32)
    result[legal] = np.minimum(raw / scale, 1.0)
    return result


@pytest.mark.thorough
@settings(max_examples=80)
@given(st.data(), st.booleans())
def test_board__equals_the_pipeline(data, tabulated):
    """Every way to compute features and values, on any pipeline, against the definition."""
    space = data.draw(spaces())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(game, "TABULATED", game.TABULATED * tabulated)
        board = Board(space)
    kernel, chain, count = board.kernel, [], 3
    chosen = np.zeros((count, space.stages - 1), dtype=np.int64)
    for step in range(space.stages - 1):
        legal = bf.legal(space, chain)
        last = chain[-1] if chain else -1
        begin, end = max(kernel.follower[last], kernel.low[step]), kernel.high[step]
        assert np.flatnonzero(legal).tolist() == list(range(begin, end))
        expected = scaled(space, chain, legal)
        found = np.zeros((count, *expected.shape), np.float32)
        steps = np.full(count, step)
        game.write_features(kernel, board.last_stages, chosen, steps, np.arange(count), found)
        if step:
            assert_same(found, np.stack([expected] * count))
        if step < 2 and len(board.openings):
            assert_same(board.openings[last - kernel.low[0] + 1 if step else 0], found[0])
        chosen[:, step] = cut = data.draw(st.integers(begin, end - 1))
        chain.append(cut)
    plan = space.plan(chain)
    expected = float(space.pipeline.length(*plan)), float(space.pipeline.excess_bytes(*plan))
    length, excess, _ = board.outcome(chosen)
    for figures, figure in zip((length, excess), expected, strict=True):
        assert_same(figures, np.full(count, figure))


def test_pipeline_cut__paper(toy, tmp_path):
    """All pivots of the windows and three features of each, as in section 4.4 of the paper."""
    paper = make(**toy.kwargs(tmp_path), paper=True)
    every = make(**toy.kwargs(tmp_path), candidates="all")
    assert paper.game.space.pivots.tolist() == every.game.space.pivots.tolist()
    observation, _ = paper.reset()
    assert observation.keys() == {"features"}
    assert np.array_equal(observation["features"], every.reset()[0]["features"])
    with pytest.raises(ParenvsError, match="paper: its task has no rows"):
        make(**toy.kwargs(tmp_path), paper=True, rows="bare")
