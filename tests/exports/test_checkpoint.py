"""Checkpoints: a state moves from plan to plan, bytes are as predicted, and nothing gets lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import each
from commands import caller

from parenvs import ParenvsError
from parenvs.exports.checkpoint import (
    PARAMETER,
    Checkpoint,
    Files,
    Head,
    Place,
    Tensor,
    box_of,
    reshard,
    write_index,
    write_part,
)
from parenvs.exports.torch import torch_plan
from parenvs.tasks.elastic.movement import State, slices
from parenvs.tasks.hybrid.model import HybridModel

pytestmark = pytest.mark.thorough

for _package in ("torch", "jax"):
    pytest.importorskip(_package)

ROOT = Path(__file__).parents[2]
KINDS = {PARAMETER: "float32", "exp_avg": "bfloat16", "seen": "int8"}
BYTES = 7
CHANGES = (("T2 P2", "P2 D2"), ("T2 D2 ZeRO 3", "P2"), ("D4 ZeRO 2", "T2 D2 ZeRO 3"))
"""From a plan to a plan."""


@pytest.fixture(scope="module")
def model(graph):
    return HybridModel.of_graph(graph)


def numbers(tensors):
    """Every element another number, of each kind."""
    random = np.random.default_rng(0)
    widths = {"float32": "i4", "bfloat16": "i2", "int8": "i1"}
    return {
        (name, kind): random.integers(-100, 100, x.shape).astype(widths[x.kinds[kind]])
        for name, x in tensors.items()
        for kind in x.kinds
    }


def write(folder, plan, graph, model):
    """Write a checkpoint as the ranks of a plan hold it; return what is in it."""
    exported, files = torch_plan(plan, graph), Files.of(plan)
    tensors = {
        name: Tensor(shape, KINDS, {"step": 20.0}) for name, shape in exported.shapes.items()
    }
    whole, stages = numbers(tensors), files.shards.stages(graph)

    def give(name, kind, box):
        return whole[name, kind][tuple(slice(*x) for x in box)]

    folder.mkdir()
    parts = []
    for number, place in enumerate(files.places()):
        boxes = {
            name: box_of(exported, name, x.shape, place)
            for name, x in tensors.items()
            if stages[name] == place.pipe
        }
        parts.append(write_part(folder, number, boxes, tensors, give))
    head = Head(20, "Adam", [{"lr": 0.5, "betas": [0.9, 0.99]}], tensors)
    write_index(folder, plan, head, parts)
    return whole


def content(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory, plans, graph, model):
    """A folder with a checkpoint of 2 tp ranks in 2 stages, and the graph."""
    folder = tmp_path_factory.mktemp("saved")
    graph.save(folder / "net.npz")
    write(folder / "state", plans["T2 P2"], graph, model)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """The folder of the checkpoint, one for each test; the graph lies beside it."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("name", "other"),
    [CHANGES[0], *(pytest.param(*change, marks=pytest.mark.slow) for change in CHANGES[1:])],
)
def test_reshard__changes(tmp_path, plans, graph, model, name, other):
    """From plan to plan: every number in place, bytes as predicted, and back to the same files."""
    old, new, out = plans[name], plans[other], tmp_path / "out"
    whole = write(tmp_path / name, old, graph, model)
    found = reshard(tmp_path / name, new, old, out, graph)
    assert found.agrees
    read, predicted = found.by_rank
    assert read == pytest.approx(predicted)
    both = Files.of(old), Files.of(new)
    if both[0].writing == both[1].writing == 1:
        inside = both[0].shards.within(3), both[1].shards.within(3)
        bytes_ = slices(State.of(model, BYTES), both[0].degrees, both[1].degrees, inside)
        assert found.read == pytest.approx(bytes_)
    checkpoint = Checkpoint(out)
    assert checkpoint.head == Checkpoint(tmp_path / name).head
    for (tensor, kind), values in whole.items():
        box = tuple((0, size) for size in values.shape)
        got = checkpoint.box(tensor, kind, box, Place(0, 0, 0), 1)
        assert np.array_equal(got, values), tensor
    reshard(out, old, new, None, graph)
    assert content(out) == content(tmp_path / name)


def test_reshard__command(folder, plans, tmp_path, monkeypatch, capfd):
    run = caller(monkeypatch, capfd, tmp_path)
    for name, file in (("T2 P2", "a.json"), ("D2", "b.json")):
        plans[name].save(tmp_path / file)
    old = content(folder)
    status, out, err = run("reshard", "state", "--old", "a.json", "--new", "b.json", "--out", "new")
    assert status == 0 and "note" not in err and content(folder) == old
    size = sum(x.bytes for x in Checkpoint(tmp_path / "new").parts)
    assert f"rank 1: {size:,} bytes read, {size:,} predicted\n" in out
    assert out.startswith("T2 P2 D1 in 4 files -> T1 P1 D2 in 1 file\n")
    status, out, _ = run("reshard", "new", "--new", "a.json", "--json")
    assert status == 0 and json.loads(out)["agrees"]
    assert content(tmp_path / "new") == old


@pytest.mark.slow
def test_reshard__killed_in_the_middle(folder, plans, tmp_path):
    """The process ends itself while the second file is written; the next run cleans up."""
    old = content(folder)
    plans["T2 D2"].save(tmp_path / "b.json")
    code = (
        "import os, signal, sys\n"
        "from parenvs.exports import checkpoint\n"
        "write = checkpoint.write_part\n"
        "def dying(folder, number, boxes, tensors, give):\n"
        "    def last(*asked):\n"
        "        if number == 1 and asked[0].startswith('layers.2'):\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return give(*asked)\n"
        "    return write(folder, number, boxes, tensors, last)\n"
        "checkpoint.write_part = dying\n"
        "from parenvs.cli.app import main\n"
        "sys.argv = ['parenvs', 'reshard', 'state', '--new', 'b.json']\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert content(folder) == old
    left = [p for p in tmp_path.iterdir() if ".parenvs-" in p.name]
    assert left and (left[0] / "part-00000.bin").exists()
    Checkpoint(folder).verify()


def spoilt(folder, change):
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def swap_bytes(folder):
    path = folder / "part-00002.bin"
    path.write_bytes(path.read_bytes()[::-1])


@each(
    ("harm", "words"),
    [
        (lambda f: (f / "index.json").unlink(), "state: no checkpoint, as it has no index.json"),
        (lambda f: (f / "part-00001.bin").unlink(), "part-00001.bin: missing; the checkpoint has"),
        (lambda f: (f / "part-00001.bin").write_bytes(b"x"), "part-00001.bin: 1 bytes, and index"),
        (swap_bytes, "part-00002.bin: its SHA-256 is not that of index.json"),
        (lambda f: (f / "index.json").write_text("["), "index.json: not a JSON file"),
        (lambda f: spoilt(f, lambda x: x["files"].pop()), "field 'files': 3 files, and plan.json"),
        (
            lambda f: spoilt(f, lambda x: x["tensors"]["norm.weight"].update(shape=[99])),
            "(parameter): slices of 32 elements, and it has 99",
        ),
        (lambda f: spoilt(f, lambda x: x.pop("steps")), "field 'steps' is missing"),
        (
            lambda f: spoilt(f, lambda x: x["files"][0]["slices"][0].__setitem__(3, [999, 999])),
            "is no slice [name, kind, start, size, at] of a tensor",
        ),
        (
            lambda f: spoilt(f, lambda x: x["tensors"]["norm.weight"]["kinds"].update(m="object")),
            "kinds.m' must be one of bool, ",
        ),
        (
            lambda f: spoilt(f, lambda x: x.update(fingerprint="sha256:0")),
            "field 'fingerprint': of another model",
        ),
    ],
)
def test_reshard__refuses_what_is_not_whole(
    saved, folder, plans, tmp_path, monkeypatch, capfd, harm, words
):
    plans["D2"].save(tmp_path / "b.json")
    shutil.rmtree(folder)
    shutil.copytree(saved / "state", folder)
    harm(folder)
    run = caller(monkeypatch, capfd, tmp_path)
    status, out, err = run("reshard", "state", "--new", "b.json")
    assert (status, out) == (2, "") and err.count("\n") == 1 and words in err
    assert {p.name for p in tmp_path.iterdir()} == {"net.npz", "b.json", "state"}


def test_reshard__refuses_other_plans(folder, plans, graph, tmp_path):
    with pytest.raises(ParenvsError, match="state: not of the plan given, as field"):
        reshard(folder, plans["D2"], plans["P2 D2"], None, graph)
    other = replace(plans["D2"], fingerprint=f"sha256:{1:064}")
    with pytest.raises(ParenvsError, match="state: of another model"):
        reshard(folder, other, None, None, graph)
    smaller = replace(plans["D2"], stages=(replace(plans["D2"].stages[0], devices=3),))
    with pytest.raises(ParenvsError, match="illegal"):
        reshard(folder, smaller, None, None, graph)
    plans["T2 D2"].save(folder / "plan.json")
    with pytest.raises(ParenvsError, match=r"4 files, and plan.json \(T2 P1 D2\) has 2"):
        Checkpoint(folder)
    with pytest.raises(ParenvsError, match="is there and no checkpoint; give another folder"):
        reshard(folder, plans["D2"], None, tmp_path, graph)
