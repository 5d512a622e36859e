"""Measures how the cost of a batch grows with pivots and classes, and its memory per env."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.bench.play import Case, batch_play, copies, draw_actions, make, observed_bytes, rate
from parenvs.tasks.partition.game import transitions_of
from parenvs.tasks.pipeline.profile import StageProfile

PIVOTS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Lengths of the chains of pivots."""
LAYERS = (16, 64, 256, 1024, 4096)
"""Numbers of dense layers; each layer has a class of its own."""


def chain(pivots: int, folder: Path) -> str:
    """Write a profile of random pivots into ``folder``; returns its path."""
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
    """Write the HLO text of a chain of dense layers, 4 wide, into ``folder``; returns its path."""
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
    """Measure a batch of ``PipelineCut-v0`` on a chain that may be cut at every pivot.

    Args:
        number: number of pivots.
        count: number of environments.
        folder: where the profile is written.
        seconds: processor seconds of a run.
        repeats: number of runs.
    """
    kwargs = {"instance": chain(number, folder), "cluster": "C", "candidates": "all"}
    envs, row = _grown(("PipelineCut-v0", kwargs), count, seconds, repeats)
    kernel = envs.game.kernel
    tables = [value for value in vars(kernel).values() if isinstance(value, np.ndarray)]
    return {
        "pivots": number,
        "actions": int(envs.single_action_space.n),
        "tabulated": kernel.tabulated,
        "table_bytes": sum(x.nbytes for x in [*tables, *sum(kernel.step_rows, ())]),
        **row,
    }


def classes(layers: int, count: int, folder: Path, seconds: float, repeats: int) -> dict[str, Any]:
    """Measure a batch of ``OperatorPartition-v0`` on a chain of dense layers.

    Args:
        layers: number of layers.
        count: number of environments.
        folder: where the graph is written.
        seconds: processor seconds of a run.
        repeats: number of runs.
    """
    kwargs = {"instance": dense(layers, folder)}
    envs, row = _grown(("OperatorPartition-v0", kwargs), count, seconds, repeats)
    space = envs.game.space
    return {
        "layers": layers,
        "classes": len(space.classes),
        "dimensions": len(space.dimensions),
        "tables": transitions_of(space).decisions.table is not None,
        **row,
    }


def memory(what: str, case: Case, count: int, steps: int = 1) -> dict[str, Any]:
    """Measure the memory of a batch of ``count`` environments.

    Args:
        what: name of the case.
        case: id and arguments of the environment.
        count: number of environments.
        steps: number of steps in which the peak is looked for.

    Returns:
        ``what``, ``envs`` and bytes per environment. ``state``: the arrays of the batch. ``held``:
        everything that the batch keeps, without the tables that all batches share. ``bounds``: the
        part of it that gymnasium keeps of a batched observation space. ``peak``: everything
        allocated at most during a step, results included. ``in_a_step``: the part of it that the
        step adds.
    """
    first_batch = make(case, 1)  # makes the tables that all batches share
    traced_bytes, peak = [], 0
    for size in (1, count):
        tracemalloc.start()
        envs = make(case, size)
        infos, rng = envs.reset(seed=0)[1], np.random.default_rng(0)
        traced_bytes.append(tracemalloc.get_traced_memory()[0])
        for _ in range(steps if size == count else 0):
            tracemalloc.reset_peak()
            infos = envs.step(draw_actions(rng, infos, size))[-1]
            peak = max(peak, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    first_batch.close()
    boxes = [space for space in envs.observation_space.values() if hasattr(space, "low")]
    parts = ("low", "high", "bounded_below", "bounded_above")
    groups = getattr(envs.game, "groups", None)
    holders = [envs, envs.game, *([groups.home] if groups else [])]
    values = [value for holder in holders for value in vars(holder).values()]
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    return {
        "what": what,
        "envs": count,
        "state": sum(value.nbytes for value in arrays) / count,
        "held": (traced_bytes[1] - traced_bytes[0]) / (count - 1),
        "bounds": sum(getattr(box, key).nbytes for box in boxes for key in parts) / count,
        "peak": peak / count,
        "in_a_step": (peak - traced_bytes[1]) / count,
    }


def _grown(case: Case, count: int, seconds: float, repeats: int) -> tuple[Any, dict[str, Any]]:
    """Make and time a batch; returns it and the figures."""
    begin = time.process_time()
    envs = make(case, count)
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
