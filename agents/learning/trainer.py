"""``train``: any algorithm in any environment with discrete actions, in one folder, resumable."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from parenvs.agents.evaluation.evaluate_set import SetEvaluation, evaluate_set
from parenvs.agents.learning.algorithm import Algorithm
from parenvs.agents.learning.config import (
    CONFIG,
    MODEL,
    PLAN,
    RESULT,
    SCORES,
    TrainConfig,
    TrainResult,
    building,
    check_free,
    claimed,
    load_config,
    plain_id,
)
from parenvs.agents.learning.engine import LostError
from parenvs.agents.learning.options import HEURISTIC, IMITATION, STARTS
from parenvs.agents.learning.play import Episode, Player, one_thread, replayed
from parenvs.agents.learning.team import Recipe, Team
from parenvs.core.request import Request
from parenvs.core.sets import validation_of
from parenvs.errors import ParenvsError, one_line
from parenvs.fields import SCHEMA, checked
from parenvs.files import locked, replacing, write_text
from parenvs.tensors import read_saved

STATE, CURVE, LOG = "state.pt", "curve.csv", "log"
PART = 1024
"""Turns of each environment after which all episodes begin anew; a run that goes on from a
checkpoint takes the actions of its part again."""
SHOWN = 16
"""Episodes between two points of the curve."""
SHARE = 0.05
"""Largest share of the time that checkpoints take; the last one is always written."""
TRIES = 4
"""How often processes may be lost between two checkpoints."""
AHEAD = 16
"""Updates that learners make without a word, where they need not wait for each other."""
_KEPT = ("updates", "turns", "episodes", "target_steps", "target_seconds", "done")
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
    engine: str | None = None,
    address: str | None = None,
) -> Trained:
    """Train an agent.

    The first checkpoint comes after the first update, the next ones so that writing them takes a
    twentieth of the time at most. A run that was interrupted and is resumed ends with the same
    weights, to the last bit, as one that was not. The model is written before it is judged. If a
    process of a distributed training is lost, all begin anew from the last checkpoint.

    Args:
        config: what is trained where, and how long.
        folder: of checkpoints, logs, the model, its curve, result and best plan, or scores on the
            validation set where problems are drawn; None writes nothing.
        resume: whether to go on from the folder's checkpoint, if there is one.
        say: takes a line of progress.
        target: an episode's return; the result says when it was first reached.
        stop_at_target: whether the training ends then.
        engine: what starts the processes of a distribution: ``ray`` or ``local``; None: Ray where
            it is installed.
        address: of a cluster of Ray; None: this machine.

    Raises:
        ParenvsError: the folder holds another run, another process writes to it, or an argument
            is refused.
    """
    config.agent_settings()  # raises before a folder is made
    given = {
        "resume": resume, "target": target, "stop_at_target": stop_at_target, "engine": engine,
        "address": address,
    }  # fmt: skip
    resume, target, stop_at_target, engine, address = checked(train, given).values()
    if config.start not in STARTS:
        load(config.start)
    with one_thread(), tempfile.TemporaryDirectory() as spare:
        path = None if folder is None else Path(folder)
        with contextlib.nullcontext() if path is None else locked(path):
            fresh = path is not None and _claim(path, config, resume)
            try:
                begun = config
                if config.start == IMITATION:
                    begun = _begun(config, (path or Path(spare)) / IMITATION, say)
                started = Training(begun, path, say, target, engine, address)
                with contextlib.closing(started) as run:
                    run.learn(stop_at_target)
                    return run.trained()
            except (KeyboardInterrupt, ParenvsError, OSError):
                # A run without a checkpoint leaves the folder free for another one.
                if path is not None and fresh and not (path / STATE).exists():
                    (path / CONFIG).unlink()
                raise


def _begun(config: TrainConfig, folder: Path, say: Say | None) -> TrainConfig:
    """Return a configuration that begins with a network which is taught first, in a folder."""
    settings = {key: value for key, value in config.settings.items() if key == "width"}
    steps = max(config.steps // 4, 1)
    taught = replace(config, agent="imitate", start=HEURISTIC, settings=settings, steps=steps)
    train(taught, folder, resume=True, say=say)
    return replace(config, start=str(folder))


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


def _claim(path: Path, config: TrainConfig, resume: bool) -> bool:
    """Write the configuration into a folder, or check it; return whether it is new."""
    check_free(path, resume)
    if not claimed(path):
        given = {name: value for name, value in asdict(config).items() if value is not None}
        content = {"schema": SCHEMA, **given}
        try:
            text = json.dumps(content, indent=1)
        except (TypeError, ValueError) as error:
            raise ParenvsError(
                f"{path / CONFIG}: only JSON types can be written ({error})"
            ) from None
        write_text(path / CONFIG, text + "\n")
        return True
    if (kept := load_config(path, trust=True)) != config:
        changed = [name for name, value in asdict(config).items() if asdict(kept)[name] != value]
        raise ParenvsError(f"{path}: holds a run of another configuration: {', '.join(changed)}")
    return False


def load(folder: str | Path, device: str = "cpu", trust: bool = False) -> Algorithm:
    """Load the trained agent of a folder; no code of it is run unless ``trust`` allows functions.

    Raises:
        ParenvsError: there is none, or it is damaged.
    """
    config, path = load_config(folder, trust), Path(folder) / MODEL
    if not path.exists():
        raise ParenvsError(
            f"{path}: no such file, as the run has not ended; parenvs train --resume --out {folder}"
        )
    with building(folder):
        agent = untrained(replace(config, start=HEURISTIC), device).agent
    agent.read(path)
    return agent


def untrained(config: TrainConfig, device: str | None = None) -> Player:
    """Make the agent of a configuration as a policy, as it is before its training."""
    recipe = Recipe(config)
    return Player(recipe.agent(recipe.look().lens, device), plain_id(config.env_id))


def player(folder: str | Path, trust: bool = False) -> Player:
    """Load the trained agent of a folder as a policy; see ``load``."""
    return Player(load(folder, trust=trust), plain_id(load_config(folder, trust).env_id))


def rules_of(config: TrainConfig) -> dict[str, Any]:
    """Return the arguments of a run's environment that it has on every set and problem, too."""
    judged_on = validation_of(plain_id(config.env_id), config.env_kwargs)
    rules = {} if judged_on is None else dict(judged_on.settings)
    return rules | {key: value for key, value in config.env_kwargs.items() if key == "rows"}


class Training:
    """A training between two updates; the arguments are those of ``train``.

    ``path`` is the run folder with the checkpoint to continue; None: none.
    """

    def __init__(
        self,
        config: TrainConfig,
        path: Path | None = None,
        say: Say | None = None,
        target: float | None = None,
        engine: str | None = None,
        address: str | None = None,
    ) -> None:
        self.config, self.path, self.say, self.target = config, path, say, target
        self.recipe = Recipe(config, engine, address)
        settings = self.recipe.settings
        self.length = min(settings.turns, -(-config.steps // settings.envs))
        self.part = max(PART // self.length, 1)  # updates after which all episodes begin anew
        self.team = cast(Team, None)
        self.updates = self.turns = self.episodes = 0
        self.best: Episode | None = None
        self.curve: list[tuple[int, float]] = []
        self.done: list[float] = []  # returns since the last point of the curve
        self.figures: dict[str, float] = {}
        self.target_steps: int | None = None
        self.target_seconds: float | None = None
        self._shown, self._due, self._before, self._lost = 0.0, 0.0, 0.0, 0
        self._begin, self._log = time.process_time(), cast(Any, None)
        # The last state, where there is no checkpoint; bytes, since its tensors change.
        self._first = b""
        self._start()

    @property
    def agent(self) -> Algorithm:
        """The agent, as it has learned so far."""
        self.team.fetch()
        return self.team.agent

    @property
    def seconds(self) -> float:
        """Processor seconds of all processes, and of those that they go on from."""
        return self._before + time.process_time() - self._begin + self.team.spent()

    def learn(self, stop_at_target: bool) -> None:
        """Train to the end."""
        config, team = self.config, self.team
        weights = sum(x.numel() for x in team.agent.net.parameters())
        self._report(f"{config.env_id}: {config.agent}, {team.count} at once, {weights:,} weights")
        while True:
            try:
                while not self._over(stop_at_target):
                    self.update()
                    if len(self.done) >= SHOWN or self._over(stop_at_target):
                        self.curve.append((self.turns, float(np.mean(self.done or [np.nan]))))
                        self._record()
                        self.done = []
                    if time.monotonic() >= self._due:
                        self.save()
                if self.path is not None:
                    self.save()
                self.team.fetch()
                self._spent = self.seconds
                return
            except LostError as error:
                self._start(error)

    def update(self) -> None:
        """Play some turns, and learn from them; several times where learners need not wait."""
        # Parts bound the actions that a resumed run has to take again.
        part, number = divmod(self.updates, self.part)
        times = 1 if self.config.staleness is None else min(self.part - number, AHEAD)
        parts = [None if number else part, *[None] * (times - 1)]
        for summary in self.team.updates(parts, self.length, self._show):
            self.figures, self.turns = summary.figures, summary.turns
            self.episodes, self.best = summary.episodes, summary.best
            self.done += summary.returns
            best = self.best
            target = self.target if self.target_steps is None else None
            if target is not None and best is not None and best.value >= target:
                self.target_steps, self.target_seconds = best.turns, self.seconds
        self.updates += times
        self._show()

    def trained(self) -> Trained:
        """Write the model, evaluate it, and write the result."""
        config, path, best, draws = self.config, self.path, self.best, self.team.draws
        if path is not None:
            _write(path / MODEL, {"net": self.team.agent.net.state_dict()})
        value, actions, best_steps = best or (None, [], 0)
        result = TrainResult(
            value=value, actions=actions, steps=self.turns, best_steps=best_steps,
            target_steps=self.target_steps, target_seconds=self.target_seconds,
            episodes=self.episodes, seconds=self._spent,
        )  # fmt: skip
        scores = self._judged() if draws else None
        if scores is not None:
            result = replace(
                result, value=scores.score, coverage=scores.coverage,
                interval=scores.interval, judged_on=scores.set_name, reference=scores.reference,
            )  # fmt: skip
        elif draws and self.curve and np.isfinite(self.curve[-1][1]):
            result = replace(result, value=self.curve[-1][1])
        if path is not None:
            if scores is not None:
                scores.save(path / SCORES)
            if best is not None:
                built = replayed(config.env_id, config.env_kwargs, best.actions, config.seed)
                built.get_wrapper_attr("plan")().save(path / PLAN)
            write_text(path / RESULT, json.dumps(asdict(result), indent=1) + "\n")
        return Trained(self.team.agent, result, self.curve, scores)

    def close(self) -> None:
        """Close environments and logs, and end processes."""
        self.team.close()
        if self._log is not None:
            self._log.close()

    def _over(self, stop_at_target: bool) -> bool:
        is_reached = stop_at_target and self.target_steps is not None
        return is_reached or self.turns >= self.config.steps

    def _judged(self) -> SetEvaluation | None:
        env_id = plain_id(self.config.env_id)
        validation = validation_of(env_id, self.config.env_kwargs)
        if validation is None:
            return None
        self._report(f"judged on {validation.name}")
        try:
            player = Player(self.team.agent, env_id)
            rules = rules_of(self.config)
            return evaluate_set(player, validation.name, validation.family, settings=rules)
        except ParenvsError as error:  # of problems of another size
            self._report(f"not judged: {error}")
            return None

    def _show(self, play: Any = None) -> None:
        """Report the progress, at most once a second; ``play`` is in the midst of an update."""
        if time.monotonic() - self._shown > 1.0:
            turns, returns = (self.turns, []) if play is None else (play.turns, play.returns)
            done = [*self.done, *returns]
            mean = f"; mean return {np.mean(done):.4f} of {len(done)} episodes" if done else ""
            figures = "".join(f", {name} {value:.3g}" for name, value in self.figures.items())
            self._report(f"{turns:,} of {self.config.steps:,} steps{mean}{figures}")

    def _report(self, text: str) -> None:
        self._shown = time.monotonic()
        if self.say is not None:
            self.say(text)

    def _record(self) -> None:
        """Write the last point of the curve to tensorboard's log, if that is installed."""
        if self.path is None:
            return
        if self._log is None:
            with contextlib.suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter

                self._log = SummaryWriter(str(self.path / LOG), purge_step=self.turns)
        if self._log is not None:
            steps, value = self.curve[-1]
            for name, figure in {"return": value, **self.figures}.items():
                self._log.add_scalar(name, figure, steps)

    def save(self) -> None:
        """Write a checkpoint and the curve, or hold the state where there is no folder."""
        begin = time.monotonic()
        state = self._state()
        if self.path is None:
            self._first = _packed(state)
        else:
            _write(self.path / STATE, state)
            rows = "".join(f"{steps},{value:.9g}\n" for steps, value in self.curve)
            write_text(self.path / CURVE, "steps,return\n" + rows)
        self._lost = 0
        now = time.monotonic()
        # A checkpoint that took s seconds is followed by s / SHARE seconds of training.
        self._due = now + (now - begin) / SHARE

    def _state(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _KEPT},
            "seconds": self.seconds,
            "team": self.team.state(),
            "curve": self.curve,
            "best": None if self.best is None else tuple(self.best),
        }

    def _resume(self) -> bool:
        """Go on from the last checkpoint, or else the held state, if there is one."""
        if self.path is not None and (self.path / STATE).exists():
            state = read_saved(self.path / STATE, *_KEPT, "seconds", "team", "curve", "best")
        elif self._first:
            state = torch.load(io.BytesIO(self._first), weights_only=True)
        else:
            return False
        try:
            for name in _KEPT:
                setattr(self, name, state[name])
            part, number = divmod(int(self.updates), self.part)
            if part < 0:
                raise ValueError(f"update {self.updates}")
            self.curve = [(int(steps), float(value)) for steps, value in state["curve"]]
            self._before = float(state["seconds"])
            self._begin = time.process_time()
            self.best = None if state["best"] is None else Episode(*state["best"])
            self.team.load(state["team"], part if number else None)
            return True
        except LostError:
            raise
        except Exception as error:  # of many kinds, as anything may be in a file
            raise ParenvsError(
                f"{self.path}: {STATE} is of another run ({one_line(error)}); remove it"
            ) from None

    def _start(self, error: LostError | None = None) -> None:
        """Start all processes, after an error anew, and go on from the last state there is."""
        while True:
            try:
                if error:
                    self._lost += 1
                    if self._lost > TRIES:
                        raise ParenvsError(
                            f"{error}, the {self._lost}th time since the last checkpoint; the same "
                            "command goes on from there, with fewer processes if memory ran out"
                        )
                    self._report(f"{error}; on from the last checkpoint")
                    if self.team:
                        self.team.close()
                self.team = Team(self.recipe)
                if not self._resume():
                    self._first = _packed(self._state())
                return
            except LostError as new:
                error = new


def _write(path: Path, state: Any) -> None:
    with replacing(path) as stream:
        stream.write(_packed(state))


def _packed(state: Any) -> bytes:
    # PyTorch has no word for a full disk: what it writes to a stream stays in memory first.
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def progress(text: str) -> None:
    """Print a line of progress to standard error."""
    print(text, file=sys.stderr, flush=True)
