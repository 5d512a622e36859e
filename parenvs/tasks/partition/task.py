"""The task ``partition``: names, options, and what the rest of the package calls."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parenvs.core.task import PRECISIONS, GraphOptions, Task, Views, given, option, refuse_settings
from parenvs.errors import ParenvsError, shown

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from parenvs.agents.partition.planners import PartitionRequest
    from parenvs.core.game import Game
    from parenvs.core.leaderboard import TaskKind
    from parenvs.core.plan import Answer, Strategy
    from parenvs.core.sets import SetKind, Validation
    from parenvs.core.stages import Step
    from parenvs.graph.graph import Graph
    from parenvs.graph.layout import Layout
    from parenvs.tasks.partition.layout import Decisions
    from parenvs.tasks.partition.linear import Linear
    from parenvs.tasks.partition.problem import Partitioning, PartitionPlan, PartitionReport


def bytes_of(text: str) -> float | str:
    """Return as bytes what a text gives in GB, and ``device`` as it is; else ``ParenvsError``."""
    if text == "device":
        return text
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not 0 < gigabytes < math.inf:
        raise ParenvsError(f"--memory-limit must be 'device' or a positive number, not {text!r}")
    return gigabytes * 1e9


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(GraphOptions):
    """Options of ``parenvs.problem``; the help of each field says what it is."""

    devices: int | None = option(None, "Devices of one server of V100, instead of a cluster.")
    scope: str | None = option(
        None, "What plans decide: variables (default) or inputs.", values=("variables", "inputs")
    )
    rules: str | None = option(
        None, "Rules of propagation: shardy (default) or automap.", values=("shardy", "automap")
    )
    uneven: str | None = option(
        None,
        "Dimensions that devices do not divide: pad (default) or forbid.",
        values=("pad", "forbid"),
    )
    reward: str | None = option(
        None,
        "What is maximized: paper (default) or step_time (default of plan and compare).",
        values=("paper", "step_time"),
    )
    micro_batch: int | None = option(None, "Samples in a micro-batch (default: the graph's batch).")
    micro_batches: int | None = option(None, "Micro-batches in a step (default: 1).")
    recompute: str | None = option(
        None, "Activations recomputed: none (default) or full.", values=("none", "full")
    )
    memory_limit: Any = option(
        None,
        "Bytes a device (in commands: GB), or 'device' for 0.9 of its own memory (default: none).",
        kind=str,
        read=bytes_of,
    )
    precision: str | None = option(
        None,
        "Precision of matrix products (default: the elements'; fp32 as TF32).",
        values=PRECISIONS,
    )


@dataclass(frozen=True, kw_only=True)
class PartitionSearch:
    """Options of planners; the help of each field says what it is."""

    time_limit: float | None = option(
        None, "Seconds of the exact search (default: no limit).", "seconds"
    )


class PartitionTask(Task):
    """Partition dimensions of variables, or of batch inputs, over all devices."""

    name = "partition"
    words = "Partition dimensions of variables, or of batch inputs, over all devices."
    options = PartitionOptions
    search = PartitionSearch
    planners = (
        "exact",
        "greedy",
        "expert",
        "data-parallel",
        "random",
        "ppo",
        "rainbow",
        "rainbow-paper",
    )
    sets = ("partition-train", "partition-validation", "partition-test")
    envs = {
        "DataParallel-v0": "parenvs.tasks.partition.game:DataParallel",
        "OperatorPartition-v0": "parenvs.tasks.partition.game:OperatorPartition",
        "PartitionPlan-v2": "parenvs.tasks.partition.choice:PartitionChoice",
    }

    def find(self, name: str) -> Partitioning:
        from parenvs.datasets.partition.problems import problem_named

        return problem_named(name)

    def plan_class(self) -> type[PartitionPlan]:
        from parenvs.tasks.partition.problem import PartitionPlan

        return PartitionPlan

    def request_class(self) -> type[PartitionRequest]:
        from parenvs.agents.partition.planners import PartitionRequest

        return PartitionRequest

    def load(self, source: Any, cluster: Any, options: PartitionOptions) -> Partitioning:
        """Make a problem; see ``parenvs.problem``.

        Args:
            source: a name, a path, a function, ``FILE.json/NAME`` of a set, a ``Graph``, or a
                problem.
            cluster: default: one server of 8 V100.
            options: those of the task.
        """
        from parenvs.tasks.partition.problem import Partitioning, load_partitioning

        source = self._member(source)
        if isinstance(source, Partitioning):
            return refuse_settings(source, cluster, options)
        settings = given(options)
        precision = settings.pop("precision", None)
        from parenvs.cluster import choose_cluster

        parsed = choose_cluster(cluster, settings.pop("devices", None))
        if precision is not None:
            parsed = parsed.at(precision)
        return load_partitioning(source, parsed, **settings)

    def judge(
        self, plan: PartitionPlan, target: Any = None, cluster: Any = None
    ) -> PartitionReport:
        """Judge a plan; see ``parenvs.judge``. The target is a name, a graph or a problem."""
        from parenvs.graph.graph import Graph
        from parenvs.instances import load_graph
        from parenvs.tasks.partition.problem import Partitioning

        target = self._member(plan.instance if target is None else target)
        if isinstance(target, Partitioning):
            return target.report(plan)
        from parenvs.cluster import Cluster

        judged_cluster = plan.cluster if cluster is None else Cluster.parse(cluster)
        if isinstance(target, (str, os.PathLike)):
            target = load_graph(target)
        if not isinstance(target, Graph):
            raise ParenvsError(
                f"a plan of task {plan.task} is judged on a Graph or a Partitioning, not on "
                f"{shown(target)}"
            )
        settings = {
            "scope": plan.scope, "reward": plan.reward, "instance": plan.instance, **plan.step
        }  # fmt: skip
        problem = Partitioning.build(target, judged_cluster, plan.rules, plan.uneven, **settings)
        return problem.report(plan)

    def _member(self, source: Any) -> Any:
        if isinstance(source, (str, os.PathLike)) and ".json/" in os.fspath(source):
            return self.find(os.fspath(source))
        problem = self.found(source)
        return source if problem is None else problem

    def reading(self, instance: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
        from parenvs.instances import READING

        return {key: options[key] for key in (*READING, "arguments") if key in options}

    def open_problem(
        self, instance: str, cluster: Any, options: Mapping[str, Any], search: Mapping[str, Any]
    ) -> tuple[Partitioning, dict[str, Any]]:
        """Make a command's problem: plans are for the step time unless an option says otherwise."""
        from parenvs.core.registry import problem

        settings = {"reward": "step_time", **options}
        return problem(instance, cluster, self.name, **settings), dict(search)

    def set_kind(self, name: str) -> SetKind:
        from parenvs.datasets.partition.problems import set_kind

        return set_kind(name)

    def training(self, instance: str | None) -> tuple[str, dict[str, Any], tuple[str, ...]] | None:
        if instance is None:
            return "PartitionPlan-v2", {}, ()
        if instance in self.sets or self.names(instance) or instance.endswith(".json"):
            return "PartitionPlan-v2", {"instance": instance}, ()
        # Trained on the problem of the instance, in its scope's environment.
        return None

    def teacher(self, game: Game) -> Callable[[], np.ndarray] | None:
        from parenvs.agents.partition.teacher import teach

        return teach(game)

    def validation(self, env_id: str, env_kwargs: Mapping[str, Any]) -> Validation:
        """Return the set on which agents are judged, whose families are not those of training."""
        from parenvs.core.sets import Validation

        return Validation("partition-validation")

    def reference(self, space: Any) -> Answer:
        from parenvs.agents.partition.exact import exact_partition

        return exact_partition(space.problem)

    def leaderboard(self) -> Mapping[str, TaskKind]:
        from parenvs.agents.partition.entries import TASKS

        return TASKS

    def views(self) -> Views:
        from parenvs.tasks.partition import figure, view

        return Views(view.text, view.answer, figure.draw, view.compared)

    def tables(self, instance: str, cluster: Any, options: Mapping[str, Any]) -> list[Table]:
        from parenvs.core.registry import problem
        from parenvs.tasks.partition.view import classes

        return [classes(problem(instance, cluster, self.name, **options))]

    def explain(
        self, report: PartitionReport | Partitioning, pattern: str | None = None
    ) -> tuple[str, dict[str, Any]]:
        from parenvs.tasks.partition.explain import text_and_json

        return text_and_json(report, pattern)

    def explain_problem(
        self, problem: Partitioning, pattern: str | None = None
    ) -> tuple[str, dict[str, Any]]:
        return self.explain(problem, pattern)

    def layout(
        self, plan: PartitionPlan, graph: Graph | None = None, eager: bool = False
    ) -> Layout:
        from parenvs.tasks.partition.layout import layout

        return layout(plan, graph, eager)

    def step(self, plan: PartitionPlan, target: Any, element_bytes: int) -> Step:
        from parenvs.tasks.partition.layout import step

        return step(plan, target, element_bytes)

    def decisions(self, plan: PartitionPlan, graph: Graph) -> Decisions:
        from parenvs.tasks.partition.layout import Decisions

        return Decisions(plan, graph)

    def strategy(self, report: PartitionReport) -> Strategy:
        from parenvs.tasks.partition.layout import strategy

        return strategy(report)

    def start(self, problem: Linear) -> Linear:
        """Return the plan of least memory, where episodes begin."""
        from parenvs.agents.partition.witnesses import find_witnesses

        return find_witnesses(problem)
