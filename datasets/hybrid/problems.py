"""Hybrid problems: how they are generated, the fixed sets, and what is known of their plans.

A generator's problem is called ``GENERATOR/SEED`` and is the same wherever and whenever it is
generated; problems of sets are called ``SET/FAMILY-NUMBER`` and stored as data, so that they
outlive changes of generators. Sets named ``outside`` have larger models and other clusters than
training.

*Equal servers* (``hybrid``): transformers of three families. Numbers are from the ranges of models
that were trained and published (docs/hybrid.md). A problem is kept if some plan of equal stages
that recomputes everything fits, and if its weights and states take at least a tenth of a server's
memory.

*Unequal servers* (``hetero-N``): a chain of dense and expert blocks on N servers of different
``speeds``. Plans have one chunk and one server per stage; open are which servers, their order, the
cuts, and tp, ZeRO and recomputation of every stage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random import Generator

from parenvs.cluster import Cluster
from parenvs.compiled import Array
from parenvs.core.sets import BEST_KNOWN, BOUND, OPTIMUM, BestValue, SetKind, member_of
from parenvs.datasets.banks import Bank
from parenvs.datasets.pipeline.families import log_uniform
from parenvs.datasets.references import HYBRID, SAME, costs_of
from parenvs.errors import ParenvsError, UnknownInstanceError, refuse_unknown
from parenvs.instances import data_folder
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan_arrays import Start
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.uniform import Uniform

STACK = "nemo-2024"
"""Software of problems with equal servers; it knows its share of the peak on both devices."""
STACKS = {"h100": "llama-2024", "a100": "megascale-2024"}
"""Device -> stack of problems with unequal servers; both overlap sends."""
DEVICES = ("a100", "h100")
"""Devices of generated clusters."""
DEVICES_PER_SERVER = 8
STATE_BYTES = 18.0
"""Bytes of a parameter's weight, gradient, master copy and moments where nothing is shared."""
_EASY = 0.1  # of a server's memory: states below it need no plan
_MAX_STATES = 0.45  # share of the cluster's memory that states may take
_MAX_LAYER = 0.2  # share of a server's memory that those of one block may take
_TRIES = 1000


@dataclass(frozen=True)
class Ranges:
    """Ranges of problems with equal servers; pairs are the least and the most.

    Attributes:
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


@dataclass(frozen=True)
class Tier:
    """Ranges of problems with one number of unequal servers.

    Attributes:
        servers: their number.
        layers: fewest and most blocks per server.
        slowest: least speed of a server; the fastest has 1.
        batches: samples of a step per server.
    """

    servers: int
    layers: tuple[float, float] = (2.0, 2.75)
    slowest: float = 0.6
    hidden: tuple[int, ...] = (5120, 6144, 7168, 8192, 10_240, 12_288)
    sequences: tuple[int, ...] = (4096, 8192)
    experts: tuple[int, ...] = (8, 16)
    batches: tuple[int, ...] = (8, 16, 32)


TIERS = {f"hetero-{servers}": Tier(servers) for servers in (8, 16, 32, 64)}
BANKS = {"hybrid": 6000, "hetero-8": 800, "hetero-16": 400, "hetero-32": 200, "hetero-64": 100}
"""Generator -> size of its problem pool, which has the seeds from 0."""
FILES = ("hybrid", "hetero")
"""Files of the sets, of equal and of unequal servers."""


def _gpt(rng: Generator, hidden: int) -> dict[str, Any]:
    """Full attention, 4 h wide, biases, tied embedding (GPT-2, GPT-3, Megatron)."""
    return {
        "kv_heads": 0, "feed_forward": 4 * hidden, "positions": 2048,
        "vocabulary": int(rng.choice((50_304, 51_200))),
        "dropout": bool(rng.integers(2)), "tied": True,
    }  # fmt: skip


def _llama(rng: Generator, hidden: int) -> dict[str, Any]:
    """Grouped queries, a gate, no biases (Llama, Qwen, Mistral)."""
    return {
        "kv_heads": int(rng.choice((0, 4, 8))), "gated": True, "dropout": False, "bias": False,
        "feed_forward": _multiple(hidden * rng.uniform(2.5, 4.0), 256), "tied": False,
        "vocabulary": int(rng.choice((32_000, 65_536, 128_256, 152_064))),
    }  # fmt: skip


def _mixture(rng: Generator, hidden: int) -> dict[str, Any]:
    """A mixture of experts in every block (Mixtral, DBRX)."""
    experts = int(rng.choice((4, 8, 16)))
    return {
        **_llama(rng, hidden),
        "feed_forward": _multiple(hidden * rng.uniform(0.75, 3.5), 256),
        "experts": experts, "active": int(rng.choice((1, 2))),
    }  # fmt: skip


def _spread(tier: Tier, rng: Generator) -> Array:
    return rng.uniform(tier.slowest, 1.0, tier.servers)


def _generations(tier: Tier, rng: Generator) -> Array:
    count = int(rng.integers(2, 5))
    speeds = np.append(1.0, rng.uniform(tier.slowest, 0.95, count - 1))
    of_server = np.append(np.arange(count), rng.integers(0, count, tier.servers - count))
    return speeds[rng.permutation(of_server)]


def _stragglers(tier: Tier, rng: Generator) -> Array:
    """Some servers are a tenth slower: 0.5 % of them (arXiv 2402.15627), at least one."""
    slow = rng.random(tier.servers) < 0.005
    slow[rng.integers(tier.servers)] = True
    return np.where(slow, 0.9, 1.0)


FAMILIES: dict[str, Callable[[Generator, int], dict[str, Any]]] = {
    "gpt": _gpt, "llama": _llama, "mixture": _mixture,
}  # fmt: skip
"""Family of equal servers -> what its shapes have beside layers, width, heads and tokens."""
SPEEDS: dict[str, Callable[[Tier, Generator], Array]] = {
    "spread": _spread, "generations": _generations, "stragglers": _stragglers,
}  # fmt: skip
"""Family of unequal servers -> how their speeds are generated."""
# Of eight problems five have a speed per server, two a few generations, and one a straggler.
_TURNS = ("spread", "spread", "generations") * 2 + ("spread", "stragglers")


def family_of(kind: str, number: int) -> str:
    """Return the family of a generator's seed, or of a number in a set; families take turns."""
    families = _TURNS if kind in TIERS else tuple(FAMILIES)
    return families[number % len(families)]


def drawn(kind: str, seed: int) -> Hybrid:
    """Return the problem ``KIND/SEED`` of a generator, one of ``BANKS``."""
    name, family = f"{kind}/{seed}", family_of(kind, seed)
    if kind in TIERS:
        rng = np.random.default_rng([TIERS[kind].servers, seed])
        return make_hetero(TIERS[kind], family, rng, name)
    return make(INSIDE, family, np.random.default_rng([2020, seed]), name)


def make(ranges: Ranges, family: str, rng: Generator, name: str) -> Hybrid:
    """Generate a problem of one of ``FAMILIES`` with equal servers.

    Raises:
        UnknownInstanceError: no plan fits any of the problems that were tried.
    """
    for _ in range(_TRIES):
        problem = _attempt(ranges, family, rng, name)
        if problem is not None:
            return problem
    raise UnknownInstanceError(f"{name}: no problem of family {family} in {_TRIES} draws")


def _attempt(ranges: Ranges, family: str, rng: Generator, name: str) -> Hybrid | None:
    width = int(rng.choice((64, 128)))  # of a head
    hidden = _multiple(log_uniform(rng, *ranges.hidden), 4 * width)
    servers, device = int(rng.choice(ranges.servers)), str(rng.choice(DEVICES))
    cluster = _cluster(servers, device)
    cluster = replace(cluster, nic_bw=float(rng.choice(ranges.networks)), name="")
    rest = FAMILIES[family](rng, hidden)
    heads = hidden // width
    # Groups of queries are equal; 4 divides every number of heads.
    if rest["kv_heads"] and heads % rest["kv_heads"]:
        rest["kv_heads"] = 4
    shape = TransformerShape(
        name,
        layers=round(log_uniform(rng, *ranges.layers)),
        hidden=hidden,
        heads=heads,
        sequence=int(rng.choice(ranges.sequences)),
        **rest,
    )
    batch = 2 ** int(rng.integers(ranges.batch[0], ranges.batch[1] + 1))
    states = STATE_BYTES * shape.parameters
    # Neither a model that fits anywhere nor one that fits nowhere is a problem.
    if not _EASY * cluster.memory_limit * 8 < states < 0.8 * cluster.memory_limit * 8 * servers:
        return None
    problem = Hybrid(HybridModel.of_shape(shape), cluster, batch, Stack.parse(STACK))
    return problem if _fits(problem) else None


def _fits(problem: Hybrid) -> bool:
    """Whether some plan of equal stages with tp 8 or 4 that recomputes everything fits."""
    devices, layers = problem.cluster.devices, len(problem.model)
    degrees = [
        (tp, pp, devices // (tp * pp))
        for tp in (8, 4)
        if problem.model.reasons_against_tp(tp) is None
        for pp in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
        if pp <= layers and devices % (tp * pp) == 0
    ]
    degrees = [x for x in degrees if problem.batch % x[2] == 0]
    if not degrees:
        return False
    tp, pp, dp = np.array(degrees).T
    plans = Uniform(
        tp, pp, dp, 1, problem.batch, sequence_parallel=True, recompute="full", zero=1,
        gradient_bytes=4.0,
    )  # fmt: skip
    memory = plans.memory(problem.model, problem.machine)
    return bool((memory["total"] <= problem.memory_limit).any())


def make_hetero(tier: Tier, family: str, rng: Generator, name: str) -> Hybrid:
    """Generate a problem with unequal servers, distributed as one of ``SPEEDS``."""
    device = str(rng.choice(list(STACKS)))
    cluster = _cluster(tier.servers, device)
    # Pools store speeds as thousandths, see ``SPEED_STEPS``.
    speeds = np.round(SPEEDS[family](tier, rng), 3)
    cluster = replace(cluster, speeds=tuple(speeds.tolist()))
    shape = _shape(tier, rng, name, cluster)
    batch = tier.servers * int(rng.choice(tier.batches))
    return Hybrid(HybridModel.of_shape(shape), cluster, batch, Stack.parse(STACKS[device]))


def _shape(tier: Tier, rng: Generator, name: str, cluster: Cluster) -> TransformerShape:
    """Generate a chain whose weights fit the cluster, and each block's a server."""
    fewest, largest = (round(tier.servers * share) for share in tier.layers)
    while True:
        hidden = int(rng.choice(tier.hidden))
        experts, active = int(rng.choice(tier.experts)), int(rng.choice((1, 2)))
        dense = _multiple(hidden * rng.uniform(2.5, 4.0), 256)
        shape = TransformerShape(
            name,
            layers=int(rng.integers(fewest, largest + 1)),
            hidden=hidden,
            heads=hidden // 128,
            sequence=int(rng.choice(tier.sequences)),
            vocabulary=int(rng.choice((32_000, 65_536, 128_256))),
            kv_heads=8,
            feed_forward=_multiple(dense * rng.uniform(0.4, 1.6) / active, 256),
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


def _cluster(servers: int, device: str) -> Cluster:
    return Cluster.parse(f"{servers}x{DEVICES_PER_SERVER}:{device}")


def _multiple(number: float, of: int) -> int:
    return max(round(number / of), 1) * of


def problem_sets() -> dict[str, tuple[Hybrid, ...]]:
    """Return all shipped sets: name -> problems (``ParenvsError``: a file is damaged)."""
    return {name: problems for file in FILES for name, problems in _sets(file).items()}


@lru_cache(maxsize=2)
def _sets(file: str) -> dict[str, tuple[Hybrid, ...]]:
    path = data_folder() / f"{file}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: tuple(
                Hybrid(
                    HybridModel.of_shape(TransformerShape.from_json(row["shape"])),
                    Cluster.parse(row["cluster"]),
                    row["batch"],
                    Stack.parse(row["stack"], stored=True),
                    row["precision"],
                )
                for row in rows
            )
            for name, rows in content["sets"].items()
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ParenvsError(
            f"{path}: damaged ({error}); make it anew with python benchmarks/make_sets.py "
            f"{path.name}"
        ) from None


def find_hybrid(name: str) -> Hybrid:
    """Return a problem of a set, ``SET/FAMILY-NUMBER``, or of a generator, ``GENERATOR/SEED``.

    Raises:
        UnknownInstanceError: there is no such set, or no such problem in it, or the seed is none.
    """
    kind, _, number = name.partition("/")
    if kind in BANKS:
        if not (number.isascii() and number.isdigit() and len(number) < 20):
            raise UnknownInstanceError(
                f"instance {name!r}: give a seed, like {kind}/7, or a set, like {kind}-test"
            )
        return drawn(kind, int(number))
    refuse_unknown("unknown set", kind, problem_sets(), UnknownInstanceError)
    members = {x.instance.partition("/")[2]: x for x in problem_sets()[kind]}
    return member_of(members, name)


SPEED_STEPS = 1000
"""Speeds of servers are multiples of one over this."""
SHAPE = (
    "layers", "hidden", "heads", "sequence", "vocabulary", "kv_heads", "feed_forward", "gated",
    "dropout", "bias", "tied", "positions", "experts", "active", "experts_every",
    "dense_feed_forward",
)  # fmt: skip
"""What is generated of a shape; the rest has its defaults."""
_FLAGS = {"gated", "dropout", "bias", "tied"}


def start_of(name: str) -> Start:
    """Return where improving a problem of a set or a generator starts; a pool knows its own."""
    kind, _, number = name.partition("/")
    if kind in BANKS and number.isdecimal() and int(number) < BANKS[kind]:
        row = bank(kind)[int(number)]
        return Start(_problem(kind, name, row), row["start"].astype(np.int64))
    return Start(find_hybrid(name), known=costs(name) if kind in problem_sets() else None)


@lru_cache(maxsize=len(BANKS))
def bank(kind: str) -> Bank:
    """Return the problem pool of a generator, with the best uniform plan of each problem."""
    return Bank(f"hybrid-{kind}", BANKS[kind])


def _problem(kind: str, name: str, row: Mapping[str, Array]) -> Hybrid:
    device = DEVICES[int(row["device"])]
    cluster = _cluster(int(row["servers"]), device)
    if kind in TIERS:
        speeds = tuple((row["speeds"] / SPEED_STEPS).tolist())
        cluster, stack = replace(cluster, speeds=speeds), STACKS[device]
    else:
        cluster, stack = replace(cluster, nic_bw=float(row["network"]), name=""), STACK
    pairs = zip(SHAPE, row["shape"].tolist(), strict=True)
    fields: dict[str, Any] = {key: bool(x) if key in _FLAGS else x for key, x in pairs}
    model = HybridModel.of_shape(TransformerShape(name, **fields))
    return Hybrid(model, cluster, int(row["batch"]), Stack.parse(stack))


def costs(name: str) -> BestValue | None:
    """Return the least step time known of a problem of a set, and a lower bound of all plans.

    Where no plan is known, both are the bound.
    """
    problem = find_hybrid(name)
    bound = problem.kernel_bound_seconds
    known = costs_of(HYBRID, name, problem.model.fingerprint)
    if known is None:
        return BestValue(bound, bound, BOUND)
    # Bounds of hetero rows are of plans of one server a stage alone.
    kind = OPTIMUM if known.value <= bound * (1 + SAME) else BEST_KNOWN
    return BestValue(known.value, bound, kind)


def set_kind(name: str) -> SetKind:
    """Return what evaluations know of a set of hybrid problems; see ``SetKind``."""

    def names(name: str) -> list[str]:
        return [problem.instance for problem in problem_sets()[name]]

    return SetKind("HybridPlan-v2", names, find_hybrid, costs)
