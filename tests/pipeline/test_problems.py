"""Generated problems: families, ranges, names, stored sets, and damaged files."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from cases import each, slow
from drawn_problems import figures, memory_binds, within

import parenvs
from benchmarks import make_sets
from parenvs.datasets.pipeline import problems
from parenvs.datasets.pipeline import problems as instance_sets
from parenvs.datasets.pipeline.families import FAMILIES, MIN_PIVOTS, MIN_VARIABLES
from parenvs.datasets.pipeline.problems import (
    INSIDE,
    MEASURED,
    OUTSIDE,
    SETS,
    Ranges,
    draw,
    find,
    load_set,
    problem_of,
    ratios,
)
from parenvs.errors import ParenvsError, UnknownInstanceError
from parenvs.tasks.pipeline.spaces import PointSpace, fitting


def chains(family: str, count: int = 40, n: int = 128):
    """Draw ``count`` chains of a family, each of ``n`` pivots."""
    return [FAMILIES[family](np.random.default_rng([3, i]), n) for i in range(count)]


@each("family", FAMILIES)
def test_families__lengths_and_values(family):
    for n in (MIN_PIVOTS, 25, 31, 64, 129, 1024):
        for arrays in chains(family, 10, n):
            forward, backward, cut, weights = arrays
            assert all(x.shape == (n,) and x.dtype == np.float64 for x in arrays)
            assert all((np.isfinite(x) & (x >= 0)).all() for x in arrays)
            assert np.count_nonzero(weights) >= MIN_VARIABLES
            assert cut[-1] == 0 and (cut[:-1] > 0).all()
            assert (forward[weights > 0] > 0).any()
            assert 1.1 < backward.sum() / forward.sum() < 2.8


def test_families__transformer():
    counts = Counter()
    for forward, _, cut, weights in chains("transformer", 100):
        layers = cut[20:100]
        period = next((k for k in range(1, 13) if (layers[k:] == layers[:-k]).all()), 0)
        counts["equal layers"] += period > 0
        if period > 2:  # a cut inside each layer at least: the end is the narrowest
            assert layers.max() >= 1.9 * layers.min()
        counts["wide inside"] += layers.max() > 3 * layers.min()
        counts["embedding"] += weights[0] > 2 * np.median(weights[weights > 0])
        assert forward[0] < 1e-3 * forward.sum()
        counts["vocabulary"] += forward[-4:].max() > 2 * np.median(forward[forward > 0])
        counts["logits"] += cut[-6:].max() > 2.5 * np.median(layers)
    assert min(counts.values()) > 40


def test_families__cnn():
    body = np.arange(97)  # at most a quarter of the chain is dense head and loss
    trends = []
    for forward, _, cut, weights in chains("cnn"):
        with_weights = body[weights[body] > 0]
        size = np.corrcoef(np.log(cut[body]), body)[0, 1]
        growth = np.corrcoef(np.log(weights[with_weights]), with_weights)[0, 1]
        trends.append((size, growth))
        assert cut[:8].min() > 1.5 * cut[90:97].min()
        # FLOPs stay about even while the weights grow by an order of magnitude or more.
        compute = [forward[part].sum() for part in np.array_split(body, 4)]
        assert max(compute) < 6 * min(compute)
        assert forward[-1] < 0.01 * forward.sum()
    assert np.max(trends, axis=0)[0] < -0.4 and np.min(trends, axis=0)[1] > 0.3
    assert np.median(trends, axis=0) == pytest.approx([-0.9, 0.75], abs=0.15)


@each("family", FAMILIES)
def test_draw__same_seed_same_problem(family):
    one, again, other = (draw(np.random.default_rng(seed), family) for seed in (5, 5, 6))
    assert figures(one) == figures(again)
    assert figures(one) != figures(other)
    assert one.family == family
    assert one.name == f"generated/{family}"


@pytest.mark.thorough
@pytest.mark.parametrize(("ranges", "count"), [(INSIDE, 120), (OUTSIDE, 30)])
def test_draw__within_the_ranges(ranges, count):
    rng = np.random.default_rng(11)
    sample = [draw(rng, ranges=ranges) for _ in range(count)]
    for problem in sample:
        within(problem, ranges)
    if ranges is INSIDE:
        assert 0.15 <= np.mean([memory_binds(problem) for problem in sample]) <= 0.35


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


PROBLEM = ("uniform", 2, 95, 0.03423735499382019)


def test_drawn__problems_are_fixed():
    """The problem of a number, by a checksum of its chain."""
    problem = problem_of(17, None, "inside")
    assert problem.name == "generated-2/inside/any/17"
    profile = problem.pipeline.profile
    found = (problem.family, problem.pipeline.stages, len(profile), float(profile.forward.sum()))
    assert found == PROBLEM
    assert problem_of(17, "cnn", "inside").family == "cnn"
    assert problem_of(3, None, "outside").name == "generated-2/outside/any/3"


def test_drawn__names_make_problems_again():
    """Wherever an instance is taken."""
    numbered = problem_of(5, "cnn", "outside")
    fingerprint = numbered.pipeline.profile.fingerprint
    assert parenvs.problem(numbered.name).profile.fingerprint == fingerprint
    env = gym.make("PipelinePlan-v0", instance=numbered.name)
    assert env.reset()[1]["instance"] == numbered.name
    assert env.unwrapped.problem.profile.fingerprint == fingerprint
    for wrong in ("generated-2/outside/cnn", "generated-2/here/cnn/1", "generated-2/inside/cnm/1"):
        with pytest.raises(ParenvsError, match=r"unknown problem .*like generated-2/inside/any/17"):
            parenvs.problem(wrong)
    with pytest.raises(ParenvsError, match=r"stages: .* has settings of its own"):
        gym.make("PipelinePlan-v0", instance=numbered.name, stages=3)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [*(name for name in SETS if name != "plan-test"), *slow("plan-test")]
)
def test_instance_sets__are_valid_and_feasible(name):
    count, ranges = SETS[name]
    problems = load_set(name)
    assert len(problems) == count
    assert set(Counter(problem.family for problem in problems).values()) == {count // 8}
    assert len({problem.name for problem in problems}) == count
    for problem in problems:
        pipeline, profile = problem.pipeline, problem.pipeline.profile
        # Both raise if no plan fits.
        fitting(pipeline) if ranges.graded else PointSpace.build(pipeline)
        assert np.count_nonzero(profile.parameter_bytes) >= max(pipeline.stages, 8)
        assert profile.cut_bytes[-1] == 0
        within(problem, ranges)


def test_instance_sets__saved_and_read_bit_for_bit(tmp_path):
    rng = np.random.default_rng(9)
    drawn = [draw(rng, family, r) for family in FAMILIES for r in (INSIDE, OUTSIDE)]
    path = tmp_path / "mine.npz"
    make_sets.save_pipelines(path, drawn)
    read = load_set(path)
    assert [figures(problem) for problem in read] == [figures(problem) for problem in drawn]
    assert [problem.name for problem in read[:3]] == [
        "mine/uniform-000",
        "mine/uniform-001",
        "mine/normal-000",
    ]
    first = path.read_bytes()
    make_sets.save_pipelines(path, read)
    assert path.read_bytes() == first
    make_sets.save_pipelines(path, [])
    assert load_set(path) == []


def test_instance_sets__find():
    problem = find("plan-test/transformer-017")
    assert problem.family == "transformer"
    assert figures(problem) in [figures(p) for p in load_set("plan-test")]
    with pytest.raises(UnknownInstanceError, match="did you mean 'plan-test/transformer-"):
        find("plan-test/transformer-1170")
    for wrong in ("plan-tset/cnn-000", "plan-tset"):
        with pytest.raises(UnknownInstanceError, match="did you mean 'plan-test'"):
            find(wrong)
    with pytest.raises(UnknownInstanceError, match="shipped: plan-validation"):
        load_set("nothing")
    load_set("plan-validation").clear()
    assert len(load_set("plan-validation")) == 200


def broken(tmp_path: Path, **changes) -> Path:
    """Write a small set of which some arrays are changed, or left out where the change is None."""
    path = tmp_path / "plan-validation.npz"
    make_sets.save_pipelines(path, [draw(np.random.default_rng(i), "cnn") for i in range(3)])
    with np.load(path) as archive:
        arrays = dict(archive)
    for key, change in changes.items():
        arrays[key] = change(arrays[key]) if change else None
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


@pytest.mark.thorough
@each(
    ("key", "change", "message"),
    [
        ("stages", None, "field 'stages' is missing or unknown"),
        ("schema", lambda x: x + 1, r"field 'schema' is \[2\], not \[1\]"),
        ("forward_mantissa", lambda x: x[1:], "field 'forward_mantissa' has"),
        ("forward_mantissa", lambda x: x * np.nan, "'forward_mantissa' is no array of uint16"),
        ("parameter_bytes_mantissa", np.zeros_like, "field 'stages' is [2-6], not from 2 to 0"),
        ("cut_bytes_exponent", lambda x: x[:, None], "'cut_bytes_exponent' is no array of int8"),
        ("inter_bw", lambda x: x * np.nan, "inter_bw must be a positive number, not nan"),
        ("intra_bw", lambda x: x * np.inf, "intra_bw must be a positive number, not inf"),
        ("memory_bytes", lambda x: -x, "memory_bytes must be a positive number"),
        ("servers", np.zeros_like, "servers must be a whole number from 1"),
        ("servers", lambda x: x[1:], "field 'servers' has 2 values for 3 problems"),
        ("offset", lambda x: x[::-1].copy(), "field 'offset' does not cut up the chains"),
        ("offset", lambda x: x[:-1], "field 'offset' does not cut up the chains"),
        ("family", lambda x: x + 100, "field 'family' holds 105, only 8 are named"),
        ("families", lambda x: x[:-1], "field 'families' holds 'heavy-hea', not one of uniform"),
        ("families", lambda x: x + 128, "field 'families' holds"),
        ("micro_batches", np.zeros_like, "micro_batches must be a whole number from 1"),
        ("stages", lambda x: x * 0 + 1, "field 'stages' is 1, not from 2 to"),
        ("stages", lambda x: x * 0 + 99, "field 'stages' is 99, not from 2 to"),
    ],
)
def test_instance_sets__broken_field(tmp_path, key, change, message):
    path = broken(tmp_path, **{key: change})
    with pytest.raises(ParenvsError, match=message) as caught:
        load_set(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text
    assert text.endswith("python benchmarks/make_sets.py plan-validation.npz")


@each("keep", [0, 10, 0.5, 0.99])
def test_instance_sets__truncated(tmp_path, keep):
    path = broken(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(ParenvsError, match="not a set of problems, or damaged") as caught:
        load_set(path)
    assert str(path) in str(caught.value)


@pytest.mark.thorough
def test_instance_sets__command_makes_them_anew(tmp_path, monkeypatch, capsys):
    small = {name: (16, ranges) for name, (_, ranges) in SETS.items()}
    monkeypatch.setattr(instance_sets, "SETS", small)
    files = [f"{name}.npz" for name in SETS]
    assert make_sets.main([*files, "--out", str(tmp_path), "--seed", "1"]) == 0
    assert [x.split(":")[0] for x in capsys.readouterr().out.splitlines()] == [
        str(tmp_path / file) for file in files
    ]
    again = make_sets.pipeline_set("plan-test", 1)
    stored = load_set(tmp_path / "plan-test.npz")
    assert [figures(x) for x in stored] == [figures(x) for x in again]
    assert figures(make_sets.pipeline_set("plan-test", 2)[0]) != figures(again[0])
    assert figures(make_sets.pipeline_set("plan-validation", 1)[0]) != figures(again[0])
    assert Counter(x.family for x in stored) == dict.fromkeys(FAMILIES, 2)
