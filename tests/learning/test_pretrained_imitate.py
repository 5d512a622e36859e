import dataclasses
import json
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import killed_writers
import numpy as np
import pytest

pytest.importorskip("sb3_contrib")

from parenvs.agents.learning.play import one_thread
from parenvs.agents.learning.pretrained import pretrain
from parenvs.agents.learning.pretrained.examples import draw_optimal_plans, examples_of
from parenvs.agents.learning.pretrained.imitate import Recipe, Trainer
from parenvs.agents.learning.pretrained.policy import PlanPolicy
from parenvs.errors import ParenvsError

QUICK = Recipe(parts=3, part=2, passes=4)


def geometric_mean(policy, episodes):
    return np.exp(np.log(policy.lengths(episodes)).mean())


@pytest.fixture(scope="module")
def part():
    return draw_optimal_plans(7, 0, 12)


@pytest.mark.thorough
def test_optimal_plans__are_shortest(part):
    episodes, batch = part.episodes, part.episodes.batch
    assert np.allclose(batch.lengths(part.cuts, part.units), part.lengths)
    rng = np.random.default_rng(0)

    def choose(turn):
        return np.where(turn.masks, rng.random(turn.masks.shape), -1).argmax(axis=1)

    for _ in range(30):
        assert (batch.lengths(*episodes.play(choose)) >= part.lengths * (1 - 1e-9)).all()
    again = draw_optimal_plans(7, 0, 12)
    assert np.array_equal(again.cuts, part.cuts)
    assert not np.array_equal(draw_optimal_plans(7, 1, 12).cuts, part.cuts)


def test_optimal_plans__are_kept(tmp_path):
    file = tmp_path / "folder" / "part.npz"
    made = draw_optimal_plans(7, 1, 5, file=file)
    before = file.read_bytes()
    kept = draw_optimal_plans(7, 1, 5, file=file)
    assert file.read_bytes() == before
    for name in ("cuts", "units", "lengths"):
        assert np.array_equal(getattr(kept, name), getattr(made, name))


def test_examples__are_the_optimal_plans(part):
    points, units = examples_of(part)
    assert (points.kind, units.kind) == ("points", "units")
    choices = int((part.episodes.batch.stages - 1).sum())
    for some in (points, units):
        assert len(some.right) == len(some.count) == len(some.context) == choices
        assert len(some.rows) == int(some.count.sum())
        assert (some.right < some.count).all()
        assert (some.right >= 0).all()
    # Played by the ranks in the examples, the plans are the optimal ones.
    made = {"points": 0, "units": 0}

    def choose(turn):
        some = points if turn.kind == "points" else units
        at = np.arange(made[turn.kind], made[turn.kind] + len(turn.episodes))
        made[turn.kind] += len(turn.episodes)
        count = some.count.numpy()
        first = np.cumsum(count) - count
        rows = np.concatenate([np.arange(first[i], first[i] + count[i]) for i in at])
        order = np.concatenate([np.flatnonzero(turn.owner == k) for k in range(len(turn.masks))])
        assert np.array_equal(some.rows[rows], turn.rows)
        columns = [
            np.flatnonzero(turn.masks[turn.owner[k]])[some.right[at[j]]]
            for j, k in enumerate(order)
        ]
        return np.array(columns)[np.argsort(order)]

    cuts, devices = part.episodes.play(choose)
    behind = np.arange(7) >= part.episodes.batch.stages[:, None] - 1
    assert np.array_equal(np.where(behind, 0, cuts), part.cuts)
    assert np.array_equal(np.where(behind, 0, devices), part.units)


@pytest.mark.slow
def test_imitation__learns_the_optimal_plans(part):
    trainer, examples = Trainer(Recipe(parts=1, passes=150)), examples_of(part)
    before = geometric_mean(trainer.policy, part.episodes)
    with one_thread():
        losses = [trainer.imitate(examples) for _ in range(150)]
    assert losses[-1] < 0.4 * losses[0]
    after = geometric_mean(trainer.policy, part.episodes)
    best = np.exp(np.log(part.lengths).mean())
    assert after < best + 0.2 * (before - best)


def test_loss__the_same_as_one_choice_at_a_time(part):
    """The mean of -ln(softmax of the legal rows), for points and for units."""
    trainer, examples = Trainer(QUICK), examples_of(part)
    policy, found = trainer.policy, {"points": [], "units": []}

    def choose(turn):
        optimal = part.cuts if turn.kind == "points" else part.units
        columns = optimal[turn.episodes, len(turns) // 2]
        turns.append(turn)
        ratings = policy.ratings(turn).astype(float)
        for row, column in zip(ratings[turn.owner], columns, strict=True):
            found[turn.kind].append(np.log(np.exp(row).sum()) - row[column])
        return columns

    turns = []
    part.episodes.play(choose)
    assert trainer.imitate(examples) == pytest.approx(
        np.mean(found["points"]) + np.mean(found["units"]), rel=1e-5
    )


def train(recipe, folder, **options):
    lines = []
    log = pretrain.pretrain(recipe, folder, say=lines.append, **options)
    return log, lines


def threads(workers, context):
    """What solves problems in threads instead of processes, which import torch first."""
    return ThreadPoolExecutor(workers)


@pytest.fixture
def short(part, monkeypatch):
    """Runs look three times at problems that are solved already; one process does all."""
    monkeypatch.setattr(pretrain, "ProcessPoolExecutor", threads)
    monkeypatch.setattr(pretrain, "validation", lambda: part)
    monkeypatch.setattr(pretrain, "LOOKS", 3)


@pytest.fixture(scope="module")
def whole(part, tmp_path_factory):
    """A run that nothing interrupts: its log, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain, "ProcessPoolExecutor", threads)
        patch.setattr(pretrain, "validation", lambda: part)
        patch.setattr(pretrain, "LOOKS", 3)
        return train(QUICK, folder)[0], folder


@pytest.mark.slow
def test_pretrain__the_same_with_any_number_of_workers(part, whole, short, tmp_path, monkeypatch):
    log, folder = whole
    monkeypatch.setattr(pretrain, "ProcessPoolExecutor", ProcessPoolExecutor)
    assert train(QUICK, tmp_path, workers=2)[0]["points"] == log["points"]
    assert [point["step"] for point in log["points"]] == [4, 8, 12]
    assert log == json.loads((folder / "plan-policy.json").read_text())
    assert Recipe(**log["recipe"]) == QUICK
    assert sorted(x.name for x in folder.iterdir()) == ["plan-policy.json", "plan-policy.npz"]
    with np.load(folder / "plan-policy.npz") as weights:
        policy = PlanPolicy(dict(weights))
    found = pretrain.ratios(policy, part, 4)
    assert (found >= 1 - 1e-9).all()
    last = log["points"][-1]
    greedy = policy.lengths(part.episodes) / part.lengths
    assert last["greedy_mean"] == pytest.approx(np.exp(np.log(greedy).mean()), abs=1e-5)
    assert np.allclose(pretrain.ratios(policy, part), greedy)
    assert (found <= greedy + 1e-12).all()


@pytest.mark.thorough
@pytest.mark.parametrize("stop", [pytest.param("solving", marks=pytest.mark.slow), "training"])
def test_pretrain__goes_on_after_an_interruption(whole, short, tmp_path, stop):
    log, folder = whole

    def interrupted(line):
        if ("solved" in line) == (stop == "solving") and (stop == "solving" or "step 8 " in line):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain.pretrain(QUICK, tmp_path, say=interrupted)
    assert not (tmp_path / "plan-policy.npz").exists()
    with pytest.raises(ParenvsError, match=r"checkpoint\.pt is of another recipe"):
        train(dataclasses.replace(QUICK, seed=1), tmp_path)
    for name, words in (("checkpoint.pt", "damaged"), ("plans/0000.npz", "damaged")):
        whole_file = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole_file[:-9])
        with pytest.raises(ParenvsError, match=rf"{name}: {words} .*; remove it"):
            train(QUICK, tmp_path)
        (tmp_path / name).write_bytes(whole_file)
    again, _ = train(QUICK, tmp_path)
    assert again["points"] == log["points"]
    weights = [np.load(place / "plan-policy.npz") for place in (folder, tmp_path)]
    for name in weights[0]:
        assert np.array_equal(weights[0][name], weights[1][name])


@pytest.mark.thorough
def test_pretrain__second_writers_are_refused(part, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "validation", lambda: part)
    folder = tmp_path / "network"
    with killed_writers.holding(folder) as pid:
        with pytest.raises(ParenvsError, match=rf"network: process {pid} on .* is writing to it"):
            train(QUICK, folder)
        assert [path.name for path in folder.iterdir()] == [".lock"]
