"""``train``: any algorithm in any environment with discrete actions, in one folder, resumable."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from parenvs.agents.learning.algorithm import Algorithm, settings_of
from parenvs.agents.learning.algorithms import algorithm
from parenvs.agents.learning.play import Play
from parenvs.errors import ParenvsError, one_line
from parenvs.fields import SCHEMA, Text, read, whole
from parenvs.files import locked, read_object, replacing, write_text

CONFIG, STATE, MODEL, CURVE = "config.json", "state.pt", "model.pt", "curve.csv"
PART = 1024
"""Turns of each environment after which all episodes begin anew: a run that goes on from a
checkpoint, which is written then, plays what an undisturbed run plays."""
SHOWN = 16
"""Updates between two points of the curve."""
SHARE = 0.05
"""Largest share of the time that checkpoints take; the last one is always written."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What decides a training; equal configurations give equal agents on equal machines.

    Attributes:
        env_id: id of the environment.
        env_kwargs: its arguments, as JSON types.
        agent: name of the algorithm.
        steps: turns of all environments.
        seed: of everything that is drawn.
        device: where the network is: cpu, cuda, ...
        settings: of the algorithm, in place of its defaults.
    """

    env_id: Text
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    agent: Text = "group"
    steps: Annotated[int, whole(1, 10**12)] = 200_000
    seed: Annotated[int, whole(0, 2**31 - 1)] = 0
    device: Text = "cpu"
    settings: dict[str, Any] = field(default_factory=dict)

    def learner(self, lens: Any) -> Algorithm:
        """Make the algorithm."""
        kind = algorithm(self.agent)
        return kind(lens, settings_of(kind, **self.settings), self.device, self.seed)


@dataclass
class Trained:
    """A trained agent.

    Attributes:
        algorithm: the algorithm, with its network.
        steps: turns that were played.
        seconds: processor seconds of this process.
        curve: (steps, mean return of the episodes since the last entry), every few updates.
    """

    algorithm: Algorithm
    steps: int
    seconds: float
    curve: list[tuple[int, float]]


def train(
    config: TrainConfig,
    folder: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], object] | None = None,
) -> Trained:
    """Train an agent.

    Every few updates the agent is written to the folder and all episodes begin anew, so a run that
    was interrupted and is resumed ends with the same weights, to the last bit, as one that was not.

    Args:
        config: what is trained where, and how long.
        folder: of checkpoints, the model and its curve; None writes nothing.
        resume: whether to go on from the folder's checkpoint, if there is one.
        say: takes a line of progress.

    Raises:
        ParenvsError: the folder holds another run, another process writes to it, or an argument
            is refused.
    """
    settings_of(algorithm(config.agent), **config.settings)  # raises before a folder is made
    if folder is None:
        return _run(config, None, None, say)
    place = Path(folder)
    with locked(place):
        state = None
        if (place / CONFIG).exists():
            if not resume:
                raise ParenvsError(f"{place}: holds a run; give --resume or another folder")
            if (kept := load_config(place)) != config:
                changed = [k for k, v in asdict(config).items() if asdict(kept)[k] != v]
                raise ParenvsError(f"{place}: of another run ({', '.join(changed)} differ)")
            state = _read(place / STATE) if (place / STATE).exists() else None
        else:
            content = {"schema": SCHEMA, **asdict(config)}
            write_text(place / CONFIG, json.dumps(content, indent=1) + "\n")
        return _run(config, place, state, say)


def load_config(folder: str | Path) -> TrainConfig:
    """Read the configuration of a run.

    Raises:
        ParenvsError: there is none, or a field is wrong.
    """
    path = Path(folder) / CONFIG
    return read(TrainConfig, read_object(path, SCHEMA), str(path))


def load(folder: str | Path, device: str = "cpu") -> Algorithm:
    """Load the trained agent of a folder; no code of it is run.

    Raises:
        ParenvsError: there is none, or it is damaged.
    """
    config = load_config(folder)
    play = Play(config.env_id, config.env_kwargs, 1)
    play.env.close()
    kind = algorithm(config.agent)
    found = kind(play.lens, settings_of(kind, **config.settings), device, config.seed)
    path = Path(folder) / MODEL
    if not path.exists():
        raise ParenvsError(f"{path}: no such file; the run has not ended: give --resume to train")
    try:
        found.net.load_state_dict(_read(path)["net"])
    except (KeyError, RuntimeError, AttributeError) as error:
        raise ParenvsError(f"{path}: of another network ({one_line(error)})") from None
    return found


def _run(
    config: TrainConfig,
    place: Path | None,
    state: dict[str, Any] | None,
    say: Callable[[str], object] | None,
) -> Trained:
    """Train from the start, or from a state."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small are slower on more
    begin, shown, due = time.process_time(), 0.0, 0.0
    kind = algorithm(config.agent)
    settings = settings_of(kind, **config.settings)
    copies = getattr(settings, "copies", 1)
    play = Play(config.env_id, config.env_kwargs, settings.envs, copies, config.seed)
    try:
        agent = config.learner(play.lens)
        part, curve = 0, []
        if state is not None:
            agent.load(state["agent"])
            part, play.turns = state["part"], state["steps"]
            curve = [(int(steps), float(value)) for steps, value in state["curve"]]
        while play.turns < config.steps:
            play.restart(part)
            agent.forget()
            done: list[float] = []
            updates = max(PART // settings.turns, 1)
            for number in range(1, updates + 1):
                batch = play.collect(agent, settings.turns)
                figures = agent.learn(batch, min(play.turns / config.steps, 1.0))
                done += play.returns
                play.returns.clear()
                if say is not None and time.monotonic() - shown > 1.0:
                    shown = time.monotonic()
                    say(_line(config, play.turns, done, figures))
                over = play.turns >= config.steps
                if number % SHOWN == 0 or number == updates or over:
                    curve.append((play.turns, float(np.mean(done)) if done else float("nan")))
                    done = []
                if over:
                    break
            part += 1
            now = time.monotonic()
            if place is not None and (play.turns >= config.steps or now >= due):
                kept = {"agent": agent.state(), "part": part, "steps": play.turns, "curve": curve}
                _write(place / STATE, kept)
                due = time.monotonic() + (time.monotonic() - now) / SHARE
                rows = "".join(f"{steps},{value:.9g}\n" for steps, value in curve)
                write_text(place / CURVE, "steps,return\n" + rows)
        if place is not None:
            _write(place / MODEL, {"net": agent.net.state_dict()})
        return Trained(agent, play.turns, time.process_time() - begin, curve)
    finally:
        torch.set_num_threads(threads)
        play.env.close()


def _line(config: TrainConfig, steps: int, done: list[float], figures: dict[str, float]) -> str:
    """Say how far a training is."""
    mean = f"mean return {np.mean(done):.4f} of {len(done)} episodes" if done else "no episode yet"
    told = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
    return f"{steps:,} of {config.steps:,} steps; {mean}; {told}"


def _write(path: Path, state: Any) -> None:
    with replacing(path) as stream:
        torch.save(state, stream)


def _read(path: Path) -> Any:
    """Read what ``_write`` wrote; no code of it is run.

    Raises:
        ParenvsError: the file is damaged.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of torch's readers, which document none
        raise ParenvsError(f"{path}: damaged ({one_line(error)}); remove it") from None


def progress(text: str) -> None:
    """Say something to the person who waits."""
    print(text, file=sys.stderr, flush=True)
