"""``parenvs bench speed``, and speeds beside CartPole's that must not get lost."""

import json
import sys
from dataclasses import asdict

import numpy as np
import pytest
from commands import caller

from parenvs.bench import play, scaling
from parenvs.bench import speed as bench_speed
from parenvs.bench.page import host
from parenvs.bench.play import BARE
from parenvs.bench.speed import (
    BASE,
    BASELINE,
    BATCH,
    CHAIN,
    ELASTIC,
    OPERATOR,
    PARTITION,
    PLAN,
    QUICK,
    SHARDING,
)
from parenvs.machine import processor


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("--quick", ...)`` of ``parenvs bench speed`` in an empty folder: (status, out, err)."""
    return caller(monkeypatch, capfd, tmp_path, "bench", "speed")


def positive(runs, repeats):
    return len(runs) == repeats and all(0 < x < float("inf") for x in runs)


def check(data):
    """The shape of the results of ``--quick``."""
    effort, repeats = data["effort"], data["effort"]["repeats"]
    assert all(word in data["machine"] for word in (processor(), "core", "numpy", "gymnasium"))
    found = {(row["what"], row["envs"]): row for row in data["environments"]}
    assert len(found) == len(data["environments"])
    ids = {row["id"] for row in data["environments"]}
    assert ids == {
        BASELINE, bench_speed.CUT, PLAN, OPERATOR, BATCH, bench_speed.HYBRID, bench_speed.ORDER,
        bench_speed.SHARDING, PARTITION, ELASTIC,
    }  # fmt: skip
    for (what, envs), row in found.items():
        assert envs in (0, *effort["sizes"])
        for key in ("steps_per_second", "over_single", "over_cartpole", "of_copying"):
            assert positive(row[key], repeats), (what, key)
        assert positive(row["reset_seconds"], repeats)
        assert row["actions"] >= 2
        assert row["observation_bytes"] >= 16
        if what == BASELINE:
            assert row["over_cartpole"] == [1.0] * repeats
        if not envs:
            assert row["over_single"] == [1.0] * repeats
    assert [row["what"] for row in data["ahead"]] == list(bench_speed.ROWED)
    for row in data["ahead"]:
        assert positive(row["rows"], repeats) and positive(row["formulas"], repeats)
        assert row["plans"] >= 2
    assert [row["pivots"] for row in data["growth"]["pivots"]] == list(effort["pivots"])
    assert [row["layers"] for row in data["growth"]["classes"]] == list(effort["layers"])
    for row in data["growth"]["pivots"] + data["growth"]["classes"]:
        assert positive(row["steps_per_second"], repeats)
        assert row["making_s"] > 0
    assert {row["what"] for row in data["memory"]} == {what for what, _ in found} - {BASELINE}
    for row in data["memory"]:
        assert 0 < row["bounds"] < row["held"]
        assert 0 < row["state"] < row["held"]
        assert row["in_a_step"] > 0
    assert len(data["parts"]) == 12
    for row in data["parts"]:
        assert positive(row["seconds"], repeats), row["what"]
    assert bool(data["training"]) != bool(data["training_missing"])
    for row in data["training"]:
        assert positive(row["steps_per_second"], repeats)


@pytest.mark.slow
def test_bench_speed__quick(run, tmp_path):
    status, out, err = run("--quick", "--repeats", "1", "--out", "results")
    assert status == 0, err
    assert "round 1 of 1" in err
    folder = tmp_path / "results"
    data = json.loads((folder / "bench_speed.json").read_text())
    check(data)
    assert data["command"] == "parenvs bench speed --quick --repeats 1"
    page, short = ((folder / f"bench_speed{x}.md").read_text() for x in ("", "_summary"))
    assert short.strip() in out
    assert data["machine"] in page
    shown = bench_speed.bench_speed.shown(data, folder, {}, data["command"], data["machine"])
    assert shown == {"bench_speed": page, "bench_speed_summary": short}
    assert str(tmp_path) not in page + short + json.dumps(data)
    for row in data["environments"]:
        assert f"| {row['what']} |" in page
        assert f"| {row['what']} |" in short


def test_bench_speed__only_some(run, tmp_path, monkeypatch):
    """Rows of some environments are measured anew; all rows say of which commit they are."""

    def timed(what, case=(PARTITION, {}), rate=2.0):
        keys = ("steps_per_second", "over_single", "over_cartpole", "of_copying", "reset_seconds")
        sizes = {"envs": 1, "actions": 2, "observation_bytes": 16}
        return {"what": what, "id": case[0], "kwargs": {}, **sizes, **{key: [rate] for key in keys}}

    monkeypatch.setattr(bench_speed, "speeds", lambda x, *_: [timed(*each) for each in x.items()])
    looking = {"what": PARTITION, "envs": 1, "plans": 2, "rows": [1.0], "formulas": [1.0]}
    monkeypatch.setattr(bench_speed, "ahead", lambda *_: dict(looking))
    held = {"envs": 1, "state": 1, "held": 2, "bounds": 1, "in_a_step": 1}
    monkeypatch.setattr(bench_speed, "memory", lambda what, *_: {"what": what, **held})
    command = ("--quick", "--only", PARTITION, "--out", ".")
    assert "no such run yet" in run(*command)[2]
    old = [timed(what, rate=1.0) for what in (BASELINE, f"{PARTITION}{BARE}", "another")]
    content = {
        "machine": host(), "made": {"commit": "1" * 12}, "effort": asdict(QUICK),
        "environments": old, "ahead": [looking], "memory": [{"what": "another", **held}],
        "growth": {"pivots": [], "classes": []}, "parts": [], "training": [],
        "training_missing": "no",
    }  # fmt: skip
    path = tmp_path / "bench_speed.json"
    path.write_text(json.dumps(content))
    status, _, err = run(*command)
    assert status == 0, err
    found = json.loads(path.read_text())
    assert found["made"] == content["made"]
    rates = [row["steps_per_second"] for row in found["environments"]]
    assert rates == [[1.0], [2.0], [1.0]]
    page = (tmp_path / "bench_speed.md").read_text()
    assert "commits 111111111111 (3 rows), " in page and " (2 rows)" in page
    path.write_text(json.dumps({**content, "machine": "another"}))
    assert "other options or machines" in run(*command)[2]


def test_bench_speed__without_the_agents_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "parenvs.bench.training", None)
    rows, missing = bench_speed._training(QUICK, print)
    assert rows == []
    assert "extra 'agents'" in missing


@pytest.mark.thorough
def test_training_rates__of_whole_updates(monkeypatch):
    pytest.importorskip("torch")
    from parenvs.bench import training

    monkeypatch.setattr(training, "AGENTS", ("ppo",))
    monkeypatch.setattr(training, "CASES", training.CASES[:1])
    (row,) = training.training_rates(64, 2)
    assert (row["agent"], row["id"], row["envs"]) == ("ppo", "PipelineCut-v0", 64)
    assert len(row["steps_per_second"]) == 2 and min(row["steps_per_second"]) > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--repeats", "0"), "--repeats must be from 1"),
        (("--seconds", "0"), "--seconds must be over 0"),
        (("--seconds", "nan"), "--seconds must be over 0"),
    ],
)
def test_bench_speed__refuses(run, arguments, words):
    status, _, err = run(*arguments)
    assert status == 2
    assert words in err


@pytest.mark.slow
def test_play__plays_are_legal(tmp_path):
    """Replayed actions mean what they meant when they were drawn: nobody ends by -1."""
    for what, case in bench_speed.cases(tmp_path).items():
        for count in (3,) if what.endswith(play.VIEWS) else (0, 3):
            env = play.make(case, count)
            rewards, step = [], env.unwrapped.step
            one_pass, steps = play.batch_play(env) if count else play.single_play(env, 50)

            def spy(action, step=step, rewards=rewards, what=what):
                result = step(action)
                # Plans over the memory may pay as little, where masks leave them, and plans that
                # cost many times as much as the best: they have a cost.
                over = np.atleast_1d(result[4].get("excess_bytes", 0.0)) > 0
                over &= what.startswith(bench_speed.HYBRID)
                over = over | (np.nan_to_num(np.atleast_1d(result[4].get("cost", 0.0))) > 0)
                rewards.extend(np.where(over, 0.0, result[1]))
                return result

            env.unwrapped.step = spy
            one_pass()
            assert len(rewards) == steps, what
            assert min(rewards) > -1 or what == BASELINE, what


@pytest.mark.slow
@pytest.mark.parametrize("env_id", bench_speed.ROWED)
def test_judging__leaves_episodes_as_they_are(env_id):
    env, rng = play.make((env_id, {}), 4), np.random.default_rng(0)
    _, info = env.reset(seed=0)
    for _ in range(3):
        info = env.step(play.draw_actions(rng, info, 4))[-1]
    game = env.unwrapped.game
    before = {key: value.copy() for key, value in game.observation(slice(None)).items()}
    for timed in game.judging(np.flatnonzero(~game.over)):
        assert timed.plans >= 2
        timed.call()
        after = game.observation(slice(None))
        assert all(np.array_equal(before[key], after[key]) for key in before)
    assert play.rate(*game.judging(np.flatnonzero(~game.over))[1], 0.001) > 0


def test_scaling__grows(tmp_path):
    rows = [scaling.pivots(n, 4, tmp_path, 0.001, 1) for n in (32, 64)]
    assert rows[0]["actions"] < rows[1]["actions"] <= 64
    rows = [scaling.classes(n, 4, tmp_path, 0.001, 1) for n in (2, 5)]
    assert [row["classes"] for row in rows] == [3, 6]


# No regression: ratios in one process, a third of what was measured, and the best of
# five rounds, so that a busy machine passes. Processor time; what others do counts through caches.
LEAST = [
    (CHAIN, 0, "over_cartpole", 0.3 / 3),
    (CHAIN, 8, "over_single", 2 / 3),
    (CHAIN, 64, "over_cartpole", 1 / 3),
    (CHAIN, 1024, "over_cartpole", 0.15 / 3),
    (BASE, 8, "over_single", 1.0),
    (BASE, 1024, "over_cartpole", 0.45 / 3),
    (f"{BATCH}, t5-base", 8, "over_single", 1.0),
    (f"{BATCH}, t5-base", 1024, "over_cartpole", 1.5 / 3),
    (f"{PLAN}{BARE}", 1024, "over_cartpole", 0.0084 / 3),
    (f"{PARTITION}{BARE}", 1024, "over_cartpole", 0.02 / 3),
    (f"{ELASTIC}{BARE}", 1024, "over_cartpole", 0.12 / 3),
    (f"{SHARDING}{BARE}", 1024, "over_cartpole", 0.02 / 3),
]


@pytest.fixture(scope="module")
def speeds(tmp_path_factory):
    """Speeds of the environments in ``LEAST``, by name and number."""
    cases = bench_speed.cases(tmp_path_factory.mktemp("chains"))
    some = {what: cases[what] for what in (BASELINE, *(row[0] for row in LEAST))}
    rows = play.speeds(some, (0, 8, 64, 1024), 0.03, 5)
    return {(row["what"], row["envs"]): row for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize(("what", "envs", "of", "least"), LEAST)
def test_speed__is_kept(speeds, what, envs, of, least):
    row = speeds[what, envs]
    assert max(row[of]) > least, row
