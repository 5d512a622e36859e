"""What an agent sees of a pipeline problem; the observation of ``PipelinePlan-v0``."""

from __future__ import annotations

import numpy as np

from parenvs.plan_space import STAGES, UNITS, PlanSpace
from parenvs.points import POINTS

MOST_MICRO_BATCHES = 64
"""More look the same."""
OCTAVES = 16
"""Range of what is given as a logarithm to base 2."""
NUMBERS = (
    "stages", "micro_batches", "units", "devices", "memory", "backward", "link", "recompute",
)  # fmt: skip
"""Names of the observation's ``numbers``."""


def observe(space: PlanSpace) -> dict[str, np.ndarray]:
    """What does not change within an episode: ``chain``, ``topology`` and ``numbers``."""
    pipeline, cluster = space.pipeline, space.pipeline.cluster
    ends, count = space.pivots[1:], len(space.pivots) - 1
    seconds = np.stack(
        [
            pipeline.seconds_sum[ends],
            pipeline.cut_before[ends] / cluster.inter_bw,
            2.0 * pipeline.parameter_sum[ends] / cluster.inter_bw,
        ]
    )
    scale = seconds.max()
    chain = np.zeros((4, POINTS), dtype=np.float32)
    chain[:3, :count], chain[3, :count] = seconds / scale, 1.0
    count = len(space.devices) - 1
    first, end = space.devices[:-1], space.devices[1:]
    # Between two units, or inside one: the bandwidth of the group that reaches over both.
    low, high = np.minimum.outer(first, first), np.maximum.outer(end, end)
    topology = np.zeros((UNITS, UNITS), dtype=np.float32)
    fastest = max(cluster.intra_bw, cluster.inter_bw)
    topology[:count, :count] = cluster.bandwidth(low, high) / fastest
    ratio = max(cluster.intra_bw / cluster.inter_bw, 1.0)
    memory = 2.0 * pipeline.memory_limit / cluster.inter_bw
    numbers = [
        space.stages / STAGES,
        pipeline.micro_batches / MOST_MICRO_BATCHES,
        count / UNITS,
        np.log2(end[0]) / OCTAVES,
        memory / (memory + scale * pipeline.copies),
        pipeline.backward_sum[-1] / pipeline.seconds_sum[-1],
        np.log2(ratio) / OCTAVES,
        float(pipeline.recompute == "full"),
    ]
    return {
        "chain": chain,
        "topology": topology,
        "numbers": np.minimum(numbers, 1.0).astype(np.float32),
    }
