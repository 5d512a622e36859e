"""The task ``hybrid``: names, options, and what the rest of the package calls."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from parenvs.core.task import (
    FRAMEWORKS,
    PRECISIONS,
    Evidence,
    GraphOptions,
    Remarks,
    Task,
    Views,
    given,
    option,
)
from parenvs.errors import ClusterError, ParenvsError, PlanError, refuse_unknown, shown
from parenvs.fields import Count, Index, one_of, whole, words

if TYPE_CHECKING:
    import typer
    from matplotlib.figure import Figure

    from parenvs.agents.hybrid.planners import HybridRequest
    from parenvs.core.leaderboard import TaskKind
    from parenvs.core.plan import Answer, Price, Strategy
    from parenvs.core.sets import SetKind, Validation
    from parenvs.core.stages import Stages, Step
    from parenvs.graph.graph import Graph
    from parenvs.graph.layout import Layout
    from parenvs.tasks.elastic.movement import Shards
    from parenvs.tasks.hybrid.plan import HybridPlan
    from parenvs.tasks.hybrid.problem import Hybrid
    from parenvs.tasks.hybrid.report import HybridReport
    from parenvs.tasks.hybrid.tune.study import Study

_SCHEDULES = ("1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipe-v")
_MODES = ("none", "selective", "full")
_Mode = Annotated[str, one_of(*_MODES)]
_Level = Annotated[int, whole(0, 3)]
_Modes = Annotated[tuple[_Mode, ...], words("some of none, selective, full", min_length=1)]
_Levels = Annotated[tuple[_Level, ...], words("some of 0, 1, 2 and 3", min_length=1)]
_TIERS = ("hetero-8", "hetero-16", "hetero-32", "hetero-64")


@dataclass(frozen=True, kw_only=True)
class HybridOptions(GraphOptions):
    """Options of ``parenvs.problem``; the help of each field says what it is."""

    panel: ClassVar[str] = "the model"
    batch: int | None = option(
        None, "Samples of a step (elastic: default 512).", "batch", main=True
    )
    stack: Any = option(
        None,
        "Training software, or an object of its constants (default: by device).",
        kind=str,
        values=("nemo", "torchtitan", "megatron-2021"),
    )
    precision: str | None = option(
        None,
        "Precision of matrix products (default: the fastest of 16 bits, else of 32).",
        values=PRECISIONS,
    )


def _texts(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(","))


def _levels(text: str) -> tuple[int | str, ...]:
    return tuple(int(level) if level.isdecimal() else level for level in _texts(text))


def _pinned(texts: Sequence[str]) -> tuple[tuple[int, int, int | None], ...]:
    """Return first layer, end and devices of each ``FIRST-LAST[:DEVICES]``."""
    found = []
    for text in texts:
        layers, colon, devices = text.partition(":")
        first, dash, last = layers.partition("-")
        numbers = [first, last] + ([devices] if colon else [])
        if not dash or not all(number.isdecimal() for number in numbers) or int(last) < int(first):
            raise ParenvsError(f"--pin {text!r} does not parse; write it like 0-9 or 0-9:8")
        found.append((int(first), int(last) + 1, int(devices) if colon else None))
    return tuple(found)


@dataclass(frozen=True)
class Limits:
    """What a plan must keep to; None leaves a choice open. Tensor parallelism stays in a server.

    The help of each field says what it is; some are no options:

    Attributes:
        sequence_parallel: whether the tp ranks of every stage share what lies between the matrices.
        uneven: whether uniform plans may deal out layers that do not divide.
        stage_devices: devices of every stage.
        pinned: (first layer, end, devices or None) of layers that are a stage of their own; only
            plans that are not uniform keep to it.
    """

    panel: ClassVar[str] = "plans"
    tp: Count | None = option(None, "Ranks that share every matrix.")
    pp: Count | None = option(
        None, "Stages (default: chosen, or one a server).", flag="stages", main=True
    )
    dp: Count | None = option(None, "Replicas.")
    micro_batch: Count | None = option(None, "Samples in a micro-batch of a replica.")
    chunks: Count | None = option(None, "Chunks a stage (interleaving).")
    context: Count | None = option(None, "Ranks that share a sample's tokens.")
    expert: Count | None = option(None, "Replicas that share experts.")
    expert_tp: Index | None = option(None, "Ranks that share an expert's matrices; 0: those of tp.")
    shard: Index | None = option(None, "Replicas that share states (ZeRO); 0: all.")
    schedule: Annotated[str, one_of(*_SCHEDULES)] | None = option(
        None, "Order of passes.", values=_SCHEDULES
    )
    sequence_parallel: bool | None = None
    recompute: _Modes = option(
        _MODES, "Activations recomputed: modes that are allowed.", "", str, _texts, values=_MODES
    )
    zero: _Levels = option(
        (0, 1, 2, 3), "ZeRO levels that are allowed.", "", str, _levels, values=("0", "1", "2", "3")
    )
    most_micro_batch: Count = option(16, "Most samples of a micro-batch (default: 16).")
    devices: Count | None = option(None, "Devices in use (default: all).", flag="devices-used")
    idle: bool = option(False, "Plans may leave devices free.")
    framework: str | None = option(
        None,
        "Framework to run it.",
        flag="for",
        values=("any", "free", *FRAMEWORKS),
        main=True,
    )
    uneven: bool = False
    stage_devices: Count | None = None
    pinned: tuple[tuple[Index, Count, Count | None], ...] = option(
        (),
        "FIRST-LAST[:DEVICES]: layers that are a stage; may be repeated.",
        "pin",
        kind=list,
        read=_pinned,
    )


@dataclass(frozen=True, kw_only=True)
class HybridSearch(Evidence):
    """Options of planners; the help of each field says what it is."""

    constraints: Any = option(None, "What plans must keep to.", parts=Limits)
    objective: str = option(
        "seconds",
        "What is minimized: seconds (default), tokens or money.",
        values=("seconds", "tokens", "money"),
    )
    price: float = option(1.0, "Price of a device-hour, for the objective money (default: 1).")
    robust: bool = option(
        False, "Take the plan of least worst regret if constants move in their plausible ranges."
    )
    time_limit: float | None = option(
        None, "Seconds of the search (default: 20 of exact; others end by themselves).", "seconds"
    )


class HybridTask(Task):
    """Plan a model along all axes together: pipeline, tensor, data, context and experts."""

    name = "hybrid"
    words = "Plan a model along all axes together: pipeline, tensor, data, context and experts."
    options = HybridOptions
    search = HybridSearch
    planners = (
        "exact",
        "search",
        "uniform",
        "rule-of-thumb",
        "learned",
        "random",
        "subset-dp",
        "swap-search",
    )
    sets = tuple(
        f"{tier}-{part}"
        for tier in ("hybrid", *_TIERS)
        for part in ("validation", "test", "outside")
    )
    drawn = dict.fromkeys(("hybrid", *_TIERS), "17")
    envs = {"HybridPlan-v2": "parenvs.tasks.hybrid.improve:HybridImprovement"}
    parallel_env = "parenvs.tasks.hybrid.improve:hybrid_v1"

    def find(self, name: str) -> Hybrid:
        from parenvs.datasets.hybrid.problems import find_hybrid

        return find_hybrid(name)

    def plan_class(self) -> type[HybridPlan]:
        from parenvs.tasks.hybrid.plan import HybridPlan

        return HybridPlan

    def request_class(self) -> type[HybridRequest]:
        from parenvs.agents.hybrid.planners import HybridRequest

        return HybridRequest

    def load(self, source: Any, cluster: Any, options: HybridOptions) -> Hybrid:
        """Make a hybrid problem; see ``parenvs.problem``.

        Args:
            source: a name or path of a shape or a graph, a function, a ``Graph``, a
                ``TransformerShape``, a ``HybridModel``, or a problem, whose settings are kept where
                no others are given; a new cluster has its own stack and precision.
            cluster: default: ``"C"``.
            options: those of the task.
        """
        from parenvs.cluster import Cluster
        from parenvs.tasks.hybrid.model import load_model
        from parenvs.tasks.hybrid.problem import Hybrid

        settings = given(options)
        if isinstance(source, Hybrid):
            for name in ("variables", "frozen", "arguments"):
                if name in settings:
                    raise ParenvsError(
                        f"{source.instance}: a shape is no graph; leave out {name!r}"
                    )
            settings = settings if source.is_named else {"stack": None, **settings}
            if cluster is not None and Cluster.parse(cluster) != source.cluster:
                settings = {"stack": None, "precision": "", **settings, "cluster": cluster}
            return replace(source, **settings)
        batch, stack = settings.pop("batch", None), settings.pop("stack", None)
        precision = settings.pop("precision", "")
        parsed = Cluster.parse("C" if cluster is None else cluster)
        model = load_model(source, **settings)
        if batch is None:
            raise ParenvsError(
                "task hybrid needs batch, the number of samples of a step; give batch=1024"
            )
        instance = os.fspath(source) if isinstance(source, (str, os.PathLike)) else ""
        return Hybrid(model, parsed, batch, stack, precision, instance)

    def judge(self, plan: HybridPlan, target: Any = None, cluster: Any = None) -> HybridReport:
        """Evaluate a plan on a name, a shape, a model or a problem; see ``parenvs.judge``."""
        from parenvs.cluster import Cluster
        from parenvs.graph.graph import Graph
        from parenvs.tasks.hybrid.model import HybridModel, load_model
        from parenvs.tasks.hybrid.problem import Hybrid
        from parenvs.tasks.hybrid.shape import TransformerShape
        from parenvs.tasks.hybrid.stack import Stack

        if isinstance(target, Hybrid):
            return target.report(plan)
        cluster = plan.cluster if cluster is None else Cluster.parse(cluster)
        target = plan.instance if target is None else target
        if not isinstance(target, (str, os.PathLike, Graph, TransformerShape, HybridModel)):
            raise ParenvsError(
                "a hybrid plan is judged on a Hybrid, a HybridModel, a Graph or a "
                f"TransformerShape, not on {shown(target)}"
            )
        model = load_model(target)
        try:
            stack = Stack.parse(plan.stack, stored=True)
        except PlanError as error:
            raise PlanError(f"field 'stack': {error}") from None
        try:
            problem = Hybrid(model, cluster, plan.batch, stack, plan.precision, plan.instance)
        except ClusterError as error:
            raise PlanError(f"field 'precision': {error}") from None
        return problem.report(plan)

    def own_names(self) -> Collection[str]:
        from parenvs.instances import shapes

        return shapes()

    def reading(self, instance: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
        from parenvs.tasks.hybrid.model import load_shape

        if load_shape(instance) is not None:
            return None
        return {key: options[key] for key in ("variables", "frozen", "arguments") if key in options}

    def set_kind(self, name: str) -> SetKind:
        from parenvs.datasets.hybrid.problems import set_kind

        return set_kind(name)

    def training(self, instance: str | None) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        if instance is None:
            return "HybridPlan-v2", {}, ()
        settings = ("cluster", "batch", "stack", "precision")
        return "HybridPlan-v2", {"instance": instance}, settings

    def validation(self, env_id: str, env_kwargs: Mapping[str, Any]) -> Validation:
        from parenvs.core.sets import Validation

        instance = env_kwargs.get("instance") or next(iter(self.drawn))
        kind = str(instance[0] if isinstance(instance, (list, tuple)) else instance)
        tiers = [*(tier for tier in self.drawn if kind.startswith(tier)), *self.drawn]
        return Validation(f"{tiers[0]}-validation", env_kwargs.get("family"))

    def leaderboard(self) -> Mapping[str, TaskKind]:
        from parenvs.agents.hybrid.entries import TASKS

        return TASKS

    def views(self) -> Views:
        from parenvs.tasks.hybrid import figure, view

        return Views(view.text, view.answer, figure.draw, view.compared, figure.trace)

    def explain(
        self, report: HybridReport, pattern: str | None = None
    ) -> tuple[str, dict[str, Any]]:
        from parenvs.tasks.hybrid.view import of_plan

        return of_plan(report, pattern)

    def remarks(self, request: HybridRequest, answer: Answer, choice: Any) -> Remarks:
        from parenvs.agents.hybrid.baseline import Remarks

        return Remarks(request, answer, choice)

    def plan_map(self, request: HybridRequest, report: HybridReport) -> Figure:
        from parenvs.agents.hybrid.baseline import draw_map

        return draw_map(request, report)

    def tune(self, problem: Hybrid, **settings: Any) -> Study:
        from parenvs.tasks.hybrid.tune.study import SETTINGS, Study

        for name in settings:
            refuse_unknown("tune has no setting", name, SETTINGS)
        return Study(problem, **settings)

    def kernels(
        self, source: str, tp: Sequence[int], context: Sequence[int], micro_batch: Sequence[int]
    ) -> tuple[list[tuple[Any, ...]], list[tuple[int, ...]]]:
        from parenvs.tasks.hybrid.layers import Split, kernels_of
        from parenvs.tasks.hybrid.model import load_shape

        shape = load_shape(source)
        if shape is None:
            raise ParenvsError(f"{source}: a graph has no shape whose layers could be split")
        splits = [Split(*split) for split in product(tp, micro_batch, context)]
        products, attention = zip(*(kernels_of(shape, split) for split in splits), strict=True)
        return list(dict.fromkeys(chain(*products))), list(dict.fromkeys(attention))

    def layout(self, plan: HybridPlan, graph: Graph | None = None, eager: bool = False) -> Layout:
        from parenvs.tasks.hybrid.export import layout

        return layout(plan, graph, eager)

    def stages(self, plan: HybridPlan, graph: Any = None, measured: bool = False) -> Stages:
        from parenvs.tasks.hybrid.export import stages

        return stages(plan, graph, measured)

    def step(self, plan: HybridPlan, target: Any, element_bytes: int) -> Step:
        from parenvs.tasks.hybrid.export import step

        return step(plan, target, element_bytes)

    def checkpoint(self, plan: HybridPlan) -> Shards:
        from parenvs.tasks.elastic.movement import Shards

        return Shards(plan)

    def strategy(self, report: HybridReport) -> Price:
        from parenvs.tasks.hybrid.export import own

        return own(report)

    def price(self, strategy: Strategy) -> Price:
        from parenvs.tasks.hybrid.export import price

        return price(strategy)

    def baseline(
        self, subject: HybridReport | Strategy, said: Any, framework: str | None
    ) -> tuple[str, float]:
        from parenvs.agents.hybrid.baseline import baseline

        return baseline(subject, said, framework)

    def add_commands(self, app: typer.Typer) -> None:
        from parenvs.cli.tuning import add

        add(app)
