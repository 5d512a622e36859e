import dataclasses
import json
import os
import subprocess
import sys
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
from cases import each

pytest.importorskip("sb3_contrib")

import killed_writers
from commands import caller

from parenvs.agents.learning.config import OVERRIDES
from parenvs.bench import agents as bench
from parenvs.bench import agents_table as bench_table
from parenvs.bench import curves, runs
from parenvs.bench.agents import TrainingRun
from parenvs.bench.problems import BenchProblem, random_value, solve_problems, suites
from parenvs.bench.runs import append, read, run_all
from parenvs.errors import ParenvsError
from parenvs.view.page import write

TIMES = ("seconds", "target_seconds")
ALL = ["--envs", "DataParallel-v0,OperatorPartition-v0", "--instances", "vgg-19", "--agents", "ppo"]
ALL += ["--seeds", "1", "--steps", "2000", "--out", "results"]


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("--agents", ...)`` of ``parenvs bench agents`` in one folder: (status, out, err)."""
    return caller(monkeypatch, capfd, tmp_path, "bench", "agents")


def untimed(path):
    """The lines of a file, in the order of their runs, without the times."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if k not in TIMES} for line in lines]
    return sorted(kept, key=bench.key_of)


def problem_of(**changes):
    values = {
        "env_id": "PipelineCut-v0",
        "setting": "A",
        "instance": "vgg-19",
        "env_kwargs": {"instance": "vgg-19", "cluster": "A"},
        "episode_steps": 1,
        "fingerprint": "sha256:0",
        "cluster": {"servers": 2},
        "reward": "1/L",
        "optimum": 0.8,
        "references": {"even": 0.4},
    }
    return BenchProblem(**{**values, **changes})


def record_of(problem, seed=0, agent="ppo", **changes):
    """A run that reaches the optimum after 100 (seed + 1) steps."""
    values = {
        "agent": agent,
        "problem": problem.name,
        "seed": seed,
        "settings_hash": "0",
        "settings": {"full": False},
        "budget": 1000,
        "value": problem.optimum,
        "target_steps": 100 * (seed + 1),
        "target_seconds": 0.5 * (seed + 1),
        "seconds": 10.0,
        "random_value": problem.optimum / 2,
        "machine": "a machine",
        "jobs": 1,
        "points": [[100, 0.5 * problem.optimum], [1000, problem.optimum]],
    }
    return {**values, **changes}


MISSED = {"target_steps": None, "target_seconds": None}


@pytest.mark.slow
def test_bench__runs_what_is_missing_only(run, tmp_path, monkeypatch):
    status, out, err = run(*ALL)
    assert status == 0, err
    assert "5 runs, of which 0 are in" in err
    assert "5/5 " in err
    assert "OperatorPartition-v0" in out
    folder = tmp_path / "results"
    lines = folder / "agents.jsonl"
    first = untimed(lines)
    names = {
        f"OperatorPartition-v0 {v} vgg-19"
        for v in suites()["OperatorPartition-v0"].settings["OperatorPartition-v0"]
    }
    assert {x["problem"] for x in first} == names | {"DataParallel-v0 paper vgg-19"}
    assert len(first) == 5
    page, picture = (folder / "agents.md").read_text(), (folder / "curves.png").read_bytes()

    whole = lines.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(bench, "perform", lambda run: pytest.fail(f"ran again: {run}"))
        for more in ([], ["--render-only"]):
            (folder / "agents.md").unlink()
            status, _, err = run(*ALL, *more)
            assert status == 0, err
            assert "of which 5 are in" in err
            assert lines.read_bytes() == whole
            assert (folder / "agents.md").read_text() == page
            assert (folder / "curves.png").read_bytes() == picture

    lines.write_bytes(whole[:-40])
    status, _, err = run(*ALL)
    assert status == 0
    assert "1/1 " in err
    assert untimed(lines) == first
    assert lines.read_bytes().startswith(whole[: whole[:-1].rfind(b"\n") + 1])


@pytest.mark.slow
def test_bench__interrupted(run, tmp_path, monkeypatch):
    done, real = [], bench.perform

    def interrupted(run):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(run.key)
        return real(run)

    with monkeypatch.context() as patch:
        patch.setattr(bench, "perform", interrupted)
        status, _, err = run(*ALL)
    assert status == 2
    assert "parenvs: interrupted" in err
    assert "Traceback" not in err
    path = tmp_path / "results" / "agents.jsonl"
    assert list(read(path, bench.key_of)) == done
    status, _, err = run(*ALL, "--render-only")
    assert status == 0
    assert "no run yet" in (tmp_path / "results" / "agents.md").read_text()
    status, _, err = run(*ALL)
    assert status == 0
    assert "3/3 " in err
    assert len(path.read_text().splitlines()) == 5


@pytest.mark.thorough
def test_perform__record():
    problems, _ = solve_problems(["OperatorPartition-v0"], ["vgg-19"], [])
    problem = next(p for p in problems if p.setting == "step_time/automap")
    record = bench.perform(TrainingRun(problem, "ppo", 3, 2048, full=True))
    assert json.loads(json.dumps(record)) is not None
    assert bench.key_of(record) == TrainingRun(problem, "ppo", 3, 2048, full=True).key
    assert record["value"] < record["target"] == problem.target < record["optimum"]
    assert record["target_steps"] is None
    assert record["steps_done"] == 2048
    assert record["random_value"] == random_value(problem, record["episodes"], 3)
    steps, mean = record["points"][-1]
    assert steps <= record["steps_done"] and mean <= record["value"]
    assert problem.references["greedy"] < problem.target


@pytest.mark.thorough
@pytest.mark.parametrize("jobs", [1, 2])
def test_run_all__every_run_once(jobs):
    runs = [TrainingRun(problem_of(), "ppo", seed, 100) for seed in range(5)]
    records = list(run_all(dataclasses.asdict, runs, jobs))
    assert sorted(r["seed"] for r in records) == [0, 1, 2, 3, 4]
    assert {r["problem"]["fingerprint"] for r in records} == {"sha256:0"}


@pytest.mark.slow
def test_run_all__an_error_ends_the_processes():
    before = set(active_children())
    with pytest.raises(TypeError):
        list(run_all(len, [TrainingRun(problem_of(), "ppo", seed, 100) for seed in range(5)], 2))
    assert set(active_children()) == before


def test_solve_problems__within_memory(monkeypatch):
    """A variant with a limit: the optimum keeps to it, and what does not is worth -1."""
    variants = {
        "fits": {"devices": 8, "reward": "step_time", "memory_limit": 3.2e9},
        "none": {"devices": 8, "reward": "step_time", "memory_limit": 1e9},
    }
    settings = suites()["OperatorPartition-v0"].settings
    monkeypatch.setitem(settings, "OperatorPartition-v0", variants)
    (problem,), skipped = solve_problems(["OperatorPartition-v0"], ["vgg-19"], [])
    assert list(skipped) == ["OperatorPartition-v0 none vgg-19"]
    assert problem.setting == "fits"
    assert 0 < random_value(problem, 2000, 0) <= problem.optimum + 1e-12 < 0.85


@pytest.mark.thorough
def test_solve_problems__infeasible_are_named():
    problems, skipped = solve_problems(["PipelineCut-v0"], ["vgg-19", "t5-11b"], ["A", "B"])
    assert [p.name for p in problems] == ["PipelineCut-v0 A vgg-19", "PipelineCut-v0 B vgg-19"]
    assert list(skipped) == ["PipelineCut-v0 A t5-11b", "PipelineCut-v0 B t5-11b"]
    assert "memory" in skipped["PipelineCut-v0 A t5-11b"]
    assert problems[0].optimum == pytest.approx(0.9233, abs=1e-4)
    assert problems[0].references["even"] == pytest.approx(0.4295, abs=1e-4)


@each(("reward", "target"), [("1/L", 0.8 * 0.999), ("paper", 0.8 * 0.999), ("step_time", 0.7998)])
def test_problem__target_is_a_cost_within_a_thousandth(reward, target):
    problem = problem_of(reward=reward)
    assert problem.target == pytest.approx(target, abs=1e-12)
    assert problem.gap(problem.optimum) == 0
    assert problem.gap(problem.target) == pytest.approx(1e-3, rel=2e-3)
    assert problem.gap(0.4) == pytest.approx({"1/L": 1.0, "paper": 0.5, "step_time": 2.0}[reward])
    assert problem_of().gap(-1.0) == np.inf


def test_key__changes_with_whatever_decides_a_run(monkeypatch):
    base = TrainingRun(problem_of(), "ppo", 0, 1000)
    same = TrainingRun(problem_of(), "ppo", 0, 1000)
    assert base.key == same.key
    others = [
        TrainingRun(problem_of(), "rainbow", 0, 1000),
        TrainingRun(problem_of(), "ppo", 1, 1000),
        TrainingRun(problem_of(), "ppo", 0, 1001),
        TrainingRun(problem_of(), "ppo", 0, 1000, full=True),
        TrainingRun(problem_of(fingerprint="sha256:1"), "ppo", 0, 1000),
        TrainingRun(problem_of(cluster={"servers": 3}), "ppo", 0, 1000),
        TrainingRun(problem_of(optimum=0.81), "ppo", 0, 1000),
        TrainingRun(problem_of(episode_steps=2), "ppo", 0, 1000),
        TrainingRun(problem_of(instance="t5-base"), "ppo", 0, 1000),
    ]
    assert len({base.key, *(run.key for run in others)}) == 1 + len(others)
    for change in ({"discount": 0.5}, {"envs": 3}):
        with monkeypatch.context() as patch:
            patch.setitem(OVERRIDES, ("PipelineCut-v0", "ppo"), change)
            assert TrainingRun(problem_of(), "ppo", 0, 1000).key != base.key
    assert TrainingRun(problem_of(), "ppo", 0, 1000).key == base.key


def test_row__seeds_medians_gap_random_and_heuristic():
    problem = problem_of()
    good = [record_of(problem, seed) for seed in range(3)]
    late = record_of(problem, 3, target_steps=1001, value=0.8)
    lost = record_of(problem, 4, value=0.4, random_value=0.8, **MISSED)
    cells = bench_table.row(problem, [*good, late, lost], ["ppo", "rainbow"])
    assert cells[:3] == ["A", "vgg-19", "0.8000"]
    assert cells[3] == "3 of 5; 300; 1.50 s; gap 0.00 %"
    assert cells[4:] == ["no run yet", "1 of 5", "", "even: gap 100.00 %"]
    few = bench_table.row(problem, [good[0], late, lost], ["ppo"])
    assert few[3] == "1 of 3; gap 0.00 %"
    none = bench_table.row(problem, [{**lost, "value": -1.0}], ["ppo"])
    assert none[3] == "0 of 1; no legal plan"
    solved = problem_of(references={"greedy": 0.8})
    assert bench_table.row(solved, good, ["ppo"])[-1] == "greedy: optimal"


def test_totals__by_agent_and_task():
    one, two = problem_of(), problem_of(setting="B")
    other = problem_of(env_id="DataParallel-v0", setting="paper", reward="paper")
    records = [record_of(one, 0), record_of(one, 1), record_of(two, 0)]
    records += [record_of(two, 1, random_value=0.8, **MISSED), record_of(other, agent="rainbow")]
    rows = bench_table.totals([one, two, other], records, ["ppo", "rainbow"])
    assert rows == [
        ["ppo", "PipelineCut-v0", "3 of 4", "1 of 2", "0 of 2", "1 of 4", "40"],
        ["ppo", "DataParallel-v0", "0 of 0", "0 of 0", "0 of 0", "0 of 0", "0"],
        ["rainbow", "PipelineCut-v0", "0 of 0", "0 of 0", "0 of 0", "0 of 0", "0"],
        ["rainbow", "DataParallel-v0", "1 of 1", "1 of 1", "0 of 1", "0 of 1", "10"],
    ]


@each(
    ("values", "randoms", "expected"),
    [
        ([0.8, 0.8], [0.8, 0.8], True),
        ([0.8, 0.8], [0.8, 0.7], False),
        ([0.8, 0.5], [0.8, 0.7], True),
        ([0.5, 0.5], [0.6, 0.7], True),
        ([0.5, 0.5], [0.4, 0.4], False),
        ([0.5, 0.5], [0.5 - 1e-9, 0.5], True),
    ],
)
def test_random_as_good(values, randoms, expected):
    problem = problem_of()
    runs = [
        record_of(problem, value=v, random_value=r, **({} if v == 0.8 else MISSED))
        for v, r in zip(values, randoms, strict=True)
    ]
    assert bench_table.random_as_good(problem, runs) == expected


def test_markdown__says_plainly():
    one, two = problem_of(), problem_of(instance="t5-base", references={"even": 0.8})
    records = [record_of(one), record_of(two, random_value=0.8)]
    skipped = {"PipelineCut-v0 A t5-11b": "no plan fits the memory"}
    options = {"problems": [one, two], "skipped": skipped, "agents": ["ppo"]}
    pages = bench_table.agents.shown(records, Path(), options, "the command", "")
    page, short = pages["agents"], pages["agents_totals"]
    assert "`the command`" in page
    assert "No plan is legal, so nothing is run: A t5-11b." in page
    assert "within a budget of environment steps (ppo 1,000)" in page
    row = "| A | t5-base | 0.8000 | 1 of 1; 100; 0.50 s | 1 of 1 | even: optimal |"
    assert row in page
    where = "(PipelineCut-v0: A (t5-base))"
    assert f"A heuristic reaches the optimum on 1 of 2 problems {where}." in page
    assert f"is as good on 1 of 2 problems {where}. A heuristic is as good on 1 {where}." in page
    widths = {
        line.count("|") for line in page.split("## In all")[0].splitlines() if line[:1] == "|"
    }
    assert widths == {7}
    assert "2 problems, 1 seeds each, within a budget of environment steps (ppo 1,000)" in short
    assert "| ppo | PipelineCut-v0 | 2 of 2 | 2 of 2 | 0 of 2 | 1 of 2 | 20 |" in short
    assert f"A heuristic reaches the optimum on 1 of 2 problems {where}." in short


def test_thinned__means_at_equal_ratios():
    assert curves.thinned([]) == curves.thinned([(64, float("nan"))]) == []
    assert curves.thinned([(64, 1 / 3)]) == [(64, 0.33333)]
    curve = [(10 * k, float(k)) for k in range(1, 6001)]
    found = curves.thinned(curve)
    assert 35 < len(found) <= curves.POINTS and found[0] == (10, 1.0)
    steps = [steps for steps, _ in found]
    assert steps[-1] == 60_000 and steps == sorted(set(steps))
    first = int(steps[-2] / 10) + 1  # of the last group
    assert found[-1][1] == pytest.approx((first + 6000) / 2, rel=1e-4)
    counted = [value for _, value in curve if np.isfinite(value)]
    assert min(counted) <= min(value for _, value in found)


def test_spread__a_run_that_has_ended_keeps_its_value():
    runs = [[[1, 0.0], [3, 2.0]], [[2, 4.0], [4, 6.0]], [[2, 9.0], [6, 1.0]]]
    steps, middle, low, high = curves.spread([np.array(r, dtype=float) for r in runs])
    assert steps.tolist() == [2, 3, 4]  # two of three have begun, two have ended
    assert middle.tolist() == [4, 5, 5]
    assert low.tolist() == [1, 2, 2]
    assert high.tolist() == [9, 7, 6]


def test_spread__single_points():
    steps, middle, low, high = curves.spread([np.array([[x, x / 10]]) for x in (4, 2, 8)])
    assert (steps.tolist(), middle.tolist()) == ([4], pytest.approx([0.3]))
    assert (low.tolist(), high.tolist()) == ([0.2], [0.4])


def picture():
    """Two tasks, a problem without a legal plan, one that was not run, and two agents."""
    one, two = problem_of(), problem_of(instance="t5-11b", setting="B")
    idle = problem_of(env_id="DataParallel-v0", setting="paper", instance="t5-11b")
    records = [record_of(one, s, a) for s in range(3) for a in ("rainbow", "ppo")]
    low = [[10, -1.0], [1000, 0.4]]
    records += [record_of(two, 0, points=low, **MISSED), record_of(two, 1, points=[], **MISSED)]
    return [one, two, idle], {"PipelineCut-v0 A t5-11b": "no plan fits the memory"}, records


@pytest.mark.thorough
def test_figure__a_panel_for_each_problem():
    drawn = curves.draw(*picture())
    panels = {axes.get_gid(): axes for axes in drawn.axes}
    assert len(panels) == len(drawn.axes) == 6  # three settings, two instances
    lines = {x.get_label(): x for x in panels["PipelineCut-v0 A vgg-19"].lines}
    assert lines["ppo"].get_xdata().tolist() == [100, 1000]
    assert lines["ppo"].get_ydata().tolist() == pytest.approx([0.5, 1.0])
    assert lines["ppo"].get_color() != lines["rainbow"].get_color()
    dots = [x for x in panels["PipelineCut-v0 A vgg-19"].lines if x.get_marker() == "o"]
    assert [x.get_xdata()[0] for x in dots] == [200, 200]
    assert dots[0].get_markersize() > dots[1].get_markersize()  # both are seen
    missed = panels["PipelineCut-v0 B t5-11b"].lines
    assert not [x for x in missed if x.get_marker() == "o"]
    assert next(x for x in missed if x.get_label() == "ppo").get_ydata().tolist() == [0, 0.5]
    notes = {name: [t.get_text() for t in axes.texts] for name, axes in panels.items()}
    assert notes["PipelineCut-v0 A t5-11b"] == ["no legal plan"]
    assert notes["DataParallel-v0 paper vgg-19"] == [""]
    assert [x.get_label() for x in panels["DataParallel-v0 paper t5-11b"].lines][1:] == []
    words = [t.get_text() for t in drawn.texts]
    assert [w for w in words if w.startswith("●")] == ["● rainbow", "● ppo"]
    assert any("median and range of 3 seeds" in w for w in words)


@pytest.mark.thorough
def test_figure__axes_reach_the_first_and_the_last_step():
    early, late = [[1, 1.0]], [[200_000, 0.9]]
    records = [record_of(problem_of(), 0, points=early), record_of(problem_of(), 1, points=late)]
    low, high = curves.draw([problem_of()], {}, records).axes[0].get_xlim()
    assert low < 1 and high > 200_000


@pytest.mark.thorough
def test_save__equal_bytes_whatever_the_user_has_set(tmp_path):
    import matplotlib

    def save(path):
        write(path, lambda: curves.draw(*picture()))

    save(tmp_path / "one.png")
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "axes.grid": True}):
        before = dict(matplotlib.rcParams)
        save(tmp_path / "two.png")
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


@pytest.mark.thorough
@each(
    ("arguments", "words"),
    [
        (["--agents", "ppo,rainbwo"], "--agents: unknown 'rainbwo' (did you mean 'rainbow'?)"),
        (["--agents", ","], "--agents: name at least one of ppo"),
        (["--envs", "pipeline"], "--envs: unknown 'pipeline'"),
        (["--instances", "vgg19"], "--instances: unknown 'vgg19' (did you mean 'vgg-19'?)"),
        (["--clusters", "D"], "--clusters: unknown 'D'"),
        (["--seeds", "0"], "--seeds must be from 1"),
        (["--steps", "-5"], "--steps must be from 1"),
        (["--jobs", "0"], "--jobs must be from 1"),
        (["--envs", "PipelineCut-v0", "--instances", "t5-11b", "--clusters", "A"], "memory"),
    ],
)
def test_bench__bad_input_is_one_line(run, tmp_path, arguments, words):
    status, _, err = run(*arguments)
    assert status == 2
    assert err.startswith("parenvs: ")
    assert err.count("\n") == 1
    assert words in err
    assert not list(tmp_path.iterdir())


def test_bench__nothing_to_render(run, tmp_path):
    status, _, err = run(*ALL, "--render-only")
    assert status == 2
    assert "no such run yet" in err
    assert not list(tmp_path.iterdir())


@each("line", ["{", "[1]", "{}", '{"agent": "ppo"}', '"text"'])
def test_read__a_line_of_something_else(tmp_path, line):
    path = tmp_path / "agents.jsonl"
    path.write_text(json.dumps(record_of(problem_of())) + f"\n{line}\n")
    with pytest.raises(ParenvsError, match="line 2: no run"):
        read(path, bench.key_of)


def test_append__replaces_a_line_that_was_cut_off(tmp_path):
    path = tmp_path / "folder" / "agents.jsonl"
    one, two = record_of(problem_of()), record_of(problem_of(), 1)
    append(path, one)
    whole = path.read_text()
    path.write_text(whole + whole[:30])
    assert list(read(path, bench.key_of).values()) == [one]
    append(path, two)
    assert path.read_text() == whole + json.dumps(two) + "\n"


WRITER = """
import sys
from pathlib import Path
from parenvs.bench.runs import append
for number in range(100):
    append(Path(sys.argv[1]), {"writer": sys.argv[2], "number": number, "text": "x" * 5000})
"""


@pytest.mark.slow
def test_append__two_writers_at_once(tmp_path):
    """Each record is there once and whole, also where a line that was cut off is replaced."""
    path = tmp_path / "agents.jsonl"
    path.write_text('{"cut off')
    command = [sys.executable, "-c", WRITER, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    writers = [subprocess.Popen([*command, name], env=environment) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    found = read(path, lambda record: (record["writer"], record["number"]))
    assert sorted(found) == [(name, number) for name in "ab" for number in range(100)]
    assert len(path.read_text().splitlines()) == 200
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.thorough
def test_append__waits_for_another_writer_only_so_long(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "WAIT", 0.1)
    path = tmp_path / "agents.jsonl"
    with (
        killed_writers.holding(path, beside=True) as pid,
        pytest.raises(ParenvsError, match=rf"agents\.jsonl: process {pid} on "),
    ):
        append(path, record_of(problem_of()))
    assert not path.exists()


@pytest.mark.thorough
def test_bench__second_writers_are_refused(run, tmp_path):
    with killed_writers.holding(tmp_path / "results" / "agents.jsonl", beside=True) as pid:
        status, _, err = run(*ALL)
    assert status == 2
    assert f"agents.jsonl: process {pid} on " in err.splitlines()[-1]
