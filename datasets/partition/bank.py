"""Partition problems of shipped sets as they are played: as arrays, with plans that fit.

    python -m parenvs.datasets.partition.bank                    # make them again
    python -m parenvs.datasets.partition.bank partition-test --out /tmp/banks

To read a graph and to look for plans within memory takes seconds, as long as thousands of turns.
``LIMITS`` problems that follow one another in a set differ in their limit of memory alone, and
share all else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from scipy.optimize import linprog

from parenvs.core.sets import OPTIMUM
from parenvs.datasets.banks import Bank, write_banks
from parenvs.datasets.partition.sets import costs
from parenvs.errors import ParenvsError
from parenvs.shipped import manifest
from parenvs.tasks.partition.drawn.board import Sizes
from parenvs.tasks.partition.drawn.linear import CLASS, Linear
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.sets import PARTITION_SETS, load, members, partition_rows
from parenvs.tasks.partition.task import PartitionTask

LIMITS = 8
"""Problems that share arrays."""
SAMPLES = 512
"""Plans that are drawn to see which moments are the fullest."""


@lru_cache(maxsize=len(PARTITION_SETS))
def bank(name: str) -> Bank:
    """Return the bank of a set, which has a row for each ``LIMITS`` problems."""
    return Bank(name, len(members(name)) // LIMITS, partial(_row, name))


@lru_cache(maxsize=1024)
def played(name: str) -> Linear:
    """Return a problem of a shipped set."""
    set_name, _, member = name.rpartition("/")
    rows = partition_rows(set_name)
    number, which = divmod(list(rows).index(member), LIMITS)
    shared, row = _shared(set_name, number)
    limit, known = float(row["limits"][which]), costs(name)
    return replace(
        shared,
        name=name,
        limit=limit,
        step=row["step"].reshape(LIMITS, -1)[which],
        witnesses=row["witnesses"].reshape(LIMITS, -1, len(shared.gain))[which],
        best=np.nan if known is None else known.value,
        optimal=known is not None and known.kind == OPTIMUM,
        cache={},
    )


@lru_cache(maxsize=len(PARTITION_SETS))
def sizes_of(name: str) -> Sizes:
    """Return the sizes of the largest problem of a shipped set."""
    found = [_shared(name, number)[0] for number in range(len(bank(name)))]
    witnesses = [bank(name)[n]["witnesses"].size // (LIMITS * len(x.gain))
                 for n, x in enumerate(found)]  # fmt: skip
    largest = Sizes.of(found[0])
    for each, count in zip(found, witnesses, strict=True):
        largest = largest.with_(Sizes.of(each)._replace(witnesses=count))
    return largest


@lru_cache(maxsize=256)
def _shared(name: str, number: int) -> tuple[Linear, dict[str, Any]]:
    """Return what ``LIMITS`` problems of a set share, and the row that says the rest.

    Raises:
        ParenvsError: the row is of another graph.
    """
    row = bank(name)[number]
    instance = str(row["instance"])
    if str(row["fingerprint"]) != _fingerprint(instance):
        raise ParenvsError(
            f"{bank(name).file}: of another {instance}; make it anew with python -m "
            "parenvs.datasets.partition.bank"
        )
    count, moments = len(row["gain"]), len(row["whole"])
    held = row["held"].reshape(count, moments).astype(np.float64)
    rivals = [np.sort(row["rivals"][row["rivals"][:, 0] == k, 1]) for k in range(count)]
    linear = Linear(
        name="",
        classes=row["classes"].astype(np.int64),
        gain=row["gain"],
        replicated=float(row["replicated"]),
        rivals=tuple(each.astype(np.int64) for each in rivals),
        whole=row["whole"].astype(np.float64),
        saved=held * row["spared"][:, None],
        limit=np.nan,
        groups=tuple(np.split(row["members"].astype(np.int64), np.cumsum(row["sizes"])[:-1])),
        weights=row["weights"],
        paid=row["paid"],
        figures=row["figures"].reshape(count, len(CLASS)),
        step=row["step"],
        witnesses=np.zeros((0, count), dtype=bool),
        fullest=row["fullest"].astype(np.int64),
    )
    return linear, row


def _row(name: str, number: int) -> Mapping[str, np.ndarray]:
    """Return what a bank keeps of ``LIMITS`` problems."""
    some = members(name)[number * LIMITS : (number + 1) * LIMITS]
    begin = PartitionTask().start
    problem = load(some[0])
    # The leanest plan is that of a limit which all keep to, as where sets are drawn.
    whole = begin(Linear.of(unlimited(problem), some[0]))
    found = [begin(whole.at(float(partition_rows(name)[x.rpartition("/")[2]].memory_limit)))
             for x in some]  # fmt: skip
    return packed(found, problem, partition_rows(name)[some[0].rpartition("/")[2]].instance)


def packed(
    found: Sequence[Linear], problem: Partitioning, instance: str
) -> Mapping[str, np.ndarray]:
    """Return what a bank keeps of problems that differ in their limit alone.

    Args:
        found: the problems as they are played.
        problem: one of them.
        instance: name of the graph.
    """
    first = found[0]
    spared = 1.0 - problem.device_share[first.classes]
    most = max(len(each.witnesses) for each in found)
    several = [each.witnesses[np.arange(most) % len(each.witnesses)] for each in found]
    rivals = [(k, r) for k, row in enumerate(first.rivals) for r in row.tolist()]
    held = np.rint(np.divide(first.saved, spared[:, None], where=spared[:, None] > 0,
                             out=np.zeros_like(first.saved)))  # fmt: skip
    return {
        "instance": np.array(instance),
        "fingerprint": np.array(_fingerprint(instance)),
        "classes": first.classes.astype(np.int32),
        "gain": first.gain,
        "replicated": np.array(first.replicated),
        "rivals": np.array(rivals, dtype=np.int16).reshape(-1, 2),
        "whole": first.whole.astype(np.int64),
        "held": held.astype(np.int64).ravel(),
        "spared": spared,
        "fullest": fullest(first).astype(np.int16),
        "members": np.concatenate(first.groups).astype(np.int16),
        "sizes": np.array([len(row) for row in first.groups], dtype=np.int16),
        "weights": first.weights,
        "paid": first.paid,
        "figures": first.figures.ravel(),
        "step": np.concatenate([each.step for each in found]),
        "limits": np.array([each.limit for each in found]),
        "witnesses": np.concatenate([each.ravel() for each in several]),
    }


def fullest(problem: Linear) -> np.ndarray:
    """Return the moments that can be the fullest of a legal plan, ascending, by linear programs.

    A moment cannot be if the relaxed plan at which it exceeds some others most leaves it below one
    of them. The duals of that program bound the excess whatever their precision, so a moment is
    left out only if the bound, computed from them, is a byte or more below 0.
    """
    whole, saved = problem.whole, problem.saved
    some = _legal_plans(problem)
    found = np.unique((whole - some.astype(np.float64) @ saved).argmax(axis=1)).tolist()
    # Of the classes of a clique, any two of which exclude each other, a plan splits one at most.
    at_once = _cliques(problem.rivals, len(saved))
    column, scale = np.zeros((len(at_once), 1)), whole.max()
    objective = np.append(np.zeros(len(saved)), -1.0)
    for moment in sorted(set(range(len(whole))) - set(found), key=lambda m: -whole[m]):
        more = (saved[:, found] - saved[:, [moment]]).T  # bytes that the others save more
        room = whole[moment] - whole[found]
        solved = linprog(
            objective,
            A_ub=np.block([[at_once, column], [-more / scale, np.ones((len(found), 1))]]),
            b_ub=np.append(np.ones(len(at_once)), room / scale),
            bounds=[(0, 1)] * len(saved) + [(None, None)],
        )
        duals = np.maximum(-solved.ineqlin.marginals, 0.0)
        share = duals[len(at_once) :] / duals[len(at_once) :].sum()
        price = duals[: len(at_once)] * scale
        left = np.maximum(share @ more - price @ at_once, 0.0).sum()
        if not share @ room + price.sum() + left <= -1.0:
            found.append(moment)
    return np.sort(found)


def _legal_plans(problem: Linear) -> np.ndarray:
    """Draw legal plans, (``SAMPLES``, K) bool, that split few classes to all that they may."""
    rng, plans = np.random.default_rng(0), np.zeros((SAMPLES, len(problem.gain)), dtype=bool)
    chance = rng.random(SAMPLES)
    for plan, likely in zip(plans, chance, strict=True):
        for k in rng.permutation(len(plan)):
            plan[k] = rng.random() < likely and not plan[problem.rivals[k]].any()
    return plans


def _cliques(rivals: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Cover all pairs of classes that exclude each other by cliques, (cliques, K) of 0 and 1."""
    of, cliques = [set(row.tolist()) for row in rivals], []
    pairs = {(i, j) for i, row in enumerate(of) for j in row if i < j}
    while pairs:
        clique = list(min(pairs))
        for k in sorted(of[clique[0]] & of[clique[1]]):
            if of[k].issuperset(clique):
                clique.append(k)
        pairs -= {(i, j) for i in clique for j in clique}
        cliques.append(np.isin(np.arange(count), clique))
    return np.array(cliques, dtype=np.float64).reshape(-1, count)


def unlimited(problem: Partitioning) -> Partitioning:
    """Return a problem with a limit that every plan keeps to: twice the replicated plan's peak."""
    limit = 2.0 * problem.peak(np.zeros(len(problem.classes), dtype=bool))
    return replace(problem, step=replace(problem.step, limit=limit))


def _fingerprint(instance: str) -> str:
    fingerprint: str = manifest()["instances"][instance]["graphs"]["train"]["fingerprint"]
    return fingerprint


def main(arguments: Iterable[str] | None = None) -> int:
    """Make banks again, and return the exit status."""
    banks = {name: partial(bank, name) for name in PARTITION_SETS}
    return write_banks("parenvs.datasets.partition.bank", __doc__, banks, arguments)


if __name__ == "__main__":
    sys.exit(main())
