"""A calibration: what was measured on a machine, and the cluster that plans are costed on by it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from parenvs.clock.members import Timing
from parenvs.cluster import DEVICES, Cluster, Device, Measurement, load_measured, sync_bytes
from parenvs.errors import ClusterError, ParenvsError, one_line
from parenvs.files import StrPath, write_text


def fitted_line(size: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return latency and bandwidth: seconds = latency + bytes / bandwidth.

    The fit is by least squares of the relative error, neither figure negative.

    Raises:
        ClusterError: the seconds do not grow with the bytes, so that there is no bandwidth.
    """
    measured = np.asarray(seconds, dtype=np.float64)
    if not (measured > 0).all():
        raise ClusterError("calibration: a measured time is zero; measure larger sizes")
    # In units of the largest size both columns of the system are near 1.
    unit = max(map(float, size))
    terms = np.stack([np.ones_like(measured), np.asarray(size, dtype=np.float64) / unit], axis=1)
    # Rows divided by their seconds: relative errors, so small sizes count as well.
    (latency, slope), _ = nnls(terms / measured[:, None], np.ones_like(measured))
    if slope <= 0:
        raise ClusterError(
            "calibration: larger arrays took no longer, so no bandwidth can be told; measure "
            "larger sizes"
        )
    return float(latency), float(unit / slope)


SHAPES = [(256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (64, 1024, 4096), (2048, 2048, 512)]
"""(m, k, n) of the products that are measured by default: square ones, a thin and a wide one."""
LARGER = [(4096, 4096, 4096), (8192, 8192, 8192)]
"""Those that an accelerator is measured on, besides."""
SIZES = [4**k for k in range(5, 14)]
"""Bytes of the arrays of collectives: 1 kB to 64 MB."""

MOST_PROCESSES = 64
"""Most processes that are started on this machine."""


@dataclass(frozen=True)
class Calibration:
    """A measured machine.

    Attributes:
        provenance: how, where and when; ``missing`` lists what could not be measured.
    """

    cluster: Cluster
    rows: tuple[Measurement, ...]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """What could not be measured, and why."""
        return list(self.provenance.get("missing", []))

    @classmethod
    def load(cls, path: StrPath) -> Calibration:
        """Read a file of ``parenvs calibrate``.

        Raises:
            ClusterError: it is no such file.
        """
        cluster, rows, provenance = load_measured(path)
        if not isinstance(provenance.get("missing", []), list):
            raise ClusterError(f"{os.fspath(path)}: field 'provenance.missing' must be a list")
        return cls(cluster, rows, provenance)

    def save(self, path: StrPath) -> None:
        """Write the cluster's file, which every command takes as ``--cluster``."""
        content = self.cluster.to_json()
        assert isinstance(content, dict)
        content |= {"provenance": self.provenance, "measured": [x.to_json() for x in self.rows]}
        write_text(path, json.dumps(content, indent=1) + "\n")


def assembled(
    answers: Sequence[dict[str, Any]], device: Device, provenance: dict[str, Any], devices: int
) -> Calibration:
    """Make a calibration of what every process measured.

    Matrix products and copies are those of the slowest process, as all of them ran at once. The
    inner bandwidth is that by which ``sync_bytes`` of the largest group's all-reduces explain their
    seconds, beside a latency. The peak is the data sheet's where the device is known, else the
    fastest product.

    Args:
        answers: by rank, see ``parenvs.clock.kernels.measure``.
        device: name, memory and, where it is known, the data sheet's peaks.
        provenance: how it was measured.
        devices: number of devices that were measured.
    """
    first = answers[0]
    missing = [f"{what}: {why}" for what, why in first["missing"].items()]

    def slowest(kind: str, key: Any) -> Timing:
        runs = [x[kind][key] for x in answers]
        return Timing.of([run[: min(map(len, runs))] for run in runs])

    # Some products may have been too slow on one process.
    both = (key for key in first["products"] if all(key in x["products"] for x in answers))
    timed = {key: slowest("products", key) for key in both}
    if not timed:
        raise ParenvsError("calibrate: no product could be measured on this device")
    rates: dict[str, float] = {}
    for (precision, (m, k, n)), timing in timed.items():
        rates[precision] = max(rates.get(precision, 0.0), 2.0 * m * k * n / timing.seconds)
    # Without a data sheet the fastest product is the peak, and its own share 1.
    peaks = dict(device.peaks) or rates
    rows = [
        Measurement("matmul", *timing, shape=shape, precision=precision,
                    share=2.0 * shape[0] * shape[1] * shape[2] / timing.seconds / peaks[precision])
        for (precision, shape), timing in timed.items()
        if precision in peaks
    ]  # fmt: skip
    copied = {size: slowest("copies", size) for size in first["copies"]}
    rows += [Measurement("memory", *timing, bytes=size) for size, timing in copied.items()]
    memory_bw = 2.0 * max(copied) / copied[max(copied)].seconds  # the largest fits no cache
    for key in first["collectives"]:
        kind, group, size = key
        # Processes outside of a group measured nothing.
        runs = [x["collectives"][key] for x in answers if key in x["collectives"]]
        rows.append(Measurement(kind, *Timing.of(runs), bytes=size, group=group))
    if not device.peaks:
        missing.append("peak FLOP/s: no data sheet is known; the fastest product stands for it")
    reduced = [x for x in rows if x.kind == "all-reduce" and x.group == devices]
    if reduced:
        moved = [float(sync_bytes(x.bytes, x.group)) for x in reduced]
        durations = [x.seconds for x in reduced]
        try:
            latency, link = fitted_line(moved, durations)
        except ClusterError:
            link, latency = max(moved) / durations[int(np.argmax(moved))], 0.0
            missing.append(
                "latency: larger all-reduces took no longer, as on a machine that does other "
                "things; the rate of the largest stands for the bandwidth"
            )
        missing.append("inter_bw: there is one server; the bandwidth inside it stands for it")
    else:
        link, latency = memory_bw, 0.0
        missing.append("links: no all-reduce was measured; the memory's bandwidth stands for them")
    calibrated_device = replace(
        device,
        peak_flops=device.peak_flops if device.peaks else rates.get("fp32", max(rates.values())),
        peaks=tuple(peaks.items()),
        measured=tuple((key, flops) for key, flops in rates.items() if key in peaks),
        memory_bw=memory_bw,
    )
    return Calibration(
        Cluster(1, devices, calibrated_device, intra_bw=link, inter_bw=link),
        tuple(rows),
        {**provenance, "all_reduce_latency_seconds": latency, "missing": missing},
    )


def known_device(model: str) -> Device:
    """Return the device of a name that a framework gives, its data sheet's if that is known."""
    known = next((DEVICES[name] for name in DEVICES if name in model.lower()), None)
    return known or Device(one_line(ValueError(model)).lower(), 1.0, 1.0, 1.0)


def groups_of(processes: int) -> list[int]:
    """Return the sizes of the groups that collectives are measured in: 2, 4, ... and all."""
    sizes = [2**k for k in range(1, processes.bit_length()) if 2**k < processes]
    return sizes + ([processes] if processes > 1 else [])
