"""Measures this machine with PyTorch or JAX, for a ``Calibration``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from parenvs.clock import calibration
from parenvs.clock.members import Shape, shared_memory_bytes, system_load
from parenvs.errors import ParenvsError, need_extra
from parenvs.machine import cores, host


def calibrated(
    kind: str = "cpu",
    processes: int = 2,
    repeats: int = 20,
    sizes: Sequence[int] = calibration.SIZES,
    shapes: Sequence[Shape] = (),
    attended: Sequence[tuple[int, ...]] = (),
    framework: str = "torch",
) -> calibration.Calibration:
    """Measure this machine with PyTorch, in local processes, or with JAX, on devices of one.

    Args:
        kind: ``"cpu"``: each process has its share of the cores, and JAX virtual devices;
            ``"cuda"``: each has a GPU.
        processes: how many devices.
        repeats: runs of everything that count.
        sizes: bytes of the arrays of collectives; copies are of the largest and 4 times that.
        shapes: of products; empty for ``SHAPES``, on accelerators with ``LARGER``.
        attended: shapes of attention, as ``Measured`` has them.
        framework: ``"torch"`` or ``"jax"``.

    Raises:
        ParenvsError: the framework is missing, there are no such devices, or a process failed.
    """
    limits = {"processes": (processes, calibration.MOST_PROCESSES), "repeats": (repeats, 10**6)}
    for name, (value, maximum) in limits.items():
        if not 1 <= value <= maximum:
            raise ParenvsError(f"--{name} must be from 1 to {maximum}, not {value}")
    chosen = list(shapes) or [*calibration.SHAPES, *(calibration.LARGER if kind == "cuda" else [])]
    chosen.sort(key=lambda shape: math.prod(shape[1:]))
    # The largest one is beyond all caches.
    copied = [calibration.SMALL, max(sizes), 4 * max(sizes)]
    groups = calibration.groups_of(processes)
    settings = (chosen, list(attended), copied, list(sizes), groups, repeats)
    load = system_load()
    memory: Any = None
    if framework == "jax":
        with need_extra("jax", "calibrating"):
            from parenvs.clock import xla
        answer = xla.with_devices(xla.measure, kind, processes, (kind, processes, *settings))
        answers, memory = [answer], answer["memory"]
        facts: dict[str, Any] = {
            "device": "cpu" if kind == "cpu" else answer["device"],
            "backend": "XLA, virtual devices of one process" if kind == "cpu" else "XLA",
        }
    else:
        with need_extra("torch", "calibrating"):
            import torch

            from parenvs.clock import kernels
        kernels.check_device(kind, processes)
        threads = max(1, cores() // processes)
        given = (kernels.measure, processes, (kind, *settings), kind, threads)
        answers = kernels.together(*given, kernels.LIMIT_SECONDS)
        facts = {"device": "cpu", "backend": kernels.BACKENDS[kind], "threads": threads}
        if kind == "cuda":
            gpu = torch.cuda.get_device_properties(0)
            memory, facts["device"] = gpu.total_memory, gpu.name
    memory_bytes = shared_memory_bytes(processes) if memory is None else float(memory)
    provenance = {
        "by": f"parenvs calibrate{' --framework jax' if framework == 'jax' else ''}",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        **host(),
        **facts,
        "load": load,
    }
    device = replace(calibration.known_device(facts["device"]), memory_bytes=memory_bytes)
    return calibration.assembled(answers, device, provenance, processes)
