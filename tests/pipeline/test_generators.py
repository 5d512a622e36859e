"""Drawn problems: ranges, ratios, and draws that cannot succeed."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import each
from drawn_problems import ARRAYS, figures, memory_binds, within

from parenvs.cluster import Cluster
from parenvs.datasets.pipeline import problems
from parenvs.datasets.pipeline.families import FAMILIES
from parenvs.datasets.pipeline.problems import (
    INSIDE,
    MEASURED,
    OUTSIDE,
    Ranges,
    draw,
    ratios,
    significant,
)
from parenvs.errors import ParenvsError
from parenvs.shipped import PAPER
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.profile import load_profile


@each("family", FAMILIES)
def test_draw__same_seed_same_problem(family):
    one, again, other = (draw(np.random.default_rng(seed), family) for seed in (5, 5, 6))
    assert figures(one) == figures(again)
    assert figures(one) != figures(other)
    assert one.family == family
    assert one.name == f"generated/{family}"


def test_draw__any_family():
    rng = np.random.default_rng(0)
    assert {draw(rng).family for _ in range(100)} == set(FAMILIES)


@pytest.mark.thorough
@pytest.mark.parametrize(("ranges", "count"), [(INSIDE, 120), (OUTSIDE, 30)])
def test_draw__within_the_ranges(ranges, count):
    rng = np.random.default_rng(11)
    sample = [draw(rng, ranges=ranges) for _ in range(count)]
    for problem in sample:
        within(problem, ranges)
    if ranges is INSIDE:
        assert 0.15 <= np.mean([memory_binds(problem) for problem in sample]) <= 0.35


def test_draw__numbers_are_exact_in_float32():
    profile = draw(np.random.default_rng(1)).pipeline.profile
    for key in ARRAYS:
        values = getattr(profile, key)
        assert (values.astype(np.float32) == values).all()
        assert (significant(values) == values).all()
    assert significant(1 / 3) == 5461 / 2**14
    assert abs(significant(np.pi) / np.pi - 1) < 2**-13


def test_draw__unknown_family():
    with pytest.raises(ParenvsError, match=r"'cn' \(did you mean 'cnn'\?\); known: uniform"):
        draw(np.random.default_rng(0), "cn")


def test_draw__nothing_fits(monkeypatch):
    monkeypatch.setattr(problems, "TRIES", 5)
    heavy = MEASURED[1]._replace(parameters=9.0, activations=1e9)
    ranges = replace(
        INSIDE,
        tight=0.0,
        stages=(2, 2),
        min_ratios=heavy._replace(activations=0.0),
        max_ratios=heavy,
    )
    with pytest.raises(ParenvsError, match="none of 5 problems drawn fits the memory"):
        draw(np.random.default_rng(0), ranges=ranges)


@each(
    ("wrong", "message"),
    [
        ({"devices": (3, 3), "devices_per_server": (8,)}, "no cluster lies within"),
        ({"inter_bw": (500e9, 600e9)}, "no cluster lies within"),
        ({"without": INSIDE}, "no cluster lies within"),
        ({"min_ratios": MEASURED[0]._replace(activations=1e9)}, "the ratios exclude each other"),
    ],
)
def test_draw__impossible_ranges_end(wrong, message):
    with pytest.raises(ParenvsError, match=message):
        draw(np.random.default_rng(0), ranges=replace(INSIDE, **wrong))


@pytest.mark.parametrize("wrong", [{"pivots": (10, 50)}, {"stages": (2, 25)}])
def test_ranges__refuses(wrong):
    with pytest.raises(ParenvsError, match="at least 24 pivots and at most as many stages"):
        Ranges(**wrong)


def test_ratios__of_a_chain_by_hand():
    problem = draw(np.random.default_rng(2), "uniform")
    profile, cluster = problem.pipeline.profile, problem.pipeline.cluster
    device_seconds = (profile.forward.sum() + profile.backward.sum()) / cluster.devices
    weights, cut = profile.parameter_bytes.sum(), np.median(profile.cut_bytes[:-1])
    expected = (
        cut / cluster.inter_bw / device_seconds,
        2 * weights / cluster.inter_bw / device_seconds / problem.pipeline.micro_batches,
        2 * weights / (0.9 * cluster.device.memory_bytes),
        cut / (0.9 * cluster.device.memory_bytes),
    )
    assert ratios(problem.pipeline) == pytest.approx(expected)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PAPER)
def test_ratios__of_real_graphs_are_in_the_middle_of_what_is_drawn(name):
    for text in "ABC":
        cluster = Cluster.parse(text)
        measured = ratios(Pipeline(load_profile(name, cluster), cluster))
        for value, low, high in zip(measured, *MEASURED, strict=True):
            assert low <= value <= high


@pytest.mark.thorough
def test_generators__need_no_agents_and_no_learning_library():
    code = (
        "import sys, parenvs, parenvs.datasets.pipeline.problems\n"
        "heavy = {'torch', 'jax', 'stable_baselines3', 'parenvs.agents'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
