"""Choices turn by turn: legal ones lead to well-formed plans, and no others do."""

from itertools import pairwise

import numpy as np
import pytest
from hybrid_turns import copied, every, played, stacked, toy

import parenvs
from parenvs.tasks.hybrid import legality
from parenvs.tasks.hybrid.turns.actions import (
    ACTIONS,
    AGENT_SIZES,
    ALL_LEFT,
    DATA,
    DEVICES,
    FEWEST,
    GLOBAL,
    GLOBAL_CHUNKS,
    GLOBAL_MICRO_BATCH,
    MODES,
    OFFSETS,
    OWN_OFFSETS,
    SIZES,
    STAGE_DEVICES,
    STAGE_LAYERS,
    TO_THE_END,
    TP,
    data_choice,
    global_choice,
)
from parenvs.tasks.hybrid.turns.columns import Columns
from parenvs.tasks.hybrid.turns.episode import Episode
from parenvs.tasks.hybrid.turns.outcome import Choices, outcome
from parenvs.tasks.hybrid.turns.rules import Rules, TurnLimits

UNEQUAL = {
    **parenvs.Cluster.parse("6x8:h100").to_json(), "speeds": [1, 0.9, 0.8, 0.7, 0.6, 0.95]
}  # fmt: skip
PROBLEMS = {
    "llama3-70b": ("16x8:h100", 1024, Rules()),
    "gpt-18.4b": ("4x8:a100", 96, Rules()),
    "mixtral-8x7b": ("8x8:h100", 256, Rules()),
    "llama2-7b": (UNEQUAL, 512, Rules(order="free")),
    "gpt-1.5b": (UNEQUAL, 512, Rules(order="free", stage_devices=0)),
    "llama2-13b": ("4x4:a100", 60, Rules(most_chunks=2)),
    "hetero-8/3": (None, None, Rules(order="free", stage_devices=0, most_chunks=1)),
}


def problem_of(name):
    cluster, batch, rules = PROBLEMS[name]
    return parenvs.problem(name, cluster, task="hybrid", batch=batch), rules


@pytest.mark.parametrize("name", PROBLEMS)
def test_episodes__end_in_what_the_judge_says(name):
    problem, rules = problem_of(name)
    columns, rng = Columns([problem], rules), np.random.default_rng(0)
    episodes = [played(columns.limits[0], rng) for _ in range(60)]
    at_once = outcome(columns, stacked(episodes))
    for k, episode in enumerate(episodes):
        ended = outcome(columns, Choices.of(episode))
        layers = list(zip(ended.full[:, 0].tolist(), ended.selective[:, 0].tolist(), strict=True))
        plan = episode.plan(problem, layers)
        report = problem.report(plan)
        assert not legality.malformed(plan, problem.model, problem.cluster)
        assert ended.length[0] == at_once.length[k] == report.step.length
        excess = report.held.total.max() - problem.memory_limit
        assert ended.excess[0] == at_once.excess[k] == excess
        assert report.legal == (excess <= 0)
        assert parenvs.HybridPlan.from_json(plan.to_json()) == plan


def unmasked(episode):
    """Yield all complete episodes whose stages have layers and devices that exist."""
    if episode.is_over:
        yield (), episode
        return
    limits, turn = episode.limits, episode.turn
    begin = episode.ends[-1] if episode.ends else 0
    left = limits.devices - episode.first
    if turn == GLOBAL:
        choices = [c for c in range(SIZES[GLOBAL]) if limits.layers % GLOBAL_CHUNKS[c] == 0
                   and GLOBAL_MICRO_BATCH[c] in (1, 2) and GLOBAL_CHUNKS[c] < 4]  # fmt: skip
    elif turn == STAGE_LAYERS:
        choices = [*range(begin, episode.per_chunk - 1), TO_THE_END]
    elif turn == STAGE_DEVICES:
        choices = [n for n, size in enumerate(DEVICES) if size <= left]
        choices += [ALL_LEFT] if episode.is_last else []
    elif turn == TP:
        choices = [n for n, tp in enumerate((1, 2, 4, 8)) if episode.devices[-1] // tp]
    else:
        choices = [data_choice(0, "none"), data_choice(2, "none")]
    for choice in choices:
        other = copied(episode)
        try:
            other.act(choice)
        except ZeroDivisionError:
            continue
        if not other.is_over and other.turn == STAGE_LAYERS and other.first >= limits.devices:
            continue
        for taken, end in unmasked(other):
            yield (choice, *taken), end


@pytest.mark.parametrize("shape", [{"layers": 3}, {"layers": 4, "heads": 2, "kv_heads": 2}])
@pytest.mark.parametrize("batch", [4, 6])
def test_masks__leave_the_beginnings_of_well_formed_plans_and_no_others(shape, batch):
    problem = toy(80, "1x4:a100", batch, **shape)
    limits = TurnLimits.of(problem, Rules())
    beginnings, ends = set(), 0
    for taken, episode in unmasked(Episode(limits)):
        samples = episode.samples
        if not samples or any(not size // tp for size, tp in zip(episode.devices, episode.tp,
                                                                  strict=True)):  # fmt: skip
            continue
        plan = episode.plan(problem, [(0, 0)] * len(episode.ends))
        if legality.malformed(plan, problem.model, problem.cluster):
            continue
        ends += 1
        beginnings |= {taken[:k] for k in range(len(taken) + 1)}
    assert ends > 100
    kept = {(GLOBAL, c) for c in range(40)
            if GLOBAL_MICRO_BATCH[c] in (1, 2) and GLOBAL_CHUNKS[c] < 4}  # fmt: skip
    kept |= {(DATA, data_choice(0, "none")), (DATA, data_choice(2, "none"))}
    found = {()}
    for taken, _ in every(
        Episode(limits), lambda e, c: e.turn not in (GLOBAL, DATA) or (e.turn, c) in kept
    ):
        found |= {taken[:k] for k in range(len(taken) + 1)}
    assert found == beginnings


def test_sequence_parallelism__is_left_out_where_no_stage_has_tp():
    problem = toy(80)
    episode = Episode(TurnLimits.of(problem, Rules()))
    for choice in (global_choice(1, 1, True), TO_THE_END, ALL_LEFT, 0, data_choice(1, "none")):
        assert episode.legal()[choice]
        episode.act(choice)
    assert not episode.plan(problem, [(0, 0)]).sequence_parallel


@pytest.mark.parametrize("name", ["llama3-70b", "mixtral-8x7b", "hetero-8/3", "gpt-18.4b"])
def test_fewest__recomputes_no_layer_too_many(name):
    problem, rules = problem_of(name)
    columns, rng = Columns([problem], rules), np.random.default_rng(1)
    fewest, fewer, seen = MODES.index(FEWEST), 0, 0
    for _ in range(60):
        episode = played(
            columns.limits[0], rng, lambda e, c: e.turn != DATA or c % len(MODES) == fewest
        )
        ended = outcome(columns, Choices.of(episode))
        layers = list(zip(ended.full[:, 0].tolist(), ended.selective[:, 0].tolist(), strict=True))
        held = problem.report(episode.plan(problem, layers)).held.total
        for stage, (full, selective) in enumerate(layers):
            if full + selective == 0 or held[stage] > problem.memory_limit:
                continue
            seen += 1
            less = list(layers)
            size = (episode.ends[stage] - ([0, *episode.ends][stage])) * episode.chunks
            less[stage] = (full - 1, size - full + 1) if full else (0, selective - 1)
            again = problem.report(episode.plan(problem, less)).held.total[stage]
            # While a layer is recomputed in full, the largest is taken to be at work.
            fewer += again <= problem.memory_limit
    assert seen >= 10
    assert fewer == 0


def test_actions__are_laid_out_as_the_agents_have_them():
    assert sum(AGENT_SIZES) == ACTIONS == sum(SIZES) == 261
    assert AGENT_SIZES == (56, 201, 4)
    own = sorted(zip(OFFSETS, SIZES, strict=True))
    assert all(a + size == b for (a, size), (b, _) in pairwise(own))
    assert OWN_OFFSETS[GLOBAL] == OWN_OFFSETS[STAGE_LAYERS] == OWN_OFFSETS[TP] == 0


@pytest.mark.parametrize(
    ("cluster", "layers", "message"),
    [
        ("65x8:a100", 4, "65 servers; turns can order 64"),
        ("2x6:a100", 4, "6 devices in a server; turns need a power of two"),
        ("2x8:a100", 129, "129 layers; turns can cut 1 to 128"),
    ],
)
def test_limits__say_what_is_too_large(cluster, layers, message):
    with pytest.raises(parenvs.ParenvsError, match=message):
        TurnLimits.of(toy(80, cluster, layers=layers), Rules())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": "any"}, "order must be one of fixed, free, not 'any'"),
        ({"most_chunks": 3}, "most_chunks must be one of 1, 2, 4, 8, not 3"),
        ({"stage_devices": 3}, "stage_devices must be None, 0 or a power of two, not 3"),
    ],
)
def test_rules__are_checked(arguments, message):
    with pytest.raises(parenvs.ParenvsError, match=message):
        Rules(**arguments)
