"""What agents see of a hybrid problem and of the plan so far; float32 in [0, 1]."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parenvs.tasks.hybrid.layers import LayerSeconds
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.turns.actions import LAYERS, SERVERS, TPS, TURNS
from parenvs.tasks.hybrid.turns.columns import Columns

CHAIN = ("seconds", "parameters", "saved none", "saved selective", "saved full", "sent")
CLUSTER = ("speed", "memory", "network", "used")
STAGE = (
    "end", "size", "devices", "share of devices", "tp", "replicas", "zero", "mode", "speed", "load",
)  # fmt: skip
PROGRESS = (
    "micro-batch", "chunks", "shared", "micro-batches", "stages", "layers left", "devices left",
    "samples",
)  # fmt: skip
NUMBERS = (
    "layers", "devices", "servers", "batch", "tp 2", "tp 4", "tp 8", "shared", "states", "saved",
    "saved selective", "saved full", "head seconds", "end parameters", "all-reduce", "exchange",
    "send", "launch",
)  # fmt: skip
"""Names of the columns; ``parenvs.tasks.hybrid.game.HybridPlan`` says what they mean."""
SHAPES = {
    "chain": (LAYERS, len(CHAIN)),
    "cluster": (SERVERS, len(CLUSTER)),
    "numbers": (len(NUMBERS),),
    "stages": (SERVERS, len(STAGE)),
    "progress": (len(PROGRESS),),
    "turn": (len(TURNS),),
}
"""Part of an observation -> its shape."""
MEMORY = 256e9
"""Bytes of memory that are shown as 1."""
NETWORK = 50e9
"""Bytes/s of a device's share of the network that are shown as 1/2."""
LOG2 = np.log2(np.maximum(np.arange(16 * 128 * SERVERS + 1), 1))
"""Logarithms of whole numbers; looked up, so that they are the same everywhere."""
MAX_DOUBLINGS = 13.0
"""Logarithm of a batch or of micro-batches that is shown as 1."""


class Shown(NamedTuple):
    """What is shown of one problem.

    Attributes:
        chain: (128, 6).
        cluster: (64, 4), nothing used.
        numbers: (18,).
        work: (129,) share of the seconds before each layer.
        speeds: (64,) of each server, 1 for the fastest.
    """

    chain: np.ndarray
    cluster: np.ndarray
    numbers: np.ndarray
    work: np.ndarray
    speeds: np.ndarray


def shown(columns: Columns, row: int = 0) -> Shown:
    """Return what is shown of a problem.

    Args:
        columns: several problems.
        row: which one.
    """
    problem, limits = columns.problems[row], columns.limits[row]
    model, cluster, n = problem.model, problem.cluster, limits.layers
    figures, parameters = columns.of_layers(row)
    held = parameters.sum(axis=1)[:, 0]  # (K + 2,) of one rank
    alone = figures[:, :, 0, 0, 0]  # (K + 2, 10) of one sample
    seconds = alone[:, 0] + alone[:, 1]
    kept = alone[:, len(LayerSeconds._fields) :][:, : len(RECOMPUTE_MODES)]
    kinds = np.array(model.kind_of)
    chain = np.zeros(SHAPES["chain"], dtype=np.float32)
    work = np.zeros(LAYERS + 1)
    work[1 : n + 1] = (seconds[kinds] / seconds[kinds].sum()).cumsum()
    work[n + 1 :] = work[n]
    chain[:n, 0] = np.minimum(work[1 : n + 1], 1.0)
    chain[:n, 1] = np.minimum((held[kinds] / held[kinds].sum()).cumsum(), 1.0)
    chain[:n, 2:5] = kept[kinds] / kept[kinds].max()
    crossing = model.crossing_after[1:]
    chain[:n, 5] = crossing / max(crossing.max(), 1.0)
    speeds = np.ones(SERVERS)
    speeds[: len(cluster.speeds)] = np.array(cluster.speeds) / max(cluster.speeds or (1.0,))
    machines = np.zeros(SHAPES["cluster"], dtype=np.float32)
    machines[: limits.servers, 0] = speeds[: limits.servers]
    machines[: limits.servers, 1] = min(cluster.device.memory_bytes / MEMORY, 1.0)
    machines[: limits.servers, 2] = _squashed(cluster.device_nic_bw / NETWORK)
    numbers = _numbers(problem, columns, row, seconds, held, kept)
    return Shown(chain, machines, numbers, work, speeds)


def _numbers(
    problem: Hybrid,
    columns: Columns,
    row: int,
    seconds: np.ndarray,
    held: np.ndarray,
    kept: np.ndarray,
) -> np.ndarray:
    """(18,) numbers of a problem, most of them ratios x as x / (1 + x)."""
    limits, machine, model = columns.limits[row], problem.machine, problem.model
    kinds, figures = np.array(model.kind_of), columns.of_layers(row)[0]
    chain = seconds[kinds].sum()
    every = chain + seconds[-1] + seconds[-2]
    parameters = held[kinds].sum() + held[-2] + held[-1] - model.tied_parameters
    limit, size = problem.memory_limit, machine.width * parameters
    compute = problem.batch * every / limits.devices
    widest = max(number for number, ok in enumerate(limits.tp) if ok)
    exchanged = figures[kinds, 2:4, 0, widest, 0].sum()
    links = machine.links
    sent = machine.width * model.crossing_after.max()
    numbers = [
        limits.layers / LAYERS,
        LOG2[limits.devices] / 9.0,
        LOG2[limits.servers] / 6.0,
        LOG2[min(problem.batch, len(LOG2) - 1)] / MAX_DOUBLINGS,
        *(float(ok) for ok in limits.tp[1:]),
        float(any(limits.shared[1:])),
        _squashed((6 + 12.0) * parameters / (limits.devices * limit)),
        _squashed(kept[kinds, 0].sum() / limit),
        kept[kinds, 1].sum() / kept[kinds, 0].sum(),
        kept[kinds, 2].sum() / kept[kinds, 0].sum(),
        seconds[-1] / every,
        (held[-2] + held[-1]) / (held[kinds].sum() + held[-2] + held[-1]),
        _squashed(2.0 * size / links.nic_bw / limits.devices / compute),
        _squashed(exchanged * TPS[widest] / chain),
        _squashed(2.0 * sent / links.nic_bw * limits.devices / every),
        _squashed(machine.launch * limits.layers / chain),
    ]
    return np.clip(numbers, 0.0, 1.0).astype(np.float32)


def _squashed(ratio: float) -> float:
    """Return x / (1 + x)."""
    return ratio / (1.0 + ratio)
