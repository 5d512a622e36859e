import json

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("sb3_contrib")

from sb3_contrib import MaskablePPO

from parenvs.agents.chain import train as plan_rl
from parenvs.agents.chain.policy import ChainPolicy
from parenvs.agents.chain.train import ENVS, LOG, MODEL, ChainRun, train
from parenvs.agents.pretrained import exam as plan_exam
from parenvs.agents.pretrained.exam import Exam, at_random, exam, greedy, summary
from parenvs.agents.rainbow.algorithm import Rainbow
from parenvs.agents.vec_env import make_env, one_thread
from parenvs.datasets.instance_sets import load_set
from parenvs.errors import ParenvsError
from parenvs.pipeline.points import PointSpace


@pytest.fixture(scope="module")
def few():
    return exam(count=8)


@pytest.fixture
def small(monkeypatch):
    """Settings for runs of a second; 512 steps are a rollout of PPO."""
    ppo = {**plan_rl.ppo_settings(), "n_steps": 8, "batch_size": 256, "n_epochs": 1}
    rainbow = {"buffer_size": 1024, "learning_starts": 256, "batch_size": 32, "device": "cpu"}
    monkeypatch.setattr(plan_rl, "ppo_settings", lambda: ppo)
    monkeypatch.setattr(plan_rl, "rainbow_settings", lambda: rainbow)


def test_exam__is_what_the_environment_pays(few):
    """Random plans, played again in the environment: same masks, same lengths."""
    cuts, units = few.play(at_random(np.random.default_rng(0)))
    ratios = few.ratios(at_random(np.random.default_rng(0)))
    for row, problem in enumerate(load_set("plan-validation")[:8]):
        env = gym.make("PipelinePlan-v0", instance=problem.name)
        env.reset()
        for point, unit in zip(cuts[row], units[row] + 128, strict=True):
            for action in (int(point), int(unit)):
                _, reward, over, *_ = env.step(action)
            if over:
                break
        assert over
        assert ratios[row] == pytest.approx(1 / reward / few.lengths[row])
    assert (ratios >= 1 - 1e-9).all()


def test_exam__shows_what_the_environment_shows(few):
    names, shown = [p.name for p in load_set("plan-validation")[:8]], []

    def choose(seen, masks):
        shown.append((seen, masks))
        return masks.argmax(axis=1)

    few.play(choose)
    for row in (0, 5):
        env = gym.make("PipelinePlan-v0", instance=names[row])
        observation, info = env.reset()
        over, number = False, 0
        while not over:
            active = np.flatnonzero(few.batch.stages - 1 > number // 2)
            seen, masks = shown[number]
            place = active.tolist().index(row)
            for key, value in observation.items():
                assert np.array_equal(seen[key][place], value), key
            assert np.array_equal(masks[place], info["action_mask"].astype(bool))
            observation, _, over, _, info = env.step(int(masks[place].argmax()))
            number += 1


def test_exam__optima_and_the_even_cut(few):
    assert (few.even() >= 0.999).all()  # the even cut may cut between points
    found = summary(np.array([1.0, 1.2, np.inf, 1.1]))
    assert found == {"median": 1.1, "p95": pytest.approx(1.19), "illegal": 0.25}


def problems_of(way, episodes):
    env, rng = ChainRun(way=way).make_env(), np.random.default_rng(0)
    env.reset()
    found = [[] for _ in range(ENVS)]
    while min(map(len, found)) < episodes:
        masks = np.stack(env.env_method("action_masks"))
        actions = np.where(masks, rng.random(masks.shape), -1).argmax(axis=1)
        *_, infos = env.step(actions)
        for row, info in enumerate(infos):
            if "terminal_observation" in info:
                found[row].append(info["terminal_observation"]["chain"].tobytes())
    return [one[:episodes] for one in found]


def test_repeat__fifty_episodes_of_each_problem():
    for one in problems_of("repeat", 102):
        assert len(set(one)) == 3
        assert one == [x for x in (one[0], one[50], one[100]) for _ in range(50)][:102]


def test_new__a_problem_in_every_episode():
    found = problems_of("new", 3)
    assert len({x for one in found for x in one}) == 3 * ENVS


def test_ppo__improves_on_sixteen_problems():
    """The plans that it draws get shorter; at first all legal ones are alike."""
    with one_thread():
        env = make_env("PipelinePlan-v0", {"family": "uniform", "repeat": 10_000}, 0, 16)
        env.reset()
        problems = env.get_attr("problem")
        solved = Exam.of([PointSpace.build(problem) for problem in problems])
        settings = {**plan_rl.ppo_settings(), "n_steps": 16, "batch_size": 128, "ent_coef": 0.0}
        model = MaskablePPO(ChainPolicy, env, seed=0, **settings)

        def drawing(seen, masks):
            return model.predict(seen, action_masks=masks)[0]

        means = []
        for steps in (0, 4096):
            if steps:
                model.learn(steps)
            found = np.concatenate([solved.ratios(drawing) for _ in range(5)])
            means.append(np.log(found).mean())
    assert means[1] < 0.8 * means[0]


def test_train__keeps_log_and_model(few, small, tmp_path):
    run = ChainRun(steps=512, looks=1)
    points, model = train(run, tmp_path, few)
    assert [point["steps"] for point in points] == [0, 512]
    assert all(point["illegal"] == 0 for point in points)
    assert json.loads((tmp_path / LOG).read_text())["points"] == points
    again = MaskablePPO.load(tmp_path / MODEL)
    assert np.array_equal(few.ratios(greedy(again)), few.ratios(greedy(model)))
    with pytest.raises(ParenvsError, match="holds a run already"):
        train(run, tmp_path, few)


@pytest.mark.parametrize("agent", plan_rl.AGENTS)
def test_train__equal_seeds_give_equal_agents(few, small, agent):
    found = []
    for seed in (0, 0, 1):
        _, model = train(ChainRun(agent, "repeat", seed, steps=512, looks=1), None, few)
        found.append(few.ratios(greedy(model)))
        assert isinstance(model, MaskablePPO if agent == "ppo" else Rainbow)
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_interrupted__the_log_stays(few, small, tmp_path):
    looked = []

    def say(line):
        looked.append(line)
        if len(looked) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(ChainRun(steps=2048, looks=4), tmp_path, few, say)
    points = json.loads((tmp_path / LOG).read_text())["points"]
    assert [point["steps"] for point in points] == [0, 512]
    MaskablePPO.load(tmp_path / MODEL)


def test_command__trains(tmp_path, monkeypatch, capsys, few, small):
    monkeypatch.setattr(plan_rl, "exam", lambda: few)
    place = tmp_path / "run"
    options = ["--steps", "512", "--looks", "1", "--family", "normal", "--out", str(place)]
    assert plan_rl.main(options) == 0
    assert "above the optimum" in capsys.readouterr().out
    content = json.loads((place / LOG).read_text())
    assert content["run"]["way"] == "new"
    assert plan_rl.main(options) == 2
    assert "another folder" in capsys.readouterr().err
    with pytest.raises(ParenvsError, match="way must be one of repeat, new, not 'old'"):
        ChainRun(way="old")


def test_summary__nothing_legal():
    assert plan_exam.summary(np.array([np.inf]))["median"] == np.inf
