"""What is run today, beside which a plan is said to be faster: degrees in words, or what is usual.

What the words leave open is chosen best, so that no plan looks better than it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from parenvs.agents.hybrid import heuristics
from parenvs.agents.hybrid.solve import exact_uniform
from parenvs.core.plan import Answer, Strategy
from parenvs.core.stages import Stages
from parenvs.errors import InfeasibleError, ParenvsError, did_you_mean, shown
from parenvs.tasks.hybrid.export import read_back
from parenvs.tasks.hybrid.graph.price import problem_of
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES, HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.space import Constraints
from parenvs.tasks.hybrid.space.explain import axes_of

LAUNCHERS, RUNNERS = ("megatron", "torchtitan", "deepspeed"), ("torch", "jax")
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
    "torch": ("data parallel, FSDP if that does not fit", [_REPLICAS[0], _REPLICAS[3]]),
    "jax": ("data parallel, FSDP if that does not fit", [_REPLICAS[0], _REPLICAS[3]]),
}
"""Framework -> what its users do by default in words, and the limits of such plans, those that are
tried first in front: torchtitan's train configurations of Llama 3, the tutorials of the others.
Megatron's is its rule of thumb."""
_NAMES = {
    "tp": "tp", "pp": "pp", "stages": "pp", "dp": "dp", "chunks": "chunks", "v": "chunks",
    "context": "context", "cp": "context", "expert": "expert", "ep": "expert", "shard": "shard",
    "micro-batch": "micro_batch", "mbs": "micro_batch", "zero": "zero",
}  # fmt: skip
"""Words for degrees -> constraints."""
_FORM = '"tp 8 pp 4 dp 2 micro-batch 1 zero 1 recompute full sp"'
_WORDS = re.compile(
    r"([a-z]+(?:-[a-z]+)?)[ =]*(\d+)|recompute[ =]*([a-z]+)|(sp|sequence parallel)\b"
)


def limits_of(words: str) -> Constraints:
    """Return what plans must keep to that are as words say: ``tp 8, pp 4, ZeRO 1``.

    Raises:
        ParenvsError: a word is unknown, or there is none.
    """
    found: dict[str, Any] = {}
    text = words.lower()
    for match in _WORDS.finditer(text):
        name, number, mode, _ = match.groups()
        if name is None:
            found |= {"recompute": (mode,)} if mode else {"sequence_parallel": True}
            continue
        if name not in _NAMES:
            raise ParenvsError(
                f"--now {shown(words)}: unknown degree {name!r}{did_you_mean(name, _NAMES)}; write "
                f"it like {_FORM}, or give a file of flags"
            )
        value = int(number)
        found[_NAMES[name]] = (value,) if name == "zero" else value
    left = _WORDS.sub("", text).strip(" ,·x")
    if left.strip(" ,") or not found or not {*found.get("recompute", ())} <= {*RECOMPUTE_MODES}:
        raise ParenvsError(
            f"--now {shown(words)} does not parse; write it like {_FORM}, or give a file of flags"
        )
    return Constraints(**found, uneven=True)


def now(
    subject: HybridReport | Strategy,
    said: str | Callable[[int], Stages] | None,
    framework: str | None,
) -> tuple[str, float]:
    """Return what is run today, in words, and its seconds of a step; a hook of the task.

    Args:
        subject: what the judge says of a plan of this task, or what a plan of another one does.
        said: degrees in words; or what gives the stages of a file for a model of so many layers;
            None: what is usual in the framework.
        framework: one of ``LAUNCHERS`` and ``RUNNERS`` (default: the first that trains the model).

    Raises:
        InfeasibleError: no such plan fits.
    """
    problem = problem_of(subject) if isinstance(subject, Strategy) else of_report(subject)
    if callable(said):
        plan = read_back(problem, said(len(problem.model)))
        report = problem.report(plan)
        if not report.legal:
            raise InfeasibleError(report.reasons[0])
        return degrees(plan), report.length_seconds
    if said is not None:
        answer = exact_uniform(problem, limits_of(said))
        return degrees(answer.plan), answer.cost
    launches = problem.model.shape is not None
    words, answer = usual(problem, framework or (LAUNCHERS if launches else RUNNERS)[0])
    return f"{words}: {degrees(answer.plan)}", answer.cost


def of_report(report: HybridReport) -> Hybrid:
    """Return the problem of a judged plan."""
    plan, stack = report.plan, report.machine.stack
    return Hybrid(
        report.model, report.cluster, report.batch, stack, plan.precision, instance=plan.instance
    )


def usual(problem: Hybrid, framework: str) -> tuple[str, Answer]:
    """Return what users of a framework do by default in words, and the best such plan.

    Raises:
        InfeasibleError: none fits.
    """
    if framework == LAUNCHERS[0]:
        limits = Constraints(framework=framework)
        return "the rule of thumb of Megatron", heuristics.rule_of_thumb(problem, limits)
    words, ways = USUAL[framework]
    for way in ways:
        own = {**way, "tp": min(way["tp"], problem.cluster.devices_per_server)}
        if problem.model.shape is None:
            own["recompute"] = ("none",)
        try:
            limits = replace(Constraints(), framework=framework, **own)
            return f"{words} ({framework})", exact_uniform(problem, limits)
        except InfeasibleError as error:
            reason = error
    raise reason


def degrees(plan: HybridPlan) -> str:
    """Return a plan in words that ``limits_of`` takes: ``tp 8, pp 4, dp 4, micro-batch 1``."""
    own = axes_of(plan)
    told = [f"{name} {own[name]}" for name in ("tp", "pp", "dp") if own[name] is not None]
    told.append(f"micro-batch {plan.micro_batch}")
    told += [f"{name} {getattr(plan, name)}" for name in ("chunks", "context", "expert", "shard")
             if getattr(plan, name) > 1]  # fmt: skip
    told += [f"ZeRO {own['zero']}"] if own["zero"] else []
    told += [f"recompute {own['recompute']}"] if own["recompute"] not in (None, "none") else []
    return ", ".join([*told, *(["sequence parallel"] if plan.sequence_parallel else [])])
