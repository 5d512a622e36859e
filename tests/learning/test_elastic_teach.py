"""Lessons say what value iteration says, pupils learn from them, and NumPy plays the weights."""

import elastic_toys as toys
import numpy as np
import pytest

from parenvs.agents.elastic.exact import optimal
from parenvs.agents.learning.elastic.learnt import Learnt
from parenvs.agents.learning.elastic.network import first_weights
from parenvs.errors import ParenvsError
from parenvs.tasks.elastic.game import ElasticPlanVectorEnv
from parenvs.tasks.elastic.turns import Turns

torch = pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

from parenvs.agents.elastic.policies import Rating, seen_of  # noqa: E402
from parenvs.agents.learning.elastic.teach import Lessons, teach  # noqa: E402
from parenvs.agents.learning.elastic.train import returns  # noqa: E402


@pytest.fixture(scope="module")
def problem():
    return toys.problem("wide", 12)


@pytest.fixture(scope="module")
def lessons(problem):
    return Lessons([problem, toys.problem("bulk", 12)])


def test_teach__what_is_worth_most_is_optimal(problem, lessons):
    """Playing what is worth most earns what value iteration says."""
    best, count = optimal(problem), 64
    rng = np.random.default_rng(0)
    drawn = [problem.draw(rng) for _ in range(count)]
    ends = []
    for by_lessons in (True, False):
        play, who = Turns(count, lessons.tables), np.arange(count)
        play.start(who, [0] * count, drawn)
        for t in range(problem.intervals):
            worth = np.where(play.masks() > 0, lessons.worth(play), -np.inf)
            rows = zip(
                play.nodes.tolist(), play.plan.tolist(), play.event.tolist(), play.since.tolist(),
                strict=True,
            )  # fmt: skip
            told = np.array([best.choose((t, *row), 0, 0) for row in rows])
            assert worth[who, told] == pytest.approx(worth.max(axis=1), abs=5e-3)
            play.step(who, worth.argmax(axis=1) if by_lessons else told)
        ends.append(play.total / problem.ideal)
    assert ends[0].mean() == pytest.approx(ends[1].mean(), abs=2e-3)


@pytest.mark.slow
def test_teach__pupils_learn(problem, lessons):
    value = {
        samples: returns(Learnt(teach(lessons, 0, samples).arrays()), range(200), problem=problem)[
            "value"
        ].mean()
        for samples in (1, 20_000)
    }
    assert value[20_000] > value[1] + 0.01
    assert value[20_000] < optimal(problem).value + 0.03


def test_learnt__rates_as_the_torch_network(problem):
    torch.manual_seed(0)
    network = Rating()
    batch = ElasticPlanVectorEnv(32, problem=problem)
    observation, info = batch.reset(seed=0)
    for _ in range(5):
        masks = info["action_mask"] > 0
        with torch.no_grad():
            scores = network(seen_of({k: torch.as_tensor(x) for k, x in observation.items()}))
        expected = np.where(masks, scores.numpy(), -np.inf).argmax(axis=1)
        plans = Learnt(network.arrays()).plans(observation, masks)
        assert (plans == expected).all()
        observation, _, _, _, info = batch.step(plans)


def test_learnt__files(tmp_path):
    weights = first_weights(np.random.default_rng(0))
    path = tmp_path / "weights.npz"
    np.savez(path, **weights)
    assert (Learnt.load(path).weights["own"] == weights["own"]).all()
    wrong = {
        "must be named": {key: x for key, x in weights.items() if key != "own"},
        "'own' must be finite numbers of the shape": {**weights, "own": np.full((2, 2), 1.0)},
        "'prior' must be finite": {**weights, "prior": np.full(13, np.nan, dtype=np.float32)},
    }
    for words, content in wrong.items():
        np.savez(path, **content)
        with pytest.raises(ParenvsError, match=words):
            Learnt.load(path)
    np.savez(path, **{**weights, "own": np.array([object()])})
    with pytest.raises(ParenvsError, match="no file of weights"):
        Learnt.load(path)
    path.write_bytes(b"no archive")
    with pytest.raises(ParenvsError, match="no file of weights"):
        Learnt.load(path)
