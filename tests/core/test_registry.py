"""The registry: tasks by name, of names and of other packages, and what a task is."""

import subprocess
import sys
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint

import pytest
from cases import each

from parenvs.core import registry
from parenvs.core.plan import Plan
from parenvs.core.registry import TASKS, Tasks, task_of, task_of_name
from parenvs.core.request import Request
from parenvs.core.sets import set_names
from parenvs.core.task import Task, given, late, option, refuse_settings
from parenvs.errors import ParenvsError

FIVE = ("partition", "pipeline", "hybrid", "sharding", "elastic")


@dataclass(frozen=True, kw_only=True)
class ToyOptions:
    weight: int | None = option(None, "Largest weight.")


class ToyTask(Task):
    name, words, options = "toy", "Fill a sack.", ToyOptions

    def find(self, name):
        return name

    def plan_class(self):
        return Plan

    def request_class(self):
        return Request


TOY = ToyTask()


@pytest.fixture
def toy():
    TASKS.register(TOY)
    yield TOY
    TASKS.remove("toy")


def test_tasks__the_six_come_first_and_are_whole():
    assert tuple(TASKS)[:5] == FIVE
    for name in FIVE:
        task = TASKS[name]
        assert task.name == name and task.words.endswith(".")
        assert all(each.metadata["help"] and each.default is None for each in fields(task.options))


@pytest.mark.thorough
def test_tasks__listing_them_imports_no_task():
    code = (
        "import sys\n"
        "from parenvs.core.registry import TASKS\n"
        "loaded = set(sys.modules)\n"
        "print([task.words for task in TASKS.values()])\n"
        "print(sorted(x for x in set(sys.modules) - loaded if x.startswith('parenvs')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    modules = done.stdout.splitlines()[-1]
    assert "problem" not in modules and "game" not in modules and "agents" not in modules


def test_tasks__sets_are_those_that_ship():
    of_tasks = [name for task in TASKS.values() for name in task.sets]
    assert sorted(of_tasks) == sorted(set_names())


def test_tasks__unknown():
    with pytest.raises(ParenvsError, match=r"unknown task 'pipelin' \(did you mean 'pipeline'"):
        TASKS.named("pipelin")
    for wrong in (None, 3, ["pipeline"]):
        with pytest.raises(ParenvsError, match="unknown task"):
            TASKS.named(wrong)
    assert "nothing" not in TASKS
    with pytest.raises(KeyError):
        TASKS["nothing"]


def test_tasks__registered_and_removed(toy):
    assert TASKS["toy"] is toy and len(TASKS) == 6 and list(TASKS)[-1] == "toy"
    assert task_of(type("Plan", (), {"task": "toy"})) is toy


def test_tasks__of_other_packages(monkeypatch):
    points = [
        EntryPoint("toy", f"{__name__}:ToyTask", registry.GROUP),
        EntryPoint("pipeline", f"{__name__}:ToyTask", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    tasks = Tasks()
    assert list(tasks) == [*FIVE, "toy"]
    assert tasks["toy"].words == TOY.words
    assert tasks["pipeline"].name == "pipeline"  # nobody takes the place of the six


def test_task_of__refuses_what_has_none():
    for wrong in (None, "t5-3b", 3, type("Plan", (), {"task": 3})):
        with pytest.raises(ParenvsError, match="expected a plan, not"):
            task_of(wrong, "expected a plan")


@each(
    ("name", "task"),
    [
        ("plan-test/cnn-003", "pipeline"),
        ("partition-test/t5-003", "partition"),
        ("hybrid/7", "hybrid"),
        ("hetero-32/5", "hybrid"),
        ("hetero-32-test/spread-000", "hybrid"),
        ("intra-op-test/mesh-000", "sharding"),
        ("elastic-test/bulk-gpt-1.5b-000", "elastic"),
        ("p3", "elastic"),
        ("p3/gpt-1.5b", "elastic"),
        ("t5-3b", None),
        ("plan-test", None),
        ("models/plan-test/x.npz", None),
        (3, None),
    ],
)
def test_task_of_name(name, task):
    found = task_of_name(name)
    assert (found and found.name) == task


def test_settings__unknown_option(toy):
    assert toy.settings({"weight": 3}) == ToyOptions(weight=3)
    with pytest.raises(ParenvsError, match=r"task toy has no option 'wieght'.*'weight'"):
        toy.settings({"wieght": 3})
    with pytest.raises(ParenvsError, match="known: none, the instance says all"):
        TASKS["sharding"].settings({"stages": 3})


def test_options__given_and_refused():
    assert given(ToyOptions()) == {} and given(ToyOptions(weight=0)) == {"weight": 0}
    problem = type("Problem", (), {"instance": "toy/3"})
    assert refuse_settings(problem, None, ToyOptions()) is problem
    with pytest.raises(ParenvsError, match="weight: toy/3 has settings of its own"):
        refuse_settings(problem, None, ToyOptions(weight=3))
    with pytest.raises(ParenvsError, match="cluster: toy/3 has settings"):
        refuse_settings(problem, "C", ToyOptions())


def test_task__optional_methods_raise_one_line_or_work(toy):
    with pytest.raises(ParenvsError, match="task toy has no tuning"):
        toy.tune(None)
    assert not toy.supports(Task.tune) and TASKS["hybrid"].supports(Task.tune)
    assert toy.validation("Toy-v0", {}) is None and not toy.leaderboard() and not toy.own_names()
    with pytest.raises(ParenvsError, match="task toy has no environment to train in"):
        toy.training(None)


def test_task__required_methods():
    with pytest.raises(TypeError, match=r"abstract.*find.*plan_class.*request_class"):
        Task()


def test_tasks__methods_are_those_of_task():
    extra = {x for task in TASKS.values() for x in vars(type(task)) if not hasattr(Task, x)}
    public = {x for x in extra if not x.startswith("_")}
    assert public == {"name", "words", "start"}  # a misspelt method would override nothing


def test_tasks__entry_point_that_is_no_task(monkeypatch):
    points = [EntryPoint("toy", f"{__name__}:TOY", registry.GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    with pytest.raises(ParenvsError, match="task 'toy': its entry point is no subclass of Task"):
        Tasks()["toy"]


def test_late():
    assert late("parenvs.core.task:late") is late
