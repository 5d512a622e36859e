"""The task ``pipeline``: names, options, and what the rest of the package calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parenvs.core.task import PRECISIONS, Remarks, Task, option
from parenvs.graph.options import GraphOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from parenvs.agents.pipeline.planners import PipelineRequest
    from parenvs.core.leaderboard import TaskKind
    from parenvs.core.plan import Answer, Price, Strategy
    from parenvs.core.sets import SetKind, Validation
    from parenvs.core.stages import Stages, Step
    from parenvs.graph.graph import Graph
    from parenvs.tasks.pipeline.cuts import Cuts
    from parenvs.tasks.pipeline.diff import PipelineDiff
    from parenvs.tasks.pipeline.plan import PipelinePlan
    from parenvs.tasks.pipeline.problem import Pipeline, Report
    from parenvs.tasks.pipeline.profile import StageProfile


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
        None, "Distance of device cuts from the centre solution (default: 3)."
    )
    candidates: str | None = option(
        None, "Pivots that may be cut: minima (default) or all.", values=("minima", "all")
    )
    time_limit: float | None = option(
        None, "Seconds of each search of exact agents (exact: 20, others: no limit).", "seconds"
    )


class PipelineTask(Task):
    """Cut a model into pipeline stages, and give each stage devices."""

    name = "pipeline"
    words = "Cut a model into pipeline stages, and give each stage devices."
    options = PipelineOptions
    search = PipelineSearch
    planners = (
        "exact",
        "exact-full",
        "exact-points",
        "exact-candidates",
        "corridor",
        "even",
        "pipedream",
        "learned",
        "learned+search",
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
    drawn = ("generated-1", "generated-2", "generated-3")
    envs = {
        "PipelineCut-v0": "parenvs.tasks.pipeline.game.cut:PipelineCut",
        "PipelinePlan-v1": "parenvs.tasks.pipeline.game.improve:PipelineImprovement",
    }

    def find(self, name: str) -> Pipeline:
        from parenvs.datasets.pipeline.sets import pipeline_of

        return pipeline_of(name)

    def plan_class(self) -> type[PipelinePlan]:
        from parenvs.tasks.pipeline.plan import PipelinePlan

        return PipelinePlan

    def request_class(self) -> type[PipelineRequest]:
        from parenvs.agents.pipeline.planners import PipelineRequest

        return PipelineRequest

    def load(self, source: Any, cluster: Any, options: PipelineOptions) -> Pipeline:
        from parenvs.tasks.pipeline.load import load

        return load(source, cluster, options)

    def judge(self, plan: PipelinePlan, target: Any = None, cluster: Any = None) -> Report:
        from parenvs.tasks.pipeline.load import judge

        return judge(plan, target, cluster)

    def reading(self, instance: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
        from parenvs.tasks.pipeline.load import reading

        return reading(instance, options)

    def assumptions(self, graph: Graph, options: Mapping[str, Any]) -> Iterable[str]:
        from parenvs.tasks.pipeline.load import assumed

        return assumed(graph, options)

    def open_problem(
        self, instance: str, cluster: Any, options: Mapping[str, Any], search: Mapping[str, Any]
    ) -> tuple[Pipeline, dict[str, Any]]:
        from parenvs.tasks.pipeline.load import open_shape

        return open_shape(instance, cluster, options, search)

    def set_kind(self, name: str) -> SetKind:
        from parenvs.datasets.pipeline.optima import set_kind

        return set_kind(name)

    def training(self, instance: str | None) -> tuple[str, dict[str, Any], tuple[str, ...]] | None:
        from parenvs.tasks.pipeline.load import training

        return training(instance)

    def validation(self, env_kwargs: Mapping[str, Any]) -> Validation:
        from parenvs.tasks.pipeline.load import validation

        return validation(env_kwargs)

    def reference(self, space: Any) -> Answer:
        from parenvs.agents.pipeline.planners import reference

        return reference(space)

    def leaderboard(self) -> Mapping[str, TaskKind]:
        from parenvs.agents.pipeline.entries import TASKS

        return TASKS

    def text(self, viewable: Report | Pipeline, colour: bool = False) -> str:
        from parenvs.tasks.pipeline.view.text import text

        return text(viewable, colour)

    def answer(self, report: Report) -> str:
        from parenvs.tasks.pipeline.view.text import answer

        return answer(report)

    def figure(self, viewable: Report | Pipeline) -> Figure:
        from parenvs.tasks.pipeline.view.figure import draw

        return draw(viewable)

    def tables(self, instance: str, cluster: Any, options: Mapping[str, Any]) -> list[Table]:
        from parenvs.tasks.pipeline.view.tables import of_instance

        return of_instance(instance, cluster, options)

    def comparison(self, answers: Sequence[Answer]) -> Table:
        from parenvs.tasks.pipeline.view.tables import comparison

        return comparison(answers)

    def diff(self, a: Report, b: Report) -> PipelineDiff:
        from parenvs.tasks.pipeline.diff import difference

        return difference(a, b)

    def diff_text(self, diff: PipelineDiff, names: tuple[str, str]) -> list[str]:
        from parenvs.tasks.pipeline.view.diff import diff_lines

        return diff_lines(diff, names)

    def remarks(self, request: PipelineRequest, answer: Answer, choice: Any) -> Remarks:
        from parenvs.agents.pipeline.remarks import Remarks

        return Remarks(request, answer, choice)

    def stages(self, plan: PipelinePlan, graph: Any = None, measured: bool = False) -> Stages:
        from parenvs.tasks.pipeline.export import stages

        return stages(plan, graph, measured)

    def step(self, plan: PipelinePlan, target: Any, element_bytes: int) -> Step:
        from parenvs.tasks.pipeline.export import step

        return step(plan, target, element_bytes)

    def strategy(self, report: Report) -> Strategy | Price:
        from parenvs.tasks.pipeline.export import strategy

        return strategy(report)

    def profile(self, **columns: Any) -> StageProfile:
        from parenvs.tasks.pipeline.profile import StageProfile

        return StageProfile(**columns)

    def start(self, pipeline: Pipeline) -> Cuts:
        """Return cuts and devices where the search over large problems begins."""
        from parenvs.agents.pipeline.exact import begun

        return begun(pipeline)
