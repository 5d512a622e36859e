"""``OperatorPartition-v0`` and ``DataParallel-v0``: which dimensions are split over the devices.

Both decide one dimension or class per step; the docstrings of the classes specify them. Rewards are
those of ``parenvs.tasks.partition.formulas``, tabulated by ``PartitionSpace``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces

from parenvs.compiled import Array, compiled, running_sums
from parenvs.core.game import EVERY, Fixed, Rowed, Rows, Source
from parenvs.core.plan import ILLEGAL, load_plan
from parenvs.core.registry import problem as load_problem
from parenvs.envs.env import GameEnv, GameVectorEnv
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.graph.graph import Graph
from parenvs.tasks.partition.classes import REMADE
from parenvs.tasks.partition.formulas import paper_reward
from parenvs.tasks.partition.problem import Partitioning, PartitionPlan

STAKES = 5
"""Number of figures on the class at stake in an observation."""
OPEN, REPLICATE, PARTITION = -1, 0, 1
"""Decision on a dimension or class: none yet, 0 replicates it, 1 partitions it."""


@dataclass(frozen=True, eq=False)
class PartitionSpace:
    """The decisions of a problem. V dimensions, K classes that can be decided, n questions.

    With linkage a question is for a whole class; without, it is for one dimension. Where answers
    are inferred, one settles the rivals of its class, too, and no question is for what can never be
    partitioned. The more a class can earn, the earlier it is asked for: by the number of its
    dimensions under the paper's reward (arXiv 2007.04069), by the seconds that it saves under the
    step time; ties by path and dimension.

    Attributes:
        dimensions: (V,) int64, positions in ``graph.dims`` of the dimensions that are decided.
        classes: (K,) their classes that can be partitioned, in the order of the questions.
        start: (V,) int8, the decisions at the start: ``OPEN``, ``REPLICATE`` for what can never be
            partitioned, if that is inferred, and ``PARTITION`` for what is partitioned already.
        questions: (n,) int64, index of the dimension that each question is for.
        decided: per question, the indices of the dimensions that its answer decides, apart from
            rivals.
        question_class: per question, an index of ``classes``; -1 where nothing can be partitioned.
        question_paid: per question, reward of replicating and of partitioning what it is for; the
            rivals that an answer excludes are paid on top.
        members: per class, the indices of its dimensions.
        rivals: per class, the classes that partitioning it excludes.
        paid: per class, reward of all its dimensions replicated, and partitioned.
        pays_once: whether a class pays only when it becomes known: the step time without linkage.
        stakes: (n+1, 5) float32 in [-1, 1], for each question: dimensions in the class and bytes of
            its entry parameters, each over all; seconds that it saves, over the replicated step's;
            dimensions, and seconds saved, of its rivals. The last row is zeros.
    """

    task: ClassVar[str] = "partition"
    problem: Partitioning
    inferred: bool
    dimensions: Array
    classes: Array
    start: Array
    questions: Array
    decided: Sequence[Array]
    question_class: Sequence[int]
    question_paid: Sequence[tuple[float, float]]
    members: Sequence[Array]
    rivals: Sequence[Sequence[int]]
    paid: Sequence[tuple[float, float]]
    pays_once: bool
    stakes: Array

    def __deepcopy__(self, memo: dict[int, Any]) -> PartitionSpace:
        """Itself: nothing in it changes, and environments that are forked share it."""
        return self

    def chosen(self, decisions: Array | Sequence[int]) -> Array:
        """(..., C) bool, classes of the graph, from (..., K) decisions, 1 for partitioned."""
        split = np.asarray(decisions) == PARTITION
        chosen = np.zeros((*split.shape[:-1], len(self.problem.classes)), bool)
        chosen[..., self.classes] = split
        return chosen

    @classmethod
    @lru_cache(maxsize=32)
    def of(
        cls,
        problem: Partitioning,
        linkage: bool = True,
        inferred: bool | None = None,
        partitioned: frozenset[int] = frozenset(),
    ) -> PartitionSpace:
        """Return the space of a problem, cached by object.

        Args:
            problem: what is decided.
            linkage: whether an answer decides a whole class.
            inferred: whether it settles the rivals of its class, too (default: with linkage).
            partitioned: classes of the graph that are partitioned from the start, if nothing is
                inferred; no question is for them.

        Raises:
            InfeasibleError: no dimension can be partitioned.
        """
        inferred = linkage if inferred is None else inferred
        weights = problem.returns.weights
        parameters = problem.parameters()
        paths = [problem.graph.paths[parameter] for parameter in parameters]
        dims = problem.classes.dimensions_of(parameters[np.argsort(paths, kind="stable")])
        label = problem.classes.label[dims]
        splittable = problem.graph.dims[dims] > 1
        fixed = ~splittable | problem.classes.blocked[label]
        if fixed.all():
            raise _nothing_to_decide(problem)
        # Stable: dimensions of one class, and classes of one weight, stay in path order.
        order = np.argsort(-np.where(splittable, weights[label], -np.inf), kind="stable")
        labels = list(dict.fromkeys(label[order[~fixed[order]]].tolist()))
        classes = np.array(labels, np.int64)
        position = np.full(len(problem.classes), -1)
        position[classes] = np.arange(len(classes))
        class_of = np.where(fixed, -1, position[label])
        members = [np.flatnonzero(class_of == k) for k in range(len(classes))]
        rivals = [
            [k for k in position[problem.classes.rivals(c)].tolist() if k >= 0] for c in labels
        ]
        questions = order[~fixed[order]] if inferred else order
        questions = questions[~np.isin(label[questions], list(partitioned))]
        if not len(questions):
            raise InfeasibleError(f"{problem.graph.name}: everything is partitioned already")
        decided = [np.array([question]) for question in questions]
        if linkage:
            # A class is asked about once, at its first dimension.
            _, earliest = np.unique(label[questions], return_index=True)
            questions = questions[np.sort(earliest)]
            decided = [np.flatnonzero(label == label[question]) for question in questions]
        question_class = class_of[questions].tolist()
        start = np.full(len(dims), OPEN, np.int8)
        if inferred:
            start[fixed] = REPLICATE
        start[np.isin(label, list(partitioned))] = PARTITION
        paper = problem.reward == "paper"
        if paper:
            paid = [_paper_rewards(len(dimensions)) for dimensions in members]
            question_paid = [_paper_rewards(len(dimensions)) for dimensions in decided]
            # What is decided from the start pays with the first question.
            initial = sum(paper_reward(choice, int((start == choice).sum())) for choice in (0, 1))
            if_replicated, if_partitioned = question_paid[0]
            question_paid[0] = (if_replicated + initial, if_partitioned + initial)
        else:
            paid = [(0.0, float(weights[c])) for c in labels]
            question_paid = [paid[k] if k >= 0 else (0.0, 0.0) for k in question_class]
        end = np.zeros((1, STAKES), np.float32)
        stakes = np.concatenate([_stakes(problem, classes, rivals), end])[[*question_class, -1]]
        return cls(
            problem=problem,
            inferred=inferred,
            dimensions=dims,
            classes=classes,
            start=start,
            questions=questions,
            decided=decided,
            question_class=question_class,
            question_paid=question_paid,
            members=members,
            rivals=rivals,
            paid=paid,
            pays_once=not linkage and not paper,
            stakes=stakes,
        )


def _paper_rewards(dimensions: int) -> tuple[float, float]:
    return paper_reward(REPLICATE, dimensions), paper_reward(PARTITION, dimensions)


def _classes_of(problem: Partitioning, plan: str | PartitionPlan) -> frozenset[int]:
    first = load_plan(plan) if isinstance(plan, str) else plan
    if not isinstance(first, PartitionPlan):
        raise ParenvsError(f"first_plan: {plan} is of task {first.task}, not partition")
    report = problem.report(first)
    if not report.legal:
        raise ParenvsError(f"first_plan: {report.reasons[0]}")
    return frozenset(np.flatnonzero(report.chosen).tolist())


def _nothing_to_decide(problem: Partitioning) -> InfeasibleError:
    what = "batch input" if problem.scope == "inputs" else "variable"
    reason = ""
    if problem.rules == "automap":
        reason = (
            ": automap forbids to partition a dimension that an instruction reduces, as the "
            "loss and the gradients reduce that of the batch; rules='shardy' allows it"
        )
    return InfeasibleError(
        f"{problem.graph.name}: no dimension of any {what} can be partitioned (rules="
        f"{problem.rules}, uneven={problem.uneven}){reason}; parenvs explain tells more"
    )


def _stakes(problem: Partitioning, classes: Array, rivals: Sequence[Sequence[int]]) -> Array:
    """(K, 5) float32, the figures on each class; see ``PartitionSpace.stakes``."""
    graph = problem.graph
    counts = problem.counts()[classes] / len(problem.dimensions())
    tensors = graph.parameter_tensor
    owner = np.repeat(np.arange(len(tensors)), np.diff(graph.dim_offset)[tensors])
    dims = problem.classes.dimensions_of(np.arange(len(tensors)))
    size = graph.tensor_bytes[tensors]
    parameter_bytes = np.bincount(problem.classes.label[dims], size[owner], len(problem.classes))
    gains = np.clip(problem.gain_seconds[classes] / problem.replicate_seconds, -1.0, 1.0)
    excluded = [counts[excluded].sum() for excluded in rivals]
    lost = [min(np.maximum(gains[excluded], 0.0).sum(), 1.0) for excluded in rivals]
    share = np.minimum(parameter_bytes[classes] / size.sum(), 1.0)
    return np.stack([counts, share, gains, excluded, lost], axis=1).astype(np.float32)


class Tables(NamedTuple):
    """A space as compiled loops read it. V dimensions, K classes, n questions.

    Row i of ragged entries is from ``start[i]`` to ``start[i + 1]``.

    Attributes:
        asked: (n+1,) int64, the class that each question is about: K at the end, K+1 if it is for
            what can never be partitioned.
        paid: (n, 2) reward of both answers, apart from rivals.
        decided_start, decided: ragged, dimensions that the answer to each question decides.
        rival_start, rival: ragged, classes that partitioning each class excludes.
        member_start, member: ragged, dimensions that are decided with an excluded class.
        replicated: (K,) reward of an excluded class.
        inferred, pays_once: see ``PartitionSpace``.
        start: (K+2,) int8, the decisions on classes at the start; the last two never change.
    """

    asked: Array
    paid: Array
    decided_start: Array
    decided: Array
    rival_start: Array
    rival: Array
    member_start: Array
    member: Array
    replicated: Array
    inferred: bool
    pays_once: bool
    start: Array


@lru_cache(maxsize=32)
def tables_of(space: PartitionSpace) -> Tables:
    """The tables of a space; the same space gives the same object."""
    count, question_class = len(space.classes), np.array(space.question_class, np.int64)
    start = np.full(count + 2, OPEN, np.int8)
    start[count + 1] = REPLICATE
    for label, (first, *_) in enumerate(space.members):
        if space.start[first] == PARTITION:
            start[label], start[list(space.rivals[label])] = PARTITION, REPLICATE
    # Without inference an answer decides and pays what it is for alone.
    inferred = space.inferred
    return Tables(
        np.append(np.where(question_class < 0, count + 1, question_class), count),
        np.array(space.question_paid),
        *_ragged(space.decided),
        *_ragged(space.rivals),
        *_ragged(space.members if inferred else [()] * count),
        np.array(space.paid)[:, REPLICATE] * inferred,
        inferred,
        space.pays_once,
        start,
    )


def _ragged(rows: Sequence[Sequence[int] | Array]) -> tuple[Array, Array]:
    entries = np.concatenate([np.zeros(0, np.int64), *map(np.asarray, rows)])
    return np.cumsum([0, *map(len, rows)]), entries.astype(np.int64)


@compiled
def answer(tables, rows, actions, decisions, classes, position, over):
    """Answer the questions at stake in some episodes; see ``PartitionGame`` for the arrays.

    Args:
        tables: the space.
        rows: (k,) numbers of the episodes.
        actions: (k,) of any size.
        decisions: (n, V) of all episodes, changed in place, as what follows.
        classes: (n, K+2 or more).
        position: (n,).
        over: (n,).

    Returns:
        Rewards, (k,).
    """
    rewards = np.zeros(len(rows))
    for i in range(len(rows)):
        row, choice = rows[i], actions[i]
        question = position[row]
        asked = tables.asked[question]
        known = classes[row, asked]
        if choice not in (REPLICATE, PARTITION) or (known not in (OPEN, choice)):
            rewards[i], over[row] = ILLEGAL, True
            continue
        if known == OPEN or not tables.pays_once:
            rewards[i] = tables.paid[question, choice]
        for at in range(tables.decided_start[question], tables.decided_start[question + 1]):
            decisions[row, tables.decided[at]] = choice
        if known == OPEN:
            classes[row, asked] = choice
        if known == OPEN and choice == PARTITION:
            for at in range(tables.rival_start[asked], tables.rival_start[asked + 1]):
                rival = tables.rival[at]
                if classes[row, rival] == OPEN:
                    classes[row, rival] = REPLICATE
                    rewards[i] += tables.replicated[rival]
                    for j in range(tables.member_start[rival], tables.member_start[rival + 1]):
                        decisions[row, tables.member[j]] = REPLICATE
        question += 1
        # With inference, decided classes are not asked about.
        while tables.inferred and classes[row, tables.asked[question]] != OPEN:
            question += 1
        position[row], over[row] = question, question == len(tables.paid)
    return rewards


MASKS = np.array([[1, 0], [0, 1], [1, 1]], np.bool_)
"""Legal actions if the class at stake is replicated (row 0), partitioned (1), or open (-1)."""


SETTINGS = (
    "devices", "rules", "uneven", "reward", "micro_batch", "micro_batches", "recompute",
    "memory_limit",
)  # fmt: skip
"""Arguments that are options of ``parenvs.problem``."""


SHARP = 10.0
"""What column 0 gives for a class that is worth all."""
CLASS = ("dimensions", "bytes", "seconds", "excluded_dimensions", "excluded_seconds")
"""Columns that describe the class at stake, in the order of ``stake``."""
WORTH = {"paper": "dimensions", "step_time": "seconds"}
"""Reward -> the figure by which the rule chooses."""


class PartitionGame(Rowed):
    """Asks one question of a ``PartitionSpace`` per step: about a dimension or a class.

    Args:
        masked: whether the mask forbids answers that contradict earlier decisions; otherwise it
            forbids nothing.
        memory: whether infos at the end of an episode have ``excess_bytes``; with a limit of memory
            they always do.
        paper: plays the task of arXiv 2007.04069: its state, questions and conflicts.

    Attributes:
        decisions: (n, V or more) int8, as in the observation.
        classes: (n, K+2 or more) int8, the decisions on classes, see ``Tables``.
        position: (n,) int64, index of the question at stake.
        earned: (n,) float64, returns so far, with a limit of memory.
    """

    scope: ClassVar[str]
    rule = "to partition what is paid more than if replicated; what is paid most is asked first"
    columns: ClassVar[Mapping[str, str]] = {
        "rule": "of the choice that partitions, 10 times the class's share of the dimensions, or "
        "of the seconds where these are paid",
        "partition": "1 for the choice that partitions",
        "dimensions": "the class's share of all dimensions, of the choice that partitions",
        "bytes": "its share of the bytes of all parameters",
        "seconds": "share of the replicated step's seconds that it saves",
        "excluded_dimensions": "share of the dimensions that it excludes",
        "excluded_seconds": "share of the seconds that those could save",
    }
    ahead = frozenset({"rule"})
    _problems: list[PartitionSpace]
    contexts: ClassVar[Mapping[str, str]] = {
        "asked": "share of the questions that were asked",
        "partitioned": "share of the dimensions that are partitioned",
        "undecided": "share of those that are undecided",
        "devices": "log2 of the devices / 10",
    }

    options = ("instance", "cluster", *SETTINGS, "problem")
    render_fps = 4

    def __init__(
        self,
        count: int = 1,
        *,
        instance: str | Graph = "t5-base",
        devices: int | None = None,
        cluster: str | dict[str, Any] | None = None,
        rules: str = "shardy",
        uneven: str = "pad",
        reward: str = "paper",
        linkage: bool | None = None,
        masked: bool | None = None,
        memory: bool = False,
        memory_limit: float | str | bool | None = None,
        micro_batch: int | None = None,
        micro_batches: int = 1,
        recompute: str = REMADE[0],
        rows: str | None = None,
        paper: bool = False,
        first_plan: str | PartitionPlan | None = None,
        problem: Partitioning | None = None,
    ) -> None:
        arguments = locals()
        super().__init__(count)
        inputs = self.scope == "inputs"
        if paper and (rows is not None or linkage is not None):
            raise ParenvsError("paper: its task has neither rows nor linkage; leave them out")
        if first_plan is not None and (inputs or not paper):
            raise ParenvsError("first_plan: is for OperatorPartition-v0 with paper=True")
        if inputs and linkage:
            raise ParenvsError("linkage: DataParallel-v0 has none; leave it out")
        if problem is None:
            settings = {"scope": self.scope} | {name: arguments[name] for name in SETTINGS}
            problem = load_problem(instance, cluster, PartitionPlan.task, **settings)
        elif problem.scope != self.scope:
            raise ParenvsError(f"problem: is of scope {problem.scope}, not of {self.scope}")
        if paper and problem.reward != "paper":
            raise ParenvsError(f"paper: its task has no reward {problem.reward!r}")
        space = PartitionSpace.of(
            problem,
            not inputs and linkage is not False,
            False if paper else None,
            frozenset() if first_plan is None else _classes_of(problem, first_plan),
        )
        self.masked = inputs and not paper if masked is None else masked
        self.memory = memory
        self.space = space
        self.source: Source = Fixed(space)
        self.decisions = np.zeros((count, len(space.dimensions)), np.int8)
        # Whatever the problem, it has no more classes than dimensions.
        self.classes = np.zeros((count, len(space.dimensions) + 2), np.int8)
        self.position = np.zeros(count, np.int64)
        self.earned = np.zeros(count)
        self.action_space = spaces.Discrete(2)
        observed: dict[str, spaces.Space[Any]] = {
            "decisions": spaces.Box(-1, 1, (len(space.dimensions),), np.int8),
            "position": spaces.Discrete(len(space.questions) + 1),
        }
        if not paper:
            observed["stake"] = spaces.Box(-1.0, 1.0, (STAKES,), np.float32)
        self.observation_space = spaces.Dict(observed)
        if rows is not None:
            self.show_rows(2, rows)
        self._check_memory()
        self.put(EVERY, space)
        self.start(EVERY)

    @property
    def legal(self) -> Array:
        legal = np.ones((self.count, 2), bool)
        for space, index in self.by_problem(self._rows):
            # No action contradicts what was inferred, as only open classes are asked about.
            if self.masked and not space.inferred:
                asked = tables_of(space).asked[self.position[index]]
                legal[index] = MASKS.take(self.classes[self._rows[index], asked], axis=0)
        return legal

    def put(self, rows: Rows, problem: PartitionSpace) -> None:
        super().put(rows, problem)
        more = len(problem.dimensions) - self.decisions.shape[1]
        if more > 0:  # rows show problems of any size alike
            self.decisions, self.classes = (
                np.pad(values, ((0, 0), (0, more))) for values in (self.decisions, self.classes)
            )

    def start(self, rows: Rows) -> None:
        rows = self._rows[rows]
        for space, index in self.by_problem(rows):
            start = tables_of(space).start
            self.decisions[rows[index], : len(space.start)] = space.start
            self.classes[rows[index], : len(start)] = start
        self.position[rows], self.earned[rows], self.over[rows] = 0, 0.0, False

    def play(self, rows: Rows, actions: Array) -> Array:
        rows, rewards = self._rows[rows], np.empty(len(actions))
        state = self.decisions, self.classes, self.position, self.over
        for space, index in self.by_problem(rows):
            part = answer(tables_of(space), rows[index], actions[index], *state)
            if space.problem.step.limit is not None:
                self._enforce_limit(space, rows[index], part)
            rewards[index] = part
        return rewards

    def _enforce_limit(self, space: PartitionSpace, rows: Array, rewards: Array) -> None:
        """Set rewards so that complete plans beyond the limit of memory return -1 in all."""
        complete = np.flatnonzero(self.position[rows] == len(space.questions))
        if complete.size:
            excess = self._figures(space, rows[complete])["excess_bytes"]
            excessive = complete[excess > 0]
            rewards[excessive] = ILLEGAL - self.earned[rows[excessive]]
        self.earned[rows] += rewards

    def observation(self, rows: Rows) -> dict[str, Array]:
        if self.shown:
            return self._row_observation(self._rows[rows])
        observed: dict[str, Any] = {"position": self.position[rows]}
        observed["decisions"] = self.decisions[rows]
        if "stake" in self.observation_space.spaces:
            observed["stake"] = self._stakes(self._rows[rows])
        return observed

    def _stakes(self, rows: Array) -> Array:
        """(k, 5) float32, see ``PartitionSpace.stakes``."""
        stakes = np.empty((len(rows), STAKES), np.float32)
        for space, index in self.by_problem(rows):
            stakes[index] = space.stakes.take(self.position[rows[index]], axis=0)
        return stakes

    def _row_observation(self, rows: Array) -> dict[str, Array]:
        columns = {name: np.zeros((len(rows), 2)) for name in self.columns}
        context = np.zeros((len(rows), len(self.contexts)), np.float32)
        for name, values in zip(CLASS, self._stakes(rows).T, strict=True):
            columns[name][:, PARTITION] = values
        columns["partition"][:, PARTITION] = 1.0
        for space, index in self.by_problem(rows):
            columns["rule"][index] = SHARP * columns[WORTH[space.problem.reward]][index]
            context[index, 0] = self.position[rows[index]] / len(space.questions)
            decisions = self.decisions[rows[index], : len(space.dimensions)]
            context[index, 1] = (decisions == PARTITION).mean(axis=1)
            context[index, 2] = (decisions == OPEN).mean(axis=1)
            context[index, 3] = np.log2(space.problem.cluster.devices) / 10
        return self.as_rows(columns, context, self.legal[rows], self.over[rows])

    def outcome(self, rows: Rows) -> dict[str, Array]:
        outcome: dict[str, Array] = {}
        rows = self._rows[rows]
        for space, index in self.by_problem(rows):
            at = np.arange(len(rows))[index]
            at = at[self.position[rows[at]] == len(space.questions)]
            figures = self._figures(space, rows[at]) if len(at) else {}
            for name, values in figures.items():
                outcome.setdefault(name, np.full(len(rows), np.nan))[at] = values
        return outcome

    def _figures(self, space: PartitionSpace, rows: Array) -> dict[str, Array]:
        problem, classes = space.problem, space.classes
        decisions = self.classes[rows, : len(classes)]
        split = np.ascontiguousarray(decisions.T) == PARTITION
        saved = np.where(split, problem.gain_seconds[classes, None], 0.0)
        seconds = problem.replicate_seconds - running_sums(saved)[-1]
        figures = {"cost": seconds, "step_seconds": seconds}
        if problem.reward == "paper":
            # Not as a product of matrices, which rounds batches otherwise than single episodes.
            paid = np.where(split, problem.returns.weights[classes, None], 0.0)
            figures["cost"] = 1.0 / (problem.returns.base + running_sums(paid)[-1])
        limited = problem.step.limit is not None
        if self.memory or limited:
            peaks = np.array([problem.peak(chosen) for chosen in space.chosen(decisions)])
            figures["excess_bytes"] = excess = peaks - problem.memory_limit
            if limited:  # plans beyond it are illegal
                figures["cost"] = np.where(excess > 0, np.nan, figures["cost"])
        return figures

    def plan(self, row: int) -> PartitionPlan:
        """Return the plan built so far; undecided dimensions are replicated."""
        space = self._problems[row]
        chosen = space.chosen(self.classes[row, : len(space.classes)])
        return space.problem.plan(chosen)

    def problem(self, row: int) -> Partitioning:
        return self._problems[row].problem

    def undecided(self, row: int) -> set[str]:
        """Return the paths of the entry parameters that have an undecided dimension."""
        space = self._problems[row]
        decisions = self.decisions[row, : len(space.dimensions)]
        return space.problem.paths_of(space.dimensions[decisions == OPEN])

    @property
    def episode_steps(self) -> int:
        """Steps of the longest episode."""
        return len(self.space.questions)

    @property
    def largest_return(self) -> float:
        """An upper bound of the return, by which learners scale returns."""
        space = self.space
        paper = space.problem.reward == "paper"
        return paper_reward(PARTITION, len(space.dimensions)) if paper else 1.0

    def _check_memory(self) -> None:
        problem = self.space.problem
        if problem.step.limit is None:
            every_class = np.ones(len(problem.classes), bool)
            minimum, what = problem.footprint.memory(every_class).peak, "that of a device"
        else:
            minimum, what = problem.footprint.lower_bound(~problem.classes.blocked), "memory_limit"
        more = "" if problem.step.limit is None else ", so every complete episode returns -1"
        if minimum > problem.memory_limit:
            warnings.warn(
                f"no plan fits the memory: {problem.instance} on {problem.cluster}: the peak "
                f"exceeds {what} by {minimum - problem.memory_limit:,.0f} bytes or more, whatever "
                f"is partitioned{more}",
                stacklevel=4,
            )


class OperatorPartition(PartitionGame):
    """Decide for each dimension of each trainable variable: partition it, or replicate it.

    ## Description
    A training step is a graph of instructions. Dimensions that instructions tie together form a
    class, which is partitioned over all N devices as a whole, or not at all. Some classes can never
    be partitioned, and some exclude each other, as an instruction may split at most one of its
    factors (arXiv 2007.04069, sections 3.3 and 4.2; the rules are in
    ``parenvs.graph.opcodes``). Each step decides one class, and with it all classes that it
    excludes.

    ## Action Space
    ``Discrete(2)``: 0 replicates, 1 partitions the class or dimension at stake. With ``linkage``
    both are always legal. The mask is ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or
    part of the observation with ``parenvs.wrappers.MaskInObservation``.

    ## Observation Space
    ``Dict``:

    * ``decisions``: (V,) int8, the decision on each dimension, in the order of the paths: 1
      partitioned, 0 replicated, -1 undecided.
    * ``position``: Discrete(n + 1), the index of the question at stake; n at the end.
    * ``stake``: (5,) float32 in [-1, 1], figures of the class at stake: its share of all
      dimensions, its share of the bytes of all parameters, the share of the replicated step's
      seconds that partitioning it saves, the share of the dimensions that it excludes, and the
      share of the seconds that those could save.

    With ``rows`` a row for each choice instead, see ``parenvs.core.game.Rowed``:

    * ``actions``: (2, 7) float32; features of the class at stake are in the row that partitions.
    * ``context``: (4,) float32; ``action_mask``: (2,) int8.

    The classes that can earn most are asked about first: those with most dimensions
    (``reward="paper"``), or those that save most seconds (``"step_time"``); ties by path.

    ## Rewards
    * ``reward="paper"``: 0.4 for each dimension that the step partitions, 0.1 for each that it
      replicates, including the dimensions that it excludes. Dimensions that can never be
      partitioned are paid on the first step. A complete episode returns 0.1 V + 0.3 x partitioned
      dimensions.
    * ``reward="step_time"``: the fall of the step time T, divided by that of the replicated step;
      a complete episode returns 1 - T / T_replicate. The dimensions of the batch inputs are decided
      too: partitioning the batch is data parallelism.

    A conflict (an illegal action) pays -1 and ends the episode. A complete plan that exceeds
    ``memory_limit`` returns -1 in all: the last step takes back what the others earned, whatever
    the reward. The mask says nothing of memory, as whether decisions can still be completed within
    the limit is an integer program.

    ## Starting State
    Dimensions that can never be partitioned are replicated, all others are undecided; the same at
    every reset.

    ## Episode End
    When everything is decided, or at a conflict. No truncation.

    ## Arguments
    * ``instance``: shipped name, path of a graph, or ``parenvs.Graph``, which makes a specification
      that is not serializable.
    * ``devices``: N (default 8: one server of V100); or ``cluster``: preset, short form, ``.json``
      path or object, see ``Cluster.parse``.
    * ``rules``: ``"shardy"``, or ``"automap"``, where a reduced dimension cannot be partitioned.
    * ``uneven``: ``"pad"``, or ``"forbid"``: only multiples of N can be partitioned.
    * ``reward``: ``"paper"`` or ``"step_time"``.
    * ``linkage``: False is the ablation: each step decides one dimension, nothing is inferred, and
      a decision that contradicts an earlier one is a conflict.
    * ``masked``: whether the mask forbids contradictions (default: no); it matters only without
      linkage.
    * ``memory``: whether infos have ``excess_bytes``, which takes milliseconds an episode.
    * ``memory_limit``: bytes on a device that plans must keep to; ``True`` or ``"device"`` for 0.9
      of the device's memory; None: memory decides nothing.
    * ``micro_batch``: samples of a micro-batch, 2 or more (None: the graph's batch);
      ``micro_batches``: how many a step has, whose gradients are added up.
    * ``recompute``: ``"none"``, or ``"full"``: activations are made again in the backward pass.
    * ``rows``: None, or ``"ahead"`` or ``"bare"``, with which choices are observed as rows.
    * ``paper``: plays the task of arXiv 2007.04069, section 4.2. The observation is ``decisions``
      and ``position``; every dimension is asked for, also one that cannot be partitioned, and an
      answer decides those linked to it but excludes nothing, so that partitioning what an earlier
      answer excludes, or what cannot be partitioned, is a conflict.
    * ``first_plan``: a plan or the path of one, with ``paper``: what it partitions is decided from
      the start, what it replicates is asked for again (the second search of section 5.2.1).
    * ``problem``: a ``parenvs.Partitioning`` of this scope, in place of all the above but
      ``linkage``, ``masked``, ``memory``, ``rows``, ``paper`` and ``first_plan``.

    Arguments of the problem are also keys of ``reset(options=...)``, for one episode, if the spaces
    stay the same.

    ## Infos
    ``action_mask``; at a reset and at the end ``instance``; at the end of a complete plan
    ``step_seconds`` of a training step, ``cost``, which is the same under ``"step_time"`` and 1 /
    return under ``"paper"``, and with ``memory`` or ``memory_limit`` ``excess_bytes``, by which the
    peak exceeds the limit, or without one the memory of a device (<= 0: it fits). Without a limit
    rewards do not depend on it.

    ## Version History
    * v0: first version.
    """

    scope = "variables"


class OperatorPartitionEnv(GameEnv, game=OperatorPartition):
    """A single environment of ``OperatorPartition``."""


class OperatorPartitionVectorEnv(GameVectorEnv, single=OperatorPartitionEnv):
    """A native batch of ``OperatorPartition``."""


class DataParallel(PartitionGame):
    """Find the dimension of each batch input over which training is data parallel.

    ## Description
    As in ``OperatorPartition-v0``, but the dimensions of the batch inputs are decided, one at a
    time, and nothing is decided along with them. The mask knows which decisions an earlier one
    forces or excludes; contradicting them is a conflict (arXiv 2007.04069, sections 3.4 and 4.3).

    ## Action Space
    ``Discrete(2)``: 0 replicates, 1 partitions the dimension at stake. An action is legal if it
    contradicts no earlier decision; dimensions that can never be partitioned must be replicated.
    The mask is
    ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or part of the observation with
    ``parenvs.wrappers.MaskInObservation``.

    ## Observation Space
    ``Dict``, as in ``OperatorPartition-v0``: ``decisions`` (V,) int8 over the dimensions of all
    batch inputs, ``position`` and ``stake``; with ``rows`` as there.

    ## Rewards
    * ``reward="paper"``: 0.4 for a dimension that is partitioned, 0.1 for one that is replicated.
    * ``reward="step_time"``: the fall of the step time, divided by that of the replicated step.

    A conflict pays -1 and ends the episode; a complete plan that exceeds ``memory_limit`` returns
    -1, as in ``OperatorPartition-v0``.

    ## Starting State
    Nothing decided; the same at every reset.

    ## Episode End
    When every dimension is decided, or at a conflict. No truncation.

    ## Arguments
    * ``instance``, ``devices``, ``cluster``, ``rules``, ``uneven``, ``reward``, ``memory_limit``,
      ``micro_batch``, ``micro_batches``, ``recompute``: as in ``OperatorPartition-v0``.
    * ``masked``: whether the mask forbids conflicts (default: yes); if False, it forbids nothing.
    * ``memory``, ``rows``, options of ``reset``, and infos: as in ``OperatorPartition-v0``.
    * ``paper``: plays the task of arXiv 2007.04069, section 4.3: the observation is ``decisions``
      and ``position``, and ``masked`` is False by default.
    * ``problem``: a ``parenvs.Partitioning`` of this scope, in place of all the above but
      ``masked``, ``memory``, ``rows`` and ``paper``.

    ## Version History
    * v0: first version.
    """

    scope = "inputs"


class DataParallelEnv(GameEnv, game=DataParallel):
    """A single environment of ``DataParallel``."""


class DataParallelVectorEnv(GameVectorEnv, single=DataParallelEnv):
    """A native batch of ``DataParallel``."""
