"""Stored sets of drawn problems: what ships, round trips, and damaged files."""

import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import each, slow
from drawn_problems import figures, memory_binds, within

from parenvs.cluster import Cluster
from parenvs.datasets.pipeline import problems as instance_sets
from parenvs.datasets.pipeline.families import FAMILIES
from parenvs.datasets.pipeline.problems import (
    INSIDE,
    MEASURED,
    OUTSIDE,
    SETS,
    draw,
    find,
    load_set,
    make_set,
    ratios,
    save_set,
)
from parenvs.errors import ParenvsError, ProfileError, UnknownInstanceError
from parenvs.tasks.pipeline.spaces import PointSpace, fitting


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
        assert pipeline.stages == problem.stages
        assert np.count_nonzero(profile.parameter_bytes) >= max(problem.stages, 8)
        assert profile.cut_bytes[-1] == 0
        within(problem, ranges)


def test_instance_sets__ranges_are_covered():
    problems = load_set("plan-test")
    assert {problem.stages for problem in problems} == set(range(2, 7))
    assert {p.pipeline.cluster.devices_per_server for p in problems} == {1, 2, 4, 8}
    all_ratios = np.array([ratios(problem.pipeline) for problem in problems])
    assert (all_ratios.min(axis=0) < np.array(MEASURED[0])).all()
    assert (all_ratios.max(axis=0) > np.array(MEASURED[1])).all()
    devices = [problem.pipeline.cluster.devices for problem in problems]
    assert min(devices) == 4 and max(devices) == 64


def test_instance_sets__outside_lies_outside():
    problems = load_set("plan-outside")
    devices = np.array([problem.pipeline.cluster.devices for problem in problems])
    stages = np.array([problem.stages for problem in problems])
    assert ((devices > 64) | (stages > 6)).all()
    assert (devices > 64).mean() > 0.3 and (stages > 6).mean() > 0.3
    assert max(len(problem.pipeline.profile) for problem in problems) > 900


def test_instance_sets__memory_binds_in_a_fair_share():
    share = np.mean([memory_binds(problem) for problem in load_set("plan-validation")])
    assert 0.15 <= share <= 0.3


def test_instance_sets__share_nothing_with_each_other_or_with_training():
    fingerprints = [p.pipeline.profile.fingerprint for name in SETS for p in load_set(name)]
    for seed in (0, 1, instance_sets.SEED):
        rng = np.random.default_rng(seed)
        fingerprints += [draw(rng).pipeline.profile.fingerprint for _ in range(50)]
    assert len(set(fingerprints)) == len(fingerprints)


def test_instance_sets__saved_and_read_bit_for_bit(tmp_path):
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


def test_instance_sets__refuse_what_they_cannot_hold(tmp_path):
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
    save_set(path, [draw(np.random.default_rng(i), "cnn") for i in range(3)])
    with np.load(path) as archive:
        arrays = dict(archive)
    for key, change in changes.items():
        arrays[key] = change(arrays[key]) if change else None
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


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
        ("micro_batches", np.zeros_like, "micro_batches must be from 1"),
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
    assert text.endswith("pipeline.problems plan-validation")


@each("keep", [0, 10, 0.5, 0.99])
def test_instance_sets__truncated(tmp_path, keep):
    path = broken(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(ParenvsError, match="not a set of problems, or damaged") as caught:
        load_set(path)
    assert str(path) in str(caught.value)


def test_instance_sets__no_file_no_pickle(tmp_path):
    with pytest.raises(ParenvsError, match=r"none\.npz: not a set of problems"):
        load_set(tmp_path / "none.npz")
    path = tmp_path / "odd.npz"
    np.savez(path, schema=np.array([object()], dtype=object))
    with pytest.raises(ParenvsError, match=r"odd\.npz: not a set of problems"):
        load_set(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(ParenvsError, match="write it anew with save_set"):
        load_set(path)


@pytest.mark.thorough
def test_instance_sets__command_makes_them_anew(tmp_path, monkeypatch, capsys):
    small = {name: (16, ranges) for name, (_, ranges) in SETS.items()}
    monkeypatch.setattr(instance_sets, "SETS", small)
    assert instance_sets.main(["--out", str(tmp_path), "--seed", "1"]) == 0
    assert [x.split(":")[0] for x in capsys.readouterr().out.splitlines()] == [
        str(tmp_path / f"{name}.npz") for name in SETS
    ]
    again = make_set("plan-test", 1)
    stored = load_set(tmp_path / "plan-test.npz")
    assert [figures(x) for x in stored] == [figures(x) for x in again]
    assert figures(make_set("plan-test", 2)[0]) != figures(again[0])
    assert figures(make_set("plan-validation", 1)[0]) != figures(again[0])
    assert Counter(x.family for x in stored) == dict.fromkeys(FAMILIES, 2)
    for wrong in (["plan"], ["--seed", "-1"]):
        assert instance_sets.main(wrong) == 2


def test_instance_sets__a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = broken(tmp_path)
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="no space"):
        save_set(path, [draw(np.random.default_rng(0))])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_instance_sets__chains_are_refused_like_any_other():
    with pytest.raises(ProfileError, match="must be >= 0"):
        problem = draw(np.random.default_rng(0))
        replace(problem.pipeline.profile, forward=-problem.pipeline.profile.forward)


@each(
    ("change", "words"),
    [
        ({"(": " "}, "array 'schema': "),  # NumPy takes the header apart as Python
        ({"(1,)": f"({2**64},)"}, "array 'schema': "),
        ({"(1,)": f"({2**40},)"}, "array 'schema': "),
        ({"}": ""}, "array 'schema': "),
    ],
)
def test_instance_sets__hostile_header(tmp_path, change, words):
    path = tmp_path / "odd.npz"
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }"
    for old, new in change.items():
        assert old in header
        header = header.replace(old, new)
    with zipfile.ZipFile(path, "w") as archive:
        data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
        archive.writestr("schema.npy", data + b"\x01")
    with pytest.raises(ParenvsError) as caught:
        load_set(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: not a set of problems, or damaged (") and words in line
    assert line.isprintable() and line.endswith("write it anew with save_set")
