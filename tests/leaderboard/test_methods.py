"""Methods: drawn problems are the same for a seed, hostile methods are named, files are checked."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from parenvs.core.leaderboard import kind_of, kinds
from parenvs.errors import ParenvsError
from parenvs.leaderboard import methods as judging
from parenvs.leaderboard.check import check, improvements, ranking, with_drawn
from parenvs.leaderboard.entry import MAX_SCRIPT, Entry, entry_files, load_entry
from parenvs.leaderboard.methods import drawn_task, method_verdicts
from parenvs.leaderboard.reading import EntryError
from parenvs.leaderboard.results import methods_page
from parenvs.leaderboard.sandbox import runner
from parenvs.leaderboard.sandbox.isolation import Isolation, IsolationError
from parenvs.leaderboard.sandbox.runner import Outcome
from parenvs.leaderboard.sandbox.work import planned
from parenvs.leaderboard.site import site_files
from parenvs.leaderboard.submit import submission
from parenvs.leaderboard.tasks import TaskList, tasks
from parenvs.leaderboard.verdicts import PlanState, judged

BOARD = Path(__file__).parents[2] / "leaderboard"
FILES = entry_files(BOARD / "scripts")
SOUND = (BOARD / "scripts" / "pipeline-drawn" / "even.py").read_text(encoding="utf-8")


HALF = Isolation(("walls",), ("roof (it rains)",))


def entry_of(script=SOUND, task="pipeline-drawn", name="mine"):
    return Entry(task, name, ("Ada",), "By hand.", script=script)


@pytest.mark.thorough
@pytest.mark.parametrize("task", list(kinds(drawn=True)))
def test_drawn__a_seed_decides_the_problem(task):
    """The same seed and number give the same problem; another of either gives another."""
    one, same = (kind_of(task).draw(5, 0) for _ in range(2))
    others = [kind_of(task).draw(6, 0), kind_of(task).draw(5, 1)][
        : 1 if task == "sharding-drawn" else 2
    ]
    assert one.fingerprint == same.fingerprint and one.settings == same.settings
    assert len({x.fingerprint for x in (one, *others)}) == 1 + len(others)
    assert one.trivial_cost() > 0 and one.head["fingerprint"] == one.fingerprint
    assert kind_of(task).count >= 4


def test_drawn__no_other_tasks():
    assert kind_of("pipeline-cut").draw is None


@pytest.mark.thorough
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_scripts__plan_what_is_drawn(path):
    """Every committed method makes a plan that is judged; here without the sandbox."""
    entry = load_entry(path)
    if entry.entry == "solver":
        pytest.skip("five processor seconds; the committed page has it")
    problem = kind_of(entry.task).draw(2, 3)
    job = {"task": entry.task, "seed": 2, "number": 3, "script": entry.script}
    content = json.loads(json.dumps(planned(job)))
    if content is not None:
        problem = replace(problem, trivial=problem.trivial_cost())
        assert judged(problem, content).state in (PlanState.LEGAL, PlanState.ILLEGAL)
    assert (path.parent.name, path.stem) == (entry.task, entry.entry)


@pytest.mark.slow
def test_method_verdicts__a_method_runs_in_the_sandbox():
    """One sound run, whole: drawn, planned in its process, judged here against a proven optimum."""
    task = drawn_task("pipeline-drawn", 3, 1)
    (verdict,) = method_verdicts(entry_of(), task)
    assert verdict.state == PlanState.LEGAL and 0 < verdict.score <= 1
    assert verdict.problem.reference.proven
    forged = "import os\ndef plan(problem):\n  os.write(3, b'x'); os._exit(0)"
    (verdict,) = method_verdicts(entry_of(forged), task)
    assert verdict.state == PlanState.ILLEGAL and verdict.cost == verdict.problem.trivial
    assert verdict.reasons[0].startswith("problem 'drawn/3-0': the method ")


@pytest.fixture
def here(monkeypatch):
    """Methods run in this process, so that the judge's part is tested quickly."""

    def run(function, argument, limits, unsafe):
        try:
            value = json.loads(json.dumps(planned(argument)))
        except Exception as error:
            return Outcome(None, f"raised {type(error).__name__}: {error}", 0.0)
        return Outcome(value, "", 0.0, HALF)

    monkeypatch.setattr(judging, "run", run)
    monkeypatch.setattr("parenvs.leaderboard.check.require_isolation", lambda: None)
    monkeypatch.setattr("parenvs.leaderboard.check.drawn_task", lambda n, s: drawn_task(n, s, 2))


def test_check__asks_for_isolation_before_it_solves(monkeypatch):
    """What cannot run is refused at once, not after minutes of references."""

    def solved(*_):
        raise AssertionError("problems were solved for a method that cannot run")

    monkeypatch.setattr("parenvs.leaderboard.check.drawn_task", solved)
    monkeypatch.setattr(runner, "isolation", lambda: HALF)
    runner.require_isolation.cache_clear()
    for _ in range(2):  # that it is missing is not kept, somebody may mend it
        with pytest.raises(IsolationError, match=r"no roof \(it rains\)"):
            check(entry_of())
    with pytest.raises(AssertionError):
        check(entry_of(), unsafe=True)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("x = 1", "has no function plan"),
        ("def plan(problem): return None", "returned NoneType, not a plan"),
        ("def plan(problem): return 7", "returned int, not a plan"),
        ("def plan(problem", "SyntaxError"),
        ("def plan(problem): return {}", "is missing"),
        ("def plan(problem): return {'a': 10**30}", "is missing"),
    ],
)
def test_method_verdicts__wrong_plans_are_illegal(here, script, words):
    (verdict,) = method_verdicts(entry_of(script), drawn_task("pipeline-drawn", 3, 1))
    assert verdict.state == PlanState.ILLEGAL and words in verdict.reasons[0], verdict.reasons


@pytest.mark.thorough
def test_method_verdicts__infeasible_is_left_out(here):
    script = "from parenvs.errors import InfeasibleError\ndef plan(p): raise InfeasibleError('x')"
    checked = check(entry_of(script), seed=3)
    assert checked.count(PlanState.MISSING) == 2 and checked.reasons == () and checked.score < 1


@pytest.mark.thorough
def test_pages__show_methods_beside_each_other(here):
    """One that fails is in the ranking, its fault below; the site has pages of all."""
    sound, bad = entry_of(), entry_of("def plan(p): return 1 / 0", name="bad")
    entries = [check(entry, seed=3) for entry in (sound, bad)]
    known = with_drawn(TaskList(1, 1, {}), entries)
    assert list(known.tasks) == ["pipeline-drawn"]
    assert [s.checked.entry.entry for s in ranking(known.task("pipeline-drawn"), entries)] == [
        "mine", "bad"
    ]  # fmt: skip
    page = methods_page(entries, 3)
    assert "--seed 3" in page and "| 1 | mine |" in page and "2 illegal" in page
    assert re.search(r"\* bad: .*ZeroDivisionError", page)
    files = site_files(known, entries)
    assert "Isolation of mine: walls; WITHOUT roof (it rains)." in page
    assert "walls; WITHOUT roof (it rains)" in files["entries/pipeline-drawn/mine.html"]
    assert "entries/pipeline-drawn/bad.html" in files and "tasks/pipeline-drawn.html" in files


@pytest.mark.thorough
def test_commands__a_method_is_checked_with_a_seed(here, run, tmp_path):
    entry_of().save(tmp_path / "pipeline-drawn" / "mine.json")
    file = "pipeline-drawn/mine.json"
    scores = []
    for seed in (3, 4):
        status, out, err = run("check", "--json", "--seed", seed, file)
        assert status in (0, None) and "mine: isolation: walls; WITHOUT roof" in err
        (task,) = (task for task in json.loads(out)["tasks"] if task["standings"])
        assert task["name"] == "pipeline-drawn" and len(task["problems"]) == 2
        assert task["standings"][0]["isolation"]["missing"] == ["roof (it rains)"]
        scores.append(task["standings"][0]["score"])
    assert scores[0] != scores[1]
    assert run("check", "--seed", "-1", file)[0] == 2


@pytest.mark.thorough
def test_commands__nothing_of_strangers_runs_without_isolation(here, run, tmp_path, monkeypatch):
    """What needs no isolation is judged all the same, and one option asks for the rest."""

    def refuse(function, argument, limits, unsafe):
        if unsafe:
            return Outcome(None, "ran", 0.0, HALF)
        raise IsolationError(HALF)

    monkeypatch.setattr(judging, "run", refuse)
    entry_of().save(tmp_path / "pipeline-drawn" / "mine.json")
    other = BOARD / "submissions" / "data-parallel" / "greedy.json"
    status, out, err = run("check", "pipeline-drawn/mine.json", other)
    assert status == 2 and "greedy" in out
    assert "mine.json: not run: this system gives no roof (it rains)" in err
    assert "--unsafe-no-isolation" in err and "please open an issue" not in err
    status, _, err = run("check", "--unsafe-no-isolation", "pipeline-drawn/mine.json")
    assert "the method ran" in err
    assert run("table", "--folder", tmp_path)[0] == 2


def test_entry__a_script_is_a_file_beside_it(tmp_path):
    path = tmp_path / "mine.json"
    entry = entry_of()
    entry.save(path)
    assert load_entry(path) == entry and (tmp_path / "mine.py").read_text() == SOUND
    content = json.loads(path.read_text())
    for change, words in (
        ({"script": "../mine.py"}, "field 'script' must be 'mine.py'"),
        ({"script": 1}, "field 'script' must be"),
        ({"plans": {}}, "unknown field 'plans'"),
        ({"task": "pipelines-drawn"}, "field 'task' is"),
        ({"learned": True}, "must name something"),
    ):
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(EntryError, match=words):
            load_entry(path)
    path.write_text(json.dumps(content))
    for data, words in (
        (b"\xff", "is not UTF-8"),
        (b"#" * (MAX_SCRIPT + 1), "has more than"),
        (None, "is no file beside the entry"),
    ):
        (tmp_path / "mine.py").unlink()
        if data is not None:
            (tmp_path / "mine.py").write_bytes(data)
        with pytest.raises(EntryError, match=words):
            load_entry(path)
    (tmp_path / "mine.py").symlink_to("/etc/passwd")
    with pytest.raises(EntryError, match="is no file"):
        load_entry(path)


def test_submission__drawn_tasks_take_no_plans():
    with pytest.raises(ParenvsError, match="takes no plans"):
        submission("elastic", lambda p: p, entry="x", authors=["a"], method="x")


def test_scripts__have_a_page():
    """The committed page ranks every committed method."""
    text = (BOARD / "methods.md").read_text(encoding="utf-8")
    for path in FILES:
        assert f"## {path.parent.name}\n" in text and f"| {path.stem} |" in text
    assert not set(kinds(drawn=True)) & set(tasks().tasks)


def test_improvements__drawn_problems_are_none_of_the_list(here):
    """A method that beats a reference without proof scores above 1, and changes no list."""
    checked = check(entry_of(), seed=3)
    first = checked.verdicts[0]
    worse = replace(first.problem.reference, cost=2 * first.cost, status="bound")
    better = replace(first, problem=replace(first.problem, reference=worse), improves=True)
    assert better.score == pytest.approx(2)
    assert improvements([replace(checked, verdicts=(better,))]) == {}
