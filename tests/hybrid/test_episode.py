"""Choices turn by turn: legal ones lead to well-formed plans, and no others do."""

import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from cases import each, slow
from hybrid_turns import Scalar, every, played, several, toy

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
    SERVER,
    SIZES,
    STAGE_DEVICES,
    STAGE_LAYERS,
    TO_THE_END,
    TP,
    TURN_OF,
    data_choice,
    global_choice,
)
from parenvs.tasks.hybrid.turns.board import Board
from parenvs.tasks.hybrid.turns.episodes import EPISODE, Episodes
from parenvs.tasks.hybrid.turns.observe import LOG2
from parenvs.tasks.hybrid.turns.problems import Setting
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
QUICK = ("mixtral-8x7b", "llama2-13b", "hetero-8/3")


def setting_of(name):
    cluster, batch, rules = PROBLEMS[name]
    return Setting(parenvs.problem(name, cluster, task="hybrid", batch=batch), rules)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*QUICK, *slow(*(x for x in PROBLEMS if x not in QUICK))])
def test_episodes__end_in_what_the_judge_says(name):
    setting = setting_of(name)
    problem = setting.problem
    episodes, taken = played(setting, 60, np.random.default_rng(0))
    for row, actions in enumerate(taken):
        alone = Episodes.of(setting)
        for action in actions:
            alone.act(action)
        plan = episodes.plan(row)
        report = problem.report(plan)
        assert alone.plan(0) == plan
        assert not legality.malformed(plan, problem.model, problem.cluster)
        assert alone.length[0] == episodes.length[row] == report.step.length
        excess = report.held.total.max() - problem.memory_limit
        assert alone.excess[0] == episodes.excess[row] == excess
        assert report.legal == (excess <= 0)
        assert parenvs.HybridPlan.from_json(plan.to_json()) == plan


def seen(scalar, setting):
    """What is observed of an episode: stages, progress, and the share of each server in use."""
    limits, stages, progress, used = scalar.limits, np.zeros((64, 10)), np.zeros(8), np.zeros(64)
    placed = len(scalar.devices) - (scalar.turn == SERVER)  # stages whose servers are known
    begin, first, speeds = 0, 0, setting.shown.speeds
    for k, end in enumerate(scalar.ends):
        stages[k, :2] = end / scalar.per_chunk, (end - begin) / scalar.per_chunk
        if k < placed:
            devices, behind = scalar.devices[k], first + scalar.devices[k]
            stages[k, 2:4] = LOG2[devices] / 9, devices / limits.devices
            places = range(first // limits.inside, -(-behind // limits.inside))
            servers = [scalar.servers[x] if scalar.servers else x for x in places]
            used[servers] = 1.0
            used[servers[-1]] = (behind - places[-1] * limits.inside) / limits.inside
            share = 0.0
            for chunk in range(scalar.chunks):
                start = chunk * scalar.per_chunk
                share += setting.shown.work[start + end] - setting.shown.work[start + begin]
            load = share * limits.devices / (devices * speeds[servers].min())
            stages[k, 8:] = speeds[servers].min(), load / (1 + load)
            begin, first = end, behind
        if k < len(scalar.tp):
            tp = scalar.tp[k]
            stages[k, 4:6] = LOG2[tp] / 3, LOG2[scalar.devices[k] // tp] / 9
        if k < len(scalar.zero):
            stages[k, 6:8] = scalar.zero[k] / 3, scalar.mode[k] / 3
    used[scalar.servers] = np.where(used[scalar.servers] > 0, used[scalar.servers], 1.0)
    if scalar.micro_batch:
        progress[:3] = LOG2[scalar.micro_batch] / 4, LOG2[scalar.chunks] / 3, scalar.shared
    if scalar.samples:
        progress[[3, 7]] = LOG2[scalar.micro_batches] / 13, LOG2[scalar.samples] / 13
    ends = scalar.ends[-1:] or [0]
    progress[4:7] = (
        len(scalar.zero) / 64,
        (scalar.per_chunk - ends[0]) / scalar.per_chunk,
        (limits.devices - first) / limits.devices,
    )
    return {"stages": stages, "progress": progress, "used": used}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*QUICK, *slow(*(x for x in PROBLEMS if x not in QUICK))])
def test_episodes__equal_the_second_writing(name):
    """Legal actions and observations in every turn, and the plan at the end."""
    setting = setting_of(name)
    _, taken = played(setting, 60, np.random.default_rng(2))
    episodes = several(setting, 60)
    board = Board(episodes)
    scalars, turns = [Scalar(setting.limits) for _ in taken], np.eye(7, 6)
    for step in range(max(map(len, taken))):
        observation = board.observation(slice(None))
        rows = [row for row, actions in enumerate(taken) if step < len(actions)]
        for row in rows:
            scalar, turn = scalars[row], scalars[row].turn
            legal = np.zeros(ACTIONS, dtype=bool)
            legal[OFFSETS[turn] : OFFSETS[turn] + SIZES[turn]] = scalar.legal()
            assert (episodes.legal[row] == legal).all()
            expected = seen(scalar, setting)
            for key in ("stages", "progress"):
                np.testing.assert_array_equal(
                    observation[key][row], expected[key].astype(np.float32)
                )
            np.testing.assert_array_equal(
                observation["cluster"][row, :, 3], expected["used"].astype(np.float32)
            )
            assert (observation["turn"][row] == turns[turn]).all()
            scalar.act(taken[row][step] - OFFSETS[turn])
        episodes.play(np.array(rows), np.array([taken[row][step] for row in rows]))
    assert not board.observation(EPISODE)["turn"].any()
    for row, scalar in enumerate(scalars):
        assert scalar.is_over and episodes.complete[row]
        plan = episodes.plan(row)
        modes = [tuple(dict(x.recompute).get(m, 0) for m in ("full", "selective"))
                 for x in plan.stages]  # fmt: skip
        assert scalar.plan(setting.problem, modes) == plan


def unmasked(episode):
    """Yield the actions and all complete episodes whose stages have layers and devices to take."""
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
        other = copy.deepcopy(episode)
        try:
            other.act(choice)
        except ZeroDivisionError:
            continue
        if not other.is_over and other.turn == STAGE_LAYERS and other.first >= limits.devices:
            continue
        for taken, end in unmasked(other):
            yield (OFFSETS[turn] + choice, *taken), end


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [{"layers": 3}, {"layers": 4, "heads": 2, "kv_heads": 2}])
@pytest.mark.parametrize("batch", [4, *slow(6)])
def test_masks__leave_the_beginnings_of_well_formed_plans_and_no_others(shape, batch):
    problem = toy(80, "1x4:a100", batch, **shape)
    setting = Setting(problem, Rules())
    beginnings, ends = set(), 0
    for taken, episode in unmasked(Scalar(setting.limits)):
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
    kept = {OFFSETS[GLOBAL] + c for c in range(40)
            if GLOBAL_MICRO_BATCH[c] in (1, 2) and GLOBAL_CHUNKS[c] < 4}  # fmt: skip
    kept |= {OFFSETS[DATA] + data_choice(zero, "none") for zero in (0, 2)}
    found = {()}
    for taken in every(setting, lambda a: TURN_OF[a] not in (GLOBAL, DATA) or a in kept):
        found |= {taken[:k] for k in range(len(taken) + 1)}
    assert found == beginnings


def test_sequence_parallelism__is_left_out_where_no_stage_has_tp():
    episode = Episodes.of(Setting(toy(80), Rules()))
    choices = (global_choice(1, 1, True), TO_THE_END, ALL_LEFT, 0, data_choice(1, "none"))
    for turn, choice in zip((GLOBAL, STAGE_LAYERS, STAGE_DEVICES, TP, DATA), choices, strict=True):
        assert episode.legal[0, OFFSETS[turn] + choice]
        episode.act(OFFSETS[turn] + choice)
    assert episode.complete[0]
    assert not episode.plan(0).sequence_parallel


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mixtral-8x7b", "hetero-8/3", *slow("llama3-70b", "gpt-18.4b")])
def test_fewest__recomputes_no_layer_too_many(name):
    setting = setting_of(name)
    problem, fewest, fewer, seen = setting.problem, MODES.index(FEWEST), 0, 0
    episodes, _ = played(
        setting, 60, np.random.default_rng(1),
        lambda a: TURN_OF[a] != DATA or (a - OFFSETS[DATA]) % len(MODES) == fewest,
    )  # fmt: skip
    for row in range(60):
        plan = episodes.plan(row)
        held = problem.report(plan).held.total
        for k, stage in enumerate(plan.stages):
            counts = dict(stage.recompute)
            full, selective = counts.get("full", 0), counts.get("selective", 0)
            if full + selective == 0 or held[k] > problem.memory_limit:
                continue
            seen += 1
            size = sum(end - begin for begin, end in stage.layers)
            counts = {"full": full - 1, "selective": size - full + 1}
            if not full:
                counts = {"selective": selective - 1}
            stages = list(plan.stages)
            stages[k] = replace(stage, recompute=counts)
            again = problem.report(replace(plan, stages=tuple(stages))).held.total[k]
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


@each(
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


@each(
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
