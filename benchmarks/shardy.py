"""Dimension classes against XLA's own partitioner, Shardy.

Every single-dimension decision on small variants of the models, some on the full ones, and random
pairs. Needs the extra ``jax``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from common import parser, progress, publish, table

from parenvs import Graph
from parenvs.dimensions import DimensionClasses, dimension_classes
from parenvs.oracle import ShardyOracle

DEVICES = 2
Pair = tuple[int, int]


class Case:
    """One training step, lowered for Shardy and read by us."""

    def __init__(self, name: str, model: Any) -> None:
        import jax

        from parenvs.datasets.models import train_step

        function, args = train_step(model)
        self.name = name
        self.oracle = ShardyOracle(jax.jit(function, keep_unused=True).lower(*args), DEVICES)
        self.graph = Graph.from_jax(function, *args, name=name)
        self.classes: DimensionClasses = dimension_classes(self.graph)
        self.place: dict[Pair, int] = {
            (k, d): int(self.graph.dim_offset[t] + d)
            for k, t in enumerate(self.graph.parameter_tensor)
            for d, size in enumerate(self.graph.shape(t))
            if size % DEVICES == 0  # Shardy does not propagate to the others
        }
        self.odd: list[str] = []

    def label(self, pair: Pair) -> int:
        """Class of an input's dimension."""
        return int(self.classes.label[self.place[pair]])

    def blocked(self, pair: Pair) -> bool:
        """Whether its class can never be partitioned."""
        return bool(self.classes.blocked[self.label(pair)])

    def single(self, pair: Pair) -> str:
        """Outcome of one decision: every input must agree, and a reshard mean a blocked class."""
        found = self.oracle.propagate([pair])
        if self.blocked(pair):
            return self.outcome(bool(found.reshards), True, [pair])
        members = {x for x in self.place if self.label(x) == self.label(pair)}
        if set(found.partitioned) != members:
            self.odd.append(f"{self.name}: {self.words([pair])}: other inputs")
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
        """Kind of outcome; what is not the same in both is kept in words."""
        if reshards == stuck:
            return "conflict in both" if stuck else "legal in both"
        self.odd.append(f"{self.name}: {self.words(decided)}: {self.reason(decided)}")
        return "stricter" if stuck else "disagree"

    def reason(self, decided: list[Pair]) -> str:
        """Opcodes of the instructions that block the classes."""
        by = [int(self.classes.blocked_by[self.label(pair)]) for pair in decided]
        return ", ".join(
            self.graph.opcodes[self.graph.opcode[i]] if i >= 0 else "not blocked" for i in by
        )

    def words(self, decided: list[Pair]) -> str:
        """The decisions by path."""
        return ", ".join(f"{self.graph.paths[k]} dimension {d}" for k, d in decided)


def small_models() -> dict[str, Callable[[], Any]]:
    """Two layers, or two blocks, of each family, with even sizes."""
    from parenvs.datasets.models import bert, t5, vgg

    return {
        "vgg, 2 blocks": lambda: vgg(((2, 8), (2, 16)), 32, 10, 16, batch_size=8),
        "t5, 2+2 layers": lambda: t5(2, 64, 128, 4, 16, vocab=128, tokens=16, batch_size=8),
        "t5, wide heads": lambda: t5(2, 32, 512, 8, 32, vocab=128, tokens=16, batch_size=8),
        "bert, 2 layers": lambda: bert(
            2, 64, 4, 128, vocab=96, positions=16, tokens=16, predictions=4, batch_size=8
        ),
    }


def main() -> None:
    """Print and write a row for each model and kind of decision."""
    from parenvs.datasets.models import MODELS

    options = parser(__doc__)
    options.add_argument("--full", type=int, default=50, help="decisions on each full graph")
    options.add_argument("--pairs", type=int, default=300, help="random pairs in all")
    chosen = options.parse_args()
    rng = np.random.default_rng(0)
    small = small_models()
    rows, odd = [], []
    for name, make in [*small.items(), *((x, lambda m=m: m) for x, m in MODELS.items())]:
        begin = time.perf_counter()
        case = Case(name, make())
        inputs = list(case.place)
        every = name in small
        some = inputs if every else [inputs[i] for i in rng.permutation(len(inputs))[: chosen.full]]
        counts = Counter(case.single(pair) for pair in some)
        # Where a class is blocked there is nothing to compare but the reshard.
        compared = (counts["legal in both"] + counts["disagree"]) * len(inputs)
        rows.append(row(name, "single", compared, counts, begin))
        if every:
            begin = time.perf_counter()
            free = [pair for pair in inputs if not case.blocked(pair)]
            draws = []
            while len(draws) < chosen.pairs // len(small):
                one, other = (free[i] for i in rng.integers(len(free), size=2))
                if one[0] != other[0] and case.label(one) != case.label(other):
                    draws.append((one, other))
            counts = Counter(case.double(*pair) for pair in draws)
            rows.append(row(name, "pair", 0, counts, begin))
        odd += case.odd
        progress(f"{rows[-1]}")
    header = ["model", "decisions", "of", "inputs compared", "legal in both", "conflict in both"]
    header += ["ours stricter", "disagree", "seconds"]
    stricter = Counter(x.rsplit(": ", 1)[1] for x in odd)
    sections = [
        f"Training steps on a mesh of {DEVICES}. `legal`: no reshard, and every input is "
        "partitioned as its class says; `conflict`: Shardy reshards where a class is blocked or "
        "two conflict; "
        "`stricter`: we block what Shardy does without a reshard.",
        table(header, rows, left=2),
        "Stricter or in disagreement, by the instruction that blocks: "
        + (", ".join(f"{k} {v}" for k, v in sorted(stricter.items())) or "none")
        + ".",
    ]
    publish("shardy", sections, {"rows": rows, "odd": odd}, chosen.out)


def row(name: str, kind: str, compared: int, counts: Counter[str], begin: float) -> list[str]:
    """One row of the table."""
    kinds = ("legal in both", "conflict in both", "stricter", "disagree")
    cells = [name, kind, f"{counts.total():,}", f"{compared:,}" if compared else ""]
    return [*cells, *(str(counts[k]) for k in kinds), f"{time.perf_counter() - begin:.1f}"]


if __name__ == "__main__":
    main()
