"""How the cost of a batch grows with the number of pivots and of classes; memory of each env."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.bench.play import Case, batch_play, copies, drawn, made, observed_bytes, rate
from parenvs.pipeline.profile import StageProfile

PIVOTS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
LAYERS = (16, 64, 256, 1024, 4096)
"""Of chains of dense layers, each of which has a class of its own."""


def chain(pivots: int, folder: Path) -> str:
    """Path of a profile of random pivots, which it writes."""
    rng = np.random.default_rng(0)
    profile = StageProfile(
        name=f"chain {pivots}",
        names=np.array([f"p{i}" for i in range(pivots)], dtype=object),
        forward=1e-3 * (0.5 + rng.random(pivots)),
        backward=2e-3 * (0.5 + rng.random(pivots)),
        cut_bytes=1e6 * rng.integers(1, 9, pivots),
        parameter_bytes=1e6 * rng.integers(1, 9, pivots),
    )
    path = folder / f"{profile.name}.csv"
    profile.to_csv(path)
    return str(path)


def dense(layers: int, folder: Path) -> str:
    """Path of the HLO text of dense layers, 4 wide, one after the other, which it writes."""
    shape = "f32[4,4]{1,0}"
    lines = [f"  params__w{k:05d}__.1 = {shape} parameter({k})" for k in range(layers)]
    lines.append(f"  batch__x__.1 = {shape} parameter({layers})")
    last = "batch__x__.1"
    for k in range(layers):
        root = "ROOT " if k == layers - 1 else ""
        lines.append(
            f"  {root}dot.{k} = {shape} dot({last}, params__w{k:05d}__.1), "
            "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        )
        last = f"dot.{k}"
    path = folder / f"dense {layers}.txt"
    path.write_text("\n".join(["HloModule chain", "ENTRY main {", *lines, "}", ""]))
    return str(path)


def pivots(number: int, count: int, folder: Path, seconds: float, repeats: int) -> dict[str, Any]:
    """A batch of ``PipelineCut-v0`` on a chain of which every pivot may be cut."""
    kwargs = {"instance": chain(number, folder), "cluster": "C", "candidates": "all"}
    envs, row = _grown(("PipelineCut-v0", kwargs), count, seconds, repeats)
    tables = [value for value in vars(envs.kernel).values() if isinstance(value, np.ndarray)]
    return {
        "pivots": number,
        "actions": int(envs.single_action_space.n),
        "tabulated": envs.kernel.tabulated,
        "table_bytes": sum(x.nbytes for x in [*tables, *sum(envs.kernel.step_rows, ())]),
        **row,
    }


def classes(layers: int, count: int, folder: Path, seconds: float, repeats: int) -> dict[str, Any]:
    """A batch of ``OperatorPartition-v0`` on a chain of dense layers."""
    kwargs = {"instance": dense(layers, folder)}
    envs, row = _grown(("OperatorPartition-v0", kwargs), count, seconds, repeats)
    space = envs.answers.space
    return {
        "layers": layers,
        "classes": len(space.classes),
        "dimensions": len(space.dimensions),
        "tables": envs.answers.decisions.table is not None,
        **row,
    }


def memory(what: str, case: Case, count: int, steps: int = 1) -> dict[str, Any]:
    """Bytes that each environment of a batch takes, ``count`` at once.

    Returns:
        ``state``: arrays of the batch; ``held``: all that it keeps, the tables that all share left
        out; ``bounds``: of that, what gymnasium keeps of a batched observation space; ``peak``: the
        most while one of ``steps`` steps is made, results included.
    """
    kept, held, peak = made(case, 1), [], 0  # its tables are those of all batches
    for size in (1, count):
        tracemalloc.start()
        envs = made(case, size)
        infos, rng = envs.reset(seed=0)[1], np.random.default_rng(0)
        held.append(tracemalloc.get_traced_memory()[0])
        for _ in range(steps if size == count else 0):
            tracemalloc.reset_peak()
            infos = envs.step(drawn(rng, infos, size))[-1]
            peak = max(peak, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    kept.close()
    boxes = [space for space in envs.observation_space.values() if hasattr(space, "low")]
    parts = ("low", "high", "bounded_below", "bounded_above")
    arrays = [value for value in vars(envs).values() if isinstance(value, np.ndarray)]
    return {
        "what": what,
        "envs": count,
        "state": sum(value.nbytes for value in arrays) / count,
        "held": (held[1] - held[0]) / (count - 1),
        "bounds": sum(getattr(box, key).nbytes for box in boxes for key in parts) / count,
        "peak": peak / count,
        "in_a_step": (peak - held[1]) / count,
    }


def _grown(case: Case, count: int, seconds: float, repeats: int) -> tuple[Any, dict[str, Any]]:
    """A batch, and what its making and its steps cost."""
    begin = time.process_time()
    envs = made(case, count)
    spent = time.process_time() - begin
    size = observed_bytes(envs.reset()[0])
    play = batch_play(envs)
    runs = [rate(*play, seconds) for _ in range(repeats)]
    copied = [copies(size, seconds / 10) * count for _ in range(repeats)]
    return envs, {
        "envs": count,
        "making_s": spent,
        "steps_per_second": runs,
        "of_copying": [a / b for a, b in zip(runs, copied, strict=True)],
    }
