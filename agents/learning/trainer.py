"""``train``: any algorithm in any environment with discrete actions, in one folder, resumable."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from parenvs.agents.evaluation.set_evaluation import SetEvaluation, judged
from parenvs.agents.learning.algorithm import Algorithm
from parenvs.agents.learning.config import (
    CONFIG,
    TrainConfig,
    building,
    check_free,
    claimed,
    load_config,
)
from parenvs.agents.learning.play import Episode, Play, one_thread, replayed
from parenvs.agents.learning.player import Player
from parenvs.agents.learning.result import PLAN, RESULT, SCORES, TrainResult
from parenvs.core.request import Request
from parenvs.core.sets import validation_of
from parenvs.errors import ParenvsError, one_line
from parenvs.fields import SCHEMA
from parenvs.files import locked, replacing, write_text
from parenvs.tensors import check_finite, read_saved

STATE, MODEL, CURVE, LOG = "state.pt", "model.pt", "curve.csv", "log"
PART = 1024
"""Turns of each environment after which all episodes begin anew; a run that goes on from a
checkpoint takes the actions of its part again."""
SHOWN = 16
"""Episodes between two points of the curve."""
SHARE = 0.05
"""Largest share of the time that checkpoints take; the last one is always written."""
_KEPT = ("number", "part", "steps", "episodes", "target_steps", "target_seconds", "seconds", "done")
"""Figures of a run that a checkpoint holds."""
Say = Callable[[str], object]


@dataclass
class Trained:
    """A trained agent.

    Attributes:
        algorithm: the algorithm, with its network.
        result: what the training found.
        curve: (steps, mean return of the episodes since the last entry), every few episodes.
        scores: on the validation set, if there is one.
    """

    algorithm: Algorithm
    result: TrainResult
    curve: list[tuple[int, float]]
    scores: SetEvaluation | None = None


def train(
    config: TrainConfig,
    folder: str | Path | None = None,
    resume: bool = False,
    say: Say | None = None,
    target: float | None = None,
    stop_at_target: bool = False,
) -> Trained:
    """Train an agent.

    The first checkpoint comes after the first update, the next ones so that writing them takes a
    twentieth of the time at most. A run that was interrupted and is resumed ends with the same
    weights, to the last bit, as one that was not. The model is written before it is judged.

    Args:
        config: what is trained where, and how long.
        folder: of checkpoints, logs, the model, its curve, result and best plan, or scores on the
            validation set where problems are drawn; None writes nothing.
        resume: whether to go on from the folder's checkpoint, if there is one.
        say: takes a line of progress.
        target: an episode's return; the result says when it was first reached.
        stop_at_target: whether the training ends then.

    Raises:
        ParenvsError: the folder holds another run, another process writes to it, or an argument
            is refused.
    """
    config.agent_settings()  # raises before a folder is made
    with one_thread():
        if folder is None:
            with contextlib.closing(Training(config, None, say, target)) as run:
                run.learn(stop_at_target)
                return run.trained()
        place = Path(folder)
        with locked(place):
            fresh = _claim(place, config, resume)
            try:
                with contextlib.closing(Training(config, place, say, target)) as run:
                    run.learn(stop_at_target)
                    return run.trained()
            except (KeyboardInterrupt, ParenvsError):
                if fresh and not (place / STATE).exists():
                    (place / CONFIG).unlink()
                raise


def on_problem(request: Request, agent: str) -> TrainResult:
    """Train an agent on the problem of a request, until its steps are done.

    Raises:
        ParenvsError: no agent has this name.
    """
    config = TrainConfig(
        env_id=request.env_id, env_kwargs=request.object_kwargs, agent=agent, seed=request.seed,
        steps=request.steps,
    )  # fmt: skip
    return train(config, say=progress if request.progress else None).result


def _claim(place: Path, config: TrainConfig, resume: bool) -> bool:
    """Write the configuration into a folder, or check that it is there; return whether it is new.

    Raises:
        ParenvsError: the folder holds a run that is not to be resumed, or another one.
    """
    check_free(place, resume)
    if not claimed(place):
        content = {"schema": SCHEMA, **asdict(config)}
        try:
            text = json.dumps(content, indent=1)
        except (TypeError, ValueError) as error:
            raise ParenvsError(
                f"{place / CONFIG}: only JSON types can be written ({error})"
            ) from None
        write_text(place / CONFIG, text + "\n")
        return True
    if (kept := load_config(place, trust=True)) != config:
        changed = [name for name, value in asdict(config).items() if asdict(kept)[name] != value]
        raise ParenvsError(f"{place}: holds a run of another configuration: {', '.join(changed)}")
    return False


def load(folder: str | Path, device: str = "cpu", trust: bool = False) -> Algorithm:
    """Load the trained agent of a folder; no code of it is run.

    Args:
        folder: of the run.
        device: where its network will be.
        trust: whether the file of a Python function that it was trained on may be run.

    Raises:
        ParenvsError: there is none, or it is damaged.
    """
    config, path = load_config(folder, trust), Path(folder) / MODEL
    if not path.exists():
        raise ParenvsError(f"{path}: no such file; the run has not ended: give --resume to train")
    with building(folder):
        found = untrained(config, device).agent
    content = read_saved(path)
    try:
        found.net.load_state_dict(content["net"])
        check_finite(content["net"])
    except Exception as error:  # of many kinds, as anything may be in a file
        raise ParenvsError(f"{path}: of another network ({one_line(error)})") from None
    return found


def untrained(config: TrainConfig, device: str | None = None) -> Player:
    """Make the agent of a configuration as a policy, as it is before its training."""
    play = Play(config.env_id, config.env_kwargs, 1)
    play.env.close()
    return Player(config.learner(play.lens, device), _plain(config.env_id))


def player(folder: str | Path, trust: bool = False) -> Player:
    """Load the trained agent of a folder as a policy; see ``load``."""
    return Player(load(folder, trust=trust), _plain(load_config(folder, trust).env_id))


def rules_of(config: TrainConfig) -> dict[str, Any]:
    """Return the arguments of a run's environment that it has on every set and problem, too."""
    judged_on = validation_of(_plain(config.env_id), config.env_kwargs)
    kept = {} if judged_on is None else dict(judged_on.settings)
    return {**kept, **{key: value for key, value in config.env_kwargs.items() if key == "rows"}}


class Training:
    """A training between two updates.

    Args:
        config: what is trained.
        place: folder of the run, whose checkpoint it goes on from; None: of none.
        say: takes a line of progress.
        target: return of an episode that is looked for.
    """

    def __init__(
        self,
        config: TrainConfig,
        place: Path | None = None,
        say: Say | None = None,
        target: float | None = None,
    ) -> None:
        self.config, self.place, self.say, self.target = config, place, say, target
        settings = config.agent_settings()
        self.turns = min(settings.turns, -(-config.steps // settings.envs))
        copies = getattr(settings, "copies", 1)
        self.play = Play(config.env_id, config.env_kwargs, settings.envs, copies, config.seed)
        self.agent = config.learner(self.play.lens)
        self.number = self.part = 0  # updates of the part so far, and parts
        self.curve: list[tuple[int, float]] = []
        self.done: list[float] = []  # returns since the last point of the curve
        self.figures: dict[str, float] = {}
        self.target_steps: int | None = None
        self.target_seconds: float | None = None
        self._shown, self._due, self._before = 0.0, 0.0, 0.0
        self._begin, self._log = time.process_time(), cast(Any, None)
        if place is not None and (place / STATE).exists():
            self._load(read_saved(place / STATE))

    @property
    def seconds(self) -> float:
        """Processor seconds of this process, and of those that it goes on from."""
        return self._before + time.process_time() - self._begin

    def learn(self, stop_at_target: bool) -> None:
        """Train to the end."""
        config, play = self.config, self.play
        weights = sum(each.numel() for each in self.agent.net.parameters())
        self._tell(f"{config.env_id}: {config.agent}, {play.count} at once, {weights:,} weights")
        while not self._over(stop_at_target):
            self.update()
            if len(self.done) >= SHOWN or self._over(stop_at_target):
                self.curve.append((play.turns, float(np.mean(self.done or [np.nan]))))
                self._record()
                self.done = []
            if self.place is not None and time.monotonic() >= self._due:
                self.save()
        if self.place is not None:
            self.save()

    def update(self) -> None:
        """Play some turns, and learn from them."""
        config, play = self.config, self.play
        if self.number == 0:
            play.restart(self.part)
            self.agent.forget()
        batch = play.collect(self.agent, self.turns, self._tick)
        self.figures = self.agent.learn(batch, min(play.turns / config.steps, 1.0))
        self.done += play.returns
        play.returns.clear()
        is_new = self.target_steps is None and play.best is not None
        if self.target is not None and is_new and play.best.value >= self.target:
            self.target_steps, self.target_seconds = play.best.turns, self.seconds
        self.number += 1
        if self.number == max(PART // self.turns, 1):
            self.number, self.part = 0, self.part + 1

    def trained(self) -> Trained:
        """Write the model, judge it, and write what was found."""
        config, play, place = self.config, self.play, self.place
        if place is not None:
            _write(place / MODEL, {"net": self.agent.net.state_dict()})
        best = play.best
        result = TrainResult(
            value=best.value if best else None,
            actions=best.actions if best else [],
            steps=play.turns,
            best_steps=best.turns if best else 0,
            target_steps=self.target_steps,
            target_seconds=self.target_seconds,
            episodes=play.episodes,
            seconds=self.seconds,
        )
        scores = self._judged() if play.draws else None
        if scores is not None:
            result = replace(
                result, value=float(scores.values.mean()), regret=scores.regret,
                interval=scores.interval, judged_on=scores.set_name, reference=scores.reference,
            )  # fmt: skip
        elif play.draws and self.curve and np.isfinite(self.curve[-1][1]):
            result = replace(result, value=self.curve[-1][1])
        if place is not None:
            if scores is not None:
                scores.save(place / SCORES)
            if best is not None:
                built = replayed(config.env_id, config.env_kwargs, best.actions, config.seed)
                built.get_wrapper_attr("plan")().save(place / PLAN)
            write_text(place / RESULT, json.dumps(asdict(result), indent=1) + "\n")
        return Trained(self.agent, result, self.curve, scores)

    def close(self) -> None:
        """Close environments and logs."""
        self.play.env.close()
        if self._log is not None:
            self._log.close()

    def _over(self, stop_at_target: bool) -> bool:
        is_reached = stop_at_target and self.target_steps is not None
        return is_reached or self.play.turns >= self.config.steps

    def _judged(self) -> SetEvaluation | None:
        """How the best actions do on the validation set of what the agent was trained on."""
        env_id = _plain(self.config.env_id)
        found = validation_of(env_id, self.config.env_kwargs)
        if found is None:
            return None
        self._tell(f"judged on {found.name}")
        try:
            own = found._replace(settings=rules_of(self.config))
            return judged(Player(self.agent, env_id), *own)
        except ParenvsError as error:  # of problems of another size
            self._tell(f"not judged: {error}")
            return None

    def _tick(self) -> None:
        """Say how far the training is, once a second."""
        if time.monotonic() - self._shown > 1.0:
            done = self.done + self.play.returns
            mean = f"; mean return {np.mean(done):.4f} of {len(done)} episodes" if done else ""
            told = "".join(f", {name} {value:.3g}" for name, value in self.figures.items())
            self._tell(f"{self.play.turns:,} of {self.config.steps:,} steps{mean}{told}")

    def _tell(self, text: str) -> None:
        self._shown = time.monotonic()
        if self.say is not None:
            self.say(text)

    def _record(self) -> None:
        """Write the last point of the curve to tensorboard's log, if that is installed."""
        if self.place is None:
            return
        if self._log is None:
            with contextlib.suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter

                self._log = SummaryWriter(str(self.place / LOG), purge_step=self.play.turns)
        if self._log is not None:
            steps, value = self.curve[-1]
            for name, figure in {"return": value, **self.figures}.items():
                self._log.add_scalar(name, figure, steps)

    def save(self) -> None:
        """Write a checkpoint and the curve."""
        assert self.place is not None
        begin, play = time.monotonic(), self.play
        figures = {**vars(self), "steps": play.turns, "episodes": play.episodes}
        figures["seconds"] = self.seconds
        history = np.array(play.history, dtype=np.int64).reshape(-1, play.count)
        state = {
            **{name: figures[name] for name in _KEPT},
            "agent": self.agent.state(), "curve": self.curve,
            "history": torch.from_numpy(history if self.number else history[:0]),
            "best": None if play.best is None else tuple(play.best),
        }  # fmt: skip
        _write(self.place / STATE, state)
        rows = "".join(f"{steps},{value:.9g}\n" for steps, value in self.curve)
        write_text(self.place / CURVE, "steps,return\n" + rows)
        now = time.monotonic()
        self._due = now + (now - begin) / SHARE

    def _load(self, state: Any) -> None:
        """Go on from what ``save`` wrote.

        Raises:
            ParenvsError: it is of another run.
        """
        try:
            self.agent.load(state["agent"])
            for name in _KEPT:
                if name not in ("steps", "episodes", "seconds"):
                    setattr(self, name, state[name])
            if not 0 <= int(self.number) < PART or int(self.part) < 0:
                raise ValueError(f"update {self.number} of part {self.part}")
            self.curve = [(int(steps), float(value)) for steps, value in state["curve"]]
            self._before, play = float(state["seconds"]), self.play
            play.turns, play.episodes = state["steps"], state["episodes"]
            play.best = None if state["best"] is None else Episode(*state["best"])
            if self.number:
                play.restart(self.part)
                play.go_on(state["history"].numpy())
        except Exception as error:  # of many kinds, as anything may be in a file
            raise ParenvsError(
                f"{self.place}: {STATE} is of another run ({one_line(error)}); remove it"
            ) from None


def _plain(env_id: str) -> str:
    return env_id.removeprefix("parenvs/")


def _write(path: Path, state: Any) -> None:
    with replacing(path) as stream:
        torch.save(state, stream)


def progress(text: str) -> None:
    """Say something to the person who waits."""
    print(text, file=sys.stderr, flush=True)
