from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from cases import each

from parenvs.agents.evaluation.evaluate_set import SetEvaluation, evaluate_set
from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.play import Player
from parenvs.agents.learning.trainer import train
from parenvs.cli.app import app
from parenvs.core.sets import set_of, validation_of
from parenvs.datasets.pipeline.problems import load_set
from parenvs.errors import ParenvsError

pytestmark = pytest.mark.thorough


def last(_, mask):
    """The last legal action."""
    return np.flatnonzero(mask)[-1]


def test_evaluate_set__as_single_environments():
    """What each problem is worth, by itself, in the order of the set."""
    found = evaluate_set(last, "plan-outside", first=70)
    problems = load_set("plan-outside")[:70]
    assert found.problems == tuple(problem.name for problem in problems)
    env = gym.make("PipelinePlan-v0", instance="plan-outside")
    for k in (0, 3, 63, 64, 69):
        _, info = env.reset(options={"instance": problems[k].name})
        done = False
        while not done:
            _, reward, done, _, info = env.step(last(None, info["action_mask"]))
        assert found.scores[0, k] == info["reference"] / info["cost"]
        assert found.gaps[0, k] == pytest.approx(info["gap"], rel=1e-9, abs=1e-12)
        assert info["cost"] == pytest.approx(env.unwrapped.problem.bubble_free / reward)
    assert found.over == "problems"
    assert found.interval[0] < found.score < found.interval[1]


@pytest.mark.slow
def test_evaluate_set__planners_and_runs(tmp_path):
    """The exact planner has no gap, and it is better than another with certainty."""
    best = evaluate_set(["exact", "exact"], "plan-test", "cnn", first=12)
    other = evaluate_set([last, "even"], "plan-test", "cnn", first=12)
    assert best.scores.shape == other.scores.shape == (2, 12)
    assert best.gaps.max() <= 1e-12  # below 0 where the optimum is that over points alone
    assert (best.optimal, best.coverage, best.over) == (1.0, 1.0, "runs")
    assert best.improvement_over(other)[0] > 0.9 > 0.1 > other.improvement_over(best)[0]
    assert replace(best, env_id="PipelinePlan-v0").improvement_over(other)[0] > 0.9  # the set's own
    with pytest.raises(ParenvsError, match="not alike"):
        replace(best, problems=best.problems[::-1]).improvement_over(other)
    assert "2 runs of 12 problems" in str(best)
    other.save(tmp_path / "scores.json")
    again = SetEvaluation.load(tmp_path / "scores.json")
    assert np.array_equal(again.scores, other.scores, equal_nan=True)
    assert (again.problems, again.score) == (other.problems, other.score)
    (tmp_path / "scores.json").write_text(
        '{"set": "plan-test", "problems": ["x"], "scores": [[1]]}'
    )
    with pytest.raises(ParenvsError, match=r"scores\.json: not an evaluation \('x' is no problem"):
        SetEvaluation.load(tmp_path / "scores.json")


@each(
    ("arguments", "words"),
    [
        ((last, "plan-tset"), "unknown set 'plan-tset' .did you mean 'plan-test'"),
        ((last, "plan-test", "cnm"), "plan-test has no problem of family 'cnm'"),
        ((3,), "a model needs predict"),
        (("nobody", "plan-test", "cnn", True, 0, 1), "unknown agent 'nobody'"),
    ],
)
def test_evaluate_set__errors(arguments, words):
    with pytest.raises(ParenvsError, match=words):
        evaluate_set(*arguments)


FEW = {"envs": 16, "turns": 8, "passes": 1, "turns_a_step": 64}


def config_of(env_id, env_kwargs, steps=128, **settings):
    return TrainConfig(
        env_id=env_id, env_kwargs=env_kwargs, agent="ppo", steps=steps, settings={**FEW, **settings}
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on drawn problems: (folder, result, policy)."""
    folder = tmp_path_factory.mktemp("runs") / "drawn"
    done = train(config_of("parenvs/PipelinePlan-v0", {"family": "cnn"}), folder)
    return folder, done.result, Player(done.algorithm, "PipelinePlan-v0")


def test_evaluate_set__command(run, capsys, tmp_path):
    folder, _, model = run
    scores = tmp_path / "scores.json"

    def call(*arguments):
        app(list(map(str, arguments)), standalone_mode=False)
        return capsys.readouterr().out

    said = call(
        "evaluate", folder, "--set", "plan-validation", "--family", "cnn",
        "--against", folder, "--out", scores,
    )  # fmt: skip
    assert "probability of improvement" in said
    assert "50.0%" in said
    found = SetEvaluation.load(scores)
    again = evaluate_set(model, "plan-validation", "cnn")
    assert np.array_equal(found.scores, again.scores, equal_nan=True)
    assert f"{found.score:.4f}" in said
    for arguments, words in (
        (("evaluate", folder), "add --set plan-test"),
        (("evaluate", folder, folder), "options of --set"),
        (("evaluate", folder, "--set", "plan-test", "--episodes", 3), "plays each problem once"),
        (("train",), "a model is needed, or a task, which generates problems"),
        (("train", "--task", "pipeline", "--cluster", "B"), "--cluster is not an option"),
    ):
        with pytest.raises(ParenvsError, match=words):
            call(*arguments)


@pytest.mark.slow
@each("name, family", [("hybrid-outside", "gpt"), ("hetero-8-test", None)])
def test_evaluate_set__of_rows(name, family):
    """The score is the best cost known over the plan's; of unequal servers it may exceed 1."""
    played, found = set_of(name), evaluate_set(last, name, family, first=3)
    env = gym.make(played.kind.env_id, **played.env_kwargs(family))
    for k in range(3):
        _, info = env.reset(seed=0 if k == 0 else None)
        assert info["instance"] == found.problems[k]
        done = False
        while not done:
            _, _, done, _, info = env.step(last(None, info["action_mask"]))
        assert found.scores[0, k] == info["reference"] / info["cost"]
        assert found.gaps[0, k] == pytest.approx(info["gap"])
        assert info["bound"] <= info["reference"] * (1 + 1e-9)
    assert found.reference in str(found)


def test_evaluate_set__problems_without_a_plan_count_in_coverage():
    """An illegal action ends an episode: no score, and no part in the mean."""
    played = 0

    def sometimes(_, mask):
        nonlocal played
        played += 1
        return -1 if played == 1 else last(None, mask)

    found = evaluate_set(sometimes, "plan-outside", first=10)
    legal = evaluate_set(last, "plan-outside", first=10)
    assert found.coverage == 0.9
    assert np.isnan(found.scores[0, 0]) and found.gaps[0, 0] == np.inf
    assert found.score == pytest.approx(legal.scores[0, 1:].mean())


@each(
    ("env_id", "kwargs", "judged_on"),
    [
        ("HybridPlan-v2", {}, ("hybrid-validation", None)),
        ("HybridPlan-v2", {"instance": "hetero-32"}, ("hetero-32-validation", None)),
        ("HybridPlan-v2", {"instance": "hetero-8"}, ("hetero-8-validation", None)),
        ("IntraOpSharding-v2", {}, ("intra-op-validation", "mesh")),
        ("PartitionPlan-v2", {"instance": "partition-train"}, ("partition-validation", None)),
        ("ElasticPlan-v2", {}, ("elastic-validation", None)),
    ],
)
def test_validation__sets_of_environments(env_id, kwargs, judged_on):
    assert validation_of(env_id, kwargs)[:2] == judged_on


@each("task, env_id", [("hybrid", "HybridPlan-v2"), ("elastic", "ElasticPlan-v2")])
def test_train__plays_the_environment_of_a_task(monkeypatch, task, env_id):
    asked = []

    def stop(config, *others):
        asked.append((config.env_id, config.env_kwargs))
        raise KeyboardInterrupt

    monkeypatch.setattr("parenvs.agents.learning.trainer.train", stop)
    with pytest.raises(SystemExit, match="130"):
        app(["train", "--task", task], standalone_mode=False)
    assert asked == [(env_id, {})]
