"""The turns that make a given plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from parenvs.tasks.hybrid.plan import HybridPlan, HybridStage
from parenvs.tasks.hybrid.schedules import SPLIT
from parenvs.tasks.hybrid.turns.actions import (
    ALL_LEFT,
    CHUNKS,
    DEVICES,
    FEWEST,
    MICRO_BATCHES,
    OFFSETS,
    SERVER,
    TO_THE_END,
    TPS,
    data_choice,
    global_choice,
)
from parenvs.tasks.hybrid.turns.episodes import Episodes
from parenvs.tasks.hybrid.turns.problems import Setting


class Replay(NamedTuple):
    """A complete episode.

    Attributes:
        choices: one for each of its turns.
        episode: the episode itself.
    """

    choices: list[int]
    episode: Episodes

    @property
    def value(self) -> float:
        """What its plan earns."""
        return float(self.episode.value[0])


def replayed(setting: Setting, plan: HybridPlan) -> Replay | None:
    """Return the complete episode that makes a plan, or None if turns cannot make it.

    Where a stage recomputes some layers only, the episode recomputes as few as fit, which may be
    others.

    Args:
        setting: the plan's problem.
        plan: the plan.
    """
    if (
        plan.context > 1
        or plan.expert > 1
        or plan.expert_tp
        or plan.shard
        or plan.offload
        or plan.schedule in SPLIT
    ):
        return None
    if plan.micro_batch not in MICRO_BATCHES or plan.chunks not in CHUNKS:
        return None
    episode = Episodes.of(setting)
    choices: list[int] = []
    for choice in _choices(episode, plan):
        if choice is None or episode.over[0]:
            return None
        choices.append(choice)
        episode.act(OFFSETS[episode.turn[0]] + choice)
    return Replay(choices, episode) if episode.complete[0] else None


def _choices(episode: Episodes, plan: HybridPlan) -> Iterator[int | None]:
    """Yield the choices of a plan, None where there is none; each is taken before the next."""
    yield global_choice(plan.micro_batch, plan.chunks, plan.sequence_parallel)
    servers = plan.servers or tuple(range(plan.cluster.servers))
    for stage in plan.stages:
        yield from _of_stage(episode, stage, servers)


def _of_stage(
    episode: Episodes, stage: HybridStage, servers: tuple[int, ...]
) -> Iterator[int | None]:
    """Yield the choices of a stage."""
    end, unit = stage.layers[0][1], int(episode.unit[0])
    yield TO_THE_END if end == episode.per[0] else end - 1
    if not unit:
        if stage.devices in DEVICES:
            yield DEVICES.index(stage.devices)
        else:
            left = episode.all_devices[0] - episode.first[0]
            yield ALL_LEFT if stage.devices == left else None
    elif stage.devices != unit:
        yield None
    while episode.turn[0] == SERVER:
        yield servers[episode.named[0]]
    yield TPS.index(stage.tp) if stage.tp in TPS else None
    layers = sum(last - first for first, last in stage.layers)
    mode = FEWEST
    if not stage.recompute:
        mode = "none"
    elif isinstance(stage.recompute, dict):
        first, count = next(iter(stage.recompute.items()))
        mode = first if count == layers else FEWEST
    yield data_choice(stage.zero, mode)
