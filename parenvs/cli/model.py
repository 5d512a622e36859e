"""The model that a command is about: how it is read, what is told of it, what is kept of it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parenvs.cli.report import Step, note
from parenvs.errors import ParenvsError
from parenvs.files import replacing
from parenvs.graph import python_source
from parenvs.graph.graph import Graph
from parenvs.instances import GRAPH_SUFFIXES, READING, load_graph, reads_anew
from parenvs.shipped import names
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.shipped import load_shape
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.partition.plan import PartitionPlan
from parenvs.tasks.pipeline.plan import MICRO_BATCH, MICRO_BATCHES, PipelinePlan

_SLOW = 2.0  # seconds from which reading a file is told


def reading(
    variables: list[str] | None, batch: list[str] | None, frozen: list[str] | None
) -> dict[str, Any]:
    """Return the options of reading that a command line gives, as ``load_graph`` takes them.

    Each is a list of globs; a single whole number is the index of an argument.
    """
    given = dict(zip(READING, (variables, batch, frozen), strict=True))
    return {
        name: int(globs[0]) if len(globs) == 1 and globs[0].isdecimal() else tuple(globs)
        for name, globs in given.items()
        if globs
    }


@dataclass(frozen=True)
class Model:
    """A model as the command line names it.

    Attributes:
        instance: shipped name, path of a graph or profile, or a JAX function.
        options: ``arguments`` of a function and options of reading, where given.
        task: what is planned; pipelines are made of the forward pass of a shipped instance.
    """

    instance: str
    options: dict[str, Any] = field(default_factory=dict)
    task: str = PartitionPlan.task

    @property
    def is_profile(self) -> bool:
        """Whether it is a chain of measurements, without a graph."""
        return self.instance.endswith(".csv")

    @property
    def is_shape(self) -> bool:
        """Whether it is the shape of a transformer, without a graph."""
        return self.task == HybridPlan.task and load_shape(self.instance) is not None

    @property
    def kept(self) -> bool:
        """Whether its graph is written beside a plan, as its name alone would not give it."""
        if self.is_shape or self.task == OrderPlan.task:
            return False
        given = {key: value for key, value in self.options.items() if key in READING}
        return reads_anew(self.instance, **given)

    def graph(self) -> Graph:
        """Load the graph."""
        kind = "forward" if self.task == PipelinePlan.task else "train"
        return load_graph(self.instance, kind, **self.options)

    def read(self) -> Graph:
        """Load the graph; tell what takes long, and what the reader assumed."""
        if python_source.is_function(self.instance):
            with Step(f"lowering {self.instance}"):
                python_source.lower(self.instance, self.options.get("arguments"))
        with Step(f"reading {self.instance}", least=0.0 if self.kept else _SLOW) as step:
            graph = self.graph()
            step.result = f"{len(graph.opcode):,} instructions"
        for words in graph.notes:
            note(words)
        return graph

    def tell(self, micro_batch: int | None = None) -> None:
        """Load the graph, if there is one, and note what a pipeline assumes of its batch."""
        if self.is_profile or self.is_shape:
            return
        graph = self.read()
        small = self.task == PipelinePlan.task and graph.batch_size < MICRO_BATCH
        if small and micro_batch is None:
            note(
                f"the graph's batch is {graph.batch_size}; a step is taken as {MICRO_BATCHES} "
                f"micro-batches of {MICRO_BATCH}, scaled from it (--micro-batches, --micro-batch)"
            )

    def check_out(self, path: Path | None) -> None:
        """Raise an error if the graph kept beside a plan would overwrite what it was read from.

        Raises:
            ParenvsError: it would; the line names both files.
        """
        if path is None or not self.kept:
            return
        kept = path.with_suffix(".npz")
        if kept == path or _same(kept, self.instance):
            raise ParenvsError(
                f"{path}: the plan's graph is written beside it and would overwrite {kept}; "
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
        if path is None or not self.kept:
            return
        self.graph().save(path.with_suffix(".npz"))
        if python_source.is_function(self.instance):
            with replacing(path.with_suffix(".pb")) as stream:
                stream.write(python_source.lower(self.instance, self.options.get("arguments")))
        elif self.instance not in names() and self.instance.endswith(GRAPH_SUFFIXES[1:]):
            module = path.with_suffix(Path(self.instance).suffix)
            if not _same(module, self.instance):
                with replacing(module) as stream, Path(self.instance).open("rb") as source:
                    shutil.copyfileobj(source, stream)


def _same(path: Path, instance: str) -> bool:
    """Return whether a path and an instance are one file."""
    return path.exists() and Path(instance).exists() and path.samefile(instance)
