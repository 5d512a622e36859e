"""Points: which pivots become points, and on how few devices their stages fit."""

import itertools
import math
from dataclasses import replace

import numpy as np
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from parenvs.cluster import Cluster
from parenvs.pipeline.points import distinct_pivots, least_devices
from parenvs.pipeline.problem import Pipeline


def fewest_devices(pipeline, first, end, left):
    """The fewest devices of a stage by trying all of them, in the order of their number."""
    if not (pipeline.profile.parameter_bytes[first:end] > 0).any():
        return math.inf
    for group in range(1, pipeline.cluster.devices + 1):
        size = pipeline.memory_of(np.array(first), np.array(end), group, np.array(left))
        if size <= pipeline.memory_limit:
            return group
    return math.inf


def check_least_devices(pipeline, left):
    pivots = np.arange(len(pipeline.profile) + 1)
    wanted = np.full((len(pivots), len(pivots)), np.inf)
    for first, end in itertools.combinations(pivots.tolist(), 2):
        wanted[first, end] = fewest_devices(pipeline, first, end, left)
    np.testing.assert_array_equal(least_devices(pipeline, pivots, left), wanted)


@given(toys.pipelines(most=6), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_least_devices__is_the_first_that_fits(pipeline, left):
    check_least_devices(pipeline, left)


def test_least_devices__decides_to_the_last_bit():
    """Memory limits around what a stage needs on some number of devices: quotients round."""
    rng = np.random.default_rng(0)
    for _ in range(400):
        profile = toys.chain([1, 1], [1, 1], [0, 0], rng.uniform(0, 9, 2), rng.uniform(0, 99, 2))
        cluster = Cluster.parse("2x8:v100")
        pipeline = Pipeline(profile, cluster, 2, recompute="none")
        group = rng.integers(1, 17)
        needed_bytes = pipeline.memory_of(np.array(0), np.array(2), group, np.array(1))
        size = float(needed_bytes) / 0.9
        for _ in range(rng.integers(0, 3)):
            size = math.nextafter(size, rng.choice([0.0, math.inf]))
        device = replace(cluster.device, memory_bytes=size)
        check_least_devices(replace(pipeline, cluster=replace(cluster, device=device)), 1)


def test_distinct_pivots__are_the_last_of_each_run():
    """Pivots 1, 2, 3 cut alike, 4 alone, and 5 and 6 as the end of the chain does."""
    costs = [1, 0, 0, 1, 1, 0, 0]
    pipeline = Pipeline(toys.chain(costs, costs, [3, 3, 3, 2, 0, 0, 0], costs), Cluster.parse("A"))
    assert distinct_pivots(pipeline).tolist() == [3, 4, 6]
    first = Pipeline(toys.chain([0, 0, 1], [0, 0, 1], [2, 2, 0], [1, 1, 1]), Cluster.parse("A"))
    assert distinct_pivots(first).tolist() == [1, 2]  # each holds a variable
