"""The problem that a command is about: how it is read, what is told of it, what is kept of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parenvs.cli.options import Given, flags_of, values_for
from parenvs.core.registry import DEFAULT, TASKS, task_of_name
from parenvs.core.task import PRESETS, Task
from parenvs.errors import ParenvsError
from parenvs.shipped import names
from parenvs.view.terminal import Step, note

if TYPE_CHECKING:
    from parenvs.core.request import Request
    from parenvs.graph.graph import Graph

_SLOW = 2.0  # seconds from which reading a file is told


def task_named(word: str | None, instance: str | None, given: Iterable[str] = ()) -> Task:
    """Return the task of a word; without one that of the instance's name, else the default.

    An option that implies its task, such as ``--for``, says it where neither does.

    Args:
        word: name of a task, or None.
        instance: what is planned.
        given: names of options.

    Raises:
        ParenvsError: there is no task of this name.
    """
    if word is not None:
        return TASKS.named(word)
    named = task_of_name(instance)
    if named is not None:
        return named
    for each in TASKS.values():
        flags = flags_of(each)
        for name in given:
            if name in flags and flags[name].implies:
                note(f"task {each.name}, as --{name} is given")
                return each
    return TASKS[DEFAULT]


def task_to_plan(word: str | None, instance: str, given: Given) -> Task:
    """Return the task that plans an instance: without a word one that has its name, if any does.

    Raises:
        ParenvsError: there is no task of this name.
    """
    if word is None and task_of_name(instance) is None:
        for task in TASKS.values():
            if instance in task.own_names():
                return task
    return task_named(word, instance, given)


def found_cluster(model: Model) -> str | None:
    """Return the cluster that is given for a model, or else the GPUs of this machine.

    Returns:
        The cluster; None if the problem says what it runs on.

    Raises:
        ParenvsError: this machine has no GPUs.
    """
    if not model.is_placed_here:
        return model.cluster
    from parenvs.cluster import Cluster

    here = Cluster.here()
    if here is None:
        raise ParenvsError(
            "--cluster is missing, and this machine has no GPU to plan for: give a preset "
            f"({', '.join(PRESETS)}), servers x devices like 16x8:h100, or a .json file"
        )
    return f"{here.servers}x{here.devices_per_server}:{here.device.name}"


@dataclass(frozen=True)
class Model:
    """An instance of a task as the command line names it.

    Attributes:
        task: what is planned.
        instance: shipped name, ``SET/NAME``, path, or a JAX function.
        cluster: name, short form or path, or None.
        options: of the problem, by name, where they are given.
        search: of planners, by name, where they are given.
    """

    task: Task
    instance: str
    cluster: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Given, instance: str, task: str | None, cluster: str | None) -> Model:
        """Read what a command line gives.

        Raises:
            ParenvsError: the task is unknown, or does not have an option.
        """
        chosen = task_named(task, instance, given)
        return cls(chosen, instance, cluster, **values_for(chosen, given))

    @property
    def is_placed_here(self) -> bool:
        """Whether what it runs on is not said, by a cluster, an option or the problem itself."""
        has_own = not self.task.supports(Task.reading) or self.task.names(self.instance)
        return self.cluster is None and not has_own and "devices" not in self.options

    @cached_property
    def how(self) -> dict[str, Any] | None:
        """Arguments of ``load_graph`` for the graph; None if the problem is made of none."""
        if not self.task.supports(Task.reading) or self.task.names(self.instance):
            return None
        return self.task.reading(self.instance, self.options)

    @property
    def kept(self) -> bool:
        """Whether its graph is written beside a plan, as its name alone would not give it."""
        from parenvs import instances

        if self.how is None:
            return False
        return instances.reads_anew(
            self.instance, **{k: v for k, v in self.how.items() if k in instances.READING}
        )

    def graph(self) -> Graph:
        """Load the graph."""
        from parenvs import instances

        assert self.how is not None
        return instances.load_graph(self.instance, **self.how)

    @property
    def graph_read(self) -> Graph | None:
        """The graph, where its name alone would not give it; None elsewhere."""
        return self.graph() if self.kept else None

    def read(self) -> Graph:
        """Load the graph; tell what takes long, and what the reader assumed."""
        from parenvs.graph import python_source
        from parenvs.graph.sources import is_function

        if is_function(self.instance):
            with Step(f"lowering {self.instance}") as step:
                if python_source.lower(self.instance, self.options.get("arguments")).kept:
                    step.result = "kept from the last time (--no-cache lowers it anew)"
        with Step(f"reading {self.instance}", min_seconds=0.0 if self.kept else _SLOW) as step:
            graph = self.graph()
            step.result = f"{len(graph.opcode):,} instructions"
        for words in graph.notes:
            note(words)
        return graph

    def tell(self) -> None:
        """Load the graph, if there is one, and note what the task assumes of it."""
        if self.how is None:
            return
        graph = self.read()
        for words in self.task.assumptions(graph, self.options):
            note(words)

    def problem(self) -> Any:
        """Make the problem."""
        from parenvs.core.registry import problem

        return problem(self.instance, self.cluster, self.task.name, **self.options)

    def request(
        self, seed: int, steps: int, choosing: bool = True, here: bool = False, **own: Any
    ) -> Request:
        """Make what planners answer.

        Args:
            seed: seed of everything random.
            steps: environment steps.
            choosing: whether what is not given is left open where the task can choose it;
                otherwise it is as in the environments.
            here: whether a cluster that is not given is this machine.
            **own: further options of requests.

        Raises:
            ParenvsError: no plan can solve the problem, or the task has no planners.
        """
        from parenvs.agents.planners import request_of

        self.tell()
        placed = replace(self, cluster=found_cluster(self)) if here else self
        if (
            choosing
            and self.task.supports(Task.open_problem)
            and not self.task.names(self.instance)
        ):
            problem, search = self.task.open_problem(
                self.instance, placed.cluster, self.options, self.search
            )
        else:
            problem, search = placed.problem(), self.search
        return request_of(problem, seed=seed, steps=steps, **search, **own)

    def check_out(self, path: Path | None) -> None:
        """Raise an error if the graph kept beside a plan would overwrite what it was read from.

        Raises:
            ParenvsError: it would; the line names both files.
        """
        if path is None or not self.kept:
            return
        sidecar = path.with_suffix(".npz")
        if sidecar == path or _same(sidecar, self.instance):
            raise ParenvsError(
                f"{path}: the plan's graph is written beside it and would overwrite {sidecar}; "
                "choose another --out"
            )

    def named(self, report: Any, path: Path | None) -> Any:
        """Return a report whose plan names the graph that ``save`` writes beside ``path``."""
        if path is None or not self.kept:
            return report
        return replace(report, plan=replace(report.plan, instance=str(path.with_suffix(".npz"))))

    def save(self, path: Path | None) -> None:
        """Write the graph, and its module if there is one, beside a plan's file.

        Nothing is written if the instance alone gives the graph.
        """
        from parenvs import instances
        from parenvs.graph import python_source
        from parenvs.graph.sources import is_function

        if path is None or not self.kept:
            return
        from parenvs.files import replacing

        self.graph().save(path.with_suffix(".npz"))
        if is_function(self.instance):
            with replacing(path.with_suffix(".pb")) as stream:
                lowered = python_source.lower(self.instance, self.options.get("arguments"))
                stream.write(lowered.proto)
        elif self.instance not in names() and self.instance.endswith(instances.GRAPH_SUFFIXES[1:]):
            module = path.with_suffix(Path(self.instance).suffix)
            if not _same(module, self.instance):
                with replacing(module) as stream, Path(self.instance).open("rb") as source:
                    shutil.copyfileobj(source, stream)


def _same(path: Path, instance: str) -> bool:
    """Return whether a path and an instance are one file."""
    return path.exists() and Path(instance).exists() and path.samefile(instance)
