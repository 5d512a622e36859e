"""The common behavior of the batched environments, compared with ``SyncVectorEnv``."""

import copy
import warnings

import gymnasium as gym
import numpy as np
import pytest
from batches import MODES, assert_same, both, deface, drawn, forks, modes
from cases import each
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parenvs.errors import ParenvsError
from parenvs.tasks.partition.game import DataParallelVectorEnv, OperatorPartitionVectorEnv
from parenvs.tasks.pipeline.cut import PipelineCutVectorEnv
from parenvs.tasks.pipeline.planning import PipelinePlanningVectorEnv

VGG = {"instance": "vgg-19"}
CASES = {
    PipelineCutVectorEnv: [
        {**VGG, "cluster": "A", "stages": 4},  # windows overlap
        {"instance": "t5-base", "cluster": "C"},
    ],
    PipelinePlanningVectorEnv: [
        {"instance": "t5-base", "cluster": "C"},
        {"instance": "plan-validation"},  # drawn
    ],
    OperatorPartitionVectorEnv: [
        VGG,
        {**VGG, "linkage": False, "masked": True, "reward": "step_time"},
    ],
    DataParallelVectorEnv: [VGG],
}
"""Settings that the base class treats differently; each batch's own tests have all the others."""
IDS = {
    PipelineCutVectorEnv: "PipelineCut-v0",
    PipelinePlanningVectorEnv: "PipelinePlan-v0",
    OperatorPartitionVectorEnv: "OperatorPartition-v0",
    DataParallelVectorEnv: "DataParallel-v0",
}
cases = each(
    "kind, kwargs", [(kind, kwargs) for kind, several in CASES.items() for kwargs in several]
)
kinds = each("kind, kwargs", [(kind, several[0]) for kind, several in CASES.items()])


@pytest.mark.thorough
@cases
def test_batched__kinds_of_actions(kind, kwargs):
    rng = np.random.default_rng(0)
    for type_ in (np.int64, np.int32, np.int16, np.float64, object, list):
        batched, single = both(kind, kwargs, 4)
        assert_same(batched.reset(seed=0), single.reset(seed=0))
        for _ in range(8):
            actions = drawn(batched.action_masks(), rng, 0.1)
            given = actions.tolist() if type_ is list else actions.astype(type_)
            assert_same(batched.step(given), single.step(actions))


@kinds
def test_batched__over_without_autoreset(kind, kwargs):
    """An ended episode must be reset before the next step."""
    batched, single = both(kind, kwargs, 3, "Disabled")
    for env in batched, single:
        legal = int(env.reset(seed=0)[1]["action_mask"][0].argmax())
        done = env.step(np.array([legal, -1, legal]))[2]
    with pytest.raises(AssertionError, match=r"\[1\] are over"):
        batched.step(np.array([0, 0, 0]))
    assert_same(*(env.reset(options={"reset_mask": done.copy()}) for env in (batched, single)))
    actions = batched.action_masks().argmax(axis=1)
    assert_same(batched.step(actions), single.step(actions))
    batched.reset()
    done = batched.step(np.array([-1, legal, -1]))[2]
    batched.reset(options={"reset_mask": np.array([True, False, False])})
    with pytest.raises(AssertionError, match=r"\[2\] are over"):
        batched.step(np.array([0, 0, 0]))
    batched.reset()
    assert batched.step(np.full(3, -1))[2].all()  # goes on after a reset


@pytest.mark.thorough
@modes
@cases
def test_batched__partial_resets(kind, kwargs, mode):
    """Some environments are reset in the middle of an episode, some after its end."""
    batched, single = both(kind, kwargs, 5, mode)
    rng, over = np.random.default_rng(0), np.zeros(5, dtype=bool)
    assert_same(batched.reset(seed=1), single.reset(seed=1))
    for _ in range(20):
        mask = rng.random(5) < 0.4
        mask[rng.integers(5)] = True
        if mode == "Disabled":
            mask |= over
        assert_same(*(env.reset(options={"reset_mask": mask}) for env in (batched, single)))
        actions = drawn(batched.action_masks(), rng, 0.1)
        outcome = batched.step(actions)
        assert_same(outcome, single.step(actions))
        over = outcome[2]


@each(
    ("mask", "error"),
    [
        (None, TypeError),
        ([True, False], TypeError),
        (np.array([1, 0]), TypeError),
        (np.array([True]), ValueError),
        (np.array([False, False]), ValueError),
    ],
)
@kinds
def test_batched__bad_reset_masks(kind, kwargs, mask, error):
    with pytest.raises(error, match="reset_mask"):
        kind(2, **kwargs).reset(options={"reset_mask": mask})


@kinds
def test_batched__bad_arguments(kind, kwargs):
    with pytest.raises(ValueError, match="num_envs must be a whole number from 1"):
        kind(0, **kwargs)
    with pytest.raises(ValueError, match="AutoresetMode"):
        kind(1, autoreset_mode="Sometimes", **kwargs)
    with pytest.raises(ValueError, match="render_mode must be one of"):
        kind(1, render_mode="human", **kwargs)
    with pytest.raises(ParenvsError, match="did you mean"):
        kind(1, instance="vgg-91")
    env = kind(3, **kwargs)
    for actions in ([0, 1], np.zeros((3, 1), dtype=int), 1):
        with pytest.raises(ValueError, match="3 actions are needed"):
            env.step(actions)
    with pytest.raises(ValueError, match="3 seeds are needed"):
        env.reset(seed=[1, 2])


@pytest.mark.thorough
@forks
@modes
@cases
def test_batched__fork(kind, kwargs, fork, mode):
    """A copy in the middle of episodes plays like the original, and does not change it."""
    env, rng = kind(4, autoreset_mode=mode, **kwargs), np.random.default_rng(0)
    env.reset(seed=3)
    ended = env.step(drawn(env.action_masks(), rng))[2]
    if mode == "Disabled" and ended.any():
        env.reset(options={"reset_mask": ended})
    copied, before = fork(env), env.action_masks()
    actions, expected = [], []
    for _ in range(12):
        actions.append(drawn(copied.action_masks(), rng))
        expected.append(copied.step(actions[-1]))
        if mode == "Disabled" and expected[-1][2].any():
            break
    assert_same(env.action_masks(), before)
    for action, outcome in zip(actions, expected, strict=True):
        assert_same(env.step(action), outcome)


@pytest.mark.thorough
@each("mode", MODES[:2])
@cases
def test_batched__nothing_is_shared(kind, kwargs, mode):
    """A caller may write into returned arrays, and they do not change in later steps."""
    env, twin = (kind(3, autoreset_mode=mode, **kwargs) for _ in range(2))
    rng, reset_options = np.random.default_rng(0), {"reset_mask": np.array([True, False, False])}
    env.reset(seed=0)
    twin.reset(seed=0)
    before = copy_before = ()
    for _ in range(9):
        actions = drawn(env.action_masks(), rng, 0.1)
        outcome = env.step(actions)
        assert_same(before, copy_before)
        assert_same(outcome, twin.step(actions))
        env.action_masks()[:] = True
        deface(outcome)
        outcome = env.reset(options=reset_options)
        assert_same(outcome, twin.reset(options=reset_options))
        before, copy_before = outcome, copy.deepcopy(outcome)
    deface(outcome)


@pytest.mark.thorough
@each("way", [None, "vector_entry_point", "sync"])
@kinds
def test_batched__make_vec(kind, kwargs, way):
    """``make_vec`` gives the native batch unless told otherwise, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*is out of date")  # there is a later version
        envs = gym.make_vec(IDS[kind], num_envs=4, vectorization_mode=way, **kwargs)
        assert type(envs) is (SyncVectorEnv if way == "sync" else kind)
        again = gym.make_vec(envs.spec)
    assert type(again) is type(envs)
    assert envs.num_envs == again.num_envs == 4
    assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    _, reference = both(kind, kwargs, 4)
    for name in ("observation_space", "single_observation_space", "action_space", "metadata"):
        assert getattr(envs, name) == getattr(reference, name)
    assert envs.single_action_space == reference.single_action_space
    outcome = envs.reset(seed=0)
    assert_same(outcome, reference.reset(seed=0))
    assert envs.observation_space.contains(outcome[0])
    envs.close()
    assert envs.closed
