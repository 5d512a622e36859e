"""Trains the network that plans pipelines, on generated problems only.

First it imitates: every choice of proven optima is an example. Then it improves on its own: every
iteration takes problems that were never seen, lets the network draw plans of each, and makes those
more likely that are shorter than their siblings (the mean of the group is the baseline, so that no
critic has to learn how hard a problem is), with PPO's clipped objective.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn import functional

from parenvs.agents.plan_labels import Labelled, labelled
from parenvs.agents.plan_network import PlanNetwork
from parenvs.agents.plan_policy import Episodes, PlanPolicy
from parenvs.agents.training_env import one_thread
from parenvs.datasets import generators

AHEAD = 3
"""Parts that are made in advance."""
Made = TypeVar("Made")


@dataclass(frozen=True)
class Recipe:
    """What decides a training; equal recipes give equal networks on one machine.

    Attributes:
        seed: seed of everything random.
        parts: parts of labelled problems to imitate.
        part: problems in each.
        passes: times that each part is used for imitation.
        imitation_rate: learning rate of imitation at first; it falls to a twentieth, by a cosine.
        iterations: updates from drawn plans.
        problems: new problems in each.
        samples: plans drawn of each.
        epochs: passes over the drawn choices.
        minibatch: choices in a step of the optimiser.
        learning_rate: of drawn plans at first; it falls to a twentieth, by a cosine.
        entropy: weight of the entropy at first; it falls to 0, linearly.
        clip: PPO's.
        spread: least spread of a group, in ln(L); below it all of its plans count as equal.
        family: problems of this family only.
    """

    seed: int = 0
    parts: int = 300
    part: int = 128
    passes: int = 20
    imitation_rate: float = 2e-3
    iterations: int = 800
    problems: int = 64
    samples: int = 16
    epochs: int = 2
    minibatch: int = 1024
    learning_rate: float = 5e-4
    entropy: float = 0.005
    clip: float = 0.2
    spread: float = 0.02
    family: str | None = None


@dataclass
class Choices:
    """Choices of one kind, as tensors; rows are the legal ones only.

    Attributes:
        kind: ``"points"`` or ``"units"``.
        rows: (r, features) float32, one choice after the other.
        context: (b, CONTEXT) float32.
        count: (b,) int64, rows of each choice.
        actions: (b,) int64, which of its rows was chosen.
        episodes: (b,) the problems.
        log_probs: (b,) of the actions when they were drawn.
    """

    kind: str
    rows: torch.Tensor
    context: torch.Tensor
    count: torch.Tensor
    actions: torch.Tensor
    episodes: torch.Tensor
    log_probs: torch.Tensor | None = None

    @classmethod
    def of(
        cls, kind: str, rows: np.ndarray, context: np.ndarray, masks: np.ndarray, episodes: Any
    ) -> Choices:
        """Choices that are still to be made."""
        count = torch.from_numpy(masks.sum(axis=1))
        some, whole = torch.from_numpy(rows[masks]), torch.from_numpy(context)
        nothing = torch.zeros(len(count), dtype=torch.int64)
        return cls(kind, some, whole, count, nothing, torch.as_tensor(episodes))

    def columns(self, masks: np.ndarray) -> np.ndarray:
        """The chosen columns of the masks."""
        first = np.cumsum(self.count.numpy()) - self.count.numpy()
        return np.nonzero(masks)[1][first + self.actions.numpy()]

    def take(self, index: torch.Tensor) -> Choices:
        """The choices of an index array."""
        first = torch.cumsum(self.count, 0) - self.count
        count = self.count[index]
        place = torch.arange(int(count.sum())) - (torch.cumsum(count, 0) - count).repeat_interleave(
            count
        )
        rows = self.rows[first[index].repeat_interleave(count) + place]
        log_probs = None if self.log_probs is None else self.log_probs[index]
        return Choices(
            self.kind, rows, self.context[index], count, self.actions[index],
            self.episodes[index], log_probs,
        )  # fmt: skip

    @classmethod
    def join(cls, parts: Sequence[Choices]) -> Choices:
        """All of them together; of one kind."""
        drawn = [part.log_probs for part in parts if part.log_probs is not None]
        return cls(
            parts[0].kind,
            torch.cat([part.rows for part in parts]),
            torch.cat([part.context for part in parts]),
            torch.cat([part.count for part in parts]),
            torch.cat([part.actions for part in parts]),
            torch.cat([part.episodes for part in parts]),
            torch.cat(drawn) if drawn else None,
        )


def by_kind(made: Sequence[Choices]) -> list[Choices]:
    """Choices of each kind together."""
    kinds = dict.fromkeys(part.kind for part in made)
    return [Choices.join([part for part in made if part.kind == kind]) for kind in kinds]


def lessons(part: Labelled) -> list[Choices]:
    """The choices of the labels, by kind."""
    made: list[Choices] = []

    def choose(
        kind: str, rows: np.ndarray, context: np.ndarray, masks: np.ndarray, active: np.ndarray
    ) -> np.ndarray:
        labels = part.cuts if kind == "points" else part.units
        right = labels[active, len(made) // 2]
        choices = Choices.of(kind, rows, context, masks, active)
        before = np.arange(masks.shape[1]) < right[:, None]
        choices.actions = torch.from_numpy((masks & before).sum(axis=1))
        made.append(choices)
        return right

    part.episodes.play(choose)
    return by_kind(made)


class Trainer:
    """The network and its optimiser.

    Args:
        recipe: what decides the training.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        torch.manual_seed(recipe.seed)
        self.network = PlanNetwork()
        self.optimizer = torch.optim.Adam(self.network.parameters())

    @property
    def policy(self) -> PlanPolicy:
        """The network as it is."""
        return PlanPolicy(self.network.weights())

    def imitate(self, examples: Sequence[Choices], done: float) -> float:
        """One step towards the examples; the mean loss. ``done``: share of the imitation."""
        losses = [
            functional.cross_entropy(self._ratings(choices), choices.actions)
            for choices in examples
        ]
        loss = torch.stack(losses).sum()
        self._descend(loss, self.recipe.imitation_rate, done)
        return loss.item()

    def improve(self, episodes: Episodes, number: int) -> dict[str, float]:
        """One iteration of drawing and comparing plans; what it measured."""
        recipe, done = self.recipe, number / self.recipe.iterations
        generator = np.random.default_rng([recipe.seed, number, 1])
        group = np.arange(len(episodes.batch)).repeat(recipe.samples)
        drawn, lengths = self._draw(episodes.take(group), generator)
        cost = np.log(lengths).reshape(-1, recipe.samples)
        mean, spread = cost.mean(axis=1, keepdims=True), cost.std(axis=1, keepdims=True)
        advantages = torch.from_numpy(((mean - cost) / (spread + recipe.spread)).ravel()).float()
        entropies = [
            self._update(choices, advantages, done, generator)
            for _ in range(recipe.epochs)
            for choices in drawn
        ]
        return {
            "length": float(np.exp(cost.mean())),
            "best": float(np.exp(cost.min(axis=1).mean())),
            "entropy": float(np.mean(entropies)),
        }

    def _ratings(self, choices: Choices) -> torch.Tensor:
        rater = getattr(self.network, choices.kind)
        return rater(choices.rows, choices.context, choices.count)

    def _draw(
        self, episodes: Episodes, generator: np.random.Generator
    ) -> tuple[list[Choices], np.ndarray]:
        """Choices drawn from the network, by kind, and the lengths of the plans."""
        drawn: list[Choices] = []

        def choose(
            kind: str, rows: np.ndarray, context: np.ndarray, masks: np.ndarray, active: np.ndarray
        ) -> np.ndarray:
            choices = Choices.of(kind, rows, context, masks, active)
            with torch.no_grad():
                ratings = self._ratings(choices)
            # Gumbel's trick: the largest of the ratings with this noise is drawn by the softmax.
            noise = torch.from_numpy(generator.gumbel(size=ratings.shape).astype(np.float32))
            choices.actions = (ratings + noise).argmax(dim=1)
            choices.log_probs = _log_prob(ratings, choices.actions)
            drawn.append(choices)
            return choices.columns(masks)

        lengths = episodes.batch.lengths(*episodes.play(choose))
        return by_kind(drawn), lengths

    def _update(
        self,
        choices: Choices,
        advantages: torch.Tensor,
        done: float,
        generator: np.random.Generator,
    ) -> float:
        """One pass over the choices of one kind; their mean entropy."""
        recipe, entropies = self.recipe, []
        order = torch.from_numpy(generator.permutation(len(choices.count)))
        for index in order.split(recipe.minibatch):
            some = choices.take(index)
            assert some.log_probs is not None
            ratings = self._ratings(some)
            ratio = (_log_prob(ratings, some.actions) - some.log_probs).exp()
            advantage = advantages[some.episodes]
            clipped = ratio.clamp(1 - recipe.clip, 1 + recipe.clip)
            gain = torch.minimum(ratio * advantage, clipped * advantage).mean()
            likely = ratings.log_softmax(dim=1)
            entropy = -(likely.exp() * likely.clamp(min=-50.0)).sum(dim=1).mean()
            loss = -gain - recipe.entropy * (1 - done) * entropy
            self._descend(loss, recipe.learning_rate, done)
            entropies.append(entropy.item())
        return float(np.mean(entropies))

    def _descend(self, loss: torch.Tensor, rate: float, done: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate * (0.05 + 0.475 * (1 + np.cos(np.pi * done)))
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()


def fresh(recipe: Recipe, number: int) -> Episodes:
    """New problems without labels; the same ones every time they are asked for."""
    rng = np.random.default_rng([recipe.seed, number, 2])
    drawn = (generators.draw(rng, recipe.family) for _ in range(recipe.problems))
    return Episodes.of([problem.space for problem in drawn])


def lesson(recipe: Recipe, number: int) -> list[Choices]:
    """Part ``number`` of the examples."""
    return lessons(labelled(recipe.seed, number, recipe.part, recipe.family))


def ahead(make: Callable[[int], Made], count: int, pool: ProcessPoolExecutor) -> Iterator[Made]:
    """``make(0)``, ``make(1)``, ..., made in other processes a little ahead of their use."""
    pending: deque[Future[Made]] = deque()
    for number in range(count):
        pending.append(pool.submit(make, number))
        if len(pending) > AHEAD:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


Report = Callable[[Trainer, str, int, dict[str, float]], Any]
"""``report(trainer, phase, step, figures)``, after every step."""


def train(recipe: Recipe, report: Report, workers: int = 1) -> PlanPolicy:
    """Train from scratch.

    Half of the imitation goes on while examples are still being made, with those that are there;
    the other half takes all of them in turn.
    """
    trainer, generator = Trainer(recipe), np.random.default_rng([recipe.seed, 3])
    steps = recipe.parts * recipe.passes
    with one_thread(), ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        examples: list[list[Choices]] = []

        def order() -> Iterator[int]:
            for part in ahead(partial(lesson, recipe), recipe.parts, pool):
                examples.append(part)
                for _ in range(recipe.passes // 2):
                    yield int(generator.integers(len(examples)))
            for _ in range(recipe.passes - recipe.passes // 2):
                yield from generator.permutation(len(examples)).tolist()

        for step, index in enumerate(order()):
            loss = trainer.imitate(examples[index], step / steps)
            report(trainer, "imitate", step + 1, {"loss": loss})
        for number, episodes in enumerate(ahead(partial(fresh, recipe), recipe.iterations, pool)):
            report(trainer, "improve", number + 1, trainer.improve(episodes, number))
    return trainer.policy


def _log_prob(ratings: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    return ratings.log_softmax(dim=1).gather(1, actions[:, None])[:, 0]
