"""The speed of the suite: every environment beside CartPole, how cost grows, solvers, training."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from parenvs.bench.play import BASELINE, DRAWN, VIEWS, Case, speeds
from parenvs.bench.scaling import LAYERS, PIVOTS, chain, classes, memory, pivots
from parenvs.bench.solvers import measured, parts
from parenvs.machine import cores, processor, versions

CUT, PLAN = "PipelineCut-v0", "PipelinePlan-v0"
OPERATOR, BATCH = "OperatorPartition-v0", "DataParallel-v0"
CHAIN = f"{CUT}, chain of 192"
"""Every pivot may be cut: 123 candidates."""
VGG, BASE, WIDE = f"{CUT}, vgg-19", f"{OPERATOR}, t5-base", f"{OPERATOR}, t5-11b"


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        sizes: environments of a batch.
        drawn: the most of a batch that draws its problems: more take seconds to reset.
        seconds: processor seconds of a run.
        repeats: runs of everything; figures are their medians.
        pivots: of chains.
        layers: of chains of dense layers.
        growing: environments of a batch whose problem grows.
        held: environments of a batch whose memory is measured.
        instances: whose graph is read, whose candidates are solved, whose pivots are.
        train_steps: environment steps of a turn of training.
    """

    sizes: tuple[int, ...] = (1, 8, 64, 1024, 8192)
    drawn: int = 64
    seconds: float = 0.5
    repeats: int = 5
    pivots: tuple[int, ...] = PIVOTS
    layers: tuple[int, ...] = LAYERS
    growing: int = 256
    held: int = 1024
    instances: tuple[str, str, str] = ("t5-11b", "t5-3b", "t5-base")
    train_steps: int = 6144


FULL = Effort()
QUICK = Effort(
    sizes=(1, 8, 64),
    drawn=1,
    seconds=0.01,
    repeats=3,
    pivots=(32, 128),
    layers=(16, 64),
    growing=64,
    held=64,
    instances=("vgg-19", "vgg-19", "vgg-19"),
    train_steps=256,
)
"""A few seconds; enough to see that everything runs, not to compare machines."""


class Target(NamedTuple):
    """What is asked of a speed.

    Attributes:
        what: the environment.
        envs: at once, 0 for a single one.
        of: ``"steps_per_second"``, ``"over_single"`` or ``"over_cartpole"``.
        asked: at least this.
    """

    what: str
    envs: int
    of: str
    asked: float


TARGETS = (
    Target(CHAIN, 1024, "steps_per_second", 2e6),
    Target(BASE, 1024, "steps_per_second", 5e6),
    Target(CHAIN, 8, "over_single", 2.0),
    Target(BASE, 8, "over_single", 2.0),
    Target(CHAIN, 64, "over_cartpole", 1.0),
    Target(CHAIN, 1024, "over_cartpole", 0.15),
    Target(CHAIN, 0, "over_cartpole", 0.3),
    Target(VGG, 0, "over_cartpole", 0.3),
    Target(WIDE, 0, "over_cartpole", 0.3),
)


def cases(folder: Path) -> dict[str, Case]:
    """Environments by what is said of them, the yardstick first; ``folder`` gets a chain."""
    every_pivot = {"instance": chain(192, folder), "cluster": "C", "candidates": "all"}
    base = {"instance": "t5-base", "cluster": "C"}
    strict = {"instance": "t5-base", "linkage": False, "masked": True}
    return {
        BASELINE: (BASELINE, {}),
        CHAIN: (CUT, every_pivot),
        VGG: (CUT, {"instance": "vgg-19", "cluster": "C"}),
        f"{CUT}, t5-base": (CUT, base),
        BASE: (OPERATOR, {"instance": "t5-base"}),
        WIDE: (OPERATOR, {"instance": "t5-11b"}),
        f"{OPERATOR}, t5-base, linkage=False": (OPERATOR, strict),
        f"{BATCH}, t5-base": (BATCH, {"instance": "t5-base"}),
        f"{PLAN}, t5-base": (PLAN, base),
        f"{PLAN}, t5-base{VIEWS}": (PLAN, {**base, "copy": False}),
        f"{PLAN}{DRAWN}, repeat=1": (PLAN, {}),
        f"{PLAN}{DRAWN}, repeat=50": (PLAN, {"repeat": 50}),
    }


def measure(
    effort: Effort = FULL, say: Callable[[str], object] = lambda text: None
) -> dict[str, Any]:
    """Measure everything, single thread, processor time.

    Args:
        effort: how much.
        say: is told what is being measured.

    Returns:
        JSON types: ``machine``, ``effort``, ``environments`` (see ``speed_play.speeds``),
        ``targets``, ``growth`` and ``memory`` (see ``speed_growth``), ``parts``, ``training``, or
        ``training_missing``, why there is none.
    """
    seconds, repeats = effort.seconds, effort.repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = cases(folder)
        rows = speeds(chosen, (0, *effort.sizes), seconds, repeats, say, effort.drawn)
        say("growth")
        growing = (effort.growing, folder, seconds, repeats)
        growth = {
            "pivots": [pivots(number, *growing) for number in effort.pivots],
            "classes": [classes(number, *growing) for number in effort.layers],
        }
        say("memory")
        held = []
        for what, case in list(chosen.items())[1:]:
            count = min(effort.held, max(effort.drawn, 2)) if DRAWN in what else effort.held
            held.append(memory(what, case, count))
    found = []
    for part in parts(*effort.instances):
        say(f"{part.what}, {part.instance}")
        found.append(measured(part, seconds / 10, repeats))
    for row in rows:  # the folder is gone, and its name differs from run to run
        if row["what"] == CHAIN:
            row["kwargs"] = {**row["kwargs"], "instance": Path(row["kwargs"]["instance"]).name}
    training, missing = _training(effort, say)
    return {
        "machine": {"processor": processor(), "cores": cores(), "versions": versions()},
        "effort": asdict(effort),
        "environments": rows,
        "targets": reached(rows),
        "growth": growth,
        "memory": held,
        "parts": found,
        "training": training,
        "training_missing": missing,
    }


def reached(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is asked of the environments that were measured, and the ratio that they reach."""
    found = []
    for target in TARGETS:
        for row in rows:
            if (row["what"], row["envs"]) == target[:2]:
                value = median(row[target.of])
                found.append({**target._asdict(), "reached": value, "ratio": value / target.asked})
    return found


def _training(
    effort: Effort, say: Callable[[str], object]
) -> tuple[list[dict[str, Any]], str | None]:
    """Speeds of training, or why there are none."""
    try:
        from parenvs.bench.training import training_rates
    except ImportError as error:
        return [], f"it needs the extra 'agents' ({error})"
    return training_rates(effort.train_steps, effort.repeats, say), None
