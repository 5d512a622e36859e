"""What the scripts of the clients share: arguments, the clock, and the count of glue.

A client is a script of its own, so that it can run in an environment where its package is
installed: ``PYTHON with_NAME.py ENV KWARGS STEPS`` prints one line of JSON. Lines from ``# glue``
to ``# end`` are what a user writes because the environment is of this suite; the rest is what the
client asks for with any environment.
"""

from __future__ import annotations

import json
import resource
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


def glue(*paths: Path) -> int:
    """Return the lines of glue in files, without blank ones and comments."""
    return sum(1 for path in paths for _ in _glue(path))


def _glue(path: Path) -> Iterator[str]:
    inside = False
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text in ("# glue", "# end"):
            inside = text == "# glue"
        elif inside and text and not text.startswith(("#", '"""')):
            yield text


def seconds() -> float:
    """Return processor seconds of this process and of the children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main(
    package: str,
    train: Callable[[str, dict[str, Any], int], int],
    script: str,
    flat: bool = False,
    masks: bool = True,
) -> None:
    """Train for some environment steps, and print what it took.

    Args:
        package: the distribution of the client.
        train: takes the environment's id, its arguments and the steps; returns the steps done.
        script: path of the client's script.
        flat: whether it takes the wrapper of ``flat.py``, whose lines are glue, too.
        masks: whether the client knows masks.
    """
    env_id, kwargs, steps = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    here = Path(script)
    files = [here, here.parent / "flat.py"] if flat else [here]
    begin, wall = seconds(), time.perf_counter()
    done = train(env_id, kwargs, steps)
    print(
        json.dumps(
            {
                "package": package, "version": version(package), "glue": glue(*files),
                "masks": masks, "steps": done, "seconds": round(seconds() - begin, 2),
                "wall": round(time.perf_counter() - wall, 2),
            }
        )
    )  # fmt: skip
