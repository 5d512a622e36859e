"""A tenth task, which nothing but its ``Task`` tells the house of, has every door."""

import json

import batches
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from toy_task import KnapsackPlan, KnapsackTask, PackVectorEnv
from typer.testing import CliRunner

import parenvs
from parenvs.cli.app import app
from parenvs.core.registry import TASKS
from parenvs.exports.checkpoint import Files
from parenvs.exports.formats import FORMATS
from parenvs.leaderboard.check import check
from parenvs.leaderboard.site import site_files
from parenvs.leaderboard.submit import agent_submission
from parenvs.leaderboard.tasks import TaskList, tasks

ID, NAME = "Knapsack-v0", "knapsack/1"
ENOUGH = ("jax", "torch")
"""Frameworks for which a layout is enough."""


@pytest.fixture(autouse=True)
def registered():
    TASKS.register(KnapsackTask())
    yield
    TASKS.remove("knapsack")
    for name in (ID, f"parenvs/{ID}"):
        gym.registry.pop(name, None)


def run(*arguments):
    found = CliRunner().invoke(app, [str(x) for x in arguments])
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output


def test_toy__is_an_environment():
    env = gym.make(ID, render_mode="ansi")
    check_env(env.unwrapped, skip_render_check=True)
    _, info = env.reset(seed=0)
    assert info["instance"].startswith("knapsack/")
    assert env.reset(options={"instance": NAME})[1]["instance"] == NAME
    assert NAME in env.render()
    with pytest.raises(parenvs.ParenvsError, match="options: unknown 'instanc'"):
        env.reset(options={"instanc": NAME})


@batches.modes
def test_toy__batch_is_single_to_the_last_bit(mode):
    batched, single = batches.both(PackVectorEnv, {}, 3, mode)
    assert isinstance(gym.make_vec(ID, num_envs=2), PackVectorEnv)
    resets = {20: {"instance": NAME, "reset_mask": np.array([True, False, True])}}
    batches.assert_alike(
        batched, single, mode, np.random.default_rng(0), 40, illegal=0.1, resets=resets
    )


def test_toy__has_every_door(tmp_path, capsys):
    problem = parenvs.problem(NAME)
    answer, rule = parenvs.plan(problem), parenvs.plan(problem, "greedy")
    assert answer.proven and answer.gap == 0
    assert rule.cost >= answer.cost == answer.report.cost
    answer.plan.save(tmp_path / "plan.json")
    report = parenvs.judge(tmp_path / "plan.json")
    assert (report.legal, report.cost) == (True, answer.cost)
    assert not parenvs.judge(problem.plan(range(6))).legal
    parenvs.show(report)
    assert f"cost {answer.cost}" in capsys.readouterr().out
    env = gym.make(ID, instance=NAME)
    result = parenvs.evaluate(lambda observation, mask: 0, env)
    assert result.reference == answer.cost and result.gap > 0
    content = json.loads((tmp_path / "plan.json").read_text())
    with pytest.raises(parenvs.ParenvsError, match=r"field 'items\[0\]'"):
        KnapsackPlan.from_json({**content, "items": ["x"]})


@pytest.mark.thorough
def test_toy__commands(tmp_path):
    plan = tmp_path / "plan.json"
    assert "optimal" in run("plan", NAME, "--out", plan)
    assert str(parenvs.judge(plan).cost) in run("judge", plan)
    assert "greedy" in run("compare", NAME)
    assert "knapsack" in run("list", "--task", "knapsack")


def test_toy__is_on_the_leaderboard(tmp_path):
    entries = []
    for agent in ("exact", "greedy"):
        entry = agent_submission("knapsack", agent, hardware="any")
        entry.save(tmp_path / "knapsack" / f"{agent}.json")
        entries.append(check(entry))
    assert entries[0].score == 1.0 >= entries[1].score > 0
    assert "knapsack" in run("leaderboard", "table", "--folder", tmp_path)
    task = tasks().task("knapsack")
    assert task.problems[NAME].reference.proven
    files = site_files(TaskList(1, 1, {"knapsack": task}), entries)
    assert "greedy" in files["tasks/knapsack.html"] and "entries/knapsack/exact.html" in files


def test_toy__rooms_that_run_plans_say_what_it_has_not(tmp_path, monkeypatch):
    """One line each, which names the tasks that have it; nothing is written."""
    monkeypatch.chdir(tmp_path)
    parenvs.plan(parenvs.problem(NAME), "greedy").plan.save("plan.json")
    (tmp_path / "net.py").write_text("def net(x):\n    return x\n")
    stages = "task: knapsack has no stages; plan with --task pipeline or hybrid"
    for arguments, words in (
        (("verify", "plan.json"), "plan.json: verify is not for task knapsack, but for partition"),
        (("export", "plan.json", "--to", "jax"), "knapsack has no layout; plan with --task part"),
        (("export", "plan.json", "--to", "torch"), "knapsack has no layout and no stages; plan"),
        *((("export", "plan.json", "--to", to), stages) for to in FORMATS if to not in ENOUGH),
        (("run", "plan.json", "net.py:net"), "plan.json: task: knapsack has no layout and no st"),
    ):
        found = CliRunner().invoke(app, arguments)
        assert isinstance(found.exception, parenvs.ParenvsError), found.exception
        assert words in str(found.exception) and "\n" not in str(found.exception)
    with pytest.raises(parenvs.ParenvsError, match="knapsack has no checkpoint; plan with"):
        Files.of(parenvs.load_plan("plan.json"))
    assert sorted(x.name for x in tmp_path.iterdir()) == ["net.py", "plan.json"]
