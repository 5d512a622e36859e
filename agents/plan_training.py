"""Trains the network that plans pipelines: many generated problems, several plans of each.

Every iteration takes problems that were never seen, lets the network draw plans of each, and makes
those more likely that are shorter than their siblings (the mean of the group is the baseline, so
that no critic has to learn how hard a problem is), with PPO's clipped objective. Plans come
without illegal choices, the masks see to that.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributions import Categorical

from parenvs.agents.plan_network import PlanNetwork
from parenvs.agents.plan_policy import Episodes, PlanPolicy
from parenvs.agents.training_env import one_thread
from parenvs.datasets import generators
from parenvs.plan_space import PlanSpace

AHEAD = 3
"""Iterations whose problems are generated in advance."""


@dataclass(frozen=True)
class Recipe:
    """What decides a training; equal recipes give equal networks on one machine.

    Attributes:
        seed: seed of everything random.
        iterations: updates.
        problems: new problems in each.
        samples: plans drawn of each.
        repeat: iterations that each problem is used in (the paper: every instance 50 times).
        epochs: passes over the drawn choices.
        minibatch: choices of one kind in a step of the optimiser.
        learning_rate: at first; it falls to a tenth, by a cosine.
        entropy: weight of the entropy at first; it falls to 0, linearly.
        clip: PPO's.
        spread: least spread of a group, in ln(L); below it all of its plans count as equal.
        family: problems of this family only.
    """

    seed: int = 0
    iterations: int = 3000
    problems: int = 96
    samples: int = 16
    repeat: int = 1
    epochs: int = 2
    minibatch: int = 2048
    learning_rate: float = 1e-3
    entropy: float = 0.01
    clip: float = 0.2
    spread: float = 0.02
    family: str | None = None


@dataclass
class Choices:
    """What was drawn in one place of the episodes, as tensors."""

    kind: str
    rows: torch.Tensor
    context: torch.Tensor
    masks: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    episodes: np.ndarray


def problems(recipe: Recipe, iteration: int) -> Episodes:
    """The problems of an iteration; the same ones every time it is asked for."""
    rng = np.random.default_rng([recipe.seed, iteration])
    drawn = (generators.draw(rng, recipe.family) for _ in range(recipe.problems))
    return Episodes.of([PlanSpace.build(p.pipeline, p.stages) for p in drawn])


class Trainer:
    """The network, its optimiser, and the generator of everything drawn.

    Args:
        recipe: what decides the training.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.iteration = recipe, 0
        torch.manual_seed(recipe.seed)
        self.network = PlanNetwork()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=recipe.learning_rate)

    def step(self, episodes: Episodes) -> dict[str, float]:
        """One iteration; what it measured."""
        recipe = self.recipe
        done = self.iteration / recipe.iterations
        for options in self.optimizer.param_groups:
            options["lr"] = recipe.learning_rate * (0.1 + 0.45 * (1 + np.cos(np.pi * done)))
        generator = np.random.default_rng([recipe.seed, self.iteration, 1])
        group = np.arange(len(episodes.batch)).repeat(recipe.samples)
        drawn, lengths = self._draw(episodes.take(group), generator)
        cost = np.log(lengths).reshape(-1, recipe.samples)
        mean, spread = cost.mean(axis=1, keepdims=True), cost.std(axis=1, keepdims=True)
        advantages = torch.from_numpy(((mean - cost) / (spread + recipe.spread)).ravel()).float()
        losses = [
            self._update(choices, advantages, recipe.entropy * (1 - done), generator)
            for _ in range(recipe.epochs)
            for choices in drawn
        ]
        self.iteration += 1
        return {
            "length": float(np.exp(cost.mean())),
            "best": float(np.exp(cost.min(axis=1).mean())),
            "entropy": float(np.mean([entropy for _, entropy in losses])),
        }

    def _draw(
        self, episodes: Episodes, generator: np.random.Generator
    ) -> tuple[list[Choices], np.ndarray]:
        """Plans drawn from the network, and their lengths."""
        drawn: list[Choices] = []

        def choose(
            kind: str, rows: np.ndarray, context: np.ndarray, masks: np.ndarray, active: np.ndarray
        ) -> np.ndarray:
            seen, whole, legal = (torch.from_numpy(x) for x in (rows, context, masks))
            with torch.no_grad():
                ratings = getattr(self.network, kind)(seen, whole, legal)
            # Gumbel's trick: the largest of the ratings with this noise is drawn by the softmax.
            noise = torch.from_numpy(generator.gumbel(size=masks.shape).astype(np.float32))
            actions = torch.where(legal, ratings + noise, -torch.inf).argmax(dim=1)
            log_probs = ratings.log_softmax(dim=1).gather(1, actions[:, None])[:, 0]
            drawn.append(Choices(kind, seen, whole, legal, actions, log_probs, active))
            return actions.numpy()

        return drawn, episodes.batch.lengths(*episodes.play(choose))

    def _update(
        self,
        choices: Choices,
        advantages: torch.Tensor,
        entropy_weight: float,
        generator: np.random.Generator,
    ) -> tuple[float, float]:
        """One pass over the choices of one place; mean loss and entropy."""
        order = torch.from_numpy(generator.permutation(len(choices.actions)))
        rate, sums = getattr(self.network, choices.kind), np.zeros(2)
        parts = order.split(self.recipe.minibatch)
        for part in parts:
            ratings = rate(choices.rows[part], choices.context[part], choices.masks[part])
            likely = Categorical(logits=ratings)
            ratio = (likely.log_prob(choices.actions[part]) - choices.log_probs[part]).exp()
            advantage = advantages[choices.episodes[part]]
            clipped = ratio.clamp(1 - self.recipe.clip, 1 + self.recipe.clip)
            gain = torch.minimum(ratio * advantage, clipped * advantage).mean()
            entropy = likely.entropy().mean()
            loss = -gain - entropy_weight * entropy
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            self.optimizer.step()
            sums += (loss.item(), entropy.item())
        mean, entropy_mean = sums / len(parts)
        return float(mean), float(entropy_mean)


def supply(recipe: Recipe, first: int, workers: int = 1) -> Iterator[Episodes]:
    """The problems of every iteration from ``first`` on, made ahead by other processes."""
    last = -(-recipe.iterations // recipe.repeat)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        pending: deque[Future[Episodes]] = deque()
        for number in range(first // recipe.repeat, last):
            pending.append(pool.submit(problems, recipe, number))
            if len(pending) > AHEAD:
                yield from [pending.popleft().result()] * recipe.repeat
        while pending:
            yield from [pending.popleft().result()] * recipe.repeat


def train(
    recipe: Recipe,
    report: Callable[[Trainer, dict[str, float]], Any],
    workers: int = 1,
) -> PlanPolicy:
    """Train from scratch; ``report`` is called after every iteration."""
    trainer = Trainer(recipe)
    with one_thread():
        for episodes in supply(recipe, 0, workers):
            if trainer.iteration >= recipe.iterations:
                break
            report(trainer, trainer.step(episodes))
    return PlanPolicy(trainer.network.weights())


def save_recipe(path: Path, recipe: Recipe) -> None:
    """Write the recipe beside what it made."""
    path.write_text(json.dumps(asdict(recipe), indent=1) + "\n", encoding="utf-8")


def quick(recipe: Recipe) -> Recipe:
    """The recipe cut short, to try it."""
    return replace(recipe, iterations=20, problems=16, samples=8)
