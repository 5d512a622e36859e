"""A calibration: what was measured on a machine, and the cluster that plans are costed on by it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from parenvs.clock.members import Shape, Timing
from parenvs.cluster import (
    DEVICES,
    EXCHANGE,
    GATHER,
    OTHER,
    PASSES,
    ROLES,
    Cluster,
    Device,
    Measured,
    read_cluster,
    sync_bytes,
)
from parenvs.errors import ClusterError, ParenvsError, one_line
from parenvs.files import StrPath, json_text, write_text


def fitted(
    moved: Sequence[float], steps: Sequence[int], seconds: Sequence[float]
) -> tuple[float, float, float]:
    """Return bandwidth, seconds of a step and seconds once: what collectives take besides bytes.

    The fit ``seconds = moved / bandwidth + steps * step + once`` is by least squares of the
    relative error, no figure negative.

    Raises:
        ClusterError: the seconds do not grow with the bytes, so that there is no bandwidth.
    """
    measured = np.asarray(seconds, np.float64)
    if not (measured > 0).all():
        raise ClusterError("calibration: a measured time is zero; measure larger sizes")
    # In units of the largest size all columns of the system are near 1.
    unit = max(map(float, moved))
    several = len(set(steps)) > 1  # else steps and once are not to be told apart
    columns = [np.asarray(moved) / unit, np.asarray(steps, np.float64)]
    columns += [np.ones_like(measured)] if several else []
    # Rows divided by their seconds: relative errors, so small sizes count as well.
    terms = np.stack(columns, axis=1) / measured[:, None]
    slope, step, *once = nnls(terms, np.ones_like(measured))[0].tolist()
    if slope <= 0:
        raise ClusterError(
            "calibration: larger arrays took no longer, so no bandwidth can be told; measure "
            "larger sizes"
        )
    return unit / slope, step, sum(once)


SHAPES: list[Shape] = [
    (role, 1, *size)
    for size in ((256,) * 3, (512,) * 3, (1024,) * 3, (64, 1024, 4096), (2048, 2048, 512))
    for role in ROLES
]
"""Products that are measured by default: square ones, a thin and a wide one."""
LARGER: list[Shape] = [(role, 1, size, size, size) for size in (4096, 8192) for role in ROLES]
"""Those that an accelerator is measured on, besides."""
SMALL = 4096
"""Bytes of a copy that takes as long as it takes to start a kernel."""
SIZES = [4**k for k in range(5, 14)]
"""Bytes of the arrays of collectives: 1 kB to 64 MB."""

MOST_PROCESSES = 64
"""Most processes that are started on this machine."""


class Timed(NamedTuple):
    """Seconds of an operation.

    Attributes:
        kind: role of a product, pass of an attention, ``"memory"``, or one of ``COLLECTIVES``.
        precision: of products and attention, else empty.
        size: bytes of the array, or groups, m, k and n, or shape of attention.
        group: processes that took part.
        timing: median and quartiles.
        rate: FLOP/s or bytes/s.
        share: of the peak; 0 of bytes.
    """

    kind: str
    precision: str
    size: tuple[int, ...]
    group: int
    timing: Timing
    rate: float
    share: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """A measured machine.

    Attributes:
        cluster: with what was measured, as plans are priced by it.
        provenance: how, where and when; ``missing`` lists what could not be measured.
        rows: every operation, where it was measured just now; files do not have them.
    """

    cluster: Cluster
    provenance: dict[str, Any] = field(default_factory=dict)
    rows: tuple[Timed, ...] = field(default=(), compare=False)

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
        where = os.fspath(path)
        cluster, provenance = read_cluster(where)
        if cluster.measured is None:
            raise ClusterError(
                f"{where}: nothing was measured on it; parenvs calibrate writes such"
            )
        if not isinstance(provenance.get("missing", []), list):
            raise ClusterError(f"{where}: field 'provenance.missing' must be a list")
        return cls(cluster, provenance)

    def save(self, path: StrPath) -> None:
        """Write the cluster's file, which every command takes as ``--cluster``."""
        content = self.cluster.to_json()
        assert isinstance(content, dict)
        content["provenance"] = self.provenance
        write_text(path, json_text(content))


def assembled(
    answers: Sequence[dict[str, Any]], device: Device, provenance: dict[str, Any], devices: int
) -> Calibration:
    """Make a calibration of what every process measured.

    Kernels are those of the slowest process, as all of them ran at once. The inner bandwidth is
    that by which ``sync_bytes`` of the largest group's all-reduces explain their seconds, beside a
    latency. The peak is the data sheet's where the device is known, else the fastest product.

    Args:
        answers: by rank, see ``parenvs.clock.kernels.measure``.
        device: name, memory and, where it is known, the data sheet's peaks.
        provenance: how it was measured.
        devices: number of devices that were measured.
    """
    first = answers[0]
    missing = [f"{what}: {why}" for what, why in first["missing"].items()]

    def slowest(kind: str) -> dict[Any, Timing]:
        # Some kernels may have been too slow on one process.
        both = [key for key in first[kind] if all(key in x[kind] for x in answers)]
        runs = {key: [x[kind][key] for x in answers] for key in both}
        return {
            key: Timing.of([x[: min(map(len, every))] for x in every])
            for key, every in runs.items()
        }

    timed, attended, copied = map(slowest, ("products", "attention", "copies"))
    if not timed:
        raise ParenvsError("calibrate: no product could be measured on this device")
    flops = {key: 2.0 * math.prod(key[1][1:]) for key in timed}
    rates: dict[str, float] = {}
    for key, timing in timed.items():
        rates[key[0]] = max(rates.get(key[0], 0.0), flops[key] / timing.seconds)
    # Without a data sheet the fastest product is the peak, and its own share 1.
    peaks = dict(device.peaks) or rates
    for key in attended:
        # All scores count, forward in two products, backward in five.
        samples, sequence, heads, _, *widths = key[1][1:]
        passes = 1.0 if key[1][0] == PASSES[0] else 2.5
        flops[key] = passes * 2.0 * samples * sequence**2 * heads * sum(widths)
    rows = [
        Timed(key[1][0], key[0], key[1][1:], 1, timing, rate, rate / peaks[key[0]])
        for key, timing in (*timed.items(), *attended.items())
        for rate in (flops[key] / timing.seconds,)
        if key[0] in peaks
    ]
    kernels: list[Any] = [(x.precision, x.kind, *x.size, x.share) for x in rows]
    products = tuple(x for x in kernels if len(x) == 7)
    attention = tuple(x for x in kernels if len(x) > 7)
    memory_bw = 2.0 * max(copied) / copied[max(copied)].seconds  # the largest fits no cache
    rows += [
        Timed("memory", "", (size,), 1, timing, 2 * size / timing.seconds)
        for size, timing in copied.items()
    ]
    # Processes outside of a group measured nothing.
    together = {
        key: Timing.of([x["collectives"][key] for x in answers if key in x["collectives"]])
        for key in first["collectives"]
    }
    rows += [
        Timed(kind, "", (size,), group, timing, size / timing.seconds)
        for (kind, group, size), timing in together.items()
    ]
    if not device.peaks:
        missing.append("peak FLOP/s: no data sheet is known; the fastest product stands for it")
    reduced = [(size, x) for (kind, group, size), x in together.items()
               if kind == "all-reduce" and group == devices]  # fmt: skip
    link, latency = memory_bw, 0.0
    if reduced:
        moved = [float(sync_bytes(size, devices)) for size, _ in reduced]
        durations = [x.seconds for _, x in reduced]
        try:
            link, latency, _ = fitted(moved, [1] * len(moved), durations)
        except ClusterError:
            link = max(moved) / durations[int(np.argmax(moved))]
            missing.append(
                "latency: larger all-reduces took no longer, as on a machine that does other "
                "things; the rate of the largest stands for the bandwidth"
            )
        missing.append("inter_bw: there is one server; the bandwidth inside it stands for it")
    else:
        missing.append("links: no all-reduce was measured; the memory's bandwidth stands for them")
    calibrated_device = replace(
        device,
        peak_flops=device.peak_flops if device.peaks else rates.get("fp32", max(rates.values())),
        peaks=tuple(peaks.items()),
        memory_bw=memory_bw,
    )
    started = min(copied.values()).seconds
    told = [str(provenance[key]) for key in ("by", "date", "processor") if key in provenance]
    measured = Measured(
        " ".join(told) or "parenvs calibrate",
        products,
        attention,
        {OTHER: (1.0, started)},
        _collectives(together, link, missing),
        first.get("layer_seconds", 0.0),
    )
    return Calibration(
        Cluster(1, devices, calibrated_device, link, link, measured=measured),
        {**provenance, "all_reduce_latency_seconds": latency, "missing": missing},
        tuple(rows),
    )


def _collectives(
    together: dict[tuple[str, int, int], Timing], link: float, missing: list[str]
) -> dict[str, tuple[float, float, float]]:
    """Share of a link, seconds of a step and once, as ``Measured`` has them."""
    result = {}
    for name, kinds in ((GATHER, (GATHER, "reduce-scatter")), (EXCHANGE, (EXCHANGE,))):
        found = [(size * (group - 1) / group, group - 1, timing.seconds)
                 for (kind, group, size), timing in together.items() if kind in kinds]  # fmt: skip
        if not found:
            continue
        try:
            bandwidth, step, once = fitted(*zip(*found, strict=True))
            result[name] = (bandwidth / link, step, once)
        except ClusterError as error:
            missing.append(f"{name}: {error}")
    return result


def known_device(model: str) -> Device:
    """Return the device of a name that a framework gives, its data sheet's if that is known."""
    known = next((DEVICES[name] for name in DEVICES if name in model.lower()), None)
    return known or Device(one_line(ValueError(model)).lower(), 1.0, 1.0, 1.0)


def groups_of(processes: int) -> list[int]:
    """Return the sizes of the groups that collectives are measured in: 2, 4, ... and all."""
    sizes = [2**k for k in range(1, processes.bit_length()) if 2**k < processes]
    return sizes + ([processes] if processes > 1 else [])
