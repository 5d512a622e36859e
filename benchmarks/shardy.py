"""Dimension classes against XLA's own partitioner, Shardy.

Every single-dimension decision on small variants of the models, some on the full ones, and random
pairs; every decision and every pair of them on functions of one instruction. Needs the extra
``jax``.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.framework import main, measurement, progress, table
from parenvs import from_jax
from parenvs.graph.graph import Role
from parenvs.instances import PAPER
from parenvs.shardy.verify import ShardyOracle
from parenvs.tasks.partition.classes import DimensionClasses, dimension_classes

DEVICES = 2
Pair = tuple[int, int]
KINDS = ("legal in both", "conflict in both", "stricter", "disagree")
STRICTER = {
    "convolution": "spatial dimensions, which need a halo exchange, and groups",
    "custom-call": "all but the batch of a factorization, everything where nobody knows",
    "dynamic-update-slice": "dimensions that are updated in part",
    "pad": "padded dimensions",
    "reduce-window": "dimensions that the window slides over, cumulative sums among them",
    "reshape": "minor dimensions of a group",
    "reverse": "reversed dimensions",
    "slice": "sliced dimensions",
}
"""What our rules leave alone and Shardy splits without a reshard, by blocking instruction."""


class Case:
    """One function, lowered for Shardy and read by us."""

    def __init__(self, name: str, function: Any, args: Any) -> None:
        import jax

        jitted = function if hasattr(function, "lower") else jax.jit(function, keep_unused=True)
        self.name = name
        self.oracle = ShardyOracle(jitted.lower(*args), DEVICES)
        self.graph = from_jax(function, *args, parts=False, name=name)
        self.classes: DimensionClasses = dimension_classes(self.graph)
        self.place: dict[Pair, int] = {
            (k, d): int(self.graph.dim_offset[t] + d)
            for k, t in enumerate(self.graph.parameter_tensor)
            for d, size in enumerate(self.graph.shape(t))
            if size % DEVICES == 0  # Shardy does not propagate to the others
            and self.graph.parameter_role[k] != Role.SCALAR  # every device holds random keys
        }
        self.odd: list[str] = []
        self.stricter: dict[str, Counter[str]] = {"single": Counter(), "pair": Counter()}

    def label(self, pair: Pair) -> int:
        """Class of an input's dimension."""
        return int(self.classes.label[self.place[pair]])

    def blocked(self, pair: Pair) -> bool:
        """Whether its class can never be partitioned."""
        return bool(self.classes.blocked[self.label(pair)])

    def single(self, pair: Pair) -> str:
        """Outcome of one decision: a reshard must mean a blocked class.

        Where there is none, the partitioned inputs must be those of the class, and an all-reduce
        stand where one of its factors leaves a partial result.
        """
        found = self.oracle.propagate([pair])
        if self.blocked(pair):
            return self.outcome(bool(found.reshards), True, [pair])
        members = {x for x in self.place if self.label(x) == self.label(pair)}
        partial = bool(
            self.classes.factors.kind[self.classes.factor_class == self.label(pair)].any()
        )
        if set(found.partitioned) != members or ("all_reduce" in found.collectives) != partial:
            what = "all-reduces" if set(found.partitioned) == members else "inputs"
            self.odd.append(f"{self.name}: {self.words([pair])}: other {what}")
            return "disagree"
        return self.outcome(bool(found.reshards), False, [pair])

    def double(self, one: Pair, other: Pair) -> str:
        """Outcome of two decisions: a reshard must mean a conflict or a blocked class."""
        pair = sorted((self.label(one), self.label(other)))
        conflicts = (self.classes.conflicts == pair).all(axis=1).any()
        stuck = bool(conflicts or self.blocked(one) or self.blocked(other))
        found = self.oracle.propagate([one, other])
        return self.outcome(bool(found.reshards), stuck, [one, other])

    def outcome(self, reshards: bool, stuck: bool, decided: list[Pair]) -> str:
        """The kind of outcome; a difference is kept in words."""
        if reshards == stuck:
            return "conflict in both" if stuck else "legal in both"
        self.odd.append(f"{self.name}: {self.words(decided)}: {self.reason(decided)}")
        if not stuck:
            return "disagree"
        self.stricter["single" if len(decided) == 1 else "pair"][self.reason(decided)] += 1
        return "stricter"

    def reason(self, decided: list[Pair]) -> str:
        """Opcode of the first instruction that blocks a decided class."""
        by = [int(self.classes.blocked_by[self.label(pair)]) for pair in decided]
        found = [self.graph.opcodes[self.graph.opcode[i]] for i in by if i >= 0]
        return found[0] if found else "not blocked"

    def every(self) -> tuple[Counter[str], Counter[str]]:
        """Outcomes of all single decisions, and of all pairs on different inputs."""
        pairs = [x for x in itertools.combinations(self.place, 2) if x[0][0] != x[1][0]]
        single = Counter(self.single(x) for x in self.place)
        return single, Counter(self.double(*x) for x in pairs)

    def words(self, decided: list[Pair]) -> str:
        """The decisions by path."""
        return ", ".join(f"{self.graph.paths[k]} dimension {d}" for k, d in decided)


def small_models() -> dict[str, Callable[[], Any]]:
    """Models of two layers or blocks, one per family, with even sizes."""
    from parenvs.datasets.models import bert, t5, vgg

    return {
        "vgg, 2 blocks": lambda: vgg(((2, 8), (2, 16)), 32, 10, 16, batch_size=8),
        "t5, 2+2 layers": lambda: t5(2, 64, 128, 4, 16, vocab=128, tokens=16, batch_size=8),
        "t5, wide heads": lambda: t5(2, 32, 512, 8, 32, vocab=128, tokens=16, batch_size=8),
        "bert, 2 layers": lambda: bert(
            2, 64, 4, 128, vocab=96, positions=16, tokens=16, predictions=4, batch_size=8
        ),
    }


def sweep_models(full: int, pairs: int) -> dict[str, Any]:
    """Figures of the training steps."""
    from parenvs.datasets.models import MODELS, train_step

    rng = np.random.default_rng(0)
    small = small_models()
    rows, odd = [], []
    for name, make in [*small.items(), *((x, lambda x=x: MODELS[x]) for x in PAPER)]:
        begin = time.perf_counter()
        case = Case(name, *train_step(make()))
        inputs = list(case.place)
        every = name in small
        some = inputs if every else [inputs[i] for i in rng.permutation(len(inputs))[:full]]
        counts = Counter(case.single(pair) for pair in some)
        # Where a class is blocked, only the reshard can be compared.
        compared = (counts.total() - counts["conflict in both"] - counts["stricter"]) * len(inputs)
        rows.append({"model": name, "inputs compared": compared, **outcomes_of(counts, begin)})
        if every:
            begin = time.perf_counter()
            free = [pair for pair in inputs if not case.blocked(pair)]
            draws = []
            while len(draws) < pairs // len(small):
                one, other = (free[i] for i in rng.integers(len(free), size=2))
                if one[0] != other[0] and case.label(one) != case.label(other):
                    draws.append((one, other))
            counts = Counter(case.double(*pair) for pair in draws)
            rows.append({"model": f"{name}, pairs", **outcomes_of(counts, begin)})
        odd += case.odd
        progress(f"{rows[-1]}")
    return {"rows": rows, "odd": odd}


def sweep_ops() -> dict[str, Any]:
    """Figures of the functions of one instruction."""
    from tests.helpers.single_ops import OPS

    odd = []
    total = {"single": Counter[str](), "pair": Counter[str]()}
    reasons = {"single": Counter[str](), "pair": Counter[str]()}
    for opcode, functions in OPS.items():
        for name, (function, args) in functions.items():
            case = Case(f"{opcode}, {name}", function, args)
            for kind, outcomes in zip(total, case.every(), strict=True):
                total[kind] += outcomes
                reasons[kind] += case.stricter[kind]
            odd += case.odd
    return {"functions": sum(map(len, OPS.values())), **total, "stricter": reasons, "odd": odd}


@measurement(
    title="Dimension classes against Shardy",
    about={"full": "decisions on each full graph", "pairs": "random pairs in all"},
)
def shardy(full: int = 50, pairs: int = 300) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a loop's trip count and of unknown custom calls
        ops = sweep_ops()
    return {**sweep_models(full, pairs), "ops": ops}


@shardy.page
def page(data: dict[str, Any]) -> list[str]:
    ops = data["ops"]
    ends = ("not blocked", "other inputs", "other all-reduces")
    wrong = [x for x in [*data["odd"], *ops["odd"]] if x.endswith(ends)]
    lines = [
        [name, *(sum(counts.get(kind, 0) for counts in several) for kind in KINDS)]
        for name, several in (
            ("training steps", data["rows"]),
            ("functions of one instruction, single decisions", [ops["single"]]),
            ("functions of one instruction, pairs of decisions", [ops["pair"]]),
        )
    ]
    return [
        f"Decisions on a mesh of {DEVICES}. Legal: no reshard, and every input is partitioned as "
        "its class says; conflict: Shardy reshards where a class is blocked or two conflict; "
        "stricter: a decision is blocked that Shardy takes without a reshard.",
        table(["", "legal in both", "conflict in both", "ours stricter", "disagree"], lines),
        "Stricter are: " + "; ".join(f"{key}, {words}" for key, words in STRICTER.items()) + ".",
        "In disagreement: " + (", ".join(wrong) or "none") + ".",
    ]


def outcomes_of(counts: Counter[str], begin: float) -> dict[str, Any]:
    """The number of decisions of each outcome, and seconds since they began."""
    return {**counts, "seconds": round(time.perf_counter() - begin, 1)}


if __name__ == "__main__":
    main(shardy)
