"""Generated planning problems: families, what is drawn, and the stored sets."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parenvs.cluster import Cluster
from parenvs.datasets import generators, instance_sets
from parenvs.datasets.families import FAMILIES, LEAST_PIVOTS, LEAST_VARIABLES
from parenvs.datasets.generators import (
    INSIDE,
    MEASURED,
    OUTSIDE,
    PlanProblem,
    Ranges,
    draw,
    ratios,
    significant,
)
from parenvs.datasets.instance_sets import SETS, find, load_set, make_set, save_set
from parenvs.errors import ParenvsError, ProfileError, UnknownInstanceError
from parenvs.instances import load_profile, names
from parenvs.pipeline.points import PointSpace
from parenvs.pipeline.problem import Pipeline

ARRAYS = ("forward", "backward", "cut_bytes", "parameter_bytes")


def figures(problem: PlanProblem) -> tuple:
    """Everything about a problem but its name."""
    pipeline = problem.pipeline
    arrays = tuple(getattr(pipeline.profile, key).tobytes() for key in ARRAYS)
    return (problem.family, problem.stages, pipeline.micro_batches, pipeline.cluster, *arrays)


def chains(family: str, count: int = 40, n: int = 128):
    """(F, B, A, W) of some chains of a family."""
    return [FAMILIES[family](np.random.default_rng([3, i]), n) for i in range(count)]


def memory_binds(problem: PlanProblem) -> bool:
    """Whether some plan with even device cuts does not fit: the worst legal stage of each place."""
    pipeline, stages, n = problem.pipeline, problem.stages, len(problem.pipeline.profile)
    bounds = np.rint(np.arange(stages + 1) * pipeline.cluster.devices / stages).astype(int)
    held = pipeline.variable_sum
    first, end = np.triu_indices(n + 1, 1)
    for s, group in enumerate(np.diff(bounds)):
        left = stages - s
        legal = (held[end] > held[first]) & (held[first] >= s) & (held[n] - held[end] >= left - 1)
        legal &= (first == 0) == (s == 0)
        legal &= (end == n) == (left == 1)
        i, j = first[legal], end[legal]
        needs = pipeline.memory_of(i, j, np.full_like(i, group), np.full_like(i, left))
        if needs.size and needs.max() > pipeline.memory_limit:
            return True
    return False


@pytest.mark.parametrize("family", FAMILIES)
def test_families__lengths_and_values(family):
    for n in (LEAST_PIVOTS, 25, 31, 64, 129, 1024):
        for arrays in chains(family, 10, n):
            forward, backward, cut, weights = arrays
            assert all(x.shape == (n,) and x.dtype == np.float64 for x in arrays)
            assert all((np.isfinite(x) & (x >= 0)).all() for x in arrays)
            assert np.count_nonzero(weights) >= LEAST_VARIABLES
            assert cut[-1] == 0 and (cut[:-1] > 0).all()
            assert (forward[weights > 0] > 0).any()
            assert 1.1 < backward.sum() / forward.sum() < 2.8


def test_families__differ_in_what_they_vary():
    for family in FAMILIES:
        without = [np.mean(w == 0) for _, _, _, w in chains(family)]
        assert np.ptp(without) > 0.05, family
        free = [np.mean(f == 0) for f, _, _, _ in chains(family)]
        assert np.ptp(free) > 0.05, family


def test_families__random_ones_are_independent_along_the_chain():
    bounds = {"uniform": (0, 1), "normal": (0.01, 4), "binomial": (1, 40)}
    for family, (low, high) in bounds.items():
        for forward, _, cut, _ in chains(family):
            cut = cut[:-1]
            assert cut.min() >= low and cut.max() <= high
            assert abs(np.corrcoef(cut[1:], cut[:-1])[0, 1]) < 0.4
            assert abs(np.corrcoef(forward[:-1], cut)[0, 1]) < 0.4
    assert all((cut == np.rint(cut)).all() for _, _, cut, _ in chains("binomial"))
    spread = [np.std(cut[:-1]) for _, _, cut, _ in chains("uniform")]
    assert np.mean(spread) == pytest.approx(0.75 / np.sqrt(12), rel=0.1)
    clipped = [(cut[:-1] == 0.01).any() for _, _, cut, _ in chains("normal")]
    assert 0.2 < np.mean(clipped) < 1


def test_families__all_pivots_empty():
    """Chance may leave no pivot a variable; as many as there have to be get one, all alike."""
    rng = np.random.default_rng(0)
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {
            "state": 183185391602104404077155816585884953174,
            "inc": 160502278706357643194801498428059812275,
        },
        "has_uint32": 0,
        "uinteger": 0,
    }
    *_, weights = FAMILIES["uniform"](rng, 25)
    assert np.count_nonzero(weights) == LEAST_VARIABLES
    assert len(set(weights[weights > 0])) == 1


def test_families__transformer():
    found = Counter()
    for forward, _, cut, weights in chains("transformer", 100):
        layers = cut[20:100]
        period = next((k for k in range(1, 13) if (layers[k:] == layers[:-k]).all()), 0)
        found["equal layers"] += period > 0
        if period > 2:  # a cut inside each layer at least: the end is the narrowest
            assert layers.max() >= 1.9 * layers.min()
        found["wide inside"] += layers.max() > 3 * layers.min()
        found["embedding"] += weights[0] > 2 * np.median(weights[weights > 0])
        assert forward[0] < 1e-3 * forward.sum()
        found["vocabulary"] += forward[-4:].max() > 2 * np.median(forward[forward > 0])
        found["logits"] += cut[-6:].max() > 2.5 * np.median(layers)
    assert min(found.values()) > 40


def test_families__encoder_decoder():
    crossing = 0
    for _, _, cut, _ in chains("encoder-decoder"):
        # Narrowest cuts are the layers' ends; the encoder's output adds to those of the decoder.
        encoder, decoder = cut[12:40].min(), cut[95:115].min()
        crossing += decoder > 1.15 * encoder
    assert crossing >= 36
    assert sum(c[95:115].min() > 1.15 * c[12:40].min() for _, _, c, _ in chains("transformer")) < 4


def test_families__cnn():
    body = np.arange(97)  # at most a quarter of the chain is dense head and loss
    trends = []
    for forward, _, cut, weights in chains("cnn"):
        held = body[weights[body] > 0]
        size = np.corrcoef(np.log(cut[body]), body)[0, 1]
        growth = np.corrcoef(np.log(weights[held]), held)[0, 1]
        trends.append((size, growth))
        assert cut[:8].min() > 1.5 * cut[90:97].min()
        # FLOPs stay about even while the weights grow by an order of magnitude or more.
        compute = [forward[part].sum() for part in np.array_split(body, 4)]
        assert max(compute) < 6 * min(compute)
        assert forward[-1] < 0.01 * forward.sum()
    assert np.max(trends, axis=0)[0] < -0.4 and np.min(trends, axis=0)[1] > 0.3
    assert np.median(trends, axis=0) == pytest.approx([-0.9, 0.75], abs=0.15)


def test_families__cnn_dense_head():
    shares = []
    for forward, _, _, weights in chains("cnn", 100):
        heavy = weights.argmax()
        shares.append(weights[heavy] / weights.sum())
        if shares[-1] > 0.5:
            assert heavy >= 96 and forward[heavy] < 0.01 * forward.sum()
    assert np.mean(np.array(shares) > 0.5) > 0.1


def test_families__bottleneck():
    skips = 0
    for _, _, cut, weights in chains("bottleneck"):
        inner = cut[1:-2]
        steps = np.diff(inner)[np.diff(inner) != 0]
        assert np.count_nonzero(np.diff(np.sign(steps))) >= 0.25 * len(cut)  # narrow, wide, ...
        start, middle, end = (np.median(cut[part]) for part in np.split(np.arange(126), 3))
        if weights[-8:].max() < 0.3 * weights.max():  # a U: the deepest level is in the middle
            skips += 1
            assert end > 0.9 * middle and 0.4 < end / start < 2.5
        else:
            assert end < 0.95 * start
    assert 8 <= skips <= 32


def test_families__heavy_head():
    kinds = Counter()
    for forward, _, _, weights in chains("heavy-head", 60):
        for end in ("front", "back"):
            part = slice(0, 4) if end == "front" else slice(-4, None)
            if weights[part].sum() > 0.45 * weights.sum():
                kinds[end, "weights"] += 1
            if forward[part].sum() > 0.45 * forward.sum():
                kinds[end, "compute"] += 1
    assert len(kinds) == 4 and min(kinds.values()) >= 5
    assert kinds["front", "weights"] + kinds["back", "weights"] < 60


@pytest.mark.parametrize("family", FAMILIES)
def test_draw__same_seed_same_problem(family):
    one, again, other = (draw(np.random.default_rng(seed), family) for seed in (5, 5, 6))
    assert figures(one) == figures(again)
    assert figures(one) != figures(other)
    assert one.family == family
    assert one.name == f"generated/{family}"


def test_draw__any_family():
    rng = np.random.default_rng(0)
    assert {draw(rng).family for _ in range(100)} == set(FAMILIES)


@pytest.mark.parametrize(("ranges", "count"), [(INSIDE, 120), (OUTSIDE, 30)])
def test_draw__within_the_ranges(ranges, count):
    rng = np.random.default_rng(11)
    problems = [draw(rng, ranges=ranges) for _ in range(count)]
    for problem in problems:
        within(problem, ranges)
    if ranges is INSIDE:
        assert 0.15 <= np.mean([memory_binds(problem) for problem in problems]) <= 0.35


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
    monkeypatch.setattr(generators, "TRIES", 5)
    heavy = MEASURED[1]._replace(parameters=9.0, activations=1e9)
    ranges = replace(
        INSIDE, tight=0.0, stages=(2, 2), least=heavy._replace(activations=0.0), greatest=heavy
    )
    with pytest.raises(ParenvsError, match="none of 5 problems drawn fits the memory"):
        draw(np.random.default_rng(0), ranges=ranges)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"devices": (3, 3), "devices_per_server": (8,)}, "no cluster lies within"),
        ({"inter_bw": (500e9, 600e9)}, "no cluster lies within"),
        ({"without": INSIDE}, "no cluster lies within"),
        ({"least": MEASURED[0]._replace(activations=1e9)}, "the ratios exclude each other"),
    ],
)
def test_draw__impossible_ranges_end(wrong, message):
    with pytest.raises(ParenvsError, match=message):
        draw(np.random.default_rng(0), ranges=replace(INSIDE, **wrong))


@pytest.mark.parametrize("wrong", [{"pivots": (10, 50)}, {"stages": (2, 9)}])
def test_ranges__refuses(wrong):
    with pytest.raises(ParenvsError, match="at least 24 pivots and at most 8 stages"):
        Ranges(**wrong)


def test_ratios__of_a_chain_by_hand():
    problem = draw(np.random.default_rng(2), "uniform")
    profile, cluster = problem.pipeline.profile, problem.pipeline.cluster
    each = (profile.forward.sum() + profile.backward.sum()) / cluster.devices
    weights, cut = profile.parameter_bytes.sum(), np.median(profile.cut_bytes[:-1])
    expected = (
        cut / cluster.inter_bw / each,
        2 * weights / cluster.inter_bw / each / problem.pipeline.micro_batches,
        2 * weights / (0.9 * cluster.device.memory_bytes),
        cut / (0.9 * cluster.device.memory_bytes),
    )
    assert ratios(problem.pipeline) == pytest.approx(expected)


@pytest.mark.parametrize("name", names())
def test_ratios__of_real_graphs_are_in_the_middle_of_what_is_drawn(name):
    for text in "ABC":
        cluster = Cluster.parse(text)
        found = ratios(Pipeline(load_profile(name, cluster), cluster))
        for value, low, high in zip(found, *MEASURED, strict=True):
            assert low <= value <= high


def test_ratios__command(capsys, tmp_path):
    draw(np.random.default_rng(0)).pipeline.profile.to_csv(tmp_path / "mine.csv")
    assert generators.main(["vgg-19", str(tmp_path / "mine.csv"), "--cluster", "C"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| vgg-19 | C | 164 | 1.13 | 3.17 | 0.0399 |")
    assert lines[3].startswith("| mine.csv | C |")
    assert generators.main(["vgg-20"]) == 2
    assert "did you mean 'vgg-19'" in capsys.readouterr().err


@pytest.mark.parametrize("name", SETS)
def test_sets__are_valid_and_feasible(name):
    count, ranges = SETS[name]
    problems = load_set(name)
    assert len(problems) == count
    assert set(Counter(problem.family for problem in problems).values()) == {count // 8}
    assert len({problem.name for problem in problems}) == count
    for problem in problems:
        pipeline, profile = problem.pipeline, problem.pipeline.profile
        space = PointSpace.build(pipeline, problem.stages)  # raises if no plan fits
        assert space.stages == problem.stages
        assert np.count_nonzero(profile.parameter_bytes) >= max(problem.stages, 8)
        assert profile.cut_bytes[-1] == 0
        within(problem, ranges)


def within(problem: PlanProblem, ranges: Ranges) -> None:
    """Assert that a problem lies in its ranges."""
    pipeline, cluster = problem.pipeline, problem.pipeline.cluster
    assert ranges.hold(cluster.devices, problem.stages) and problem.stages <= cluster.devices
    for value, (low, high) in (
        (len(pipeline.profile), ranges.pivots),
        (pipeline.micro_batches, ranges.micro_batches),
        (cluster.intra_bw, ranges.intra_bw),
        (cluster.inter_bw, ranges.inter_bw),
    ):
        assert low * 0.999 <= value <= high * 1.001
    assert cluster.inter_bw <= cluster.intra_bw
    assert cluster.devices_per_server in ranges.devices_per_server
    assert cluster.device.memory_bytes in ranges.memory_bytes
    for value, low, high in zip(ratios(pipeline), ranges.least, ranges.greatest, strict=True):
        assert low * 0.999 <= value <= high * 1.001


def test_sets__ranges_are_covered():
    problems = load_set("plan-test")
    assert {problem.stages for problem in problems} == set(range(2, 7))
    assert {p.pipeline.cluster.devices_per_server for p in problems} == {1, 2, 4, 8}
    found = np.array([ratios(problem.pipeline) for problem in problems])
    assert (found.min(axis=0) < np.array(MEASURED[0])).all()
    assert (found.max(axis=0) > np.array(MEASURED[1])).all()
    devices = [problem.pipeline.cluster.devices for problem in problems]
    assert min(devices) == 4 and max(devices) == 64


def test_sets__outside_lies_outside():
    problems = load_set("plan-outside")
    devices = np.array([problem.pipeline.cluster.devices for problem in problems])
    stages = np.array([problem.stages for problem in problems])
    assert ((devices > 64) | (stages > 6)).all()
    assert (devices > 64).mean() > 0.3 and (stages > 6).mean() > 0.3
    assert max(len(problem.pipeline.profile) for problem in problems) > 900


def test_sets__memory_binds_in_a_fair_share():
    share = np.mean([memory_binds(problem) for problem in load_set("plan-validation")])
    assert 0.15 <= share <= 0.3


def test_sets__share_nothing_with_each_other_or_with_training():
    seen = [p.pipeline.profile.fingerprint for name in SETS for p in load_set(name)]
    for seed in (0, 1, instance_sets.SEED):
        rng = np.random.default_rng(seed)
        seen += [draw(rng).pipeline.profile.fingerprint for _ in range(50)]
    assert len(set(seen)) == len(seen)


def test_sets__saved_and_read_bit_for_bit(tmp_path):
    rng = np.random.default_rng(9)
    drawn = [draw(rng, family, r) for family in FAMILIES for r in (INSIDE, OUTSIDE)]
    path = tmp_path / "mine.npz"
    save_set(path, drawn)
    read = load_set(path)
    assert [figures(problem) for problem in read] == [figures(problem) for problem in drawn]
    assert [problem.name for problem in read[:3]] == [
        "mine/uniform-000",
        "mine/uniform-001",
        "mine/normal-000",
    ]
    first = path.read_bytes()
    save_set(path, read)
    assert path.read_bytes() == first
    save_set(path, [])
    assert load_set(path) == []


def test_sets__refuse_what_they_cannot_hold(tmp_path):
    problem = draw(np.random.default_rng(0), "cnn")
    profile = problem.pipeline.profile
    thirds = replace(profile, forward=profile.forward / 3)
    for pipeline in (
        replace(problem.pipeline, profile=thirds),
        replace(problem.pipeline, copies=4),
        replace(problem.pipeline, cluster=Cluster.parse("C")),
        replace(problem.pipeline, profile=replace(profile, forward=profile.forward * 1e-60)),
    ):
        with pytest.raises(ParenvsError, match="generated/cnn cannot be stored exactly"):
            save_set(tmp_path / "x.npz", [replace(problem, pipeline=pipeline)])
    with pytest.raises(ParenvsError, match="unknown family 'mlp'"):
        save_set(tmp_path / "x.npz", [replace(problem, family="mlp")])
    assert list(tmp_path.iterdir()) == []


def test_sets__find():
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
    """A copy of a small set with some arrays changed, or left out where None is given."""
    path = tmp_path / "plan-validation.npz"
    save_set(path, [draw(np.random.default_rng(i), "cnn") for i in range(3)])
    with np.load(path) as archive:
        arrays = dict(archive)
    for key, change in changes.items():
        arrays[key] = change(arrays[key]) if change else None
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


@pytest.mark.parametrize(
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
        ("micro_batches", np.zeros_like, "micro_batches must be from 1"),
        ("stages", lambda x: x * 0 + 1, "field 'stages' is 1, not from 2 to"),
        ("stages", lambda x: x * 0 + 99, "field 'stages' is 99, not from 2 to"),
    ],
)
def test_sets__broken_field(tmp_path, key, change, message):
    path = broken(tmp_path, **{key: change})
    with pytest.raises(ParenvsError, match=message) as caught:
        load_set(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text
    assert text.endswith("instance_sets plan-validation")


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_sets__truncated(tmp_path, keep):
    path = broken(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(ParenvsError, match="not a set of problems, or damaged") as caught:
        load_set(path)
    assert str(path) in str(caught.value)


def test_sets__no_file_no_pickle(tmp_path):
    with pytest.raises(ParenvsError, match=r"none\.npz: not a set of problems"):
        load_set(tmp_path / "none.npz")
    path = tmp_path / "odd.npz"
    np.savez(path, schema=np.array([object()], dtype=object))
    with pytest.raises(ParenvsError, match=r"odd\.npz: not a set of problems"):
        load_set(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(ParenvsError, match="write it anew with save_set"):
        load_set(path)


def test_sets__command_makes_them_anew(tmp_path, monkeypatch, capsys):
    small = {name: (16, ranges) for name, (_, ranges) in SETS.items()}
    monkeypatch.setattr(instance_sets, "SETS", small)
    assert instance_sets.main(["--out", str(tmp_path), "--seed", "1"]) == 0
    assert [x.split(":")[0] for x in capsys.readouterr().out.splitlines()] == [
        str(tmp_path / f"{name}.npz") for name in SETS
    ]
    again = make_set("plan-test", 1)
    kept = load_set(tmp_path / "plan-test.npz")
    assert [figures(x) for x in kept] == [figures(x) for x in again]
    assert figures(make_set("plan-test", 2)[0]) != figures(again[0])
    assert figures(make_set("plan-validation", 1)[0]) != figures(again[0])
    assert Counter(x.family for x in kept) == dict.fromkeys(FAMILIES, 2)
    for wrong in (["plan"], ["--seed", "-1"]):
        assert instance_sets.main(wrong) == 2


def test_sets__a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = broken(tmp_path)
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="no space"):
        save_set(path, [draw(np.random.default_rng(0))])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_sets__chains_are_refused_like_any_other():
    with pytest.raises(ProfileError, match="must be >= 0"):
        problem = draw(np.random.default_rng(0))
        replace(problem.pipeline.profile, forward=-problem.pipeline.profile.forward)


def test_generators__need_no_agents_and_no_learning_library():
    code = (
        "import sys, parenvs, parenvs.datasets.instance_sets\n"
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
