"""What is run today, beside which a plan is said to be faster: degrees in words, or what is usual.

What the words leave open is chosen best, so that no plan looks better than it is.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.agents.hybrid.exact import exact_uniform, uniform_answer
from parenvs.core.plan import Answer, Strategy
from parenvs.core.stages import Stages
from parenvs.errors import InfeasibleError, ParenvsError, did_you_mean, shown
from parenvs.tasks.hybrid import figure, view
from parenvs.tasks.hybrid.explain import Shift, robustness
from parenvs.tasks.hybrid.export import problem_of, read_back
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.rows import Row, read_rows
from parenvs.tasks.hybrid.space import Constraints, UniformSpace, infeasible, near_best

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


SIZE = 1.5
"""Factor within which the parameters of a published run are those of a model."""
_DEGREES = {
    "tp": "tp", "pp": "pp", "cp": "context", "ep": "expert", "micro_batch": "micro_batch",
    "recompute": "recompute", "zero": "zero",
}  # fmt: skip
"""Field of a published row -> constraint."""


def rule_of_thumb(problem: Hybrid, constraints: Constraints | None = None) -> Answer:
    """Return the plan that people run who do not search; its note says where it is from.

    It is that of the published run of the nearest model on such devices, with as many replicas as
    there are devices. If none fits, it is Megatron's (arXiv 2104.04473, takeaways 1 to 3): the
    least tp x pp that fits, tp first, up to a server; as many chunks as there can be, micro-batches
    of one sample, ZeRO 1, attention recomputed, or everything if nothing else fits. Where
    constraints rule one of these out, they are kept to.

    Raises:
        InfeasibleError: no such plan fits; says how many bytes the smallest one lacks.
    """
    begin = time.perf_counter()
    limits = constraints or Constraints()
    for row in _nearest(problem):
        asked = _together(limits, row)
        with suppress(InfeasibleError):
            if asked is not None:
                answer = exact_uniform(problem, asked)
                note = f"as {row.source} ran {row.name}"
                return replace(answer, method="rule-of-thumb", proven=False, notes=(note,))
    note = "Megatron's takeaways: the least tp x pp that fits"
    rule = replace(
        limits, micro_batch=limits.micro_batch or 1, context=limits.context or 1,
        zero=tuple(x for x in (0, 1) if x in limits.zero) or limits.zero, shard=limits.shard or 0,
    )  # fmt: skip
    for mode in [x for x in ("selective", "full") if x in limits.recompute] or limits.recompute:
        space = UniformSpace.build(problem, replace(rule, recompute=(mode,)))
        plans = space.plans
        keys = (
            space.length, ~plans.sequence_parallel, -plans.chunks, -plans.zero, plans.expert,
            plans.pp, plans.tp * plans.pp,
        )  # fmt: skip
        order = np.lexsort(keys)
        fitting = order[space.fits[order]]
        if len(fitting):
            k = int(fitting[0])
            return uniform_answer(space, k, "rule-of-thumb", begin, notes=(note,))
    raise infeasible(space)


def _nearest(problem: Hybrid) -> list[Row]:
    shape, device = problem.model.shape, problem.cluster.device.name
    if shape is None:
        return []
    runs: dict[float, Row] = {}
    for row in read_rows().rows:
        size = _parameters(row)
        is_alike = (row.get("experts", 1) > 1) == (shape.experts > 1)
        if size and is_alike and row.get("device") == device and row.get("tp"):
            distance = abs(math.log(size / shape.parameters))
            length = abs(math.log(row.get("seq", shape.sequence) / shape.sequence))
            if distance <= math.log(SIZE):
                runs.setdefault(distance + length, row)
    return [runs[distance] for distance in sorted(runs)]


def _parameters(row: Row) -> float:
    """About as many parameters as the model of a row has; 0 if it does not say its shape."""
    hidden, heads = row.get("hidden"), row.get("heads")
    if not (hidden and heads and row.get("layers")):
        return 0.0
    attention = 2 * hidden**2 * (1 + row.get("kv_heads", heads) / heads)
    matrices = (3 if row.get("gated") else 2) * row.get("experts", 1)
    networks = matrices * hidden * row.get("ffn", 4 * hidden)
    return float(row.get("layers") * (attention + networks) + hidden * row.get("vocab", 0))


def _together(limits: Constraints, row: Row) -> Constraints | None:
    """Return constraints and what a run was with; None where they contradict each other."""
    given = {name: row.get(key) for key, name in _DEGREES.items()}
    run = {name: value for name, value in given.items() if value is not None}
    usual = vars(Constraints())
    for name, value in run.items():
        asked = getattr(limits, name)
        if name in ("recompute", "zero"):
            if value not in asked:
                return None
            run[name] = (value,)
        elif asked not in (usual[name], value):
            return None
    return replace(limits, **run, uneven=True)


def random_plan(
    problem: Hybrid, rng: np.random.Generator, constraints: Constraints | None = None
) -> Answer:
    """Return one of the uniform plans that fit, each as likely (``InfeasibleError``: none fits)."""
    begin = time.perf_counter()
    space = UniformSpace.build(problem, constraints)
    if not space.fits.any():
        raise infeasible(space)
    return uniform_answer(space, int(rng.choice(np.flatnonzero(space.fits))), "random", begin)


LAUNCHERS, RUNNERS = ("megatron", "torchtitan", "deepspeed", "accelerate"), ("torch", "jax")
"""Frameworks that train shapes by name, and those that run a graph's own program."""
_ALONE = {"tp": 1, "pp": 1, "context": 1, "expert": 1, "shard": 0}
_REPLICAS: list[dict[str, Any]] = [{**_ALONE, "zero": (level,)} for level in (0, 1, 2, 3)]
USUAL: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "torchtitan": (
        "FSDP of its examples",
        [
            {**_ALONE, "zero": (3,), "recompute": ("selective",)},
            {**_ALONE, "zero": (3,), "recompute": ("full",)},
            {**_ALONE, "tp": 8, "zero": (3,), "recompute": ("full",)},
            {"tp": 8, "context": 1, "recompute": ("full",)},
        ],
    ),
    "deepspeed": ("the lowest ZeRO that fits", [*_REPLICAS, {"tp": 1, "context": 1}]),
    "accelerate": (
        "FSDP of its default answers",
        [{**_REPLICAS[3], "recompute": (mode,)} for mode in ("none", "full")],
    ),
    "torch": ("data parallel, FSDP if that does not fit", [_REPLICAS[0], _REPLICAS[3]]),
    "jax": ("data parallel, FSDP if that does not fit", [_REPLICAS[0], _REPLICAS[3]]),
}
"""Framework -> what its users do by default in words, and the limits of such plans, those that are
tried first in front: torchtitan's train configurations of Llama 3, the tutorials of the others.
Megatron's, and of any of them, is the rule of thumb."""
_NAMES = {
    "tp": "tp", "pp": "pp", "stages": "pp", "dp": "dp", "chunks": "chunks", "v": "chunks",
    "context": "context", "cp": "context", "expert": "expert", "ep": "expert", "shard": "shard",
    "micro-batch": "micro_batch", "mbs": "micro_batch", "zero": "zero",
}  # fmt: skip
"""Words for degrees -> constraints."""
_KNOWN = {
    "fsdp": "tp 1 pp 1 cp 1 ep 1 shard 0 zero 3", "ddp": "tp 1 pp 1 cp 1 ep 1 shard 0 zero 0",
}  # fmt: skip
"""Names of plans -> their degrees."""
_FORM = '"tp 8 pp 4 dp 2 micro-batch 1 zero 1 recompute full sp"'
_WORDS = re.compile(
    r"([a-z]+(?:-[a-z]+)?)[ =]*(\d+)|recompute[ =]*([a-z]+)|(sp|sequence parallel)\b"
)


def limits_of(words: str) -> Constraints:
    """Return what plans must keep to that are as words say: ``tp 8, pp 4, ZeRO 1``.

    Raises:
        ParenvsError: a word is unknown, or there is none.
    """
    degrees: dict[str, Any] = {}
    text = _KNOWN.get(words.lower(), words.lower())
    for match in _WORDS.finditer(text):
        name, number, mode, _ = match.groups()
        if name is None:
            degrees |= {"recompute": (mode,)} if mode else {"sequence_parallel": True}
            continue
        if name not in _NAMES:
            raise ParenvsError(
                f"--baseline {shown(words)}: unknown degree {name!r}{did_you_mean(name, _NAMES)}; "
                f"write it like {_FORM}, or give a file of flags"
            )
        value = int(number)
        degrees[_NAMES[name]] = (value,) if name == "zero" else value
    # What is left but separators was not understood; the judge's own words join degrees by x.
    left = _WORDS.sub("", text).strip(" ,·x")
    if left or not degrees or not {*degrees.get("recompute", ())} <= {*RECOMPUTE_MODES}:
        raise ParenvsError(
            f"--baseline {shown(words)} does not parse; write it like {_FORM}, or fsdp, or give a "
            "file of flags"
        )
    return Constraints(**degrees, uneven=True)


def baseline(
    subject: HybridReport | Strategy,
    said: str | Callable[[int], Stages] | None,
    framework: str | None,
) -> tuple[str, float]:
    """Return what is run today, in words, and its seconds of a step.

    Args:
        subject: what the judge says of a plan of this task, or what a plan of another one does.
        said: degrees in words, or what gives the stages of a file for a model of so many layers;
            None: what is usual in the framework.
        framework: one of ``LAUNCHERS`` and ``RUNNERS`` (others: the first that trains the model).

    Raises:
        InfeasibleError: no such plan fits.
    """
    problem = problem_of(subject) if isinstance(subject, Strategy) else subject.problem
    if callable(said):
        plan = read_back(problem, said(len(problem.model)))
        report = problem.report(plan)
        if not report.legal:
            raise InfeasibleError(report.reasons[0])
        return plan.words, report.length_seconds
    if said is not None:
        answer = exact_uniform(problem, limits_of(said))
        return answer.plan.words, answer.report.cost
    if framework not in (*LAUNCHERS, *RUNNERS):  # "any" of them, or "free" of all
        framework = (RUNNERS if problem.model.shape is None else LAUNCHERS)[0]
    words, answer = usual(problem, framework)
    return f"{words}: {answer.plan.words}", answer.report.cost


def usual(problem: Hybrid, framework: str) -> tuple[str, Answer]:
    """Return a framework's defaults in words, and the best such plan."""
    if framework == LAUNCHERS[0]:
        answer = rule_of_thumb(problem, Constraints(framework=framework))
        return f"rule of thumb, {answer.notes[0]}", answer
    words, ways = USUAL[framework]
    for way in ways:
        usual_limits = {**way, "tp": min(way["tp"], problem.cluster.devices_per_server)}
        # A graph's own program says what it recomputes.
        if problem.model.shape is None:
            usual_limits["recompute"] = ("none",)
        try:
            limits = replace(Constraints(), framework=framework, **usual_limits)
            return f"{words} ({framework})", exact_uniform(problem, limits)
        except InfeasibleError as error:
            reason = error
    raise reason


class Remarks:
    """What commands say of a hybrid plan beside the judge's report."""

    def __init__(self, request: Any, answer: Answer, choice: object = None) -> None:
        self.request, self.answer = request, answer

    @cached_property
    def shifts(self) -> list[Shift]:
        """The plan on machines that differ; none where there is no uniform plan to compare with."""
        try:
            return robustness(self.request.space, self.answer.plan)
        except InfeasibleError:
            return []

    def to_json(self) -> dict[str, Any]:
        """Return the remarks as an object of JSON types: the plan on machines that differ."""
        worst = max((shift.excess for shift in self.shifts), default=0.0)
        shifts = [shift._asdict() for shift in self.shifts]
        return {"worst_regret": worst, "robustness": shifts}

    def lines(self) -> Iterator[str | Table]:
        """Yield plans that come close, and it on other machines."""
        if not self.shifts:
            return
        request = self.request
        near = near_best(request.space, most=6, objective=request.goal)
        if len(near) > 1:
            yield view.near_best(near)
        yield view.other_machines(self.shifts)


def draw_map(request: Any, report: HybridReport) -> Figure:
    """The map of all uniform plans of a request, with the plan of a report marked."""
    held = max(stage.memory["total"] for stage in report.stages)
    return figure.draw_plans(request.space, report.length_seconds, held)
