"""Drawn problems: their identity, whether memory binds, whether they lie in their ranges."""

import numpy as np

from parenvs.datasets.pipeline.problems import DrawnProblem, Ranges, ratios

ARRAYS = ("forward", "backward", "cut_bytes", "parameter_bytes")


def figures(problem: DrawnProblem) -> tuple:
    """Return everything that identifies a problem, except its name."""
    pipeline = problem.pipeline
    arrays = tuple(getattr(pipeline.profile, key).tobytes() for key in ARRAYS)
    return (problem.family, pipeline.stages, pipeline.micro_batches, pipeline.cluster, *arrays)


def memory_binds(problem: DrawnProblem) -> bool:
    """Return whether a legal stage of some plan with even device cuts does not fit the memory."""
    pipeline, stages, n = problem.pipeline, problem.pipeline.stages, len(problem.pipeline.profile)
    bounds = np.rint(np.arange(stages + 1) * pipeline.cluster.devices / stages).astype(int)
    variables = pipeline.variable_sum
    first, end = np.triu_indices(n + 1, 1)
    for s, group in enumerate(np.diff(bounds)):
        left = stages - s
        legal = (variables[end] > variables[first]) & (variables[first] >= s)
        legal &= variables[n] - variables[end] >= left - 1
        legal &= (first == 0) == (s == 0)
        legal &= (end == n) == (left == 1)
        i, j = first[legal], end[legal]
        needs = pipeline.memory_of(i, j, np.full_like(i, group), np.full_like(i, left))
        if needs.size and needs.max() > pipeline.memory_limit:
            return True
    return False


def within(problem: DrawnProblem, ranges: Ranges) -> None:
    """Assert that a problem lies in its ranges."""
    pipeline, cluster = problem.pipeline, problem.pipeline.cluster
    assert ranges.contain(cluster.devices, pipeline.stages) and pipeline.stages <= cluster.devices
    for value, (low, high) in (
        (len(pipeline.profile), ranges.pivots),
        (pipeline.micro_batches, ranges.micro_batches),
        (cluster.intra_bw, ranges.intra_bw),
        (cluster.inter_bw, ranges.inter_bw),
    ):
        assert low * 0.999 <= value <= high * 1.001
    assert cluster.inter_bw <= cluster.intra_bw
    assert cluster.devices_per_server in ranges.devices_per_server
    assert cluster.device.memory_bytes in ranges.memory_bytes
    for value, low, high in zip(
        ratios(pipeline), ranges.min_ratios, ranges.max_ratios, strict=True
    ):
        assert low * 0.999 <= value <= high * 1.001
