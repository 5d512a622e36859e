"""Cuts on borders between layers, and what rounding costs."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

import parenvs
from parenvs import ParenvsError, PipelinePlan, load_graph
from parenvs.cluster import choose_cluster
from parenvs.core.plan import judge
from parenvs.exports.stages import loss, recomputed, stages_of
from parenvs.tasks.hybrid.graph_program import Program
from parenvs.tasks.hybrid.space import Constraints
from parenvs.tasks.partition.problem import PartitionPlan
from parenvs.tasks.pipeline.borders import nearest_borders


def test_nearest_borders__as_by_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(200):
        borders = np.sort(rng.choice(60, size=rng.integers(1, 9), replace=False))
        cuts = np.sort(rng.choice(60, size=rng.integers(1, len(borders) + 1), replace=False))
        chosen = nearest_borders(cuts.tolist(), borders)
        assert chosen == sorted(set(chosen)) and len(chosen) == len(cuts)
        best = min(
            int(np.abs(borders[list(some)] - cuts).sum())
            for some in itertools.combinations(range(len(borders)), len(cuts))
        )
        assert int(np.abs(borders[chosen] - cuts).sum()) == best


@pytest.fixture(scope="module")
def pipeline():
    """A plan of the shipped BERT whose cuts lie inside layers."""
    graph = load_graph("bert-48", "forward")
    problem = parenvs.problem(graph, "2x8:v100,25Gbps", stages=2)
    return PipelinePlan(
        "bert-48", graph.fingerprint, problem.cluster, cuts=(2700,), device_cuts=(8,)
    )


@pytest.mark.thorough
def test_stages__cuts_are_moved_to_borders(pipeline):
    planned = stages_of(pipeline)
    assert len(planned.names) == 48 and planned.replicas == (8, 8)
    assert (planned.batch, planned.micro_batch, planned.micro_batches) == (256, 2, 16)
    ((first, border),), ((again, end),) = (stage.layers for stage in planned.stages)
    assert (first, border, end) == (0, again, 48)
    moved, costs = planned.notes
    bounds = Program.of(load_graph("bert-48", "forward")).borders.bounds.tolist()
    distance = bounds[border] - 2700
    assert planned.run.cuts == (bounds[border],)
    assert moved.startswith(f"cut 1 moved by {distance:+d} of") and planned.names[border] in moved
    assert abs(distance) == np.abs(np.array(bounds[1:-1]) - 2700).min() > 0
    change = judge(replace(pipeline, cuts=(2700 + distance,))).length_seconds
    share = change / judge(pipeline).length_seconds - 1
    assert f"{abs(share):.2%} {'longer' if share > 0 else 'shorter'}" in costs
    on_border = replace(pipeline, cuts=(bounds[20],))
    assert stages_of(on_border).notes == () and stages_of(on_border).parts[0] == (0, 20)


def test_stages__refuses_what_has_none(pipeline):
    with pytest.raises(ParenvsError, match="task: partition has no stages"):
        stages_of(PartitionPlan("t5-base", "x", choose_cluster(None), {}))
    with pytest.raises(ParenvsError, match=r"instance: chain\.csv is a profile"):
        stages_of(replace(pipeline, instance="chain.csv"))
    with pytest.raises(ParenvsError, match="illegal"):
        stages_of(replace(pipeline, cuts=(3, 2)))


def test_stages__hybrid_recompute_by_layer():
    options = {"task": "hybrid", "batch": 64, "stack": "megatron-2022"}  # whose scores are kept
    problem = parenvs.problem("gpt-1.7b", "2x8:a100", **options)
    plan = parenvs.plan(problem, "uniform", constraints=Constraints(pp=2)).plan
    stage = replace(plan.stages[0], recompute={"full": 1, "selective": 1})
    planned = stages_of(replace(plan, stages=(stage, *plan.stages[1:])))
    first = planned.parts[0][0]
    assert planned.modes[first : first + 2] == ("full", "selective")
    alike = recomputed(planned, "full", "X")
    assert set(alike.modes) == {"full"}
    longer = parenvs.judge(alike.run).step_seconds / parenvs.judge(planned.plan).step_seconds - 1
    assert loss(planned) == 0 and loss(alike) == pytest.approx(longer) and longer > 0.01
    (note,) = alike.notes
    assert re.search(r"X treats all layers alike; .* a step [\d.]+% longer", note)
