"""Hetero problems: drawn by a seed, stored in sets, found again by name."""

import json

import numpy as np
import pytest
from cases import each

import parenvs
from parenvs.datasets.hybrid import server_sets as hetero_sets
from parenvs.datasets.hybrid.server_sets import FILE, PARTS, hetero_set, make_set, set_names
from parenvs.datasets.hybrid.servers import FAMILIES, TIERS, draw, drawn
from parenvs.errors import ParenvsError, UnknownInstanceError
from parenvs.tasks.hybrid import shipped


@each("tier", TIERS)
def test_draw__seeded_and_within_its_tier(tier):
    rng = np.random.default_rng(0)
    problems = [draw(tier, rng) for _ in range(12)]
    assert [draw(tier, np.random.default_rng(0))] == problems[:1]
    assert len({problem.instance for problem in problems}) == 12
    for problem in problems:
        cluster, shape = problem.cluster, problem.model.shape
        assert cluster.servers == TIERS[tier].servers == len(cluster.speeds)
        assert min(cluster.speeds) >= 0.6 and max(cluster.speeds) <= 1.0
        assert len(set(cluster.speeds)) > 1 and len(problem.model.kinds) == 2
        assert 2 <= shape.layers / cluster.servers <= 2.75
        assert problem.model.reasons_against_tp(8) is None
        assert not shape.tied and problem.batch % cluster.servers == 0


def test_draw__what_is_drawn_is_found_by_name():
    problem = draw("hetero-8", np.random.default_rng(1))
    assert parenvs.problem(problem.instance, task="hybrid") == problem
    place, seed = problem.instance.split("/")
    assert drawn(place, int(seed)) == problem


def test_sets__as_the_command_makes_them(tmp_path):
    """The shipped file is that of its seed, byte for byte, on this machine."""
    assert hetero_sets.main(["--out", str(tmp_path)]) == 0
    made = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    stored = json.loads((shipped.data_folder() / FILE).read_text(encoding="utf-8"))
    assert made == stored and list(made["sets"]) == set_names()


def test_sets__names_families_and_ranges():
    for name in set_names():
        problems = hetero_set(name)
        part = name.rpartition("-")[2]
        assert len(problems) == PARTS[part]
        families = {problem.instance.split("/")[1].rpartition("-")[0] for problem in problems}
        assert families == set(FAMILIES)
        assert all(problem.instance.startswith(f"{name}/") for problem in problems)
    inside = {p.model.shape.hidden for p in hetero_set("hetero-32-test")}
    outside = {p.model.shape.hidden for p in hetero_set("hetero-32-outside")}
    assert not inside & outside
    assert make_set("hetero-8-test", 1) != make_set("hetero-8-test", 2)


def test_sets__a_plan_file_finds_its_problem(tmp_path):
    problem = parenvs.problem("hetero-8-test/generations-000", task="hybrid")
    assert problem in hetero_set("hetero-8-test")
    answer = parenvs.solve(problem, "swap-search")
    answer.plan.save(tmp_path / "plan.json")
    report = parenvs.judge(tmp_path / "plan.json")
    assert report.legal and report.length_seconds == answer.cost


def test_sets__other_settings_may_be_given():
    problem = parenvs.problem("hetero-8/3", "8x8:h100", task="hybrid", batch=128)
    assert problem.batch == 128 and not problem.cluster.speeds


@each(
    ("name", "words"),
    [
        ("hetero-8-test/nothing", "holds 16, like hetero-8-test/spread-000"),
        ("hetero-8/x", "give a seed"),
        ("hetero-8", "give a seed"),
        ("hetero-9/1", "unknown instance"),
    ],
)
def test_names__unknown(name, words):
    with pytest.raises(UnknownInstanceError, match=words):
        parenvs.problem(name, task="hybrid", batch=8)


def test_sets__unknown_and_damaged(tmp_path, monkeypatch):
    with pytest.raises(UnknownInstanceError, match="did you mean"):
        hetero_set("hetero-8-tst")
    with pytest.raises(UnknownInstanceError, match="known: hetero-8"):
        drawn("hetero", 0)
    (tmp_path / FILE).write_text('{"sets": {"hetero-8-test": [{}]}}', encoding="utf-8")
    monkeypatch.setattr(shipped, "data_folder", lambda: tmp_path)
    shipped._sets.cache_clear()
    with pytest.raises(ParenvsError, match="make it anew with python -m"):
        shipped.hetero_sets()
    shipped._sets.cache_clear()


def test_main__negative_seed(capsys):
    assert hetero_sets.main(["--seed", "-1"]) == 2
    assert "--seed is -1; give 0 or more" in capsys.readouterr().err
