"""Every command takes every task by the same words, and makes its flags of the tasks' classes."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cases import slow
from commands import good

from parenvs import judge, load_plan
from parenvs.cli.options import flags_in, flags_of, values_for, values_in
from parenvs.core.registry import TASKS
from parenvs.core.task import GraphOptions, Task, option
from parenvs.errors import ParenvsError

QUICK = {
    "pipeline": ("plan-test/cnn-003", "even", "pipedream"),
    "partition": ("partition-test/t5-006", "exact", "expert"),
    "hybrid": ("hybrid-test/gpt-001", "rule-of-thumb", "random"),
    "sharding": ("intra-op-test/mesh-000", "greedy", "random"),
    "elastic": ("elastic-test/bulk-gpt-1.5b-000", "fastest", "myopic"),
}
"""Task -> a problem of a set, and two planners that take no time."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "task",
    [x for x in TASKS if x != "partition"] + slow("partition"),  # its price reads a graph
)
def test_tasks__plan_judge_diff_compare_by_the_name_alone(run, task):
    name, *agents = QUICK[task]
    for agent in agents:
        out = good(run("plan", name, "--agent", agent, "--out", f"{agent}.json", "--json"))
        content = json.loads(out)
        assert content["plan"]["task"] == task and content["report"]["legal"] is True
    first, second = (f"{agent}.json" for agent in agents)
    plan = load_plan(first)
    assert plan.task == task
    status, out, err = run("judge", first, "--json")
    assert status == 0, err
    judged = json.loads(out)
    runs = judged.pop("runs_in")
    assert judged == json.loads(json.dumps(judge(plan).with_price()))
    assert any(isinstance(x, float) for x in runs.values()) == (task in ("partition", "hybrid"))
    assert TASKS[task].supports(Task.stages) == (not str(runs["megatron"]).startswith("task: "))
    assert json.loads(good(run("judge", first, "--instance", name, "--json")))["legal"] is True
    priced = ["judge", first], ["plan", name, "-v", "--agent", agents[0]], ["compare", name]
    priced[2].extend(f"--agent={agent}" for agent in agents)
    for command in (*priced, *([["explain", first]] if TASKS[task].supports(Task.explain) else [])):
        assert "by the hybrid model" in good(run(*command))
    assert "a  " in good(run("diff", first, second))
    content = json.loads(good(run("diff", first, second, "--json")))
    assert content["task"] == task
    chosen = [word for agent in agents for word in ("--agent", agent)]
    out = good(run("compare", name, *chosen, "--out", "best.json"))
    assert all(agent in out for agent in agents)
    assert load_plan("best.json") == plan
    out = good(run("list", "--task", task))
    assert name.partition("/")[0] in out and agents[0] in out
    assert good(run("show", name))
    status, out, err = run("explain", first)
    if TASKS[task].supports(Task.explain):
        assert status == 0, err
    else:
        assert (status, out) == (2, "")
        words = f"{first}: explain is not for task {task}, but for partition, hybrid"
        assert err == f"parenvs: {words}\n"


@pytest.mark.thorough
def test_tasks__plans_draw_and_read_their_search_options(run):
    out = good(
        run("plan", QUICK["sharding"][0], "--rounds", "1", "--threads", "1", "--plot", "p.svg")
    )
    assert out.startswith("cost ") and Path("p.svg").stat().st_size > 5000
    status, _, err = run("plan", QUICK["elastic"][0], "--rounds", "1")
    assert status == 2
    assert err == "parenvs: --rounds is not an option of --task elastic, but of sharding\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--cluster", "A"), "--cluster is not an option of training on drawn problems"),
        (("--steps", "0"), "--steps"),
        (("partition-trial",), "unknown instance 'partition-trial'"),
        (("nothing.json",), "'nothing.json': no such file"),
    ],
)
def test_train__bad_input_is_one_line(run, words, says):
    status, _, err = run("train", *words, "--task", "partition")
    assert status == 2
    (line,) = err.strip().splitlines()
    assert says in line


def test_train__names_the_option_that_it_does_not_take(run):
    for task in TASKS.values():
        *_, taken = task.training(None)
        for name, flag in flags_of(task).items():
            if flag.place[1] not in taken:
                value = (flag.values or ("0-3" if name == "pin" else "1",))[:1]
                typed = (f"--{name}", *(() if flag.kind is bool else value))
                status, _, err = run("train", "--task", task.name, *typed)
                assert (status, err.count("\n")) == (2, 1), err
                assert f"--{name} is not an option of training on drawn problems" in err, err


# Flags


def test_flags__values_stand_where_they_belong():
    given = {"tp": 2, "zero": "0, 1", "pin": ["0-9", "10-11:8"], "batch": ["64"], "price": 2.0}
    found = values_for(TASKS["hybrid"], given)
    pinned = ((0, 10, None), (10, 12, 8))
    constraints = {"tp": 2, "zero": (0, 1), "pinned": pinned}
    assert found["options"] == {"batch": 64}
    assert found["search"] == {"constraints": constraints, "price": 2.0}
    assert values_for(TASKS["partition"], {"batch-inputs": ["3"]})["options"] == {"batch": 3}
    assert values_for(TASKS["partition"], {"batch-inputs": ["a", "b"]})["options"] == {
        "batch": ("a", "b")
    }
    assert values_for(TASKS["partition"], {"memory-limit": "2"})["options"] == {"memory_limit": 2e9}
    assert values_for(TASKS["sharding"], {}) == {"options": {}, "search": {}}
    assert values_in(GraphOptions, {"args": "f", "tp": 2}) == {"arguments": "f"}
    for task, name, value, words in (
        ("hybrid", "batch", ["1", "2"], "--batch must be a whole number, given once, not '2'"),
        ("hybrid", "batch", ["x"], "--batch must be a whole number, given once, not 'x'"),
        ("sharding", "tp", 2, "--tp is not an option of --task sharding, but of hybrid"),
        ("sharding", "stages", 2, "--stages is not an option of --task sharding, but of pipel"),
        ("partition", "memory-limit", "-1", "--memory-limit must be 'device' or a positive numb"),
    ):
        with pytest.raises(ParenvsError) as error:
            values_for(TASKS[task], {name: value})
        assert str(error.value).startswith(words)


@dataclass(frozen=True, kw_only=True)
class Options:
    """One option that no other task has, and one that others take as a list."""

    color: str = option("red", "Color of the toy.", kind=str, read=str.upper)
    batch: float = option(1.0, "Weight of the toy.")


def test_flags__of_a_task_that_comes_later(run):
    """Its options are taken and shown, beside those of the same name of other tasks."""

    class Toy(Task):
        name, words, options = "toy", "Play.", Options
        find = plan_class = request_class = None  # no command of this test asks for them

    task = Toy()
    TASKS.register(task)
    try:
        out = " ".join(good(run("plan", "--help-all")).replace("│", " ").split())
        assert "More: of task toy" in out and "Color of the toy." in out
        assert "toy: Weight of the toy." in out
        found = values_for(task, {"color": "blue", "batch": ["0.5"]})["options"]
        assert found == {"color": "BLUE", "batch": 0.5}
        assert "toy: Play." in good(run("list", "--task", "toy"))
        status, _, err = run("plan", "vgg-19", "--task", "pipeline", "--color", "blue")
        assert status == 2
        assert "--color is not an option of --task pipeline, but of toy" in err
        status, _, err = run("train", "--task", "toy")
        assert status == 2 and "task toy has no environment to train in" in err
    finally:
        TASKS.remove("toy")
    status, _, err = run("plan", "vgg-19", "--color", "blue")
    assert status == 2 and "No such option" in err
    assert {flag.name for flag in flags_in(Options)} == {"color", "batch"}


@pytest.mark.thorough
def test_commands__help_is_light():
    code = (
        "import sys\n"
        "from parenvs.cli import main\n"
        "sys.argv = ['parenvs', 'plan', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'ray', 'torch', 'jax', 'matplotlib', 'stable_baselines3', 'scipy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.thorough
def test_list__examples_of_generated_problems_are_problems(run):
    tasks = json.loads(good(run("list", "--json")))["tasks"].values()
    names = [name for facts in tasks for name in facts["generated problems, of any number"]]
    assert len(names) >= 9
    for name in names:
        assert good(run("show", name))
