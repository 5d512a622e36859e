"""Problems of environments, of what their argument ``instance`` names or is."""

from __future__ import annotations

import os
from typing import Any

from parenvs import instances
from parenvs.cluster import Cluster, choose_cluster
from parenvs.errors import ParenvsError, shown
from parenvs.graph.graph import Graph
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.pipeline.plan import MICRO_BATCH
from parenvs.tasks.pipeline.problem import Pipeline, check_stages, stages_on
from parenvs.tasks.pipeline.profile import StageProfile


def load_pipeline(
    instance: Any,
    cluster: Any,
    stages: int | None = None,
    micro_batch: int = MICRO_BATCH,
    **options: Any,
) -> Pipeline:
    """Return the pipeline problem of an instance.

    Args:
        instance: shipped name, path, ``Graph`` or ``StageProfile``.
        cluster: in any form that ``Cluster.parse`` takes.
        stages: S (default: one stage a server).
        micro_batch: samples of a micro-batch; a ``StageProfile`` has its own.
        **options: see ``parenvs.problem``.

    Raises:
        TypeError: ``instance`` is nothing of these.
        ParenvsError: see ``parenvs.problem``.
    """
    if isinstance(instance, Graph):
        return instances.pipeline_of(instance, cluster, stages, micro_batch, **options)
    if isinstance(instance, StageProfile):
        if micro_batch not in (MICRO_BATCH, instance.micro_batch):
            raise ParenvsError(
                f"micro_batch: the profile {instance.name} is of micro-batches of "
                f"{instance.micro_batch}, not {micro_batch}; leave it out"
            )
        parsed = Cluster.parse(cluster)
        pipeline = Pipeline(instance, parsed, stages_on(parsed, stages), **options)
        check_stages(pipeline)
        return pipeline
    name = path_of(instance, "a StageProfile or a Graph")
    return instances.problem(name, cluster, stages=stages, micro_batch=micro_batch, **options)


def load_partitioning(
    instance: Any,
    devices: int | None,
    cluster: Any,
    rules: str,
    uneven: str,
    task: str,
    reward: str,
    **step: Any,
) -> Partitioning:
    """Return the partitioning problem of an instance.

    Args:
        instance: shipped name, path or ``Graph``.
        devices: number of devices of a server of V100, in place of a cluster.
        cluster: in any form that ``Cluster.parse`` takes.
        rules: see ``parenvs.Partitioning.build``, as for what follows.
        uneven: ``"pad"`` or ``"forbid"``.
        task: ``"operator-partition"`` or ``"data-parallel"``.
        reward: ``"paper"`` or ``"step_time"``.
        **step: ``micro_batch``, ``micro_batches``, ``recompute`` and ``memory_limit``.

    Raises:
        TypeError: ``instance`` is nothing of these.
        ParenvsError: see ``parenvs.problem``.
    """
    parsed = choose_cluster(cluster, devices)
    if isinstance(instance, Graph):
        return Partitioning.build(instance, parsed, rules, uneven, task, reward, **step)
    name = path_of(instance, "a Graph")
    return instances.load_partitioning(name, parsed, rules, uneven, task, reward, **step)


def path_of(instance: Any, kinds: str) -> str:
    """Return the name or path that an instance is given by.

    Args:
        instance: the argument ``instance`` of an environment.
        kinds: what else it may be, in words.

    Raises:
        TypeError: it is neither text nor a path.
    """
    if not isinstance(instance, (str, os.PathLike)):
        raise TypeError(f"instance: expected a name, a path, {kinds}, not {shown(instance)}")
    return os.fspath(instance)
