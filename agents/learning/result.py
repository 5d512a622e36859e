"""``TrainResult``: what a training found, as its folder keeps it."""

from __future__ import annotations

from dataclasses import dataclass

RESULT, PLAN = "result.json", "plan.json"
SCORES = "scores.json"
"""File of the returns on a validation set, in place of a plan where problems are drawn."""


@dataclass(frozen=True)
class TrainResult:
    """What a training run found.

    Attributes:
        value: return of the best episode, None if none has ended; where problems are drawn, so
            that episodes do not compare, the mean worth of the trained policy's best actions on
            ``judged_on``, and without such a set the mean return of the last episodes.
        actions: the actions of the best episode; none where problems are drawn.
        steps: number of environment steps done.
        best_steps: environment steps after which the best episode was found.
        target_steps: environment steps after which the target was reached, or None.
        target_seconds: processor seconds after which the target was reached, or None.
        episodes: number of complete episodes; each is one plan judged.
        seconds: processor seconds of training.
        regret: where problems are drawn, the interquartile mean on ``judged_on``, see
            ``SetEvaluation``; else None.
        interval: its 95 % interval over the problems, or None.
        judged_on: the validation set, or None.
        reference: what the regret is to, see ``SetEvaluation``, or None.
    """

    value: float | None
    actions: list[int]
    steps: int
    best_steps: int
    target_steps: int | None
    target_seconds: float | None
    episodes: int
    seconds: float
    regret: float | None = None
    interval: tuple[float, float] | None = None
    judged_on: str | None = None
    reference: str | None = None
