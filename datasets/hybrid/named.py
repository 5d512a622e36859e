"""Hybrid problems by name: of a set, or drawn, ``hybrid/SEED`` or ``TIER/SEED``.

The first problems of each generator are kept as arrays, with their best uniform plans: the banks
that environments play.

    python -m parenvs.datasets.hybrid.named             # make the banks again
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from parenvs.cluster import Cluster
from parenvs.core.sets import BEST_KNOWN, BOUND, OPTIMUM, Reference, SetKind, share_kind
from parenvs.datasets.banks import Bank, write_banks
from parenvs.datasets.hybrid import drawing, servers
from parenvs.datasets.references import HETERO, HYBRID, SAME, costs_of
from parenvs.errors import UnknownInstanceError, did_you_mean, shown
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan_arrays import Start, fastest
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.shipped import problem_sets
from parenvs.tasks.hybrid.stack import Stack

BANKS = {"hybrid": 6000, "hetero-8": 800, "hetero-16": 400, "hetero-32": 200, "hetero-64": 100}
"""Generator -> problems of its bank, those of the seeds from 0."""
DEVICES = ("a100", "h100")
"""Devices of drawn clusters."""
SPEED_STEPS = 1000
"""Speeds of servers are multiples of one over this."""
SHAPE = (
    "layers", "hidden", "heads", "sequence", "vocabulary", "kv_heads", "feed_forward", "gated",
    "dropout", "bias", "tied", "positions", "experts", "active", "experts_every",
    "dense_feed_forward",
)  # fmt: skip
"""What is drawn of a shape; the rest has its defaults."""
_FLAGS = {"gated", "dropout", "bias", "tied"}


def find_hybrid(name: str) -> Hybrid:
    """Return a problem: ``SET/FAMILY-NUMBER`` of a set, ``hybrid/SEED`` or ``TIER/SEED`` drawn.

    Raises:
        UnknownInstanceError: there is no such set, or no such problem in it, or the seed is none.
    """
    kind, _, number = name.partition("/")
    if kind in BANKS:
        if not (number.isascii() and number.isdigit() and len(number) < 20):
            raise UnknownInstanceError(
                f"instance {name!r}: give a seed, like {kind}/7, or a set, like {kind}-test"
            )
        return drawn_by(kind, int(number))
    if kind not in problem_sets():
        raise UnknownInstanceError(
            f"unknown set {shown(kind)}{did_you_mean(kind, problem_sets())}; known: "
            f"{', '.join(problem_sets())}"
        )
    problems = {problem.instance: problem for problem in problem_sets()[kind]}
    if name not in problems:
        raise UnknownInstanceError(
            f"unknown problem {name!r}{did_you_mean(name, problems)}; {kind} holds "
            f"{len(problems)}, like {next(iter(problems))}"
        )
    return problems[name]


def drawn_by(kind: str, seed: int) -> Hybrid:
    """Return the problem that a generator, one of ``BANKS``, draws by a seed."""
    return drawing.drawn(seed) if kind == drawing.TIER else servers.drawn(kind, seed)


def family_of(kind: str, seed: int) -> str:
    """Return the family of the problem that a generator draws by a seed."""
    own = drawing if kind == drawing.TIER else servers
    return own.family_of(seed)


def start_of(name: str) -> Start:
    """Return where improving a problem of a set, or a drawn one, starts; those of a bank are kept.

    Raises:
        ParenvsError: there is no such problem.
    """
    kind, _, number = name.partition("/")
    if kind in BANKS and number.isdecimal() and int(number) < BANKS[kind]:
        row = bank(kind)[int(number)]
        return Start(_problem(kind, name, row), row["start"].astype(np.int64))
    return Start(find_hybrid(name), known=costs(name) if kind in problem_sets() else None)


@lru_cache(maxsize=len(BANKS))
def bank(kind: str) -> Bank:
    """Return the bank of a generator."""
    return Bank(f"hybrid-{kind}", BANKS[kind], partial(_row, kind))


def _row(kind: str, seed: int) -> Mapping[str, np.ndarray]:
    """Return what a bank keeps of a problem: all that is drawn, and its best uniform plan."""
    problem = drawn_by(kind, seed)
    cluster, shape = problem.cluster, problem.model.shape
    return {
        "shape": np.array([getattr(shape, name) for name in SHAPE], dtype=np.int32),
        "device": np.array(DEVICES.index(cluster.device.name), dtype=np.uint8),
        "servers": np.array(cluster.servers, dtype=np.uint8),
        "network": np.array(cluster.device_nic_bw),
        "speeds": np.round(np.array(cluster.speeds) * SPEED_STEPS).astype(np.uint16),
        "batch": np.array(problem.batch, dtype=np.int32),
        "start": fastest(problem)[0].astype(np.int16),
    }


def _problem(kind: str, name: str, row: Mapping[str, np.ndarray]) -> Hybrid:
    """Return the problem of a bank's row."""
    device = DEVICES[int(row["device"])]
    cluster = Cluster.parse(f"{int(row['servers'])}x{servers.DEVICES_PER_SERVER}:{device}")
    if kind == drawing.TIER:
        cluster, stack = replace(cluster, nic_bw=float(row["network"]), name=""), drawing.STACK
    else:
        speeds = tuple((row["speeds"] / SPEED_STEPS).tolist())
        cluster, stack = replace(cluster, speeds=speeds), servers.STACKS[device]
    drawn = zip(SHAPE, row["shape"].tolist(), strict=True)
    fields: dict[str, Any] = {key: bool(x) if key in _FLAGS else x for key, x in drawn}
    model = HybridModel.of_shape(TransformerShape(name, **fields))
    return Hybrid(model, cluster, int(row["batch"]), Stack.parse(stack))


def costs(name: str) -> Reference | None:
    """Return the least seconds known of a problem of a set, and what no plan takes less than.

    Where no plan is known, both are the bound.
    """
    problem = find_hybrid(name)
    bound = problem.kernel_bound_seconds
    for file in (HYBRID, HETERO):
        known = costs_of(file, name, problem.model.fingerprint)
        if known is not None:  # bounds of hetero rows are of plans of one server a stage alone
            kind = OPTIMUM if known.value <= bound * (1 + SAME) else BEST_KNOWN
            return Reference(known.value, bound, kind)
    return Reference(bound, bound, BOUND)


def set_kind(name: str) -> SetKind:
    """Return what evaluations know of a set of hybrid problems; see ``SetKind``."""

    def names(name: str) -> list[str]:
        return [problem.instance for problem in problem_sets()[name]]

    return share_kind("HybridPlan-v1", names, find_hybrid, costs, "family")


def main(arguments: Iterable[str] | None = None) -> int:
    """Make banks again, and return the exit status."""
    banks = {kind: partial(bank, kind) for kind in BANKS}
    return write_banks("parenvs.datasets.hybrid.named", __doc__, banks, arguments)


if __name__ == "__main__":
    sys.exit(main())
