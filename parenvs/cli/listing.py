"""The commands ``parenvs list`` and ``parenvs show``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from parenvs.cli import tables
from parenvs.cli.model import Model
from parenvs.cli.options import (
    ClusterText,
    Given,
    Instance,
    TaskName,
    flags_in,
    tasks_with,
    with_flags,
)
from parenvs.core.registry import TASKS, task_of_name
from parenvs.core.task import Task
from parenvs.errors import ParenvsError
from parenvs.graph.options import GraphOptions
from parenvs.view import text
from parenvs.view.terminal import out, say, say_text

_CLUSTER = "C"
"""Preset on which an instance is shown to several tasks, unless another is given."""


def add_listing(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list")(list_)
    app.command()(with_flags("options")(show))


def list_(task: TaskName = None) -> None:
    """List shipped instances and clusters; of every task sets, names, agents and environments.

    With --task also what a problem of its sets is called.
    """
    chosen = list(TASKS.values()) if task is None else [TASKS.named(task)]
    if any("reading" in each.hooks for each in chosen):
        out.print(tables.instances())
        out.print(tables.clusters())
    for each in chosen:
        say(f"{each.name}: {each.words}")
        for title, names in _facts(each, example=task is not None):
            if names:
                say(f"  {title}: {names}")


def _facts(task: Task, example: bool) -> Iterator[tuple[str, str]]:
    """Yield what there is of a task, by title; an example of a set's problems takes its time."""
    from parenvs.agents.planners import request_class
    from parenvs.core.sets import set_of

    named = f" ({set_of(task.sets[-1]).problems[0]}, ...)" if example and task.sets else ""
    yield "sets", ", ".join(task.sets) + named
    if task.drawn:
        yield "drawn problems", ", ".join(f"{name}/NUMBER" for name in task.drawn)
    known = task.hook("names")() if "names" in task.hooks else ()
    yield "names", ", ".join((*task.instances, *known))
    yield "agents", ", ".join(request_class(task.name).planners) if task.request else ""
    yield "environments", ", ".join(task.envs)


def show(
    given: Given,
    instance: Instance,
    task: TaskName = None,
    cluster: ClusterText = None,
) -> None:
    """Show an instance: a graph's inputs, its chain on a cluster, its dimension classes; a problem.

    Without --task a graph or profile is shown as every task sees it that has a table of it.
    """
    model = Model.of(given, instance, task, cluster)
    if model.how is not None:
        graph = model.read()
        out.print(tables.graph(graph))
        out.print(tables.parameters(graph))
    if task is not None or task_of_name(instance) is not None:
        if "tables" in model.task.hooks:
            _print_tables(model.task, instance, cluster, model.options)
        else:
            say_text(text(model.problem(), colour=out.is_terminal), painted=out.is_terminal)
        return
    where = _CLUSTER if cluster is None else cluster
    _print_tables(model.task, instance, where, model.options)
    reading = {flag.place[0] for flag in flags_in(GraphOptions)}
    shared = {name: value for name, value in model.options.items() if name in reading}
    for other in tasks_with("tables"):
        if other is not model.task:
            with contextlib.suppress(ParenvsError):  # it is no problem of that task
                _print_tables(other, instance, where, shared)


def _print_tables(
    task: Task, instance: str, cluster: str | None, options: Mapping[str, Any]
) -> None:
    for table in task.hook("tables")(instance, cluster, options):
        out.print(table)
