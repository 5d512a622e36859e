"""What still fits, against all plans of small problems."""

import numpy as np
import pytest
from hybrid_turns import every, stacked, toy

from parenvs.tasks.hybrid.turns.actions import (
    DATA,
    GLOBAL,
    GLOBAL_CHUNKS,
    GLOBAL_MICRO_BATCH,
    data_choice,
)
from parenvs.tasks.hybrid.turns.columns import Columns
from parenvs.tasks.hybrid.turns.completable import Completable
from parenvs.tasks.hybrid.turns.episode import Episode
from parenvs.tasks.hybrid.turns.outcome import outcome
from parenvs.tasks.hybrid.turns.rules import Rules

TRIED = {data_choice(0, "none"), data_choice(1, "selective"), data_choice(1, "fewest"),
         data_choice(3, "fewest")}  # fmt: skip
"""Choices of the data turn that are tried; with the last two whatever can fit does."""


def kept(episode, choice):
    """Whether a choice is tried."""
    if episode.turn == GLOBAL:
        return GLOBAL_MICRO_BATCH[choice] in (1, 4) and GLOBAL_CHUNKS[choice] < 4
    return episode.turn != DATA or choice in TRIED


CASES = {
    "dense": (0.47, {}, Rules()),
    "looser": (0.6, {}, Rules()),
    "four servers": (0.5, {}, Rules(), "4x1:a100"),
    "tied not": (0.9, {"tied": False, "vocabulary": 32_768, "layers": 3}, Rules()),
    "experts": (0.8, {"experts": 4, "experts_every": 2, "dense_feed_forward": 2048}, Rules()),
    "servers": (0.5, {}, Rules(order="free", stage_devices=0, most_chunks=1)),
    "stages of two": (0.5, {}, Rules(stage_devices=2)),
}


@pytest.mark.parametrize("name", CASES)
def test_completable__leaves_the_beginnings_of_plans_that_fit_and_no_others(name):
    gigabytes, shape, rules, *cluster = CASES[name]
    columns = Columns([toy(gigabytes, *cluster, **shape)], rules)
    asked = Completable(columns)
    leaves = list(every(Episode(columns.limits[0]), kept))
    fits = outcome(columns, stacked([episode for _, episode in leaves])).excess <= 0
    assert 0 < fits.sum() < len(fits)
    beginnings = {
        taken[:k]
        for (taken, _), ok in zip(leaves, fits.tolist(), strict=True)
        if ok
        for k in range(len(taken) + 1)
    }
    states = sorted({taken[:k] for taken, _ in leaves for k in range(len(taken))} & beginnings)
    for index in np.random.default_rng(0).permutation(len(states))[:250].tolist():
        taken = states[index]
        episode = Episode(columns.limits[0])
        for choice in taken:
            episode.act(choice)
        left = np.flatnonzero(episode.legal() & asked.choices(episode)).tolist()
        tried = {choice for choice in left if kept(episode, choice)}
        assert tried == {
            choice for choice in tried | set(np.flatnonzero(episode.legal()).tolist())
            if (*taken, choice) in beginnings
        }  # fmt: skip
