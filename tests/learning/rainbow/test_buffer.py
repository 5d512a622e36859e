import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sb3_contrib")

from gymnasium import spaces

from parenvs.agents.learning.rainbow.buffer import (
    RainbowBuffer,
    RainbowDictBuffer,
    check_masks,
    final_masks,
)
from parenvs.errors import ParenvsError

ACTIONS = 3


def buffer_of(size, n_envs=1, dictionary=False, **options):
    box = spaces.Box(-1e6, 1e6, (2,), np.float32)
    space = spaces.Dict({"a": box, "b": spaces.Discrete(1000)}) if dictionary else box
    kind = RainbowDictBuffer if dictionary else RainbowBuffer
    return kind(size, space, spaces.Discrete(ACTIONS), device="cpu", n_envs=n_envs, **options)


def observation(numbers, dictionary):
    """Observations that are recognised by a number each."""
    numbers = np.asarray(numbers)
    box = np.stack([numbers, -numbers], axis=1).astype(np.float32)
    return {"a": box, "b": numbers % 1000} if dictionary else box


def number(observations, i):
    """The number of the i-th observation."""
    if isinstance(observations, dict):
        found = int(observations["a"][i, 0])
        assert int(observations["b"][i]) == found % 1000
        return found
    assert observations[i, 0] == -observations[i, 1]
    return int(observations[i, 0])


class Steps:
    """Random steps, put into a buffer and kept as a list for each environment."""

    def __init__(self, buffer, rng, dictionary, ends=0.3):
        self.buffer, self.rng, self.dictionary, self.ends = buffer, rng, dictionary, ends
        self.kept = [[] for _ in range(buffer.n_envs)]
        self.clock = 0

    def add(self, count):
        n = self.buffer.n_envs
        for _ in range(count):
            state = self.clock * 10 + np.arange(n)
            self.clock += 1
            terminal = self.rng.random(n) < self.ends / 2
            truncated = ~terminal & (self.rng.random(n) < self.ends / 2)
            action, reward = self.rng.integers(ACTIONS, size=n), self.rng.normal(size=n)
            masks, next_masks = self.rng.random((2, n, ACTIONS)) < 0.5
            self.buffer.add(
                observation(state, self.dictionary),
                observation(state + 5, self.dictionary),
                action,
                reward,
                terminal | truncated,
                [{"TimeLimit.truncated": bool(x)} for x in truncated],
            )
            self.buffer.set_masks(masks, next_masks)
            for i in range(n):
                self.kept[i].append(
                    SimpleNamespace(
                        state=state[i], action=action[i], reward=reward[i], next=state[i] + 5,
                        terminal=terminal[i], over=terminal[i] or truncated[i], mask=masks[i],
                        next_mask=next_masks[i],
                    )
                )  # fmt: skip

    def joined(self, env, first, n_steps, gamma):
        """n steps, one after the other."""
        total, discount, last = 0.0, 1.0, None
        for step in self.kept[env][first : first + n_steps]:
            total, discount, last = total + discount * step.reward, discount * gamma, step
            if step.over:
                break
        return total, discount * (not last.terminal), last


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 30),
    st.integers(1, 5),
    st.booleans(),
)
@settings(max_examples=60)
def test_buffer__joins_steps(seed, n_envs, rows, count, n_steps, dictionary):
    """Every step that is still there, against going through them one by one."""
    gamma = 0.7
    buffer = buffer_of(rows * n_envs, n_envs, dictionary, n_steps=n_steps, gamma=gamma)
    steps = Steps(buffer, np.random.default_rng(seed), dictionary)
    steps.add(count)
    there = min(rows, count)
    assert buffer.size() == there
    batch = buffer.at(np.arange(there * n_envs))
    for i in range(there * n_envs):
        row, env = divmod(i, n_envs)
        first = count - 1 - (count - 1 - row) % rows if count > rows else row
        step = steps.kept[env][first]
        total, discount, last = steps.joined(env, first, n_steps, gamma)
        assert number(batch.observations, i) == step.state
        assert number(batch.next_observations, i) == last.next
        assert batch.actions[i, 0] == step.action
        assert batch.rewards[i, 0].item() == pytest.approx(total, abs=1e-5)
        assert batch.discounts[i, 0].item() == pytest.approx(discount, abs=1e-6)
        assert (batch.masks[i].numpy() == step.mask).all()
        assert (batch.next_masks[i].numpy() == last.next_mask).all()
    assert batch.rewards.shape == batch.discounts.shape == batch.weights.shape == (i + 1, 1)


def filled(rows=8, n_envs=1, count=None, **options):
    buffer = buffer_of(rows * n_envs, n_envs, **options)
    Steps(buffer, np.random.default_rng(0), False).add(rows if count is None else count)
    return buffer


def test_buffer__priorities_and_weights():
    """Against the formulas of arXiv 1511.05952."""
    buffer = filled(6, alpha=0.7)
    errors = np.array([0.0, -3.0, 0.5, 2.0, -0.1, 8.0])
    buffer.update_priorities(np.arange(6), errors)
    priority = (np.abs(errors) + 1e-6) ** 0.7
    assert buffer.tree[np.arange(6)] == pytest.approx(priority)
    probability = priority / priority.sum()
    for beta in (0.0, 0.4, 1.0):
        batch = buffer.sample(50, rng=np.random.default_rng(1), beta=beta)
        weights = (1 / (6 * probability[batch.indices])) ** beta
        assert batch.weights[:, 0].numpy() == pytest.approx(weights / weights.max(), rel=1e-5)
        assert batch.weights.max() == 1
        assert len(set(batch.indices)) > 2


def test_buffer__draws_in_proportion():
    buffer = filled(6, n_envs=2, alpha=1.0)
    errors = np.arange(12.0)
    buffer.update_priorities(np.arange(12), errors)
    rng = np.random.default_rng(0)
    drawn = np.concatenate([buffer.sample(100, rng=rng).indices for _ in range(100)])
    shares = np.bincount(drawn, minlength=12) / len(drawn)
    assert shares == pytest.approx(errors / errors.sum(), abs=0.006)
    # Stratified: of each batch, every step has about its share.
    counts = np.bincount(buffer.sample(660, rng=rng).indices, minlength=12)
    assert (np.abs(counts - 10 * errors) <= 2).all()


@pytest.mark.parametrize("prioritized", [True, False])
def test_buffer__draws_what_is_there(prioritized):
    buffer = filled(50, n_envs=3, count=4, prioritized=prioritized)
    drawn = buffer.sample(2000, rng=np.random.default_rng(0))
    assert sorted(set(drawn.indices)) == list(range(12))
    assert np.bincount(drawn.indices) == pytest.approx(np.full(12, 2000 / 12), rel=0.4)
    assert (drawn.weights == 1).all()


def test_buffer__alpha_zero_is_uniform():
    buffer = filled(5, alpha=0.0)
    buffer.update_priorities(np.arange(5), np.array([0.0, 1.0, 10.0, 100.0, 1000.0]))
    batch = buffer.sample(100, rng=np.random.default_rng(0), beta=0.5)
    assert np.bincount(batch.indices).tolist() == [20] * 5
    assert (batch.weights == 1).all()


def test_buffer__new_steps_have_the_greatest_priority_so_far():
    buffer = filled(4, alpha=0.5)
    assert buffer.tree[np.arange(4)].tolist() == [1] * 4
    buffer.update_priorities(np.array([0, 1]), np.array([-16.0, 0.25]))
    steps = Steps(buffer, np.random.default_rng(1), False)
    steps.add(1)  # overwrites the first
    assert buffer.tree[np.arange(4)] == pytest.approx([4, 0.5, 1, 1], rel=1e-5)
    buffer.update_priorities(np.array([0]), np.array([0.0]))
    steps.add(1)
    assert buffer.tree[np.arange(4)] == pytest.approx([1e-3, 4, 1, 1], rel=1e-5)


def test_buffer__all_legal_unless_told():
    """A step in the place of one with masks has none of them."""
    buffer = filled(2)
    assert not buffer.masks.all() and not buffer.next_masks.all()
    for _ in range(2):
        state = observation([1], False)
        buffer.add(state, state, np.array([0]), np.array([0.0]), np.array([False]), [{}])
    assert buffer.masks.all() and buffer.next_masks.all()


def test_buffer__episodes_that_are_broken_off():
    """After a reset in the middle of episodes, no steps are joined across it."""
    buffer = buffer_of(20, 2, n_steps=3, gamma=0.5)
    buffer.end_episodes()  # nothing there: nothing to do
    first, second = Steps(buffer, np.random.default_rng(0), False, ends=0.0), None
    first.add(3)
    terminal = np.array([True, False])
    state = observation([1, 2], False)
    buffer.add(state, state, np.zeros(2), np.ones(2), terminal, [{}, {}])
    buffer.end_episodes()
    second = Steps(buffer, np.random.default_rng(1), False, ends=0.0)
    second.add(3)
    batch = buffer.at(np.array([6, 7]))  # the step before the reset
    assert batch.rewards[:, 0].tolist() == [1, 1]
    assert batch.discounts[:, 0].tolist() == [0, 0.5]  # still terminal, and truncated
    assert buffer.at(np.array([8])).discounts.item() == 0.125


def test_buffer__pickles():
    buffer = filled(7, n_envs=2, n_steps=3)
    buffer.update_priorities(np.arange(14), np.arange(14.0))
    again = pickle.loads(pickle.dumps(buffer))
    for one, other in zip(
        buffer.sample(30, rng=np.random.default_rng(3)),
        again.sample(30, rng=np.random.default_rng(3)),
        strict=True,
    ):
        assert (one == other).all()
    assert again.greatest == buffer.greatest == 13 + 1e-6


def test_buffer__refuses():
    with pytest.raises(ValueError, match="next observations"):
        buffer_of(5, optimize_memory_usage=True, handle_timeout_termination=False)


# Masks of environments.


class Named:
    spec = SimpleNamespace(id="Odd-v3")


def test_masks__check():
    good = [np.array([1, 0, 1], dtype=np.int8), np.array([True, True, False])]
    assert check_masks(good, 3, "here").tolist() == [[True, False, True], [True, True, False]]
    for bad in (np.ones(4), np.ones((1, 3)), np.ones(0), True):
        with pytest.raises(ParenvsError, match=r"Odd-v3: .*shape \(.*should be \(3,\)"):
            check_masks([good[0], bad], 3, Named())
    with pytest.raises(ParenvsError, match=r"Odd-v3: .*allows no action"):
        check_masks([good[0], np.zeros(3)], 3, Named())
    with pytest.raises(ParenvsError, match=r"object: .*allows no action"):
        check_masks([np.zeros(3)], 3, object())


def test_masks__of_the_states_that_a_step_led_to():
    masks = np.array([[True, False, False]] * 4)
    infos = [
        {"action_mask": [0, 1, 0]},
        {"action_mask": [0, 1, 0], "TimeLimit.truncated": True},
        {"action_mask": [0, 1, 0], "TimeLimit.truncated": False},
        {},
    ]
    found = final_masks(Named(), masks, np.array([False, True, True, True]), infos)
    assert found.astype(int).tolist() == [[1, 0, 0], [0, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert (masks == [True, False, False]).all()  # the next episodes' are left alone
    for info, words in (({}, "without info"), ({"action_mask": [0] * 3}, "allows no action")):
        with pytest.raises(ParenvsError, match=f"Odd-v3: .*{words}"):
            final_masks(
                Named(), masks[:1], np.array([True]), [{**info, "TimeLimit.truncated": True}]
            )
