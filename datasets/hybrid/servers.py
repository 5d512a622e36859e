"""Draws hetero problems: a chain of dense and expert blocks on servers of different speed.

A *hetero* problem is an ordinary ``Hybrid`` whose cluster has ``speeds``. Its plans have one chunk
and stages of exactly one server; free are which servers, their order (``HybridPlan.servers``), the
cuts, and tp, ZeRO and recomputation of every stage (docs/hetero.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from parenvs.cluster import Cluster
from parenvs.errors import UnknownInstanceError, did_you_mean, shown
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape

DEVICES_PER_SERVER = 8
STACKS = {"h100": "llama-2024@2", "a100": "megascale-2024@2"}
"""Device of a drawn cluster -> its stack; with both, sends are overlapped."""
STATE_BYTES = 18.0
"""Bytes of a parameter's weight, gradient, master copy and moments where nothing is shared."""
_MAX_STATES = 0.45  # share of the cluster's memory that they may take
_MAX_LAYER = 0.2  # share of a server's memory that those of one block may take
_LARGEST_SEED = 2**31


@dataclass(frozen=True)
class Tier:
    """Problems of one number of servers.

    Attributes:
        servers: their number.
        layers: fewest and most blocks for each server, a number each.
        slowest: speed of the slowest server that can be drawn; the fastest has 1.
        hidden: widths.
        sequences: tokens of a sample.
        experts: numbers of experts.
        batches: samples of a step for each server.
    """

    servers: int
    layers: tuple[float, float] = (2.0, 2.75)
    slowest: float = 0.6
    hidden: tuple[int, ...] = (5120, 6144, 7168, 8192, 10_240, 12_288)
    sequences: tuple[int, ...] = (4096, 8192)
    experts: tuple[int, ...] = (8, 16)
    batches: tuple[int, ...] = (8, 16, 32)

    @property
    def outside(self) -> Tier:
        """The tier with chains and servers that are not drawn for training."""
        return replace(
            self,
            layers=(3.0, 4.0),
            slowest=0.4,
            hidden=(4096, 14_336),
            sequences=(2048, 16_384),
            experts=(4, 32),
        )


TIERS = {f"hetero-{servers}": Tier(servers) for servers in (8, 16, 32, 64)}
"""Tier -> what is drawn for it."""


def _spread(tier: Tier, rng: np.random.Generator) -> np.ndarray:
    """Every server has a speed of its own."""
    return rng.uniform(tier.slowest, 1.0, tier.servers)


def _generations(tier: Tier, rng: np.random.Generator) -> np.ndarray:
    """Two to four generations of servers."""
    count = int(rng.integers(2, 5))
    speeds = np.append(1.0, rng.uniform(tier.slowest, 0.95, count - 1))
    of_server = np.append(np.arange(count), rng.integers(0, count, tier.servers - count))
    return speeds[rng.permutation(of_server)]


def _stragglers(tier: Tier, rng: np.random.Generator) -> np.ndarray:
    """Some servers are a tenth slower: 0.5 % of them (arXiv 2402.15627), at least one.

    The tiers are small beside that paper's cluster, so it is nearly always the one.
    """
    slow = rng.random(tier.servers) < 0.005
    slow[rng.integers(tier.servers)] = True
    return np.where(slow, 0.9, 1.0)


FAMILIES: dict[str, Callable[[Tier, np.random.Generator], np.ndarray]] = {
    "spread": _spread,
    "generations": _generations,
    "stragglers": _stragglers,
}
"""Family of problems -> how the speeds of its servers are drawn."""
_TURNS = ("spread", "spread", "generations", "spread", "spread", "generations", "spread",
          "stragglers")  # fmt: skip


def family_of(number: int) -> str:
    """Return the family of a problem by its number: of every eight, five are ``"spread"``."""
    return _TURNS[number % len(_TURNS)]


def draw(tier: str, rng: np.random.Generator) -> Hybrid:
    """Draw a problem of a tier, for training.

    Its instance is ``TIER/SEED``, by which ``parenvs.problem`` and plan files find it again.

    Args:
        tier: one of ``TIERS``.
        rng: source of the seed.

    Raises:
        UnknownInstanceError: there is no such tier.
    """
    return drawn(tier, int(rng.integers(_LARGEST_SEED)))


def drawn(tier: str, seed: int) -> Hybrid:
    """Return the problem that a tier has for a seed, called ``TIER/SEED``.

    Raises:
        UnknownInstanceError: there is no such tier.
    """
    if tier not in TIERS:
        raise UnknownInstanceError(
            f"unknown tier {shown(tier)}{did_you_mean(tier, TIERS)}; known: {', '.join(TIERS)}"
        )
    rng = np.random.default_rng([TIERS[tier].servers, seed])
    return make(TIERS[tier], family_of(seed), rng, f"{tier}/{seed}")


def make(tier: Tier, family: str, rng: np.random.Generator, name: str) -> Hybrid:
    """Make a problem of a tier and family.

    Args:
        tier: the ranges.
        family: one of ``FAMILIES``.
        rng: source of all numbers.
        name: of the problem.
    """
    device = str(rng.choice(list(STACKS)))
    cluster = Cluster.parse(f"{tier.servers}x{DEVICES_PER_SERVER}:{device}")
    speeds = np.round(FAMILIES[family](tier, rng), 3)
    cluster = replace(cluster, speeds=tuple(speeds.tolist()))
    shape = _shape(tier, rng, name, cluster)
    batch = tier.servers * int(rng.choice(tier.batches))
    return Hybrid(HybridModel.of_shape(shape), cluster, batch, STACKS[device])  # type: ignore[arg-type]


def _shape(tier: Tier, rng: np.random.Generator, name: str, cluster: Cluster) -> TransformerShape:
    """Draw a chain whose weights fit the cluster, and each block's a server."""
    fewest, largest = (round(tier.servers * share) for share in tier.layers)
    while True:
        hidden = int(rng.choice(tier.hidden))
        experts, active = int(rng.choice(tier.experts)), int(rng.choice((1, 2)))
        dense = _width(hidden * rng.uniform(2.5, 4.0))
        shape = TransformerShape(
            name,
            layers=int(rng.integers(fewest, largest + 1)),
            hidden=hidden,
            heads=hidden // 128,
            sequence=int(rng.choice(tier.sequences)),
            vocabulary=int(rng.choice((32_000, 65_536, 128_256))),
            kv_heads=8,
            feed_forward=_width(dense * rng.uniform(0.4, 1.6) / active),
            gated=True,
            dropout=False,
            bias=False,
            tied=False,
            experts=experts,
            active=active,
            experts_every=int(rng.choice((2, 2, 3))),
            dense_feed_forward=dense,
        )
        block = STATE_BYTES * sum(shape.block_parameters)
        server = cluster.memory_limit * DEVICES_PER_SERVER
        fits = STATE_BYTES * shape.parameters <= _MAX_STATES * server * tier.servers
        if fits and block <= _MAX_LAYER * server:
            return shape


def _width(width: float) -> int:
    """Return a whole multiple of 256, so that the ranks of tp can share it."""
    return max(round(width / 256), 1) * 256
