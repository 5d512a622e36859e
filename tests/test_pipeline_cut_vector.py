"""The batched ``PipelineCut-v0``: ``SyncVectorEnv`` of single ones, to the last bit."""

import copy
import gc
import pickle
import time
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import toys
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parenvs import judge
from parenvs.candidates import CutSpace
from parenvs.envs.cut_kernel import NOTHING, CutKernel, kernel_of
from parenvs.envs.pipeline_cut import PipelineCutEnv
from parenvs.envs.pipeline_cut_vector import PipelineCutVectorEnv
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.judge import plan_values

ID = "PipelineCut-v0"
MODES = ("NextStep", "SameStep", "Disabled")
PROBLEMS = [
    {"instance": "vgg-19", "cluster": "B"},
    {"instance": "vgg-19", "cluster": "A", "stages": 4},  # windows overlap
    {"instance": "vgg-19", "cluster": "C", "stages": 2},
    {"instance": "t5-base", "cluster": "C"},
    # Few devices a server: some transfers stay inside one, depending on the cut before.
    {"instance": "vgg-19", "cluster": "4x3:v100", "stages": 6, "radius": 9, "candidates": "all"},
    {"instance": "t5-base", "cluster": "1x12:a100", "stages": 5, "micro_batches": 3},
]
problems = pytest.mark.parametrize("kwargs", PROBLEMS, ids=lambda x: "-".join(map(str, x.values())))


def assert_same(one, other, where=""):
    """Equal structure, types, shapes and bytes."""
    if isinstance(one, (dict, tuple)):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            assert_same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, np.ndarray) and one.dtype == object:
        assert one.shape == other.shape
        for a, b in zip(one, other, strict=True):
            assert_same(a, b, where)
    else:
        assert type(one) is type(other), where
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), where
        assert one.tobytes() == other.tobytes(), (where, one, other)


def both(kwargs, count, mode="NextStep", **more):
    """A batched environment and a ``SyncVectorEnv`` of single ones."""
    batched = PipelineCutVectorEnv(count, autoreset_mode=mode, **more, **kwargs)
    single = SyncVectorEnv(
        [partial(PipelineCutEnv, **kwargs)] * count, autoreset_mode=AutoresetMode(mode)
    )
    return batched, single


def drawn(masks, rng, illegal=0.0):
    """A uniform legal action of each environment, some of them replaced by any number."""
    actions = (rng.random(masks.shape) * masks).argmax(axis=1)
    other = rng.integers(-3, masks.shape[1] + 3, len(masks))
    return np.where(rng.random(len(masks)) < illegal, other, actions)


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


@problems
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("illegal", [0.0, 0.1])
def test_vector__equals_single_ones(kwargs, mode, illegal):
    """Hundreds of episodes each, in step with each other and not."""
    batched, single = both(kwargs, 24, mode)
    assert compare(batched, single, np.random.default_rng(0), 100, illegal) >= 300
    for i in range(24):
        assert batched.plan(i) == single.call("plan")[i]


@pytest.mark.parametrize("mode", MODES)
def test_vector__equals_single_ones_without_tables(mode, monkeypatch):
    monkeypatch.setattr("parenvs.envs.cut_kernel.MOST_OPENINGS", 0)
    monkeypatch.setattr("parenvs.envs.cut_kernel.BLOCK", 50)  # several blocks of environments
    monkeypatch.setattr("parenvs.envs.pipeline_cut.kernel_of", lambda space: CutKernel(space, 0))
    monkeypatch.setattr(
        "parenvs.envs.pipeline_cut_vector.kernel_of", lambda space, _: CutKernel(space, 0)
    )
    for kwargs in PROBLEMS[1], PROBLEMS[4]:
        batched, single = both(kwargs, 8, mode)
        assert not batched.kernel.tabulated
        assert batched.kernel.openings is None
        compare(batched, single, np.random.default_rng(0), 20, 0.05)


@pytest.mark.parametrize("toy", [toys.balanced(), toys.dense()], ids=["balanced", "dense"])
@pytest.mark.parametrize("count", [1, 3])
def test_vector__toys(toy, count, tmp_path):
    kwargs = {**toy.kwargs(tmp_path), "candidates": "all"}
    for mode in MODES:
        compare(*both(kwargs, count, mode), np.random.default_rng(0), 200, 0.1)


@st.composite
def spaces(draw):
    pipeline = draw(toys.pipelines(least=3))
    stages = draw(st.integers(2, 5))
    try:
        return CutSpace.build(
            pipeline, stages, draw(st.integers(0, 4)), draw(st.sampled_from(["all", "minima"]))
        )
    except InfeasibleError:
        assume(False)


def scaled(space, chosen, legal):
    """Features by ``Pipeline.cut_features``, all of float64 until the end."""
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
    raw = pipeline.cut_features(*space.plan(chosen), space.pivots[legal], space.devices[legal])
    result = np.zeros((len(space.pivots), 3), dtype=np.float32)
    result[legal] = np.minimum(raw / scale, 1.0)
    return result


@settings(max_examples=150, deadline=None)
@given(st.data(), st.booleans())
def test_cut_kernel__equals_the_pipeline(data, tabulated):
    """Every way to compute features and values, on any pipeline, against the definition."""
    space = data.draw(spaces())
    kernel = CutKernel(space) if tabulated else CutKernel(space, 0)
    assert kernel.tabulated == tabulated
    chain, settled, count = [kernel.start], NOTHING, 3
    peaks, paces = np.zeros((count, 2), np.float32), np.zeros((count, 2))
    for step in range(kernel.cuts):
        legal = space.legal(chain[1:])
        begin, end = max(kernel.after[chain[-1]], kernel.low[step]), kernel.high[step]
        assert np.flatnonzero(legal).tolist() == list(range(begin, end))
        expected = scaled(space, chain[1:], legal)
        assert_same(kernel.one(chain, begin, settled), expected)
        chains = np.array([chain] * count).T
        if step:
            found = np.zeros((count, *expected.shape), np.float32)
            kernel.features(step, chains, peaks, paces, found)
            assert_same(found, np.stack([expected] * count))
        cut = data.draw(st.integers(begin, end - 1))
        if step + 1 < kernel.cuts:
            settled = kernel.settled(chain, cut, settled)
            chains = np.concatenate([chains, np.full((1, count), cut)])
            peaks, paces = kernel.settle(step, chains, peaks, paces)
            assert [*peaks[0], *paces[0]] == list(settled)
        chain.append(cut)
    value = float(plan_values(space.pipeline, *space.plan(chain[1:])))
    assert kernel.value([*chain, kernel.end]) == value
    chains = np.array([[*chain, kernel.end]] * count).T
    assert_same(kernel.values(chains), np.full(count, value))


@given(spaces())
@settings(max_examples=100, deadline=None)
def test_cut_space__windows_and_followers(space):
    """They say the same as ``allowed`` and ``legal``."""
    for row, window in zip(space.allowed, space.windows(), strict=True):
        assert np.flatnonzero(row).tolist() == list(range(*window))
    followers, (low, high) = space.followers(), space.windows()[-1]
    for last in np.flatnonzero(space.allowed[-2]) if space.stages > 2 else []:
        legal = np.flatnonzero(space.legal([0] * (space.stages - 3) + [last]))
        assert legal.tolist() == list(range(max(low, followers[last]), high))


def test_vector__rewards_are_the_judges():
    batched = PipelineCutVectorEnv(40, instance="t5-base", cluster="C")
    rng = np.random.default_rng(0)
    _, infos = batched.reset()
    for _ in range(3):
        _, rewards, terminated, _, infos = batched.step(drawn(infos["action_mask"], rng))
    assert terminated.all()
    for i in range(0, 40, 8):
        report = judge(batched.plan(i), batched.pipeline)
        assert rewards[i] == pytest.approx(report.value, rel=1e-12)
    assert rewards.max() > 0


@pytest.mark.parametrize("illegal", [0.0, 0.1])
def test_vector__kinds_of_actions(illegal):
    kwargs, rng = PROBLEMS[1], np.random.default_rng(0)
    for kind in (np.int64, np.int32, np.int16, np.float64, object, list):
        batched, single = both(kwargs, 6)
        batched.reset()
        single.reset()
        for _ in range(12):
            actions = drawn(batched.action_masks(), rng, illegal)
            asked = actions.tolist() if kind is list else actions.astype(kind)
            assert_same(batched.step(asked), single.step(actions))


@pytest.mark.parametrize("action", [2**63, -(2**63), 10**6, -1])
def test_vector__actions_far_off(action):
    kwargs = PROBLEMS[0]
    batched, single = PipelineCutVectorEnv(2, **kwargs), PipelineCutEnv(**kwargs)
    batched.reset()
    single.reset()
    observation, rewards, terminated, _, infos = batched.step(np.array([action, 0]))
    assert rewards.tolist() == [-1.0, 0.0]
    assert terminated.tolist() == [True, False]
    expected = single.step(action)
    assert_same({key: value[0] for key, value in observation.items()}, expected[0])
    assert_same(infos["action_mask"][0], expected[4]["action_mask"])


@pytest.mark.parametrize("mode", MODES)
def test_vector__partial_resets(mode):
    """Of environments in the middle of an episode, with and without any that is over."""
    batched, single = both(PROBLEMS[1], 5, mode)
    rng = np.random.default_rng(0)
    assert_same(batched.reset(), single.reset())
    for _ in range(60):
        mask = rng.random(5) < 0.4
        mask[rng.integers(5)] = True
        if batched.autoreset_mode == AutoresetMode.DISABLED:
            mask |= batched._over
        some = ({"reset_mask": mask.copy()} for _ in range(2))
        assert_same(batched.reset(options=next(some)), single.reset(options=next(some)))
        actions = drawn(batched.action_masks(), rng, 0.1)
        assert_same(batched.step(actions), single.step(actions))


def test_vector__over_without_autoreset():
    batched, single = both(PROBLEMS[2], 2, "Disabled")
    for env in batched, single:
        env.reset()
        env.step(np.array([0, 0]))  # one cut, the last
        with pytest.raises(AssertionError):
            env.step(np.array([0, 0]))
    batched.reset()
    assert batched.step(np.array([0, 0]))[2].all()  # goes on after a reset


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, False], TypeError),
        (np.array([1, 0]), TypeError),
        (np.array([True]), ValueError),
        (np.array([False, False]), ValueError),
    ],
)
def test_vector__bad_reset_masks(mask, error):
    with pytest.raises(error, match="reset_mask"):
        PipelineCutVectorEnv(2, **PROBLEMS[0]).reset(options={"reset_mask": mask})


def test_vector__bad_arguments():
    with pytest.raises(ValueError, match="num_envs"):
        PipelineCutVectorEnv(0, **PROBLEMS[0])
    with pytest.raises(ValueError, match="AutoresetMode"):
        PipelineCutVectorEnv(1, autoreset_mode="Sometimes", **PROBLEMS[0])
    with pytest.raises(ParenvsError, match="did you mean"):
        PipelineCutVectorEnv(1, instance="vgg-91")
    env = PipelineCutVectorEnv(3, **PROBLEMS[0])
    with pytest.raises(ValueError, match="3 actions are needed"):
        env.step(np.zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match="3 seeds are needed"):
        env.reset(seed=[1, 2])


def test_vector__seeds():
    """They change no episode, and reach ``np_random`` as in ``VectorEnv``."""
    env = PipelineCutVectorEnv(3, **PROBLEMS[0])
    first = env.reset(seed=5)
    drawn_number = env.np_random.random()
    assert env.np_random_seed == 5
    for seed in (5, [5, 6, 7]):
        assert_same(env.reset(seed=seed), first)
        assert env.np_random.random() == drawn_number
    assert_same(env.reset(seed=6), first)
    assert env.np_random.random() != drawn_number


@pytest.mark.parametrize("fork", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("mode", MODES)
def test_vector__fork(fork, mode):
    """A copy in the middle of an episode goes on as the original, and leaves it alone."""
    env, rng = PipelineCutVectorEnv(4, autoreset_mode=mode, **PROBLEMS[3]), np.random.default_rng(0)
    env.reset()
    env.step(drawn(env.action_masks(), rng))
    other, before = fork(env), env.action_masks()
    assert other.kernel is env.kernel
    actions = [drawn(env.action_masks(), rng)]
    expected = [other.step(actions[0])]
    actions.append(drawn(other.action_masks(), rng))
    expected.append(other.step(actions[1]))
    assert_same(env.action_masks(), before)
    for action, outcome in zip(actions, expected, strict=True):
        assert_same(env.step(action), outcome)


def test_vector__nothing_is_shared():
    """What a caller writes into what it got does not come back."""
    for mode in "NextStep", "SameStep":
        env, twin = (PipelineCutVectorEnv(3, autoreset_mode=mode, **PROBLEMS[1]) for _ in range(2))
        rng = np.random.default_rng(0)
        env.reset()
        twin.reset()
        for _ in range(9):
            actions = drawn(env.action_masks(), rng)
            outcome = env.step(actions)
            assert_same(outcome, twin.step(actions))
            kept = copy.deepcopy(outcome)
            env.action_masks()[:] = True
            deface(outcome)
            again = env.reset(options={"reset_mask": np.array([True, False, False])})
            assert_same(again, twin.reset(options={"reset_mask": np.array([True, False, False])}))
            deface(kept)


def deface(thing):
    for value in thing.values() if isinstance(thing, dict) else thing:
        if isinstance(value, (dict, tuple)):
            deface(value)
        elif isinstance(value, np.ndarray) and value.dtype == object:
            deface(tuple(x for x in value if x is not None))
        elif isinstance(value, np.ndarray):
            assert value.flags.writeable
            value[...] = 1


@pytest.mark.parametrize("mode", MODES)
def test_vector__without_copies(mode):
    """The same numbers, but ``features`` are written over."""
    env, twin = (
        PipelineCutVectorEnv(5, autoreset_mode=mode, copy=copy_, **PROBLEMS[1])
        for copy_ in (False, True)
    )
    rng, arrays = np.random.default_rng(0), set()
    env.reset()
    twin.reset()
    for _ in range(30):
        actions = drawn(env.action_masks(), rng, 0.1)
        outcome = env.step(actions)
        assert_same(outcome, twin.step(actions))
        arrays.add(outcome[0]["features"].ctypes.data)
        if mode == "Disabled" and outcome[2].any():
            for one in env, twin:
                one.reset(options={"reset_mask": outcome[2]})
    assert len(arrays) == 1


@pytest.mark.parametrize("mode", [None, "vector_entry_point", "sync"])
def test_vector__make_vec(mode):
    kwargs = {"instance": "vgg-19", "cluster": "B", "stages": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = gym.make_vec(ID, num_envs=4, vectorization_mode=mode, **kwargs)
    assert isinstance(envs, SyncVectorEnv if mode == "sync" else PipelineCutVectorEnv)
    assert envs.num_envs == 4
    assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    reference = SyncVectorEnv([partial(PipelineCutEnv, **kwargs)] * 4)
    assert envs.observation_space == reference.observation_space
    assert envs.single_observation_space == reference.single_observation_space
    assert envs.action_space == reference.action_space
    assert envs.single_action_space == reference.single_action_space
    assert_same(envs.reset(seed=0), reference.reset(seed=0))
    again = gym.make_vec(envs.spec)
    assert type(again) is type(envs)
    assert again.num_envs == 4
    envs.close()
    assert envs.closed


def test_vector__make_vec_with_arguments():
    envs = gym.make_vec(
        f"parenvs:{ID}", num_envs=2, autoreset_mode="SameStep", copy=False, **PROBLEMS[2]
    )
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    envs.reset()
    infos = envs.step(np.zeros(2, dtype=np.int64))[-1]
    assert infos["_final_obs"].all()
    assert envs.single_observation_space.contains(infos["final_obs"][0])


def test_vector__wrappers():
    """Statistics of episodes, and infos as a list, are those of single environments."""
    kwargs, rng = PROBLEMS[0], np.random.default_rng(0)
    batched, single = (RecordEpisodeStatistics(env) for env in both(kwargs, 3))
    batched.reset()
    single.reset()
    ended = 0
    for _ in range(9):
        actions = drawn(batched.unwrapped.action_masks(), rng)
        mine, theirs = (env.step(actions)[-1] for env in (batched, single))
        assert ("episode" in mine) == ("episode" in theirs)
        if "episode" in mine:
            assert_same(mine["episode"]["r"], theirs["episode"]["r"])
            assert_same(mine["episode"]["l"], theirs["episode"]["l"])
            ended += 1
    assert ended == 3
    mine, theirs = (DictInfoToList(env).reset()[1] for env in both(kwargs, 3))
    for one, other in zip(mine, theirs, strict=True):
        assert_same(one, other)


def test_vector__render():
    env = PipelineCutVectorEnv(2, render_mode="ansi", **PROBLEMS[0])
    single = PipelineCutEnv(render_mode="ansi", **PROBLEMS[0])
    single.reset()
    env.reset()
    assert env.render() == (single.render(),) * 2
    env.step(np.array([1, 2]))
    single.step(1)
    pictures = env.render()
    assert pictures[0] == single.render() != pictures[1]
    with pytest.warns(UserWarning, match="render_mode='ansi' or 'rgb_array'"):
        assert PipelineCutVectorEnv(2, **PROBLEMS[0]).render() is None


def test_cut_kernel__is_shared_while_it_is_used():
    one, other = (PipelineCutEnv(**PROBLEMS[1]) for _ in range(2))
    assert one.kernel is other.kernel
    assert one.kernel is not PipelineCutEnv(**PROBLEMS[0]).kernel
    assert one.kernel is not PipelineCutEnv(**PROBLEMS[1], micro_batches=3).kernel
    assert not one.kernel.first.flags.writeable
    space = one.space
    found = kernel_of(space)
    assert found is one.kernel
    del one, other, found
    gc.collect()
    assert kernel_of(space).space is space  # made anew


# Speed: ratios in one process, a third of what is asked, so that a busy machine passes.


def seconds(action, times):
    begin = time.process_time()
    for _ in range(times):
        action()
    return (time.process_time() - begin) / times


def ratio(one, other, times):
    """How many times as long ``other`` takes: the best of several turns."""
    one(), other()
    turns = [(seconds(one, times), seconds(other, times)) for _ in range(7)]
    return min(turn[1] for turn in turns) / min(turn[0] for turn in turns)


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A problem of about 128 candidates and four stages."""
    rng, n = np.random.default_rng(0), 192
    profile = toys.chain(
        rng.random(n) + 0.5,
        2 * rng.random(n) + 1,
        1e6 * rng.integers(1, 9, n),
        1e6 * rng.integers(1, 9, n),
    )
    path = tmp_path_factory.mktemp("chain") / "chain.csv"
    profile.to_csv(path)
    return {"instance": str(path), "cluster": "C", "candidates": "all"}


def player(envs, masked):
    """A function that plays an episode of three cuts and its reset; actions are drawn before."""
    rng, infos = np.random.default_rng(0), envs.reset(seed=0)[1]
    actions = []
    for _ in range(4):
        legal = infos["action_mask"] if masked else np.ones((envs.num_envs, 2))
        actions.append(drawn(legal, rng))
        infos = envs.step(actions[-1])[-1]

    def play():
        for action in actions:
            envs.step(action)

    return play


@pytest.mark.parametrize(("count", "asked"), [(64, 1.0), (1024, 0.15)])
def test_vector__speed_against_cartpole(chain, count, asked):
    mode = "vector_entry_point"
    cartpole = gym.make_vec("CartPole-v1", num_envs=count, vectorization_mode=mode)
    envs = gym.make_vec(ID, num_envs=count, vectorization_mode=mode, **chain)
    assert 120 <= envs.single_action_space.n <= 136
    assert ratio(player(envs, True), player(cartpole, False), 20) > asked / 3


def single_player(env):
    """A function that plays 20 episodes, resets included; actions are drawn before."""
    rng, actions = np.random.default_rng(0), []
    for _ in range(20):
        _, info = env.reset(seed=0)
        over = False
        while not over and len(actions) < 60:
            legal = np.flatnonzero(info["action_mask"]) if "action_mask" in info else [0, 1]
            actions.append(int(rng.choice(legal)))
            *_, terminated, truncated, info = env.step(actions[-1])
            over = terminated or truncated

    def play():
        env.reset()
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return play, len(actions)


def test_single__speed_against_cartpole(chain):
    (mine, steps), (cartpole, others) = (
        single_player(gym.make(name, **kwargs))
        for name, kwargs in ((ID, chain), ("CartPole-v1", {}))
    )
    assert ratio(mine, cartpole, 20) * steps / others > 0.3 / 3


def test_vector__speed_against_single(chain):
    mine, steps = single_player(gym.make(ID, **chain))
    envs = gym.make_vec(ID, num_envs=8, **chain)
    assert ratio(player(envs, True), mine, 20) * 4 * 8 / steps > 2 / 3
