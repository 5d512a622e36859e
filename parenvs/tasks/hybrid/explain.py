"""Why not otherwise: what the best plan costs that takes another value on one axis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.plan import SCHEDULES, HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import PARTS, HybridReport
from parenvs.tasks.hybrid.space import Constraints, UniformSpace, software_of
from parenvs.tasks.hybrid.tune.prior import SHARES, SPREAD, matters, moved, stacks_on


class Alternative(NamedTuple):
    """The best uniform plan with another value on one axis.

    Attributes:
        axis: one of ``HybridPlan.axes``.
        length: seconds of a step; inf if no such plan fits.
        excess: share by which it takes longer than the plan explained.
        slower: parts of a step that take longer, ``(part, seconds)``, the most first.
        faster: parts that take less, likewise.
        missing_bytes: bytes by which the smallest such plan exceeds the memory; 0 if one fits.
        largest: the largest part of its memory.
    """

    axis: str
    value: Any
    text: str
    length: float = np.inf
    excess: float = np.inf
    slower: tuple[tuple[str, float], ...] = ()
    faster: tuple[tuple[str, float], ...] = ()
    missing_bytes: float = 0.0
    largest: str = ""


def alternatives(report: HybridReport) -> list[Alternative]:
    """Return, for every other value of every axis, the best uniform plan that has it.

    The plans use as many devices as the plan explained. None are left where no uniform plan keeps
    to the rules: stages may differ where they cannot be even.
    """
    used = report.devices_used
    limits = Constraints(devices=None if used == report.cluster.devices else used)
    others: list[Alternative] = []
    try:
        space = UniformSpace.build(report.problem, limits)
    except InfeasibleError:
        return others
    for axis, chosen in report.plan.axes.items():
        column = getattr(space.plans, axis)
        if axis == "schedule":  # with chunks it is interleaved
            column = np.where(column == "", SCHEDULES[0], column)
        others += [
            _best(report, space, axis, value, column == value)
            for value in np.unique(column).tolist()
            if value != chosen
        ]
    return others


def _best(
    report: HybridReport, space: UniformSpace, axis: str, value: Any, which: np.ndarray
) -> Alternative:
    """Return the fastest of some plans that fits, or the smallest if none does."""
    fitting = which & space.fits
    if not fitting.any():
        totals = np.where(which, space.memory["total"], np.inf)
        k = int(totals.argmin())
        missing = float(totals[k]) - space.problem.memory_limit
        largest = max(PARTS, key=lambda name: float(space.memory[name][k]))
        text = space.describe(k)
        return Alternative(axis, value, text, missing_bytes=missing, largest=largest)
    k = int(np.where(fitting, space.length, np.inf).argmin())
    other = space.problem.report(space.plan(k))
    changes = [(part, x - report.seconds.get(part, 0.0)) for part, x in other.seconds.items()]
    changes.sort(key=lambda pair: -abs(pair[1]))
    least = 1e-4 * report.length_seconds  # smaller changes decide nothing
    slower = tuple((part, x) for part, x in changes if x > least)
    faster = tuple((part, -x) for part, x in changes if x < -least)
    excess, text = other.length_seconds / report.length_seconds - 1, space.describe(k)
    return Alternative(axis, value, text, other.length_seconds, excess, slower, faster)


FEW = 1000
"""Uniform plans that are judged on every machine, the best ones by the stack."""
APART = 0.02
"""Excess from which two machines disagree on a plan."""


class Shift(NamedTuple):
    """A plan on a machine that differs.

    Attributes:
        what: differs, in words: ``nic_bw -30 %``, ``stack nemo-2026``.
        seconds: of the plan there.
        best_seconds: of the best uniform plan there, or of the plan itself if that is faster.
        excess: share by which the plan takes longer than that.
        best: the best plan there, in words; ``the plan itself`` if none is faster.
    """

    what: str
    seconds: float
    best_seconds: float
    excess: float
    best: str


def scenarios(problem: Hybrid) -> dict[str, Hybrid]:
    """Return machines whose constants are plausible, too: what differs -> the problem there.

    Each constant moves by a standard deviation of ``SPREAD``, both ways.
    """
    others = {}
    for name, spread in SPREAD.items():
        for end in (-1.0, 1.0):
            other = moved(problem, name, end)
            if matters(name, other) and other.machine != problem.machine:
                change = end * spread if name in SHARES else np.expm1(end * spread)
                others[f"{name} {100 * change:+.0f} %"] = other
    return others


def under(problem: Hybrid, plan: HybridPlan) -> HybridPlan:
    """Return a plan as the software of another problem would run it."""
    return replace(plan, stack=problem.stack.to_json(), **software_of(problem).of_plan)


class Machines:
    """The best uniform plans of a space on every plausible machine.

    Attributes:
        numbers: (n,) numbers of the plans in the space, the best by the stack first.
        problems: what differs -> the problem on that machine; the stack itself is first.
        lengths: (machines, n) step times, infinite where a plan does not fit.
    """

    def __init__(self, space: UniformSpace) -> None:
        self.space = space
        order = np.argsort(space.length, kind="stable")[:FEW]
        self.numbers = order[np.isfinite(space.length[order])]
        others = scenarios(space.problem)
        self.problems = {f"stack {space.problem.stack.name}": space.problem, **others}
        rows = [space.length[self.numbers], *map(self.on, others.values())]
        self.lengths = np.stack(rows)

    def on(self, problem: Hybrid) -> np.ndarray:
        """Return (n,) step times on another machine, infinite where a plan does not fit."""
        plans = replace(self.space.plans.take(self.numbers), **software_of(problem).of_arrays)
        seconds, held = plans.judged(problem.model, problem.cluster, problem.machine)
        known = np.isin(plans.schedule, ["", *problem.stack.schedules])
        fits = known & (held["total"] <= problem.memory_limit)
        return np.where(fits, seconds["length"], np.inf)

    def shift(self, what: str, seconds: np.ndarray, length: float) -> Shift:
        """Compare a plan of a step time with the (n,) step times of the uniform plans."""
        text, fastest = "the plan itself", length
        if len(seconds) and seconds.min() < length * (1 - 1e-9):  # not by rounding alone
            k = int(seconds.argmin())
            text, fastest = self.space.describe(int(self.numbers[k])), float(seconds[k])
        return Shift(what, length, fastest, length / fastest - 1, text)


def robustness(space: UniformSpace, plan: HybridPlan) -> list[Shift]:
    """Judge a plan beside the best uniform plans on machines that differ.

    Returns scenarios, and other stacks that were measured on the device, that disagree: under which
    another plan is faster by ``APART``, or this one takes another time by twice as much.
    """
    problem, machines = space.problem, Machines(space)
    others = list(zip(machines.problems.items(), machines.lengths, strict=True))[1:]
    device, precision = problem.cluster.device.name, problem.precision
    for stack in stacks_on(problem):
        if stack.name != problem.stack.name and not stack.is_guess(device, precision):
            other = replace(problem, stack=stack)
            others.append(((f"stack {stack.name}", other), machines.on(other)))
    shifts = []
    for (what, other), seconds in others:
        shift = machines.shift(what, seconds, other.length(under(other, plan)))
        if shift.excess > APART or abs(shift.seconds / problem.length(plan) - 1) > 2 * APART:
            shifts.append(shift)
    return shifts
