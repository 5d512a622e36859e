"""``Plan``, ``judge`` that evaluates one, and its ``Report``, ``Price``, ``Answer`` and baseline.

Each task minimizes a cost of its own. ``Price`` makes plans of all tasks comparable: a task's
``strategy`` describes a plan in task-independent terms, and the task that implements
``Task.price`` returns the step time of that description.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from msgspec import to_builtins

from parenvs.cluster import Cluster
from parenvs.core.registry import OLD_NAMES, TASKS, refuse_removed, task_of
from parenvs.core.task import Task
from parenvs.errors import InfeasibleError, ParenvsError, PlanError, refuse_unknown, shown
from parenvs.fields import check, read
from parenvs.files import StrPath, check_schema, json_text, read_json, write_text

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA = 1
"""Version of the plan files."""
ILLEGAL = -1.0
"""Value of a plan that breaks a rule or exceeds the memory (arXiv 2007.04069)."""


class Plan:
    """Base of the plans of every task: dataclasses, whose annotations define the file format."""

    task: ClassVar[str]
    settings: ClassVar[tuple[str, ...]] = ("fingerprint", "cluster")
    """Fields that identify the problem; the other fields are decisions."""
    always: ClassVar[tuple[str, ...]] = ()
    """Fields that files must contain although the class has a default."""
    instance: str
    fingerprint: str
    cluster: Cluster

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first."""
        names = [field.name for field in fields(cast(Any, self))]
        content = {name: to_builtins(getattr(self, name)) for name in names}
        return {**self._head(), **content}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "plan") -> Self:
        """Return the plan of an object of JSON types; ``judge`` tells whether it is legal.

        Raises:
            PlanError: a field is missing or unknown, or a value has the wrong type.
        """
        content = current(content)
        check_schema(content, SCHEMA, where, PlanError)
        refuse_removed("task", content.get("task"), where, PlanError)
        if content.get("task") != cls.task:
            raise PlanError(
                f"{where}: field 'task' must be {cls.task!r}, not {shown(content.get('task'))}"
            )
        body = {key: value for key, value in content.items() if key not in ("schema", "task")}
        return cls._of(body, where)

    @classmethod
    def _of(cls, body: dict[str, Any], where: str) -> Self:
        """Return the plan of a file's fields without schema and task; see ``from_json``."""
        plan = read(cls, body, where, PlanError)
        for name in cls.always:
            if name not in body:
                raise PlanError(f"{where}: field {name!r} is missing")
        return plan

    def decisions(self) -> dict[str, Any]:
        """Return what the plan decides: place in its file -> value; a pair in a list is one."""
        content = self.to_json().items()
        known = ("schema", "task", "instance", *self.settings)
        return dict(_values({name: value for name, value in content if name not in known}))

    def save(self, path: StrPath) -> None:
        """Write the plan as a JSON file."""
        write_text(path, json_text(self.to_json()))

    def mismatches(self, name: str, fingerprint: str, settings: Mapping[str, Any]) -> list[str]:
        """Return why the plan is not for the problem with this name, fingerprint and settings."""
        reasons = []
        if self.fingerprint != fingerprint:
            reasons.append(
                f"fingerprint: the plan is for {self.fingerprint[:19]}..., but {name} is "
                f"{fingerprint[:19]}...; make the plan anew"
            )
        for key, expected in settings.items():
            own = getattr(self, key)
            if own != expected:
                plan_words, problem_words = (
                    "the default" if x is None else str(x) for x in (own, expected)
                )
                reasons.append(f"{key}: the plan is for {plan_words}, not {problem_words}")
        return reasons

    def _head(self) -> dict[str, Any]:
        """Return the fields that plans of every task begin with."""
        return {
            "schema": SCHEMA,
            "task": self.task,
            "instance": self.instance,
            "fingerprint": self.fingerprint,
        }


def _values(content: Any, field: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _values(value, f"{field}.{name}" if field else name)
    # A pair such as (first, end) is one value: its halves mean nothing alone.
    elif isinstance(content, (list, tuple)) and (
        not field.endswith("]") or any(isinstance(value, (dict, list, tuple)) for value in content)
    ):
        for index, value in enumerate(content):
            yield from _values(value, f"{field}[{index}]")
    else:
        yield field, content


def current(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a plan file with the task's old name replaced."""
    task = content.get("task")
    return {**content, **OLD_NAMES.get(task if isinstance(task, str) else "", {})}


def load_plan(path: StrPath) -> Plan:
    """Read a plan file of any task.

    Raises:
        PlanError: the file is missing or not JSON, its schema or task is unknown, or a field is
            wrong.
    """
    if not isinstance(path, str | os.PathLike):
        raise PlanError(f"load_plan takes the path of a plan's file, not {shown(path)}")
    where, content = os.fspath(path), read_json(path, PlanError)
    if not isinstance(content, dict):
        raise PlanError(f"{where}: expected one JSON object")
    check_schema(content, SCHEMA, where, PlanError)
    content = current(content)
    task: Any = content.get("task")
    refuse_removed("task", task, where, PlanError)
    refuse_unknown(f"{where}: field 'task' is", task, TASKS, PlanError)
    return TASKS[task].plan_class().from_json(content, where)


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """A planner's answer to a problem of any task.

    Attributes:
        cost: the number that the task minimizes (default: the report's).
        proven: whether the plan is proven optimal over the planner's search space.
        bound: proven bound over that space, or None: a lower bound of the cost, a whole number
            where costs are; of partitions an upper bound of the return.
        among: the plans over which ``bound`` and ``proven`` hold, in words; empty: all of them.
        choice: by what it is best, in words, where that is not proven.
        evaluations: number of plans, labels or search nodes that the planner evaluated.
        notes: remarks of the planner, one sentence each.
    """

    problem: Any
    plan: Any
    cost: float = None  # type: ignore[assignment]  # resolved in __post_init__
    method: str = ""
    proven: bool = False
    bound: float | None = None
    among: str = ""
    choice: str = ""
    evaluations: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Evaluate the plan if the planner does not give its cost."""
        if self.cost is None:
            # The dataclass is frozen; this is its constructor.
            object.__setattr__(self, "cost", self.report.cost)

    @cached_property
    def report(self) -> Any:
        """The report on the plan, with the planner's proven bound."""
        return self.problem.report(self.plan).certified(self)

    @property
    def value(self) -> float:
        """Return of an episode that builds the plan; -1 if it is illegal."""
        return float(self.report.value)

    @property
    def gap(self) -> float | None:
        """Share by which the plan may fall short of the proven bound; None without a bound."""
        shortfall: float | None = self.report.gap(self)
        return shortfall

    @property
    def status(self) -> str:
        """``"optimal"`` if that is proven, else ``"feasible"``."""
        return "optimal" if self.proven else "feasible"

    @property
    def claim(self) -> str:
        """``status``, and among which plans it is proven if not among all; else ``choice``."""
        if self.proven:
            return f"{self.status} among {self.among}" if self.among else self.status
        return self.choice or self.status

    def __str__(self) -> str:
        """Return the planner, what it proved, the report, and the price, as text."""
        proof = f"proven {self.claim}" if self.proven else self.choice or "not proven"
        price = self.report.price.lines() if self.report.price else ()
        head = [f"{self.method} ({proof}, {self.seconds:.3g} s)", str(self.report)]
        return "\n".join([*head, *(f"  {line}" for line in price)])


MODEL = "the hybrid model"
"""Name of the cost model; properties of a calibrated machine follow it in brackets."""
WIDTH = 110
"""Line width of a price as text."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A plan in task-independent terms. S stages.

    Attributes:
        graph: the training step, or its forward pass.
        cluster: the devices, in the order in which stages take them.
        devices: (S,) devices of each stage.
        micro_batch: samples of a micro-batch that all devices of a stage share.
        micro_batches: micro-batches of a step.
        cuts: (S-1) first pivot of each stage but the first, of the graph with its loops over layers
            written out.
        split: path of an entry parameter -> the dimension that the devices of a stage partition,
            with every tensor that follows from it; None: they are replicas and share the samples.
        recompute: whether the backward pass recomputes the activations of all layers.
        notes: parts of the plan that the price ignores, one sentence each.
    """

    graph: Any
    cluster: Cluster
    devices: tuple[int, ...]
    micro_batch: float
    micro_batches: int = 1
    cuts: tuple[int, ...] = ()
    split: Mapping[str, int] | None = None
    recompute: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Price:
    """Step time of a plan by the cost model that all tasks share.

    Attributes:
        seconds: step time; None if the model has none for the plan.
        parts: seconds by part, which add up to the step time.
        own: name of the cost model behind the report's cost; empty if it is this one.
    """

    model: str = MODEL
    seconds: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    own: str = ""
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the price in a few lines of text, of at most 110 columns."""
        sentences = [self.whose]
        if self.seconds is not None and not self.own:
            sentences += self.notes
        elif self.seconds is not None:
            parts = ", ".join(f"{name} {x:.4g}" for name, x in self.parts.items() if x)
            step = f"{self.seconds:.4g} s a step {self.whose} ({parts})"
            sentences = [step, f"the figures above are {self.own}", *self.notes]
        return [line for words in sentences for line in wrap(words, WIDTH, subsequent_indent="  ")]

    @property
    def whose(self) -> str:
        """The cost model behind the seconds, in words."""
        if self.seconds is None:
            return f"no seconds by {self.model}: {'; '.join(self.notes)}"
        by = f"by {self.model}, which prices plans of every task"
        return by if self.own else f"seconds are {by}"

    @property
    def legend(self) -> list[str]:
        """The legend of a table of plans: the cost model behind its seconds, as lines of text."""
        words = self.whose
        if self.own and self.seconds is not None:
            words = f"hybrid: seconds of a step {words}; the other figures are {self.own}"
        return wrap(words, WIDTH, subsequent_indent="  ")

    @property
    def cell(self) -> str:
        """The step time as a table cell."""
        return "" if self.seconds is None else f"{self.seconds:.4g}"

    def to_json(self) -> dict[str, Any]:
        """Return the price as an object of JSON types (seconds)."""
        return {
            "seconds": self.seconds,
            "model": self.model,
            "parts": dict(self.parts),
            "own_cost": self.own or self.model,
            "notes": list(self.notes),
        }


class Bounded(Protocol):
    """An object with a proven bound, such as an ``Answer``."""

    @property
    def bound(self) -> float | None:
        """Proven bound of the cost that the task minimizes or the return it maximizes, or None."""


class Report:
    """The evaluation of a plan: whether it is legal, and its cost.

    Attributes:
        bound_words: ``"lower"`` or ``"upper"`` bound, and the unit of the cost.
        cost_words: name of the cost model behind the cost, shown beside the price.
        reasons: one sentence per broken rule; empty if the plan is legal.
        cost: the number that the task minimizes.
    """

    task: ClassVar[str]
    bound_words: ClassVar[tuple[str, str]] = ("lower", "")
    cost_words: ClassVar[str] = ""
    plan: Any
    reasons: tuple[str, ...]
    cost: Any

    def __str__(self) -> str:
        """Return the report as a few lines of text; see ``Views.text``."""
        return task_of(self).views().text(self)

    @property
    def legal(self) -> bool:
        """Whether the plan breaks no rule."""
        return not self.reasons

    @property
    def value(self) -> float:
        """Return of an episode that builds the plan: 1 / cost; -1 if it is illegal."""
        return 1.0 / float(self.cost) if self.legal else ILLEGAL

    def parts(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return seconds of a step and bytes on the fullest device by part; empty if not known."""
        return {}, {}

    def gap(self, answer: Bounded) -> float | None:
        """Return the share by which the cost exceeds a proven bound, ``cost / bound - 1``.

        Args:
            answer: an answer to the same problem.

        Returns:
            0 or less if the plan reaches the bound; None if the plan is illegal or ``answer`` has
            no bound.
        """
        if not (self.legal and answer.bound):
            return None
        return float(self.cost / answer.bound - 1)

    @cached_property
    def price(self) -> Price | None:
        """The step time by the cost model that all tasks share; None without ``Task.strategy``.

        It is computed on first use, as finding the layers of a graph takes up to seconds.
        """
        task = task_of(self)
        if not task.supports(Task.strategy):
            return None
        strategy = task.strategy(self)
        # A task whose report already holds the step time needs no second evaluation.
        if isinstance(strategy, Price):
            return strategy
        pricing = next(x for x in TASKS.values() if x.supports(Task.price))
        return replace(pricing.price(strategy), own=self.cost_words)

    def with_price(self) -> dict[str, Any]:
        """Return ``to_json`` with the price, if there is one."""
        return {**self.to_json(), **({"price": self.price.to_json()} if self.price else {})}

    def to_json(self) -> dict[str, Any]:
        """Return the report as an object of JSON types."""
        return {"legal": self.legal, "reasons": list(self.reasons), "cost": self.cost}

    def certified(self, answer: Bounded) -> Self:
        """Return the report with a planner's bound, if the report shows bounds."""
        return self


class TimedReport(Report):
    """A report whose cost is a step time.

    Attributes:
        length_seconds: step time (inf if there is none).
    """

    bound_words: ClassVar[tuple[str, str]] = ("lower", " s")

    length_seconds: Any

    @property
    def cost(self) -> float:
        """Step time in seconds, the number that the task minimizes."""
        return float(self.length_seconds)

    @property
    def step_seconds(self) -> float:
        """Step time in seconds, by the name that reports on runs use."""
        return float(self.length_seconds)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The baseline of a plan: what would be run without a planner.

    Attributes:
        cost: cost of the baseline; None if it fits no device.
        own: cost of the plan.
        unit: unit of both costs, printed after the number.
    """

    words: str
    cost: float | None = None
    own: float
    unit: str
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Speedup of the plan over the baseline; below 1 if the plan is slower."""
        return None if self.cost is None else self.cost / self.own

    def line(self) -> str:
        """Return it as a line of text."""
        if self.cost is None or self.ratio is None:
            return f"baseline: {self.words}: {self.note}"
        head = f"baseline: {self.words}: {self.cost:.4g}{self.unit}; this plan"
        if round(self.ratio, 3) == 1:
            return f"{head} is as fast"
        if self.ratio < 1:
            return f"{head} takes {1 / self.ratio:.3f} times as long"
        return f"{head} is {self.ratio:.3f} times as fast"

    def to_json(self) -> dict[str, Any]:
        return {
            "words": self.words, "cost": self.cost, "own": self.own, "times_as_fast": self.ratio,
            "note": self.note,
        }  # fmt: skip


def baseline_of(request: Any, answer: Any, said: Any) -> Baseline | None:
    """Return the baseline of an answer; None if the task has none.

    Args:
        request: the planner's request.
        answer: its answer, a legal plan.
        said: the user's degrees as text, a function of the number of layers that returns
            ``Stages``, or None for the usual choice.

    Raises:
        ParenvsError: ``said`` is given, but the task has no step time.
    """
    report = answer.report
    if said is None and request.usual:
        other, unit = request.run(request.usual), report.bound_words[1]
        return Baseline(
            words=request.usual, cost=float(other.cost), own=float(answer.cost), unit=unit
        )
    task, price = task_of(report), report.price
    subject = None
    if price is not None and price.seconds is not None:
        subject = report if task.supports(Task.price) else task.strategy(report)
    if subject is None or isinstance(subject, Price):
        if said is not None:
            raise ParenvsError(
                f"--baseline is for plans with seconds of a step; task {task.name} has none here"
            )
        return None
    pricing = next(x for x in TASKS.values() if x.supports(Task.baseline))
    # The baseline must run where the plan does: ``--for`` constrains both.
    framework = getattr(getattr(request, "constraints", None), "framework", None)
    plan_seconds, unit = float(price.seconds), " s a step"
    try:
        words, seconds = pricing.baseline(subject, said, framework)
    except InfeasibleError as error:
        # A baseline that does not fit is worth a line, not an error of the plan.
        words = said if isinstance(said, str) else "what is usual"
        return Baseline(words=words, own=plan_seconds, unit=unit, note=str(error))
    return Baseline(words=words, cost=seconds, own=plan_seconds, unit=unit)


OPTIMAL = 1e-3
"""A plan reaches the optimum if its cost is within this share of the exact one."""
ROUNDING = 1e-9
"""Numbers that differ by less than this share are equal up to rounding."""


def judge(plan: Any, problem: Any = None, cluster: Any = None, **trials: Any) -> Any:
    """Evaluate a plan of any task.

    Args:
        plan: the plan, or the path of its file.
        problem: the problem, or its source: a name, a path, a graph, a chain, a shape (default: the
            plan's ``instance``).
        cluster: the cluster that the plan must be for (default: the plan's own).
        **trials: ``journal`` and ``site``, files of what hybrid plans took, see ``tune``.

    Returns:
        The report, whose class depends on the task.

    Raises:
        PlanError: the plan file is damaged.
        UnknownInstanceError: no problem is given, and the plan's instance is neither a shipped name
            nor a file.
        ParenvsError: the problem has the wrong type or another cluster.
    """
    if isinstance(plan, (str, os.PathLike)):
        plan = load_plan(plan)
    if not isinstance(plan, Plan):
        raise ParenvsError(f"judge takes a plan, not {shown(plan)}; read one with load_plan(path)")
    check(plan, f"plan of {shown(plan.instance)}: ", PlanError)
    problem_cluster = getattr(problem, "cluster", None)
    if cluster is not None and problem_cluster not in (None, Cluster.parse(cluster)):
        raise ParenvsError(
            f"cluster: the problem is for {problem_cluster}, not {cluster}; leave one out"
        )
    task = task_of(plan)
    report = task.judge(plan, problem, cluster)
    if not trials:
        return report
    return task.tune(getattr(report, "problem", None), **trials).judged(report)


def explain(plan: Any, problem: Any = None, pattern: str | None = None) -> str:
    """Say why a plan is as it is, or what other values on each axis would cost.

    Args:
        plan: the plan, or the path of its file.
        problem: see ``judge``.
        pattern: glob over the paths of variables that are explained (default: all).

    Raises:
        ParenvsError: see ``judge``; or the plan's task explains no plans.
    """
    report = judge(plan, problem)
    words, _ = task_of(report).explain(report, pattern)
    return words
