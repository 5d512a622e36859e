"""The choice of stages and devices, held against every plan of every shape."""

import time
from dataclasses import replace

import brute_force as bf
import numpy as np
import pytest
import toys
from cases import slow

from parenvs import problem
from parenvs.agents.pipeline import corridor
from parenvs.agents.pipeline import shapes as module
from parenvs.agents.pipeline.bounds import least_length
from parenvs.agents.pipeline.shapes import exact_shape
from parenvs.cluster import Cluster
from parenvs.errors import InfeasibleError


def every_shape(pipeline, fewest):
    """(length, devices, stages) of the shortest plan of each shape that has one that fits."""
    found = []
    holders = int(pipeline.variable_sum[-1])
    for cluster in pipeline.cluster.parts():
        for stages in range(fewest, min(cluster.devices, holders) + 1):
            shape = pipeline.with_stages(stages, cluster)
            plans = bf.all_plans(shape, stages)
            fits = shape.excess_bytes(*plans) <= 0
            if fits.any():
                length = float(shape.length(*plans)[fits].min())
                assert length >= least_length(shape) * (1 - 1e-9)
                found.append((length, cluster.devices, stages))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("fewest", [1, 2])
@pytest.mark.parametrize("seed", [20, 40, *slow(0, 10, 30, 50)])
def test_exact_shape__equals_brute_force(seed, fewest):
    for case in range(seed, seed + 10):
        pipeline, _ = bf.random_pipeline(np.random.default_rng([case, 7]))
        best = every_shape(pipeline, fewest)
        if not best:
            with pytest.raises(InfeasibleError, match="no plan fits the memory"):
                exact_shape(pipeline, fewest=fewest)
            continue
        choice = exact_shape(pipeline, fewest=fewest)
        answer = choice.answer
        shape = answer.problem
        assert answer.proven and answer.bound == answer.cost
        assert answer.cost == pytest.approx(min(best)[0], rel=1e-9)
        assert answer.cost == float(shape.length(answer.plan.cuts, answer.plan.device_cuts))
        assert len(answer.plan.cuts) == shape.stages - 1 >= fewest - 1
        assert answer.report.legal
        lengths = {devices: [b[0] for b in best if b[1] == devices] for _, devices, _ in best}
        for tried in choice.tried:  # what the table says of the other devices is true
            shortest = min(lengths.get(tried.devices, [np.inf]))
            assert tried.bound <= shortest * (1 + 1e-9)
            assert tried.length >= shortest * (1 - 1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "cluster", "stages", "devices"), [("vgg-19", "A", 2, 16), ("t5-11b", "A", 4, 16)]
)
def test_exact_shape__of_shipped_models(name, cluster, stages, devices):
    choice = exact_shape(problem(name, cluster=cluster, stages=1), time_limit=20)
    shape = choice.answer.problem
    assert (shape.stages, shape.cluster.devices) == (stages, devices)
    assert choice.answer.proven
    assert [tried.devices for tried in choice.tried] == [16, 8, 4, 2]


@pytest.mark.slow
@pytest.mark.parametrize("fractions", [True, False])
def test_exact_shape__limits_hold_on_many_devices(fractions):
    pipeline = replace(problem("t5-11b", cluster="128x8:h100", stages=1), fractions=fractions)
    corridor.prepare()
    begin = time.perf_counter()
    answer = exact_shape(pipeline, time_limit=5).answer
    assert time.perf_counter() - begin < 8
    assert answer.report.legal and answer.bound < answer.cost < (0.14 if fractions else 0.3)


def costly(seconds=1.0, parameter_bytes=100.0):
    """Six equal pivots whose all-reduces between servers cost far more than they are worth."""
    profile = toys.chain([seconds] * 6, [seconds] * 6, [50.0] * 6, [parameter_bytes] * 6)
    return toys.Pipeline(profile, Cluster.parse(toys.shape(4, 2, 1000.0, 1.0)), 1)


def test_exact_shape__leaves_devices_idle():
    """More servers only add transfers and all-reduces over a slow network."""
    pipeline = costly()
    choice = exact_shape(pipeline)
    assert choice.answer.problem.cluster.devices == 2 < choice.devices == 8
    assert choice.answer.cost < min(t.length for t in choice.tried if t.devices > 2)
    assert choice.answer.plan.cluster == pipeline.cluster.part(2)


def test_exact_shape__uses_all_devices_if_the_network_is_fast():
    pipeline = costly()
    fast = replace(pipeline.cluster, inter_bw=1e9, intra_bw=1e9)
    assert exact_shape(replace(pipeline, cluster=fast)).answer.problem.cluster.devices == 8


@pytest.mark.thorough
def test_exact_shape__out_of_time(monkeypatch):
    """Without a single search over all pivots the bound is that of the work alone."""
    monkeypatch.setattr(module, "_TURNS", ())
    pipeline = problem("t5-base", cluster="C", stages=1)
    choice = exact_shape(pipeline, time_limit=5)
    best = exact_shape(pipeline).answer
    assert not choice.answer.proven
    assert choice.answer.status == "feasible"
    assert 0 < choice.answer.bound < best.cost <= choice.answer.cost


def test_exact_shape__more_stages_than_variables():
    profile = toys.chain([1] * 4, [1] * 4, [1] * 4, [1, 0, 0, 0])
    pipeline = toys.Pipeline(profile, Cluster.parse("A"), 1)
    assert exact_shape(pipeline).answer.problem.stages == 1
    with pytest.raises(InfeasibleError, match="only 1 pivots hold variables"):
        exact_shape(pipeline, fewest=2)
