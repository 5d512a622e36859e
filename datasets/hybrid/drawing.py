"""Draws hybrid problems: transformers of three families on clusters of two generations.

A problem is called ``hybrid/SEED`` and is the same wherever and whenever it is drawn. Numbers are
from the ranges of models that were trained and published (docs/hybrid-envs.md): 8 to 96 layers,
widths from 1,024 to 12,288, 2 to 32 servers of eight A100 or H100 with network cards of 12.5 to
50 GB/s. A problem is kept if some plan of equal stages that recomputes everything fits, and if its
weights and states take at least a tenth of a server's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parenvs.cluster import Cluster
from parenvs.errors import UnknownInstanceError, did_you_mean, shown
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.uniform import Uniform

TIER = "hybrid"
"""Name of the generator; problems are called ``hybrid/SEED``."""
STACK = "nemo-2024@2"
"""Software of all drawn problems; it knows its share of the peak on both devices."""
STATE_BYTES = 18.0
"""Bytes of a parameter's weight, gradient, master copy and moments where nothing is shared."""
_EASY = 0.1  # of a server's memory: states below it need no plan
_TRIES = 1000


@dataclass(frozen=True)
class Ranges:
    """What is drawn; pairs are the least and the most.

    Attributes:
        layers: of the chain.
        hidden: widths.
        sequences: tokens of a sample.
        servers: numbers of servers.
        batch: binary logarithms of the samples of a step.
        networks: bytes/s of a device's network card.
    """

    layers: tuple[int, int] = (8, 96)
    hidden: tuple[int, int] = (1024, 12_288)
    sequences: tuple[int, ...] = (1024, 2048, 4096, 8192)
    servers: tuple[int, ...] = (2, 3, 4, 6, 8, 12, 16, 24, 32)
    batch: tuple[int, int] = (6, 11)
    networks: tuple[float, ...] = (12.5e9, 25e9, 50e9)


INSIDE = Ranges()
"""What agents train on."""
OUTSIDE = Ranges(
    layers=(64, 128),
    hidden=(8192, 20_480),
    sequences=(2048, 16_384),
    servers=(20, 40, 48, 64),
    batch=(9, 12),
    networks=(6.25e9, 100e9),
)
"""Larger models on larger clusters, with other networks."""


def _gpt(rng: np.random.Generator, hidden: int) -> dict[str, Any]:
    """Full attention, 4 h wide, biases, tied embedding (GPT-2, GPT-3, Megatron)."""
    return {
        "kv_heads": 0, "feed_forward": 4 * hidden, "positions": 2048,
        "vocabulary": int(rng.choice((50_304, 51_200))),
        "dropout": bool(rng.integers(2)), "tied": True,
    }  # fmt: skip


def _llama(rng: np.random.Generator, hidden: int) -> dict[str, Any]:
    """Grouped queries, a gate, no biases (Llama, Qwen, Mistral)."""
    return {
        "kv_heads": int(rng.choice((0, 4, 8))), "gated": True, "dropout": False, "bias": False,
        "feed_forward": _multiple(hidden * rng.uniform(2.5, 4.0), 256), "tied": False,
        "vocabulary": int(rng.choice((32_000, 65_536, 128_256, 152_064))),
    }  # fmt: skip


def _mixture(rng: np.random.Generator, hidden: int) -> dict[str, Any]:
    """A mixture of experts in every block (Mixtral, DBRX)."""
    experts = int(rng.choice((4, 8, 16)))
    return {
        **_llama(rng, hidden),
        "feed_forward": _multiple(hidden * rng.uniform(0.75, 3.5), 256),
        "experts": experts, "active": int(rng.choice((1, 2))),
    }  # fmt: skip


FAMILIES: dict[str, Callable[[np.random.Generator, int], dict[str, Any]]] = {
    "gpt": _gpt,
    "llama": _llama,
    "mixture": _mixture,
}
"""Family of problems -> what its shapes have beside layers, width, heads and tokens."""


def family_of(seed: int) -> str:
    """Return the family of a problem by its seed; families take turns."""
    return tuple(FAMILIES)[seed % len(FAMILIES)]


def drawn(seed: int) -> Hybrid:
    """Return the problem ``hybrid/SEED``."""
    return make(INSIDE, family_of(seed), np.random.default_rng([2020, seed]), f"{TIER}/{seed}")


def make(ranges: Ranges, family: str, rng: np.random.Generator, name: str) -> Hybrid:
    """Make a problem of a family.

    Args:
        ranges: what is drawn.
        family: one of ``FAMILIES``.
        rng: source of all numbers.
        name: of the problem.

    Raises:
        UnknownInstanceError: there is no such family.
    """
    if family not in FAMILIES:
        raise UnknownInstanceError(
            f"unknown family {shown(family)}{did_you_mean(family, FAMILIES)}; known: "
            f"{', '.join(FAMILIES)}"
        )
    for _ in range(_TRIES):
        problem = _attempt(ranges, family, rng, name)
        if problem is not None:
            return problem
    raise UnknownInstanceError(f"{name}: no problem of family {family} in {_TRIES} draws")


def _attempt(ranges: Ranges, family: str, rng: np.random.Generator, name: str) -> Hybrid | None:
    """Draw a problem; None if nothing fits, or everything does."""
    width = int(rng.choice((64, 128)))
    hidden = _multiple(_log_uniform(rng, *ranges.hidden), 4 * width)
    servers, device = int(rng.choice(ranges.servers)), str(rng.choice(("a100", "h100")))
    cluster = replace(
        Cluster.parse(f"{servers}x8:{device}"), nic_bw=float(rng.choice(ranges.networks)), name=""
    )
    rest = FAMILIES[family](rng, hidden)
    heads = hidden // width
    if rest["kv_heads"] and heads % rest["kv_heads"]:
        rest["kv_heads"] = 4
    shape = TransformerShape(
        name,
        layers=round(_log_uniform(rng, *ranges.layers)),
        hidden=hidden,
        heads=heads,
        sequence=int(rng.choice(ranges.sequences)),
        **rest,
    )
    batch = 2 ** int(rng.integers(ranges.batch[0], ranges.batch[1] + 1))
    states = STATE_BYTES * shape.parameters
    if not _EASY * cluster.memory_limit * 8 < states < 0.8 * cluster.memory_limit * 8 * servers:
        return None
    problem = Hybrid(HybridModel.of_shape(shape), cluster, batch, STACK)  # type: ignore[arg-type]
    return problem if _fits(problem) else None


def _fits(problem: Hybrid) -> bool:
    """Whether some plan of equal stages with tp 8 or 4 that recomputes everything fits."""
    devices, layers = problem.cluster.devices, len(problem.model)
    rows = [
        (tp, pp, devices // (tp * pp))
        for tp in (8, 4)
        if problem.model.reasons_against_tp(tp) is None
        for pp in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
        if pp <= layers and devices % (tp * pp) == 0
    ]
    rows = [row for row in rows if problem.batch % row[2] == 0]
    if not rows:
        return False
    tp, pp, dp = (np.array(column) for column in zip(*rows, strict=True))
    plans = Uniform(
        tp, pp, dp, 1, problem.batch, sequence_parallel=True, recompute="full", zero=1,
        gradient_bytes=4.0,
    )  # fmt: skip
    memory = plans.judged(problem.model, problem.cluster, problem.machine)[1]
    return bool((memory["total"] <= problem.memory_limit).any())


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _multiple(number: float, of: int) -> int:
    """Return the nearest whole multiple, at least one."""
    return max(round(number / of), 1) * of
