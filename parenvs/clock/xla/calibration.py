"""A calibration of this machine by JAX (extra ``jax``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from parenvs.clock.calibration import (
    LARGER,
    MOST_PROCESSES,
    SHAPES,
    SIZES,
    Calibration,
    assembled,
    groups_of,
    known_device,
)
from parenvs.clock.members import shared_memory_bytes
from parenvs.clock.xla.devices import with_devices
from parenvs.clock.xla.kernels import measure
from parenvs.errors import ParenvsError
from parenvs.machine import host


def calibrated_xla(
    kind: str = "cpu",
    count: int = 2,
    repeats: int = 20,
    sizes: Sequence[int] = SIZES,
    shapes: Sequence[tuple[int, int, int]] = (),
) -> Calibration:
    """Measure this machine with JAX, on devices of one process.

    Args:
        kind: ``"cpu"``: virtual devices, which share the cores; ``"cuda"``: GPUs.
        count: number of devices.
        repeats: runs of everything that count.
        sizes: bytes of the arrays of collectives; copies are of the largest and 4 times that.
        shapes: (m, k, n) of products; empty for ``SHAPES``, on GPUs with ``LARGER``.

    Raises:
        ParenvsError: JAX is missing, or there are no such devices.
    """
    if not 1 <= count <= MOST_PROCESSES:
        raise ParenvsError(f"--processes must be from 1 to {MOST_PROCESSES}, not {count}")
    wanted = list(shapes) or [*SHAPES, *(LARGER if kind == "cuda" else [])]
    copied = [max(sizes), 4 * max(sizes)]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else -1.0
    given = (kind, count, wanted, copied, list(sizes), groups_of(count), repeats)
    answer = with_devices(measure, kind, count, given)
    model = "cpu" if kind == "cpu" else answer["device"]
    memory = shared_memory_bytes(count) if answer["memory"] is None else float(answer["memory"])
    provenance = {
        "by": "parenvs calibrate --framework jax",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        **host(),
        "device": model,
        "backend": "XLA, virtual devices of one process" if kind == "cpu" else "XLA",
        "load": round(load, 2),
    }
    device = replace(known_device(model), memory_bytes=memory)
    return assembled([answer], device, provenance, count)
