"""Entries of any planner and of the project's own agents."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from parenvs.agents.learning.options import TRAINED
from parenvs.agents.partition.planners import PARTITION_PLANNERS
from parenvs.agents.pipeline.planners import PIPELINE_PLANNERS
from parenvs.core.leaderboard import kind_of
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.leaderboard import submit
from parenvs.leaderboard.check import check
from parenvs.leaderboard.entry import load_entry
from parenvs.leaderboard.submit import agent_submission, ready, submission, this_hardware
from parenvs.leaderboard.tasks import tasks
from parenvs.machine import commit

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "leaderboard"


def test_submission__leaves_out_what_is_not_legal():
    """Illegal plans and infeasible problems are left out; other errors are raised."""

    def plan(problem):
        if problem.instance != "vgg-19":
            raise InfeasibleError("too large\nfor me")
        return problem.pipeline_plan(*(([59, 88], [13, 21]) if problem.stages == 3 else ([0], [9])))

    lines = []
    entry_ = submission(
        "pipeline-cut", plan, entry="mine", authors=["me"], method="x", say=lines.append
    )
    assert list(entry_.plans) == list(entry_.seconds) == ["vgg-19-B-3"]
    assert len(lines) == len(tasks().task("pipeline-cut").problems)
    assert not any("\n" in line for line in lines)
    assert check(entry_).reasons == ()
    with pytest.raises(ParenvsError, match="nothing to enter"):
        submission(
            "pipeline-cut",
            lambda p: p.pipeline_plan([], []),
            entry="mine",
            authors=["me"],
            method="x",
        )
    with pytest.raises(ZeroDivisionError):
        submission("pipeline-cut", lambda p: 1 / 0, entry="mine", authors=["me"], method="x")


@pytest.mark.parametrize(("task", "agent"), [("data-parallel", "greedy"), ("pipeline-cut", "even")])
def test_submission__made_again_by_the_command(run, tmp_path, task, agent):
    status, out, _ = run("submit", "--task", task, "--agent", agent, "--folder", "made")
    assert status in (0, None)
    assert f"made/{task}/{agent}.json" in out
    anew = load_entry(tmp_path / "made" / task / f"{agent}.json")
    old = load_entry(BOARD / "submissions" / task / f"{agent}.json")
    assert list(anew.plans) == list(old.plans), out
    assert anew.plans == old.plans
    assert (anew.commit, anew.settings) == (commit(), {"agent": agent})
    common = {"plans": {}, "seconds": {}, "hardware": "", "commit": "", "settings": {}}
    assert replace(anew, **common) == replace(old, **common)
    assert anew.hardware == this_hardware()


@pytest.mark.thorough
def test_agents__need_neither_torch_nor_jax():
    code = (
        "import sys\n"
        "import parenvs.cli, parenvs.cli.leaderboard\n"
        "from parenvs.leaderboard import check, entry, ranking, submit, tasks\n"
        "print(sorted({'torch', 'jax', 'stable_baselines3', 'sb3_contrib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.thorough
def test_agents__trained_ones_say_so(monkeypatch):
    """Trained agents are entered as such; the test leaves out the training."""
    kind = kind_of("data-parallel")
    greedy = kind.planner("greedy", 0, 1)
    monkeypatch.setattr(submit, "kind_of", lambda name: replace(kind, planner=lambda *_: greedy))
    for agent in TRAINED:
        entry = agent_submission("data-parallel", agent, seed=3, steps=100)
        assert entry.learned
        assert entry.trained_on == ("the problem itself",)
        assert entry.seeds == (3,)
        assert entry.search_budget == "100 environment steps a problem"
        assert check(entry).reasons == ()


def test_agents__every_planner_of_the_project():
    """A new planner must be described and entered."""
    described = set().union(*(kind_of(name).agents for name in tasks().tasks))
    assert {*PIPELINE_PLANNERS, *PARTITION_PLANNERS} <= described
    for task in tasks().tasks.values():
        assert set(kind_of(task.name).agents) - set(ready(task)) in (set(), set(TRAINED))
        assert all(description.method for description in kind_of(task.name).agents.values())


@pytest.mark.slow
def test_submit__a_run(run, tmp_path):
    """The best actions of a trained agent are an entry; runs of other tasks are refused."""
    pytest.importorskip("torch")
    from parenvs.agents.learning.config import TrainConfig
    from parenvs.agents.learning.trainer import train

    folder = tmp_path / "Tiny"
    settings = {"envs": 16, "turns": 4}
    config = TrainConfig(
        env_id="HybridPlan-v2", env_kwargs={"fresh": False}, steps=64, settings=settings
    )
    train(config, folder)
    words = ["submit", "--run", str(folder), "--folder", "made"]
    status, _, err = run(*words)
    assert status == 2 and "--run takes a --task, and no --agent" in err
    status, _, err = run(*words, "--task", "iopddl")
    assert status == 2 and "which is no environment of task iopddl" in " ".join(err.split())
    status, _, err = run(*words, "--task", "hetero")
    assert status in (0, None), err
    made = load_entry(tmp_path / "made" / "hetero" / "tiny.json")
    assert made.learned and made.trained_on == ("other: HybridPlan-v2 fresh False",)
    assert made.seeds == (0,) and "ppo, trained by parenvs train for 64 steps" in made.method
