"""The commands ``parenvs list`` and ``parenvs show``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer

from parenvs import view
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
from parenvs.graph.sources import GraphOptions
from parenvs.view.terminal import Json, out, say, say_tables, say_text

_CLUSTER = "C"
"""Preset on which an instance is shown to several tasks, unless another is given."""


def add_listing(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list")(list_)
    app.command()(with_flags("options")(show))


def list_(task: TaskName = None, as_json: Json = False) -> None:
    """List shipped instances and clusters, and the sets, agents and environments of each task.

    With --task also what a problem of its sets is called.
    """
    from parenvs.cli import tables

    chosen = list(TASKS.values()) if task is None else [TASKS.named(task)]
    has_graphs = any(each.supports(Task.reading) for each in chosen)
    shown = [tables.instances(), tables.clusters()] if has_graphs else []
    facts = {each.name: dict(_facts(each, example=task is not None)) for each in chosen}
    if as_json:
        say_tables(*shown, as_json=True, tasks=facts)
        return
    say_tables(*shown)
    for each in chosen:
        say(f"{each.name}: {each.words}")
        for title, names in facts[each.name].items():
            if names:
                say(f"  {title}: {', '.join(names)}")


def _facts(task: Task, example: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield what there is of a task, by title; an example of a set's problems takes its time."""
    from parenvs.core.sets import set_of

    yield "sets", list(task.sets)
    if example and task.sets:
        yield "problems of the last set", [*set_of(task.sets[-1]).problems[:2], "..."]
    yield "drawn problems", [f"{name}/NUMBER" for name in task.drawn]
    yield "names", [*task.instances, *task.own_names()]
    yield "agents", list(task.planners)
    yield "environments", list(task.envs)


def show(
    given: Given,
    instance: Instance,
    task: TaskName = None,
    cluster: ClusterText = None,
    as_json: Json = False,
) -> None:
    """Show an instance: a graph's inputs, its chain on a cluster, its dimension classes; a problem.

    Without --task a graph or profile is shown as every task sees it that has a table of it.
    """
    from parenvs.cli import tables

    model = Model.of(given, instance, task, cluster)
    shown = []
    if model.how is not None:
        graph = model.read()
        shown += [tables.graph(graph), tables.parameters(graph)]
    if task is not None or task_of_name(instance) is not None:
        if model.task.supports(Task.tables):
            shown += model.task.tables(instance, cluster, model.options)
            say_tables(*shown, as_json=as_json)
        elif as_json:
            say_tables(*shown, as_json=True, text=view.text(model.problem()).split("\n"))
        else:
            say_tables(*shown)
            words = view.text(model.problem(), colour=out.coloured)
            say_text(words, painted=out.coloured)
        return
    where = _CLUSTER if cluster is None else cluster
    shown += model.task.tables(instance, where, model.options)
    reading = {flag.place[0] for flag in flags_in(GraphOptions)}
    shared = {name: value for name, value in model.options.items() if name in reading}
    for other in tasks_with(Task.tables):
        if other is not model.task:
            with contextlib.suppress(ParenvsError):  # it is no problem of that task
                shown += list(other.tables(instance, where, shared))
    say_tables(*shown, as_json=as_json)
