"""The batched ``PipelineCut-v0``: ``SyncVectorEnv`` of single ones, to the last bit."""

import gc
from functools import partial

import batches
import numpy as np
import pytest
import toys
from batches import MODES, assert_same, drawn, forks, modes, named
from cases import slow
from gymnasium.vector import AutoresetMode
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from second_writing import slow_features

from parenvs import judge
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.cut import (
    NOTHING,
    CutKernel,
    PipelineCutEnv,
    PipelineCutVectorEnv,
    kernel_of,
)
from parenvs.tasks.pipeline.spaces import CutSpace

pytestmark = pytest.mark.thorough

PROBLEMS = [
    {"instance": "vgg-19", "cluster": "B"},
    {"instance": "vgg-19", "cluster": "A", "stages": 4},  # windows overlap
    {"instance": "vgg-19", "cluster": "C", "stages": 2},
    {"instance": "t5-base", "cluster": "C"},
    # Few devices a server: some transfers stay inside one, depending on the cut before.
    {"instance": "vgg-19", "cluster": "4x3:v100", "stages": 6, "radius": 9, "candidates": "all"},
    {"instance": "t5-base", "cluster": "1x12:a100", "stages": 5, "micro_batches": 3},
]
problems = pytest.mark.parametrize(
    "kwargs",
    [PROBLEMS[0], PROBLEMS[4], *slow(*PROBLEMS[1:4], PROBLEMS[5])],
    ids=named,
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


@problems
@modes
def test_vector__equals_single_ones(kwargs, mode):
    """Hundreds of episodes each, in step with each other and not."""
    batched, single = both(kwargs, 12, mode)
    for illegal in (0.0, 0.1):
        assert compare(batched, single, np.random.default_rng(0), 100, illegal) >= 150
        for i in range(12):
            assert batched.plan(i) == single.call("plan")[i]


@modes
def test_vector__equals_single_ones_without_tables(mode, monkeypatch):
    monkeypatch.setattr("parenvs.tasks.pipeline.cut.MAX_OPENINGS", 0)
    monkeypatch.setattr("parenvs.tasks.pipeline.cut.BLOCK", 50)  # several blocks of environments
    monkeypatch.setattr(
        "parenvs.tasks.pipeline.cut.kernel_of", lambda space, *_: CutKernel(space, 0)
    )
    for kwargs in PROBLEMS[1], PROBLEMS[4]:
        batched, single = both(kwargs, 8, mode)
        assert not batched.game.kernel.tabulated
        assert batched.game.kernel.openings is None
        compare(batched, single, np.random.default_rng(0), 20, 0.05)


@pytest.mark.parametrize("toy", [toys.balanced(), toys.dense()], ids=["balanced", "dense"])
@pytest.mark.parametrize("count", [3, *slow(1)])
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


@settings(max_examples=80)
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
        assert_same(kernel.features_one(chain, begin, settled), expected)
        chains = np.array([chain] * count).T
        if step:
            found = np.zeros((count, *expected.shape), np.float32)
            kernel.features(step, chains, peaks, paces, found)
            assert_same(found, np.stack([expected] * count))
        cut = data.draw(st.integers(begin, end - 1))
        if step + 1 < kernel.cuts:
            settled = kernel.settle_one(chain, cut, settled)
            chains = np.concatenate([chains, np.full((1, count), cut)])
            peaks, paces = kernel.settle(step, chains, peaks, paces)
            assert [*peaks[0], *paces[0]] == list(settled)
        chain.append(cut)
    plan, chain = space.plan(chain[1:]), [*chain, kernel.end]
    expected = float(space.pipeline.length(*plan)), float(space.pipeline.excess_bytes(*plan))
    assert kernel.length_and_excess_one(chain) == expected
    many = kernel.length_and_excess(np.array([chain] * count).T)
    for figures, figure in zip(many, expected, strict=True):
        assert_same(figures, np.full(count, figure))


@given(spaces())
@settings(max_examples=100)
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
        report = judge(batched.plan(i), batched.game.problem(i))
        assert rewards[i] == pytest.approx(report.value, rel=1e-12)
    assert rewards.max() > 0


@modes
def test_vector__without_copies(mode):
    """The same numbers; those that the game keeps are views."""
    env, twin = (
        PipelineCutVectorEnv(5, autoreset_mode=mode, copy=copy_, **PROBLEMS[1])
        for copy_ in (False, True)
    )
    rng = np.random.default_rng(0)
    env.reset()
    twin.reset()
    for _ in range(30):
        actions = drawn(env.action_masks(), rng, 0.1)
        outcome = env.step(actions)
        assert_same(outcome, twin.step(actions))
        with pytest.raises(ValueError, match="read-only"):
            outcome[0]["cuts"][:] = 0
        if mode == "Disabled" and outcome[2].any():
            for one in env, twin:
                one.reset(options={"reset_mask": outcome[2]})


def test_cut_kernel__is_shared_while_it_is_used():
    one, other = (PipelineCutEnv(**PROBLEMS[1]) for _ in range(2))
    assert one.game.kernel is other.game.kernel
    assert one.game.kernel is not PipelineCutEnv(**PROBLEMS[0]).game.kernel
    assert one.game.kernel is not PipelineCutEnv(**PROBLEMS[1], micro_batches=3).game.kernel
    assert not one.game.kernel.first.flags.writeable
    space = one.game.space
    found = kernel_of(space)
    assert found is one.game.kernel
    del one, other, found
    gc.collect()
    assert kernel_of(space).space is space  # made anew


@forks
def test_cut_kernel__is_shared_with_a_fork(fork):
    env = PipelineCutVectorEnv(4, **PROBLEMS[3])
    assert fork(env).game.kernel is env.game.kernel
