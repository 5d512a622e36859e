"""Methods: scripts on generated problems, run by a command template that a maintainer gives."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from parenvs.core.leaderboard import kind_of, kinds
from parenvs.errors import ParenvsError
from parenvs.leaderboard import methods
from parenvs.leaderboard.check import PlanState, check, check_file
from parenvs.leaderboard.entry import Entry, EntryError, entry_files, load_entry
from parenvs.leaderboard.methods import PLAIN, digest
from parenvs.leaderboard.ranking import ranking
from parenvs.leaderboard.tasks import Task, tasks

SUBMISSIONS = Path(__file__).parents[2] / "leaderboard" / "submissions"
DRAWN = [name for name, kind in kinds().items() if kind.draw is not None]
METHODS = [path for name in DRAWN for path in entry_files(SUBMISSIONS) if path.parent.name == name]
EVEN = SUBMISSIONS / "pipeline-drawn" / "even.json"


@pytest.fixture
def few(monkeypatch):
    """Runs meet two generated problems in place of all."""

    def solved(name, seed):
        kind = kind_of(name)
        problems = {}
        for number in range(2):
            problem = kind.draw(seed, number)
            solved_problem = replace(
                problem, reference=problem.solved(5.0), trivial=problem.trivial_cost()
            )
            problems[problem.name] = solved_problem
        return Task(name, **kind.fields(), problems=problems)

    monkeypatch.setattr(methods, "solved_task", solved)


@pytest.mark.thorough
@pytest.mark.parametrize("task", DRAWN)
def test_draw__a_seed_decides_the_problem(task):
    """The same seed and number give the same problem; another seed gives another."""
    first, same, other = (kind_of(task).draw(seed, 0) for seed in (5, 5, 6))
    assert first.fingerprint == same.fingerprint and first.settings == same.settings
    assert first.fingerprint != other.fingerprint
    assert first.trivial_cost() > 0 and first.head["fingerprint"] == first.fingerprint


@pytest.mark.thorough
@pytest.mark.parametrize("task", DRAWN)
def test_tasks__list_the_problems_of_its_seed(task):
    known = tasks()
    for number, problem in enumerate(known.task(task).problems.values()):
        assert problem.settings["seed"] == known.seed
        assert kind_of(task).draw(known.seed, number).fingerprint == problem.fingerprint


@pytest.mark.parametrize("path", METHODS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_scripts__are_those_of_the_entries(path):
    entry = load_entry(path)
    assert digest(path.with_suffix(".py")) == entry.script
    assert not check_file(path).is_lodged  # the first list's seed was known from the start


@pytest.mark.slow
def test_check__a_runner_runs_the_script(run, few, tmp_path):
    """On the seed of the list it finds the plans of the entry, on another one others."""
    entry = load_entry(EVEN)
    again = check_file(EVEN, runner=f"{sys.executable} {{script}}")
    for verdict in again.verdicts:
        if verdict.state == PlanState.LEGAL:
            assert again.entry.plans[verdict.problem.name] == entry.plans[verdict.problem.name]
    other = check_file(EVEN, seed=3, runner=PLAIN)
    assert [v.problem.name for v in other.verdicts] == ["drawn/3-0", "drawn/3-1"]
    status, out, _ = run("check", EVEN, "--seed", "3", "--runner", f"{sys.executable} {{script}}")
    assert status in (0, None) and "drawn/3-1" in out


def test_check__without_a_runner_nothing_runs(run, monkeypatch):
    monkeypatch.setattr(methods.subprocess, "run", lambda *_, **__: pytest.fail("it ran"))
    assert check_file(EVEN).count(PlanState.LEGAL) >= 5
    status, _, err = run("check", EVEN, "--seed", "3")
    assert status == 2
    line = next(line for line in err.splitlines() if "--runner" in line)
    assert line.endswith("give --runner 'COMMAND {script}', which has to confine it")


@pytest.mark.parametrize(
    ("script", "runner", "words"),
    [
        ("print('[]')", PLAIN, "wrote no object with 'plan' and 'seconds'"),
        ("print('{')", PLAIN, "no JSON in UTF-8"),
        ('print(\'{"plan": null, "plan": null, "seconds": 0}\')', PLAIN, "'plan' stands twice"),
        ("import sys; sys.exit('too\\nlarge')", PLAIN, "status 1: large"),
        ("import time; time.sleep(9)", PLAIN, "no plan after 1 s"),
        ("", "/no/such/program {script}", "--runner: "),
        ("", "python", "has no {script}"),
        (None, PLAIN, "not the script whose SHA-256 the entry has"),
    ],
)
def test_check__scripts_that_fail_are_refused_in_a_line(
    few, monkeypatch, tmp_path, script, runner, words
):
    monkeypatch.setattr(methods, "SECONDS", 1.0)
    path = tmp_path / "mine.py"
    path.write_text("x = 1" if script is None else script)
    entry = replace(load_entry(EVEN), script="0" * 64 if script is None else digest(path))
    with pytest.raises(ParenvsError, match=words.replace("{", r"\{").replace("(", r"\(")) as caught:
        check(entry, 3, runner, path)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_submit__a_script_of_ones_own(run, tmp_path):
    """It is run as it is, and the entry holds its plans, its hash and what its docstring says."""
    (tmp_path / "mine.py").write_text(EVEN.with_suffix(".py").read_text())
    words = ["--script", "mine.py", "--author", "Ada", "--folder", "made"]
    status, _, err = run("submit", "--task", "pipeline-drawn", *words)
    assert status in (0, None), err
    entry = load_entry(tmp_path / "made" / "pipeline-drawn" / "mine.json")
    old = load_entry(EVEN)
    assert (entry.plans, entry.script) == (old.plans, old.script)
    assert entry.method == "Even shares of the seconds and of the devices."
    status, _, err = run("submit", "--task", "data-parallel", *words)
    assert status == 2 and "takes plans, not scripts" in err
    assert run("submit", *words)[0] == 2


def test_lodged__a_hash_in_the_list_is_no_mark(monkeypatch):
    checked = check_file(EVEN)
    (standing,) = ranking(checked.task, [checked])
    assert "script not lodged before the seed" in standing.mark
    known = replace(tasks(), lodged={1: (checked.entry.script,)})
    monkeypatch.setattr("parenvs.leaderboard.check.tasks", lambda version=None: known)
    assert checked.is_lodged and standing.mark == "1 missing"


def test_entry__a_method_names_its_script():
    content = load_entry(EVEN).to_json()
    for script in ("", "even.py", 7, None):
        with pytest.raises(EntryError, match="'script' must be the SHA-256"):
            Entry.from_json({**content, "script": script})
    with pytest.raises(EntryError, match="'script' is missing"):
        Entry.from_json({key: x for key, x in content.items() if key != "script"})
    assert json.dumps(Entry.from_json(content).to_json()) == json.dumps(content)
