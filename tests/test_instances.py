import hashlib
import json

import numpy as np
import pytest
import toys
from cases import each, slow

import parenvs
from parenvs import instances, problem
from parenvs.cluster import DEVICES, PRESETS
from parenvs.core.sets import set_names
from parenvs.datasets.pipeline.problems import SETS
from parenvs.errors import ParenvsError, UnknownInstanceError
from parenvs.graph.graph import Graph
from parenvs.instances import PAPER, data_folder, load_graph, manifest, names
from parenvs.tasks.hybrid.model import load_model, shapes
from parenvs.tasks.partition.problem import load_partitioning
from parenvs.tasks.pipeline.profile import load_profile

NAMES = ["vgg-19", "t5-base", "t5-3b", "t5-11b", "bert-48"]
"""Instances of the paper; the others are in tests/datasets/test_models.py."""
GRAPHS = [(name, kind) for name in names() for kind in ("train", "forward")]


def test_instances__names():
    assert names()[:5] == list(PAPER) == NAMES
    assert {manifest()["instances"][name]["family"] for name in NAMES} == {"vgg", "t5", "bert"}
    with pytest.raises(UnknownInstanceError, match="did you mean 'llama3-8b'"):
        load_graph("llama-8b")


@pytest.mark.thorough
@each(("name", "kind"), GRAPHS)
def test_instances__manifest(name, kind):
    """Checksums, sizes and fingerprints are those of the files."""
    entry = manifest()["instances"][name]["graphs"][kind]
    data = (data_folder() / entry["file"]).read_bytes()
    assert len(data) == entry["bytes"]
    assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    graph = load_graph(name, kind)
    assert graph.fingerprint == entry["fingerprint"]
    assert graph.name == name
    assert graph.batch_size == manifest()["instances"][name]["batch_size"]
    assert graph.batch_size == 64 or name not in PAPER
    assert len(graph.opcode) == entry["instructions"]
    assert len(graph.pivots()) == entry["pivots"]
    assert len(graph.variables) == entry["variables"]
    assert graph.parameter_bytes == 4 * entry["parameters"]
    assert graph.total_flops == pytest.approx(entry["flops"], rel=1e-14)  # sums differ by NumPy


def test_instances__manifest_is_of_every_file():
    files = {
        entry["file"]
        for instance in manifest()["instances"].values()
        for entry in instance["graphs"].values()
    }
    sets = {f"{name}.npz" for name in SETS}
    assert files | sets == {path.name for path in data_folder().glob("*.npz")}
    fingerprints = {
        entry["fingerprint"]
        for instance in manifest()["instances"].values()
        for entry in instance["graphs"].values()
    }
    assert len(fingerprints) == len(files) == 2 * len(names())


def test_instances__graph_by_path(tmp_path):
    graph = load_graph("vgg-19", "forward")
    path = tmp_path / "mine.npz"
    graph.save(path)
    assert load_graph(path).fingerprint == graph.fingerprint
    assert load_graph(str(path)).fingerprint == graph.fingerprint


def test_instances__profile_of_a_graph():
    """A name and the same graph's path give one chain; times are the device's."""
    path = data_folder() / "vgg-19-forward.npz"
    one, other = load_profile("vgg-19", PRESETS["A"]), load_profile(path, PRESETS["A"])
    assert one.fingerprint == other.fingerprint == load_graph("vgg-19", "forward").fingerprint
    assert np.array_equal(one.forward, other.forward)
    fast = load_profile("vgg-19", DEVICES["a100"])
    ratio = DEVICES["a100"].peak_flops / DEVICES["v100"].peak_flops
    np.testing.assert_allclose(fast.forward * ratio, one.forward)
    small = load_profile("vgg-19", PRESETS["A"], 8)
    assert small.micro_batch == 8
    np.testing.assert_allclose(2 * small.forward, one.forward)
    np.testing.assert_allclose(2 * small.cut_bytes, one.cut_bytes)
    assert np.array_equal(small.parameter_bytes, one.parameter_bytes)


@each("load", [load_graph, lambda name: load_profile(name, PRESETS["A"])])
@each(
    ("name", "near"),
    [
        ("t5-3bb", "t5-3b"),
        ("T5-BASE", "t5-base"),
        ("vgg19", "vgg-19"),
        ("bert", "bert-48"),
        ("t511b", "t5-11b"),
    ],
)
def test_instances__did_you_mean(load, name, near):
    with pytest.raises(UnknownInstanceError) as error:
        load(name)
    text = str(error.value)
    assert f"unknown instance {name!r} (did you mean {near!r}?)" in text
    assert all(known in text for known in NAMES)


@each("name, words", [
    ("plan-test", "--set plan-test plays it"),
    ("plan-test/cnn-003", r"of task pipeline, .*problem\('plan-test/cnn-003'\)"),
    ("partition-train/bert-000", "is a problem of task partition, without a graph"),
    ("hetero-32-test/spread-000", "is a problem of task hybrid, without a graph"),
    ("hybrid/7", "is a problem of task hybrid, without a graph"),
    ("elastic-test/spot-gpt-1.5b-000", "is a problem of task elastic, without a graph"),
    ("intra-op-test/mesh-000", "is a problem of task sharding, without a graph"),
    ("gpt-1.5b", "instance 'gpt-1.5b' has no graph: task hybrid alone plans it"),
])  # fmt: skip
def test_instances__problems_of_sets_have_no_model(name, words):
    with pytest.raises(UnknownInstanceError, match=words):
        load_graph(name)


@each("name", set_names())
def test_instances__every_set_is_told_from_a_path(name):
    with pytest.raises(UnknownInstanceError, match="is a set of problems"):
        load_graph(name)


@pytest.mark.parametrize("load", [load_graph, lambda name: load_profile(name, PRESETS["A"])])
def test_instances__paths_that_are_none(load, tmp_path):
    for name in ("none.csv", "none.npz", "none.pb", "none.txt", "none.hlo", "folder/none"):
        with pytest.raises(UnknownInstanceError, match="no such file"):
            load(str(tmp_path / name))
    wrong = tmp_path / "graph.zip"
    wrong.write_text("x")
    with pytest.raises(UnknownInstanceError, match=r"must end in \.csv, \.npz, \.pb"):
        load(str(wrong))
    with pytest.raises(UnknownInstanceError, match="a file must end in"):
        load(str(tmp_path))
    for name in ("a" * 300 + ".csv", "a" * 300 + ".npz", "a" * 5000, "a\0.npz", "", " "):
        with pytest.raises(UnknownInstanceError):
            load(name)


# Building the graphs anew.


@pytest.fixture
def tiny(monkeypatch):
    """``MODELS`` with two models small enough to be lowered in a second."""
    pytest.importorskip("jax")
    from parenvs.datasets import models

    small = {"d_model": 8, "d_ff": 16, "heads": 2, "d_kv": 4, "vocab": 32, "tokens": 8}
    made = {f"tiny-{layers}": models.t5(layers, **small, batch_size=4) for layers in (1, 2)}
    monkeypatch.setattr(models, "MODELS", made)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_instances__build(tiny, tmp_path, monkeypatch):
    from benchmarks import build_graphs as build

    monkeypatch.setattr("multimodal_models.MULTIMODAL", {})
    first, second = tmp_path / "first", tmp_path / "second"
    assert build.main(["--out", str(first)]) == 0
    assert build.main(["--out", str(second)]) == 0
    assert contents(first) == contents(second)  # to the byte
    assert set(contents(first)) == {
        "manifest.json",
        *(f"tiny-{i}{kind}.npz" for i in (1, 2) for kind in ("", "-forward")),
    }
    content = json.loads((first / "manifest.json").read_text())
    assert list(content["instances"]) == ["tiny-1", "tiny-2"]
    for entry in content["instances"].values():
        assert entry["batch_size"] == 4
        for kind, facts in entry["graphs"].items():
            data = (first / facts["file"]).read_bytes()
            assert facts["bytes"] == len(data)
            assert facts["sha256"] == hashlib.sha256(data).hexdigest()
            graph = Graph.load(first / facts["file"])
            assert facts["fingerprint"] == graph.fingerprint
            assert facts["pivots"] == len(graph.pivots())
            assert facts["flops"] == graph.total_flops
            assert graph.batch_size == 4
            phases = 3 if kind == "train" else 1
            assert len(np.unique(graph.phase)) == phases
    # What was built serves as shipped instances do.
    for module in (instances,):
        monkeypatch.setattr(module, "data_folder", lambda: first)
    for cache in (instances.manifest, instances._shipped):
        cache.cache_clear()
    try:
        assert names() == ["tiny-1", "tiny-2"]
        assert len(load_profile("tiny-2", PRESETS["A"])) > len(load_profile("tiny-1", PRESETS["A"]))
    finally:
        for cache in (instances.manifest, instances._shipped):
            cache.cache_clear()


def test_instances__build_unknown_model(tiny, tmp_path, capsys):
    from benchmarks import build_graphs as build

    with pytest.raises(SystemExit, match="2"):
        build.main(["tiny-9", "--out", str(tmp_path)])
    captured = capsys.readouterr()
    assert "no model 'tiny-9'; known: tiny-1, tiny-2, " in captured.err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("task, options", [
    ("pipeline", {"stages": 3}),
    ("partition", {"reward": "step_time", "micro_batches": 2}),
    ("partition", {"scope": "inputs", "rules": "automap"}),
    *slow(("hybrid", {"batch": 256})),
])  # fmt: skip
def test_problem__of_a_graph_is_that_of_its_name(task, options):
    """A pipeline takes the forward pass of a shipped training step."""
    named, given = (problem(x, "A", task, **options) for x in ("t5-base", load_graph("t5-base")))
    assert type(given) is type(named)
    agent = "uniform" if task == "hybrid" else "exact"
    one, other = (parenvs.plan(made, agent) for made in (named, given))
    assert one.plan == other.plan and one.plan.instance == "t5-base"
    assert one.report.to_json() == other.report.to_json()


def test_problem__of_a_profile():
    graph = load_graph("vgg-19")
    profile = load_profile(graph, "A")
    assert profile.fingerprint == load_graph("vgg-19", "forward").fingerprint
    assert load_profile(profile, "A") is problem(profile, "A").profile is profile
    assert (problem(profile, "A").tied, problem(toys.dense().profile, "A").tied) == ("once", "held")
    with pytest.raises(ParenvsError, match="profile vgg-19 is of micro-batches of 16, not 4"):
        problem(profile, "A", micro_batch=4)
    with pytest.raises(ParenvsError, match="vgg-19: a profile is no graph; leave out 'frozen'"):
        problem(profile, "A", frozen="*")


def test_problem__of_a_shape_and_of_a_model():
    shape = shapes()["gpt-7.5b"]
    named = problem("gpt-7.5b", "C", task="hybrid", batch=64)
    for source in (shape, named.model):
        assert problem(source, "C", task="hybrid", batch=64) == named
        with pytest.raises(ParenvsError, match=r"7\.5b: a shape is no graph; leave out 'batch'"):
            load_model(source, batch="x")
    assert load_model(named.model) is named.model


def test_problem__reads_the_parameters_of_a_graph_anew():
    graph = load_graph("vgg-19")
    path = graph.paths[graph.variables[0]]
    options = {"task": "partition", "frozen": path}
    assert (
        problem(graph, **options).graph.fingerprint
        == problem("vgg-19", **options).graph.fingerprint
    )
    assert len(problem(graph, **options).graph.variables) == len(graph.variables) - 1
    with pytest.raises(ParenvsError, match="instance 'vgg-19' is no function, so it takes no arg"):
        problem(graph, arguments="given")


@each("task, kinds", [
    ("pipeline", "a Graph or a StageProfile"),
    ("partition", "a path or a Graph"),
    ("hybrid", "a Graph, a TransformerShape or a HybridModel"),
    ("sharding", "a path or a Sharding"),
    ("elastic", "a path or an Elastic"),
])  # fmt: skip
def test_problem__of_what_its_task_does_not_take(task, kinds):
    shape, graph, profile = shapes()["gpt-7.5b"], load_graph("vgg-19"), toys.dense().profile
    other = {"pipeline": shape, "elastic": graph}.get(task, profile)
    for wrong in (other, 3, ["vgg-19"], None):
        with pytest.raises(ParenvsError, match=rf"instance: expected a name.*{kinds}, not "):
            problem(wrong, task=task)


def test_instances__equal_clusters_have_one_name():
    """Plans carry it, so it must not depend on which of them was loaded first."""
    for name in ("4x8:v100,25Gbps", "C"):
        assert load_partitioning("vgg-19", name).cluster.name == "C"
