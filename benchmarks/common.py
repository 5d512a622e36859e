"""What the benchmarks share: problems, solved problems, and where the tables go."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from parenvs import Cluster, Pipeline, judge, load_profile
from parenvs.core.answer import Answer
from parenvs.errors import InfeasibleError
from parenvs.machine import cores, counted, processor, versions
from parenvs.markdown import table as table
from parenvs.shipped import PAPER

ROOT = Path(__file__).resolve().parents[1]
PROFILES = ROOT.parent / "shared" / "profiles"
"""Measured profiles; not part of the repository, and what needs them is left out without them."""
RESULTS = Path(__file__).parent / "results"
CLUSTERS = ("A", "B", "C")
INSTANCES = PAPER


@dataclass(frozen=True)
class Solved:
    """An answer and what the judge says of it, as JSON types.

    Attributes:
        status: ``"optimal"``, ``"feasible"`` (no proof) or ``"infeasible"`` (proven).
        seconds: wall time of the planner.
        length_seconds: closed-form L, None if infeasible.
        simulated_seconds: by event simulation, None if infeasible.
        value: 1/L in units of the bubble-free time, None if infeasible.
        bound_seconds: proven lower bound of L, None if infeasible.
        cuts: first pivot of each stage but the first.
        device_cuts: first device of each stage but the first.
        after: name of the last pivot before each cut.
        message: what the planner says if infeasible.
    """

    status: str
    seconds: float
    length_seconds: float | None = None
    simulated_seconds: float | None = None
    value: float | None = None
    bound_seconds: float | None = None
    cuts: tuple[int, ...] = ()
    device_cuts: tuple[int, ...] = ()
    after: tuple[str, ...] = ()
    message: str = ""

    @property
    def length(self) -> float:
        """Closed-form seconds, NaN if infeasible."""
        return np.nan if self.length_seconds is None else self.length_seconds


@cache
def problem(instance: str, cluster: str) -> Pipeline:
    """A shipped instance, or a measured profile given by its path, on a preset cluster."""
    devices = Cluster.parse(cluster)
    return Pipeline(load_profile(instance, devices), devices)


def profiles(*wanted: str) -> list[Path]:
    """Paths of the measured profiles named in ``wanted``, as far as they exist."""
    paths = [PROFILES / f"{name}.csv" for name in wanted]
    return [path for path in paths if path.exists()]


def solve(pipeline: Pipeline, planner: Callable[[], Answer]) -> Solved:
    """Run a planner and judge its plan."""
    begin = time.perf_counter()
    try:
        answer = planner()
    except InfeasibleError as error:
        return Solved("infeasible", time.perf_counter() - begin, message=str(error))
    spent = time.perf_counter() - begin
    plan = answer.plan
    report = judge(plan, pipeline)
    if not report.legal:
        raise AssertionError(f"{answer.method}: {report.reasons}")
    return Solved(
        status=answer.status,
        seconds=spent,
        length_seconds=report.length_seconds,
        simulated_seconds=report.simulated_seconds,
        value=report.value,
        bound_seconds=answer.bound,
        cuts=plan.cuts,
        device_cuts=plan.device_cuts,
        after=plan.cut_after,
    )


def layer(name: str) -> str:
    """Short name of the layer that a pivot belongs to: ``enc 13``, ``dec 3``, ``24``, ``fc1``.

    Layers are numbered as in the model's names, from 0. BERT has no decoder: see ``layers``.
    """
    match = re.search(r"(?:(encoder|decoder)/)?layer_(\d+)", name)
    if match:
        return f"{(match[1] or '')[:3]} {match[2]}".strip()
    parts = [part for part in name.split("/") if not part.startswith("jit(")]
    return (parts[0] if "/" in name and parts else name).split("(")[0].strip()


def layers(pipeline: Pipeline, after: Iterable[str]) -> tuple[str, ...]:
    """Short names of the layers after which a plan cuts."""
    both = any("decoder/" in name for name in pipeline.profile.names)
    return tuple(layer(x) if both else layer(x).removeprefix("enc ") for x in after)


def numbers(values: Iterable[int]) -> str:
    """``(8, 16, 24)`` without the trailing comma of a single one."""
    return f"({', '.join(map(str, values))})"


def percent(share: float | None, digits: int = 2) -> str:
    """A share as per cent; an empty string if it is None or NaN."""
    if share is None or np.isnan(share):
        return ""
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %"  # + 0.0: no minus before a zero


def machine() -> str:
    """Processor, cores and versions."""
    installed = versions()
    where = f"{processor()}, {counted(cores())}"
    return f"{where}; Python {installed['python']}, NumPy {installed['numpy']}"


def parser(
    doc: str | None, repeats: int | None = None, seconds: float | None = None
) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark takes.

    Args:
        doc: the benchmark's docstring, whose first line is the description.
        repeats: default of ``--repeats``; None leaves the option out.
        seconds: default of ``--seconds``; None leaves the option out.
    """
    result = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    result.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the results (default: %(default)s)"
    )
    if repeats is not None:
        result.add_argument("--repeats", type=int, default=repeats, help="runs of everything")
    if seconds is not None:
        result.add_argument("--seconds", type=float, default=seconds, help="of each run")
    return result


def publish(
    name: str, sections: Sequence[str], data: Any, folder: Path, script: str | None = None
) -> None:
    """Print the sections, write them as ``<name>.md`` and the raw figures as ``<name>.json``.

    Args:
        name: name of the files, and heading of the page.
        sections: paragraphs and tables.
        data: the raw figures; if empty, there is no ``.json``.
        folder: where the files go.
        script: name of the benchmark (default: ``name``).
    """
    # A page says nothing of where files lie on the machine that made it.
    words = [Path(x).name if Path(x).is_absolute() else x for x in sys.argv[1:]]
    arguments = shlex.join(words)
    command = f"python benchmarks/{script or name}.py {arguments}".strip()
    text = "\n\n".join([f"# {name}", f"`{command}`", machine(), *sections]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    if data:
        content = {"command": command, "machine": machine(), "data": data}
        raw = json.dumps(content, indent=1, default=_plain)
        (folder / f"{name}.json").write_text(raw + "\n", encoding="utf-8")
    print(text, end="")


def progress(text: str) -> None:
    """A line for the person who waits; not part of the output."""
    print(text, file=sys.stderr, flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Solved):
        return asdict(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value)
