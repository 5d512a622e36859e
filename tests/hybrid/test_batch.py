"""The batched ``HybridPlan-v0``: ``SyncVectorEnv`` of single ones, to the last bit."""

import numpy as np
import pytest
from batches import assert_same, drawn, forks, modes
from batches import both as both_of
from cases import slow

from parenvs.tasks.hybrid.game import HybridPlanVectorEnv
from parenvs.tasks.hybrid.turns import episodes

CASES = {
    "drawn": {"pool": 7},
    "named": {"instance": "hybrid/7"},
    "a family of a set": {"instance": "hetero-8-test", "family": "spread"},
    "hetero": {"instance": "hetero-8", "pool": 4},
    "half servers": {
        "instance": "gpt-1.5b", "cluster": "6x8:v100", "batch": 192, "stage_devices": 4
    },
    "free order, small servers": {
        "instance": "gpt-1.5b", "cluster": "3x4:v100", "batch": 96, "server_order": "free"
    },
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case", ["drawn", "hetero", *slow(*(x for x in CASES if x not in ("drawn", "hetero")))]
)
@modes
def test_batch__equals_single_environments(case, mode):
    batched, single = both_of(HybridPlanVectorEnv, CASES[case], 5, mode)
    rng, over = np.random.default_rng(0), np.zeros(5, dtype=bool)
    assert_same(batched.reset(seed=3), single.reset(seed=3))
    ended = 0
    for turn in range(70):
        if over.any() and mode == "Disabled":
            assert_same(
                *(env.reset(options={"reset_mask": over.copy()}) for env in (batched, single))
            )
        outcome = batched.step(actions := drawn(batched.action_masks(), rng, 0.01))
        assert_same(outcome, single.step(actions))
        over = outcome[2]
        ended += over.sum()
        if turn % 10 == 0:
            for index in range(5):
                assert batched.plan(index) == single.envs[index].unwrapped.plan()
            assert batched.get_attr("instance") == single.get_attr("instance")
    assert ended > 5
    assert batched.observation_space.contains(outcome[0])


@pytest.mark.slow
def test_batch__completable():
    options = {"instance": "llama2-7b", "cluster": "2x8:a100", "batch": 32, "mask": "completable"}
    batched, single = both_of(HybridPlanVectorEnv, options, 3, "NextStep")
    rng = np.random.default_rng(0)
    assert_same(batched.reset(seed=3), single.reset(seed=3))
    for _ in range(15):
        actions = drawn(batched.action_masks(), rng, 0.0)
        assert_same(batched.step(actions), single.step(actions))


def test_batch__options():
    batched, single = both_of(HybridPlanVectorEnv, {"pool": 5}, 3, "NextStep")
    rng = np.random.default_rng(0)
    assert_same(batched.reset(seed=3), single.reset(seed=3))
    options = {"instance": "hybrid/8", "reset_mask": np.array([True, False, True])}
    assert_same(*(env.reset(options=dict(options)) for env in (batched, single)))
    for _ in range(30):
        actions = drawn(batched.action_masks(), rng, 0.0)
        assert_same(batched.step(actions), single.step(actions))


def test_batch__views_hold_until_the_next_call():
    batched = HybridPlanVectorEnv(4, copy=False, pool=3)
    observation, _ = batched.reset(seed=0)
    copied = {key: value.copy() for key, value in observation.items()}
    other = HybridPlanVectorEnv(4, pool=3)
    assert_same(copied, other.reset(seed=0)[0])


@pytest.mark.thorough
@forks
def test_batch__copies_go_on_alike(fork):
    batched, rng = HybridPlanVectorEnv(4, instance="hetero-8", pool=3), np.random.default_rng(0)
    batched.reset(seed=0)
    for turn in range(40):
        if turn == 7:
            other = fork(batched)
        actions = drawn(batched.action_masks(), rng, 0.02)
        if turn >= 7:
            assert_same(other.action_masks(), batched.action_masks())
            assert_same(other.step(actions), batched.step(actions))
            assert other.plan(1) == batched.plan(1)
        else:
            batched.step(actions)


def test_batch__forgets_problems_that_are_played_no_more(monkeypatch):
    monkeypatch.setattr(episodes, "KEPT", 2)
    small, all_kept = (HybridPlanVectorEnv(3, pool=9, instance=x) for x in ("hybrid", None))
    monkeypatch.setattr(all_kept.game.episodes, "_forget", lambda: None)
    rng = np.random.default_rng(0)
    assert_same(small.reset(seed=3), all_kept.reset(seed=3))
    for _ in range(120):
        actions = drawn(small.action_masks(), rng, 0.05)
        assert_same(small.step(actions), all_kept.step(actions))
    counts = [len(env.game.episodes.slots.settings) for env in (small, all_kept)]
    assert counts[0] <= 5 < counts[1]
