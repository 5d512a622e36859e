"""The values that shells complete: names of tasks, agents, instances, clusters and frameworks.

They are read from what costs next to nothing to import, as a person waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parenvs.core.registry import TASKS, environments
from parenvs.core.task import FRAMEWORKS, PRESETS
from parenvs.view.commands import completed, of

DEVICES = ("cpu", "cuda")
"""Kinds of devices that PyTorch and JAX run on."""
RUNNERS = ("torch", "jax")
"""Frameworks that measure this machine."""


def _asked(ctx: Any) -> list[Any]:
    """The tasks that are asked for, or all."""
    given = ctx.params.get("task")
    names = given if isinstance(given, (list, tuple)) else [given]
    chosen = [TASKS[name] for name in names if name in TASKS]
    return chosen or list(TASKS.values())


def _agents(ctx: Any) -> Iterable[str]:
    return dict.fromkeys(name for task in _asked(ctx) for name in task.planners)


def _learners(ctx: Any) -> Iterable[str]:
    from parenvs.agents.names import ALGORITHMS

    return ALGORITHMS


def _instances(ctx: Any) -> Iterable[str]:
    from parenvs.shipped import names

    found = dict.fromkeys(names())
    for task in _asked(ctx):
        found |= dict.fromkeys(task.own_names())
        found |= dict.fromkeys((*task.instances, *(f"{kind}/" for kind in task.drawn)))
        found |= dict.fromkeys(f"{name}/" for name in task.sets)
    return found


def _sets(ctx: Any) -> Iterable[str]:
    return (name for task in TASKS.values() for name in task.sets)


def _envs(ctx: Any) -> Iterable[str]:
    return (name for name in environments() if "/" not in name)


def _trainable(ctx: Any) -> Iterable[str]:
    return (*_instances(ctx), *TASKS, *_sets(ctx), *_envs(ctx))


tasks = completed(lambda _: TASKS)
agents = completed(_agents)
learners = completed(_learners)
instances = completed(_instances)
envs = completed(_envs)
trainable = completed(_trainable)
sets = completed(_sets)
clusters = of(*PRESETS)
frameworks = of(*FRAMEWORKS)
devices = of(*DEVICES)
