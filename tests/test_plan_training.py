import dataclasses
import json

import numpy as np
import pytest

pytest.importorskip("sb3_contrib")

import torch

from parenvs.agents import pretrain
from parenvs.agents.plan_labels import labelled
from parenvs.agents.plan_policy import Episodes, PlanPolicy
from parenvs.agents.plan_training import (
    Choices,
    Recipe,
    Trainer,
    by_kind,
    fresh,
    lesson,
    lessons,
    train,
)
from parenvs.agents.training_env import one_thread

QUICK = Recipe(parts=3, part=24, passes=40, iterations=10, problems=16, samples=8, minibatch=256)


def greedy(policy):
    def choose(kind, rows, context, masks, _):
        return policy.ratings(kind, rows, context, masks).argmax(axis=1)

    return choose


def geometric_mean(policy, episodes):
    lengths = episodes.batch.lengths(*episodes.play(greedy(policy)))
    return np.exp(np.log(lengths).mean())


@pytest.fixture(scope="module")
def part():
    return labelled(7, 0, 20)


def test_labels__are_shortest(part):
    episodes, batch = part.episodes, part.episodes.batch
    assert np.allclose(batch.lengths(part.cuts, part.units), part.lengths)
    rng = np.random.default_rng(0)

    def choose(kind, rows, context, masks, active):
        return np.where(masks, rng.random(masks.shape), -1).argmax(axis=1)

    for _ in range(30):
        assert (batch.lengths(*episodes.play(choose)) >= part.lengths * (1 - 1e-9)).all()
    again = labelled(7, 0, 20)
    assert np.array_equal(again.cuts, part.cuts)
    assert not np.array_equal(labelled(7, 1, 20).cuts, part.cuts)


def test_lessons__are_the_labels(part):
    points, units = lessons(part)
    assert (points.kind, units.kind) == ("points", "units")
    choices = int((part.episodes.batch.stages - 1).sum())
    for some in (points, units):
        assert len(some.actions) == len(some.count) == choices
        assert len(some.rows) == int(some.count.sum())
        assert (some.actions < some.count).all()
        assert (some.actions >= 0).all()
    # Played by the ranks in the lessons, the plans are the labels.
    made = {"points": 0, "units": 0}

    def choose(kind, rows, context, masks, active):
        some = points if kind == "points" else units
        at = made[kind]
        made[kind] += len(active)
        chosen = some.take(torch.arange(at, at + len(active)))
        assert np.array_equal(chosen.episodes.numpy(), active)
        assert np.array_equal(chosen.rows.numpy(), rows[masks])
        return chosen.columns(masks)

    cuts, devices = part.episodes.play(choose)
    behind = np.arange(7) >= part.episodes.batch.stages[:, None] - 1
    assert np.array_equal(np.where(behind, 0, cuts), part.cuts)
    assert np.array_equal(np.where(behind, 0, devices), part.units)


def test_choices__take_and_join(part):
    points, _ = lessons(part)
    order = torch.randperm(len(points.count))
    some, rest = points.take(order[:5]), points.take(order[5:])
    joined = Choices.join([some, rest])
    back = joined.take(torch.argsort(order))
    for field in dataclasses.fields(Choices):
        mine, theirs = getattr(back, field.name), getattr(points, field.name)
        assert mine == theirs if field.name in ("kind", "log_probs") else torch.equal(mine, theirs)
    assert [x.kind for x in by_kind([some, rest])] == ["points"]


def test_imitation__learns_the_labels(part):
    trainer, examples = Trainer(QUICK), lessons(part)
    before = geometric_mean(trainer.policy, part.episodes)
    with one_thread():
        losses = [trainer.imitate(examples, step / 150) for step in range(150)]
    assert losses[-1] < 0.4 * losses[0]
    after = geometric_mean(trainer.policy, part.episodes)
    best = np.exp(np.log(part.lengths).mean())
    assert after < best + 0.2 * (before - best)


def test_improvement__by_comparing_plans():
    """From a network that knows nothing; problems that it has not seen."""
    recipe = dataclasses.replace(QUICK, learning_rate=3e-3)
    trainer, held_out = Trainer(recipe), fresh(dataclasses.replace(QUICK, problems=60), 99)
    before = geometric_mean(trainer.policy, held_out)
    with one_thread():
        for number in range(recipe.iterations):
            trainer.improve(fresh(recipe, number), number)
    assert geometric_mean(trainer.policy, held_out) < 0.85 * before


def test_improvement__equal_plans_teach_nothing(part):
    """A problem with one plan only has no advantage and changes nothing but the entropy's pull."""
    trainer = Trainer(dataclasses.replace(QUICK, entropy=0.0, samples=1))
    before = trainer.network.weights()
    trainer.improve(part.episodes, 0)
    for key, value in trainer.network.weights().items():
        assert np.array_equal(value, before[key])


def test_train__the_same_again():
    recipe = dataclasses.replace(QUICK, parts=2, part=6, passes=3, iterations=2, problems=4)
    steps = []
    policies = [
        train(recipe, lambda trainer, phase, step, figures: steps.append((phase, step)), workers)
        for workers in (1, 2)
    ]
    for key, value in policies[0].weights.items():
        assert np.array_equal(value, policies[1].weights[key])
    assert steps[:8] == [("imitate", k) for k in range(1, 7)] + [("improve", 1), ("improve", 2)]


def test_problems__of_training_differ(part):
    recipe = dataclasses.replace(QUICK, problems=3)
    one, two = fresh(recipe, 0), fresh(recipe, 1)
    assert not np.array_equal(one.batch.seconds, two.batch.seconds)
    assert np.array_equal(one.batch.seconds, fresh(recipe, 0).batch.seconds)
    assert len(lesson(dataclasses.replace(QUICK, part=2), 0)) == 2
    assert isinstance(one, Episodes)


def test_pretrain__keeps_the_network_that_does_best(part, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "validation", lambda: part)
    monkeypatch.setattr(pretrain, "EVERY", {"imitate": 2, "improve": 1})
    recipe = dataclasses.replace(QUICK, parts=2, part=6, passes=4, iterations=2, problems=4)
    lines = []
    log = pretrain.pretrain(recipe, tmp_path, say=lines.append)
    assert log == json.loads((tmp_path / "plan-policy.json").read_text())
    assert Recipe(**log["recipe"]) == recipe
    points = log["points"]
    assert [(p["phase"], p["step"]) for p in points] == [
        ("imitate", 2), ("imitate", 4), ("imitate", 6), ("imitate", 8), ("improve", 1),
        ("improve", 2),
    ]  # fmt: skip
    assert len(lines) == len(points)
    assert log["mean"] == min(p["mean"] for p in points)
    with np.load(tmp_path / "plan-policy.npz") as weights:
        found = pretrain.ratios(PlanPolicy(dict(weights)), part)
    assert np.exp(np.log(found).mean()) == pytest.approx(log["mean"], abs=1e-4)
    assert (found >= 1 - 1e-9).all()
