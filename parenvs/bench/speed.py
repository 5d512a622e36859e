"""What ``parenvs bench speed`` measures: environments, growth, memory, solvers, training."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parenvs.bench import speed_table
from parenvs.bench.ahead import ahead
from parenvs.bench.measurement import measurement, plain
from parenvs.bench.page import host
from parenvs.bench.play import AHEAD, BARE, BASELINE, DRAWN, Case, speeds
from parenvs.bench.scaling import LAYERS, PIVOTS, chain, classes, memory, pivots
from parenvs.bench.solvers import parts, time_part
from parenvs.errors import ParenvsError, need_extra
from parenvs.machine import commit

CUT, PLAN = "PipelineCut-v0", "PipelinePlan-v1"
OPERATOR, BATCH = "OperatorPartition-v0", "DataParallel-v0"
HYBRID, SHARDING = "HybridPlan-v1", "IntraOpSharding-v1"
PARTITION, ELASTIC = "PartitionPlan-v1", "ElasticPlan-v1"
CHAIN = f"{CUT}, chain of 192"
"""A chain that may be cut at every pivot, which makes 123 candidates."""
ROWED = (PLAN, PARTITION, HYBRID, SHARDING, ELASTIC)
"""Environments of rows that are timed, with and without looking ahead."""
TIMED = (CUT, OPERATOR, BATCH, *ROWED)
"""All environments that are timed."""
VGG, BASE, WIDE = f"{CUT}, vgg-19", f"{OPERATOR}, t5-base", f"{OPERATOR}, t5-11b"


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        sizes: numbers of environments of the batches.
        drawn: greatest batch of environments that draw their problems, or look ahead; more take
            seconds.
        bare: greatest batch of environments of rows that do not.
        seconds: processor seconds of a run.
        repeats: number of runs of everything; the tables show their medians.
        pivots: lengths of the chains of pivots.
        layers: lengths of the chains of dense layers.
        growing: number of environments of the batches on these chains.
        held: number of environments of the batches whose memory is measured.
        instances: the instances whose graph is read, whose candidates are solved, and which is
            solved over all pivots.
        train_steps: environment steps of a turn of training.
    """

    sizes: tuple[int, ...] = (1, 8, 64, 1024, 8192)
    drawn: int = 64
    bare: int = 1024
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
    sizes=(1, 64),
    drawn=1,
    bare=64,
    seconds=0.01,
    repeats=3,
    pivots=(32, 128),
    layers=(16, 64),
    growing=64,
    held=64,
    instances=("vgg-19", "vgg-19", "vgg-19"),
    train_steps=256,
)
"""Takes a few seconds, which shows that everything runs but does not compare machines."""


def cases(folder: Path) -> dict[str, Case]:
    """The environments that are timed, by name, the yardstick first.

    Args:
        folder: where the profile of the chain is written.
    """
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
        f"{PLAN}, t5-base{AHEAD}": (PLAN, base),
        f"{PLAN}{DRAWN}": (PLAN, {"fresh": True}),
        f"{HYBRID}, hetero-32/7{AHEAD}": (HYBRID, {"instance": "hetero-32/7"}),
        **{f"{each}{AHEAD}": (each, {}) for each in ROWED},
        **{f"{each}{BARE}": (each, {"rows": "bare"}) for each in ROWED},
    }


@measurement(title="Speed of environments")
def bench_speed(
    effort: Effort = FULL,
    say: Callable[[str], object] = lambda text: None,
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure everything on one thread, in processor time.

    Args:
        effort: how much is measured.
        say: is called with a line on what is being measured.
        only: ids of environments; if they are given, nothing but their rows is measured.

    Returns:
        JSON types: ``effort``, ``environments`` (see ``play.speeds``), ``ahead`` (of environments
        of rows, see ``ahead.ahead``), ``growth`` and ``memory`` (see ``scaling``), ``parts`` (see
        ``solvers``), ``training``, and ``training_missing``: why there is no training, or None.
        Rows of environments say of which commit they are.
    """
    seconds, repeats = effort.seconds, effort.repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = cases(folder)
        if only:
            chosen = {what: x for what, x in chosen.items() if x[0] in (BASELINE, *only)}
        limits = {DRAWN: effort.drawn, AHEAD: effort.drawn, BARE: effort.bare}
        rows = speeds(chosen, (0, *effort.sizes), seconds, repeats, say, limits)
        looking = []
        for each in [x for x in ROWED if not only or x in only]:
            say(f"{each}, rows beside formulas")
            looking.append(ahead(each, (each, {}), effort.drawn, seconds, repeats))
        say("memory")
        memory_rows = []
        for what, case in list(chosen.items())[1:]:
            count = min(effort.held, max(effort.drawn, 2)) if DRAWN in what else effort.held
            memory_rows.append(memory(what, case, count))
        for row in rows:  # the folder is gone, and its name differs from run to run
            if row["what"] == CHAIN:
                row["kwargs"] = {**row["kwargs"], "instance": Path(row["kwargs"]["instance"]).name}
        found = {"environments": rows, "ahead": looking, "memory": memory_rows}
        made = {"commit": commit()}
        for row in (row for part in found.values() for row in part):
            row["made"] = made
        if only:
            return {"effort": asdict(effort), **found}
        say("growth")
        growing = (effort.growing, folder, seconds, repeats)
        growth = {
            "pivots": [pivots(number, *growing) for number in effort.pivots],
            "classes": [classes(number, *growing) for number in effort.layers],
        }
    part_rows = []
    for part in parts(*effort.instances):
        say(f"{part.what}, {part.instance}")
        part_rows.append(time_part(part, seconds / 10, repeats))
    training, missing = _training(effort, say)
    return {
        "effort": asdict(effort),
        **found,
        "growth": growth,
        "parts": part_rows,
        "training": training,
        "training_missing": missing,
    }


def former(folder: Path, effort: Effort) -> dict[str, Any]:
    """Return the results in a folder, for ``renewed``.

    Raises:
        ParenvsError: there are none, or they are of another effort or machine.
    """
    bench_speed.run(folder, {}, render=True)  # raises the error that there are none
    content: dict[str, Any] = json.loads((folder / f"{bench_speed.name}.json").read_text("utf-8"))
    if content["effort"] != plain(effort) or not content["machine"].startswith(host()):
        raise ParenvsError(f"--only: the results in {folder} are of other options or machines")
    return content


def renewed(content: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``former`` results with what ``bench_speed`` returned of some environments.

    All else is still made as it was.
    """
    result = {key: value for key, value in content.items() if key not in ("command", "machine")}
    for part in ("environments", "ahead", "memory"):
        new = {(x["what"], x["envs"]): x for x in data[part] if x["what"] != BASELINE}
        old = [{"made": {"commit": content["made"]["commit"]}, **row} for row in content[part]]
        result[part] = [new.get((row["what"], row["envs"]), row) for row in old]
    return result


def _training(
    effort: Effort, say: Callable[[str], object]
) -> tuple[list[dict[str, Any]], str | None]:
    """The speeds of training, and None; without the extra ``agents`` nothing, and the reason."""
    try:
        with need_extra("agents", "training"):
            from parenvs.bench.training import training_rates
    except ParenvsError as error:
        return [], str(error)
    return training_rates(effort.train_steps, effort.repeats, say), None


bench_speed.page(speed_table.page)
