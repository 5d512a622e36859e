"""Hybrid problems by name: of a set, or drawn."""

from __future__ import annotations

from parenvs.core.sets import Reference, SetKind
from parenvs.datasets.hybrid import drawing
from parenvs.datasets.hybrid.servers import TIERS, drawn
from parenvs.datasets.references import HETERO, HYBRID, timed_reference
from parenvs.errors import UnknownInstanceError, did_you_mean, shown
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shipped import problem_sets


def find_hybrid(name: str) -> Hybrid:
    """Return a problem: ``SET/FAMILY-NUMBER`` of a set, ``hybrid/SEED`` or ``TIER/SEED`` drawn.

    Raises:
        UnknownInstanceError: there is no such set, or no such problem in it, or the seed is none.
    """
    kind, _, number = name.partition("/")
    if kind in TIERS or kind == drawing.TIER:
        if not (number.isascii() and number.isdigit() and len(number) < 20):
            raise UnknownInstanceError(
                f"instance {name!r}: give a seed, like {kind}/7, or a set, like {kind}-test"
            )
        return drawing.drawn(int(number)) if kind == drawing.TIER else drawn(kind, int(number))
    if kind not in problem_sets():
        raise UnknownInstanceError(
            f"unknown set {shown(kind)}{did_you_mean(kind, problem_sets())}; known: "
            f"{', '.join(problem_sets())}"
        )
    problems = {problem.instance: problem for problem in problem_sets()[kind]}
    if name not in problems:
        raise UnknownInstanceError(
            f"unknown problem {name!r}; {kind} holds {len(problems)}: {', '.join(problems)}"
        )
    return problems[name]


def set_kind(name: str) -> SetKind:
    """Return what evaluations know of a set of hybrid problems; see ``SetKind``."""
    file = HETERO if name.startswith("hetero-") else HYBRID

    def reference(member: str) -> Reference:
        problem = find_hybrid(member)
        return timed_reference(file, member, problem, problem.model.fingerprint)

    return SetKind(
        "HybridPlan-v0",
        lambda name: [problem.instance for problem in problem_sets()[name]],
        find_hybrid,
        reference,
    )
