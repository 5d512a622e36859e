"""Plans of hybrid problems by playing turns: at random, and by local search over the choices."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

import numpy as np

from parenvs.core.answer import Answer
from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.turns.actions import OFFSETS, STAGE_LAYERS, TO_THE_END, TURN_OF
from parenvs.tasks.hybrid.turns.episodes import MASKS, Episodes
from parenvs.tasks.hybrid.turns.problems import Setting
from parenvs.tasks.hybrid.turns.rules import Rules

EVALUATIONS = 600
"""Plans that are judged by default."""
_PATIENCE = 150  # judged plans without a better one, after which the search starts anew


class _Played(NamedTuple):
    """A complete plan: seconds of a step, bytes over the limit, and the actions that make it."""

    length: float
    excess: float
    actions: list[int]

    @property
    def rank(self) -> tuple[float, float]:
        """Plans that fit come first, the fastest of them before; the others by what they lack."""
        return (0.0, self.length) if self.excess <= 0 else (self.excess, self.length)


class _Node:
    """The beginning of plans: its legal actions, and what those that were taken led to."""

    def __init__(self, episode: Episodes) -> None:
        self.after: dict[int, _Node] = {}
        self.state = episode.state(0)
        self.is_over, self.turn = bool(episode.over[0]), int(episode.turn[0])
        self.length, self.excess = float(episode.length[0]), float(episode.excess[0])
        self.legal = np.flatnonzero(episode.legal[0])


class _Tree:
    """The plans of a problem that were played; no beginning is played twice."""

    def __init__(self, problem: Hybrid, rules: Rules | None, mask: str = MASKS[0]) -> None:
        self.problem = problem
        self.episode = Episodes.of(Setting(problem, rules or Rules()), mask)
        self.root = _Node(self.episode)

    def take(self, node: _Node, action: int) -> _Node:
        """Return what an action leads to."""
        if action not in node.after:
            self.episode.resume(0, node.state)
            self.episode.act(action)
            node.after[action] = _Node(self.episode)
        return node.after[action]

    def play(self, rng: np.random.Generator) -> _Played:
        """Play random legal actions to the end."""
        node = self.root
        taken: list[int] = []
        while not node.is_over:
            if not node.legal.size:  # mask "completable", at the opening
                raise InfeasibleError(
                    f"{self.problem.instance}: no plan that an episode can build fits the memory"
                )
            taken.append(int(rng.choice(node.legal)))
            node = self.take(node, taken[-1])
        return _Played(node.length, node.excess, taken)

    def change(self, actions: list[int], rng: np.random.Generator) -> _Played:
        """Play the actions of a plan again, one of them changed."""
        where = int(rng.integers(len(actions)))
        old, taken, node = actions[where], actions[:where], self.root
        # The old actions behind the changed one are offered to the turn that they were made in.
        kept = deque(actions[where:])
        for action in taken:
            node = self.take(node, action)
        others = node.legal[node.legal != old]
        if others.size:
            if node.turn == STAGE_LAYERS and rng.random() < 0.5:
                # A neighbouring border is more often better than a distant one.
                others = others[np.argsort(np.abs(others - old), kind="stable")[:4]]
            taken.append(int(rng.choice(others)))
            node = self.take(node, taken[-1])
            kept.popleft()
        while not node.is_over:
            while kept and TURN_OF[kept[0]] != node.turn:
                kept.popleft()
            action = kept.popleft() if kept else -1
            if action not in node.legal:
                action = OFFSETS[STAGE_LAYERS] + TO_THE_END
                if action not in node.legal or rng.random() >= 0.5:
                    action = int(rng.choice(node.legal))
            taken.append(action)
            node = self.take(node, action)
        return _Played(node.length, node.excess, taken)


def random_play(
    problem: Hybrid,
    rng: np.random.Generator,
    evaluations: int = 1,
    mask: str = MASKS[0],
    rules: Rules | None = None,
) -> Answer:
    """Return the best plan of some random episodes of ``HybridPlan-v0``.

    Args:
        problem: the problem.
        rng: source of the choices; each legal one is as likely as any other.
        evaluations: number of episodes.
        mask: ``"legal"`` or ``"completable"``.
        rules: what the plans have in common.

    Raises:
        InfeasibleError: no plan that was played fits.
    """
    begin, tree = time.perf_counter(), _Tree(problem, rules, mask)
    best = min((tree.play(rng) for _ in range(evaluations)), key=lambda x: x.rank)
    return _answer(tree, best, "random-play", evaluations, begin)


def local_search(
    problem: Hybrid,
    rng: np.random.Generator,
    evaluations: int = EVALUATIONS,
    rules: Rules | None = None,
) -> Answer:
    """Return the best plan that a local search over the choices of an episode finds.

    One choice of the best episode so far is replaced by another legal one, or a stage is left out
    or put in; the choices behind it are kept as far as they are legal. After 150 plans in vain it
    starts anew from a random episode.

    Args:
        problem: the problem.
        rng: source of the choices.
        evaluations: number of plans that are judged.
        rules: what the plans have in common.

    Raises:
        InfeasibleError: no plan that was judged fits.
    """
    begin, tree = time.perf_counter(), _Tree(problem, rules)
    best: _Played | None = None
    current = tree.play(rng)
    judged, since = 1, 0
    while judged < evaluations:
        other = tree.change(current.actions, rng)
        judged, since = judged + 1, since + 1
        if other.rank < current.rank:
            current, since = other, 0
        elif since > _PATIENCE and judged < evaluations:
            best = current if best is None or current.rank < best.rank else best
            current, since, judged = tree.play(rng), 0, judged + 1
    best = current if best is None or current.rank < best.rank else best
    return _answer(tree, best, "local-search", evaluations, begin)


def _answer(tree: _Tree, best: _Played, method: str, evaluations: int, begin: float) -> Answer:
    """Return a played plan as an answer that proves nothing.

    Raises:
        InfeasibleError: it does not fit.
    """
    problem, node = tree.problem, tree.root
    if best.excess > 0:
        raise InfeasibleError(
            f"{problem.instance}: none of {evaluations} plans that were played fits; the smallest "
            f"one lacks {best.excess:,.0f} bytes"
        )
    for action in best.actions:
        node = tree.take(node, action)
    tree.episode.resume(0, node.state)
    return Answer(
        problem=problem,
        plan=tree.episode.plan(0),
        cost=best.length,
        method=method,
        evaluations=evaluations,
        seconds=time.perf_counter() - begin,
    )
