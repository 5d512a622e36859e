"""The turns that make a given plan."""

from __future__ import annotations

from collections.abc import Iterator

from parenvs.tasks.hybrid.plan import HybridPlan, HybridStage
from parenvs.tasks.hybrid.turns.actions import (
    ALL_LEFT,
    CHUNKS,
    DEVICES,
    FEWEST,
    MICRO_BATCHES,
    SERVER,
    TO_THE_END,
    TPS,
    data_choice,
    global_choice,
)
from parenvs.tasks.hybrid.turns.episode import Episode
from parenvs.tasks.hybrid.turns.game import Game, Setting


def replayed(setting: Setting, plan: HybridPlan) -> Game | None:
    """Return the complete episode that makes a plan, or None if turns cannot make it.

    Where a stage recomputes some layers only, the episode recomputes as few as fit, which may be
    others.

    Args:
        setting: the plan's problem.
        plan: the plan.
    """
    game = Game(setting)
    if plan.context > 1 or plan.expert > 1:
        return None
    if plan.micro_batch not in MICRO_BATCHES or plan.chunks not in CHUNKS:
        return None
    servers = plan.servers or tuple(range(plan.cluster.servers))
    if not game.act(global_choice(plan.micro_batch, plan.chunks, plan.sequence_parallel)):
        return None
    for stage in plan.stages:
        for choice in _choices(game.episode, stage, servers):
            if choice is None or not game.act(choice):
                return None
    return game if game.result is not None else None


def _choices(
    episode: Episode, stage: HybridStage, servers: tuple[int, ...]
) -> Iterator[int | None]:
    """Yield the choices of a stage, None where there is none; each is taken before the next."""
    end, left = stage.layers[0][1], episode.limits.devices - episode.first
    yield TO_THE_END if end == episode.per_chunk else end - 1
    if not episode.limits.unit:
        if stage.devices in DEVICES:
            yield DEVICES.index(stage.devices)
        else:
            yield ALL_LEFT if stage.devices == left else None
    elif stage.devices != episode.limits.unit:
        yield None
    while episode.turn == SERVER:
        yield servers[len(episode.servers)]
    yield TPS.index(stage.tp) if stage.tp in TPS else None
    layers = sum(last - first for first, last in stage.layers)
    mode = FEWEST
    if not stage.recompute:
        mode = "none"
    elif isinstance(stage.recompute, dict):
        first, count = next(iter(stage.recompute.items()))
        mode = first if count == layers else FEWEST
    yield data_choice(stage.zero, mode)
