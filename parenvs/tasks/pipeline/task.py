"""The task ``pipeline``: names, options, and what the rest of the package calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parenvs.core.task import (
    PRECISIONS,
    GraphOptions,
    Remarks,
    Task,
    Views,
    given,
    option,
    refuse_settings,
)
from parenvs.errors import ParenvsError, shown

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from rich.table import Table

    from parenvs.agents.pipeline.planners import PipelineRequest
    from parenvs.core.game import Game
    from parenvs.core.leaderboard import TaskKind
    from parenvs.core.plan import Answer, Price, Strategy
    from parenvs.core.sets import SetKind, Validation
    from parenvs.core.stages import Stages, Step
    from parenvs.graph.graph import Graph
    from parenvs.tasks.pipeline.plan import PipelinePlan
    from parenvs.tasks.pipeline.problem import Pipeline, Report
    from parenvs.tasks.pipeline.profile import StageProfile
    from parenvs.view.trace import Track


@dataclass(frozen=True, kw_only=True)
class PipelineOptions(GraphOptions):
    """Options of ``parenvs.problem``; the help of each field says what it is."""

    stages: int | None = option(None, "Stages (default: chosen, or one a server).", main=True)
    devices_used: int | None = option(
        None, "Devices in use (default: all; plan and compare choose with the stages)."
    )
    micro_batch: int | None = option(None, "Samples in a micro-batch (default: 16).")
    micro_batches: int | None = option(None, "Micro-batches in a step (default: 16).")
    copies: float | None = option(None, "Copies of the parameters on a device (default: 2).")
    recompute: str | None = option(
        None, "Activations recomputed: full (default) or none.", values=("full", "none")
    )
    sync: str | None = option(
        None,
        "How gradients are summed (default: allreduce).",
        values=("allreduce", "parameter-server", "sharded-parameter-server"),
    )
    fractions: bool | None = option(
        None, "Devices may share a sample (default: no; yes for profiles and models of the paper)."
    )
    tied: str | None = option(
        None, "Tied weights: held by all that read them, or once (shipped models of the paper)."
    )
    precision: str | None = option(
        None,
        "Precision of matrix products (default: the elements'; fp32 as TF32).",
        values=PRECISIONS,
    )


@dataclass(frozen=True, kw_only=True)
class PipelineSearch:
    """Options of planners; the help of each field says what it is."""

    radius: int | None = option(
        None, "Distance of device cuts from the center solution (default: 3)."
    )
    candidates: str | None = option(
        None, "Pivots that may be cut: minima (default) or all.", values=("minima", "all")
    )
    time_limit: float | None = option(
        None, "Seconds of all searches (default: 20 of exact, others no limit).", "seconds"
    )


class PipelineTask(Task):
    """Cut a model into pipeline stages, and give each stage devices."""

    name = "pipeline"
    words = "Cut a model into pipeline stages, and give each stage devices."
    options = PipelineOptions
    search = PipelineSearch
    planners = (
        "exact",
        "search",
        "even",
        "pipedream",
        "learned",
        "random",
        "ppo",
        "rainbow",
        "rainbow-paper",
    )
    sets = (
        "plan-validation",
        "plan-test",
        "plan-outside",
        "plan-s16-validation",
        "plan-s32-validation",
        "plan-s64-validation",
        "plan-s16-test",
        "plan-s32-test",
        "plan-s64-test",
    )
    drawn = {"generated-2": "inside/any/17", "generated-3": "s16/17"}
    envs = {
        "PipelineCut-v0": "parenvs.tasks.pipeline.cut:PipelineCut",
        "PipelinePlan-v0": "parenvs.tasks.pipeline.planning:PipelinePlanning",
        "PipelineImprove-v0": "parenvs.tasks.pipeline.improve:PipelineImprovement",
    }

    def find(self, name: str) -> Pipeline:
        from parenvs.datasets.pipeline.problems import pipeline_of

        return pipeline_of(name)

    def plan_class(self) -> type[PipelinePlan]:
        from parenvs.tasks.pipeline.plan import PipelinePlan

        return PipelinePlan

    def request_class(self) -> type[PipelineRequest]:
        from parenvs.agents.pipeline.planners import PipelineRequest

        return PipelineRequest

    def load(self, source: Any, cluster: Any, options: PipelineOptions) -> Pipeline:
        """Make a pipeline; see ``parenvs.problem``.

        Args:
            source: a name, a path, a function, a ``Graph``, a ``StageProfile``, or a problem.
            cluster: default: ``"C"``.
            options: those of the task.
        """
        from parenvs.instances import PAPER, READING
        from parenvs.tasks.pipeline.plan import MICRO_BATCH, TIED
        from parenvs.tasks.pipeline.problem import Pipeline, check_stages, stages_on
        from parenvs.tasks.pipeline.profile import StageProfile, load_profile

        if isinstance(source, Pipeline):
            return refuse_settings(source, cluster, options)
        settings = given(options)
        precision = settings.pop("precision", None)
        from parenvs.cluster import Cluster

        parsed = Cluster.parse("C" if cluster is None else cluster)
        if precision is not None:
            parsed = parsed.at(precision)
        if "devices_used" in settings:
            parsed = parsed.part(settings.pop("devices_used"))
        reading = {key: settings.pop(key) for key in (*READING, "arguments") if key in settings}
        micro_batch = settings.pop("micro_batch", MICRO_BATCH)
        stages = stages_on(parsed, settings.pop("stages", None))
        profile = load_profile(source, parsed, micro_batch, **reading)
        instance = os.fspath(source) if isinstance(source, (str, os.PathLike)) else ""
        of_the_paper = instance in PAPER if instance else _is_of_the_paper(profile.fingerprint)
        measured = isinstance(source, StageProfile) or instance.endswith(".csv")
        settings.setdefault("tied", TIED[not of_the_paper])
        settings.setdefault("fractions", of_the_paper or measured)
        pipeline = Pipeline(profile, parsed, stages, instance=instance, **settings)
        check_stages(pipeline)
        return pipeline

    def judge(self, plan: PipelinePlan, target: Any = None, cluster: Any = None) -> Report:
        """Judge a plan; see ``parenvs.judge``.

        Args:
            plan: the plan.
            target: a name, a graph, a chain or a problem (default: the plan's instance).
            cluster: default: the plan's.
        """
        from parenvs.graph.graph import Graph
        from parenvs.instances import forward_of
        from parenvs.tasks.pipeline.problem import Pipeline
        from parenvs.tasks.pipeline.profile import StageProfile, load_profile

        target = plan.instance if target is None else target
        known = self.found(target)
        target = target if known is None else known
        if isinstance(target, Pipeline):
            return target.report(plan)
        from parenvs.cluster import Cluster

        judged_cluster = plan.cluster if cluster is None else Cluster.parse(cluster)
        if isinstance(target, (str, os.PathLike)):
            target = load_profile(target, judged_cluster, plan.micro_batch)
        elif isinstance(target, Graph):
            # A plan made for this very graph is judged on it. Otherwise a shipped training step is
            # replaced by its forward pass, as where pipelines are made.
            graph = target if plan.fingerprint == target.fingerprint else forward_of(target)
            target = StageProfile.from_graph(graph, judged_cluster.device, plan.micro_batch)
        if not isinstance(target, StageProfile):
            raise ParenvsError(
                "a pipeline plan is judged on a Graph, a StageProfile or a Pipeline, not on "
                f"{shown(target)}"
            )
        names = ("micro_batches", "copies", "recompute", "sync", "tied", "fractions", "instance")
        settings = {name: getattr(plan, name) for name in names}
        return Pipeline(target, judged_cluster, **settings).report(plan, any_stages=True)

    def reading(self, instance: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments of ``load_graph`` for an instance; None if it is a profile."""
        from parenvs.instances import READING

        if instance.endswith(".csv"):
            return None
        named = {key: options[key] for key in (*READING, "arguments") if key in options}
        return {"kind": "forward", **named}

    def assumptions(self, graph: Graph, options: Mapping[str, Any]) -> Iterable[str]:
        from parenvs.tasks.pipeline.plan import MICRO_BATCH, MICRO_BATCHES

        if graph.batch_size < MICRO_BATCH and "micro_batch" not in options:
            yield (
                f"the graph's batch is {graph.batch_size}; a step is taken as {MICRO_BATCHES} "
                f"micro-batches of {MICRO_BATCH}, scaled from it (--micro-batches, --micro-batch)"
            )

    def open_problem(
        self, instance: str, cluster: Any, options: Mapping[str, Any], search: Mapping[str, Any]
    ) -> tuple[Pipeline, dict[str, Any]]:
        """Make the pipeline of a command that chooses stages and devices, unless they are given.

        Returns:
            The pipeline, and the options of its planners: ``search`` and the parts of the cluster.
        """
        from parenvs.core.registry import problem

        if "stages" in options:
            return problem(instance, cluster, "pipeline", **options), dict(search)
        # One stage is legal for any chain; the planner chooses their number.
        pipeline = problem(instance, cluster, "pipeline", stages=1, **options)
        is_given = "devices_used" in options
        clusters = [pipeline.cluster] if is_given else pipeline.cluster.parts()
        return pipeline, {**search, "clusters": tuple(clusters)}

    def set_kind(self, name: str) -> SetKind:
        from parenvs.datasets.pipeline.problems import set_kind

        return set_kind(name)

    def training(self, instance: str | None) -> tuple[str, dict[str, Any], tuple[str, ...]] | None:
        from parenvs.datasets.pipeline.problems import LARGE, TIER_FIRST

        if instance is None:
            return "PipelinePlan-v0", {"rows": "ahead"}, ()
        if instance in LARGE or instance.startswith(f"{TIER_FIRST}/"):
            return "PipelineImprove-v0", {"instance": instance}, ()
        if instance in self.sets or self.names(instance):
            return "PipelinePlan-v0", {"instance": instance, "rows": "ahead"}, ()
        # Trained on the problem of the instance, in ``PipelineCut-v0``.
        return None

    def teacher(self, game: Game) -> Callable[[], np.ndarray] | None:
        from parenvs.agents.pipeline.teacher import teach

        return teach(game)

    def validation(self, env_id: str, env_kwargs: Mapping[str, Any]) -> Validation | None:
        from parenvs.core.sets import Validation

        family = env_kwargs.get("family")
        if env_id != "PipelineImprove-v0":
            return Validation("plan-validation", family)
        # There is no set of eight stages.
        tier = env_kwargs.get("tier") or "s16"
        settings = {name: x for name, x in env_kwargs.items() if name in ("pairs", "turns")}
        return Validation(f"plan-{tier}-validation", family, settings) if tier != "s8" else None

    def reference(self, space: Any) -> Answer:
        from parenvs.agents.pipeline.planners import reference

        return reference(space)

    def leaderboard(self) -> Mapping[str, TaskKind]:
        from parenvs.agents.pipeline.entries import TASKS

        return TASKS

    def views(self) -> Views:
        from parenvs.tasks.pipeline import view

        return Views(view.text, view.answer, _draw, view.compared, _trace)

    def tables(self, instance: str, cluster: Any, options: Mapping[str, Any]) -> list[Table]:
        from parenvs.tasks.pipeline.view import of_instance

        return of_instance(instance, cluster, options)

    def remarks(self, request: PipelineRequest, answer: Answer, choice: Any) -> Remarks:
        from parenvs.agents.pipeline.planners import Remarks

        return Remarks(choice)

    def stages(self, plan: PipelinePlan, graph: Any = None, measured: bool = False) -> Stages:
        from parenvs.tasks.pipeline.borders import stages

        return stages(plan, graph, measured)

    def step(self, plan: PipelinePlan, target: Any, element_bytes: int) -> Step:
        from parenvs.tasks.pipeline.borders import step

        return step(plan, target, element_bytes)

    def strategy(self, report: Report) -> Strategy | Price:
        from parenvs.tasks.pipeline.borders import strategy

        return strategy(report)

    def profile(self, **columns: Any) -> StageProfile:
        from parenvs.tasks.pipeline.profile import StageProfile

        return StageProfile(**columns)


def _is_of_the_paper(fingerprint: str) -> bool:
    from parenvs.instances import PAPER, manifest

    shipped = manifest()["instances"]
    graphs = (shipped[name]["graphs"]["forward"] for name in PAPER if name in shipped)
    return any(graph["fingerprint"] == fingerprint for graph in graphs)


def _draw(viewable: Report | Pipeline) -> Figure:
    # Most plans are not drawn: what draws them is imported when one is.
    from parenvs.tasks.pipeline.figure import draw

    return draw(viewable)


def _trace(report: Report) -> list[Track]:
    from parenvs.tasks.pipeline.figure import trace

    return trace(report)
