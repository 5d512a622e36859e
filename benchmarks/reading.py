"""Processor time of imports and of reading HLO modules.

Everything else is timed by ``parenvs bench speed``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.framework import INSTANCES, ROOT, Row, main, measurement, progress, table
from parenvs import from_hlo

IMPORT = "import time; begin = time.process_time(); import {}; print(time.process_time() - begin)"


def import_seconds(module: str, repeats: int) -> list[float]:
    """Processor seconds of ``import module`` in fresh interpreters, their start excluded."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", IMPORT.format(module)]
    runs = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        for _ in range(repeats + 1)
    )
    return [float(run.stdout) for run in runs][1:]  # the first run fills the disk's cache


def call_seconds(action: Callable[[], object], repeats: int) -> list[float]:
    """Processor seconds of each of ``repeats`` calls, after one that does not count."""
    action()
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        action()
        seconds.append(time.process_time() - begin)
    return seconds


def reading_seconds(name: str, repeats: int) -> tuple[list[float], float] | None:
    """Processor seconds to read the HLO proto of a model's training step, and to lower it.

    Args:
        name: name of a shipped instance.
        repeats: how often the proto is read.

    Returns:
        the seconds of each reading and those of the lowering, or None without JAX.
    """
    try:
        import jax

        from parenvs.datasets.models import MODELS, train_step
    except ImportError:
        return None
    function, arguments = train_step(MODELS[name])
    begin = time.process_time()
    lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    lowering = time.process_time() - begin
    module: Any = lowered.compiler_ir("hlo")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.pb"
        path.write_bytes(module.as_serialized_hlo_module_proto())
        return call_seconds(partial(from_hlo, path), repeats), lowering


@measurement(
    title="Seconds of imports and of reading",
    about={"repeats": "runs of everything"},
    among={"graph": INSTANCES},
)
def reading(repeats: int = 5, graph: str = "t5-11b") -> Row:
    progress("imports")
    timings: Row = {
        "`import parenvs`": import_seconds("parenvs", repeats),
        "`import gymnasium` alone": import_seconds("gymnasium", repeats),
    }
    progress(f"reading {graph}")
    found = reading_seconds(graph, repeats)
    if found is not None:
        timings[f"read the HLO proto of {graph}, train"] = found[0]
        timings["lower it with JAX, first time"] = [found[1]]
    return {"repeats": repeats, "graph": graph, **timings}


@reading.page
def page(data: Row, repeats: int) -> list[str]:
    timings = {what: runs for what, runs in data.items() if isinstance(runs, list)}
    sections = [
        f"Milliseconds of processor time, {repeats} runs.",
        table(
            ["what", "median", "best", "worst"],
            [
                [what, *(f"{1e3 * figure:,.1f}" for figure in (median(x), min(x), max(x)))]
                for what, x in timings.items()
            ],
        ),
    ]
    if len(timings) == 2:
        sections.append("Reading the HLO proto was left out: it needs the extra `jax`.")
    return sections


if __name__ == "__main__":
    main(reading)
