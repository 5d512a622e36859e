"""Bounds of what decisions can come to, against all completions; figures on classes."""

import itertools

import numpy as np
import pytest

from parenvs.tasks.partition.drawn.outlook import CLASS, Outlook, fill, logarithmic
from parenvs.tasks.partition.load import load_partitioning

OPEN = -1


@pytest.fixture(scope="module")
def lstm():
    return Outlook.of(
        load_partitioning("big-lstm", "1x8:v100", reward="step_time", memory_limit=2e9)
    )


@pytest.fixture(scope="module")
def vgg():
    options = {"micro_batch": 4, "micro_batches": 4, "recompute": "full", "memory_limit": "device"}
    return Outlook.of(load_partitioning("vgg-19", "2x4:v100", reward="step_time", **options))


def legal_plans(outlook):
    """All decisions that partition no two classes that exclude each other, (n, K)."""
    count = len(outlook.gain)
    plans = np.array(list(itertools.product((0, 1), repeat=count)))
    clash = np.einsum("nk,kl,nl->n", plans, outlook.rivals, plans)
    return plans[clash == 0]


def test_look__bounds_all_completions(lstm):
    plans = legal_plans(lstm)
    peaks = np.array([lstm.problem.peak(lstm.space.chosen(plan)) for plan in plans])
    returns = plans @ lstm.gain
    rng, tight = np.random.default_rng(0), 0
    for _ in range(60):
        known = np.where(rng.random(len(lstm.gain)) < 0.4, plans[rng.integers(len(plans))], OPEN)
        for k in np.flatnonzero(known == 1):
            known[lstm.excluded[k]] = 0
        open_ = np.flatnonzero(known == OPEN)
        if not open_.size:
            continue
        look = lstm.look(known, open_[0])
        for choice in (0, 1):
            after = look.after[choice]
            assert after[open_[0]] == choice
            found = ((plans == after) | (after == OPEN)).all(axis=1)
            assert found.any()
            assert look.least[choice] <= peaks[found].min() * (1 + 1e-12)
            earned = (after == 1) @ lstm.gain
            assert earned + look.gain[choice] >= returns[found].max() - 1e-12
            tight += look.least[choice] >= peaks[found].min() * (1 - 1e-9)
            tight += earned + look.gain[choice] <= returns[found].max() + 1e-9
        before = np.where(known == 1, 1, 0)
        assert look.held <= lstm.problem.peak(lstm.space.chosen(before)) * (1 + 1e-12)
    assert tight > 30  # the bounds are worth something


def test_look__one_open_class_is_exact(vgg):
    """With one class left the most that it can add is what it saves, or nothing."""
    for k in range(len(vgg.gain)):
        known = np.zeros(len(vgg.gain), dtype=np.int64)
        known[[k, (k + 1) % len(known)]] = OPEN
        other = (k + 1) % len(known)
        look = vgg.look(known, other)
        assert look.gain[0] == pytest.approx(max(vgg.gain[k], 0.0), abs=1e-12)


def test_outlook__watches_the_fullest_moment_of_the_replicated_step(vgg):
    replicated = vgg.problem.footprint.memory(np.zeros(len(vgg.problem.classes), dtype=bool))
    assert vgg.moments[0] == replicated.at
    assert vgg.whole.max() == pytest.approx(replicated.peak, rel=1e-12)


def test_outlook__figures(vgg):
    """Against what the problem says of each class."""
    problem, classes = vgg.problem, vgg.space.classes
    figures = dict(zip(CLASS, vgg.figures.T, strict=True))
    gain = problem.gain_seconds[classes] / problem.replicate_seconds
    assert np.allclose(figures["seconds"], gain)
    assert np.allclose(vgg.figures[:, :2], vgg.space.stakes[:-1, :2])
    at = problem.footprint.saved_at(int(vgg.moments[0]))
    assert np.allclose(figures["memory"], at.saved[classes] / at.whole)
    images = problem.chosen({"images": 0})[classes]
    assert np.array_equal(figures["batch"].astype(bool), images)
    assert not figures["there"].any()
    every = np.ones(len(classes), dtype=bool)
    seen = vgg.described(np.array([0, 3]), every)
    assert (seen[:, -1] == 1).all()
    rivals = list(vgg.space.rivals[3])
    dims = CLASS.index("excluded_dimensions")
    assert seen[1, dims] == pytest.approx(min(figures["dimensions"][rivals].sum(), 1), rel=1e-6)
    assert not vgg.described(np.array([3]), ~every)[0, dims:-1].any()


def test_figures__of_bytes_and_shares():
    assert [fill(x, 8e9) for x in (8e9, 128e9, 1e15, 0.5e9, 0)] == [0, 1, 1, -1, -1]
    assert logarithmic(1) == 1
    assert logarithmic(-1e-3) == pytest.approx(-0.5)
    assert logarithmic(0) == logarithmic(1e-9) == 0
