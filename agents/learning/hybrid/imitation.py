"""Teachers of ``HybridPlan-v0``, and the training that makes a network imitate them.

The teachers are proven optima (or the best plans found in a time limit) of problems that the
generator draws for training; nothing of a validation or test set is read. Every turn of a
teacher's episode is an example, and the loss is the cross-entropy of its choice among the legal
ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.utils import obs_as_tensor

from parenvs.agents.hybrid import exact, exact_uniform
from parenvs.agents.hybrid.servers.solve import subset_search
from parenvs.core.answer import Answer
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.files import replacing
from parenvs.tasks.hybrid.space import Constraints
from parenvs.tasks.hybrid.turns.actions import ACTIONS, MICRO_BATCHES, OFFSETS
from parenvs.tasks.hybrid.turns.board import Board
from parenvs.tasks.hybrid.turns.episodes import EPISODE, Episodes
from parenvs.tasks.hybrid.turns.problems import Setting, setting_of
from parenvs.tasks.hybrid.turns.replay import Replay, replayed
from parenvs.tasks.hybrid.turns.rules import rules_of

LIMIT = 10.0
"""Seconds of a teacher's search for one problem."""
HELD_OUT = 0.1
"""Share of the problems whose examples say when to stop."""


class Lesson(NamedTuple):
    """What a teacher does on one problem.

    Attributes:
        problem: its name.
        choices: the turns' choices; empty if turns cannot make the teacher's plan.
    """

    problem: str
    choices: tuple[int, ...]


class Examples(NamedTuple):
    """Turns of teachers' episodes.

    Attributes:
        observations: part -> (k, ...).
        masks: (k, 261) bool, the legal actions.
        actions: (k,) what the teacher did.
        lesson: (k,) number of the lesson.
    """

    observations: dict[str, np.ndarray]
    masks: np.ndarray
    actions: np.ndarray
    lesson: np.ndarray


def taught(setting: Setting, seconds: float = LIMIT) -> Replay | None:
    """Return a teacher's episode, or None if nothing that it found can be played by turns.

    Args:
        setting: the problem.
        seconds: limit of the search.
    """
    limits = Constraints(context=1, expert=1, most_micro_batch=MICRO_BATCHES[-1])
    planners: list[Callable[[], Answer]] = [
        lambda: exact(setting.problem, limits, time_limit=seconds),
        lambda: exact_uniform(setting.problem, limits),
    ]
    if setting.rules.stage_devices == 0:
        planners = [lambda: subset_search(setting.problem, time_limit=seconds)]
    best: Replay | None = None
    for planner in planners:
        try:
            replay = replayed(setting, planner().plan)
        except InfeasibleError:
            continue
        if replay is not None and replay.value > (0.0 if best is None else best.value):
            best = replay
    return best


def lessons(
    generator: str,
    count: int,
    file: Path,
    seconds: float = LIMIT,
    report: Callable[[str], object] = lambda text: None,
) -> list[Lesson]:
    """Return lessons on the first problems of a generator; those in a file are not made again.

    Args:
        generator: name of the generator.
        count: number of problems.
        file: JSON, an object of problems' names and choices; it is written after every problem.
        seconds: limit of each search.
        report: is called with a line on every problem.

    Raises:
        ParenvsError: the file holds anything else.
    """
    known = _read(file)
    rules = rules_of(generator)
    for number in range(count):
        name = f"{generator}/{number}"
        if name in known:
            continue
        replay = taught(setting_of(name, rules), seconds)
        known[name] = [] if replay is None else replay.choices
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as new:
            new.write(json.dumps(known).encode())
        report(f"{name}: " + ("no lesson" if replay is None else f"{replay.value:.3f}"))
    names = (f"{generator}/{number}" for number in range(count))
    return [Lesson(name, tuple(known[name])) for name in names]


def _read(file: Path) -> dict[str, list[int]]:
    """Return the choices in a file, nothing if it is not there."""
    if not file.exists():
        return {}
    try:
        known = json.loads(file.read_text())
        assert isinstance(known, dict)
        assert all(isinstance(x, int) for choices in known.values() for x in choices)
    except (OSError, ValueError, TypeError, AssertionError):
        raise ParenvsError(f"{file}: no lessons; remove it, and they are made anew") from None
    return known


def examples(generator: str, given: Sequence[Lesson]) -> Examples:
    """Return every turn of the lessons.

    Raises:
        ParenvsError: there is none, or a choice of one is illegal.
    """
    rules = rules_of(generator)
    seen: list[dict[str, np.ndarray]] = []
    masks, actions, numbers = [], [], []
    for number, lesson in enumerate(given):
        episode = Episodes.of(setting_of(lesson.problem, rules))
        board = Board(episode)
        for choice in lesson.choices:
            action = OFFSETS[episode.turn[0]] + choice
            if episode.over[0] or not 0 <= action < ACTIONS or not episode.legal[0, action]:
                raise ParenvsError(f"{lesson.problem}: illegal choice {choice} in its lesson")
            seen.append({key: x[0] for key, x in board.observation(EPISODE).items()})
            masks.append(episode.legal[0].copy())
            actions.append(action)
            numbers.append(number)
            episode.act(action)
    if not seen:
        raise ParenvsError(f"{generator}: no lesson to learn from; ask for more problems")
    observations = {key: np.stack([one[key] for one in seen]) for key in seen[0]}
    return Examples(observations, np.stack(masks), np.array(actions), np.array(numbers))


def imitate(
    model: Any, given: Examples, seed: int, passes: int = 60, batch: int = 256, rate: float = 1e-3
) -> float:
    """Train the policy of a MaskablePPO on examples, and return the least held-out loss in nats.

    The weights of the pass with the least loss on the examples of a tenth of the lessons are kept.

    Args:
        model: its policy is changed.
        given: the examples.
        seed: of their order, and of what is held out.
        passes: times that every example is used.
        batch: examples of a step.
        rate: learning rate at first; it falls to nothing along a cosine.
    """
    rng, policy = np.random.default_rng([seed, 1]), model.policy
    drawn = rng.random(int(given.lesson.max()) + 1) < HELD_OUT
    held = np.flatnonzero(drawn[given.lesson])
    used = np.flatnonzero(~drawn[given.lesson])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=rate, weight_decay=1e-2)
    steps = passes * -(-len(used) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    least, best = np.inf, {key: x.clone() for key, x in policy.state_dict().items()}
    for _ in range(passes):
        policy.set_training_mode(True)
        for rows in _batches(rng.permutation(used), batch):
            loss = _losses(policy, given, rows).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        policy.set_training_mode(False)
        with torch.no_grad():
            checked = held if held.size else used
            total = sum(_losses(policy, given, rows).sum() for rows in _batches(checked, 1024))
        if float(total) / len(checked) < least:
            least = float(total) / len(checked)
            best = {key: x.clone() for key, x in policy.state_dict().items()}
    policy.load_state_dict(best)
    return least


def _losses(policy: Any, given: Examples, rows: np.ndarray) -> torch.Tensor:
    """(k,) nats by which the policy misses the teachers' choices."""
    parts = {key: part[rows] for key, part in given.observations.items()}
    states = policy.extract_features(obs_as_tensor(parts, policy.device))
    logits = policy.action_net(states)
    masks = torch.from_numpy(given.masks[rows]).to(logits.device)
    logits = logits.masked_fill(~masks, torch.finfo(logits.dtype).min)
    wanted = torch.from_numpy(given.actions[rows]).to(logits.device)
    return torch.nn.functional.cross_entropy(logits, wanted, reduction="none")


def _batches(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for begin in range(0, len(rows), size):
        yield rows[begin : begin + size]
