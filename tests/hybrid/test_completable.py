"""What still fits, against all plans of small problems."""

import numpy as np
import pytest
from cases import slow
from hybrid_turns import every, toy

from parenvs.tasks.hybrid.turns.actions import (
    DATA,
    GLOBAL,
    GLOBAL_CHUNKS,
    GLOBAL_MICRO_BATCH,
    OFFSETS,
    TURN_OF,
    data_choice,
)
from parenvs.tasks.hybrid.turns.episodes import EPISODE, Episodes
from parenvs.tasks.hybrid.turns.problems import Setting
from parenvs.tasks.hybrid.turns.rules import Rules

TRIED = {data_choice(0, "none"), data_choice(1, "selective"), data_choice(1, "fewest"),
         data_choice(3, "fewest")}  # fmt: skip
"""Choices of the data turn that are tried; with the last two whatever can fit does."""


def kept(action):
    """Whether an action is tried."""
    turn = TURN_OF[action]
    choice = action - OFFSETS[turn]
    if turn == GLOBAL:
        return GLOBAL_MICRO_BATCH[choice] in (1, 4) and GLOBAL_CHUNKS[choice] < 4
    return turn != DATA or choice in TRIED


CASES = {
    "dense": (0.47, {}, Rules()),
    "looser": (0.6, {}, Rules()),
    "four servers": (0.5, {}, Rules(), "4x1:a100"),
    "tied not": (0.9, {"tied": False, "vocabulary": 32_768, "layers": 3}, Rules()),
    "experts": (0.8, {"experts": 4, "experts_every": 2, "dense_feed_forward": 2048}, Rules()),
    "servers": (0.5, {}, Rules(order="free", stage_devices=0, most_chunks=1)),
    "stages of two": (0.5, {}, Rules(stage_devices=2)),
}

LONG = ("looser", "experts", "tied not", "stages of two")


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*(x for x in CASES if x not in LONG), *slow(*LONG)])
def test_completable__leaves_the_beginnings_of_plans_that_fit_and_no_others(name):
    gigabytes, shape, rules, *cluster = CASES[name]
    setting = Setting(toy(gigabytes, *cluster, **shape), rules)
    leaves = every(setting, kept)
    fits = [taken for taken, excess in leaves.items() if excess <= 0]
    assert 0 < len(fits) < len(leaves)
    beginnings = {taken[:k] for taken in fits for k in range(len(taken) + 1)}
    states = sorted({taken[:k] for taken in leaves for k in range(len(taken))} & beginnings)
    episode = Episodes.of(setting)
    exact = Episodes(1, episode.slots, "completable")
    for index in np.random.default_rng(0).permutation(len(states))[:250].tolist():
        taken = states[index]
        episode.start(EPISODE)
        for action in taken:
            episode.act(action)
        exact.resume(0, episode.state(0))
        left = set(np.flatnonzero(exact.legal[0]).tolist())
        legal = set(np.flatnonzero(episode.legal[0]).tolist())
        assert left <= legal
        tried = {action for action in left if kept(action)}
        assert tried == {action for action in legal if (*taken, action) in beginnings}
