"""Marks entries beside each other: same plans, and orders that the simulation turns round.

L, the closed form, ranks pipelines, as references are proven of it. The simulation of the same step
differs from it by some percent, which is the model's error: entries that stand in another order
there are no better or worse than each other as far as anybody knows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from parenvs.core.leaderboard import TOLERANCE
from parenvs.leaderboard.check import DIGITS, Standing
from parenvs.leaderboard.verdicts import PlanState, Verdict


@dataclass(frozen=True)
class Marks:
    """What an entry is beside the others of its task.

    Attributes:
        simulated: geometric mean of reference / simulated length; None where nothing is simulated.
        equal: entries of a better score that it is not slower than in the simulation.
        same: another entry that has the same plans of all problems, or an empty text.
    """

    simulated: float | None = None
    equal: tuple[str, ...] = ()
    same: str = ""

    @property
    def words(self) -> str:
        """The marks in words; an empty text if there are none."""
        parts = [f"same plans as {self.same}"] if self.same else []
        if self.equal:
            others = ", ".join(self.equal[:3]) + (", ..." if len(self.equal) > 3 else "")
            parts.append(f"equal to {others} within the model's error")
        return "; ".join(parts)


def compare(standings: Sequence[Standing]) -> dict[str, Marks]:
    """Return the marks of all entries of a task, by name.

    Args:
        standings: of ``ranking``.
    """
    names = [standing.checked.entry.entry for standing in standings]
    lengths = [_simulated_score(standing) for standing in standings]
    same = _same_plans(standings)
    marks = {}
    for name, standing, length in zip(names, standings, lengths, strict=True):
        equal = tuple(
            other
            for other, better, its in zip(names, standings, lengths, strict=True)
            if better.score > standing.score
            and its is not None
            and length is not None
            and round(length, DIGITS) >= round(its, DIGITS)
        )
        marks[name] = Marks(length, equal, same.get(name, ""))
    return marks


def turned(standings: Sequence[Standing]) -> dict[str, set[str]]:
    """Return the problems on which the simulation does not confirm the best plan.

    Returns:
        Name of a problem -> entries whose plan has a greater L than the reference, and is not
        slower in simulation than any plan that has the reference's L.
    """
    costs: dict[str, list[tuple[bool, float, str]]] = {}
    for standing in standings:
        for verdict in standing.checked.verdicts:
            seconds = simulated(verdict)
            if seconds is not None:
                row = (verdict.reaches, seconds, standing.checked.entry.entry)
                costs.setdefault(verdict.problem.name, []).append(row)
    pairs = {}
    for problem, rows in costs.items():
        best = min((seconds for reaches, seconds, _ in rows if reaches), default=0.0)
        others = {
            name for reaches, seconds, name in rows
            if not reaches and seconds <= best * (1 + TOLERANCE)
        }  # fmt: skip
        if others:
            pairs[problem] = others
    return pairs


def simulated(verdict: Verdict) -> float | None:
    """Return the simulated seconds of a plan; None if there is no plan or no simulation."""
    return verdict.problem.simulated(verdict.report) if verdict.state == PlanState.LEGAL else None


def _simulated_score(standing: Standing) -> float | None:
    """Return the geometric mean of reference / simulated length; without a plan, the trivial's."""
    counted = [verdict for verdict in standing.checked.verdicts if verdict.counts]
    if not any(simulated(verdict) is not None for verdict in counted):
        return None
    logarithms = [
        math.log(verdict.problem.reference.cost / (simulated(verdict) or verdict.cost))
        for verdict in counted
    ]
    return math.exp(math.fsum(logarithms) / len(logarithms))


def _same_plans(standings: Sequence[Standing]) -> dict[str, str]:
    """Return the entries whose plans are all those of another one -> that one.

    Among entries of the same plans the project's own is named, or else the first by name.
    """
    groups: dict[str, list[Standing]] = {}
    for standing in standings:
        plans = {
            verdict.problem.name: verdict.problem.decided(verdict.report)
            for verdict in standing.checked.verdicts
            if verdict.state == PlanState.LEGAL
        }
        if plans:
            groups.setdefault(json.dumps(plans, sort_keys=True), []).append(standing)
    same = {}
    for group in groups.values():
        first = min(group, key=_seniority)
        for standing in group:
            if standing is not first:
                same[standing.checked.entry.entry] = first.checked.entry.entry
    return same


def _seniority(standing: Standing) -> tuple[bool, str]:
    entry = standing.checked.entry
    return entry.authors != ("parenvs",), entry.entry
