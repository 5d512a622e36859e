"""Plans of hybrid problems by playing turns: at random, and by local search over the choices."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from parenvs.core.answer import Answer
from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.turns.actions import STAGE_LAYERS, TO_THE_END
from parenvs.tasks.hybrid.turns.game import MASKS, Game, Setting
from parenvs.tasks.hybrid.turns.rules import Rules

EVALUATIONS = 600
"""Plans that are judged by default."""
_PATIENCE = 150  # judged plans without a better one, after which the search starts anew


class _Played(NamedTuple):
    """A complete episode: seconds of a step, bytes over the limit, and the game."""

    length: float
    excess: float
    game: Game

    @property
    def rank(self) -> tuple[float, float]:
        """Plans that fit come first, the fastest of them before; the others by what they lack."""
        return (0.0, self.length) if self.excess <= 0 else (self.excess, self.length)


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
    begin, setting = time.perf_counter(), Setting(problem, rules or Rules())
    best = min((_play(setting, rng, mask) for _ in range(evaluations)), key=lambda x: x.rank)
    return _answer(problem, best, "random-play", evaluations, begin)


def local_search(
    problem: Hybrid,
    rng: np.random.Generator,
    evaluations: int = EVALUATIONS,
    rules: Rules | None = None,
    start: Game | None = None,
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
        start: a complete episode to start from (default: a random one).

    Raises:
        InfeasibleError: no plan that was judged fits.
    """
    begin, setting = time.perf_counter(), Setting(problem, rules or Rules())
    best: _Played | None = None
    current = _play(setting, rng) if start is None else _of(start)
    judged, since = 1, 0
    while judged < evaluations:
        other = _changed(setting, current.game, rng)
        judged, since = judged + 1, since + 1
        if other.rank < current.rank:
            current, since = other, 0
        elif since > _PATIENCE and judged < evaluations:
            best = current if best is None or current.rank < best.rank else best
            current, since, judged = _play(setting, rng), 0, judged + 1
    best = current if best is None or current.rank < best.rank else best
    return _answer(problem, best, "local-search", evaluations, begin)


def _play(setting: Setting, rng: np.random.Generator, mask: str = MASKS[0]) -> _Played:
    """Play random legal choices to the end."""
    game = Game(setting, mask)
    while not game.is_over:
        choices = np.flatnonzero(game.legal)
        if not len(choices):  # mask "completable", at the opening
            raise InfeasibleError(
                f"{setting.problem.instance}: no plan that an episode can build fits the memory"
            )
        game.act(int(rng.choice(choices)))
    return _of(game)


def _changed(setting: Setting, game: Game, rng: np.random.Generator) -> _Played:
    """Play the choices of a game again, one of them changed."""
    where = int(rng.integers(len(game.taken)))
    # The old choices behind the changed one are offered to the turn that they were made in.
    kept = list(zip(game.turns[where:], game.taken[where:], strict=True))
    other = Game(setting)
    for choice in game.taken[:where]:
        other.act(choice)
    legal = np.flatnonzero(other.legal)
    others = legal[legal != game.taken[where]]
    if others.size:
        if other.episode.turn == STAGE_LAYERS and rng.random() < 0.5:
            # A neighbouring border is more often better than a distant one.
            near = np.argsort(np.abs(others - game.taken[where]), kind="stable")[:4]
            others = others[near]
        other.act(int(rng.choice(others)))
        kept = kept[1:]
    while not other.is_over:
        turn = other.episode.turn
        while kept and kept[0][0] != turn:
            kept.pop(0)
        wanted = kept.pop(0)[1] if kept else -1
        if wanted >= 0 and other.legal[wanted]:
            other.act(wanted)
        elif turn == STAGE_LAYERS and other.legal[TO_THE_END] and rng.random() < 0.5:
            other.act(TO_THE_END)
        else:
            other.act(int(rng.choice(np.flatnonzero(other.legal))))
    return _of(other)


def _of(game: Game) -> _Played:
    assert game.result is not None
    return _Played(float(game.result.length[0]), float(game.result.excess[0]), game)


def _answer(problem: Hybrid, best: _Played, method: str, evaluations: int, begin: float) -> Answer:
    """Return a played plan as an answer that proves nothing.

    Raises:
        InfeasibleError: it does not fit.
    """
    if best.excess > 0:
        raise InfeasibleError(
            f"{problem.instance}: none of {evaluations} plans that were played fits; the smallest "
            f"one lacks {best.excess:,.0f} bytes"
        )
    plan = best.game.plan()
    assert plan is not None
    return Answer(
        problem=problem,
        plan=plan,
        cost=best.length,
        method=method,
        evaluations=evaluations,
        seconds=time.perf_counter() - begin,
    )
