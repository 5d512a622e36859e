"""The Ray actors of a training: started, asked, and brought back when they are killed.

Ray restarts an actor that dies; the new process is given the state that the last rollout ended
with, and plays the rollout once more, with the same outcome (but where problems are drawn, which
are then others). Where several learn together and one dies in an update, all go back to the weights
before it, meet anew, and repeat it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from parenvs.agents.learning.distributed.worker import LostError, Play, State, Worker
from parenvs.agents.learning.train.config import Config
from parenvs.errors import ParenvsError, one_line

RESTARTS = 100
"""Failures of a run after which it ends."""
PAUSE, PATIENCE = 0.5, 300.0
"""Seconds between two calls of an actor that Ray restarts, and until it is given up."""


class Workers:
    """The actors of a run.

    Args:
        ray: the module, whose session is open.
        config: the run's configuration.
        shares: number of environments of each actor.
        learn: whether they learn, all-reducing their gradients.

    Attributes:
        number: number of the next rollout.
        states: for each actor what its last rollout ended with, None before the first.
        seconds: processor seconds of ``environment``, ``inference`` and ``learning``, summed over
            the actors; wall seconds of ``transfer``, in which this process waits for an actor that
            does not play or learn.
        failures: number of times that an actor was brought back.
    """

    def __init__(self, ray: Any, config: Config, shares: tuple[int, ...], learn: bool) -> None:
        self._ray, self._learn = ray, learn
        kind = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=0)(Worker)
        self._actors = [kind.remote(config, k, shares) for k in range(len(shares))]
        self.number, self.failures = 0, 0
        self._generation = self._meetings = 0
        self._last = ""
        self.states: list[State | None] = [None] * len(shares)
        self._before = list(self.states)
        self._parameters: Any = None
        self.seconds = dict.fromkeys(("environment", "inference", "learning", "transfer"), 0.0)

    def start(
        self, number: int, states: list[State | None], parameters: dict[str, Any] | None
    ) -> None:
        """Get the actors ready for a rollout.

        Args:
            number: its number.
            states: what the actors' rollouts before ended with.
            parameters: weights and optimiser; of actors that do not learn None.
        """
        self.number, self.states = number, list(states)
        self._before = list(states)
        if parameters is not None:
            self._parameters = self._ray.put(parameters)
        calls = [
            actor.start.remote(number, state, self._parameters)
            for actor, state in zip(self._actors, states, strict=True)
        ]
        for k, call in enumerate(calls):
            if self._answer(call) is None:
                self._bring_back(k)
        self._generation = 0

    def play(self, weights: dict[str, Any] | None = None) -> list[Play]:
        """Let all play a rollout.

        Args:
            weights: of the policy; None: the learners' own, and their rows stay with them.
        """
        whole, begin = weights is not None, time.perf_counter()
        sent = None if weights is None else self._ray.put(weights)
        number = self.number
        plays = self._all(lambda actor, k: actor.play.remote(number, sent, whole))
        self.number += 1
        self._before, self.states = self.states, [play.state for play in plays]
        for play in plays:
            for name in ("environment", "inference"):
                self.seconds[name] += play.seconds[name]
        longest = max(play.seconds["wall"] for play in plays)
        self.seconds["transfer"] += time.perf_counter() - begin - longest
        return plays

    def learn(self, progress: float, orders: np.ndarray) -> dict[str, float]:
        """Let the learners update their weights by the rollout that they have just played.

        Args:
            progress: share of the run's steps that remain.
            orders: see ``update``.

        Returns:
            the figures of ``update``.
        """
        while True:
            if not self._generation:
                self._meet()
            sent = self._ray.put(orders)
            arguments = (self.number, self._generation, progress, sent)
            pairs = [
                actor.learn.options(num_returns=2).remote(*arguments) for actor in self._actors
            ]
            figures = [self._answer(first) for first, _ in pairs]
            if all(figures):
                self._parameters = pairs[0][1]
                break
            self._repair()
        self.seconds["learning"] += sum(one.pop("seconds") for one in figures)
        return figures[0]

    def parameters(self) -> dict[str, Any] | None:
        """Weights and optimiser of the learners; None if nobody has told any."""
        return None if self._parameters is None else self._ray.get(self._parameters)

    def stop(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor)

    def _all(self, call: Callable[[Any, int], Any]) -> list[Any]:
        """What a call of every actor returns; those that have died are brought back and called."""
        answers: dict[int, Any] = {}
        while len(answers) < len(self._actors):
            missing = [k for k in range(len(self._actors)) if k not in answers]
            calls = {k: call(self._actors[k], k) for k in missing}
            for k, reference in calls.items():
                found = self._answer(reference)
                if found is None:
                    self._bring_back(k)
                else:
                    answers[k] = found
        return [answers[k] for k in range(len(self._actors))]

    def _answer(self, reference: Any) -> Any:
        """What a call returns, or None if the actor died, or has not what the call needs."""
        try:
            return self._ray.get(reference)
        except (self._ray.exceptions.RayActorError, LostError) as error:
            self._last = one_line(error)
            return None
        except self._ray.exceptions.RayTaskError as error:
            if self._learn and isinstance(error.cause, RuntimeError):  # of Gloo: another is gone
                self._last = one_line(error.cause)
                return None
            raise

    def _bring_back(self, k: int) -> None:
        """Start an actor at the rollout that is due, as often as it takes."""
        self._count()
        self._generation = 0
        begin = time.monotonic()
        while True:
            try:
                self._ray.get(
                    self._actors[k].start.remote(self.number, self.states[k], self._parameters)
                )
                return
            except self._ray.exceptions.RayActorError as error:
                self._last = one_line(error)
                too_long = time.monotonic() - begin > PATIENCE
                if too_long or "creation task" in self._last:  # it will never come up
                    raise ParenvsError(
                        f"an actor of the run does not come back: {self._last}; go on with --resume"
                    ) from None
            time.sleep(PAUSE)  # while Ray restarts it, each call fails at once

    def _count(self) -> None:
        self.failures += 1
        if self.failures > RESTARTS:
            raise ParenvsError(
                f"actors of the run died {self.failures} times, at last: {self._last}; look for "
                "memory that runs out, give fewer of them, and go on with --resume"
            )

    def _repair(self) -> None:
        """After a failed update, bring all learners back to where it began."""
        after = self.states
        for k, actor in enumerate(self._actors):
            if self._answer(actor.at.remote()) != self.number:
                # It plays its rollout once more; the others still have theirs.
                self.number, self.states = self.number - 1, self._before
                try:
                    while True:
                        self._bring_back(k)
                        if self._answer(actor.play.remote(self.number, None, False)) is not None:
                            break
                finally:
                    self.number, self.states = self.number + 1, after
            else:
                self._answer(actor.restore.remote(self._parameters))
        self._count()
        self._generation = 0

    def _meet(self) -> None:
        """Let the learners meet for their gradients; one that dies meanwhile is brought back."""
        while True:
            self._meetings += 1
            place = self._answer(self._actors[0].invite.remote())
            if place is not None:
                count = len(self._actors)
                calls = [a.join.remote(place, count, self._meetings) for a in self._actors]
                if None not in [self._answer(reference) for reference in calls]:
                    break
            self._repair()
        self._generation = self._meetings
