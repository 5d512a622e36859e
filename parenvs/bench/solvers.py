"""Times what is no environment: reading graphs, dimension classes, solvers, judging plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.pipeline.exact import exact_candidates, exact_full
from parenvs.agents.pipeline.heuristics import random_episodes, random_search
from parenvs.agents.pipeline.points import exact_points
from parenvs.bench.play import rate
from parenvs.cluster import Cluster
from parenvs.graph.graph import Graph
from parenvs.instances import load_graph
from parenvs.shipped import data_folder, manifest
from parenvs.tasks.partition.classes import dimension_classes
from parenvs.tasks.partition.problem import Partitioning, load_partitioning
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.profile import load_profile
from parenvs.tasks.pipeline.spaces import CutSpace, PointSpace

PLANS = 4096
"""Number of plans that are judged at once."""
STAGES = 4
"""Number of stages of every pipeline, on cluster C."""


class Part(NamedTuple):
    """A part of the suite that is timed.

    Attributes:
        what: name of the part.
        instance: name of the instance that it works on.
        action: a call that does the work once.
        plans: number of plans that a call judges, else 1.
    """

    what: str
    instance: str
    action: Callable[[], object]
    plans: int = 1


def parts(graph: str, solved: str, full: str) -> Iterator[Part]:
    """The parts that are timed.

    Args:
        graph: the shipped instance whose graph is read.
        solved: the instance whose candidates, points and partition are solved.
        full: the instance that is solved over all pivots and device cuts, which takes seconds.
    """
    cluster, server = Cluster.parse("C"), Cluster.parse("1x8:v100")
    path = data_folder() / manifest()["instances"][graph]["graphs"]["train"]["file"]
    yield Part("load the graph", graph, partial(Graph.load, path))
    model = load_graph(graph)
    yield Part("dimension classes", graph, partial(dimension_classes, model, "shardy"))
    yield Part("partitioning problem", graph, partial(Partitioning.build, model, server))
    yield Part("chain of pivots", graph, partial(load_profile, graph, cluster))
    pipeline = Pipeline(load_profile(solved, cluster), cluster, STAGES)
    yield Part("candidates", solved, partial(CutSpace.build, pipeline))
    yield Part("128 points", solved, partial(PointSpace.build, pipeline))
    space, points = CutSpace.build(pipeline), PointSpace.build(pipeline)
    yield Part("exact, of the candidates", solved, partial(exact_candidates, space))
    yield Part("exact, of the 128 points", solved, partial(exact_points, points))
    split = load_partitioning(solved, server)
    yield Part("exact, of the partition", solved, lambda: exact_partition(split))
    whole = Pipeline(load_profile(full, cluster), cluster, STAGES)
    yield Part("exact, of all pivots", full, partial(exact_full, whole))
    plans = space.plan(random_episodes(space, PLANS, np.random.default_rng(0)))
    yield Part("judge plans", solved, partial(pipeline.length, *plans), PLANS)
    search = partial(random_search, space, PLANS)
    yield Part("random search", solved, lambda: search(np.random.default_rng(0)), PLANS)


def time_part(part: Part, seconds: float, repeats: int) -> dict[str, Any]:
    """Time a part.

    Args:
        part: the part.
        seconds: processor seconds of a run, which makes as many calls as they allow.
        repeats: number of runs.

    Returns:
        ``what``, ``instance``, ``plans`` and, for each run, processor ``seconds`` of a call.
    """
    part.action()
    runs = [1 / rate(part.action, 1, seconds) for _ in range(repeats)]
    return {"what": part.what, "instance": part.instance, "plans": part.plans, "seconds": runs}
