"""Commands that are killed at random times: what they leave is whole, and a next run ends well.

A command is run once to its end, then killed again and again, mostly from what the last one left,
half of the times while it writes, and at last it has to end well.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path

from parenvs import files

ROOT = Path(__file__).parents[2]
PATIENCE = 20.0
"""Seconds in which what a killed command has started has to end, too."""
_MODEL = "examples/torch_transformer.py:make"
_JOB = [
    "elastic", "run", "nodes.csv", f"{ROOT / 'examples/elastic_transformer.py'}:build",
    "--interval-steps", "2", "--processes", "3", "--batch", "12", "--every", "2",
    "--step-seconds", "0.01",
]  # fmt: skip
_NODES = "seconds,event,node\n0,add,a\n60,add,b\n120,add,c\n180,remove,a\n240,remove,b\n"
_CALIBRATE = ["calibrate", "--repeats", "1", "--largest", "0.01", "--processes", "1"]
COMMANDS = {
    "train": ["train", "vgg-19", "--cluster", "B", "--steps", "8192", "--out", "run"],
    "train-rows": [
        "train", "CartPole-v1", "--agent", "ppo", "--steps", "65536", "--out", "run",
    ],
    "table": ["leaderboard", "table", "--folder", "entries", "--out", "table.md"],
    "update": ["leaderboard", "update", "entries/hetero/swap-search.json"],
    "reshard": ["reshard", "state", "--new", "other.json"],
    "run": ["run", "torch.json", f"{ROOT / _MODEL}", "--args", "batch", "--repeats", "1"],
    "export": ["export", "plan.json", "--to", "jax", "--out", "exported.py"],
    "calibrate": [*_CALIBRATE, "--out", "machine.json"],
    "elastic-run": [*_JOB, "--out", "job"],
}  # fmt: skip
"""Name -> what is typed after ``parenvs`` in a folder that ``prepare`` fills."""
CHECKPOINTS = {
    "train": "run/state.pt", "train-rows": "run/state.pt",
    "elastic-run": "job/intervals.jsonl",
}  # fmt: skip
"""Name -> what the next run goes on from."""


def parenvs(folder, words, **options):
    """Start the command in a process group of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{_package(folder)}{os.pathsep}{ROOT / 'tests/helpers'}",
    }
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "parenvs", *words], cwd=folder, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, **options,
    )  # fmt: skip


def _package(folder):
    """Where the package is: the copy of a folder if it has one, as ``update`` changes it."""
    return folder / "checkout" if (folder / "checkout").is_dir() else ROOT


def prepare(name, folder):
    """Make what a command reads."""
    if name == "export":
        plan = ["plan", "vgg-19", "--task", "partition", "--cluster", "1x4:v100"]
        ended(folder, [*plan, "--out", "plan.json"])
    elif name in ("table", "update"):
        own = folder / "entries" / "hetero"
        own.mkdir(parents=True)
        shutil.copy(ROOT / "leaderboard" / "submissions" / "hetero" / "swap-search.json", own)
        if name == "update":
            _copied(folder / "checkout")
    elif name in ("reshard", "run"):
        _state(folder)
    elif name == "elastic-run":
        (folder / "nodes.csv").write_text(_NODES, encoding="utf-8")


def _copied(checkout):
    """Copy the package, with references that an entry improves."""
    for part in ("parenvs", "agents", "datasets", "leaderboard"):
        no = shutil.ignore_patterns("__pycache__", "submissions", "methods")
        shutil.copytree(ROOT / part, checkout / part, ignore=no)
    shutil.copy(ROOT / "setup.cfg", checkout)
    listed = checkout / "leaderboard" / "tasks.json"
    content = json.loads(listed.read_text(encoding="utf-8"))
    tasks = content["tasks"]
    for task in tasks if isinstance(tasks, list) else tasks.values():
        for problem in task["problems"] if task["name"] == "hetero" else ():
            problem["reference"] |= {"cost": problem["reference"]["cost"] * 2, "status": "bound"}
    listed.write_text(json.dumps(content), encoding="utf-8")


def _state(folder):
    """Write a checkpoint of two processes, its graph, and plans of it."""
    import numpy as np
    import resharding

    from parenvs.exports.checkpoint import (
        PARAMETER,
        Files,
        Head,
        Tensor,
        box_of,
        write_index,
        write_part,
    )
    from parenvs.exports.torch import torch_plan

    graph = resharding.example.read()
    graph.save(folder / "net.npz")
    plans = [resharding.plan_of(graph, "net.npz", 2, *x) for x in resharding.TWO.values()]
    plan = plans[0]
    plan.save(folder / "torch.json")
    plans[1].save(folder / "other.json")
    exported, held = torch_plan(plan, graph), Files.of(plan)
    stages = held.shards.stages(graph)
    tensors = {x: Tensor(shape, {PARAMETER: "float32"}, {}) for x, shape in exported.shapes.items()}
    (folder / "state").mkdir()
    parts = [
        write_part(
            folder / "state", number,
            {
                name: box_of(exported, name, x.shape, place)
                for name, x in tensors.items() if stages[name] == place.pipe
            },
            tensors, lambda name, kind, box: np.zeros([b - a for a, b in box], "i4"),
        )
        for number, place in enumerate(held.places())
    ]  # fmt: skip
    write_index(folder / "state", plan, Head(20, "Adam", [{}], tensors), parts)


def ended(folder, words):
    """Run a command to its end; fails unless it ends well."""
    process = parenvs(folder, words)
    error = process.communicate()[1].decode()
    assert process.returncode == 0, (words, error[-2000:])


def whole(folder):
    """Fail on a file that is not whole; temporary names are not looked at.

    A log grows line by line, so that it may be empty.
    """
    for path in folder.rglob("*"):
        if (
            not path.is_file()
            or files.TEMPORARY.fullmatch(path.name)
            or path.name.endswith(".lock")
        ):
            continue
        if any(files.TEMPORARY.fullmatch(part) for part in path.relative_to(folder).parts):
            continue
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".jsonl":
            for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
                json.loads(line)
        elif path.suffix in (".zip", ".npz", ".pt"):  # torch writes archives
            with zipfile.ZipFile(path) as archive:
                assert archive.testzip() is None, path
        elif path.suffix in (".md", ".py", ".csv", ".png"):
            assert path.stat().st_size, path


def journal(folder):
    """What a job wrote down: its intervals, and the samples of each step that counts."""
    from parenvs.jobs.journal import Journal

    found = Journal.open(folder / "job", {})
    return [row.interval for row in found.intervals], [step.ids for step in found.trained]


def again(folder, words):
    """What is typed to go on: a training that has begun asks for --resume."""
    begun = words[0] == "train" and (folder / "run" / "config.json").exists()
    return [*words, "--resume"] if begun else words


def check(name, folder, kills, seed=0):
    """Kill a command at random times.

    Returns:
        ``resumed``, the number of killed runs that began from a checkpoint, and ``outlived``, that
        of kills which something that the command had started outlived.
    """
    folder = Path(folder)
    words, draw = COMMANDS[name], random.Random(f"{name} {seed}")
    found, has_ended = {"resumed": 0, "outlived": 0}, True
    prepare(name, folder)
    inputs = {path.name for path in folder.iterdir()}
    begin = time.monotonic()
    ended(folder, words)
    seconds = time.monotonic() - begin
    told = journal(folder) if name == "elastic-run" else None
    for _ in range(kills):
        if draw.random() < (0.5 if has_ended else 0.1):  # from nothing, and from a whole result
            for path in folder.iterdir():
                if path.name not in inputs:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        found["resumed"] += (folder / CHECKPOINTS.get(name, "none")).exists() and not has_ended
        process = parenvs(folder, again(folder, words))
        with suppress(subprocess.TimeoutExpired):  # most of the first half is imports
            process.wait(draw.uniform(draw.choice((0, seconds / 2)), seconds))
        process.kill()
        process.communicate()
        has_ended = process.returncode == 0
        found["outlived"] += not _is_over(process.pid)
        whole(folder)
    ended(folder, again(folder, words))
    whole(folder)
    if told is not None:  # every interval once, and samples in their order, as many as were saved
        intervals, ids = journal(folder)
        assert intervals == told[0] and ids == told[1][: len(ids)] and ids, (intervals, ids)
    left = [path for path in folder.rglob("*") if files.TEMPORARY.fullmatch(path.name)]
    assert not left, left
    return found


def _is_over(group):
    """Whether the processes of a group end within some seconds; they are killed after them."""
    for _ in range(int(PATIENCE / 0.1)):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    return False
