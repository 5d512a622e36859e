"""The modules that three everyday calls pass through."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.framework import ROOT, Row, columns, forked, main, measurement, progress

MODEL = """
import jax
import jax.numpy as jnp


def loss(weights, tokens):
    hidden = tokens
    for matrix in weights:
        hidden = jnp.tanh(hidden @ matrix)
    return jnp.mean(hidden**2)


def step(weights, tokens):
    gradients = jax.grad(loss)(weights, tokens)
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)


arguments = [jnp.ones((256, 256))] * 8, jnp.ones((64, 256))
"""


def command(*words: str) -> None:
    """The command line, with these words."""
    from parenvs.cli.app import main as parenvs

    sys.argv = ["parenvs", *words]
    with contextlib.suppress(SystemExit):
        parenvs()


def play() -> None:
    """``gym.make("PipelineCut-v0", instance="t5-3b")``, to the last reward."""
    import gymnasium

    import parenvs  # noqa: F401  registers the environments

    env = gymnasium.make("PipelineCut-v0", instance="t5-3b")
    _, info = env.reset(seed=0)
    over = False
    while not over:
        action = int(info["action_mask"].nonzero()[0][0])
        _, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated


def plan() -> None:
    """``parenvs plan my_model.py:step --args my_model.py:arguments --cluster C --stages 2``."""
    Path("my_model.py").write_text(MODEL, encoding="utf-8")
    step, arguments = "my_model.py:step", "my_model.py:arguments"
    command("plan", step, "--args", arguments, "--cluster", "C", "--stages", "2")


def rank() -> None:
    """``parenvs leaderboard check`` of an entry, then ``parenvs leaderboard table``."""
    entry = ROOT / "leaderboard" / "submissions" / "pipeline-cut" / "even.json"
    command("leaderboard", "check", str(entry))
    command("leaderboard", "table", "--folder", str(entry.parents[1]))


def traced(call: Callable[[], None]) -> list[Row]:
    """The modules whose functions a call enters, in this order, with their first function.

    What runs while a module is imported does not count, nor what dataclasses write for themselves.
    """
    first: dict[str, str] = {}

    def enter(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__") or ""
        is_own = name.split(".")[0] == "parenvs" and frame.f_code.co_filename != "<string>"
        if event == "call" and is_own and name not in first and not _is_import(frame):
            first[name] = frame.f_code.co_qualname

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sys.setprofile(enter)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                call()
        finally:
            sys.setprofile(None)
    return [{"module": name, "first": first[name], "about": _about(name)} for name in first]


def _is_import(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame is not None and frame.f_globals["__name__"].split(".")[0] == "parenvs"


def _about(name: str) -> str:
    text = importlib.import_module(name).__doc__ or ""
    return text.split("\n\n")[0].replace("\n", " ").strip()


PATHS = {"environment": play, "plan": plan, "rank": rank}


@measurement(title="Modules that everyday calls pass through")
def house() -> dict[str, list[Row]]:
    os.environ["PYTHONPATH"] = str(ROOT)
    found = {}
    for name, call in PATHS.items():
        progress(name)
        found[name] = forked(partial(traced, call))
    return found


@house.page
def page(data: dict[str, Any]) -> list[str]:
    sections = []
    for name, call in PATHS.items():
        rows = data[name]
        sections += [
            f"## {len(rows)} modules: {(call.__doc__ or '').rstrip('.').replace('``', '`')}",
            "In the order in which the call enters them.",
            columns(
                rows,
                [("module", "`{module}`"), ("enters", "`{first}`"), ("what it is", "{about}")],
                left=3,
            ),
        ]
    return sections


if __name__ == "__main__":
    main(house)
