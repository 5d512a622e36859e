"""Writers in processes of their own that are killed at random times, and what they leave.

``python tests/helpers/killed_writers.py KIND FOLDER`` writes two contents by turns until it is
killed.
"""

import os
import random
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path

from parenvs import files

ROOT = Path(__file__).parents[2]
KINDS = ("plan", "graph", "site", "checkpoint", "swap")
"""What is written; ``swap`` is the site where folders cannot be exchanged."""


def target(kind, folder):
    """The file or folder that the writers of a kind write."""
    names = {"plan": "plan.json", "graph": "graph.npz", "checkpoint": "state.pt"}
    return Path(folder) / names.get(kind, "site")


def write(kind, path, number):
    """Write content 0 or 1 once."""
    if kind == "plan":
        from parenvs.cluster import PRESETS
        from parenvs.tasks.pipeline.plan import PipelinePlan

        fingerprint = f"sha256:{number:064}"
        PipelinePlan("t5-base", fingerprint, PRESETS["A"], (50,), (8,)).save(path)
    elif kind == "graph":
        from parenvs.instances import load_graph

        load_graph(("vgg-19", "t5-base")[number]).save(path)
    elif kind == "checkpoint":
        save_checkpoint(path, number)
    else:
        from parenvs.leaderboard.site import GENERATOR, write_folder

        pages = {f"entries/e{i}.html": str(number) * 5000 for i in range(20)}
        write_folder(path, {"index.html": f"<!-- {GENERATOR} {number} -->", **pages})


def save_checkpoint(path, number):
    """Save the checkpoint of a training, whose first weight is the number."""
    import torch

    training = _training()
    training.path = path.parent
    with torch.no_grad():
        next(training.agent.net.parameters()).fill_(number)
    training.save()


_kept = []


def _training():
    """One small training, made once in a process."""
    if not _kept:
        from parenvs.agents.learning.config import TrainConfig
        from parenvs.agents.learning.trainer import Training

        kwargs = {"instance": "vgg-19", "cluster": "B"}
        settings = {"envs": 8, "turns": 8, "memory": 2048, "first": 8}
        config = TrainConfig(
            env_id="PipelineCut-v0", env_kwargs=kwargs, agent="rainbow", settings=settings
        )
        _kept.append(Training(config))
        for _ in range(4):
            _kept[0].update()
    return _kept[0]


def read(path):
    """What was written, in a form that can be compared; fails on anything that is not whole."""
    if path.suffix == ".pt":
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            # Tensors alone: the rest has seconds, which differ between processes.
            names = [name for name in archive.namelist() if "/data/" in name]
            return {name: archive.read(name) for name in names}
    if path.is_dir():
        return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    return path.read_bytes()


def kill(kind, folder, seed):
    """Start a writer and kill it up to 0.1 s after its first writing."""
    with _running([__file__, kind, str(folder)], b"writing\n"):
        time.sleep(random.Random(seed).uniform(0, 0.1))


@contextmanager
def holding(folder, beside=False):
    """Have another process hold the lock of a folder, and kill it; gives its number."""
    code = (
        "import sys, time\n"
        "from parenvs.files import locked\n"
        f"with locked({str(folder)!r}, {beside}):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with _running(["-c", code], b"held\n") as pid:
        yield pid


@contextmanager
def _running(arguments, begun):
    """Run Python, which is killed at the end of the block; waits for what it says first."""
    command, environment = [sys.executable, *arguments], {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout.readline() == begun
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def check(kind, folder, kills, kill=kill):
    """Kill writers; after each the old or the new is there; after a next start nothing else.

    Args:
        kind: one of ``KINDS``.
        folder: an empty folder.
        kills: number of kills.
        kill: starts a writer and kills it, given kind, folder and seed.

    Returns:
        how many kills left something that the next start removed or repaired.
    """
    path, known, left = target(kind, folder), [], 0
    for number in (1, 0):
        write(kind, path, number)
        known.append(read(path))
    assert known[0] != known[1]
    for seed in range(kills):
        kill(kind, folder, seed)
        names = {p.name for p in Path(folder).iterdir()}
        left += names != {path.name}
        if kind == "swap" and path.name not in names:  # killed between two renames
            files.remove_leftovers(Path(folder))
        assert read(path) in known, seed
        write(kind, path, 0)
        # A checkpoint's training writes its learning curve, too.
        rest = {p.name for p in Path(folder).iterdir()} - {path.name, "curve.csv"}
        assert not rest, (seed, rest)
    return left


def repeat(kind, folder):
    """Write both contents by turns until killed."""
    if kind == "swap":
        files._exchange = lambda *_: False
    turn = 0
    while True:
        write(kind, target(kind, folder), turn)
        print("writing", flush=True)
        turn = 1 - turn


if __name__ == "__main__":
    repeat(sys.argv[1], sys.argv[2])
