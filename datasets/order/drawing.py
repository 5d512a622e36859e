"""Draws steps of packed micro-batches: documents, a model, and servers that differ a little.

    python -m parenvs.datasets.order.drawing                 # what is drawn, as a table

Lengths of documents are a mixture: a lognormal body of web pages, and a tail of long documents that
falls like a power (books, repositories). That corpora are so skewed is well known (arXiv
2405.13226, section 2); the parameters here are ours and fit no corpus.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.hybrid.shipped import shapes
from parenvs.tasks.hybrid.uniform import even_bounds
from parenvs.tasks.order.packing import PackedStep, squares_of
from parenvs.tasks.order.problem import Order

POOL_SEED = 1976
"""Seed of the pools that environments draw from; the sets have another."""
SHORTEST = 16
"""Tokens of the shortest document."""
TAIL = 1.0
"""Exponent of the tail: P(length > x) falls as 1 / x^TAIL."""
BLOCK = 256
"""Documents drawn at a time."""


class Tier(NamedTuple):
    """Problems of one size.

    Attributes:
        stages: S, servers of the pipeline.
        micro_batches: M.
        models: one of these; models and tokens that fit the memory together are equally likely.
    """

    stages: int
    micro_batches: int
    models: tuple[str, ...]


TIERS = {
    "p4-m8": Tier(4, 8, ("llama2-7b", "llama3-8b", "llama2-13b")),
    "p8-m16": Tier(8, 16, ("llama3-8b", "llama2-13b", "llama3-70b")),
    "p8-m32": Tier(8, 32, ("llama3-8b", "llama2-13b", "llama3-70b")),
    "p16-m32": Tier(16, 32, ("llama2-13b", "llama3-70b", "llama2-70b")),
    "p16-m64": Tier(16, 64, ("llama2-13b", "llama3-70b", "llama2-70b")),
}
"""Tiers by name, of which problems of ``MicroBatchOrder-v1`` are drawn."""
LARGE = {
    "p32-m128": Tier(32, 128, ("llama3-70b", "llama2-70b", "llama3-405b")),
    "p64-m256": Tier(64, 256, ("llama3-70b", "llama2-70b", "llama3-405b")),
}
"""Tiers of steps beyond what bounds close."""
ALL_TIERS = {**TIERS, **LARGE}
"""Both."""


@dataclass(frozen=True)
class OrderRanges:
    """Ranges that packed steps are drawn from; pairs are (smallest, largest).

    Attributes:
        tokens: of a micro-batch, one of these.
        median: of the lognormal body, tokens, log-uniform.
        spread: standard deviation of the logarithm of the body, uniform.
        long: share of documents in the tail, log-uniform.
        longest_from: where the tail begins, as a share of a micro-batch, log-uniform.
        speeds: of servers, each uniform.
    """

    tokens: tuple[int, ...] = (65536, 131072)
    median: tuple[float, float] = (700.0, 3000.0)
    spread: tuple[float, float] = (1.0, 1.5)
    long: tuple[float, float] = (0.005, 0.05)
    longest_from: tuple[float, float] = (0.2, 0.6)
    speeds: tuple[float, float] = (0.9, 1.0)


INSIDE = OrderRanges()
"""What agents train on."""
OUTSIDE = OrderRanges(
    tokens=(32768, 262144),
    median=(3000.0, 8000.0),
    long=(0.002, 0.1),
    longest_from=(0.5, 0.9),
    speeds=(0.8, 1.0),
)
"""Longer and shorter micro-batches, longer documents, servers that differ more."""


def draw_lengths(
    rng: np.random.Generator, total: int, tokens: int, ranges: OrderRanges = INSIDE
) -> np.ndarray:
    """Draw the lengths of documents until they have ``total`` tokens or more.

    Args:
        rng: the generator.
        total: tokens that are needed.
        tokens: of a micro-batch, which no document exceeds.
        ranges: where the distribution is drawn from.
    """
    median, long, share = (
        np.exp(rng.uniform(*np.log(pair)))
        for pair in (ranges.median, ranges.long, ranges.longest_from)
    )
    spread = rng.uniform(*ranges.spread)
    blocks, drawn = [], 0
    while drawn < total:
        body = median * np.exp(spread * rng.standard_normal(BLOCK))
        tail = share * tokens * (1.0 - rng.random(BLOCK)) ** (-1.0 / TAIL)
        lengths = np.where(rng.random(BLOCK) < long, tail, body)
        blocks.append(np.clip(np.round(lengths), SHORTEST, tokens).astype(np.int64))
        drawn += int(blocks[-1].sum())
    return np.concatenate(blocks)


def draw_step(
    rng: np.random.Generator, tier: str | Tier, ranges: OrderRanges = INSIDE
) -> PackedStep:
    """Draw a packed step.

    Args:
        rng: the generator.
        tier: the size, or its name.
        ranges: what is drawn.

    Raises:
        ParenvsError: there is no such tier.
    """
    size = tier_of(tier) if isinstance(tier, str) else tier
    fitting = _fitting(size, ranges)
    model, tokens = fitting[int(rng.integers(len(fitting)))]
    speeds = np.round(rng.uniform(*ranges.speeds, size.stages), 3)
    lengths = draw_lengths(rng, tokens * size.micro_batches, tokens, ranges)
    squares = squares_of(lengths, tokens, size.micro_batches)
    return step_of(model, tokens, speeds, squares)


def step_of(model: str, tokens: int, speeds: np.ndarray, squares: np.ndarray) -> PackedStep:
    """Return a packed step.

    Args:
        model: its name.
        tokens: of each micro-batch.
        speeds: (S,) of servers of 8 H100.
        squares: (M,) sum of the squared lengths of the documents of each micro-batch.
    """
    step = _bare(model, tokens, len(speeds))
    cluster = replace(step.cluster, speeds=tuple(speeds.tolist()))
    return replace(step, cluster=cluster, squares=tuple(squares.tolist()))


def draw_ordering(
    rng: np.random.Generator, tier: str | Tier, ranges: OrderRanges = INSIDE, name: str = "drawn"
) -> Order:
    """Draw a problem; arguments as of ``draw_step``, and the name that plans carry."""
    return Order.of_step(draw_step(rng, tier, ranges), name)


def tier_of(name: str) -> Tier:
    """Return a tier by name.

    Raises:
        ParenvsError: there is no such tier.
    """
    if name not in ALL_TIERS:
        raise ParenvsError(
            f"unknown tier {shown(name)}{did_you_mean(str(name), ALL_TIERS)}; known: "
            f"{', '.join(ALL_TIERS)}"
        )
    return ALL_TIERS[name]


def _fitting(tier: Tier, ranges: OrderRanges) -> list[tuple[str, int]]:
    """Return models and tokens of a micro-batch that fit the memory together."""
    return [
        (model, tokens)
        for model in tier.models
        for tokens in ranges.tokens
        if _fits(model, tokens, tier.stages)
    ]


@lru_cache(maxsize=256)
def _bare(model: str, tokens: int, stages: int) -> PackedStep:
    """Return a step of one micro-batch, a document, on servers of 8 H100 of equal speed."""
    shape = replace(shapes()[model], sequence=tokens)
    layers = tuple(np.diff(even_bounds(shape.layers, stages)).tolist())
    return PackedStep(shape, Cluster.parse(f"{stages}x8:h100"), layers, (tokens**2,))


@lru_cache(maxsize=256)
def _fits(model: str, tokens: int, stages: int) -> bool:
    """Return whether the stages fit the memory with as many micro-batches as are ever in flight."""
    step = replace(_bare(model, tokens, stages), squares=(tokens**2,) * stages)
    hybrid = step.hybrid
    return hybrid.report(step.plan(hybrid)).legal


def main(arguments: Iterable[str] | None = None) -> int:
    """Print what is drawn, a line for each tier, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20, help="problems of each tier")
    options = parser.parse_args(None if arguments is None else list(arguments))
    for where, ranges in (("inside", INSIDE), ("outside", OUTSIDE)):
        for tier in ALL_TIERS:
            rng = np.random.default_rng(options.seed)
            drawn = [draw_ordering(rng, tier, ranges) for _ in range(options.count)]
            work = [problem.work for problem in drawn]
            ratio = np.mean([x.max() / x.min() for x in work])
            spread = np.mean([x.std() / x.mean() for x in work])
            stage = [(p.forward + p.backward).sum(axis=1) for p in drawn]
            uneven = np.mean([x.max() / x.mean() - 1 for x in stage])
            sys.stdout.write(
                f"{where} {tier}: micro-batches longest/shortest {ratio:.2f}, spread {spread:.0%}; "
                f"longest stage {uneven:.0%} over the mean\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
