"""The task ``hybrid``, as the rest of the house knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parenvs.core.task import Task, option
from parenvs.core.words import FRAMEWORKS, PRECISIONS
from parenvs.errors import ParenvsError
from parenvs.graph.options import GraphOptions

_TIERS = ("hetero-8", "hetero-16", "hetero-32", "hetero-64")


@dataclass(frozen=True, kw_only=True)
class HybridOptions(GraphOptions):
    """Options of ``parenvs.problem``; the help of each field says what it is."""

    batch: int | None = option(
        None, "Samples of a step (elastic: default 512).", "batch", main=True
    )
    stack: Any = option(
        None,
        "Training software, or an object of its constants (default: by device).",
        kind=str,
        values=("nemo", "torchtitan", "megatron-2021"),
    )
    precision: str | None = option(
        None,
        "Precision of matrix products (default: the fastest of 16 bits, else of 32).",
        values=PRECISIONS,
    )


def _words(text: str) -> tuple[str, ...]:
    """Return the texts of a list with commas."""
    return tuple(each.strip() for each in text.split(","))


def _levels(text: str) -> tuple[int, ...]:
    """Return the ZeRO levels of a list with commas."""
    levels = _words(text)
    if not set(levels) <= {"0", "1", "2", "3"}:
        raise ParenvsError(f"--zero must be some of 0,1,2,3, not {text!r}")
    return tuple(map(int, levels))


def _pinned(texts: Sequence[str]) -> tuple[tuple[int, int, int | None], ...]:
    """Return first layer, end and devices of each ``FIRST-LAST[:DEVICES]``."""
    found = []
    for text in texts:
        layers, colon, devices = text.partition(":")
        first, dash, last = layers.partition("-")
        numbers = [first, last] + ([devices] if colon else [])
        if not dash or not all(number.isdecimal() for number in numbers) or int(last) < int(first):
            raise ParenvsError(f"--pin {text!r} does not parse; write it like 0-9 or 0-9:8")
        found.append((int(first), int(last) + 1, int(devices) if colon else None))
    return tuple(found)


@dataclass(frozen=True)
class Limits:
    """What a plan must keep to; None leaves a choice open. Tensor parallelism stays in a server.

    Attributes:
        tp: ranks that share every matrix.
        pp: stages.
        dp: replicas.
        micro_batch: samples of a micro-batch in one replica.
        chunks: pieces of the chain on each stage.
        context: ranks that share the tokens of a sample.
        expert: replicas among which experts are dealt out.
        shard: replicas among which ZeRO shares states; 0: all.
        schedule: of passes; plans of free stages are 1F1B.
        sequence_parallel: whether tp ranks share what lies between the matrices.
        recompute: modes of recomputation that are allowed.
        zero: ZeRO levels that are allowed.
        most_micro_batch: most samples of a micro-batch in one replica.
        devices: number of devices in use (None: all of them).
        idle: whether plans may leave servers free.
        uneven: whether uniform plans may deal out layers that do not divide.
        stage_devices: devices of every stage.
        framework: that has to run the plan as it is, one of ``FRAMEWORKS``; None: any.
        pinned: (first layer, end, devices or None) of layers that are a stage of their own; only
            plans that are not uniform keep to it.
    """

    tp: int | None = option(None, "Ranks that share every matrix.")
    pp: int | None = option(
        None, "Stages (default: chosen, or one a server).", flag="stages", main=True
    )
    dp: int | None = option(None, "Replicas.")
    micro_batch: int | None = option(None, "Samples in a micro-batch of a replica.")
    chunks: int | None = option(None, "Chunks a stage (interleaving).")
    context: int | None = option(None, "Ranks that share a sample's tokens.")
    expert: int | None = option(None, "Replicas that share experts.")
    shard: int | None = option(None, "Replicas that share states (ZeRO); 0: all.")
    schedule: str | None = option(
        None,
        "Order of passes.",
        values=("1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipe-v"),
    )
    sequence_parallel: bool | None = None
    recompute: tuple[str, ...] = option(
        ("none", "selective", "full"),
        "Activations recomputed: modes that are allowed.",
        kind=str,
        read=_words,
        values=("none", "selective", "full"),
    )
    zero: tuple[int, ...] = option(
        (0, 1, 2, 3),
        "ZeRO levels that are allowed.",
        kind=str,
        read=_levels,
        values=("0", "1", "2", "3"),
    )
    most_micro_batch: int = option(16, "Most samples of a micro-batch (default: 16).")
    devices: int | None = option(None, "Devices in use (default: all).", flag="devices-used")
    idle: bool = option(False, "Plans may leave devices free.")
    framework: str | None = option(
        None,
        "Framework that runs the plan as it is.",
        flag="for",
        implies=True,
        values=FRAMEWORKS,
        main=True,
    )
    uneven: bool = False
    stage_devices: int | None = None
    pinned: tuple[tuple[int, int, int | None], ...] = option(
        (),
        "FIRST-LAST[:DEVICES]: layers that are a stage; may be repeated.",
        "pin",
        kind=list,
        read=_pinned,
    )


@dataclass(frozen=True, kw_only=True)
class HybridSearch:
    """Options of planners; the help of each field says what it is."""

    constraints: Any = option(
        None,
        "What plans must keep to.",
        parts="parenvs.tasks.hybrid.task:Limits",
    )
    objective: str = option(
        "seconds",
        "What is minimised: seconds (default), tokens or money.",
        values=("seconds", "tokens", "money"),
    )
    price: float = option(1.0, "Price of a device-hour, for the objective money (default: 1).")
    robust: bool = option(
        False, "Take the plan of least worst regret if constants move in their plausible ranges."
    )
    time_limit: float | None = option(
        None,
        "Seconds of the search (default: 20 of exact; others end by themselves).",
        "seconds",
    )


TASK = Task(
    name="hybrid",
    words="Plan a model along all axes together: pipeline, tensor, data, context and experts.",
    options=HybridOptions,
    search=HybridSearch,
    load="parenvs.tasks.hybrid.load:load",
    judge="parenvs.tasks.hybrid.load:judge",
    plan="parenvs.tasks.hybrid.plan:HybridPlan",
    request="parenvs.agents.hybrid.planners:HybridRequest",
    planners=(
        "exact",
        "exact-hybrid",
        "uniform",
        "local-search",
        "learned",
        "learned+search",
        "megatron",
        "data-parallel",
        "zero-3",
        "tensor",
        "pipeline",
        "random",
        "sorted-servers",
        "random-servers",
        "swap-search",
        "sandwich",
        "subset-dp",
    ),
    sets=tuple(
        f"{tier}-{part}"
        for tier in ("hybrid", *_TIERS)
        for part in ("validation", "test", "outside")
    ),
    drawn=("hybrid", *_TIERS),
    find="parenvs.datasets.hybrid.named:find_hybrid",
    envs={"HybridPlan-v1": "parenvs.tasks.hybrid.improve:HybridImprovement"},
    text="parenvs.tasks.hybrid.view.text:text",
    answer="parenvs.tasks.hybrid.view.text:answer",
    figure="parenvs.tasks.hybrid.view.figure:draw",
    hooks={
        "sets": "parenvs.datasets.hybrid.named:set_kind",
        "train": "parenvs.tasks.hybrid.load:training",
        "validation": "parenvs.tasks.hybrid.load:validation",
        "rules": "parenvs.tasks.hybrid.load:rules",
        "leaderboard": "parenvs.agents.hybrid.entries:TASKS",
        "reading": "parenvs.tasks.hybrid.load:reading",
        "compare": "parenvs.tasks.hybrid.view.tables:comparison",
        "explain": "parenvs.tasks.hybrid.view.explanation:of_plan",
        "diff": "parenvs.tasks.hybrid.space.diff:difference",
        "diff_text": "parenvs.tasks.hybrid.view.diff:diff_lines",
        "layout": "parenvs.tasks.hybrid.export:layout",
        "stages": "parenvs.tasks.hybrid.export:stages",
        "step": "parenvs.tasks.hybrid.export:step",
        "read_back": "parenvs.tasks.hybrid.export:read_back",
        "strategy": "parenvs.tasks.hybrid.graph.price:own",
        "price": "parenvs.tasks.hybrid.graph.price:price",
        "now": "parenvs.agents.hybrid.now:now",
        "checkpoint": "parenvs.tasks.elastic.checkpoint:Shards",
        "remarks": "parenvs.agents.hybrid.remarks:Remarks",
        "map": "parenvs.agents.hybrid.remarks:draw_map",
        "names": "parenvs.shipped:shapes",
        "pettingzoo": "parenvs.tasks.hybrid.three_agents:hybrid_v0",
    },
)
"""The task."""
