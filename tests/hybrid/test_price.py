"""One price: a plan of any task takes the seconds of the hybrid plan that does the same."""

from dataclasses import replace
from itertools import pairwise

import pytest
from cases import slow

import parenvs
from parenvs.cluster import Cluster
from parenvs.core.plan import Strategy
from parenvs.graph.flow import chain_bytes
from parenvs.instances import load_graph
from parenvs.tasks.hybrid.export import price
from parenvs.tasks.hybrid.plan import HybridStage
from parenvs.tasks.pipeline.borders import borders_of

CLUSTER = "1x8:a100"


def partitioned(name, batch, micro_batches=1, **options):
    """Data parallelism as a partition: all inputs by samples."""
    problem = parenvs.problem(
        name, CLUSTER, task="partition", scope="inputs", reward="step_time",
        micro_batch=batch, micro_batches=micro_batches, **options,
    )  # fmt: skip
    inputs = {problem.graph.paths[index]: 0 for index in problem.inputs.tolist()}
    return problem.report(problem.plan(problem.chosen(inputs)))


def pipelined(name, batch, micro_batches=1, cuts=(), devices=(), recompute="none"):
    problem = parenvs.problem(
        name, CLUSTER, task="pipeline", micro_batch=batch, micro_batches=micro_batches,
        stages=len(cuts) + 1, recompute=recompute,
    )  # fmt: skip
    return problem.report(problem.plan(cuts, devices))


def hybrid(name, batch, micro_batches=1, layers=(), recompute=""):
    """Data parallelism on stages that share the devices evenly."""
    problem = parenvs.problem(name, CLUSTER, task="hybrid", batch=batch * micro_batches)
    bounds, devices = [0, *layers, len(problem.model)], 8 // (len(layers) + 1)
    stages = [
        HybridStage(((a, b),), devices, recompute={recompute: b - a} if recompute else ())
        for a, b in pairwise(bounds)
    ]
    return problem.report(problem.plan(stages, batch // devices))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["vgg-19", *slow("t5-base", "bert-48")])
def test_price__data_parallelism_has_one_price(name):
    """Partitions differ by the sums that normalize over a batch's samples: the loss, the mask."""
    reports = [make(name, 64, 2) for make in (hybrid, pipelined, partitioned)]
    own, piped, shared = (report.price for report in reports)
    assert own.seconds == reports[0].length_seconds
    assert piped.seconds == pytest.approx(own.seconds, rel=1e-12)
    assert piped.parts == pytest.approx(own.parts)
    assert shared.seconds == pytest.approx(own.seconds, rel=0.03)
    without = shared.seconds - shared.parts["exchange"]
    assert without == pytest.approx(own.seconds, rel=0.005)
    for each in (piped, shared):
        assert sum(each.parts.values()) == pytest.approx(each.seconds)
    costs = {report.cost for report in reports}
    assert len(costs) == 3  # each task minimizes its own


@pytest.mark.thorough
@pytest.mark.parametrize("recompute", ["", "full"])
def test_price__stages_have_the_price_of_hybrid_stages(recompute):
    model = parenvs.problem("vgg-19", CLUSTER, task="hybrid", batch=8).model
    borders = model.work.program.borders.bounds
    own = hybrid("vgg-19", 16, 4, layers=(9,), recompute=recompute)
    piped = Strategy(
        graph=load_graph("vgg-19"), cluster=own.cluster, devices=(4, 4), micro_batch=16,
        micro_batches=4, cuts=(int(borders[9]),), recompute=bool(recompute),
    )  # fmt: skip
    found = price(piped)
    assert found.seconds == pytest.approx(own.length_seconds, rel=1e-12)
    assert found.parts == pytest.approx(own.seconds)
    inside = price(replace(piped, cuts=(int(borders[9]) + 1,)))
    assert inside.seconds == pytest.approx(found.seconds, rel=0.25)
    assert (found.parts["recomputed"] > 0) == bool(recompute)
    forward = load_graph("vgg-19", "forward")  # pipelines are planned on the forward pass alone
    pivots = forward.pivots()
    at = int(borders_of(forward, pivots, chain_bytes(forward, pivots)).bounds[9])
    planned = pipelined("vgg-19", 16, 4, (at,), (4,), recompute or "none").price
    assert planned.seconds == found.seconds and "pipeline model" in planned.own


@pytest.mark.thorough
@pytest.mark.parametrize("scan", [False, True])
def test_price__graphs_that_recompute_cost_what_they_recompute(scan):
    """The first of two products of a layer is made again: nobody needs the second one's result."""
    jax = pytest.importorskip("jax")
    from jax import numpy as jnp

    def shape(*sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    def layer(x, weights):
        return x + jax.nn.gelu(x @ weights[0]) @ weights[1]

    def step_of(apply):
        def loss(layers, x):
            if scan:
                x, _ = jax.lax.scan(lambda x, w: (apply(x, w), None), x, layers)
            else:
                for weights in layers:
                    x = apply(x, weights)
            return jnp.square(x).mean()

        def step(layers, x):
            value, gradients = jax.value_and_grad(loss)(layers, x)
            return value, jax.tree.map(lambda w, g: w - 0.1 * g, layers, gradients)

        stacked = [shape(3, 2048, 8192), shape(3, 8192, 2048)]
        layers = stacked if scan else [[shape(*x.shape[1:]) for x in stacked]] * 3
        return parenvs.from_jax(step, layers, shape(64, 256, 2048))

    plain, again = (
        price(Strategy(graph=step_of(apply), cluster=Cluster.parse(CLUSTER), devices=(8,),
                       micro_batch=64))
        for apply in (layer, jax.checkpoint(layer))
    )  # fmt: skip
    more = again.parts["backward"] - plain.parts["backward"]
    assert more == pytest.approx(plain.parts["forward"] / 2, rel=0.25)
    assert any("recomputes what its checkpoints say" in words for words in again.notes)
