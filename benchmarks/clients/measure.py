"""What the scripts of the clients share: arguments, the clock, and the count of glue.

A client is a script of its own, so that it can run in an environment where its package is
installed: ``PYTHON with_NAME.py ENV KWARGS SECONDS`` prints one line of JSON. Lines from ``# glue``
to ``# end`` are what a user writes because the environment is of this suite; the rest is what the
client asks for with any environment.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import parenvs  # noqa: E402, F401  # registers the environments
from parenvs.core.registry import environments  # noqa: E402

ENVS, TURNS, EPOCHS, MINIBATCH = 64, 16, 4, 256
"""Of every PPO: environments at once, turns of each in a batch, passes over it, turns of a step."""
BATCH = ENVS * TURNS
WARM = 2 * BATCH
"""Steps that are start-up: imports, problems and networks are made, and memory is taken."""
WIDTHS = [64, 64]
PATIENCE = 180.0
"""Seconds of wall time behind the start-up after which a training is stopped, too."""
TICKS = os.sysconf("SC_CLK_TCK")


class EnoughError(Exception):
    """A training has taken the seconds that it has."""


Tick = Callable[[int], None]
"""Is told of the steps so far behind every update; raises ``EnoughError``."""


def masked(env_id: str) -> bool:
    """Return whether an environment has masks, as those of this suite have."""
    return env_id in environments()


def discount(env_id: str) -> float:
    """Return the discount of rewards: none in games, which end."""
    return 1.0 if masked(env_id) else 0.99


def glue(path: Path) -> int:
    """Return the lines of glue in a file, without blank ones and comments."""
    return sum(1 for _ in _glue(path))


def _glue(path: Path) -> Iterator[str]:
    inside = False
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text in ("# glue", "# end"):
            inside = text == "# glue"
        elif inside and text and not text.startswith(("#", '"""')):
            yield text


def seconds() -> float:
    """Return processor seconds of this process and of all below it, ended ones included."""
    return time.process_time() + sum(_spent(pid) for pid in _below(os.getpid())) + _ended()


def _ended() -> float:
    told = os.times()
    return told.children_user + told.children_system


def _below(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _read(path).split():
            yield int(child)
            yield from _below(int(child))


def _spent(pid: int) -> float:
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""


def main(
    package: str,
    train: Callable[[str, dict[str, Any], Tick], None],
    script: str,
) -> None:
    """Train for some processor seconds behind the start-up, and print what it took.

    Args:
        package: the distribution of the client.
        train: takes the environment's id, its arguments, and what is told of every update.
        script: path of the client's script.
    """
    env_id, kwargs, limit = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    begin: tuple[int, float, float] | None = None
    last = (0, 0.0, 0.0)

    def tick(done: int) -> None:
        nonlocal begin, last
        last = (done, seconds(), time.perf_counter())
        if begin is None and done >= WARM:
            begin = last
        if begin is None:
            return
        if last[1] - begin[1] >= limit or last[2] - begin[2] >= PATIENCE:
            raise EnoughError

    try:
        train(env_id, kwargs, tick)
    except EnoughError:
        pass
    else:
        raise SystemExit("the training ended by itself")
    assert begin is not None
    steps, spent, wall = (now - then for now, then in zip(last, begin, strict=True))
    print(
        json.dumps(
            {
                "package": package, "version": version(package),
                "glue": glue(Path(script)) if masked(env_id) else 0,
                "startup": round(begin[1], 2), "steps": steps,
                "seconds": round(spent, 2), "wall": round(wall, 2),
            }
        ),
        flush=True,
    )  # fmt: skip
    for child in multiprocessing.active_children():
        child.terminate()
    os._exit(0)  # some clients wait for what is no longer asked of them
