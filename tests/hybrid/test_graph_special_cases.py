"""With two axes at one, hybrid plans of a graph cost what the single tasks say, to rounding."""

import numpy as np
import pytest
from cases import slow

from parenvs.cluster import Cluster
from parenvs.instances import load_graph
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.formulas import Stages
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.stack import STACKS
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.profile import StageProfile

EXACT = 1e-12


def stages_of(model, bounds, groups, samples, micro_batches, tp=1):
    """Plans without recomputation, their sends hidden, gradients of 4 bytes all-reduced."""
    count = len(groups)
    layers = np.diff(model.kinds_before[bounds], axis=0).T
    after = model.crossing_after
    nothing = np.zeros(count)
    return Stages(
        layers=layers, first_chunk=layers, full=0 * layers, selective=0 * layers,
        on=after[bounds[1:]], back=after[bounds[:-1]], first=np.ones(count),
        links=after[bounds[1:-1]], tp=np.full(count, tp), dp=np.array(groups),
        zero=nothing.astype(int), device=np.cumsum(groups) - groups, speed=np.ones(count),
        samples=float(samples), micro_batches=micro_batches, chunks=1, context=1,
        sequence_parallel=False, expert=1, blocking=False, gradient_bytes=4.0,
        gradient_overlap=False,
    )  # fmt: skip


def drawn_groups(rng, cluster, count):
    """Groups of devices that lie in one server, or are more than a server holds."""
    while True:
        cuts = np.sort(rng.choice(np.arange(1, cluster.devices), count - 1, replace=False))
        ends = np.array([0, *cuts, cluster.devices])
        size = cluster.devices_per_server
        inside = (ends[:-1] // size) == ((ends[1:] - 1) // size)
        if (inside | (np.diff(ends) > size)).all():
            return cuts


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["vgg-19", *slow("t5-base")])
@pytest.mark.parametrize(("shape", "precision"), [("C", "fp32"), ("a100-2", "tf32"),
                                                  ("1x8:h100-fp32", "fp32")])  # fmt: skip
def test_special_cases__a_pipeline(name, shape, precision):
    """Cuts at the borders of layers: length, and bytes of a stage that keeps its activations."""
    rng, graph, cluster = np.random.default_rng(7), load_graph(name), Cluster.parse(shape)
    model = HybridModel.of_graph(graph, costs="flops")
    machine = STACKS["roofline"].machine(cluster, precision)
    profile = StageProfile.from_graph(graph, cluster.device)
    borders = model.chain.program.borders.bounds
    for count in rng.integers(1, 5, 25).tolist():
        device_cuts = drawn_groups(rng, cluster, count)
        layer_cuts = np.sort(rng.choice(np.arange(1, len(model)), count - 1, replace=False))
        micro_batches = int(rng.integers(1, 20))
        pipeline = Pipeline(profile, cluster, count, micro_batches, recompute="none")
        cuts = borders[layer_cuts]
        bounds = np.array([0, *layer_cuts, len(model)])
        groups = np.diff([0, *device_cuts, cluster.devices])
        stages = stages_of(model, bounds, groups, profile.micro_batch, micro_batches)
        step = formulas.step(model, cluster, machine, stages)
        expected = float(pipeline.length(cuts, device_cuts))
        assert float(step.length) == pytest.approx(expected, rel=EXACT)
        held = formulas.memory(model, machine, stages, early=True)
        expected = pipeline.stage_memory(cuts, device_cuts)
        np.testing.assert_allclose(held.total, expected, rtol=EXACT)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "shape", "precision"), [
    ("vgg-19", "1x8:v100", "fp32"), ("vgg-19", "1x4:a100", "tf32"),
    *slow(("t5-base", "2x8:v100", "fp32")),
])  # fmt: skip
def test_special_cases__a_partition(name, shape, precision):
    """One stage, tp over all devices: what the partition task says of the same classes."""
    graph, cluster = load_graph(name), Cluster.parse(shape)
    problem = Partitioning.build(graph, cluster)
    machine = STACKS["roofline"].machine(cluster, precision)
    rng = np.random.default_rng(3)
    options = {"costs": "instructions", "uneven": "pad", "classes": problem.classes}
    pattern = HybridModel.of_graph(graph, **options).chain.splitting.chosen
    some = pattern & (rng.random(len(pattern)) < 0.5)
    for chosen in (pattern, some, np.zeros_like(pattern)):
        model = HybridModel.of_graph(graph, chosen=chosen, **options)
        bounds = np.array([0, len(model)])
        stages = stages_of(model, bounds, [1], graph.batch_size, 1, tp=cluster.devices)
        step = formulas.step(model, cluster, machine, stages)
        expected = float(problem.step_seconds(chosen))
        assert float(step.length) == pytest.approx(expected, rel=EXACT)
    assert pattern.any()
