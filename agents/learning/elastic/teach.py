"""Teaches the network what the proven optimal policies of training chains know.

On a chain that is known, value iteration says what every choice in every state is worth. The pupil
does not know its chain: it plays, and learns to choose what is worth most on average over the
chains on which it sees the same. As no choice changes what is seen of the nodes, there is nothing
to be explored, and this average is what a policy without knowledge of the chain should go by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from parenvs.agents.elastic.exact import optimal
from parenvs.agents.elastic.policies import Rating, seen_of
from parenvs.agents.learning.play import one_thread
from parenvs.tasks.elastic.library import MAX_PLANS
from parenvs.tasks.elastic.problem import Elastic
from parenvs.tasks.elastic.tables import Tables
from parenvs.tasks.elastic.turns import Turns

EPISODES = 128
"""Episodes that are played at a time."""
EPOCHS, BATCH = 2, 512
RATES = (3e-3, 3e-4)
"""Learning rate at first and at last."""
LOWEST = torch.finfo(torch.float32).min
"""What illegal plans count."""
ENTROPY = 0.01
"""Weight of the entropy, in intervals of the ideal."""


class Lessons:
    """What every choice on some chains is worth.

    Args:
        problems: on chains, of one number of intervals and nodes.
        told: is called with a problem when it is solved.

    Attributes:
        after: (P, S, N+1, 64, C) float16, expected samples after a choice, by interval, nodes,
            choice, and intervals since the state is safe then; less those of waiting, in intervals
            of the ideal.
    """

    def __init__(
        self, problems: Sequence[Elastic], told: Callable[[Elastic], None] | None = None
    ) -> None:
        self.tables = tables = Tables.of(problems)
        first = problems[0]
        shape = (first.intervals, first.nodes + 1, MAX_PLANS, int(tables.every.max()))
        self.after = np.zeros((len(problems), *shape), dtype=np.float16)
        for number, problem in enumerate(problems):
            unit = problem.intervals / problem.ideal

            def keep(t: int, after: np.ndarray, number: int = number, unit: float = unit) -> None:
                own = unit * (after - after[:, :1, :1])
                a, b, c = own.shape
                self.after[number, t, :a, :b, :c] = own

            optimal(problem, keep)
            if told is not None:
                told(problem)

    def worth(self, play: Turns) -> np.ndarray:
        """Return what the choices of all episodes are worth, (n, 64), in intervals of the ideal.

        What does not depend on the choice is left out.
        """
        tables, plan, row = self.tables, play.plan, play.row
        every = tables.every[row]
        unit = play.length / tables.ideal[play.problem]
        after = self.after[play.problem, play.interval, play.nodes].astype(np.float64)
        result = tables.earned[row, play.event, plan] * unit[:, None] + after[:, :, 0]
        (stays,) = np.nonzero((play.event == 0) & (plan > 0))
        row, plan, since = row[stays], plan[stays], play.since[stays] + 1
        saves = since == every[stays]
        samples = tables.earned[row, 0, plan, plan] - np.where(saves, tables.saved[row, plan], 0.0)
        result[stays, plan] = samples * unit[stays] + after[stays, plan, np.where(saves, 0, since)]
        return result


def teach(lessons: Lessons, seed: int, samples: int) -> Rating:
    """Return a network that has learnt the lessons.

    Args:
        lessons: what choices are worth.
        seed: of everything random.
        samples: states that are learnt from.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    pupil = Rating()
    optimiser = torch.optim.Adam(pupil.parameters(), RATES[0])
    count = max(samples // (EPISODES * lessons.after.shape[1]), 1)
    with one_thread():
        for turn in range(count):
            for group in optimiser.param_groups:
                group["lr"] = RATES[0] + (RATES[1] - RATES[0]) * turn / count
            _learn(pupil, optimiser, _played(pupil, lessons, rng))
    return pupil


def _played(pupil: Rating, lessons: Lessons, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Turns episodes as the pupil would; return observations, masks and what choices are worth."""
    tables = lessons.tables
    play, who = Turns(EPISODES, tables), np.arange(EPISODES)
    numbers = rng.integers(len(tables.problems), size=EPISODES).tolist()
    play.start(who, numbers, [tables.problems[i].draw(rng) for i in numbers])
    plans = tables.plans[play.row]
    parts: list[dict[str, np.ndarray]] = []
    over = False
    while not over:
        legal = play.masks() > 0
        part = {"plans": plans, **play.observation(who), "legal": legal}
        scores = _scores(pupil, {key: torch.from_numpy(x) for key, x in part.items()})
        drawn = rng.gumbel(size=scores.shape)
        choice = np.where(legal, scores.numpy() + drawn, -np.inf).argmax(axis=1)
        parts.append({**part, "worth": lessons.worth(play).astype(np.float32)})
        over = bool(play.step(who, choice)[1].all())
    return {key: torch.from_numpy(np.concatenate([x[key] for x in parts])) for key in parts[0]}


def _scores(pupil: Rating, seen: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return pupil(seen_of(seen))


def _learn(pupil: Rating, optimiser: torch.optim.Optimizer, seen: dict[str, torch.Tensor]) -> None:
    """Raise what the pupil's choices are worth on average."""
    for _ in range(EPOCHS):
        for index in torch.randperm(len(seen["worth"])).split(BATCH):
            some = {key: value[index] for key, value in seen.items()}
            legal = some["legal"]
            scores = pupil(seen_of(some)).masked_fill(~legal, LOWEST)
            chances, logs = scores.softmax(1), scores.log_softmax(1).clamp(min=-30.0)
            best = some["worth"].masked_fill(~legal, LOWEST).amax(1, keepdim=True)
            regret = torch.where(legal, best - some["worth"], 0.0)
            loss = (chances * (regret + ENTROPY * logs)).sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
