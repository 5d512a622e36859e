"""The leaderboard as it is committed: tasks, references, entries, tables, and the commands."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parenvs.agents import partition_planners, planners
from parenvs.agents.trained import TRAINED
from parenvs.cli import app as cli
from parenvs.datasets.families import FAMILIES
from parenvs.datasets.instance_sets import SETS
from parenvs.errors import ParenvsError
from parenvs.instances import names
from parenvs.leaderboard import references, table
from parenvs.leaderboard import tasks as lists
from parenvs.leaderboard.baselines import agents, learned_from, planner, ready
from parenvs.leaderboard.check import (
    Checked,
    Verdict,
    check,
    check_file,
    improvements,
    ranking,
    score,
)
from parenvs.leaderboard.entry import Entry, entry_files, load_entry
from parenvs.leaderboard.problem import Reference
from parenvs.leaderboard.submit import agent_submission, machine
from parenvs.leaderboard.tasks import read_tasks, split, tasks, tasks_file

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "leaderboard"
FILES = entry_files(BOARD / "submissions")
TASKS = [
    "operator-partition-paper",
    "operator-partition-step-time",
    "data-parallel",
    "pipeline-cut",
    "pipeline-plan",
]


@pytest.fixture(scope="module")
def board():
    """Every committed entry, judged: (entries, seconds)."""
    begin = time.perf_counter()
    entries = [check_file(path) for path in FILES]
    return entries, time.perf_counter() - begin


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("check", ...)`` of ``parenvs leaderboard`` in an empty folder: (status, out, err)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["parenvs", "leaderboard", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return ended.value.code, captured.out, captured.err

    return call


@pytest.fixture
def own_tasks(tmp_path, monkeypatch):
    """``own_tasks(task, problem, **changes)``: a list of one's own, with a reference changed."""
    path = tmp_path / "tasks.json"

    def change(task, problem, **changes):
        known = read_tasks(BOARD / "tasks.json")
        old = known.tasks[task].problems[problem].reference
        known.improved({task: {problem: replace(old, **changes)}}).save(path)
        monkeypatch.setattr(lists, "tasks_file", lambda: path)
        return path

    return change


# Tasks and references.


def test_tasks__list():
    known = tasks()
    assert list(known.tasks) == TASKS
    assert known.version == references.VERSION
    for task in known.tasks.values():
        assert {p.instance for p in task.problems.values()} == set(names())
        for name, problem in task.problems.items():
            reference = problem.reference
            assert problem.name == name
            assert re.fullmatch(r"[a-z0-9A-Z-]+", name)  # also a file's name
            assert reference.status in ("optimal", "bound")
            assert 0 < reference.bound <= reference.cost <= problem.trivial
            assert (reference.status == "optimal") == (reference.bound == reference.cost)
            assert problem.head["instance"] == problem.instance
    statuses = [p.reference.status for t in known.tasks.values() for p in t.problems.values()]
    assert statuses.count("bound") < 0.1 * len(statuses)
    with pytest.raises(ParenvsError, match=r"did you mean 'pipeline-cut'"):
        known.task("pipeline-cuts")


def test_tasks__round_trip(tmp_path):
    path = tmp_path / "tasks.json"
    tasks().save(path)
    assert path.read_bytes() == tasks_file().read_bytes()
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "schema": 9}))
    with pytest.raises(ParenvsError, match="field 'schema' is 9"):
        read_tasks(path)


def test_tasks__another_graph_is_noticed():
    problem = replace(tasks().task("pipeline-cut").problems["vgg-19-A-2"], fingerprint="sha256:00")
    with pytest.raises(ParenvsError, match="field 'fingerprint' is not that of the shipped graph"):
        _ = problem.target


def test_references__anew(capsys):
    """Those of one graph, solved again; ``--check`` without ``--instances`` does all."""
    assert references.main(["--check", "--instances", "vgg-19"]) == 0, capsys.readouterr().err


@pytest.mark.skipif("PARENVS_SLOW" not in os.environ, reason="minutes; set PARENVS_SLOW=1")
def test_references__all_anew(capsys):
    assert references.main(["--check"]) == 0, capsys.readouterr().err


def test_references__differences_are_told(own_tasks, capsys):
    path = own_tasks("data-parallel", "vgg-19-shardy-8", cost=1.0, bound=0.5, status="bound")
    arguments = ["--check", "--instances", "vgg-19", "--tasks", "data-parallel", "--out", str(path)]
    assert references.main(arguments) == 2
    assert "data-parallel vgg-19-shardy-8: " in capsys.readouterr().err
    assert references.main([*arguments[1:], "--out", str(path)]) == 2
    assert references.main([*arguments[:-1], str(path.with_name("none"))]) == 2


def test_references__the_better_is_kept():
    old = Reference(2.0, 1.0, "bound", "old")
    assert references.better(Reference(3.0, 1.5, "bound", "new"), old) == replace(old, bound=1.5)
    new = Reference(1.8, 0.5, "bound", "new")
    assert references.better(new, old) == replace(new, bound=1.0)
    assert references.better(old, Reference(1.7, 1.7, "optimal", "x")).cost == 1.7
    assert references.better(Reference(1.7, 1.7, "optimal", "x"), old).cost == 1.7


def test_splits__are_disjoint_by_family():
    train, validation, test = (split(name) for name in lists.SPLITS)
    for task in TASKS:
        families = set(test[task]["families"])
        assert families == {"vgg", "t5", "bert"}
        assert not families & {*train[task]["families"], *validation[task]["families"]}
        assert set(test[task]["instances"]) == set(names())
        assert {n.split("-")[0] for n in names()} == families
        assert not {*train[task]["instances"], *validation[task]["instances"]} & set(names())
        assert not set(train[task]["instances"]) & set(validation[task]["instances"])
        if task.startswith("pipeline"):
            assert train[task]["families"] == validation[task]["families"] == list(FAMILIES)
            assert set(validation[task]["instances"]) <= set(SETS)
        assert all(part[task]["note"] for part in (train, validation, test))
    with pytest.raises(ParenvsError, match="known: train, validation, test"):
        split("tests")


# The committed entries.


def test_entries__all_are_accepted(board):
    entries, seconds = board
    assert seconds < 60
    for path, checked in zip(FILES, entries, strict=True):
        assert checked.reasons == ()
        assert (path.parent.name, path.stem) == (checked.task.name, checked.entry.entry)
    assert not improvements(entries)


def test_entries__every_agent_that_needs_no_training(board):
    there = {(c.task.name, c.entry.entry) for c in board[0]}
    for task in tasks().tasks.values():
        for agent in ready(task):
            assert (task.name, agent) in there


def test_entries__ours_say_what_they_learned_from(board):
    for checked in board[0]:
        entry = checked.entry
        if entry.authors == ("parenvs",):
            assert entry.entry in agents(checked.task)
            assert entry.trained_on == learned_from(entry.entry)
            assert entry.method == agents(checked.task)[entry.entry][0]


def test_entries__every_reference_is_some_entry_s(board):
    """What is called the best known cost is the cost of a plan that anybody can look at."""
    best = {}
    for checked in board[0]:
        for verdict in checked.verdicts:
            if verdict.state == "legal":
                key = checked.task.name, verdict.problem.name
                best[key] = min(best.get(key, np.inf), verdict.cost)
    for task in tasks().tasks.values():
        for name, problem in task.problems.items():
            assert best[task.name, name] == pytest.approx(problem.reference.cost, rel=1e-6)


def test_entries__exact_ones_reach_every_proven_reference(board):
    for checked in board[0]:
        if checked.entry.entry == ("exact-full" if "pipeline" in checked.task.name else "exact"):
            assert score(checked) == pytest.approx(1, abs=1e-6)
            assert all(v.reaches for v in checked.verdicts)


def test_tasks__trivial_plans_do_without_parallelism(board):
    for checked in board[0]:
        for verdict in checked.verdicts:
            problem = verdict.problem
            if checked.entry.entry == "replicate":
                assert verdict.cost == pytest.approx(problem.trivial, rel=1e-9)
            elif problem.kind == "pipeline-cut":
                profile, batches = problem.pipeline.profile, problem.pipeline.micro_batches
                assert problem.trivial == pytest.approx(batches * profile.seconds.sum())


@pytest.mark.parametrize(("task", "agent"), [("data-parallel", "greedy"), ("pipeline-cut", "even")])
def test_entries__made_anew_by_the_command(run, tmp_path, task, agent):
    status, out, _ = run("submit", "--task", task, "--agent", agent, "--folder", "made")
    assert status in (0, None)
    assert f"made/{task}/{agent}.json" in out
    anew = load_entry(tmp_path / "made" / task / f"{agent}.json")
    old = load_entry(BOARD / "submissions" / task / f"{agent}.json")
    assert replace(anew, seconds={}, hardware="") == replace(old, seconds={}, hardware="")
    assert anew.hardware == machine()


def test_entries__table_is_the_generated_one(board):
    assert (BOARD / "results.md").read_text(encoding="utf-8") == table.page(tasks(), board[0])
    assert (BOARD / "summary.md").read_text(encoding="utf-8") == table.summary(tasks(), board[0])


# Scores.


def verdicts_of(task, *costs):
    """An entry of a task with these scores, then missing plans."""
    problems = list(tasks().task(task).problems.values())
    states = ["legal"] * len(costs) + ["missing"] * (len(problems) - len(costs))
    filled = [*costs, *[None] * (len(problems) - len(costs))]
    return tuple(
        Verdict(p, state, p.trivial if cost is None else p.reference.cost / cost)
        for p, state, cost in zip(problems, states, filled, strict=True)
    )


def checked_of(name, *scores):
    task = tasks().task("data-parallel")
    entry = Entry("data-parallel", name, ("a",), "x", {})
    return Checked(entry, task, verdicts_of("data-parallel", *scores))


def test_score__geometric_mean():
    assert score(checked_of("a", *[1.0, 0.25] * 5)) == pytest.approx(0.5)
    assert score(checked_of("a", *[1.0] * 10)) == 1
    some = checked_of("a", *[1.0] * 9)
    last = list(some.task.problems.values())[-1]
    expected = (last.reference.cost / last.trivial) ** (1 / 10)
    assert score(some) == pytest.approx(expected)
    assert some.count("missing") == 1


def test_score__ties_by_name():
    entries = [
        checked_of("c", *[0.5] * 10),
        checked_of("b", *[0.9] * 10),
        checked_of("a", *[0.9 + 1e-9] * 10),
        checked_of("d", *[1.0] * 10),
    ]
    found = ranking(tasks().task("data-parallel"), entries)
    assert [(s.rank, s.checked.entry.entry) for s in found] == [
        (1, "d"),
        (2, "a"),
        (2, "b"),
        (4, "c"),
    ]
    assert ranking(tasks().task("pipeline-cut"), entries) == []
    content = json.loads(json.dumps(found[0].to_json()))
    assert (content["rank"], content["entry"], len(content["problems"])) == (1, "d", 10)


def test_score__better_than_the_optimum_is_an_error(own_tasks, run):
    """Even by little: the reference of one problem is made a hundredth worse than it is."""
    known = tasks().task("data-parallel").problems["vgg-19-shardy-8"].reference
    worse = 1.01 * known.cost
    own_tasks("data-parallel", "vgg-19-shardy-8", cost=worse, bound=worse)
    file = BOARD / "submissions" / "data-parallel" / "exact.json"
    checked = check_file(file)
    (reason,) = checked.reasons
    assert "better than the proven optimum" in reason
    assert "plans.vgg-19-shardy-8" in reason
    assert all(v.score <= 1 for v in checked.verdicts)
    status, _, err = run("check", file)
    assert status == 2
    assert "better than the proven optimum" in err
    assert run("update", file)[0] == 2


def test_score__better_than_a_bound_is_an_error(own_tasks):
    known = tasks().task("data-parallel").problems["vgg-19-shardy-8"].reference
    worse = 1.01 * known.cost
    own_tasks("data-parallel", "vgg-19-shardy-8", cost=2 * worse, bound=worse, status="bound")
    (reason,) = check_file(BOARD / "submissions" / "data-parallel" / "exact.json").reasons
    assert "better than the proven lower bound" in reason


def test_update__takes_over_what_is_better(own_tasks, run, monkeypatch):
    name = "t5-base-v100-8x8-8"
    known = tasks().task("pipeline-plan").problems[name].reference
    assert known.status == "bound"
    path = own_tasks("pipeline-plan", name, cost=1.5 * known.cost, method="nobody")
    before, revision = path.read_bytes(), tasks().revision
    files = [BOARD / "submissions" / "pipeline-plan" / f"{e}.json" for e in ("even", "exact-full")]
    status, out, err = run("check", *files)
    assert status in (0, None)
    assert "parenvs leaderboard update" in err
    assert "1.0000" in out
    with monkeypatch.context() as patch:

        def interrupted(*_):
            raise KeyboardInterrupt

        patch.setattr("pathlib.Path.replace", interrupted)
        assert run("update", *files)[0] not in (0, None)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    status, out, _ = run("update", *files)
    assert status in (0, None)
    assert f"pipeline-plan {name}: " in out
    new = tasks().task("pipeline-plan").problems[name].reference
    assert (new.method, new.status, tasks().revision) == ("exact-full", "bound", revision + 1)
    assert new.cost == pytest.approx(known.cost, rel=1e-6)
    assert new.bound == known.bound
    after = path.read_bytes()
    assert "nothing written" in run("update", *files)[1]
    assert path.read_bytes() == after


def test_update__a_plan_as_good_as_the_bound_is_optimal(own_tasks):
    name = "vgg-19-shardy-8"
    known = tasks().task("data-parallel").problems[name].reference
    own_tasks("data-parallel", name, cost=2 * known.cost, status="bound")
    files = [BOARD / "submissions" / "data-parallel" / f"{e}.json" for e in ("ones", "exact")]
    better = improvements([check_file(file) for file in files])
    assert list(better) == ["data-parallel"]
    (new,) = better["data-parallel"].values()
    assert (new.status, new.method) == ("optimal", "ones")
    assert new.cost == new.bound == pytest.approx(known.cost)
    assert tasks().improved(better).revision == tasks().revision + 1


# The commands.


def test_cli__check(run, tmp_path):
    good = BOARD / "submissions" / "data-parallel" / "greedy.json"
    status, out, err = run("check", good)
    assert status in (0, None)
    assert "greedy" in out
    assert "1.0000" in out
    assert re.search(r"1 judged in \d+\.\d s", err)
    content = json.loads(good.read_text())
    content["plans"]["vgg-19-shardy-8"]["fingerprint"] = "sha256:00"
    del content["plans"]["bert-48-shardy-8"], content["seconds"]["bert-48-shardy-8"]
    (tmp_path / "bad.json").write_text(json.dumps(content))
    (tmp_path / "worse.json").write_text("{}")
    status, out, err = run("check", "bad.json", "worse.json", good)
    assert status == 2
    assert "bad.json: field 'plans.vgg-19-shardy-8': field 'fingerprint' must be" in err
    assert "worse.json: field 'plans' is missing" in err
    assert f"{good}: field 'entry': 'greedy' of task 'data-parallel' is in bad.json" in err
    assert "1 missing, 1 illegal" in out
    last = err.splitlines()[-1]
    assert last.startswith("parenvs: 3 of 3 refused: ")


def test_cli__json_is_what_a_page_needs(run):
    status, out, _ = run("check", "--json", BOARD / "submissions" / "pipeline-cut" / "even.json")
    assert status in (0, None)
    content = json.loads(out)
    assert [task["name"] for task in content["tasks"]] == TASKS
    (standing,) = next(t for t in content["tasks"] if t["name"] == "pipeline-cut")["standings"]
    assert standing["entry"] == "even"
    assert {"score", "rank", "authors", "method", "problems", "hardware"} <= set(standing)


def test_cli__table(run, tmp_path, monkeypatch):
    folder = BOARD / "submissions"
    only = tmp_path / "some" / "data-parallel"
    only.mkdir(parents=True)
    for name in ("greedy", "replicate"):
        source = folder / "data-parallel" / f"{name}.json"
        (only / source.name).write_bytes(source.read_bytes())
    status, out, _ = run("table", "--folder", "some")
    assert status in (0, None)
    assert "| 1 | greedy | 1.0000 |" in out
    assert out.count("No entry yet.") == 4
    assert run("table", "--folder", "some", "--out", "new.md")[0] in (0, None)
    assert Path("new.md").read_text(encoding="utf-8") == out
    Path("new.md").write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run("table", "--folder", "some", "--out", "new.md")[0] not in (0, None)
    assert Path("new.md").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.md", "some"]
    (only / "broken.json").write_text("[]")
    status, _, err = run("table", "--folder", "some")
    assert status == 2
    assert "broken.json: expected one JSON object; parenvs leaderboard check" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["submit", "--task", "pipeline-cuts"], "did you mean 'pipeline-cut'"),
        (["submit", "--task", "data-parallel", "--agent", "expert"], "has no agent 'expert'"),
        (["submit", "--entry", "mine"], "--entry names the entry of one agent"),
        (["submit", "--steps", "0"], "--steps must be from 1"),
        (["submit", "--task", "data-parallel", "--agent", "ones", "--entry", "../x"], "'entry'"),
        (["table", "--folder", "nowhere"], "no entry TASK/ENTRY.json there"),
        (["check", "nowhere.json"], "refused: nowhere.json"),
        (["update", "nowhere.json"], "no such file"),
    ],
)
def test_cli__errors(run, tmp_path, arguments, words):
    status, _, err = run(*arguments)
    assert status == 2
    line = err.splitlines()[-1]
    assert line.startswith("parenvs: ")
    assert words in line
    assert not list(tmp_path.iterdir())


def test_markdown__means_nothing():
    text = table.escaped("a|b [x](y) <script> *_~`\\&")
    assert text == r"a\|b \[x\](y) \<script\> \*\_\~\`\\\&"


# Agents.


def test_agents__need_neither_torch_nor_jax():
    code = (
        "import sys\n"
        "import parenvs.cli, parenvs.cli.leaderboard\n"
        "from parenvs.leaderboard import check, entry, references, submit, table, tasks\n"
        "print(sorted({'torch', 'jax', 'stable_baselines3', 'sb3_contrib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_agents__trained_ones_say_so(monkeypatch):
    """What they are entered as, without the training."""
    from parenvs.leaderboard import submit

    def any_plan(task, agent, seed, steps):
        return planner(task, "ones")

    monkeypatch.setattr(submit, "planner", any_plan)
    for agent in TRAINED:
        made = agent_submission("data-parallel", agent, seed=3, steps=100)
        assert made.learned
        assert made.trained_on == ("the problem itself",)
        assert made.seeds == (3,)
        assert made.search_budget == "100 environment steps a problem"
        assert check(made).reasons == ()


def test_agents__every_planner_of_the_project():
    """A new one is described in leaderboard/baselines.py and entered."""
    described = set().union(*(agents(task) for task in tasks().tasks.values()))
    assert {*planners.PLANNERS, *partition_planners.PLANNERS} <= described
    for task in tasks().tasks.values():
        assert set(agents(task)) == {*ready(task), *TRAINED}
        assert all(method for method, _, _ in agents(task).values())


# The rules.

README = (BOARD / "README.md").read_text(encoding="utf-8")


def test_readme__as_a_newcomer_enters(run, tmp_path):
    """The script and then the commands of the page, one after the other, in an empty folder."""
    (script,) = re.findall(r"```python\n(.*?)```", README, re.S)
    exec(compile(script, "README.md", "exec"), {"__name__": "__main__"})
    assert (tmp_path / "submissions" / "pipeline-cut" / "my-even.json").is_file()
    (commands,) = re.findall(r"```bash\n(.*?)```", README, re.S)
    output = ""
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        assert words[:2] == ["parenvs", "leaderboard"]
        status, out, err = run(*words[2:])
        assert status in (0, None), (line, err)
        output += out
    assert "| 1 | my-even |" in output


def test_readme__names_what_is_there():
    for name in TASKS:
        assert f"`{name}`" in README
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (BOARD / link).exists(), link
    assert "4 MiB" in README
